"""What runs past the limiter for HIP is found by the figures of the kernel, on simulated cards."""

import json
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tests.programs import next_line

from .conftest import Begin, Run

pytestmark = pytest.mark.hip

UUID = "423592d2d74e6a1b"
RACK = """
[device]
vendor = {vendor}
model = {model}
memory = 1024 MiB
compute = 9.0
multiprocessors = 64
uuid = {uuid}
serial = T6K100
"""
#: By vendor: the rack's card.
CARDS = {
    "amd": RACK.format(vendor="amd", model="Instinct MI60", uuid=f"GPU-{UUID}"),
    "hygon": RACK.format(vendor="hygon", model="K100_AI", uuid=UUID),
}
#: Ways to 200 MiB of the card where no limiter stands: HSA, below HIP, and what is below that.
WAYS = {
    "hsa": """
hsa, held, MIB = ctypes.CDLL("libhsa-runtime64.so.1"), c_void_p(), 1 << 20
assert hsa.hsa_init() == 0
found = []
@CFUNCTYPE(c_int, c_uint64, c_void_p)
def pool(it, _):
    allowed = c_bool()
    hsa.hsa_amd_memory_pool_get_info(c_uint64(it), 5, byref(allowed))
    found.extend([it] if allowed.value else [])
    return 0
@CFUNCTYPE(c_int, c_uint64, c_void_p)
def agent(it, _):
    kind = c_uint()
    hsa.hsa_agent_get_info(c_uint64(it), 17, byref(kind))
    if kind.value == 1:
        hsa.hsa_amd_agent_iterate_memory_pools(c_uint64(it), pool, None)
    return 0
hsa.hsa_iterate_agents(agent, None)
allocate = hsa.hsa_amd_memory_pool_allocate
answer = allocate(c_uint64(found[0]), c_uint64(200 * MIB), 0, byref(held))
""",
    "thunk": """
thunk, held = ctypes.CDLL("libhsakmt.so.1"), c_void_p()
assert thunk.hsaKmtOpenKFD() == 0
answer = thunk.hsaKmtAllocMemory(1, c_uint64(200 << 20), 0, byref(held))
""",
}
PROGRAM = """
import ctypes, time
from ctypes import CFUNCTYPE, byref, c_bool, c_int, c_uint, c_uint64, c_void_p
{way}
print(answer, flush=True)
time.sleep(600)
"""


@pytest.fixture
def vendor() -> str:
    return "amd"


@pytest.fixture
def environ(environ: dict[str, str], vendor: str) -> dict[str, str]:
    """A machine with a card of the vendor that the limiter for HIP shares."""
    site = environ["PYTHONPATH"]
    rack, settings = f"{site}/test.rack", f"{site}/node.toml"
    with open(rack, "w") as written:
        written.write(CARDS[vendor])
    with open(settings, "w") as written:
        written.write('[cards]\nsoft = ["hygon"]\n')
    return {**environ, "HETERO_RACK": rack, "HETERO_CONFIG": settings, "PYTHONPATH": ""}


@pytest.fixture
def watch(begin: Begin, command: tuple[str, ...]) -> subprocess.Popen[str]:
    return begin(*command, "doctor", "--watch")


@pytest.fixture
def escape(begin: Begin, command: tuple[str, ...]) -> Callable[..., subprocess.Popen[str]]:
    """Start a program under a grant of 64 MiB; return it when it has 200."""

    def program(way: str, *more: str) -> subprocess.Popen[str]:
        run = (*command, "run", "--memory", "64Mi", "--core", "50", *more, "--")
        started = begin(*run, sys.executable, "-c", PROGRAM.format(way=WAYS[way]))
        assert "0\n" == next_line(started)
        return started

    return program


@pytest.mark.parametrize("vendor", ["hygon"])
def test_who_is_past_the_limiter_is_told_of_within_five_seconds(
    hetero: Run, watch: subprocess.Popen[str], escape: Callable[..., subprocess.Popen[str]]
) -> None:
    program = escape("thunk")
    before = time.monotonic()
    report = next_line(watch)
    took = time.monotonic() - before
    print(f"{took:.1f} s of 5")

    assert f"({program.pid}) holds 200 MiB of" in report
    assert "past the limiter of grant" in report
    assert took < 5
    (grant,) = json.loads(hetero("ps", "--json").stdout)["items"]
    assert [program.pid] == [found["pid"] for found in grant["bypass"]]


def test_it_is_ended_where_its_grant_says_so(
    watch: subprocess.Popen[str], escape: Callable[..., subprocess.Popen[str]]
) -> None:
    program = escape("hsa", "--on-bypass", "kill")

    assert -9 == program.wait(timeout=60)
    # First what it holds, by itself and of its grant.
    reports = [next_line(watch) for _ in range(3)]
    assert f"({program.pid}) of grant" in reports[-1]
    assert "is killed: holds 200 MiB" in reports[-1]
