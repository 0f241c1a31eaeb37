"""A pod is in one state, and goes from one to another as docs/architecture.md draws it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from hetero.kube.objects.kinds import Metadata, Pod
from hetero.kube.scheduler.pod_table import EDGES, MOST_FILTERED, PodState, PodTable
from hetero.kube.words.pod_request import PodRequest
from hetero.model.errors import HeteroError
from hetero.placement.cache import SchedulerCache
from hetero.placement.cluster import PlacedContainer, PlacedPod, Placement

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
REQUEST = PodRequest(
    pod=PlacedPod(containers=(PlacedContainer(),)),
    asking=frozenset({"main"}),
    unlimited=frozenset(),
    node_placement=None,
    device_placement=None,
)
UNKNOWN, FILTERED, HELD, RESERVED = list(PodState)[:4]
#: Those of the scheduler by their name on the page; it knows nothing of one that was admitted.
STATES = {state.value.title(): state for state in PodState} | {"Admitted": UNKNOWN, "[*]": UNKNOWN}


def drawn() -> Iterator[tuple[str, str]]:
    """Yield the arrows of the page's drawing of a pod."""
    section = PAGE.read_text().partition("\n## A pod\n")[2].partition("\n## ")[0]
    yield from re.findall(r"^ *([\w*[\]]+) --> ([\w*[\]]+):", section, re.MULTILINE)


def placement(pod: PlacedPod) -> Placement:
    return Placement(node="n1", pod=pod, allocations=(None,), holds=(), host={})


def pod(uid: str) -> Pod:
    return Pod(metadata=Metadata(name=uid, namespace="default", uid=uid))


def test_the_page_draws_the_edges_of_the_code() -> None:
    arrows = {(STATES[a], STATES[b]) for a, b in drawn() if a in STATES and b in STATES}

    assert {(before, after) for before in EDGES for after in EDGES[before]} == {
        (before, after) for before, after in arrows if after not in (before, UNKNOWN)
    }


def test_a_pod_goes_from_a_state_to_another_by_an_edge_alone() -> None:
    for before, after in product(PodState, PodState):
        table = PodTable(SchedulerCache())
        for state in path(before):
            table.transition("uid", state)
        if after in (before, UNKNOWN, *EDGES[before]):
            assert after is table.transition("uid", after).state
        else:
            why = f"uid is {before.value}: it cannot be {after.value} next"
            with pytest.raises(HeteroError, match=why):
                table.transition("uid", after)
            assert before is table.get("uid").state


def path(to: PodState) -> list[PodState]:
    """Return the states by which a pod that nobody knows comes to one."""
    paths = {UNKNOWN: list[PodState]()}
    while to not in paths:
        for before, way in list(paths.items()):
            paths |= {after: [*way, after] for after in EDGES[before] if after not in paths}
    return paths[to]


def test_what_a_pod_wants_is_known_until_it_is_bound() -> None:
    table = PodTable(SchedulerCache())
    table.ask(pod("a"), REQUEST)
    held = placement(REQUEST.pod)
    table.hold("a", held, deadline_s=30.0)

    assert [("a", pod("a"), REQUEST)] == list(table.waiting())
    table.release("a", held)
    assert (FILTERED, None, REQUEST) == (
        table.get("a").state,
        table.get("a").placement,
        table.get("a").request,
    )
    table.transition("a", RESERVED)
    assert ([], None) == (list(table.waiting()), table.get("a").request)


def test_of_many_pods_that_wait_the_oldest_is_forgotten_but_not_the_place_that_it_has() -> None:
    table = PodTable(SchedulerCache())
    table.ask(pod("held"), REQUEST)
    held = placement(REQUEST.pod)
    table.hold("held", held, deadline_s=30.0)
    for number in range(MOST_FILTERED + 1):
        table.ask(pod(f"uid-{number}"), REQUEST)

    assert (HELD, None) == (table.get("held").state, table.get("held").request)
    assert UNKNOWN is table.get("uid-0").state
    assert MOST_FILTERED == len(list(table.waiting()))
    table.release("held", held)
    assert UNKNOWN is table.get("held").state


def test_what_the_api_says_comes_before_what_was_held() -> None:
    table = PodTable(SchedulerCache())
    table.ask(pod("a"), REQUEST)
    table.hold("a", placement(REQUEST.pod), deadline_s=30.0)
    table.learn(pod("a"), PodState.BOUND)

    assert (PodState.BOUND, pod("a")) == (table.get("a").state, table.holder("a"))
    assert ([], []) == (list(table.waiting()), table.within(HELD))
