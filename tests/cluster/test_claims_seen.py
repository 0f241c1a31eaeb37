"""What claims hold on a real cluster is seen from outside as it is on the nodes."""

import json
import sys
from collections.abc import Iterator
from functools import partial

import pytest

from tests.cluster import test_what_if
from tests.cluster.claims import NODES, claim, cleared, given, run_with, runs
from tests.cluster.lab import Lab, Plain
from tests.cluster.release import Release
from tests.cluster.test_cordon import hetero
from tests.kube.control_plane import wait_for

pytestmark = pytest.mark.cluster

#: The port of the metrics of schedulers.
METRICS = 9396
HELD = ("memory", "memory_held", "core_held", "slots_held", "enforcement", "health")


@pytest.fixture
def release(by_claims: Release) -> Iterator[Release]:
    with cleared(by_claims):
        yield by_claims


def cards(document: str) -> dict[str, tuple[object, ...]]:
    """Return what an inventory says of each card, by UUID."""
    return {row["uuid"]: tuple(row[name] for name in HELD) for row in json.loads(document)}


def by_nodes(lab: Lab, node: str) -> str:
    printed = lab.run_on(node, sys.executable, "-m", "hetero.cli", "inventory", "--json")
    return json.dumps(json.loads(printed)["items"])


def test_the_clusters_views_show_what_claims_hold_as_their_nodes_do(
    release: Release, lab: Lab
) -> None:
    whole_nodes = test_what_if.hetero(lab, "--cluster")[1]["before"]
    claim(lab, "shared", memory="3000Mi", cores=30)
    claim(lab, "template", deviceClassName="hetero", selectors=[_of("ascend")])
    claim(
        lab,
        "sliced",
        memory="2Gi",
        cores=20,
        deviceClassName="hetero",
        selectors=[_of("cambricon")],
    )
    for pod, name in (
        ("one", "shared"),
        ("two", "shared"),
        ("three", "template"),
        ("four", "sliced"),
    ):
        run_with(lab, pod, claims=(name,))
    for pod in ("one", "two", "three", "four"):
        runs(lab, pod, seconds=60)
    assert all(given(lab, name) for name in ("shared", "template", "sliced"))

    view = json.loads(hetero(lab, "inventory", "--cluster", "--json"))
    shown = {node["name"]: node["devices"] for node in view["items"]}
    for node in NODES:
        assert cards(by_nodes(lab, node)) == cards(json.dumps(shown[node]))
    assert {*lab.racks} == {*shown}
    assert [("shared", "one, two"), ("sliced", "four"), ("template", "three")] == sorted(
        (pod["claim"], pod["pod"]) for pod in view["pods"]
    )
    top = [line.split() for line in hetero(lab, "top", "--cluster", "--once").splitlines()]
    assert ["default", "shared", "one,", "two", "main"] in [words[:5] for words in top]

    _, placed = test_what_if.hetero(lab, "--cluster")
    assert sum(map(len, shown.values())) == placed["before"]["devices"]
    assert whole_nodes["whole_devices"] - 3 == placed["before"]["whole_devices"]
    held = sum(card["memory_held"] for node in NODES for card in shown[node])
    wait_for(partial(_counted, release, held))


def _of(vendor: str) -> Plain:
    return {"cel": {"expression": f'device.attributes["hetero.io"].vendor == "{vendor}"'}}


def _counted(release: Release, held_bytes: int) -> bool:
    """Whether the metrics of the scheduler that leads say that claims hold so much."""
    server = f"https://{release.leading()['status']['podIP']}:{METRICS}"
    lines = release.lab.ask(server, "GET", "/metrics").decode().splitlines()
    metric = "hetero_node_memory_allocated_bytes{"
    return held_bytes == sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith(metric) and any(f'"{node}"' in line for node in NODES)
    )
