"""Finds the vendors and asks them, one at a time, so that a broken one is a row and no outage."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from types import SimpleNamespace
from typing import Any, TypeVar

import pluggy
from attrs import evolve, frozen

from hetero import hookspecs
from hetero.errors import DriverAbsent, NotFound
from hetero.model import Allocation, Device, Edits, Inventory, Usage
from hetero.vendor import Vendor

T = TypeVar("T")


@frozen(kw_only=True)
class VendorRow:
    """One installed vendor as `hetero vendors` shows it.

    `state` is "ok", "absent" (its driver is not installed here) or "broken"; `reason` says why.
    `source` is the distribution and version it came from.
    """

    name: str
    source: str
    state: str
    reason: str | None = None
    devices: int = 0
    title: str | None = None


@frozen(kw_only=True)
class Discovery:
    """What one look at the node found."""

    devices: tuple[Device, ...]
    rows: tuple[VendorRow, ...]

    @property
    def inventory(self) -> Inventory:
        """The devices with nothing standing on them."""
        return Inventory(self.devices)


class _Failure(Exception):
    """A vendor's hook raised; carries the sentence for its row."""


class Registry:
    """The vendors of one process, each behind a guard.

    `Registry.installed()` loads every entry point of the group `hetero.vendor`;
    `Registry.of(module, ...)` takes plugins directly.
    """

    def __init__(self) -> None:
        self._plugins = pluggy.PluginManager("hetero")
        self._plugins.add_hookspecs(hookspecs)
        self._rows: dict[str, VendorRow] = {}
        self._vendors: dict[str, Vendor] = {}

    @classmethod
    def installed(cls) -> Registry:
        """Return a registry of every vendor installed in this environment."""
        registry = cls()
        for entry in sorted(entry_points(group=hookspecs.GROUP), key=lambda entry: entry.name):
            registry._add(entry.name, _source(entry), entry.load)
        return registry

    @classmethod
    def of(cls, *plugins: object) -> Registry:
        """Return a registry of the given plugin objects, named by their declarations."""
        registry = cls()
        for plugin in plugins:
            name = str(getattr(plugin, "__name__", type(plugin).__name__))
            registry._add(name, "in process", lambda plugin=plugin: plugin)  # type: ignore[misc]
        return registry

    def _add(self, name: str, source: str, load: Callable[[], object]) -> None:
        """Load, register and question one plugin; whatever it does wrong becomes its row."""
        try:
            plugin = _guard(name, "load", load)
            _guard(name, "register", lambda: self._register(plugin, name))
            vendor = _guard(name, "hetero_vendor", self._hook(name).hetero_vendor)
            if not isinstance(vendor, Vendor):
                raise _Failure(f"{name}: hetero_vendor: returned {vendor!r}, not a Vendor")
            if vendor.name in self._vendors:
                raise _Failure(f"{name}: another plugin is the vendor {vendor.name!r} already")
        except _Failure as failure:
            self._unregister(name)
            row = VendorRow(name=name, source=source, state="broken", reason=str(failure))
            self._rows[name] = row
            return
        if vendor.name != name:
            plugin = self._plugins.unregister(name=name)
            self._plugins.register(plugin, vendor.name)
        self._vendors[vendor.name] = vendor
        self._rows[vendor.name] = VendorRow(
            name=vendor.name, source=source, state="ok", title=vendor.title
        )

    def _register(self, plugin: object, name: str) -> None:
        self._plugins.register(plugin, name)
        self._plugins.check_pending()  # a misspelt hook is an error, not a silence

    def _unregister(self, name: str) -> None:
        if self._plugins.has_plugin(name):
            self._plugins.unregister(name=name)

    def _hook(self, name: str) -> SimpleNamespace:
        """Return the hooks that ask the one vendor `name` and nobody else."""
        plugins = self._plugins
        others = [plugin for other, plugin in plugins.list_name_plugin() if other != name]
        hooks = {
            hook: plugins.subset_hook_caller(hook, others)
            for hook in ("hetero_vendor", "hetero_discover", "hetero_enforce", "hetero_observe")
        }
        return SimpleNamespace(**hooks)

    def vendor(self, name: str) -> Vendor:
        """Return the declaration of a working vendor. Raises `NotFound`."""
        if name not in self._vendors:
            row = self._rows.get(name)
            why = row.reason if row and row.reason else f"no vendor {name!r} is installed"
            raise NotFound(why)
        return self._vendors[name]

    def discover(self) -> Discovery:
        """Look at the node once through every vendor."""
        devices: list[Device] = []
        rows: list[VendorRow] = []
        for name, row in self._rows.items():
            if row.state != "ok":
                rows.append(row)
                continue
            try:
                # list() inside the guard: a hook may be a generator that fails half-way.
                found = _guard(
                    name,
                    "discover",
                    lambda name=name: _devices(name, self._hook(name)),  # type: ignore[misc]
                )
            except DriverAbsent as absent:
                rows.append(evolve(row, state="absent", reason=str(absent)))
            except _Failure as failure:
                rows.append(evolve(row, state="broken", reason=str(failure)))
            else:
                devices += found
                rows.append(evolve(row, devices=len(found)))
        return Discovery(devices=tuple(devices), rows=tuple(rows))

    def enforce(self, allocation: Allocation, devices: Iterable[Device]) -> Edits:
        """Return the edits that confine a container to `allocation`, of all its vendors together.

        Raises `NotFound` when a vendor fails: what cannot be confined is not started.
        """
        by_uuid = {device.uuid: device for device in devices}
        env: dict[str, str] = {}
        mounts: list[Any] = []
        nodes: list[str] = []
        cdi: list[str] = []
        for name in dict.fromkeys(grant.vendor for grant in allocation.grants):
            vendor = self.vendor(name)
            grants = tuple(grant for grant in allocation.grants if grant.vendor == name)
            mine = [by_uuid[grant.device] for grant in grants]
            part = evolve(allocation, grants=grants)
            try:
                edits = _guard(
                    name,
                    "enforce",
                    lambda name=name, part=part, mine=mine: self._hook(name).hetero_enforce(  # type: ignore[misc]
                        allocation=part, devices=mine
                    ),
                )
            except (_Failure, DriverAbsent) as failure:
                raise NotFound(str(failure)) from None
            edits = edits or _implied(vendor, part, mine)
            env.update(edits.env)
            mounts += edits.mounts
            nodes += edits.device_nodes
            cdi += edits.cdi
        return Edits(env=env, mounts=tuple(mounts), device_nodes=tuple(nodes), cdi=tuple(cdi))

    def observe(self, device: Device) -> Usage:
        """Return the device's usage now; everything unknown when its vendor fails."""
        try:
            usage = _guard(
                device.vendor,
                "observe",
                lambda: self._hook(device.vendor).hetero_observe(device=device),
            )
        except (_Failure, DriverAbsent):
            usage = None
        return usage or Usage()


def _guard(name: str, stage: str, ask: Callable[[], T]) -> T:
    """Call into a vendor: the only place where any exception at all is caught."""
    try:
        return ask()
    except (DriverAbsent, _Failure):
        raise
    except Exception as error:
        said = str(error) or type(error).__name__
        prefix = f"{name}: {stage}: "
        raise _Failure(said if said.startswith(prefix) else prefix + said) from error


def _devices(name: str, hook: SimpleNamespace) -> list[Device]:
    found = list(hook.hetero_discover() or ())
    seen: set[str] = set()
    for device in found:
        if not isinstance(device, Device) or device.vendor != name:
            raise _Failure(f"{name}: discover: gave {device!r}, not a Device of its own")
        if device.uuid in seen:
            raise _Failure(f"{name}: discover: two devices have the UUID {device.uuid}")
        seen.add(device.uuid)
    return found


def _implied(vendor: Vendor, allocation: Allocation, devices: list[Device]) -> Edits:
    """What a declaration implies: its visibility variables list the granted devices or parts."""
    names = [
        grant.part or (device.uuid if vendor.visible_by == "uuid" else str(device.index))
        for grant, device in zip(allocation.grants, devices, strict=True)
    ]
    return Edits(env={variable: ",".join(names) for variable in vendor.visible})


def _source(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
