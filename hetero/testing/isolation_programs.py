"""The programs of IsolationContract: each uses a driver and prints what it got.

Run as a file, without any import of hetero: `isolation_programs.py DRIVER PROGRAM ARGUMENT...`,
where DRIVER is a file with the names of `DriverCalls`. Prints one JSON value.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Protocol, cast

Program = Callable[..., Any]
PROGRAMS: dict[str, Program] = {}
#: More than a driver has left of what it took for itself.
_SMALL_BYTES = 4 << 20
#: A driver takes memory of a card in blocks of so many bytes.
_BLOCK_BYTES = 2 << 20
#: Launches between two waits, so that the device is kept busy.
_BATCH_LAUNCHES = 8
_NOLOAD = 4
#: The exit status of a program that ends with work in flight.
LEFT = 37
#: A library that calls the function that allocates, as programs do that are linked with the driver.
_LINKED = """
int {name}(void **pointer, unsigned long bytes);
int ask(void **pointer, unsigned long bytes) {{ return {name}(pointer, bytes); }}
"""


class DriverCalls(Protocol):
    """A program's calls of the driver: the names in the file of a contract's `driver`."""

    #: The library, the function in it that allocates (pointer *, bytes) and its code for a refusal.
    LIBRARY: str
    ALLOCATE: str
    OUT_OF_MEMORY: int
    #: A name as the driver's next version may have, which no limiter knows.
    FUTURE: str

    def allocate(self, size_bytes: int) -> int:
        """Return the address of `size_bytes` of device memory, 0: out of memory. Else raise."""

    def release(self, address: int) -> None:
        """Free the memory at an address of `allocate`."""

    def memory(self) -> tuple[int, int]:
        """Return the free and the total bytes of the device."""

    def launch(self) -> None:
        """Launch a kernel of some milliseconds without waiting for it."""

    def wait(self) -> None:
        """Wait for all launched work."""

    def export(self, address: int) -> bytes:
        """Return a handle by which another process opens this memory."""

    def opened(self, exported: bytes) -> int:
        """Return the address of another process's memory by its handle."""


def program(function: Program) -> Program:
    """Register a program by its function's name."""
    PROGRAMS[function.__name__] = function
    return function


@program
def limit(driver: DriverCalls, size_bytes: int) -> dict[str, Any]:
    """Allocate all memory in four parts, and one more. Free a part, and allocate it again."""
    room_bytes = min(_room(driver), size_bytes)
    part_bytes = _whole_blocks(room_bytes // 4)
    addresses = [driver.allocate(size) for size in (*[part_bytes] * 3, room_bytes - 3 * part_bytes)]
    memory_when_full, address_over = _memory(driver), driver.allocate(_SMALL_BYTES)
    driver.release(addresses.pop(0))
    free_bytes, total_bytes = _memory(driver)
    return {
        "held": all([*addresses, driver.allocate(part_bytes)]),
        "full": memory_when_full,
        "over": address_over,
        "freed": [free_bytes == part_bytes, total_bytes],
    }


@program
def refund(driver: DriverCalls) -> list[Any]:
    """Allocate and free all memory many times. Return whether it is free afterwards as before."""
    memory_before = driver.memory()
    has_all = [_taken_and_freed(driver, _room(driver)) for _ in range(50)]
    return [all(has_all), memory_before == driver.memory(), memory_before[1]]


@program
def fork(driver: DriverCalls) -> list[bool]:
    """Fork before the first driver call, and after it. Return whether each got what was left."""
    begin_pipe, done_pipe = os.pipe(), os.pipe()
    child_pid = os.fork()
    if child_pid == 0:
        os.read(begin_pipe[0], 1)
        left_bytes = _room(driver)
        is_less = left_bytes <= driver.memory()[1] // 2
        is_full = driver.allocate(2 * left_bytes) == 0 and driver.allocate(left_bytes) > 0
        os.write(done_pipe[1], b"1" if is_less and is_full else b"0")
        os._exit(0)
    room_bytes = _room(driver)
    taken_bytes = _whole_blocks(room_bytes // 2)
    address = driver.allocate(taken_bytes)
    os.write(begin_pipe[1], b".")
    is_shared = os.read(done_pipe[0], 1) == b"1"
    os.waitpid(child_pid, 0)
    late_pid = os.fork()
    if late_pid == 0:
        os._exit(0)
    os.waitpid(late_pid, 0)
    is_kept = _room(driver) == room_bytes - taken_bytes
    driver.release(address)
    return [is_shared, is_kept, _room(driver) == room_bytes]


@program
def kill(driver: DriverCalls) -> bool:
    """Kill processes of the grant that hold all its memory. Return whether it is free again."""
    for _ in range(3):
        with _again("hold") as other_process:
            _expect(other_process, True)
            other_process.kill()
    return driver.allocate(_room(driver)) > 0


@program
def hold(driver: DriverCalls) -> None:
    """Allocate half of the grant and what is left, print whether that succeeded, keep running."""
    half_bytes = driver.memory()[1] // 2
    _say(driver.allocate(half_bytes) > 0 and driver.allocate(_room(driver)) > 0)
    signal.pause()


@program
def busy(driver: DriverCalls, warm_up_s: float, duration_s: float) -> float:
    """Keep the device busy. Return the kernels per second after the warm-up."""
    return _rate(driver, warm_up_s, duration_s)


@program
def alone(driver: DriverCalls) -> float:
    """Return the highest kernels per second of three measurements on an idle card."""
    return max(_rate(driver, 0.1, 0.2) for _ in range(3))


@program
def resized(driver: DriverCalls, warm_up_s: float, duration_s: float) -> None:
    """Measure and allocate, and again after a line of input: the grant was resized."""
    for _ in range(2):
        kernel_rate = _rate(driver, warm_up_s, duration_s)
        _say([kernel_rate, driver.allocate(_room(driver)) > 0, _memory(driver)])
        sys.stdin.readline()


@program
def ways(driver: DriverCalls, size_bytes: int) -> dict[str, int]:
    """Allocate too much by each way to reach the function that allocates. Return the answers."""
    # The handle is local; the others find the name only where the whole program has it.
    driver.memory()
    function_name = driver.ALLOCATE.encode()
    noload_library = ctypes.CDLL(driver.LIBRARY, mode=os.RTLD_LAZY | os.RTLD_LOCAL | _NOLOAD)
    global_library = ctypes.CDLL(driver.LIBRARY, mode=os.RTLD_LAZY | os.RTLD_GLOBAL)
    libc = ctypes.CDLL(None)
    libc.dlsym.restype = ctypes.c_void_p
    libc.dlsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    handle_by_way = {
        "NOLOAD": noload_library._handle,
        "GLOBAL": global_library._handle,
        "NEXT": -1,
        "DEFAULT": 0,
    }
    address_by_way = {
        way: libc.dlsym(handle, function_name) for way, handle in handle_by_way.items()
    }
    with TemporaryDirectory() as folder:
        linked_library = _built(Path(folder) / "linked.so", _LINKED.format(name=driver.ALLOCATE))
        address_by_way["linked"] = ctypes.cast(linked_library.ask, ctypes.c_void_p).value
    return {
        way: _asked(function_address, size_bytes)
        for way, function_address in address_by_way.items()
    }


@program
def export(driver: DriverCalls, size_bytes: int) -> list[Any]:
    """Have another process open memory. Return whether only its context counts, and no more fits.

    That takes as much as this process's own.
    """
    free_bytes, total_bytes = driver.memory()
    address = driver.allocate(size_bytes)
    free_bytes_alone = driver.memory()[0]
    with _again("opens", json.dumps(driver.export(address).hex())) as other_process:
        _expect(other_process, True)
        answers = [
            free_bytes - free_bytes_alone == size_bytes,
            free_bytes_alone - driver.memory()[0] == total_bytes - free_bytes,
            driver.allocate(_room(driver)) > 0,
            driver.allocate(_SMALL_BYTES) > 0,
        ]
        other_process.communicate("\n")
    driver.release(address)
    return answers


@program
def opens(driver: DriverCalls, handle_hex: str) -> None:
    """Open another process's memory, and keep it until a line of input."""
    _say(driver.opened(bytes.fromhex(handle_hex)) > 0)
    sys.stdin.readline()


@program
def unknown(driver: DriverCalls) -> bool:
    """Look up a function that only a driver of the same name has, and no limiter."""
    with TemporaryDirectory() as folder:
        source_text = f"void {driver.FUTURE}(void) {{}}\n"
        return hasattr(_built(Path(folder) / driver.LIBRARY, source_text), driver.FUTURE)


@program
def leave(driver: DriverCalls) -> None:
    """End with work in flight, and an exit status of its own."""
    for _ in range(5 * _BATCH_LAUNCHES):
        driver.launch()
    _say(time.monotonic())
    sys.exit(LEFT)


@program
def free(_: DriverCalls, size_bytes: int) -> Any:
    """Return what a process gets that has the limiter and no grant."""
    environment = {**os.environ, "HETERO_GRANT": ""}  # where it is left out, it is put back
    with _again("limit", size_bytes, environment=environment) as other_process:
        return json.loads(other_process.communicate()[0])


def main() -> None:
    """Run a program, and print the value it returns."""
    _, path, program_name, *arguments = sys.argv
    driver = cast(DriverCalls, SimpleNamespace(**runpy.run_path(path)))
    program_result = PROGRAMS[program_name](driver, *map(json.loads, arguments))
    if program_result is not None:
        _say(program_result)


def _say(said_value: Any) -> None:
    print(json.dumps(said_value), flush=True)


def _again(
    program_name: str, *arguments: Any, environment: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start another program of this file with the same driver."""
    command_line = map(str, (sys.executable, __file__, sys.argv[1], program_name, *arguments))
    return subprocess.Popen(
        [*command_line], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _expect(other_process: subprocess.Popen[str], expected_value: Any) -> None:
    assert other_process.stdout is not None
    line = other_process.stdout.readline()
    assert json.loads(line or "null") == expected_value, line


def _built(path: Path, source: str) -> ctypes.CDLL:
    """Compile a library, named after its source file, and load it."""
    flags = ("-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-x", "c", "-", "-o", path)
    subprocess.run(["cc", *flags], input=source, text=True, check=True)
    return ctypes.CDLL(str(path))


def _whole_blocks(size_bytes: int) -> int:
    return size_bytes // _BLOCK_BYTES * _BLOCK_BYTES


def _memory(driver: DriverCalls) -> tuple[int, int]:
    """Return the free and the total bytes; less than a block is none, as nothing fits into it."""
    free_bytes, total_bytes = driver.memory()
    return _whole_blocks(free_bytes), total_bytes


def _room(driver: DriverCalls) -> int:
    """Return what this process can allocate: of a grant, what its context and others leave."""
    return _memory(driver)[0]


def _taken_and_freed(driver: DriverCalls, size_bytes: int) -> bool:
    address = driver.allocate(size_bytes)
    if address:
        driver.release(address)
    return address > 0


def _rate(driver: DriverCalls, warm_up_s: float, duration_s: float) -> float:
    """Return the kernels per second. The last batch may end after the measured time."""
    _batches(driver, warm_up_s)
    since_s = time.monotonic()
    return _batches(driver, duration_s) / (time.monotonic() - since_s)


def _batches(driver: DriverCalls, duration_s: float) -> int:
    batch_count, until_s = 0, time.monotonic() + duration_s
    while time.monotonic() < until_s:
        for _ in range(_BATCH_LAUNCHES):
            driver.launch()
        driver.wait()
        batch_count += _BATCH_LAUNCHES
    return batch_count


def _asked(function_address: int | None, size_bytes: int) -> int:
    if not function_address:
        return -1
    pointer = ctypes.c_void_p()
    allocate_function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)(
        function_address
    )
    return int(allocate_function(ctypes.addressof(pointer), size_bytes))


if __name__ == "__main__":
    main()
