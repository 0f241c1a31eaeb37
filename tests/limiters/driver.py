"""The driver API for the programs that the limiter's tests run: plain calls, plain codes."""

import ctypes
import threading
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

from simulated import (
    FIRST,
    AllocationProperties,
    AllocNode,
    ArrayShape,
    Cuda,
    Location,
    PoolProperties,
)
from simulated import say as say

driver = Cuda()
cuda = driver.library
OUT_OF_MEMORY = 2


class Refused(Exception):
    """A call answered something else than success."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name}: {code}")
        self.code = code


def call(name: str, *arguments: Any) -> None:
    """Call and raise Refused unless it succeeds. Integers travel as 64 bits."""
    code = driver.code(name, *arguments)
    if code:
        raise Refused(name, code)


def start(device: int = 0) -> c_void_p:
    driver.start(device)
    context = c_void_p()
    call("cuCtxGetCurrent", byref(context))
    return context


class ArrayShape3D(ctypes.Structure):
    _fields_ = [
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
        ("format", c_int),
        ("channels", c_uint),
        ("flags", c_uint),
    ]


def _pointer(name: str, *arguments: Any) -> int:
    pointer = c_uint64()
    call(name, byref(pointer), *arguments)
    return pointer.value


def pool(kind: int = 1, place: Location = FIRST) -> c_void_p:
    """A pool of pinned memory (1), or of managed memory (2)."""
    made = c_void_p()
    call("cuMemPoolCreate", byref(made), byref(PoolProperties(kind, 0, place)))
    return made


def pitched(size: int) -> int:
    """`size` bytes in rows of 512, the pitch itself."""
    pointer, pitch = c_uint64(), c_size_t()
    call("cuMemAllocPitch_v2", byref(pointer), byref(pitch), 512, size // 512, c_uint(4))
    assert pitch.value == 512
    return pointer.value


def block(size: int) -> int:
    return _pointer("cuMemCreate", size, byref(AllocationProperties(1, 0, FIRST)), 0)


def array(size: int) -> c_void_p:
    made = c_void_p()
    call("cuArrayCreate_v2", byref(made), byref(ArrayShape(size // 4, 0, 0x20, 1)))
    return made


def array_3d(size: int) -> c_void_p:
    made = c_void_p()
    shape = ArrayShape3D(size // (4 * 64 * 4), 64, 4, 0x20, 1, 0)
    call("cuArray3DCreate_v2", byref(made), byref(shape))
    return made


def mipmap(size: int) -> c_void_p:
    """One level, so that its size is plain."""
    made = c_void_p()
    shape = ArrayShape3D(size // (4 * 64), 64, 0, 0x20, 1, 0)
    call("cuMipmappedArrayCreate", byref(made), byref(shape), c_uint(1))
    return made


def graph_with(*sizes: int) -> c_void_p:
    graph = c_void_p()
    call("cuGraphCreate", byref(graph), c_uint(0))
    for size in sizes:
        node = c_void_p()
        params = AllocNode(PoolProperties(1, 0, FIRST), None, 0, size, 0)
        call("cuGraphAddMemAllocNode", byref(node), graph, None, 0, byref(params))
    return graph


def graph_exec(size: int) -> c_void_p:
    made = c_void_p()
    call("cuGraphInstantiateWithFlags", byref(made), graph_with(size // 2, size - size // 2), 0)
    return made


def graph_exec_of_child(size: int) -> c_void_p:
    outer, node, made = c_void_p(), c_void_p(), c_void_p()
    call("cuGraphCreate", byref(outer), c_uint(0))
    call("cuGraphAddChildGraphNode", byref(node), outer, None, 0, graph_with(size))
    call("cuGraphInstantiate_v2", byref(made), outer, None, None, 0)
    return made


def free_in_order(pointer: int, name: str = "cuMemFreeAsync") -> None:
    """Free in stream order, and wait until the stream is there."""
    call(name, pointer, None)
    call("cuCtxSynchronize")


# What a device gives: blocks, to pools chunks, and batches for managed memory.
BLOCK, CHUNK, BATCH = 2 << 20, 32 << 20, 128 << 20

# How to take `size` bytes of device memory, how to give them back, and the size's grain.
PATHS: dict[str, tuple[Any, Any, int]] = {
    "plain": (
        lambda size: _pointer("cuMemAlloc_v2", size),
        lambda p: call("cuMemFree_v2", p),
        BLOCK,
    ),
    "managed": (
        lambda size: _pointer("cuMemAllocManaged", size, c_uint(1)),
        lambda p: call("cuMemFree_v2", p),
        BATCH,
    ),
    "pitch": (pitched, lambda p: call("cuMemFree_v2", p), BLOCK),
    "async": (
        lambda size: _pointer("cuMemAllocAsync", size, None),
        free_in_order,
        CHUNK,
    ),
    "async of a thread": (
        lambda size: _pointer("cuMemAllocAsync_ptsz", size, None),
        lambda p: free_in_order(p, "cuMemFreeAsync_ptsz"),
        CHUNK,
    ),
    "pool": (
        lambda size: _pointer("cuMemAllocFromPoolAsync", size, pool(), None),
        free_in_order,
        CHUNK,
    ),
    "block": (block, lambda h: call("cuMemRelease", h), BLOCK),
    "array": (array, lambda a: call("cuArrayDestroy", a), BLOCK),
    "array 3d": (array_3d, lambda a: call("cuArrayDestroy", a), BLOCK),
    "mipmap": (mipmap, lambda a: call("cuMipmappedArrayDestroy", a), BLOCK),
    "graph": (graph_exec, lambda e: call("cuGraphExecDestroy", e), CHUNK),
    "child graph": (graph_exec_of_child, lambda e: call("cuGraphExecDestroy", e), CHUNK),
}


def take(path: str, size: int) -> Any:
    """What was taken; or the code of the refusal, as an int under 1000."""
    try:
        return PATHS[path][0](size)
    except Refused as refused:
        return refused.code


def give(path: str, what: Any) -> None:
    PATHS[path][1](what)


def info() -> tuple[int, int]:
    free, total = c_size_t(), c_size_t()
    call("cuMemGetInfo_v2", byref(free), byref(total))
    return free.value, total.value


def total_memory(device: int) -> int:
    total = c_size_t()
    call("cuDeviceTotalMem_v2", byref(total), c_int(device))
    return total.value


def spin_kernel() -> c_void_p:
    return c_void_p(driver.kernel())


def launch(
    function: c_void_p, microseconds: float, stream: Any = None, name: str = "cuLaunchKernel"
) -> None:
    argument = c_uint(int(microseconds * 1000))
    parameters = (c_void_p * 1)(ctypes.addressof(argument))
    dimensions = [c_uint(1)] * 6
    call(name, function, *dimensions, c_uint(0), stream, parameters, None)


def in_threads(count: int, work: Any) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
