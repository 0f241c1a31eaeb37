"""Streams that stand at a word of memory, or at a function on the host, cost nothing."""

import json

import pytest
from tenancy import MIB, Rack, Terms

from tests.programs import next_line

STREAMS = f"""
import ctypes, mmap, os, time
start()
pointer = take("plain", {MIB})
def stream():
    made = c_void_p()
    call("cuStreamCreate", byref(made), c_uint(1))
    return made
def word(page):
    at, host = c_uint64(), c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    call("cuMemHostRegister_v2", host, 4096, c_uint(2))
    call("cuMemHostGetDevicePointer_v2", byref(at), host, c_uint(0))
    return at.value
def fill(stream):
    call("cuMemsetD8Async", c_uint64(pointer), ctypes.c_ubyte(1), ctypes.c_size_t({MIB}), stream)
def done(stream):
    call("cuStreamSynchronize", stream)
"""

#: How a stream is made to stand until the event `over` is set.
WAYS = {
    name: f"""
page = mmap.mmap(-1, 4096)
call("{name}", one, c_uint64(word(page)), ctypes.c_uint{bits}(1), c_uint(0))
release = lambda: page.__setitem__(0, 1)
"""
    for bits in (32, 64)
    for name in (f"cuStreamWaitValue{bits}_v2", f"cuStreamWaitValue{bits}_v2_ptsz")
} | {
    "cuLaunchHostFunc": """
import threading
over = threading.Event()
host = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: over.wait())
call("cuLaunchHostFunc", one, host, None)
release = over.set
""",
    "cuStreamAddCallback": """
import threading
over = threading.Event()
host = ctypes.CFUNCTYPE(None, c_void_p, ctypes.c_int, c_void_p)(lambda *_: over.wait())
call("cuStreamAddCallback", one, host, None, c_uint(0))
release = over.set
""",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_that_stands_is_charged_nothing_and_keeps_no_other_from_the_card(
    rack: Rack, way: str
) -> None:
    grant = rack.grant(Terms(memory=64 * MIB, core=2000))
    program = grant.start(f"""{STREAMS}
one, other = stream(), stream()
for _ in range(20):
    fill(one)
    done(one)
{WAYS[way]}
fill(one)
begun = time.monotonic()
say(0)
input()
for _ in range(20):
    fill(other)
    done(other)
took = time.monotonic() - begun
release()
done(one)
say(took)
""")
    next_line(program)
    before_ns = grant.usage().gpu_ns
    assert program.stdin is not None
    program.stdin.write("\n")
    program.stdin.flush()
    took = json.loads(next_line(program))
    program.communicate()

    assert took < 5
    assert grant.usage().gpu_ns - before_ns < 1e9 * (0.1 + 0.2 * took)


def test_work_that_waits_for_a_later_launch_of_its_program_goes_on(rack: Rack) -> None:
    took = rack.grant(Terms(memory=64 * MIB, core=5000)).run(f"""{STREAMS}
one, other, page = stream(), stream(), mmap.mmap(-1, 4096)
at = word(page)
for _ in range(50):
    fill(one)
    done(one)
begun = time.monotonic()
for count in range(1, 11):
    call("cuStreamWaitValue32_v2", one, c_uint64(at), c_uint(count), c_uint(0))
    fill(one)
    time.sleep(0.02)
    fill(other)
    call("cuStreamWriteValue32_v2", other, c_uint64(at), c_uint(count), c_uint(0))
    done(one)
    done(other)
say(time.monotonic() - begun)
""")
    assert took < 10


def test_processes_of_a_grant_that_wait_for_each_other_go_on(rack: Rack) -> None:
    grant = rack.grant(Terms(memory=64 * MIB, core=5000))
    exchange = """
page = mmap.mmap(os.open("{path}", os.O_RDWR), 4096)
at, one = word(page), stream()
begun = time.monotonic()
for count in range(1, 11):
    fill(one)
    call("cuStreamWriteValue32_v2", one, c_uint64(at + {own}), c_uint(count), c_uint(0))
    call("cuStreamWaitValue32_v2", one, c_uint64(at + {others}), c_uint(count), c_uint(0))
    fill(one)
    done(one)
say(time.monotonic() - begun)
"""
    path = grant.directory.parent / "words"
    path.write_bytes(bytes(4096))
    programs = [
        grant.start(STREAMS + exchange.format(path=path, own=own, others=64 - own))
        for own in (0, 64)
    ]
    for program in programs:
        assert json.loads(next_line(program)) < 20
        program.communicate()
