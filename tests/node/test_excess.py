"""What a driver counts beyond the charges: the sum, and memory that is no process's."""

import random
from collections.abc import Mapping
from typing import Any

import pytest

from hetero.model import Device, Usage
from hetero.model.units import GiB, MiB
from hetero.node.guard.monitor import UNOWNED_S, UnownedMemory
from hetero.node.view.bypass import Unowned
from hetero.node.view.excess import ProcessUse, charged_at_most, excess_of
from hetero.testing import rack

CARD = "memory-0"
LIMIT = 4 * GiB


# --- the sum --------------------------------------------------------------------------------------


def use(memory: int, **more: Any) -> ProcessUse:
    return ProcessUse(**{"memory": memory, "limited": True, "context": 500 * MiB, **more})


@pytest.mark.parametrize(
    ("processes", "charge", "expected"),
    [
        ((), 0, 0),
        # all of it is charged, or was there when its context was made
        ((use(2548 * MiB),), 2048 * MiB, 0),
        ((use(2600 * MiB),), 2048 * MiB, 52 * MiB),
        # a limiter that could not measure its context is given the benefit of one
        ((use(3 * GiB, context=None),), 2 * GiB, 0),
        ((use(4 * GiB, context=None),), 2 * GiB, GiB),
        # of no limiter there is no context to be known
        ((use(700 * MiB, limited=False),), 0, 700 * MiB),
        # nobody's context is larger than any context is
        ((use(8 * GiB, context=8 * GiB),), 0, 7 * GiB),
        # no more than the limit is believed
        ((use(8 * GiB + 500 * MiB),), 100 * GiB, 4 * GiB),
        # a process that holds less than it did is no room for another
        ((use(100 * MiB), use(1524 * MiB)), 0, GiB),
    ],
)
def test_excess_is_what_is_left_of_the_drivers_figures(
    processes: tuple[ProcessUse, ...], charge: int, expected: int
) -> None:
    excess = excess_of(
        dict(enumerate(processes)), charged_bytes=charge, limit_bytes=LIMIT, with_contexts=False
    )

    assert expected == excess


def test_a_context_that_is_charged_is_not_taken_off_again() -> None:
    uses = {1: use(2548 * MiB)}

    assert 0 == excess_of(uses, charged_bytes=2548 * MiB, limit_bytes=LIMIT, with_contexts=True)
    assert 500 * MiB == excess_of(
        uses, charged_bytes=2 * GiB, limit_bytes=LIMIT, with_contexts=True
    )


def test_excess_that_is_split_over_twenty_processes_is_told_whatever_they_write() -> None:
    """Each says that its context took 1 GiB, and together they say that 9 GiB are charged."""
    uses = dict.fromkeys(range(20), use(480 * MiB, context=GiB))

    assert 9600 * MiB - LIMIT == excess_of(
        uses, charged_bytes=9 * GiB, limit_bytes=LIMIT, with_contexts=True
    )


def test_what_is_allocated_and_freed_while_the_driver_is_asked_is_no_excess() -> None:
    """The driver's figure is of one moment between two looks at the charges."""
    chance = random.Random(1)
    for _ in range(1000):
        held, granted = [chance.randrange(GiB)], [0]
        for _ in range(chance.randrange(1, 10)):
            change = chance.randrange(-held[-1], GiB)
            held.append(held[-1] + change)
            granted.append(granted[-1] + max(change, 0))
        asked = max(held)
        most = charged_at_most(held[0], granted[0], granted[-1])
        assert asked <= most
        process = {1: use(asked + 500 * MiB)}
        assert 0 == excess_of(
            process, charged_bytes=most, limit_bytes=10 * GiB, with_contexts=False
        )


# --- memory without a process ---------------------------------------------------------------------


def card_with(used: int | None, processes: Mapping[int, int] | None) -> tuple[Device, Usage]:
    return rack(16 * GiB)[0], Usage(memory=used, processes=processes)


def test_memory_that_is_no_processs_is_told_of_when_it_lasts() -> None:
    memory = UnownedMemory()
    idle = card_with(GiB + 600 * MiB, {1: GiB})  # an idle card uses 600 MiB
    lost = card_with(GiB + 700 * MiB, {1: GiB})

    assert () == memory.sample([idle], now_s=0)
    assert () == memory.sample([lost], now_s=3)
    assert () == memory.sample([lost], now_s=3 + UNOWNED_S - 1)
    (unowned,) = memory.sample([lost], now_s=3 + UNOWNED_S)
    assert Unowned(device=CARD, memory=100 * MiB) == unowned
    assert f"100 MiB of {CARD} are in use and are no process's" == str(unowned)
    assert () == memory.sample([idle], now_s=10)
    assert () == memory.sample([lost], now_s=12)


def test_memory_of_a_process_that_ends_is_not_told_of() -> None:
    memory = UnownedMemory()
    for now, (used, processes) in enumerate(((GiB, {1: GiB}), (GiB, {}), (0, {}), (GiB, {}))):
        assert () == memory.sample([card_with(used, processes)], now_s=3 * now)


def test_a_little_memory_and_what_is_not_known_are_nothing() -> None:
    memory = UnownedMemory()
    memory.sample([card_with(0, {})], now_s=0)
    for now in range(0, 100, 3):
        assert () == memory.sample([card_with(64 * MiB, {})], now_s=now)
        assert () == memory.sample([card_with(GiB, None)], now_s=now)
        assert () == memory.sample([card_with(None, {})], now_s=now)
