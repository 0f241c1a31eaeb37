"""Rows: where in time grants of several devices have them, and what the boards say of it."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from hetero.model import Ask, Gang, Policy, Request
from hetero.model.errors import BadInput
from hetero.model.units import GiB
from hetero.node.current_periods import CurrentPeriods
from hetero.node.grants import admit_program, grants_of
from hetero.node.ledger.board import BY_HAND
from hetero.node.ledger.grant_file import CORE_FULL, DeviceLimit
from hetero.node.ledger.rows import SHORTEST_ROW_NS, GangRow, gang_row, place_rows
from hetero.node.node import Node
from hetero.node.settings import read_settings

from .conftest import MakeNode, drop

PERIOD = 100_000_000


def row(percent: int, *devices: str, begin: int = 0) -> GangRow:
    length = PERIOD * percent // 100
    return GangRow(
        core_share=percent * 100,
        begin_ns=begin,
        length_ns=length,
        period_ns=PERIOD,
        asked_length_ns=length,
        devices=frozenset(devices),
    )


def placed(*rows: GangRow) -> list[tuple[int, int]]:
    """Return where each begins and how long it is, in milliseconds."""
    places = place_rows({str(number): one for number, one in enumerate(rows)}, {})
    return [
        (places[str(n)].begin_ns // 10**6, places[str(n)].length_ns // 10**6)
        for n in range(len(rows))
    ]


def test_gangs_that_share_a_device_have_rows_one_after_the_other() -> None:
    assert [(0, 50), (50, 50)] == placed(row(50, "a", "b"), row(50, "a", "b"))
    assert [(0, 50), (0, 50)] == placed(row(50, "a", "b"), row(50, "c", "d"))


def test_a_gang_of_four_and_two_of_two_fit() -> None:
    rows = row(40, "a", "b", "c", "d"), row(40, "a", "b"), row(40, "c", "d")

    assert [(0, 40), (40, 40), (40, 40)] == placed(*rows)


def test_a_row_may_go_over_the_end_of_the_period() -> None:
    standing = {"there": row(30, "a", "b", begin=30_000_000)}

    placed_row = place_rows({"new": row(60, "a", "c")}, standing)["new"]

    assert (60_000_000, 60_000_000) == (placed_row.begin_ns, placed_row.length_ns)
    assert not placed_row.overlaps(standing["there"])


def test_the_longest_come_first_where_else_somebody_would_be_left_without() -> None:
    """In this order the third would have 40 of its 60; the other way round there is room."""
    rows = row(40, "a", "x"), row(40, "b", "y"), row(60, "a", "b")

    assert 60 == placed(*rows)[2][1]


def test_who_does_not_fit_has_the_longest_part_that_is_free_or_none() -> None:
    three = row(50, "a", "b"), row(40, "b", "c"), row(50, "a", "c")
    four = row(50, "a", "b"), row(50, "a", "b"), row(40, "a", "b")

    assert [(0, 50), (50, 40), (90, 10)] == placed(*three)
    assert [50, 50, 0] == [length for _, length in placed(*four)]


@given(
    st.lists(
        st.tuples(st.integers(1, 99), st.sets(st.sampled_from("abcd"), min_size=2)), max_size=8
    )
)
def test_no_two_rows_on_a_device_have_any_time_in_common(
    asked: list[tuple[int, set[str]]],
) -> None:
    rows = {str(n): row(percent, *devices) for n, (percent, devices) in enumerate(asked)}

    placed_rows = place_rows(rows, {})

    assert rows.keys() == placed_rows.keys()
    for name, placed_row in placed_rows.items():
        assert (
            placed_row.length_ns == 0
            or min(SHORTEST_ROW_NS, placed_row.asked_length_ns)
            <= placed_row.length_ns
            <= placed_row.asked_length_ns
        )
        for other, another in placed_rows.items():
            assert other == name or not placed_row.overlaps(another)


def limits(*percents: int | None) -> tuple[DeviceLimit, ...]:
    return tuple(
        DeviceLimit(name=str(n), memory=1, core=CORE_FULL if one is None else one * 100)
        for n, one in enumerate(percents)
    )


def test_a_gang_runs_at_the_smallest_of_its_shares() -> None:
    smallest = gang_row(limits(50, 30), policy=Policy.FIXED, gang=None, period_ns=PERIOD)

    assert smallest
    assert (3000, 30_000_000) == (smallest.core_share, smallest.length_ns)


@pytest.mark.parametrize(
    ("percents", "policy", "gang"),
    [
        ((50,), Policy.FIXED, None),
        ((None, None), Policy.FIXED, None),
        ((50, None), Policy.FIXED, None),
        ((50, 50), Policy.OFF, None),
        ((50, 50), Policy.FIXED, Gang(off=True)),
    ],
)
def test_what_is_no_gang_has_no_row(
    percents: tuple[int | None, ...], policy: Policy, gang: Gang | None
) -> None:
    assert gang_row(limits(*percents), policy=policy, gang=gang, period_ns=PERIOD) is None


def test_a_row_by_hand_is_where_it_says_also_of_one_device() -> None:
    by_hand = gang_row(
        limits(30), policy=Policy.FIXED, gang=Gang(name="us", row=2, rows=2), period_ns=PERIOD
    )

    assert by_hand
    assert (50_000_000, 30_000_000) == (by_hand.begin_ns, by_hand.length_ns)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": "us"}, "a name and a row"),
        ({"row": 1, "rows": 2}, "a name and a row"),
        ({"name": "us", "row": 3, "rows": 2}, "counted from 1"),
        ({"name": "us", "row": 1, "rows": 33}, "1 to 32 rows"),
        ({"off": True, "name": "us", "row": 1, "rows": 2}, "has no row"),
    ],
)
def test_a_gang_that_cannot_be_is_refused(fields: dict[str, object], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        Gang(**fields)  # type: ignore[arg-type]


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    return make_node(16 * GiB, 16 * GiB)


def asked(core: int, gang: Gang | None = None) -> Request:
    return Request(asks=(Ask(memory=GiB, core=core),) * 2, gang=gang)


def on_boards(node: Node) -> Iterator[list[tuple[int, ...]]]:
    """Yield each board's rows: core, begin, length and period of the gangs."""
    for device in ("memory-0", "memory-1"):
        contents = (node.ledger.boards / device / "board").read_bytes()
        count = struct.unpack_from("<I", contents, 12)[0]
        yield [struct.unpack_from("<IQQQ", contents, 32 + 96 * n + 68) for n in range(count)]


def test_the_boards_of_all_its_devices_have_a_gangs_row_and_follow_a_change(node: Node) -> None:
    handle, _ = admit_program(grants_of(node), asked(50), command=["job"])
    first = [(5000, 0, 54_000_000, PERIOD)]  # 4 ms are to spare
    assert [first, first] == list(on_boards(node))

    smaller = tuple(evolve(limit, core=3000) for limit in handle.grant.limits)
    with node.ledger.admission():
        node.ledger.change(evolve(handle.grant, limits=smaller))
    lowered = [(3000, 0, 34_000_000, PERIOD)]
    assert [lowered, lowered] == list(on_boards(node))
    drop(handle)


def test_where_all_of_a_card_is_given_no_row_is_longer_than_its_share(node: Node) -> None:
    handles = [admit_program(grants_of(node), asked(50), command=["job"])[0] for _ in range(2)]

    rows = [(5000, 0, 50_000_000, PERIOD), (5000, 50_000_000, 50_000_000, PERIOD)]
    assert rows == sorted(next(on_boards(node)))
    for handle in handles:
        drop(handle)


def test_a_board_says_that_a_row_is_by_hand(node: Node) -> None:
    handle, _ = admit_program(
        grants_of(node), asked(50, Gang(name="us", row=1, rows=2)), command=["job"]
    )

    assert [(5000 | BY_HAND, 0, 50_000_000, PERIOD)] == next(on_boards(node))
    drop(handle)


def test_a_gang_that_is_off_has_no_row_on_any_board(node: Node) -> None:
    handle, _ = admit_program(grants_of(node), asked(50, Gang(off=True)), command=["job"])

    assert [[(0, 0, 0, 0)]] * 2 == list(on_boards(node))
    assert node.ledger.row(handle.grant) is None
    drop(handle)


def test_the_settings_say_how_long_a_period_is(node: Node) -> None:
    periods = read_settings({"gangs": {"period": 40, "overrun": 20}}).periods
    node = evolve(node, ledger=evolve(node.ledger, periods=lambda: periods))
    handle, _ = admit_program(grants_of(node), asked(50), command=["job"])

    assert [(5000, 0, 21_600_000, 40_000_000)] == next(on_boards(node))
    contents = (node.ledger.boards / "memory-0/board").read_bytes()
    assert 20_000_000 == struct.unpack_from("<Q", contents, 24)[0]
    drop(handle)


def test_a_period_that_changes_while_a_gang_stands_is_on_the_boards_at_the_next_look(
    node: Node, tmp_path: Path
) -> None:
    settings = tmp_path / "node.toml"
    now = CurrentPeriods({"HETERO_CONFIG": str(settings)}, node.settings.periods)
    node = evolve(node, ledger=evolve(node.ledger, periods=now))
    handle, _ = admit_program(grants_of(node), asked(50), command=["job"])

    def on_board(text: str) -> tuple[int, ...]:
        settings.write_text(text)
        with node.ledger.admission():  # as heterod does every few seconds
            pass
        return next(on_boards(node))[0]

    assert (5000, 0, 21_600_000, 40_000_000) == on_board("[gangs]\nperiod = 40\n")
    # What is wrong changes nothing: commands say so.
    assert (5000, 0, 21_600_000, 40_000_000) == on_board("[gangs]\nperiod = 7\n")
    assert (5000, 0, 108_000_000, 200_000_000) == on_board("[gangs]\nperiod = 200\n")
    drop(handle)


@pytest.mark.parametrize("period", [39, 401, "100", True, 50.5])
def test_a_period_that_cannot_be_is_refused(period: object) -> None:
    with pytest.raises(BadInput, match=r"gangs\.period"):
        read_settings({"gangs": {"period": period}})
