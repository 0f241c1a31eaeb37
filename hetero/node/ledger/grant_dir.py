"""Writes the files of a grant that its programs see: the limits, the usage region, its pages.

They lie in a directory of their own that only the grant's user can enter. Programs of other users
reach them where the node put them into a container, which is why the files themselves are open.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from hetero.model import Allocation
from hetero.node.ledger import grant_file, usage_region
from hetero.node.ledger.board import make_page
from hetero.node.ledger.grant_file import DeviceLimit
from hetero.node.ledger.state import make, resize

TENANT = "tenant"
GRANT, USAGE, PRELOAD = f"{TENANT}/grant", f"{TENANT}/usage", f"{TENANT}/ld.so.preload"


def write_tenant(
    directory: Path,
    grant_id: str,
    *,
    allocation: Allocation,
    limits: Sequence[DeviceLimit],
    boards_directory: Path,
    shown_boards_directory: Path,
    uid: int | None = None,
) -> None:
    """Write what the limiter reads into a new grant's directory.

    `boards_directory` holds the boards of all devices, and `shown_boards_directory` is where the
    grant's programs find them. `uid` is the user whose programs enter the directory, if that is not
    the user who writes it.
    """
    make(directory / TENANT, mode=0o700)
    if uid is not None:
        _admit(directory / TENANT, uid)
    contents = grant_file.pack(
        grant_id, limits, policy=allocation.policy, priority=allocation.priority
    )
    write(directory / GRANT, contents, mode=0o644)
    write(directory / USAGE, bytes(usage_region.SIZE), mode=0o666)
    for position, limit in enumerate(limits):
        page_path = make_page(board_of(boards_directory, limit.name), grant_id)
        os.link(page_path, directory / page_name(position))
        (directory / board_name(position)).symlink_to(board_of(shown_boards_directory, limit.name))


def board_of(boards_directory: Path, device_uuid: str) -> Path:
    """Return the directory that all tenants of a device read."""
    return boards_directory / quote(device_uuid, safe="")


def board_name(position: int) -> str:
    """Return the file name, in a grant's directory, of the board of its device at `position`."""
    return f"{TENANT}/board.{position}"


def page_name(position: int) -> str:
    """Return the file name, in a grant's directory, of its own page on its device at `position`."""
    return f"{TENANT}/page.{position}"


def _admit(directory: Path, uid: int) -> None:
    """Let one more user enter a directory, without the right to change it.

    Access by the directory's group would let in others, and an owner could replace these files.
    """
    # acl(5); the layout is linux/posix_acl_xattr.h's: a version, then tag, permissions and id.
    owner_tag, user_tag, group_tag, mask_tag, other_tag, no_id = (
        0x01,
        0x02,
        0x04,
        0x10,
        0x20,
        0xFFFFFFFF,
    )
    acl_entries = (
        (owner_tag, 7, no_id),
        (user_tag, 5, uid),
        (group_tag, 0, no_id),
        (mask_tag, 5, no_id),
    )
    packed_acl = b"".join(
        struct.pack("<HHI", *acl_entry) for acl_entry in (*acl_entries, (other_tag, 0, no_id))
    )
    os.setxattr(directory, "system.posix_acl_access", struct.pack("<I", 2) + packed_acl)


def contents_of(path: str) -> bytes:
    """Return what is in a file, at a third of the price of `Path.read_bytes`."""
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def cut_back(path: Path | str, size_bytes: int) -> None:
    """Cut a file that programs may write to the size it was made with."""
    if os.stat(path).st_size > size_bytes:
        resize(path, size_bytes)


def create(path: Path, *, mode: int) -> int:
    """Open a file for reading and writing, making it if it is not there."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)


def write(path: Path, contents: bytes, *, mode: int) -> None:
    """Write a file whole, of exactly this mode."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        os.fchmod(descriptor, mode)  # whatever the umask
        if os.write(descriptor, contents) != len(contents):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)


def replace(path: Path, contents: bytes, *, mode: int, durable: bool = False) -> None:
    """Write a file so that it is seen with the old contents or the new, and never half of them.

    `durable` has it survive a power cut, too.
    """
    draft_path = path.with_name(f".{path.name}")
    write(draft_path, contents, mode=mode)
    if durable:
        descriptor = os.open(draft_path, os.O_RDONLY | os.O_CLOEXEC)
        os.fsync(descriptor)
        os.close(descriptor)
    draft_path.replace(path)
    if durable:
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        os.fsync(descriptor)
        os.close(descriptor)
