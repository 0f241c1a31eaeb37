"""How a program calls Ascend's runtime: what the contract of limiters asks for.

CALLS says by which layer: "acl" or "rt"; memory is asked of acl either way, which has a function
that adds nothing to a size.
"""

import ctypes
import os
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

OUT_OF_MEMORY = 207001
LIBRARY, ALLOCATE, FUTURE = "libascendcl.so", "aclrtMallocAlign32", "aclrtFromTheFuture"
BY_RUNTIME = os.environ.get("CALLS") == "rt"
acl = ctypes.CDLL(LIBRARY)
rt = ctypes.CDLL("libruntime.so")
_work: list[c_void_p] = []


def call(name: str, *arguments: Any) -> None:
    sent = [c_uint64(each) if isinstance(each, int) else each for each in arguments]
    answer = getattr(acl, name)(*sent)
    assert answer == 0, f"{name}: {answer}"


def begin() -> None:
    """Set the device in a process that has none: at the first call, and in a child of fork."""
    if acl.aclrtGetDevice(byref(c_int())):
        call("aclrtSetDevice", 0)


def allocate(size: int) -> int:
    begin()
    pointer = c_void_p()
    answer = acl.aclrtMallocAlign32(byref(pointer), c_size_t(size), c_int(0))
    assert answer in (0, OUT_OF_MEMORY) or size == 0, answer
    return pointer.value or 0


def release(address: int) -> None:
    call("aclrtFree", address)


def memory() -> tuple[int, int]:
    begin()
    free, total = c_size_t(), c_size_t()
    call("aclrtGetMemInfo", 1, byref(free), byref(total))
    return free.value, total.value


def launch() -> None:
    if not _work:
        begin()
        binary, function, stream = c_void_p(), c_void_p(), c_void_p()
        call("aclrtBinaryLoadFromData", b"spin", 4, None, byref(binary))
        call("aclrtBinaryGetFunction", binary, b"spin", byref(function))
        call("aclrtCreateStream", byref(stream))
        _work.extend((function, stream))
    argument = c_uint(5000)  # microseconds
    if BY_RUNTIME:
        sent = (_work[0], c_uint(1), _work[1], None, byref(argument), c_uint(4), None)
        assert rt.rtsLaunchKernelWithDevArgs(*sent) == 0
    else:
        call("aclrtLaunchKernel", _work[0], 1, byref(argument), 4, _work[1])


def wait() -> None:
    call("aclrtSynchronizeStream", _work[1])


def export(address: int) -> bytes:
    key = ctypes.create_string_buffer(65)
    call("aclrtIpcMemGetExportKey", address, c_size_t(1), key, c_size_t(65), 1)
    return key.value


def opened(exported: bytes) -> int:
    begin()
    pointer = c_void_p()
    call("aclrtIpcMemImportByKey", byref(pointer), c_char_p(exported), 0)
    return pointer.value or 0
