"""Measures what kernels of 5 ms to seconds get of a card, alone and beside a neighbour.

    benchmarks/long.py [--kernels 5,50,200,400,1000] [--share 30] [--beside 120] [--long 2000]
                       [--json FILE]

Alone: n kernels one after the other under a share, from the first launch to the start of one more,
against the same n without a limit. Beside: a tenant of a tenth with kernels of two seconds, and a
neighbour of sixty with kernels of 1.4 ms (as long as a product of large matrices), for so many
seconds. A line is printed as soon as its run has ended. Exit status 1: a figure misses what the
limiter promises.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import hetero_simulator
from hetero_benchmarks.options import number, writable
from hetero_benchmarks.trial import DeviceAllocation, Machine, Program, find_machine

from hetero.model.errors import HeteroError

JOB = str(hetero_simulator.job("cuda"))
#: At least so many kernels, and so many seconds of them.
LEAST_KERNELS, LEAST_SECONDS = 12, 2.0
TENTH, NEIGHBOUR, PRODUCT_US = 10, 60, 1400
#: The limiter promises shares within so many points, alone and beside kernels of seconds.
ALONE_POINTS, BESIDE_POINTS = 1.0, 2.0


def start(machine: Machine, core: int | None, *options: str) -> Program:
    """Start the job, under a share of the card or, with None, without hetero."""
    grant = None if core is None else DeviceAllocation(memory="1GiB", core=core)
    return Program([JOB, *options], machine, grant, name="long")


def last_line(job: Program) -> dict[str, Any]:
    """Return the last line that a job says. Raises `HeteroError` when it failed."""
    with job:
        answer: dict[str, Any] = json.loads(list(job.lines())[-1])
    return answer


def alone(machine: Machine, milliseconds: float, share: int, per_ms: float) -> dict[str, Any]:
    """Return what kernels of this length get under a share, in percent of their rate alone."""
    steps = max(LEAST_KERNELS, int(LEAST_SECONDS * 1000 / milliseconds))
    options = ("--iterations", str(max(1, int(per_ms * milliseconds))), "--steps")
    native = last_line(start(machine, None, *options, str(max(3, steps // 4))))["rate"]
    held = last_line(start(machine, share, *options, str(steps)))
    got = 100 * held["rate"] / native
    return {
        "ms": 1000 / native,
        "steps": steps,
        "seconds": held["seconds"],
        "asked": share,
        "got": got,
    }


def measure_neighbour(
    machine: Machine, seconds: float, milliseconds: float, per_ms: float
) -> dict[str, Any]:
    """Return when a tenth begins one kernel more than it may in this time, and its neighbour."""
    short = ("--kernel-us", str(PRODUCT_US), "--seconds")
    native = last_line(start(machine, None, *short, "3"))["rate"]
    neighbour = start(machine, NEIGHBOUR, *short, str(seconds))
    most = int(seconds * TENTH / 100 / (milliseconds / 1000) + 1)
    options = ("--iterations", str(int(per_ms * milliseconds)), "--steps", str(most))
    tenth = start(machine, TENTH, *options)
    got = 100 * last_line(neighbour)["rate"] / native
    after = last_line(tenth)["seconds"]
    return {"seconds": seconds, "most": most, "after": after, "asked": NEIGHBOUR, "got": got}


def missed(report: Mapping[str, Any]) -> list[str]:
    """Return a line for each figure of a report that is not what the limiter promises."""
    lines = [
        f"{row['ms']:.0f} ms: {row['got']:.2f} is not {row['asked']} within {ALONE_POINTS:g}"
        for row in report["alone"]
        if abs(row["got"] - row["asked"]) > ALONE_POINTS
    ]
    row = report["beside"]
    if row and row["after"] < row["seconds"]:
        lines.append(
            f"beside: kernel {row['most'] + 1} began after {row['after']:.1f} s, "
            f"before {row['seconds']:.0f}"
        )
    if row and abs(row["got"] - row["asked"]) > BESIDE_POINTS:
        lines.append(
            f"beside: the neighbour's {row['got']:.2f} is not {row['asked']} "
            f"within {BESIDE_POINTS:g}"
        )
    return lines


length = number(0.01, 60_000, "0.01 to 60000 ms")
seconds = number(0, 3600, "0 to 3600 s")


def lengths(text: str) -> list[float]:
    """Return the milliseconds of several kernels."""
    return [length(each) for each in text.split(",")]


def percent(text: str) -> int:
    """Return a share of the card."""
    return int(number(1, 100, "1 to 100 percent")(text))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write; what was measured says its date."""
    parser = argparse.ArgumentParser(description="Measures what long kernels get of a card.")
    parser.add_argument(
        "--kernels", type=lengths, default="5,50,200,400,1000", help="lengths in milliseconds"
    )
    parser.add_argument("--share", type=percent, default=30, help="percent of the card")
    parser.add_argument("--beside", type=seconds, default=120.0, help="seconds; 0: not run")
    parser.add_argument("--long", type=length, default=2000.0, help="the tenth's kernels in ms")
    parser.add_argument("--json", type=writable)
    asked = parser.parse_args(arguments)
    machine = find_machine()
    calibrated = last_line(start(machine, None, "--kernel-us", "1000", "--seconds", "1"))
    per_ms = calibrated["iterations"] * calibrated["rate"] / 1000
    report: dict[str, Any] = {
        "machine": {"card": machine.card, "driver": machine.driver, "date": machine.date},
        "alone": [],
        "beside": None,
    }
    for each in asked.kernels:
        row = alone(machine, each, asked.share, per_ms)
        report["alone"].append(row)
        print(
            f"{row['ms']:8.1f} ms x {row['steps']}: {row['got']:.2f} of {row['asked']}",
            flush=True,
        )
    if asked.beside > 0:
        row = report["beside"] = measure_neighbour(machine, asked.beside, asked.long, per_ms)
        print(
            f"beside, {row['seconds']:.0f} s: the tenth begins kernel {row['most'] + 1} after "
            f"{row['after']:.1f} s; the neighbour {row['got']:.2f} of {row['asked']}"
        )
    else:
        print("beside: not run")
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=2) + "\n")
    misses = missed(report)
    for line in misses:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if misses else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HeteroError as error:
        print(f"long.py: {error}", file=sys.stderr)
        sys.exit(error.code)
