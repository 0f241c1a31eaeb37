"""Programs of several cards: a process for each card, or one for all, that run when they are told.

    python -m hetero_benchmarks.gang NAME CARDS [VARIABLE=VALUE ...]

The program speaks as hetero_benchmarks.job does; the steps are those of its first process. Told
"profile", it says for how long a step keeps a card busy. The variables are set for its processes
alone. They agree on their last step without the cards: the first process lets the others go a few
steps further than itself, and when the time is over it makes that limit the end.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn, cast

from attrs import field, frozen

from hetero_benchmarks import busy

if TYPE_CHECKING:
    from hetero_benchmarks.gang_jobs import Steps

#: Steps before a program is ready: libraries load and NCCL connects in the first ones.
FIRST_STEPS = 3
#: How many steps the others may be in front of the first process: more than any has in flight.
AHEAD = 6


@frozen(kw_only=True)
class Gang:
    """One kind of program: a step of it, and the memory that its grant asks for of each card.

    `points` is how far it may be from the law of a share. It is the function of that name in
    gang_jobs; one that is `alone` is a single process on all cards.
    """

    memory: str
    step: str
    points: float
    alone: bool = False
    torch: bool = True


GANGS: Mapping[str, Gang] = {
    "ddp-resnet50": Gang(memory="12Gi", points=2, step="64 images a card, fp32"),
    "ddp-gpt2": Gang(memory="22Gi", points=2, step="8 sequences of 1024 words a card"),
    "fsdp-gpt2": Gang(memory="22Gi", points=3, step="8 sequences of 1024 words a card"),
    "tp": Gang(memory="6Gi", points=3, step="2048 tokens through 16 layers, 16 all-reduces"),
    "allreduce-1": Gang(memory="2Gi", points=3, step="32 all-reduces of 1 MiB"),
    "allreduce-16": Gang(memory="2Gi", points=3, step="4 all-reduces of 16 MiB"),
    "allreduce-256": Gang(memory="3Gi", points=3, step="an all-reduce of 256 MiB"),
    "pipeline": Gang(memory="22Gi", points=3, step="4 parts of 4 sequences through all stages"),
    "psum": Gang(
        memory="6Gi", points=3, step="8 products and psums of 4096x4096", alone=True, torch=False
    ),
    "pair": Gang(
        memory="4Gi", points=3, step="4 products of 8192x8192 a card, handed on", alone=True
    ),
    "decode-graph": Gang(memory="18Gi", points=3, step="a token for 64 sequences, one graph"),
    "simulated": Gang(memory="1Gi", points=3, step="2 kernels of 1 ms a card", torch=False),
}


def command(name: str, cards: int, *options: str) -> tuple[str, ...]:
    """Return the command that serves the program `name` on so many cards."""
    return (sys.executable, "-m", "hetero_benchmarks.gang", name, str(cards), *options)


@frozen
class StepLimit:
    """What the processes of a program share: how many steps they may make, in 8 bytes of a file.

    Twice that number, and one more when it is the end. Only the first process writes it.
    """

    _words: memoryview

    @classmethod
    def of(cls, file: Path) -> StepLimit:
        """Return the limit that is in a file."""
        with file.open("r+b") as opened:
            return cls(memoryview(mmap.mmap(opened.fileno(), 8)).cast("Q"))

    def read(self) -> tuple[int, bool]:
        """Return it, and whether it is the end."""
        word = self._words[0]
        return word >> 1, bool(word & 1)

    def write(self, steps: int, *, end: bool) -> None:
        """Set it."""
        self._words[0] = 2 * steps + end


@frozen
class Rank:
    """One process of a program, which makes the same steps as all others."""

    number: int
    steps: Steps
    limit: StepLimit
    _made: list[int] = field(factory=lambda: [0], init=False)

    def begin(self) -> None:
        """Make the first steps, as many as all others."""
        for _ in range(FIRST_STEPS):
            next(self.steps)
        self._made[0] = FIRST_STEPS
        if self.number == 0:
            self.limit.write(FIRST_STEPS, end=True)

    def run(self, until: float) -> list[tuple[float, int, float]]:
        """Make steps until that moment, and a few more; return them as a job does.

        What `until` says counts in the first process.
        """
        goes_on = self._leads(until) if self.number == 0 else self._follows()
        begun = time.monotonic()
        marks = [(begun, 0, 0.0)]
        while goes_on(marks[-1][0]):
            count = next(self.steps)
            self._made[0] += 1
            at = time.monotonic()
            marks.append((at, count, at - begun))
            begun = at
        return marks

    def count(self) -> int:
        """Make steps for as long as a profiler looks, and return how many."""
        return sum(count for _, count, _ in self.run(time.monotonic() + busy.LOOKS))

    def _leads(self, until: float) -> Callable[[float], bool]:
        end: list[int] = []

        def goes_on(now: float) -> bool:
            if not end:
                ahead = self._made[0] + AHEAD
                self.limit.write(ahead, end=now >= until)
                if now >= until:
                    end.append(ahead)
            return not end or self._made[0] < end[0]

        return goes_on

    def _follows(self) -> Callable[[float], bool]:
        ended = (self._made[0], True)

        def goes_on(_now: float) -> bool:
            while (seen := self.limit.read()) == ended:  # that of the run before
                time.sleep(20e-6)
            while seen[0] <= self._made[0]:
                if seen[1]:
                    return False
                time.sleep(20e-6)
                seen = self.limit.read()
            return True

        return goes_on


def serve_rank(name: str, number: int, ranks: int, folder: Path) -> NoReturn:
    """Be one process of a program until the one that started it ends."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no rank outlives the program
    if os.getppid() != parent:
        os._exit(1)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    rank = Rank(number, _steps(name, number, ranks, folder), StepLimit.of(folder / "limit"))
    rank.begin()
    print(json.dumps({"ready": True}), file=out, flush=True)
    for cue in sys.stdin:
        answer: object
        if cue.strip() == "profile":
            answer = busy.profiled(rank.count)
        else:
            answer = rank.run(float(cue.split()[0]))
        print(json.dumps(answer), file=out, flush=True)
    os._exit(0)  # the other processes end in this moment: nothing can be agreed with them


def _steps(name: str, number: int, ranks: int, folder: Path) -> Steps:
    try:
        from hetero_benchmarks import gang_jobs

        if GANGS[name].torch:
            _join(number, ranks, folder)
        named = name.partition("-")
        if named[0] == "allreduce":
            mebibytes = int(named[2])
            program = gang_jobs.all_reduce(mebibytes, max(1, min(32, 64 // mebibytes)))
        else:
            program = getattr(gang_jobs, name.replace("-", "_"))
        steps: Steps = program(number, ranks, folder)
        return steps
    except ImportError as error:
        raise SystemExit(f"{name} needs what is not here ({error})") from None


def _join(number: int, ranks: int, folder: Path) -> None:
    """Take the card of that number, and join the process group where there are several."""
    import torch

    card = torch.device("cuda", number)
    torch.cuda.set_device(card)
    if ranks > 1:
        torch.distributed.init_process_group(
            "nccl",
            init_method=f"file://{folder}/group",
            rank=number,
            world_size=ranks,
            device_id=card,
        )


#: What every process is started with: never multicast memory, and no more memory than it needs.
ENVIRONMENT = {"NCCL_NVLS_ENABLE": "0", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def serve(name: str, cards: int, environment: Mapping[str, str]) -> None:
    """Start the processes of a program, and pass on what they are told and say."""
    ranks = 1 if GANGS[name].alone else cards
    lines: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="hetero-gang-") as folder, ExitStack() as stack:
        (Path(folder) / "limit").write_bytes(bytes(8))
        # Who waits for the end of our output waits for theirs: they hold it open.
        held = os.dup(1)
        started = [
            subprocess.Popen(
                (*command(name, cards), "--rank", str(number), folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(held,),
                env={**os.environ, **ENVIRONMENT, **environment},
                text=True,
            )
            for number in range(ranks)
        ]
        os.close(held)
        for number, rank in enumerate(started):
            stack.callback(rank.wait)
            stack.callback(rank.kill)
            output = cast(IO[str], rank.stdout)
            threading.Thread(target=_hear, args=(number, output, lines), daemon=True).start()
        _answers(lines, ranks)
        print(json.dumps({"ready": True}), flush=True)
        for cue in sys.stdin:
            for rank in started:
                print(cue, end="", file=rank.stdin, flush=True)
            replies = [json.loads(line) for line in _answers(lines, ranks)]
            if cue.strip() == "profile":
                replies = [max(replies, key=lambda each: float(each["busy_ms"]))]
            print(json.dumps(replies[0]), flush=True)


def _hear(number: int, output: IO[str], lines: queue.SimpleQueue[tuple[int, str]]) -> None:
    for line in output:
        lines.put((number, line))
    lines.put((number, ""))


def _answers(lines: queue.SimpleQueue[tuple[int, str]], ranks: int) -> list[str]:
    """Return a line of each process; end when one of them ended: the others would wait."""
    lines_by_rank: dict[int, str] = {}
    while len(lines_by_rank) < ranks:
        number, line = lines.get()
        if not line:
            # Its own last words are on standard error.
            raise SystemExit(1)
        lines_by_rank[number] = line
    return [lines_by_rank[number] for number in range(ranks)]


def main(words: Sequence[str]) -> None:
    """Serve a program, or be one of its processes."""
    name, cards, *rest = words
    if rest[:1] == ["--rank"]:
        number, folder = int(rest[1]), Path(rest[2])
        serve_rank(name, number, 1 if GANGS[name].alone else int(cards), folder)
    serve(name, int(cards), dict(word.split("=", 1) for word in rest))


if __name__ == "__main__":
    main(sys.argv[1:])
