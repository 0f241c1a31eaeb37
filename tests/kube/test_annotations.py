import json
from pathlib import Path

import pytest

from hetero.kube.words.annotations import (
    ALLOCATION,
    SIGNATURE,
    Assignment,
    NodeGrants,
    RunsOn,
    device_id,
    device_of,
    inventory_text,
    published,
    published_devices,
    read_assignment,
    signed_assignment,
)
from hetero.kube.words.signing import PublicKeys, SigningKey
from hetero.model import Allocation, ContainerKind, DeviceAllocation, Link, Occupancy
from hetero.model.errors import BadInput
from tests.kube.conftest import card

KEY = SigningKey.new()
GIVEN = Assignment(
    node="n1",
    uid="uid-1",
    containers=(
        (
            "main",
            Allocation(
                pieces=(DeviceAllocation(device="GPU-1", vendor="nvidia", takes={"core": 0}),)
            ),
        ),
    ),
)


def read(
    notes: dict[str, str], *, keys: PublicKeys = KEY.public, uid: str = "uid-1", node: str = "n1"
) -> Assignment | None:
    return read_assignment(notes, keys, pod="default/p", uid=uid, node=node)


def test_devices_come_back_as_they_were_published() -> None:
    devices = (
        card("GPU-1", links=(Link("GPU-2", "NV4", 40),), numa=0, pci="0000:01:00.0"),
        card("GPU-2", links=(Link("GPU-1", "NV4", 40),), numa=1, health="row remapping failed"),
    )

    assert devices == published_devices(inventory_text(devices), node="n1")


def test_a_node_of_eight_linked_cards_publishes_little() -> None:
    uuids = [f"GPU-{number:08x}-0000-0000-0000-000000000000" for number in range(8)]
    devices = tuple(
        card(uuid, links=tuple(Link(peer, "NV18", 180) for peer in uuids if peer != uuid))
        for uuid in uuids
    )

    assert 2048 > len(inventory_text(devices))


def test_what_tells_cards_apart_does_not_repeat_what_they_have_in_common() -> None:
    devices = tuple(
        card(f"GPU-{number}", attributes={"minor": str(number), "driver": "580.159.04"})
        for number in range(8)
    )
    text = inventory_text(devices)

    assert devices == published_devices(text, node="n1")
    assert 1 == text.count("granularity")


def test_attributes_are_read_where_older_agents_put_them() -> None:
    document = json.loads(inventory_text((card("GPU-1"),)))
    document["kinds"][0]["attributes"] = {"driver": "580.159.04"}
    (device,) = published_devices(json.dumps(document), node="n1")

    assert {"driver": "580.159.04"} == device.attributes


def test_what_runs_on_comes_back_as_it_was_published_and_is_never_less_than_nothing() -> None:
    devices = (card("GPU-1"),)

    def held(core_units: int) -> dict[str, RunsOn]:
        piece = DeviceAllocation(
            device="GPU-1", vendor="nvidia", takes={"core": core_units, "memory": 2**30}
        )
        containers = (("first", ContainerKind.INIT, Allocation(pieces=(piece,))),)
        return {"uid": RunsOn(namespace="team", pod="pod", containers=containers)}

    grants = NodeGrants(ended_pods=held(30), corrected_pods=held(20))
    assert (devices, grants) == published(inventory_text(devices, grants), node="n1")
    with pytest.raises(BadInput, match="less than nothing is held"):
        published(inventory_text(devices, NodeGrants(ended_pods=held(-1))), node="n1")


def test_what_runs_on_is_read_as_older_agents_write_it() -> None:
    document = json.loads(inventory_text((card("GPU-1"),)))
    takes = {"core": 30, "memory": 2**30}
    document |= {"running_on": {"7f3a": {"GPU-1": takes}}, "namespaces": {"7f3a": "team"}}
    _, grants = published(json.dumps(document), node="n1")
    (runs_on,) = grants.ended_pods.values()

    assert ("team", (Occupancy("GPU-1", takes),)) == (runs_on.namespace, runs_on.takes)


def test_an_inventory_that_is_not_one_is_refused_in_a_sentence() -> None:
    with pytest.raises(BadInput, match=r"node n1: hetero\.io/inventory: not a valid"):
        published_devices("[]", node="n1")


def test_an_allocation_comes_back_as_it_was_signed() -> None:
    assert GIVEN == read(signed_assignment(GIVEN, KEY))


def test_a_pod_without_an_allocation_has_none() -> None:
    assert None is read({})


@pytest.mark.parametrize(
    "forged",
    [
        {"uid": "uid-2"},  # another pod's
        {"node": "n2"},  # on another node
        {"keys": SigningKey.new().public},  # another cluster's scheduler
        {"keys": PublicKeys()},
    ],
)
def test_a_replayed_or_forged_allocation_is_refused(forged: dict[str, str]) -> None:
    with pytest.raises(BadInput, match="is not signed by this cluster's scheduler"):
        read(signed_assignment(GIVEN, KEY), **forged)  # type: ignore[arg-type]


def test_a_changed_allocation_is_refused() -> None:
    notes = signed_assignment(GIVEN, KEY)
    notes[ALLOCATION] = notes[ALLOCATION].replace("GPU-1", "GPU-2")

    with pytest.raises(BadInput, match="is not signed"):
        read(notes)


@pytest.mark.parametrize("signature", ["", "zz", "00" * 64])
def test_what_is_no_signature_is_refused(signature: str) -> None:
    notes = {**signed_assignment(GIVEN, KEY), SIGNATURE: signature}

    with pytest.raises(BadInput, match="is not signed"):
        read(notes)


def test_two_keys_are_good_while_one_takes_the_others_place(tmp_path: Path) -> None:
    former, key = SigningKey.new(), SigningKey.new()
    (tmp_path / "keys.pem").write_text((key.public + former.public).text())
    both = PublicKeys.read(str(tmp_path / "keys.pem"))

    assert key.public + former.public == both
    assert [GIVEN, GIVEN] == [read(signed_assignment(GIVEN, k), keys=both) for k in (former, key)]


def test_who_can_tell_signatures_cannot_make_them(tmp_path: Path) -> None:
    (tmp_path / "keys.pem").write_text(KEY.public.text())

    with pytest.raises(BadInput, match=r"keys\.pem: is not an Ed25519 key in PEM"):
        SigningKey.read(str(tmp_path / "keys.pem"))


def test_keys_that_are_missing_or_no_keys_are_refused_and_not_shown(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("-----BEGIN PRIVATE KEY-----\ncanary\n-----END PRIVATE KEY-----")

    with pytest.raises(BadInput, match="is the Secret mounted"):
        SigningKey.read(str(tmp_path / "none"))
    with pytest.raises(BadInput, match="is the ConfigMap mounted"):
        PublicKeys.read(str(tmp_path / "none"))
    with pytest.raises(BadInput, match="is not an Ed25519 key in PEM") as caught:
        SigningKey.read(str(wrong))
    assert "canary" not in str(caught.value)
    assert "canary" not in repr(KEY)
    with pytest.raises(BadInput, match="no public key is in it"):
        PublicKeys.read(str(wrong))


def test_a_kubelet_device_names_its_card() -> None:
    assert "GPU::x" == device_of(device_id("GPU::x", 3))


def test_a_node_without_devices_publishes_none() -> None:
    assert () == published_devices(inventory_text(()), node="n1")
