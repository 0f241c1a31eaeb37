"""Records what the driver says of programs that keep to their shares, and looks for false alarms.

    benchmarks/device_time.py record FILE [--runs NAME,...] [--seconds S]     on a card, as root
    benchmarks/device_time.py resample FILE [--windows 10000]                  anywhere

`record` runs the eight jobs alone under 30 % for 20 s each, and mixes of programs for 60 s each. It
appends a line of JSON for each: a sample every second. `resample` draws windows of 60 s from the
samples of each run, with repetition and as far apart as heterod's, and counts those in which the
rule of hetero/node/view/device_time.py names somebody at any moment. Both print a line a run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hetero_benchmarks.job import JOBS, command
from hetero_benchmarks.trial import DeviceAllocation, Machine, Program, find_machine

from hetero.model import Policy
from hetero.node.ledger.grant_dir import USAGE
from hetero.node.ledger.usage_region import read_region
from hetero.node.node import Node
from hetero.node.simulation import enter
from hetero.node.view.bypass import SAMPLE_PERIOD_S as APART
from hetero.node.view.device_time import WINDOW_S as LENGTH
from hetero.node.view.device_time import Sample, overuse, sample_of, shares_of

EIGHT = ("resnet18", "gemm", "gemm16384", "graph", "copy", "streams", "processes", "cooperative")
#: Each program and its share in percent.
RUNS: dict[str, tuple[tuple[str, int], ...]] = {
    **{name: ((name, 30),) for name in EIGHT},
    "four light": (("light", 25),) * 4,
    "light+prefill": (("light", 50), ("prefill", 50)),
    "halves+vit": (("halves", 50), ("vit", 50)),
    "prefill+vit": (("prefill", 50), ("vit", 50)),
    "two light+vit": (("light", 25), ("light", 25), ("vit", 50)),
    "gemm+resnet18": (("gemm", 60), ("resnet18", 30)),
}
PERIOD, WINDOW = 1.0, 60


def main() -> None:
    """Record, or resample."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("record", "resample"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--runs", default=",".join(RUNS), help="names of runs")
    parser.add_argument("--seconds", type=float, help="of each run")
    parser.add_argument("--policy", type=Policy, choices=Policy, default=Policy.FIXED)
    parser.add_argument("--windows", type=int, default=10_000)
    asked = parser.parse_args()
    if asked.what == "resample":
        for line in asked.file.read_text().splitlines():
            resample(json.loads(line), asked.windows)
        return
    enter(os.environ)
    machine = find_machine()
    for name in asked.runs.split(","):
        seconds = asked.seconds or (20.0 if len(RUNS[name]) == 1 else 60.0)
        run = record(machine, name, seconds, asked.policy)
        with asked.file.open("a") as file:
            print(json.dumps(run), file=file)
        means = " ".join(f"{100 * part:.1f}" for part in mean(run))
        print(
            f"{run['name']:26} {len(run['samples'])} samples; worked less charged, points: {means}"
        )


def record(machine: Machine, name: str, seconds: float, policy: Policy) -> dict[str, Any]:
    """Run the programs of one run together; return what was seen of them each second."""
    node = Node.here()
    samples = []
    with ExitStack() as stack:
        programs = []
        for number, (job, core) in enumerate(RUNS[name]):
            grant = DeviceAllocation(
                memory=JOBS[job].memory, core=core, policy=policy, label=f"dt{number}"
            )
            program = Program(command(job), machine, grant, name=job, patience=300)
            programs.append(stack.enter_context(program))
        for program in programs:
            program.line()
        until = time.monotonic() + seconds + 3
        for program in programs:
            program.tell(f"{until} 0")
        time.sleep(2)  # until the driver's samples are of the run alone
        (device,) = (each for each in node.discover().devices if each.uuid == machine.uuid)
        grants, boards = node.snapshot().grants, node.ledger.boards
        while time.monotonic() < until - 1:
            holding = node.processes(entry.id for entry in grants)
            owner = {pid: identity for identity, pids in holding.items() for pid in pids}
            usage = node.registry.observe(device)
            regions = {entry.id: read_region(node.directory(entry.id) / USAGE) for entry in grants}
            samples.append(sample_of(grants, device, usage, owner, regions, boards))
            time.sleep(PERIOD)
        for program in programs:
            program.line()
    return {
        "name": name if policy is Policy.FIXED else f"{name}, {policy.value}",
        "card": machine.card,
        "driver": machine.driver,
        "date": machine.date,
        "shares": shares_of(grants, device),
        "samples": [
            {
                "at": each.sampled_at_s,
                "busy": each.busy_part,
                "worked": [[*key, part] for key, part in each.worked_parts.items()],
                "charged": dict(each.charged_s),
            }
            for each in samples
        ],
    }


def mean(run: dict[str, Any]) -> list[float]:
    """Return, for each grant of a run, the part that it worked beyond what it was charged."""
    first, *_, last = run["samples"]
    span = last["at"] - first["at"]
    return [
        sum(part for each in run["samples"] for grant, _, part in each["worked"] if grant == name)
        / len(run["samples"])
        - (last["charged"][name] - first["charged"][name]) / span
        for name in run["shares"]
    ]


def resample(run: dict[str, Any], windows: int) -> None:
    """Print in how many windows drawn from a run's samples somebody is named."""
    chance = random.Random(0)
    steps = list(zip(run["samples"], run["samples"][round(APART / PERIOD) :], strict=False))
    alarms = 0
    for _ in range(windows):
        at, charged, drawn = 0.0, dict.fromkeys(run["shares"], 0.0), deque[Sample]()
        for before, after in chance.choices(steps, k=round(WINDOW / APART)):
            at += after["at"] - before["at"]
            for name in charged:
                charged[name] += after["charged"][name] - before["charged"][name]
            worked = {(grant, pid): part for grant, pid, part in after["worked"]}
            drawn.append(
                Sample(
                    sampled_at_s=at,
                    busy_part=after["busy"],
                    worked_parts=worked,
                    charged_s={**charged},
                )
            )
            while drawn[0].sampled_at_s < at - LENGTH:
                drawn.popleft()
            if overuse(drawn, run["shares"]):
                alarms += 1
                break
    print(f"{run['name']:26} {windows} windows, {alarms} alarms")


if __name__ == "__main__":
    main()
