"""What programs see of each other's ends on a card that they share by MPS.

Three programs run at a time, of which one comes to an end in some way. Then newcomers try to get
the card until one has computed on it. As a program, `python -m hetero_benchmarks.faults`, this
stores out of the bounds of the card's memory.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

import hetero_simulator
from attrs import define, field

from hetero.model.errors import HeteroError
from hetero_benchmarks.sweep import sweep
from hetero_benchmarks.trial import HETERO, Machine

#: Seconds that programs may take to start, that a fault has to reach neighbours, and that the card
#: has to serve newcomers again. heterod lets those that are hurt end for 30 s.
START, REACH, RECOVER = 60.0, 5.0, 60.0
MEMORY = "1Gi"
#: A program that computes until it is ended, and one that does for a moment.
JOB = (str(hetero_simulator.job("cuda")), "--iterations", "20000")
ENDLESS, MOMENT = (*JOB, "--seconds", "600"), (*JOB, "--seconds", "0.5")
_SETTINGS = '[cards]\nsharing = "mps"\n'
#: It stores a word where nothing is.
_PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry store()
{
    .reg .u64 %address;
    mov.u64 %address, 0x7fffffff0000;
    st.global.u64 [%address], %address;
    ret;
}
\0"""


@define
class _Tenant:
    """A program under a grant, and what it has said so far."""

    process: subprocess.Popen[str]
    label: str
    words: IO[str]
    lines: list[str] = field(factory=list)

    def listen(self) -> None:
        """Note each line of its output."""
        self.lines.extend(cast(IO[str], self.process.stdout))

    def ended(self, within: float) -> bool:
        """Return whether it ends in that time."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(within)
        return self.process.poll() is not None

    def saw(self, since: int) -> str:
        """Return what became of it after it had said so many lines."""
        status = self.process.poll()
        if status is None:
            return "runs on" if len(self.lines) > since else "runs, and computes nothing"
        self.words.seek(0)
        words = self.words.read().strip().splitlines() or ["it said nothing"]
        return f"ended with {status}: {words[-1]}"


@define
class _Card:
    """The card, hetero's state of it, and the tenants that run."""

    machine: Machine
    environ: Mapping[str, str]

    def hetero(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of hetero's."""
        return subprocess.run(
            (*HETERO, *words), env=self.environ, capture_output=True, text=True, check=False
        )

    def begin(self, label: str, *words: str) -> _Tenant:
        """Start a program under a grant."""
        asked = ("--uuid", self.machine.uuid, "--memory", MEMORY, "--label", label)
        complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 - the tenant's
        process = subprocess.Popen(
            (*HETERO, "run", "-q", *asked, "--", *words),
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
        )
        tenant = _Tenant(process, label, complaints)
        threading.Thread(target=tenant.listen, daemon=True).start()
        return tenant

    def control(self) -> int:
        """Return the process of the card's control daemon."""
        places = Path(self.environ["HETERO_STATE"]).rglob("nvidia-cuda-mps-control.pid")
        with suppress(StopIteration, OSError, ValueError):
            return int(next(iter(places)).read_text())
        raise HeteroError("no control daemon runs")


def _kill(_: _Card, victim: _Tenant) -> None:
    victim.process.kill()


def _release(card: _Card, victim: _Tenant) -> None:
    done = card.hetero("release", "--force", victim.label)
    if done.returncode:
        raise HeteroError(done.stderr.strip())


def _kill_control(card: _Card, _: _Tenant) -> None:
    os.kill(card.control(), signal.SIGKILL)


def _nothing(_: _Card, victim: _Tenant) -> None:
    victim.ended(START)  # it does it by itself


#: What happens, and to which program.
EVENTS: Mapping[str, tuple[Sequence[str], Callable[[_Card, _Tenant], None]]] = {
    "a tenant killed": (ENDLESS, _kill),
    "a tenant released by force": (ENDLESS, _release),
    "a store out of bounds": ((sys.executable, "-m", __name__), _nothing),
    "the control daemon killed": (ENDLESS, _kill_control),
}


def measure(machine: Machine, event: str, say: Callable[[str], None]) -> dict[str, Any]:
    """Return what came of an event. Raises `HeteroError` where the card cannot be shared so."""
    with _shared(machine) as card:
        row = _event(card, event, *EVENTS[event])
    say(f"{event}: the tenant {row['victim']}; neighbours: {'; '.join(row['neighbours'])}")
    for line in row["told"]:
        say(f"    {line}")
    when = row["recovered"]
    after = "no newcomer computed" if when is None else f"a newcomer computed after {when:.1f} s"
    refused_note = f", told before: {row['refused']}" if row["refused"] else ""
    say(f"    {after}{refused_note}")
    return row


@contextmanager
def _shared(machine: Machine) -> Iterator[_Card]:
    """Have the card shared by a service, with a heterod that watches it."""
    # A socket's path has 107 characters at most.
    with tempfile.TemporaryDirectory(prefix="h-", ignore_cleanup_errors=True) as folder:
        settings = Path(folder) / "node.toml"
        settings.write_text(_SETTINGS)
        environ = {**os.environ, "HETERO_STATE": f"{folder}/s", "HETERO_CONFIG": str(settings)}
        daemon = subprocess.Popen(
            (*HETERO, "daemon"),
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield _Card(machine, environ)
        finally:
            daemon.terminate()
            daemon.wait()
            sweep(environ)
            for mounted in Path(folder).rglob("boards"):  # heterod's, for users
                subprocess.run(
                    ["umount", "--lazy", mounted],
                    check=False,
                    capture_output=True,
                )


def _event(
    card: _Card, event: str, words: Sequence[str], act: Callable[[_Card, _Tenant], None]
) -> dict[str, Any]:
    with ExitStack() as stack:
        neighbours = [card.begin(f"neighbour-{number}", *ENDLESS) for number in range(2)]
        for tenant in neighbours:
            stack.callback(_stop, tenant)
            _wait_for_line(tenant)
        victim = card.begin("victim", *words)
        stack.callback(_stop, victim)
        if words == ENDLESS:
            _wait_for_line(victim)
        before = [len(tenant.lines) for tenant in (victim, *neighbours)]
        act(card, victim)
        begun = time.monotonic()
        time.sleep(REACH)
        row: dict[str, Any] = {
            "event": event,
            "victim": victim.saw(before[0]),
            "neighbours": [
                tenant.saw(since) for tenant, since in zip(neighbours, before[1:], strict=True)
            ],
            "told": [
                line for line in card.hetero("ps").stdout.splitlines() if "lost its work" in line
            ],
        }
        refused: list[str] = []
        row["recovered"] = _recovered(card, begun, refused)
        row["refused"] = refused[0] if refused else ""
        return row


def _recovered(card: _Card, begun: float, refused: list[str]) -> float | None:
    """Return after how many seconds a newcomer had computed; why others could not is noted."""
    while time.monotonic() - begun < RECOVER:
        newcomer = card.begin("newcomer", *MOMENT)
        if newcomer.ended(START) and newcomer.process.returncode == 0:
            return time.monotonic() - begun
        _stop(newcomer)
        refused.append(newcomer.saw(0))
        time.sleep(1)
    return None


def _wait_for_line(tenant: _Tenant) -> None:
    deadline = time.monotonic() + START
    while not tenant.lines:
        if tenant.process.poll() is not None or time.monotonic() > deadline:
            raise HeteroError(f"{tenant.label} {tenant.saw(0)}")
        time.sleep(0.1)


def _stop(tenant: _Tenant) -> None:
    tenant.process.kill()
    tenant.process.wait()


def main() -> int:
    """Store where nothing is, and say what the driver makes of it."""
    driver = ctypes.CDLL("libcuda.so.1")
    handle, context, module, kernel = (ctypes.c_void_p() for _ in range(4))
    device = ctypes.c_int()
    codes = [
        driver.cuInit(0),
        driver.cuDeviceGet(ctypes.byref(device), 0),
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
        driver.cuCtxSetCurrent(context),
        driver.cuModuleLoadData(ctypes.byref(module), _PTX),
        driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"store"),
        driver.cuLaunchKernel(kernel, *[1] * 6, 0, handle, None, None),
        driver.cuCtxSynchronize(),
    ]
    print(json.dumps(codes), flush=True)
    print(f"the driver's answers: {codes}", file=sys.stderr)
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
