"""Shipped with the product: the contract every vendor passes, an in-memory vendor and `rack()`.

A vendor's whole test is

    from hetero.plugin.testing import VendorContract
    import hetero_acme

    class TestAcme(VendorContract):
        plugin = hetero_acme
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from hetero.model import (
    CORE,
    MEMORY,
    SLOTS,
    Allocation,
    Ask,
    Device,
    DeviceAllocation,
    Edits,
    Enforcement,
    Fractional,
    Granularity,
    Usage,
    Whole,
    codec,
)
from hetero.model.rounding import Portion, portion
from hetero.plugin.hookspecs import hookimpl
from hetero.plugin.registry import Registry
from hetero.plugin.vendor import Model, Vendor


def rack(
    *memory: int,
    vendor: str = "memory",
    model: str = "M1",
    granularity: Granularity | None = None,
    core: int = 100,
    slots: int = 10,
    **facts: Any,
) -> tuple[Device, ...]:
    """Return one device per size in `memory` (bytes): `rack(80 * GiB, 80 * GiB)`.

    UUIDs are `<vendor>-0`, `<vendor>-1`, …; `facts` are further `Device` fields for all of them.
    """
    return tuple(
        Device(
            uuid=f"{vendor}-{index}",
            vendor=vendor,
            model=model,
            index=index,
            capacity={CORE: core, MEMORY: size, SLOTS: slots},
            granularity=granularity or Fractional(),
            **{"enforcement": Enforcement.NONE, "health": "ok", **facts},
        )
        for index, size in enumerate(memory)
    )


class MemoryVendor:
    """A vendor whose devices are whatever it was given: for tests without a driver."""

    def __init__(
        self, devices: Sequence[Device], *, name: str = "memory", limiter: str | None = None
    ) -> None:
        self.devices = list(devices)
        self.usage: dict[str, Usage] = {}
        self._vendor = Vendor(
            name=name,
            title=name.title(),
            models=(
                Model(match="whole*", granularity=Whole()),
                Model(match="*", granularity=Fractional(), slots=10),
            ),
            visible=(f"{name.upper()}_VISIBLE_DEVICES",),
            limiter=limiter,
        )

    @hookimpl
    def hetero_vendor(self) -> Vendor:
        """Return a declaration that covers every model."""
        return self._vendor

    @hookimpl
    def hetero_discover(self) -> list[Device]:
        """Return the devices as they are now."""
        return self.devices

    @hookimpl
    def hetero_observe(self, device: Device) -> Usage | None:
        """Return the usage set for the device, if any."""
        return self.usage.get(device.uuid)


class VendorContract:
    """What every vendor promises; subclass it, set `plugin`, inherit the tests.

    Discovery runs against whatever driver (or fake driver) the environment offers. Where it finds
    no device that can be used, the tests of devices raise: they would have nothing to check.
    """

    @property
    def plugin(self) -> Any:
        """The plugin under test: a module or an object with hooks; set it in the subclass."""
        raise NotImplementedError(f"{type(self).__name__} does not set `plugin`")

    def _registry(self) -> Registry:
        return Registry.of(self.plugin)

    def _devices(self) -> tuple[Device, ...]:
        """Return the devices discovered here. Raises `LookupError` when none can be used."""
        discovery = self._registry().discover()
        if not any(device.usable for device in discovery.devices):
            said = "; ".join(f"{row.name} is {row.state}: {row.reason}" for row in discovery.rows)
            raise LookupError(
                f"the contract has no usable device to check ({said}): "
                "give it a machine with a card, or a fake driver library"
            )
        return discovery.devices

    def _usable(self) -> tuple[Device, ...]:
        return tuple(device for device in self._devices() if device.usable)

    def _vendor(self) -> Vendor:
        return self._registry().vendor(self.plugin.hetero_vendor().name)

    def test_the_declaration_is_pure_and_complete(self) -> None:
        """Twice the same answer; every model has a positive core and at least one slot."""
        first, second = self.plugin.hetero_vendor(), self.plugin.hetero_vendor()

        assert first == second
        assert first.name == first.name.lower()
        assert first.models
        for model in first.models:
            assert model.core >= 1
            assert model.slots >= 1

    def test_importing_the_plugin_needs_no_driver(self) -> None:
        """A fresh interpreter imports it and reads the declaration with no driver to be found."""
        if not isinstance(self.plugin, ModuleType):
            return
        name = self.plugin.__name__
        done = subprocess.run(
            [sys.executable, "-c", f"import {name}; {name}.hetero_vendor()"],
            env={"PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )

        assert (0, "") == (done.returncode, done.stderr)

    def test_discovery_answers_or_says_why_not(self) -> None:
        """Devices, or one row that says the driver is absent; never a broken vendor."""
        (row,) = self._registry().discover().rows

        assert row.state in ("ok", "absent"), row.reason
        assert (row.state == "absent") == bool(row.reason)

    def test_every_device_is_addressable_and_divides_by_its_declaration(self) -> None:
        """A UUID, the three counters, and a whole card that a whole-card request gets."""
        for device in self._devices():
            assert device.uuid
            assert {CORE, MEMORY, SLOTS} <= set(device.capacity)
            assert min(device.capacity.values()) >= 0
            self._vendor().declared(device.model)
            if not device.usable:
                continue
            whole = portion(device, Ask(), count=1, free=device.capacity)
            assert whole is not None
            for name, amount in whole.takes.items():
                assert amount <= device.capacity[name]

    def test_a_portion_is_never_less_than_asked(self) -> None:
        """Whatever the granularity, a tenth of the card is at least a tenth of it."""
        for device in self._devices():
            ask = Ask(memory_percent=10, core=10)
            cut = portion(device, ask, count=1, free=device.capacity)
            if cut is None:
                continue
            assert cut.takes[MEMORY] * 10 >= device.capacity[MEMORY]
            assert cut.takes[CORE] * 10 >= device.capacity[CORE]

    def test_devices_survive_the_codec(self) -> None:
        """What a node publishes is what the scheduler reads."""
        for device in self._devices():
            assert device == codec.loads(codec.dumps(device), Device, source="contract")

    def test_what_a_container_needs_is_named_by_its_kind(self, tmp_path: Path) -> None:
        """Device nodes are in /dev, files are libraries by name or paths; all names are whole."""
        registry = self._registry()
        for device in self._usable():
            cut = portion(device, Ask(), count=1, free=device.capacity)
            assert cut is not None
            piece = _grant(device, cut)
            edits = registry.enforce(
                Allocation(pieces=(piece,)), [device], directory=tmp_path, container=True
            )
            assert all(node.startswith("/dev/") for node in edits.device_nodes)
            assert all(file.startswith("/") or "/" not in file for file in edits.files)
            assert not any("{" in text for text in (*edits.device_nodes, *edits.files))
            assert all("=" not in variable for variable in edits.env)
            assert registry.reconcile([device], (), directory=tmp_path) == ()

    def test_enforcing_a_whole_card_names_it(self, tmp_path: Path) -> None:
        """Some edit must confine a container to what it was granted, and leave nothing behind."""
        registry = self._registry()
        for device in self._usable():
            cut = portion(device, Ask(), count=1, free=device.capacity)
            assert cut is not None
            pieces = (_grant(device, cut),)
            edits = registry.enforce(Allocation(pieces=pieces), [device], directory=tmp_path)
            assert edits != Edits()
            assert registry.reconcile([device], (), directory=tmp_path) == ()


def _grant(device: Device, cut: Portion) -> DeviceAllocation:
    return DeviceAllocation(
        device=device.uuid,
        vendor=device.vendor,
        takes=cut.takes,
        core=cut.core,
        template=cut.template,
        part=cut.part,
    )


__all__ = ["MemoryVendor", "VendorContract", "rack"]
