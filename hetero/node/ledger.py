"""The ledger of standing grants: one directory each, standing exactly as long as somebody holds it.

    lock                    locked by whoever admits, changes or sweeps
    grants/<id>/allocation.json   the entry; the truth
    grants/<id>/grant, usage      what the limiter maps: limits, and what is used (region.py)
    grants/<id>/turn.<i>          a hard link to turns/<device>, which tenants of a device share
    grants/<id>/alive             locked by the program and the children that inherited it
    grants/<id>/kept              there while something that is no process, a pod say, keeps it
    grants/.<id>/                 a grant on its way in or out; nothing in it counts

A grant stands while `alive` is locked, or any byte of `usage` is: the limiter locks one in every
process that uses a device; and while it is kept, whether or not a process came yet. Both locks are
the kernel's and go with the last process; nothing here asks for a PID, and nothing is flushed to
disk: no process outlives the kernel that holds its locks, and a keeper can say so anew.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from attrs import evolve, field, frozen

from hetero import codec
from hetero.errors import BadInput, HeteroError
from hetero.model import Allocation, Edits, Mount
from hetero.node import grant, region
from hetero.node.grant import Limit
from hetero.node.locks import is_held, lock, try_lock
from hetero.node.state import make, prepare

ALLOCATION, GRANT, USAGE, ALIVE = "allocation.json", "grant", "usage", "alive"
KEPT = "kept"

#: An admission takes milliseconds; a thousand in a row stay well below this.
PATIENCE = 60.0
#: Scripts number their descriptors by hand from 3 up; the one that keeps a grant stays clear.
_HIGH_DESCRIPTOR = 100


@frozen(kw_only=True)
class Standing:
    """One grant that stands: what was allocated, to whom, since when (UTC).

    `limits` is what the grant file says, one for each of the allocation's grants. Where a grant is
    kept, `keeper` says by what and for whom, and `edits` what its container was given.
    """

    id: str
    allocation: Allocation
    limits: tuple[Limit, ...]
    command: tuple[str, ...]
    user: str
    since: str
    label: str | None = None
    keeper: Mapping[str, str] = field(factory=dict)
    edits: Edits = field(factory=Edits)


@frozen(kw_only=True)
class Unreadable:
    """A grant that stands although its entry cannot be read, so that nobody knows what it takes."""

    id: str
    reason: str


@frozen(kw_only=True)
class Look:
    """What one look at the ledger found; `stale` are dead grants that could not be swept."""

    standing: tuple[Standing, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    stale: tuple[str, ...] = ()


@frozen
class Hold:
    """A grant just admitted: `path` is its directory, `descriptor` what keeps it standing.

    `mounts` are what its program is to see, which takes a mount namespace of its own.
    """

    standing: Standing
    path: Path
    descriptor: int
    mounts: tuple[Mount, ...] = ()

    def hand_over(self) -> None:
        """Let the program that replaces this one by exec, and its children, keep the grant."""
        fcntl.fcntl(self.descriptor, fcntl.F_DUPFD, _HIGH_DESCRIPTOR)


@frozen
class Ledger:
    """The ledger in the state directory `path`; looking at one that is not there finds nothing."""

    path: Path
    patience: float = field(default=PATIENCE, kw_only=True)

    @property
    def _grants(self) -> Path:
        return self.path / "grants"

    def directory(self, identity: str) -> Path:
        """Return the directory of a grant."""
        return self._grants / identity

    def look(self) -> Look:
        """Return what stands now. Sweeps first, unless somebody is at the ledger already."""
        with suppress(OSError), self._open_lock() as descriptor:
            if try_lock(descriptor):
                return self._sweep()
        return self._read()

    @contextmanager
    def admission(self) -> Iterator[Look]:
        """Hold the ledger: what stands stays so until the block ends, but for grants that die.

        Raises `HeteroError` when somebody else holds it for too long.
        """
        prepare(self.path)
        with self._open_lock() as descriptor:
            if not lock(descriptor, within=self.patience):
                raise HeteroError(
                    f"the ledger {self.path} was busy for {self.patience:.0f} s: another hetero "
                    "holds it; is one stopped? Try again when it has ended"
                )
            yield self._sweep()

    def add(self, standing: Standing) -> Hold:
        """Make `standing` stand under a new id; within `admission`. All of it, or nothing."""
        return self._enter(evolve(standing, id=self._new_id()), kept=False)

    def keep(self, standing: Standing) -> None:
        """Make `standing` stand under its own id until `let_go`; within `admission`."""
        os.close(self._enter(standing, kept=True).descriptor)

    def keep_on(self, identity: str) -> None:
        """Keep a grant that stands, though it had been let go; within `admission`."""
        _write(self.directory(identity) / KEPT, b"", mode=0o600)

    def let_go(self, identity: str) -> None:
        """Stop keeping a grant: it ends now, or with the last process that uses its devices."""
        with suppress(FileNotFoundError):
            (self.directory(identity) / KEPT).unlink()
        self.look()

    def _enter(self, standing: Standing, *, kept: bool) -> Hold:
        identity = standing.id
        # In a container the program may be any user.
        shared = 0o666 if kept else 0o600
        draft, final = self._grants / f".{identity}", self._grants / identity
        descriptor = -1
        try:
            make(draft, mode=0o755)
            # Locked before others may open it: a stranger's lock could keep ours out.
            descriptor = _create(draft / ALIVE, mode=0o600)
            if not try_lock(descriptor):
                raise HeteroError(f"{draft}: locked by another process; try again")
            os.fchmod(descriptor, 0o644)
            contents = grant.pack(
                identity,
                standing.limits,
                policy=standing.allocation.policy,
                priority=standing.allocation.priority,
            )
            _write(draft / GRANT, contents, mode=0o644)
            _write(draft / USAGE, bytes(region.SIZE), mode=shared)
            if kept:
                _write(draft / KEPT, b"", mode=0o600)
            for position, limit in enumerate(standing.limits):
                turn = self.path / "turns" / quote(limit.name, safe="")
                os.close(_create(turn, mode=shared))
                if kept:
                    turn.chmod(shared)
                os.link(turn, draft / f"turn.{position}")
            _write(draft / ALLOCATION, codec.dumps(standing).encode(), mode=0o644)
            draft.rename(final)
        except BaseException as error:
            if descriptor >= 0:
                os.close(descriptor)
            shutil.rmtree(draft, ignore_errors=True)
            if isinstance(error, OSError):
                raise HeteroError(f"the ledger {self.path}: {error.strerror}") from None
            raise
        return Hold(standing, final, descriptor)

    def give_back(self, hold: Hold) -> None:
        """End a grant that was admitted and never handed over."""
        os.close(hold.descriptor)
        self._remove(hold.standing.id)

    def change(self, standing: Standing) -> None:
        """Replace the entry of a grant that stands, then its limits; within `admission`.

        Killed between the two, the next sweep brings the limits in line with the entry.
        """
        directory = self.directory(standing.id)
        draft = directory / f".{ALLOCATION}"
        try:
            _write(draft, codec.dumps(standing).encode(), mode=0o644)
            draft.replace(directory / ALLOCATION)
        except OSError as error:
            raise HeteroError(f"the ledger {self.path}: {error.strerror}") from None
        grant.store_limits(directory / GRANT, standing.limits)

    def stands(self, identity: str) -> bool:
        """Return whether anybody holds the grant, or something keeps it."""
        if (self.directory(identity) / KEPT).exists():
            return True
        for name in (ALIVE, USAGE):
            try:
                descriptor = os.open(self.directory(identity) / name, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            except PermissionError:
                continue  # another user's: its `alive` is all we may ask
            try:
                if is_held(descriptor):
                    return True
            finally:
                os.close(descriptor)
        return False

    @contextmanager
    def _open_lock(self) -> Iterator[int]:
        descriptor = _create(self.path / "lock", mode=0o600)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _names(self, *, drafts: bool = False) -> list[str]:
        try:
            names = os.listdir(self._grants)
        except (FileNotFoundError, PermissionError):
            return []
        return sorted(name for name in names if drafts or not name.startswith("."))

    def _read(self) -> Look:
        standing: list[Standing] = []
        unreadable: list[Unreadable] = []
        stale: list[str] = []
        for identity in self._names():
            if not self.stands(identity):
                stale.append(identity)
                continue
            path = self.directory(identity) / ALLOCATION
            try:
                entry = codec.loads(path.read_text(), Standing, source=str(path))
            except (BadInput, OSError, UnicodeDecodeError) as error:
                if not self.stands(identity):
                    continue  # it ended while we looked
                unreadable.append(Unreadable(id=identity, reason=str(error)))
            else:
                standing.append(entry)
        return Look(standing=tuple(standing), unreadable=tuple(unreadable), stale=tuple(stale))

    def _sweep(self) -> Look:
        """With the lock held: remove what nobody holds, mend limits a killed change left, look."""
        for name in self._names(drafts=True):
            if name.startswith("."):
                shutil.rmtree(self._grants / name, ignore_errors=True)
            elif not self.stands(name):
                self._remove(name)
        look = self._read()
        for entry in look.standing:
            path = self.directory(entry.id) / GRANT
            with suppress(OSError, ValueError):
                if grant.read_limits(path) != entry.limits:
                    grant.store_limits(path, entry.limits)
        return look

    def _remove(self, identity: str) -> None:
        # Out of sight first: a grant that is half removed must not be seen as one.
        out = self._grants / f".{identity}"
        with suppress(FileNotFoundError):
            self.directory(identity).rename(out)
        shutil.rmtree(out, ignore_errors=True)

    def _new_id(self) -> str:
        while True:
            identity = secrets.token_hex(4)
            if not self.directory(identity).exists():
                return identity


def _create(path: Path, *, mode: int) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)


def _write(path: Path, contents: bytes, *, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        os.fchmod(descriptor, mode)  # whatever the umask
        if os.write(descriptor, contents) != len(contents):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)
