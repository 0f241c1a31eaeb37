"""Boards and pages: what root writes of grants, and what a tenant beside them can do to it."""

import ctypes
import errno
import fcntl
import os
import shutil
import signal
import struct
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hetero.container.edits import confine
from hetero.model import Edits, Enforcement, Mount
from hetero.model.errors import HeteroError
from hetero.model.units import GiB
from hetero.node import mounts
from hetero.node.guard.monitor import Monitor
from hetero.node.ledger import board
from hetero.node.ledger.grant_dir import USAGE
from hetero.node.ledger.ledger import GrantHandle, Ledger
from hetero.node.node import Node
from hetero.node.view.doctor import Diagnosis, examine
from hetero.registry.registry import Registry
from hetero.testing import MemoryVendor, rack

from .conftest import MakeNode, admit, drop, request

ROOT_ALONE = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a mount namespace")
#: What a container's root may do by default: chown, DAC override, fowner, fsetid, kill, setgid,
#: setuid, setpcap, bind, raw, chroot, mknod, audit, setfcap.
_CONTAINERS_CAPABILITIES = 0xA80425FB


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    return make_node(16 * GiB)


def rows(node: Node) -> list[tuple[str, int, int]]:
    """Return each row's id, inode and core, and check what readers check first."""
    contents = (node.ledger.boards / "memory-0/board").read_bytes()
    magic, version, count, generation, _ = struct.unpack_from("<8sIIQQ", contents)
    assert (b"HTBOARD1", 1, 12320) == (magic, version, len(contents))
    assert generation % 2 == 0
    entries = (struct.unpack_from("<48sQI", contents, 32 + 96 * row) for row in range(count))
    return [(name.rstrip(b"\0").decode(), inode, core) for name, inode, core in entries]


def page(node: Node, handle: GrantHandle) -> Path:
    return node.ledger.boards / "memory-0" / handle.grant.id


def test_the_board_has_each_grant_and_the_inode_of_its_page(node: Node) -> None:
    first = admit(node, request(memory=GiB, core=30))
    second = admit(node, request(memory=GiB, core=60))

    assert {
        (first.grant.id, page(node, first).stat().st_ino, 3000),
        (second.grant.id, page(node, second).stat().st_ino, 6000),
    } == set(rows(node))
    assert page(node, first).samefile(first.path / "tenant/page.0")
    assert (4096, 0o666) == (
        page(node, first).stat().st_size,
        page(node, first).stat().st_mode & 0o777,
    )
    drop(first)
    node.snapshot()
    assert [second.grant.id] == [name for name, _, _ in rows(node)]
    assert not page(node, first).exists()


def test_a_device_that_no_grant_holds_has_no_board(node: Node) -> None:
    handle = admit(node, request(memory=GiB, core=30))
    with (node.ledger.boards / "memory-0/board").open("rb") as reader:
        (node.ledger.boards / "slice-of-one-killed-here").mkdir()
        drop(handle)
        node.snapshot()
        (count,) = struct.unpack_from("<I", reader.read(), 12)

    assert [] == list(node.ledger.boards.iterdir())
    assert 0 == count, "who reads the old one finds no rows"
    again = admit(node, request(memory=GiB, core=30))
    assert [again.grant.id] == [name for name, _, _ in rows(node)]


def test_a_look_that_changes_nothing_writes_nothing(node: Node) -> None:
    handle = admit(node, request(memory=GiB, core=30))
    path = node.ledger.boards / "memory-0/board"
    before = path.stat().st_mtime_ns, path.read_bytes()
    node.snapshot()

    assert before == (path.stat().st_mtime_ns, path.read_bytes())
    assert handle.grant.id == rows(node)[0][0]


def test_a_board_whose_writer_was_killed_is_written_anew_in_the_same_file(node: Node) -> None:
    handle = admit(node, request(memory=GiB, core=30))
    path = node.ledger.boards / "memory-0/board"
    inode = path.stat().st_ino
    with path.open("r+b") as file:
        file.seek(16)
        file.write(struct.pack("<Q", 7) + b"\xff" * 200)
    node.snapshot()

    assert [(handle.grant.id, page(node, handle).stat().st_ino, 3000)] == rows(node)
    assert inode == path.stat().st_ino


def test_a_page_that_its_tenant_grew_or_cut_has_its_size_again_after_a_look(node: Node) -> None:
    handle = admit(node, request(memory=GiB, core=30))
    for size in (0, 64 * 1024 * 1024):
        os.truncate(page(node, handle), size)
        node.snapshot()
        assert board.PAGE_BYTES == page(node, handle).stat().st_size


def test_a_usage_file_that_its_tenant_grew_has_its_size_again_after_a_look(node: Node) -> None:
    usage = admit(node, request(memory=GiB, core=30)).path / USAGE
    size = usage.stat().st_size
    os.truncate(usage, 300 * 1024 * 1024)
    node.snapshot()
    assert size == usage.stat().st_size


@contextmanager
def leased(*paths: Path) -> Iterator[None]:
    """Have another process keep leases on files; it does not give them up when it is asked to."""
    ready, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        for path in paths:
            fcntl.fcntl(os.open(path, os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK)
        os.write(write, b".")
        signal.pause()
    assert b"." == os.read(ready, 1)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(write)


@pytest.mark.timeout(40)
def test_a_lease_on_a_board_or_a_page_keeps_the_node_from_nothing(node: Node) -> None:
    """The kernel would have the node wait for 45 s."""
    first = admit(node, request(memory=GiB, core=30))
    cut = page(node, first)
    os.truncate(cut, 0)
    with leased(node.ledger.boards / "memory-0/board", cut):
        second = admit(node, request(memory=GiB, core=60))
    node.snapshot()
    assert board.PAGE_BYTES == cut.stat().st_size
    assert {first.grant.id, second.grant.id} == {name for name, _, _ in rows(node)}


def has_lease(path: Path) -> bool:
    """Whether the kernel gives a lease on a file, which is then given back."""
    with path.open("rb") as file:
        try:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        except BlockingIOError:
            return False
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return True


def waits_for_no_lease(path: Path) -> None:
    until = time.monotonic() + 10
    while has_lease(path):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_no_lease_is_to_be_had_on_a_board_while_the_node_is_watched(node: Node) -> None:
    drop(admit(node, request(memory=GiB, core=30)))
    held = admit(node, request(memory=GiB, core=30))
    path = node.ledger.boards / "memory-0/board"
    assert has_lease(path)

    monitor = Monitor(node)
    monitor.sample(node.discover().devices)
    waits_for_no_lease(path)
    drop(held)
    node.snapshot()
    assert not path.exists()
    held = admit(node, request(memory=GiB, core=30))
    monitor.sample(node.discover().devices)
    waits_for_no_lease(path)


def test_a_lease_from_before_is_waited_for_beside_the_looks(node: Node) -> None:
    """The kernel ends it after 45 s. A tenant that ends gives it back."""
    admit(node, request(memory=GiB, core=30))
    path = node.ledger.boards / "memory-0/board"
    monitor = Monitor(node)
    with leased(path):
        begun = time.monotonic()
        for _ in range(3):
            monitor.sample(node.discover().devices)
        assert time.monotonic() - begun < 10
    waits_for_no_lease(path)


def test_doctor_says_which_programs_can_write_each_others_pages(tmp_path: Path) -> None:
    cards = rack(16 * GiB, enforcement=Enforcement.PRELOAD)
    vendor = MemoryVendor(cards, limiter="cuda")
    node = Node(registry=Registry.of(vendor), ledger=Ledger(tmp_path / "state"))
    first = admit(node, request(memory=GiB, core=30))
    says = "without containers: each can write the others' files"
    assert [] == [one for one in examine(node) if says in one.says]
    second = admit(node, request(memory=GiB, core=60))

    (finding,) = [one for one in examine(node) if says in one.says]
    assert ("memory:0", Diagnosis.NOTE) == (finding.subject, finding.verdict)
    assert {first.grant.id, second.grant.id} < set(finding.says.replace(",", "").split())


@pytest.fixture
def inside() -> Iterator[Path]:
    """Where a tenant's mounts lie, for want of a container."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    yield path
    shutil.rmtree(path)


def as_tenant(
    node: Node, handle: GrantHandle, inside: Path, action: Callable[[Path], None]
) -> None:
    """Run the action where the grant's mounts are, with what a container's root may do."""
    given = confine(node, handle.grant, Edits(), limiters=[Mount("/dev/null", "/etc/none")])
    tenant_mounts = [
        Mount(each.source, str(inside / Path(each.target).name), writable=each.writable)
        for each in given.mounts
        if each.target.startswith("/etc/hetero/")
    ]
    pid = os.fork()
    if pid == 0:
        try:
            mounts.enter(tenant_mounts)
            _lose_capabilities()
            action(inside)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert 0 == os.waitpid(pid, 0)[1]


def _lose_capabilities() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(64):
        if not _CONTAINERS_CAPABILITIES >> capability & 1:
            libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
    left = _CONTAINERS_CAPABILITIES
    header = struct.pack("<Ii", 0x20080522, 0)
    data = struct.pack("<6I", left & 0xFFFFFFFF, left & 0xFFFFFFFF, 0, 0, 0, 0)
    if libc.capset(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def refused(call: Callable[[], object]) -> int:
    """Return why a call failed. Raises `AssertionError` when it did not."""
    try:
        call()
    except OSError as error:
        return error.errno or 0
    raise AssertionError("it was let")


@ROOT_ALONE
def test_a_tenant_can_change_nothing_that_others_decide_by(node: Node, inside: Path) -> None:
    attacker = admit(node, request(memory=GiB, core=30))
    victim = admit(node, request(memory=GiB, core=60))
    before = {path: path.read_bytes() for path in (node.ledger.boards / "memory-0").iterdir()}

    def attack(inside: Path) -> None:
        for name in ("board", victim.grant.id, attacker.grant.id):
            path = inside / "board.0" / name
            read_only = errno.EROFS
            assert read_only == refused(lambda: os.open(path, os.O_RDWR))  # noqa: B023
            assert read_only == refused(lambda: os.truncate(path, 0))  # noqa: B023
            assert read_only == refused(lambda: os.truncate(path, 1 << 20))  # noqa: B023
            assert read_only == refused(lambda: path.chmod(0))  # noqa: B023
            assert read_only == refused(path.unlink)
            assert read_only == refused(lambda: path.rename(inside / "board.0/other"))  # noqa: B023
            descriptor = os.open(path, os.O_RDONLY)
            whole = struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            assert errno.EBADF == refused(
                lambda: fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, whole)  # noqa: B023
            )
        assert errno.EROFS == refused((inside / "board.0/new").touch)
        again = Mount(str(inside / "board.0"), str(inside / "again"), writable=True)
        with pytest.raises(HeteroError, match="Operation not permitted"):
            mounts.enter([again])
        (inside / "page.0").write_bytes(b"\xff" * 4096)

    as_tenant(node, attacker, inside, attack)
    after = {path: path.read_bytes() for path in (node.ledger.boards / "memory-0").iterdir()}
    assert b"\xff" * 4096 == after.pop(page(node, attacker))
    del before[page(node, attacker)]
    assert before == after


@ROOT_ALONE
def test_a_lease_is_not_to_be_had_on_a_page_whose_owner_has_it_open(
    node: Node, inside: Path
) -> None:
    attacker = admit(node, request(memory=GiB, core=30))
    victim = admit(node, request(memory=GiB, core=60))
    held = os.open(victim.path / "tenant/page.0", os.O_RDWR)

    def attack(inside: Path) -> None:
        descriptor = os.open(inside / "board.0" / victim.grant.id, os.O_RDONLY)
        why = refused(lambda: fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK))
        assert errno.EAGAIN == why

    as_tenant(node, attacker, inside, attack)
    os.close(held)


@ROOT_ALONE
def test_a_state_directory_that_is_mounted_read_only_is_one_line(node: Node) -> None:
    drop(admit(node, request(memory=GiB)))
    state = node.ledger.path
    pid = os.fork()
    if pid == 0:
        mounts.enter([Mount(str(state), str(state))])
        try:
            admit(node, request(memory=GiB))
        except HeteroError as error:
            os._exit(0 if str(error).startswith(f"state directory {state}: Read-only") else 2)
        os._exit(1)
    assert 0 == os.waitpid(pid, 0)[1]
