"""Runs a program and asks the card from outside what each of its parts holds.

held.py UUID CONTEXTS PROGRAM [ARGUMENT …]

The program writes a line before each part and waits for a byte, which it gets when the card has
back what the part before held. The first part is a context and nothing else. The last line of the
output is the program's own, with `held` false where a part held more than ATTACK_MEMORY, 2 MiB for
each context and what maps them for longer than 100 ms. Contexts are counted as the processes that
NVML lists, times CONTEXTS, and each is as large as in the first part. With 0 they are within
ATTACK_MEMORY, as all else. ATTACK_PRELOAD is the program's LD_PRELOAD: what asks NVML is under no
grant.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread, Timer
from typing import IO

MIB = 1 << 20
#: Seconds between two samples of the card, and for how long a figure must last to count.
EVERY, LASTING = 0.02, 0.1
#: Seconds for which a part waits for memory of the one before it. A card takes a process off its
#: list before it has all of its memory back.
GIVEN_BACK = 3.0
#: What a context may hold beside what the grant counts: the first block that it shares out.
BESIDE = 2 * MIB
#: What a card may take for page tables of memory that is mapped: 4 KiB for each 2 MiB in pages of
#: 4 KiB, and 4 KiB in each of four levels above (uvm_pascal_mmu.c of NVIDIA's open kernel modules),
#: 144 KiB for 64 MiB, in units of 64 KiB; and a unit more. An H100 had one of those more than was
#: charged in most parts (driver 580.159.04, 2026-11-25).
TABLES = 4 * (64 << 10)
#: Seconds after which the program is ended: its parts are ended after twelve each (memory.h).
PATIENCE = 200
#: nvmlProcessInfo_t is 24 bytes (nvml.h); more processes than this are on no card here.
PROCESS_BYTES, PROCESSES = 24, 1024


class Card:
    """A card by its UUID, as NVML tells of it."""

    def __init__(self, uuid: str) -> None:
        """Open NVML; `OSError` where it is not there or does not know the card."""
        self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self._handle = ctypes.c_void_p()
        code = self._nvml.nvmlInit_v2() or self._nvml.nvmlDeviceGetHandleByUUID(
            uuid.encode(), ctypes.byref(self._handle)
        )
        if code:
            raise OSError(f"NVML answers {code} for {uuid}")
        self._before = self._figures()

    def _figures(self) -> tuple[int, int]:
        memory = (ctypes.c_uint64 * 3)()  # total, free, used
        count = ctypes.c_uint(PROCESSES)
        rows = (ctypes.c_char * (PROCESSES * PROCESS_BYTES))()
        code = self._nvml.nvmlDeviceGetMemoryInfo(self._handle, memory)
        code = code or self._nvml.nvmlDeviceGetComputeRunningProcesses_v3(
            self._handle, ctypes.byref(count), rows
        )
        if code:
            raise OSError(f"NVML answers {code}")
        return memory[2], count.value

    def figures(self) -> tuple[int, int]:
        """Return the bytes in use and the processes on the card, less those at first."""
        used, count = self._figures()
        return used - self._before[0], count - self._before[1]


class Part:
    """What a part held, by samples of the card."""

    def __init__(self, context: int) -> None:
        """`context`: bytes to take off for each process."""
        self.most = 0
        self._context = context
        self._samples: deque[tuple[float, int, int]] = deque()

    def add(self, used: int, processes: int) -> None:
        """Take one more sample of the card into account."""
        now = time.monotonic()
        self._samples.append((now, used, processes))
        while len(self._samples) > 1 and self._samples[1][0] <= now - LASTING:
            self._samples.popleft()
        if self._samples[0][0] <= now - LASTING:
            lasting = min(used for _, used, _ in self._samples)
            contexts = max(processes for _, _, processes in self._samples)
            self.most = max(self.most, lasting - contexts * self._context)


def begin(card: Card, program: IO[str]) -> None:
    """Let a part begin when the card has back what was held before it."""
    until = time.monotonic() + GIVEN_BACK
    while card.figures()[0] > BESIDE and time.monotonic() < until:
        time.sleep(EVERY)
    with suppress(BrokenPipeError):
        program.write("\n")
        program.flush()


def watch(
    card: Card, lines: SimpleQueue[str | None], program: IO[str], contexts: int
) -> tuple[dict[str, int], str]:
    """Sample the card until the lines end: the bytes of each part but the first; the last line."""
    part, name, parts, last = Part(0), "", dict[str, int](), ""
    context: int | None = None
    while True:
        try:
            line = lines.get(timeout=EVERY)
        except Empty:
            part.add(*card.figures())
            continue
        if name and context is not None:
            parts[name] = part.most
        elif name:
            context = contexts * (part.most + BESIDE)
        if line is None or line.startswith("{"):
            return parts, line or last
        begin(card, program)
        part, name, last = Part(context or 0), line, line


def main(uuid: str, contexts: str, *program: str) -> int:
    """Print what the program says of itself and what the card says of its parts."""
    environ = {**os.environ, "LD_PRELOAD": os.environ["ATTACK_PRELOAD"]}
    card, lines = Card(uuid), SimpleQueue[str | None]()
    with subprocess.Popen(
        program,
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        patience = Timer(PATIENCE, os.killpg, (process.pid, signal.SIGKILL))
        patience.start()
        assert process.stdin is not None
        assert process.stdout is not None
        output = process.stdout

        def read() -> None:
            for line in output:
                if line.strip():  # a kernel's printf writes there, too
                    lines.put(line.strip())
            lines.put(None)

        Thread(target=read, daemon=True).start()
        parts, last = watch(card, lines, process.stdin, int(contexts))
    patience.cancel()
    if process.returncode or not last.startswith("{"):
        print(last)
        return 1
    answer = json.loads(last)
    limit = int(os.environ["ATTACK_MEMORY"])
    over = {name: most for name, most in parts.items() if most > limit + TABLES}
    figures = over or dict([max(parts.items(), key=lambda part: part[1])])
    got = ", ".join(f"{most / MIB:.1f} MiB: {name}" for name, most in figures.items())
    print(json.dumps({"held": answer["held"] and not over, "got": f"{answer['got']}, {got}"}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
