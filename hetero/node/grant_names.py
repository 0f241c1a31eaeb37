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
    ids = _meant(snapshot, name)
    if len(ids) > 1:
        own_ids = [grant.id for grant in snapshot.grants if grant.id in ids and grant.uid == uid]
        ids = own_ids or ids
    if len(ids) > 1:
        raise BadInput(f"grant {name!r} could be {_told(snapshot, ids)}: give more of its id")
    if not ids:
        if system and _meant(system.snapshot(), name):
            raise Refused(f"grant {name} is root's: only root can change or release it")
        all_names = [name for names in _names(snapshot).values() for name in names]
        raise NotFound(
            f"no grant {name!r} stands: `hetero ps` lists those that do"
            + did_you_mean(name, all_names)
        )
    return ids[0]


def _told(snapshot: Snapshot, grant_ids: list[str]) -> str:
    """Return grants by their ids, each with its user and command, where these are known."""
    description_by_id = {
        grant.id: f" ({grant.user}: {shlex.join(grant.command) or grant.share})"
        for grant in snapshot.grants
    }
    return ", ".join(f"{grant_id}{description_by_id.get(grant_id, '')}" for grant_id in grant_ids)


def _meant(snapshot: Snapshot, name: str) -> list[str]:
    names_by_id = _names(snapshot)
    if name in names_by_id:
        return [name]
    return [
        grant_id
        for grant_id, grant_names in names_by_id.items()
        if name and (grant_id.startswith(name) or name in grant_names)
    ]


def _names(snapshot: Snapshot) -> dict[str, list[str]]:
    """Return the names of each grant by its id; the id is the first."""
    names_by_id = {
        grant.id: [grant.id, *filter(None, (grant.label, grant.share))] for grant in snapshot.grants
    }
    return {**names_by_id, **{unreadable.id: [unreadable.id] for unreadable in snapshot.unreadable}}
