"""Keeps what is known of cards and no driver tells: who cordoned one, and which faults it had.

A file of the node holds it, so that it outlives agents, upgrades and boots.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from attrs import evolve

from hetero.model import Device, codec
from hetero.model.errors import BadInput, HeteroError
from hetero.node.ledger.grant_dir import create, replace
from hetero.node.ledger.locks import lock
from hetero.node.ledger.state import make

if TYPE_CHECKING:
    from hetero.node.card_notes import CardNotes

_FILE = "cards.json"
T = TypeVar("T")
#: Seconds that a writer waits for another one.
_LOCK_WAIT_S = 5.0
#: The most characters of a reason: it is in tables, events and annotations.
LONGEST_REASON = 200


class CardBook:
    """The notes of a node's cards in `directory`, and those of `others`, which are only read."""

    def __init__(self, directory: Path, others: tuple[Path, ...] = ()) -> None:
        self.directory, self.others = directory, others

    def read(self) -> CardNotes:
        """Return all notes; the own ones count first. Raises `BadInput` for a broken file."""
        from hetero.node.card_notes import merged, read_notes

        book_notes = [read_notes(path) for path in self._paths]
        return merged(notes for notes in book_notes if notes)

    def own(self) -> CardNotes:
        """Return the notes that this book can change. Raises `BadInput` for a broken file."""
        from hetero.node.card_notes import CardNotes, read_notes

        return read_notes(self.directory / _FILE) or CardNotes()

    def noted(self, devices: tuple[Device, ...]) -> tuple[Device, ...]:
        """Return the devices with their cordons. Raises `BadInput` for a broken file."""
        if self._is_empty:
            return devices
        from hetero.node.card_notes import noted

        notes = self.read()
        return tuple(noted(device, notes) for device in devices)

    def cordon(self, uuid: str, reason: str) -> None:
        """Note that nothing new is to be given of a card. Raises `HeteroError`."""
        with self._changing() as notes:
            self._write(evolve(notes, cordons={**notes.cordons, uuid: reason}))

    def uncordon(self, uuid: str) -> None:
        """Forget that a card was cordoned on the node. Raises `HeteroError`."""
        with self._changing() as notes:
            self._write(evolve(notes, cordons=_without(notes.cordons, uuid)))

    def set_cluster_cordons(self, reason_by_uuid: Mapping[str, str]) -> None:
        """Note which cards the cluster cordons, in place of those it did. Raises `HeteroError`."""
        if self.own().cluster_cordons != reason_by_uuid:
            with self._changing() as notes:
                self._write(evolve(notes, cluster_cordons=dict(reason_by_uuid)))

    def standing(self) -> dict[str, str]:
        """Return the faults of cards whose driver was not loaded anew. Raises `BadInput`."""
        if self._is_empty:
            return {}
        from hetero.node.card_notes import standing_faults

        return {uuid: fault.reason for uuid, fault in standing_faults(self.read()).items()}

    def note(self, reason_by_uuid: Mapping[str, str | None], *, module: str | None) -> None:
        """Note what a driver told of cards; None: that one is well again. Raises `HeteroError`."""
        from hetero.node.card_notes import with_reports

        with self._changing() as notes:
            self._write(with_reports(notes, reason_by_uuid, module=module))

    def clear_fault(self, uuid: str) -> None:
        """Forget what a driver told of a card. Raises `HeteroError`."""
        with self._changing() as notes:
            self._write(evolve(notes, faults=_without(notes.faults, uuid)))

    @property
    def directories(self) -> tuple[Path, ...]:
        """Where all notes are; in one of them a file is replaced when a note changes."""
        return (*self.others, self.directory)

    @property
    def _paths(self) -> tuple[Path, ...]:
        return tuple(directory / _FILE for directory in self.directories)

    @property
    def _is_empty(self) -> bool:
        return not any(map(os.path.exists, self._paths))

    @contextmanager
    def _changing(self) -> Iterator[CardNotes]:
        """Hold off other writers meanwhile."""
        try:
            if not self.directory.exists():
                self.directory.parent.mkdir(parents=True, exist_ok=True)
                make(self.directory, mode=0o755 if os.geteuid() == 0 else 0o700)
            descriptor = create(self.directory / f".{_FILE}.lock", mode=0o600)
        except OSError as error:
            raise HeteroError(f"cards: {self.directory}: {error.strerror}") from None
        try:
            if not lock(descriptor, within_s=_LOCK_WAIT_S):
                raise HeteroError(f"cards: {self.directory}: another program changes it: try again")
            yield self.own()
        finally:
            os.close(descriptor)

    def _write(self, notes: CardNotes) -> None:
        if notes == self.own():
            return
        try:
            contents = codec.dumps(notes).encode()
            replace(self.directory / _FILE, contents, mode=0o644, durable=True)
        except OSError as error:
            raise HeteroError(f"cards: {self.directory / _FILE}: {error.strerror}") from None


def expect_reason(reason: str) -> str:
    """Return the reason of a cordon, in one line. Raises `BadInput`."""
    reason_line = " ".join(reason.split())
    if len(reason_line) > LONGEST_REASON:
        raise BadInput(
            f"--reason has {len(reason_line)} characters: write at most {LONGEST_REASON}"
        )
    odd_letter = next((letter for letter in reason_line if not letter.isprintable()), None)
    if odd_letter is not None:
        raise BadInput(
            f"--reason has a character that cannot be printed ({odd_letter!a}): leave it out"
        )
    return reason_line


def _without(notes: Mapping[str, T], uuid: str) -> dict[str, T]:
    return {noted_uuid: note for noted_uuid, note in notes.items() if noted_uuid != uuid}
