"""Makes the directory of the node's state and refuses one that somebody else could forge."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from hetero.model.errors import HeteroError


def is_roots(path: Path) -> bool:
    """Return whether only root writes the directory, so that its content can be trusted."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == 0 and not status.st_mode & 0o022


def check(path: Path) -> None:
    """Raise `HeteroError` unless `path` is absent or a directory only this user writes."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise HeteroError(f"state directory {path}: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise HeteroError(
            f"state directory {path} is not a directory of user {os.geteuid()}, but "
            f"{_kind(status)}: set HETERO_STATE to a directory of yours"
        )
    if status.st_mode & 0o022:
        raise HeteroError(f"state directory {path} can be written by others: chmod go-w {path}")


def _kind(status: os.stat_result) -> str:
    """Return the type of a file in a few words."""
    if stat.S_ISDIR(status.st_mode):
        return f"user {status.st_uid}'s"
    return "a link" if stat.S_ISLNK(status.st_mode) else "a file"


def prepare(path: Path) -> None:
    """Make `path` a state directory of this user. Raises `HeteroError` when it cannot be one.

    Root's is readable by all, so that users count what root gave out; a user's is its own.
    """
    mode = 0o755 if os.geteuid() == 0 else 0o700
    try:
        if not path.parent.exists():
            path.parent.parent.mkdir(parents=True, exist_ok=True)
            make(path.parent, mode=mode)
        make(path, mode=mode)
        check(path)
        if not os.access(path, os.W_OK):  # a read-only file system, for root as well
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        make(path / "grants", mode=mode)
        make(path / "private", mode=0o700)  # others reach into it by mounts alone
        make(path / "private/boards", mode=0o755)
    except OSError as error:
        raise HeteroError(
            f"state directory {path}: {error.strerror}: "
            "set HETERO_STATE to a directory this user can write"
        ) from None


def make(path: Path, *, mode: int) -> None:
    """Make a directory of exactly this mode, whatever the umask; one that is there stays."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
        path.chmod(mode)


def resize(path: Path | str, size_bytes: int) -> None:
    """Bring a file that programs may write to a size; not while one has a lease on it.

    The kernel ends a lease 45 s after this has asked for it.
    """
    with suppress(BlockingIOError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            os.truncate(descriptor, size_bytes)
        finally:
            os.close(descriptor)


def remove_all(directory: Path) -> None:
    """Remove a directory with all that is in it, as far as that can be removed."""
    from shutil import rmtree  # here: few commands remove anything, and it imports three archivers

    rmtree(directory, ignore_errors=True)
