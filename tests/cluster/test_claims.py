"""Claims on a real Kubernetes 1.36: its scheduler, its kubelets and containerd, simulated cards."""

import json
import sys
from collections.abc import Iterator

import grpc
import pytest

from hetero.kube.dra.proto import dra_pb2
from hetero.kube.dra.proto.dra_pb2_grpc import DRAPluginStub
from hetero.kube.words.quantity import quantity
from hetero.model.units import GiB, MiB
from tests.cluster.claims import (
    CLAIMS,
    GROUP,
    JOB,
    NODES,
    PODS,
    TEMPLATES,
    claim,
    cleared,
    given,
    remind,
    run_with,
    runs,
    same_card,
    specs,
    tried,
)
from tests.cluster.conftest import AI_BENCHMARK_2
from tests.cluster.lab import ENDS, Lab, documents, processes, program
from tests.cluster.release import NAMESPACE, Release
from tests.kube.control_plane import wait_for
from tests.kube.site_cards import ALL

pytestmark = pytest.mark.cluster


@pytest.fixture
def release(by_claims: Release) -> Iterator[Release]:
    with cleared(by_claims):
        yield by_claims


def test_two_pods_share_a_card_by_claims_each_within_its_limits(release: Release, lab: Lab) -> None:
    """The driver's own memory for a program, 518 MiB on an H200, counts as the claim's."""
    card = next(iter(wait_for(lambda: release.devices("n1")).values()))
    selectors = same_card(card["attributes"]["uuid"]["string"])
    claim(lab, "small", memory="3000Mi", cores=30, selectors=selectors)
    claim(lab, "large", memory="20Gi", cores=60, selectors=selectors)
    run_with(lab, "small", "sh", "-c", f"{JOB} --alloc 2400MiB; {JOB} --alloc 2600MiB; sleep 1000")
    # While kube-scheduler writes what it gave the one, it counts all of the card as given away, and
    # does not look at the other again when it has written it.
    wait_for(lambda: given(lab, "small"))
    run_with(lab, "large", "sh", "-c", f"{JOB} --alloc 19GiB; {JOB} --alloc 21GiB; sleep 1000")
    held = [
        wait_for(lambda pod_name=one: given(lab, pod_name))[0]["device"]
        for one in ("small", "large")
    ]

    assert [card["name"]] * 2 == held
    for name, fits in (("small", 2400 * MiB), ("large", 19 * GiB)):
        first, second = tried(lab, name, 2)
        assert {"allocated": fits} == first
        assert "CUDA_ERROR_OUT_OF_MEMORY" == second["error"]


def test_slices_say_of_a_nodes_cards_what_its_inventory_does(release: Release, lab: Lab) -> None:
    """Two cards have NVLink; to the other three all ways are over PCIe, as among them."""
    inventory = lab.run_on("n1", sys.executable, "-m", "hetero.cli", "inventory", "--json")
    published = {
        one["attributes"]["uuid"]["string"]: one
        for one in wait_for(lambda: release.devices("n1")).values()
    }
    groups: dict[str, set[str]] = {}
    reserved: dict[str, int] = {}
    for card in json.loads(inventory)["items"]:
        device = published.pop(card["uuid"])
        attributes = {name: one for name, of in device["attributes"].items() for one in of.values()}
        assert {
            "vendor": card["vendor"],
            "model": card["model"],
            "index": card["index"],
            "enforcement": card["enforcement"],
            "driverVersion": card["attributes"]["driver"],
            "numaNode": card["numa"],
            "countsContext": True,
            "resource.kubernetes.io/pciBusID": card["pci"],
            "resource.kubernetes.io/pcieRoot": f"pci{card['pci'][:6]}0",
        }.items() <= attributes.items()
        assert {"memory": card["memory"], "cores": card["core_units"], "slots": card["slots"]} == {
            name: quantity({name: of["value"]}, name) for name, of in device["capacity"].items()
        }
        groups.setdefault(attributes["linkGroup"], set()).add(card["model"])
        reserved[card["model"]] = attributes.get("reservedMemory", 0)
    assert {} == published
    assert {"NVIDIA A100-SXM4-80GB": 551 * MiB} == {k: v for k, v in reserved.items() if v}
    others = {"NVIDIA A100-SXM4-80GB", "NVIDIA L4", "Tesla T4"}
    assert [{"NVIDIA H200"}, others] == [*groups.values()]


def test_a_claims_grant_stands_while_its_pod_runs_and_goes_with_it(lab: Lab) -> None:
    claim(lab, "one", memory="2Gi", cores=20)
    run_with(lab, "one")
    wait_for(lambda: lab.phases()["one"] == "Running")
    (result,) = given(lab, "one")
    (grant,) = lab.standing(result["pool"])

    assert {"memory": 2 * GiB, "core": 20, "slots": 1} == grant["allocation"]["pieces"][0]["takes"]
    assert "default/one" == grant["label"]

    lab.call("DELETE", f"{PODS}/one?gracePeriodSeconds=0")
    wait_for(lambda: not lab.standing(result["pool"]))


def test_a_resource_name_is_a_whole_card_by_a_claim_that_kube_scheduler_makes(
    release: Release, lab: Lab
) -> None:
    """A class with the resource's name, as the chart's have it where claims are the only way."""
    (card,) = [
        one
        for one in wait_for(lambda: release.devices("n1")).values()
        if one["attributes"]["model"]["string"] == "NVIDIA L4"
    ]
    lab.call(
        "POST",
        f"{GROUP}/deviceclasses",
        {
            "metadata": {"name": "l4"},
            "spec": {
                "extendedResourceName": "example.com/l4",
                "selectors": same_card(card["attributes"]["uuid"]["string"]),
            },
        },
    )
    tries = f"{JOB} --alloc 22GiB; {JOB} --alloc 23GiB; sleep 1000"
    lab.add("l4", {"example.com/l4": "1"}, *ENDS, "sh", "-c", tries)
    fits, over = tried(lab, "l4", 2)
    (grant,) = lab.standing("n1")
    lab.call("DELETE", f"{GROUP}/deviceclasses/l4")

    (piece,) = grant["allocation"]["pieces"]
    assert (23034 * MiB, None) == (piece["takes"]["memory"], piece["core"])
    assert {"allocated": 22 * GiB} == fits
    assert "CUDA_ERROR_OUT_OF_MEMORY" == over["error"]


def test_an_agent_prepares_what_is_allocated_on_its_node_for_a_pod_there_and_nothing_else(
    lab: Lab,
) -> None:
    """It asks the API of each claim that a kubelet names; to be asked again changes nothing."""
    uid = claim(lab, "used", memory="2Gi", cores=20)["metadata"]["uid"]  # of the first node's
    free = claim(lab, "free", memory="2Gi", cores=20)
    run_with(lab, "used")
    runs(lab, "used", seconds=60)
    standing = lab.standing("n1")
    allocation = lab.call("GET", f"{CLAIMS}/used")["status"]["allocation"]

    assert ("", f"hetero.io/claim=claim-{uid}") == prepared(lab, "n1", "used", uid)
    other = "it was allocated devices of node n1, and this is n2"
    assert other in prepared(lab, "n2", "used", uid)[0]
    taken = "another claim of this name has taken its place"
    assert taken in prepared(lab, "n1", "used", "another")[0]
    none = "it has no allocation of this driver's devices"
    assert none in prepared(lab, "n1", "free", free["metadata"]["uid"])[0]
    body = {**free, "status": {"allocation": allocation}}
    lab.call("PUT", f"{CLAIMS}/free/status", body)
    nobody = "it is reserved for no pod of this node"
    assert nobody in prepared(lab, "n1", "free", free["metadata"]["uid"])[0]
    assert standing == lab.standing("n1")
    assert 1 == len(specs(lab, "n1"))
    assert [] == [*lab.standing("n2"), *specs(lab, "n2")]


def prepared(lab: Lab, node: str, name: str, uid: str) -> tuple[str, str]:
    """Ask a node's agent for a claim, as its kubelet does: why not, or the CDI device."""
    asked = dra_pb2.Claim(namespace="default", name=name, uid=uid)
    address = f"unix://{lab.kubelet(node)}/plugins/hetero.io/dra.sock"
    options = [("grpc.default_authority", "localhost")]
    with grpc.insecure_channel(address, options=options) as channel:
        stub = DRAPluginStub(channel)  # type: ignore[no-untyped-call]
        answer = stub.NodePrepareResources(dra_pb2.NodePrepareResourcesRequest(claims=[asked]))
    prepared_claim = answer.claims[uid]
    return prepared_claim.error, "".join(
        one for device in prepared_claim.devices for one in device.cdi_device_ids
    )


def test_a_claim_that_is_not_served_is_explained_in_its_pods_events(lab: Lab) -> None:
    claim(lab, "first", memory="2Gi", cores=20)
    claim(lab, "second", memory="2Gi", cores=20)
    run_with(lab, "greedy", claims=("first", "second"))
    sentence = "container main uses claim"

    assert wait_for(lambda: any(sentence in said for said in lab.messages("greedy")))
    assert "Running" != lab.phases()["greedy"]


def test_a_card_that_another_drivers_slice_names_is_left_to_it_as_doctor_says(
    release: Release, lab: Lab
) -> None:
    before = wait_for(lambda: release.devices("n1"))
    name, card = next(iter(before.items()))
    uuid = card["attributes"]["uuid"]
    spec = {
        "driver": "gpu.example.com",
        "nodeName": "n1",
        "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0", "attributes": {"uuid": uuid}}],
    }
    slices = f"{GROUP}/resourceslices"
    lab.call("POST", slices, {"metadata": {"name": "theirs"}, "spec": spec})
    says = f"claims get it from driver gpu.example.com, which publishes {uuid['string']}, too"
    try:
        wait_for(lambda: release.devices("n1").keys() == {*before, "gpu-0"} - {name})
        wait_for(lambda: says in doctor(lab, "n1"))
    finally:
        lab.call("DELETE", f"{slices}/theirs")
    wait_for(lambda: release.devices("n1").keys() == before.keys())


def doctor(lab: Lab, node: str) -> str:
    """Return what `hetero doctor` says on a node, in lines of any length."""
    return lab.run_on(node, sys.executable, "-m", "hetero.cli", "doctor", "--json")


def test_an_agent_that_ends_after_its_successor_began_leaves_claims_prepared(
    release: Release, lab: Lab
) -> None:
    """As when its pod is deleted by force: it removes the sockets that both have."""
    agent = release.agent("n1")
    old, (status,) = agent["metadata"], agent["status"]["containerStatuses"]
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{old['name']}?gracePeriodSeconds=0"
    lab.call("DELETE", path)
    wait_for(lambda: not processes(status))
    claim(lab, "after", memory="2Gi", cores=20)  # of NVIDIA's, which one node has
    run_with(lab, "after")
    runs(lab, "after", seconds=90)

    assert old["uid"] != release.agent("n1")["metadata"]["uid"]


def test_a_pods_status_says_that_its_card_is_healthy(lab: Lab) -> None:
    claim(lab, "well", memory="2Gi", cores=20)
    run_with(lab, "well")

    def health() -> list[str]:
        statuses = lab.pods()["well"]["status"].get("containerStatuses") or ()
        return [
            one.get("health", "")
            for status in statuses
            for resource in status.get("allocatedResourcesStatus") or ()
            for one in resource.get("resources") or ()
        ]

    assert wait_for(lambda: health() == ["Healthy"])


def test_a_claim_is_resized_while_its_pod_runs(lab: Lab) -> None:
    """Memory and cores, each never above what is consumed; nothing is started anew.

    At 2 GiB an allocation fits that no longer does at 1 GiB.
    """
    claim(lab, "sized", memory="2Gi", cores=20)
    tries = f"while sleep 0.3; do {JOB} --alloc 1GiB; done"
    run_with(lab, "sized", "sh", "-c", tries)
    runs(lab, "sized", seconds=60)

    def last() -> str:
        lines = documents(lab.output("sized"))
        return lines[-1] if lines else ""

    def says(size: str) -> None:
        lab.patch(f"{CLAIMS}/sized", {"metadata": {"annotations": {"hetero.io/resize": size}}})
        remind(lab, "n1")

    def limits() -> list[tuple[int, int]]:
        return [(one["memory"], one["core"]) for one in lab.standing("n1")[0]["limits"]]

    wait_for(lambda: "allocated" in last())
    assert [(2 * GiB, 2000)] == limits()
    says("memory=1Gi,cores=10")
    wait_for(lambda: [(1 * GiB, 1000)] == limits())
    wait_for(lambda: "CUDA_ERROR_OUT_OF_MEMORY" in last())
    for more, sentence in (
        ("memory=3Gi", "3 GiB of memory is more than the claim consumes, 2 GiB"),
        ("cores=21", "21 cores are more than the claim consumes, 20"),
    ):
        says(more)
        wait_for(lambda sentence=sentence: any(sentence in one for one in lab.messages("sized")))
        assert [(1 * GiB, 1000)] == limits()
    says("")
    wait_for(lambda: [(2 * GiB, 2000)] == limits())
    wait_for(lambda: "allocated" in last())
    status = lab.call("GET", f"{CLAIMS}/sized")["status"]["devices"][0]["data"]
    assert ("2Gi", 20) == (status["memory"], status["cores"])
    assert 0 == lab.pods()["sized"]["status"]["containerStatuses"][0]["restartCount"]


def deep() -> str:
    """Return a template with configuration of another driver's that no parser of ours follows."""
    opaque = {"driver": "other.example.com", "parameters": {"a": "DEEP"}}
    requests = [{"name": "card", "exactly": {"deviceClassName": "other"}}]
    spec = {"devices": {"requests": requests, "config": [{"opaque": opaque}]}}
    text = json.dumps({"metadata": {"name": "deep"}, "spec": {"spec": spec}})
    return text.replace('"DEEP"', "[" * 4000 + "]" * 4000)


def test_resource_names_are_served_by_a_claim_where_a_pod_says_so(
    release: Release, lab: Lab
) -> None:
    """HAMi's ai-benchmark-2, whose size goes before its percentage.

    A template that a tenant made does not keep others from being made.
    """
    tries = f"{JOB} --alloc 2400MiB; {JOB} --alloc 3000MiB; sleep 1000"
    notes = {"hetero.io/by-claims": "true"}
    tried_dry = {"metadata": {"name": "dry", "annotations": notes}, "spec": program(AI_BENCHMARK_2)}
    dry = lab.call("POST", f"{PODS}?dryRun=All", tried_dry)
    assert 1 == len(dry["spec"]["resourceClaims"])
    assert [] == lab.call("GET", TEMPLATES)["items"]
    lab.ask(lab.api, "POST", TEMPLATES, deep())
    made = lab.add("named", AI_BENCHMARK_2, *ENDS, "sh", "-c", tries, notes=notes)
    (template,) = [one["resourceClaimTemplateName"] for one in made["spec"]["resourceClaims"]]
    fits, over = tried(lab, "named", 2)
    grants = [one for node in NODES for one in lab.standing(node)]
    lab.ask(lab.api, "DELETE", f"{TEMPLATES}/deep")

    assert [3000 * MiB] == [one["allocation"]["pieces"][0]["takes"]["memory"] for one in grants]
    assert {"allocated": 2400 * MiB} == fits
    assert "CUDA_ERROR_OUT_OF_MEMORY" == over["error"]

    templates = f"{GROUP}/namespaces/default/resourceclaimtemplates"
    stored = lab.call("GET", f"{templates}/{template}")
    with pytest.raises(OSError, match="names of templates that begin with hetero- are for hetero"):
        lab.call("POST", templates, {**stored, "metadata": {"name": "hetero-mine"}})


def test_an_init_container_as_large_as_the_main_one_has_that_ones_claim(lab: Lab) -> None:
    """Of the one Cambricon card it leaves just what the sidecar asks for."""
    vendors = ("nvidia", "ascend", "cambricon")
    for vendor in vendors:
        part = ALL[vendor].part
        spec = program(part(5))
        (main,) = spec["containers"]
        sidecar = {**main, "name": "sidecar", "restartPolicy": "Always"}
        spec["initContainers"] = [
            {**sidecar, "resources": {"limits": part(3)}},
            {**main, "name": "init", "command": ["true"]},
        ]
        about = {"name": vendor, "annotations": {"hetero.io/by-claims": "true"}}
        made = lab.call("POST", PODS, {"metadata": about, "spec": spec})
        assert 2 == len(made["spec"]["resourceClaims"])
    for vendor in vendors:
        runs(lab, vendor, seconds=60)

    pieces = [
        piece
        for node in NODES
        for grant in lab.standing(node)
        for piece in grant["allocation"]["pieces"]
    ]
    held_by_vendor = {
        vendor: sorted(
            piece["takes"]["memory"] // MiB for piece in pieces if piece["vendor"] == vendor
        )
        for vendor in vendors
    }
    assert {
        "nvidia": [3 * 2800, 5 * 2800],
        "ascend": [32 * 1024, 64 * 1024],  # a template, and a whole card
        "cambricon": [9 * 1024, 15 * 1024],
    } == held_by_vendor
