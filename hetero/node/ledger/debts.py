"""Keeps what the grants of a user owed when they ended, so that a new grant cannot leave it behind.

    private/debts/<device>/<who>.json   what is left of it, and since when
    grants/<id>/debts.json              what a grant waits for, for views; its grant file has until
                                        when its gate is closed

A grant owes the device time that it used beyond its share while another grant with work was there
(`owed_ns` of the usage region). It is paid while others want the device, at the rate of the shares
that wait for it, or else of the share that made it. It is forgotten when nobody wanted the device
for a minute. Times are of CLOCK_MONOTONIC, as the limiter's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from attrs import evolve, field

from hetero.model import codec
from hetero.model.errors import BadInput
from hetero.model.frozen import frozen
from hetero.model.json_keys import json_key
from hetero.node.ledger import grant_file, usage_region
from hetero.node.ledger.grant_dir import GRANT, USAGE, replace
from hetero.node.ledger.grant_file import CORE_FULL, DeviceLimit
from hetero.node.ledger.locks import is_locked
from hetero.node.ledger.state import make

#: What a grant waits for, in its directory.
DEBTS = "debts.json"
#: The most that is kept, in nanoseconds, and the least: a time slice of the limiters.
MOST_NS, LEAST_NS = 30_000_000_000, 10_000_000
#: Nanoseconds without demand by others after which it is forgotten.
FORGOTTEN_NS = 60_000_000_000
#: So many of the grants that ended are remembered as counted.
_REMEMBERED_COUNT = 16
#: A grant file is written anew where its time is off by more, in nanoseconds.
_EXACT_NS = 20_000_000


@frozen(kw_only=True)
class Debt:
    """What `who`, a user or a namespace, owed the others on `device` at `at_ns`: `owed_ns`.

    `job` is the grant that ended last and owed. `core_share` of CORE_FULL is the share that made
    the debt; it falls by `payment_share` of CORE_FULL of the time in which others want the device.
    `demand_ns` is when they were last known to. `counted_grants` are the ids of the grants that
    ended last.
    """

    device: str
    who: str
    job: str
    owed_ns: int
    core_share: int = field(metadata=json_key("core"))
    payment_share: int = field(metadata=json_key("rate"))
    at_ns: int
    demand_ns: int
    counted_grants: tuple[str, ...] = field(default=(), metadata=json_key("counted"))

    def at(self, now_ns: int, demand_ns: int) -> Debt | None:
        """Return what is left at `now_ns`; None: it is paid or forgotten."""
        demand_ns = max(self.demand_ns, demand_ns)
        paid_ns = max(min(now_ns, demand_ns) - self.at_ns, 0) * self.payment_share // CORE_FULL
        left_ns = min(self.owed_ns, MOST_NS) - paid_ns
        if left_ns < LEAST_NS or now_ns - demand_ns > FORGOTTEN_NS:
            return None
        return evolve(self, owed_ns=left_ns, at_ns=now_ns, demand_ns=demand_ns)

    @property
    def wait_ns(self) -> int:
        """For how many nanoseconds a grant waits that begins at `at_ns`."""
        return self.owed_ns * CORE_FULL // max(self.payment_share, 1)


@frozen(kw_only=True)
class Account:
    """A grant that stands, or did: its debtor, its name, its directory and its devices' limits."""

    id: str
    who: str
    job: str
    directory: Path
    limits: tuple[DeviceLimit, ...]

    def positions(self, device: str) -> list[int]:
        """Return the positions of a device among its limits."""
        return [position for position, limit in enumerate(self.limits) if limit.name == device]


@frozen
class Debts:
    """The debts in the directory `path`; all with the ledger locked."""

    path: Path

    def keep(self, account: Account, others: Sequence[Account]) -> None:
        """Keep what a grant owes that ends now; `others` are those that stand."""
        owed_by_position = owed(account)
        if not any(owed_by_position):
            return
        now_ns = time.monotonic_ns()
        for limit, owed_ns in zip(account.limits, owed_by_position, strict=True):
            if owed_ns < LEAST_NS:
                continue
            path = self._path(limit.name, account.who)
            before = _read(path)
            left = before.at(now_ns, _demand_ns(limit.name, others, now_ns)) if before else None
            if left and account.id in left.counted_grants:
                continue  # who kept it was killed before it removed the grant
            debt = Debt(
                device=limit.name,
                who=account.who,
                job=account.job,
                owed_ns=min(owed_ns + (left.owed_ns if left else 0), MOST_NS),
                core_share=limit.core,
                payment_share=left.payment_share if left else limit.core,
                at_ns=now_ns,
                demand_ns=now_ns,  # else nothing would be owed
                counted_grants=(*(left.counted_grants if left else ()), account.id)[
                    -_REMEMBERED_COUNT:
                ],
            )
            self._write(path, debt)

    def settle(self, accounts: Sequence[Account], new_id: str | None = None) -> None:
        """Bring all debts up to now, and have the grants of who owes wait; `new_id` is new."""
        for path in self._files():
            debt = _read(path)
            if debt is None:
                path.unlink(missing_ok=True)
                continue
            now_ns = time.monotonic_ns()
            waiting = [
                account
                for account in accounts
                if account.who == debt.who
                and account.positions(debt.device)
                and (account.id == new_id or _until_ns(account, debt.device) > now_ns)
            ]
            waiting_ids = {account.id for account in waiting}
            others = [account for account in accounts if account.id not in waiting_ids]
            left = debt.at(now_ns, _demand_ns(debt.device, others, now_ns))
            if left is None:
                path.unlink(missing_ok=True)
            else:
                cores = (
                    account.limits[position].core
                    for account in waiting
                    for position in account.positions(debt.device)
                )
                left = evolve(left, payment_share=min(sum(cores), CORE_FULL) or debt.core_share)
                self._write(path, left)
            for account in waiting:
                _have_wait(account, debt.device, left)

    def clear(self) -> None:
        """Forget all: they are of an earlier boot, whose clock is gone."""
        for path in self._files():
            path.unlink(missing_ok=True)

    def all(self) -> tuple[Debt, ...]:
        """Return what is on file, as it was when it was written."""
        return tuple(debt for path in self._files() if (debt := _read(path)))

    def _files(self) -> list[Path]:
        return sorted(self.path.glob("*/*.json")) if self.path.exists() else []

    def _path(self, device: str, who: str) -> Path:
        return self.path / quote(device, safe="") / f"{quote(who, safe='')}.json"

    def _write(self, path: Path, debt: Debt) -> None:
        make(self.path, mode=0o755)
        make(path.parent, mode=0o755)
        replace(path, codec.dumps(debt).encode(), mode=0o644)


def owed(account: Account) -> tuple[int, ...]:
    """Return the nanoseconds that a grant owes now on each of its devices, as its programs count.

    Zeros where its region cannot be read.
    """
    try:
        region = usage_region.read_region(
            account.directory / USAGE, device_count=len(account.limits)
        )
    except (OSError, ValueError):
        return (0,) * len(account.limits)
    if not region.counts:
        return (0,) * len(account.limits)
    now_ns = time.monotonic_ns()
    return tuple(
        counts.owed_at(now_ns, core=limit.core)
        for counts, limit in zip(region.counts, account.limits, strict=True)
    )


def debts_of(grant_directory: Path) -> tuple[Debt, ...]:
    """Return what a grant waits for; none where that cannot be read."""
    path = grant_directory / DEBTS
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError):
        return ()
    with suppress(BadInput):
        return codec.loads(text, _Awaited, source=str(path)).debts
    return ()


@frozen(kw_only=True)
class _Awaited:
    debts: tuple[Debt, ...]


def _have_wait(account: Account, device: str, debt: Debt | None) -> None:
    """Write into a grant's file until when it waits, and for views what for."""
    until_ns = debt.at_ns + debt.wait_ns if debt else 0
    with suppress(OSError, ValueError):  # it ends
        if abs(_until_ns(account, device) - until_ns) <= _EXACT_NS:
            return
        for position in account.positions(device):
            grant_file.store_owes_until(account.directory / GRANT, position, until_ns)
        others = (other for other in debts_of(account.directory) if other.device != device)
        contents = codec.dumps(_Awaited(debts=(*others, *([debt] if debt else [])))).encode()
        replace(account.directory / DEBTS, contents, mode=0o644)


def _until_ns(account: Account, device: str) -> int:
    """Return until when a grant waits on a device; 0: it does not, or its file is unreadable."""
    with suppress(OSError, ValueError):
        times_ns = grant_file.read_owes_until(
            account.directory / GRANT, device_count=len(account.limits)
        )
        return max((times_ns[position] for position in account.positions(device)), default=0)
    return 0


def _demand_ns(device: str, accounts: Iterable[Account], now_ns: int) -> int:
    """Return when one of these grants last wanted a device, as far as is known; 0: never."""
    return max(
        (
            _wanted_ns(account, position, now_ns)
            for account in accounts
            for position in account.positions(device)
        ),
        default=0,
    )


def _wanted_ns(account: Account, position: int, now_ns: int) -> int:
    """Return when a grant last wanted its device, by its locks and its last charge.

    A charge that a tenant wrote for later than now is none.
    """
    try:
        descriptor = os.open(account.directory / USAGE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        if is_locked(descriptor, usage_region.time_slice_bytes(position)):
            return now_ns
        region = usage_region.read_region(
            account.directory / USAGE, device_count=len(account.limits)
        )
    except (OSError, ValueError):
        return 0
    finally:
        os.close(descriptor)
    charged_ns = region.counts[position].charged_at_ns if region.counts else 0
    return charged_ns if charged_ns <= now_ns else 0


def _read(path: Path) -> Debt | None:
    with suppress(OSError, UnicodeDecodeError, BadInput):
        return codec.loads(path.read_text(), Debt, source=str(path))
    return None
