"""Who looks at a ledger every few seconds sees what `Ledger.snapshot` does, for fewer calls."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hetero.model import Ask
from hetero.model.units import GiB
from hetero.node.ledger.grant_dir import USAGE, page_name
from hetero.node.ledger.ledger import GrantHandle
from hetero.node.ledger.watched import WatchedLedger
from hetero.node.node import Node
from hetero.node.resize import resize

from .conftest import MakeNode, admit, drop, request


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    return make_node(limiter="cuda")


@pytest.fixture
def watched(node: Node) -> WatchedLedger:
    return WatchedLedger(node.ledger)


def test_an_unchanged_ledger_is_not_swept_again(node: Node, watched: WatchedLedger) -> None:
    admit(node, request(memory=GiB))
    before = watched.snapshot()

    assert watched.snapshot() is before
    assert node.ledger.snapshot() == before


def test_a_grant_that_comes_changes_and_goes_is_seen_at_the_next_look(
    node: Node, watched: WatchedLedger
) -> None:
    assert () == watched.snapshot().grants
    handle = admit(node, request(memory=GiB))
    (entry,) = watched.snapshot().grants
    assert GiB == entry.limits[0].memory

    resize(node, handle.grant.id, Ask(memory=2 * GiB))
    (entry,) = watched.snapshot().grants
    assert 2 * GiB == entry.limits[0].memory

    drop(handle)  # nothing of the ledger was written
    assert () == watched.snapshot().grants


def grow(handle: GrantHandle) -> Path:
    os.truncate(handle.path / USAGE, 1 << 24)
    return handle.path / USAGE


def cut(handle: GrantHandle) -> Path:
    os.truncate(handle.path / page_name(0), 0)
    return handle.path / page_name(0)


@pytest.mark.parametrize("resized", [grow, cut])
def test_a_file_that_a_tenant_resized_has_its_size_again_at_the_next_look(
    node: Node, watched: WatchedLedger, resized: Callable[[GrantHandle], Path]
) -> None:
    handle = admit(node, request(memory=GiB))
    sizes = {
        path: path.stat().st_size for path in (handle.path / "tenant").glob("*") if path.is_file()
    }
    watched.snapshot()

    path = resized(handle)
    watched.snapshot()

    assert sizes[path] == path.stat().st_size


def test_a_look_at_a_grant_that_ends_leaves_no_directory_open(
    node: Node, watched: WatchedLedger
) -> None:
    """A directory that was left open is a ResourceWarning, and warnings are errors."""
    tenant = admit(node, request(memory=GiB)).path / "tenant"
    names = {path.name for path in tenant.iterdir()}
    marks = watched._marks()
    while not (isinstance(mark := next(marks), tuple) and mark[0] in names):
        pass

    shutil.rmtree(tenant)  # while its files are being looked at

    assert [] == list(marks)
