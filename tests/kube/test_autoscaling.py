"""What an autoscaler reads: sizes in the node's status, slots that are left, amounts in units."""

import asyncio
import base64
import json
from decimal import Decimal
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from attrs import evolve

from hetero.kube.objects.kinds import Plain
from hetero.kube.webhook.admission import Webhook
from hetero.kube.webhook.inventory import Inventories
from hetero.kube.words.node_sizes import node_sizes
from hetero.model.units import GiB
from hetero.node.settings import NodeSettings
from hetero.plugin.resource_names import MeantDevices, ResourceNames
from hetero.testing import rack
from tests.kube.binaries import LABS
from tests.kube.conftest import card
from tests.kube.control_plane import ControlPlane, free_port, wait_for
from tests.kube.test_chart import VALUES, chart
from tests.kube.test_inventory import AGENT, TEXT, cluster
from tests.kube.test_pod_request import pod
from tests.kube.test_webhook import HOOK, patched
from tests.kube.world import CARD, World, until, world

MEMORY, CORE = "example.com/memory", "example.com/core"
NAMES = ResourceNames(
    count=CARD,
    memory=(MEMORY,),
    memory_percent="example.com/percent",
    core=(CORE,),
    priority="example.com/priority",
)
#: Of two cards of 16 GiB with ten slots each.
SIZES = {
    MEMORY: 32768,
    "example.com/percent": 200,
    CORE: 200,
    "example.com/priority": 20,
}


def test_a_nodes_cards_are_summed_up_by_the_units_of_each_resource() -> None:
    devices = rack(16 * GiB, 16 * GiB)
    coarse = evolve(NAMES, memory=(MEMORY, "example.com/gib"), memory_unit=GiB, core_whole=16)
    by_shape = evolve(NAMES, memory=("example.com/other",), devices=MeantDevices(shape="1g"))

    assert SIZES == node_sizes(devices, lambda _: (NAMES,))
    assert SIZES | {MEMORY: 32, "example.com/gib": 32, CORE: 32} == node_sizes(
        devices, lambda _: (coarse, by_shape)
    )
    assert {} == node_sizes(devices, lambda _: ())


def test_cards_that_are_promised_more_than_once_count_as_all_that_is_promised() -> None:
    """Else a kubelet would fail pods that the scheduler has room for."""
    twice = NodeSettings(memory_scale=Decimal(2), core_scale=Decimal("1.5"))
    devices = [*map(twice.scaled, rack(16 * GiB, 16 * GiB))]

    assert SIZES | {MEMORY: 65536, "example.com/percent": 400, CORE: 300} == node_sizes(
        devices, lambda _: (NAMES,)
    )


def stated(at: World) -> Plain:
    capacity: Plain = at.api.nodes["n1"].get("status", {}).get("capacity", {})
    return capacity


async def test_the_status_of_a_node_states_what_its_cards_have() -> None:
    async with world(names=NAMES, autoscaler=True) as at:
        await until(lambda: stated(at))
        assert {name: str(amount) for name, amount in SIZES.items()} == stated(at)
        assert stated(at) == at.api.nodes["n1"]["status"]["allocatable"]

        writes = at.api.writes
        await asyncio.sleep(1.0)  # more than two looks
        assert writes == at.api.writes


async def test_a_status_that_lost_the_sizes_states_them_again() -> None:
    """As a kubelet's that took its node's resources back when it started."""
    async with world(names=NAMES, autoscaler=True) as at:
        await until(lambda: stated(at))
        at.api.put("nodes", {**at.api.nodes["n1"], "status": {"capacity": {MEMORY: "0"}}})
        await until(lambda: str(SIZES[CORE]) == stated(at).get(CORE))
        assert str(SIZES[MEMORY]) == stated(at)[MEMORY]


async def test_sizes_that_pods_surpass_are_not_stated(caplog: pytest.LogCaptureFixture) -> None:
    """Their kubelet would refuse all pods from then on."""
    async with world(names=NAMES, autoscaler=True) as at:
        await at.crash()
        at.api.nodes["n1"].pop("status", None)
        old = at.bind("old")
        old["spec"]["containers"][0]["resources"]["requests"] = {MEMORY: "3Gi"}
        at.api.put("pods", old)
        await at.start()
        await until(lambda: "pods of this node request more" in caplog.text)
        assert {} == stated(at)

        at.api.put("pods", {**old, "status": {"phase": "Succeeded"}})
        await until(lambda: stated(at))


async def test_the_kubelet_counts_no_spare_slots_of_full_cards() -> None:
    async with world(names=NAMES, autoscaler=True) as at:
        await at.kubelet.admit(at.bind("whole", memory=16 * GiB, core=100))
        await until(lambda: 11 == [*at.kubelet.devices[CARD].values()].count("Healthy"))


async def test_a_card_is_full_for_its_kubelet_once_the_pod_that_fills_it_was_given_it() -> None:
    """Its grants stand before: a kubelet that counted no slot by then would fail the pod."""
    async with world(names=NAMES, autoscaler=True) as at:
        pod = at.bind("pod", "first", "second", memory=8 * GiB, core=50)
        await until(lambda: 2 == len(at.standing()))
        taken_slots = at.agent.plugins.alignment.taken_slots
        assert frozenset() == taken_slots().full_devices

        await at.kubelet.admit(pod)
        assert {"memory-0"} == taken_slots().full_devices


async def test_without_an_autoscaler_no_status_is_written() -> None:
    async with world(names=NAMES) as at:
        await asyncio.sleep(1.0)
        assert {} == stated(at)


def post(sizes: Any, allowed: frozenset[str]) -> tuple[int, Plain]:
    """Return the answer to an agent's sizes, and what its node states then."""
    api = cluster()

    async def play() -> int:
        app = web.Application()
        inventories = Inventories(api=api, agent_user=AGENT, status_resources=allowed)
        app.router.add_post("/inventory", inventories.answer)
        body = {"token": "token-1", "inventory": TEXT, "sizes": sizes}
        async with (
            TestClient(TestServer(app)) as client,
            client.post("/inventory", json=body) as answer,
        ):
            status: int = answer.status
            return status

    answered = asyncio.run(play())
    return answered, api.objects["/api/v1/nodes/n1"].get("status", {})


def test_an_agent_has_its_node_state_sizes_of_cards_alone() -> None:
    amounts = {"nvidia.com/gpumem": "16384"}
    assert (200, {"capacity": amounts, "allocatable": amounts}) == post(
        {"nvidia.com/gpumem": 16384}, HOOK.vocabulary.size_resources
    )


@pytest.mark.parametrize(
    "sizes",
    [
        {"cpu": 1000},
        {"nvidia.com/gpu": 1},
        {"nvidia.com/gpumem": -1},
        {"nvidia.com/gpumem": "x"},
        1,
    ],
)
def test_no_other_resource_of_its_node_is_for_an_agent_to_state(sizes: Any) -> None:
    assert (400, {}) == post(sizes, HOOK.vocabulary.size_resources)


def test_a_webhook_without_the_word_states_nothing() -> None:
    assert (400, {}) == post({"nvidia.com/gpumem": 1}, frozenset())


@pytest.mark.parametrize(("asked", "written"), [("3Gi", "3072"), ("3000", "3000"), ("1Ki", "1")])
def test_amounts_of_memory_are_written_in_units_of_the_resource(asked: str, written: str) -> None:
    """A kubelet counts what is stated by its numbers alone."""
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": asked, "cpu": "1"}
    resources = {"limits": limits, "requests": {"nvidia.com/gpumem": asked}}
    admitted = admitted_resources(evolve(HOOK, has_autoscaler=True), resources)
    assert {**limits, "nvidia.com/gpumem": written} == admitted["limits"]
    assert {"nvidia.com/gpumem": written} == admitted["requests"]
    assert resources == admitted_resources(HOOK, resources)


def test_words_that_mean_nothing_are_not_counted_by_a_kubelet() -> None:
    """A card with room for three such pods, as HAMi's example is, states 100 percent of it."""
    asked = {
        "nvidia.com/gpu": "1",
        "nvidia.com/gpumem": "3000",
        "nvidia.com/gpumem-percentage": "50",
        "nvidia.com/gpucores": "0",
        "nvidia.com/priority": "5",
    }
    admitted = admitted_resources(evolve(HOOK, has_autoscaler=True), {"limits": asked})
    assert {
        "nvidia.com/gpu": "1",
        "nvidia.com/gpumem": "3000",
        "nvidia.com/gpucores": "0",
        "nvidia.com/priority": "1",
    } == admitted["limits"]

    smlu = {"cambricon.com/mlu.smlu.vmemory": "0", "cambricon.com/mlu370.smlu.vmemory": "8"}
    cores = {"cambricon.com/mlu.smlu.vcore": "30", "cambricon.com/mlu370.smlu.vcore": "90"}
    admitted = admitted_resources(
        evolve(HOOK, has_autoscaler=True), {"limits": {"cambricon.com/vmlu": "1", **smlu, **cores}}
    )
    cores.pop("cambricon.com/mlu370.smlu.vcore")
    assert {"cambricon.com/vmlu": "1", **smlu, **cores} == admitted["limits"]


def admitted_resources(hook: Webhook, resources: Plain) -> Plain:
    """Return the resources of a pod's container as a webhook leaves them."""
    plain = pod({})
    plain["spec"]["containers"][0]["resources"] = resources
    asked = {"uid": "r", "operation": "CREATE", "namespace": "default", "object": plain}
    patch = json.loads(base64.b64decode(asyncio.run(hook.admit(asked))["patch"]))
    admitted: Plain = patched(plain, patch)["spec"]["containers"][0]["resources"]
    return admitted


def test_the_chart_gives_the_word_and_the_right_together() -> None:
    for autoscaler in (False, True):
        made = chart(autoscaler=autoscaler)
        args = [
            arg
            for manifest in made
            if manifest["kind"] in ("DaemonSet", "Deployment")
            for container in manifest["spec"]["template"]["spec"]["containers"]
            for arg in container.get("args", ())
        ]
        resources = [
            resource
            for manifest in made
            for rule in manifest.get("rules", ())
            for resource in rule.get("resources", ())
        ]
        assert 2 * autoscaler == args.count("--autoscaler")
        assert autoscaler == ("nodes/status" in resources)


@pytest.mark.cluster
@pytest.mark.parametrize("kubernetes", LABS, indirect=True)
def test_kube_schedulers_own_plugins_want_a_node_with_cards_and_no_other(
    plane: ControlPlane,
) -> None:
    """cluster-autoscaler runs these plugins, and no extender, on copies of a group's nodes."""
    sizes = node_sizes((card("GPU-1"), card("GPU-2")), names_of)
    amounts = {"nvidia.com/gpu": "20", **{name: str(amount) for name, amount in sizes.items()}}
    plane.add_node("with-cards", {}, **amounts)
    plane.add_node("without", {})
    plane.add_node("states-no-sizes", {}, **{"nvidia.com/gpu": "20"})
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "9000"}
    for number in range(3):  # 27000 of 32768 MiB
        plane.add_pod(f"runs{number}", limits, spec={"nodeName": "with-cards"})
    hook = evolve(HOOK, has_autoscaler=True)
    admitted = admitted_resources(hook, {"limits": {"nvidia.com/gpumem": "8Gi"}})
    plane.add_pod("waits", admitted["limits"], spec={"schedulerName": "default-scheduler"})
    plane.start(
        "scheduler", str(plane.binaries / "kube-scheduler"), f"--kubeconfig={plane.kubeconfig}",
        "--leader-elect=false", "--bind-address=127.0.0.1", f"--secure-port={free_port()}",
    )  # fmt: skip

    def bound() -> str | None:
        name: str | None = plane.pod("waits")["spec"].get("nodeName")
        return name

    lacking = "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 3 Insufficient "
    wait_for(lambda: any(said.startswith(lacking) for said in plane.events("waits")))
    assert bound() is None
    plane.add_node("another-with-cards", {}, **amounts)
    assert "another-with-cards" == wait_for(bound)


@pytest.mark.cluster
@pytest.mark.parametrize("kubernetes", LABS[1:], indirect=True)
@pytest.mark.parametrize("autoscaler", [False, True])
def test_a_pod_with_a_size_alone_that_the_webhook_did_not_see_is_not_created(
    plane: ControlPlane, *, autoscaler: bool
) -> None:
    """Nodes state sizes, so any scheduler may bind it to one and have it run without a card."""
    plurals = {
        "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
        "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
    }
    for made in chart(autoscaler=autoscaler):
        if made["kind"] in plurals:
            path = f"/apis/{made['apiVersion']}/{plurals[made['kind']]}"
            plane.call("POST", path, made)

    def refused(limits: Plain, **spec: Any) -> bool:
        container = {"name": "main", "image": "none", "resources": {"limits": limits}}
        body = {"metadata": {"name": "unseen"}, "spec": {"containers": [container], **spec}}
        try:
            plane.call("POST", "/api/v1/namespaces/default/pods?dryRun=All", body)
        except OSError as error:
            return "hetero's webhook did not see it" in str(error)
        return False

    wait_for(lambda: refused({"nvidia.com/gpu": "1"}))

    for part in VALUES["resources"]["parts"]:
        assert autoscaler == refused({part: "5"})
        assert not refused({part: "0"})
        assert not refused({part: "5"}, schedulerName="hetero-scheduler")
    named = {"schedulerName": "hetero-scheduler", "nodeName": "n1"}
    assert autoscaler == refused({"nvidia.com/gpumem": "5"}, **named)
    assert not refused({"cpu": "1"})


def names_of(vendor_name: str) -> tuple[ResourceNames, ...]:
    """Return the resource names of a vendor."""
    vendors = {vendor.name: vendor.resource_names for vendor in HOOK.vocabulary.vendors}
    return vendors[vendor_name]
