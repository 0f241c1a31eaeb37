"""Green contexts under a grant: each is charged, and its memory is the primary context's."""

import json
from typing import Any

import hetero_simulator
import pytest
from tenancy import MIB, Grant, Rack, Terms

GREEN = """
start()
Resource = ctypes.c_ubyte * 144
everything, part, count = Resource(), Resource(), c_uint(1)
description = c_void_p()
call("cuDeviceGetDevResource", c_int(0), everything, c_int(1))
call("cuDevSmResourceSplitByCount", part, byref(count), everything, None, c_uint(0), c_uint(1))
call("cuDevResourceGenerateDesc", byref(description), part, c_uint(1))
left = lambda: info()[0] >> 20
def green():
    made = c_void_p()
    call("cuGreenCtxCreate", byref(made), description, c_int(0), c_uint(1))
    return made
def enter(made):
    context = c_void_p()
    call("cuCtxFromGreenCtx", byref(context), made)
    call("cuCtxSetCurrent", context)
"""


def _told(grant: Grant, code: str, **environment: str) -> Any:
    process = grant.start(GREEN + code, **environment)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return json.loads(out)


@pytest.mark.parametrize("management", [True, False], ids=["with NVML", "without NVML"])
def test_a_green_context_is_charged_until_it_is_destroyed(rack: Rack, management: bool) -> None:
    """By the process's figure; without one, by what each took on an H100."""
    alone = rack.directory / "cuda"
    alone.mkdir()
    (alone / "libcuda.so.1").symlink_to(hetero_simulator.fake_drivers() / "libcuda.so.1")
    drivers = {} if management else {"LD_LIBRARY_PATH": str(alone)}
    program = """
first, seen = green(), [left()]
second = green()
seen.append(left())
try:
    green()
except Refused as refused:
    seen.append(refused.code)
call("cuGreenCtxDestroy", first)
seen.append(left())
call("cuGreenCtxDestroy", second)
say([*seen, left()])
"""
    left_mib = _told(rack.grant(Terms(memory=40 * MIB)), program, **drivers)
    assert [24, 8, 2, 24, 40] == left_mib


def test_memory_of_a_green_context_outlives_it_and_ends_with_the_primary_one(grant: Grant) -> None:
    program = f"""
made = green()
enter(made)
take("plain", {8 * MIB})
seen = [left()]
start()
call("cuGreenCtxDestroy", made)
seen.append(left())
call("cuDevicePrimaryCtxReset_v2", c_int(0))
start()
say([*seen, left()])
"""
    left_mib = _told(grant, program)
    assert [40, 56, 64] == left_mib


def test_a_green_context_brings_no_block_for_small_pieces(grant: Grant) -> None:
    program = """
made = green()
def fill():
    held = 0
    while take("plain", 512 << 10) != OUT_OF_MEMORY:
        held += 1
    return held
enter(made)
say(fill())
"""
    pieces = _told(grant, program)
    assert (64 - 16 + 2) * 2 == pieces


def test_the_streams_of_a_green_context_are_charged(grant: Grant) -> None:
    program = """
made, stream, before = green(), c_void_p(), left()
for _ in range(12):
    call("cuGreenCtxStreamCreate", byref(stream), made, c_uint(1), c_int(0))
say(before - left())
"""
    cost_mib = _told(grant, program)
    assert 4 == cost_mib
