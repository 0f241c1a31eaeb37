"""The steps of `hetero demo`: two programs on a card, one too large, one too many."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from attrs import evolve, field, frozen

from hetero.model import (
    MEMORY,
    Allocation,
    Ask,
    Device,
    Inventory,
    Refusal,
    Request,
    Selector,
    codec,
)
from hetero.model.errors import BadInput, NotFound
from hetero.model.units import MiB
from hetero.node.node import Node
from hetero.node.place import rack_file, simulator
from hetero.node.simulation import enter, racks
from hetero.node.view.observe import NodeView, observe_node
from hetero.placement import fit
from hetero.registry.registry import Registry

#: The shares the two programs ask for, in percent of the card's core.
SHARES = (30, 60)
#: The rack that is simulated where no real card is asked for: several sizes of card.
RACK = "mixed"
#: A rack with cards of many vendors, and what is asked of each of them.
MANY = "seven"
ASKED = Ask(memory=3000 * MiB, core=30)
#: What is asked of cards that no limiter shares, with the flags that ask it.
PLACED_ASKS = (
    (ASKED, "--memory 3000Mi --core 30"),
    (Ask(memory_percent=50, core=50), "--memory 50% --core 50"),
    (Ask(), ""),
)


@frozen(kw_only=True)
class Got:
    """What a program has of the card so far, in percent of its rate alone there."""

    asked: int
    got: float


@frozen(kw_only=True)
class Ending:
    """How a command ended: its line for people, and its exit status."""

    command: str
    code: int
    output: str


@frozen
class Demo:
    """A card, the program that keeps it busy, and the environment `hetero` is called in."""

    device: Device
    job: str
    environ: Mapping[str, str] = field(repr=False)

    @property
    def memory(self) -> int:
        """What each program asks for, in MiB: an eighth of the card."""
        return self.device.capacity[MEMORY] // 8 // MiB

    def view(self) -> NodeView:
        """Return the node as `hetero inventory` sees it."""
        return observe_node(Node.here(self.environ))

    def shared(self, view: NodeView) -> bool:
        """Return whether every program of `together` is at work on the card."""
        grant_ids = [
            grant_id
            for row in view.devices
            if row.device.uuid == self.device.uuid
            for grant_id in row.grants
        ]
        working_grants = [
            row
            for row in view.grants
            if row.id in grant_ids
            and all(share.memory_used_bytes and share.core_used_percent for share in row.shares)
        ]
        return len(working_grants) == len(SHARES)

    def many(self) -> NodeView:
        """Return a machine with cards of many vendors, as `hetero inventory` sees it."""
        completed_process = subprocess.run(
            (sys.executable, "-c", "from hetero.node.demo import tell; tell()"),
            env={**self.environ, "HETERO_RACK": MANY},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return codec.loads(completed_process.stdout, NodeView, source="the view of another rack")

    def expect_runtime(self) -> None:
        """Raise `BadInput` if a program on this card lacks its runtime library."""
        ending = self._end(
            "run", "-q", "--device", self.device.uuid, "--", self.job, "--alloc", "1MiB"
        )
        if ending.code:
            raise BadInput(ending.output.splitlines()[-1])

    def alone(self, duration_s: int) -> float:
        """Return the steps per second of the program that has the whole card."""
        with self._run("--", *self._busy(duration_s, self.memory, warm_up_s=1)) as process:
            lines = [json.loads(line) for line in process.stdout or ()]
        if process.returncode or not lines:
            raise NotFound(f"the program could not use the card (exit {process.returncode})")
        return float(lines[-1]["rate"])

    def together(self, full_rate: float, duration_s: int) -> Iterator[tuple[Got, ...]]:
        """Run a program at each of SHARES at once; give what they got, again every half second.

        `full_rate` is what one alone does; the last value covers the seconds they all ran.
        """
        with ExitStack() as stack:
            step_counts = [
                _Count(
                    stack.enter_context(
                        self._run(
                            *self._share(share_percent),
                            *self._busy(duration_s, self.memory // 2),
                        )
                    )
                )
                for share_percent in SHARES
            ]
            any_running = True
            while any_running:
                time.sleep(0.5)
                any_running = any(step_count.running for step_count in step_counts)
                yield tuple(
                    Got(asked=share_percent, got=100 * step_count.rate / full_rate)
                    for share_percent, step_count in zip(SHARES, step_counts, strict=True)
                )

    def shown(self, share_percent: int, duration_s: int) -> str:
        """Return the command that repeats the run of one of the two programs."""
        words = (*self._share(share_percent), self.job, "--seconds", str(duration_s))
        return " ".join(("hetero run", "--device", self.device.uuid[:12], *words))

    def over_memory(self) -> Ending:
        """Let a program allocate twice what it was granted."""
        return self._end(
            # On the card of the demo, where it would fit but for the grant.
            *("run", "--device", self.device.uuid[:12], "--memory", f"{self.memory}Mi", "--"),
            *(self.job, "--alloc", f"{2 * self.memory}MiB"),
        )

    def over_core(self) -> Ending | None:
        """Ask for a share of the card that is no longer free; None if the programs had ended."""
        left_percent = 100 - sum(SHARES)
        ending = self._end(
            *("run", "--device", self.device.uuid[:12], "--memory", f"{self.memory}Mi"),
            *("--core", str(left_percent + 10), "--", "true"),
        )
        return ending if ending.code or self.shared(self.view()) else None

    def _share(self, share_percent: int) -> Sequence[str]:
        return ("--memory", f"{self.memory}Mi", "--core", str(share_percent), "--")

    def _busy(self, duration_s: int, memory_mib: int, *, warm_up_s: int = 2) -> Sequence[str]:
        # A warm-up of its own, so that neither program is measured while the other starts, or
        # while a third one asks. One that is alone has nobody to wait for.
        timing_options = ("--warmup", str(warm_up_s), "--seconds", str(duration_s))
        return (self.job, *timing_options, "--memory", f"{memory_mib}MiB")

    def _hetero(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "hetero.cli", *arguments]

    @contextmanager
    def _run(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Run a program on the demo's card; whatever happens, it has ended afterwards."""
        command = self._hetero("run", "-q", "--device", self.device.uuid, *arguments)
        with subprocess.Popen(
            command, env=dict(self.environ), stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                yield process
                process.wait()
            finally:
                process.kill()

    def _end(self, *arguments: str) -> Ending:
        completed_process = subprocess.run(
            self._hetero(*arguments),
            env=dict(self.environ),
            capture_output=True,
            text=True,
            check=False,
        )
        return Ending(
            command=" ".join(("hetero", *arguments)),
            code=completed_process.returncode,
            output=(completed_process.stderr + completed_process.stdout).strip(),
        )


def of_each(view: NodeView) -> Allocation:
    """Return what a card of each vendor would give for ASKED."""
    devices = Inventory(tuple(row.device for row in view.devices))
    vendors = dict.fromkeys(device.vendor for device in devices.devices)
    offers = (
        fit(devices, Request(asks=(ASKED,), vendor=Selector((vendor,)))) for vendor in vendors
    )
    return Allocation(
        pieces=tuple(
            piece for offer in offers if isinstance(offer, Allocation) for piece in offer.pieces
        )
    )


class _Count:
    """Reads a program's lines as they come; `rate` is its steps a second so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._seconds = 0
        self._steps = 0
        self._final: float | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def running(self) -> bool:
        return self._reader.is_alive()

    @property
    def rate(self) -> float:
        if self._final is not None:
            return self._final
        return self._steps / self._seconds if self._seconds else 0.0

    def _read(self) -> None:
        for line in self._process.stdout or ():
            step_report = json.loads(line)
            if "rate" in step_report:
                self._final = float(step_report["rate"])
            else:
                self._seconds = step_report["second"]
                self._steps += step_report["steps"]


def tell() -> None:
    """Print the view of the rack that the environment asks for: one process meets one rack."""
    enter(os.environ)
    print(codec.dumps(observe_node(Node.here())))


def why_shares_say_little() -> str | None:
    """Return a warning where other programs want all processors; None where they do not.

    The programs, the limiter and a simulated card then wait for a processor, too. So a program's
    rate alone is too low, and its share with a second one too high.
    """
    load_1_min, processor_count = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load_1_min <= processor_count:
        return None
    load_text = f"load {load_1_min:.1f} on {processor_count} processors"
    return f"This machine is busy ({load_text}): shares say little."


def vendors() -> tuple[str, ...]:
    """Return the vendors that have a rack of their own name."""
    return tuple(vendor_name for vendor_name in racks() if vendor_name in simulator().VENDORS)


def default_vendors() -> tuple[str, ...]:
    """Return the vendors whose cards the default rack has."""
    lines = rack_file(RACK).read_text().splitlines()
    return tuple(name for name in simulator().VENDORS if f"vendor = {name}" in lines)


def placed_vendors() -> tuple[str, ...]:
    """Return the vendors of which there are simulated cards and no rack of their own name."""
    other_names = {*default_vendors(), *vendors()}
    return tuple(name for name in sorted(simulator().VENDORS) if name not in other_names)


@contextmanager
def placed(vendor_name: str) -> Iterator[NodeView]:
    """Give the view of this vendor's simulated cards, of the rack that has cards of many."""
    with TemporaryDirectory(prefix="hetero-") as private_directory:
        enter({"HETERO_RACK": MANY})
        environ = {**os.environ, "HETERO_STATE": private_directory}
        view = observe_node(Node.here(environ))
        rows = tuple(row for row in view.devices if row.device.vendor == vendor_name)
        yield evolve(view, devices=rows)


def of_vendor(view: NodeView, ask: Ask, vendor_name: str) -> Allocation | Refusal:
    """Return what a vendor's cards would give for an ask."""
    devices = Inventory(tuple(row.device for row in view.devices))
    return fit(devices, Request(asks=(ask,), vendor=Selector((vendor_name,))))


def settings_for(vendor_name: str) -> str | None:
    """Return the node settings with which a limiter shares cards that would else be cut."""
    declaration = Registry().vendor(vendor_name)
    return f'[cards]\nsoft = ["{vendor_name}"]\n' if declaration.soft_limiter else None


@contextmanager
def stage(*, real: bool, vendor: str | None = None) -> Iterator[Demo]:
    """Set the demo up: on a simulated rack with books of its own, or on an empty real card.

    Raises `NotFound` when there is no card to show it on, `HeteroError` without the simulator,
    `BadInput` where the runtime is not installed that the programs on a vendor's cards need.
    """
    with ExitStack() as stack:
        environ = dict(os.environ)
        if not real:
            private_directory = stack.enter_context(TemporaryDirectory(prefix="hetero-"))
            environ["HETERO_STATE"] = private_directory
            settings = settings_for(vendor) if vendor else None
            if settings:
                environ["HETERO_CONFIG"] = f"{private_directory}/node.toml"
                Path(environ["HETERO_CONFIG"]).write_text(settings)
            enter({"HETERO_RACK": vendor or RACK})
            environ["HETERO_RACK"] = os.environ["HETERO_RACK"]
        node = Node.here(environ)
        view = observe_node(node)
        for row in view.devices:
            driver_api = node.registry.vendor(row.device.vendor).limiter
            if driver_api is not None and row.device.usable and not any(row.held.values()):
                job_path = Path(simulator().job(driver_api))
                # A program of a simulation finds the simulator's own on its search path.
                demo = Demo(row.device, str(job_path) if real else job_path.name, environ)
                demo.expect_runtime()
                yield demo
                return
        raise NotFound(
            "no empty card with a limiter here: `hetero inventory` shows what there is"
            + ("; without --real the demo simulates one" if real else "")
        )
