"""The ledger: grants stand while somebody holds them, whatever dies in between."""

import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from attrs import evolve
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from hetero.model import Ask, Policy, Refusal, Request, codec
from hetero.model.errors import HeteroError, Refused
from hetero.model.units import GiB
from hetero.node.grants import grants_of, release
from hetero.node.ledger.grant_file import read_limits, store_limits
from hetero.node.ledger.ledger import Grant, GrantHandle, Ledger
from hetero.node.ledger.locks import lock, try_lock
from hetero.node.node import Node
from hetero.node.outlook import fit_now
from hetero.node.resize import resize
from hetero.registry.registry import Registry
from hetero.testing import MemoryVendor, rack

from .conftest import (
    MakeNode,
    Process,
    admit,
    drop,
    holding,
    killed_at,
    request,
    standing,
    taken_of,
)

Spawn = Callable[[Node, Request], Process]


# --- life -----------------------------------------------------------------------------------


def test_a_grant_stands_until_the_last_child_that_inherited_it_is_gone(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node()
    handle = admit(node, request())
    handle.hand_over()
    # Every descriptor above the first three is kept, as by a program that execs another.
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1, close_fds=False)
    for descriptor in holding(handle.path):
        os.close(descriptor)

    assert [handle.grant.id] == standing(node)
    assert {handle.grant.id: (child.pid,)} == node.processes([handle.grant.id])
    child.communicate(b"\n")
    assert [] == standing(node)


def test_a_process_that_uses_a_device_keeps_the_grant_alone(make_node: MakeNode) -> None:
    node = make_node()
    handle = admit(node, request())
    # What the limiter does in every process: it locks one byte of the region.
    region = os.open(handle.path / "tenant/usage", os.O_RDWR)
    slot = struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 17, 1, 0)
    fcntl.fcntl(region, fcntl.F_OFD_SETLK, slot)
    drop(handle)

    assert [handle.grant.id] == standing(node)
    os.close(region)
    assert [] == standing(node)


def test_a_reader_cannot_keep_a_grant_standing(make_node: MakeNode) -> None:
    node = make_node()
    handle = admit(node, request())
    with (handle.path / "alive").open("rb") as reader:
        shared = struct.pack("@hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 5, 1, 0)
        drop(handle)
        fcntl.fcntl(reader, fcntl.F_OFD_SETLK, shared)

        assert [] == standing(node)


def test_a_grant_is_gone_as_soon_as_its_killed_owner_is(make_node: MakeNode, spawn: Spawn) -> None:
    node = make_node()
    owner = spawn(node, request())

    os.kill(owner.pid, signal.SIGKILL)
    os.waitpid(owner.pid, 0)

    assert [] == standing(node)


def test_looking_at_a_ledger_that_is_not_there_makes_nothing(make_node: MakeNode) -> None:
    node = make_node()

    assert [] == standing(node)
    assert not node.ledger.path.exists()


# --- killed in the middle -------------------------------------------------------------------


@pytest.mark.timeout(600)  # one process a step
def test_an_admission_killed_at_any_step_leaves_nothing(make_node: MakeNode) -> None:
    node = make_node(16 * GiB, 16 * GiB)
    neighbour = admit(node, request(memory=GiB)).grant.id
    step = 0

    while killed_at(step := step + 1, lambda: admit(node, request(memory=GiB, count=2))):
        assert [neighbour] == standing(node)
        assert [neighbour] == os.listdir(node.ledger.path / "grants")

    assert step > 20  # the last child came to its end, so every step was tried


@pytest.mark.timeout(600)  # one process a step
def test_a_sweep_killed_at_any_step_leaves_nothing(make_node: MakeNode) -> None:
    node = make_node()
    keep = admit(node, request(memory=GiB)).grant.id
    step = 0
    more = True
    while more:
        dead = admit(node, request(memory=GiB))
        drop(dead)
        more = killed_at(step := step + 1, node.ledger.snapshot)

        assert [keep] == standing(node)
        assert [keep] == os.listdir(node.ledger.path / "grants")

    assert step > 20


def test_leftovers_of_killed_admissions_are_swept(make_node: MakeNode) -> None:
    node = make_node()
    handle = admit(node, request(memory=GiB))
    draft = node.ledger.path / "grants" / ".0badcafe"
    shutil.copytree(handle.path, draft)

    assert [handle.grant.id] == standing(node)
    assert not draft.exists()


def test_a_grant_file_that_disagrees_with_its_entry_is_mended(make_node: MakeNode) -> None:
    node = make_node()
    handle = admit(node, request(memory=GiB, core=30))
    (limit,) = handle.grant.limits
    store_limits(
        handle.path / "tenant/grant", [evolve(limit, memory=1, core=9000)], policy=Policy.FIXED
    )

    node.snapshot()

    assert (limit,) == read_limits(handle.path / "tenant/grant")


# --- what cannot be read --------------------------------------------------------------------


def test_a_corrupt_entry_is_one_line_and_harms_nobody_else(make_node: MakeNode) -> None:
    node = make_node(16 * GiB, 16 * GiB)
    well, ill = (admit(node, request(memory=GiB)) for _ in range(2))
    (ill.path / "allocation.json").write_text('{"id": 7')

    snapshot = node.snapshot()

    assert [well.grant.id] == [entry.id for entry in snapshot.grants]
    ((broken, reason),) = [(entry.id, entry.reason) for entry in snapshot.unreadable]
    assert ill.grant.id == broken
    assert "allocation.json: not a valid Grant" in reason
    with pytest.raises(Refused, match=f"release --force {broken}"):
        admit(node, request(memory=GiB))
    answer = fit_now(node, request(memory=GiB))
    assert isinstance(answer, Refusal)
    assert "what is free is not known" in answer.sentence
    drop(ill)
    admit(node, request(memory=GiB))


def test_a_corrupt_entry_of_a_dead_grant_is_swept(make_node: MakeNode) -> None:
    node = make_node()
    handle = admit(node, request())
    (handle.path / "allocation.json").unlink()
    drop(handle)

    assert ((), ()) == (node.snapshot().grants, node.snapshot().unreadable)


# --- releasing ------------------------------------------------------------------------------


def test_releasing_is_refused_while_a_process_holds_the_grant(
    make_node: MakeNode, spawn: Spawn
) -> None:
    node = make_node()
    owner = spawn(node, request())

    with pytest.raises(Refused, match=rf"in use by process {owner.pid} \("):
        release(grants_of(node), owner.grant)

    assert [owner.grant] == standing(node)


def test_a_forced_release_ends_exactly_the_processes_of_the_grant(
    make_node: MakeNode, spawn: Spawn
) -> None:
    node = make_node()
    first, second = (spawn(node, request(memory=GiB)) for _ in range(2))

    release(grants_of(node), first.grant, force=True)

    assert [second.grant] == standing(node)
    assert signal.SIGTERM == os.waitpid(first.pid, 0)[1]
    assert (0, 0) == os.waitpid(second.pid, os.WNOHANG)


def test_a_forced_release_kills_what_will_not_end(make_node: MakeNode) -> None:
    node = make_node()
    handle = admit(node, request())
    stubborn = os.fork()
    if stubborn == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            signal.pause()
    drop(handle)

    release(grants_of(node), handle.grant.id, force=True, grace=0.2)

    assert [] == standing(node)
    assert signal.SIGKILL == os.waitpid(stubborn, 0)[1]


# --- any order of things --------------------------------------------------------------------


class LedgerMachine(RuleBasedStateMachine):
    """Grants come and go in any order; the ledger always says exactly what stands."""

    holds = Bundle("holds")

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        vendor = MemoryVendor(rack(16 * GiB, 8 * GiB, slots=3), limiter="cuda")
        self.node = Node(registry=Registry.of(vendor), ledger=Ledger(Path(self.directory.name)))
        self.expected: set[str] = set()

    @rule(
        target=holds,
        memory=st.one_of(st.none(), st.integers(1, 17 * GiB)),
        core=st.one_of(st.none(), st.integers(1, 100)),
        count=st.integers(1, 3),
    )
    def admit(self, memory: int | None, core: int | None, count: int) -> GrantHandle | None:
        try:
            handle = admit(self.node, request(memory=memory, core=core, count=count))
        except Refused:
            return None
        self.expected.add(handle.grant.id)
        return handle

    @rule(handle=consumes(holds))
    def end(self, handle: GrantHandle | None) -> None:
        if handle is not None:
            drop(handle)
            self.expected.discard(handle.grant.id)

    @rule(handle=consumes(holds))
    def abort(self, handle: GrantHandle | None) -> None:
        if handle is not None:
            self.node.ledger.abort(handle)
            self.expected.discard(handle.grant.id)

    @rule(
        handle=holds,
        memory=st.one_of(st.none(), st.integers(1, 17 * GiB)),
        core=st.one_of(st.none(), st.integers(1, 100)),
    )
    def change(self, handle: GrantHandle | None, memory: int | None, core: int | None) -> None:
        if handle is not None:
            with suppress(Refused):
                resize(self.node, handle.grant.id, Ask(memory=memory, core=core))

    @rule(step=st.integers(1, 60))
    def be_killed(self, step: int) -> None:
        killed_at(step, lambda: admit(self.node, request(memory=GiB, core=10)))

    @invariant()
    def what_stands_is_what_was_admitted_and_never_too_much(self) -> None:
        entries = self.node.snapshot().grants
        assert self.expected == {entry.id for entry in entries}
        for uuid, size in (("memory-0", 16 * GiB), ("memory-1", 8 * GiB)):
            memory, core, slots = taken_of(entries, uuid)
            assert (memory <= size, core <= 100, slots <= 3) == (True, True, True)

    def teardown(self) -> None:
        for identity in self.expected:
            for descriptor in holding(self.node.ledger.directory(identity)):
                os.close(descriptor)
        assert [] == standing(self.node)
        admit_all = admit(self.node, request(memory=8 * GiB, count=2))
        self.node.ledger.abort(admit_all)
        self.directory.cleanup()


TestAnyOrderOfAdmissionsEndsAndKills = LedgerMachine.TestCase
TestAnyOrderOfAdmissionsEndsAndKills.settings = settings(stateful_step_count=15)


# --- where the state is ---------------------------------------------------------------------


def test_a_state_directory_that_cannot_be_made_says_so(make_node: MakeNode) -> None:
    node = evolve(make_node(), ledger=Ledger(Path("/proc/hetero-state")))

    with pytest.raises(HeteroError, match=r"/proc/hetero-state: .*HETERO_STATE"):
        admit(node, request())


# --- what is written ------------------------------------------------------------------------


def test_an_entry_survives_json(make_node: MakeNode) -> None:
    handle = admit(make_node(16 * GiB, 16 * GiB), request(memory=GiB, core=30, count=2))
    written = (handle.path / "allocation.json").read_text()

    assert handle.grant == codec.loads(written, Grant, source="test")


def test_who_waits_for_the_lock_gives_up_only_where_nothing_goes_on(tmp_path: Path) -> None:
    """Hundreds at once hold it one after the other, each for a moment."""
    with (tmp_path / "lock").open("w") as holder, (tmp_path / "lock").open("r+") as waiter:
        assert try_lock(holder.fileno())
        looks = iter(range(3))

        assert not lock(waiter.fileno(), within_s=0.05, progress=lambda: next(looks, 9))
        assert next(looks, None) is None  # each change began its time anew
        assert not lock(waiter.fileno(), within_s=0.05)
        holder.close()
        assert lock(waiter.fileno(), within_s=0.05)
