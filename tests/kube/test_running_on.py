"""What a container holds that runs on after its pod is over, deleted by force for one."""

import asyncio
from collections import Counter
from typing import Any

import grpc
import pytest

from hetero.kube.agent import agent, allocator, inventory_publisher, node_pods
from hetero.kube.agent.allocator import Allocator
from hetero.kube.agent.inventory_publisher import InventoryPublisher
from hetero.kube.client.api import Access, Api, ApiError
from hetero.kube.cluster_view import snapshot
from hetero.kube.dra import node_claims
from hetero.kube.objects.kinds import Pod
from hetero.kube.objects.reading import read
from hetero.kube.scheduler import standing_pods
from hetero.kube.scheduler.waker import AGAIN
from hetero.kube.words import pod
from hetero.kube.words.annotations import (
    INVENTORY,
    Assignment,
    Held,
    RunsOn,
    signed_assignment,
)
from hetero.kube.words.annotations import published as read_inventory
from hetero.kube.words.pod import identity_of
from hetero.model import Allocation, ContainerKind, DeviceAllocation
from hetero.model.units import GiB, MiB
from tests.kube.claims import allocated, dra_world, prepare, unprepare
from tests.kube.conftest import card
from tests.kube.fake_api import PODS
from tests.kube.test_quota import allow
from tests.kube.test_scheduler import scenario
from tests.kube.world import (
    CARD,
    KEY,
    World,
    cgroup,
    container,
    in_cgroups,
    pod_named,
    refusal,
    until,
    world,
)


@pytest.mark.parametrize("over", ["deleted", "Failed"])
async def test_a_card_is_not_given_again_while_a_container_of_a_pod_that_is_over_runs(
    over: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who deletes a pod by force has its kubelet wait for it for as long as the pod said."""
    monkeypatch.setattr(allocator, "_SHARE_WAIT_S", 0.2)

    async with world(16 * GiB) as at:
        held = at.bind("held", memory=16 * GiB, core=100)
        await at.kubelet.admit(held)
        await at.kubelet.start_container(held, "main")
        at.fitted.clear()  # a scheduler takes it for free
        following = at.bind("next", memory=16 * GiB, core=100)
        identity = identity_of("uid-held", "main")
        with container(at.node.ledger, identity):
            at.kubelet.known.remove(held)
            if over == "deleted":
                at.api.put("pods", held, event="DELETED")
            else:
                at.api.put("pods", {**held, "status": {"phase": over}})
            await until(lambda: at.agent.allocator.running_on)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await at.kubelet.admit(following)
            assert "memory-0" in refusal(caught)
            assert at.node.ledger.stands(identity)
        await until(lambda: not at.agent.allocator.running_on)
        assert not at.node.ledger.stands(identity)
        await at.kubelet.admit(following)


@pytest.mark.parametrize("engine", ["cri-containerd-", "docker-", "crio-"])
async def test_a_container_that_changed_its_root_keeps_its_card_after_its_pod(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`exec chroot` takes CAP_SYS_CHROOT, which runtimes give: it sees its grant no more."""
    monkeypatch.setattr(allocator, "_SHARE_WAIT_S", 0.2)
    sandbox, main = (cgroup("uid-held", digit, engine=engine) for digit in "ab")

    async with world(16 * GiB) as at:
        held = at.bind("held", memory=16 * GiB, core=100)
        await at.kubelet.admit(held)
        identity = identity_of("uid-held", "main")
        at.fitted.clear()
        following = at.bind("next", memory=16 * GiB, core=100)
        with in_cgroups(*([main] if engine == "crio-" else [sandbox, main])):
            at.kubelet.known.remove(held)
            at.api.put("pods", held, event="DELETED")
            await until(lambda: at.agent.allocator.running_on)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await at.kubelet.admit(following)
            assert "memory-0" in refusal(caught)
            assert at.node.ledger.stands(identity)
        await until(lambda: not at.agent.allocator.running_on)
        assert not at.node.ledger.stands(identity)
        await at.kubelet.admit(following)


async def test_a_sandbox_that_is_left_of_a_pod_keeps_no_card_from_the_next() -> None:
    """Kubelets before 1.22 say that a pod has ended while they end its sandbox."""
    async with world(16 * GiB) as at:
        held = at.bind("held", memory=16 * GiB, core=100)
        await at.kubelet.admit(held)
        with in_cgroups(cgroup("uid-held"), cgroup("uid-another", "b")):
            at.kubelet.forget(held)
            at.api.put("pods", {**held, "status": {"phase": "Succeeded"}})
            identity = identity_of("uid-held", "main")
            await until(lambda: not at.node.ledger.stands(identity))
            assert {} == at.agent.allocator.running_on


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
async def test_no_claim_is_taken_back_while_a_container_that_changed_its_root_runs_with_it(
    *, late: bool, restarted: bool
) -> None:
    """Of a claim's later pods a kubelet tells the agent nothing: the API does."""
    async with dra_world() as at:
        allocated(at, "gone", memory="1Gi", cores="10")
        assert "" == (await prepare(at, "gone")).error
        identity, name = node_claims.identity_of("u-gone"), "gone"
        if late:
            name, user = "later", pod_named("later")
            user["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": "gone"}]
            at.api.put("pods", user, event="ADDED")
            await until(lambda: "uid-later" in at.node.ledger.notes(identity))
        if restarted:
            await at.crash()
            await at.start()
        for gone in {"gone", name}:
            at.api.put("pods", at.api.pods["default", gone], event="DELETED")
        del at.api.claims["gone"]
        driver = at.driver
        uid = f"uid-{name}"
        with in_cgroups(cgroup(uid), cgroup(uid, "b")):
            await driver.claims.reconcile()
            assert "" == await unprepare(at, "gone")
            assert at.node.ledger.stands(identity)
        await driver.claims.reconcile()
        assert not at.node.ledger.stands(identity)


@pytest.mark.parametrize("admin", [False, True])
async def test_no_claim_is_taken_back_while_a_container_runs_with_it(
    monkeypatch: pytest.MonkeyPatch, *, admin: bool
) -> None:
    """A pod that is deleted by force is gone before its containers are, and so is its claim."""
    monkeypatch.setattr(node_claims, "_DEVICE_WAIT_S", 0.2)

    async with dra_world() as at:
        driver = at.driver
        for name in ("gone", "moved"):
            allocated(at, name, memory="1Gi", cores="10")
            assert "" == (await prepare(at, name)).error
        del at.api.claims["gone"]
        (result,) = at.api.claims["moved"]["status"]["allocation"]["devices"]["results"]
        result["device"] = "memory-1"
        if admin:
            result["adminAccess"] = True
        both = [node_claims.identity_of(f"u-{name}") for name in ("gone", "moved")]
        with container(at.node.ledger, both[0]), container(at.node.ledger, both[1]):
            await driver.claims.reconcile()
            assert "a container runs on with the devices that" in (await prepare(at, "moved")).error
            assert all(map(at.node.ledger.stands, both))
        await driver.claims.reconcile()
        assert "" == (await prepare(at, "moved")).error
        assert [False, not admin] == [*map(at.node.ledger.stands, both)]


async def test_what_a_kubelet_unprepares_before_it_ends_the_container_goes_soon_after_it() -> None:
    """One of 1.36.2 does so of some pods that are deleted by force, and does not ask again.

    While another pod has the claim there is nothing to wait for.
    """
    async with dra_world() as at:
        identities = {name: node_claims.identity_of(f"u-{name}") for name in ("goes", "stays")}
        for name in identities:
            allocated(at, name, memory="1Gi", cores="10")
            assert "" == (await prepare(at, name)).error
        claims = at.driver.claims
        with container(at.node.ledger, identities["stays"]):
            with container(at.node.ledger, identities["goes"]):
                at.api.put("pods", at.api.pods["default", "goes"], event="DELETED")
                for name in identities:
                    assert "" == await unprepare(at, name)
                await until(
                    lambda: {"u-goes"} == claims.ending
                )  # its pod is gone, and not yet its claim
                at.api.claims["goes"]["status"] = {}
                await claims.reconcile()
                assert {"u-goes"} == claims.ending
            await until(lambda: not at.node.ledger.stands(identities["goes"]))
            assert set() == claims.ending
            assert at.node.ledger.stands(identities["stays"])


@pytest.mark.parametrize("over", ["deleted", "Failed"])
async def test_what_a_kubelet_unprepares_before_its_pod_is_over_goes_soon_after_its_container(
    over: str,
) -> None:
    async with dra_world() as at:
        claims, identity = at.driver.claims, node_claims.identity_of("u-one")
        allocated(at, "one", memory="1Gi", cores="10")
        assert "" == (await prepare(at, "one")).error
        with container(at.node.ledger, identity):
            assert "" == await unprepare(at, "one")
            await until(lambda: not claims.ending)  # its pod is there
            pod = at.api.pods["default", "one"]
            if over == "deleted":
                at.api.put("pods", pod, event="DELETED")
            else:
                at.api.put("pods", {**pod, "status": {"phase": over}})
            await until(lambda: {"u-one"} == claims.ending)
            at.api.claims["one"]["status"] = {}
        await until(lambda: not at.node.ledger.stands(identity))
        assert set() == claims.ending


async def test_while_a_claim_ends_no_other_claim_is_read_each_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent, "RETRY_S", 0.1)
    read: Counter[str] = Counter()
    get = Api.get

    async def counted(self: Api, path: str, *more: Any) -> Any:
        read[path.rpartition("/")[2]] += 1
        return await get(self, path, *more)

    monkeypatch.setattr(Api, "get", counted)

    async with dra_world() as at:
        for name in ("ends", "stays"):
            allocated(at, name, memory="1Gi", cores="10")
            assert "" == (await prepare(at, name)).error
        with container(at.node.ledger, node_claims.identity_of("u-ends")):
            at.api.put("pods", at.api.pods["default", "ends"], event="DELETED")
            assert "" == await unprepare(at, "ends")
            read.clear()
            await until(lambda: read["ends"] > 8)
            assert read["stays"] < 5  # as the pod went, and as the claim was unprepared


async def test_no_claim_is_taken_back_by_an_answer_from_before_it_was_prepared() -> None:
    async with dra_world() as at:
        claims, identity = at.driver.claims, node_claims.identity_of("u-one")
        status = allocated(at, "one", memory="1Gi", cores="10")["status"]
        assert "" == (await prepare(at, "one")).error
        async with claims.alone("u-one"):
            at.api.claims["one"]["status"] = {}
            reconciling = asyncio.ensure_future(claims.reconcile())
            await asyncio.sleep(0.5)
            at.api.claims["one"]["status"] = status
        await reconciling
        assert at.node.ledger.stands(identity)


@pytest.mark.parametrize("why", ["slow", "fails", "unsaid"])
async def test_an_agent_that_starts_publishes_no_card_that_is_held_before_it_knows(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that is sent there meanwhile fails."""
    reconcile, read_pod, looks, tries = Allocator.reconcile, pod.read_pod, [0], [0]
    publish, hindered = InventoryPublisher.publish, asyncio.Event()

    async def counted(self: InventoryPublisher, *contents: Any) -> None:
        await publish(self, *contents)
        looks[0] += self.published is not None  # the API has told what the node has

    async def late(self: Allocator) -> None:
        tries[0] += 1
        if hindered.is_set() and why == "slow":
            await asyncio.sleep(0.1)
            self.reconcile_due.set()
        elif hindered.is_set() and why == "fails":
            raise OSError("told to fail")
        else:
            await reconcile(self)

    async def unsaid(*about: Any) -> Any:
        if hindered.is_set() and why == "unsaid":
            raise ApiError("GET pod", 500, "told to fail")
        return await read_pod(*about)

    monkeypatch.setattr(InventoryPublisher, "publish", counted)
    monkeypatch.setattr(agent, "RETRY_S", 0.1)
    monkeypatch.setattr(allocator, "_RECHECK_S", 0.1)
    monkeypatch.setattr(Allocator, "reconcile", late)
    monkeypatch.setattr(node_pods, "read_pod", unsaid)

    async with world(16 * GiB) as at:
        held = at.bind("held", memory=16 * GiB, core=100)
        await at.kubelet.admit(held)
        identity = identity_of("uid-held", "main")
        with container(at.node.ledger, identity):
            at.api.put("pods", held, event="DELETED")
            await until(lambda: "uid-held" in published(at))
            assert "default" == published(at)["uid-held"].namespace
            await at.crash()
            hindered.set()
            looks[0] = tries[0] = 0
            await at.start()
            await until(lambda: looks[0] >= 3 and tries[0] >= 3)
            assert "uid-held" in published(at)
            hindered.clear()
            await until(lambda: at.agent.allocator.running_on)
            looks[0] = 0
            await until(lambda: looks[0] >= 2)
            assert "uid-held" in published(at)
            hindered.set()  # what is known by now is forgotten by no failure
            tries[0] = looks[0] = 0
            await until(lambda: looks[0] >= 3 and tries[0])
            assert "uid-held" in published(at)
            hindered.clear()
        at.agent.allocator.reconcile_due.set()
        await until(lambda: not published(at))


async def test_an_agent_that_cannot_know_what_runs_on_publishes_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fails(_: Allocator) -> None:
        raise OSError("told to fail")

    monkeypatch.setattr(inventory_publisher, "FIRST_WAIT_S", 1.0)
    monkeypatch.setattr(Allocator, "reconcile", fails)

    async with world(16 * GiB) as at:
        await until(lambda: INVENTORY in at.api.nodes["n1"]["metadata"].get("annotations", {}))
        assert not at.agent.allocator.reconciled


def piece(uuid: str, **takes: int) -> DeviceAllocation:
    return DeviceAllocation(device=uuid, vendor="nvidia", takes=takes)


def alone(*pieces: DeviceAllocation, namespace: str = "default") -> RunsOn:
    """Return a pod whose one container has these pieces and runs on."""
    containers = (("main", ContainerKind.MAIN, Allocation(pieces=pieces)),)
    return RunsOn(namespace=namespace, pod="pod", containers=containers)


def published(at: World) -> Held:
    """Return what the node's inventory says that containers hold whose pods are over."""
    notes = at.api.nodes["n1"]["metadata"].get("annotations", {})
    return read_inventory(notes[INVENTORY], node="n1")[1].ended_pods if INVENTORY in notes else {}


async def test_what_a_container_of_an_ended_pod_holds_is_not_offered_until_its_node_says() -> None:
    """A pod that is deleted by force is gone before its containers are."""
    async with scenario(n1=(card("GPU-1"),)) as it:
        most = {"nvidia.com/gpumem": "12000"}
        it.pod("held", most)
        assert {} == await it.bind("held", "n1")
        held = it.given("held")
        assert held is not None
        ((_, allocation),) = held.containers
        runs_on = {"uid-held": alone(*allocation.pieces)}
        it.api.delete(f"{PODS}/held")
        it.publish("n1", card("GPU-1"), running_on=runs_on)
        answer = await it.call("filter", Pod=it.pod("next", most), NodeNames=["n1"])

        assert {"n1": "lack memory on one device"} == answer["FailedNodes"]
        less = {"nvidia.com/gpumem": "3000"}
        answer = await it.call("filter", Pod=it.pod("less", less), NodeNames=["n1"])
        assert ["n1"] == answer["NodeNames"]
        it.scheduler.pods.listed([read(Pod, it.api.objects[f"{PODS}/next"])])
        answer = await it.call("filter", Pod=it.pod("next", most), NodeNames=["n1"])
        assert [] == answer["NodeNames"]
        it.publish("n1", card("GPU-1"))
        answer = await it.call("filter", Pod=it.pod("next", most), NodeNames=["n1"])
        assert ["n1"] == answer["NodeNames"]
        it.publish("n1", card("GPU-1"), running_on=runs_on)
        it.api.delete("/api/v1/nodes/n1")
        assert {} == it.scheduler.cache.standing


async def test_a_pod_that_runs_on_takes_in_cache_and_quota_what_it_took_before() -> None:
    first, main = (
        (name, kind, Allocation(pieces=(piece("GPU-1", memory=gib * GiB, slots=1),)))
        for name, kind, gib in (("first", ContainerKind.INIT, 6), ("main", ContainerKind.MAIN, 4))
    )
    runs_on = RunsOn(namespace="default", pod="pod", containers=(first, main))
    async with scenario(n1=(card("GPU-1"),)) as it:
        free = it.scheduler.cache.free("n1")["GPU-1"]["memory"]
        it.publish("n1", card("GPU-1"), running_on={"uid-pod": runs_on})

        assert 6 * GiB == free - it.scheduler.cache.free("n1")["GPU-1"]["memory"]
        assert 6 * 1024 == it.scheduler.quotas.quotas.used["default"]["nvidia.com/gpumem"]


async def test_a_pod_that_runs_on_is_in_the_cluster_s_view_by_its_containers() -> None:
    async with world(16 * GiB) as at:
        pod = with_init(at, "held", init=9 * GiB, main=6 * GiB)
        await at.kubelet.admit(pod)
        with in_cgroups(cgroup("uid-held", engine="crio-")):
            at.api.put("pods", pod, event="DELETED")
            await until(lambda: "uid-held" in published(at))
            async with Api(Access(server=at.url)).open() as api:
                view = await snapshot(api)
            ((row,),) = (node.devices for node in view.nodes)
            assert 9 * GiB == row.held["memory"]
            assert ["default/held/first", "default/held/main"] == sorted(row.grants)
            assert {("held", "first", "runs on"), ("held", "main", "runs on")} == {
                (one.pod_name, one.container_name, one.phase) for one in view.containers
            }


async def test_a_container_gets_no_slot_of_one_that_runs_on() -> None:
    """A kubelet takes the slots of a pod that was deleted by force for free."""
    async with world(16 * GiB) as at:
        held, following = at.bind("held", memory=GiB), at.bind("next", memory=GiB)
        await at.kubelet.admit(held)
        (_, held_ids) = at.kubelet.held["default/held", "main"]
        with in_cgroups(cgroup("uid-held", engine="crio-")):
            at.kubelet.forget(held)
            at.api.put("pods", held, event="DELETED")
            await until(lambda: at.agent.allocator.running_on)
            await at.kubelet.admit(following)
            (_, next_ids) = at.kubelet.held["default/next", "main"]
            assert {*held_ids}.isdisjoint(next_ids)
            await at.kubelet.start_container(following, "main")


def with_init(at: World, name: str, *, init: int, main: int) -> dict[str, Any]:
    """Bind a pod whose init container and main container have so many bytes each."""
    given = (("main", at.fit(memory=main)), ("first", at.fit(memory=init)))
    pod = pod_named(name, "main")
    pod["spec"]["initContainers"] = [{"name": "first", "resources": {"limits": {CARD: "1"}}}]
    pod["metadata"]["annotations"] = signed_assignment(
        Assignment(node="n1", uid=f"uid-{name}", containers=given), KEY
    )
    at.api.put("pods", pod, event="ADDED")
    return pod


async def test_quotas_count_what_runs_on_of_a_pod_that_was_deleted_by_force(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else who deletes by force, again and again, has more than its namespace may."""
    monkeypatch.setattr(standing_pods, "UNCONFIRMED_S", 0.3)
    state = {"containerStatuses": [{"name": "main", "state": {"running": {}}}]}

    async with scenario(n1=(card("GPU-1"),)) as it:
        allow(it.api, {"limits.nvidia.com/gpumem": "8000"})

        async def refusal_of(name: str) -> str:
            pod = it.pod(name, {"nvidia.com/gpumem": "4000"})
            answer = await it.call("filter", Pod=pod, NodeNames=["n1"])
            return str(answer["FailedNodes"].get("n1"))

        def quota() -> int:
            return it.scheduler.quotas.quotas.used["default"]["nvidia.com/gpumem"]

        async def deleted(name: str) -> None:
            await refusal_of(name)
            assert {} == await it.bind(name, "n1")
            bound = it.api.objects[f"{PODS}/{name}"]
            it.api.put_now(f"{PODS}/{name}", {**bound, "status": {"phase": "Running", **state}})
            it.api.delete(f"{PODS}/{name}")

        await deleted("silent")
        assert 4000 == quota()
        await until(lambda: not quota())  # nothing runs on, so its node says nothing

        monkeypatch.setattr(standing_pods, "UNCONFIRMED_S", 600.0)
        for name in ("first", "second"):
            await deleted(name)
        assert "(nvidia.com/gpumem: 8000 allowed, 8000 used, 4000 asked)" in await refusal_of(
            "more"
        )
        it.scheduler.pods.listed([])
        assert 8000 == quota()
        runs_on = {
            f"uid-{name}": alone(piece("GPU-1", memory=4000 * MiB, slots=1))
            for name in ("first", "second")
        }
        it.publish("n1", card("GPU-1"), running_on=runs_on)
        assert 8000 == quota()
        it.publish("n1", card("GPU-1"))
        assert 0 == quota()
        waits = f"{PODS}/more"
        await until(lambda: AGAIN in it.api.objects[waits]["metadata"].get("annotations", ()))
        lie = alone(piece("GPU-1", memory=2**60), piece("GPU-2", memory=1), namespace="theirs")
        it.publish("n1", card("GPU-1"), running_on={"one": lie, "two": lie})
        assert 0 == quota()
        assert 16384 == it.scheduler.quotas.quotas.used["theirs"]["nvidia.com/gpumem"]  # all it has
