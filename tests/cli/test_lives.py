"""A grant lives as long as its processes, also those that came without its open file."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from .conftest import Run

#: Leaves a service in the background and ends, as `ray start` and start-stop-daemon do: it closes
#: inherited files. The service says its PID, waits for a line, and uses the card.
STARTER = """
import ctypes, os, subprocess, sys
if sys.argv[1:] == ["service"]:
    ours, theirs = os.open("answers", os.O_WRONLY), os.open("orders", os.O_RDONLY)
    os.write(ours, b"%d\\n" % os.getpid())
    os.read(theirs, 1)
    cuda, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    answers = [
        cuda.cuInit(0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(pointer), 0),
        cuda.cuCtxSetCurrent(pointer),
        cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 30)),
        cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(2 << 30)),
    ]
    os.write(ours, f"{answers}\\n".encode())
    os.read(theirs, 1)
    sys.exit()
subprocess.Popen(
    [sys.executable, __file__, "service"], start_new_session=True, stdin=subprocess.DEVNULL,
    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
)
"""


@pytest.fixture
def environ(environ: dict[str, str], one_card: Path) -> dict[str, str]:
    return {**environ, "HETERO_RACK": str(one_card), "PYTHONPATH": ""}


@pytest.fixture
def service(
    hetero: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environ: Mapping[str, str]
) -> Iterator[tuple[int, int, int]]:
    """Return a service's PID, and the descriptors of what it says and of what it waits for."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "starter.py").write_text(STARTER)
    for name in ("answers", "orders"):
        os.mkfifo(name)
    answers, orders = (os.open(name, os.O_RDWR) for name in ("answers", "orders"))
    done = hetero("run", "--memory", "2Gi", "--", sys.executable, "starter.py")
    assert 0 == done.returncode, done.stderr
    yield int(os.read(answers, 100)), answers, orders
    for descriptor in (answers, orders):
        os.close(descriptor)


def wait_for_the_end_of(pid: int) -> None:
    """Wait until a process that is nobody's child is gone."""
    subprocess.run(["tail", f"--pid={pid}", "-f", "/dev/null"], check=True, timeout=60)


def test_a_service_without_inherited_files_keeps_the_grant_of_its_starter_that_ended(
    hetero: Run, service: tuple[int, int, int]
) -> None:
    pid, answers, orders = service
    (grant,) = json.loads(hetero("ps", "--json").stdout)["items"]
    assert [pid] == grant["processes"]
    os.write(orders, b"!")
    assert b"[0, 0, 0, 0, 2]\n" == os.read(answers, 100)
    (grant,) = json.loads(hetero("ps", "--json").stdout)["items"]
    assert [pid] == grant["processes"]

    os.write(orders, b"!")
    wait_for_the_end_of(pid)
    assert [] == json.loads(hetero("ps", "--json").stdout)["items"]


def test_release_ends_a_service_that_holds_a_grant_and_does_not_use_the_card(
    hetero: Run, service: tuple[int, int, int]
) -> None:
    pid, _, _ = service
    (grant,) = json.loads(hetero("ps", "--json").stdout)["items"]

    done = hetero("release", "--force", grant["id"])

    assert 0 == done.returncode, done.stderr
    assert [] == json.loads(hetero("ps", "--json").stdout)["items"]
    wait_for_the_end_of(pid)


def test_who_holds_a_grant_for_a_minute_and_does_not_use_the_card_is_named(
    hetero: Run, service: tuple[int, int, int], environ: Mapping[str, str]
) -> None:
    """The minute is not waited for."""
    pid, answers, orders = service
    (path,) = Path(environ["HETERO_STATE"]).glob("*/grants/*/allocation.json")
    new, old = hetero("ps").stdout, "2020-01-01T00:00:00+00:00"
    path.write_text(json.dumps({**json.loads(path.read_text()), "since": old}))
    idle = hetero("ps").stdout
    os.write(orders, b"!")
    os.read(answers, 100)

    assert "held by python" in idle
    assert f"({pid}), and no process of it uses the card" in idle
    assert "no process of it uses the card" not in new + hetero("ps").stdout


def test_with_the_command_its_other_processes_end(
    hetero: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ("sh", "-c", "sleep 1000 > out 2>&1 & echo $! > child")
    done = hetero("run", "--end-with", "command", "--memory", "1Gi", "--", *command)

    assert 0 == done.returncode, done.stderr
    wait_for_the_end_of(int((tmp_path / "child").read_text()))
    assert [] == json.loads(hetero("ps", "--json").stdout)["items"]


def test_what_the_command_left_runs_on_without_that(
    hetero: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ("sh", "-c", "sleep 1000 > out 2>&1 & echo $! > child")
    hetero("run", "--memory", "1Gi", "--", *command)
    pid = int((tmp_path / "child").read_text())

    (grant,) = json.loads(hetero("ps", "--json").stdout)["items"]
    assert [pid] == grant["processes"]
    hetero("release", "--force", grant["id"])
    wait_for_the_end_of(pid)
