"""Memory under a grant: what the device gives, exactly, and shown as the grant has it."""

import json
from pathlib import Path

import pytest
from tenancy import LIMITER, MIB, UUIDS, Grant, Rack, Terms

from tests.programs import next_line

PATHS = (
    "plain",
    "managed",
    "pitch",
    "async",
    "async of a thread",
    "pool",
    "block",
    "array",
    "array 3d",
    "mipmap",
    "graph",
    "child graph",
)


@pytest.mark.parametrize("path", PATHS)
def test_every_path_is_charged_what_the_device_gives_and_over_it_is_out_of_memory(
    rack: Rack, path: str
) -> None:
    limit = (256 if path == "managed" else 64) * MIB
    answers = rack.grant(Terms(memory=limit)).run(f"""
start()
grain, limit = PATHS[{path!r}][2], {limit}
full = take({path!r}, limit)
free_when_full = info()[0]
refused = [take({path!r}, grain), take("plain", 1 << 20)]
give({path!r}, full)
free_after = info()[0]
most = take({path!r}, limit - grain)
refused.append(take({path!r}, 2 * grain))
last = take({path!r}, grain)
say([free_when_full, refused, free_after, info()[0], last == OUT_OF_MEMORY])
""")
    assert [0, [2, 2, 2], limit, 0, False] == answers


def test_managed_memory_is_charged_together_in_batches(rack: Rack) -> None:
    answers = rack.grant(Terms(memory=256 * MIB)).run(f"""
start()
left, held = [], []
for size in (1, {64 * MIB}, {64 * MIB}, {64 * MIB}):
    held.append(take("managed", size))
    left.append(info()[0] >> 20)
for what in held:
    give("managed", what)
    left.append(info()[0] >> 20)
say([left, take("plain", {130 * MIB}) > 1000, take("managed", 1)])
""")
    assert [[128, 128, 0, 0, 0, 128, 128, 256], True, 2] == answers


def test_a_small_grant_has_no_managed_memory_and_none_has_more_than_its_limit(rack: Rack) -> None:
    """A bare card gives both, and keeps what does not fit with the host."""
    ask = f'start()\nsay([take("managed", size) > 1000 for size in (1, {600 * MIB})])'
    limits = {"small": 127, "one batch": 128, "larger": 512}
    answers = {
        name: rack.grant(Terms(memory=mib * MIB), name=name).run(ask)
        for name, mib in limits.items()
    }
    assert {"small": [False] * 2, "one batch": [True, False], "larger": [True, False]} == answers
    assert [True, True] == rack.run(ask)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_pools_of_managed_memory_are_charged_in_batches(rack: Rack, place: int) -> None:
    """Of no place, of the card and of the host."""
    answers = rack.grant(Terms(memory=192 * MIB)).run(f"""
start()
managed, left = pool(2, Location({place}, 0)), []
def take(pool, size):
    pointer = c_uint64()
    code = cuda.cuMemAllocFromPoolAsync(byref(pointer), c_uint64(size), pool, None)
    left.append([code, info()[0] >> 20])
take(managed, 1)
take(managed, {100 * MIB})
take(managed, {40 * MIB})
for _ in range(12):  # which are charged by the process's figure, that has nothing of the pool
    call("cuStreamCreate", byref(c_void_p()), c_uint(1))
say([*left, info()[0] >> 20])
""")
    assert [[0, 64], [0, 64], [2, 64], 60] == answers


def test_an_allocation_that_the_driver_refuses_is_not_charged(rack: Rack) -> None:
    grant = rack.grant(Terms(memory=4096 * MIB))
    codes = grant.run(f"""
start()
say([take("plain", {2048 * MIB}), take("block", {2048 * MIB}), take("array", {2048 * MIB})])
""")
    assert [2, 2, 2] == codes
    assert (0, 0) == (grant.usage().used, grant.usage().denied)


def test_a_block_is_charged_until_it_is_released_and_unmapped(grant: Grant) -> None:
    left_mib = grant.run(f"""
start()
size, left = {8 * MIB}, lambda: info()[0] >> 20
def reserve(size):
    address = c_uint64()
    call("cuMemAddressReserve", byref(address), size, 0, 0, 0)
    return address.value
seen = [left()]
handle, address = block(size), reserve(4 * size)
call("cuMemMap", address, size, 0, handle, 0)
call("cuMemMap", address + size, size, 0, handle, 0)
call("cuMemRelease", handle)
seen.append(left())
again = c_uint64()
call("cuMemRetainAllocationHandle", byref(again), c_void_p(address + size + 4096))
call("cuMemUnmap", address, 2 * size)
seen.append(left())
call("cuMemRelease", again.value)
seen.append(left())
other = block(size)
call("cuMemMap", address, size, 0, other, 0)
call("cuMemUnmap", address, size)
seen.append(left())
call("cuMemRelease", other)
seen.append(left())
say(seen)
""")
    assert [64, 56, 56, 64, 56, 64] == left_mib


def test_a_block_goes_where_its_properties_say_without_a_context(tmp_path: Path) -> None:
    grant = Rack.of(tmp_path, cards=2).grant(
        Terms(memory=8 * MIB, uuid=UUIDS[0]), Terms(memory=16 * MIB, uuid=UUIDS[1])
    )
    answers = grant.run(f"""
call("cuInit", 0)
contexts = [start(0), start(1)]
call("cuCtxSetCurrent", None)
FIRST.id = 1
say([take("block", {32 * MIB}), take("block", {16 * MIB}) > 1000, take("block", {2 * MIB})])
""")
    assert [2, True, 2] == answers
    assert (0, 16 * MIB) == (grant.usage(0).peak, grant.usage(1).peak)


def test_host_memory_and_imports_are_not_charged(grant: Grant) -> None:
    free_bytes = grant.run(f"""
start()
pinned = c_void_p()
call("cuMemAllocHost_v2", byref(pinned), {256 * MIB})
say(info()[0])
""")
    assert 64 * MIB == free_bytes


@pytest.mark.parametrize("end", ["cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxRelease_v2"])
def test_what_lived_in_a_context_is_given_back_with_it(grant: Grant, end: str) -> None:
    free_bytes = grant.run(f"""
start()
take("plain", {10 * MIB}), take("managed", {10 * MIB}), take("array", {10 * MIB})
call({end!r}, c_int(0))
start()
say(info()[0])
""")
    assert 64 * MIB == free_bytes


def test_a_context_of_ones_own_gives_back_only_its_own(grant: Grant) -> None:
    left_mib = grant.run(f"""
start()
take("plain", {10 * MIB})
own = c_void_p()
call("cuCtxCreate_v2", byref(own), c_uint(0), c_int(0))
take("plain", {20 * MIB})
seen = [info()[0] >> 20]
call("cuCtxDestroy_v2", own)
start()
seen.append(info()[0] >> 20)
say(seen)
""")
    assert [34, 54] == left_mib


def test_freeing_what_is_not_ours_is_the_drivers_business(grant: Grant) -> None:
    code = """
start()
strange = [("cuMemFree_v2", 12345), ("cuMemRelease", 12345), ("cuMemFree_v2", 0)]
say([getattr(cuda, name)(c_uint64(what)) for name, what in strange])
"""
    assert grant.rack.run(code) == grant.run(code)


def test_the_grant_is_what_the_driver_and_nvml_show(grant: Grant) -> None:
    figures = grant.run(f"""
start()
take("plain", {10 * MIB})
nvml = ctypes.CDLL("libnvidia-ml.so.1")
nvml.nvmlInit_v2()
card = c_void_p()
nvml.nvmlDeviceGetHandleByIndex_v2(c_uint(0), byref(card))
first, second = (c_uint64 * 3)(), (c_uint64 * 5)(40 | 2 << 24)
assert nvml.nvmlDeviceGetMemoryInfo(card, byref(first)) == 0
assert nvml.nvmlDeviceGetMemoryInfo_v2(card, byref(second)) == 0
say([info(), total_memory(0), list(first), [second[1], second[3], second[4]]])
""")
    total, used, free = 64 * MIB, 10 * MIB, 54 * MIB
    assert [[free, total], total, [total, free, used], [total, free, used]] == figures


def test_two_devices_keep_their_limits_under_any_order(tmp_path: Path) -> None:
    grant = Rack.of(tmp_path, cards=2).grant(
        Terms(memory=32 * MIB, uuid=UUIDS[0]), Terms(memory=96 * MIB, uuid=UUIDS[1])
    )
    code = """
seen = []
for device in (0, 1):
    start(device)
    seen.append([info()[1] >> 20, total_memory(device) >> 20, take("plain", info()[1] + 1)])
say(seen)
"""
    first, second = [32, 32, 2], [96, 96, 2]
    assert [first, second] == grant.run(code)
    assert [first, second] == grant.run(code, CUDA_VISIBLE_DEVICES="0,1")
    assert [second, first] == grant.run(code, CUDA_VISIBLE_DEVICES="1,0")
    assert [second, first] == grant.run(code, CUDA_VISIBLE_DEVICES=",".join(reversed(UUIDS)))


def test_a_visible_device_outside_the_grant_has_nothing(tmp_path: Path) -> None:
    grant = Rack.of(tmp_path, cards=2).grant(Terms(uuid=UUIDS[1]))
    answers = grant.run("""
start()
kernel = spin_kernel()
try:
    launch(kernel, 1)
    code = 0
except Refused as refused:
    code = refused.code
say([info(), total_memory(0), take("plain", 1 << 20), take("block", 2 << 20), code])
""")
    assert [[0, 0], 0, 2, 2, 800] == answers


def test_a_limit_changed_in_place_holds_at_once(grant: Grant) -> None:
    program = grant.start(f"""
start()
say(take("plain", {60 * MIB}) > 1000)
input()
say([info()[1] >> 20, take("plain", {60 * MIB}) > 1000])
input()
say([info()[0], info()[1] >> 20, take("plain", 1 << 20)])
""")
    assert program.stdin
    assert json.loads(next_line(program)) is True
    grant.set(Terms(memory=128 * MIB))
    program.stdin.write("\n")
    program.stdin.flush()
    assert [128, True] == json.loads(next_line(program))
    grant.set(Terms(memory=32 * MIB))
    program.stdin.write("\n")
    program.stdin.flush()
    assert [0, 32, 2] == json.loads(next_line(program))
    program.communicate()


def test_with_no_grant_nothing_changes(rack: Rack, grant: Grant) -> None:
    environment = {"LD_PRELOAD": str(LIMITER)}
    code = f"""
start()
say([info(), total_memory(0), take("plain", {512 * MIB}) > 1000, info()])
"""
    assert rack.run(code) == rack.run(code, **environment)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda good: b"",
        lambda good: good[:2000],
        lambda good: b"X" + good[1:],
        lambda good: good[:8] + b"\x02" + good[9:],
        lambda good: good[:12] + b"\x11" + good[13:],
        lambda good: good[:12] + b"\0" + good[13:],
        lambda good: good[:64] + b"G" * 64 + good[128:],
        lambda good: good[:64] + b"nothing" + good[71:],
        lambda good: good[:136] + b"\0" * 4 + good[140:],
        lambda good: good[:140] + b"\x09" + good[141:],
        lambda good: good[:148] + b"\x80" + good[149:],
    ],
)
def test_a_grant_that_is_garbage_refuses_everything(grant: Grant, spoil: object) -> None:
    assert callable(spoil)
    path = grant.directory / "grant"
    path.write_bytes(spoil(path.read_bytes()))
    codes = grant.run("""
first = cuda.cuInit(c_uint(0))
say([first, cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(1)), cuda.cuGraphLaunch(None, None),
      cuda.cuLaunchKernel(None, *[c_uint(1)] * 7, None, None, None)])
""")
    assert [800, 800, 800, 800] == codes


def test_a_grant_that_is_missing_refuses_everything(grant: Grant) -> None:
    (grant.directory / "grant").unlink()
    assert 800 == grant.run("say(cuda.cuInit(c_uint(0)))")


def test_a_usage_region_that_is_missing_refuses_everything(grant: Grant) -> None:
    (grant.directory / "usage").unlink()
    assert 800 == grant.run("say(cuda.cuInit(c_uint(0)))")


@pytest.mark.parametrize("when", ["before cuInit", "after a line"])
def test_a_programs_own_file_under_the_number_of_standard_error_gets_no_line(
    grant: Grant, tmp_path: Path, when: str
) -> None:
    first = "" if when == "before cuInit" else "start(); take('plain', 1 << 40)"
    assert ["AAAABBBB", True] == grant.run(
        f"""
import os
{first}
os.close(2)
file = os.open("{tmp_path}/data", os.O_CREAT | os.O_RDWR)
os.write(file, b"AAAA")
start()
refused = take("plain", 1 << 40)
os.write(file, b"BBBB")
os.lseek(file, 0, 0)
say([os.read(file, 1000).decode(), file == 2 and refused == 2])
""",
        HETERO_LOG="debug",
    )


def test_a_program_is_told_once_why_it_was_refused_and_no_more_unless_asked(grant: Grant) -> None:
    code = "start(); take('plain', 1 << 40); say(take('plain', 1 << 40))"
    for level, lines in (("", 1), ("off", 0), ("info", 2)):
        out, errors = grant.start(code, HETERO_LOG=level).communicate()
        assert "2\n" == out
        assert lines == errors.count("1048576 MiB refused")
        assert lines == errors.count("\n") or level == "info"
