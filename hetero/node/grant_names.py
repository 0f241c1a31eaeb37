"""Which grant is meant by a name: the start of its id, its label or its share's name."""

from __future__ import annotations

import shlex

from hetero.model.errors import BadInput, NotFound, Refused
from hetero.model.names import did_you_mean
from hetero.node.ledger.ledger import Ledger, Snapshot


def one_of(snapshot: Snapshot, name: str, *, uid: int | None, system: Ledger | None = None) -> str:
    """Return the id of the grant that `name` means: the start of its id, its label or its share.

    Where several users have one of that name, the one of user `uid` is meant; None is who keeps
    the ledger. Raises `NotFound`, or `BadInput` with the ids where several have the name.
    """
    meant = _meant(snapshot, name)
    if len(meant) > 1:
        own = [entry.id for entry in snapshot.grants if entry.id in meant and entry.uid == uid]
        meant = own or meant
    if len(meant) > 1:
        raise BadInput(f"grant {name!r} could be {_told(snapshot, meant)}: give more of its id")
    if not meant:
        if system and _meant(system.snapshot(), name):
            raise Refused(f"grant {name} is root's: only root can change or release it")
        every = [one for names in _names(snapshot).values() for one in names]
        raise NotFound(
            f"no grant {name!r} stands: `hetero ps` lists those that do" + did_you_mean(name, every)
        )
    return meant[0]


def _told(snapshot: Snapshot, identities: list[str]) -> str:
    """Return grants by their ids, each with its user and what it runs, where that is known."""
    about = {
        entry.id: f" ({entry.user}: {shlex.join(entry.command) or entry.share})"
        for entry in snapshot.grants
    }
    return ", ".join(f"{identity}{about.get(identity, '')}" for identity in identities)


def _meant(snapshot: Snapshot, name: str) -> list[str]:
    names = _names(snapshot)
    if name in names:
        return [name]
    return [
        one for one, others in names.items() if name and (one.startswith(name) or name in others)
    ]


def _names(snapshot: Snapshot) -> dict[str, list[str]]:
    """Return what each grant is called, by its id; first by that."""
    names = {
        entry.id: [entry.id, *filter(None, (entry.label, entry.share))] for entry in snapshot.grants
    }
    return {**names, **{entry.id: [entry.id] for entry in snapshot.unreadable}}
