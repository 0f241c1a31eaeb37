"""A simulated machine for the fake drivers' tests: a rack file, and programs that meet its drivers.

A driver is loaded once a process and for good, so each program runs in a process of its own; this
module is also what those programs import.
"""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from textwrap import dedent
from typing import Any

import hetero_simulator

MIB = 1 << 20
GIB = 1 << 30

ONE_CARD = """
[device]
vendor = nvidia
model = Card
uuid = GPU-00000000-0000-4000-8000-000000000001
memory = 1 GiB

[kernel spin]
time = 2 us
per_arg0 = 1 us
"""

PTX = (
    b".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry spin(.param .u32 n) { ret; }\n"
)


class Machine:
    """A machine with this rack; what runs on it prints one JSON value."""

    def __init__(self, directory: Path, rack: str = ONE_CARD) -> None:
        self.rack = directory / "test.rack"
        self.rack.write_text(dedent(rack))

    def environment(self, **more: str) -> dict[str, str]:
        return {
            **os.environ,
            "HETERO_RACK": str(self.rack),
            "LD_LIBRARY_PATH": str(hetero_simulator.fake_drivers()),
            "PYTHONPATH": str(Path(__file__).parent),
            **more,
        }

    def start(self, program: str, **more: str) -> subprocess.Popen[str]:
        code = "from simulated import *\n" + dedent(program)
        return self.spawn([sys.executable, "-c", code], **more)

    def spawn(self, command: list[str], **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            env=self.environment(**more),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, program: str, **more: str) -> Any:
        process = self.start(program, **more)
        out, error = process.communicate(timeout=60)
        assert "" == error
        assert 0 == process.returncode
        return json.loads(out)

    def job(self, *options: str) -> subprocess.Popen[str]:
        return self.spawn([str(hetero_simulator.job("cuda")), *options])

    @contextmanager
    def standing(self, program: str, **more: str) -> Iterator[subprocess.Popen[str]]:
        """Run this until it says a line, and kill it (the hard way) at the end."""
        waiting = "\nprint('ready', flush=True)\nimport time; time.sleep(600)\n"
        process = self.start(dedent(program) + waiting, **more)
        try:
            assert process.stdout is not None
            assert "ready\n" == process.stdout.readline()
            yield process
        finally:
            process.kill()
            process.communicate()


class Failed(Exception):
    """A driver call that answered an error."""


class Cuda:
    """libcuda's functions; a call that fails raises, `code` gives its result instead."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")

    def code(self, name: str, *arguments: Any) -> int:
        wide = [c_uint64(each) if isinstance(each, int) else each for each in arguments]
        return int(getattr(self.library, name)(*wide))

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> None:
            result = self.code(name, *arguments)
            if result:
                raise Failed(f"{name}: {result}")

        return call

    def made(self, name: str, *arguments: Any) -> int:
        """The handle or address that a call writes through its first argument."""
        result = c_uint64()
        getattr(self, name)(byref(result), *arguments)
        return result.value

    def start(self, device: int = 0) -> None:
        self.cuInit(0)
        self.cuCtxSetCurrent(self.made("cuDevicePrimaryCtxRetain", device))

    def used(self) -> int:
        free, total = c_size_t(), c_size_t()
        self.cuMemGetInfo_v2(byref(free), byref(total))
        return total.value - free.value

    def kernel(self) -> int:
        module = self.made("cuModuleLoadData", PTX)
        return self.made("cuModuleGetFunction", module, b"spin")

    def launch(self, function: int, us: int, stream: int = 0) -> int:
        """A kernel of so many microseconds, and the two that its `time` adds."""
        argument = c_uint(us)
        params = (c_void_p * 1)(ctypes.addressof(argument))
        dimensions = [c_uint(1)] * 6
        return self.code("cuLaunchKernel", function, *dimensions, c_uint(0), stream, params, None)

    def milliseconds(self, start: int, end: int) -> float:
        result = ctypes.c_float()
        self.cuEventElapsedTime_v2(byref(result), start, end)
        return result.value


class ProcessRow(ctypes.Structure):
    _fields_ = [("pid", c_uint), ("memory", c_uint64), ("instances", c_uint * 2)]


def rows() -> dict[int, int]:
    """The bytes of the first card that NVML shows for each process, by PID."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    card, count, rows = c_void_p(), c_uint(64), (ProcessRow * 64)()
    nvml.nvmlInit_v2()
    nvml.nvmlDeviceGetHandleByIndex_v2(c_uint(0), byref(card))
    code = nvml.nvmlDeviceGetComputeRunningProcesses_v3(card, byref(count), rows)
    if code:
        raise Failed(f"nvmlDeviceGetComputeRunningProcesses_v3: {code}")
    return {row.pid: row.memory for row in rows[: count.value]}


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class AllocationProperties(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", Location),
        ("metadata", c_void_p),
        ("flags", c_uint64),
    ]


class PoolProperties(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", Location),
        ("attributes", c_void_p),
        ("largest", c_size_t),
        ("reserved", ctypes.c_ubyte * 56),
    ]


class AllocNode(ctypes.Structure):
    _fields_ = [
        ("pool", PoolProperties),
        ("access", c_void_p),
        ("accesses", c_size_t),
        ("bytes", c_size_t),
        ("pointer", c_uint64),
    ]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


class ArrayShape(ctypes.Structure):
    _fields_ = [
        ("width", c_size_t),
        ("height", c_size_t),
        ("format", ctypes.c_int),
        ("channels", c_uint),
    ]


FIRST = Location(1, 0)
"""The device 0."""


def say(value: Any) -> None:
    """Hand a value to the test."""
    print(json.dumps(value))
