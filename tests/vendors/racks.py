"""Simulated machines for the vendors' tests: a rack, met by the real plugins in a forked process.

A driver library is loaded once a process and for good, so whatever meets one does so in a child of
its own. The plugins themselves are imported before, which needs no driver.
"""

import ctypes
import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import hetero_amd
import hetero_ascend
import hetero_cambricon
import hetero_hygon
import hetero_iluvatar
import hetero_metax
import hetero_mthreads
import hetero_nvidia
from attrs import evolve
from hetero_simulator import fake_drivers

from hetero.model import Allocation, Ask, Device, Inventory, Refusal, Request, Selector
from hetero.model.errors import Refused
from hetero.model.units import GiB
from hetero.node.transaction import with_parts
from hetero.placement import fit
from hetero.registry.entry_points import Entry
from hetero.registry.fork_server import ForkServer
from hetero.registry.process import Forks, Starter
from hetero.registry.registry import Discovery, Registry

T = TypeVar("T")

PLUGINS: Mapping[str, ModuleType] = {
    "nvidia": hetero_nvidia,
    "amd": hetero_amd,
    "ascend": hetero_ascend,
    "hygon": hetero_hygon,
    "cambricon": hetero_cambricon,
    "iluvatar": hetero_iluvatar,
    "mthreads": hetero_mthreads,
    "metax": hetero_metax,
}
#: The file each vendor's discovery opens.
LIBRARIES = {
    "nvidia": "libnvidia-ml.so.1",
    "amd": "librocm_smi64.so.7",
    "ascend": "libdcmi.so",
    "hygon": "librocm_smi64.so",
    "cambricon": "libcndev.so",
    "iluvatar": "libixml.so",
    "mthreads": "libmtml.so",
    "metax": "libmxsml.so",
}


def registry(*names: str, soft: tuple[str, ...] = (), starter: Starter | None = None) -> Registry:
    """Return the vendors as their entry points name them, each asked in a process of its own.

    A limiter shares the cards of those in `soft`. Processes are forks of this one, unless a
    `starter` makes them.
    """
    return Registry(
        lambda: [Entry(name, PLUGINS[name].__name__, "in tree") for name in names or PLUGINS],
        soft=soft,
        starter=starter or Forks(),
    )


def threaded_registry(*names: str, soft: tuple[str, ...] = ()) -> Registry:
    """Return the same for a program that has threads, as an agent has it, within `Rack.meet`.

    A fork of it may copy a lock that another thread holds, and ends by an abort or never.
    """
    environ = {**os.environ, "LD_LIBRARY_PATH": str(fake_drivers())}
    return registry(*names, soft=soft, starter=ForkServer(environ))


def discover(*names: str) -> Discovery:
    return registry(*names).discover()


def card(vendor: str, model: str, memory: str, **facts: str) -> str:
    """Return one [device] of a rack."""
    lines = {"vendor": vendor, "model": model, "memory": memory, **facts}
    return "\n[device]\n" + "".join(f"{key} = {value}\n" for key, value in lines.items())


def fault(call: str, does: str, **more: str) -> str:
    """Return one [fault] of a rack."""
    lines = {"call": call, "does": does, **more}
    return "\n[fault]\n" + "".join(f"{key} = {value}\n" for key, value in lines.items())


class Rack:
    """A rack file in a directory."""

    def __init__(self, directory: Path, *texts: str) -> None:
        self.path = (directory / "test.rack").resolve()
        self.path.write_text("".join(texts))

    def meet(self, ask: Callable[[], T], *, without: Iterable[str] = ()) -> T:
        """Return what `ask` finds in a process of its own that meets the simulated drivers."""

        def met() -> T:
            os.environ["HETERO_RACK"] = str(self.path)
            missing = {LIBRARIES[name] for name in without}
            for library in sorted(fake_drivers().glob("lib*.so*")):
                if library.name not in missing:
                    ctypes.CDLL(str(library))
            return ask()

        return apart(met)


def apart(ask: Callable[[], T]) -> T:
    """Return what `ask` finds in a fork of this process.

    Vendors' processes are forks, too, and of one that has opened no driver.
    """
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer: tuple[bool, object] = (True, ask())
        except BaseException:
            answer = (False, traceback.format_exc())
        with os.fdopen(writable, "wb") as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        fine, value = pickle.load(pipe)
    os.waitpid(pid, 0)
    assert fine, value
    return value  # type: ignore[no-any-return]


def request(
    *asks: Ask, vendor: str | None = None, model: str | None = None, count: int = 1
) -> Request:
    return Request(
        asks=(asks or (Ask(),)) * count,
        vendor=Selector((vendor,) if vendor else ()),
        model=Selector((model,) if model else ()),
    )


#: A share that every card that can be cut can give.
SHARE = request(Ask(memory=4 * GiB, core=20))


class Machine:
    """The devices of a rack and the allocations made on them; lives in a process that meets it."""

    def __init__(self, directory: Path, *names: str) -> None:
        self.registry = registry(*names)
        self.directory = directory
        self.discovery = self.registry.discover()
        self.standing: list[Allocation] = []

    @property
    def devices(self) -> tuple[Device, ...]:
        return self.discovery.devices

    def fit(self, asked: Request) -> Allocation | Refusal:
        return fit(Inventory(self.devices, tuple(self.standing)), asked)

    def take(self, asked: Request) -> Allocation:
        """Fit the request and have it confined, slices and all."""
        answer = self.fit(asked)
        assert isinstance(answer, Allocation), answer.sentence
        edits = self.registry.enforce(answer, self.devices, directory=self.directory)
        taken = with_parts(answer, edits.parts)
        self.standing.append(taken)
        return taken

    def reconcile(self) -> tuple[str, ...]:
        return self.registry.reconcile(self.devices, self.standing, directory=self.directory)

    def resize(self, allocation: Allocation, **takes: int) -> None:
        """Have an allocation's one slice cut anew."""
        (grant,) = allocation.pieces
        grant = evolve(grant, takes={**grant.takes, **takes})
        changed = evolve(allocation, pieces=(grant,))
        self.registry.enforce(changed, self.devices, directory=self.directory)
        self.standing[self.standing.index(allocation)] = changed


#: A card of each vendor that cuts its cards.
CARDS = {
    "ascend": card("ascend", "910B3", "64 GiB", core="20"),
    "hygon": card("hygon", "K100_AI", "64 GiB"),
    "cambricon": card("cambricon", "MLU370-X8", "24 GiB", smlu="on"),
    "metax": card("metax", "MXC500", "64 GiB", sgpu="on"),
}


def slices(machine: Machine, device: Device) -> set[str]:
    """Return the slices there are on a card, asked of the driver."""
    return apart(lambda: _slices(machine, device))


def _slices(machine: Machine, device: Device) -> set[str]:
    match device.vendor:
        case "ascend":
            place = hetero_ascend._place(device)
            return set(map(str, hetero_ascend._vnpus(hetero_ascend._DCMI.open(), *place)))
        case "hygon":
            return {v.path.name for v in hetero_hygon._vdevs(machine.directory / "hygon")}
        case "cambricon":
            cndev = hetero_cambricon._CNDEV.open()
            entries = hetero_cambricon._instances(cndev, device.index)
            return {instance.name.decode() for instance in entries}
        case "metax":
            mxsml = hetero_metax._MXSML.open()
            entries = hetero_metax._slices(mxsml, device.index)
            return {hetero_metax._alias(mxsml, device.index, n) for n in entries}
    raise AssertionError(device.vendor)


def die_after(doing: Callable[[], object]) -> None:
    """Do it, or as much of it as its vendor lives for, in a process that is then killed."""
    pid = os.fork()
    if pid == 0:
        with suppress(Refused):
            doing()
        os.kill(os.getpid(), signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert signal.SIGKILL == os.WTERMSIG(status)
