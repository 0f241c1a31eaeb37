"""The expected mix outlives the scheduler that learned it, in a ConfigMap or by what stands."""

import asyncio
from typing import Any

import pytest

from hetero.kube.objects import kinds
from hetero.kube.objects.kinds import Pod
from hetero.kube.objects.reading import read
from hetero.kube.scheduler import verbs
from hetero.kube.scheduler.expected_mix import MOST_BYTES, restore, written
from hetero.model.errors import BadInput
from hetero.model.units import GiB, MiB
from hetero.placement.cache import SchedulerCache
from hetero.placement.cluster import PlacedNode
from hetero.placement.demand import MOST_CLASSES, Demand, request_class_of
from hetero.placement.mix import GRAIN
from tests.kube.conftest import card
from tests.kube.fake_api import PODS, FakeApi
from tests.kube.test_pod_request import WORDS, pod
from tests.kube.test_scheduler import SHARE, Running, running

MAP = "/api/v1/namespaces/hetero/configmaps/mix"
CARDS = tuple(card(f"GPU-{number}") for number in range(8))


def learned(count: int) -> SchedulerCache:
    """Return a cache that saw so many classes."""
    made = SchedulerCache(demand=Demand(3600.0))
    made.update_node(PlacedNode(name="n1", devices=CARDS))
    for number in range(count):
        limits = {
            "nvidia.com/gpu": str(1 + number % 2),
            "nvidia.com/gpumem": str(1000 + 13 * number),
            "nvidia.com/gpucores": str(1 + number % 100),
        }
        asked = WORDS.pod_request(read(Pod, pod(limits)))
        assert asked is not None
        made.arrive(f"uid-{number}", asked.pod, 1000.0 + number)
    return made


def test_what_is_written_is_read_as_it_was() -> None:
    cache, fresh = learned(40), Demand(3600.0)
    text = written(cache, 2000.0)

    assert 2000.0 == restore(fresh, text, source="test")
    assert cache.demand.weights.keys() == fresh.weights.keys()
    saved, loaded = cache.demand.at(5000.0), fresh.at(5000.0)
    for want, weight in saved[0].items():
        assert pytest.approx(weight, rel=0.01) == loaded[0][want]
    assert pytest.approx(saved[2], rel=0.01) == loaded[2]


def test_the_text_of_many_classes_stays_small() -> None:
    cache, fresh = learned(MOST_CLASSES), Demand(3600.0)
    text = written(cache, 2000.0)
    restore(fresh, text, source="test")

    assert MOST_BYTES >= len(text)
    assert 300 < len(fresh.weights) <= MOST_CLASSES
    assert pytest.approx(sum(cache.demand.at(2000.0)[0].values()), rel=0.01) == sum(
        fresh.weights.values()
    )


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"at":1,"groups":[{"request":{"asks":[{}]},"units":[1],"classes":[[0,0,0,1,1]]}]}',
     '{"at":1,"groups":[{"request":{"asks":[{}]},"plain":true,"units":[1],"classes":[[1,200,0,1,0]]}]}'],
)  # fmt: skip
def test_a_mix_that_cannot_be_read_is_refused_whole(text: str) -> None:
    demand = Demand()
    with pytest.raises(BadInput, match=r"^test: |memory 200 is out of range"):
        restore(demand, text, source="test")
    assert {} == demand.weights


async def place(it: Running, name: str, limits: dict[str, str], created: str) -> str | None:
    """Do as kube-scheduler does with a pod; return its node."""
    plain = it.pod(name, limits)
    plain["metadata"]["creationTimestamp"] = created
    it.api.put_now(f"{PODS}/{name}", plain)
    answer = await it.call("filter", Pod=plain, NodeNames=["n1"])
    if answer["NodeNames"]:
        assert {} == await it.bind(name, "n1")
    chosen: list[str] = answer["NodeNames"]
    return chosen[0] if chosen else None


async def test_a_restart_in_mid_run_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1_794_996_000.0]  # 2026-11-18 10:00:00
    for module in (kinds, verbs):
        monkeypatch.setattr(module, "time", lambda: clock[0])
    large = {"nvidia.com/gpu": "8"}

    api = FakeApi()
    api.put_now(MAP, {"metadata": {"name": "mix"}})
    async with running(api, "one", "hetero/mix", n1=CARDS) as first:
        for number in range(5):
            assert "n1" == await place(first, f"a{number}", SHARE, "2026-11-18T10:00:00Z")
        assert None is await place(first, "refused", large, "2026-11-18T10:00:00Z")
        for number in range(2):
            api.delete(f"{PODS}/a{number}")
        mix = first.scheduler.mix
        assert mix is not None
        await mix.write(1_795_000_000.0)  # 2026-11-18 11:06:40
        clock[0] = 1_795_082_400.0  # 2026-11-19 10:00:00
        for number in range(4):
            await place(first, f"b{number}", {"nvidia.com/gpu": "1"}, "2026-11-19T10:00:00Z")
        before = first.scheduler.cache
    async with running(api, "one", "hetero/mix", n1=CARDS) as second:
        # kube-scheduler tries it again: it is in the mix that was read
        refused = api.objects[f"{PODS}/refused"]
        await second.call("filter", Pod=refused, NodeNames=["n1"])
        after = second.scheduler.cache
        assert before.standing == after.standing
        assert before.demand.times() == after.demand.times()
        assert before.demand.pods_end
        assert after.demand.pods_end
        assert before.free("n1") == after.free("n1")


async def test_a_pod_that_was_never_bound_came_once_and_did_not_end() -> None:
    api = FakeApi(fail={"binding"})
    async with running(api, "one", n1=CARDS) as it:
        plain = it.pod("p", SHARE)
        api.put_now(f"{PODS}/p", plain)
        for _ in range(3):
            answer = await it.call("filter", Pod=plain, NodeNames=["n1"])
            assert ["n1"] == answer["NodeNames"]
            assert "told to fail" in (await it.bind("p", "n1"))["Error"]
        await it.call("filter", Pod=plain, NodeNames=["n1"])
        demand = it.scheduler.cache.demand
        assert [1] == [times // GRAIN for _, times in demand.times()]
        api.delete(f"{PODS}/p")
        assert not demand.pods_end
        assert {} == it.scheduler.cache.standing


def test_without_the_map_the_mix_starts_from_the_pods_that_stand() -> None:
    async def play(*maps: dict[str, Any]) -> None:
        api = FakeApi()
        for plain in maps:
            api.put_now(MAP, plain)
        async with running(api, "one", n1=CARDS) as first:
            for number in range(3):
                await place(first, f"p{number}", SHARE, "2026-11-18T10:00:00Z")
            before = first.scheduler.cache.demand.times()
        async with running(api, "one", "hetero/mix", n1=CARDS) as second:
            assert before == second.scheduler.cache.demand.times()

    metadata = {"name": "mix"}
    asyncio.run(play())
    asyncio.run(play({"metadata": metadata}))
    asyncio.run(play({"metadata": metadata, "data": {"mix": "not ours"}}))


def test_it_is_written_after_ten_minutes_and_only_when_a_weight_moved_by_a_tenth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    looks = asyncio.Queue[None]()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await looks.get()

    async def play() -> None:
        api = FakeApi()
        api.put_now(MAP, {"metadata": {"name": "mix"}})
        async with running(api, "one", "hetero/mix", n1=CARDS) as it:
            mix = it.scheduler.mix
            assert mix is not None
            share = request_class_of(asked(SHARE))
            with monkeypatch.context() as patch:
                patch.setattr(asyncio, "sleep", sleep)
                following = asyncio.ensure_future(mix.follow())

                async def writes(pods: int) -> int:
                    """Return how often the map was written after so many more pods came."""
                    for _ in range(pods):
                        it.scheduler.cache.demand.arrive(share, {}, 0.0)
                    calls = len([call for call in api.calls if call == f"PATCH {MAP}"])
                    looks.put_nowait(None)
                    for _ in range(20):
                        await patched(0)
                    return len([c for c in api.calls if c == f"PATCH {MAP}"]) - calls

                patched = real_sleep
                assert [0, 1, 0, 0, 1] == [await writes(n) for n in (0, 20, 0, 1, 1)]
                # What came since is written at the end, too: nobody leads until that is done.
                for _ in range(20):
                    it.scheduler.cache.demand.arrive(share, {}, 0.0)
                following.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await following
                assert 3 == api.calls.count(f"PATCH {MAP}")
            assert {600.0} == set(waits)

    real_sleep = asyncio.sleep
    asyncio.run(play())


def asked(limits: dict[str, str]) -> Any:
    asked_pod = WORDS.pod_request(read(Pod, pod(limits)))
    assert asked_pod is not None
    return asked_pod.pod


def test_room_in_the_text_is_kept_by_units() -> None:
    text = written(learned(3), 2000.0)

    assert "1048576" in text or str(13 * MiB) in text
    assert str(GiB) not in text
