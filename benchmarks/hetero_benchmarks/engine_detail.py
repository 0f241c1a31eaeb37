"""What is seen of programs from outside while they are measured: hetero's accounts and NVML's."""

from __future__ import annotations

import json
import mmap
import struct
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from hetero.node.ledger.grant_dir import board_of
from hetero.node.node import Node
from hetero_benchmarks.rates import Window
from hetero_benchmarks.trial import HETERO, Machine

#: What is shown of a grant's account on the card, in percent of it and milliseconds a second.
ACCOUNTS = ("core_used", "core_borrowed", "core_lent", "core_stopped", "core_excess")
#: Where a page says the state of its grant, and which state has the card (limiters/timeshare).
_STATE, _STATE_AT, _RUNS = struct.Struct("<I"), 12, 3
#: Seconds between two looks at pages, between two questions to NVML, and for a command's start.
_LOOK, _ASK, _START = 0.0002, 0.2, 1.5


def during(
    machine: Machine, window: Window, pids: Mapping[str, int], grants: Mapping[str, str]
) -> Callable[[], dict[str, dict[str, Any]]]:
    """Start to watch programs by their names, in `window`; return what gives what was seen.

    `pids` are those of their first processes, `grants` the ids of those that have one.
    """
    threads = ThreadPoolExecutor()
    slices = threads.submit(_time_slices, machine, window, grants)
    used = threads.submit(_accounts, window, grants)
    busy: Future[dict[str, float]] | None = None
    if not machine.simulated:
        busy = threads.submit(_utilisation, machine, window, pids)

    def seen() -> dict[str, dict[str, Any]]:
        rows: dict[str, dict[str, Any]] = {name: {} for name in pids}
        for name, each in used.result().items():
            rows[name] |= each
        for name, per_second in slices.result().items():
            rows[name]["time_slices_per_s"] = round(per_second, 1)
        for name, percent in busy.result().items() if busy else ():
            rows[name]["nvml_percent"] = round(percent, 1)
        threads.shutdown()
        return rows

    return seen


def _wait_for(moment: float) -> None:
    time.sleep(max(moment - time.monotonic(), 0))


def _accounts(window: Window, grants: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return what hetero counted of each grant."""
    if not grants:
        return {}
    _wait_for(window.start)
    seconds = f"{max(window.end - window.start - _START, _ASK):g}"
    ended = subprocess.run(
        (*HETERO, "ps", "--seconds", seconds, "--json"), capture_output=True, text=True, check=False
    )
    shares = {}
    with suppress(json.JSONDecodeError):
        shares = {item["id"]: item["shares"][0] for item in json.loads(ended.stdout)["items"]}
    return {
        name: {
            key: round(value, 1)
            for key in ACCOUNTS
            if (value := shares.get(grant, {}).get(key)) is not None
        }
        for name, grant in grants.items()
    }


def _time_slices(machine: Machine, window: Window, grants: Mapping[str, str]) -> dict[str, float]:
    """Return how many exclusive time slices began a second, by looks at the grants' pages.

    Those that are shorter than a look may be missed; work without time slices has none.
    """
    folder = board_of(Node.here().ledger.boards, machine.uuid)
    pages = {}
    for name, grant in grants.items():
        with suppress(OSError), (folder / grant).open("rb") as file:
            pages[name] = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    began, ran = dict.fromkeys(pages, 0), dict.fromkeys(pages, False)
    _wait_for(window.start)
    while time.monotonic() < window.end and pages:
        for name, page in pages.items():
            runs = _STATE.unpack_from(page, _STATE_AT)[0] == _RUNS
            began[name] += runs and not ran[name]
            ran[name] = runs
        time.sleep(_LOOK)
    return {name: count / (window.end - window.start) for name, count in began.items()}


def _utilisation(machine: Machine, window: Window, pids: Mapping[str, int]) -> dict[str, float]:
    """Return the mean of NVML's utilisation of each program's processes, in percent."""
    import pynvml

    pynvml.nvmlInit()
    card = pynvml.nvmlDeviceGetHandleByUUID(machine.uuid)
    _wait_for(window.start)
    owners = {pid: name for name, first in pids.items() for pid in descendants(first)}
    totals, looks, since = dict.fromkeys(pids, 0.0), 0, int(time.time() * 1e6)
    while time.monotonic() < window.end:
        time.sleep(_ASK)
        looks += 1
        samples: Sequence[Any] = ()
        with suppress(pynvml.NVMLError):  # nothing ran since
            samples = pynvml.nvmlDeviceGetProcessUtilization(card, since)
        seen: dict[int, list[int]] = {}
        for sample in samples:
            since = max(since, sample.timeStamp)
            seen.setdefault(sample.pid, []).append(sample.smUtil)
        for pid, percents in seen.items():
            if pid in owners:
                totals[owners[pid]] += sum(percents) / len(percents)
    return {name: total / max(looks, 1) for name, total in totals.items()}


def descendants(pid: int) -> set[int]:
    """Return a process and all that it started, as far as they stand."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rpartition(")")[2].split()[1]
            )
    family = {pid}
    while more := {each for each, parent in parents.items() if parent in family} - family:
        family |= more
    return family
