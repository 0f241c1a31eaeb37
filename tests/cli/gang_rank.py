"""Train data parallel on simulated cards, as one process of several, for test_gang_nodes.

    gang_rank.py INDEX RANK RANKS FOLDER WARM WATCHED

A step is 32 ms: kernels on the card of that index, beside the later ones all-reduces in a stream of
their own, an optimizer that waits for those, and a moment in which the process does something else.
After `WARM` steps as many as `WATCHED` are timed; their rate is printed, in steps a second.
"""

import ctypes
import mmap
import os
import sys
import time
from pathlib import Path

SPIN = b".version 6.0\n.target sm_50\n.visible .entry spin(.param .u32 iterations) { ret; }\n"
#: Bytes of the memory in which the ranks say how far their cards are, and apart from each other.
MET, APART = 4096, 64
#: Microseconds.
KERNEL, REDUCE, ELSEWHERE = 500, 300, 300

cuda = ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: object) -> None:
    status = getattr(cuda, name)(*arguments)
    if status:
        raise SystemExit(f"{name}: error {status}")


class Rank:
    """One process, and how many all-reduces it has launched."""

    def __init__(self, index: int, rank: int, ranks: int, folder: Path) -> None:
        self.rank, self.meeting = rank, 0
        device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self.kernel, self.event = ctypes.c_void_p(), ctypes.c_void_p()
        self.compute, self.reduce = ctypes.c_void_p(), ctypes.c_void_p()
        call("cuInit", 0)
        call("cuDeviceGet", ctypes.byref(device), index)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        call("cuCtxSetCurrent", context)
        call("cuModuleLoadData", ctypes.byref(module), SPIN)
        call("cuModuleGetFunction", ctypes.byref(self.kernel), module, b"spin")
        call("cuStreamCreate", ctypes.byref(self.compute), 1)
        call("cuStreamCreate", ctypes.byref(self.reduce), 1)
        call("cuEventCreate", ctypes.byref(self.event), 2)  # without times
        with (folder / "met").open("a+b") as file:
            file.truncate(MET)
            self.shared = (ctypes.c_char * MET).from_buffer(mmap.mmap(file.fileno(), MET))
        met = ctypes.c_uint64()
        call("cuMemHostRegister_v2", self.shared, ctypes.c_size_t(MET), 2)  # mapped for the card
        call("cuMemHostGetDevicePointer_v2", ctypes.byref(met), self.shared, 0)
        self.places = [ctypes.c_uint64(met.value + number * APART) for number in range(ranks)]

    def launch(self, stream: ctypes.c_void_p, microseconds: int) -> None:
        loops = ctypes.c_uint(microseconds * 1000)
        words = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(loops), ctypes.c_void_p))
        call("cuLaunchKernel", self.kernel, 1, 1, 1, 32, 1, 1, 0, stream, words, None)

    def follow(self, stream: ctypes.c_void_p, other: ctypes.c_void_p) -> None:
        call("cuEventRecord", self.event, other)
        call("cuStreamWaitEvent", stream, self.event, 0)

    def all_reduce(self) -> None:
        self.meeting += 1
        self.follow(self.reduce, self.compute)
        call("cuStreamWriteValue32_v2", self.reduce, self.places[self.rank], self.meeting, 0)
        for place in self.places:  # until it is as much or more
            call("cuStreamWaitValue32_v2", self.reduce, place, self.meeting, 0)
        self.launch(self.reduce, REDUCE)

    def step(self) -> None:
        for kernel in range(60):
            self.launch(self.compute, KERNEL)
            if kernel >= 20 and kernel % 10 == 9:
                self.all_reduce()
        self.follow(self.compute, self.reduce)
        for _ in range(4):
            self.launch(self.compute, KERNEL)
        call("cuStreamSynchronize", self.compute)
        time.sleep(ELSEWHERE / 1e6)


def main(index: str, number: str, ranks: str, folder: str, warm: str, watched: str) -> None:
    """Train, and print."""
    rank = Rank(int(index), int(number), int(ranks), Path(folder))
    for _ in range(int(warm)):
        rank.step()
    begun = time.monotonic()
    for _ in range(int(watched)):
        rank.step()
    print(int(watched) / (time.monotonic() - begun), flush=True)
    os._exit(0)  # the other processes end in this moment: nothing can be agreed with them


if __name__ == "__main__":
    main(*sys.argv[1:])
