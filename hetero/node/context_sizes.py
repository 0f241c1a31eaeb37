"""What a context of a program takes of a card: measured once a model and driver, and kept."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from attrs import evolve

from hetero.model import Device, Enforcement
from hetero.model.errors import BadInput, HeteroError
from hetero.model.frozen import frozen
from hetero.model.units import format_memory
from hetero.node.ledger.grant_dir import replace
from hetero.node.ledger.grant_file import DeviceLimit
from hetero.node.ledger.state import prepare

_FILE = "contexts.json"
#: Seconds until a card is tried again that could not be measured, as one that is full.
_RETRY_S = 30

#: What a context takes in bytes (0: not known), and when that could not be measured: in seconds of
#: the clock that begins with the boot, None where it is not tried again.
_Note = tuple[int, float | None]


@frozen
class ContextSizes:
    """The sizes in bytes that a ledger of this directory knows.

    Its file ends with the boot, as the loaded driver does. What cannot be read is not known.
    """

    directory: Path

    def noted(
        self,
        devices: tuple[Device, ...],
        declared: Mapping[str, int | None] | None = None,
        *,
        counts_context: bool = True,
    ) -> tuple[Device, ...]:
        """Return the devices that a limiter shares with what a context takes, where it is known.

        What was not measured is what `declared` has of the device's vendor; None: its limiter
        charges no contexts. `counts_context` False: contexts count as memory of claims alone.
        """
        if not any(map(_is_shared, devices)):
            return devices
        note_by_kind, declared = self._read(), declared or {}

        def with_context(device: Device) -> Device:
            measured_bytes, _ = note_by_kind.get(_kind(device), (0, None))
            declared_bytes = declared.get(device.vendor, 0)
            context = "uncharged" if declared_bytes is None else measured_bytes or declared_bytes
            if not context or not _is_shared(device):
                return device
            attributes = {**device.attributes, "context": str(context)}
            if declared_bytes is not None:
                attributes["context_from"] = "measured" if measured_bytes else "declared"
            if not counts_context:
                attributes["context_counts"] = "for claims"
            return evolve(device, attributes=attributes)

        return tuple(map(with_context, devices))

    def measure(
        self, devices: Iterable[Device], measured: Callable[[Device], int | None]
    ) -> tuple[Device, ...]:
        """Return the devices as `noted` after those of unknown kinds were measured, one of each.

        `measured` returns None where a vendor cannot say, which is not asked again before the next
        boot, and raises `HeteroError` where it failed. To make a context takes up to seconds, so
        what failed is tried again only some time later.
        """
        device_list = tuple(devices)
        note_by_kind, is_new = self._read(), False
        for device in device_list:
            kind = _kind(device)
            if _is_shared(device) and device.usable and _is_due(note_by_kind.get(kind)):
                try:
                    note_by_kind[kind] = measured(device) or 0, None
                except HeteroError:
                    note_by_kind[kind] = 0, time.monotonic()
                is_new = True
        if is_new:
            self._write(note_by_kind)
        return self.noted(device_list)

    def _read(self) -> dict[str, _Note]:
        with suppress(OSError, ValueError, TypeError):
            notes = json.loads((self.directory / _FILE).read_bytes())
            if isinstance(notes, dict):
                return {
                    kind: (int(context_bytes), None if failed_s is None else float(failed_s))
                    for kind, (context_bytes, failed_s) in notes.items()
                }
        return {}

    def _write(self, note_by_kind: Mapping[str, _Note]) -> None:
        with suppress(OSError, HeteroError):
            prepare(self.directory)
            replace(self.directory / _FILE, json.dumps(note_by_kind).encode(), mode=0o644)


def expect_room(limits: Iterable[DeviceLimit]) -> None:
    """Raise `BadInput` where no program could make a context within a limit."""
    for limit in limits:
        if limit.memory <= limit.context_bytes:
            raise BadInput(
                f"memory {format_memory(limit.memory)}: the driver's context alone takes "
                f"{format_memory(limit.context_bytes)} of {limit.name}; ask for more"
            )


def _is_due(note: _Note | None) -> bool:
    """Whether a kind is to be measured now; a time of a boot before may be in the future."""
    if note is None:
        return True
    _, failed_s = note
    return failed_s is not None and not 0 <= time.monotonic() - failed_s < _RETRY_S


def _is_shared(device: Device) -> bool:
    """Whether the limiter charges contexts on it; those of a service's clients are otherwise."""
    return device.enforcement is Enforcement.PRELOAD


def _kind(device: Device) -> str:
    """Return what decides how much a context takes, as far as it is known."""
    return f"{device.vendor} {device.model} {device.attributes.get('driver', '')}"
