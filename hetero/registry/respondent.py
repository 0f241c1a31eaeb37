"""Calls the hooks of one vendor, in any process, and turns whatever they do into a reply."""

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
from hetero.plugin.discovery import reading_links
from hetero.plugin.driver import DriverError
from hetero.plugin.service import Service
from hetero.plugin.vendor import Vendor
from hetero.registry.message import SHOWN_LENGTH, Failure, Serve, WorkerReply, WorkerRequest

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
    """One vendor, loaded at the first request. Nothing it raises passes, not even an exit."""

    def __init__(self, plugin: Plugin) -> None:
        self._name, self._load = plugin.name, plugin.load
        self._hooks: pluggy.HookRelay | None = None
        self._vendor: Vendor | None = None

    def answer(self, request: WorkerRequest) -> WorkerReply:
        """Return the reply of the vendor to a request, or the sentence why there is none."""
        is_first = self._vendor is None
        try:
            reply = self._asked(request)
        except DriverAbsent as absence:
            reply = WorkerReply(failure=_line(str(absence)), absent=True)
        except Failure as failure:
            reply = WorkerReply(failure=_line(str(failure)))
        if self._vendor is None or self._hooks is None:
            return evolve(reply, loaded=False, absent=False)
        if request.ask == "vendor":
            return _introduced(reply, self._vendor, self._hooks)
        if is_first:
            # Only a cluster's services need the rest, and it is most of it.
            lean_vendor = evolve(self._vendor, models=(), resource_names=(), ineffective_words=())
            return _introduced(reply, lean_vendor, self._hooks)
        return reply

    def _asked(self, request: WorkerRequest) -> WorkerReply:
        if self._hooks is None or self._vendor is None:
            self._hooks, self._vendor = _loaded(self._name, self._load)
            self._name = self._vendor.name
        hooks, vendor_name = self._hooks, self._name
        directory = Path(request.directory)

        def guarded_call(call: Callable[[], T]) -> T:
            return guarded(vendor_name, request.ask, call)

        match request:
            case WorkerRequest(ask="vendor"):
                return WorkerReply()
            case WorkerRequest(ask="discover"):
                with reading_links(wanted=request.links):
                    reply = guarded_call(lambda: _discovered(vendor_name, hooks.hetero_discover()))
                return reply if request.links else _without_links(reply)
            case WorkerRequest(ask="enforce", allocation=allocation) if allocation is not None:
                edits = guarded_call(
                    lambda: _expect(
                        Edits,
                        hooks.hetero_enforce(
                            allocation=allocation,
                            devices=list(request.devices),
                            directory=directory,
                            container=request.container,
                        ),
                    )
                )
                return WorkerReply(edits=edits)
            case WorkerRequest(ask="reconcile", device=device) if device is not None:
                parts = frozenset(request.parts)
                guarded_call(
                    lambda: hooks.hetero_reconcile(device=device, parts=parts, directory=directory)
                )
                return WorkerReply()
            case WorkerRequest(ask="observe" | "measure", device=device) if device is not None:
                return guarded_call(lambda: _looked_at(hooks, request.ask, device))
            case WorkerRequest(ask="serve"):
                return WorkerReply(service=guarded_call(lambda: _served(hooks, request)))
            case WorkerRequest(ask="watch"):
                faults = dict(request.faults)
                return _news(guarded_call(lambda: _expect(dict, hooks.hetero_watch(faults=faults))))
        raise Failure(f"{vendor_name}: {request.ask} is not asked of a vendor")


def _introduced(reply: WorkerReply, vendor: Vendor, hooks: pluggy.HookRelay) -> WorkerReply:
    """Return a reply with the vendor's declaration, and which optional hooks it has."""
    return evolve(
        reply,
        vendor=vendor,
        cuts=bool(hooks.hetero_reconcile.get_hookimpls()),
        serves=bool(hooks.hetero_serve.get_hookimpls()),
        watches=bool(hooks.hetero_watch.get_hookimpls()),
    )


def guarded(plugin_name: str, stage: str, call: Callable[[], T]) -> T:
    """Call into a vendor, and turn whatever it raises, even an exit, into a `Failure`."""
    try:
        return call()
    except (DriverAbsent, Failure):
        raise
    except BaseException as error:  # an exit or an interrupt of the vendor's own
        message = str(error) or type(error).__name__
        prefix = f"{plugin_name}: {stage}: "
        raise Failure(message if message.startswith(prefix) else prefix + message) from error


def _line(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= SHOWN_LENGTH else line[: SHOWN_LENGTH - 1] + "…"


def _loaded(plugin_name: str, load: Callable[[], object]) -> tuple[pluggy.HookRelay, Vendor]:
    """Return a plugin's hooks and its declaration. Raises `Failure` for whatever it does wrong."""
    plugin = guarded(plugin_name, "load", load)
    hooks = guarded(plugin_name, "register", lambda: _register(plugin, plugin_name))
    vendor = guarded(plugin_name, "hetero_vendor", hooks.hetero_vendor)
    if not isinstance(vendor, Vendor):
        raise Failure(f"{plugin_name}: hetero_vendor: returned {vendor!r}, not a Vendor")
    return hooks, vendor


def _discovered(vendor_name: str, cards: Iterable[object] | None) -> WorkerReply:
    """Return one vendor's devices, and the sentence about every card it could not read."""
    devices: list[Device] = []
    faults: list[str] = []
    for card in cards or ():
        if isinstance(card, DriverError):
            faults.append(_line(str(card)))
        elif isinstance(card, Device) and card.vendor == vendor_name:
            is_long = card.health is not None and len(card.health) > SHOWN_LENGTH
            devices.append(evolve(card, health=_line(card.health or "")) if is_long else card)
        else:
            raise TypeError(f"gave {card!r}, not a Device of its own")
    return WorkerReply(devices=tuple(devices), faults=tuple(faults))


def _without_links(reply: WorkerReply) -> WorkerReply:
    """Return a reply without the links of devices, which a vendor may have read by itself."""
    devices = (evolve(device, links=()) if device.links else device for device in reply.devices)
    return evolve(reply, devices=tuple(devices))


def _looked_at(hooks: pluggy.HookRelay, ask: str, device: Device) -> WorkerReply:
    """Return how busy a device is, or what a context takes of it."""
    if ask == "observe":
        return WorkerReply(usage=_expect(Usage, hooks.hetero_observe(device=device)))
    return WorkerReply(context=_expect(int, hooks.hetero_measure(device=device)))


def _news(reason_by_uuid: dict[str, str | None] | None) -> WorkerReply:
    if reason_by_uuid is None:
        return WorkerReply()
    return WorkerReply(
        health={
            uuid: None if reason is None else _line(reason)
            for uuid, reason in reason_by_uuid.items()
        }
    )


def _served(hooks: pluggy.HookRelay, request: WorkerRequest) -> Service | None:
    directory = Path(request.directory)
    driver = hooks.hetero_serve(device=request.device, directory=directory)
    if driver is None:
        return None
    match request.do:
        case Serve.START:
            return _expect(Service, driver.start(request.memory))
        case Serve.END:
            return _expect(Service, driver.end(request.process))
        case Serve.STOP:
            return _expect(Service, driver.stop())
    return _expect(Service, driver.look())


def _expect(expected_type: type[T], returned: object) -> T | None:
    """Return what a hook returned. Raises `TypeError` unless it is an `expected_type` or None."""
    if returned is not None and not isinstance(returned, expected_type):
        raise TypeError(f"gave {returned!r}, not {expected_type.__name__}")
    return returned


class _Manager(pluggy.PluginManager):
    """pluggy's manager, but of a module it looks closely only at what is marked as a hook.

    pluggy inspects every name of a module: three million instructions in each vendor's process.
    """

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        mark = f"{self.project_name}_impl"
        if isinstance(plugin, ModuleType) and not hasattr(vars(plugin).get(name), mark):
            return None
        return super().parse_hookimpl_opts(plugin, name)


def _register(plugin: object, plugin_name: str) -> pluggy.HookRelay:
    """Give the plugin a manager of its own, so that no call ever reaches a second vendor."""
    manager = _Manager("hetero")
    manager.add_hookspecs(hookspecs)
    manager.register(plugin, plugin_name)
    manager.check_pending()  # a misspelt hook is an error, not a silence
    return manager.hook
