"""The fake CUDA driver through its ABI: time, graphs, processes, and who sees what."""

import time
from pathlib import Path

import pytest
from simulated import MIB, Machine

from tests.programs import next_line

START = "    cuda = Cuda()\n    cuda.start()\n"


@pytest.mark.measured
def test_a_killed_process_leaves_no_work_behind(machine: Machine) -> None:
    """Half of the card is a neighbour's, who has queued a minute of work and is killed."""
    with machine.standing(START + "    cuda.launch(cuda.kernel(), 60_000_000)\n") as other:
        process = machine.start(f"""{START}
    import time
    kernel = cuda.kernel()
    print("ready", flush=True)
    start = time.monotonic()
    cuda.launch(kernel, 400_000)
    cuda.cuCtxSynchronize()
    say(time.monotonic() - start)""")
        next_line(process)
        time.sleep(0.2)
        other.kill()
        shared = float(next_line(process))
    process.communicate()
    assert 0.45 < shared < 0.75  # alone: 0.4; beside the neighbour to the end: 0.86


def test_events_tell_the_time_of_the_card(machine: Machine) -> None:
    times_ms = machine.run(f"""{START}
    kernel = cuda.kernel()
    start, middle, end, idle = (cuda.made("cuEventCreate", c_uint(0)) for _ in range(4))
    unrecorded = cuda.code("cuEventElapsedTime_v2", byref(ctypes.c_float()), start, end)
    cuda.cuEventRecord(start, 0)
    cuda.launch(kernel, 9998)
    cuda.cuEventRecord(middle, 0)
    cuda.launch(kernel, 19998)
    cuda.cuEventRecord(end, 0)
    early = cuda.code("cuEventQuery", end)
    soon = cuda.code("cuEventElapsedTime_v2", byref(ctypes.c_float()), start, end)
    cuda.cuEventSynchronize(end)
    import time
    time.sleep(0.01)
    cuda.cuEventRecord(idle, 0)
    say([unrecorded, early, soon, cuda.code("cuEventQuery", end),
         cuda.milliseconds(start, middle), cuda.milliseconds(middle, end),
         cuda.milliseconds(end, idle)])""")
    assert [400, 600, 600, 0] == times_ms[:4]
    assert 10 == pytest.approx(times_ms[4], abs=0.5)
    assert 20 == pytest.approx(times_ms[5], abs=0.001)
    assert 10 <= times_ms[6] < 1000


def test_a_host_function_runs_when_the_card_gets_there(machine: Machine) -> None:
    calls = machine.run(f"""{START}
    import time
    kernel, seen = cuda.kernel(), []
    function = ctypes.CFUNCTYPE(None, c_void_p)(lambda argument: seen.append(argument))
    cuda.launch(kernel, 50_000)
    cuda.cuLaunchHostFunc(0, function, 42)
    before = list(seen)
    cuda.cuStreamSynchronize(0)
    say([before, seen])""")
    assert [[], [42]] == calls


def test_a_query_by_the_thread_that_captures_spoils_the_capture(machine: Machine) -> None:
    codes = machine.run(f"""{START}
    stream, other = (cuda.made("cuStreamCreate", c_uint(1)) for _ in range(2))
    cuda.cuStreamBeginCapture_v2(stream, c_uint(1))
    cuda.launch(cuda.kernel(), 1, stream)
    queried = cuda.code("cuStreamQuery", other)
    say([queried, cuda.code("cuStreamEndCapture", stream, byref(c_uint64()))])""")
    assert [900, 901] == codes


def test_the_legacy_stream_tells_of_a_capture_that_its_work_would_spoil(machine: Machine) -> None:
    codes = machine.run(f"""{START}
    state, told = c_uint(), []
    for flags in (0, 1):  # blocking, and not
        stream = cuda.made("cuStreamCreate", c_uint(flags))
        cuda.cuStreamBeginCapture_v2(stream, c_uint(2))
        told.append(cuda.code("cuStreamIsCapturing", None, byref(state)))
        told.append(cuda.code("cuStreamEndCapture", stream, byref(c_uint64())))
    say(told)""")
    assert [906, 0, 0, 0] == codes


def test_a_captured_graph_takes_as_long_as_its_kernels(machine: Machine) -> None:
    answers = machine.run(f"""{START}
    kernel = cuda.kernel()
    stream = cuda.made("cuStreamCreate", c_uint(1))
    cuda.cuStreamBeginCapture_v2(stream, c_uint(1))
    for _ in range(20):
        cuda.launch(kernel, 998, stream)
    graph, count = c_uint64(), c_size_t()
    cuda.cuStreamEndCapture(stream, byref(graph))
    cuda.cuGraphGetNodes(graph, None, byref(count))
    exe = cuda.made("cuGraphInstantiateWithFlags", graph, 0)
    start, end = cuda.made("cuEventCreate", c_uint(0)), cuda.made("cuEventCreate", c_uint(0))
    cuda.cuEventRecord(start, stream)
    cuda.cuGraphLaunch(exe, stream)
    cuda.cuEventRecord(end, stream)
    cuda.cuStreamSynchronize(stream)
    say([count.value, cuda.milliseconds(start, end)])""")
    assert 20 == answers[0]
    assert 20 == pytest.approx(answers[1], abs=0.5)


def test_memory_of_a_graph_is_taken_at_launch_and_kept_until_trimmed(machine: Machine) -> None:
    answers = machine.run(f"""{START}
    graph = cuda.made("cuGraphCreate", c_uint(0))
    params = AllocNode(PoolProperties(1, 0, FIRST), None, 0, 64 * MIB, 0)
    node = cuda.made("cuGraphAddMemAllocNode", graph, None, 0, byref(params))
    exe = cuda.made("cuGraphInstantiateWithFlags", graph, 0)
    before = cuda.used()
    cuda.cuGraphLaunch(exe, 0)
    launched = cuda.used()
    again = cuda.code("cuGraphLaunch", exe, 0)
    cuda.cuMemFreeAsync(params.pointer, 0)
    freed = cuda.used()
    cuda.cuDeviceGraphMemTrim(0)
    say([before, launched, again, freed, cuda.used()])""")
    assert [0, 64 * MIB, 1, 64 * MIB, 0] == answers


def test_an_allocation_inside_a_capture_becomes_a_node(machine: Machine) -> None:
    answers = machine.run(f"""{START}
    stream = cuda.made("cuStreamCreate", c_uint(1))
    cuda.cuStreamBeginCapture_v2(stream, c_uint(0))
    pointer = cuda.made("cuMemAllocAsync", 32 * MIB, stream)
    cuda.cuMemsetD8Async(pointer, 7, 1024, stream)
    cuda.cuMemFreeAsync(pointer, stream)
    graph, count = c_uint64(), c_size_t(3)
    cuda.cuStreamEndCapture(stream, byref(graph))
    nodes = (c_uint64 * 3)()
    cuda.cuGraphGetNodes(graph, nodes, byref(count))
    types = (c_uint * 3)()
    for i, node in enumerate(nodes):
        cuda.cuGraphNodeGetType(node, byref(types, 4 * i))
    exe = cuda.made("cuGraphInstantiateWithFlags", graph, 0)
    cuda.cuGraphLaunch(exe, stream)
    cuda.cuGraphLaunch(exe, stream)
    say([list(types), cuda.used()])""")
    assert [[10, 2, 11], 32 * MIB] == answers


def test_a_query_from_another_thread_spoils_a_global_capture(machine: Machine) -> None:
    codes = machine.run(f"""{START}
    import threading
    kernel, event = cuda.kernel(), cuda.made("cuEventCreate", c_uint(0))
    cuda.cuEventRecord(event, 0)
    stream = cuda.made("cuStreamCreate", c_uint(1))
    def captured(mode, relax):
        cuda.cuStreamBeginCapture_v2(stream, c_uint(mode))
        cuda.launch(kernel, 1, stream)
        codes = []
        def query():
            if relax:
                cuda.cuThreadExchangeStreamCaptureMode(byref(c_uint(2)))
            codes.append(cuda.code("cuEventQuery", event))
        thread = threading.Thread(target=query)
        thread.start()
        thread.join()
        return codes + [cuda.code("cuStreamEndCapture", stream, byref(c_uint64()))]
    say([captured(0, False), captured(0, True), captured(1, False)])""")
    assert [[900, 901], [0, 0], [0, 0]] == codes


def test_handles_that_are_none_are_recognised(machine: Machine) -> None:
    codes = machine.run("""
    cuda = Cuda()
    before = cuda.code("cuDeviceGetCount", byref(c_uint64()))
    cuda.cuInit(0)
    contextless = cuda.code("cuMemAlloc_v2", byref(c_uint64()), 1)
    cuda.start()
    stream = cuda.made("cuStreamCreate", c_uint(0))
    cuda.cuStreamDestroy_v2(stream)
    module = cuda.made("cuModuleLoadData", PTX)
    say([before, contextless, cuda.code("cuDeviceGet", byref(c_uint64()), 7),
         cuda.code("cuStreamSynchronize", stream), cuda.code("cuEventQuery", 12345),
         cuda.code("cuModuleGetFunction", byref(c_uint64()), module, b"other"),
         cuda.code("cuModuleLoadData", byref(c_uint64()), b"no image at all"),
         cuda.code("cuCtxSetCurrent", stream)])""")
    assert [3, 201, 101, 400, 400, 500, 200, 201] == codes


def test_a_forked_child_has_no_driver_and_takes_nothing_from_its_parent(machine: Machine) -> None:
    answers = machine.run(f"""{START}
    import os
    cuda.made("cuMemAlloc_v2", MIB)
    child = os.fork()
    if not child:
        os._exit(cuda.code("cuMemAlloc_v2", byref(c_uint64()), 1) * 10 + cuda.code("cuInit", 0))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    say([status, cuda.used()])""")
    assert [33, 2 * MIB] == answers


THREE = "\n".join(
    f"[device]\nvendor = nvidia\nmodel = Card\nmemory = {n} GiB\nuuid = GPU-{n}{n}000000-0000"
    for n in (1, 2, 3)
)


@pytest.mark.parametrize(
    ("visible", "sizes"),
    [
        ("2,0", [3, 1]),
        ("GPU-22,GPU-11000000-0000", [2, 1]),
        ("1,7,0", [2]),
        ("GPU-,0", []),
        ("0,0,1", [1]),
        ("", []),
        ("-1", []),
    ],
)
def test_visible_devices_are_taken_in_order_until_one_is_none(
    tmp_path: Path, visible: str, sizes: list[int]
) -> None:
    program = """
    cuda = Cuda()
    code = cuda.code("cuInit", 0)
    count = cuda.made("cuDeviceGetCount") if not code else 0
    sizes = [cuda.made("cuDeviceTotalMem_v2", c_uint(i)) // GIB for i in range(count)]
    say([code, sizes])"""
    answers = Machine(tmp_path, THREE).run(program, CUDA_VISIBLE_DEVICES=visible)
    assert [0 if sizes else 100, sizes] == answers


def test_every_way_in_leads_to_the_same_function(machine: Machine) -> None:
    answers = machine.run("""
    cuda = Cuda()
    def named(name):
        return ctypes.cast(getattr(cuda.library, name), c_void_p).value
    def asked(name, version, flags=0):
        found, status = c_uint64(), c_uint()
        code = cuda.code("cuGetProcAddress_v2", name, byref(found), c_uint(version), flags,
                         byref(status))
        return [code, status.value, found.value]
    say([
        asked(b"cuMemAlloc", 12000) == [0, 0, named("cuMemAlloc_v2")],
        asked(b"cuStreamSynchronize", 12000, 2) == [0, 0, named("cuStreamSynchronize_ptsz")],
        asked(b"cuMemcpyHtoD", 12000, 2) == [0, 0, named("cuMemcpyHtoD_v2_ptds")],
        asked(b"cuCtxCreate", 11000) == [0, 0, named("cuCtxCreate_v2")],
        asked(b"cuCtxCreate", 13000) == [0, 0, named("cuCtxCreate_v4")],
        asked(b"cuGraphInstantiate", 12000) == [0, 0, named("cuGraphInstantiate_v2")],
        asked(b"cuGraphAddNode", 11000),
        asked(b"cuNothing", 12000),
    ])""")
    assert [True] * 6 + [[500, 2, 0], [500, 1, 0]] == answers
