"""How a program calls AMD's HIP runtime: what the contract of limiters asks for."""

import ctypes
from ctypes import byref, c_void_p

import hip_driver
from hip_driver import LIBRARY as LIBRARY
from hip_driver import OUT_OF_MEMORY as OUT_OF_MEMORY
from hip_driver import call, hip, malloc, spin, stream

ALLOCATE, FUTURE = "hipMalloc", "hipFromTheFuture"
_work: list[c_void_p] = []


class _Exported(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


def allocate(size: int) -> int:
    return malloc(size)


def release(address: int) -> None:
    call("hipFree", address)


def memory() -> tuple[int, int]:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("hipMemGetInfo", byref(free), byref(total))
    return free.value, total.value


def launch() -> None:
    if not _work:
        call("hipSetDeviceFlags", 4)  # blocking waits: two cores
        _work.extend((spin(), stream()))
    hip_driver.launch(_work[0], 5000, _work[1])


def wait() -> None:
    call("hipStreamSynchronize", _work[1])


def export(address: int) -> bytes:
    handle = _Exported()
    call("hipIpcGetMemHandle", byref(handle), address)
    return bytes(handle)


def opened(exported: bytes) -> int:
    pointer = c_void_p()
    handle = _Exported.from_buffer_copy(exported)
    answer = hip.hipIpcOpenMemHandle(byref(pointer), handle, ctypes.c_uint(0))
    assert answer == 0, answer
    return pointer.value or 0
