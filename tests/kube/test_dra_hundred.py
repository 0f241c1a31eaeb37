"""A hundred nodes' slices on a real API server, and a thousand claims of them."""

import asyncio
import json
import os
import ssl
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest
from attrs import evolve

from hetero.kube.client.api import Access, Api
from hetero.kube.dra.publisher import SLICES, Publisher
from hetero.kube.objects.kinds import Pod
from hetero.kube.words.annotations import NodeGrants
from hetero.kube.words.signing import SigningKey
from hetero.model import Device
from hetero.model.units import GiB
from hetero.testing import rack
from tests.kube.control_plane import TOKEN, ControlPlane, free_port, wait_for
from tests.kube.world import until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.parametrize("kubernetes", ["kube136"], indirect=True),
]

GROUP = "/apis/resource.k8s.io/v1"
NODES, CLAIMS = 100, 1000
#: Seconds: within the first all slices are there; in the second, and in ten minutes of a soak,
#: nothing is written.
PUBLISHED, QUIET = 5.0, 10.0


def devices(node: str) -> tuple[Device, ...]:
    """Return what a look at a node finds: eight cards, made anew each time."""
    return tuple(evolve(one, uuid=f"{node}-{one.index}") for one in rack(*[80 * GiB] * 8))


def access(plane: ControlPlane) -> Access:
    tls = ssl._create_unverified_context()
    return Access(server=f"https://127.0.0.1:{plane.port}", tls=tls, token=TOKEN)


async def publish_once(made: Publisher) -> None:
    offered = devices(made.node)
    numbers = {device.uuid: number for number, device in enumerate(offered)}
    await made.publish(offered, numbers, NodeGrants())


async def publish(made: Publisher) -> None:
    """Publish once the API has told what there is, as an agent does."""
    while not made.writes:
        await publish_once(made)
        await asyncio.sleep(0.1)


@asynccontextmanager
async def publishing(plane: ControlPlane, names: list[str]) -> AsyncIterator[list[Publisher]]:
    """Have a publisher for each of these nodes, which follows the node's slices meanwhile."""
    server = access(plane)
    async with AsyncExitStack() as opened:
        publishers = []
        for name in names:
            api = await opened.enter_async_context(Api(server).open())
            made = Publisher(api=api, node=name, names=lambda _: ())
            made.uid = (await api.get(f"/api/v1/nodes/{name}"))["metadata"]["uid"]
            publishers.append(made)
        following = [asyncio.ensure_future(one.follow()) for one in publishers]
        try:
            yield publishers
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)


async def look(publishers: list[Publisher]) -> None:
    """Look at all nodes every second, for ever."""
    while True:
        await asyncio.gather(*map(publish_once, publishers))
        await asyncio.sleep(1)


async def published(plane: ControlPlane, names: list[str], *, quiet: float) -> tuple[float, int]:
    """Return the seconds that the nodes' slices took, and what was written in `quiet` more."""
    async with publishing(plane, names) as publishers:
        began = time.monotonic()
        await asyncio.gather(*map(publish, publishers))
        took = time.monotonic() - began
        before = sum(one.writes for one in publishers)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(look(publishers), quiet)
        return took, sum(one.writes for one in publishers) - before


@pytest.mark.parametrize(
    "quiet",
    [QUIET, pytest.param(600.0, marks=[pytest.mark.soak, pytest.mark.timeout(900)])],
)
def test_a_hundred_nodes_are_published_within_seconds_and_written_no_more(
    plane: ControlPlane, quiet: float, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"n{number}" for number in range(NODES)]
    for name in names:
        plane.call("POST", "/api/v1/nodes", {"metadata": {"name": name}})
    took, written = asyncio.run(published(plane, names, quiet=quiet))
    after = f"{written} writes in the {quiet:.0f} s after"
    with capsys.disabled():
        print(f"\n{NODES} nodes published in {took:.1f} s, {after}")

    assert NODES == len(plane.call("GET", SLICES)["items"])
    assert PUBLISHED >= took
    assert 0 == written


@pytest.mark.measured
@pytest.mark.parametrize("calls", [50, 5000])
def test_a_thousand_claims_are_scheduled(
    plane: ControlPlane, calls: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """How fast is kube-scheduler's to say, and is printed; each card has room for ten.

    `calls` are those that it makes a second at most: 50 are its default.
    """
    names = [f"n{number}" for number in range(NODES)]
    for name in names:
        plane.add_node(name, {})
    start_extender(plane)
    start_scheduler(plane, calls=calls)
    selector = {"cel": {"expression": 'device.driver == "hetero.io"'}}
    body: Any = {"metadata": {"name": "hetero"}, "spec": {"selectors": [selector]}}
    plane.call("POST", f"{GROUP}/deviceclasses", body)
    made, took, used = asyncio.run(placed(plane, names))
    rate = f"{CLAIMS / took:.0f} a s"
    measured_part = sum(used[name] for name in ("extender", "this test")) / sum(used.values())
    with capsys.disabled():
        print(f"\n{CLAIMS} claims made in {made:.0f} s, scheduled in {took:.0f}: {rate}")
        print(f"load {os.getloadavg()[0]:.0f}; at most {calls} calls a second; processor seconds:")
        print(", ".join(f"{name} {seconds:.1f}" for name, seconds in used.items()))
        print(f"of these {measured_part:.0%} the extender's and this test's")

    assert [] == over_capacity(plane)


def start_extender(plane: ControlPlane) -> None:
    """Run the extender as it is where cards are given by claims: it counts what they hold."""
    key = plane.folder / "signing-key"
    key.write_bytes(SigningKey.new().text())
    plane.start(
        "extender",
        *(sys.executable, "-m", "hetero.cli", "scheduler", "--insecure", "--claims"),
        *("--host", "127.0.0.1", "--port", str(free_port())),
        env={"KUBECONFIG": str(plane.kubeconfig), "HETERO_KEY_FILE": str(key)},
    )
    wait_for(lambda: "serving on" in plane.log("extender"))


def start_scheduler(plane: ControlPlane, *, calls: int) -> None:
    """Run kube-scheduler with so many calls a second at most."""
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {
            "kubeconfig": str(plane.kubeconfig),
            "qps": calls,
            "burst": 2 * calls,
        },
        "leaderElection": {"leaderElect": False},
    }
    (plane.folder / "scheduler.json").write_text(json.dumps(config))
    plane.start(
        "scheduler",
        str(plane.binaries / "kube-scheduler"),
        f"--config={plane.folder / 'scheduler.json'}",
        "--bind-address=127.0.0.1",
        f"--secure-port={free_port()}",
    )


async def placed(plane: ControlPlane, names: list[str]) -> tuple[float, float, dict[str, float]]:
    """Have all claims placed while the nodes' publishers run.

    Return the seconds until all were made and until all were placed, and what each process used.
    """
    async with publishing(plane, names) as publishers:
        await asyncio.gather(*map(publish, publishers))
        looking = asyncio.ensure_future(look(publishers))
        before, began = processor_seconds(plane), time.monotonic()
        made = await asked(plane)
        took = time.monotonic() - began
        used = {name: now - before[name] for name, now in processor_seconds(plane).items()}
        looking.cancel()
        return made, took, used


async def asked(plane: ControlPlane) -> float:
    """Make the claims, a pod for each, and wait until all are placed.

    Return the seconds until all were made.
    """
    began, bound = time.monotonic(), set[str]()

    def changed(_: str, pod: Pod) -> None:
        if pod.spec.node_name:
            bound.add(pod.metadata.name)

    def listed(listed_pods: list[Pod]) -> None:
        for pod in listed_pods:
            changed("ADDED", pod)

    pods = "/api/v1/namespaces/default/pods"
    claims = f"{GROUP}/namespaces/default/resourceclaims"
    wanted = {"deviceClassName": "hetero", "capacity": {"requests": {"memory": "8Gi"}}}
    spec = {"devices": {"requests": [{"name": "card", "exactly": wanted}]}}
    async with Api(access(plane)).open() as api:

        async def make(number: int) -> None:
            metadata = {"name": f"c{number}"}
            await api.post(claims, {"metadata": metadata, "spec": spec})
            container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "c"}]}}
            used = [{"name": "c", "resourceClaimName": f"c{number}"}]
            body = {"containers": [container], "resourceClaims": used}
            await api.post(pods, {"metadata": metadata, "spec": body})

        following = asyncio.ensure_future(
            api.follow(pods, Pod, listed=listed, changed=changed, lost=print)
        )
        for start in range(0, CLAIMS, 10):
            await asyncio.gather(*map(make, range(start, start + 10)))
        made = time.monotonic() - began
        await until(lambda: len(bound) == CLAIMS, seconds=240)
        following.cancel()
        return made


def processor_seconds(plane: ControlPlane) -> dict[str, float]:
    """Return what each process has used, and what this one has.

    It makes and follows pods, and is the publishers of all nodes.
    """
    own = os.times()
    return {**plane.processor_seconds(), "this test": own.user + own.system}


def over_capacity(plane: ControlPlane) -> list[str]:
    """Return the devices of which claims consume more memory than there is."""
    items = plane.call("GET", f"{GROUP}/namespaces/default/resourceclaims")["items"]
    taken: dict[str, int] = {}
    for item in items:
        for result in item["status"]["allocation"]["devices"]["results"]:
            amount = int(result["consumedCapacity"]["memory"].removesuffix("Gi"))
            taken[result["device"]] = taken.get(result["device"], 0) + amount
    return [name for name, amount in taken.items() if amount > 80]
