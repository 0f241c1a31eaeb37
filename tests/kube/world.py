"""A node in this process: its agent between a kubelet and an API server, on the real protocols."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from attrs import define, evolve, field

from hetero.kube.agent import agent
from hetero.kube.agent.agent import Agent, Options
from hetero.kube.agent.duty import Duty
from hetero.kube.agent.node_cards import NodeCards
from hetero.kube.client.api import Access, Api
from hetero.kube.dra.driver import DraDriver
from hetero.kube.dra.way import AllocationWay
from hetero.kube.words.annotations import Assignment, signed_assignment
from hetero.kube.words.signing import SigningKey
from hetero.model import Allocation, Ask, Enforcement, Inventory, OnBypass, Request, Selector
from hetero.model.units import GiB
from hetero.node.card_book import CardBook
from hetero.node.ledger.grant_dir import GRANT
from hetero.node.ledger.ledger import Ledger
from hetero.node.node import Node
from hetero.node.settings import NodeSettings
from hetero.node.tenants import containers
from hetero.placement import fit
from hetero.plugin.resource_names import MeantDevices, ResourceNames
from hetero.registry.registry import Registry
from hetero.testing import MemoryVendor, rack
from tests.kube.api_server import FakeApi, Plain
from tests.kube.kubelet import FakeKubelet
from tests.programs import next_line

CARD = "example.com/card"
KEY = SigningKey.new()
#: Seconds between two looks of the agents here: what takes two of them is soon seen.
DISCOVER = 0.4


@define(eq=False)
class World:
    """One node of two cards with its kubelet, its API server and, while it runs, its agent."""

    path: Path
    vendor: MemoryVendor
    api: FakeApi = field(factory=FakeApi)
    kubelet: FakeKubelet = field(init=False)
    node: Node = field(init=False)
    fitted: list[Allocation] = field(factory=list)
    url: str = ""
    agent: Agent = field(init=False)
    config: Path | None = None
    awaited: str = CARD
    registry: Registry | None = None
    allocation: AllocationWay = AllocationWay.CLASSIC
    autoscaler: bool = False
    settings: NodeSettings = field(factory=NodeSettings)
    _running: asyncio.Task[None] | None = None
    _threads: ThreadPoolExecutor = field(factory=ThreadPoolExecutor)

    def __attrs_post_init__(self) -> None:
        self.kubelet = FakeKubelet(self.path / "kubelet")
        self.node = Node(
            registry=self.registry or Registry.of(self.vendor),
            ledger=Ledger(self.path / "state", persistent=self.path / "kept"),
            cards=CardBook(self.path / "kept"),
            settings=self.settings,
        )
        (self.path / "token").write_text("n1")
        (self.path / "keys.pem").write_text(KEY.public.text())
        self.api.put("nodes", {"metadata": {"name": "n1", "uid": "uid-n1"}}, event="ADDED")

    @property
    def driver(self) -> DraDriver:
        """What the agent gives claims by."""
        assert self.agent.driver is not None
        return self.agent.driver

    async def start(self) -> None:
        """Start the agent and wait until it serves."""
        running = asyncio.Event()
        self.kubelet.devices.clear()
        asyncio.get_running_loop().set_default_executor(self._threads)

        async def run() -> None:
            async with Api(Access(server=self.url)).open() as api:
                options = Options(
                    name="n1",
                    kubelet=self.kubelet.path,
                    libraries=self.path / "lib",
                    public_keys=str(self.path / "keys.pem"),
                    token_file=self.path / "token",
                    config=self.config,
                    allocation=self.allocation,
                    cdi=self.path / "cdi",
                    autoscaler=self.autoscaler,
                )
                self.agent = Agent(
                    self.node, options, api, NodeCards(self.node, "n1", self.node.discover())
                )
                running.set()
                await self.agent.run()

        self._running = asyncio.ensure_future(Duty(self.node.ledger.path).keep(run))
        await running.wait()
        claims = self.allocation is AllocationWay.DRA
        await until(lambda: claims or self.awaited in self.kubelet.devices)

    @asynccontextmanager
    async def overtaken(self) -> AsyncIterator[None]:
        """Have another agent begin on the node while the first lives on; it ends with the block."""
        first, self._running = self._running, None
        await self.start()
        try:
            yield
        finally:
            await self.crash()
            self._running = first

    async def crash(self) -> None:
        """End the agent at once; nothing is told to anybody. A dead process has no threads."""
        if self._running is not None:
            self._running.cancel()
            with suppress(asyncio.CancelledError):
                await self._running
        ended, self._threads = self._threads, ThreadPoolExecutor()
        asyncio.get_running_loop().set_default_executor(self._threads)
        await asyncio.to_thread(ended.shutdown)

    def bind(
        self, name: str, *containers: str, node: str = "n1", card: str = CARD, **asked: Any
    ) -> Plain:
        """Put a pod on the node with a signed allocation for each container, as the scheduler."""
        uid = f"uid-{name}"
        given = tuple((one, self.fit(**asked)) for one in containers or ("main",))
        signed = signed_assignment(
            Assignment(node=node, uid=uid, containers=given),
            KEY,
        )
        count = asked.get("count", 1)
        pod = pod_named(name, *(containers or ("main",)), count=count, card=card)
        pod["metadata"]["annotations"] = signed
        self.api.put("pods", pod, event="ADDED")
        return pod

    def fit(
        self,
        *,
        memory: int = GiB,
        core: int = 10,
        count: int = 1,
        vendor: Selector | None = None,
        on_bypass: OnBypass | None = None,
    ) -> Allocation:
        """Return what the packing core gives beside all it gave before."""
        asks = (Ask(memory=memory, core=core),) * count
        answer = fit(
            Inventory(self.node.discover().devices, tuple(self.fitted)),
            Request(on_bypass=on_bypass, asks=asks, vendor=vendor or Selector()),
        )
        assert isinstance(answer, Allocation), answer
        self.fitted.append(answer)
        return answer

    def standing(self) -> dict[str, Allocation]:
        """Return what stands for a pod, by pod and container; not what is still being made."""
        snapshot = self.node.snapshot()
        assert snapshot.unreadable == ()
        return {str(entry.label): entry.allocation for entry in snapshot.grants if entry.owner}

    def remembered(self) -> set[str]:
        """Return the ids of the grants that the kubelet has paths to which outlive a boot."""
        return {path.name for path in (self.path / "kept/remembered").glob("*")}

    def given(self) -> list[str]:
        """Return the pods and containers that were given what stands for them."""
        entries = self.node.snapshot().grants
        return [str(entry.label) for entry in entries if self.node.ledger.notes(entry.id)]


def pod_named(name: str, *containers: str, count: int = 1, card: str = CARD) -> Plain:
    limits = {"limits": {card: str(count)}}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": one, "resources": limits} for one in containers],
        },
        "status": {"phase": "Pending"},
    }


@contextmanager
def container(ledger: Ledger, identity: str) -> Iterator[None]:
    """Have a process see a grant as its container does, until this is left."""
    alone = () if os.geteuid() == 0 else ("unshare", "--map-root-user")
    program = "import os, sys; os.chroot(sys.argv[1]); print(flush=True); sys.stdin.read()"
    with tempfile.TemporaryDirectory(dir=ledger.path.parent) as root:
        seen = Path(root) / "etc/hetero/grant"
        seen.parent.mkdir(parents=True)
        os.link(ledger.directory(identity) / GRANT, seen)
        argv = [*alone, sys.executable, "-S", "-c", program, root]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin
            assert next_line(process), "it has no root of its own"
            try:
                yield
            finally:
                process.stdin.close()
                process.wait(10)


@contextmanager
def in_cgroups(*names: str) -> Iterator[None]:
    """Have a process in each of these cgroups that sees no grant, until this is left."""
    program = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
    with ExitStack() as stack:
        cgroups: dict[int, str] = {}
        for name in names:
            process = stack.enter_context(subprocess.Popen(program, stdin=subprocess.PIPE))
            stack.callback(process.wait, 10)
            assert process.stdin
            stack.callback(process.stdin.close)
            cgroups[process.pid] = name
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(containers, "container_cgroup", cgroups.get)
        yield


def cgroup(uid: str, digit: str = "a", *, engine: str = "cri-containerd-") -> str:
    """Return the cgroup of a pod's container as systemd names it."""
    pod = f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"
    return f"/kubepods.slice/kubepods-burstable.slice/{pod}/{engine}{digit * 64}.scope"


async def until(true: Callable[[], object], *, seconds: float = 60) -> None:
    """Wait until something is true; a test fails when it never is."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not true():
        assert asyncio.get_running_loop().time() < deadline, "waited in vain"
        await asyncio.sleep(0.02)


async def cut_short(begin: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[int]:
    """Begin something again and again, and cancel it one step of the event loop later each time."""
    for steps in range(20):
        begun = asyncio.ensure_future(begin())
        for _ in range(steps):
            await asyncio.sleep(0)
        begun.cancel()
        with suppress(asyncio.CancelledError):
            await begun
        yield steps


@asynccontextmanager
async def world(
    *memory: int,
    slots: int = 10,
    named_shapes: tuple[str, ...] = (),
    registry: Registry | None = None,
    awaited: str = CARD,
    allocation: AllocationWay = AllocationWay.CLASSIC,
    names: ResourceNames | None = None,
    autoscaler: bool = False,
    look_s: float = DISCOVER,
    context_bytes: int = 0,
    settings: NodeSettings | None = None,
) -> AsyncIterator[World]:
    """Run the world of a vendor in memory, or of those of a registry, until it is left.

    Its agent looks at the cards every `look_s` seconds.
    """
    kept_by = Enforcement.PRELOAD if context_bytes else Enforcement.NONE
    cards = rack(*(memory or (16 * GiB, 16 * GiB)), slots=slots, numa=1, enforcement=kept_by)
    vendor = MemoryVendor(cards, limiter="cuda")
    shapes = (
        ResourceNames(count=f"example.com/{shape}", devices=MeantDevices(shape=shape))
        for shape in named_shapes
    )
    vendor._vendor = evolve(
        vendor._vendor,
        resource_names=(names or ResourceNames(count=CARD), *shapes),
        context_bytes=context_bytes,
    )
    # Not pytest's directory: a socket's path has at most 107 characters. grpc waits for no handler
    # that it cancelled: one may still write while the directory is removed.
    with tempfile.TemporaryDirectory(prefix="k", ignore_cleanup_errors=True) as path:
        made = World(
            Path(path),
            vendor,
            awaited=awaited,
            registry=registry,
            allocation=allocation,
            autoscaler=autoscaler,
            settings=settings or NodeSettings(),
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(agent, "DISCOVERY_PERIOD_S", look_s)
            async with made.api.serve() as made.url:
                await made.kubelet.start()
                await made.start()
                try:
                    yield made
                finally:
                    await made.crash()
                    await made.kubelet.stop()


async def never_starts(at: World, pod: Plain) -> str:
    """Admit a pod, which fails nothing, and return why its last container cannot start.

    What the kubelet is answered lets no runtime start the container, and shows it no card.
    """
    answers = await at.kubelet.admit(pod)
    name, answer = [*answers.items()][-1]
    (mount,) = answer.mounts
    with pytest.raises(NotADirectoryError):
        Path(mount.host_path).mkdir(parents=True)
    assert {} == answer.envs
    assert [] == [*answer.devices, *answer.cdi_devices]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await at.kubelet.start_container(pod, name)
    return refusal(caught)


def run(story: Callable[[], Awaitable[None]], *, seconds: float = 180) -> None:
    asyncio.run(asyncio.wait_for(story(), seconds))


def refusal(caught: pytest.ExceptionInfo[grpc.aio.AioRpcError]) -> str:
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    return str(caught.value.details())
