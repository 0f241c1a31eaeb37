"""Says what a user of this machine may hold, and refuses what is beyond it."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterable, Iterator, Mapping

from attrs import evolve

from hetero.model import CORE, MEMORY, Allocation, Device
from hetero.model.errors import Refused
from hetero.model.frozen import frozen
from hetero.model.units import format_both
from hetero.node.ledger.ledger import Grant
from hetero.node.settings import NodeSettings, Quota


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


def expect_own(entry: Grant, asker: User | None) -> None:
    """Raise `Refused` unless the asker may change a grant; None may change all."""
    if asker and asker.uid != 0 and not asker.owns(entry):
        whose = entry.user if entry.uid else "root"
        raise Refused(f"grant {entry.id} is {whose}'s: {whose} or root can change or release it")


@frozen(kw_only=True)
class Held:
    """What a quota counts: `used` of `most` bytes, percent of a card, or grants, by name `what`."""

    of: str
    what: str
    used: int
    most: int

    @property
    def shown(self) -> tuple[str, str]:
        """What is held and what may be, for people to read."""
        if self.what != "memory":
            return str(self.used), str(self.most)
        if self.used > self.most:
            return format_both(self.used, self.most)
        most, used = format_both(self.most, self.used)
        return used, most

    @property
    def sentence(self) -> str:
        """What is held of what may be, in a few words: `memory 4 GiB of 6 GiB`."""
        used, most = self.shown
        return f"{self.what} {used} of {most}{self.unit}"

    @property
    def unit(self) -> str:
        """What follows a number of it."""
        return " percent of a card" if self.what == "core" else ""


def held_of_quotas(
    settings: NodeSettings, asker: User, grants: Iterable[Grant], devices: Mapping[str, Device]
) -> tuple[Held, ...]:
    """Return what the asker holds of each quota that it is held to. Root may hold all.

    What is compared is the sum over all cards: memory in bytes, core in percent of a card (one
    without a core limit counts as a whole card), and the number of grants.
    """
    if asker.uid == 0:
        return ()
    entries = tuple(grants)
    users = {entry.uid: User(entry.uid, entry.user) for entry in entries if entry.uid}
    made = []
    for owner, quota, members in _quotas(settings, asker, users):
        used = _counted([entry.allocation for entry in entries if entry.uid in members], devices)
        limits = {"grants": quota.grants, "memory": quota.memory, "core": quota.core}
        made += [
            Held(of=owner, what=what, used=used[what], most=most)
            for what, most in limits.items()
            if most is not None
        ]
    return tuple(made)


def expect_within(
    held: Iterable[Held], allocation: Allocation, devices: Mapping[str, Device]
) -> None:
    """Raise `Refused` if `allocation`, beside what is held, is more than a quota allows."""
    more = _counted([allocation], devices)
    for quota in held:
        would = evolve(quota, used=quota.used + more[quota.what])
        if would.used > would.most:
            used, most = would.shown
            raise Refused(
                f"quota {quota.of}: {quota.what} would be {used} and may be {most}{quota.unit}"
            )


def _quotas(
    settings: NodeSettings, asker: User, users: Mapping[int, User]
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


def _counted(held: list[Allocation], devices: Mapping[str, Device]) -> dict[str, int]:
    """Return how much there is of what quotas count."""
    pieces = [piece for allocation in held for piece in allocation.pieces]
    core = 0
    for piece in pieces:
        device = devices.get(piece.device)
        whole = device.of_card(CORE) if device else 0
        limited = piece.core is not None or piece.sm is not None
        core += -(-100 * piece.takes[CORE] // whole) if limited and whole else 100
    memory = sum(piece.takes[MEMORY] for piece in pieces)
    return {"grants": len(held), "memory": memory, "core": core}
