"""Many programs that ask for a share of a machine of 64 cards at once."""

import resource
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

#: Seconds that two hundred at once may take on two idle cores where a bare Python takes 10 ms of
#: processor time to start: in all, and the slowest by the wall clock. They took 39.3 and 21.9 there
#: (docs/measurements/cli.md).
PROCESSOR_S, SLOWEST_S = 40.0, 30.0
#: And the seconds that as many bare starts at once take there.
BARE_PROCESSOR_S, BARE_S = 200 * 0.010, 100 * 0.010

#: 64 cards, as the largest machine has.
CARD = "[device]\nvendor = nvidia\nmodel = NVIDIA H200\nmemory = 143771 MiB\n"


def burst(
    environ: Mapping[str, str], command: tuple[str, ...], rack: Path, count: int
) -> tuple[list[str], float, float]:
    """Start so many at once; return what was refused, and the processor time and the wall time.

    Each holds its share until all have one. Times are in seconds.
    """
    rack.write_text(64 * CARD)
    words = ("run", "-q", "--memory", "1Gi", "--core", "10", "--", "sh", "-c", "echo up; read line")
    spent_before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    programs = [
        subprocess.Popen(
            [*command, *words],
            env={**environ, "HETERO_RACK": str(rack)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    poller = select.poll()
    waiting = {program.stdout.fileno(): program for program in programs if program.stdout}
    for descriptor in waiting:
        poller.register(descriptor, select.POLLIN)
    while waiting and (ready := poller.poll(180_000)):
        for descriptor, _ in ready:
            poller.unregister(descriptor)
            del waiting[descriptor]
    slowest = time.monotonic() - began
    refused = [
        error for program in programs if (error := program.communicate("\n", timeout=60)[1].strip())
    ]
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = sum(
        getattr(spent, name) - getattr(spent_before, name) for name in ("ru_utime", "ru_stime")
    )
    assert not waiting
    assert [0] * count == [program.returncode for program in programs]
    return refused, processor, slowest


def bare_starts(count: int) -> tuple[float, float]:
    """Start so many bare Pythons at once; return their processor and wall time, in seconds."""
    spent_before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    starts = [subprocess.Popen([sys.executable, "-I", "-c", "pass"]) for _ in range(count)]
    for start in starts:
        start.wait()
    took = time.monotonic() - began
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    names = ("ru_utime", "ru_stime")
    return sum(getattr(spent, name) - getattr(spent_before, name) for name in names), took


def test_row_5_a_burst_is_refused_nothing(
    environ: Mapping[str, str], command: tuple[str, ...], tmp_path: Path
) -> None:
    refused, _, _ = burst(environ, command, tmp_path / "64.rack", 8)

    assert [] == refused


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_two_hundred_at_once_are_refused_nothing(
    environ: Mapping[str, str], command: tuple[str, ...], tmp_path: Path
) -> None:
    """Nor slower than on the machine above, as bare starts before and after say it is now."""
    before = bare_starts(200)
    refused, processor, slowest = burst(environ, command, tmp_path / "64.rack", 200)
    after = bare_starts(200)

    bare_processor, bare = (max(pair) for pair in zip(before, after, strict=True))
    processor_scale = max(bare_processor / BARE_PROCESSOR_S, 1.0)
    scale = max(bare / BARE_S, 1.0)
    print(
        f"{processor:.1f} s of processor time, the slowest after {slowest:.1f} s, "
        f"where bare starts took {bare_processor:.1f} and {bare:.1f} s"
    )
    assert [] == refused
    assert processor <= PROCESSOR_S * processor_scale
    assert slowest <= SLOWEST_S * scale
