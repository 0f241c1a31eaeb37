"""The queue of requests that wait for devices: each stands in it while its process lives.

    queue/<number>/entry.json   what is asked, by whom; a lower number came before
    queue/<number>/alive        locked by the process that waits, and written to when it looks again
    queue/.<number>/            an entry on its way in or out; nothing in it counts

The lock is the kernel's, as that of a grant: it goes with the process, however that ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from attrs import evolve, field

from hetero.model import Request, codec
from hetero.model.errors import HeteroError
from hetero.model.frozen import frozen
from hetero.model.json_keys import json_key
from hetero.node.ledger.grant_dir import create, cut_back, write
from hetero.node.ledger.locks import is_held, try_lock
from hetero.node.ledger.state import make, remove_all

_ENTRY, _ALIVE = "entry.json", "alive"
#: Seconds after which a process that did not look again is taken for stopped: it looks far sooner.
SILENCE_S = 60.0


@frozen(kw_only=True)
class WaitingRequest:
    """A request that waits, and for whom; `queue_number` is its place among all that came.

    `uid` is the user whose it is, where another wrote it down (heterod). `silent`: its process did
    not look again for long, so that it is stopped and holds up nobody.
    """

    #: Its name in errors.
    TITLE: ClassVar[str] = "Waiting request"
    queue_number: int = field(metadata=json_key("number"))
    request: Request
    command: tuple[str, ...]
    user: str
    since_utc: str = field(metadata=json_key("since"))
    label: str | None = None
    uid: int | None = None
    silent: bool = False

    @property
    def id(self) -> str:
        """What people know it by: `w12`."""
        return f"w{self.queue_number}"


@frozen
class Ticket:
    """A place in the queue: the process that has `descriptor` open keeps it."""

    waiting: WaitingRequest
    descriptor: int

    def touch(self) -> None:
        """Note that its process looks."""
        with suppress(OSError):
            os.ftruncate(self.descriptor, 0)  # which sets the time, for who may not set it else


@frozen
class Queue:
    """The queue in the directory `path`; one that does not exist reads as empty."""

    path: Path

    def join(self, waiting: WaitingRequest) -> Ticket:
        """Put a request behind all others; with the ledger locked."""
        make(self.path, mode=0o755 if os.geteuid() == 0 else 0o700)
        number = max(self.numbers(), default=0) + 1
        waiting = evolve(waiting, queue_number=number)
        draft_directory = self.path / f".{number}"
        descriptor = -1
        try:
            make(draft_directory, mode=0o755)
            descriptor = create(draft_directory / _ALIVE, mode=0o600)
            if not try_lock(descriptor):
                raise HeteroError(f"{draft_directory}: locked by another process; try again")
            os.fchmod(descriptor, 0o644)
            write(draft_directory / _ENTRY, codec.dumps(waiting).encode(), mode=0o644)
            draft_directory.rename(self.path / str(number))
        except BaseException as error:
            if descriptor >= 0:
                os.close(descriptor)
            remove_all(draft_directory)
            if isinstance(error, OSError):
                raise HeteroError(f"the ledger {self.path.parent}: {error.strerror}") from None
            raise
        return Ticket(waiting, descriptor)

    def waiting(self, *, before: int | None = None) -> tuple[WaitingRequest, ...]:
        """Return what waits, the first first; `before` only those that came before that number."""
        return tuple(self._read(before))

    def place(self, queue_number: int) -> int:
        """Return the place of a request, 1 for the first; no entry is read for it."""
        return 1 + sum(other < queue_number and self._stands(other) for other in self.numbers())

    def files(self, queue_number: int) -> list[Path]:
        """Return the files that the process of an entry holds open."""
        return [self.path / str(queue_number) / _ALIVE]

    def remove(self, queue_number: int) -> None:
        """Take an entry out; one that is gone is no error."""
        hidden_directory = self.path / f".{queue_number}.gone"
        with suppress(OSError):
            (self.path / str(queue_number)).rename(hidden_directory)
        remove_all(hidden_directory)

    def sweep(self) -> None:
        """Take out what nobody waits for any more; with the ledger locked."""
        with suppress(OSError):
            for directory_name in os.listdir(self.path):
                if directory_name.startswith("."):
                    remove_all(self.path / directory_name)
        for number in self.numbers():
            if not self._stands(number):
                self.remove(number)
                continue
            with suppress(OSError):  # it ended meanwhile
                cut_back(self.path / str(number) / _ALIVE, 0)

    def _read(self, before: int | None) -> Iterator[WaitingRequest]:
        for number in self.numbers():
            if (before is not None and number >= before) or not self._stands(number):
                continue
            directory = self.path / str(number)
            # What another hetero wrote and this one cannot read holds up nobody.
            with suppress(HeteroError, OSError, UnicodeDecodeError):
                text = (directory / _ENTRY).read_text()
                entry = codec.loads(text, WaitingRequest, source=str(directory))
                looked_s = (directory / _ALIVE).stat().st_mtime
                yield evolve(entry, queue_number=number, silent=time.time() - looked_s > SILENCE_S)

    def numbers(self) -> list[int]:
        """Return the numbers of all entries, also of those whose process is gone."""
        try:
            return sorted(int(name) for name in os.listdir(self.path) if name.isdecimal())
        except (FileNotFoundError, PermissionError):
            return []

    def _stands(self, number: int) -> bool:
        try:
            descriptor = os.open(f"{self.path}/{number}/{_ALIVE}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return is_held(descriptor)
        finally:
            os.close(descriptor)
