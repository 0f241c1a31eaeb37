"""Asks the hooks of one vendor, in whatever process this is, and answers whatever they do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar

import pluggy
from attrs import evolve

from hetero.model import Device, Edits, Usage
from hetero.model.errors import DriverAbsent
from hetero.plugin import hookspecs
from hetero.plugin.driver import DriverError
from hetero.plugin.service import Service
from hetero.plugin.vendor import Vendor
from hetero.registry.message import SHOWN, Failure, Serve, WorkerReply, WorkerRequest

T = TypeVar("T")


class Plugin(Protocol):
    """A vendor that was not loaded yet. All but `load` is known without running its code."""

    @property
    def name(self) -> str:
        """The name of its entry point."""

    @property
    def source(self) -> str:
        """The distribution it came with, and its version."""

    @property
    def file(self) -> str | None:
        """Where its code is."""

    def load(self) -> object:
        """Return the module or object with its hooks; this runs its code."""


class Respondent:
    """One vendor, loaded at the first question. Nothing it raises passes, not even an exit."""

    def __init__(self, plugin: Plugin) -> None:
        self._name, self._load = plugin.name, plugin.load
        self._hooks: pluggy.HookRelay | None = None
        self._vendor: Vendor | None = None

    def answer(self, question: WorkerRequest) -> WorkerReply:
        """Return what the vendor says to a question, or the sentence why it says nothing."""
        first = self._vendor is None
        try:
            reply = self._asked(question)
        except DriverAbsent as absent:
            reply = WorkerReply(failure=_line(str(absent)), absent=True)
        except Failure as failure:
            reply = WorkerReply(failure=_line(str(failure)))
        if self._vendor is None or self._hooks is None:
            return evolve(reply, loaded=False, absent=False)
        if question.ask == "vendor":
            return _introduced(reply, self._vendor, self._hooks)
        if first:
            # Only a cluster's services need the rest, and it is most of it.
            lean = evolve(self._vendor, models=(), resource_names=())
            return _introduced(reply, lean, self._hooks)
        return reply

    def _asked(self, question: WorkerRequest) -> WorkerReply:
        if self._hooks is None or self._vendor is None:
            self._hooks, self._vendor = _loaded(self._name, self._load)
            self._name = self._vendor.name
        hooks, name = self._hooks, self._name
        directory = Path(question.directory)

        def ask(do: Callable[[], T]) -> T:
            return guarded(name, question.ask, do)

        match question:
            case WorkerRequest(ask="vendor"):
                return WorkerReply()
            case WorkerRequest(ask="discover"):
                return ask(lambda: _discovered(name, hooks.hetero_discover()))
            case WorkerRequest(ask="enforce", allocation=allocation) if allocation is not None:
                edits = ask(
                    lambda: _expect(
                        Edits,
                        hooks.hetero_enforce(
                            allocation=allocation,
                            devices=list(question.devices),
                            directory=directory,
                            container=question.container,
                        ),
                    )
                )
                return WorkerReply(edits=edits)
            case WorkerRequest(ask="reconcile", device=device) if device is not None:
                parts = frozenset(question.parts)
                ask(lambda: hooks.hetero_reconcile(device=device, parts=parts, directory=directory))
                return WorkerReply()
            case WorkerRequest(ask="observe", device=device) if device is not None:
                usage = ask(lambda: _expect(Usage, hooks.hetero_observe(device=device)))
                return WorkerReply(usage=usage)
            case WorkerRequest(ask="serve"):
                return WorkerReply(service=ask(lambda: _served(hooks, question)))
            case WorkerRequest(ask="watch"):
                return _news(ask(lambda: _expect(dict, hooks.hetero_watch())))
        raise Failure(f"{name}: {question.ask} is not asked of a vendor")


def _introduced(reply: WorkerReply, vendor: Vendor, hooks: pluggy.HookRelay) -> WorkerReply:
    """Return an answer that says whose it is, and which hooks are there that not all need."""
    return evolve(
        reply,
        vendor=vendor,
        cuts=bool(hooks.hetero_reconcile.get_hookimpls()),
        serves=bool(hooks.hetero_serve.get_hookimpls()),
        watches=bool(hooks.hetero_watch.get_hookimpls()),
    )


def guarded(name: str, stage: str, ask: Callable[[], T]) -> T:
    """Call into a vendor, and turn whatever it raises, even an exit, into a `Failure`."""
    try:
        return ask()
    except (DriverAbsent, Failure):
        raise
    except BaseException as error:  # an exit or an interrupt of the vendor's own
        message = str(error) or type(error).__name__
        prefix = f"{name}: {stage}: "
        raise Failure(message if message.startswith(prefix) else prefix + message) from error


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else line[: SHOWN - 1] + "…"


def _loaded(name: str, load: Callable[[], object]) -> tuple[pluggy.HookRelay, Vendor]:
    """Return a plugin's hooks and its declaration. Raises `Failure` for whatever it does wrong."""
    plugin = guarded(name, "load", load)
    hooks = guarded(name, "register", lambda: _register(plugin, name))
    vendor = guarded(name, "hetero_vendor", hooks.hetero_vendor)
    if not isinstance(vendor, Vendor):
        raise Failure(f"{name}: hetero_vendor: returned {vendor!r}, not a Vendor")
    return hooks, vendor


def _discovered(name: str, cards: Iterable[object] | None) -> WorkerReply:
    """Return one vendor's devices, and the sentence about every card it could not read."""
    devices: list[Device] = []
    faults: list[str] = []
    for card in cards or ():
        if isinstance(card, DriverError):
            faults.append(_line(str(card)))
        elif isinstance(card, Device) and card.vendor == name:
            long = card.health is not None and len(card.health) > SHOWN
            devices.append(evolve(card, health=_line(card.health or "")) if long else card)
        else:
            raise TypeError(f"gave {card!r}, not a Device of its own")
    return WorkerReply(devices=tuple(devices), faults=tuple(faults))


def _news(news: dict[str, str] | None) -> WorkerReply:
    if news is None:
        return WorkerReply()
    return WorkerReply(health={uuid: _line(why) for uuid, why in news.items()})


def _served(hooks: pluggy.HookRelay, question: WorkerRequest) -> Service | None:
    directory = Path(question.directory)
    driver = hooks.hetero_serve(device=question.device, directory=directory)
    if driver is None:
        return None
    match question.do:
        case Serve.START:
            return _expect(Service, driver.start(question.memory))
        case Serve.END:
            return _expect(Service, driver.end(question.process))
        case Serve.STOP:
            return _expect(Service, driver.stop())
    return _expect(Service, driver.look())


def _expect(kind: type[T], returned: object) -> T | None:
    """Return what a hook said, if anything. Raises `TypeError` unless it is a `kind`."""
    if returned is not None and not isinstance(returned, kind):
        raise TypeError(f"gave {returned!r}, not {kind.__name__}")
    return returned


class _Manager(pluggy.PluginManager):
    """pluggy's manager, but of a module it looks closely only at what is marked as a hook.

    pluggy inspects every name of a module: with seven vendors that is 3 % of the instructions of an
    admission, which is more than the threshold leaves (`benchmarks/admission.py --count`).
    """

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        mark = f"{self.project_name}_impl"
        if isinstance(plugin, ModuleType) and not hasattr(vars(plugin).get(name), mark):
            return None
        return super().parse_hookimpl_opts(plugin, name)


def _register(plugin: object, name: str) -> pluggy.HookRelay:
    """Give the plugin a manager of its own, so that no call ever reaches a second vendor."""
    manager = _Manager("hetero")
    manager.add_hookspecs(hookspecs)
    manager.register(plugin, name)
    manager.check_pending()  # a misspelt hook is an error, not a silence
    return manager.hook
