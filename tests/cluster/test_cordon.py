"""A card that is cordoned on a real cluster: within seconds, without a restart, and back."""

import os
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from hetero.kube.words.annotations import CORDONED, INVENTORY, published_devices
from tests.cluster.claims import claim, cleared, given, run_with, runs
from tests.cluster.conftest import CARD, ended, run_all, share
from tests.cluster.lab import Lab
from tests.cluster.release import Release
from tests.cluster.test_what_if import held
from tests.kube.control_plane import wait_for
from tests.programs import completed

pytestmark = pytest.mark.cluster

#: Seconds within which a node obeys a cordon: its inventory says so, or its slices. A kubelet
#: writes its node's status less often.
SOON = 5.0


def hetero(lab: Lab, *arguments: str) -> str:
    """Return what a command prints, in the cluster's network."""
    done = completed(
        [
            *("nsenter", f"--net=/run/netns/{lab.group('cp')}", sys.executable, "-m", "hetero.cli"),
            *arguments,
        ],
        env={"PATH": os.environ["PATH"], "KUBECONFIG": str(lab._kubeconfig), "COLUMNS": "200"},
        timeout=60,
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout


def cordons(lab: Lab, node: str) -> dict[str, str]:
    """Return why which cards of a node are cordoned, by its published inventory."""
    notes = lab.call("GET", f"/api/v1/nodes/{node}")["metadata"]["annotations"]
    devices = published_devices(notes[INVENTORY], node=node)
    return {card.uuid: card.cordon for card in devices if card.cordon is not None}


def soon(true: Callable[[], object]) -> None:
    """Wait until something is true, which is to be soon."""
    began_s = time.monotonic()
    wait_for(true)
    assert time.monotonic() - began_s < SOON


@pytest.fixture(autouse=True)
def uncordoned(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have no card cordoned after a test, whatever came of it."""
    name = next(name for name in ("either", "release") if name in request.fixturenames)
    lab = request.getfixturevalue(name).lab
    yield
    for node in lab.racks:
        lab.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": {CORDONED: None}}})


def test_no_pod_gets_a_cordoned_card_and_its_holder_runs_on(either: Release) -> None:
    lab = either.lab
    lab.calm()
    lab.add("holder", share())
    run_all(lab, "holder")
    node, [(uuid, _)] = held(lab.pods()["holder"])
    slots = int(lab.allocatable(node)[CARD])
    agent = either.agent(node)["metadata"]["name"]

    printed = hetero(lab, "cordon", node, uuid, "--reason", "loud fan")
    soon(lambda: cordons(lab, node) == {uuid: "loud fan"})
    wait_for(lambda: int(lab.allocatable(node)[CARD]) < slots)
    assert "still held by default/holder/main" in printed
    lab.add("waits", share(), notes={"nvidia.com/use-gpuuuid": uuid})
    wait_for(lambda: any("1 cordoned (loud fan)" in said for said in lab.messages("waits")))
    lab.add("other", share(), nodeSelector={"kubernetes.io/hostname": node})
    run_all(lab, "other")
    assert uuid not in dict(held(lab.pods()["other"])[1])
    shown = [line.split() for line in hetero(lab, "inventory", "--cluster").splitlines()]
    (row,) = [line for line in shown if line[:3] == ["default", "holder", "main"]]
    assert ["20", "%"] == row[5:7]
    assert ("Running", "Pending") == (lab.phases()["holder"], lab.phases()["waits"])

    hetero(lab, "uncordon", node, uuid)
    soon(lambda: not cordons(lab, node))
    wait_for(lambda: int(lab.allocatable(node)[CARD]) == slots)
    run_all(lab, "waits")
    assert agent == either.agent(node)["metadata"]["name"]


def test_a_cordon_that_means_no_card_is_an_event_of_its_node(either: Release) -> None:
    lab, sentence = either.lab, f"node n1: {CORDONED} names 'GPU-none', and no card of this node"
    lab.patch("/api/v1/nodes/n1", {"metadata": {"annotations": {CORDONED: "GPU-none"}}})

    wait_for(lambda: [said for said in lab.messages("n1") if said.startswith(sentence)])
    assert sentence in hetero(lab, "inventory", "--cluster")
    assert {} == cordons(lab, "n1")


def test_a_pod_that_asks_for_a_part_of_no_card_is_refused(either: Release) -> None:
    with pytest.raises(OSError, match=r"is 0, and nvidia\.com/gpumem 1k is a part of a card"):
        either.lab.add("zero", {CARD: "0", "nvidia.com/gpumem": "1000"})


def test_a_pod_that_counts_no_cards_starts_beside_cards_of_that_kind(either: Release) -> None:
    """A kubelet of 1.20 would want a card for each resource whose plugin has PreStartContainer."""
    lab = either.lab
    offers = {node: [*lab.allocatable(node)] for node in lab.racks}
    for node, resources in offers.items():
        for resource in resources:
            name = f"none-{resource.replace('/', '-').lower()}"
            where = {"kubernetes.io/hostname": node}
            lab.add(f"{name}-{node}", {resource: "0"}, "true", nodeSelector=where)
        lab.add(f"all-{node}", dict.fromkeys(resources, "0"), "true", nodeSelector=where)
    names = [*lab.pods()]
    assert len(names) > 9
    ended(lab, *names)

    assert {"Succeeded"} == {lab.phases()[name] for name in names}


@pytest.fixture
def release(by_claims: Release) -> Iterator[Release]:
    with cleared(by_claims):
        yield by_claims


def taints(release: Release, node: str) -> dict[str, str]:
    """Return the taints of a node's devices, by their names."""
    return {
        name: taint.get("value", "")
        for name, device in release.devices(node).items()
        for taint in device.get("taints", ())
        if taint["key"] == "hetero.io/cordoned"
    }


def test_no_claim_gets_a_cordoned_card_and_its_holder_runs_on(release: Release) -> None:
    lab = release.lab
    selectors = [{"cel": {"expression": 'device.attributes["hetero.io"].model == "NVIDIA L4"'}}]
    claim(lab, "holder", memory="2Gi", cores=10, selectors=selectors)
    run_with(lab, "holder")
    runs(lab, "holder", seconds=60)
    (result,) = given(lab, "holder")
    node, name = result["pool"], result["device"]
    attributes = release.devices(node)[name]["attributes"]

    hetero(lab, "cordon", node, attributes["uuid"]["string"], "--reason", "loud fan")
    soon(lambda: taints(release, node) == {name: "loud-fan"})
    claim(lab, "next", memory="2Gi", cores=10, selectors=selectors)
    run_with(lab, "next")
    waits = "cannot allocate all claims"
    wait_for(lambda: any(waits in said for said in lab.messages("next")))
    assert ("Running", []) == (lab.phases()["holder"], given(lab, "next"))

    hetero(lab, "uncordon", node, f"nvidia:{attributes['index']['int']}")
    soon(lambda: not taints(release, node))
    runs(lab, "next", seconds=90)
