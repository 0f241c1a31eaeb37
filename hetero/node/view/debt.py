"""Says which grants owe device time to others that have work, and which wait for what was owed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from attrs import field

from hetero.model.frozen import frozen
from hetero.model.json_keys import json_key
from hetero.node.ledger.debts import debts_of
from hetero.node.ledger.grant_dir import GRANT, USAGE
from hetero.node.ledger.grant_file import read_limits, read_owes_until
from hetero.node.ledger.ledger import Grant
from hetero.node.ledger.locks import is_locked
from hetero.node.ledger.usage_region import (
    Region,
    owing_bytes,
    time_slice_bytes,
    working_bytes,
)
from hetero.node.node import Node

#: Seconds beyond which a grant that goes on is reported: its limiter keeps siblings then, too.
LARGE_DEBT_S = 1.0
#: Seconds for which a charge shows that a grant has work.
_RECENT_S = 1.0


@frozen(kw_only=True)
class Owing:
    """A grant with work in flight that owes more than `LARGE_DEBT_S`, while another has work.

    `seconds` is what it owes by its own count, at least `LARGE_DEBT_S`. `card` is the device's name
    and `device_number` its number in the inventory when the grant was made.
    """

    grant: str
    device: str
    card: str
    device_number: int | None = field(metadata=json_key("number"))
    who: str
    seconds: float

    @property
    def key(self) -> tuple[object, ...]:
        """The key of the finding, the same for other figures."""
        return "owes", self.grant, self.device

    @property
    def subject(self) -> str:
        """The name of the grant in the log."""
        return f"grant {self.grant}"

    @property
    def what(self) -> str:
        """What it does, as the end of `grant ab …`."""
        return (
            f"owes {as_seconds(self.seconds)} on "
            f"{self.card} (of {self.who}) "
            "and goes on while others have work"
        )

    def __str__(self) -> str:
        return f"{self.subject} {self.what}"


@frozen(kw_only=True)
class Wait:
    """A grant that waits until what earlier grants of its user owed is paid, in seconds.

    `who` owes `owed_s` on the device, whose name is `card`; `job` is the grant that owed last. It
    waits for `waits_s` of the time in which others want the device.
    """

    grant: str
    device: str
    card: str
    device_number: int | None = field(metadata=json_key("number"))
    who: str
    job: str
    owed_s: float = field(metadata=json_key("owed"))
    waits_s: float = field(metadata=json_key("seconds"))

    @property
    def key(self) -> tuple[object, ...]:
        """The key of the finding, the same for other figures."""
        return "waits", self.grant, self.device

    @property
    def subject(self) -> str:
        """The name of the grant in the log."""
        return f"grant {self.grant}"

    @property
    def what(self) -> str:
        """What it does, as the end of `grant ab …`."""
        return (
            f"waits {as_seconds(self.waits_s)}: {self.who} owes {as_seconds(self.owed_s)} on "
            f"{self.card} (job {self.job})"
        )

    def __str__(self) -> str:
        return f"{self.subject} {self.what}"


def waits(node: Node, grant: Grant) -> tuple[Wait, ...]:
    """Return for what a grant waits now, by what the ledger wrote into its directory."""
    directory = node.directory(grant.id)
    debts = debts_of(directory)
    if not debts:
        return ()
    grant_waits = []
    with suppress(OSError, ValueError):
        times_ns = read_owes_until(directory / GRANT, device_count=len(grant.limits))
        for debt in debts:
            position, until_ns = next(
                (
                    (position, until_ns)
                    for position, (limit, until_ns) in enumerate(
                        zip(grant.limits, times_ns, strict=False)
                    )
                    if limit.name == debt.device
                ),
                (None, 0),
            )
            left_ns = until_ns - time.monotonic_ns()
            if left_ns > 0:
                part = min(left_ns / debt.wait_ns, 1.0)
                grant_waits.append(
                    Wait(
                        grant=grant.id,
                        device=debt.device,
                        card=_card(grant, position, debt.device),
                        device_number=_number(grant, position),
                        who=debt.who,
                        job=debt.job,
                        owed_s=debt.owed_ns * part / 1e9,
                        waits_s=left_ns / 1e9,
                    )
                )
    return tuple(grant_waits)


def owed_seconds(node: Node, grant: Grant, region: Region | None) -> tuple[float, ...] | None:
    """Return what a grant owes others on each of its devices now, by its own count; None: unknown.

    That is device time beyond its share that it used while another grant had work.
    """
    if region is None or not region.counts:
        return None
    cores = [limit.core for limit in grant.limits]
    with suppress(OSError, ValueError):
        cores = [limit.core for limit in read_limits(node.directory(grant.id) / GRANT)]
    now_ns = time.monotonic_ns()
    return tuple(
        counts.owed_at(now_ns, core=core) / 1e9
        for counts, core in zip(region.counts, cores, strict=True)
    )


def owing(node: Node, grants: Iterable[Grant], regions: Mapping[str, Region]) -> tuple[Owing, ...]:
    """Return the grants that owe much and go on while others have work, on each of their devices.

    A program of a grant shows by a lock that its work is in flight, and by another that it owes
    much besides: the figures are the tenant's own word, the locks its limiter's.
    """
    limited_grants = [grant for grant in grants if grant.id in regions]
    owing_grants = []
    for grant in limited_grants:
        owed_by_position = owed_seconds(node, grant, regions[grant.id])
        path = node.directory(grant.id) / USAGE
        for position, owed in enumerate(owed_by_position or ()):
            owes_by_lock = _locks(path, owing_bytes(position))
            owes_by_count = owed > LARGE_DEBT_S and _locks(path, working_bytes(position))
            device = grant.limits[position].name
            if (owes_by_lock or owes_by_count) and any(
                _has_work(node, other, device, regions[other.id])
                for other in limited_grants
                if other.id != grant.id
            ):
                owing_grants.append(
                    Owing(
                        grant=grant.id,
                        device=device,
                        card=_card(grant, position, device),
                        device_number=_number(grant, position),
                        who=grant.debtor,
                        seconds=max(owed, LARGE_DEBT_S),
                    )
                )
    return tuple(owing_grants)


def as_seconds(seconds: float) -> str:
    """Return a time for people: `12 s`, `0.4 s`."""
    return f"{seconds:.0f} s" if seconds >= 1 else f"{seconds:.1g} s"


def _card(grant: Grant, position: int | None, device: str) -> str:
    """Return the name of a device of a grant, or of one that is none of it any more."""
    return (
        f"card {device[:12]}"
        if position is None or not grant.devices
        else grant.devices[position].name
    )


def _number(grant: Grant, position: int | None) -> int | None:
    return None if position is None or not grant.device_numbers else grant.device_numbers[position]


def _has_work(node: Node, grant: Grant, device: str, region: Region) -> bool:
    """Whether a grant wants a device or uses it, by its locks and its last charge."""
    path, now_ns = node.directory(grant.id) / USAGE, time.monotonic_ns()
    positions = [position for position, limit in enumerate(grant.limits) if limit.name == device]
    return any(_locks(path, time_slice_bytes(position)) for position in positions) or any(
        0 <= now_ns - region.counts[position].charged_at_ns < _RECENT_S * 1e9
        for position in positions
        if region.counts
    )


def _locks(path: Path, byte_range: range) -> bool:
    """Whether a process has one of these bytes of a usage region locked; no, if it is gone."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return is_locked(descriptor, byte_range)
        finally:
            os.close(descriptor)
    return False
