"""Slices are made with a grant and gone with it: an orphan is removed, one in use never is."""

import ctypes
import mmap
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import hetero_cambricon
import hetero_metax
import pytest
from racks import (
    CARDS,
    LIBRARIES,
    PLUGINS,
    SHARE,
    Machine,
    Rack,
    apart,
    die_after,
    registry,
    slices,
)

from hetero import plugin
from hetero.model import CORE, MEMORY, Allocation, Ask
from hetero.model.errors import Refused
from hetero.model.units import GiB
from hetero.node.grants import LocalGrants, admit_program, grants_of
from hetero.node.ledger.ledger import Ledger
from hetero.node.node import Node
from hetero.node.resize import resize
from hetero.plugin.driver import DriverError, Library

#: Those whose slices are the driver's own; Hygon's are files.
IN_DRIVER = ["ascend", "cambricon", "metax"]


@pytest.mark.parametrize("vendor", CARDS)
def test_a_slice_is_named_in_its_grant_and_lives_as_long(tmp_path: Path, vendor: str) -> None:
    def live() -> list[set[str]]:
        machine = Machine(tmp_path, vendor)
        (device,) = machine.devices
        parts = [machine.take(SHARE).pieces[0].part for _ in range(2)]
        both = slices(machine, device)
        assert set(parts) == both
        del machine.standing[0]
        assert () == machine.reconcile() == machine.reconcile()
        first_alone = slices(machine, device)
        assert {parts[1]} == first_alone
        machine.standing.clear()
        assert () == machine.reconcile()
        return [both, first_alone, slices(machine, device)]

    assert [2, 1, 0] == [len(found) for found in Rack(tmp_path, CARDS[vendor]).meet(live)]


@pytest.mark.parametrize("vendor", CARDS)
def test_a_slice_whose_maker_was_killed_is_gone_at_the_next_look(
    tmp_path: Path, vendor: str
) -> None:
    def crash() -> tuple[set[str], set[str]]:
        die_after(lambda: Machine(tmp_path, vendor).take(SHARE))
        machine = Machine(tmp_path, vendor)
        left = slices(machine, machine.devices[0])
        assert () == machine.reconcile()
        return left, slices(machine, machine.devices[0])

    left, after = Rack(tmp_path, CARDS[vendor]).meet(crash)

    assert (1, set()) == (len(left), after)


@pytest.mark.parametrize("vendor", IN_DRIVER)
def test_a_slice_in_use_is_never_destroyed(tmp_path: Path, vendor: str) -> None:
    identity = {"ascend": 100, "cambricon": 1, "metax": 0}[vendor]

    def use() -> tuple[int, int]:
        machine = Machine(tmp_path, vendor)
        machine.take(SHARE)
        machine.standing.clear()
        ready, writable = os.pipe()
        pid = os.fork()
        if pid == 0:
            PLUGINS[vendor].hetero_discover()  # which starts the library in this process
            library = ctypes.CDLL(LIBRARIES[vendor])
            os.write(writable, b"%d" % library.fake_occupy(0, identity))
            signal.pause()
        assert b"0" == os.read(ready, 2)
        machine.reconcile()
        during = len(slices(machine, machine.devices[0]))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert () == machine.reconcile()
        return during, len(slices(machine, machine.devices[0]))

    assert (1, 0) == Rack(tmp_path, CARDS[vendor]).meet(use)


@pytest.mark.parametrize("vendor", CARDS)
def test_another_ledgers_slices_are_left_alone(tmp_path: Path, vendor: str) -> None:
    def share() -> int:
        other_ledger, own_ledger = (Machine(tmp_path / name, vendor) for name in ("theirs", "ours"))
        other_ledger.take(SHARE)
        assert () == own_ledger.reconcile()
        return len(slices(other_ledger, other_ledger.devices[0]))

    assert 1 == Rack(tmp_path, CARDS[vendor]).meet(share)


@pytest.mark.parametrize("vendor", CARDS)
def test_a_full_card_of_slices_is_emptied_and_filled_again(tmp_path: Path, vendor: str) -> None:
    def fill() -> list[int]:
        machine = Machine(tmp_path, vendor)
        counts = []
        for _ in range(3):
            while isinstance(machine.fit(SHARE), Allocation):
                machine.take(SHARE)
            counts.append(len(slices(machine, machine.devices[0])))
            machine.standing.clear()
            assert () == machine.reconcile()
        return counts

    full = 4 if vendor in ("ascend", "hygon") else 5  # by template and slots; by core
    assert [full] * 3 == Rack(tmp_path, CARDS[vendor]).meet(fill)


@pytest.mark.parametrize("vendor", ["cambricon", "metax"])
def test_a_slice_is_resized_in_place(tmp_path: Path, vendor: str) -> None:
    def resize() -> list[tuple[int, int]]:
        machine = Machine(tmp_path, vendor)
        taken = machine.take(SHARE)
        before = sizes(vendor)
        machine.resize(taken, **{MEMORY: 8 * GiB, CORE: 50})
        return [before, sizes(vendor)]

    assert [(4, 20), (8, 50)] == Rack(tmp_path, CARDS[vendor]).meet(resize)


@pytest.mark.parametrize("vendor", ["hygon", "cambricon", "metax"])
def test_a_slice_that_a_reboot_took_is_made_again_under_its_name(
    tmp_path: Path, vendor: str
) -> None:
    def again() -> tuple[set[str], set[str], set[str]]:
        machine = Machine(tmp_path, vendor)
        (device,) = machine.devices
        taken = machine.take(SHARE)
        before = slices(machine, device)
        machine.standing.clear()
        machine.reconcile()
        gone = slices(machine, device)
        for _ in range(2):
            machine.registry.enforce(taken, machine.devices, directory=tmp_path)
        return before, gone, slices(machine, device)

    before, gone, after = Rack(tmp_path, CARDS[vendor]).meet(again)

    assert (1, set()) == (len(before), gone)
    assert before == after


def profiles() -> list[Any]:
    return list(hetero_cambricon._profiles(hetero_cambricon._CNDEV.open(), 0))


def sizes(vendor: str) -> tuple[int, int]:
    """The memory in GiB and the core of the first card's only slice, as the driver says."""
    return apart(lambda: _sizes(vendor))


def _sizes(vendor: str) -> tuple[int, int]:
    if vendor == "cambricon":
        cndev = hetero_cambricon._CNDEV.open()
        (instance,) = hetero_cambricon._instances(cndev, 0)
        return instance.memory[0] // GiB, instance.core[0]
    sgpu = hetero_metax._MXSML.open().get("mxSmlGetSgpuInfo", 0, 0, hetero_metax._Slice)
    return sgpu.memory // 1024, sgpu.core


#: What a process exits with whose admission was refused.
REFUSED = 3
#: The calls that make, change or destroy: beside what is written down, where a kill may hurt.
CHANGES = ("create", "destroy", "remove", "update", "set")


def killed_at(step: int, action: Callable[[], object], *, alone: bool) -> bool:
    """Do it in a process that is killed before or after a change; False if it makes fewer.

    `alone` kills only the vendor's process; else who asked it is killed, too.
    """
    asker = os.fork()
    if asker:
        _, status = os.waitpid(asker, 0)
        assert status in (0, REFUSED << 8 if alone else signal.SIGKILL)
        return status != 0
    stepped = _killing(step, () if alone else (os.getpid(),))
    Library.call = _counted(Library.call, _is_change, stepped)  # type: ignore[method-assign]
    plugin.note = _counted(plugin.note, lambda *_: True, stepped)
    if not alone:
        for name in ("add", "replace", "change"):
            setattr(Ledger, name, _counted(getattr(Ledger, name), lambda *_: True, stepped))
    try:
        action()
    except Refused:
        os._exit(REFUSED)
    os._exit(0)


def _killing(step: int, more: Iterable[int]) -> Callable[[], None]:
    """Return what ends this process, and `more` before it, when it is called for the nth time."""
    steps = mmap.mmap(-1, 1)  # the vendor's process and who asked it count together

    def stepped() -> None:
        steps[0] += 1
        if steps[0] == step:
            for pid in (*more, os.getpid()):
                os.kill(pid, signal.SIGKILL)

    return stepped


def _counted(
    does: Callable[..., Any], changes: Callable[..., bool], stepped: Callable[[], None]
) -> Callable[..., Any]:
    """Return the function with a step before and after it, where it changes anything."""

    def done(*arguments: Any) -> Any:
        if not changes(*arguments):
            return does(*arguments)
        stepped()
        answer = does(*arguments)
        stepped()
        return answer

    return done


def _is_change(_: Library, function: str, *arguments: Any) -> bool:
    return any(word in function.lower() for word in CHANGES)


@pytest.mark.parametrize("alone", [True, False], ids=["its vendor", "who asked"])
@pytest.mark.parametrize("vendor", CARDS)
@pytest.mark.timeout(600)  # one process a step
def test_a_slice_killed_at_any_step_of_its_life_leaves_nothing(
    tmp_path: Path, vendor: str, alone: bool
) -> None:
    def live() -> None:
        machine = Machine(tmp_path, vendor)
        machine.take(SHARE)
        machine.standing.clear()
        if machine.reconcile():
            raise Refused("its vendor was killed")

    def kill_at_each() -> int:
        step = 0
        while killed_at(step := step + 1, live, alone=alone):
            machine = Machine(tmp_path, vendor)
            assert () == machine.reconcile() == machine.reconcile()
            assert set() == slices(machine, machine.devices[0]), step
            notes = [p.name for p in (tmp_path / vendor).glob("[!.]*")]
            assert [] == notes, step
            if vendor == "cambricon":
                assert [] == apart(profiles), step
        return step

    assert Rack(tmp_path, CARDS[vendor]).meet(kill_at_each) > 2


@pytest.mark.parametrize("alone", [True, False], ids=["its vendor", "who asked"])
@pytest.mark.parametrize("vendor", CARDS)
@pytest.mark.timeout(600)  # one process a step
def test_an_admission_killed_at_any_step_leaves_nothing(
    tmp_path: Path, vendor: str, alone: bool
) -> None:
    def admit() -> None:
        node = Node(registry=registry(vendor), ledger=Ledger(tmp_path / "state"))
        admit_program(grants_of(node), SHARE, command=["true"])

    def kill_at_each() -> int:
        step = 0
        while killed_at(step := step + 1, admit, alone=alone):
            machine = Machine(tmp_path / "state" / "slices", vendor)
            if (
                not alone
            ):  # the next who looks destroys it; its vendor's death was told to who asked
                node = Node(registry=registry(vendor), ledger=Ledger(tmp_path / "state"))
                assert () == LocalGrants(node).sweep()
            assert set() == slices(machine, machine.devices[0]), step
            assert () == Ledger(tmp_path / "state").snapshot().grants
        return step

    assert Rack(tmp_path, CARDS[vendor]).meet(kill_at_each) > 2


@pytest.mark.parametrize("alone", [True, False], ids=["its vendor", "who asked"])
@pytest.mark.parametrize("vendor", ["cambricon", "metax"])
@pytest.mark.parametrize(
    "ask",
    [Ask(memory=8 * GiB, core=50), Ask(memory=2 * GiB, core=10), Ask(memory=8 * GiB, core=10)],
    ids=["more", "less", "more of one and less of the other"],
)
@pytest.mark.timeout(600)  # one process a step
def test_a_resize_killed_at_any_step_is_never_more_than_the_ledger_says_and_then_as_it_says(
    tmp_path: Path, vendor: str, ask: Ask, alone: bool
) -> None:
    def recorded(node: Node) -> tuple[int, int]:
        ((grant,),) = (entry.allocation.pieces for entry in node.snapshot().grants)
        return grant.takes[MEMORY] // GiB, grant.takes[CORE]

    def kill_at_each() -> tuple[int, list[tuple[int, int]]]:
        node = Node(registry=registry(vendor), ledger=Ledger(tmp_path / "state"))
        handle, _ = admit_program(grants_of(node), SHARE, command=["true"])
        identity = handle.grant.id
        step, more, seen = 0, True, []
        while more:
            more = killed_at(step := step + 1, lambda: resize(node, identity, ask), alone=alone)
            now, recorded_sizes = sizes(vendor), recorded(node)
            assert all(map(int.__le__, now, recorded_sizes)), (step, now, recorded_sizes)
            assert () == LocalGrants(node).sweep()
            assert sizes(vendor) == recorded(node) == recorded_sizes
            seen.append(recorded_sizes)
            resize(node, identity, Ask(memory=4 * GiB, core=20))
        return step, seen

    steps, seen = Rack(tmp_path, CARDS[vendor]).meet(kill_at_each)

    assert steps > (2 if alone else 4)
    assert {(4, 20), (ask.memory // GiB, ask.core)} == set(seen)  # type: ignore[operator]


def test_a_resize_the_driver_refuses_leaves_all_as_it_was(tmp_path: Path) -> None:
    def refused() -> tuple[tuple[int, int], list[int], str]:
        node = Node(registry=registry("cambricon"), ledger=Ledger(tmp_path / "state"))
        handle, _ = admit_program(grants_of(node), SHARE, command=["true"])
        call = Library.call

        def full(library: Any, function: str, *arguments: Any) -> None:
            if "Update" in function and arguments[-1].core == 50:
                raise DriverError(f"{function}: error 7 (no room)", 7)
            call(library, function, *arguments)

        Library.call = full  # type: ignore[method-assign, assignment]
        node.registry.close()  # the next process has it
        with pytest.raises(Refused) as error:
            resize(node, handle.grant.id, Ask(memory=8 * GiB, core=50))
        recorded_sizes = [
            g.takes[MEMORY] for e in node.snapshot().grants for g in e.allocation.pieces
        ]
        return sizes("cambricon"), recorded_sizes, str(error.value)

    size, recorded_sizes, why = Rack(tmp_path, CARDS["cambricon"]).meet(refused)

    assert ((4, 20), [4 * GiB]) == (size, recorded_sizes)
    assert "no room" in why
