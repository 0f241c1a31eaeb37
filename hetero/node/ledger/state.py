"""Chooses the directory of the node's state and refuses one that somebody else could forge."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from hetero.model.errors import HeteroError

#: Root's ledger: the one every user of the machine can read.
SYSTEM = Path("/run/hetero")
#: What of root's outlives a boot: the records of shares, and the log.
KEPT = Path("/var/lib/hetero")


def state_directory(environ: Mapping[str, str], *, uid: int) -> Path:
    """Return where `uid` keeps its state: $HETERO_STATE, or the runtime directory of the user."""
    if environ.get("HETERO_STATE"):
        return Path(environ["HETERO_STATE"]).absolute()
    if uid == 0:
        return SYSTEM
    runtime = environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "hetero"
    return Path(f"/tmp/hetero-{uid}")  # noqa: S108 - `prepare` refuses one that is not ours


def persistent_directory(environ: Mapping[str, str], *, uid: int) -> Path | None:
    """Return where `uid` keeps what outlives a boot: root has a place for it, and $HETERO_STATE."""
    if environ.get("HETERO_STATE"):
        return Path(environ["HETERO_STATE"]).absolute() / "persistent"
    return KEPT if uid == 0 else None


def check(path: Path) -> None:
    """Raise `HeteroError` unless `path` is absent or a directory only this user writes."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise HeteroError(f"state directory {path}: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise HeteroError(
            f"state directory {path} is not a directory of user {os.geteuid()}: "
            "remove it, or set HETERO_STATE to a directory of yours"
        )
    if found.st_mode & 0o022:
        raise HeteroError(f"state directory {path} can be written by others: chmod go-w {path}")


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
        make(path / "grants", mode=mode)
        make(path / "boards", mode=0o700)  # others reach into it by mounts alone
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
