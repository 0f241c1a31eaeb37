"""How a program calls a driver of CUDA's shape: what the contract of limiters asks for."""

import ctypes
import os
from ctypes import byref, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

#: What its library is called, and what its functions begin with.
LIBRARY, PREFIX = os.environ.get("CALLS", "libcuda.so.1 cu").split()
ALLOCATE, FUTURE = f"{PREFIX}MemAlloc_v2", f"{PREFIX}FromTheFuture"
OUT_OF_MEMORY = 2
_KERNEL_NS = 5_000_000
_PTX = (
    b".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry spin(.param .u32 n) { ret; }\n"
)
#: The driver by its path, where it is not the one that the loader finds.
_library = ctypes.CDLL(os.environ.get("CALLS_PATH", LIBRARY))


class _Exported(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


def _code(name: str, *arguments: Any) -> int:
    sent = [c_uint64(each) if isinstance(each, int) else each for each in arguments]
    return int(getattr(_library, PREFIX + name)(*sent))


def _call(name: str, *arguments: Any) -> None:
    code = _code(name, *arguments)
    assert code == 0, f"{PREFIX}{name}: {code}"


def _started() -> c_void_p:
    """Return the kernel; the driver is used from the first call on, and not before."""
    if not _kernel:
        context, module = c_void_p(), c_void_p()
        _call("Init", 0)
        _call("DevicePrimaryCtxRetain", byref(context), 0)
        _call("CtxSetCurrent", context)
        _call("ModuleLoadData", byref(module), _PTX)
        _call("ModuleGetFunction", byref(_kernel), module, b"spin")
    return _kernel


_kernel = c_void_p()


def allocate(size: int) -> int:
    _started()
    pointer = c_uint64()
    code = _code("MemAlloc_v2", byref(pointer), size)
    assert code in (0, OUT_OF_MEMORY), code
    return 0 if code else pointer.value


def release(address: int) -> None:
    _call("MemFree_v2", address)


def memory() -> tuple[int, int]:
    _started()
    free, total = c_size_t(), c_size_t()
    _call("MemGetInfo_v2", byref(free), byref(total))
    return free.value, total.value


def launch() -> None:
    argument = c_uint(_KERNEL_NS)
    parameters = (c_void_p * 1)(ctypes.addressof(argument))
    dimensions = [c_uint(1)] * 6
    _call("LaunchKernel", _started(), *dimensions, c_uint(0), None, parameters, None)


def wait() -> None:
    _call("CtxSynchronize")


def export(address: int) -> bytes:
    handle = _Exported()
    _call("IpcGetMemHandle", byref(handle), address)
    return bytes(handle)


def opened(exported: bytes) -> int:
    _started()
    pointer, handle = c_uint64(), _Exported.from_buffer_copy(exported)
    _call("IpcOpenMemHandle_v2", byref(pointer), handle, c_uint(1))
    return pointer.value
