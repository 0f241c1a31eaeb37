"""Keeps what is known of cards and no driver tells: who cordoned one, and which faults it had.

A file of the node holds it, so that it outlives agents, upgrades and boots.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeVar

from attrs import evolve, field

from hetero.model import Device, codec
from hetero.model.errors import BadInput, HeteroError
from hetero.model.frozen import frozen
from hetero.node.ledger.grant_dir import create, replace
from hetero.node.ledger.locks import lock
from hetero.node.ledger.state import make

_FILE = "cards.json"
#: What names this boot, and where the loaded kernel modules are.
_BOOT, _MODULES = Path("/proc/sys/kernel/random/boot_id"), Path("/sys/module")
T = TypeVar("T")
#: Seconds that a writer waits for another one.
_WAIT = 5.0
#: The most characters of a reason: it is in tables, events and annotations.
LONGEST_REASON = 200


@frozen(kw_only=True)
class Fault:
    """What a driver told of a card once and keeps no state of.

    `since` is UTC. `module` is its kernel module, `load` how that was loaded then (`load_of`): one
    that is loaded anew has set up the card anew.
    """

    reason: str
    since: str
    module: str | None
    load: str


@frozen(kw_only=True)
class CardNotes:
    """The contents of a book, by the cards' UUIDs.

    `cordons` are the reasons of those who cordoned cards on the node, `cluster_cordons` those that
    the annotations of its Kubernetes node give.
    """

    cordons: Mapping[str, str] = field(factory=dict)
    cluster_cordons: Mapping[str, str] = field(factory=dict)
    faults: Mapping[str, Fault] = field(factory=dict)


@frozen
class CardBook:
    """The notes of a node's cards in `directory`, and those of `others`, which are only read."""

    directory: Path
    others: tuple[Path, ...] = ()

    def read(self) -> CardNotes:
        """Return all notes; the own ones count first. Raises `BadInput` for a broken file."""
        book_notes = [_read(directory / _FILE) for directory in (*self.others, self.directory)]
        all_notes = [notes for notes in book_notes if notes]
        if len(all_notes) < 2:
            return all_notes[0] if all_notes else CardNotes()
        return CardNotes(
            cordons=_merged(notes.cordons for notes in all_notes),
            cluster_cordons=_merged(notes.cluster_cordons for notes in all_notes),
            faults=_merged(notes.faults for notes in all_notes),
        )

    def own(self) -> CardNotes:
        """Return the notes that this book can change. Raises `BadInput` for a broken file."""
        return _read(self.directory / _FILE) or CardNotes()

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
        return {uuid: fault.reason for uuid, fault in standing_faults(self.read()).items()}

    def note(self, reason_by_uuid: Mapping[str, str | None], *, module: str | None) -> None:
        """Note what a driver told of cards; None: that one is well again. Raises `HeteroError`."""
        load = load_of(module)
        since = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        with self._changing() as notes:
            older_faults = {
                uuid: fault
                for uuid, fault in standing_faults(notes).items()
                if uuid not in reason_by_uuid
            }
            new_faults = {
                uuid: Fault(reason=reason, since=since, module=module, load=load)
                for uuid, reason in reason_by_uuid.items()
                if reason is not None
            }
            self._write(evolve(notes, faults={**older_faults, **new_faults}))

    def clear_fault(self, uuid: str) -> None:
        """Forget what a driver told of a card. Raises `HeteroError`."""
        with self._changing() as notes:
            self._write(evolve(notes, faults=_without(notes.faults, uuid)))

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
            if not lock(descriptor, within_s=_WAIT):
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


def noted(device: Device, notes: CardNotes) -> Device:
    """Return a device with its cordon; what the settings say of it goes first."""
    reasons = [
        reason_by_uuid[device.uuid]
        for reason_by_uuid in (notes.cordons, notes.cluster_cordons)
        if device.uuid in reason_by_uuid
    ]
    if reasons and device.cordon is None:
        device = evolve(device, cordon=next(filter(None, reasons), ""))
    return device


def standing_faults(notes: CardNotes) -> dict[str, Fault]:
    """Return the faults of cards whose driver was not loaded anew since."""
    return {
        uuid: fault for uuid, fault in notes.faults.items() if fault.load == load_of(fault.module)
    }


def load_of(module: str | None) -> str:
    """Return what is another text whenever a kernel module is loaded anew, and after a boot.

    A directory of sysfs gets a number that grows with each one that is made (kernfs allocates them
    in turn), so it is another one each time. It is the same in a container.
    """
    try:
        inode = (_MODULES / module).stat().st_ino if module else 0
    except OSError:  # it is not loaded
        inode = 0
    return f"{_BOOT.read_text().strip()}:{inode}"


def expect_reason(reason: str) -> str:
    """Return the reason of a cordon, in one line. Raises `BadInput`."""
    reason_line = " ".join(reason.split())
    if len(reason_line) > LONGEST_REASON or not reason_line.isprintable():
        raise BadInput(
            f"--reason has {len(reason_line)} characters: at most {LONGEST_REASON}, all printable"
        )
    return reason_line


def _read(path: Path) -> CardNotes | None:
    try:
        text = path.read_text()
    except (FileNotFoundError, PermissionError):  # what another user hides is not seen
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cards: {path}: {error}") from None
    try:
        return codec.loads(text, CardNotes, source=f"cards: {path}")
    except BadInput as error:
        raise BadInput(f"{error}: mend or remove it, then cordon anew what was cordoned") from None


def _merged(note_maps: Iterable[Mapping[str, T]]) -> dict[str, T]:
    return {uuid: note for notes in note_maps for uuid, note in notes.items()}


def _without(notes: Mapping[str, T], uuid: str) -> dict[str, T]:
    return {noted_uuid: note for noted_uuid, note in notes.items() if noted_uuid != uuid}
