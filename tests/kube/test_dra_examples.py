"""The examples of claims, each applied to a real API server and served by its kube-scheduler."""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import jsonschema
import pytest
import yaml
from attrs import evolve

from hetero.kube.client.api import Api
from hetero.kube.dra.availability import Pools
from hetero.kube.dra.claims import config_of, prepared
from hetero.kube.dra.explanation import explain
from hetero.kube.dra.offers import offers, slices
from hetero.kube.dra.publisher import counted
from hetero.kube.dra.template_controller import TemplateController
from hetero.kube.dra.templates import ASKED, PREFIX, template_name
from hetero.kube.dra.way import (
    AllocationWay,
    Probe,
    served,
    slice_probe,
    template_probe,
)
from hetero.kube.objects.kinds import DeviceConfig, DeviceResult, ResourceClaim
from hetero.kube.objects.reading import read
from hetero.kube.what_if.claims import read_claims
from hetero.kube.words.quantity import quantity
from hetero.model import (
    Allocation,
    Device,
    Enforcement,
    Fractional,
    Link,
    Policy,
)
from hetero.model.errors import BadInput
from hetero.model.rounding import round_up
from hetero.model.units import GiB, MiB
from hetero.testing import rack
from tests.docs.blocks import Block, blocks
from tests.kube.binaries import ROOT
from tests.kube.control_plane import ControlPlane, control_plane, free_port, wait_for
from tests.kube.test_chart import chart
from tests.kube.test_dra_hundred import access
from tests.kube.test_dra_templates import INSTANCES, admitted, instances
from tests.kube.test_pod_request import WORDS, pod
from tests.programs import completed

pytestmark = pytest.mark.cluster

EXAMPLES = {path.stem: path for path in (ROOT / "examples/dra").glob("*.yaml")}
GROUP = "/apis/resource.k8s.io/v1"
PODS = "/api/v1/namespaces/default/pods"
CLAIMS = f"{GROUP}/namespaces/default/resourceclaims"
TEMPLATES = f"{GROUP}/namespaces/default/resourceclaimtemplates"
#: Seconds for which a template stays that no pod names, and how many a namespace may have.
UNNAMED, MOST = 3.0, 3
#: The card that an example excludes; it is the first of its node.
EXCLUDED = "GPU-44778d7a-65c8-4738-8971-c31beb0d6cfd"


def card(uuid: str, model: str, *, numa: int, peer: str | None = None, memory: int) -> Device:
    (made,) = rack(
        memory,
        vendor="nvidia",
        model=model,
        granularity=Fractional(),
        enforcement=Enforcement.PRELOAD,
        numa=numa,
        links=(Link(peer, "NV18", 18),) if peer else (),
    )
    return evolve(made, uuid=uuid)


def partitioned(vendor: str, model: str, uuid: str) -> Device:
    (made,) = [one for one in WORDS.vendors if one.name == vendor]
    return made.device(
        uuid=uuid, model=model, index=0, memory=64 * GiB, enforcement=Enforcement.PARTITION
    )


NODES: dict[str, list[Device]] = {
    "n1": [
        card(EXCLUDED, "NVIDIA H200", numa=0, memory=80 * GiB),
        card("H1", "NVIDIA H200", numa=0, memory=80 * GiB),
        card("H2", "NVIDIA H200", numa=1, memory=80 * GiB),
    ],
    "n2": [
        card("A0", "NVIDIA A100", numa=0, peer="A1", memory=40 * GiB),
        card("A1", "NVIDIA A100", numa=1, peer="A0", memory=40 * GiB),
    ],
    "n3": [partitioned("ascend", "910B3", "N")],
    "n4": [instances()],
    "n5": [partitioned("hygon", "K100-AI", "D")],
}
ROOTS = {EXCLUDED: "pci0000:00", "H1": "pci0000:3a", "H2": "pci0000:3a"}
H, A = (EXCLUDED, "H1", "H2"), ("A0", "A1")
#: Which cards each example may get.
GETS: dict[str, list[set[str]]] = {
    "share": [{one} for one in H + A],
    "large-model": [{one} for one in (*H, *A, "N", "D")],
    "same-numa": [{EXCLUDED, "H1"}],
    "same-root": [{"H1", "H2"}],
    "linked": [{"A0", "A1"}],
    "not-this-card": [{one} for one in (*H[1:], *A)],
    "first-available": [{one} for one in A],  # there is no H100
    "gang": [{"A0", "A1"}, *({one, other} for one in H for other in H if one != other)],
    "elastic": [{one} for one in H + A],
    "whole-card": [{one} for one in H + A],
    "resource-names": [{one} for one in H + A],
}


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, late_kubernetes: Path
) -> Iterator[ControlPlane]:
    """A control plane of a late Kubernetes with three nodes of cards, and no kubelet."""
    rules = (
        "--feature-gates=DRADeviceTaintRules=true",
        "--runtime-config=resource.k8s.io/v1beta2=true",
    )
    folder = tmp_path_factory.mktemp("plane")
    with control_plane(folder, binaries=late_kubernetes, more=rules) as plane:
        config = f"--kubeconfig={plane.kubeconfig}"
        wait_for(plane.healthy)  # the controllers end where it is not so within 10 s
        for name, more in (
            ("kube-scheduler", ("--leader-elect=false",)),
            (
                "kube-controller-manager",
                ("--leader-elect=false", "--controllers=resourceclaim-controller"),
            ),
        ):
            plane.start(
                name,
                str(late_kubernetes / name),
                config,
                f"--secure-port={free_port()}",
                "--bind-address=127.0.0.1",
                *more,
            )
        for made in chart(allocation="dra"):
            if made["kind"] == "DeviceClass":
                plane.call("POST", f"{GROUP}/deviceclasses", made)
            elif made["metadata"]["name"] == "hetero-claims":
                kind = made["kind"].replace("Policy", "Policie").lower()
                kind = "validatingadmissionpolicybindings" if "binding" in kind else f"{kind}s"
                plane.call("POST", f"/apis/{made['apiVersion']}/{kind}", made)
        wait_for(lambda: looked_at(plane))
        vendors = {vendor.name: vendor for vendor in WORDS.vendors}
        for node, devices in NODES.items():
            plane.add_node(node, {})
            names = counted(devices, lambda vendor: vendors[vendor].resource_names)
            publish(plane, node, devices, resources=names, roots=ROOTS)
        with controlling(plane):
            yield plane


def looked_at(plane: ControlPlane) -> bool:
    """Return whether the API server has heard of the policy for claims by now."""
    parameters = {"apiVersion": "hetero.io/v1", "kind": "none"}
    config = [{"opaque": {"driver": "hetero.io", "parameters": parameters}}]
    requests = [{"name": "card", "exactly": {"deviceClassName": "hetero"}}]
    body = {
        "metadata": {"name": "a"},
        "spec": {"devices": {"requests": requests, "config": config}},
    }
    try:
        plane.call("POST", f"{CLAIMS}?dryRun=All", body)
    except HTTPError as error:
        return "hetero-claims" in error.msg
    return False


def publish(plane: ControlPlane, node: str, devices: Sequence[Device], **options: Any) -> None:
    """Make the slices of a node, as its agent does."""
    for number, spec in enumerate(slices(devices, node_name=node, **options)):
        body = {
            "metadata": {"name": f"{node}-{number}"},
            "spec": {**spec, "pool": {**spec["pool"], "generation": 1}},
        }
        plane.call("POST", f"{GROUP}/resourceslices", body)


@contextmanager
def controlling(plane: ControlPlane) -> Iterator[None]:
    """Have the controller of templates run, in a thread of its own."""
    stopped = threading.Event()

    async def control() -> None:
        async with Api(access(plane)).open() as api:
            made = TemplateController(
                api, WORDS, unnamed_life_s=UNNAMED, poll_period_s=0.2, most=MOST
            )
            task = asyncio.create_task(made.follow())
            await asyncio.to_thread(stopped.wait)
            task.cancel()
            await asyncio.wait([task])
        await asyncio.sleep(0.2)  # connections close

    thread = threading.Thread(target=lambda: asyncio.run(control()))
    thread.start()
    yield
    stopped.set()
    thread.join()


def apply(plane: ControlPlane, name: str) -> None:
    for made in yaml.safe_load_all(EXAMPLES[name].read_text()):
        group = GROUP if made["apiVersion"].startswith("resource") else "/api/v1"
        kind = f"{made['kind'].lower()}s"
        asked = admitted(made, way=AllocationWay.DRA) if kind == "pods" else made
        plane.call("POST", f"{group}/namespaces/default/{kind}", asked)


def claim_of(plane: ControlPlane, pod: str) -> Any:
    """Return the claim that a pod was placed with."""
    placed = wait_for(lambda: _placed(plane, pod), seconds=30)
    named = placed["status"].get("resourceClaimStatuses") or [
        placed["status"]["extendedResourceClaimStatus"]
    ]
    return plane.call("GET", f"{CLAIMS}/{named[0]['resourceClaimName']}")


def _placed(plane: ControlPlane, pod: str) -> Any:
    stored = plane.pod(pod)
    return stored if stored["spec"].get("nodeName") else None


def given(plane: ControlPlane, pod: str) -> Allocation:
    """Return what a pod's claim is on its node, as the agent there reads it."""
    node = plane.pod(pod)["spec"]["nodeName"]
    claim = read(ResourceClaim, claim_of(plane, pod))
    return prepared(claim, node_name=node, offers=offers(NODES[node])).allocation


@pytest.fixture
def plane(cluster: ControlPlane) -> Iterator[ControlPlane]:
    yield cluster
    cluster.call("DELETE", f"{PODS}?gracePeriodSeconds=0")
    wait_for(lambda: not cluster.pods())
    cluster.call("DELETE", CLAIMS)
    cluster.call("DELETE", TEMPLATES)
    wait_for(lambda: not cluster.call("GET", CLAIMS)["items"])


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_served_by_cards_that_it_asks_for(plane: ControlPlane, name: str) -> None:
    apply(plane, name)
    claim_of(plane, name)

    assert {piece.device for piece in given(plane, name).pieces} in GETS[name]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_explained_as_it_is_served(plane: ControlPlane, name: str) -> None:
    items = {
        kind: plane.call("GET", f"{GROUP}/{path}")["items"]
        for kind, path in (("slices", "resourceslices"), ("classes", "deviceclasses"))
    }
    pools = Pools.read(claims=(), **items)
    uuids = {
        one.device["name"]: one.device["attributes"]["uuid"]["string"] for one in pools.candidates
    }
    for spec in read_claims(EXAMPLES[name], lambda: WORDS).values():
        answer = explain(spec, pools)

        assert {uuids[one.device] for one in answer.given} in GETS[name], answer.why


def test_the_command_line_explains_a_claim(plane: ControlPlane, tmp_path: Path) -> None:
    large = EXAMPLES["share"].read_text().replace("memory: 8Gi", "memory: 800Gi")
    (tmp_path / "large.yaml").write_text(large)

    def explained(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "hetero.cli", "explain", "claim", str(path), *options]
        env = {**os.environ, "KUBECONFIG": str(plane.kubeconfig)}
        return completed(argv, env=env)

    gang = explained(EXAMPLES["gang"], "--json")
    schema = json.loads((ROOT / "docs/json.schema.json").read_text())
    jsonschema.validate(json.loads(gang.stdout), schema)
    assert 2 == len(json.loads(gang.stdout)["items"][0]["devices"])

    whole = explained(EXAMPLES["whole-card"])
    assert (0, "") == (whole.returncode, whole.stderr)
    assert "whole-card" in whole.stdout

    refused = explained(tmp_path / "large.yaml")
    assert (3, "") == (refused.returncode, refused.stderr)
    assert "share: card: 0 of" in refused.stdout
    assert "lack memory" in refused.stdout

    rules = "/apis/resource.k8s.io/v1beta2/devicetaintrules"
    taint = {"key": "example.com/repair", "value": "fan", "effect": "NoSchedule"}
    body = {"metadata": {"name": "repair"}, "spec": {"deviceSelector": {}, "taint": taint}}
    plane.call("POST", rules, body)
    tainted = explained(EXAMPLES["whole-card"])
    plane.call("DELETE", f"{rules}/repair")
    assert (3, "") == (tainted.returncode, tainted.stderr)
    assert "tainted example.com/repair by DeviceTaintRule repair" in tainted.stdout


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_the_api_server_takes_what_a_document_shows(plane: ControlPlane, block: Block) -> None:
    """A dry run: every field is known, and each value is one that the field may have."""
    for made in yaml.safe_load_all(block.text):
        version = made["apiVersion"]
        group = f"/api/{version}" if version == "v1" else f"/apis/{version}"
        kind = f"{made['kind'].lower()}s"
        query = "?dryRun=All&fieldValidation=Strict"
        answer = plane.call("POST", f"{group}/namespaces/default/{kind}{query}", made)

        assert made["metadata"]["name"] == answer["metadata"]["name"]


def test_the_api_server_finds_a_field_that_it_does_not_know(plane: ControlPlane) -> None:
    (block, *_) = blocks("yaml")
    made = yaml.safe_load(block.text)
    made["spec"]["containres"] = []
    with pytest.raises(HTTPError, match="containres"):
        plane.call(
            "POST", "/api/v1/namespaces/default/pods?dryRun=All&fieldValidation=Strict", made
        )


def test_what_is_not_there_is_replaced_by_the_next_of_a_list(plane: ControlPlane) -> None:
    for name in ("linked", "first-available"):  # the first takes all there is of the second's
        apply(plane, name)
        claim_of(plane, name)
    (piece,) = given(plane, "first-available").pieces

    assert ("N", "vir05_1c_16g") == (piece.device, piece.template)


def test_an_example_says_how_its_share_is_enforced(plane: ControlPlane) -> None:
    apply(plane, "elastic")
    claim_of(plane, "elastic")
    held = given(plane, "elastic")

    assert (Policy.ELASTIC, True) == (held.policy, held.strict)


def test_a_whole_card_has_all_of_its_memory_and_no_limit_of_cores(plane: ControlPlane) -> None:
    apply(plane, "whole-card")
    claim_of(plane, "whole-card")
    (piece,) = given(plane, "whole-card").pieces
    (card,) = [one for node in NODES.values() for one in node if one.uuid == piece.device]

    assert (card.capacity["memory"], None) == (piece.takes["memory"], piece.core)


def test_three_pods_share_a_card_and_the_one_that_does_not_fit_waits(plane: ControlPlane) -> None:
    """What kube-scheduler gives of a card is never more than its ledger has."""
    apply(plane, "same-numa")
    template = yaml.safe_load_all(EXAMPLES["share"].read_text())
    share, pod = template
    requests = share["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    requests["capacity"]["requests"] = {"memory": "30Gi", "cores": "30"}
    requests["selectors"] = [{"cel": {"expression": 'device.attributes["hetero.io"].uuid == "H1"'}}]
    plane.call("POST", TEMPLATES, share)
    for name in ("a", "b", "c"):
        plane.call("POST", PODS, {**pod, "metadata": {"name": name}})
    claim_of(plane, "same-numa")
    wait_for(lambda: sum("nodeName" in plane.pod(name)["spec"] for name in "abc") == 2)
    (waiting,) = [name for name in "abc" if "nodeName" not in plane.pod(name)["spec"]]

    assert wait_for(lambda: any("cannot allocate" in said for said in plane.events(waiting)))


def test_a_card_has_no_more_sharers_than_it_has_slots(plane: ControlPlane) -> None:
    """Room for memory and cores is left, and a claim of one share more waits."""
    (card,) = [one for one in NODES["n1"] if one.uuid == "H1"]
    selector = {"cel": {"expression": 'device.attributes["hetero.io"].uuid == "H1"'}}
    capacity = {"requests": {"memory": "1Mi", "cores": "1"}}
    exactly = {"deviceClassName": "hetero", "selectors": [selector], "capacity": capacity}
    slots = card.capacity["slots"]
    for name, count in (("over", slots + 1), ("full", slots)):
        requests = [{"name": f"share-{number}", "exactly": exactly} for number in range(count)]
        about, used = {"metadata": {"name": name}}, [{"name": "cards", "resourceClaimName": name}]
        plane.call("POST", CLAIMS, {**about, "spec": {"devices": {"requests": requests}}})
        main = {"name": "main", "image": "none", "resources": {"claims": [{"name": "cards"}]}}
        plane.call("POST", PODS, {**about, "spec": {"resourceClaims": used, "containers": [main]}})

    wait_for(lambda: _placed(plane, "full"))
    allocation = plane.call("GET", f"{CLAIMS}/full")["status"]["allocation"]
    assert slots == len(allocation["devices"]["results"])
    assert wait_for(lambda: any("cannot allocate" in said for said in plane.events("over")))


def divided() -> list[Device]:
    """Return a card of each way in which a vendor's cards are divided, and as many units of core.

    None of their sizes is a multiple of a grain.
    """
    devices_by_grain: dict[Any, Device] = {}
    for vendor in WORDS.vendors:
        for model in vendor.models:
            if isinstance(model.granularity, Fractional):
                devices_by_grain[model.granularity, model.core] = vendor.device(
                    uuid=f"{vendor.name}-{model.core}-{len(devices_by_grain)}",
                    model=model.match.replace("*", "") or "any",
                    index=len(devices_by_grain),
                    memory=49_100 * MiB,
                    enforcement=Enforcement.PRELOAD,
                )
    return [*devices_by_grain.values()]


#: Bytes and units of core that are no multiples of a grain, and one that is.
ODD = ((1_000_000_001, 3), (20 * GiB + 1, 5), (2 * GiB, 1))


def test_what_kube_scheduler_rounds_to_is_what_a_node_rounds_to(plane: ControlPlane) -> None:
    """Of every granularity that a vendor declares: its request policy and it are one."""
    cards = divided()
    assert {"amd", "cambricon", "hygon", "iluvatar", "mthreads", "nvidia"} <= {
        one.vendor for one in cards
    } | {"amd", "nvidia"}  # these two are divided in the same way
    plane.add_node("odd", {})
    publish(plane, "odd", cards, resources={}, roots={})
    wanted: dict[str, list[tuple[int | None, int | None]]] = {}
    for number, card in enumerate(cards):
        assert isinstance(card.granularity, Fractional)
        selector = f'device.attributes["hetero.io"].uuid == "{card.uuid}"'
        requests = [
            {
                "name": f"odd-{place}",
                "exactly": {
                    "deviceClassName": "hetero",
                    "selectors": [{"cel": {"expression": selector}}],
                    "capacity": {"requests": {"memory": str(memory), "cores": str(cores)}},
                },
            }
            for place, (memory, cores) in enumerate(ODD)
        ]
        name = f"odd-{number}"
        about = {"metadata": {"name": name}}
        plane.call("POST", CLAIMS, {**about, "spec": {"devices": {"requests": requests}}})
        used = [{"name": "cards", "resourceClaimName": name}]
        main = {"name": "main", "image": "none", "resources": {"claims": [{"name": "cards"}]}}
        spec = {"resourceClaims": used, "containers": [main]}
        plane.call("POST", PODS, {**about, "spec": spec})
        wanted[name] = [
            (round_up(memory, card.granularity.memory), round_up(cores, card.granularity.core))
            for memory, cores in ODD
        ]
    try:
        wait_for(lambda: all(_placed(plane, name) for name in wanted))
        for name, sizes in wanted.items():
            allocation = plane.call("GET", f"{CLAIMS}/{name}")["status"]["allocation"]
            consumed = [one["consumedCapacity"] for one in allocation["devices"]["results"]]
            rounded = [(quantity(one, "memory"), quantity(one, "cores")) for one in consumed]
            assert sizes == rounded, name
    finally:
        plane.call("DELETE", f"{GROUP}/resourceslices?fieldSelector=spec.nodeName=odd")
        plane.call("DELETE", "/api/v1/nodes/odd")


#: What configuration may say, and some that it may not.
SAID: list[tuple[bool, dict[str, Any]]] = [
    *((word != "gentle", {"policy": word}) for word in ("fixed", "elastic", "off", "gentle")),
    *((word != "0", {"priority": word}) for word in ("low", "high", "0")),
    *((word != "end", {"onExcess": word}) for word in ("report", "refuse", "kill", "end")),
    *((word != "refuse", {"onBypass": word}) for word in ("report", "kill", "refuse")),
    *((word != "yes", {"strict": word}) for word in (True, False, "true", "yes")),
    (False, {"polcy": "fixed"}),
    (False, {"kind": "Shares"}),
    (False, {"apiVersion": "hetero.io/v2"}),
]


@pytest.mark.parametrize(("right", "words"), SAID, ids=str)
def test_the_api_server_and_the_agent_agree_on_what_a_claim_may_say(
    plane: ControlPlane, words: dict[str, Any], *, right: bool
) -> None:
    """Who asks here may use all policies; who may not is refused by the API server alone."""
    parameters = {"apiVersion": "hetero.io/v1", "kind": "Share", **words}
    config = [{"opaque": {"driver": "hetero.io", "parameters": parameters}}]
    requests = [{"name": "card", "exactly": {"deviceClassName": "hetero"}}]
    spec = {"devices": {"requests": requests, "config": config}}
    metadata = {"metadata": {"name": "said"}}

    def agent() -> bool:
        with suppress(BadInput):
            config_of([read(DeviceConfig, {"source": "FromClaim", **one}) for one in config])
            return True
        return False

    def api(path: str, body: Any) -> bool:
        try:
            plane.call("POST", f"{path}?dryRun=All", body)
        except HTTPError as error:
            return "hetero-claims" not in error.msg
        return True

    assert right == agent()
    assert right == api(CLAIMS, {**metadata, "spec": spec})
    assert right == api(TEMPLATES, {**metadata, "spec": {"spec": spec}})


@pytest.mark.parametrize(
    ("right", "other", "named"),
    [
        (True, "hetero", []),
        (True, "nvidia.com-gpu", ["card", "other"]),
        (False, "nvidia.com-gpu", ["card"]),
        (False, "huawei.com-ascend910b3", ["other"]),
        (True, "example.com", ["card"]),  # another driver's
    ],
)
def test_configuration_is_for_all_requests_of_a_claim_that_mean_our_devices(
    plane: ControlPlane, other: str, named: list[str], *, right: bool
) -> None:
    """As an agent says it, which sees such a claim only when its pod has a node."""
    parameters = {"apiVersion": "hetero.io/v1", "kind": "Share", "policy": "elastic"}
    config = [{"requests": named, "opaque": {"driver": "hetero.io", "parameters": parameters}}]
    config = [{k: v for k, v in one.items() if v} for one in config]
    listed = [{"name": f"{number}", "deviceClassName": other} for number in range(2)]
    results = [{"request": "card"}, *([] if other == "example.com" else [{"request": "other"}])]

    def agent() -> bool:
        with suppress(BadInput):
            config_of(
                [read(DeviceConfig, {"source": "FromClaim", **one}) for one in config],
                [read(DeviceResult, one) for one in results],
            )
            return True
        return False

    def api(request: dict[str, Any]) -> bool:
        card = {"name": "card", "exactly": {"deviceClassName": "hetero"}}
        devices = {"requests": [card, {"name": "other", **request}], "config": config}
        body = {"metadata": {"name": "some"}, "spec": {"devices": devices}}
        try:
            plane.call("POST", f"{CLAIMS}?dryRun=All", body)
        except HTTPError as error:
            return "a claim is one grant" not in error.msg
        return True

    assert right == agent()
    assert right == api({"exactly": {"deviceClassName": other}})
    assert right == api({"firstAvailable": listed})


def own_templates(plane: ControlPlane) -> dict[str, Any]:
    """Return the templates of ours that there are, by name."""
    items = plane.call("GET", TEMPLATES)["items"]
    by_name = {one["metadata"]["name"]: one for one in items}
    return {name: one for name, one in by_name.items() if name.startswith(PREFIX)}


def test_resource_names_get_the_size_that_they_say(plane: ControlPlane) -> None:
    """A size goes before a percentage: HAMi's ai-benchmark-2."""
    apply(plane, "resource-names")
    claim_of(plane, "resource-names")
    (piece,) = given(plane, "resource-names").pieces

    assert (3000 * MiB, None) == (piece.takes["memory"], piece.core)


@pytest.mark.parametrize(
    ("words", "notes", "part"),
    [
        ({"Ascend910B3": "1", "Ascend910B3-memory": "16384"}, {}, ("N", "vir05_1c_16g")),
        ({"Ascend910B3": "1", "Ascend910B3-memory": "16385"}, {}, ("N", "vir10_3c_32g")),
        # A part has all that was asked: 10 of the 20 cores, and no part has 12.
        (
            {"Ascend910B3": "1", "Ascend910B3-memory": "9000", "Ascend910B3-core": "50"},
            {},
            ("N", "vir10_3c_32g"),
        ),
        (
            {"Ascend910B3": "1", "Ascend910B3-memory": "9000", "Ascend910B3-core": "60"},
            {},
            ("N", None),
        ),
        ({"Ascend910B3": "1"}, {}, ("N", None)),
        ({"gpu": "1", "gpumem": "8000"}, {"nvidia.com/vgpu-mode": "mig"}, ("M", "1g.10gb")),
        ({"gpu": "1", "gpumem": "18000"}, {"nvidia.com/vgpu-mode": "mig"}, ("M", "3g.20gb")),
        *INSTANCES,
        ({"mig-3g.20gb": "1"}, {}, ("M", "3g.20gb")),
        # A DCU of 120 units: the second of three alternatives.
        ({"dcunum": "1", "dcumem": "2000", "dcucores": "60"}, {}, ("D", None)),
    ],
)
def test_a_size_of_a_card_that_is_cut_is_the_first_part_that_covers_it(
    plane: ControlPlane, words: dict[str, str], notes: dict[str, str], part: tuple[str, str | None]
) -> None:
    domains = {"Ascend910B3": "huawei.com", "dcunum": "hygon.com"}
    domain = next((domains[name] for name in domains if name in words), "nvidia.com")
    made = pod({f"{domain}/{name}": amount for name, amount in words.items()}, notes=notes)
    for container in made["spec"]["containers"]:
        container |= {"image": "none"}
    plane.call("POST", PODS, admitted(made, way=AllocationWay.DRA))
    claim_of(plane, "p")
    (piece,) = given(plane, "p").pieces

    assert part == (piece.device, piece.template)


def test_a_template_that_does_not_say_what_its_name_does_is_replaced(plane: ControlPlane) -> None:
    (pod,) = yaml.safe_load_all(EXAMPLES["resource-names"].read_text())
    made = admitted(pod, way=AllocationWay.DRA)
    (name,) = [one["resourceClaimTemplateName"] for one in made["spec"]["resourceClaims"]]
    other = {"devices": {"requests": [{"name": "all", "exactly": {"deviceClassName": "hetero"}}]}}
    plane.call("POST", TEMPLATES, {"metadata": {"name": name}, "spec": {"spec": other}})
    plane.call("POST", PODS, made)

    def says() -> str | None:
        return (
            template_name(own_templates(plane)[name]["spec"]["spec"])
            if name in own_templates(plane)
            else None
        )

    wait_for(lambda: says() == name)
    plane.call("DELETE", f"{TEMPLATES}/{name}")
    wait_for(lambda: says() == name)


def test_a_template_goes_that_no_pod_has_named_for_long(plane: ControlPlane) -> None:
    apply(plane, "resource-names")
    wait_for(lambda: own_templates(plane))
    plane.call("DELETE", f"{PODS}/resource-names?gracePeriodSeconds=0")
    time.sleep(UNNAMED / 3)
    assert own_templates(plane)

    wait_for(lambda: not own_templates(plane), seconds=20)


def test_a_namespace_has_no_more_templates_than_it_may(plane: ControlPlane) -> None:
    (pod,) = yaml.safe_load_all(EXAMPLES["resource-names"].read_text())
    for number in range(MOST + 1):
        (main,) = pod["spec"]["containers"]
        main["resources"]["limits"]["nvidia.com/gpumem"] = str(1000 + number)
        pod["metadata"]["name"] = f"pod-{number}"
        plane.call("POST", PODS, admitted(pod, way=AllocationWay.DRA))
        if number < MOST:
            claim_of(plane, f"pod-{number}")

    message = f"namespace default has {MOST} templates of hetero-…, its most"
    wait_for(lambda: any(message in one for one in plane.events(f"pod-{MOST}")))
    assert MOST == len(own_templates(plane))
    plane.call("DELETE", f"{PODS}/pod-0?gracePeriodSeconds=0")  # its template goes after a while
    claim_of(plane, f"pod-{MOST}")


def test_no_template_is_made_that_is_not_what_a_pod_asks(plane: ControlPlane) -> None:
    (pod,) = yaml.safe_load_all(EXAMPLES["resource-names"].read_text())
    made = admitted(pod, way=AllocationWay.DRA)
    asked = made["metadata"]["annotations"]
    asked[ASKED] = asked[ASKED].replace("3000", "9000")
    plane.call("POST", PODS, made)

    def is_refused() -> bool:
        items = plane.call("GET", "/api/v1/namespaces/default/events")["items"]
        return any("is not what the pod's annotation" in one["message"] for one in items)

    wait_for(is_refused)
    assert not own_templates(plane)


@pytest.mark.parametrize(
    ("newer", "gates", "lacks"),
    [
        (True, ("--feature-gates=DRAConsumableCapacity=false",), "DRAConsumableCapacity off"),
        (False, (), "has no resource.k8s.io/v1"),
    ],
)
def test_where_the_api_server_lacks_consumable_capacity_both_ways_are_the_classic_one(
    cluster: ControlPlane,
    kubernetes: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    gates: tuple[str, ...],
    lacks: str,
    *,
    newer: bool,
) -> None:
    """As an agent finds out, by a slice, and a webhook, by a template."""

    async def asked(plane: ControlPlane, way: AllocationWay, probe: Probe) -> AllocationWay:
        async with Api(access(plane)).open() as api:
            return await served(api, way, probe)

    binaries = cluster.binaries if newer else kubernetes
    with control_plane(tmp_path, binaries=binaries, more=gates) as plane:
        for probe in (slice_probe("n1"), template_probe("default")):
            caplog.clear()
            assert AllocationWay.CLASSIC is asyncio.run(asked(plane, AllocationWay.BOTH, probe))
            (line,) = [one.message for one in caplog.records if "allocation both" in one.message]
            assert lacks in line
            with pytest.raises(BadInput, match=f"{lacks}.*or install with allocation classic"):
                asyncio.run(asked(plane, AllocationWay.DRA, probe))
    for probe in (slice_probe("n1"), template_probe("default")):  # where nothing is lacking
        assert AllocationWay.BOTH is asyncio.run(asked(cluster, AllocationWay.BOTH, probe))
