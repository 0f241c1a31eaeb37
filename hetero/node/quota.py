"""Says what a user of this machine may hold, and refuses more."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterable, Iterator, Mapping

from attrs import evolve

from hetero.model import CORE, MEMORY, Allocation, Device
from hetero.model.errors import NoRoom, Refused
from hetero.model.frozen import frozen
from hetero.model.units import format_both
from hetero.node.core_units import in_units_of
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

    def owns(self, grant: Grant) -> bool:
        """Whether a grant of the machine's ledger is this user's: root's are those of nobody."""
        return self.uid == (grant.uid or 0)


def expect_own(grant: Grant, asker: User | None) -> None:
    """Raise `Refused` unless the asker may change a grant; None may change all."""
    if asker and asker.uid != 0 and not asker.owns(grant):
        owner = grant.user if grant.uid else "root"
        raise Refused(f"grant {grant.id} is {owner}'s: {owner} or root can change or release it")


@frozen(kw_only=True)
class Held:
    """A quota and its use: `used` of `most` bytes, percent of a card, or grants, by name `what`."""

    of: str
    what: str
    used: int
    most: int

    @property
    def shown(self) -> tuple[str, str]:
        """What is held and what may be held, for people to read."""
        if self.what != "memory":
            return str(self.used), str(self.most)
        if self.used > self.most:
            return format_both(self.used, self.most)
        most_text, used_text = format_both(self.most, self.used)
        return used_text, most_text

    @property
    def sentence(self) -> str:
        """What is held of what may be, in a few words: `memory 4 GiB of 6 GiB`."""
        used_text, most_text = self.shown
        return f"{self.what} {used_text} of {most_text}{self.unit}"

    @property
    def unit(self) -> str:
        """The unit behind a number of it."""
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
    grant_list = in_units_of(devices.values(), grants)
    user_by_uid = {grant.uid: User(grant.uid, grant.user) for grant in grant_list if grant.uid}
    held_quotas = []
    for owner, quota, member_uids in _quotas(settings, asker, user_by_uid):
        used_amounts = _counted(
            [grant.allocation for grant in grant_list if grant.uid in member_uids], devices
        )
        limits = {"grants": quota.grants, "memory": quota.memory, "core": quota.core}
        held_quotas += [
            Held(of=owner, what=quantity, used=used_amounts[quantity], most=most_amount)
            for quantity, most_amount in limits.items()
            if most_amount is not None
        ]
    return tuple(held_quotas)


def expect_within(
    held_quotas: Iterable[Held], allocation: Allocation, devices: Mapping[str, Device]
) -> None:
    """Raise `NoRoom` if `allocation` and what is held are together more than a quota allows."""
    added_amounts = _counted([allocation], devices)
    for held_quota in held_quotas:
        held_after = evolve(held_quota, used=held_quota.used + added_amounts[held_quota.what])
        if held_after.used > held_after.most:
            used_text, most_text = held_after.shown
            raise NoRoom(
                f"quota {held_quota.of}: {held_quota.what} would be {used_text} "
                f"and may be {most_text}{held_quota.unit}"
            )


def _quotas(
    settings: NodeSettings, asker: User, user_by_uid: Mapping[int, User]
) -> Iterator[tuple[str, Quota, set[int]]]:
    """Yield what the asker is held to: its name, the quota, and the uids that share it."""
    own_quota = settings.user_quotas.get(asker.name, settings.quota)
    yield f"of {asker.name}", own_quota, {asker.uid}
    for group, quota in settings.group_quotas.items():
        if group in _groups(asker):
            member_uids = {uid for uid, user in user_by_uid.items() if group in _groups(user)}
            yield f"of group {group}", quota, member_uids


def _groups(user: User) -> set[str]:
    """Return the names of the user's groups; none for a user without a name."""
    try:
        main_gid = pwd.getpwuid(user.uid).pw_gid
    except KeyError:
        return set()
    name_by_gid = {group.gr_gid: group.gr_name for group in grp.getgrall()}
    return {name_by_gid[gid] for gid in os.getgrouplist(user.name, main_gid) if gid in name_by_gid}


def _counted(allocations: list[Allocation], devices: Mapping[str, Device]) -> dict[str, int]:
    """Return the sums that quotas limit."""
    pieces = [piece for allocation in allocations for piece in allocation.pieces]
    core_percent = 0
    for piece in pieces:
        device = devices.get(piece.device)
        card_core_units = device.of_card(CORE) if device else 0
        is_limited = piece.core is not None or piece.sm_percent is not None
        core_percent += (
            -(-100 * piece.takes[CORE] // card_core_units)
            if is_limited and card_core_units
            else 100
        )
    memory_bytes = sum(piece.takes[MEMORY] for piece in pieces)
    return {"grants": len(allocations), "memory": memory_bytes, "core": core_percent}
