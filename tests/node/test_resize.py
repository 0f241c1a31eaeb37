"""Changing a grant that stands: what the ledger says and what the limiter maps stay one."""

import fcntl
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from hetero.model import Ask, Fractional, Ladder, Policy, Request
from hetero.model.errors import NotFound, Refused
from hetero.model.units import GiB, MiB
from hetero.node.ledger import usage_region
from hetero.node.ledger.grant_file import CORE_FULL, HEADER, DeviceLimit, read_limits
from hetero.node.ledger.ledger import GrantHandle, Ledger
from hetero.node.node import Node
from hetero.node.resize import resize
from hetero.registry.registry import Registry
from hetero.testing import MemoryVendor, rack

from .conftest import MakeNode, admit, killed_at, request, taken


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    return make_node(16 * GiB, 16 * GiB, limiter="cuda")


def in_force(handle: GrantHandle) -> list[tuple[int, int]]:
    return [(limit.memory, limit.core) for limit in read_limits(handle.path / "tenant/grant")]


def in_ledger(node: Node, handle: GrantHandle) -> list[tuple[int, int]]:
    (entry,) = (e for e in node.snapshot().grants if e.id == handle.grant.id)
    return [(limit.memory, limit.core) for limit in entry.limits]


def use(handle: GrantHandle, memory: int) -> int:
    """Put a living process with that much memory on the grant's first device into its region."""
    descriptor = os.open(handle.path / "tenant/usage", os.O_RDWR)
    header = usage_region.HEADER.pack(
        usage_region.MAGIC, usage_region.VERSION, usage_region.SLOTS, 1, 0
    )
    os.pwrite(descriptor, header, 0)
    slots = usage_region.HEADER.size + 16 * usage_region.DEVICE.size
    os.pwrite(descriptor, usage_region.SLOT.pack(memory, *[0] * 63, os.getpid()), slots)
    fcntl.fcntl(
        descriptor, fcntl.F_OFD_SETLK, struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    )
    return descriptor


def test_what_is_not_named_stays(node: Node) -> None:
    handle = admit(node, request(memory=4 * GiB, core=30))

    resize(node, handle.grant.id, Ask(core=50))
    assert [(4 * GiB, 5000)] == in_force(handle) == in_ledger(node, handle)
    resize(node, handle.grant.id, Ask(memory=2 * GiB))
    assert [(2 * GiB, 5000)] == in_force(handle) == in_ledger(node, handle)
    resize(node, handle.grant.id, Ask(memory_percent=25))
    assert [(4 * GiB, 5000)] == in_force(handle) == in_ledger(node, handle)


def test_a_core_that_is_open_again_and_another_policy(node: Node) -> None:
    handle = admit(node, request(memory=4 * GiB, core=30))

    changed = resize(node, handle.grant.id, Ask(open=True), policy=Policy.ELASTIC)
    assert [(4 * GiB, CORE_FULL)] == in_force(handle) == in_ledger(node, handle)
    assert Policy.ELASTIC is changed.allocation.policy
    resize(node, handle.grant.id, Ask(core=20))
    assert (20 << 32) * 100 + 1 == policy_in_force(handle)
    resize(node, handle.grant.id, Ask(), policy=Policy.FIXED)
    assert (20 << 32) * 100 == policy_in_force(handle)


def test_a_policy_that_would_load_or_unload_the_limiter_is_refused(node: Node) -> None:
    handle = admit(node, request(memory=4 * GiB, core=30))

    with pytest.raises(Refused, match="decided when its program starts"):
        resize(node, handle.grant.id, Ask(), policy=Policy.OFF)


def policy_in_force(handle: GrantHandle) -> int:
    """Return the words of the first device's core and policy, the core in the upper half."""
    text = (handle.path / "tenant/grant").read_bytes()
    core, policy = struct.unpack_from("<II", text, HEADER.size + 72)
    return int(core << 32 | policy)


def test_growing_is_refused_where_neighbours_stand(node: Node) -> None:
    handle = admit(node, request(memory=4 * GiB, core=30))
    admit(node, request(memory=8 * GiB, core=60))

    for ask, lacks in (
        (Ask(memory=9 * GiB), "memory: 9 GiB asked, 8 GiB free"),
        (Ask(memory=2000 * GiB - MiB), "memory: 2000 GiB asked, 8 GiB free"),
        (Ask(core=41), "core: 41 % asked, 40 % free"),
        (Ask(memory=17 * GiB), "memory: 17 GiB asked, 8 GiB free"),
        (Ask(core=100), "core: 100 % asked, 40 % free, slots: 10 asked, 9 free"),
    ):
        with pytest.raises(Refused, match=f"stays as it is: memory-0 lacks {lacks}$"):
            resize(node, handle.grant.id, ask)

    assert [(4 * GiB, 3000)] == in_force(handle) == in_ledger(node, handle)
    resize(node, handle.grant.id, Ask(memory=8 * GiB, core=40))
    assert (16 * GiB, 100, 2) == taken(node, "memory-0")


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"cordon": ""}, "cordoned"),
        ({"cordon": "loud fan"}, r"cordoned \(loud fan\)"),
        ({"health": "ecc: 2 errors"}, r"unhealthy \(ecc: 2 errors\)"),
    ],
)
def test_a_grant_gets_no_more_of_a_card_that_is_cordoned_or_sick_and_may_have_less(
    tmp_path: Path, facts: dict[str, Any], why: str
) -> None:
    vendor = MemoryVendor(rack(16 * GiB), limiter="cuda")
    node = Node(registry=Registry.of(vendor), ledger=Ledger(tmp_path / "state"))
    handle = admit(node, request(memory=4 * GiB, core=30))
    open_handle = admit(node, request(memory=2 * GiB))
    vendor.devices = [evolve(vendor.devices[0], **facts)]
    refusal = str(refusal_of(node, request(memory=GiB)))

    for ask in (
        Ask(memory=5 * GiB),
        Ask(core=31),
        Ask(open=True),
        Ask(memory=2 * GiB, core=40),
        Ask(memory=5 * GiB, core=20),
    ):
        with pytest.raises(Refused, match=f"given of memory:0: {why}$") as raised:
            resize(node, handle.grant.id, ask)
        assert str(raised.value).partition("memory:0: ")[2] in refusal
    assert [(4 * GiB, 3000)] == in_force(handle) == in_ledger(node, handle)
    resize(node, handle.grant.id, Ask(memory=3 * GiB, core=20))
    assert [(3 * GiB, 2000)] == in_force(handle) == in_ledger(node, handle)
    resize(node, handle.grant.id, Ask(memory=3 * GiB), policy=Policy.ELASTIC)
    resize(node, open_handle.grant.id, Ask(core=20))
    assert [(2 * GiB, 2000)] == in_force(open_handle) == in_ledger(node, open_handle)


ALONE = "M1 is taken exclusively: the smallest of its sizes with the {} asked is all of it"


def laddered(path: Path, *sizes_bytes: int) -> Node:
    """A node whose cards have a quarter, a half or all of their core and memory."""
    grains = Fractional(memory=Ladder((4 * GiB, 8 * GiB, 16 * GiB)), core=Ladder((25, 50, 100)))
    vendor = MemoryVendor(rack(*sizes_bytes, granularity=grains), limiter="cuda")
    return Node(registry=Registry.of(vendor), ledger=Ledger(path / "state"))


@pytest.mark.parametrize(
    ("ask", "notes"),
    [
        (Ask(core=60), (ALONE.format("core"),)),
        (Ask(memory=9 * GiB), (ALONE.format("memory"),)),
        (Ask(core=100), ()),
        (Ask(memory=16 * GiB), ()),
        (Ask(memory_percent=100), ()),
        (Ask(core=40), ()),
    ],
)
def test_a_size_that_takes_a_card_exclusively_is_said_unless_that_was_asked(
    tmp_path: Path, ask: Ask, notes: tuple[str, ...]
) -> None:
    node = laddered(tmp_path, 16 * GiB)
    handle = admit(node, request(memory=4 * GiB, core=25))

    assert notes == resize(node, handle.grant.id, ask).allocation.notes
    assert () == resize(node, handle.grant.id, Ask(memory=4 * GiB, core=20)).allocation.notes


def test_what_was_said_of_a_card_taken_exclusively_stays_while_it_is_so(tmp_path: Path) -> None:
    node = laddered(tmp_path, 16 * GiB, 16 * GiB)
    handle = admit(node, request(memory=4 * GiB, core=60, count=2))
    note = (ALONE.format("core"),)
    assert note == handle.grant.allocation.notes

    for ask, policy in (
        (Ask(memory=8 * GiB), None),
        (Ask(), Policy.ELASTIC),
        (Ask(core=70), None),
        (Ask(core=20, device="memory-0"), None),
    ):
        assert note == resize(node, handle.grant.id, ask, policy=policy).allocation.notes
    assert () == resize(node, handle.grant.id, Ask(core=100)).allocation.notes
    assert () == resize(node, handle.grant.id, Ask(memory=4 * GiB)).allocation.notes


def refusal_of(node: Node, asked: Request) -> Refused:
    with pytest.raises(Refused) as raised:
        admit(node, asked)
    return raised.value


def test_a_grant_alone_may_become_exclusive_and_share_again(node: Node) -> None:
    handle = admit(node, request(memory=4 * GiB, core=30))

    resize(node, handle.grant.id, Ask(core=100))
    assert (4 * GiB, 100, 10) == taken(node, "memory-0")
    assert [(4 * GiB, CORE_FULL)] == in_force(handle)
    # All of the core was asked for, so it stays when only memory is named.
    resize(node, handle.grant.id, Ask(memory=5 * GiB))
    assert (5 * GiB, 100, 10) == taken(node, "memory-0")
    resize(node, handle.grant.id, Ask(core=20))
    assert (5 * GiB, 20, 1) == taken(node, "memory-0")


def test_memory_in_use_is_never_taken_away(node: Node) -> None:
    handle = admit(node, request(memory=4 * GiB, core=30))
    descriptor = use(handle, 3 * GiB)

    for memory, shown in ((2 * GiB, "2 GiB"), (2500 * MiB, "2.4 GiB")):
        sentence = f"uses 3 GiB of memory-0: it cannot be lowered to {shown}$"
        with pytest.raises(Refused, match=sentence):
            resize(node, handle.grant.id, Ask(memory=memory, core=60))

    assert [(4 * GiB, 3000)] == in_force(handle) == in_ledger(node, handle)
    resize(node, handle.grant.id, Ask(memory=3 * GiB))
    os.close(descriptor)
    resize(node, handle.grant.id, Ask(memory=2 * GiB))
    assert [(2 * GiB, 3000)] == in_force(handle) == in_ledger(node, handle)


def test_one_of_several_devices_may_be_meant(node: Node) -> None:
    handle = admit(node, request(memory=4 * GiB, core=30, count=2))
    first, second = (limit.name for limit in handle.grant.limits)

    changed = resize(node, handle.grant.id, Ask(core=50, device=second))

    assert (
        DeviceLimit(name=first, memory=4 * GiB, core=3000, context=True),
        DeviceLimit(name=second, memory=4 * GiB, core=5000, context=True),
    ) == changed.limits
    with pytest.raises(NotFound, match="does not hold device 'memory-7'"):
        resize(node, handle.grant.id, Ask(core=50, device="memory-7"))


def test_a_failure_on_the_second_device_leaves_the_first_as_it_was(node: Node) -> None:
    handle = admit(node, request(memory=4 * GiB, core=30, count=2))
    second = handle.grant.limits[1].name
    # A neighbour on the second device alone.
    neighbour = Request(asks=(Ask(memory=4 * GiB, core=60, device=second),))
    admit(node, neighbour)

    with pytest.raises(Refused, match=second):
        resize(node, handle.grant.id, Ask(core=50))

    assert [(4 * GiB, 3000)] * 2 == in_force(handle) == in_ledger(node, handle)


def test_a_grant_without_a_limiter_is_not_pretended_to_change(node: Node) -> None:
    off = Request(asks=(Ask(memory=GiB),), policy=Policy.OFF)
    handle = admit(node, off)

    with pytest.raises(Refused, match="runs without a limiter"):
        resize(node, handle.grant.id, Ask(core=20))


@pytest.mark.parametrize("ask", [Ask(memory=8 * GiB, core=60), Ask(memory=GiB, core=10)])
@pytest.mark.timeout(600)  # one process a step
def test_a_change_killed_at_any_step_is_whole_or_not_at_all(node: Node, ask: Ask) -> None:
    handle = admit(node, request(memory=4 * GiB, core=30))
    before = in_ledger(node, handle)
    after = [(limit.memory, limit.core) for limit in node_limits(node, handle, ask)]
    step = 0
    more = True
    while more:
        more = killed_at(step := step + 1, lambda: resize(node, handle.grant.id, ask))

        assert in_ledger(node, handle) in (before, after)
        assert in_ledger(node, handle) == in_force(handle)
        if in_ledger(node, handle) == after and more:
            resize(node, handle.grant.id, Ask(memory=4 * GiB, core=30))

    assert after == in_force(handle)
    assert step > 20


def node_limits(node: Node, handle: GrantHandle, ask: Ask) -> tuple[DeviceLimit, ...]:
    """Return the limits that the change leads to, and put the grant back as it was."""
    limits = resize(node, handle.grant.id, ask).limits
    resize(node, handle.grant.id, Ask(memory=4 * GiB, core=30))
    return limits
