"""A hundred nodes' slices on a real API server, and a thousand claims of them."""

import asyncio
import ssl
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest
from attrs import evolve

from hetero.kube.client.api import Access, Api
from hetero.kube.dra.publisher import SLICES, Publisher
from hetero.model import Device
from hetero.model.units import GiB
from hetero.testing import rack
from tests.kube.control_plane import TOKEN, ControlPlane, free_port, wait_for

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


async def publish(made: Publisher) -> None:
    """Publish once the API has told what there is, as an agent does."""
    offered = devices(made.node)
    while not made.writes:
        await made.publish(offered)
        await asyncio.sleep(0.1)


async def published(plane: ControlPlane, names: list[str], *, quiet: float) -> tuple[float, int]:
    """Return the seconds that the nodes' slices took, and what was written in `quiet` more."""
    server = access(plane)
    async with AsyncExitStack() as opened:
        publishers = []
        for name in names:
            api = await opened.enter_async_context(Api(server).open())
            made = Publisher(api=api, node=name, names=lambda _: ())
            made.uid = (await api.get(f"/api/v1/nodes/{name}"))["metadata"]["uid"]
            publishers.append(made)
        following = [asyncio.ensure_future(one.follow()) for one in publishers]
        began = time.monotonic()
        await asyncio.gather(*map(publish, publishers))
        took = time.monotonic() - began
        before = sum(one.writes for one in publishers)
        while time.monotonic() - began - took < quiet:
            await asyncio.gather(*(one.publish(devices(one.node)) for one in publishers))
            await asyncio.sleep(1)
        written = sum(one.writes for one in publishers) - before
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
        return took, written


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
def test_a_thousand_claims_are_scheduled(
    plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    """How fast is kube-scheduler's to say, and is printed; each card has room for ten."""
    names = [f"n{number}" for number in range(NODES)]
    for name in names:
        plane.add_node(name, {})
    asyncio.run(published(plane, names, quiet=0))
    plane.start(
        "scheduler",
        str(plane.binaries / "kube-scheduler"),
        f"--kubeconfig={plane.kubeconfig}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--secure-port={free_port()}",
    )
    selector = {"cel": {"expression": 'device.driver == "hetero.io"'}}
    body: Any = {"metadata": {"name": "hetero"}, "spec": {"selectors": [selector]}}
    plane.call("POST", f"{GROUP}/deviceclasses", body)
    began = time.monotonic()
    asyncio.run(asked(plane))
    made = time.monotonic() - began
    wait_for(lambda: placed(plane) == CLAIMS, seconds=240)
    took = time.monotonic() - began
    rate = f"{CLAIMS / took:.0f} a s"
    with capsys.disabled():
        print(f"\n{CLAIMS} claims made in {made:.0f} s, scheduled in {took:.0f}: {rate}")

    assert [] == over_capacity(plane)


async def asked(plane: ControlPlane) -> None:
    """Make the claims, and a pod for each."""
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

        for start in range(0, CLAIMS, 10):
            await asyncio.gather(*map(make, range(start, start + 10)))


def placed(plane: ControlPlane) -> int:
    return sum("nodeName" in pod["spec"] for pod in plane.pods())


def over_capacity(plane: ControlPlane) -> list[str]:
    """Return the devices of which claims consume more memory than there is."""
    items = plane.call("GET", f"{GROUP}/namespaces/default/resourceclaims")["items"]
    taken: dict[str, int] = {}
    for item in items:
        for result in item["status"]["allocation"]["devices"]["results"]:
            amount = int(result["consumedCapacity"]["memory"].removesuffix("Gi"))
            taken[result["device"]] = taken.get(result["device"], 0) + amount
    return [name for name, amount in taken.items() if amount > 80]
