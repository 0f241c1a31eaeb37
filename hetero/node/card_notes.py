"""What a card book holds: who cordoned which cards, and which faults these had.

Most nodes have no book: programs that admit import this where there is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeVar

from attrs import evolve, field

from hetero.model import Device, codec
from hetero.model.errors import BadInput
from hetero.model.frozen import frozen
from hetero.model.json_keys import json_key

#: What names this boot, and where the loaded kernel modules are.
_BOOT, _MODULES = Path("/proc/sys/kernel/random/boot_id"), Path("/sys/module")
T = TypeVar("T")


@frozen(kw_only=True)
class Fault:
    """What a driver told of a card once and keeps no state of.

    `module` is its kernel module, `load` how that was loaded then (`load_of`):
    one that is loaded anew has set up the card anew.
    """

    reason: str
    since_utc: str = field(metadata=json_key("since"))
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


def read_notes(path: Path) -> CardNotes | None:
    """Return the notes in a file; None: there is none. Raises `BadInput` for a broken one."""
    try:
        text = path.read_text()
    except (FileNotFoundError, PermissionError):  # what another user hides is not seen
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cards: {path}: {error}") from None
    try:
        return codec.loads(text, CardNotes, source=f"cards: {path}")
    except BadInput as error:
        raise BadInput(
            f"{error}: repair or remove it, then cordon anew what was cordoned"
        ) from None


def merged(book_notes: Iterable[CardNotes]) -> CardNotes:
    """Return the notes of several books; the last one counts first."""
    all_notes = tuple(book_notes)
    return CardNotes(
        cordons=_merged(notes.cordons for notes in all_notes),
        cluster_cordons=_merged(notes.cluster_cordons for notes in all_notes),
        faults=_merged(notes.faults for notes in all_notes),
    )


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


def with_reports(
    notes: CardNotes, reason_by_uuid: Mapping[str, str | None], *, module: str | None
) -> CardNotes:
    """Return the notes after a driver reported faults; None: that card is well again."""
    load = load_of(module)
    since = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    older_faults = {
        uuid: fault for uuid, fault in standing_faults(notes).items() if uuid not in reason_by_uuid
    }
    new_faults = {
        uuid: Fault(reason=reason, since_utc=since, module=module, load=load)
        for uuid, reason in reason_by_uuid.items()
        if reason is not None
    }
    return evolve(notes, faults={**older_faults, **new_faults})


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


def _merged(note_maps: Iterable[Mapping[str, T]]) -> dict[str, T]:
    return {uuid: note for notes in note_maps for uuid, note in notes.items()}
