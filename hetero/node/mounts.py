"""Gives the program about to start its own view of a few files, as a container would have."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

from hetero.model import Mount
from hetero.model.errors import HeteroError

# mount(2) and unshare(2)
_NEW_NAMESPACE = 0x00020000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 0x1, 0x20, 0x1000, 0x4000, 0x40000


def enter(mounts: Sequence[Mount]) -> None:
    """Move this process into a mount namespace of its own and mount these in it.

    A target that is missing is made, empty, on the host. Raises `HeteroError`: it takes root.
    """
    if not mounts:
        return
    libc = ctypes.CDLL(None, use_errno=True)

    def expect(result: int, doing: str) -> None:
        if result:
            why = os.strerror(ctypes.get_errno())
            raise HeteroError(f"{doing}: {why} (this device needs `hetero run` to be root)")

    def mount(source: bytes, target: bytes, flags: int) -> None:
        expect(libc.mount(source, target, None, flags, None), f"mount {target.decode()}")

    expect(libc.unshare(_NEW_NAMESPACE), "a mount namespace of its own")
    mount(b"none", b"/", _RECURSIVE | _PRIVATE)
    for each in mounts:
        source, target = Path(each.source), Path(each.target)
        try:
            if source.is_dir():
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.touch()
        except OSError as error:
            raise HeteroError(f"mount {target}: {error.strerror}") from None
        mount(bytes(source), bytes(target), _BIND)
        if not each.writable:
            mount(b"none", bytes(target), _BIND | _REMOUNT | _READ_ONLY)
