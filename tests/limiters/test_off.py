"""The off switch is total: whatever a program calls, and how, is the driver's own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import hetero_limiters
import pytest
from tenancy import LIMITER, MIB, REGION_BYTES, TABLES, UUIDS, Rack, Terms, packed_grant

from tests.programs import completed

APIS = {"cuda": "libcuda.so.1", "musa": "libmusa.so.1"}

PROGRAM = """
import ctypes, json, sys
library, limiter = sys.argv[1:]
driver, limiter = ctypes.CDLL(library), ctypes.CDLL(limiter)
words = (ctypes.c_uint64 * 12).in_dll(driver, "echo_words")
calls = ctypes.c_uint.in_dll(driver, "echo_calls")
name = ctypes.c_char_p.in_dll(driver, "echo_name")
size = ctypes.c_uint.in_dll(driver, "echo_names_size").value
names = bytes((ctypes.c_char * size).in_dll(driver, "echo_names")).decode().split("\\0")[:-1]

def heard(function):
    sent = [ctypes.c_uint64(0x0123456789ABCDE0 + 0x1111111111111111 * at) for at in range(11)]
    before = calls.value
    answer = function(*sent)
    return [answer, calls.value - before, name.value.decode(), list(words)]

def address(library, name):
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value

told = {}
for each in names:
    # The limiter's own function, as a program that was linked to the driver meets it.
    its_own = address(limiter, each) != address(driver, each)
    told[each] = [heard(getattr(limiter, each)), heard(getattr(driver, each)), its_own]
print(json.dumps(told))
"""


def _heard(tmp_path: Path, api: str, **environment: str) -> dict[str, Any]:
    library, included = APIS[api], (f"-I{TABLES[api]}", f"-I{LIMITER.parents[2] / api}")
    flags = ["-std=gnu11", "-shared", "-fPIC", "-fvisibility=hidden", *included]
    names = [f'-DAPI="{TABLES[api] / "api.def"}"', f"-Wl,-soname,{library}"]
    echo = Path(__file__).parent / "echo.c"
    subprocess.run(["cc", *flags, *names, "-o", tmp_path / library, echo], check=True)
    command = [sys.executable, "-c", PROGRAM, library, str(hetero_limiters.library(api))]
    done = completed(command, env={"LD_LIBRARY_PATH": str(tmp_path), **environment})
    assert ("", 0) == (done.stderr, done.returncode)
    heard: dict[str, Any] = json.loads(done.stdout)
    return heard


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("granted", [True, False], ids=["policy off", "no grant"])
def test_every_call_reaches_the_driver_once_and_as_it_was_made(
    tmp_path: Path, api: str, granted: bool
) -> None:
    environment = {"LD_PRELOAD": str(hetero_limiters.library(api))}
    if granted:
        (tmp_path / "grant").write_bytes(packed_grant([Terms(memory=MIB, core=1, policy="off")]))
        (tmp_path / "usage").write_bytes(bytes(REGION_BYTES))
        environment["HETERO_GRANT"] = str(tmp_path / "grant")

    heard = _heard(tmp_path, api, **environment)

    assert len(heard) > 60
    for name, (limited, drivers, of_its_own) in heard.items():
        assert of_its_own, f"{name} was not the limiter's"
        assert [drivers[0], 1, name, drivers[3]] == limited
        assert drivers == limited
    # Nothing was written, not even that somebody came.
    assert not granted or bytes(REGION_BYTES) == (tmp_path / "usage").read_bytes()


def test_no_entry_point_leads_to_the_limiter(tmp_path: Path) -> None:
    grant = Rack.of(tmp_path, cards=2).grant(Terms(policy="off", uuid=UUIDS[0]))
    answers = grant.run(f"""
from ctypes import c_char_p
import re
libc = ctypes.CDLL(None)
libc.dlsym.restype = c_void_p
limiter = ctypes.CDLL({str(LIMITER)!r})
call("cuInit", 0)
def driver_s_lookup(name):
    pointer = c_void_p()
    call("cuGetProcAddress_v2", c_char_p(name), byref(pointer), c_int(12000), 0, None)
    return pointer.value
handle = c_void_p(cuda._handle)
names = [b"cuMemAlloc_v2", b"cuLaunchKernel", b"cuGetProcAddress_v2", b"cuMemGetInfo_v2"]
ours = {{ctypes.cast(getattr(limiter, name.decode()), c_void_p).value for name in names}}
found = {{libc.dlsym(handle, c_char_p(name)) for name in names}}
found |= {{driver_s_lookup(name.split(b"_v")[0]) for name in names}}
# And a card outside the grant is there like any other.
start(1)
say([len(ours), bool(ours & found), take("plain", 4096) > 1000])
""")
    assert [4, False, True] == answers


def test_what_a_program_gets_is_what_it_gets_without_a_limiter(tmp_path: Path) -> None:
    rack = Rack.of(tmp_path)
    code = f"""
start()
kernel = spin_kernel()
seen = [info(), total_memory(0)]
for path in PATHS:
    what, too_much = take(path, {8 * MIB}), take(path, {1 << 40})
    seen.append([path, info(), type(what).__name__, too_much if too_much == OUT_OF_MEMORY else 0])
    give(path, what)
    seen.append(info())
launch(kernel, 1)
nvml = ctypes.CDLL("libnvidia-ml.so.1")
nvml.nvmlInit_v2()
card, memory = c_void_p(), (c_uint64 * 3)()
nvml.nvmlDeviceGetHandleByIndex_v2(c_uint(0), byref(card))
seen.append([nvml.nvmlDeviceGetMemoryInfo(card, byref(memory)), list(memory)])
import os
say([seen, len(os.listdir("/proc/self/task"))])
"""
    grant = rack.grant(Terms(memory=MIB, core=1, policy="off"))

    assert rack.run(code) == grant.run(code)
    assert (0, 0) == (grant.usage().used, grant.usage().launches)
