"""A cluster whose cards are given by claims alone: each example on it, HAMi's words among them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from hetero.model.units import GiB, MiB
from tests.cluster.claims import GROUP, JOB, PODS, TEMPLATES, claim, cleared, ended, run_with
from tests.cluster.conftest import AI_BENCHMARK_2
from tests.cluster.lab import Lab, Plain, program
from tests.cluster.release import Release
from tests.cluster.test_claim_health import ill
from tests.cluster.test_shares import documents
from tests.kube.binaries import ROOT
from tests.kube.control_plane import wait_for

pytestmark = pytest.mark.cluster

#: But for the one by a resource's name alone: the kubelets here have counted that resource for a
#: device plugin, and for five minutes give it by nothing else. And but for the one by PCIe roots,
#: which are this machine's own.
EXAMPLES = {
    path.stem: path
    for path in sorted((ROOT / "examples/dra").glob("*.yaml"))
    if path.stem not in ("whole-card", "same-root")
}
H200, A100 = "NVIDIA H200", "NVIDIA A100-SXM4-80GB"
#: The models of the cards that an example must get, where one answer is right.
MODELS = {
    "first-available": [A100],  # there is no H100
    "linked": [H200, H200],
}
#: How many cards each gets; one, where that is not said.
COUNTS = {"gang": 2, "linked": 2, "same-numa": 2}
#: Bytes of each card, and its cores, None for no limit. Whole cards have what they have.
SIZES: dict[str, tuple[int, int | None]] = {
    "elastic": (8 * GiB, 30),
    "gang": (8 * GiB, 50),
    "not-this-card": (8 * GiB, 30),
    "resource-names": (3000 * MiB, None),
    "same-numa": (8 * GiB, None),
    "share": (8 * GiB, 30),
}


@pytest.fixture(scope="module")
def alone(late: Release) -> Iterator[Release]:
    """The late cluster upgraded to claims alone."""
    lab = late.lab
    said = {"settings": "hide-unasked = true\nevict-unhealthy = true"}
    made = Release(lab, allocation="dra", more=said)
    late.replace_by(made)
    wait_for(lambda: serves(made), seconds=120)
    yield made
    made.replace_by(late)
    wait_for(late.works, seconds=120)


def serves(release: Release) -> bool:
    """Whether all cards are given by claims, and the webhook says so of resource names."""
    lab = release.lab
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}
    probe = {"metadata": {"name": "probe"}, "spec": program(limits)}
    with suppress(OSError):
        made = lab.call("POST", f"{PODS}?dryRun=All", probe)
        return "resourceClaims" in made["spec"] and all(
            release.devices(node) and not lab.allocatable(node) for node in lab.racks
        )
    return False


@pytest.fixture
def release(alone: Release) -> Iterator[Release]:
    with cleared(alone):
        yield alone


@pytest.fixture
def lab(release: Release) -> Lab:
    return release.lab


def apply(lab: Lab, path: Path) -> None:
    """Apply an example as it stands, but for the program that its pod runs."""
    for made in yaml.safe_load_all(path.read_text()):
        if made["kind"] != "Pod":
            lab.call("POST", TEMPLATES, made)
            continue
        spec, ours = made["spec"], program({})
        (container,) = spec["containers"]
        ours["containers"] = [{**ours["containers"][0], "resources": container["resources"]}]
        lab.call("POST", PODS, {**made, "spec": {**spec, **ours}})


def held(lab: Lab) -> list[Plain]:
    """Return the grants of claims that stand on any node."""
    return [one for node in lab.racks for one in lab.standing(node) if one.get("label")]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_with_the_cards_that_it_asks_for(
    release: Release, lab: Lab, name: str
) -> None:
    cards = {
        said["attributes"]["uuid"]["string"]: said["attributes"]["model"]["string"]
        for node in lab.racks
        for said in release.devices(node).values()
    }
    apply(lab, EXAMPLES[name])
    wait_for(lambda: lab.phases()[name] == "Running")
    (grant,) = held(lab)
    pieces = grant["allocation"]["pieces"]
    models = sorted(cards[one["device"]] for one in pieces)

    assert COUNTS.get(name, 1) == len({one["device"] for one in pieces})
    assert MODELS.get(name, models) == models
    assert name != "large-model" or pieces[0]["takes"]["memory"] >= 40 * GiB
    for one in pieces:
        assert SIZES.get(name, (one["takes"]["memory"], None)) == (
            one["takes"]["memory"],
            one["core"],
        )
    assert ("elastic" if name == "elastic" else "fixed") == grant["allocation"]["policy"]


def test_hamis_ai_benchmark_2_runs_with_the_size_that_it_says(lab: Lab) -> None:
    tries = f"{JOB} --alloc 2400MiB; {JOB} --alloc 3000MiB; sleep 3"
    lab.add("named", AI_BENCHMARK_2, "sh", "-c", tries)
    grants = wait_for(lambda: held(lab))
    ended(lab, "named")

    assert [3000 * MiB] == [one["allocation"]["pieces"][0]["takes"]["memory"] for one in grants]
    fits, over = map(json.loads, documents(lab.output("named")))
    assert {"allocated": 2400 * MiB} == fits
    assert "CUDA_ERROR_OUT_OF_MEMORY" == over["error"]


def test_pods_leave_a_card_that_falls_ill_unless_their_claims_tolerate_it(lab: Lab) -> None:
    """As the settings of this cluster say: the taint's effect is NoExecute."""
    tolerations = [{"key": "hetero.io/unhealthy", "operator": "Exists"}]
    named = {"deviceClassName": "cambricon.com-vmlu"}
    claim(lab, "leaves", memory="2Gi", cores=10, **named)
    claim(lab, "stays", memory="2Gi", cores=10, **named, tolerations=tolerations)
    for name in ("leaves", "stays"):
        run_with(lab, name)
    wait_for(lambda: {"Running"} == {*lab.phases().values()} and len(lab.phases()) == 2)
    with ill(lab):
        wait_for(
            lambda: (
                "leaves" not in lab.pods()
                or "deletionTimestamp" in lab.pods()["leaves"]["metadata"]
            )
        )
        assert "Running" == lab.phases()["stays"]


def test_each_resource_that_counts_cards_is_served_by_a_class_of_the_chart(lab: Lab) -> None:
    items = lab.call("GET", f"{GROUP}/deviceclasses")["items"]
    served = {one["spec"].get("extendedResourceName") for one in items}

    assert {"nvidia.com/gpu", "huawei.com/Ascend910B3", "cambricon.com/vmlu"} <= served
