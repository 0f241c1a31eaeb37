"""Core shares on a simulated card, which slices time between processes as the driver does.

What programs get is measured in virtual time: a busy machine changes none of it.
"""

import re
from pathlib import Path
from subprocess import Popen

import pytest
from tenancy import Grant, Rack, Terms, meanwhile, packed_grant, rate

from hetero.node.ledger.board import light_seconds

KERNELS = {
    "kernels": ("--kernel-us", "500", "--in-flight", "8"),
    "long kernels": ("--kernel-us", "4000", "--in-flight", "4"),
    "graphs": ("--kernel-us", "20", "--graph", "50", "--in-flight", "4"),
}
#: Steps per second of a whole card. It is simulated, so what a step takes there is known.
WHOLE = {"kernels": 2000, "long kernels": 250, "graphs": 1000}


def _start(
    grant: Grant,
    kind: str = "kernels",
    seconds: float = 2,
    *,
    warmup: float = 0.5,
    together: int = 1,
) -> "Popen[str]":
    """Start a job together with others, so many in all; its seconds are those of virtual time."""
    options = ("--warmup", str(warmup), "--seconds", str(seconds))
    return grant.job(*KERNELS[kind], *options, **grant.virtual(together))


@pytest.mark.parametrize(
    ("kind", "core"), [("kernels", 30), ("kernels", 60), ("long kernels", 60), ("graphs", 30)]
)
def test_a_tenant_alone_gets_its_share_and_no_more(rack: Rack, kind: str, core: int) -> None:
    steps = rate(_start(rack.grant(Terms(core=100 * core)), kind))
    assert core == pytest.approx(100 * steps / WHOLE[kind], abs=2)


@pytest.mark.parametrize("kind", ["kernels", "graphs"])
def test_two_tenants_of_one_card_get_a_share_each(rack: Rack, kind: str) -> None:
    grants = [rack.grant(Terms(core=100 * core), name=str(core)) for core in (30, 60)]
    jobs = [_start(grant, kind, together=2) for grant in grants]
    shares = [100 * rate(job) / WHOLE[kind] for job in jobs]
    assert [30, 60] == pytest.approx(shares, abs=2)


def test_two_processes_of_one_grant_share_its_share(rack: Rack) -> None:
    grant = rack.grant(Terms(core=4000), time_slices=False)
    jobs = [_start(grant, together=2) for _ in range(2)]
    assert 40 == pytest.approx(100 * sum(map(rate, jobs)) / WHOLE["kernels"], abs=2)


def _charge_rates(directory: Path, model: str, power: int) -> list[int]:
    directory.mkdir()
    rack = Rack.of(directory, more=f"power = {power}\npower_limit = 700", model=model)
    grant = rack.grant(Terms(core=5000))
    job = grant.job("--seconds", "2", HETERO_LOG="debug", **grant.virtual())
    log = job.communicate()[1]
    return [int(rate) for rate in re.findall(r"device time at (\d+)/1024", log)]


def test_time_on_a_card_at_its_power_limit_is_charged_more(tmp_path: Path) -> None:
    """The driver tells the mean alone.

    A program that has half of the time on a card which draws all it may is taken to want more.
    """
    rates = {
        power: _charge_rates(tmp_path / str(power), "NVIDIA H200", power)[-1]
        for power in (120, 700)
    }
    assert 1024 == rates[120]
    assert 1200 < rates[700] <= 2048


def test_the_power_of_a_card_of_no_known_model_is_not_asked_for(tmp_path: Path) -> None:
    assert [] == _charge_rates(tmp_path / "700", "Card", 700)


def test_a_driver_that_never_tells_its_power_keeps_nobody_waiting(tmp_path: Path) -> None:
    rack = Rack.of(tmp_path, more="power = 300\npower_limit = 700", model="NVIDIA H200")
    with rack.machine.rack.open("a") as file:
        file.write("[fault]\ncall = nvmlDeviceGetPowerUsage\ndoes = hang\n")
    assert rate(_start(rack.grant(Terms(core=5000)))) > 0.3 * WHOLE["kernels"]


def test_a_whole_card_costs_nothing_and_starts_no_thread(rack: Rack) -> None:
    grant = rack.grant(Terms(core=10000))
    threads = grant.run("""
import os
start()
kernel = spin_kernel()
for _ in range(100):
    launch(kernel, 10)
call("cuCtxSynchronize")
say(len(os.listdir("/proc/self/task")))
""")
    assert 1 == threads
    assert (0, 0) == (grant.usage().launches, grant.usage().gpu_ns)


def test_launches_and_time_are_charged_to_the_grant(rack: Rack) -> None:
    grant = rack.grant(Terms(core=5000))
    program = """
start()
kernel = spin_kernel()
for _ in range(200):
    launch(kernel, 500)
call("cuCtxSynchronize")
say(0)
"""
    grant.run(program, **grant.virtual())
    assert 95_000_000 <= grant.usage().gpu_ns <= 130_000_000
    assert 190 <= grant.usage().launches <= 200


def test_an_elastic_tenant_gets_what_nobody_wants_and_gives_it_back(rack: Rack) -> None:
    elastic = rack.grant(Terms(core=3000, policy="elastic"), name="elastic")
    assert rate(_start(elastic)) > 0.8 * WHOLE["kernels"]

    with meanwhile(_start(elastic, seconds=10, together=2)):
        steps = rate(_start(rack.grant(Terms(core=6000), name="fixed"), together=2))
    assert 60 == pytest.approx(100 * steps / WHOLE["kernels"], abs=2)


def test_a_high_priority_tenant_keeps_its_share_beside_elastic_ones(rack: Rack) -> None:
    low = [rack.grant(Terms(core=2000, policy="elastic"), name=f"low{n}") for n in range(2)]
    high = rack.grant(Terms(core=5000, high=True), name="high")
    others = [_start(each, seconds=10, together=3) for each in low]
    with meanwhile(others[0]), meanwhile(others[1]):
        steps = rate(_start(high, together=3))
    assert 50 == pytest.approx(100 * steps / WHOLE["kernels"], abs=2)


def test_a_share_changed_in_place_holds_within_half_a_second(rack: Rack) -> None:
    grant = rack.grant(Terms(core=2000))
    grants = [packed_grant([Terms(core=core)]).hex() for core in (2000, 10000, 10000, 2000, 2000)]
    program = f"""
import os, time
start()
kernel = spin_kernel()
counts = []
for terms in {grants}:
    with open(os.environ["HETERO_GRANT"], "r+b") as file:
        file.write(bytes.fromhex(terms))
    steps, end = 0, time.monotonic() + 0.5
    while time.monotonic() < end:
        launch(kernel, 500)
        call("cuCtxSynchronize")
        steps += 1
    counts.append(steps)
say(counts)
"""
    limited, _, lifted, _, again = grant.run(program, **grant.virtual())
    assert 3 * limited < lifted
    assert 3 * again < lifted


def test_a_tenant_killed_in_its_time_slice_holds_nobody_up(rack: Rack) -> None:
    victim = rack.grant(Terms(core=9900), name="victim")
    program = """
import os, time
start()
kernel = spin_kernel()
end = time.monotonic() + 0.5
while time.monotonic() < end:
    for _ in range(8):
        launch(kernel, 500)
    call("cuCtxSynchronize")
launch(kernel, 500)
os.kill(os.getpid(), 9)
"""
    killed = victim.start(program, **victim.virtual(2))
    other = _start(rack.grant(Terms(core=3000), name="other"), warmup=0.7, together=2)
    assert 30 == pytest.approx(100 * rate(other) / WHOLE["kernels"], abs=2)
    killed.communicate()
    assert -9 == killed.returncode


def test_threads_and_streams_of_every_kind_are_limited_together(rack: Rack) -> None:
    grant = rack.grant(Terms(core=5000))
    program = """
import time
context = start()
kernel = spin_kernel()
def work(number):
    call("cuCtxSetCurrent", context)
    stream = c_void_p()
    call("cuStreamCreate", byref(stream), c_uint(1))
    for _ in range(100):
        launch(kernel, 250)
        launch(kernel, 250, stream)
        launch(kernel, 250, None, "cuLaunchKernel_ptsz")
    call("cuStreamSynchronize", stream)
    call("cuStreamDestroy_v2", stream)
begin = time.monotonic()
in_threads(4, work)
call("cuCtxSynchronize")
say(time.monotonic() - begin)
"""
    seconds = grant.run(program, **grant.virtual())
    # 1200 launches of 250 us are 0.3 s of device time; the last time slice is not waited for.
    assert 0.55 < seconds < 0.9
    assert 1200 == grant.usage().launches


def test_copies_and_fills_are_device_work_too(rack: Rack) -> None:
    grant = rack.grant(Terms(core=2000, memory=512 << 20))
    grant.run("""
start()
size = 16 << 20
memory = take("plain", size)
for _ in range(40):
    call("cuMemsetD8Async", memory, ctypes.c_ubyte(1), size, None)
call("cuMemsetD32_v2", memory, c_uint(1), size // 4)
call("cuCtxSynchronize")
say(0)
""")
    assert 41 == grant.usage().launches
    assert grant.usage().gpu_ns > 0


def test_nothing_of_ours_enters_a_capture(rack: Rack) -> None:
    modes = rack.grant(Terms(core=3000)).run("""
context = start()
kernel = spin_kernel()
stop = threading.Event()
def others():
    call("cuCtxSetCurrent", context)
    call("cuThreadExchangeStreamCaptureMode", byref(c_int(2)))
    stream = c_void_p()
    call("cuStreamCreate", byref(stream), c_uint(1))
    while not stop.is_set():
        launch(kernel, 100, stream)
thread = threading.Thread(target=others)
thread.start()
stream, side, event = c_void_p(), c_void_p(), c_void_p()
call("cuStreamCreate", byref(stream), c_uint(1))
call("cuStreamCreate", byref(side), c_uint(1))
call("cuEventCreate", byref(event), c_uint(2))
counts = []
for _ in range(20):
    graph, count, made = c_void_p(), c_size_t(), c_void_p()
    for _ in range(3):
        launch(kernel, 50, stream)
        launch(kernel, 50, side)
    call("cuStreamBeginCapture_v2", stream, c_int(0))
    launch(kernel, 10, stream)
    call("cuEventRecord", event, stream)
    call("cuStreamWaitEvent", side, event, c_uint(0))
    for _ in range(5):
        launch(kernel, 10, side)
    call("cuEventRecord", event, side)
    call("cuStreamWaitEvent", stream, event, c_uint(0))
    launch(kernel, 10, stream)
    call("cuStreamEndCapture", stream, byref(graph))
    call("cuGraphGetNodes", graph, None, byref(count))
    counts.append(count.value)
    call("cuGraphInstantiateWithFlags", byref(made), graph, 0)
    call("cuGraphLaunch", made, stream)
    call("cuStreamSynchronize", stream)
stop.set()
thread.join()
say(counts)
""")
    assert [7] * 20 == modes


@pytest.mark.parametrize(
    "end", ["cuDevicePrimaryCtxReset_v2(c_int(0))", "cuDevicePrimaryCtxRelease_v2(c_int(0))"]
)
def test_a_context_can_end_in_the_middle_of_a_time_slice(rack: Rack, end: str) -> None:
    codes = rack.grant(Terms(core=5000)).run(f"""
answers = []
for _ in range(30):
    start()
    kernel = spin_kernel()
    stream = c_void_p()
    call("cuStreamCreate", byref(stream), c_uint(1))
    for _ in range(5):
        launch(kernel, 100, stream)
        launch(kernel, 100)
    answers.append(cuda.{end})
say(answers)
""")
    assert [0] * 30 == codes


def test_exit_with_work_in_flight_is_prompt(rack: Rack) -> None:
    code = """
import time
start()
kernel = spin_kernel()
for _ in range(40):
    launch(kernel, 500)
say(time.monotonic())
"""
    for number in range(5):
        grant = rack.grant(Terms(core=5000), name=f"grant{number}")
        ends = grant.run(code, **grant.virtual())
        assert rack.virtual_seconds() - ends < 0.5


def test_a_child_forked_while_the_parent_runs_can_use_the_card(rack: Rack) -> None:
    statuses = rack.grant(Terms(core=5000)).run("""
import os
reading, writing = os.pipe()
children = []
for _ in range(4):
    if os.fork() == 0:
        start()
        kernel = spin_kernel()
        for _ in range(20):
            launch(kernel, 200)
        call("cuCtxSynchronize")
        os.write(writing, b"x")
        os._exit(0)
start()
kernel = spin_kernel()
for _ in range(50):
    launch(kernel, 200)
if os.fork() == 0:
    os._exit(0)
call("cuCtxSynchronize")
say(len(os.read(reading, 4)) > 0 and [os.wait()[1] for _ in range(5)])
""")
    assert [0] * 5 == statuses


LIGHT = """
import time
start()
kernel = spin_kernel()
def loop(seconds: float) -> float:
    since = turn = time.monotonic()
    count = 0
    while turn < since + seconds:
        launch(kernel, 50)
        count += 1
        turn = max(turn + 0.0005, time.monotonic())
        while time.monotonic() < turn:
            pass
    return count / seconds
loop(1.5)
say(loop(1))
"""


def test_a_program_that_needs_less_than_its_share_is_not_stopped(rack: Rack) -> None:
    """A kernel of 50 us each 0.5 ms is a tenth of the card; in time slices it had 30 % of that."""
    grant = rack.grant(Terms(core=3000))
    free, limited = rack.run(LIGHT, **rack.virtual(1)), grant.run(LIGHT, **grant.virtual())
    assert limited > 0.75 * free
    used = light_seconds(grant.directory / "page.0")
    assert 0.1 < used <= grant.usage().gpu_ns / 1e9
