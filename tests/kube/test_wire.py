from __future__ import annotations

import json
from pathlib import Path

import pytest

from hetero.errors import BadInput
from hetero.kube import wire
from hetero.model import Allocation, Grant, Link
from tests.kube.conftest import card

KEY = wire.Key(secret=b"a key of thirty-two bytes or so")
GIVEN = wire.Assignment(
    node="n1",
    uid="uid-1",
    containers=(
        ("main", Allocation(grants=(Grant(device="GPU-1", vendor="nvidia", takes={"core": 0}),))),
    ),
)


def read(
    notes: dict[str, str], *, key: wire.Key = KEY, uid: str = "uid-1", node: str = "n1"
) -> wire.Assignment | None:
    return wire.assignment(notes, key, pod="default/p", uid=uid, node=node)


def test_devices_come_back_as_they_were_published() -> None:
    devices = (
        card("GPU-1", links=(Link("GPU-2", "NV4", 40),), numa=0, pci="0000:01:00.0"),
        card("GPU-2", links=(Link("GPU-1", "NV4", 40),), numa=1, health="row remapping failed"),
    )

    assert devices == wire.devices(wire.inventory(devices), node="n1")


def test_a_node_of_eight_linked_cards_publishes_little() -> None:
    uuids = [f"GPU-{number:08x}-0000-0000-0000-000000000000" for number in range(8)]
    devices = tuple(
        card(uuid, links=tuple(Link(peer, "NV18", 180) for peer in uuids if peer != uuid))
        for uuid in uuids
    )

    assert 2048 > len(wire.inventory(devices))


def test_what_tells_cards_apart_does_not_repeat_what_they_have_in_common() -> None:
    devices = tuple(
        card(f"GPU-{number}", attributes={"minor": str(number), "driver": "580.159.04"})
        for number in range(8)
    )
    text = wire.inventory(devices)

    assert devices == wire.devices(text, node="n1")
    assert 1 == text.count("granularity")


def test_attributes_are_read_where_older_agents_put_them() -> None:
    document = json.loads(wire.inventory((card("GPU-1"),)))
    document["kinds"][0]["attributes"] = {"driver": "580.159.04"}
    (device,) = wire.devices(json.dumps(document), node="n1")

    assert {"driver": "580.159.04"} == device.attributes


def test_an_inventory_that_is_not_one_is_refused_in_a_sentence() -> None:
    with pytest.raises(BadInput, match=r"node n1: hetero\.io/inventory: not a valid"):
        wire.devices("[]", node="n1")


def test_an_allocation_comes_back_as_it_was_signed() -> None:
    assert GIVEN == read(wire.signed(GIVEN, KEY))


def test_a_pod_without_an_allocation_has_none() -> None:
    assert None is read({})


@pytest.mark.parametrize(
    "forged",
    [
        {"uid": "uid-2"},  # another pod's
        {"node": "n2"},  # on another node
        {"key": wire.Key(secret=b"a key of another cluster's scheduler")},
    ],
)
def test_a_replayed_or_forged_allocation_is_refused(forged: dict[str, str]) -> None:
    with pytest.raises(BadInput, match="is not signed by this cluster's scheduler"):
        read(wire.signed(GIVEN, KEY), **forged)  # type: ignore[arg-type]


def test_a_changed_allocation_is_refused() -> None:
    notes = wire.signed(GIVEN, KEY)
    notes[wire.ALLOCATION] = notes[wire.ALLOCATION].replace("GPU-1", "GPU-2")

    with pytest.raises(BadInput, match="is not signed"):
        read(notes)


def test_a_key_that_is_missing_or_short_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("abc")

    with pytest.raises(BadInput, match="is the Secret mounted"):
        wire.Key.read(str(tmp_path / "none"))
    with pytest.raises(BadInput, match="shorter than 16 bytes"):
        wire.Key.read(str(tmp_path / "short"))


def test_a_kubelet_device_names_its_card() -> None:
    assert "GPU::x" == wire.device_of(wire.device_id("GPU::x", 3))
