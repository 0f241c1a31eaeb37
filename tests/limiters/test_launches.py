"""Launches that are recorded, or are on several devices at once."""

import json
import sys
from pathlib import Path

import hetero_simulator
import pytest
from tenancy import COUNTED, MIB, UUIDS, Rack, Terms, in_front


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("cuStreamBeginCapture_v2(stream, c_int(2))", "cuStreamDestroy_v2(stream)"),
        ("cuStreamBeginRecaptureToGraph(stream, c_int(2), graph, None, None)", "end(stream)"),
    ],
    ids=["abandoned", "into an old graph"],
)
def test_a_capture_is_over_when_its_stream_is_or_when_it_ends(
    rack: Rack, begin: str, end: str
) -> None:
    counts = rack.grant(Terms(core=3000)).run(f"""
start()
kernel = spin_kernel()
launch(kernel, 50)
stream, graph, count = c_void_p(), c_void_p(), c_size_t()
counts = []
def end(stream):
    global graph
    code = cuda.cuStreamEndCapture(stream, byref(graph))
    call("cuGraphGetNodes", graph, None, byref(count))
    counts.append(count.value)
    return code
answers = []
for _ in range(3):
    call("cuStreamCreate", byref(stream), c_uint(1))
    launch(kernel, 50, stream)
    answers.append(cuda.{begin})
    for _ in range(5):
        launch(kernel, 10, stream)
    answers.append(cuda.{end} if "Destroy" in {end!r} else {end if "end(" in end else "0"})
call("cuStreamCreate", byref(stream), c_uint(1))
for _ in range(50):
    launch(kernel, 500, stream)
call("cuStreamSynchronize", stream)
say([answers, counts])
""")
    assert [[0] * 6, [] if "Destroy" in end else [5] * 3] == counts


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_a_capture_behind_work_in_the_default_stream_is_not_spoilt(rack: Rack, mode: int) -> None:
    """The default stream takes no fence while a stream that waits for it is captured."""
    answers = rack.grant(Terms(core=5000)).run(f"""
import time
start()
kernel, stream, graph, answers = spin_kernel(), c_void_p(), c_void_p(), set()
call("cuStreamCreate", byref(stream), c_uint(0))
for _ in range(10):
    launch(kernel, 3000)
    call("cuStreamBeginCapture_v2", stream, c_int({mode}))
    for _ in range(20):
        launch(kernel, 10, stream)
        time.sleep(0.0001)
    answers.add(cuda.cuStreamEndCapture(stream, byref(graph)))
    call("cuCtxSynchronize")
say(list(answers))
""")
    assert [0] == answers


def test_a_cooperative_launch_is_charged_on_each_of_its_devices(tmp_path: Path) -> None:
    grant = Rack.of(tmp_path, cards=2).grant(
        Terms(core=5000, uuid=UUIDS[0]), Terms(core=5000, uuid=UUIDS[1])
    )
    grant.run("""
class Launch(ctypes.Structure):
    _fields_ = [("function", c_void_p), ("dims", c_uint * 7), ("stream", c_void_p),
                ("parameters", c_void_p)]
argument = c_uint(2_000_000)
parameters = (c_void_p * 1)(ctypes.addressof(argument))
launches = (Launch * 2)()
for device in (0, 1):
    start(device)
    stream = c_void_p()
    call("cuStreamCreate", byref(stream), c_uint(1))
    launches[device] = Launch(
        spin_kernel(), (c_uint * 7)(1, 1, 1, 1, 1, 1, 0), stream, ctypes.addressof(parameters)
    )
for _ in range(20):
    call("cuLaunchCooperativeKernelMultiDevice", launches, c_uint(2), c_uint(0))
for device in (0, 1):
    start(device)
    call("cuCtxSynchronize")
import time
time.sleep(0.3)
say(0)
""")
    assert [20, 20] == [grant.usage(device).launches for device in (0, 1)]
    assert all(grant.usage(device).gpu_ns > 20_000_000 for device in (0, 1))


MOVES = {
    "cuMemcpyWithAttributesAsync": "c_uint64(to), c_uint64(pointer), c_size_t(size), None, None",
    "cuMemPrefetchAsync": "c_uint64(pointer), c_size_t(size), c_int(0), None",
    "cuMemPrefetchAsync_v2": "c_uint64(pointer), c_size_t(size), DEVICE, c_uint(0), None",
    "cuMemPrefetchBatchAsync": "pointers, sizes, one, places, sizes, one, c_uint64(0), None",
    "cuGraphUpload": "executable, None",
}


@pytest.mark.parametrize("name", [*MOVES, *(f"{name}_ptsz" for name in MOVES)])
def test_what_moves_data_without_a_copys_name_is_charged(rack: Rack, name: str) -> None:
    grant = rack.grant(Terms(core=9000))
    answers = grant.run(f"""
import time
class Place(ctypes.Structure):
    _fields_ = [("kind", c_int), ("device", c_int)]
start()
size = 4 << 20
pointer, to = take("plain", size), take("plain", size)
DEVICE, one = Place(1, 0), c_size_t(1)
places, pointers, sizes = (Place * 1)(DEVICE), (c_uint64 * 1)(pointer), (c_size_t * 1)(size)
graph, executable = c_void_p(), c_void_p()
call("cuGraphCreate", byref(graph), c_uint(0))
call("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))
answers = [cuda.{name}({MOVES[name.removesuffix("_ptsz")]}) for _ in range(5)]
call("cuCtxSynchronize")
time.sleep(0.3)  # until the governor has looked
say(answers)
""")
    assert [0] * 5 == answers
    assert 5 == grant.usage().launches


#: A driver that takes a while to say that a stream is captured, and to end a capture, and that
#: counts how often it did.
SLOW = """
#include <unistd.h>
int cuStreamGetCaptureInfo(void *, int *, unsigned long *);
int cuStreamEndCapture_ptsz(void *, void **);
volatile unsigned said;
int cuStreamIsCapturing(void *stream, int *status)
{
    unsigned long id;
    int answer = cuStreamGetCaptureInfo(stream, status, &id);
    if (answer == 0 && *status != 0 && LOOK_US > 0) {
        said++;
        usleep(LOOK_US);
    }
    return answer;
}
int cuStreamEndCapture(void *stream, void **graph)
{
    said += END_US > 0;
    usleep(END_US);
    return cuStreamEndCapture_ptsz(stream, graph);
}
"""


def _race(tmp_path: Path, look_us: int, end_us: int, racing: str) -> tuple[list[int], int]:
    """Return what a program prints that fills a block in one of two captured streams.

    And how many launches passed the gate.
    """
    flags = (f"-DLOOK_US={look_us}", f"-DEND_US={end_us}")
    driver = hetero_simulator.fake_drivers() / "libcuda.so.1"
    path = in_front(tmp_path, driver, SLOW, *flags)
    grant = Rack.of(tmp_path).grant(Terms(memory=64 * MIB, core=3000))
    program = f"""
import ctypes, json, threading
from ctypes import byref, c_size_t, c_uint, c_uint64, c_void_p
cuda = ctypes.CDLL("{path}")
context, stream, other = c_void_p(), c_void_p(), c_void_p()
graph, block = c_void_p(), c_uint64()
said, nodes, answers = c_uint.in_dll(cuda, "said"), c_size_t(), []
answers.append(cuda.cuInit(0))
answers.append(cuda.cuDevicePrimaryCtxRetain(byref(context), 0))
answers.append(cuda.cuCtxSetCurrent(context))
answers.append(cuda.cuMemAlloc_v2(byref(block), c_size_t(4096)))
for each in (stream, other):
    answers.append(cuda.cuStreamCreate(byref(each), 1))
    answers.append(cuda.cuStreamBeginCapture_v2(each, 2))
def fill():
    cuda.cuCtxSetCurrent(context)
    answers.append(cuda.cuMemsetD8Async(block, 0, c_size_t(4096), stream))
def end(captured):
    answers.append(cuda.cuStreamEndCapture(captured, byref(graph)))
def race(first, second, *arguments):
    thread = threading.Thread(target=first)
    thread.start()
    while not said.value:
        pass
    second(*arguments)
    thread.join()
{racing}
answers.append(cuda.cuGraphGetNodes(graph, None, byref(nodes)))
print(json.dumps([sum(answers), nodes.value]))
"""
    job = grant.rack.machine.spawn(
        [sys.executable, "-c", program], **grant.environment, HETERO_LOG="off"
    )
    out, errors = job.communicate(timeout=60)
    assert ("", 0) == (errors, job.returncode)
    return json.loads(out), grant.usage().launches


def test_a_capture_ends_after_the_launches_that_were_seen_to_be_captured(tmp_path: Path) -> None:
    """Or they would be work that passed no gate."""
    assert ([0, 1], 0) == _race(tmp_path, 20000, 0, "race(fill, end, stream)")


def test_a_launch_that_a_capture_did_not_wait_for_passes_the_gate_behind_it(
    tmp_path: Path,
) -> None:
    racing = f"{COUNTED}\nrace(fill, end, stream)\ncounted(1)"
    assert ([0, 0], 1) == _race(tmp_path, 200000, 0, racing)


def test_a_captured_launch_passes_no_gate_while_another_capture_takes_long_to_end(
    tmp_path: Path,
) -> None:
    racing = "race(lambda: end(other), fill)\nend(stream)"
    assert ([0, 1], 0) == _race(tmp_path, 0, 200000, racing)


def test_what_a_node_is_made_of_may_lie_in_memory_that_is_only_read(rack: Rack) -> None:
    codes = rack.grant(Terms(memory=64 * MIB)).run("""
import mmap, struct
start()
kernel, graph, node = spin_kernel(), c_void_p(), c_void_p()
call("cuGraphCreate", byref(graph), c_uint(0))
length = c_uint64(10)
given = (c_void_p * 1)(ctypes.addressof(length))
libc = ctypes.CDLL(None)
libc.mmap.restype = c_void_p
page = libc.mmap(None, c_size_t(4096), 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, c_size_t(0))
asked = struct.pack("i12xP7I4xP", 0, kernel.value, 1, 1, 1, 1, 1, 1, 0, ctypes.addressof(given))
ctypes.memmove(page, asked, len(asked))
assert libc.mprotect(c_void_p(page), c_size_t(4096), mmap.PROT_READ) == 0
none = c_void_p()
say([cuda.cuGraphAddNode_v2(byref(node), graph, none, none, c_size_t(0), c_void_p(page)),
     cuda.cuGraphNodeSetParams(node, c_void_p(page))])
""")
    assert [0, 0] == codes
