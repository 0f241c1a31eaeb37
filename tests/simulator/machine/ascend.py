"""Programs on simulated Ascend cards, through each of Ascend's libraries."""

from pathlib import Path

import hetero_simulator
from vendor_machine import VendorMachine

RACK = """
[device]
vendor = ascend
model = 910B3
memory = 1 GiB
core = 20
bandwidth = 100 MB/s

[device]
vendor = ascend
model = 910B3
memory = 2 GiB
core = 20
used = 1 GiB
processes = 4242:1024

[kernel spin]
time = 2 us
per_arg0 = 1 us

[kernel ffts]
time = 40 ms
"""

DRIVER = """
import ctypes, json, os, sys, threading, time

class HalProperty(Structure):
    _fields_ = [("side", c_uint), ("device", c_uint), ("module", c_uint), ("pages", c_uint),
                ("memory", c_uint), ("reserved", c_uint64)]

class Library:
    def __init__(self, name):
        self.library = CDLL(name)

    def code(self, name, *arguments):
        wide = [c_uint64(each) if isinstance(each, int) else each for each in arguments]
        return getattr(self.library, name)(*wide)

    def __getattr__(self, name):
        def call(*arguments):
            code = self.code(name, *arguments)
            assert 0 == code, f"{name}: {code}"
        return call

    def made(self, name, *arguments):
        result = c_uint64()
        getattr(self, name)(byref(result), *arguments)
        return result.value

hal = Library("libascend_hal.so")
dcmi = CDLL("libdcmi.so")
dcmi.dcmi_init()

def shown(card=0):
    rows, count = (c_uint64 * 64)(), c_int()
    assert 0 == dcmi.dcmi_get_device_resource_info(card, 0, rows, byref(count))
    return {rows[2 * i] & 0xffffffff: rows[2 * i + 1] for i in range(count.value)}

def used(card=0):
    return shown(card).get(os.getpid())
"""

RUNTIME = """
acl, rt = Library("libascendcl.so"), Library("libruntime.so")

class Property(Structure):  # of physical memory
    _fields_ = [("handles", c_uint), ("allocation", c_uint), ("memory", c_uint), ("device", c_uint),
                ("location", c_uint), ("reserved", c_uint64)]

class Binary(Structure):
    _fields_ = [("magic", c_uint), ("version", c_uint), ("data", c_char_p), ("length", c_uint64)]

def info(kind=1):
    free, total = c_size_t(), c_size_t()
    acl.aclrtGetMemInfo(kind, byref(free), byref(total))
    return [free.value, total.value]

def malloc(size, policy=0):
    return acl.made("aclrtMalloc", size, policy)

def stream():
    return acl.made("aclrtCreateStream")

def kernel(name=b"spin"):
    binary, function = c_uint64(), c_uint64()
    acl.aclrtBinaryLoadFromData(b"spin", 4, None, byref(binary))
    acl.aclrtBinaryGetFunction(binary, name, byref(function))
    return function.value

def launch(function, us, on=0):
    arguments = (function, 1, byref(c_uint(us)), 4, on)
    return acl.code("aclrtLaunchKernel", *arguments)

def event(flag=8):
    return acl.made("aclrtCreateEventExWithFlag", flag)

def milliseconds(start, end):
    result = c_float()
    acl.aclrtEventElapsedTime(byref(result), start, end)
    return result.value

def took(on, body):
    # milliseconds of the card; it is busy before, so that the host's pace does not count
    start, end = event(), event()
    launch(kernel(), 50_000, on)
    acl.aclrtRecordEvent(start, on)
    body()
    acl.aclrtRecordEvent(end, on)
    acl.aclrtSynchronizeStream(on)
    return milliseconds(start, end)

def captured(on, mode, body):
    acl.aclmdlRICaptureBegin(on, mode)
    body()
    model = c_uint64()
    acl.aclmdlRICaptureEnd(on, byref(model))
    return model.value
"""

SHAPES = ("cann8", "cann9")


class Ascend(VendorMachine):
    """Runs programs on these cards; `shape` is that of the runtime."""

    def __init__(self, directory: Path, shape: str, rack: str = RACK) -> None:
        super().__init__(directory, rack, DRIVER + RUNTIME)
        self.shape = shape

    def environment(self, **more: str) -> dict[str, str]:
        drivers = hetero_simulator.fake_drivers()
        return super().environment(LD_LIBRARY_PATH=f"{drivers / self.shape}:{drivers}", **more)
