"""Where faults are noted that drivers tell of once, and of which they keep no state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class FaultNotes(Protocol):
    """Where faults are noted that drivers tell of once."""

    def standing(self) -> Mapping[str, str]:
        """Return the faults that stand, by the devices' UUIDs."""

    def note(self, reason_by_uuid: Mapping[str, str | None], *, module: str | None) -> None:
        """Note what the driver of this kernel module told; None: that a device is well again.

        Raises `HeteroError`.
        """


class FaultMemory:
    """The notes of a program that has no other place for them."""

    def __init__(self) -> None:
        self._reason_by_uuid: Mapping[str, str] = {}

    def standing(self) -> Mapping[str, str]:
        """Return the faults that stand."""
        return self._reason_by_uuid

    def note(self, reason_by_uuid: Mapping[str, str | None], *, module: str | None) -> None:  # noqa: ARG002 - the program ends first
        """Note what a driver told."""
        merged = {**self._reason_by_uuid, **reason_by_uuid}
        self._reason_by_uuid = {
            uuid: reason for uuid, reason in merged.items() if reason is not None
        }
