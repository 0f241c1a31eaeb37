"""Nothing that others wrote reaches a terminal, a pipe or a reader of JSON as a code."""

import io
import json
import unicodedata
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.cli import _json, _top_tables, doctor, fit, inventory, log, ps, share, vendors
from hetero.cli._draw import Pipe, draw, layout
from hetero.cli._render import Part, Text
from hetero.cli._show import dumps
from hetero.cli._terminal import _Escaping
from hetero.container.share import Shares, ShareView
from hetero.model import (
    Allocation,
    Device,
    DeviceAllocation,
    Enforcement,
    Policy,
    Priority,
    Refusal,
    Usage,
    Whole,
)
from hetero.model.visible import visible
from hetero.node.ledger.events import Event
from hetero.node.ledger.grant_file import DeviceLimit
from hetero.node.ledger.ledger import ContainerInfo, Grant, Unreadable
from hetero.node.view.bypass import Bypass
from hetero.node.view.doctor import Diagnosis, Finding
from hetero.node.view.observe import (
    DeviceView,
    GrantsView,
    GrantView,
    NodeView,
    Process,
    Share,
)
from hetero.registry.vendor_row import VendorRow

from .streams import Stream, console

#: What terminals obey, what people would be misled by, markup of libraries, and any bytes at all.
HOSTILE = st.one_of(
    st.sampled_from(
        [
            "\x1b[31;7mX\x1b]0;owned\x07",
            "\x9b31m",
            "a\nb\r\nc\td",
            "\u202egnp.exe\u2066",
            "[bold red]x[/]",
            "[/no]",
            "\x7f\x00",
            "\udcff\udc80",
            "模型 e\u0301",
        ]
    ),
    st.binary(max_size=40).map(lambda some: some.decode("utf-8", "surrogateescape")),
    st.text(max_size=40),
)
SINCE = "2026-11-22T10:00:00+00:00"


def a_device(text: str) -> Device:
    return Device(
        uuid=text,
        vendor=text,
        model=text,
        index=0,
        capacity={"core": 100, "memory": 1 << 34, "slots": 10},
        granularity=Whole(),
        enforcement=Enforcement.PRELOAD,
        health=text or None,
        pci=text,
        attributes={text: text},
    )


def an_allocation(text: str) -> Allocation:
    takes = {"core": 30, "memory": 1 << 30, "slots": 1}
    piece = DeviceAllocation(
        device=text, vendor=text, takes=takes, core=30, template=text, part=text
    )
    return Allocation(pieces=(piece,))


def a_grant(text: str) -> GrantView:
    container = ContainerInfo(id=text, name=text, image=text, state=text)
    part = Share(
        device=text,
        device_number=0,
        memory_bytes=1 << 30,
        core_percent=30.0,
        memory_used_bytes=5,
        denied_count=2,
    )
    return GrantView(
        id="4f1c",
        label=text,
        user=text,
        command=(text, text),
        since_utc=SINCE,
        policy=Policy.FIXED,
        priority=Priority.LOW,
        processes=(4, 5),
        shares=(part,),
        containers=(container, container),
        running=(
            Process(pid=4, program=text, container=text, memory_bytes=(4,)),
            Process(pid=5, program=text),
        ),
        bypass=(
            Bypass(device=text, pid=4, program=text, grant=text, memory_bytes=5, core_percent=50.0),
        ),
    )


def a_node(text: str) -> NodeView:
    usage = Usage(memory=5, core=0.5, temperature=61, power=70.5, processes={4: 5})
    held = {"core": 30, "memory": 1 << 30, "slots": 1}
    device = DeviceView(
        device_number=0, device=a_device(text), held=held, usage=usage, grants=(text,)
    )
    return NodeView(
        devices=(device, device, device),
        grants=(a_grant(text),),
        unreadable=(Unreadable(id=text, reason=text),),
        vendors=(VendorRow(name=text, source=text, state="broken", reason=text, title=text),),
        rack_file=f"/racks/{text}",
    )


def shown(text: str) -> list[tuple[Part, dict[str, Any]]]:
    """Return what each command shows, and its document, where each text of others is this one."""
    node, allocation = a_node(text), an_allocation(text)
    grants = GrantsView(grants=node.grants, unreadable=node.unreadable, rack_file=node.rack_file)
    finding, event = Finding(text, Diagnosis.BAD, text), Event(at=SINCE, subject=text, says=text)
    refusal = Refusal(wanted=1, verdicts={text: text})
    entry = Grant(
        id="4f1c",
        allocation=allocation,
        limits=(DeviceLimit(name=text, memory=1 << 30, core=3000),),
        command=(),
        user=text,
        since_utc=SINCE,
    )
    used = a_grant(text).containers
    shares = Shares(
        shares=(ShareView(name=text, entry=entry, devices=(text,), containers=used),),
        words=(text,),
    )
    cards = {text: a_device(text)}
    return [
        (ps.render(grants), _json.grants(grants, seconds=None)),
        (ps.render(grants, wide=True), _json.grants(grants, seconds=0.5)),
        (inventory.render(node), _json.node(node)),
        (inventory.render(node, wide=True), _json.node(node)),
        (_top_tables.render(node), _json.node(node)),
        (_top_tables.tables(node, fold_idle=True), _json.node(node)),
        (fit.render(allocation, cards), _json.fit(allocation, cards)),
        (fit.render(refusal, cards), _json.fit(refusal, cards)),
        (vendors.render(node.vendors), _json.listing("vendors")(node.vendors)),
        (doctor.render((finding,)), _json.listing("doctor")((finding,))),
        (log._render((event,)), _json.listing("log")((event,))),
        (share._render(shares), _json.shares(shares)),
    ]


def obeyed(text: str) -> list[str]:
    """Return the characters of a line that a terminal may obey."""
    return [each for each in text if unicodedata.category(each) in CODES]


#: Control, format, surrogate, private, unassigned; separators of lines and paragraphs.
CODES = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
WIDTHS: Sequence[int | None] = (None, 40, 60, 80, 120, 250)


def pipe() -> Pipe:
    made = console(Stream())
    assert isinstance(made, Pipe)
    return made


@given(text=HOSTILE, width=st.sampled_from(WIDTHS), live=st.booleans(), plain=st.booleans())
def test_no_table_has_a_character_that_a_terminal_obeys(
    text: str, width: int | None, live: bool, plain: bool
) -> None:
    stream = Stream("ascii" if plain else "utf-8", live=live)
    columns = {"COLUMNS": str(width or 200)} if live or width else {}
    drawn = console(stream, TERM="xterm", NO_COLOR="1", **columns)

    for part, _ in shown(text):
        draw(part, drawn)
    lines = stream.getvalue().splitlines()
    assert [] == [each for line in lines for each in obeyed(line)]
    assert all(line.isascii() for line in lines) or not plain
    assert [] == [line for line in lines if line != line.rstrip(" ")]


RECORDS = [len(layout(part, pipe())) for part, _ in shown("x")]


@given(text=HOSTILE)
def test_a_pipe_gets_as_many_lines_as_there_are_records(text: str) -> None:
    """A newline in a name makes no second record."""
    assert RECORDS == [len(layout(part, pipe())) for part, _ in shown(text)] or not text


@given(text=HOSTILE)
def test_json_is_printable_ascii_and_says_the_text_itself(text: str) -> None:
    for _, document in shown(text):
        printed = dumps(document)
        assert printed.isascii()
        assert [] == obeyed(printed.replace("\n", ""))
        assert document == json.loads(printed)


@given(text=HOSTILE, encoding=st.sampled_from(("ascii", "utf-8", "iso-8859-1")))
def test_whatever_is_printed_otherwise_passes_the_stream(text: str, encoding: str) -> None:
    written = io.BytesIO()
    stream = _Escaping(io.TextIOWrapper(written, encoding=encoding), line_buffering=True)
    print(f"hetero: {text}", file=stream, flush=True)

    printed = written.getvalue().decode()
    assert [] == [each for each in obeyed(printed) if each not in "\n\t"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain – 模型", "plain – 模型"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\x9b", "\\x9b"),
        ("\u202e", "\\u202e"),
        ("\U000e0001", "\\U000e0001"),
        ("a\nb", "a\\x0ab"),
        (b"\xff".decode("utf-8", "surrogateescape"), "\\xff"),
    ],
)
def test_a_character_is_shown_as_people_write_it(text: str, expected: str) -> None:
    assert expected == visible(text)


@pytest.mark.parametrize("text", ["[bold red]x[/bold red]", ":warning: 12:30 'x' https://x.y"])
def test_markup_of_others_is_text(text: str) -> None:
    stream = Stream(live=True)
    draw([text, Text(text, "bold")], console(stream, TERM="xterm", COLUMNS="80"))

    assert f"{text}\n\x1b[1m{text}\x1b[0m\n" == stream.getvalue()
