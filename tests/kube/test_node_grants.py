"""Grants of a node that no object of the API says: scheduler, agent and views count them alike."""

import asyncio
from collections import Counter
from pathlib import Path
from random import Random
from time import monotonic

import pytest

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
from tests.kube.site_cards import ALL, Card, tell
from tests.kube.test_random_claims import Pool, user_of
from tests.kube.world import container, until

VENDORS = pytest.mark.parametrize("kind", ["nvidia", "hygon"])
#: Seconds within which the cluster knows of a grant on a node.
SOON = 5.0


def take(it: Site, *, memory_percent: int, label: str = "train") -> GrantHandle:
    """Return a grant as `hetero run` has one on the node, which holds half the core of a card."""
    ask = Ask(memory_percent=memory_percent, core=50)
    return LocalGrants(it.at.node).take(Request(asks=(ask,)), label=label).handle


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
    handle = take(it, memory_percent=60)
    await equal_books(it)
    (view,) = (await cluster(it)).pods
    refusals = [await it.apply(pod_of(f"pod-{number}", card.part(4))) for number in range(3)]
    small = await it.apply(pod_of("small", card.part(2)))
    await it.start_scheduler()
    await equal_books(it)
    await it.restart_agent()
    await equal_books(it)
    LocalGrants(it.at.node).abort(handle)
    await equal_books(it)

    assert all(reason and "lack memory" in reason for reason in refusals)
    assert small is None
    assert ("", "", "train", NOT_A_POD) == (view.namespace, view.pod, view.container, view.phase)
    assert None is await it.apply(pod_of("later", card.part(4)))


@VENDORS
def test_no_pod_is_bound_to_what_a_program_of_the_node_holds(tmp_path: Path, kind: str) -> None:
    tell(_of_a_program, tmp_path, ALL[kind], seconds=40)


async def _annotation_removed(it: Site, card: Card) -> None:
    """A user may edit the annotations of its pod, and a scheduler that starts reads them."""
    pod = pod_of("pod", card.part(6))
    assert None is await it.apply(pod)
    it.at.api.pods["default", "pod"]["metadata"]["annotations"].pop(ALLOCATION)
    it.at.api.put("pods", it.at.api.pods["default", "pod"])
    await it.start_scheduler()
    await equal_books(it)
    (view,) = (await cluster(it)).pods

    assert ("default", "pod", "main-0") == (view.namespace, view.pod, view.container)
    assert await it.apply(pod_of("second", card.part(4)))
    await it.end(it.at.api.pods["default", "pod"])
    await equal_books(it)
    assert None is await it.apply(pod_of("third", card.part(4)))


@VENDORS
def test_a_pod_without_its_allocation_keeps_its_card_in_all_books(
    tmp_path: Path, kind: str
) -> None:
    tell(_annotation_removed, tmp_path, ALL[kind], seconds=40)


# --- by claims ------------------------------------------------------------------------------------


def taints(it: Site) -> list[str]:
    """Return what the taints of the node's devices say."""
    specs = [one["spec"] for one in it.at.api.slices.values()]
    devices = [device for spec in specs for device in spec.get("devices", ())]
    return [
        f"{taint['key']}: {taint['value']}" for one in devices for taint in one.get("taints", ())
    ]


async def _beside_claims(it: Site, _: Card) -> None:
    handle = take(it, memory_percent=60)
    await equal_books(it)
    await until(lambda: taints(it), seconds=SOON)
    said = set(taints(it))
    (view,) = (await cluster(it)).pods
    LocalGrants(it.at.node).abort(handle)
    await until(lambda: not taints(it), seconds=SOON)
    await equal_books(it)

    assert {"hetero.io/cordoned: held-by-train-which-is-no-claim-s"} == said
    assert ("", "train", NOT_A_POD) == (view.namespace, view.container, view.phase)


@VENDORS
def test_a_card_that_a_program_of_the_node_holds_is_given_to_no_claim(
    tmp_path: Path, kind: str
) -> None:
    tell(_beside_claims, tmp_path, ALL[kind], seconds=40, allocation=AllocationWay.DRA)


async def _claim_runs_on(it: Site, _: Card) -> None:
    rng, api = Random(1), it.at.api
    claim = Pool.of(api.slices.values()).allocated(rng, "gone", ())
    pod = user_of(rng, "gone")
    api.put("pods", pod, event="ADDED")
    api.put("resourceclaims", claim, event="ADDED")
    assert "" == (await prepare(it.at, "gone")).error
    books_before = await equal_books(it)
    with container(it.at.node.ledger, identity_of("u-gone")):
        api.put("resourceclaims", claim, event="DELETED")
        api.put("pods", pod, event="DELETED")
        assert "" == await unprepare(it.at, "gone")
        await until(lambda: taints(it), seconds=SOON)
        books_running = await equal_books(it)
        (view,) = (await cluster(it)).pods
        await it.restart_agent()
        await it.start_scheduler()
        await equal_books(it)
        charges = +it.scheduler.quotas.quotas.used.get("default", Counter())
    await until(lambda: not taints(it), seconds=SOON)
    await equal_books(it)

    assert books_before == books_running
    assert ("default", "gone", RUNS_ON) == (view.namespace, view.claim, view.phase)
    assert charges
    assert not +it.scheduler.quotas.quotas.used["default"]


@VENDORS
def test_what_a_container_of_a_gone_claim_holds_is_in_all_books_until_it_ends(
    tmp_path: Path, kind: str
) -> None:
    tell(_claim_runs_on, tmp_path, ALL[kind], seconds=40, allocation=AllocationWay.DRA)
