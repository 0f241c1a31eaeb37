"""Writes what the tenants of a device decide by: a board that root writes, and a page for each.

The layout is limiters/timeshare/pages.h's, and a test holds the two against each other. Of what
pages say one word is read here. docs/decisions/arbiter.md has the protocol.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from hetero.model.errors import BadInput
from hetero.model.frozen import frozen
from hetero.node.ledger.rows import GangRow
from hetero.node.ledger.state import make, resize

BOARD_MAGIC = 0x314452414F425448
PAGE_MAGIC = 0x3130454741505448
VERSION = 1
MAX_ROWS = 128
PAGE_BYTES = 4096

BOARD = "board"
_HEADER = struct.Struct("<QIIQQ")
_ROW = struct.Struct("<48sQIIIIQQQ")
#: Together with what a gang runs at: its user gave the row (pages.h, HETERO_GANG_BY_HAND).
BY_HAND = 1 << 16
_GENERATION = struct.Struct("<Q")
_GENERATION_AT = 16
SIZE = _HEADER.size + MAX_ROWS * _ROW.size
_PAGE = struct.Struct("<QI")
_LIGHT = struct.Struct("<Q")
_LIGHT_AT = 40


@frozen(kw_only=True)
class Row:
    """What root says of a grant on a device; `core`, `policy` and `priority` as in grant_file.

    `gang` is its row in time, if it has one.
    """

    id: str
    core: int
    policy: int
    priority: int
    gang: GangRow | None = None

    def packed(self, inode: int) -> bytes:
        """Return the row as limiters read it; `inode` is its page's."""
        gang_words = (0, 0, 0, 0)
        if self.gang:
            core_field = self.gang.core_share | BY_HAND * self.gang.by_hand
            gang_words = (core_field, self.gang.begin_ns, self.gang.length_ns, self.gang.period_ns)
        share_words = (inode, self.core, self.policy, self.priority)
        return _ROW.pack(self.id.encode(), *share_words, *gang_words)


def make_page(directory: Path, grant_id: str) -> Path:
    """Make a grant's page, a new inode with all its blocks, in a device's directory."""
    make(directory, mode=0o755)
    path = directory / grant_id
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        contents = _PAGE.pack(PAGE_MAGIC, VERSION).ljust(PAGE_BYTES, b"\0")
        if os.write(descriptor, contents) != PAGE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        # A container's processes of any user write it; on the host nobody else comes near it.
        os.fchmod(descriptor, 0o666)
    finally:
        os.close(descriptor)
    return path


def write_board(directory: Path, rows: Sequence[Row], *, overrun_ns: int = 0) -> None:
    """Write the rows of those grants that have a page, unless they are there already.

    Under the ledger's lock. `overrun_ns` is for how many nanoseconds a gang may run over the end of
    its row; 0: for a period. Readers take no row while the generation is odd, so a writer that was
    killed leaves them what they had, until the next one writes the board whole.
    """
    if len(rows) > MAX_ROWS:
        raise BadInput(f"{directory.name}: at most {MAX_ROWS} grants share a device")
    make(directory, mode=0o755)
    packed_rows = [row.packed(inode) for row in rows if (inode := _inode(f"{directory}/{row.id}"))]
    body = b"".join(packed_rows).ljust(MAX_ROWS * _ROW.size, b"\0")
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(directory / BOARD, flags, 0o600)
    except BlockingIOError:  # a tenant's lease, which the kernel ends after 45 s; it is tried again
        return
    try:
        os.fchmod(descriptor, 0o644)
        old_contents = os.pread(descriptor, SIZE, 0)
        is_whole = len(old_contents) == SIZE
        generation: int = (
            _GENERATION.unpack_from(old_contents, _GENERATION_AT)[0] if is_whole else 0
        )
        wanted_contents = (
            _HEADER.pack(BOARD_MAGIC, VERSION, len(packed_rows), generation, overrun_ns) + body
        )
        if old_contents == wanted_contents and generation % 2 == 0 and generation:
            return
        if not is_whole:
            os.posix_fallocate(descriptor, 0, SIZE)
        with mmap.mmap(descriptor, SIZE) as mapping:
            odd_generation = generation + 1 + generation % 2
            _GENERATION.pack_into(mapping, _GENERATION_AT, odd_generation)
            mapping[_HEADER.size :] = body
            mapping[: _HEADER.size] = _HEADER.pack(
                BOARD_MAGIC, VERSION, len(packed_rows), odd_generation, overrun_ns
            )
            _GENERATION.pack_into(mapping, _GENERATION_AT, odd_generation + 1)
    finally:
        os.close(descriptor)


def _inode(page_path: str) -> int:
    """Return the inode of a page; 0 where there is none."""
    try:
        return os.stat(page_path).st_ino
    except FileNotFoundError:
        return 0


def remove_board(directory: Path) -> None:
    """Remove the directory of a device that no grant has a page in; a reader then finds no rows.

    A slice is a device of its own here, and most slices have a name that no other ever has.
    """
    if (directory / BOARD).exists():
        write_board(directory, ())
    if all(path.name == BOARD for path in directory.iterdir()):
        (directory / BOARD).unlink(missing_ok=True)
        directory.rmdir()


def sweep_pages(boards_directory: Path, standing_ids: Collection[str]) -> None:
    """Remove the pages of grants that do not stand, and bring the others back to their size."""
    for page_path in _pages(boards_directory):
        if page_path.name not in standing_ids:
            page_path.unlink(missing_ok=True)
        elif page_path.stat().st_size != PAGE_BYTES:
            resize(page_path, PAGE_BYTES)


def light_seconds(page_path: Path) -> float:
    """Return the device time in seconds that a grant used without a time slice, by its page."""
    try:
        descriptor = os.open(page_path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:  # none, or a tenant's lease on it
        return 0.0
    try:
        contents = os.pread(descriptor, _LIGHT.size, _LIGHT_AT)
    finally:
        os.close(descriptor)
    return _LIGHT.unpack(contents)[0] / 1e9 if len(contents) == _LIGHT.size else 0.0


def remove_pages(boards_directory: Path, grant_id: str) -> None:
    """Remove the pages of one grant."""
    for page_path in boards_directory.glob(f"*/{grant_id}"):
        page_path.unlink(missing_ok=True)


def _pages(boards_directory: Path) -> Iterable[Path]:
    return (page_path for page_path in boards_directory.glob("*/*") if page_path.name != BOARD)
