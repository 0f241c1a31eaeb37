"""Says what a user of this machine may hold, and refuses what is beyond it."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterable, Iterator, Mapping

from hetero.model import CORE, MEMORY, Allocation, Device
from hetero.model.errors import Refused
from hetero.model.frozen import frozen
from hetero.model.units import format_both
from hetero.node.ledger.ledger import Grant
from hetero.node.settings import Quota, Settings


@frozen
class User:
    """Who asks, as the kernel says, with the name people know."""

    uid: int
    name: str

    @classmethod
    def of(cls, uid: int) -> User:
        """Return the user; one without a name has its number for one."""
        try:
            return cls(uid, pwd.getpwuid(uid).pw_name)
        except KeyError:
            return cls(uid, str(uid))

    def owns(self, entry: Grant) -> bool:
        """Whether a grant of the machine's ledger is this user's: root's are those of nobody."""
        return self.uid == (entry.uid or 0)


def expect_within(
    settings: Settings,
    asker: User,
    grants: Iterable[Grant],
    allocation: Allocation,
    devices: Mapping[str, Device],
) -> None:
    """Raise `Refused` if `allocation`, beside `grants`, is more than the asker may hold.

    What is compared is the sum over all cards: memory in bytes, core in percent of a card (one
    without a core limit counts as a whole card), and the number of grants. Root may hold all.
    """
    if asker.uid == 0:
        return
    users = {entry.uid: User(entry.uid, entry.user) for entry in grants if entry.uid}
    for said, quota, members in _quotas(settings, asker, users):
        held = [entry.allocation for entry in grants if entry.uid in members]
        for what, most, used in _counted(quota, [*held, allocation], devices):
            if most is not None and used > most:
                shown = format_both(used, most) if what == "memory" else (str(used), str(most))
                unit = " percent of a card" if what == "core" else ""
                raise Refused(
                    f"quota {said}: {what} would be {shown[0]} and may be {shown[1]}{unit}"
                )


def _quotas(
    settings: Settings, asker: User, users: Mapping[int, User]
) -> Iterator[tuple[str, Quota, set[int]]]:
    """Yield what the asker is held to: its name, the quota, and the uids that share it."""
    own = settings.user_quotas.get(asker.name, settings.quota)
    yield f"of {asker.name}", own, {asker.uid}
    for name, quota in settings.group_quotas.items():
        if name in _groups(asker):
            members = {uid for uid, user in users.items() if name in _groups(user)}
            yield f"of group {name}", quota, members


def _groups(user: User) -> set[str]:
    """Return the names of the user's groups; none for a user without a name."""
    try:
        first = pwd.getpwuid(user.uid).pw_gid
    except KeyError:
        return set()
    known = {each.gr_gid: each.gr_name for each in grp.getgrall()}
    return {known[gid] for gid in os.getgrouplist(user.name, first) if gid in known}


def _counted(
    quota: Quota, held: list[Allocation], devices: Mapping[str, Device]
) -> Iterator[tuple[str, int | None, int]]:
    """Yield what is counted, the most there may be, and what there would be."""
    pieces = [piece for allocation in held for piece in allocation.pieces]
    yield "grants", quota.grants, len(held)
    yield "memory", quota.memory, sum(piece.takes[MEMORY] for piece in pieces)
    core = 0
    for piece in pieces:
        device = devices.get(piece.device)
        whole = device.of_card(CORE) if device else 0
        core += 100 if piece.core is None or not whole else -(-100 * piece.takes[CORE] // whole)
    yield "core", quota.core, core
