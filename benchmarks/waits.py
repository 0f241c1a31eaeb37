"""Measures programs whose work waits for something else of theirs: the longest round, and the mean.

    benchmarks/waits.py [--shares 10,50,99] [--rounds 100] [--ways word,spin,...] [--beside]
                        [--json FILE]

Each way is a program of rounds. In one the card, or a stream of it, waits for what the program does
5 ms later: a word that another stream writes, a function on the host, an event of another process,
a kernel that spins until a proxy thread has made its copy. It is run without hetero and under
`hetero run --core SHARE`, alone or, with --beside, beside a program that fills memory without a
pause and has the rest of the card. The first round counts, too. Times are in milliseconds.

It needs a card of NVIDIA's and its driver, and no package but hetero. A way that does not end in a
minute is said to stand. Exit status 1: one did, or failed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean
from typing import NoReturn

HOST_S = 0.005
MIB = 1 << 20
STANDS_S = 60
#: CU_EVENT_DISABLE_TIMING and CU_EVENT_INTERPROCESS, CU_STREAM_NON_BLOCKING,
#: CU_MEMHOSTREGISTER_DEVICEMAP of cuda.h.
NO_TIMING, INTERPROCESS, NON_BLOCKING, DEVICE_MAP = 2, 4, 1, 2
#: A kernel of one thread that spins until the word is at least `until`.
SPIN = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 word, .param .u32 until)
{
    .reg .u64 %a;
    .reg .u32 %v, %u;
    .reg .pred %p;
    ld.param.u64 %a, [word];
    ld.param.u32 %u, [until];
again:
    ld.volatile.global.u32 %v, [%a];
    setp.lt.u32 %p, %v, %u;
    @%p bra again;
    ret;
}
"""
Handle = ctypes.c_void_p
HostFunction = ctypes.CFUNCTYPE(None, Handle)
StreamCallback = ctypes.CFUNCTYPE(None, Handle, ctypes.c_int, Handle)


class EventHandle(ctypes.Structure):
    """CUipcEventHandle: 64 bytes."""

    _fields_ = (("reserved", ctypes.c_char * 64),)


class Card:
    """The driver, with a context on the first device it shows once it is started."""

    def start(self) -> None:
        """Load the driver, make the context and 64 MiB to work on."""
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._pages: list[mmap.mmap] = []
        device, context = ctypes.c_int(), Handle()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.context = context
        self.enter()
        memory = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(64 * MIB))
        self.memory = memory
        self._copied_bytes = ctypes.create_string_buffer(4096)

    def call(self, name: str, *arguments: object) -> None:
        """Call the driver."""
        answer = getattr(self._driver, name)(*arguments)
        if answer != 0:
            raise SystemExit(f"{name}: CUDA's error {answer}")

    def enter(self) -> None:
        """Have the calling thread use this context."""
        self.call("cuCtxSetCurrent", self.context)

    def stream(self, flags: int = NON_BLOCKING) -> Handle:
        """Make a stream."""
        made = Handle()
        self.call("cuStreamCreate", ctypes.byref(made), flags)
        return made

    def event(self) -> Handle:
        """Make an event that other processes can open."""
        made = Handle()
        self.call("cuEventCreate", ctypes.byref(made), NO_TIMING | INTERPROCESS)
        return made

    def word(self, page: mmap.mmap) -> ctypes.c_uint64:
        """Return the device's address of a page of the host."""
        host = ctypes.addressof(ctypes.c_char.from_buffer(page))
        at = ctypes.c_uint64()
        self._pages.append(page)
        self.call("cuMemHostRegister_v2", Handle(host), ctypes.c_size_t(4096), DEVICE_MAP)
        self.call("cuMemHostGetDevicePointer_v2", ctypes.byref(at), Handle(host), 0)
        return at

    def fill(self, stream: Handle | None, mib: int = 1) -> None:
        """Put some work into a stream."""
        self.call("cuMemsetD8Async", self.memory, 1, ctypes.c_size_t(mib * MIB), stream)

    def copy(self, stream: Handle) -> None:
        """Put a copy of 4 KiB to the device into a stream."""
        bytes_ = ctypes.c_size_t(4096)
        self.call("cuMemcpyHtoDAsync_v2", self.memory, self._copied_bytes, bytes_, stream)

    def wait(self, stream: Handle, word: ctypes.c_uint64, until: int) -> None:
        """Have a stream wait until the word is at least that."""
        self.call("cuStreamWaitValue32_v2", stream, word, ctypes.c_uint32(until), 0)

    def write(self, stream: Handle, word: ctypes.c_uint64, value: int) -> None:
        """Have a stream write the word."""
        self.call("cuStreamWriteValue32_v2", stream, word, ctypes.c_uint32(value), 0)

    def done(self, *streams: Handle | None) -> None:
        """Wait for streams."""
        for stream in streams:
            self.call("cuStreamSynchronize", stream)

    def spinner(self) -> Callable[[Handle, ctypes.c_uint64, int], None]:
        """Return what launches a kernel that spins until a word is at least that."""
        module, function = Handle(), Handle()
        self.call("cuModuleLoadData", ctypes.byref(module), SPIN)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, b"spin")

        def spin(stream: Handle, word: ctypes.c_uint64, until: int) -> None:
            value = ctypes.c_uint32(until)
            parameters = (Handle * 2)(ctypes.addressof(word), ctypes.addressof(value))
            self.call("cuLaunchKernel", function, *(1,) * 6, 0, stream, parameters, None)

        return spin


def _page() -> mmap.mmap:
    return mmap.mmap(-1, 4096)


def _put(page: mmap.mmap, value: int) -> None:
    page[:4] = value.to_bytes(4, "little")


def _word(card: Card) -> Iterator[None]:
    waiting_stream, other_stream, at = card.stream(), card.stream(), card.word(_page())
    for count in range(1, 1 << 30):
        card.wait(waiting_stream, at, count)
        card.fill(waiting_stream)
        time.sleep(HOST_S)
        card.fill(other_stream)
        card.write(other_stream, at, count)
        card.done(waiting_stream, other_stream)
        yield


def _host_function(card: Card) -> Iterator[None]:
    stream, function = card.stream(), HostFunction(lambda _: time.sleep(HOST_S))
    while True:
        card.fill(stream)
        card.call("cuLaunchHostFunc", stream, function, None)
        card.fill(stream)
        card.done(stream)
        yield


def _callback(card: Card) -> Iterator[None]:
    stream, function = card.stream(), StreamCallback(lambda *_: time.sleep(HOST_S))
    while True:
        card.fill(stream)
        card.call("cuStreamAddCallback", stream, function, None, 0)
        card.fill(stream)
        card.done(stream)
        yield


def _event(card: Card) -> Iterator[None]:
    waiting_stream, other_stream, event, page = card.stream(), card.stream(), card.event(), _page()
    at = card.word(page)
    for count in range(1, 1 << 30):
        card.wait(waiting_stream, at, count)
        card.fill(waiting_stream)
        card.call("cuEventRecord", event, waiting_stream)
        card.call("cuStreamWaitEvent", other_stream, event, 0)
        card.fill(other_stream)
        time.sleep(HOST_S)
        _put(page, count)
        card.done(waiting_stream, other_stream)
        yield


def _legacy(card: Card) -> Iterator[None]:
    waiting_stream, page = card.stream(flags=0), _page()
    at = card.word(page)
    for count in range(1, 1 << 30):
        card.wait(waiting_stream, at, count)
        card.fill(waiting_stream)
        card.fill(None)
        time.sleep(HOST_S)
        _put(page, count)
        card.done(waiting_stream, None)
        yield


def _graph(card: Card) -> Iterator[None]:
    stream, function = card.stream(), HostFunction(lambda _: time.sleep(HOST_S))
    graph, exec_ = Handle(), Handle()
    card.call("cuStreamBeginCapture_v2", stream, 0)
    card.fill(stream)
    card.call("cuLaunchHostFunc", stream, function, None)
    card.fill(stream)
    card.call("cuStreamEndCapture", stream, ctypes.byref(graph))
    card.call("cuGraphInstantiateWithFlags", ctypes.byref(exec_), graph, ctypes.c_uint64(0))
    while True:
        card.call("cuGraphLaunch", exec_, stream)
        card.done(stream)
        yield


def _spin(card: Card) -> Iterator[None]:
    waiting_stream, other_stream, at, spin = (
        card.stream(),
        card.stream(),
        card.word(_page()),
        card.spinner(),
    )
    for count in range(1, 1 << 30):
        spin(waiting_stream, at, count)
        time.sleep(HOST_S)
        card.fill(other_stream)
        card.write(other_stream, at, count)
        card.done(waiting_stream, other_stream)
        yield


def _proxied(card: Card, serve: Callable[[Handle], None], *, services: int = 1) -> Iterator[None]:
    """Yield rounds in which a kernel spins until a thread of the program has served it so often."""
    waiting_stream, page, spin = card.stream(), _page(), card.spinner()
    at, asked, served = card.word(page), threading.Semaphore(0), 0

    def proxy() -> None:
        nonlocal served
        card.enter()
        stream = card.stream()
        while True:
            asked.acquire()
            for _ in range(services):
                time.sleep(HOST_S / services)
                serve(stream)
                card.done(stream)
                served += 1
                _put(page, served)

    threading.Thread(target=proxy, daemon=True).start()
    for count in range(1, 1 << 30):
        spin(waiting_stream, at, count * services)
        asked.release()
        card.done(waiting_stream)
        yield


def _proxy_copies(card: Card) -> Iterator[None]:
    return _proxied(card, card.copy)


def _proxy_launches(card: Card) -> Iterator[None]:
    return _proxied(card, card.fill)


def _persistent(card: Card) -> Iterator[None]:
    return _proxied(card, card.copy, services=4)


def _exchange(card: Card, *, spins: bool) -> Iterator[None]:
    """Yield rounds in which two processes of a grant wait for each other's launch."""
    page, ends = mmap.mmap(-1, 4096), multiprocessing.Pipe()
    if os.fork() == 0:
        ends[0].close()
        _answer(ends[1], page, spins=spins)
    card.start()
    stream, at = card.stream(), card.word(page)
    spin = card.spinner() if spins else card.wait
    ends[0].recv()
    for count in range(1, 1 << 30):
        ends[0].send(count)
        card.fill(stream)
        card.write(stream, at, count)
        spin(stream, ctypes.c_uint64(at.value + 64), count)
        card.fill(stream)
        card.done(stream)
        yield


def _answer(rounds: Connection, page: mmap.mmap, *, spins: bool) -> NoReturn:
    card = Card()
    card.start()
    stream, at = card.stream(), card.word(page)
    spin = card.spinner() if spins else card.wait
    rounds.send("ready")
    with suppress(EOFError):
        while count := rounds.recv():
            time.sleep(HOST_S)
            card.fill(stream)
            card.write(stream, ctypes.c_uint64(at.value + 64), count)
            spin(stream, at, count)
            card.done(stream)
    os._exit(0)


def _words_of_two(card: Card) -> Iterator[None]:
    return _exchange(card, spins=False)


def _spins_of_two(card: Card) -> Iterator[None]:
    return _exchange(card, spins=True)


def _event_of_another(card: Card) -> Iterator[None]:
    """Yield rounds in which a stream waits for an event of another process, which stands."""
    page, ends = mmap.mmap(-1, 4096), multiprocessing.Pipe()
    if os.fork() == 0:
        ends[0].close()
        _record(ends[1], page)
    card.start()
    stream, event = card.stream(), Handle()
    handle = EventHandle.from_buffer_copy(ends[0].recv())
    card.call("cuIpcOpenEventHandle", ctypes.byref(event), handle)
    for count in range(1, 1 << 30):
        ends[0].send(count)
        ends[0].recv()
        card.call("cuStreamWaitEvent", stream, event, 0)
        card.fill(stream)
        time.sleep(HOST_S)
        _put(page, count)
        card.done(stream)
        yield


def _record(rounds: Connection, page: mmap.mmap) -> NoReturn:
    card = Card()
    card.start()
    stream, at, event, handle = card.stream(), card.word(page), card.event(), EventHandle()
    card.call("cuIpcGetEventHandle", ctypes.byref(handle), event)
    rounds.send(bytes(handle))
    with suppress(EOFError):
        while count := rounds.recv():
            card.wait(stream, at, count)
            card.fill(stream)
            card.call("cuEventRecord", event, stream)
            rounds.send("recorded")
    os._exit(0)


def _busy(card: Card) -> Iterator[None]:
    """Yield rounds of the neighbour: four fills of 64 MiB."""
    stream = card.stream()
    while True:
        for _ in range(4):
            card.fill(stream, 64)
        card.done(stream)
        yield


WAYS: dict[str, Callable[[Card], Iterator[None]]] = {
    "word": _word,
    "host-function": _host_function,
    "callback": _callback,
    "event": _event,
    "legacy-stream": _legacy,
    "graph": _graph,
    "spin": _spin,
    "proxy-copies": _proxy_copies,
    "proxy-launches": _proxy_launches,
    "persistent": _persistent,
    "words-of-two": _words_of_two,
    "spins-of-two": _spins_of_two,
    "event-of-another": _event_of_another,
}
#: Ways whose processes are begun before their drivers are.
FORKS = ("words-of-two", "spins-of-two", "event-of-another")


def run(way: str, rounds: int) -> None:
    """Be the program: print how long each round took."""
    card = Card()
    if way not in FORKS:
        card.start()
    steps = (_busy if way == "busy" else WAYS[way])(card)
    took_ms = []
    if way == "busy":
        print("ready", flush=True)
    for _ in range(rounds):
        since = time.monotonic()
        next(steps)
        took_ms.append((time.monotonic() - since) * 1000)
    print(json.dumps(took_ms), flush=True)
    os._exit(0)


def command(way: str, rounds: int, core: int | None) -> list[str]:
    """Return how the program is started, under a share or without hetero."""
    program = [sys.executable, __file__, "--run", way, "--rounds", str(rounds)]
    if core is None:
        return program
    hetero = [sys.executable, "-m", "hetero.cli", "run", "-q", "--memory", "2Gi"]
    return [*hetero, "--core", str(core), "--", *program]


@contextmanager
def neighbour(core: int | None) -> Iterator[None]:
    """Have a busy program run meanwhile, under a share; None: none runs."""
    if core is None:
        yield
        return
    with subprocess.Popen(command("busy", 1 << 30, core), stdout=subprocess.PIPE) as program:
        while program.stdout and not program.stdout.readline():
            time.sleep(0.1)
        time.sleep(1)
        try:
            yield
        finally:
            program.kill()


def measure(way: str, rounds: int, core: int | None) -> list[float] | None:
    """Return how long the rounds took, in milliseconds; None: it stands, or failed."""
    program = subprocess.Popen(
        command(way, rounds, core), stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, _ = program.communicate(timeout=STANDS_S)
        return [float(each) for each in json.loads(out)] if program.returncode == 0 else None
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)


def main() -> int:
    """Measure the ways that were asked for; print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shares", default="10,50,99", help="of core, in percent")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--ways", default=",".join(WAYS), help=", ".join(WAYS))
    parser.add_argument("--beside", action="store_true", help="a busy program has the rest")
    parser.add_argument("--json", type=Path, help="append a line for each to this file")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.run:
        run(asked.run, asked.rounds)
    shares = [int(share) for share in asked.shares.split(",")]
    failed = False
    print(
        f"{'way':17} {'share':>5} {'first':>8} {'longest':>8} {'mean':>8} {'of none':>8}  ms",
        flush=True,
    )
    for way in asked.ways.split(","):
        mean_ms = None
        for core in (None, *shares):
            rest_core = 100 - core if asked.beside and core is not None else None
            with neighbour(rest_core):
                took_ms = measure(way, asked.rounds, core)
            share = "none" if core is None else str(core)
            failed = failed or took_ms is None
            if took_ms is None:
                print(f"{way:17} {share:>5} stands, or failed", flush=True)
            else:
                mean_ms = mean_ms or mean(took_ms)
                print(
                    f"{way:17} {share:>5} {took_ms[0]:8.2f} {max(took_ms):8.2f} "
                    f"{mean(took_ms):8.2f} {mean(took_ms) / mean_ms:8.3f}",
                    flush=True,
                )
            if asked.json:
                row = {"way": way, "core": core, "beside": rest_core, "took_ms": took_ms}
                with asked.json.open("a") as rows:
                    rows.write(json.dumps(row) + "\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
