"""What a context of a program takes of a card: measured once a model and driver, and kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from attrs import evolve

from hetero.model import Device, Enforcement
from hetero.model.errors import HeteroError
from hetero.model.frozen import frozen
from hetero.node.ledger.grant_dir import replace
from hetero.node.ledger.state import prepare

_FILE = "contexts.json"


@frozen
class ContextSizes:
    """The sizes in bytes that a ledger of this directory knows.

    Its file ends with the boot, as the loaded driver does. What cannot be read is not known.
    """

    directory: Path

    def noted(self, devices: tuple[Device, ...]) -> tuple[Device, ...]:
        """Return the devices that a limiter shares with what a context takes, where it is known."""
        if not any(map(_is_shared, devices)) or not (bytes_by_kind := self._read()):
            return devices
        return tuple(
            evolve(device, attributes={**device.attributes, "context": str(context_bytes)})
            if _is_shared(device) and (context_bytes := bytes_by_kind.get(_kind(device)))
            else device
            for device in devices
        )

    def measure(
        self, devices: Iterable[Device], measured: Callable[[Device], int | None]
    ) -> tuple[Device, ...]:
        """Return the devices as `noted` after those of unknown kinds were measured, one of each.

        One that could not be measured is not tried again before the next boot: to make a context
        takes up to seconds.
        """
        device_list = tuple(devices)
        bytes_by_kind, is_new = self._read(), False
        for device in device_list:
            kind = _kind(device)
            if _is_shared(device) and device.usable and kind not in bytes_by_kind:
                bytes_by_kind[kind] = measured(device) or 0
                is_new = True
        if is_new:
            self._write(bytes_by_kind)
        return self.noted(device_list)

    def _read(self) -> dict[str, int]:
        with suppress(OSError, ValueError):
            notes = json.loads((self.directory / _FILE).read_bytes())
            if isinstance(notes, dict):
                return {
                    kind: context_bytes
                    for kind, context_bytes in notes.items()
                    if isinstance(context_bytes, int) and context_bytes >= 0
                }
        return {}

    def _write(self, bytes_by_kind: Mapping[str, int]) -> None:
        with suppress(OSError, HeteroError):
            prepare(self.directory)
            replace(self.directory / _FILE, json.dumps(bytes_by_kind).encode(), mode=0o644)


def _is_shared(device: Device) -> bool:
    """Whether the limiter charges contexts on it; those of a service's clients are otherwise."""
    return device.enforcement is Enforcement.PRELOAD


def _kind(device: Device) -> str:
    """Return what decides how much a context takes, as far as it is known."""
    return f"{device.vendor} {device.model} {device.attributes.get('driver', '')}"
