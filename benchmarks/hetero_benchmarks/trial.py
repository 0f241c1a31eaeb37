"""Starts programs natively or under a grant of cards, and says which card and software it was.

Everything here meets hetero as a user does: through `hetero inventory --json` and `hetero run`.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import IO, cast

from attrs import frozen

from hetero.model import Policy, Priority
from hetero.model.errors import HeteroError, NotFound
from hetero.node.simulation import simulation

#: Seconds a program may take before it is taken to hang.
PATIENCE = 300.0

HETERO = (sys.executable, "-m", "hetero.cli")


def run_hetero(words: Iterable[str], environment: Mapping[str, str]) -> str:
    """Return what a command of hetero printed, run with these variables besides one's own.

    Raises HeteroError with the command's line if it fails.
    """
    ended = subprocess.run(
        (*HETERO, *words),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise HeteroError(ended.stderr.strip().removeprefix("hetero: "))
    return ended.stdout


_PACKAGES = ("hetero", "hetero-limiters", "torch", "torchvision", "cupy-cuda13x", "jax")


@frozen(kw_only=True)
class Machine:
    """What was measured on, and when."""

    card: str
    uuid: str
    memory: int
    driver: str | None
    simulated: bool
    date: str
    kernel: str
    processors: int
    versions: Mapping[str, str]


@frozen(kw_only=True)
class DeviceAllocation:
    """What `hetero run` is asked for; `core` None asks for no share of the core."""

    memory: str
    core: int | None = None
    policy: Policy = Policy.FIXED
    priority: Priority = Priority.LOW
    label: str | None = None
    strict: bool = False


def find_machine(uuid: str | None = None) -> Machine:
    """Return this machine with the card whose UUID starts with `uuid`, or with its first card."""
    return find_machines(uuid)[0]


def find_machines(uuid: str | None = None) -> list[Machine]:
    """Return this machine once with each card whose UUID starts with `uuid`, or with each card."""
    asked = subprocess.run((*HETERO, "inventory", "--json"), stdout=subprocess.PIPE, check=False)
    if asked.returncode:
        raise NotFound("hetero inventory found no card to measure on")
    document = json.loads(asked.stdout)
    cards = [device for device in document["items"] if device["uuid"].startswith(uuid or "")]
    if not cards:
        raise NotFound(f"no card {uuid or 'at all'} here: see hetero inventory and hetero doctor")
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    versions = dict(_versions())
    return [
        Machine(
            card=card["model"],
            uuid=card["uuid"],
            memory=card["memory"],
            driver=card["attributes"].get("driver"),
            simulated=document["simulated"] is not None,
            date=date,
            kernel=platform.release(),
            processors=os.cpu_count() or 1,
            versions=versions,
        )
        for card in cards
    ]


def _versions() -> Iterator[tuple[str, str]]:
    yield "python", platform.python_version()
    for package in _PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            continue


class Program:
    """A program started on the machine's card, natively or under `grant`; it ends with the block.

    It has the cards of UUIDs `others`, too, and each as much of them as of the first.

    Its standard error is written to the new file `log`, if there is one.

    It is killed when it has not ended after `patience` seconds, or when `bear` says. Every method
    raises `HeteroError` with the program's last words if it failed or hung.
    """

    def __init__(
        self,
        words: Sequence[str | Path],
        machine: Machine,
        grant: DeviceAllocation | None,
        *,
        name: str,
        others: Sequence[str] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
        patience: float = PATIENCE,
        log: Path | None = None,
    ) -> None:
        self._name = name
        # Closed by __exit__.
        self._complaints = log.open("x+") if log else tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            _command(words, (machine.uuid, *others), grant),
            env={
                **(os.environ if grant else _native_environment((machine.uuid, *others))),
                **environment,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
        )
        self._input = cast(IO[str], self._process.stdin)
        self._output = cast(IO[str], self._process.stdout)
        self._watchdog = self._watch(patience)

    @property
    def pid(self) -> int:
        """Its process, which `hetero run` becomes."""
        return self._process.pid

    def bear(self, patience: float | None) -> None:
        """Kill it only when it has not ended `patience` seconds from now; None is never."""
        self._watchdog.cancel()
        if patience is not None:
            self._watchdog = self._watch(patience)

    def _watch(self, patience: float) -> threading.Timer:
        watchdog = threading.Timer(patience, self._process.kill)
        watchdog.start()
        return watchdog

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self._watchdog.cancel()
        self._process.kill()
        self._process.communicate()
        self._complaints.close()

    def line(self) -> str:
        """Return the next line of its output."""
        line = self._output.readline()
        if not line:
            raise self._failed()
        return line

    def lines(self) -> Iterator[str]:
        """Give its output as it comes, until it has ended well."""
        yield from self._output
        if self._process.wait():
            raise self._failed()

    def tell(self, line: str) -> None:
        """Give it a line of input."""
        try:
            print(line, file=self._input, flush=True)
        except BrokenPipeError:
            raise self._failed() from None

    def note(self, line: str) -> None:
        """Write a line of ours among what it says on its standard error."""
        print(line, file=self._complaints, flush=True)

    def _failed(self) -> HeteroError:
        code = self._process.wait()
        self._complaints.seek(0)
        words = self._complaints.read().strip().splitlines() or ["it said nothing"]
        ended = "hung and was killed" if code == -signal.SIGKILL else f"ended with status {code}"
        return HeteroError(f"{self._name} {ended}: {words[-1]}")


def _command(
    words: Sequence[str | Path], cards: Sequence[str], grant: DeviceAllocation | None
) -> list[str]:
    if grant is None:
        return [str(word) for word in words]
    core = [] if grant.core is None else ["--core", str(grant.core)]
    label = [] if grant.label is None else ["--label", grant.label]
    ways = ["--policy", grant.policy.value, "--priority", grant.priority.value]
    devices = [word for uuid in cards for word in ("--device", uuid)]
    strict = ["--strict"] if grant.strict else []
    limits = [*devices, "--memory", grant.memory, *core, *ways, *label, *strict]
    return [*HETERO, "run", "-q", *limits, "--", *(str(word) for word in words)]


def _native_environment(cards: Sequence[str]) -> dict[str, str]:
    """Return the environment in which a program meets those cards, nothing of ours in between."""
    simulated = simulation(os.environ)
    drivers = simulated.environment(os.environ) if simulated else {}
    return {**os.environ, **drivers, "CUDA_VISIBLE_DEVICES": ",".join(cards)}
