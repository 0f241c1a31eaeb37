"""What rich is told to draw: tables that fit terminals, and records in pipes."""

import pytest

from hetero.cli._draw import draw
from hetero.cli._render import Part, free_memory, table
from hetero.model import MEMORY
from hetero.model.units import MiB, parse_memory
from hetero.testing import rack

from .streams import Stream, console

PATH = "/a/path/of/many/folders/without/a/blank"
SENTENCE = "the driver is loaded, and no card answers it"


def shown(part: Part, encoding: str = "utf-8", *, live: bool = True, **environ: str) -> list[str]:
    """Return the lines that a stream gets."""
    stream = Stream(encoding, live=live)
    draw(part, console(stream, TERM="xterm", NO_COLOR="1", **environ))
    return stream.getvalue().splitlines()


def a_table() -> Part:
    made = table("#", "name", "size", "why", right=("#", "size"), elides=("name",), folds=("why",))
    made.add_row("0", PATH, "80/100 GiB", SENTENCE)
    made.add_row("12", "模型", "5/100 GiB", "")
    return made


@pytest.mark.parametrize(("encoding", "end"), [("utf-8", "…"), ("ascii", "...")])
def test_words_end_in_a_sign_and_sentences_go_on_below(encoding: str, end: str) -> None:
    head, first, *others, last = shown(a_table(), encoding, COLUMNS="60")

    assert " #  name                        size  why" == head
    assert first.startswith(f" 0  {PATH[: 20 - len(end)]}{end}  80/100 GiB  the driver is")
    assert SENTENCE == " ".join([first[38:], *(line.strip() for line in others)])
    assert last.split()[-2:] == ["5/100", "GiB"]
    assert max(map(len, [head, first, *others, last])) <= 60


def test_a_wide_character_takes_two_columns() -> None:
    _, first, *_, last = shown(a_table(), COLUMNS="200")

    assert first.index("80/100") + len("80/100") == last.index("5/100") + len("5/100") + 2


@pytest.mark.parametrize("environ", [{}, {"COLUMNS": "50"}], ids=["endless", "50"])
def test_a_pipe_gets_a_sentence_in_one_line(environ: dict[str, str]) -> None:
    head, first, last = shown([a_table()], live=False, **environ)

    assert first.endswith(SENTENCE)
    assert (PATH in first) == (not environ)
    assert [SENTENCE * 9] == shown(SENTENCE * 9, live=False, **environ)
    assert head == head.rstrip()
    assert last == last.rstrip()


@pytest.mark.parametrize("columns", [1, 30, 44, 70, 250])
def test_columns_go_in_their_order_and_no_number_is_cut(columns: int) -> None:
    made = table("#", "user", "core", "memory", right=("core", "memory"), drops=("user", "core"))
    made.add_row("0", "somebody else", "12.5/50 %", "80/100 GiB")

    head, row = shown(made, COLUMNS=str(columns))
    assert {
        1: ["#", "memory"],
        30: ["#", "core", "memory"],
    }.get(columns, ["#", "user", "core", "memory"]) == head.split()
    assert row.endswith("80/100 GiB")


@pytest.mark.parametrize("size", [23_028 * MiB, 22_999 * MiB, 6_143 * MiB])
def test_memory_that_is_shown_as_free_can_be_asked_for(size: int) -> None:
    (device,) = rack(size)
    free, _, whole = (
        free_memory(device.capacity[MEMORY], device).removesuffix(" GiB").partition(" of ")
    )

    assert free == whole
    assert size - 103 * MiB < parse_memory(f"{free}Gi") <= size
