"""Prints the processor time that heterod takes while nothing happens, without and with grants.

    python benchmarks/heterod.py [--seconds 60] [--grants 0,2]

As root, on a simulated card. Time is that of heterod, its threads and the processes in which it
asks vendors (user and system), in milliseconds and in percent of a core; the goal is 0.1 percent.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import hetero_simulator

START = (sys.executable, "-c", "from hetero.start import main; main()")
#: Steps a second of the times in proc_pid_stat(5).
TICKS = os.sysconf("SC_CLK_TCK")
GOAL = 0.1


def main() -> None:
    """Measure and print; exit 1 above the goal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--grants", default="0,2")
    asked = parser.parse_args()
    part = 0.0
    for grants in map(int, asked.grants.split(",")):
        spent = measured(grants, asked.seconds)
        part = max(part, 100 * spent / asked.seconds)
        print(f"{grants} grants: {1000 * spent:.0f} ms in {asked.seconds:.0f} s", end=", ")
        print(f"{100 * spent / asked.seconds:.3f} % of a core (goal {GOAL})", flush=True)
    sys.exit(part > GOAL)


def measured(grants: int, seconds: float) -> float:
    """Return the seconds of processor time that heterod takes in so many, beside so many grants."""
    with ExitStack() as stack:
        state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hetero-")))
        state.chmod(0o755)
        environ = {**os.environ, "HETERO_STATE": str(state), "HETERO_RACK": "one"}

        def start(*words: str) -> subprocess.Popen[str]:
            begun = subprocess.Popen(
                [*START, *words],
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(begun.wait)
            stack.callback(begun.terminate)
            for _ in begun.stdout or ():  # its first line
                break
            return begun

        heterod = start("daemon")
        shown = next(state.glob("*/boards"))
        stack.callback(subprocess.run, ["umount", str(shown)], check=False)
        idle = ("--cued", "--memory", "128MiB")  # it waits for a cue that does not come
        for _ in range(grants):
            start("run", "-q", "--memory", "1Gi", "--", str(hetero_simulator.job("cuda")), *idle)
        time.sleep(8)  # they are known
        before = _spent(heterod.pid)
        time.sleep(seconds)
        return _spent(heterod.pid) - before


def _spent(pid: int) -> float:
    """Return the processor time in seconds of a process, and of its children, ended or not."""
    total = 0.0
    for each in _family(pid):
        words = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, words[13:15])) / TICKS  # of those that ended
        for task in Path(f"/proc/{each}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0]) / 1e9
    return total


def _family(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from _family(int(child))


if __name__ == "__main__":
    main()
