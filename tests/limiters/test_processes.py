"""Memory of many processes: races, shared blocks, forks and kills are never counted wrong."""

import json
import random
import signal
import subprocess
import time

import hetero_simulator
import pytest
import tenancy
from tenancy import MIB, Grant, Rack, Terms

from tests.programs import next_line

#: The faults (limiters/core/fault.h) that a test here finds.
FAULTS = ("promised_idle_bytes_refunded",)

OWNER = f"""
start()
handle = ctypes.create_string_buffer(64)
pointer = take("plain", {20 * MIB})
call("cuIpcGetMemHandle", handle, pointer)
say(handle.raw.hex())
input()
call("cuMemFree_v2", pointer)
say(info()[0] >> 20)
input()
"""
GUEST = """
class Handle(ctypes.Structure):
    _fields_ = [("raw", ctypes.c_ubyte * 64)]
start()
before, pointer = info()[0] >> 20, c_uint64()
handle = Handle.from_buffer_copy(bytes.fromhex(input()))
assert cuda.cuIpcOpenMemHandle_v2(byref(pointer), handle, c_uint(1)) == 0
call("cuMemsetD8_v2", pointer.value, ctypes.c_ubyte(1), 4096)
opened = info()[0] >> 20
call("cuIpcCloseMemHandle", pointer.value)
say([before, opened, info()[0] >> 20])
"""


@pytest.mark.parametrize(("guests", "left"), [("ours", 44), ("of another grant", 64)])
def test_memory_shared_by_processes_is_charged_once_to_its_owner(
    rack: Rack, guests: str, left: int
) -> None:
    grant = rack.grant(Terms(memory=64 * MIB))
    other = grant if guests == "ours" else rack.grant(Terms(memory=64 * MIB), name="other")
    owner = grant.start(OWNER)
    assert owner.stdin
    handle = json.loads(next_line(owner))
    out, errors = other.start(GUEST).communicate(f"{handle}\n", timeout=60)

    assert ([left] * 3, "") == (json.loads(out), errors)
    assert 20 * MIB == grant.usage().used
    owner.stdin.write("\n")
    owner.stdin.flush()
    assert 64 == json.loads(next_line(owner))
    owner.communicate("\n")


def test_eight_racing_processes_are_never_over_the_limit(rack: Rack) -> None:
    grant = rack.grant(Terms(memory=64 * MIB))
    racers = [
        grant.start(f"""
import random, time
context = start()
end = time.monotonic() + 1.5
refused = 0
def race(number):
    global refused
    call("cuCtxSetCurrent", context)
    rng = random.Random({process} * 10 + number)
    while time.monotonic() < end:
        path = rng.choice(["plain", "async", "block", "managed"])
        what = take(path, rng.randrange(1, 12) * {2 * MIB})
        if what == OUT_OF_MEMORY:
            refused += 1
        else:
            give(path, what)
in_threads(4, race)
say(refused)
""")
        for process in range(8)
    ]
    most = 0
    while any(racer.poll() is None for racer in racers):
        most = max(most, grant.usage().used)
        time.sleep(0.001)
    refused = [int(racer.communicate(timeout=60)[0]) for racer in racers]

    assert all(racer.returncode == 0 for racer in racers)
    assert sum(refused) > 0
    assert 32 * MIB <= most <= 64 * MIB
    assert grant.usage().peak <= 64 * MIB
    assert "[67108864, 67108864]" == json.dumps(grant.run("start(); say(info())"))


def peak_of_racing_pools(grant: Grant) -> int:
    """Threads trim a pool at any moment, and another process takes what that gives back."""
    pool = grant.start(f"""
import time
context, end = start(), time.monotonic() + 2
def race(number):
    call("cuCtxSetCurrent", context)
    while time.monotonic() < end:
        if number > 0:
            if (pointer := take("plain", {32 * MIB})) != OUT_OF_MEMORY:
                give("plain", pointer)
        elif (pointer := take("async", {20 * MIB})) != OUT_OF_MEMORY:
            call("cuMemFreeAsync", pointer, None)
in_threads(3, race)
""")
    taker = grant.start(f"""
import time
context, end = start(), time.monotonic() + 2
def race(number):
    call("cuCtxSetCurrent", context)
    while time.monotonic() < end:
        if (pointer := take("plain", {32 * MIB})) != OUT_OF_MEMORY:
            give("plain", pointer)
in_threads(2, race)
""")
    for process in (pool, taker):
        process.communicate(timeout=60)
        assert 0 == process.returncode
    return grant.usage().peak


def test_idle_memory_of_a_pool_is_not_given_to_others_while_an_allocation_takes_it(
    rack: Rack,
) -> None:
    assert 64 * MIB == peak_of_racing_pools(rack.grant(Terms(memory=64 * MIB)))


@pytest.mark.soak
def test_with_the_fault_idle_memory_of_a_pool_is_given_away_and_the_limit_passed(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenancy, "LIMITER", tenancy.with_faults("cuda"))
    monkeypatch.setenv("HETERO_FAULT", *FAULTS)
    assert 64 * MIB < peak_of_racing_pools(rack.grant(Terms(memory=64 * MIB)))


def test_what_other_threads_free_while_the_figure_is_read_is_not_charged_again(
    grant: Grant,
) -> None:
    """It is in the figure of before, and not in what is charged afterwards."""
    refused = grant.run(f"""
import time
context, stream, refused, end = start(), c_void_p(), [0, 0], time.monotonic() + 2
def race(number):
    call("cuCtxSetCurrent", context)
    while time.monotonic() < end:
        if number > 0 and (pointer := take("plain", {20 * MIB})) == OUT_OF_MEMORY:
            refused[0] += 1
        elif number > 0:
            give("plain", pointer)
        elif cuda.cuStreamCreate(byref(stream), c_uint(1)) != 0:
            refused[1] += 1
        else:
            call("cuStreamDestroy_v2", stream)
in_threads(4, race)
say(refused)
""")
    assert [0, 0] == refused


@pytest.mark.parametrize(
    "rounds", [1_000, pytest.param(62_500, marks=[pytest.mark.soak, pytest.mark.timeout(600)])]
)
def test_racing_allocations_never_take_the_card_past_the_limit(rack: Rack, rounds: int) -> None:
    """Four processes of four threads; the long form makes a million allocations."""
    grant = rack.grant(Terms(memory=64 * MIB))
    watcher = rack.start("""
import select, sys
start()
least = info()[0]
say("ready")
while not select.select([sys.stdin], [], [], 0.0002)[0]:
    least = min(least, info()[0])
say(least)
""")
    next_line(watcher)
    racers = [
        grant.start(f"""
import random
context, refused, granted = start(), [0] * 4, [0] * 4
def race(number):
    call("cuCtxSetCurrent", context)
    rng = random.Random({process} * 4 + number)
    for _ in range({rounds}):
        path = rng.choice(["plain", "plain", "block", "managed"])
        what = take(path, rng.randrange(1, 24) * {2 * MIB})
        if what == OUT_OF_MEMORY:
            refused[number] += 1
        else:
            give(path, what)
            granted[number] += 1
in_threads(4, race)
say([sum(refused), sum(granted)])
""")
        for process in range(4)
    ]
    counts = [json.loads(racer.communicate(timeout=600)[0]) for racer in racers]
    least = int(watcher.communicate("end\n", timeout=60)[0])

    assert 16 * rounds == sum(map(sum, counts))
    assert all(refused > 0 and granted > 0 for refused, granted in counts)
    assert (1024 - 64) * MIB <= least < 1024 * MIB
    assert grant.usage().peak <= 64 * MIB


def test_kill_9_gives_everything_back(grant: Grant) -> None:
    program = grant.start(f"""
start()
say(take("plain", {50 * MIB}) > 1000)
input()
""")
    assert "true\n" == next_line(program)
    other = "start(); say([info()[0] >> 20, take('plain', 60 << 20) == 2])"
    assert [14, True] == grant.run(other)
    program.send_signal(signal.SIGKILL)
    program.communicate()

    assert [64, False] == grant.run(other)


def test_three_hundred_processes_at_once_all_get_a_slot_and_never_too_much(rack: Rack) -> None:
    grant = rack.grant(Terms(memory=600 * MIB))  # each of them wants 1 MiB, which takes 2
    for _ in range(2):  # the second time among the slots of the dead
        starts = rack.machine.spawn(
            [str(hetero_simulator.timing("cuda")), "--starts", "300"], **grant.environment
        )
        out, errors = starts.communicate(timeout=120)
        assert (0, "") == (starts.returncode, errors)
        assert json.loads(out)["start"]["p99"] > 0
    assert 600 * MIB == grant.usage().peak
    assert 600 == grant.run("start(); say(info()[0] >> 20)")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [300, pytest.param(100_000, marks=pytest.mark.soak)])
def test_killed_programs_leave_nothing_on_the_card(rack: Rack, kills: int) -> None:
    """Killed anywhere from their start to the middle of a time slice, three beside each other."""
    grant, rng = rack.grant(Terms(memory=64 * MIB, core=8000)), random.Random(1)
    watcher = rack.start("""
import select, sys
start()
least = info()[0]
while not select.select([sys.stdin], [], [], 0.0005)[0]:
    least = min(least, info()[0])
say(least)
""")
    running: list[subprocess.Popen[str]] = []
    for number in range(kills):
        size = f"{rng.randrange(1, 64)}MiB"
        running.append(grant.job("--memory", size, "--kernel-us", "100", "--seconds", "600"))
        time.sleep(rng.random() * 0.006)
        if number >= 3:
            victim = running.pop(rng.randrange(3))
            victim.kill()
            victim.communicate()
    for victim in running:
        victim.kill()
        victim.communicate()
    least = int(watcher.communicate("end\n", timeout=60)[0])

    assert (1024 - 64) * MIB <= least < 1024 * MIB
    assert [64, True] == grant.run(
        "start(); say([info()[0] >> 20, take('plain', 64 << 20) > 1000])"
    )


def test_a_program_that_becomes_another_is_limited_on_and_holds_nothing_of_the_first(
    grant: Grant,
) -> None:
    answers = grant.run(f"""
import os, sys
start()
assert take("plain", {50 * MIB}) > 1000
again = "from driver import *\\nstart()\\n"
again += "say([info(), take('plain', {64 * MIB} + 1), take('plain', {64 * MIB}) > 1000])"
os.execv(sys.executable, [sys.executable, "-c", again])
""")
    assert [[64 * MIB, 64 * MIB], 2, True] == answers


CLOSE_EVERYTHING = {
    "closefrom": "os.closerange(3, 65536)",
    # subprocess closes from 3 on in a child of vfork, which has this process's memory.
    "vfork": "subprocess.run([sys.executable, '-c', 'pass'], check=True, close_fds=True)",
    "vfork of a program that does not start": "not_there()",
}


@pytest.mark.parametrize("close", CLOSE_EVERYTHING.values(), ids=CLOSE_EVERYTHING.keys())
def test_a_program_that_closes_every_file_keeps_its_limits_and_is_counted_on(
    rack: Rack, close: str
) -> None:
    grant = rack.grant(Terms(memory=64 * MIB, core=3000))
    held, took, left = grant.run(f"""
import os, subprocess, sys, time
def not_there():
    try:
        subprocess.run(["/not/there"], check=False)
    except FileNotFoundError:
        pass
start()
kernel = spin_kernel()
def work(count):
    since = time.monotonic()
    for _ in range(count):
        launch(kernel, 10000)
    call("cuCtxSynchronize")
    return time.monotonic() - since
take("plain", {20 * MIB})
work(5)
{close}
refused = take("plain", {45 * MIB})
again = "from driver import *\\nstart()\\nsay(take('plain', {45 * MIB}))"
child = [sys.executable, "-c", again]
theirs = int(subprocess.run(child, check=True, stdout=subprocess.PIPE).stdout)
say([[refused, theirs], work(60), info()[0] >> 20])
""")
    assert ([2, 2], 44) == (held, left)
    assert took > 0.5 * 60 * 0.010 / 0.3  # at their share; far fewer would pass unlimited
    assert 65 == grant.usage().launches
    assert grant.usage().gpu_ns >= 0.5 * 65 * 10_000_000
