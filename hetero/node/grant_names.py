"""Which grant is meant by a name: the start of its id, its label or its share's name."""

from __future__ import annotations

import shlex

from hetero.model.errors import BadInput, NotFound, Refused
from hetero.model.names import did_you_mean
from hetero.node.ledger.ledger import Ledger, Snapshot


def one_of(
    snapshot: Snapshot, asked_name: str, *, uid: int | None, system: Ledger | None = None
) -> str:
    """Return the id of the grant that `asked_name` means: its id's start, its label or its share.

    Where several users have one of that name, the one of user `uid` is meant; None is who keeps
    the ledger. Raises `NotFound`, or `BadInput` with the ids where several have the name.
    """
    ids = _meant(snapshot, asked_name)
    if len(ids) > 1:
        own_ids = [grant.id for grant in snapshot.grants if grant.id in ids and grant.uid == uid]
        ids = own_ids or ids
    if len(ids) > 1:
        raise BadInput(f"grant {asked_name!r} could be {_told(snapshot, ids)}: give more of its id")
    if not ids:
        if system and _meant(system.snapshot(), asked_name):
            raise Refused(f"grant {asked_name} is root's: only root can change or release it")
        all_names = [known_name for names in _names(snapshot).values() for known_name in names]
        raise NotFound(
            f"no grant {asked_name!r} stands: `hetero ps` lists those that do"
            + did_you_mean(asked_name, all_names)
        )
    return ids[0]


def _told(snapshot: Snapshot, grant_ids: list[str]) -> str:
    """Return grants by their ids, each with its user and command, where these are known."""
    description_by_id = {
        grant.id: f" ({grant.user}: {shlex.join(grant.command) or grant.share})"
        for grant in snapshot.grants
    }
    return ", ".join(f"{grant_id}{description_by_id.get(grant_id, '')}" for grant_id in grant_ids)


def _meant(snapshot: Snapshot, asked_name: str) -> list[str]:
    names_by_id = _names(snapshot)
    if asked_name in names_by_id:
        return [asked_name]
    return [
        grant_id
        for grant_id, grant_names in names_by_id.items()
        if asked_name and (grant_id.startswith(asked_name) or asked_name in grant_names)
    ]


def _names(snapshot: Snapshot) -> dict[str, list[str]]:
    """Return the names of each grant by its id; the id is the first."""
    names_by_id = {
        grant.id: [grant.id, *filter(None, (grant.label, grant.share))] for grant in snapshot.grants
    }
    return {
        **names_by_id,
        **{unreadable_grant.id: [unreadable_grant.id] for unreadable_grant in snapshot.unreadable},
    }
