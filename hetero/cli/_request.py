"""The flags a request is made of, shared by every command that makes one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click
from attrs import evolve

from hetero.cli._terminal import note
from hetero.model import Ask, Gang, OnBypass, OnExcess, Policy, Priority, Request
from hetero.model.errors import BadInput
from hetero.model.request_parser import ask_from, ask_of_device, choice_of
from hetero.model.units import MiB, parse_count, parse_memory, parse_percent

F = TypeVar("F", bound=Callable[..., Any])

_SIZE_OPTIONS = (
    click.option(
        "-m", "--memory", metavar="SIZE", help="Of each device: 3000Mi, 3G, 50%. Default: all."
    ),
    click.option(
        "-c",
        "--core",
        metavar="PERCENT",
        help="Share of each device's compute, 1 to 100. Default: open.",
    ),
    click.option("--count", metavar="N", help="How many different physical devices. Default: 1."),
)
_REQUEST_OPTIONS = (
    click.option(
        "--device",
        "devices",
        multiple=True,
        metavar="SPEC",
        help="One device by its number or the start of its UUID, with a share of its own if "
        "given: 0, 0:mem=3276Mi,core=10. Repeat it for several devices.",
    ),
    *_SIZE_OPTIONS,
    click.option(
        "--sm",
        metavar="PERCENT",
        help="In place of --core, where a service shares the card: never more than this part of "
        "its multiprocessors, 1 to 99.",
    ),
    click.option("--whole", is_flag=True, help="Whole cards, each with room for what is asked."),
    click.option(
        "--policy",
        type=click.Choice([policy.value for policy in Policy]),
        default=Policy.FIXED.value,
        help="fixed: the share of device time, idle or not (default); elastic: idle time is lent; "
        "off: no limiter.",
    ),
    click.option(
        "--priority",
        type=click.Choice([priority.value for priority in Priority]),
        default=Priority.LOW.value,
        help="Who goes first when both want the device. Default: low.",
    ),
    click.option(
        "--on-excess",
        type=click.Choice([reaction.value for reaction in OnExcess]),
        help="Of memory that the driver counts and the limiter did not: report shows it; refuse "
        "counts it, so that the next allocations fail (default); kill does, and beyond the limit "
        "ends the process that has most of it.",
    ),
    click.option(
        "--on-bypass",
        type=click.Choice([reaction.value for reaction in OnBypass]),
        help="Of programs without a limiter, or that take device time past it: report shows them "
        "(default); kill ends them.",
    ),
    click.option(
        "--gang",
        metavar="NAME",
        help="Several devices are had all at the same time, in a part of each period that the node "
        "gives: off has each by itself; NAME with --row gives the part by hand, the same to all of "
        "that name.",
    ),
    click.option("--row", metavar="N/M", help="Of a gang by hand: the N-th of M parts, from 1."),
    click.option(
        "--strict",
        is_flag=True,
        help="Functions that the driver has and the limiter does not know are answered as if the "
        "driver had none. Else they are passed on, and logged with HETERO_LOG=info.",
    ),
    *(
        click.option(f"--{flag}{option}", multiple=True, metavar="NAME", help=help_text)
        for option, noun in (
            ("vendor", "vendor"),
            ("model", "models with this in their name"),
            ("uuid", "UUIDs with this in them"),
        )
        for flag, help_text in (
            ("", f"Only this {noun}." if option == "vendor" else f"Only {noun}."),
            ("exclude-", f"Not this {noun}." if option == "vendor" else f"Not {noun}."),
        )
    ),
)


def request_options(function: F) -> F:
    """Add the flags of a request to a command; it gets them as keyword arguments."""
    return _with(_REQUEST_OPTIONS, function)


def size_options(function: F) -> F:
    """Add the flags that say how large a share is: `memory`, `core` and `count`, as texts."""
    return _with(_SIZE_OPTIONS, function)


def anyway_option(function: F) -> F:
    """Add the flag that takes memory which programs without a grant hold."""
    return click.option(
        "--anyway",
        is_flag=True,
        help="Also where programs without a grant hold the memory: what they hold is missing.",
    )(function)


def _with(options: Iterable[Callable[[F], F]], function: F) -> F:
    for option in reversed([*options]):
        function = option(function)
    return function


def request_from(
    *,
    devices: tuple[str, ...],
    memory: str | None,
    core: str | None,
    count: str | None,
    sm: str | None,
    policy: str,
    priority: str,
    whole: bool,
    on_excess: str | None,
    on_bypass: str | None,
    strict: bool,
    gang: str | None,
    row: str | None,
    **names: tuple[str, ...],
) -> Request:
    """Return the request the flags make. Raises `BadInput`."""
    note_size(memory)
    default_ask = ask_from(memory=memory, core=core)
    if sm is not None:
        default_ask = evolve(default_ask, sm_percent=parse_percent(sm, of="sm", most=99))
    if devices and count is not None:
        raise BadInput("--device and --count are both given: --device once per device is enough")
    named_asks = tuple(ask_of_device(text, default_ask, source="--device") for text in devices)
    asks = named_asks or (default_ask,) * (1 if count is None else parse_count(count, of="--count"))
    return Request(
        asks=asks,
        exclusive=whole,
        policy=Policy(policy),
        priority=Priority(priority),
        vendor=choice_of(names, "vendor"),
        model=choice_of(names, "model"),
        uuid=choice_of(names, "uuid"),
        on_excess=OnExcess(on_excess) if on_excess else None,
        on_bypass=OnBypass(on_bypass) if on_bypass else None,
        strict=strict,
        gang=_gang(gang, row, asks),
    )


def note_size(memory: str | None) -> None:
    """Say what a size in docker's letters is here, unless the command is to be quiet."""
    match = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt])b?\s*", memory or "", re.ASCII)
    if match is None or click.get_current_context().params.get("quiet"):
        return
    number, letter = match.groups()
    size_mib = parse_memory(f"{number}{letter.upper()}") // MiB
    note(
        f"hetero: --memory {memory} = {size_mib} MiB; write {number}{letter.upper()}iB for the "
        "size that docker means"
    )


def _gang(gang_name: str | None, row: str | None, asks: Sequence[Ask]) -> Gang | None:
    if gang_name is None and row is None:
        return None
    if gang_name == "off" and row is None:
        if len(asks) == 1:
            raise BadInput("--gang off is for several devices, and one is asked: give --count")
        return Gang(off=True)
    if gang_name in (None, "off", "") or row is None:
        raise BadInput("a gang is off, or by hand: --gang NAME --row 1/2")
    if not re.fullmatch(r"[0-9]{1,9}/[0-9]{1,9}", row):
        raise BadInput(f"--row {row[:40]!r} is not a row: write 1/2 for the first of two")
    if all(ask.core in (None, ask.core_of) for ask in asks):
        raise BadInput("--row is when a share of the core is used, and none is asked: give --core")
    row_number, row_count = map(int, row.split("/"))
    return Gang(name=gang_name, row=row_number, rows=row_count)
