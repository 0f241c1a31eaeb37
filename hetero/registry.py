"""Finds the vendors and asks them, one at a time, so that a broken one is a row and no outage."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
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
        self._rows: list[VendorRow] = []
        self._vendors: dict[str, Vendor] = {}
        self._hooks: dict[str, pluggy.HookRelay] = {}

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
            hooks = _guard(name, "register", lambda: _register(plugin, name))
            vendor = _guard(name, "hetero_vendor", hooks.hetero_vendor)
            if not isinstance(vendor, Vendor):
                raise _Failure(f"{name}: hetero_vendor: returned {vendor!r}, not a Vendor")
            if vendor.name in self._vendors:
                raise _Failure(f"{name}: another plugin is the vendor {vendor.name!r} already")
        except (_Failure, DriverAbsent) as failure:
            self._rows.append(
                VendorRow(name=name, source=source, state="broken", reason=str(failure))
            )
            return
        self._vendors[vendor.name] = vendor
        self._hooks[vendor.name] = hooks
        self._rows.append(
            VendorRow(name=vendor.name, source=source, state="ok", title=vendor.title)
        )

    def vendor(self, name: str) -> Vendor:
        """Return the declaration of a working vendor. Raises `NotFound`."""
        if name not in self._vendors:
            reasons = (row.reason for row in self._rows if row.name == name and row.reason)
            raise NotFound(next(reasons, f"no vendor {name!r} is installed"))
        return self._vendors[name]

    def discover(self) -> Discovery:
        """Look at the node once through every vendor."""
        devices: list[Device] = []
        rows: list[VendorRow] = []
        for row in self._rows:
            if row.state != "ok":
                rows.append(row)
                continue
            name = row.name
            try:
                # list() inside the guard: a hook may be a generator that fails half-way.
                found = _guard(
                    name,
                    "discover",
                    lambda name=name: _devices(name, self._hooks[name]),  # type: ignore[misc]
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
        files: list[str] = []
        for name in dict.fromkeys(grant.vendor for grant in allocation.grants):
            vendor = self.vendor(name)
            grants = tuple(grant for grant in allocation.grants if grant.vendor == name)
            mine = [by_uuid[grant.device] for grant in grants]
            part = evolve(allocation, grants=grants)
            try:
                edits = _guard(
                    name,
                    "enforce",
                    lambda name=name, part=part, mine=mine, vendor=vendor: (  # type: ignore[misc]
                        _said(
                            Edits, self._hooks[name].hetero_enforce(allocation=part, devices=mine)
                        )
                        or _implied(vendor, part, mine)
                    ),
                )
            except (_Failure, DriverAbsent) as failure:
                raise NotFound(str(failure)) from None
            env.update(edits.env)
            mounts += edits.mounts
            nodes += edits.device_nodes
            cdi += edits.cdi
            files += edits.files
        return Edits(
            env=env,
            mounts=tuple(mounts),
            device_nodes=tuple(nodes),
            cdi=tuple(cdi),
            files=tuple(files),
        )

    def observe(self, device: Device) -> Usage:
        """Return the device's usage now; everything unknown when its vendor fails."""
        try:
            usage = _guard(
                device.vendor,
                "observe",
                lambda: _said(Usage, self._hooks[device.vendor].hetero_observe(device=device)),
            )
        except (_Failure, DriverAbsent):
            usage = None
        return usage or Usage()


def _register(plugin: object, name: str) -> pluggy.HookRelay:
    """Give the plugin a manager of its own, so that no call ever reaches a second vendor."""
    manager = pluggy.PluginManager("hetero")
    manager.add_hookspecs(hookspecs)
    manager.register(plugin, name)
    manager.check_pending()  # a misspelt hook is an error, not a silence
    return manager.hook


def _guard(name: str, stage: str, ask: Callable[[], T]) -> T:
    """Call into a vendor: the only place where any exception at all is caught, even an exit."""
    try:
        return ask()
    except (DriverAbsent, _Failure):
        raise
    except (Exception, SystemExit) as error:
        said = str(error) or type(error).__name__
        prefix = f"{name}: {stage}: "
        raise _Failure(said if said.startswith(prefix) else prefix + said) from error


def _said(kind: type[T], answer: object) -> T | None:
    if answer is not None and not isinstance(answer, kind):
        raise TypeError(f"gave {answer!r}, not {kind.__name__}")
    return answer


def _devices(name: str, hook: pluggy.HookRelay) -> list[Device]:
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
    """What a declaration implies: the granted devices or parts are listed, and can be opened."""
    names = [
        grant.part or (device.uuid if vendor.visible_by == "uuid" else str(device.index))
        for grant, device in zip(allocation.grants, devices, strict=True)
    ]

    def filled_in(texts: tuple[str, ...]) -> tuple[str, ...]:
        # What the driver has for itself is the same for every device.
        facts = [{"index": device.index, **device.attributes} for device in devices]
        return tuple(dict.fromkeys(text.format_map(each) for text in texts for each in facts))

    return Edits(
        env={variable: ",".join(names) for variable in vendor.visible},
        device_nodes=filled_in(vendor.device_nodes),
        cdi=tuple(
            f"{vendor.cdi}={grant.part or grant.device}"
            for grant in allocation.grants
            if vendor.cdi
        ),
        files=filled_in(vendor.files),
    )


def _source(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
