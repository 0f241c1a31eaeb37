"""Memory that pools and graphs keep: charged until the driver has it back."""

import json
from pathlib import Path

import pytest
from tenancy import MIB, Grant, Rack, Terms

from tests.programs import next_line


def test_a_capture_is_charged_when_its_graph_is_instantiated(grant: Grant) -> None:
    answers = grant.run(f"""
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
def another():
    return cuda.cuGraphInstantiateWithFlags(byref(c_void_p()), captured({40 * MIB}), c_uint64(0))
captured({40 * MIB})
seen = [info()[0] >> 20]
call("cuGraphInstantiateWithFlags", byref(made), graph, 0)
seen += [info()[0] >> 20, another()]
call("cuGraphExecDestroy", made)
seen.append(info()[0] >> 20)
say(seen)
""")
    assert [64, 0, 2, 64] == answers


def test_a_graph_that_is_launched_again_has_its_memory_or_is_refused(grant: Grant) -> None:
    answers = grant.run(f"""
start()
stream, graph, made, pointer = c_void_p(), c_void_p(), c_void_p(), c_uint64()
call("cuStreamCreate", byref(stream), c_uint(1))
call("cuStreamBeginCapture_v2", stream, c_int(0))
call("cuMemAllocAsync", byref(pointer), {40 * MIB}, stream)
call("cuMemFreeAsync", pointer.value, stream)
call("cuStreamEndCapture", stream, byref(graph))
call("cuGraphInstantiateWithFlags", byref(made), graph, 0)
def launched():
    code = cuda.cuGraphLaunch(made, stream)
    call("cuStreamSynchronize", stream)
    return code
seen = [launched(), launched(), info()[0]]
other = take("plain", {64 * MIB})
seen += [other > 1000, launched()]
give("plain", other)
say(seen + [launched(), info()[0]])
""")
    assert [0, 0, 0, True, 2, 0, 0] == answers


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
    program = grant.start(f"""{KEEPING}
first = keeping_pool()
free_in_order(taken_from(first, {64 * MIB}))
seen = [info()[0] >> 20, taken_from(first, {32 * MIB}) > 1000, info()[0] >> 20]
say(seen + [taken_from(first, {32 * MIB}) > 1000, taken_from(first, 1), take("plain", 1 << 20)])
input()
""")
    answers = json.loads(next_line(program))
    held = 1024 - grant.rack.run("start(); say(info()[0] >> 20)")
    program.communicate("\n")

    assert [0, True, 0, True, 2, 2] == answers
    assert 64 == held


@pytest.mark.parametrize("path", ["plain", "block", "array", "pool"])
def test_pools_give_up_what_they_keep_before_anything_is_refused(grant: Grant, path: str) -> None:
    program = grant.start(f"""{KEEPING}
kept = keeping_pool()
call("cuMemFreeAsync", taken_from(kept, {64 * MIB}), None)
say([take({path!r}, {64 * MIB}) > 1000 if {path!r} != "array" else bool(take("array", {64 * MIB}))])
input()
""")
    answers = json.loads(next_line(program))
    held = 1024 - grant.rack.run("start(); say(info()[0] >> 20)")
    program.communicate("\n")

    assert ([True], 64) == (answers, held)
    assert 0 == grant.usage().denied


def test_pools_by_the_dozen_hold_no_more_than_the_grant(grant: Grant) -> None:
    program = grant.start(f"""{KEEPING}
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
""")
    free = json.loads(next_line(program))
    held = 1024 - grant.rack.run("start(); say(info()[0] >> 20)")
    program.communicate("\n")

    assert held <= 64
    assert held == 64 - free


def test_memory_of_a_destroyed_pool_is_charged_until_it_is_freed(grant: Grant) -> None:
    answers = grant.run(f"""{KEEPING}
made = keeping_pool()
free_in_order(taken_from(made, {10 * MIB}))
call("cuMemPoolDestroy", made)
seen = [info()[0] >> 20]
other = keeping_pool()
plain = taken_from(other, {20 * MIB})
call("cuMemFree_v2", plain)
seen.append(info()[0] >> 20)
say(seen + [taken_from(other, {64 * MIB}) > 1000])
""")
    assert [64, 32, True] == answers


def test_what_a_graph_allocated_outlives_it_and_is_charged_until_it_is_freed(grant: Grant) -> None:
    program = grant.start(f"""
start()
graph, node, made = graph_with(), c_void_p(), c_void_p()
params = AllocNode(PoolProperties(1, 0, FIRST), None, 0, {64 * MIB}, 0)
call("cuGraphAddMemAllocNode", byref(node), graph, None, 0, byref(params))
call("cuGraphInstantiateWithFlags", byref(made), graph, 0)
call("cuGraphLaunch", made, None)
call("cuCtxSynchronize")
call("cuGraphExecDestroy", made)
seen = [info()[0] >> 20, take("plain", 1 << 20)]
call("cuMemFree_v2", params.pointer)
say(seen + [take("plain", {64 * MIB}) > 1000])
input()
""")
    answers = json.loads(next_line(program))
    held = 1024 - grant.rack.run("start(); say(info()[0] >> 20)")
    program.communicate("\n")

    assert ([0, 2, True], 64) == (answers, held)


def test_a_card_that_is_not_granted_has_no_pool(tmp_path: Path) -> None:
    rack = Rack.of(tmp_path, cards=2)
    codes = rack.grant(Terms(memory=512 * MIB), time_slices=False).run(f"""
start()
call("cuDevicePrimaryCtxRetain", byref(c_void_p()), c_int(1))
def pool_on(card):
    properties, pool = (c_uint64 * 11)(1, 1 | card << 32), c_void_p()
    made = cuda.cuMemPoolCreate(byref(pool), properties)
    return made or cuda.cuMemAllocFromPoolAsync(byref(c_uint64()), c_size_t({MIB}), pool, None)
say([pool_on(0), pool_on(1)])
""")
    assert [0, 2] == codes
