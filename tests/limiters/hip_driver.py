"""A HIP runtime for the programs that the limiter's tests run: plain calls, plain codes.

AMD's own unless CALLS names another and CALLS_PATH says where that is.
"""

import ctypes
import json
import os as os
import time as time
from ctypes import byref, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

MIB = 1 << 20
OUT_OF_MEMORY = 2
#: Hygon's runtime is AMD's under another name.
LIBRARY = os.environ.get("CALLS", "libamdhip64.so.5 hip").split()[0]
hip = ctypes.CDLL(os.environ.get("CALLS_PATH", LIBRARY))

#: All that the simulated card knows of a kernel is its name; its first argument is microseconds.
SOURCE = b'extern "C" __global__ void spin(unsigned long long us) {}'


def code(name: str, *arguments: Any) -> int:
    """Return what a call answers. Integers travel as 64 bits."""
    sent = [c_uint64(each) if isinstance(each, int) else each for each in arguments]
    return int(getattr(hip, name)(*sent))


def call(name: str, *arguments: Any) -> None:
    answer = code(name, *arguments)
    assert answer == 0, f"{name}: {answer}"


def malloc(size: int) -> int:
    """Return a pointer, 0 if there is no memory."""
    pointer = c_void_p()
    answer = code("hipMalloc", byref(pointer), size)
    assert answer in (0, OUT_OF_MEMORY), answer
    return pointer.value or 0


def memory() -> tuple[int, int]:
    """Return what is free and what there is, in MiB."""
    free, total = c_size_t(), c_size_t()
    call("hipMemGetInfo", byref(free), byref(total))
    return free.value // MIB, total.value // MIB


def stream() -> c_void_p:
    made = c_void_p()
    call("hipStreamCreate", byref(made))
    return made


def on_card(card: int = 0) -> int:
    """Return the bytes of the card that are in use, by the card itself."""
    smi, used = ctypes.CDLL("librocm_smi64.so.7"), c_uint64()
    assert smi.rsmi_init(c_uint64(0)) == 0
    assert smi.rsmi_dev_memory_usage_get(card, 0, byref(used)) == 0
    return used.value


def built(source: bytes) -> ctypes.Array[ctypes.c_char]:
    """Return an image, compiled by the runtime's own compiler."""
    program, size = c_void_p(), c_size_t()
    assert hip.hiprtcCreateProgram(byref(program), source, b"source", 0, None, None) == 0
    options = (ctypes.c_char_p * 1)(b"--gpu-architecture=gfx906")
    assert hip.hiprtcCompileProgram(program, 1, options) == 0
    assert hip.hiprtcGetCodeSize(program, byref(size)) == 0
    image = ctypes.create_string_buffer(size.value)
    assert hip.hiprtcGetCode(program, image) == 0
    return image


def bundle(image: bytes) -> bytes:
    """Return what hipcc makes of an image: one with images for the host and for a card."""
    names = (b"host-x86_64-unknown-linux--", b"hipv4-amdgcn-amd-amdhsa--gfx906")
    header = b"__CLANG_OFFLOAD_BUNDLE__" + len(names).to_bytes(8, "little")
    for name, size in zip(names, (0, len(image)), strict=True):
        header += b"".join(each.to_bytes(8, "little") for each in (4096, size, len(name))) + name
    return header.ljust(4096, b"\0") + image


def registered(host: c_void_p, source: bytes = SOURCE) -> c_void_p:
    """Have a program's function stand for the kernel, as the constructors that hipcc makes do.

    Before any other call, or the runtime has no place for it. Return what `unregistered` takes.
    """
    image = ctypes.create_string_buffer(bundle(built(source).raw))
    wrapper = (c_uint64 * 3)(0x1_4849_5046, ctypes.addressof(image), 0)
    _kept.append((image, wrapper))
    fat_binary, function = (hip[f"__hipRegister{what}"] for what in ("FatBinary", "Function"))
    fat_binary.restype = c_void_p
    module, threads, none = c_void_p(fat_binary(wrapper)), ctypes.c_int(-1), c_void_p()
    function(module, host, b"spin", b"spin", threads, none, none, none, none, none)
    return module


_kept: list[Any] = []


#: An image that has nothing in it, for a simulated runtime, which has no compiler.
EMPTY = b"\x7fELF".ljust(64, b"\0")


def spin() -> c_void_p:
    """Return a kernel that runs for so many microseconds."""
    module, function = c_void_p(), c_void_p()
    image = built(SOURCE) if hasattr(hip, "hiprtcCompileProgram") else EMPTY
    call("hipModuleLoadData", byref(module), image)
    call("hipModuleGetFunction", byref(function), module, b"spin")
    return function


def launch(function: c_void_p, us: int, on: c_void_p) -> None:
    argument = c_uint64(us)
    arguments = (c_void_p * 1)(ctypes.cast(byref(argument), c_void_p))
    dimensions = [c_uint(1)] * 6
    answer = hip.hipModuleLaunchKernel(function, *dimensions, c_uint(0), on, arguments, None)
    assert answer == 0, answer


def say(value: Any) -> None:
    print(json.dumps(value), flush=True)
