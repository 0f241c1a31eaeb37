"""Shares given by the agent: to whom the scheduler said, to nobody else, until the pod is gone."""

import asyncio
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import grpc
import pytest
from attrs import evolve

from hetero.kube.server import sources
from hetero.kube.words.annotations import (
    ALLOCATION,
    INVENTORY,
    SIGNATURE,
    Assignment,
    device_of,
    published_devices,
    read_assignment,
    signed_assignment,
)
from hetero.kube.words.pod import identity_of
from hetero.model import CORE, MEMORY, SLOTS, Allocation, Device, DeviceAllocation, Edits, Selector
from hetero.model.units import GiB, MiB
from hetero.node.ledger.grant_file import DeviceLimit, read_limits
from hetero.node.settings import NodeSettings
from hetero.node.view.doctor import examine
from hetero.plugin.hookspecs import hookimpl
from hetero.plugin.resource_names import ResourceNames
from hetero.registry.registry import Registry
from hetero.testing import MemoryVendor, rack
from tests.kube.control_plane import free_port
from tests.kube.world import CARD, KEY, cut_short, never_starts, pod_named, refusal, until, world


async def test_a_container_gets_the_cards_the_scheduler_chose_and_its_grant() -> None:
    async with world() as at:
        at.bind("first", memory=16 * GiB, core=100)  # memory-0, whole
        pod = at.bind("pod", memory=3000 * MiB, core=30)
        answer = (await at.kubelet.admit(pod))["main"]
        await at.kubelet.start_container(pod, "main")

        assert "memory-1" == at.kubelet.held["default/pod", "main"][1][0].split("::")[0]
        assert {"MEMORY_VISIBLE_DEVICES": "memory-1"} == dict(answer.envs)
        paths = {mount.container_path: mount for mount in answer.mounts}
        assert {
            "/etc/hetero/grant": True,
            "/etc/hetero/usage": False,
            "/etc/hetero/page.0": False,
            "/etc/hetero/board.0": True,
            "/etc/hetero/libhetero-cuda.so": True,
            "/etc/ld.so.preload": True,
        } == {path: mount.read_only for path, mount in paths.items()}
        assert (
            DeviceLimit(name="memory-1", memory=3000 * MiB, core=3000, context=True),
        ) == read_limits(Path(paths["/etc/hetero/grant"].host_path))
        assert (
            "/etc/hetero/libhetero-cuda.so\n"
            == Path(paths["/etc/ld.so.preload"].host_path).read_text()
        )
        assert ["default/pod/main"] == at.given()


async def test_less_than_a_context_is_never_given_and_the_pod_is_told() -> None:
    """A scheduler bound it that knew less. Its cards are not at fault: the next pod gets some."""
    async with world(16 * GiB, context_bytes=518 * MiB) as at:
        allocation = at.fit(memory=519 * MiB, core=30)
        (piece,) = allocation.pieces
        piece = evolve(piece, takes={**piece.takes, MEMORY: 518 * MiB})
        containers = (("main", evolve(allocation, pieces=(piece,))),)
        small = pod_named("small", "main")
        small["metadata"]["annotations"] = signed_assignment(
            Assignment(node="n1", uid="uid-small", containers=containers), KEY
        )
        at.api.put("pods", small, event="ADDED")
        assert (
            "memory 518 MiB: the driver's context alone takes 518 MiB of memory-0"
            in await never_starts(at, small)
        )
        await at.kubelet.admit(at.bind("pod", memory=519 * MiB, core=30))
        assert {"default/pod/main"} == at.standing().keys()


@pytest.mark.parametrize(("counts_context", "counted_mib"), [(True, 518), (False, 0)])
async def test_the_scheduler_hears_whether_contexts_count_on_a_node(
    counts_context: bool, counted_mib: int
) -> None:
    settings = NodeSettings(context=counts_context)
    async with world(16 * GiB, context_bytes=518 * MiB, settings=settings) as at:
        annotations = at.api.nodes["n1"]["metadata"]["annotations"]
        (device,) = published_devices(annotations[INVENTORY], node="n1")

        assert 518 * MiB == device.context_bytes
        assert counted_mib * MiB == device.counted_context_bytes


async def test_two_cards_for_one_container_are_two_grants_of_one_directory() -> None:
    async with world() as at:
        pod = at.bind("pod", count=2)
        answer = (await at.kubelet.admit(pod))["main"]
        await at.kubelet.start_container(pod, "main")

        visible = answer.envs["MEMORY_VISIBLE_DEVICES"].split(",")
        assert ["memory-0", "memory-1"] == sorted(visible)
        held = at.kubelet.held["default/pod", "main"][1]
        assert ["memory-0", "memory-1"] == sorted(map(device_of, held))


async def test_pods_that_look_alike_are_never_mistaken_for_each_other() -> None:
    """The kubelet admits them in another order than they were bound, and each gets its own."""
    async with world(4 * GiB, 4 * GiB, 4 * GiB, 4 * GiB) as at:
        pods = [at.bind(f"pod{n}", memory=4 * GiB, core=100) for n in range(4)]
        for pod in (pods[2], pods[0], pods[3], pods[1]):
            answer = (await at.kubelet.admit(pod))["main"]
            given = read_assignment(
                pod["metadata"]["annotations"],
                KEY.public,
                pod="pod",
                uid=pod["metadata"]["uid"],
                node="n1",
            )
            assert given is not None
            ((_, allocation),) = given.containers
            assert allocation.pieces[0].device == answer.envs["MEMORY_VISIBLE_DEVICES"]
            await at.kubelet.start_container(pod, "main")


async def test_whose_devices_were_preferred_is_not_given_those_of_another() -> None:
    """The kubelet asks what to prefer for one pod, gives it up, and admits another."""
    async with world(4 * GiB, 4 * GiB) as at:
        first, second = (at.bind(name, memory=4 * GiB, core=100) for name in ("one", "two"))
        at.kubelet.known.append(first)
        (preferred,) = await at.kubelet._choose(CARD, 1, [])
        at.kubelet.known.remove(first)
        at.kubelet.known.append(second)
        (other,) = {"memory-0::0", "memory-1::0"} - {preferred}
        await at.kubelet.allocate(CARD, [other])

        assert ["default/two/main"] == at.given()


async def test_a_pod_that_the_kubelet_refused_for_another_reason_takes_nobodys_devices() -> None:
    """Neither while its owner changes it, nor when the API knows that it failed and we do not."""
    async with world(4 * GiB, 4 * GiB) as at:
        refused, waits = (at.bind(name, memory=4 * GiB, core=100) for name in ("one", "two"))
        at.kubelet.known.append(refused)
        await until(lambda: {"uid-one", "uid-two"} <= at.agent.allocator.pods.by_uid.keys())
        refused["metadata"]["labels"] = {"changed": "later"}
        at.api.put("pods", refused)
        changed = refused["metadata"]["resourceVersion"]
        known = at.agent.allocator.pods.by_uid
        await until(lambda: known["uid-one"].metadata.resource_version == changed)
        answer = (await at.kubelet.admit(waits))["main"]
        assert "memory-1" == answer.envs["MEMORY_VISIBLE_DEVICES"]

    async with world(4 * GiB, 4 * GiB) as at:
        waits, refused = (at.bind(name, memory=4 * GiB, core=100) for name in ("one", "two"))
        at.kubelet.known.append(refused)
        await until(lambda: {"uid-one", "uid-two"} <= at.agent.allocator.pods.by_uid.keys())
        failed = {**refused, "status": {"phase": "Failed", "reason": "SysctlForbidden"}}
        at.api.pods["default", "two"] = failed  # whose watchers hear of it later
        answer = (await at.kubelet.admit(waits))["main"]
        assert "memory-0" == answer.envs["MEMORY_VISIBLE_DEVICES"]


async def test_the_api_may_know_of_a_pod_before_the_agent_heard_of_it() -> None:
    async with world() as at:
        pod = at.bind("pod")
        await at.kubelet.admit(pod)  # at once: the watch has told nothing yet

        assert ["default/pod/main"] == list(at.standing())


async def test_an_init_container_makes_room_for_the_containers_after_it() -> None:
    async with world(16 * GiB) as at:
        uid = "uid-pod"
        whole = at.fit(memory=16 * GiB, core=100)
        pod = pod_named("pod", "main")
        pod["spec"]["initContainers"] = [{"name": "first", "resources": {"limits": {CARD: "1"}}}]
        pod["metadata"]["annotations"] = signed_assignment(
            Assignment(node="n1", uid=uid, containers=(("main", whole), ("first", whole))),
            KEY,
        )
        at.api.put("pods", pod, event="ADDED")
        await at.kubelet.admit(pod)
        await at.kubelet.start_container(pod, "first")
        await at.kubelet.start_container(pod, "main")

        assert {"default/pod/first", "default/pod/main"} == set(at.standing())


async def test_init_containers_with_the_same_devices_start_where_no_other_asks_for_any() -> None:
    async with world(16 * GiB) as at:
        limits = {"limits": {CARD: "1"}}
        pod = pod_named("pod", "main")
        pod["spec"]["containers"][0]["resources"] = {}
        pod["spec"]["initContainers"] = [
            {"name": name, "resources": limits} for name in ("first", "second")
        ]
        given = (("first", at.fit()), ("second", at.fit()))
        assignment = Assignment(node="n1", uid="uid-pod", containers=given)
        pod["metadata"]["annotations"] = signed_assignment(assignment, KEY)
        at.api.put("pods", pod, event="ADDED")
        await at.kubelet.admit(pod)
        await at.kubelet.start_container(pod, "first")
        await at.kubelet.start_container(pod, "second")

        assert {"default/pod/first", "default/pod/second"} == set(at.given())


@pytest.mark.parametrize("other_first", [True, False])
async def test_a_pod_counts_as_what_it_holds_at_most_while_its_init_containers_run(
    *, other_first: bool
) -> None:
    async with world(16 * GiB) as at:
        (piece,) = at.fit().pieces

        def put(name: str, **sizes: int) -> dict[str, Any]:
            pod = pod_named(name, *(one for one in sizes if one != "first"))
            if "first" in sizes:
                limits = {"limits": {CARD: "1"}}
                pod["spec"]["initContainers"] = [{"name": "first", "resources": limits}]
            takes = {one: {**piece.takes, MEMORY: sizes[one] * GiB} for one in sizes}
            given = tuple(
                (one, Allocation(pieces=(evolve(piece, takes=takes[one]),))) for one in sizes
            )
            assignment = Assignment(node="n1", uid=f"uid-{name}", containers=given)
            pod["metadata"]["annotations"] = signed_assignment(assignment, KEY)
            at.api.put("pods", pod, event="ADDED")
            return pod

        made = {"pod": {"main": 2, "last": 5, "first": 9}, "other": {"main": 7}}
        for name in sorted(made, reverse=not other_first):
            await at.kubelet.admit(put(name, **made[name]))
        with pytest.raises(grpc.aio.AioRpcError, match="not enough memory left"):
            await at.kubelet.admit(put("more", main=1))


async def test_what_an_older_agent_noted_of_a_container_is_completed_by_the_next() -> None:
    async with world() as at:
        await at.kubelet.admit(at.bind("pod"))
        await at.crash()
        (grant,) = at.node.snapshot().grants
        owner = {key: value for key, value in grant.owner.items() if key != "kind"}
        with at.node.ledger.admission():
            at.node.ledger.change(evolve(grant, owner=owner))
        await at.start()

        await until(lambda: [grant] == [*at.node.snapshot().grants])


@pytest.mark.parametrize("end", ["deleted", "Succeeded", "Failed"])
async def test_a_share_ends_with_its_pod(end: str) -> None:
    async with world() as at:
        pod = at.bind("pod")
        await at.kubelet.admit(pod)
        if end == "deleted":
            at.api.put("pods", pod, event="DELETED")
        else:
            pod["status"]["phase"] = end
            at.api.put("pods", pod)
        await until(lambda: not at.standing())


async def test_a_share_stands_while_the_agent_is_down_and_ends_when_it_is_back() -> None:
    async with world() as at:
        stays, goes = at.bind("stays"), at.bind("goes")
        await at.kubelet.admit(stays)
        await at.kubelet.admit(goes)
        await at.crash()
        at.api.put("pods", goes, event="DELETED")
        assert {"default/stays/main", "default/goes/main"} == set(at.standing())
        await at.start()
        await until(lambda: set(at.standing()) == {"default/stays/main"})
        # Nor is anything left of what the kubelet may remember.
        await until(lambda: at.remembered() == {identity_of("uid-stays", "main")})


class CuttingVendor(MemoryVendor):
    """A vendor of one card, which keeps the slices that were cut from it."""

    def __init__(self, name: str) -> None:
        super().__init__(rack(16 * GiB, vendor=name), name=name)
        names = ResourceNames(count=f"{name}.example/card")
        self._vendor = evolve(self._vendor, resource_names=(names,))
        self.__name__ = name  # as which the registry tells it from another
        self.slices: set[str] = set()

    @hookimpl
    def hetero_enforce(self, allocation: Allocation, devices: Sequence[Device]) -> Edits:
        """Cut a slice, unless the piece has one already."""
        (piece,) = allocation.pieces
        part = piece.part or f"slice-{len(self.slices)}"
        self.slices.add(part)
        return Edits(parts={piece.device: part})

    @hookimpl
    def hetero_reconcile(self, device: Device, parts: AbstractSet[str], directory: Path) -> None:
        """Destroy the slices that no grant holds."""
        self.slices &= parts


async def test_pods_of_two_vendors_that_end_at_once_leave_a_slice_on_neither_card() -> None:
    names = ("first", "second")
    vendors = [CuttingVendor(name) for name in names]
    resources = [f"{name}.example/card" for name in names]
    async with world(registry=Registry.of(*vendors), awaited=resources[0]) as at:
        await until(lambda: at.kubelet.devices.keys() == {*resources})
        pods = [
            at.bind(name, card=f"{name}.example/card", vendor=Selector(include=(name,)))
            for name in names
        ]
        for pod in pods:
            await at.kubelet.admit(pod)
        assert [{"slice-0"}, {"slice-0"}] == [vendor.slices for vendor in vendors]
        await at.crash()
        for pod in pods:
            at.api.put("pods", pod, event="DELETED")
        await at.start()

        await until(lambda: not at.standing())
        await until(lambda: not any(vendor.slices for vendor in vendors))


async def test_an_agent_is_ready_while_the_kubelet_that_runs_knows_its_devices() -> None:
    async with world() as at:
        await until(lambda: at.agent.plugins.all_serve)
        await at.kubelet.stop()
        await until(lambda: not at.agent.plugins.all_serve)
        await at.kubelet.start()
        assert not at.agent.plugins.all_serve
        await until(lambda: at.agent.plugins.all_serve)
        await until(lambda: at.awaited in at.kubelet.devices)


async def test_an_agent_that_is_ended_while_it_begins_to_serve_stops_what_it_began() -> None:
    async with world() as at:
        await at.crash()
        plugin = at.agent.plugins.by_resource[at.awaited]
        async for _ in cut_short(plugin.attend):
            await plugin.close()
        await plugin.attend()
        assert plugin.resource in at.kubelet.registered
        await plugin.close()


async def test_a_pod_without_an_allocation_stays_on_its_node_and_never_starts() -> None:
    """A kubelet fails a pod that is refused, and a ReplicaSet makes ten more each second."""
    async with world() as at:
        pod = pod_named("pod", "main")
        at.api.put("pods", pod, event="ADDED")
        assert "the scheduler gave container main no share" in await never_starts(at, pod)
        assert {} == at.standing()

        other = at.bind("other")
        await at.kubelet.admit(other)
        await at.kubelet.start_container(other, "main")
        assert {"default/other/main"} == at.standing().keys()


async def test_a_forgery_never_starts_beside_a_pod_without_an_allocation() -> None:
    """The kubelet lists both, and one of them may be a pod that is given its share anew."""
    async with world() as at:
        plain, forged = pod_named("plain", "main"), pod_named("forged", "main")
        notes = at.bind("mine")["metadata"]["annotations"]
        forged["metadata"]["annotations"] = {**notes, SIGNATURE: "0" * 64}
        for pod in (plain, forged):
            at.api.put("pods", pod, event="ADDED")
        at.kubelet.known.append(plain)
        sentence = await never_starts(at, forged)

        assert "pod default/forged: hetero.io/allocation is not signed by this clus" in sentence


async def test_a_container_that_hides_what_would_limit_it_is_given_nothing() -> None:
    async with world() as at:
        pod = at.bind("hides")
        (main,) = pod["spec"]["containers"]
        main["volumeMounts"] = [{"name": "own", "mountPath": "/etc/ld.so.preload"}]
        at.api.put("pods", pod, event="MODIFIED")

        assert "mounts its own at /etc/ld.so.preload" in await never_starts(at, pod)
        assert [] == at.given()


@pytest.mark.parametrize("forgery", ["changed", "replayed", "signature"])
async def test_a_forged_allocation_gives_nothing(forgery: str) -> None:
    async with world() as at:
        victim = at.bind("mine", memory=GiB)
        thief = pod_named("thief", "main")
        notes = dict(victim["metadata"]["annotations"])
        if forgery == "changed":
            thief = victim
            notes[ALLOCATION] = notes[ALLOCATION].replace(str(GiB), str(9 * GiB))
        elif forgery == "signature":
            notes[SIGNATURE] = "0" * 64
        thief["metadata"]["annotations"] = notes
        at.api.put("pods", thief, event="MODIFIED")

        sentence = await never_starts(at, thief)
        assert "is not signed by this cluster's scheduler for this pod" in sentence
        assert [] == at.given()
        assert "default/thief/main" not in at.standing()


async def test_a_container_that_got_anothers_devices_is_not_started() -> None:
    async with world() as at:
        first, other = at.bind("one"), at.bind("other")
        await at.kubelet.admit(first)
        await at.kubelet.admit(other)
        held = at.kubelet.held
        first_key, other_key = ("default/one", "main"), ("default/other", "main")
        held[first_key], held[other_key] = held[other_key], held[first_key]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await at.kubelet.start_container(first, "main")

        assert "which was given for default/other/main: it is not started" in refusal(caught)


async def test_doctor_has_no_doubt_of_a_grant_whose_container_has_no_process_yet() -> None:
    """Nor of one whose processes are in containers that an agent without the host's PIDs misses."""
    async with world() as at:
        await at.kubelet.admit(at.bind("pod", memory=2 * GiB, core=30))
        (grant,) = at.node.snapshot().grants
        assert ((), []) == (
            at.node.processes([grant.id])[grant.id],
            [one for one in examine(at.node) if one.subject == f"grant {grant.id}"],
        )


async def test_a_pod_of_another_node_gets_nothing_here() -> None:
    async with world() as at:
        pod = at.bind("pod", node="n2")
        pod["spec"]["nodeName"] = "n2"
        at.api.put("pods", pod)

        assert "is not signed by this cluster's scheduler for" in await never_starts(at, pod)
        assert [] == at.given()


async def test_what_does_not_fit_is_refused_whoever_signed_it() -> None:
    async with world(16 * GiB) as at:
        taken = Allocation(
            pieces=(
                DeviceAllocation(
                    device="memory-0",
                    vendor="memory",
                    takes={CORE: 50, MEMORY: 12 * GiB, SLOTS: 1},
                    core=50,
                ),
            )
        )
        for name in ("first", "second"):
            pod = pod_named(name, "main")
            pod["metadata"]["annotations"] = signed_assignment(
                Assignment(node="n1", uid=f"uid-{name}", containers=(("main", taken),)),
                KEY,
            )
            at.api.put("pods", pod, event="ADDED")
        await at.kubelet.admit(at.api.pods["default", "first"])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await at.kubelet.admit(at.api.pods["default", "second"])

        assert "device memory-0 has not enough memory left" in refusal(caught)
        assert ["default/first/main"] == list(at.standing())


async def test_who_reaches_an_agents_metrics_has_few_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each takes of the memory that shares are given with, whether or not it may have metrics."""
    monkeypatch.setattr(sources, "MOST_CONNECTIONS", 2)

    async with world() as at:
        port = free_port()
        at.agent.options = evolve(at.agent.options, metrics=port, insecure_metrics=True)
        async with at.agent._metrics():
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            assert b"" == await asyncio.wait_for(held[2][0].read(1), 2)
            for _, writer in held:
                writer.close()
