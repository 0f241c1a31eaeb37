"""`hetero top` while people keep it open: what keys ask for, and what stays from frame to frame."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator

import pytest
from attrs import evolve

from hetero.cli import _screen
from hetero.cli._draw import Heading, layout
from hetero.cli._render import Memory, Part
from hetero.cli._top_keys import Choices, _frame
from hetero.cli._top_tables import tables
from hetero.model import Usage
from hetero.node.view.history import History
from tests.programs import next_line

from .conftest import Begin, Run
from .streams import Stream, console
from .test_inventory import busy_card, card, eight, grant, view
from .window import Window

Open = Callable[..., Window]


@pytest.fixture
def window(environ: dict[str, str], command: tuple[str, ...]) -> Iterator[Open]:
    opened: list[Window] = []

    def start(*words: str, columns: int = 120, lines: int = 40) -> Window:
        opened.append(Window((*command, *words), environ, columns, lines))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


@pytest.fixture
def sleeper(begin: Begin, command: tuple[str, ...]) -> "subprocess.Popen[str]":
    program = ("sh", "-c", "echo ready; exec sleep 600")
    words = ("run", "--device", "1:mem=3000Mi", "--label", "the sleeper", "--", *program)
    started = begin(*command, *words)
    assert "ready\n" == next_line(started)
    return started


def lines_of(part: Part, columns: int) -> list[str]:
    drawn = console(Stream(live=True), TERM="xterm", COLUMNS=str(columns))
    return ["".join(piece.text for piece in line) for line in layout(part, drawn)]


def heading(lines: list[str], first: str) -> list[str]:
    (line,) = [line for line in lines if line.startswith(first)]
    return re.split("  +", line.strip())


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_second_tour_10_columns_stay_from_frame_to_frame_and_widths_only_grow(
    columns: int,
) -> None:
    plain = grant("trainer", 0)
    (share,) = plain.shares
    lending = evolve(
        plain,
        shares=(
            evolve(
                share,
                core_lent_percent=12.0,
                core_stopped_ms_per_s=300.0,
                core_used_percent=9.5,
                denied_count=2,
            ),
        ),
    )
    memories = {"devices": Memory(), "grants": Memory()}
    heads, places = [], []
    for shown in (plain, lending, plain, lending, plain):
        frame = view([busy_card()], [shown])
        lines = lines_of(tables(frame, fold_idle=True, memories=memories), columns)
        heads.append(heading(lines, "card      grant"))
        places.append(
            next(line for line in lines if line.startswith("card      grant")).index("memory")
        )

    assert heads[1:] == [heads[1]] * 4
    assert places[1:] == [places[1]] * 4  # a column that is needed comes once, and stays
    assert max(len(line) for line in lines) <= columns or columns == 60


def test_columns_are_chosen_anew_for_a_window_of_another_size() -> None:
    choices = Choices(history=History(window_s=10.0))
    shown = view([busy_card()], [grant("trainer", 0)])
    counts = []
    for columns in (60, 160, 60):
        drawn = console(Stream(live=True), TERM="xterm", COLUMNS=str(columns), LINES="40")
        frame = _frame(shown, choices, drawn)
        counts.append(max(len(line) for line in frame if isinstance(line, Heading)))

    assert counts[0] < counts[1]
    assert counts[0] == counts[2]


def test_busy_is_a_mean_over_the_same_time_as_what_grants_use() -> None:
    history = History(window_s=10.0)
    devices = eight()
    for second, busy in enumerate([1.0, 0.0, 0.0, 0.0] * 5):
        rows = [card(0, devices[0], usage=Usage(core=busy)), card(1, devices[1], usage=Usage())]
        seen = history.add(view(rows), float(second))

    assert 0.2 == pytest.approx(seen.devices[0].usage.core)  # of 10 samples, two
    assert None is seen.devices[1].usage.core
    assert 20 == len(history.of_device(seen.devices[0]))
    assert [] == history.of_device(seen.devices[1])
    history.add(view([card(1, devices[1])]), 21.0)
    assert [] == history.of_device(seen.devices[0])  # it is gone


def test_samples_are_drawn_as_a_line() -> None:
    history = History(window_s=10.0)
    for second in range(8):
        (shares,) = (evolve(grant("trainer", 0).shares[0], core_used_percent=second * 50 / 7),)
        holder = evolve(grant("trainer", 0), shares=(shares,))
        usage = Usage(core=second / 7, memory=0)
        shown = history.add(view([card(0, eight()[0], usage=usage)], [holder]), float(second))
    lines = lines_of(tables(shown, fold_idle=False, history=history), 200)

    assert 2 == "\n".join(lines).count("▁▂▃▄▅▆▇█")


def test_second_tour_25_headings_stay_and_the_last_line_says_what_is_seen(
    window: Open,
) -> None:
    top = window("top", "--interval", "60", lines=10)
    top.read(lambda screen: "no grants stand" in screen or "idle" in screen)
    top.type("?")
    shown = top.read(lambda screen: re.search(r"1 to \d+ of \d+", screen) is not None)
    assert "q, Ctrl-C" in shown
    top.type("G")
    shown = top.read(lambda screen: re.search(r"\d+ to (\d+) of \1\b", screen) is not None)
    assert "these keys" in shown
    top.type("q")
    assert 0 == top.program.wait(60)


def test_the_headings_above_a_line_of_a_table_are_pinned() -> None:
    rows = [card(number, each) for number, each in enumerate(eight())]
    lines = layout(
        tables(view(rows, [grant("trainer", 0)]), fold_idle=False),
        console(Stream(live=True), TERM="xterm", COLUMNS="120"),
    )
    texts = ["".join(piece.text for piece in line) for line in lines]
    last_card = next(n for n, text in enumerate(texts) if text.startswith("memory:7 "))
    first_grant = next(n for n, text in enumerate(texts) if "trainer" in text)

    def pinned(at: int) -> list[str]:
        pinned_lines = _screen._pinned(lines, 0, at)
        return ["".join(piece.text for piece in line).split()[1] for line in pinned_lines]

    assert ["model"] == pinned(last_card)
    assert ["grant"] == pinned(first_grant)
    assert [] == pinned(0)
    assert [] == pinned(last_card + 1)  # the blank line between the tables


@pytest.mark.parametrize(
    "key", ["\x1b[F", "\x1bOF", "\x1b[4~", "\x1b[8~", "G"], ids=["xterm", "app", "vt", "rxvt", "G"]
)
def test_second_tour_24_home_and_end_are_met_in_every_terminal(window: Open, key: str) -> None:
    home = {"\x1b[F": "\x1b[H", "\x1bOF": "\x1bOH", "\x1b[4~": "\x1b[1~", "\x1b[8~": "\x1b[7~"}
    top = window("top", "--interval", "60", lines=10)
    top.read(lambda screen: "keys" in screen)
    top.type("?")
    top.read(lambda screen: "q, Ctrl-C" in screen)
    top.type(key)
    top.read(lambda screen: "these keys" in screen)
    top.type(home.get(key, "g"))
    assert "q, Ctrl-C" in top.read(lambda screen: "q, Ctrl-C" in screen)


def test_a_grant_is_released_by_key_when_it_was_asked(
    hetero: Run, window: Open, sleeper: "subprocess.Popen[str]"
) -> None:
    top = window("top", "--interval", "60")
    top.read(lambda screen: "the sleeper" in screen)
    top.type("r")
    top.read(lambda screen: "release which grant?" in screen)
    top.type("nobody\r")
    top.read(lambda screen: "no grant is called 'nobody'" in screen)
    top.type("r")
    top.type("the sleeper\r")
    top.read(lambda screen: "and end 1 processes? y or n:" in screen)
    top.type("n\r")
    top.read(lambda screen: "by device" in screen)
    assert 1 == len(json.loads(hetero("ps", "--json").stdout)["items"])
    top.type("r")
    top.type("the sleeper\ry\r")
    top.read(lambda screen: "no grants stand" in screen)

    assert [] == json.loads(hetero("ps", "--json").stdout)["items"]
    assert sleeper.wait(30) != 0


def test_a_process_is_ended_by_key_and_only_one_that_is_shown(
    window: Open, sleeper: "subprocess.Popen[str]"
) -> None:
    top = window("top", "--interval", "60")
    top.read(lambda screen: "the sleeper" in screen)
    top.type("x1\r")
    top.read(lambda screen: "1 is no process that is shown" in screen)
    top.type(f"x{sleeper.pid}\r")
    top.read(lambda screen: f"send SIGTERM to {sleeper.pid} (sleep)? y or n:" in screen)
    top.type("\x1b")
    top.read(lambda screen: "by device" in screen)
    assert None is sleeper.poll()
    top.type(f"x{sleeper.pid}\ry\r")
    top.read(lambda screen: f"sent SIGTERM to {sleeper.pid}" in screen)

    assert -15 == sleeper.wait(30)


def test_a_text_filters_cards_and_grants_and_t_shows_a_tree(
    window: Open, sleeper: "subprocess.Popen[str]"
) -> None:
    top = window("top", "--interval", "60")
    top.read(lambda screen: "the sleeper" in screen)
    top.type("/nothing of that\r")
    top.read(lambda screen: "no devices" in screen and "no grants stand" in screen)
    top.type("/SLEEP\r")
    top.read(lambda screen: "the sleeper" in screen)
    top.type("t")
    shown = top.read(lambda screen: "└" in screen)
    assert "the sleeper" in shown


def test_second_tour_15_d_is_the_delay_and_a_card_that_is_not_there_is_an_error(
    hetero: Run,
) -> None:
    done = hetero("top", "-d", "0.2", "--once", "--json")
    missing = hetero("top", "--device", "77", "--once")

    assert (0, 0.2) == (done.returncode, json.loads(done.stdout)["seconds"])
    assert 5 == len(json.loads(done.stdout)["items"])
    assert (4, "") == (missing.returncode, missing.stdout)
    assert "no card '77' here" in missing.stderr


def test_second_tour_16_device_and_user_filter_cards_and_grants(
    hetero: Run, sleeper: "subprocess.Popen[str]"
) -> None:
    (held,) = json.loads(hetero("ps", "--json").stdout)["items"]

    def shown(*words: str) -> tuple[list[int], int]:
        document = json.loads(hetero("top", "--once", "--json", *words).stdout)
        return [item["number"] for item in document["items"]], len(document["grants"])

    assert ([3], 0) == shown("--device", "3")
    assert ([1], 1) == shown("--device", "T-1")
    assert ([1], 1) == shown("--user", held["user"])
    assert ([], 0) == shown("--user", "nobody-else")


def test_second_tour_1_cards_that_are_not_well_or_used_by_others_are_not_folded() -> None:
    devices = [card(number, each) for number, each in enumerate(eight())]
    devices[1] = evolve(devices[1], device=evolve(devices[1].device, health="GPU is lost"))
    devices[2] = evolve(busy_card(2), held=devices[2].held, grants=())
    lines = lines_of(tables(view(devices), fold_idle=True), 120)

    assert lines[1].startswith("memory:1 ")
    assert lines[2].startswith("memory:2 ")
    assert "memory:0 3–7: idle H1 (e: one by one)" in lines
