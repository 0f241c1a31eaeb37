"""Grants that are kept for containers: entered, given again, and let go."""

from __future__ import annotations

from pathlib import Path

import pytest

from hetero.errors import Refused
from hetero.model import CORE, MEMORY, SLOTS, Allocation, Grant
from hetero.node.container import Libraries, keep
from hetero.node.holders import holders
from hetero.node.ledger import Standing
from hetero.node.locks import try_lock
from hetero.node.node import Node
from hetero.node.tenant import USAGE
from hetero.units import GiB
from tests.node.conftest import MakeNode


def allocation(memory: int = GiB) -> Allocation:
    takes = {CORE: 10, MEMORY: memory, SLOTS: 1}
    return Allocation(grants=(Grant(device="memory-0", vendor="memory", takes=takes, core=10),))


def kept(node: Node, path: Path, identity: str = "one", *, memory: int = GiB) -> Standing:
    return keep(
        node,
        allocation(memory),
        discovery=node.discover(),
        identity=identity,
        label=f"default/{identity}/main",
        keeper={"pod": identity},
        libraries=Libraries(path / "lib"),
    )


def ids(node: Node) -> list[str]:
    return [entry.id for entry in node.look().standing]


def test_a_kept_grant_stands_without_a_process_until_it_is_let_go(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node()
    given = kept(node, tmp_path)

    assert {"one": ()} == holders({"one": [node.directory("one") / USAGE]})
    assert [given] == list(node.look().standing)
    node.ledger.let_go("one")
    assert [] == ids(node)


def test_what_was_let_go_stands_while_a_process_uses_it(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node(limiter="cuda")
    kept(node, tmp_path)
    with (node.directory("one") / USAGE).open("r+b") as usage:
        assert try_lock(usage.fileno())  # as the limiter does in every process of the container
        node.ledger.let_go("one")
        assert ["one"] == ids(node)
    assert [] == ids(node)


def test_a_grant_is_given_again_as_it_is(make_node: MakeNode, tmp_path: Path) -> None:
    node = make_node()

    assert kept(node, tmp_path) == kept(node, tmp_path)
    assert ["one"] == ids(node)


def test_a_grant_beyond_what_is_free_is_refused_and_nothing_is_taken(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node(16 * GiB)
    kept(node, tmp_path, memory=10 * GiB)
    with pytest.raises(Refused, match="device memory-0 has not enough memory left"):
        kept(node, tmp_path, "two", memory=7 * GiB)

    assert ["one"] == ids(node)


def test_limiters_are_copied_once_and_a_new_version_beside_the_old(tmp_path: Path) -> None:
    libraries, source = Libraries(tmp_path / "lib"), tmp_path / "libx.so"
    source.write_bytes(b"first")
    first = libraries.put([source])
    source.write_bytes(b"second")
    second = libraries.put([source])

    assert first[0].source != second[0].source
    assert (b"first", b"second") == tuple(Path(m[0].source).read_bytes() for m in (first, second))
    assert second == libraries.put([source])
    assert ["/etc/hetero/libx.so", "/etc/ld.so.preload"] == [mount.target for mount in second]


def test_a_kept_grant_is_released_by_force_alone(make_node: MakeNode, tmp_path: Path) -> None:
    node = make_node()
    kept(node, tmp_path)
    with pytest.raises(Refused, match="grant one is kept for default/one/main"):
        node.release("one")
    node.release("one", force=True)

    assert [] == ids(node)
