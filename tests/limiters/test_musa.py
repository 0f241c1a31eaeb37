"""A second driver API at the price of a list of names: MUSA, in front of its fake.

Also what no limiter is charged for where no library tells what a process holds: MUSA's and CoreX's.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import hetero_limiters
import hetero_simulator
import pytest
from simulated import Machine
from tenancy import LIMITER as CUDA
from tenancy import MIB, REGION_BYTES, UUIDS, Rack, Terms, packed_grant

RACK = f"""
[device]
vendor = nvidia
model = Other
memory = 1 GiB

[device]
vendor = mthreads
model = MTT S4000
memory = 1 GiB
uuid = {UUIDS[0]}

[kernel spin]
time = 2 us
per_arg0 = 1 ns
"""
LIMITER = hetero_limiters.library("musa")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, RACK)


def _run(
    machine: Machine, terms: Terms | None, *options: str
) -> "subprocess.CompletedProcess[str]":
    environment = {}
    if terms is not None:
        directory = machine.rack.parent / "grant"
        directory.mkdir()
        (directory / "grant").write_bytes(packed_grant([terms]))
        (directory / "usage").write_bytes(bytes(REGION_BYTES))
        environment = {"HETERO_GRANT": str(directory / "grant"), "LD_PRELOAD": str(LIMITER)}
    job = machine.spawn([str(hetero_simulator.job("musa")), *options], **environment)
    out, errors = job.communicate(timeout=60)
    return subprocess.CompletedProcess(job.args, job.returncode, out, errors)


def _told(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert 0 == done.returncode, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


def test_the_second_limiter_keeps_its_grants_memory_exactly(machine: Machine) -> None:
    over = _run(machine, Terms(memory=64 * MIB), "--seconds", "0.1", "--memory", "65MiB")

    assert 0 != over.returncode
    assert "OUT_OF_MEMORY" in over.stderr


def test_the_second_limiter_lets_a_program_have_what_it_was_granted(machine: Machine) -> None:
    _told(_run(machine, Terms(memory=64 * MIB), "--seconds", "0.1", "--memory", "64MiB"))


@pytest.mark.measured
def test_the_second_limiter_keeps_its_grants_share_of_the_core(machine: Machine) -> None:
    load = ("--kernel-us", "500", "--in-flight", "8", "--warmup", "0.2", "--seconds", "1")
    native = _told(_run(machine, None, *load))["rate"]
    limited = _told(_run(machine, Terms(core=3000), *load))["rate"]

    assert 30 == pytest.approx(100 * limited / native, abs=6)


#: What takes memory of a card, and by how much that and the charge for it grow, in MiB. What
#: another process sees is what the card has.
TAKEN = """
import ctypes, json, os, subprocess, sys
from ctypes import byref, c_size_t, c_uint, c_void_p
from pathlib import Path
import calls_cuda
from calls_cuda import _call as call
MIB, CORPUS = 1 << 20, Path(os.environ["CORPUS"])
if sys.argv[1:] == ["beside"]:
    calls_cuda._started()
    for _ in sys.stdin:
        print(calls_cuda.memory()[0], flush=True)
    sys.exit()
unlimited = {**os.environ, "LD_PRELOAD": "", "HETERO_GRANT": ""}
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
beside = subprocess.Popen([sys.executable, __file__, "beside"], env=unlimited, **pipes)
def left():
    beside.stdin.write("\\n")
    beside.stdin.flush()
    return int(beside.stdout.readline()), calls_cuda.memory()[0]
def image(written):
    call("ModuleLoadData", byref(c_void_p()), written + bytes(16))
def nvcc(form):
    image((CORPUS / f"image-nvcc-{form}").read_bytes()[1:])
def streams():
    for _ in range(300):
        call("StreamCreate", byref(c_void_p()), c_uint(1))
def graphs():
    class Node(ctypes.Structure):
        _fields_ = [("function", c_void_p), *((name, c_uint) for name in "xyzuvw"),
                    ("shared", c_uint), ("parameters", c_void_p), ("extra", c_void_p)]
    graph, node, made = c_void_p(), c_void_p(), c_void_p()
    parameters = (c_void_p * 1)(ctypes.addressof(c_uint(1)))
    kernel = Node(calls_cuda._started(), 1, 1, 1, 1, 1, 1, 0, ctypes.addressof(parameters))
    call("GraphCreate", byref(graph), c_uint(0))
    for _ in range(100):
        call("GraphAddKernelNode", byref(node), graph, None, c_size_t(0), byref(kernel))
    for _ in range(2):
        call("GraphInstantiate_v2", byref(made), graph, None, None, c_size_t(0))
        call("GraphLaunch", made, None)
    call("CtxSynchronize")
HEAD = b".version 6.0\\n.target sm_50\\n.address_size 64\\n"
WAYS = {
    "memory": lambda: calls_cuda.allocate(8 * MIB),
    "PTX": lambda: image(HEAD + b".global .b8 array[8388608];"),
    "plain": lambda: nvcc("plain"),
    "lz4": lambda: nvcc("lz4"),
    "code": lambda: nvcc("elf"),
    "zstd": lambda: nvcc("zstd"),
    "streams": streams,
    "graphs": graphs,
}
calls_cuda.allocate(4096)
def grown(take):
    before = left()
    take()
    return [(old - new) // MIB for old, new in zip(before, left())]
print(json.dumps({name: grown(take) for name, take in WAYS.items()}))
beside.communicate(timeout=60)
"""


@pytest.mark.parametrize(
    ("vendor", "calls", "limiter", "priced"),
    [("mthreads", "libmusa.so.1 mu", LIMITER, False), ("iluvatar", "libcuda.so.1 cu", CUDA, True)],
)
def test_what_no_call_tells_the_size_of_is_on_the_card_and_not_charged(
    tmp_path: Path, vendor: str, calls: str, limiter: Path, priced: bool
) -> None:
    """Streams, and the arrays of images that cannot be read; all else is charged.

    Graphs are priced where the limiter is CUDA's, by what an H100 takes: the first 2 MiB are free.
    """
    directory, drivers = Path(__file__).parent, hetero_simulator.fake_drivers()
    card = f"[device]\nvendor = {vendor}\nmodel = Card\nmemory = 1 GiB\nuuid = {UUIDS[0]}\n"
    rack = Rack(tmp_path, Machine(tmp_path, card))
    grant = rack.grant(Terms(memory=256 * MIB), limiter=limiter)
    (tmp_path / "taken.py").write_text(TAKEN)
    job = rack.machine.spawn(
        [sys.executable, str(tmp_path / "taken.py")],
        **grant.environment,
        LD_LIBRARY_PATH=f"{drivers / vendor}:{drivers}",
        PYTHONPATH=str(directory),
        CORPUS=str(directory / "corpus"),
        CALLS=calls,
    )
    out, errors = job.communicate(timeout=60)
    assert 0 == job.returncode, errors
    grown = json.loads(out)
    charged = ("memory", "PTX", "plain", "lz4", "code")
    print(grown)
    assert {name: [8, 8] for name in charged} == {name: grown[name] for name in charged}
    assert ([8, 0], 0) == (grown["zstd"], grown["streams"][1])
    assert grown["streams"][0] > 0
    assert grown["graphs"][0] > 0
    assert (grown["graphs"][1] > grown["graphs"][0] - 3) == priced
    assert priced or grown["graphs"][1] == 0
