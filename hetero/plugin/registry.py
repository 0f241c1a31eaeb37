"""Finds the vendors and asks them, one at a time, so that a broken one is a row and no outage."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pluggy
from attrs import define, evolve, field

from hetero.model import Allocation, Device, Edits, Inventory, Usage
from hetero.model.errors import DriverAbsent, NotFound, Refused
from hetero.model.frozen import frozen
from hetero.plugin import hookspecs
from hetero.plugin.driver import DriverError
from hetero.plugin.entry_points import entries
from hetero.plugin.guard import Failure, GuardedCall, guarded
from hetero.plugin.vendor import Vendor

T = TypeVar("T")

#: Seconds a vendor may take to answer before the node goes on without it; a driver that hangs must
#: hang nobody else. Cutting hardware into slices is slower than reading it.
LOOK, CUT = 5.0, 20.0


@frozen(kw_only=True)
class VendorRow:
    """One installed vendor as `hetero vendors` shows it.

    `state` is "ok", "partial" (some of its cards cannot be used), "absent" (its driver is not
    installed here) or "broken"; `reason` says why. `source` is the distribution and version it
    came from.
    """

    name: str
    source: str
    state: str
    reason: str | None = None
    devices: int = 0
    title: str | None = None

    @property
    def works(self) -> bool:
        """Whether cards of this vendor can be given out."""
        return self.state in ("ok", "partial")


@frozen(kw_only=True)
class Discovery:
    """What one look at the node found, and the declarations it is read by.

    The grants of vendors in `cutting` may have slices that outlive their processes.
    """

    devices: tuple[Device, ...]
    rows: tuple[VendorRow, ...]
    vendors: tuple[Vendor, ...] = ()
    cutting: frozenset[str] = frozenset()

    @property
    def inventory(self) -> Inventory:
        """The devices with nothing standing on them."""
        return Inventory(self.devices)


#: A plugin that was not loaded yet: its name, where it came from, and what loads it.
Plugin = tuple[str, str, Callable[[], object]]


def installed() -> Iterator[Plugin]:
    """Yield every plugin of the entry point group `hetero.plugin.vendor` in this environment."""
    for entry in entries(hookspecs.GROUP):
        yield entry.name, entry.source, entry.load


class _Loaded:
    """The plugins that were loaded: a row for each, and of those that work what answers."""

    def __init__(self) -> None:
        self.rows: list[VendorRow] = []
        self.vendors: dict[str, Vendor] = {}
        self.hooks: dict[str, pluggy.HookRelay] = {}


@define(eq=False, repr=False, slots=False)
class Registry:
    """The vendors of one process, each behind a guard; they are loaded when one is first asked.

    They are those installed in this environment; `Registry.of(module, ...)` takes others.
    """

    _plugins: Callable[[], Iterable[Plugin]] = installed
    _owed: dict[str, GuardedCall[Any]] = field(factory=dict, init=False)
    _asking: threading.Lock = field(factory=threading.Lock, init=False)

    @classmethod
    def of(cls, *plugins: object) -> Registry:
        """Return a registry of the given plugin objects, named by their declarations."""

        def given() -> Iterator[Plugin]:
            for plugin in plugins:
                name = str(getattr(plugin, "__name__", type(plugin).__name__))
                yield name, "in process", lambda plugin=plugin: plugin  # type: ignore[misc]

        return cls(given)

    @cached_property
    def _loaded(self) -> _Loaded:
        loaded = _Loaded()
        for name, source, load in self._plugins():
            try:
                vendor, hooks = _load(name, load)
                if vendor.name in loaded.vendors:
                    raise Failure(f"{name}: another plugin is the vendor {vendor.name!r} already")
            except (Failure, DriverAbsent) as failure:
                row = VendorRow(name=name, source=source, state="broken", reason=str(failure))
            else:
                loaded.vendors[vendor.name], loaded.hooks[vendor.name] = vendor, hooks
                row = VendorRow(name=vendor.name, source=source, state="ok", title=vendor.title)
            loaded.rows.append(row)
        return loaded

    def vendor(self, name: str) -> Vendor:
        """Return the declaration of a working vendor. Raises `NotFound`."""
        if name not in self._loaded.vendors:
            reasons = (row.reason for row in self._loaded.rows if row.name == name and row.reason)
            raise NotFound(next(reasons, f"no vendor {name!r} is installed"))
        return self._loaded.vendors[name]

    def declarations(self) -> tuple[Vendor, ...]:
        """Return the declarations of all working vendors."""
        return tuple(self._loaded.vendors.values())

    def discover(self) -> Discovery:
        """Look at the node once through every vendor, all of them at the same time."""
        loaded = self._loaded
        found: dict[str, list[Device]] = {}
        faults: dict[str, list[str]] = {}
        rows = {row.name: row for row in loaded.rows if row.state == "ok"}
        calls: dict[str, GuardedCall[tuple[list[Device], list[str]]]] = {}
        for name in loaded.vendors:
            discover = partial(_discovered, name, loaded.hooks[name].hetero_discover)
            try:
                calls[name] = self._start(name, "discover", discover, within=LOOK)
            except Failure as failure:
                rows[name] = evolve(rows[name], state="broken", reason=str(failure))
        for name, call in calls.items():
            try:
                found[name], faults[name] = call.answer()
            except DriverAbsent as absent:
                rows[name] = evolve(rows[name], state="absent", reason=str(absent))
            except Failure as failure:
                rows[name] = evolve(rows[name], state="broken", reason=str(failure))
        count = Counter(device.uuid for devices in found.values() for device in devices)
        for name, devices in found.items():
            found[name], rows[name] = _addressable(rows[name], devices, faults[name], count)
        return Discovery(
            devices=tuple(device for devices in found.values() for device in devices),
            rows=tuple(rows[row.name] if row.state == "ok" else row for row in loaded.rows),
            vendors=tuple(loaded.vendors.values()),
            cutting=frozenset(filter(self.cuts, loaded.vendors)),
        )

    def enforce(
        self,
        allocation: Allocation,
        devices: Iterable[Device],
        *,
        directory: Path,
        container: bool = False,
    ) -> Edits:
        """Return the edits that confine a container to `allocation`, of all its vendors together.

        Vendors that cut slices keep their notes in subdirectories of `directory`. Raises `Refused`
        when a vendor fails: what cannot be confined is not started. What the others have made by
        then is an orphan, for `reconcile` to remove.
        """
        by_uuid = {device.uuid: device for device in devices}
        edits = Edits()
        for name in dict.fromkeys(piece.vendor for piece in allocation.pieces):
            vendor = self.vendor(name)
            pieces = tuple(piece for piece in allocation.pieces if piece.vendor == name)
            mine = [by_uuid[piece.device] for piece in pieces]
            part = evolve(allocation, pieces=pieces)
            enforce = partial(
                self._loaded.hooks[name].hetero_enforce,
                allocation=part,
                devices=mine,
                directory=directory / name,
                container=container,
            )
            try:
                said = self._ask(name, "enforce", _said(Edits, enforce), within=CUT)
            except (Failure, DriverAbsent) as failure:
                raise Refused(str(failure)) from None
            implied = vendor.implied(pieces, mine, container=container)
            edits = edits.merged(implied).merged(said or Edits())
        return edits

    def cuts(self, name: str) -> bool:
        """Whether a vendor's grants may have slices that outlive their processes."""
        return bool(self._loaded.hooks[name].hetero_reconcile.get_hookimpls())

    def reconcile(
        self, devices: Iterable[Device], standing: Iterable[Allocation], *, directory: Path
    ) -> tuple[str, ...]:
        """Destroy the slices no standing grant holds; return a sentence about each failure."""
        parts: dict[str, set[str]] = {}
        for allocation in standing:
            for piece in allocation.pieces:
                if piece.part is not None:
                    parts.setdefault(piece.device, set()).add(piece.part)
        faults: list[str] = []
        for device in devices:
            if not self.cuts(device.vendor):
                continue
            reconcile = partial(
                self._loaded.hooks[device.vendor].hetero_reconcile,
                device=device,
                parts=frozenset(parts.get(device.uuid, ())),
                directory=directory / device.vendor,
            )
            try:
                self._ask(device.vendor, "reconcile", reconcile, within=CUT)
            except (Failure, DriverAbsent) as failure:
                faults.append(str(failure))
        return tuple(faults)

    def observe(self, device: Device) -> Usage:
        """Return the device's usage now; everything unknown when its vendor fails."""
        observe = partial(self._loaded.hooks[device.vendor].hetero_observe, device=device)
        try:
            return (
                self._ask(device.vendor, "observe", _said(Usage, observe), within=LOOK) or Usage()
            )
        except (Failure, DriverAbsent):
            return Usage()

    def _start(
        self, name: str, stage: str, ask: Callable[[], T], *, within: float
    ) -> GuardedCall[T]:
        """Put a question to a vendor once it answered the one before; not if that is overdue."""
        while True:
            with self._asking:
                owed = self._owed.get(name)
                if owed is None or owed.done.is_set():
                    call = GuardedCall(name, stage, ask, within)
                    self._owed[name] = call
                    return call
            if not owed.over():
                raise Failure(f"{name}: {stage}: not asked, since {owed.stage} still has no answer")

    def _ask(self, name: str, stage: str, ask: Callable[[], T], *, within: float) -> T:
        return self._start(name, stage, ask, within=within).answer()


def _load(name: str, load: Callable[[], object]) -> tuple[Vendor, pluggy.HookRelay]:
    """Return a plugin's declaration and its hooks. Raises `Failure` for whatever it does wrong."""
    plugin = guarded(name, "load", load)
    hooks = guarded(name, "register", lambda: _register(plugin, name))
    vendor = guarded(name, "hetero_vendor", hooks.hetero_vendor)
    if not isinstance(vendor, Vendor):
        raise Failure(f"{name}: hetero_vendor: returned {vendor!r}, not a Vendor")
    return vendor, hooks


def _discovered(
    name: str, ask: Callable[[], Iterable[object] | None]
) -> tuple[list[Device], list[str]]:
    """Return one vendor's devices, and the sentence about every card it could not read."""
    devices: list[Device] = []
    faults: list[str] = []
    for card in ask() or ():
        if isinstance(card, DriverError):
            faults.append(str(card))
        elif isinstance(card, Device) and card.vendor == name:
            devices.append(card)
        else:
            raise Failure(f"{name}: discover: gave {card!r}, not a Device of its own")
    return devices, faults


def _addressable(
    row: VendorRow, devices: list[Device], faults: list[str], count: Mapping[str, int]
) -> tuple[list[Device], VendorRow]:
    """Return a vendor's devices but for those whose UUID counts twice, and its row."""
    shared = sorted({device.uuid for device in devices if count[device.uuid] > 1})
    why = faults + [
        f"{count[uuid]} cards have the UUID {uuid}: none of them can be addressed"
        for uuid in shared
    ]
    left = [device for device in devices if device.uuid not in shared]
    state = "ok" if not why else "partial" if left else "broken"
    reason = f"{row.name}: discover: {'; '.join(why)}" if why else None
    return left, evolve(row, state=state, reason=reason, devices=len(left))


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


def _said(kind: type[T], ask: Callable[[], object]) -> Callable[[], T | None]:
    """Return the question with its answer checked: what is said, if anything, is a `kind`."""

    def asked() -> T | None:
        answer = ask()
        if answer is not None and not isinstance(answer, kind):
            raise TypeError(f"gave {answer!r}, not {kind.__name__}")
        return answer

    return asked
