"""The agent between a kubelet and an API server, both in this process, on the real protocols."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from attrs import define, evolve, field
from prometheus_client import generate_latest

from hetero.fit import fit
from hetero.kube import wire
from hetero.kube.agent import Agent, Options, node_of
from hetero.kube.api import Access, Api
from hetero.kube.proto import deviceplugin_pb2 as plugin_wire
from hetero.model import (
    CORE,
    MEMORY,
    SLOTS,
    Allocation,
    Ask,
    Grant,
    Inventory,
    Request,
    Rung,
    Template,
    Templated,
    Usage,
)
from hetero.node.grant import Limit, read_limits
from hetero.node.ledger import Ledger
from hetero.node.node import Node
from hetero.node.tenant import USAGE
from hetero.registry import Registry
from hetero.testing import MemoryVendor, rack
from hetero.units import GiB, MiB
from hetero.words import Words
from tests.kube.api_server import FakeApi, Plain
from tests.kube.kubelet import FakeKubelet

CARD = "example.com/card"
SECRET = b"0123456789abcdef"


@define(eq=False)
class World:
    """One node of two cards with its kubelet, its API server and, while it runs, its agent."""

    path: Path
    vendor: MemoryVendor
    api: FakeApi = field(factory=FakeApi)
    kubelet: FakeKubelet = field(init=False)
    node: Node = field(init=False)
    given: list[Allocation] = field(factory=list)
    url: str = ""
    agent: Agent = field(init=False)
    config: Path | None = None
    awaited: str = CARD
    _running: asyncio.Task[None] | None = None

    def __attrs_post_init__(self) -> None:
        self.kubelet = FakeKubelet(self.path / "kubelet")
        self.node = Node(registry=Registry.of(self.vendor), ledger=Ledger(self.path / "state"))
        (self.path / "key").write_bytes(SECRET)
        self.api.put("nodes", {"metadata": {"name": "n1"}}, event="ADDED")

    async def start(self) -> None:
        """Start the agent and wait until it serves."""
        running = asyncio.Event()
        self.kubelet.devices.clear()

        async def run() -> None:
            async with Api(Access(server=self.url)).open() as api:
                options = Options(
                    name="n1",
                    kubelet=self.kubelet.path,
                    libraries=self.path / "lib",
                    key_file=str(self.path / "key"),
                    config=self.config,
                )
                self.agent = Agent(self.node, options, api, self.node.discover())
                running.set()
                await self.agent.run()

        self._running = asyncio.ensure_future(run())
        await running.wait()
        await until(lambda: self.awaited in self.kubelet.devices)

    async def crash(self) -> None:
        """End the agent at once; nothing is told to anybody."""
        if self._running is not None:
            self._running.cancel()
            with suppress(asyncio.CancelledError):
                await self._running

    def bind(self, name: str, *containers: str, node: str = "n1", **asked: Any) -> Plain:
        """Put a pod on the node with a signed allocation for each container, as the scheduler."""
        uid = f"uid-{name}"
        given = tuple((one, self.fit(**asked)) for one in containers or ("main",))
        signed = wire.signed(
            wire.Assignment(node=node, uid=uid, containers=given), wire.Key(secret=SECRET)
        )
        pod = pod_named(name, *(containers or ("main",)), count=asked.get("count", 1))
        pod["metadata"]["annotations"] = signed
        self.api.put("pods", pod, event="ADDED")
        return pod

    def fit(self, *, memory: int = GiB, core: int = 10, count: int = 1) -> Allocation:
        """Return what the packing core gives beside all it gave before."""
        answer = fit(
            Inventory(self.node.discover().devices, tuple(self.given)),
            Request(asks=(Ask(memory=memory, core=core),) * count),
        )
        assert isinstance(answer, Allocation), answer
        self.given.append(answer)
        return answer

    def standing(self) -> dict[str, Allocation]:
        """Return what stands, by pod and container."""
        look = self.node.look()
        assert look.unreadable == ()
        return {str(entry.label): entry.allocation for entry in look.standing}


def pod_named(name: str, *containers: str, count: int = 1) -> Plain:
    limits = {"limits": {CARD: str(count)}}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": one, "resources": limits} for one in containers],
        },
        "status": {"phase": "Pending"},
    }


async def until(true: Callable[[], object], *, seconds: float = 10) -> None:
    """Wait until something is true; a test fails when it never is."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not true():
        assert asyncio.get_running_loop().time() < deadline, "waited in vain"
        await asyncio.sleep(0.02)


@asynccontextmanager
async def world(*memory: int, slots: int = 10, words: tuple[str, ...] = ()) -> AsyncIterator[World]:
    vendor = MemoryVendor(
        rack(*(memory or (16 * GiB, 16 * GiB)), slots=slots, numa=1), limiter="cuda"
    )
    shapes = (Words(count=f"example.com/{shape}", shape=shape) for shape in words)
    vendor._vendor = evolve(vendor._vendor, words=(Words(count=CARD), *shapes))
    # Not pytest's directory: a socket's path has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="k") as path:
        made = World(Path(path), vendor)
        async with made.api.serve() as made.url:
            await made.kubelet.start()
            await made.start()
            try:
                yield made
            finally:
                await made.crash()
                await made.kubelet.stop()


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 60))


def refusal(caught: pytest.ExceptionInfo[grpc.aio.AioRpcError]) -> str:
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    return str(caught.value.details())


# --- what a node offers ---------------------------------------------------------------------------


def test_every_slot_of_every_card_is_offered_with_its_numa_node() -> None:
    async def story() -> None:
        async with world(16 * GiB, slots=2) as at:
            assert {CARD} == set(at.kubelet.registered)
            assert {"memory-0::0": "Healthy", "memory-0::1": "Healthy"} == at.kubelet.devices[CARD]
            options = at.kubelet.registered[CARD].options
            assert (True, True) == (
                options.pre_start_required,
                options.get_preferred_allocation_available,
            )

    run(story)


def test_the_kubelet_is_told_of_cards_by_the_clusters_own_names() -> None:
    async def story() -> None:
        async with world(16 * GiB) as at:
            await at.crash()
            at.config = at.path / "settings.toml"
            at.config.write_text(f'[resources]\n"{CARD}" = "example.com/other"\n')
            at.awaited = "example.com/other"
            await at.start()

            assert 10 == len(at.kubelet.devices["example.com/other"])
            assert CARD not in at.kubelet.devices

    run(story)


def test_the_clusters_settings_say_how_often_a_node_gives_a_card(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(SECRET)
    (tmp_path / "settings.toml").write_text('[nodes."n*"]\ncards.split = 3\n')
    options = Options(
        name="n1",
        kubelet=tmp_path,
        libraries=tmp_path,
        key_file=str(tmp_path / "key"),
        config=tmp_path / "settings.toml",
    )
    vendor = MemoryVendor(rack(16 * GiB), limiter="cuda")
    node = evolve(node_of(options), registry=Registry.of(vendor))

    assert [3] == [device.capacity[SLOTS] for device in node.discover().devices]


def test_a_partitioned_card_is_offered_by_its_parts_and_by_each_shape_of_them() -> None:
    async def story() -> None:
        async with world(16 * GiB, words=("1g", "3g", "7g")) as at:
            parts = [("1g", 1, "a"), ("1g", 1, "b"), ("3g", 3, "c")]
            menu = tuple(
                Template(name, {CORE: core, MEMORY: core * GiB, name: 1}, part=part)
                for name, core, part in parts
            )
            at.vendor.devices[0] = evolve(
                at.vendor.devices[0],
                granularity=Templated(menu, whole=False),
                capacity={CORE: 7, MEMORY: 16 * GiB, SLOTS: 3, "1g": 2, "3g": 1},
            )
            await until(lambda: "example.com/3g" in at.kubelet.devices, seconds=5)
            offered = {name: len(ids) for name, ids in at.kubelet.devices.items()}

            assert {CARD: 3, "example.com/1g": 2, "example.com/3g": 1} == offered

    run(story)


def test_a_card_that_fails_is_unhealthy_at_the_kubelet_and_in_the_inventory() -> None:
    async def story() -> None:
        async with world() as at:
            at.vendor.devices[1] = evolve(at.vendor.devices[1], health="fell off the bus")
            await until(lambda: at.kubelet.devices[CARD]["memory-1::0"] == "Unhealthy", seconds=5)
            assert "Healthy" == at.kubelet.devices[CARD]["memory-0::0"]
            await until(lambda: "fell off" in json.dumps(at.api.nodes["n1"]))

    run(story)


def test_the_inventory_is_written_once_and_again_only_when_it_changes() -> None:
    async def story() -> None:
        async with world() as at:
            await until(lambda: at.api.writes == 1)
            text = at.api.nodes["n1"]["metadata"]["annotations"][wire.INVENTORY]
            assert at.node.discover().devices == wire.devices(text, node="n1")
            await asyncio.sleep(4.5)  # two looks
            assert 1 == at.api.writes
            await at.crash()
            await at.start()
            await asyncio.sleep(2.5)
            assert 1 == at.api.writes

    run(story)


def test_a_vendor_that_breaks_keeps_its_cards_unhealthy_with_the_reason() -> None:
    async def story() -> None:
        async with world() as at:
            at.vendor.devices = Failing(at.vendor.devices)
            await until(lambda: set(at.kubelet.devices[CARD].values()) == {"Unhealthy"}, seconds=5)
            await until(lambda: "does not answer" in json.dumps(at.api.nodes["n1"]))

    run(story)


class Failing(list[Any]):
    def __iter__(self) -> Any:
        raise RuntimeError("the driver does not answer")


def test_a_process_past_its_limiter_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with world() as at:
            at.vendor.devices[0] = evolve(at.vendor.devices[0], rung=Rung.PRELOAD)
            pod = at.bind("pod", memory=GiB)
            await at.kubelet.admit(pod)
            (entry,) = at.node.look().standing
            with (at.node.directory(entry.id) / USAGE).open("r+b") as usage:  # it is the grant's
                program = await asyncio.create_subprocess_exec("sleep", "60", stdin=usage)
            counts = {program.pid: 3 * GiB}
            at.vendor.usage["memory-0"] = Usage(memory=3 * GiB, core=None, processes=counts)
            await until(lambda: f"({program.pid}) holds 3072 MiB" in caplog.text, seconds=8)
            await asyncio.sleep(4)
            program.kill()
            await program.wait()
        told = [record.message for record in caplog.records if "past the limiter" in record.message]
        assert 1 == len(told)

    run(story)


@pytest.mark.parametrize(("said", "killed"), [("true", True), ("false", False)])
def test_active_oom_killer_ends_a_process_past_its_limiter(said: str, killed: bool) -> None:
    async def story() -> None:
        async with world() as at:
            at.vendor.devices[0] = evolve(at.vendor.devices[0], rung=Rung.PRELOAD)
            pod = at.bind("pod", memory=GiB)
            pod["spec"]["containers"][0]["env"] = [{"name": "ACTIVE_OOM_KILLER", "value": said}]
            at.api.put("pods", pod)
            await at.kubelet.admit(pod)
            (entry,) = at.node.look().standing
            with (at.node.directory(entry.id) / USAGE).open("r+b") as usage:  # it is the grant's
                program = await asyncio.create_subprocess_exec("sleep", "60", stdin=usage)
            other = await asyncio.create_subprocess_exec("sleep", "60")
            counts = {program.pid: 3 * GiB, other.pid: 3 * GiB}
            at.vendor.usage["memory-0"] = Usage(memory=6 * GiB, core=None, processes=counts)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(program.wait(), 10 if killed else 5)
            ended = program.returncode
            assert None is other.returncode  # it is nobody's here
            for one in (program, other):
                with suppress(ProcessLookupError):
                    one.kill()
                await one.wait()

            assert (-9 if killed else None) == ended

    run(story)


def test_it_registers_anew_within_two_seconds_of_a_kubelet_restart() -> None:
    async def story() -> None:
        async with world() as at:
            for _ in range(2):
                await at.kubelet.stop()
                at.kubelet = FakeKubelet(at.path / "kubelet")
                await at.kubelet.start()
                await until(lambda: CARD in at.kubelet.devices, seconds=2)

    run(story)


# --- giving a share -------------------------------------------------------------------------------


def test_a_container_gets_the_cards_the_scheduler_chose_and_its_grant() -> None:
    async def story() -> None:
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
                "/etc/hetero/turn.0": False,
                "/etc/hetero/libhetero-cuda.so": True,
                "/etc/ld.so.preload": True,
            } == {path: mount.read_only for path, mount in paths.items()}
            assert (Limit(name="memory-1", memory=3000 * MiB, core=3000),) == read_limits(
                Path(paths["/etc/hetero/grant"].host_path)
            )
            assert (
                "/etc/hetero/libhetero-cuda.so\n"
                == Path(paths["/etc/ld.so.preload"].host_path).read_text()
            )
            assert ["default/pod/main"] == list(at.standing())

    run(story)


def test_two_cards_for_one_container_are_two_grants_of_one_directory() -> None:
    async def story() -> None:
        async with world() as at:
            pod = at.bind("pod", count=2)
            answer = (await at.kubelet.admit(pod))["main"]
            await at.kubelet.start_container(pod, "main")

            visible = answer.envs["MEMORY_VISIBLE_DEVICES"].split(",")
            assert ["memory-0", "memory-1"] == sorted(visible)
            held = at.kubelet.held["default/pod", "main"][1]
            assert ["memory-0", "memory-1"] == sorted(map(wire.device_of, held))

    run(story)


def test_pods_that_look_alike_are_never_mistaken_for_each_other() -> None:
    """The kubelet admits them in another order than they were bound, and each gets its own."""

    async def story() -> None:
        async with world(4 * GiB, 4 * GiB, 4 * GiB, 4 * GiB) as at:
            pods = [at.bind(f"pod{n}", memory=4 * GiB, core=100) for n in range(4)]
            for pod in (pods[2], pods[0], pods[3], pods[1]):
                answer = (await at.kubelet.admit(pod))["main"]
                given = wire.assignment(
                    pod["metadata"]["annotations"],
                    wire.Key(secret=SECRET),
                    pod="pod",
                    uid=pod["metadata"]["uid"],
                    node="n1",
                )
                assert given is not None
                ((_, allocation),) = given.containers
                assert allocation.grants[0].device == answer.envs["MEMORY_VISIBLE_DEVICES"]
                await at.kubelet.start_container(pod, "main")

    run(story)


def test_whose_devices_were_preferred_is_not_given_those_of_another() -> None:
    """The kubelet asks what to prefer for one pod, gives it up, and admits another."""

    async def story() -> None:
        async with world(4 * GiB, 4 * GiB) as at:
            first, second = (at.bind(name, memory=4 * GiB, core=100) for name in ("one", "two"))
            at.kubelet.known.append(first)
            (preferred,) = await at.kubelet._choose(CARD, 1, [])
            at.kubelet.known.remove(first)
            at.kubelet.known.append(second)
            (other,) = {"memory-0::0", "memory-1::0"} - {preferred}
            async with at.kubelet._plugin(CARD) as plugin:
                request = plugin_wire.AllocateRequest()
                request.container_requests.add(devices_ids=[other])
                await plugin.Allocate(request)

            assert ["default/two/main"] == list(at.standing())

    run(story)


def test_the_api_may_know_of_a_pod_before_the_agent_heard_of_it() -> None:
    async def story() -> None:
        async with world() as at:
            pod = at.bind("pod")
            await at.kubelet.admit(pod)  # at once: the watch has told nothing yet

            assert ["default/pod/main"] == list(at.standing())

    run(story)


def test_an_init_container_makes_room_for_the_containers_after_it() -> None:
    async def story() -> None:
        async with world(16 * GiB) as at:
            uid = "uid-pod"
            whole = at.fit(memory=16 * GiB, core=100)
            pod = pod_named("pod", "main")
            pod["spec"]["initContainers"] = [
                {"name": "first", "resources": {"limits": {CARD: "1"}}}
            ]
            pod["metadata"]["annotations"] = wire.signed(
                wire.Assignment(node="n1", uid=uid, containers=(("main", whole), ("first", whole))),
                wire.Key(secret=SECRET),
            )
            at.api.put("pods", pod, event="ADDED")
            await at.kubelet.admit(pod)
            await at.kubelet.start_container(pod, "first")
            await at.kubelet.start_container(pod, "main")

            assert {"default/pod/first", "default/pod/main"} == set(at.standing())

    run(story)


# --- taking it back -------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["deleted", "Succeeded", "Failed"])
def test_a_share_ends_with_its_pod(end: str) -> None:
    async def story() -> None:
        async with world() as at:
            pod = at.bind("pod")
            await at.kubelet.admit(pod)
            if end == "deleted":
                at.api.put("pods", pod, event="DELETED")
            else:
                pod["status"]["phase"] = end
                at.api.put("pods", pod)
            await until(lambda: not at.standing())

    run(story)


def test_a_share_stands_while_the_agent_is_down_and_ends_when_it_is_back() -> None:
    async def story() -> None:
        async with world() as at:
            stays, goes = at.bind("stays"), at.bind("goes")
            await at.kubelet.admit(stays)
            await at.kubelet.admit(goes)
            await at.crash()
            at.api.put("pods", goes, event="DELETED")
            assert {"default/stays/main", "default/goes/main"} == set(at.standing())
            await at.start()
            await until(lambda: set(at.standing()) == {"default/stays/main"})

    run(story)


def test_shares_lost_in_a_reboot_are_given_again_when_their_containers_start() -> None:
    async def story() -> None:
        async with world() as at:
            pod = at.bind("pod", memory=2 * GiB)
            before = (await at.kubelet.admit(pod))["main"]
            ((label, given),) = at.standing().items()
            await at.crash()
            for entry in at.node.look().standing:
                at.node.ledger.let_go(entry.id)
            assert {} == at.standing()
            await at.start()
            await at.kubelet.start_container(pod, "main")  # the kubelet kept its own notes

            assert {label: given} == at.standing()
            for mount in before.mounts:
                assert Path(mount.host_path).exists(), mount

    run(story)


# --- identity -------------------------------------------------------------------------------------


def test_a_pod_without_an_allocation_is_refused() -> None:
    async def story() -> None:
        async with world() as at:
            pod = pod_named("pod", "main")
            at.api.put("pods", pod, event="ADDED")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await at.kubelet.admit(pod)

            assert "the scheduler gave container main no share" in refusal(caught)
            assert {} == at.standing()

    run(story)


@pytest.mark.parametrize("forgery", ["changed", "replayed", "signature"])
def test_a_forged_allocation_is_refused(forgery: str) -> None:
    async def story() -> None:
        async with world() as at:
            mine = at.bind("mine", memory=GiB)
            thief = pod_named("thief", "main")
            notes = dict(mine["metadata"]["annotations"])
            if forgery == "changed":
                thief = mine
                notes[wire.ALLOCATION] = notes[wire.ALLOCATION].replace(str(GiB), str(9 * GiB))
            elif forgery == "signature":
                notes[wire.SIGNATURE] = "0" * 64
            thief["metadata"]["annotations"] = notes
            at.api.put("pods", thief, event="MODIFIED")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await at.kubelet.admit(thief)

            assert "is not signed by this cluster's scheduler for this pod" in refusal(caught)
            assert {} == at.standing()

    run(story)


def test_a_container_that_got_anothers_devices_is_not_started() -> None:
    async def story() -> None:
        async with world() as at:
            one, other = at.bind("one"), at.bind("other")
            await at.kubelet.admit(one)
            await at.kubelet.admit(other)
            held = at.kubelet.held
            mine, theirs = ("default/one", "main"), ("default/other", "main")
            held[mine], held[theirs] = held[theirs], held[mine]
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await at.kubelet.start_container(one, "main")

            assert "which was given for default/other/main: it is not started" in refusal(caught)

    run(story)


def test_a_pod_of_another_node_gets_nothing_here() -> None:
    async def story() -> None:
        async with world() as at:
            pod = at.bind("pod", node="n2")
            pod["spec"]["nodeName"] = "n2"
            at.api.put("pods", pod)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await at.kubelet.admit(pod)

            assert "no pod waits for 1 example.com/card" in refusal(caught)

    run(story)


def test_what_does_not_fit_is_refused_whoever_signed_it() -> None:
    async def story() -> None:
        async with world(16 * GiB) as at:
            taken = Allocation(
                grants=(
                    Grant(
                        device="memory-0",
                        vendor="memory",
                        takes={CORE: 50, MEMORY: 12 * GiB, SLOTS: 1},
                        core=50,
                    ),
                )
            )
            for name in ("first", "second"):
                pod = pod_named(name, "main")
                pod["metadata"]["annotations"] = wire.signed(
                    wire.Assignment(node="n1", uid=f"uid-{name}", containers=(("main", taken),)),
                    wire.Key(secret=SECRET),
                )
                at.api.put("pods", pod, event="ADDED")
            await at.kubelet.admit(at.api.pods["default", "first"])
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await at.kubelet.admit(at.api.pods["default", "second"])

            assert "device memory-0 has not enough memory left" in refusal(caught)
            assert ["default/first/main"] == list(at.standing())

    run(story)


# --- metrics --------------------------------------------------------------------------------------


def test_metrics_tell_each_device_each_share_and_each_call() -> None:
    async def story() -> None:
        async with world() as at:
            pod = at.bind("pod", memory=2 * GiB, core=30)
            await at.kubelet.admit(pod)
            text = generate_latest(at.agent.metrics.registry).decode()
            lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
            device = 'Hostname="n1",UUID="memory-0",modelName="M1",vendor="memory"'
            labels = (
                'Hostname="n1",UUID="memory-0",container="main",modelName="M1",'
                'namespace="default",pod="pod",vendor="memory"'
            )

            allocated = lines[f"hetero_device_memory_allocated_bytes{{{device}}}"]
            assert 2.0 * GiB == float(allocated)
            assert 2.0 * GiB == float(lines[f"hetero_share_memory_limit_bytes{{{labels}}}"])
            assert 0.3 == float(lines[f"hetero_share_core_limit_ratio{{{labels}}}"])
            assert "1.0" == lines['hetero_agent_calls_total{call="allocate",result="ok"}']
            assert "1.0" == lines['hetero_vendor_up{vendor="memory"}']

    run(story)
