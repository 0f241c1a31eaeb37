"""What the driver holds is charged: blocks, chunks, what is freed later, what images declare."""

import json

import pytest
from tenancy import MIB, Grant, Rack, Terms

from tests.programs import next_line

#: In each program: MiB that are free of the grant.
LEFT = """
def left():
    return info()[0] >> 20
"""


def test_pieces_are_charged_by_the_blocks_they_lie_in(grant: Grant) -> None:
    left_mib = grant.run(f"""{LEFT}
start()
pieces = [take("plain", {MIB} - 512) for _ in range(40)]  # 20 blocks, one is the context's
seen = [left()]
for piece in pieces[::2]:
    give("plain", piece)
seen.append(left())
for piece in pieces[1::2]:
    give("plain", piece)
say(seen + [left(), info()[0] == {64 * MIB}])
""")
    assert [26, 26, 64, True] == left_mib


def test_a_byte_more_than_a_block_takes_two(grant: Grant) -> None:
    left_mib = grant.run(LEFT + f"start()\ntake('plain', {2 * MIB} + 1)\nsay(left())")
    assert 60 == left_mib


def test_a_grant_of_a_mebibyte_can_hold_one(rack: Rack) -> None:
    answers = rack.grant(Terms(memory=MIB)).run(f"""
start()
whole = take("plain", {MIB})
seen = [whole > 1000, take("plain", {MIB}), take("plain", 1)]
give("plain", whole)
pieces = [take("plain", {MIB} - 512) for _ in range(3)]
say(seen + [piece > 1000 for piece in pieces])
""")
    assert [True, 2, 2, True, True, False] == answers


def test_small_arrays_are_charged_by_the_most_they_were_together(grant: Grant) -> None:
    left_mib = grant.run(f"""{LEFT}
start()
arrays = [take("array", 4096) for _ in range(1000)]
seen = [left()]
for made in arrays[1:]:
    give("array", made)
seen.append(left())
give("array", arrays[0])
say(seen + [left()])
""")
    assert [60, 60, 64] == left_mib


def test_a_pool_of_a_byte_is_charged_its_chunk(grant: Grant) -> None:
    answers = grant.run(f"""{LEFT}
start()
def byte():
    pointer = c_uint64()
    return driver.code("cuMemAllocFromPoolAsync", byref(pointer), 1, pool(), None)
say([byte(), left(), byte(), left(), byte()])
""")
    assert [0, 32, 0, 0, 2] == answers


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
    answers = grant.run(f"""{LEFT}{BLOCKED}
pointer = take({path!r}, {64 * MIB})
stream = blocked()
call("cuMemFreeAsync", pointer, stream)
seen = [left(), take("plain", {64 * MIB}), take("async", {64 * MIB})]
word.value = 1
call("cuStreamSynchronize", stream)
say(seen + [take("plain", {64 * MIB}) > 1000])
""")
    assert [0, 2, 2, True] == answers


def test_streams_that_are_blocked_one_after_another_hold_no_more_than_the_grant(
    grant: Grant,
) -> None:
    program = grant.start(f"""{LEFT}{BLOCKED}
def round():
    try:
        pointer, stream = c_uint64(), blocked()
    except Refused as refused:
        return refused.code
    code = driver.code("cuMemAllocAsync", byref(pointer), {32 * MIB}, stream)
    return code or driver.code("cuMemFreeAsync", pointer.value, stream)
say([round() for _ in range(4)])
input()
""")
    answers = json.loads(next_line(program))
    held = 1024 - grant.rack.run("start(); say(info()[0] >> 20)")
    program.communicate("\n")

    assert [0, 0, 2, 2] == answers
    assert held <= 64 + 2


def test_streams_take_what_a_context_may_and_no_block_beyond_the_limit(grant: Grant) -> None:
    """A context keeps what it took for streams, so one that does not fit is never made."""
    program = grant.start(f"""
start()
for _ in range(32):
    take("plain", {2 * MIB})
def stream():
    made = c_void_p()
    return driver.code("cuStreamCreate", byref(made), c_uint(1)) or made
four = [stream() for _ in range(4)]
seen = [isinstance(each, int) for each in four] + [stream()]
call("cuStreamDestroy_v2", four[0])
say([*seen, isinstance(stream(), int)])
input()
""")
    answers = json.loads(next_line(program))
    held = 1024 - grant.rack.run("start(); say(info()[0] >> 20)")
    program.communicate("\n")

    assert [False] * 4 + [2, False] == answers
    assert 64 + 2 == held


def test_a_destroyed_pool_holds_what_is_pending_and_is_charged_for_it(grant: Grant) -> None:
    left_mib = grant.run(f"""{LEFT}{BLOCKED}
made, pointer, stream = pool(), c_uint64(), blocked()
call("cuMemAllocFromPoolAsync", byref(pointer), {32 * MIB}, made, stream)
call("cuMemFreeAsync", pointer.value, stream)
call("cuMemPoolDestroy", made)
seen = [left()]
word.value = 1
call("cuStreamSynchronize", stream)
say(seen + [left()])
""")
    assert [32, 64] == left_mib


PTX = """
def image(*declarations):
    text = ".version 6.0\\n.target sm_50\\n.address_size 64\\n" + "\\n".join(declarations)
    kernel = ".visible .entry spin(.param .u64 .ptr .global .align 8 at) { ret; }"
    return (text + "\\n" + kernel + "\\n").encode() + b"\\0"
def load(*declarations):
    made = c_void_p()
    code = driver.code("cuModuleLoadData", byref(made), image(*declarations))
    return made if code == 0 else code
"""


@pytest.mark.parametrize(
    ("declarations", "mebibytes"),
    [
        ((".visible .global .align 4 .b8 big[41943040];",), 40),
        ((".global .u32 big[0xa00000];",), 40),
        ((".global .f64 big [ 5 * 1024 * 1024 ] ;",), 40),
        ((".global .align 16 .v4 .f32 big[16][16384][10];",), 40),
        ((".global .b8 one[20971520], two[20971520];",), 40),
        (("// .global .b8 no[41943040];", "/* .global .b8 no[41943040]; */"), 0),
        ((".extern .global .align 4 .b8 elsewhere[41943040];",), 0),
        ((".global .u32 some[4] = {1, 2, 3, 4};",), 0),
    ],
)
def test_arrays_that_an_image_declares_are_charged_while_it_is_loaded(
    grant: Grant, declarations: tuple[str, ...], mebibytes: int
) -> None:
    answers = grant.run(f"""{LEFT}{PTX}
start()
first = load(*{declarations!r})
seen = [left()]
second = load(*{declarations!r})
call("cuModuleUnload", first)
say(seen + [second if isinstance(second, int) else 0, left()])
""")
    refused = 2 if mebibytes else 0
    assert [64 - mebibytes, refused, 64] == answers


@pytest.mark.parametrize("loading", ["LAZY", "EAGER"])
def test_a_library_is_charged_before_it_is_loaded(grant: Grant, loading: str) -> None:
    program = f"""{LEFT}{PTX}
start()
def library(size):
    made = c_void_p()
    data, none = image(f".global .b8 big[{{size << 20}}];"), (None, None, c_uint(0))
    code = driver.code("cuLibraryLoadData", byref(made), data, *none, *none)
    return code, made
code, made = library(40)
seen = [code, left(), library(40)[0]]
pointer, size = c_uint64(), c_size_t()
call("cuLibraryGetGlobal", byref(pointer), byref(size), made, b"big")
seen += [size.value >> 20, left()]
call("cuLibraryUnload", made)
say(seen + [left()])
"""
    answers = grant.run(program, CUDA_MODULE_LOADING=loading)
    assert [0, 24, 2, 40, 24, 64] == answers


def test_buffers_of_a_context_are_charged_from_when_they_are_asked_for(rack: Rack) -> None:
    grant = rack.grant(Terms(memory=900 * MIB))
    answers = grant.run(f"""{LEFT}
start()
STACK, PRINTF, HEAP = 0, 1, 2
def ask(limit, size):
    return cuda.cuCtxSetLimit(c_uint(limit), c_size_t(size))
seen = [ask(HEAP, {512 * MIB}), left(), ask(PRINTF, {512 * MIB}), ask(HEAP, {8 * MIB}), left()]
seen += [ask(PRINTF, {256 * MIB}), left(), ask(PRINTF, 0), left(), ask(STACK, 1 << 20), left()]
before = left()
ask(STACK, 2048)
taken = before - left()
ask(STACK, 1024)
call("cuDevicePrimaryCtxReset_v2", c_int(0))
start()
say([seen, taken > 200, left()])
""")
    assert [
        [0, 386, 2, 0, 900, 0, 642, 0, 900, 2, 900],
        True,
        900,
    ] == answers


def test_streams_take_memory_by_the_handful(grant: Grant) -> None:
    answers = grant.run(f"""{LEFT}
start()
streams, code = 0, 0
while code == 0 and streams < 1000:
    code = cuda.cuStreamCreate(byref(c_void_p()), c_uint(1))
    streams += 1
say([code, 100 < streams < 160])
""")
    assert [2, True] == answers
