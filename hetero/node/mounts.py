"""Mounts: a program's own view of a few files, and read-only views for all users."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

from hetero.model import Mount
from hetero.model.errors import HeteroError
from hetero.node.ledger.ledger import Ledger
from hetero.node.ledger.state import prepare

_LIBC = ctypes.CDLL(None, use_errno=True)
# mount(2), umount2(2) and unshare(2)
_NEW_NAMESPACE = 0x00020000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 0x1, 0x20, 0x1000, 0x4000, 0x40000
_DETACH = 0x2


def enter(mounts: Sequence[Mount]) -> None:
    """Move this process into a mount namespace of its own and mount these in it.

    A target that is missing is made, empty, on the host. Raises `HeteroError`: it takes root.
    """
    if not mounts:
        return
    try:
        _expect(_LIBC.unshare(_NEW_NAMESPACE), "a mount namespace of its own")
        _mount(Path("none"), Path("/"), _RECURSIVE | _PRIVATE)
        for mount in mounts:
            source_path, target_path = Path(mount.source), Path(mount.target)
            _make(target_path, model_path=source_path)
            _mount(source_path, target_path, _BIND)
            if not mount.writable:
                _mount(Path("none"), target_path, _BIND | _REMOUNT | _READ_ONLY)
    except HeteroError as error:
        raise HeteroError(f"{error} (this device needs `hetero run` to be root)") from None


def show_read_only(source_path: Path, target_path: Path, *, anchor: Path) -> None:
    """Mount a directory read-only at a second path; calling it again changes nothing.

    `anchor` is a path that only root reaches: the mount is there while it can still be written.
    Raises `HeteroError`: it takes root with CAP_SYS_ADMIN.
    """
    _make(target_path, model_path=source_path)
    if target_path.samefile(source_path):
        return
    _make(anchor, model_path=source_path)
    try:
        _mount(source_path, anchor, _BIND)
        _mount(Path("none"), anchor, _BIND | _REMOUNT | _READ_ONLY)
        _mount(anchor, target_path, _BIND)  # read-only as what it is made of
    finally:
        _LIBC.umount2(bytes(anchor), _DETACH)


def show_boards(ledger: Ledger) -> None:
    """Show all users the boards of root's ledger; it is made if there is none.

    They are shown by a mount, so only in the mount namespace of this process. Raises `HeteroError`.
    """
    prepare(ledger.path)
    anchor = ledger.path / "private/shown"
    show_read_only(ledger.boards, ledger.shown_boards, anchor=anchor)


def _make(target_path: Path, *, model_path: Path) -> None:
    try:
        if model_path.is_dir():
            target_path.mkdir(parents=True, exist_ok=True)
        else:
            target_path.parent.mkdir(parents=True, exist_ok=True)
            target_path.touch()
    except OSError as error:
        raise HeteroError(f"mount {target_path}: {error.strerror}") from None


def _mount(source_path: Path, target_path: Path, flags: int) -> None:
    _expect(
        _LIBC.mount(bytes(source_path), bytes(target_path), None, flags, None),
        f"mount {target_path}",
    )


def _expect(return_code: int, action: str) -> None:
    if return_code:
        raise HeteroError(f"{action}: {os.strerror(ctypes.get_errno())}")
