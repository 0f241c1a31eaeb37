"""Root's grants as a plain user meets them: counted, and out of reach."""

import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attrs import evolve

from hetero.model.errors import HeteroError, Refused
from hetero.model.units import GiB
from hetero.node.ledger.ledger import Ledger
from hetero.node.node import Node
from hetero.registry.registry import Registry
from hetero.testing import MemoryVendor, rack

from .conftest import admit, drop, request, standing

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
NOBODY = 65534


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that every user can reach and write, as /tmp is."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def root(open_path: Path) -> Node:
    umask = os.umask(0o077)  # a careful root's; what users may see is not left to it
    vendor = MemoryVendor(rack(16 * GiB))
    node = Node(registry=Registry.of(vendor), ledger=Ledger(open_path / "system"))
    drop(admit(node, request()))
    os.umask(umask)
    return node


def as_nobody(action: Callable[[], None]) -> None:
    """Run the action in a child that has become another user."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            action()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert 0 == os.waitpid(pid, 0)[1]


def test_a_plain_user_counts_what_root_gave_out_and_cannot_touch_it(
    root: Node, open_path: Path
) -> None:
    handle = admit(root, request(memory=10 * GiB, core=60))
    user = evolve(root, ledger=Ledger(open_path / "user"), system=root.ledger)

    def action() -> None:
        assert [handle.grant.id] == standing(user)
        with pytest.raises(Refused, match="lack memory"):
            admit(user, request(memory=7 * GiB))
        for name in ("alive", "tenant/grant", "allocation.json"):
            with pytest.raises(PermissionError):
                os.open(handle.path / name, os.O_RDWR)
        for path in (
            handle.path / "tenant/usage",
            handle.path / "tenant/page.0",
            root.ledger.boards / "memory-0/board",
            root.ledger.path / "lock",
        ):
            with pytest.raises(PermissionError):
                os.open(path, os.O_RDONLY)
        users = admit(user, request(memory=6 * GiB))
        assert {handle.grant.id, users.grant.id} == set(standing(user))

    as_nobody(action)
    assert [handle.grant.id] == standing(root)
    drop(handle)
    as_nobody(lambda: drop(admit(user, request())))


def test_a_state_directory_of_somebody_else_is_refused(root: Node) -> None:
    def action() -> None:
        with pytest.raises(HeteroError, match=f"not a directory of user {NOBODY}"):
            admit(root, request())

    as_nobody(action)


def test_a_state_directory_that_cannot_be_written_says_what_to_do(
    root: Node, open_path: Path
) -> None:
    closed = open_path / "closed"
    closed.mkdir(mode=0o755)
    node = evolve(root, ledger=Ledger(closed / "state"))

    def action() -> None:
        with pytest.raises(HeteroError, match="Permission denied: set HETERO_STATE"):
            admit(node, request())
        assert [] == standing(node)

    as_nobody(action)
