"""Slices are known as ours by their names, and shares by what is left of their card."""

from pathlib import Path

import pytest

from hetero.model import CORE, MEMORY, SLOTS, Allocation, DeviceAllocation
from hetero.model.units import GiB
from hetero.plugin import DriverError, free_mask, free_number, orphaned, shares, slice_name
from hetero.testing import rack

OURS, THEIRS = Path("/run/hetero/slices"), Path("/run/user/1000/hetero/slices")
SHARE = DeviceAllocation(
    device="memory-0", vendor="memory", takes={CORE: 30, MEMORY: GiB, SLOTS: 1}
)


def test_a_slice_of_ours_that_no_grant_holds_is_an_orphan() -> None:
    name = slice_name(SHARE, OURS)

    assert orphaned(name, {"another"}, OURS)
    assert not orphaned(name, {name}, OURS)
    assert not orphaned(name, (), THEIRS)
    assert not orphaned("a-strangers", (), OURS)


def test_a_slice_has_one_name_for_as_long_as_its_grant() -> None:
    held = DeviceAllocation(device="memory-0", vendor="memory", takes=SHARE.takes, part="hetero-1")

    assert "hetero-1" == slice_name(held, OURS)
    assert slice_name(SHARE, OURS) != slice_name(SHARE, OURS)


def test_a_whole_card_is_no_share() -> None:
    first, second = rack(8 * GiB, 8 * GiB)
    whole = DeviceAllocation(device=first.uuid, vendor="memory", takes=first.capacity)
    part = DeviceAllocation(device=second.uuid, vendor="memory", takes=SHARE.takes)

    assert [(part, second)] == list(shares(Allocation(pieces=(whole, part)), (first, second)))


def test_the_first_free_number_is_given_or_what_has_run_out_is_named() -> None:
    assert 12 == free_number(range(10, 14), [10, 13, 11], "pipe of card 0")
    with pytest.raises(DriverError, match="no pipe of card 0 is free"):
        free_number(range(10, 12), [10, 11], "pipe of card 0")


def test_a_mask_has_the_first_units_that_no_other_mask_has_or_says_how_many_there_are() -> None:
    (card,) = rack(8 * GiB, core=8)

    assert 0b00000111 == free_mask(card, 3, [])
    assert 0b10110000 == free_mask(card, 3, [0b01000010, 0b00001101])
    assert 0 == free_mask(card, 0, [0b11111111])
    with pytest.raises(DriverError, match="card 0: 2 of 3 compute units are free"):
        free_mask(card, 3, [0b00111111])
    assert 1 << 99 == free_mask(rack(8 * GiB, core=100)[0], 1, [(1 << 99) - 1])
