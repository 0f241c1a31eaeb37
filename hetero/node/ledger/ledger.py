"""The ledger of standing grants: one directory each, standing exactly as long as somebody holds it.

    queue/<number>/         a request that waits: queue.py
    lock                    locked during an admission, a change or a sweep
    boot                    which boot of the machine this ledger is of
    grants/<id>/allocation.json   the entry; the truth
    grants/<id>/tenant/           what the limiter maps; private/boards/<device>: board.py
    private/debts/          what users owe whose grants have ended: debts.py
    grants/<id>/alive             locked by the program and the children that inherited it
    grants/<id>/container         a link to what a container's runtime keeps of it
    grants/<id>/edits.json        what the vendors said of a share (container/share.py)
    grants/<id>/pinned            there while something that is no process, a pod say, owns it;
                                  what that notes of it is inside, line by line
    grants/<id>/ended             there while the container that it is for has ended, as its owner
                                  says, and may start again
    grants/.<id>/                 a grant on its way in or out; nothing in it counts

A grant stands while `alive` is locked, or any byte of `usage` is: the limiter locks one in every
process as it is loaded, and another in one that uses a device. Both locks are the kernel's and go
with the last process; nothing here asks for a PID. Three kinds of grant stand without a process. A
container's stands while its runtime knows the container, too: as long as the end of its link is
there. One that is pinned stands until its owner unpins it, whether or not a process came yet. A
share stands while its record is there: `allocation.json` is a link to it, in a directory that
outlives the boot. All else is flushed to no disk, since it does not outlive the kernel that holds
it, and an owner can say so anew.
"""

from __future__ import annotations

import fcntl
import os
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path

from attrs import evolve, field

from hetero.model import Allocation, Device, DeviceAllocation, Edits, Mount, codec
from hetero.model.errors import BadInput, HeteroError
from hetero.model.frozen import frozen
from hetero.model.json_keys import json_key
from hetero.model.units import format_memory
from hetero.node.ledger import grant_file, usage_region
from hetero.node.ledger.board import Row, remove_board, remove_pages, sweep_pages, write_board
from hetero.node.ledger.debts import Account, Debts, owed
from hetero.node.ledger.events import record
from hetero.node.ledger.grant_dir import (
    GRANT,
    USAGE,
    board_of,
    contents_of,
    create,
    cut_back,
    replace,
    write,
    write_tenant,
)
from hetero.node.ledger.grant_file import DeviceLimit
from hetero.node.ledger.locks import is_held, lock, try_lock
from hetero.node.ledger.queue import Queue
from hetero.node.ledger.residual_share import with_rest
from hetero.node.ledger.rows import (
    GangRow,
    Periods,
    gang_row,
    may_be_gang,
    place_rows,
    with_spare,
)
from hetero.node.ledger.state import make, prepare, remove_all

ALLOCATION, ALIVE, CONTAINER, PINNED = "allocation.json", "alive", "container", "pinned"
EDITS, ENDED_FILE = "edits.json", "ended"

#: An admission takes milliseconds; a thousand in a row stay well below this.
ADMISSION_WAIT_S = 60.0
#: Scripts number their descriptors by hand from 3 up; the one that keeps a grant stays clear.
_HIGH_DESCRIPTOR = 100


@frozen(kw_only=True)
class ContainerInfo:
    """A container as people know it; `state` is what its runtime keeps until it is deleted."""

    id: str
    name: str
    image: str | None = None
    state: str | None = None


@frozen(kw_only=True)
class Grant:
    """One grant that stands: what was allocated, to whom, since when (UTC).

    `limits` is what the grant file says, one for each of the allocation's pieces. The core of one
    without a limit differs where co-tenants have one (residual_share.py). `container` is the one it
    was made for, `share` its name where it stands for any container. Where a grant is pinned,
    `owner` says by what and for whom, and `edits` what its container was given. `uid` is the user
    whose it is, where another wrote it down (heterod). `device_numbers` are those of its devices in
    the inventory when it was made, `devices` they themselves then, without how they divide. `soft`
    are the vendors of its devices that a limiter shared then, by the node's settings, where they
    would else have been cut. `served` are its devices that programs shared by a service then.
    `promised` are the pieces that the scheduler of its pod, or its claim, counts, however it is
    resized.
    """

    id: str
    allocation: Allocation
    limits: tuple[DeviceLimit, ...]
    command: tuple[str, ...]
    user: str
    since_utc: str = field(metadata=json_key("since"))
    label: str | None = None
    container: ContainerInfo | None = None
    share: str | None = None
    owner: Mapping[str, str] = field(factory=dict)
    edits: Edits = field(factory=Edits)
    uid: int | None = None
    device_numbers: tuple[int, ...] = field(default=(), metadata=json_key("numbers"))
    devices: tuple[Device, ...] = ()
    soft: tuple[str, ...] = ()
    served: tuple[str, ...] = ()
    promised: tuple[DeviceAllocation, ...] = ()

    @property
    def cards(self) -> str:
        """The names of its devices, as they were when it was made: `acme:0, acme:1`."""
        return ", ".join(dict.fromkeys(device.name for device in self.devices))

    @property
    def is_contained(self) -> bool:
        """Whether it is a container's, which has the device nodes of its devices alone."""
        return bool(self.container or self.share or self.owner)

    @property
    def core_percents(self) -> tuple[float | None, ...]:
        """The core of each of its pieces in percent of its card, by all views; None: no limit."""
        device_by_uuid = {device.uuid: device for device in self.devices}
        return tuple(
            limit.core_given(piece, device_by_uuid.get(piece.device))
            for limit, piece in zip(self.limits, self.allocation.pieces, strict=True)
        )

    @property
    def debtor(self) -> str:
        """Who owes what the grant owes: its pod's namespace, or its user."""
        namespace = self.owner.get("namespace")
        return f"namespace {namespace}" if namespace else self.user

    @property
    def reserved(self) -> Allocation:
        """What nobody else is given: what it has, and no less than what was promised."""
        if not self.promised:
            return self.allocation
        promised_takes = {piece.device: piece.takes for piece in self.promised}
        pieces = []
        for piece in self.allocation.pieces:
            promised_amounts = promised_takes.get(piece.device, {})
            most_amounts = {
                counter: max(amount, piece.takes.get(counter, 0))
                for counter, amount in promised_amounts.items()
            }
            pieces.append(evolve(piece, takes={**piece.takes, **most_amounts}))
        return evolve(self.allocation, pieces=tuple(pieces))


@frozen(kw_only=True)
class Unreadable:
    """A grant that stands although its entry is unreadable, so that its pieces are unknown."""

    id: str
    reason: str


@frozen(kw_only=True)
class Snapshot:
    """The grants at one time; `stale` are dead grants that could not be removed."""

    grants: tuple[Grant, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    stale: tuple[str, ...] = ()


@frozen
class GrantHandle:
    """A grant just admitted: `path` is its directory, `descriptor` what keeps it standing.

    `mounts` are what its program is to see, which takes a mount namespace of its own. `sliced` says
    that slices may have been cut for it, which outlive its program.
    """

    grant: Grant
    path: Path
    descriptor: int
    mounts: tuple[Mount, ...] = ()
    sliced: bool = False

    def hand_over(self) -> None:
        """Let the program that replaces this one by exec, and its children, keep the grant."""
        fcntl.fcntl(self.descriptor, fcntl.F_DUPFD, _HIGH_DESCRIPTOR)


@frozen
class Ledger:
    """The ledger in the state directory `path`; one that does not exist reads as empty.

    `persistent` is a directory that outlives the boot; without one there are no shares. `periods`
    says how the time of gangs is cut.
    """

    path: Path
    persistent: Path | None = field(default=None, kw_only=True)
    patience_s: float = field(default=ADMISSION_WAIT_S, kw_only=True)
    periods: Callable[[], Periods] = field(default=Periods, kw_only=True)

    @property
    def _grants(self) -> Path:
        return self.path / "grants"

    @property
    def boards(self) -> Path:
        """The directory of boards, one directory for each device, which its tenants read."""
        return self.path / "private/boards"

    @property
    def shown_boards(self) -> Path:
        """Where programs of other users read the boards: a mount of heterod, read-only."""
        return self.path / "boards"

    @property
    def queue(self) -> Queue:
        """The requests that wait for devices."""
        return Queue(self.path / "queue")

    @property
    def debts(self) -> Debts:
        """What users owe whose grants have ended."""
        return Debts(self.path / "private/debts")

    def directory(self, grant_id: str) -> Path:
        """Return the directory of a grant."""
        return self._grants / grant_id

    def _place(self, grant_id: str) -> str:
        """Return `directory` as text, for what is done for every grant at every look.

        To make a `Path` takes as long as to open a file.
        """
        return f"{self.path}/grants/{grant_id}"

    def snapshot(self) -> Snapshot:
        """Return the standing grants. Sweeps first, unless the ledger is locked."""
        if self._records() and not self.path.exists():
            prepare(self.path)  # the first look after a reboot
        with suppress(OSError), self._open_lock() as descriptor:
            if try_lock(descriptor):
                return self._sweep()
        return self._read()

    def unswept(self) -> Snapshot:
        """Return the standing grants without a sweep and without waiting: an admission may differ.

        After a reboot it has grants that no longer stand, and lacks shares.
        """
        return self._read()

    @contextmanager
    def admission(self) -> Iterator[Snapshot]:
        """Hold the ledger: grants stay as they are until the block ends, but for those that die.

        Raises `HeteroError` when another process holds it for too long, or it cannot be written.
        """
        prepare(self.path)
        with ExitStack() as open_files:
            with self._in_a_line():
                descriptor = open_files.enter_context(self._open_lock())
            if not lock(descriptor, within_s=self.patience_s, progress=self._names):
                raise HeteroError(
                    f"the ledger {self.path} was busy for {self.patience_s:.0f} s: another hetero "
                    "holds it; is one stopped? Try again when it has ended"
                )
            with self._in_a_line():
                snapshot = self._sweep()
            yield snapshot

    def add(self, grant: Grant, standing_grants: Sequence[Grant]) -> GrantHandle:
        """Make `grant` stand under a new id; within `admission`. All of it, or nothing.

        `standing_grants` are those that the admission read, so that nothing is read again.
        """
        grant = evolve(grant, id=self._new_id())
        descriptor = self._build(grant)
        try:
            if grant.share:
                self._record(grant)
            grants = (*standing_grants, grant)
            self._write_limits(grants)
            self._settle_debts(grants, new_id=grant.id)
        except (OSError, HeteroError) as error:
            os.close(descriptor)
            self.drop(grant.id)
            if isinstance(error, HeteroError):
                raise
            subject = f"share {grant.share}" if grant.share else f"the ledger {self.path}"
            raise HeteroError(f"{subject}: {error.strerror}") from None
        return GrantHandle(grant, self.directory(grant.id), descriptor)

    def replace(
        self, handle: GrantHandle, grant: Grant, standing_grants: Sequence[Grant]
    ) -> GrantHandle:
        """Replace the grant that this process holds by `grant`, under a new id; within `admission`.

        `standing_grants` as in `add`. After an error only the handle's descriptor is left of both.
        """
        self._remove(handle.grant.id)
        other_grants = [other for other in standing_grants if other.id != handle.grant.id]
        new_handle = self.add(grant, other_grants)
        os.dup2(new_handle.descriptor, handle.descriptor, inheritable=False)
        os.close(new_handle.descriptor)
        return evolve(new_handle, descriptor=handle.descriptor)

    def pin(
        self, grant: Grant, *, instead_of: GrantHandle, standing_grants: Sequence[Grant]
    ) -> None:
        """Make `grant` stand under its own id until `unpin`; within `admission`.

        It replaces the grant that this process held for it. `standing_grants` as in `add`.
        """
        self._remove(instead_of.grant.id)
        os.close(self._build(grant))
        try:
            with self._in_a_line():
                other_grants = (
                    grant for grant in standing_grants if grant.id != instead_of.grant.id
                )
                grants = (*other_grants, grant)
                self._write_limits(grants)
                self._settle_debts(grants, new_id=grant.id)
        except HeteroError:
            self._remove(grant.id)
            raise

    def pin_again(self, grant_id: str) -> None:
        """Pin a grant that stands, though it had been unpinned; within `admission`."""
        os.close(create(self.directory(grant_id) / PINNED, mode=0o600))

    def note(self, grant_id: str, line: str) -> bool:
        """Add a line to the notes of a grant's owner; return False if it is not pinned."""
        path = self.directory(grant_id) / PINNED
        with self._in_a_line():
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            except FileNotFoundError:
                return False
            try:
                os.write(descriptor, f"{line}\n".encode())  # whole, or not at all
            finally:
                os.close(descriptor)
        return True

    def notes(self, grant_id: str) -> tuple[str, ...]:
        """Return the lines that the owner of a grant noted; none if it is not pinned."""
        try:
            return tuple((self.directory(grant_id) / PINNED).read_text().splitlines())
        except FileNotFoundError:
            return ()

    def set_ended(self, grant_id: str, *, has_ended: bool) -> None:
        """Note for views whether the container of a grant has ended, if the grant is there.

        What the grant takes stays the same: its pod may start the container again.
        """
        path = self.directory(grant_id) / ENDED_FILE
        with suppress(FileNotFoundError):
            if has_ended and not path.exists():
                write(path, b"", mode=0o644)
            elif not has_ended:
                path.unlink()

    def unpin(self, grant_id: str) -> None:
        """Stop keeping a grant: it ends now, or with the last process that uses its devices."""
        with suppress(FileNotFoundError):
            (self.directory(grant_id) / PINNED).unlink()
        self.snapshot()

    def _build(self, grant: Grant) -> int:
        """Make the directory of a grant, all of it or nothing; return its locked `alive`."""
        draft_directory, final_directory = self._grants / f".{grant.id}", self.directory(grant.id)
        descriptor = -1
        try:
            make(draft_directory, mode=0o755)
            # Locked before others may open it: a stranger's lock could keep ours out.
            descriptor = create(draft_directory / ALIVE, mode=0o600)
            if not try_lock(descriptor):
                raise HeteroError(f"{draft_directory}: locked by another process; try again")
            os.fchmod(descriptor, 0o644)
            write_tenant(
                draft_directory,
                grant.id,
                allocation=grant.allocation,
                limits=grant.limits,
                boards_directory=self.boards,
                shown_boards_directory=self.boards if grant.uid is None else self.shown_boards,
                uid=grant.uid,
            )
            if grant.owner:
                write(draft_directory / PINNED, b"", mode=0o600)
            if grant.share:
                (draft_directory / ALLOCATION).symlink_to(self._record_of(grant.id))
            else:
                write(draft_directory / ALLOCATION, codec.dumps(grant).encode(), mode=0o644)
            if grant.container and grant.container.state:
                (draft_directory / CONTAINER).symlink_to(grant.container.state)
            draft_directory.rename(final_directory)
        except BaseException as error:
            if descriptor >= 0:
                os.close(descriptor)
            remove_all(draft_directory)
            remove_pages(self.boards, grant.id)
            if isinstance(error, OSError):
                raise HeteroError(f"the ledger {self.path}: {error.strerror}") from None
            raise
        return descriptor

    def _record_of(self, grant_id: str) -> Path:
        if self.persistent is None:
            raise HeteroError("shares are root's: only root's ledger outlives a program")
        return self.persistent / "shares" / f"{grant_id}.json"

    def _records(self) -> list[Path]:
        return sorted(self.persistent.glob("shares/[!.]*.json")) if self.persistent else []

    def _record(self, grant: Grant) -> None:
        """Write a share's record: from here on, and after a reboot, the share stands."""
        path = self._record_of(grant.id)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        replace(path, codec.dumps(grant).encode(), mode=0o644, durable=True)

    def record_begin(self, grant: Grant) -> None:
        """Write to the log that a program has this grant."""
        names = [device.name for device in grant.devices]
        for limit, name, number in zip(grant.limits, names, grant.device_numbers, strict=True):
            core_text = "" if limit.granted_percent is None else f", {limit.granted_percent:g} %"
            record(
                self.persistent,
                grant.label or grant.id,
                f"{grant.user} has {format_memory(limit.memory)}{core_text} of {name}: "
                f"{shlex.join(grant.command)}",
                grant_id=grant.id,
                numbers=(number,),
            )

    def _record_end(self, grant_id: str) -> None:
        """Write to the log that a program's grant is seen to have ended."""
        if self.persistent is None:
            return
        with suppress(HeteroError, OSError, UnicodeDecodeError):
            grant = self._entry_of(grant_id)
            if grant.command and not (grant.container or grant.share or grant.owner):
                record(
                    self.persistent,
                    grant.label or grant.id,
                    f"the grant of {grant.user} has ended",
                    grant_id=grant.id,
                    numbers=grant.device_numbers,
                )

    def drop(self, grant_id: str) -> None:
        """End a share, or what is left of one; within `admission`."""
        if self.persistent:
            self._record_of(grant_id).unlink(missing_ok=True)
        self._record_end(grant_id)
        self._keep_debt(grant_id)
        self._remove(grant_id)

    def abort(self, handle: GrantHandle) -> None:
        """End a grant that was admitted and never handed over."""
        os.close(handle.descriptor)
        self._remove(handle.grant.id)

    def change(self, grant: Grant) -> None:
        """Replace the entry of a grant that stands, then its limits; within `admission`.

        Killed between the two, the next sweep brings the limits in line with the entry.
        """
        directory = self.directory(grant.id)
        entry_path = (directory / ALLOCATION).resolve()  # a share's is its record
        with self._in_a_line():
            replace(entry_path, codec.dumps(grant).encode(), mode=0o644, durable=bool(grant.share))
        self._write_limits(self._read().grants)

    @contextmanager
    def _in_a_line(self) -> Iterator[None]:
        """Turn an error of a full or read-only disk into one line for the user."""
        try:
            yield
        except OSError as error:
            raise HeteroError(f"the ledger {self.path}: {error.strerror}") from None

    def row(self, grant: Grant) -> GangRow | None:
        """Return the row of a grant that stands; None if it is no gang."""
        if not may_be_gang(len(grant.limits), grant.allocation.gang):
            return None  # the others need not be read for that
        grants = self._read().grants
        limits_by_grant = with_rest(
            {
                grant_on_file.id: (grant_on_file.allocation.policy, grant_on_file.limits)
                for grant_on_file in grants
            }
        )
        return gang_rows(grants, limits_by_grant, self.periods()).get(grant.id)

    def stands(self, grant_id: str) -> bool:
        """Return whether a process, a link or a pin keeps the grant."""
        directory = self._place(grant_id)
        if os.path.islink(entry_path := f"{directory}/{ALLOCATION}"):  # a share
            return os.path.exists(entry_path)
        container_link = f"{directory}/{CONTAINER}"
        if os.path.exists(f"{directory}/{PINNED}"):
            return True
        if os.path.islink(container_link) and _is_there(container_link):
            return True
        for file_name in (ALIVE, USAGE):
            try:
                descriptor = os.open(f"{directory}/{file_name}", os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            except PermissionError:
                continue  # another user's: only its `alive` may be opened
            try:
                if is_held(descriptor):
                    return True
            finally:
                os.close(descriptor)
        return False

    def is_share(self, grant_id: str) -> bool:
        """Return whether the grant is a share, even if its record is unreadable."""
        return (self.directory(grant_id) / ALLOCATION).is_symlink()

    @contextmanager
    def _open_lock(self) -> Iterator[int]:
        descriptor = create(self.path / "lock", mode=0o600)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _names(self, *, with_drafts: bool = False) -> list[str]:
        try:
            directory_names = os.listdir(self._grants)
        except (FileNotFoundError, PermissionError):
            return []
        return sorted(name for name in directory_names if with_drafts or not name.startswith("."))

    def _read(
        self,
        unreadable_grants: Iterable[Unreadable] = (),
        *,
        except_id: str | None = None,
        known_ids: Collection[str] = (),
    ) -> Snapshot:
        """Return what stands; of grants in `known_ids` that is known."""
        grants: list[Grant] = []
        unreadable_grants = list(unreadable_grants)
        stale_ids: list[str] = []
        for grant_id in self._names():
            if grant_id == except_id:
                continue
            if grant_id not in known_ids and not self.stands(grant_id):
                stale_ids.append(grant_id)
                continue
            try:
                grant = self._entry_of(grant_id)
            except (BadInput, OSError, UnicodeDecodeError) as error:
                if not self.stands(grant_id):
                    continue  # it ended while we looked
                unreadable_grants.append(Unreadable(id=grant_id, reason=str(error)))
            else:
                grants.append(grant)
        return Snapshot(
            grants=tuple(grants), unreadable=tuple(unreadable_grants), stale=tuple(stale_ids)
        )

    def _entry_of(self, grant_id: str) -> Grant:
        path = f"{self._place(grant_id)}/{ALLOCATION}"
        return _entry(contents_of(path).decode(), path)

    def _sweep(self) -> Snapshot:
        """With the lock held: bring the ledger in line with the facts, and return what stands.

        Grants without a holder are removed, shares are restored after a reboot, and limits are
        written as the entry says, in case a change was killed.
        """
        self._expect_this_boot()
        standing_ids: set[str] = set()
        for directory_name in self._names(with_drafts=True):
            if directory_name.startswith("."):
                remove_all(self._grants / directory_name)
            elif self.stands(directory_name):
                standing_ids.add(directory_name)
            else:
                self._record_end(directory_name)
                self._keep_debt(directory_name)
                self._remove(directory_name)
        self.queue.sweep()
        snapshot = self._read(self._restore(), known_ids=standing_ids)
        self._cut_back(snapshot.grants)
        sweep_pages(self.boards, set(self._names()))
        self._write_limits(snapshot.grants)
        self._settle_debts(snapshot.grants)
        return snapshot

    def _keep_debt(self, grant_id: str) -> None:
        """Keep what a grant that ends owes; one whose entry is unreadable owes nothing."""
        with suppress(BadInput, OSError, UnicodeDecodeError):
            account = self._account(self._entry_of(grant_id))
            if any(owed(account)):
                grants = self._read(except_id=grant_id).grants
                self.debts.keep(account, [self._account(grant) for grant in grants])

    def _settle_debts(self, grants: Iterable[Grant], new_id: str | None = None) -> None:
        """Bring what is owed up to now; a new grant waits until what its user owes is paid."""
        if self.debts.path.exists():
            self.debts.settle([self._account(grant) for grant in grants], new_id)

    def _account(self, grant: Grant) -> Account:
        """Return a grant with the shares that its file says, some of which neighbours leave."""
        limits, directory = grant.limits, self.directory(grant.id)
        with suppress(OSError, ValueError):
            cores = [limit.core for limit in grant_file.read_limits(directory / GRANT)]
            limits = tuple(
                evolve(limit, core=core) for limit, core in zip(limits, cores, strict=True)
            )
        return Account(
            id=grant.id,
            who=grant.debtor,
            job=grant.label or grant.id,
            directory=directory,
            limits=limits,
        )

    def _cut_back(self, grants: Iterable[Grant]) -> None:
        """Undo what programs did to fill the directory, which all users share."""
        for grant in grants:
            for file_name, size_bytes in ((ALIVE, 0), (USAGE, usage_region.SIZE)):
                with suppress(OSError):  # it ended meanwhile
                    cut_back(f"{self._place(grant.id)}/{file_name}", size_bytes)

    def _write_limits(self, grants: Sequence[Grant]) -> None:
        """Write every grant file and board as the entries require."""
        limits_by_grant = with_rest(
            {grant.id: (grant.allocation.policy, grant.limits) for grant in grants}
        )
        for grant in grants:
            path, limits = f"{self._place(grant.id)}/{GRANT}", limits_by_grant[grant.id]
            allocation = grant.allocation
            wanted_contents = grant_file.pack(
                grant.id, limits, policy=allocation.policy, priority=allocation.priority
            )
            with suppress(OSError, ValueError):
                if not grant_file.holds_limits(contents_of(path), wanted_contents):
                    grant_file.store_limits(Path(path), limits, policy=allocation.policy)
        periods = self.periods()
        gangs = gang_rows(grants, limits_by_grant, periods)
        rows: dict[str, list[Row]] = {}
        for grant in grants:
            for device_limit in limits_by_grant[grant.id]:
                row = Row(
                    id=grant.id,
                    core=device_limit.core,
                    policy=grant_file.policy_of(device_limit, grant.allocation.policy),
                    priority=grant_file.PRIORITIES[grant.allocation.priority],
                    gang=_on(gangs.get(grant.id), device_limit),
                )
                rows.setdefault(device_limit.name, []).append(row)
        boards = {board_of(self.boards, device): board_rows for device, board_rows in rows.items()}
        for board_directory, board_rows in boards.items():
            write_board(board_directory, board_rows, overrun_ns=periods.overrun_ns or 0)
        for board_directory in self.boards.glob("*"):
            if board_directory not in boards:
                remove_board(board_directory)

    def _expect_this_boot(self) -> None:
        """Start afresh in a state directory that outlived a boot: no holder of its grants is left.

        Their files are of no use either: a lock may lie in one that no process can open.
        """
        path, boot_id = self.path / "boot", _boot()
        boot_id_on_file = path.read_bytes() if path.exists() else None
        if boot_id_on_file == boot_id:
            return
        if boot_id_on_file is not None:
            for directory_name in self._names(with_drafts=True):
                self._remove(directory_name.lstrip("."))
            self.debts.clear()
        replace(path, boot_id, mode=0o644)

    def _restore(self) -> Iterator[Unreadable]:
        """Make the shares stand that have a record and no directory; yield those that failed."""
        for record_path in self._records():
            if self.directory(record_path.stem).exists():
                continue
            try:
                grant = codec.loads(record_path.read_text(), Grant, source=str(record_path))
                os.close(self._build(grant))
            except (HeteroError, OSError, UnicodeDecodeError) as error:
                yield Unreadable(id=record_path.stem, reason=str(error))

    def _remove(self, grant_id: str) -> None:
        # Renamed first: a half-removed grant must not be read as one.
        hidden_directory = self._grants / f".{grant_id}"
        with suppress(FileNotFoundError):
            self.directory(grant_id).rename(hidden_directory)
        remove_pages(self.boards, grant_id)
        remove_all(hidden_directory)

    def _new_id(self) -> str:
        while True:
            grant_id = os.urandom(4).hex()
            if not self.directory(grant_id).exists():
                return grant_id


def gang_rows(
    grants: Iterable[Grant],
    limits_by_grant: Mapping[str, tuple[DeviceLimit, ...]],
    periods: Periods,
) -> dict[str, GangRow]:
    """Return the rows of those grants that are gangs, by id; their limits are given by id, too."""
    asked_rows: dict[str, GangRow] = {}
    fixed_rows: dict[str, GangRow] = {}
    for grant in sorted(grants, key=lambda grant: (grant.since_utc, grant.id)):
        allocation = grant.allocation
        row = gang_row(
            limits_by_grant[grant.id],
            policy=allocation.policy,
            gang=allocation.gang,
            period_ns=periods.period_ns,
        )
        if row is not None:
            (fixed_rows if allocation.gang and allocation.gang.row else asked_rows)[grant.id] = row
    core_by_device = Counter[str]()
    for limit in chain.from_iterable(limits_by_grant.values()):
        core_by_device[limit.name] += limit.core
    placed_rows = place_rows(with_spare(asked_rows, core_by_device), fixed_rows)
    if any(placed_rows[grant_id].length_ns < row.length_ns for grant_id, row in asked_rows.items()):
        return place_rows(asked_rows, fixed_rows)
    return placed_rows


def _on(row: GangRow | None, limit: DeviceLimit) -> GangRow | None:
    return row if row is not None and row.length_ns and limit.name in row.devices else None


def _is_there(path: str) -> bool:
    """Whether there is an end of a link; one that only root may see is there until root sweeps."""
    try:
        os.stat(path)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


@lru_cache(maxsize=256)
def _entry(json_text: str, source_name: str) -> Grant:
    """Return the entry in a file; a node's agent reads the same ones again and again."""
    return codec.loads(json_text, Grant, source=source_name)


def _boot() -> bytes:
    """Which boot of the machine this is."""
    return Path("/proc/sys/kernel/random/boot_id").read_bytes()
