"""Many programs that ask for a share of a machine of 64 cards at once."""

import resource
import select
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

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
    refused, processor, slowest = burst(environ, command, tmp_path / "64.rack", 200)

    print(f"{processor:.1f} s of processor time, the slowest after {slowest:.1f} s")
    assert [] == refused
