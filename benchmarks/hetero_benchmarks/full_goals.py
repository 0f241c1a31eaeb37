"""What is promised of programs that share a card, and which figures of a report miss it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

#: Of the same without limits: what a decoder has at least under fixed shares, and all that lend.
LEAST, DECODER = 0.97, "light"
#: Points that a program may be below its share beside others, and a full one off it.
BESIDE_POINTS, FULL_JOB = 1.0, "prefill"
#: Points that a program may be below min(100, 100 share/b) alone; a loop that works half the time
#: may be off it, where that is below 100, and is below 100 at most by so many.
ALONE_POINTS, LOOP, LOOP_POINTS = 3.0, "halves", 1.0
#: How much later requests may be answered beside a program that runs, by the card's sharing: so
#: many times as late, or (milliseconds) by the longest kernel in flight and this much more.
TIMES, KERNEL_AND = {"time": 1.3, "mps": 1.15}, {"mps": 0.2}
#: What the other has of what requests leave.
LEFT = 0.9
#: Points that jobs may be off their shares.
JOB_POINTS = {"time": 1.0, "mps": 2.0}


def missed(report: Mapping[str, Any]) -> list[str]:
    """Return a line for each figure of a report that is not what the limiter promises."""
    return [
        *(line for row in report["mixes"] for line in _mix(row)),
        *(line for row in report["alone"] for line in _alone(row)),
        *(line for row in report["online"] for line in _online(row)),
        *(line for row in report["jobs"] for line in _job(row)),
        *(line for row in report["faults"] for line in _fault(row)),
    ]


def _mix(row: Mapping[str, Any]) -> Iterator[str]:
    text, got, paired = row["mix"], row["got"], row["paired"]
    wanted = [
        (job, int(share)) for job, _, share in (each.partition(":") for each in text.split(","))
    ]
    alike = len({job for job, _ in wanted}) == 1
    for name in got.keys() & paired.keys():
        for each, free, (job, share) in zip(got[name], paired[name], wanted, strict=True):
            if each < share - BESIDE_POINTS:
                yield f"{text} {name}: {job} has {each:.1f} of its share of {share}"
            elif name == "fixed" and job == FULL_JOB and each > share + BESIDE_POINTS:
                yield f"{text} {name}: {job} has {each:.1f}, more than its share of {share}"
            if name == "fixed" and job == DECODER and not alike and each < LEAST * free:
                yield f"{text} fixed: {job} has {each:.1f}, and {free:.1f} without a limiter"
        total, most = sum(got[name]), sum(paired[name])
        if (name != "fixed" or alike) and total < LEAST * most:
            yield f"{text} {name}: {total:.1f} is less than {LEAST} of {most:.1f} without limits"


def _alone(row: Mapping[str, Any]) -> Iterator[str]:
    for share, got in row["got"].items():
        if row["b"][share] is None:
            continue
        law = row["law"][share]
        loop = row["job"] == LOOP
        points = LOOP_POINTS if loop else ALONE_POINTS
        if got < law - points or (loop and law < 100 and got > law + points):
            yield f"{row['job']} alone at {share}: {got:.1f} of {law:.1f}"


def _online(row: Mapping[str, Any]) -> Iterator[str]:
    sharing, still, runs = row["sharing"], row["still_ms"], row["runs_ms"]
    most = TIMES[sharing] * still
    if sharing in KERNEL_AND and row["longest_ms"] is not None:
        most = max(most, still + row["longest_ms"] + KERNEL_AND[sharing])
    if runs > most:
        yield f"online {sharing} beside {row['batch']}: p99 {runs:.2f} ms, {most:.2f} at most"
    if row["left"] < LEFT:
        has = 100 * row["left"]
        yield f"online {sharing}: {row['batch']} has {has:.1f} % of what is left"


def _job(row: Mapping[str, Any]) -> Iterator[str]:
    for share, got in row["got"].items():
        if abs(got - int(share)) > JOB_POINTS[row["sharing"]]:
            yield f"{row['job']} {row['sharing']} at {share}: {got:.1f}"


def _fault(row: Mapping[str, Any]) -> Iterator[str]:
    if row["recovered"] is None:
        yield f"{row['event']}: no new program got the card again"
