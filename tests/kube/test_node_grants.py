"""Grants of a node that no object of the API says: scheduler, agent and views count them alike."""

import asyncio
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import pytest

from hetero.kube.agent import agent
from hetero.kube.client.api import Access, Api
from hetero.kube.cluster_view import NOT_A_POD, RUNS_ON, ClusterView, snapshot
from hetero.kube.dra.node_claims import identity_of
from hetero.kube.dra.way import AllocationWay
from hetero.kube.words.annotations import ALLOCATION
from hetero.model import Ask, Request
from hetero.node.grants import LocalGrants
from hetero.node.ledger.ledger import GrantHandle
from tests.kube.claims import prepare, unprepare
from tests.kube.site import Books, Site, differences, pod_of
from tests.kube.site_cards import ALL, Card, Story, tell
from tests.kube.test_random_claims import Pool, user_of
from tests.kube.world import container, until

#: A node has a card of each: a limiter shares one, and the other is cut.
KINDS = ("nvidia", "hygon")
#: Seconds within which the cluster knows of a grant on a node, however busy the machine is: before
#: it does, the agent asks the drivers, whose processes wait for a processor.
SOON = 30.0


def take(it: Site, card: Card) -> GrantHandle:
    """Return a grant as `hetero run` has one on the node, of more than half of a card."""
    devices = it.at.node.discover().devices
    (uuid,) = (device.uuid for device in devices if device.vendor == card.vendor)
    request = Request(asks=(Ask(device=uuid, memory_percent=60, core=50),))
    return LocalGrants(it.at.node).take(request, label="train", command=("train",)).handle


def tell_of_each(story: Story, path: Path, **more: Any) -> None:
    """Tell a story of each kind of card, one after the other, on one node."""
    tell(partial(_of_each, story), path, *(ALL[kind] for kind in KINDS), seconds=240, **more)


async def _of_each(story: Story, it: Site, _: Card) -> None:
    for kind in KINDS:
        await story(it, ALL[kind])


async def equal_books(it: Site) -> Books:
    """Return the books once they say the same. Fails if they do not within `SOON` seconds."""
    until_s = monotonic() + SOON
    while wrong := differences(books := await it.books()):
        assert monotonic() < until_s, wrong
        await asyncio.sleep(0.1)
    return books


async def cluster(it: Site) -> ClusterView:
    async with Api(Access(server=it.at.url)).open() as api:
        return await snapshot(api)


async def _of_a_program(it: Site, card: Card) -> None:
    handle = take(it, card)
    await equal_books(it)
    (view,) = (await cluster(it)).containers
    half, quarter = (pod_of(f"{card.vendor}-{part}", card.part(part)) for part in (4, 2))
    refusals = [await it.apply(half) for _ in range(3)]
    refusal = await it.apply(quarter)
    await it.start_scheduler()
    await equal_books(it)
    await it.restart_agent()
    await equal_books(it)
    LocalGrants(it.at.node).abort(handle)
    await equal_books(it)

    assert all(reason and "lack memory" in reason for reason in refusals)
    assert refusal is None
    assert ("", "", "train", NOT_A_POD) == (
        view.namespace,
        view.pod_name,
        view.container_name,
        view.phase,
    )
    assert None is await it.apply(half)
    for pod in (half, quarter):
        await it.end(pod)


def test_no_pod_is_bound_to_what_a_program_of_the_node_holds(tmp_path: Path) -> None:
    tell_of_each(_of_a_program, tmp_path)


async def _between_looks(it: Site, card: Card) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent, "DISCOVERY_PERIOD_S", 600.0)
        await it.restart_agent()
        await equal_books(it)
        handle = take(it, card)
        await equal_books(it)
        (view,) = (await cluster(it)).containers
        LocalGrants(it.at.node).abort(handle)
        await equal_books(it)

    assert "train" == view.container_name


def test_what_a_program_takes_is_told_before_the_drivers_are_due(tmp_path: Path) -> None:
    """A pod that is bound before that is refused."""
    tell(_between_looks, tmp_path, ALL["nvidia"], seconds=240)


async def _annotation_removed(it: Site, card: Card) -> None:
    """A user may edit the annotations of its pod, and a scheduler that starts reads them."""
    names = [f"{card.vendor}-{number}" for number in range(3)]
    pod, second, third = (
        pod_of(name, card.part(part)) for name, part in zip(names, (6, 4, 4), strict=True)
    )
    assert None is await it.apply(pod)
    held = it.at.api.pods["default", names[0]]
    held["metadata"]["annotations"].pop(ALLOCATION)
    it.at.api.put("pods", held)
    await it.start_scheduler()
    await equal_books(it)
    (view,) = (await cluster(it)).containers

    assert ("default", names[0], "main-0") == (view.namespace, view.pod_name, view.container_name)
    assert await it.apply(second)
    await it.end(held)
    await equal_books(it)
    assert None is await it.apply(third)
    await it.end(third)


def test_a_pod_without_its_allocation_keeps_its_card_in_all_books(tmp_path: Path) -> None:
    tell_of_each(_annotation_removed, tmp_path)


# --- by claims ------------------------------------------------------------------------------------


def taints(it: Site) -> list[str]:
    """Return what the taints of the node's devices say."""
    specs = [one["spec"] for one in it.at.api.slices.values()]
    devices = [device for spec in specs for device in spec.get("devices", ())]
    return [
        f"{taint['key']}: {taint['value']}" for one in devices for taint in one.get("taints", ())
    ]


async def _beside_claims(it: Site, card: Card) -> None:
    handle = take(it, card)
    await equal_books(it)
    await until(lambda: taints(it), seconds=SOON)
    texts = set(taints(it))
    (view,) = (await cluster(it)).containers
    LocalGrants(it.at.node).abort(handle)
    await until(lambda: not taints(it), seconds=SOON)
    await equal_books(it)

    assert {"hetero.io/cordoned: held-by-train-which-is-no-claim-s"} == texts
    assert ("", "train", NOT_A_POD) == (view.namespace, view.container_name, view.phase)


def test_a_card_that_a_program_of_the_node_holds_is_given_to_no_claim(tmp_path: Path) -> None:
    tell_of_each(_beside_claims, tmp_path, allocation=AllocationWay.DRA)


async def _claim_runs_on(it: Site, card: Card) -> None:
    rng, api, name = Random(1), it.at.api, f"gone-{card.vendor}"
    pool = Pool.of(api.slices.values())
    own_devices = {
        device_name: device
        for device_name, device in pool.devices.items()
        if device["attributes"]["vendor"]["string"] == card.vendor
    }
    claim = Pool(own_devices, pool.counters).allocated(rng, name, ())
    pod = user_of(rng, name)
    api.put("pods", pod, event="ADDED")
    api.put("resourceclaims", claim, event="ADDED")
    assert "" == (await prepare(it.at, name)).error
    books_before = await equal_books(it)
    with container(it.at.node.ledger, identity_of(f"u-{name}")):
        api.put("resourceclaims", claim, event="DELETED")
        api.put("pods", pod, event="DELETED")
        assert "" == await unprepare(it.at, name)
        await until(lambda: taints(it), seconds=SOON)
        books_running = await equal_books(it)
        (view,) = (await cluster(it)).containers
        await it.restart_agent()
        await it.start_scheduler()
        await equal_books(it)
        charges = +it.scheduler.quotas.quotas.used.get("default", Counter())
    await until(lambda: not taints(it), seconds=SOON)
    await equal_books(it)

    assert books_before == books_running
    assert ("default", name, RUNS_ON) == (view.namespace, view.claim, view.phase)
    assert charges
    assert not +it.scheduler.quotas.quotas.used["default"]


def test_what_a_container_of_a_gone_claim_holds_is_in_all_books_until_it_ends(
    tmp_path: Path,
) -> None:
    tell_of_each(_claim_runs_on, tmp_path, allocation=AllocationWay.DRA)
