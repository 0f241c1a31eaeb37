"""Programs on simulated Ascend cards, through their driver."""

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
