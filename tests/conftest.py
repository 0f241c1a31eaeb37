"""What holds for every test: no deadline a busy machine would miss, no driver in this process."""

import asyncio
import faulthandler
import fcntl
import gc
import inspect
import os
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import hetero_simulator
import pytest
from hypothesis import settings

from tests.kube.binaries import LABS, LATE_IS_MISSING, binaries, lacks_late

# What a test says depends on the change alone; `make soak` asks for "soak", which looks further
# each time. Neither count is set anywhere else.
settings.register_profile("hetero", deadline=None, derandomize=True, max_examples=30)
settings.register_profile("soak", deadline=None, max_examples=3000, print_blob=True)
settings.load_profile("hetero")

_DRIVERS = str(hetero_simulator.fake_drivers())

# A child that a test had forked was seen collecting, for ever, what gRPC's event loops had left
# behind in the test process.
os.register_at_fork(after_in_child=gc.disable)
# A child forked beside gRPC's threads wrote what gRPC thinks of that into the output of a command.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

#: Where stderr goes outside tests.
_SEEN = pytest.StashKey[int]()

#: What takes a card, root, an emulator, other shells or a night: selected only where `-m` names it.
_NAMED = ("aarch64", "cluster", "containers", "hardware", "hip", "shells", "soak")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer --no-skips, for runs that are there to run all of their tests."""
    parser.addoption(
        "--no-skips",
        action="store_true",
        help="let a test that skips fail, unless it lacks Kubernetes 1.36",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select what any machine can run, and what `-m` names."""
    unnamed = {name for name in _NAMED if name not in config.getoption("markexpr")}
    chosen: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        named = any(item.get_closest_marker(name) for name in unnamed)
        (left_out if named else chosen).append(item)
    items[:] = chosen
    config.hook.pytest_deselected(items=left_out)


def pytest_configure(config: pytest.Config) -> None:
    """Let a test that hangs be seen, and a run in the background be like any other."""
    capture = config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    # A shell starts background jobs with SIGINT ignored, and nohup with SIGHUP: programs inherit
    # that. What tests start has the default; the run itself goes on ignoring them.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)
    with capture.global_and_fixture_disabled():
        config.stash[_SEEN] = os.dup(sys.stderr.fileno())
    if "RECORD_SENT" in os.environ:
        from tests.parity import recorder  # it reads the table, which most runs do without

        recorder.begin(config)


def _limit_s(item: pytest.Item) -> float:
    """Return the seconds after which pytest-timeout fails a test, 0 where it has no limit."""
    marker = item.get_closest_marker("timeout")
    return float((marker.args[0] if marker else item.config.getoption("timeout")) or 0)


def _end_if_it_hangs(item: pytest.Item) -> None:
    """End this process, with the stacks of its threads, long after `--timeout` let the test fail.

    pytest-timeout guards a test. A fixture that waits for ever kept a run from ever ending.
    """
    if limit := _limit_s(item):
        seen = item.config.stash[_SEEN]
        faulthandler.dump_traceback_later(2 * limit, exit=True, file=seen)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let no test be set up and run for ever."""
    _end_if_it_hangs(item)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}
    asyncio.run(asyncio.wait_for(test(**arguments), max(180, _limit_s(pyfuncitem))))
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Let no test be taken down for ever."""
    _end_if_it_hangs(item)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Let what comes after the tests take its time, and end with what was not run."""
    faulthandler.cancel_dump_traceback_later()
    terminal = config.pluginmanager.getplugin("terminalreporter")
    skipped = terminal.stats.get("skipped", ()) if terminal else ()
    reasons = [report.longrepr[2].removeprefix("Skipped: ") for report in skipped]
    missing = [reason for reason in reasons if reason.startswith(LATE_IS_MISSING)]
    if missing:
        print(f"not run: {len(missing)} tests: {missing[0]}")


def pytest_collection_finish() -> None:
    """Keep thousands of collected tests from being searched for garbage over and over."""
    gc.collect()
    gc.freeze()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what is on the late cluster: `make test-cluster` runs it beside the rest.

    A late control plane without nodes belongs to the rest, which ends earlier. Where the late
    Kubernetes is missing it does not, so that one run counts all that was not run.
    """
    if isinstance(item, pytest.Function) and item.get_closest_marker("cluster"):
        params = dict(item.callspec.params) if hasattr(item, "callspec") else {}
        plane = params.pop("kubernetes", None)
        on_nodes = "late_lab" in item.fixturenames or "kube136" in params.values()
        without = plane == "kube136" or "late_kubernetes" in item.fixturenames
        if on_nodes or (without and lacks_late()):
            item.add_marker(pytest.mark.late)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a test that skips as failed, with its reason, where --no-skips says so.

    One reason is accepted: a late Kubernetes is large, and not to be had from Debian.
    """
    report = yield
    if report.skipped and item.config.getoption("--no-skips") and not hasattr(report, "wasxfail"):
        reason = str(call.excinfo.value if call.excinfo else "no reason")
        if not reason.startswith(LATE_IS_MISSING):
            report.outcome = "failed"
            report.longrepr = f"skipped: {reason}"
    return report


@pytest.fixture(autouse=True, scope="module")
def no_driver_is_left() -> Iterator[None]:
    """A library is loaded once and for good: whoever came next would meet it, its rack and all.

    Simulated drivers belong in a process of their own (`Rack.meet`, a subprocess).
    """
    yield
    assert _DRIVERS not in Path("/proc/self/maps").read_text()


@pytest.fixture(autouse=True, scope="session")
def nothing_is_left_on_simulated_cards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A simulated driver keeps what must outlive a program in a file, as a card keeps its slices.

    A card's own state is locked by whoever uses it; slices are noted after the path of their rack.
    What an interrupted run left goes, too: a rack that is no more, and files that note no slice.
    """
    yield
    own_prefix = f"{tmp_path_factory.getbasetemp()}/".encode()
    for path in Path("/dev/shm").glob(f"hetero-*-{os.getuid()}-*"):
        with suppress(FileNotFoundError, BlockingIOError), path.open("r+b") as state:
            if path.name.startswith("hetero-rack-"):
                fcntl.flock(state, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                continue
            fcntl.lockf(state, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)  # as the driver, while it writes
            rack = state.read(512).rstrip(b"\0")
            if rack.startswith(own_prefix) or not os.path.exists(rack) or not any(state.read()):
                path.unlink()


@pytest.fixture(scope="session")
def kubernetes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of Kubernetes' programs: of the lab that a test names, or of the first."""
    lab = getattr(request, "param", LABS[0])
    folder = tmp_path_factory.getbasetemp() / f"of-{lab}"
    if (folder / "kubelet").exists():  # this fixture is made anew for each way of naming it
        return folder
    folder.mkdir(exist_ok=True)
    return binaries(folder, lab)


@pytest.fixture(scope="session")
def late_kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a late Kubernetes' programs."""
    return binaries(tmp_path_factory.getbasetemp(), "kube136")
