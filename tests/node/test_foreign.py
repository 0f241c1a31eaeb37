"""What is counted as used without a grant, by what drivers and grants say."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from hetero.model import (
    CORE,
    MEMORY,
    SLOTS,
    Allocation,
    Device,
    DeviceAllocation,
    Enforcement,
    Policy,
    Usage,
)
from hetero.model.units import GiB, MiB
from hetero.node.foreign import CONTEXT, NOISE_BYTES, ForeignUse, foreign_uses
from hetero.node.ledger.grant_file import limit_of
from hetero.node.ledger.ledger import Grant, Ledger, Snapshot
from hetero.node.node import Node
from hetero.registry.registry import Registry
from hetero.testing import rack

#: Above the largest PID that Linux gives (proc_sys_kernel(5)): nobody can look into these.
UNSEEN = 2**22 + 1

(CARD,) = rack(64 * GiB, enforcement=Enforcement.PRELOAD)
UseOf = Callable[..., ForeignUse]


def grant_of(memory: int, number: int = 0, *, policy: Policy = Policy.FIXED) -> Grant:
    takes = {MEMORY: memory, CORE: 10, SLOTS: 1}
    piece = DeviceAllocation(device=CARD.uuid, vendor=CARD.vendor, takes=takes, core=10)
    return Grant(
        id=f"{number:08x}",
        allocation=Allocation(pieces=(piece,), policy=policy),
        limits=(limit_of(piece, CARD, context=False),),
        command=("job",),
        user="alice",
        since_utc="2026-11-29T00:00:00Z",
    )


@pytest.fixture(scope="module")
def use_of(tmp_path_factory: pytest.TempPathFactory) -> UseOf:
    """Return the foreign use of the card, by what its driver says and which grants stand."""
    node = Node(registry=Registry(lambda: ()), ledger=Ledger(tmp_path_factory.mktemp("ledger")))

    def use(*grants: Grant, device: Device = CARD, **driver: Any) -> ForeignUse:
        snapshot = Snapshot(grants=grants, unreadable=(), stale=())
        usage = evolve(Usage(), **driver)
        return foreign_uses(node, snapshot, [(device, usage)])[device.uuid]

    return use


def test_without_a_grant_on_the_card_every_process_is_foreign(use_of: UseOf) -> None:
    use = use_of(processes={UNSEEN: 9 * GiB, UNSEEN + 1: 2 * GiB}, busy={UNSEEN: 0.5})

    assert (11 * GiB, 50.0, False) == (use.memory, use.core, use.estimated)
    assert [UNSEEN, UNSEEN + 1] == [process.pid for process in use.processes]
    assert f"process {UNSEEN} and 1 more hold 11 GiB without a grant" in use.sentence


def test_what_services_and_drivers_take_is_passed_over(use_of: UseOf) -> None:
    assert ForeignUse(memory=0) == use_of(processes={UNSEEN: NOISE_BYTES})


def test_processes_that_cannot_be_looked_into_may_be_the_grants_with_their_contexts(
    use_of: UseOf,
) -> None:
    held = {UNSEEN: 8 * GiB + CONTEXT}

    assert 0 == use_of(grant_of(8 * GiB), processes=held).memory


def test_what_is_beyond_the_grants_is_estimated_and_only_who_must_be_foreign_is_named(
    use_of: UseOf,
) -> None:
    held = {UNSEEN: 8 * GiB, UNSEEN + 1: 40 * GiB}
    use = use_of(grant_of(8 * GiB), processes=held)

    assert (48 - 8) * GiB - 2 * CONTEXT == use.memory
    assert use.estimated
    assert [UNSEEN + 1] == [process.pid for process in use.processes]
    assert "holds about 38 GiB without a grant" in use.sentence


def test_a_grant_without_a_limiter_may_hold_all_of_the_card_and_leaves_no_more_free(
    use_of: UseOf,
) -> None:
    off = grant_of(8 * GiB, policy=Policy.OFF)
    use = use_of(off, processes={UNSEEN: 50 * GiB})

    assert (0, 42 * GiB - CONTEXT) == (use.memory, use.overuse)
    assert use.overuse == use.taken
    assert "grants without a limiter hold 41 GiB beyond their size" == use.sentence
    unlisted = use_of(off, processes={}, memory=50 * GiB)
    assert (0, 42 * GiB - CONTEXT) == (unlisted.memory, unlisted.overuse)
    assert 0 == use_of(off, processes={UNSEEN: 8 * GiB}).taken


def test_memory_in_no_process_that_the_driver_lists_is_foreign_beyond_idle_use(
    use_of: UseOf,
) -> None:
    assert (50 * GiB, True) == (
        (use := use_of(processes={}, memory=50 * GiB)).memory,
        use.estimated,
    )
    partly = use_of(processes={UNSEEN: 2 * GiB}, memory=50 * GiB)
    assert (50 * GiB, [UNSEEN]) == (partly.memory, [process.pid for process in partly.processes])
    granted = use_of(grant_of(8 * GiB), processes={}, memory=50 * GiB)
    assert 42 * GiB - CONTEXT == granted.memory
    assert 0 == use_of(processes={}, memory=4 * GiB).taken
    assert 70.0 == use_of(processes={}, memory=50 * GiB, core=0.7).core


def test_a_card_that_others_keep_busy_is_known_by_its_time_where_they_hold_little(
    use_of: UseOf,
) -> None:
    card = evolve(CARD, enforcement=Enforcement.PARTITION)

    assert (0, 70.0) == (
        (use := use_of(device=card, memory=2 * GiB, core=0.7)).memory,
        use.core,
    )
    assert use_of(grant_of(GiB), device=card, memory=2 * GiB, core=0.7).core is None


def test_a_driver_that_counts_the_card_alone_says_what_exceeds_the_grants(use_of: UseOf) -> None:
    card = evolve(CARD, enforcement=Enforcement.PARTITION)
    grant = grant_of(16 * GiB)

    assert 0 == use_of(device=card, memory=4 * GiB).memory
    assert 5 * GiB == use_of(device=card, memory=5 * GiB).memory
    assert 0 == use_of(grant, device=card, memory=20 * GiB).memory
    use = use_of(grant, device=card, memory=40 * GiB)
    assert (23 * GiB, True, ()) == (use.memory, use.estimated, use.processes)
    assert "about 23 GiB in use beyond what is granted, by whom is not known" == use.sentence


@given(
    grants=st.lists(st.integers(1, 16).map(lambda gib: gib * GiB), max_size=4),
    held=st.dictionaries(
        st.integers(UNSEEN, UNSEEN + 9), st.integers(0, 30_000).map(lambda mib: mib * MiB)
    ),
)
def test_no_more_is_foreign_than_is_used_and_nothing_that_grants_cover(
    use_of: UseOf, grants: list[int], held: Mapping[int, int]
) -> None:
    standing = [grant_of(memory, number) for number, memory in enumerate(grants)]
    use = use_of(*standing, processes=held)
    used = sum(held.values())

    assert 0 <= use.memory <= used
    assert use.memory == 0 or use.memory > NOISE_BYTES
    assert use.memory == 0 or use.memory <= used - sum(grants)
    if not grants:
        assert use.memory == (used if used > NOISE_BYTES else 0)
