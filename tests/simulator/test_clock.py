"""The clock that simulated programs can have in common, which no load of the machine disturbs."""

import subprocess
import sys
import time
from pathlib import Path

import hetero_simulator
import pytest

SLEEPER = """
import time
since, day = time.monotonic(), time.time()
for _ in range({times}):
    time.sleep({seconds})
print(since, time.monotonic() - since, time.time() - day)
"""


def started(tmp_path: Path, code: str, together: int) -> subprocess.Popen[str]:
    environment = {
        "VIRTUAL_CLOCK": f"{together}:{tmp_path}/clock",
        "LD_PRELOAD": str(hetero_simulator.clock()),
    }
    command = [sys.executable, "-S", "-c", code]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def printed_times(program: subprocess.Popen[str]) -> list[float]:
    out, _ = program.communicate(timeout=60)
    assert 0 == program.returncode
    return [float(word) for word in out.split()]


def test_an_hour_of_sleep_passes_at_once_by_every_clock(tmp_path: Path) -> None:
    _, slept, of_day = printed_times(started(tmp_path, SLEEPER.format(times=1, seconds=3600), 1))
    assert pytest.approx(3600, abs=0.01) == slept
    assert pytest.approx(3600, abs=0.01) == of_day


def test_processes_have_one_clock_and_begin_together(tmp_path: Path) -> None:
    slow, fast = (
        started(tmp_path, SLEEPER.format(times=times, seconds=seconds), 2)
        for times, seconds in ((2, 50), (1000, 0.1))
    )
    (began, slept, _), (other_began, other_slept, _) = printed_times(slow), printed_times(fast)
    assert pytest.approx(began, abs=0.01) == other_began
    assert pytest.approx(100, abs=0.1) == slept
    assert pytest.approx(100, abs=0.1) == other_slept  # each timer is a little late


def test_the_clock_is_not_behind_the_machines_when_the_last_has_come(tmp_path: Path) -> None:
    """A simulated card that was asked in the machine's time would hold up whoever is behind it."""
    first = started(tmp_path, SLEEPER.format(times=1, seconds=1), 2)
    clock = tmp_path / "clock"
    while not (clock.exists() and clock.read_bytes()[4:8] == b"\1\0\0\0"):  # one has joined
        assert first.poll() is None
        time.sleep(0.01)
    last_comes = time.monotonic()
    last = started(tmp_path, SLEEPER.format(times=1, seconds=1), 2)
    assert last_comes < printed_times(first)[0]
    assert last_comes < printed_times(last)[0]


def test_the_clock_goes_on_where_those_before_left_it(tmp_path: Path) -> None:
    first, slept, _ = printed_times(started(tmp_path, SLEEPER.format(times=1, seconds=1000), 1))
    second, _, _ = printed_times(started(tmp_path, SLEEPER.format(times=1, seconds=1), 1))
    assert second >= first + slept


def test_a_process_that_is_killed_is_not_waited_for(tmp_path: Path) -> None:
    killed = started(tmp_path, "import os, time; time.sleep(1); os.kill(os.getpid(), 9)", 2)
    other = started(tmp_path, SLEEPER.format(times=10, seconds=10), 2)
    assert pytest.approx(100, abs=0.1) == printed_times(other)[1]
    assert -9 == killed.wait(timeout=60)
    assert killed.stdout is not None
    killed.stdout.close()


def test_the_time_of_a_forked_child_is_the_machines(tmp_path: Path) -> None:
    code = """
import os, time
time.sleep(1000)
child = os.fork()
if child == 0:
    since = time.monotonic()
    time.sleep(0.05)
    print(0, time.monotonic() - since, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    assert 0.05 <= printed_times(started(tmp_path, code, 1))[1] < 1000


def test_threads_wait_for_each_other_in_its_time(tmp_path: Path) -> None:
    code = """
import threading, time
since, done = time.monotonic(), threading.Condition()
def work():
    time.sleep(30)
    with done:
        done.notify()
thread = threading.Thread(target=work)
with done:
    thread.start()
    told = done.wait(100)
thread.join()
print(told, time.monotonic() - since)
""".replace("print(told", "print(int(told)")
    answer, took = printed_times(started(tmp_path, code, 1))
    assert 1 == answer
    assert pytest.approx(30, abs=0.01) == took
