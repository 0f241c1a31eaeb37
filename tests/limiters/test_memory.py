"""Memory under a grant: exact to the byte on every path, across threads and processes."""

import json
import random
import signal
import subprocess
import time
from pathlib import Path

import hetero_limiters
import pytest
from tenancy import LIMITER, MIB, UUIDS, Grant, Rack, Terms

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


@pytest.fixture
def rack(tmp_path: Path) -> Rack:
    return Rack.of(tmp_path)


@pytest.fixture
def grant(rack: Rack) -> Grant:
    return rack.grant(Terms(memory=64 * MIB))


@pytest.mark.parametrize("path", PATHS)
def test_every_path_is_exact_to_the_byte_and_over_it_is_out_of_memory(
    grant: Grant, path: str
) -> None:
    told = grant.run(
        f"""
start()
grain, limit = PATHS[{path!r}][2], {64 * MIB}
full = take({path!r}, limit)
free_when_full = info()[0]
refused = [take({path!r}, grain), take("plain", 1)]
give({path!r}, full)
free_after = info()[0]
most = take({path!r}, limit - grain)
refused.append(take({path!r}, 2 * grain))
last = take({path!r}, grain)
say([free_when_full, refused, free_after, info()[0], last == OUT_OF_MEMORY])
"""
    )
    assert [0, [2, 2, 2], 64 * MIB, 0, False] == told


def test_an_allocation_that_the_driver_refuses_is_not_charged(rack: Rack) -> None:
    grant = rack.grant(Terms(memory=4096 * MIB))
    told = grant.run(
        f"""
start()
say([take("plain", {2048 * MIB}), take("block", {2048 * MIB}), take("array", {2048 * MIB})])
"""
    )
    assert [2, 2, 2] == told
    assert (0, 0) == (grant.usage().used, grant.usage().denied)


def test_a_block_is_charged_until_it_is_released_and_unmapped(grant: Grant) -> None:
    told = grant.run(
        f"""
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
"""
    )
    assert [64, 56, 56, 64, 56, 64] == told


def test_a_block_goes_where_its_properties_say_without_a_context(tmp_path: Path) -> None:
    grant = Rack.of(tmp_path, cards=2).grant(
        Terms(memory=8 * MIB, uuid=UUIDS[0]), Terms(memory=16 * MIB, uuid=UUIDS[1])
    )
    told = grant.run(
        f"""
call("cuInit", 0)
contexts = [start(0), start(1)]
call("cuCtxSetCurrent", None)
FIRST.id = 1
say([take("block", {32 * MIB}), take("block", {16 * MIB}) > 1000, take("block", {2 * MIB})])
"""
    )
    assert [2, True, 2] == told
    assert (0, 16 * MIB) == (grant.usage(0).peak, grant.usage(1).peak)


SPILL, CONTEXT = 1, 2


@pytest.mark.parametrize("path", ["plain", "managed", "pitch", "async", "pool", "block"])
def test_memory_granted_beyond_the_card_lies_with_the_host(rack: Rack, path: str) -> None:
    grant = rack.grant(Terms(memory=1536 * MIB, flags=SPILL))
    told = grant.run(
        f"""
start()
path, chunk = {path!r}, {256 * MIB}
seen, held = [info()[0] >> 20], []
for _ in range(6):
    held.append(take(path, chunk))
seen.append([what for what in held if not isinstance(what, int) or what < 1000])
seen += [info()[0], take(path, {2 * MIB})]
if path != "block":
    for what in held:
        call("cuMemsetD8Async", what, ctypes.c_ubyte(1), 4096, None)
for what in held:
    give(path, what)
seen += [info()[0] >> 20, take(path, chunk) > 1000]
say(seen)
"""
    )
    assert [1536, [], 0, 2, 1536, True] == told
    assert 0 == grant.usage().used or 256 * MIB == grant.usage().used


def test_a_block_of_the_host_is_mapped_and_reached_like_one_of_the_card(rack: Rack) -> None:
    told = rack.grant(Terms(memory=1536 * MIB, flags=SPILL)).run(
        f"""
from simulated import Access
start()
kept, beyond = block({1000 * MIB}), block({256 * MIB})
address, word = c_uint64(), c_uint(0)
call("cuMemAddressReserve", byref(address), {256 * MIB}, 0, 0, 0)
call("cuMemMap", address.value, {256 * MIB}, 0, beyond, 0)
call("cuMemSetAccess", address.value, {256 * MIB}, byref(Access(FIRST, 3)), 1)
call("cuMemsetD32_v2", address.value, c_uint(7), 1000)
call("cuMemcpyDtoH_v2", byref(word), address.value + 3996, 4)
call("cuMemUnmap", address.value, {256 * MIB})
call("cuMemRelease", beyond)
say([word.value, info()[0] >> 20])
"""
    )
    assert [7, 536] == told


def test_segments_that_grow_past_the_card_are_reached_from_end_to_end(rack: Rack) -> None:
    """As PyTorch's expandable segments do: one long address, mapped piece by piece."""
    told = rack.grant(Terms(memory=1536 * MIB, flags=SPILL)).run(
        f"""
from simulated import Access
start()
whole, piece, address = {1536 * MIB}, {32 * MIB}, c_uint64()
call("cuMemAddressReserve", byref(address), whole, 0, 0, 0)
handles = []
for at in range(address.value, address.value + whole, piece):
    handles.append(block(piece))
    call("cuMemMap", at, piece, 0, handles[-1], 0)
    call("cuMemSetAccess", at, piece, byref(Access(FIRST, 3)), 1)
    call("cuMemsetD32_v2", at, c_uint(len(handles)), 16)
full, seen = [info()[0], take("block", {2 * MIB})], []
for at in range(address.value, address.value + whole, piece):
    word = c_uint()
    call("cuMemcpyDtoH_v2", byref(word), at + 60, 4)
    seen.append(word.value)
call("cuMemUnmap", address.value, whole)
for handle in handles:
    call("cuMemRelease", handle)
say([full, seen, info()[0] >> 20])
"""
    )
    assert [[0, 2], list(range(1, 49)), 1536] == told


def test_memory_beyond_the_card_is_out_of_memory_where_the_node_does_not_grant_it(
    rack: Rack,
) -> None:
    told = rack.grant(Terms(memory=1536 * MIB)).run(
        f"""
start()
say([take("plain", {1000 * MIB}) > 1000, [take(path, {256 * MIB}) for path in ("plain", "block")]])
"""
    )
    assert [True, [2, 2]] == told


def test_a_context_counts_where_the_node_says_so(tmp_path: Path) -> None:
    rack = Rack.of(tmp_path, more="context = 100 MiB")
    code = f"""
start()
first = info()[0] >> 20
start()
own = c_void_p()
call("cuCtxCreate_v2", byref(own), c_uint(0), c_int(0))
say([first, info()[0] >> 20, take("plain", {150 * MIB}) > 1000])
"""
    counted = rack.grant(Terms(memory=200 * MIB, flags=CONTEXT), name="counted")
    free = rack.grant(Terms(memory=200 * MIB), name="free")
    assert [100, 100, False] == counted.run(code)
    assert [200, 200, True] == free.run(code)


def test_a_context_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    rack = Rack.of(tmp_path, more="context = 100 MiB")
    told = rack.grant(Terms(memory=64 * MIB, flags=CONTEXT)).run(
        """
call("cuInit", 0)
say([cuda.cuDevicePrimaryCtxRetain(byref(c_void_p()), c_int(0)),
     cuda.cuCtxCreate_v2(byref(c_void_p()), c_uint(0), c_int(0))])
"""
    )
    assert [2, 2] == told


def test_host_memory_and_imports_are_not_charged(grant: Grant) -> None:
    told = grant.run(
        f"""
start()
pinned = c_void_p()
call("cuMemAllocHost_v2", byref(pinned), {256 * MIB})
say(info()[0])
"""
    )
    assert 64 * MIB == told


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
    assert owner.stdout
    assert owner.stdin
    handle = json.loads(owner.stdout.readline())
    out, errors = other.start(GUEST).communicate(f"{handle}\n", timeout=60)

    assert ([left] * 3, "") == (json.loads(out), errors)
    assert 20 * MIB == grant.usage().used
    owner.stdin.write("\n")
    owner.stdin.flush()
    assert 64 == json.loads(owner.stdout.readline())
    owner.communicate("\n")


def test_a_capture_is_charged_when_its_graph_is_instantiated(grant: Grant) -> None:
    told = grant.run(
        f"""
start()
stream, graph, made = c_void_p(), c_void_p(), c_void_p()
call("cuStreamCreate", byref(stream), c_uint(1))
def captured(size):
    call("cuStreamBeginCapture_v2", stream, c_int(0))
    pointer = c_uint64()
    call("cuMemAllocAsync", byref(pointer), size, stream)
    call("cuMemFreeAsync", pointer.value, stream)
    call("cuStreamEndCapture", stream, byref(graph))
    return graph
captured({40 * MIB})
seen = [info()[0] >> 20]
call("cuGraphInstantiateWithFlags", byref(made), graph, 0)
seen.append(info()[0] >> 20)
call("cuGraphLaunch", made, stream)
call("cuStreamSynchronize", stream)
seen.append(cuda.cuGraphInstantiateWithFlags(byref(c_void_p()), captured({40 * MIB}), c_uint64(0)))
call("cuGraphExecDestroy", made)
seen.append(info()[0] >> 20)
say(seen)
"""
    )
    assert [64, 24, 2, 64] == told


KEEPING = """
start()
def keeping_pool():
    made = pool()
    call("cuMemPoolSetAttribute", made, c_int(4), byref(c_uint64(-1)))  # release nothing
    return made
def taken_from(made, size):
    pointer = c_uint64()
    code = driver.code("cuMemAllocFromPoolAsync", byref(pointer), size, made, None)
    return pointer.value if code == 0 else code
"""


def test_what_a_pool_keeps_of_freed_memory_stays_charged(grant: Grant) -> None:
    program = grant.start(
        KEEPING
        + f"""
first = keeping_pool()
free_in_order(taken_from(first, {64 * MIB}))
seen = [info()[0] >> 20, taken_from(first, {32 * MIB}) > 1000, info()[0] >> 20]
say(seen + [taken_from(first, {32 * MIB}) > 1000, taken_from(first, 1), take("plain", 1)])
input()
"""
    )
    assert program.stdout
    told = json.loads(program.stdout.readline())
    held = 1024 - grant.rack.run("start(); say(info()[0] >> 20)")
    program.communicate("\n")

    assert [0, True, 0, True, 2, 2] == told
    assert 64 == held


@pytest.mark.parametrize("path", ["plain", "block", "array", "pool"])
def test_pools_give_up_what_they_keep_before_anything_is_refused(grant: Grant, path: str) -> None:
    program = grant.start(
        KEEPING
        + f"""
kept = keeping_pool()
call("cuMemFreeAsync", taken_from(kept, {64 * MIB}), None)
say([take({path!r}, {64 * MIB}) > 1000 if {path!r} != "array" else bool(take("array", {64 * MIB}))])
input()
"""
    )
    assert program.stdout
    told = json.loads(program.stdout.readline())
    held = 1024 - grant.rack.run("start(); say(info()[0] >> 20)")
    program.communicate("\n")

    assert ([True], 64) == (told, held)
    assert 0 == grant.usage().denied


def test_pools_by_the_dozen_hold_no_more_than_the_grant(grant: Grant) -> None:
    program = grant.start(
        KEEPING
        + f"""
held = []
for _ in range(12):
    made = keeping_pool()
    pointer = taken_from(made, {64 * MIB})
    if pointer > 1000:
        free_in_order(pointer)
    held.append(made)
for made in held[::2]:
    call("cuMemPoolDestroy", made)
say(info()[0] >> 20)
input()
"""
    )
    assert program.stdout
    free = json.loads(program.stdout.readline())
    held = 1024 - grant.rack.run("start(); say(info()[0] >> 20)")
    program.communicate("\n")

    assert held <= 64
    assert held == 64 - free


def test_memory_of_a_destroyed_pool_is_charged_until_it_is_freed(grant: Grant) -> None:
    told = grant.run(
        KEEPING
        + f"""
made = keeping_pool()
free_in_order(taken_from(made, {10 * MIB}))
call("cuMemPoolDestroy", made)
seen = [info()[0] >> 20]
other = keeping_pool()
plain = taken_from(other, {20 * MIB})
call("cuMemFree_v2", plain)
seen.append(info()[0] >> 20)
say(seen + [taken_from(other, {64 * MIB}) > 1000])
"""
    )
    assert [64, 44, True] == told


def test_what_a_graph_allocated_outlives_it_and_is_charged_until_it_is_freed(grant: Grant) -> None:
    program = grant.start(
        f"""
start()
graph, node, made = graph_with(), c_void_p(), c_void_p()
wish = AllocNode(PoolProperties(1, 0, FIRST), None, 0, {64 * MIB}, 0)
call("cuGraphAddMemAllocNode", byref(node), graph, None, 0, byref(wish))
call("cuGraphInstantiateWithFlags", byref(made), graph, 0)
call("cuGraphLaunch", made, None)
call("cuCtxSynchronize")
call("cuGraphExecDestroy", made)
seen = [info()[0] >> 20, take("plain", 1)]
call("cuMemFree_v2", wish.pointer)
say(seen + [take("plain", {64 * MIB}) > 1000])
input()
"""
    )
    assert program.stdout
    told = json.loads(program.stdout.readline())
    held = 1024 - grant.rack.run("start(); say(info()[0] >> 20)")
    program.communicate("\n")

    assert ([0, 2, True], 64) == (told, held)


@pytest.mark.parametrize("end", ["cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxRelease_v2"])
def test_what_lived_in_a_context_is_given_back_with_it(grant: Grant, end: str) -> None:
    told = grant.run(
        f"""
start()
take("plain", {10 * MIB}), take("managed", {10 * MIB}), take("array", {10 * MIB})
call({end!r}, c_int(0))
start()
say(info()[0])
"""
    )
    assert 64 * MIB == told


def test_a_context_of_ones_own_gives_back_only_its_own(grant: Grant) -> None:
    told = grant.run(
        f"""
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
"""
    )
    assert [34, 54] == told


def test_freeing_what_is_not_ours_is_the_drivers_business(grant: Grant) -> None:
    code = """
start()
strange = [("cuMemFree_v2", 12345), ("cuMemRelease", 12345), ("cuMemFree_v2", 0)]
say([getattr(cuda, name)(c_uint64(what)) for name, what in strange])
"""
    assert grant.rack.run(code) == grant.run(code)


def test_the_grant_is_what_the_driver_and_nvml_show(grant: Grant) -> None:
    told = grant.run(
        f"""
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
"""
    )
    total, used, free = 64 * MIB, 10 * MIB, 54 * MIB
    assert [[free, total], total, [total, free, used], [total, free, used]] == told


def test_two_devices_keep_their_limits_under_any_order(tmp_path: Path) -> None:
    grant = Rack.of(tmp_path, cards=2).grant(
        Terms(memory=32 * MIB, uuid=UUIDS[0]), Terms(memory=96 * MIB, uuid=UUIDS[1])
    )
    code = """
seen = []
for device in (0, 1):
    start(device)
    seen.append([info()[1] >> 20, total_memory(device) >> 20, take("plain", (info()[1]) + 1)])
say(seen)
"""
    first, second = [32, 32, 2], [96, 96, 2]
    assert [first, second] == grant.run(code)
    assert [first, second] == grant.run(code, CUDA_VISIBLE_DEVICES="0,1")
    assert [second, first] == grant.run(code, CUDA_VISIBLE_DEVICES="1,0")
    assert [second, first] == grant.run(code, CUDA_VISIBLE_DEVICES=",".join(reversed(UUIDS)))


def test_a_visible_device_outside_the_grant_has_nothing(tmp_path: Path) -> None:
    grant = Rack.of(tmp_path, cards=2).grant(Terms(uuid=UUIDS[1]))
    told = grant.run(
        """
start()
kernel = spin_kernel()
try:
    launch(kernel, 1)
    code = 0
except Refused as refused:
    code = refused.code
say([info(), total_memory(0), take("plain", 1), take("block", 2 << 20), code])
"""
    )
    assert [[0, 0], 0, 2, 2, 800] == told


def test_a_limit_changed_in_place_holds_at_once(grant: Grant) -> None:
    program = grant.start(
        f"""
start()
say(take("plain", {60 * MIB}) > 1000)
input()
say([info()[1] >> 20, take("plain", {60 * MIB}) > 1000])
input()
say([info()[0], info()[1] >> 20, take("plain", 1)])
"""
    )
    assert program.stdout
    assert program.stdin
    assert json.loads(program.stdout.readline()) is True
    grant.set(Terms(memory=128 * MIB))
    program.stdin.write("\n")
    program.stdin.flush()
    assert [128, True] == json.loads(program.stdout.readline())
    grant.set(Terms(memory=32 * MIB))
    program.stdin.write("\n")
    program.stdin.flush()
    assert [0, 32, 2] == json.loads(program.stdout.readline())
    program.communicate()


def test_eight_racing_processes_are_never_over_the_limit(rack: Rack) -> None:
    grant = rack.grant(Terms(memory=64 * MIB))
    racers = [
        grant.start(
            f"""
import random, time
context = start()
end = time.monotonic() + 1.5
refused = 0
def race(number):
    global refused
    call("cuCtxSetCurrent", context)
    dice = random.Random({process} * 10 + number)
    while time.monotonic() < end:
        path = dice.choice(["plain", "async", "block", "managed"])
        what = take(path, dice.randrange(1, 12) * {2 * MIB})
        if what == OUT_OF_MEMORY:
            refused += 1
        else:
            give(path, what)
in_threads(4, race)
say(refused)
"""
        )
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


@pytest.mark.parametrize(
    "rounds", [1_000, pytest.param(62_500, marks=[pytest.mark.soak, pytest.mark.timeout(600)])]
)
def test_racing_allocations_never_take_the_card_past_the_limit(rack: Rack, rounds: int) -> None:
    """Four processes of four threads; the long form makes a million allocations."""
    grant = rack.grant(Terms(memory=64 * MIB))
    watcher = rack.start(
        """
import select, sys
start()
least = info()[0]
say("ready")
while not select.select([sys.stdin], [], [], 0.0002)[0]:
    least = min(least, info()[0])
say(least)
"""
    )
    assert watcher.stdout
    watcher.stdout.readline()
    racers = [
        grant.start(
            f"""
import random
context, refused, granted = start(), [0] * 4, [0] * 4
def race(number):
    call("cuCtxSetCurrent", context)
    dice = random.Random({process} * 4 + number)
    for _ in range({rounds}):
        path = dice.choice(["plain", "plain", "block", "managed"])
        what = take(path, dice.randrange(1, 24) * {2 * MIB})
        if what == OUT_OF_MEMORY:
            refused[number] += 1
        else:
            give(path, what)
            granted[number] += 1
in_threads(4, race)
say([sum(refused), sum(granted)])
"""
        )
        for process in range(4)
    ]
    told = [json.loads(racer.communicate(timeout=600)[0]) for racer in racers]
    least = int(watcher.communicate("end\n", timeout=60)[0])

    assert 16 * rounds == sum(map(sum, told))
    assert all(refused > 0 and granted > 0 for refused, granted in told)
    assert (1024 - 64) * MIB <= least < 1024 * MIB
    assert grant.usage().peak <= 64 * MIB


def test_kill_9_gives_everything_back(grant: Grant) -> None:
    program = grant.start(
        f"""
start()
say(take("plain", {50 * MIB}) > 1000)
input()
"""
    )
    assert program.stdout
    assert "true\n" == program.stdout.readline()
    other = "start(); say([info()[0] >> 20, take('plain', 60 << 20) == 2])"
    assert [14, True] == grant.run(other)
    program.send_signal(signal.SIGKILL)
    program.communicate()

    assert [64, False] == grant.run(other)


def test_three_hundred_processes_at_once_all_get_a_seat_and_never_too_much(rack: Rack) -> None:
    grant = rack.grant(Terms(memory=300 * MIB))  # each of them wants 1 MiB
    for _ in range(2):  # the second time among the seats of the dead
        starts = rack.machine.spawn(
            [str(hetero_limiters.timing("cuda")), "--starts", "300"], **grant.environment
        )
        out, errors = starts.communicate(timeout=120)
        assert (0, "") == (starts.returncode, errors)
        assert json.loads(out)["start"]["p99"] > 0
    assert 300 * MIB == grant.usage().peak
    assert 300 == grant.run("start(); say(info()[0] >> 20)")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [300, pytest.param(100_000, marks=pytest.mark.soak)])
def test_killed_programs_leave_nothing_on_the_card(rack: Rack, kills: int) -> None:
    """Killed anywhere from their start to the middle of a turn, three beside each other."""
    grant, dice = rack.grant(Terms(memory=64 * MIB, core=8000)), random.Random(1)
    watcher = rack.start(
        """
import select, sys
start()
least = info()[0]
while not select.select([sys.stdin], [], [], 0.0005)[0]:
    least = min(least, info()[0])
say(least)
"""
    )
    running: list[subprocess.Popen[str]] = []
    for number in range(kills):
        size = f"{dice.randrange(1, 64)}MiB"
        running.append(grant.job("--memory", size, "--kernel-us", "100", "--seconds", "60"))
        time.sleep(dice.random() * 0.006)
        if number >= 3:
            victim = running.pop(dice.randrange(3))
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


def test_a_forked_child_has_an_account_of_its_own(grant: Grant) -> None:
    told = grant.run(
        f"""
import os
ready, go = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    start()
    held = take("plain", {20 * MIB}) > 1000
    os.write(ready[1], b"1" if held else b"0")
    os.read(go[0], 1)
    os._exit(0)
start()
seen = [os.read(ready[0], 1).decode(), info()[0] >> 20]
take("plain", {30 * MIB})
seen.append(info()[0] >> 20)
os.write(go[1], b"x")
os.waitpid(child, 0)
seen.append(info()[0] >> 20)
say(seen)
"""
    )
    assert ["1", 44, 14, 34] == told


def test_a_program_that_becomes_another_is_limited_on_and_holds_nothing_of_the_first(
    grant: Grant,
) -> None:
    told = grant.run(
        f"""
import os, sys
start()
assert take("plain", {50 * MIB}) > 1000
again = "from driver import *\\nstart()\\n"
again += "say([info(), take('plain', {64 * MIB} + 1), take('plain', {64 * MIB}) > 1000])"
os.execv(sys.executable, [sys.executable, "-c", again])
"""
    )
    assert [[64 * MIB, 64 * MIB], 2, True] == told


def test_a_child_that_outlives_its_parent_does_not_hold_the_parents_memory(grant: Grant) -> None:
    told = grant.run(
        f"""
import os
start()
take("plain", {50 * MIB})
if os.fork() == 0:
    os.close(1), os.close(2)
    import time
    time.sleep(2)
    os._exit(0)
say(info()[0] >> 20)
"""
    )
    assert 14 == told
    assert 64 == grant.run("start(); say(info()[0] >> 20)")


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
    told = grant.run(
        """
first = cuda.cuInit(c_uint(0))
say([first, cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(1)), cuda.cuGraphLaunch(None, None),
      cuda.cuLaunchKernel(None, *[c_uint(1)] * 7, None, None, None)])
"""
    )
    assert [800, 800, 800, 800] == told


def test_a_grant_that_is_missing_refuses_everything(grant: Grant) -> None:
    (grant.directory / "grant").unlink()
    assert 800 == grant.run("say(cuda.cuInit(c_uint(0)))")


def test_a_usage_region_that_is_missing_refuses_everything(grant: Grant) -> None:
    (grant.directory / "usage").unlink()
    assert 800 == grant.run("say(cuda.cuInit(c_uint(0)))")


def test_nothing_is_printed_unless_asked(grant: Grant) -> None:
    code = "start(); say(take('plain', 1 << 40))"
    quiet, told = grant.start(code), grant.start(code, HETERO_LOG="info")
    assert ("2\n", "") == quiet.communicate()
    out, errors = told.communicate()
    assert "2\n" == out
    assert "refused" in errors
