"""A vendor whose library crashes, exits, hangs or prints harms nobody: each deed at each hook."""

import gc
import itertools
import json
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import hetero.registry.pauses
import hetero.registry.registry
import hetero.registry.supervisor
from hetero.model import CORE, MEMORY, SLOTS, Allocation, DeviceAllocation, Edits, Usage
from hetero.model.errors import NotFound, Refused
from hetero.model.units import GiB
from hetero.registry.fork_server import ForkServer
from hetero.registry.message import WorkerRequest
from hetero.registry.pauses import Pauses
from hetero.registry.process import Forks, Starter, VendorProcess
from hetero.registry.registry import Registry
from hetero.registry.respondent import Plugin
from hetero.registry.vendor_row import VendorRow
from tests.registry import hostile
from tests.registry.installed import good, install, install_hostile


@pytest.fixture(autouse=True)
def nobody_has_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hetero.registry.registry, "DISCOVERY_TIMEOUT_S", 3.0)
    monkeypatch.setattr(hetero.registry.registry, "ENFORCEMENT_TIMEOUT_S", 3.0)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry]:
    """Return what makes the registry of a hostile vendor beside a good one."""
    entries = [
        install(tmp_path, "good", good()),
        install(tmp_path, "hostile", Path(hostile.__file__).read_text()),
    ]
    monkeypatch.syspath_prepend(str(tmp_path))

    def registry(deed: str, hook: str, starter: Starter | None = None) -> Registry:
        monkeypatch.setenv("HOSTILE_AT", hook)
        monkeypatch.setenv("HOSTILE_DOES", deed)
        monkeypatch.setenv(hostile.LEFT, str(tmp_path / "left"))
        return Registry(lambda: entries, starter or Forks())

    return registry


def granted(vendor: str) -> Allocation:
    takes = {CORE: 10, MEMORY: GiB // 2, SLOTS: 1}
    return Allocation(pieces=(DeviceAllocation(device=f"{vendor}-0", vendor=vendor, takes=takes),))


def asked(registry: Registry, vendor: str, directory: Path) -> tuple[object, ...]:
    """What a vendor says to each question; a refusal or failure is its sentence."""
    discovery = registry.discover()
    rows = {row.name: row for row in discovery.rows}
    devices = [device for device in discovery.devices if device.vendor == vendor]
    outcomes: list[object] = [rows[vendor]]
    try:
        outcomes.append(
            registry.enforce(granted(vendor), devices, directory=directory) if devices else None
        )
    except Refused as refused:
        outcomes.append(str(refused))
    outcomes.append(registry.reconcile(devices, (), directory=directory))
    outcomes.append([registry.observe(device) for device in devices])
    return tuple(outcomes)


@pytest.mark.parametrize("hook", ["import", *hostile.HOOKS])
def test_each_deed_at_a_hook_is_one_sentence_and_the_neighbour_does_not_notice(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    hook: str,
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(hostile.LEFT, str(tmp_path / "left"))
    # Who hung is not waited for again.
    monkeypatch.setattr(hetero.registry.supervisor, "FIRST_PAUSE_S", 60.0)
    # One hook shows what comes of computing, which is as long as a hang and keeps others waiting.
    deeds = [deed for deed in hostile.DEEDS if deed != "compute_for_ever" or hook == "discover"]
    bad = install_hostile(tmp_path, deeds, [hook])
    entries = [*bad.values(), install(tmp_path, "good", good())]
    registry = Registry(lambda: entries)
    registry.discover()
    for name in ("DISCOVERY_TIMEOUT_S", "ENFORCEMENT_TIMEOUT_S"):  # who answers at all has started
        monkeypatch.setattr(hetero.registry.registry, name, 1.0)
    outcomes_of = {deed: asked(registry, bad[deed, hook].name, tmp_path) for deed in deeds}
    neighbour = asked(registry, "good", tmp_path)
    registry.close()

    assert neighbour == (
        VendorRow(
            name="good",
            source="hetero-good 1.0",
            state="ok",
            devices=1,
            title="good",
            file=f"{tmp_path}/hetero_good.py",
        ),
        Edits(env={"GOOD": f"{tmp_path}/good", "GOOD_VISIBLE_DEVICES": "good-0"}),
        (),
        [Usage(memory=5)],
    )
    assert ("", "") == tuple(capfd.readouterr())
    for deed, outcomes in outcomes_of.items():
        expect_one_sentence(deed, hook, bad[deed, hook].name, outcomes)


def expect_one_sentence(deed: str, hook: str, name: str, outcomes: tuple[object, ...]) -> None:
    row, edits, faults, usages = outcomes
    assert isinstance(row, VendorRow)
    worked = deed in hostile.HARMLESS
    early = hook in ("import", "vendor", "discover") and not worked
    assert ("broken" if early else "ok") == row.state
    if early:
        assert str(row.reason).startswith(f"{name}: ")
        assert "\n" not in str(row.reason)
        assert (None, (), []) == (edits, faults, usages)
        return
    if hook == "enforce" and not worked:
        assert str(edits).startswith(f"{name}: enforce: ")
    else:
        assert isinstance(edits, Edits)
    assert (hook == "reconcile" and not worked) == bool(faults)
    assert isinstance(usages, list)
    (usage,) = usages
    paused = deed == "hang" and hook in ("enforce", "reconcile")
    assert ((hook == "observe" or paused) and not worked) == (usage == Usage())


def test_what_a_vendor_started_ends_with_it(
    installed: Callable[..., Registry], tmp_path: Path
) -> None:
    registry = installed("fork_that_stays", "discover")
    registry.discover()
    left = int((tmp_path / "left").read_text())
    registry.close()

    assert eventually(lambda: not Path(f"/proc/{left}").exists() or _is_zombie(left))


def _is_zombie(pid: int) -> bool:
    return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()


def eventually(true: Callable[[], bool]) -> bool:
    until = time.monotonic() + 60
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize("deed", ["segfault", "exit_0", "hang", "write_everywhere"])
def test_a_program_with_threads_asks_by_way_of_a_server(
    installed: Callable[..., Registry], tmp_path: Path, deed: str
) -> None:
    registry = Registry(installed(deed, "observe")._plugins, ForkServer(dict(os.environ)))
    seen: list[tuple[object, ...]] = []
    asking = threading.Thread(
        target=lambda: seen.extend(asked(registry, name, tmp_path) for name in ("hostile", "good"))
    )
    asking.start()
    asking.join()
    registry.close()

    (_, _, _, usages), neighbour = seen
    assert [Usage()] == usages
    assert (
        Edits(env={"GOOD": f"{tmp_path}/good", "GOOD_VISIBLE_DEVICES": "good-0"}),
        (),
        [Usage(memory=5)],
    ) == neighbour[1:]


def test_a_process_that_nobody_has_any_more_ends_in_the_middle_of_a_request(
    installed: Callable[..., Registry], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Garbage is searched for whenever something is made, and here a process is found then."""
    server = ForkServer(dict(os.environ))
    (_, plugin) = installed("hang", "nowhere")._plugins()
    dropped: list[object] = [VendorProcess(plugin, server)]
    dropped.append(dropped)
    reference = weakref.ref(dropped[0])

    def dumps(request: object) -> str:
        gc.collect()
        return written(request)

    written = json.dumps
    monkeypatch.setattr(json, "dumps", dumps)
    asking = threading.Thread(target=server.reap, args=(1,), daemon=True)
    del dropped
    asking.start()
    asking.join(20)
    assert not asking.is_alive()
    assert reference() is None


def test_a_vendor_whose_process_ended_between_two_questions_is_started_again(
    installed: Callable[..., Registry],
) -> None:
    registry = installed("hang", "nowhere")
    (row, _), first = registry.discover().rows, registry._members[0].asked._process  # type: ignore[union-attr]
    assert first is not None
    os.kill(first.pid, 9)
    assert eventually(lambda: not first.runs)

    assert row == registry.discover().rows[0]
    assert first is not registry._members[0].asked._process  # type: ignore[union-attr]


class Counted(Forks):
    """Notes of which vendors it starts processes."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def start(self, plugin: Plugin, questions: int, answers: int) -> int:
        self.names.append(plugin.name)
        return super().start(plugin, questions, answers)


def test_a_vendor_that_keeps_failing_is_asked_after_longer_and_longer_pauses(
    installed: Callable[..., Registry], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    started = Counted()
    registry = installed("raise_an_exit", "import", started)
    starts: list[int] = []
    for second in range(200):
        clock[0] = 1000.0 + second
        registry.discover(names=["hostile"])
        if len(started.names) > len(starts):
            starts.append(second)

    assert [0, 1, 3, 7, 15, 31, 63, 123, 183] == starts


class Exhausted(Forks):
    """Starts no process, as on a machine that has as many as it may."""

    def start(self, plugin: Plugin, questions: int, answers: int) -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")


def test_a_vendor_may_fail_for_days(
    installed: Callable[..., Registry], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(0.0, 61.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    registry = installed("hang", "nowhere", Exhausted())
    reasons = {registry.discover(names=["hostile"]).rows[0].reason for _ in range(1100)}

    assert {"hostile: discover: [Errno 11] Resource temporarily unavailable"} == reasons


def test_a_command_does_not_wait_for_a_vendor_that_hung_in_the_one_before(
    installed: Callable[..., Registry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(hetero.registry.pauses, "_now", lambda: clock[0])
    monkeypatch.setattr(hetero.registry.registry, "DISCOVERY_TIMEOUT_S", 0.5)
    pauses = Pauses(tmp_path / "vendors.json", lambda: None)

    def reason() -> str | None:
        """Return why the vendor does not work, in a command of its own."""
        plugins = installed("hang", "discover")._plugins
        registry = Registry(plugins, starter=started, pauses=pauses)
        (row,) = registry.discover(names=["hostile"]).rows
        registry.close()
        return row.reason

    started = Counted()
    hung = "hostile: discover: no answer within 0.5 s"
    assert hung == reason()
    clock[0] = 4.0
    assert f"{hung}: not asked again for 6 s" == reason()
    clock[0] = 10.0
    assert hung == reason()
    clock[0] = 29.0
    assert f"{hung}: not asked again for 1 s" == reason()
    assert ["hostile", "hostile"] == started.names
    clock[0] = 30.0
    monkeypatch.setattr(hetero.registry.registry, "DISCOVERY_TIMEOUT_S", 3.0)
    (tmp_path / "hetero_hostile.py").write_text(good("hostile"))
    assert reason() is None
    assert "{}" == (tmp_path / "vendors.json").read_text()


def test_the_devices_of_a_vendor_that_fails_stay_and_are_stale(
    installed: Callable[..., Registry], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = installed("hang", "nowhere")
    before = registry.discover()
    registry.close()
    monkeypatch.setenv("HOSTILE_AT", "discover")
    monkeypatch.setenv("HOSTILE_DOES", "exit_0")
    after = registry.discover()

    why = "hostile: discover: its process exited with code 0 without an answer"
    assert [("ok", None), ("stale", why)] == [(row.state, row.reason) for row in after.rows]
    assert [device.uuid for device in before.devices] == [device.uuid for device in after.devices]
    assert ["ok", why] == [device.health for device in after.devices]


class Unkillable(Forks):
    """Starts processes whose end is never seen, as of a driver call that the kernel is in."""

    def reap(self, pid: int) -> int | None:
        return None


def test_processes_that_do_not_end_are_left_and_after_three_no_more_are_started_until_one_ends(
    installed: Callable[..., Registry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hetero.registry.process, "KILL_WAIT_S", 0.05)
    monkeypatch.setattr(hetero.registry.registry, "DISCOVERY_TIMEOUT_S", 0.2)
    monkeypatch.setattr(hetero.registry.supervisor, "FIRST_PAUSE_S", 0.0)
    killed_pids: list[int] = []
    monkeypatch.setattr(hetero.registry.process, "_kill", killed_pids.append)
    registry = installed("hang", "discover")
    reasons = [registry.discover(names=["hostile"]).rows[0].reason for _ in range(4)]

    assert (
        "hostile: discover: no answer within 0.2 s; its process does not end (1 now)"
        == (reasons[0])
    )
    assert str(reasons[2]).endswith("(3 now): not asked again until one ends")
    assert reasons[2] == reasons[3]

    for pid in killed_pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    monkeypatch.setenv("HOSTILE_AT", "nowhere")
    assert "ok" == registry.discover(names=["hostile"]).rows[0].state


def test_a_declaration_that_kills_its_process_is_no_vendor_and_the_others_are(
    installed: Callable[..., Registry],
) -> None:
    registry = installed("segfault", "vendor")

    assert ["good"] == [vendor.name for vendor in registry.declarations()]
    with pytest.raises(NotFound, match="hostile: vendor: its process was ended by SIGSEGV"):
        registry.vendor("hostile")


def test_a_vendors_process_has_none_of_ours_but_its_pipes(
    installed: Callable[..., Registry], tmp_path: Path
) -> None:
    kept = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(kept, True)
    registry = installed("hang", "nowhere")
    registry.discover()
    process = registry._members[0].asked._process  # type: ignore[union-attr]
    assert process is not None
    opened = [os.readlink(path) for path in Path(f"/proc/{process.pid}/fd").iterdir()]
    os.close(kept)

    assert 5 == len(opened)
    assert {"/dev/null", "pipe"} == {name.partition(":")[0] for name in opened}


def test_a_question_that_fills_the_pipe_of_a_process_that_does_not_read_is_given_up(
    installed: Callable[..., Registry],
) -> None:
    process = VendorProcess(installed("hang", "nowhere")._members[1].plugin, Forks())
    os.kill(process.pid, signal.SIGSTOP)
    question = WorkerRequest(ask="discover", within_s=1.0, directory="x" * (1 << 20))

    with pytest.raises(hetero.registry.process.Overdue):
        process.send(question, time.monotonic() + 0.2)
    process.kill()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                return
        except ChildProcessError:
            return
