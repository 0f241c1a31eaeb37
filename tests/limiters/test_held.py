"""What the driver holds is what is charged: blocks, chunks, what is freed later, what an image declares."""

import json

import pytest
from tenancy import MIB, Grant, Rack, Terms

#: In each program: MiB that are free of the grant, and of the card as everybody sees it.
LEFT = """
def left():
    return info()[0] >> 20
"""


def test_pieces_are_charged_by_the_blocks_they_lie_in(grant: Grant) -> None:
    told = grant.run(
        LEFT
        + f"""
start()
pieces = [take("plain", {MIB} - 512) for _ in range(40)]  # two to a block, 20 blocks, the first is the context's
seen = [left()]
for piece in pieces[::2]:
    give("plain", piece)
seen.append(left())
for piece in pieces[1::2]:
    give("plain", piece)
say(seen + [left(), info()[0] == {64 * MIB}])
"""
    )
    assert [26, 26, 64, True] == told


def test_a_byte_more_than_a_block_takes_two(grant: Grant) -> None:
    told = grant.run(LEFT + f"start()\ntake('plain', {2 * MIB} + 1)\nsay(left())")
    assert 60 == told


def test_a_grant_of_a_mebibyte_can_hold_one(rack: Rack) -> None:
    told = rack.grant(Terms(memory=MIB)).run(
        f"""
start()
whole = take("plain", {MIB})
seen = [whole > 1000, take("plain", {MIB}), take("plain", 1)]
give("plain", whole)
pieces = [take("plain", {MIB} - 512) for _ in range(3)]
say(seen + [piece > 1000 for piece in pieces])
"""
    )
    assert [True, 2, 2, True, True, False] == told


def test_small_arrays_are_charged_by_the_most_they_were_together(grant: Grant) -> None:
    told = grant.run(
        LEFT
        + """
start()
arrays = [take("array", 4096) for _ in range(1000)]
seen = [left()]
for made in arrays[1:]:
    give("array", made)
seen.append(left())
give("array", arrays[0])
say(seen + [left()])
"""
    )
    assert [60, 60, 64] == told


def test_a_pool_of_a_byte_is_charged_its_chunk(grant: Grant) -> None:
    told = grant.run(
        LEFT
        + """
start()
def byte():
    pointer = c_uint64()
    return driver.code("cuMemAllocFromPoolAsync", byref(pointer), 1, pool(), None)
say([byte(), left(), byte(), left(), byte()])
"""
    )
    assert [0, 32, 0, 0, 2] == told


BLOCKED = """
start()
gate = c_void_p()
call("cuMemHostAlloc", byref(gate), 4096, c_uint(2))
word = c_uint.from_address(gate.value)
def blocked():
    made, at = c_void_p(), c_uint64()
    call("cuStreamCreate", byref(made), c_uint(1))
    call("cuMemHostGetDevicePointer_v2", byref(at), gate, c_uint(0))
    call("cuStreamWaitValue32_v2", made, at.value, c_uint(1), c_uint(0))
    return made
"""


@pytest.mark.parametrize("path", ["async", "plain"])
def test_what_a_blocked_stream_is_to_free_stays_charged_until_it_did(
    grant: Grant, path: str
) -> None:
    told = grant.run(
        LEFT
        + BLOCKED
        + f"""
pointer = take({path!r}, {64 * MIB})
stream = blocked()
call("cuMemFreeAsync", pointer, stream)
seen = [left(), take("plain", {64 * MIB}), take("async", {64 * MIB})]
word.value = 1
call("cuStreamSynchronize", stream)
say(seen + [take("plain", {64 * MIB}) > 1000])
"""
    )
    assert [0, 2, 2, True] == told


def test_streams_that_are_blocked_one_after_another_hold_no_more_than_the_grant(
    grant: Grant,
) -> None:
    program = grant.start(
        LEFT
        + BLOCKED
        + f"""
def round():
    pointer, stream = c_uint64(), blocked()
    code = driver.code("cuMemAllocAsync", byref(pointer), {32 * MIB}, stream)
    return code or driver.code("cuMemFreeAsync", pointer.value, stream)
say([round() for _ in range(4)])
input()
"""
    )
    assert program.stdout
    told = json.loads(program.stdout.readline())
    held = 1024 - grant.rack.run("start(); say(info()[0] >> 20)")
    program.communicate("\n")

    assert [0, 0, 2, 2] == told
    assert held <= 64 + 2


def test_a_destroyed_pool_holds_what_is_pending_and_is_charged_for_it(grant: Grant) -> None:
    told = grant.run(
        LEFT
        + BLOCKED
        + f"""
made, pointer, stream = pool(), c_uint64(), blocked()
call("cuMemAllocFromPoolAsync", byref(pointer), {32 * MIB}, made, stream)
call("cuMemFreeAsync", pointer.value, stream)
call("cuMemPoolDestroy", made)
seen = [left()]
word.value = 1
call("cuStreamSynchronize", stream)
say(seen + [left()])
"""
    )
    assert [32, 64] == told
