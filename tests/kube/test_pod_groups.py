"""The pods of a group are placed whole or not at all, and have one row on all their nodes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hetero.kube.objects.kinds import Pod
from hetero.kube.objects.reading import read
from hetero.kube.scheduler import pod_groups, verbs, waker
from hetero.kube.words.annotations import GangSlot
from tests.kube.conftest import card
from tests.kube.fake_api import PODS, FakeApi
from tests.kube.test_preemption import until
from tests.kube.test_scheduler import SHARE, Running, running

#: The label by which pods name their group, as its users write it.
POD_GROUP = "scheduling.x-k8s.io/pod-group"

LABELLED = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups"
WHOLE = {"nvidia.com/gpu": "1"}
NODES = ["n1", "n2", "n3"]


def group(api: FakeApi, name: str, least: int) -> None:
    metadata = {"name": name, "namespace": "default"}
    api.put_now(f"{LABELLED}/{name}", {"metadata": metadata, "spec": {"minMember": least}})


def member(it: Running, name: str, of: str, limits: Any = WHOLE, **notes: str) -> None:
    pod = it.pod(name, limits)
    pod["metadata"] |= {"labels": {POD_GROUP: of}, "annotations": notes}
    it.api.put_now(f"{PODS}/{name}", pod)


async def ask(it: Running, name: str, nodes: list[str] = NODES) -> Any:
    pod = it.api.objects[f"{PODS}/{name}"]
    return await it.call("filter", Pod=pod, NodeNames=nodes)


async def schedule(it: Running, *names: str) -> list[Any]:
    """Filter pods one after the other and bind them side by side, as kube-scheduler does."""
    bindings = []
    for name in names:
        nodes = (await ask(it, name))["NodeNames"]
        if nodes:
            bindings.append(it.bind(name, nodes[0]))
    return await asyncio.gather(*bindings)


def bound(it: Running, *names: str) -> list[str | None]:
    return [it.api.objects[f"{PODS}/{name}"]["spec"].get("nodeName") for name in names]


@asynccontextmanager
async def grouped(choose: str = "score", **least: int) -> AsyncIterator[Running]:
    api = FakeApi()
    for name, many in least.items():
        group(api, name, many)
    cards: Any = {node: (card(f"GPU-{node}"),) for node in NODES}
    async with running(api, choose, **cards) as it:
        following = asyncio.ensure_future(it.scheduler.groups.follow())
        await asyncio.sleep(0)
        yield it
        following.cancel()


async def test_a_group_is_bound_when_all_of_its_pods_came() -> None:
    async with grouped(a=3) as it:
        for name in ("a1", "a2", "a3"):
            member(it, name, "a")
        assert [{}, {}, {}] == await schedule(it, "a1", "a2", "a3")

        assert NODES == sorted(filter(None, bound(it, "a1", "a2", "a3")))


async def test_a_group_that_is_not_all_there_or_unknown_holds_nothing() -> None:
    async with grouped(a=3) as it:
        for name in ("a1", "a2"):
            member(it, name, "a")
        member(it, "b1", "b")
        reason = (await ask(it, "a1"))["FailedNodes"]["n1"]
        assert "pod group a: 2 of 3 pods are there" == reason
        unknown = (await ask(it, "b1"))["FailedNodes"]["n1"]

        assert "pod group b: namespace default has no PodGroup of this name" == unknown
        assert {} == it.scheduler.cache.standing


async def test_a_group_for_which_there_is_no_room_takes_none_of_it() -> None:
    async with grouped(a=3) as it:
        it.pod("single", WHOLE)
        assert {} == await it.bind("single", "n2")
        for name in ("a1", "a2", "a3"):
            member(it, name, "a")
        answer = await ask(it, "a1")

        assert [] == answer["NodeNames"]
        reason = answer["FailedNodes"]["n1"]
        assert reason.startswith(
            "pod group a: room for 2 of 3 pods; pod a3: 0 of 3 nodes: 3 lack a"
        )
        assert ["uid-single"] == list(it.scheduler.cache.standing)


async def test_two_half_placed_groups_never_block_each_other() -> None:
    async with grouped(a=2, b=2) as it:
        names = [f"{of}{number}" for number in (1, 2) for of in "ab"]
        for name in names:
            member(it, name, name[0])
        assert [{}, {}] == await schedule(it, *names)

        whole = [name for name in ("a", "b") if all(bound(it, f"{name}1", f"{name}2"))]
        none = [name for name in ("a", "b") if not any(bound(it, f"{name}1", f"{name}2"))]
        assert (1, 1) == (len(whole), len(none))
        for number in (1, 2):
            it.api.delete(f"{PODS}/{whole[0]}{number}")
        assert [{}, {}] == await schedule(it, f"{none[0]}1", f"{none[0]}2")


async def test_no_pod_is_bound_before_the_last_came_and_the_room_is_given_back_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pod_groups, "_GATHER_S", 0.2)
    monkeypatch.setattr(pod_groups, "RESERVATION_S", 0.5)

    async with grouped(a=3) as it:
        for name in ("a1", "a2", "a3"):
            member(it, name, "a")
        (refused,) = await schedule(it, "a1")
        assert "pod group a: its other pods did not come in time" == refused["Error"]
        assert [None] == bound(it, "a1")
        assert 3 == len(it.scheduler.cache.standing)
        await until(lambda: not it.scheduler.cache.standing)

        assert [{}, {}, {}] == await schedule(it, "a1", "a2", "a3")


async def test_who_was_refused_for_the_room_of_a_group_that_never_came_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pod_groups, "RESERVATION_S", 0.3)

    async with grouped(a=3, b=2) as it:
        for name in ("a1", "a2", "a3", "b1", "b2"):
            member(it, name, name[0])
        assert [1] == [len((await ask(it, "a1"))["NodeNames"])]
        assert [] == (await ask(it, "b1"))["NodeNames"]

        def tried_again() -> list[str]:
            notes = [it.api.objects[f"{PODS}/{b}"]["metadata"]["annotations"] for b in ("b1", "b2")]
            return [one[waker.AGAIN] for one in notes if waker.AGAIN in one]

        assert [] == tried_again()
        await until(tried_again)
        assert [{}, {}] == await schedule(it, "b1", "b2")


async def test_a_held_node_that_kube_scheduler_rules_out_is_not_held_for_that_pod_again() -> None:
    async with grouped(a=2) as it:
        for name in ("a1", "a2"):
            member(it, name, "a")
        first = (await ask(it, "a1"))["NodeNames"]
        other = (await ask(it, "a2"))["NodeNames"]
        rest = [node for node in NODES if node not in other]
        moved = (await ask(it, "a2", rest))["NodeNames"]
        again = (await ask(it, "a1"))["NodeNames"]

        assert [1, 1] == [len(first), len(moved)]
        assert moved[0] in rest
        assert again != moved
        answers = await asyncio.gather(it.bind("a1", again[0]), it.bind("a2", moved[0]))
        assert [{}, {}] == list(answers)


async def test_more_pods_than_a_group_needs_come_later_by_themselves() -> None:
    async with grouped(a=3) as it:
        for name in ("a1", "a2", "a3", "a4"):
            member(it, name, "a")
        await schedule(it, "a1", "a2", "a3", "a4")

        assert 3 == len([node for node in bound(it, "a1", "a2", "a3", "a4") if node])


async def test_a_restart_in_mid_run_places_the_rest_of_a_group() -> None:
    api = FakeApi()
    group(api, "a", 2)
    cards: Any = {node: (card(f"GPU-{node}"),) for node in NODES}
    async with running(api, **cards) as first:
        following = asyncio.ensure_future(first.scheduler.groups.follow())
        await asyncio.sleep(0)
        for name in ("a1", "a2"):
            member(first, name, "a", SHARE)
        await schedule(first, "a1", "a2")
        row = first.given("a1")
        following.cancel()
    again = api.objects[f"{PODS}/a2"]  # as if it had died between the two bindings
    del again["spec"]["nodeName"], again["metadata"]["annotations"]
    api.put_now(f"{PODS}/a2", again)
    async with running(api, **cards) as second:
        following = asyncio.ensure_future(second.scheduler.groups.follow())
        await asyncio.sleep(0)
        assert [{}] == await schedule(second, "a2")
        given = second.given("a2")
        following.cancel()
    assert row is not None
    assert given is not None
    assert row.place_in_time == given.place_in_time == GangSlot(row=1, rows=2)


async def test_groups_on_the_same_cards_have_rows_that_do_not_meet_on_all_their_nodes() -> None:
    async with grouped(a=3, b=3, c=3) as it:
        third = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "30"}
        for of in "abc":
            names = [f"{of}{number}" for number in (1, 2, 3)]
            for name in names:
                member(it, name, of, third, **{"hami.io/node-scheduler-policy": "spread"})
            assert [{}, {}, {}] == await schedule(it, *names)
        rows: dict[str, set[GangSlot | None]] = {of: set() for of in "abc"}
        for of, places in rows.items():
            for number in (1, 2, 3):
                given = it.given(f"{of}{number}")
                assert given is not None
                places.add(given.place_in_time)

        assert all(len(found) == 1 for found in rows.values())
        assert [GangSlot(row=n, rows=3) for n in (1, 2, 3)] == sorted(
            (row for found in rows.values() for row in found if row), key=lambda row: row.row
        )


async def test_a_later_pod_of_a_group_has_no_row_beside_another_group_of_the_same() -> None:
    async with grouped(a=1, b=1) as it:
        half = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "50"}
        for name, of, node in (("a1", "a", "n1"), ("b1", "b", "n2"), ("a2", "a", "n2")):
            member(it, name, of, half)
            assert [node] == (await ask(it, name, [node]))["NodeNames"]
            assert {} == await it.bind(name, node)
        given = [it.given(name) for name in ("a1", "b1", "a2")]
        first = GangSlot(row=1, rows=2)
        assert [first, first, None] == [one.place_in_time for one in given if one is not None]


def relabelled(it: Running, name: str, to: str | None) -> None:
    """Have a pod's label name another group, or none: its owner may change it at any time."""
    pod = it.api.objects[f"{PODS}/{name}"]
    metadata = {**pod["metadata"], "labels": {POD_GROUP: to} if to else {}}
    it.api.put_now(f"{PODS}/{name}", {**pod, "metadata": metadata})


async def test_a_pod_that_names_another_group_later_is_in_that_one_alone() -> None:
    async with grouped(a=2) as it:
        for name in ("a1", "a2"):
            member(it, name, "a")
        for number in range(3):
            relabelled(it, "a1", f"of-none-{number}")
        await asyncio.sleep(0.05)
        reason = (await ask(it, "a2"))["FailedNodes"]["n1"]

        assert "pod group a: 1 of 2 pods are there" == reason
        groups = it.scheduler.groups._groups.items()
        assert ["a", "of-none-2"] == sorted(one.name for one, record in groups if record.members)


async def test_a_pod_that_is_gone_and_asked_for_once_more_makes_no_group_whole() -> None:
    """kube-scheduler hears later of it than the extender may."""
    async with grouped(a=2) as it:
        for name in ("a1", "a2"):
            member(it, name, "a")
        gone = it.api.objects[f"{PODS}/a1"]
        it.api.delete(f"{PODS}/a1")
        await asyncio.sleep(0.05)
        late = await it.call("filter", Pod=gone, NodeNames=NODES)
        reason = (await ask(it, "a2"))["FailedNodes"]["n1"]

        assert "pod group a: the pod is gone" == late["FailedNodes"]["n1"]
        assert "pod group a: 1 of 2 pods are there" == reason


async def test_a_pod_for_which_its_group_holds_room_has_it_whatever_it_says_later() -> None:
    async with grouped(a=2) as it:
        for name in ("a1", "a2"):
            member(it, name, "a")
        (first,) = (await ask(it, "a1"))["NodeNames"]
        (held,) = {one.node for one in it.scheduler.cache.standing.values()} - {first}
        relabelled(it, "a2", None)
        await asyncio.sleep(0.05)

        assert [held] == (await ask(it, "a2"))["NodeNames"]
        bindings = [it.bind("a1", first), it.bind("a2", held)]
        assert [{}, {}] == await asyncio.gather(*bindings)


async def test_a_running_pod_keeps_the_row_of_its_group_whatever_it_says_later() -> None:
    async with grouped(a=1, b=1) as it:
        half = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "50"}
        for name in ("a1", "b1"):
            member(it, name, name[0], half)
        assert [{}] == await schedule(it, "a1")
        relabelled(it, "a1", "b")
        await asyncio.sleep(0.05)
        nodes = [one for one in bound(it, "a1") if one]
        answer = (await ask(it, "b1", nodes))["NodeNames"]
        assert {} == await it.bind("b1", *answer)
        given = [it.given(name) for name in ("a1", "b1")]

        assert [1, 2] == [one.place_in_time.row for one in given if one and one.place_in_time]


async def test_a_place_that_filter_took_and_nobody_bound_is_a_groups_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(verbs, "monotonic", lambda: clock[0])

    async with grouped("one", a=3) as it:
        await it.call("filter", Pod=it.pod("alone", WHOLE), NodeNames=NODES)
        for name in ("a1", "a2", "a3"):
            member(it, name, "a")
        assert [] == await schedule(it, "a1", "a2", "a3")
        clock[0] += 31
        assert [{}, {}, {}] == await schedule(it, "a1", "a2", "a3")


@pytest.mark.parametrize(
    ("first", "other", "overlap"),
    [
        ((1, 2), (2, 2), False),
        ((1, 2), (2, 4), True),
        ((1, 2), (3, 4), False),
        ((2, 3), (1, 1), True),
    ],
)
def test_rows_of_different_length_overlap_where_their_times_do(
    first: tuple[int, int], other: tuple[int, int], overlap: bool
) -> None:
    first_row, other_row = (GangSlot(row=row, rows=rows) for row, rows in (first, other))

    assert overlap == first_row.overlaps(other_row) == other_row.overlaps(first_row)


def test_kubernetes_own_pod_groups_are_read_where_they_are_served() -> None:
    plain = {
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"schedulingGroup": {"podGroupName": "g"}},
    }
    group = pod_groups.group_of(read(Pod, plain))

    assert pod_groups.Group("scheduling.k8s.io/v1alpha2", "default", "g") == group
