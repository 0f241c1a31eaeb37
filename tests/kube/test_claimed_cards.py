"""Cards that are given by claims are seen: in the cluster's view as in the ledger of their node."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from attrs import evolve
from click.testing import CliRunner

from hetero.cli import hetero
from hetero.kube import cluster_view
from hetero.kube.client.api import Access, Api
from hetero.kube.cluster_view import ClusterView, snapshot
from hetero.kube.dra.claims import prepared
from hetero.kube.dra.node_pools import node_pools
from hetero.kube.dra.offers import device_name, offers
from hetero.kube.objects.kinds import PoolSlice, ResourceClaim
from hetero.kube.objects.reading import read, read_all
from hetero.kube.words.annotations import INVENTORY, inventory_text
from hetero.model import CORE, MEMORY, SLOTS, Device, Fractional, Step, Template, Templated
from hetero.model.request import POLICY_SLOTS
from hetero.model.units import GiB, MiB
from hetero.testing import rack
from tests.kube.api_server import FakeApi, Plain
from tests.kube.claimed_cards import CARDS, claim_of, part_of, slices_of, user_of
from tests.kube.claims import allocated, dra_world, prepare
from tests.kube.conftest import ROOT
from tests.kube.test_cluster_view import agent_pod, spend

ALL_CARDS = [(node, device) for node, devices in CARDS.items() for device in devices]
BY_VENDOR = {device.vendor: (node, device) for node, device in ALL_CARDS}
MIG = Templated(
    tuple(
        Template("1g.10gb", {MEMORY: 10 * GiB, CORE: 1, f"part {n}": 1}, part=f"MIG-{n}")
        for n in (1, 2)
    ),
    whole=False,
)


def read_back(*devices: Device, node: str = "n1") -> tuple[Device, ...]:
    pool = node_pools(read_all(PoolSlice, slices_of(node, devices)))[node]
    assert () == pool.faults
    return pool.devices


@asynccontextmanager
async def cluster(
    *claims: Plain,
    slices: Iterable[Plain] | None = None,
    pods: Iterable[Plain] = (),
    refused: Mapping[str, int] | None = None,
) -> AsyncIterator[FakeApi]:
    """Serve an API with four nodes whose cards are given by claims."""
    api = FakeApi(refused=dict(refused or {}))
    for node in CARDS:
        api.put("nodes", {"metadata": {"name": node, "uid": f"uid-{node}"}}, event="ADDED")
    if slices is None:
        slices = [one for node, devices in CARDS.items() for one in slices_of(node, devices)]
    for resource_slice in slices:
        api.put("resourceslices", resource_slice, event="ADDED")
    for pod in pods:
        api.put("pods", pod, event="ADDED")
    api.claims = {claim["metadata"]["name"]: claim for claim in claims}
    async with api.serve() as api.url:
        yield api


async def seen(*claims: Plain, **rest: Any) -> ClusterView:
    async with cluster(*claims, **rest) as api, Api(Access(server=api.url)).open() as client:
        return await snapshot(client)


def held(view: ClusterView) -> dict[str, tuple[int, int, int]]:
    """Return memory, core and slots of each card of which something is held, by UUID."""
    return {
        row.device.uuid: (row.held[MEMORY], row.held[CORE], row.held[SLOTS])
        for node in view.nodes
        for row in node.devices
        if any(row.held.values())
    }


# --- the cards ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("node", "device"), ALL_CARDS, ids=[card.model for _, card in ALL_CARDS])
def test_a_card_is_read_back_from_its_slices_as_it_was_published(node: str, device: Device) -> None:
    (seen_device,) = read_back(device, node=node)

    names = ("uuid", "vendor", "model", "index", "enforcement", "health", "numa", "pci", "card")
    assert [getattr(device, name) for name in names] == [
        getattr(seen_device, name) for name in names
    ]
    shown = {name: device.capacity[name] for name in device.capacity.keys() - POLICY_SLOTS.keys()}
    assert shown == seen_device.capacity
    assert device.reserved_bytes == seen_device.reserved_bytes
    assert device.shapes == seen_device.shapes


@pytest.mark.parametrize("node", CARDS)
def test_cards_keep_the_numbers_of_their_node_where_slices_leave_some_out(node: str) -> None:
    numbers = {device.uuid: number for number, device in enumerate(CARDS[node])}
    for left_out in CARDS[node]:
        devices = [device for device in CARDS[node] if device is not left_out]
        slices = read_all(PoolSlice, slices_of(node, devices, number_by_uuid=numbers))
        pool = node_pools(slices)[node]
        read_numbers = {
            device.uuid: number
            for device, number in zip(pool.devices, pool.device_numbers, strict=True)
        }
        assert {device.uuid: numbers[device.uuid] for device in devices} == read_numbers


def test_cards_of_an_agent_that_publishes_no_numbers_are_counted() -> None:
    pool = node_pools(read_all(PoolSlice, slices_of("n3", CARDS["n3"])))["n3"]
    assert tuple(range(len(CARDS["n3"]))) == pool.device_numbers


@pytest.mark.parametrize(("node", "device"), ALL_CARDS, ids=[card.model for _, card in ALL_CARDS])
def test_whatever_a_card_offers_takes_of_it_what_its_agent_has_a_grant_take(
    node: str, device: Device
) -> None:
    pool = node_pools(read_all(PoolSlice, slices_of(node, [device])))[node]
    by_agent = offers([device])

    assert by_agent.keys() == pool.offers.keys()
    for name in by_agent:
        result = {**part_of(node, device), "device": name}
        claim = read(ResourceClaim, claim_of("claim", result))
        agents, seen_here = (
            prepared(claim, node_name=node, offers=offered).allocation.pieces
            for offered in (by_agent, pool.offers)
        )
        for prepared_piece, seen_piece in zip(agents, seen_here, strict=True):
            takes = prepared_piece.takes
            assert {k: takes[k] for k in takes if k not in POLICY_SLOTS} == seen_piece.takes
            assert (prepared_piece.device, prepared_piece.core, prepared_piece.template) == (
                seen_piece.device,
                seen_piece.core,
                seen_piece.template,
            )


def test_the_parts_of_a_partitioned_card_have_their_ids_and_counters() -> None:
    (device,) = rack(80 * GiB, core=7, granularity=MIG)
    card = evolve(device, capacity={**device.capacity, "part 1": 1, "part 2": 1})
    (seen_card,) = read_back(card)

    assert isinstance(seen_card.granularity, Templated)
    assert not seen_card.granularity.whole
    assert ["MIG-1", "MIG-2"] == [template.part for template in seen_card.granularity.menu]
    assert 1 == seen_card.capacity["part-1"]


def test_the_dies_of_a_module_are_one_group() -> None:
    menu = Templated((Template("half", {MEMORY: 32 * GiB, CORE: 10}),))
    dies = rack(64 * GiB, 64 * GiB, core=20, slots=4, granularity=menu, group="module")

    assert [("memory-0", "memory-0"), ("memory-1", "memory-0")] == [
        (die.uuid, die.group) for die in read_back(*dies)
    ]


def test_a_card_of_scaled_core_keeps_its_own_measure() -> None:
    (device,) = rack(16 * GiB, granularity=Fractional(memory=Step(256 * MiB)))
    scaled = evolve(device, capacity={**device.capacity, CORE: 200}, card={CORE: 100})

    assert (200, 100) == ((card := read_back(scaled)[0]).capacity[CORE], card.of_card(CORE))


def test_what_is_wrong_with_a_card_and_that_it_is_cordoned_is_said() -> None:
    sick, cordoned = rack(GiB, GiB, health="XID 48")
    cordoned = evolve(cordoned, health="ok", cordon="loud fan: 50 %")
    conditions = [one.condition for one in read_back(sick, cordoned)]

    assert ["XID 48", "cordoned (loud fan: 50 %)"] == conditions


# --- who holds them -------------------------------------------------------------------------------


@pytest.mark.parametrize("vendor", sorted(BY_VENDOR))
async def test_what_claims_hold_of_each_vendors_cards_is_in_the_clusters_view(vendor: str) -> None:
    node, device = BY_VENDOR[vendor]
    claims = [claim_of(f"c{n}", part_of(node, device), pods=[f"p{n}"]) for n in (1, 2)]
    if device.shapes:  # the next of its templates
        (result,) = claims[1]["status"]["allocation"]["devices"]["results"]
        result["device"] = result["device"].removesuffix("0") + "1"
    view = await seen(*claims, pods=[user_of(f"p{n}", f"c{n}", node=node) for n in (1, 2)])
    pieces = [
        prepared(
            read(ResourceClaim, one), node_name=node, offers=offers([device])
        ).allocation.pieces
        for one in claims
    ]

    counters = (MEMORY, CORE, SLOTS)
    assert {
        device.uuid: tuple(sum(piece.takes[name] for (piece,) in pieces) for name in counters)
    } == held(view)
    assert [("default", "c1", "p1", "main", node), ("default", "c2", "p2", "main", node)] == [
        (one.namespace, one.claim, one.pod_name, one.container_name, one.node)
        for one in view.containers
    ]
    assert {"n1": 5, "n2": 3, "n3": 6, "n4": 2} == {
        one.name: len(one.devices) for one in view.nodes
    }
    assert () == view.notes


async def test_a_claim_of_several_pods_is_counted_once_and_names_them_all() -> None:
    node, device = BY_VENDOR["nvidia"]
    claim = claim_of("shared", part_of(node, device), pods=["a", "b", "gone"])
    over = user_of("over", "shared", phase="Succeeded")
    view = await seen(claim, pods=[user_of("a", "shared"), user_of("b", "shared"), over])
    (container,) = view.containers

    assert {device.uuid: (16 * GiB, 30, 1)} == held(view)
    assert ("a, b", "main") == (container.pod_name, container.container_name)
    assert "Running" == container.phase
    assert [("default/shared",)] == [
        row.grants for one in view.nodes for row in one.devices if row.grants
    ]


@pytest.mark.parametrize("ended", ["", "first", "first main"])
async def test_a_claim_whose_containers_have_all_ended_is_not_shown_as_running(ended: str) -> None:
    node, device = BY_VENDOR["nvidia"]
    user = user_of("a", "shared", conditions=[{"type": "Initialized", "status": "True"}])
    user["spec"]["initContainers"] = [{**user["spec"]["containers"][0], "name": "first"}]
    if "first" not in ended:
        user["status"]["conditions"] = []
    if "main" in ended:
        user["status"]["containerStatuses"] = [{"name": "main", "state": {"terminated": {}}}]
    view = await seen(claim_of("shared", part_of(node, device), pods=["a"]), pods=[user])
    (container,) = view.containers

    phase = "ended" if "main" in ended else "Running"
    assert ("first, main", phase) == (container.container_name, container.phase)
    assert {device.uuid: (16 * GiB, 30, 1)} == held(view)


async def test_a_claim_that_no_pod_uses_yet_holds_what_it_was_allocated() -> None:
    node, device = BY_VENDOR["hygon"]
    view = await seen(claim_of("early", part_of(node, device, core=40)))
    (container,) = view.containers

    assert {device.uuid: (16 * GiB, 40, 1)} == held(view)
    assert ("", "", "unused") == (
        container.pod_name,
        container.container_name,
        container.phase,
    )


async def test_claims_without_an_allocation_and_of_administrators_hold_nothing() -> None:
    node, device = BY_VENDOR["nvidia"]
    waiting = {**claim_of("waiting"), "status": {}}
    admin = claim_of("admin", {**part_of(node, device), "adminAccess": True}, pods=["a"])
    view = await seen(waiting, admin)

    assert ({}, (), ()) == (held(view), view.containers, view.notes)


async def test_several_devices_of_a_claim_are_each_counted_and_parts_of_one_summed() -> None:
    first, second = CARDS["n1"][:2]
    parts = [part_of("n1", card, memory=GiB, core=10) for card in (first, second, second)]
    view = await seen(claim_of("many", *parts))

    assert {first.uuid: (GiB, 10, 1), second.uuid: (2 * GiB, 20, 2)} == held(view)


async def test_devices_of_other_drivers_are_said_and_not_counted() -> None:
    node, device = BY_VENDOR["nvidia"]
    foreign_spec = {"driver": "gpu.nvidia.com", "nodeName": node, "devices": [{"name": "gpu-0"}]}
    foreign_slice = {
        "metadata": {"name": "theirs"},
        "spec": {**foreign_spec, "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}},
    }
    result = {"driver": "gpu.nvidia.com", "pool": node, "request": "gpu", "device": "gpu-0"}
    view = await seen(
        claim_of("theirs", result),
        claim_of("mixed", result, part_of(node, device)),
        slices=[*slices_of(node, CARDS[node]), foreign_slice],
    )

    assert {device.uuid: (16 * GiB, 30, 1)} == held(view)
    assert ["mixed"] == [one.claim for one in view.containers]
    assert ("devices of driver gpu.nvidia.com are not hetero's to count: n1 1",) == view.notes


# --- what is odd ----------------------------------------------------------------------------------


async def test_of_a_pool_the_latest_generation_counts() -> None:
    old, new = slices_of("n1", CARDS["n1"]), slices_of("n1", CARDS["n1"][:2], generation=2)
    new[0]["metadata"]["name"] = "n1-hetero.io-9"
    view = await seen(slices=[*new, *old])

    assert [2] == [len(node.devices) for node in view.nodes]


async def test_a_pool_that_is_half_written_is_shown_and_said() -> None:
    whole = slices_of("n2", CARDS["n2"])
    view = await seen(slices=whole[:1])

    assert ("node n2: 1 of its 2 slices are there",) == view.notes
    assert ["n2"] == [node.name for node in view.nodes]


async def test_what_a_claim_holds_of_a_card_that_left_its_slices_is_still_its() -> None:
    node, device = BY_VENDOR["nvidia"]
    claim = claim_of("late", part_of(node, device), pods=["a"])
    data = {"uuids": [device.uuid], "vendor": "nvidia"}
    claim["status"]["devices"] = [{"device": device_name(device.uuid), "data": data}]
    others = [one for one in CARDS[node] if one != device]
    view = await seen(claim, slices=slices_of(node, others), pods=[user_of("a", "late")])
    (container,) = view.containers
    (share,) = container.shares

    assert {} == held(view)
    assert (device.uuid, None, 16 * GiB) == (share.device, share.device_number, share.memory_bytes)
    name = device_name(device.uuid)
    assert (
        f"claim default/late of node n1: device {name} is not on this node (any more)",
    ) == view.notes


async def test_a_claim_of_a_node_that_has_no_slices_any_more_is_shown() -> None:
    node, device = BY_VENDOR["nvidia"]
    view = await seen(claim_of("late", part_of(node, device)), slices=())

    assert () == view.nodes
    assert [("late", 16 * GiB)] == [
        (one.claim, one.shares[0].memory_bytes) for one in view.containers
    ]


async def test_a_claim_from_before_its_node_was_classic_holds_of_the_published_card() -> None:
    node, device = BY_VENDOR["cambricon"]
    async with cluster(claim_of("before", part_of(node, device)), slices=()) as api:
        annotations = {INVENTORY: inventory_text(CARDS[node])}
        api.nodes[node]["metadata"]["annotations"] = annotations
        async with Api(Access(server=api.url)).open() as client:
            view = await snapshot(client)

    assert {device.uuid: (16 * GiB, 30, 1)} == held(view)


async def test_a_node_that_has_withdrawn_its_inventory_shows_the_cards_of_its_slices() -> None:
    node, device = BY_VENDOR["nvidia"]
    async with cluster(claim_of("claim", part_of(node, device))) as api:
        api.nodes[node]["metadata"]["annotations"] = {INVENTORY: inventory_text(())}
        async with Api(Access(server=api.url)).open() as client:
            view = await snapshot(client)

    assert {device.uuid: (16 * GiB, 30, 1)} == held(view)


async def test_an_inventory_from_before_its_node_gave_claims_hides_no_fault() -> None:
    """An agent that gives claims alone may not withdraw what a classic one published."""
    node, device = BY_VENDOR["nvidia"]
    ill = evolve(device, health="too hot")
    async with cluster(slices=slices_of(node, [ill])) as api:
        api.nodes[node]["metadata"]["annotations"] = {INVENTORY: inventory_text((device,))}
        async with Api(Access(server=api.url)).open() as client:
            view = await snapshot(client)

    assert ["too hot"] == [one.device.health for member in view.nodes for one in member.devices]


async def test_no_odd_object_stops_the_view() -> None:
    node, device = BY_VENDOR["nvidia"]
    odd_slices: list[Plain] = [
        {"metadata": {"name": "a"}},
        {"metadata": {"name": "b"}, "spec": 7},
        {"metadata": {"name": "c"}, "spec": {"driver": "hetero.io", "nodeName": node, "pool": []}},
    ]
    good = slices_of(node, CARDS[node])
    entries = good[0]["spec"]["devices"]
    entries[1] = {"name": "no-uuid", "attributes": {"vendor": {"string": "nvidia"}}}
    entries[2]["attributes"]["enforcement"] = {"string": "magic"}
    entries[3]["capacity"]["memory"] = {"value": "much"}
    entries[4] = 7
    odd_claims = [
        {**claim_of("odd-1"), "status": 7},
        {**claim_of("odd-2"), "status": {"allocation": {"devices": {"results": [7, {}]}}}},
        claim_of("odd-3", {**part_of(node, device), "consumedCapacity": {"memory": "x"}}),
        claim_of("odd-4", {**part_of("n9", device)}),
    ]
    good_card = CARDS[node][0]
    odd_claims += [claim_of("good", part_of(node, good_card)), {"metadata": {"name": "bare"}}]
    view = await seen(*odd_claims, slices=[*odd_slices, *good])

    assert {good_card.uuid: (16 * GiB, 30, 1)} == held(view)
    assert [1] == [len(one.devices) for one in view.nodes]
    assert "node n1: device no-uuid: it has no uuid or no vendor" in view.notes


@pytest.mark.parametrize(
    ("refused", "notes"),
    [
        (404, ()),
        (403, ("cards that are given by claims are not counted: ",)),
    ],
)
async def test_an_api_without_claims_or_the_right_to_list_them_shows_the_rest(
    refused: int, notes: tuple[str, ...]
) -> None:
    kinds = dict.fromkeys(("resourceslices", "resourceclaims"), refused)
    async with cluster(refused=kinds) as api:
        api.nodes["n1"]["metadata"]["annotations"] = {INVENTORY: inventory_text(CARDS["n1"])}
        async with Api(Access(server=api.url)).open() as client:
            view = await snapshot(client)

    assert [("n1", 5)] == [(node.name, len(node.devices)) for node in view.nodes]
    assert len(notes) == len(view.notes)
    assert all(note.startswith(start) for note, start in zip(view.notes, notes, strict=True))


# --- as a node has it, and as it is shown ---------------------------------------------------------


async def test_the_view_of_the_cluster_says_of_a_claim_what_its_node_does() -> None:
    async with dra_world() as at:
        agent_pod(at)
        allocated(at, "first", memory="3000Mi", cores="30")
        assert "" == (await prepare(at, "first")).error
        spend(at, 1.0)
        async with Api(Access(server=at.url)).open() as api:
            view = await snapshot(api, seconds=0.1)
        (grant,), (container,), (node,) = (
            at.node.snapshot().grants,
            view.containers,
            view.nodes,
        )

        assert {piece.device: dict(piece.takes) for piece in grant.allocation.pieces} == {
            row.device.uuid: dict(row.held) for row in node.devices if row.grants
        }
        assert None is node.metrics_error
        assert [0] == [
            share.memory_used_bytes for share in container.shares
        ]  # as the agent measures


async def test_inventory_and_top_show_claims_in_a_terminal_and_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, device = BY_VENDOR["nvidia"]
    claim = claim_of("shared", part_of(node, device), pods=["a", "b"])
    users = [user_of("a", "shared"), user_of("b", "shared")]
    async with cluster(claim, pods=users) as api:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": {"server": api.url}}],
            "users": [{"name": "it", "user": {}}],
        }
        (tmp_path / "config").write_text(json.dumps(config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        monkeypatch.setattr(cluster_view, "VIEW_CONNECT_S", 60.0)  # this machine may be busy

        async def said(*words: str) -> str:
            done = await asyncio.to_thread(CliRunner().invoke, hetero, [*words])
            assert 0 == done.exit_code, done.output
            return done.output

        inventory = await said("inventory", "--cluster")
        top = await said("top", "--cluster", "--once")
        document = json.loads(await said("inventory", "--cluster", "--json"))

    for shown in (inventory, top):
        assert "910B3" in shown
        assert "shared" in shown
        assert "a, b" in shown
    jsonschema.validate(document, json.loads((ROOT / "docs" / "json.schema.json").read_text()))
    assert [("shared", "a, b")] == [(one["claim"], one["pod"]) for one in document["pods"]]
