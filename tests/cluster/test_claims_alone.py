"""A cluster whose cards are given by claims alone: each example on it, HAMi's words among them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from hetero.model.units import GiB, MiB
from tests.cluster.claims import (
    CLAIMS,
    GROUP,
    JOB,
    PODS,
    TEMPLATES,
    claim,
    cleared,
    containers,
    run_with,
    runs,
    tried,
)
from tests.cluster.conftest import AI_BENCHMARK_2
from tests.cluster.lab import ENDS, Lab, Plain, program
from tests.cluster.release import Release
from tests.cluster.test_claim_health import ill, tainted
from tests.cluster.test_reports import expect_refused
from tests.kube.binaries import ROOT
from tests.kube.control_plane import wait_for

pytestmark = pytest.mark.cluster

EXAMPLES = {path.stem: path for path in sorted((ROOT / "examples/dra").glob("*.yaml"))}
#: What is applied at a time, in steps, and fits on the cards together: what takes whole cards is
#: applied before what shares any.
WHOLE = ("first-available", "linked", "same-root")
SHARES = tuple(name for name in EXAMPLES if name not in (*WHOLE, "whole-card"))
TOGETHER = ((WHOLE,), (("whole-card",), SHARES))
H200, A100, L4, T4 = "NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA L4", "Tesla T4"
SHARE, HALF, ANY_CORE = (8 * GiB, 30), (8 * GiB, 50), (8 * GiB, None)
#: What each example may get: how many cards, and of which models, with the bytes of each and its
#: cores, None for no limit. There is no H100; the cards of one NUMA node, those below one PCIe
#: root, and those with links are of one group each.
GETS: dict[str, tuple[int, dict[str, tuple[int, int | None]]]] = {
    "elastic": (1, dict.fromkeys((H200, A100, L4, T4), SHARE)),
    "first-available": (1, {A100: ((81920 - 551) * MiB, None)}),
    "gang": (2, dict.fromkeys((H200, A100, L4, T4), HALF)),
    "large-model": (
        1,
        {
            **dict.fromkeys((H200, A100, "K100-AI", "MXC500"), (40 * GiB, None)),
            "910B3": (64 * GiB, None),  # whole: its templates are of 16 and 32 GiB
        },
    ),
    "linked": (2, {H200: (143771 * MiB, None)}),
    "not-this-card": (1, dict.fromkeys((H200, A100, L4, T4), SHARE)),
    "resource-names": (1, dict.fromkeys((H200, A100, L4, T4), (3000 * MiB, None))),
    "same-numa": (2, dict.fromkeys((H200, A100, L4, T4), ANY_CORE)),
    "same-root": (2, dict.fromkeys((L4, T4), ANY_CORE)),
    "share": (1, dict.fromkeys((H200, A100, L4, T4), SHARE)),
    "whole-card": (
        1,
        {
            H200: (143771 * MiB, None),
            A100: ((81920 - 551) * MiB, None),
            L4: (23034 * MiB, None),
            T4: (15360 * MiB, None),
        },
    ),
}
#: The NUMA node of each model.
NUMA = {H200: 0, A100: 1, L4: 1, T4: 1}


@pytest.fixture
def release(alone: Release) -> Iterator[Release]:
    with cleared(alone):
        yield alone


def apply(lab: Lab, path: Path) -> None:
    """Apply an example as it stands, but for the program that its pod runs."""
    for made in yaml.safe_load_all(path.read_text()):
        if made["kind"] != "Pod":
            lab.call("POST", TEMPLATES, made)
            continue
        spec, granted = made["spec"], program({})
        (container,) = spec["containers"]
        granted["containers"] = [{**granted["containers"][0], "resources": container["resources"]}]
        lab.call("POST", PODS, {**made, "spec": {**spec, **granted}})


def held(lab: Lab) -> list[Plain]:
    """Return the grants of claims that stand on any node."""
    return [one for node in lab.racks for one in lab.standing(node) if one.get("label")]


@pytest.fixture(scope="module")
def served(alone: Release) -> dict[str, Plain]:
    """The grant that each example's pod ran with."""
    given_by_pod: dict[str, Plain] = {}
    lab = alone.lab
    for steps in TOGETHER:
        with cleared(alone):
            for names in steps:
                for name in names:
                    apply(lab, EXAMPLES[name])
                for name in names:
                    runs(lab, name, seconds=60)
            given_by_pod |= by_pod(lab)
    return given_by_pod


def by_pod(lab: Lab) -> dict[str, Plain]:
    """Return the grants of claims, each by the pod that its claim is reserved for."""
    grants = {one["label"]: one for one in held(lab)}
    claims = lab.call("GET", CLAIMS)["items"]
    users = {item["metadata"]["name"]: item["status"]["reservedFor"] for item in claims}
    assert {f"default/{name}" for name in users} == grants.keys()  # nobody else has any
    return {pod["name"]: grants[f"default/{name}"] for name, (pod,) in users.items()}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_with_the_cards_that_it_asks_for(
    alone: Release, served: dict[str, Plain], name: str
) -> None:
    models = {
        said["attributes"]["uuid"]["string"]: said["attributes"]["model"]["string"]
        for node in alone.lab.racks
        for said in alone.devices(node).values()
    }
    grant = served[name]
    pieces = grant["allocation"]["pieces"]
    count, allowed = GETS[name]

    assert count == len({one["device"] for one in pieces})
    for piece in pieces:
        assert allowed[models[piece["device"]]] == (piece["takes"]["memory"], piece["core"])
    if name == "same-numa":
        assert 1 == len({NUMA[models[one["device"]]] for one in pieces})
    assert ("elastic" if name == "elastic" else "fixed") == grant["allocation"]["policy"]


def test_hamis_ai_benchmark_2_runs_with_the_size_that_it_says(lab: Lab) -> None:
    tries = f"{JOB} --alloc 2400MiB; {JOB} --alloc 3000MiB; sleep 1000"
    lab.add("named", AI_BENCHMARK_2, *ENDS, "sh", "-c", tries)
    fits, over = tried(lab, "named", 2)
    grants = held(lab)

    assert [3000 * MiB] == [one["allocation"]["pieces"][0]["takes"]["memory"] for one in grants]
    assert {"allocated": 2400 * MiB} == fits
    assert "CUDA_ERROR_OUT_OF_MEMORY" == over["error"]


def test_what_means_nothing_is_refused_where_claims_are_the_only_way_too(lab: Lab) -> None:
    expect_refused(lab)


def test_a_size_of_an_npu_is_a_template_of_it(release: Release, lab: Lab) -> None:
    limits = {"huawei.com/Ascend910B3": "1", "huawei.com/Ascend910B3-memory": "16384"}
    lab.add("cut", limits)
    wait_for(lambda: lab.phases()["cut"] == "Running")
    (grant,) = held(lab)

    assert ["vir05_1c_16g"] == [one["template"] for one in grant["allocation"]["pieces"]]


def test_pods_leave_a_card_that_falls_ill_unless_their_claims_tolerate_it(
    release: Release, lab: Lab
) -> None:
    """As the settings of this cluster say: the taint's effect is NoExecute."""
    tolerations = [{"key": "hetero.io/unhealthy", "operator": "Exists"}]
    named = {"deviceClassName": "cambricon.com-vmlu"}
    claim(lab, "leaves", memory="2Gi", cores=10, **named)
    claim(lab, "stays", memory="2Gi", cores=10, **named, tolerations=tolerations)
    for name in ("leaves", "stays"):
        run_with(lab, name)
    wait_for(lambda: {"Running"} == {*lab.phases().values()} and len(lab.phases()) == 2)

    def left() -> bool:
        pod = lab.pods().get("leaves")
        return pod is None or "deletionTimestamp" in pod["metadata"]

    with ill(lab):
        wait_for(left)
        assert "Running" == lab.phases()["stays"]
    wait_for(lambda: not tainted(release, "n2"))  # else the next test's pods leave, too


def test_each_resource_that_counts_cards_is_served_by_a_class_of_the_chart(lab: Lab) -> None:
    items = lab.call("GET", f"{GROUP}/deviceclasses")["items"]
    served = {one["spec"].get("extendedResourceName") for one in items}

    assert {"nvidia.com/gpu", "huawei.com/Ascend910B3", "cambricon.com/vmlu"} <= served


def test_a_pod_of_a_claim_runs_on_while_both_ways_come_and_its_share_goes_with_it(
    lab: Lab, request: pytest.FixtureRequest
) -> None:
    """On a node that is of the classic way from then on. It is last: the upgrade is for good."""
    claim(lab, "stays", memory="2Gi", cores=20)
    run_with(lab, "stays")
    runs(lab, "stays", seconds=60)
    before = held(lab), containers(lab, "stays")
    request.getfixturevalue("late")

    assert before == (held(lab), containers(lab, "stays"))
    lab.call("DELETE", f"{PODS}/stays?gracePeriodSeconds=1")
    wait_for(lambda: "stays" not in lab.pods() and not held(lab))
