"""Grants that are pinned for containers: entered, given again, and unpinned."""

from pathlib import Path

import pytest

from hetero.container.pin import Libraries, pin
from hetero.model import CORE, MEMORY, SLOTS, Allocation, DeviceAllocation
from hetero.model.errors import Refused
from hetero.model.units import GiB
from hetero.node.grants import grants_of, release
from hetero.node.ledger.grant_dir import USAGE
from hetero.node.ledger.holders import holders
from hetero.node.ledger.ledger import Grant
from hetero.node.ledger.locks import try_lock
from hetero.node.node import Node
from tests.node.conftest import killed_at


def allocation(memory: int = GiB) -> Allocation:
    takes = {CORE: 10, MEMORY: memory, SLOTS: 1}
    return Allocation(
        pieces=(DeviceAllocation(device="memory-0", vendor="memory", takes=takes, core=10),)
    )


def pinned(node: Node, path: Path, identity: str = "one", *, memory: int = GiB) -> Grant:
    return pin(
        node,
        allocation(memory),
        discovery=node.discover(),
        grant_id=identity,
        label=f"default/{identity}/main",
        owner={"pod": identity},
        libraries=Libraries(path / "lib"),
    )


def ids(node: Node) -> list[str]:
    return [entry.id for entry in node.snapshot().grants]


def test_a_pinned_grant_stands_without_a_process_until_it_is_unpinned(
    node: Node, tmp_path: Path
) -> None:
    given = pinned(node, tmp_path)

    assert {"one": ()} == holders({"one": [node.directory("one") / USAGE]})
    assert [given] == list(node.snapshot().grants)
    node.ledger.unpin("one")
    assert [] == ids(node)


def test_what_was_unpinned_stands_while_a_process_uses_it(limited: Node, tmp_path: Path) -> None:
    pinned(limited, tmp_path)
    with (limited.directory("one") / USAGE).open("r+b") as usage:
        assert try_lock(usage.fileno())  # as the limiter does in every process of the container
        limited.ledger.unpin("one")
        assert ["one"] == ids(limited)
    assert [] == ids(limited)


def test_a_containers_user_may_write_the_usage_and_its_own_page_alone(
    limited: Node, tmp_path: Path
) -> None:
    given = pinned(limited, tmp_path)
    modes = {
        mount.target: (mount.writable, Path(mount.source).stat().st_mode & 0o777)
        for mount in given.edits.mounts
        if not mount.target.endswith((".so", ".preload"))
    }

    assert {
        "/etc/hetero/grant": (False, 0o644),
        "/etc/hetero/usage": (True, 0o666),
        "/etc/hetero/page.0": (True, 0o666),
        "/etc/hetero/board.0": (False, 0o755),
    } == modes


def test_no_container_is_given_a_cdi_name_that_may_be_in_no_spec(
    node: Node, tmp_path: Path
) -> None:
    edits = pinned(node, tmp_path).edits

    assert ((), (), ("/dev/full",)) == (edits.cdi, edits.files, edits.device_nodes)


def test_a_grant_is_given_again_as_it_is(node: Node, tmp_path: Path) -> None:

    assert pinned(node, tmp_path) == pinned(node, tmp_path)
    assert ["one"] == ids(node)


def test_a_grant_beyond_what_is_free_is_refused_and_nothing_is_taken(
    node: Node, tmp_path: Path
) -> None:
    pinned(node, tmp_path, memory=10 * GiB)
    with pytest.raises(Refused, match="device memory-0 has not enough memory left"):
        pinned(node, tmp_path, "two", memory=7 * GiB)

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


def test_a_pinned_grant_is_released_by_force_alone(node: Node, tmp_path: Path) -> None:
    pinned(node, tmp_path)
    with pytest.raises(Refused, match="grant one is pinned for default/one/main"):
        release(grants_of(node), "one")
    release(grants_of(node), "one", force=True)

    assert [] == ids(node)


@pytest.mark.timeout(600)  # one process a step
def test_an_owner_that_is_killed_at_any_step_leaves_a_grant_or_none_and_can_go_on(
    node: Node, tmp_path: Path
) -> None:
    def give() -> None:
        assert node.ledger.note(pinned(node, tmp_path).id, "for these")

    pinned(node, tmp_path, "beside", memory=9 * GiB)
    seen, step = set(), 1
    while killed_at(step, give):
        left = [one for one in ids(node) if one != "beside"]
        seen.add((*left, *node.ledger.notes("one")))
        with pytest.raises(Refused, match="not enough memory left"):
            pinned(node, tmp_path, "two", memory=(7 if left else 8) * GiB)
        give()
        assert ["beside", "one"] == ids(node)
        assert "for these" == node.ledger.notes("one")[-1]
        node.ledger.unpin("one")
        assert (["beside"], ()) == (ids(node), node.ledger.notes("one"))
        step += 1

    # How many steps there are depends on the order of a folder's entries: the last may be missed.
    assert {(), ("one",)} == seen - {("one", "for these")}


def test_what_an_owner_notes_goes_when_the_grant_is_unpinned(limited: Node, tmp_path: Path) -> None:
    pinned(limited, tmp_path)
    assert limited.ledger.note("one", "first")
    assert limited.ledger.note("one", "second")
    pinned(limited, tmp_path)
    assert ("first", "second") == limited.ledger.notes("one")
    with (limited.directory("one") / USAGE).open("r+b") as usage:
        assert try_lock(usage.fileno())  # a process of the container runs on
        limited.ledger.unpin("one")
        assert not limited.ledger.note("one", "third")
        pinned(limited, tmp_path)

        assert () == limited.ledger.notes("one")
