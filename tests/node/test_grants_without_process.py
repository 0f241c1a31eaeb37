"""Grants that stand without a process: those of containers and shares."""

import shutil
from pathlib import Path

import pytest
from attrs import evolve

from hetero.model.errors import Refused
from hetero.model.units import GiB
from hetero.node.grants import LocalGrants, grants_of, release
from hetero.node.ledger.grant_file import read_limits
from hetero.node.ledger.ledger import ContainerInfo, Ledger

from .conftest import (
    MakeNode,
    drop,
    killed_at,
    request,
    standing,
)


def test_a_container_s_grant_stands_while_its_runtime_knows_it(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node, state = make_node(), tmp_path / "runc" / "one"
    container = ContainerInfo(id="one", name="one", state=str(state))
    handle = LocalGrants(node).take(request(memory=GiB), container=container).handle
    state.mkdir(parents=True)
    drop(handle)

    (entry,) = node.snapshot().grants
    assert container == entry.container
    with pytest.raises(Refused, match="container one holds grant"):
        LocalGrants(node).take(request(memory=GiB), container=container)
    with pytest.raises(Refused, match="in use by container one"):
        release(grants_of(node), entry.id)

    state.rmdir()
    assert [] == standing(node)


def test_a_container_that_was_never_made_leaves_nothing(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node()
    container = ContainerInfo(id="one", name="one", state=str(tmp_path / "nowhere"))
    drop(LocalGrants(node).take(request(memory=GiB), container=container).handle)

    assert [] == standing(node)


def test_another_boot_ends_every_grant_but_the_shares(make_node: MakeNode, tmp_path: Path) -> None:
    node = evolve(
        make_node(), ledger=Ledger(tmp_path / "state", persistent=tmp_path / "persistent")
    )
    (tmp_path / "runtime").mkdir()
    container = ContainerInfo(id="one", name="one", state=str(tmp_path / "runtime"))
    drop(LocalGrants(node).take(request(memory=GiB), container=container).handle)
    share = LocalGrants(node).take(request(memory=GiB), share="train").handle
    drop(share)
    assert 2 == len(standing(node))

    (node.ledger.path / "boot").write_text("another\n")

    assert [share.grant.id] == standing(node)
    shutil.rmtree(node.ledger.path)
    assert [share.grant.id] == standing(node)


def test_a_share_killed_while_it_is_made_or_changed_stands_or_does_not(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = evolve(
        make_node(), ledger=Ledger(tmp_path / "state", persistent=tmp_path / "persistent")
    )
    step = 0
    while killed_at(
        step := step + 1, lambda: LocalGrants(node).take(request(memory=16 * GiB), share="train")
    ):
        for entry in node.snapshot().grants:
            assert "train" == entry.share
            assert entry.limits == read_limits(node.directory(entry.id) / "tenant/grant")
            with node.ledger.admission():
                node.ledger.drop(entry.id)
        assert [] == standing(node)

    assert step > 20


def test_a_record_nobody_can_read_keeps_others_out_until_it_is_released(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = evolve(
        make_node(), ledger=Ledger(tmp_path / "state", persistent=tmp_path / "persistent")
    )
    handle = LocalGrants(node).take(request(memory=GiB), share="train").handle
    drop(handle)
    (tmp_path / f"persistent/shares/{handle.grant.id}.json").write_text("{")

    with pytest.raises(Refused, match="stands but cannot be read"):
        LocalGrants(node).take(request(memory=GiB))
    release(grants_of(node), handle.grant.id, force=True)

    assert ([], ()) == (standing(node), node.snapshot().unreadable)


def test_a_share_is_not_released_but_removed(make_node: MakeNode, tmp_path: Path) -> None:
    node = evolve(
        make_node(), ledger=Ledger(tmp_path / "state", persistent=tmp_path / "persistent")
    )
    handle = LocalGrants(node).take(request(memory=GiB), share="train").handle

    with pytest.raises(Refused, match="hetero share rm train"):
        release(grants_of(node), handle.grant.id, force=True)
