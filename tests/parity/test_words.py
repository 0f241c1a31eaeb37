"""Words of HAMi's pods, each sent through webhook and extender: the cards that the pod then has."""

from collections.abc import Mapping
from typing import Any

import pytest

from hetero.kube.words.annotations import Assignment
from hetero.model import CORE, MEMORY, SLOTS, Device, Enforcement, Link, Template, Templated
from hetero.model.units import MiB
from tests.kube.fake_api import PODS
from tests.kube.test_examples import HOOK, admitted, cards
from tests.kube.test_examples import NODES as EXAMPLES
from tests.kube.test_scheduler import Running, scenario

#: What is asked of a card of each vendor, and two cards that serve it, of different models.
VENDORS: Mapping[str, tuple[dict[str, str], tuple[Device, ...]]] = {
    "nvidia.com": (
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"},
        (
            *cards("nvidia", "NVIDIA A100", 40, "GPU-1", enforcement=Enforcement.PRELOAD),
            *cards("nvidia", "Tesla V100", 40, "GPU-2", enforcement=Enforcement.PRELOAD),
        ),
    ),
    "hygon.com": (
        {"hygon.com/dcunum": "1", "hygon.com/dcumem": "2000", "hygon.com/dcucores": "10"},
        (*cards("hygon", "K100-AI", 32, "DCU-1"), *cards("hygon", "Z100L", 32, "DCU-2")),
    ),
    "cambricon.com": (
        {"cambricon.com/vmlu": "1"},
        (*cards("cambricon", "MLU370-X8", 48, "MLU-1"), *cards("cambricon", "MLU590", 48, "MLU-2")),
    ),
    "amd.com": (
        {"amd.com/gpu": "1", "amd.com/gpumem": "3000"},
        (
            *cards("amd", "MI300X", 64, "AMD-1", enforcement=Enforcement.PRELOAD),
            *cards("amd", "MI210", 64, "AMD-2", enforcement=Enforcement.PRELOAD),
        ),
    ),
    "mthreads.ai": ({"mthreads.com/vgpu": "1"}, EXAMPLES["mthreads"][:2]),
    "metax-tech.com": ({"metax-tech.com/gpu": "1"}, EXAMPLES["metax"][:2]),
    "hami.io/use-Ascend910B3": ({"huawei.com/Ascend910B3": "1"}, EXAMPLES["ascend-910b3"][:2]),
    "hami.io/use-BI-V150": ({"iluvatar.ai/BI-V150-vgpu": "1"}, EXAMPLES["iluvatar-bi-v150"][:2]),
}
#: Annotations that name cards to take and to leave, by their UUIDs, and by their models.
BY_UUID = (
    ("nvidia.com", "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"),
    ("hygon.com", "hygon.com/use-gpuuuid", "hygon.com/nouse-gpuuuid"),
    ("cambricon.com", "cambricon.com/use-gpuuuid", "cambricon.com/nouse-gpuuuid"),
    ("amd.com", "amd.com/use-gpu-uuid", "amd.com/nouse-gpu-uuid"),
    ("mthreads.ai", "mthreads.ai/use-gpuuuid", "mthreads.ai/nouse-gpuuuid"),
    ("metax-tech.com", "metax-tech.com/use-gpuuuid", "metax-tech.com/nouse-gpuuuid"),
    (
        "hami.io/use-Ascend910B3",
        "hami.io/use-Ascend910B3-uuid",
        "hami.io/no-use-Ascend910B3-uuid",
    ),
    ("hami.io/use-BI-V150", "hami.io/use-BI-V150-uuid", "hami.io/no-use-BI-V150-uuid"),
)
BY_MODEL = (
    ("nvidia.com", "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"),
    ("hygon.com", "hygon.com/use-dcutype", "hygon.com/nouse-dcutype"),
    ("cambricon.com", "cambricon.com/use-mlutype", "cambricon.com/nouse-mlutype"),
    ("amd.com", "amd.com/use-gputype", "amd.com/nouse-gputype"),
)


async def assigned(
    it: Running, name: str, limits: Mapping[str, str], notes: Mapping[str, str]
) -> Assignment:
    """Return what a pod has that asks so: by the webhook, then by the extender."""
    container = {"name": "main", "resources": {"limits": dict(limits)}}
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    plain = {
        "metadata": {**metadata, "annotations": dict(notes)},
        "spec": {"containers": [container]},
    }
    stored = it.api.put_now(f"{PODS}/{name}", await admitted(plain))
    nodes = [path.rpartition("/")[2] for path in it.api.objects if "/nodes/" in path]
    answer = await it.call("filter", Pod=stored, NodeNames=nodes)
    assert answer["NodeNames"], answer["FailedNodes"]
    assert {} == await it.bind(name, answer["NodeNames"][0])
    given = it.given(name)
    assert given is not None
    return given


async def given(it: Running, name: str, limits: Mapping[str, str], **notes: str) -> list[str]:
    """Return the UUIDs of the cards of a pod's only container."""
    assignment = await assigned(it, name, limits, notes)
    ((_, allocation),) = assignment.containers
    return [piece.device for piece in allocation.pieces]


@pytest.mark.parametrize("wanted", [0, 1])
@pytest.mark.parametrize(
    ("vendor", "word"), [(vendor, use) for vendor, use, _ in (*BY_UUID, *BY_MODEL)]
)
async def test_the_card_that_a_word_names_is_given(vendor: str, word: str, wanted: int) -> None:
    limits, two = VENDORS[vendor]
    value = two[wanted].model if word.endswith("type") else two[wanted].uuid

    async with scenario(n1=two) as it:
        assert [two[wanted].uuid] == await given(it, "p", limits, **{word: value})


@pytest.mark.parametrize("unwanted", [0, 1])
@pytest.mark.parametrize(
    ("vendor", "word"), [(vendor, avoid) for vendor, _, avoid in (*BY_UUID, *BY_MODEL)]
)
async def test_the_card_that_a_word_avoids_is_not_given(
    vendor: str, word: str, unwanted: int
) -> None:
    limits, two = VENDORS[vendor]
    value = two[unwanted].model if word.endswith("type") else two[unwanted].uuid

    async with scenario(n1=two) as it:
        assert [two[1 - unwanted].uuid] == await given(it, "p", limits, **{word: value})


#: What is asked, and the MiB and the percent of core that the only card gives (None: all it has).
SIZES: Mapping[str, tuple[dict[str, str], int | None, float | None]] = {
    "nvidia": ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}, 3000, 0),
    "nvidia, percent": ({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}, 20480, 0),
    "nvidia, both": (
        {
            "nvidia.com/gpu": "1",
            "nvidia.com/gpumem": "3000",
            "nvidia.com/gpumem-percentage": "50",
        },
        *(3000, 0),
    ),
    "nvidia, core": (
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"},
        *(3000, 30),
    ),
    "amd": ({"amd.com/gpu": "1", "amd.com/gpumem": "3000", "amd.com/gpucores": "30"}, 3000, 30),
    "cambricon": (
        {
            "cambricon.com/vmlu": "1",
            "cambricon.com/mlu.smlu.vmemory": "20",
            "cambricon.com/mlu.smlu.vcore": "10",
        },
        *(5120, 10),
    ),
    "iluvatar": (
        {
            "iluvatar.ai/BI-V150-vgpu": "1",
            "iluvatar.ai/BI-V150.vMem": "64",
            "iluvatar.ai/BI-V150.vCore": "50",
        },
        *(16384, 50),
    ),
    "metax": (
        {"metax-tech.com/sgpu": "1", "metax-tech.com/vmemory": "4", "metax-tech.com/vcore": "60"},
        *(4096, 60),
    ),
}
_RACK = {
    "nvidia": VENDORS["nvidia.com"][1][:1],
    "amd": VENDORS["amd.com"][1][:1],
    "cambricon": VENDORS["cambricon.com"][1][:1],
    "iluvatar": EXAMPLES["iluvatar-bi-v150"][:1],
    "metax": EXAMPLES["metax-sgpu"][:1],
}


@pytest.mark.parametrize("ask", SIZES)
async def test_a_card_gives_the_memory_and_core_that_were_asked(ask: str) -> None:
    limits, memory, core = SIZES[ask]
    (card,) = _RACK[ask.partition(",")[0]]

    async with scenario(n1=(card,)) as it:
        ((_, allocation),) = (await assigned(it, "p", limits, {})).containers
        (piece,) = allocation.pieces

    assert memory == piece.takes[MEMORY] // MiB
    assert core == 100 * piece.takes.get(CORE, 0) / card.capacity[CORE]


@pytest.mark.parametrize("model", ["910A", "910B2", "910B3", "910B4", "310P"])
async def test_an_npu_is_given_by_the_name_of_its_model(model: str) -> None:
    node = "ascend-310p3" if model == "310P" else f"ascend-{model.lower()}"

    async with scenario(n1=EXAMPLES[node]) as it:
        allocation = await assigned(it, "p", {f"huawei.com/Ascend{model}": "1"}, {})
        ((_, whole),) = allocation.containers

        assert [EXAMPLES[node][0].capacity[MEMORY]] == [
            piece.takes[MEMORY] for piece in whole.pieces
        ]


# --- orders ---------------------------------------------------------------------------------------

SHARE = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}


def nvidia(*uuids: str, **facts: Any) -> tuple[Device, ...]:
    preload = Enforcement.PRELOAD
    return cards("nvidia", "NVIDIA A100", 40, *uuids, enforcement=preload, **facts)


@pytest.mark.parametrize(("order", "same"), [("binpack", True), ("spread", False)])
async def test_a_pod_fills_a_node_or_takes_an_empty_one_by_its_word(
    order: str, *, same: bool
) -> None:
    async with scenario(n1=nvidia("GPU-1"), n2=nvidia("GPU-2")) as it:
        by = {"hami.io/node-scheduler-policy": order}
        first = await given(it, "a", SHARE, **by)

        stored = it.api.put_now(f"{PODS}/b", it.pod("b", SHARE))
        stored["metadata"]["annotations"] = by
        scores = await it.call("prioritize", Pod=stored, NodeNames=["n1", "n2"])
        best = max(scores, key=lambda score: float(score["Score"]))["Host"]
        assert same == (first == [best.replace("n", "GPU-")])


@pytest.mark.parametrize(("order", "same"), [("binpack", True), ("spread", False)])
async def test_a_pod_fills_a_card_or_takes_an_empty_one_by_its_word(
    order: str, *, same: bool
) -> None:
    async with scenario(n1=nvidia("GPU-1", "GPU-2")) as it:
        by = {"hami.io/gpu-scheduler-policy": order}
        first = await given(it, "a", SHARE, **by)

        assert same == (first == await given(it, "b", SHARE, **by))


async def test_weights_say_by_what_cards_are_compared() -> None:
    """One card has more pods, the other less memory left."""
    small, large = {**SHARE, "nvidia.com/gpumem": "600"}, {**SHARE, "nvidia.com/gpumem": "9000"}
    policy = {"hami.io/gpu-scheduler-policy": "binpack"}

    async def fuller(weights: str) -> list[str]:
        async with scenario(n1=nvidia("GPU-1", "GPU-2")) as it:
            for name in ("a", "b"):
                await given(it, name, small, **{"nvidia.com/use-gpuuuid": "GPU-1"})
            await given(it, "c", large, **{"nvidia.com/use-gpuuuid": "GPU-2"})
            by = {**policy, "hami.io/device-scoring-weights": weights}
            return await given(it, "d", small, **by)

    assert ["GPU-1"] == await fuller("slot=1,core=0,memory=0")
    assert ["GPU-2"] == await fuller("slot=0,core=0,memory=1")


async def test_by_mutex_a_pod_takes_a_card_that_nobody_has() -> None:
    async with scenario(n1=nvidia("GPU-1", "GPU-2")) as it:
        tight = {"hami.io/gpu-scheduler-policy": "binpack"}
        first = await given(it, "a", SHARE, **tight)
        assert first == await given(it, "b", SHARE, **tight)

        by = {"hami.io/gpu-scheduler-policy": "mutex"}
        assert first != await given(it, "c", SHARE, **by)
        stored = it.api.put_now(f"{PODS}/d", it.pod("d", SHARE))
        stored["metadata"]["annotations"] = by
        it.api.put_now(f"{PODS}/d", stored)
        assert not (await it.call("filter", Pod=stored, NodeNames=["n1"]))["NodeNames"]


def linked(uuid: str, *peers: str) -> Device:
    links = tuple(Link(peer=peer, kind="nvlink", weight=100) for peer in peers)
    return nvidia(uuid, links=links)[0]


async def test_by_topology_two_cards_are_linked_and_one_is_the_least_linked() -> None:
    devices = (
        *nvidia("GPU-1", "GPU-2"),
        linked("GPU-3", "GPU-4"),
        linked("GPU-4", "GPU-3"),
    )
    by = {"hami.io/gpu-scheduler-policy": "topology-aware"}

    async with scenario(n1=devices) as it:
        assert {"GPU-3", "GPU-4"} == {*await given(it, "a", {"nvidia.com/gpu": "2"}, **by)}
    async with scenario(n1=devices[1:]) as it:
        assert ["GPU-2"] == await given(it, "a", {"nvidia.com/gpu": "1"}, **by)


async def test_cards_of_a_pod_are_on_one_numa_node_by_hamis_word() -> None:
    apart = (*nvidia("GPU-1", numa=0), *nvidia("GPU-2", numa=1))
    two = {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3000"}

    async with scenario(n1=apart) as it:
        pod = it.pod("p", two)
        assert ["n1"] == (await it.call("filter", Pod=pod, NodeNames=["n1"]))["NodeNames"]
        pod["metadata"]["annotations"] = {"nvidia.com/numa-bind": "true"}
        it.api.put_now(f"{PODS}/p", pod)
        assert not (await it.call("filter", Pod=pod, NodeNames=["n1"]))["NodeNames"]


@pytest.mark.parametrize(("mode", "card"), [("mig", "MIG-1"), ("hami-core", "GPU-1")])
async def test_a_pod_gets_a_part_of_a_cut_card_or_a_share_by_its_mode(mode: str, card: str) -> None:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000"}
    both = {"n1": EXAMPLES["nvidia-mig"][:1], "n2": nvidia("GPU-1")}

    async with scenario(**both) as it:
        assert [card] == [
            device.partition("-1g")[0].partition("-3g")[0]
            for device in await given(it, "p", limits, **{"nvidia.com/vgpu-mode": mode})
        ]


@pytest.mark.parametrize("profile", ["1g.10gb", "1g.10gb.me", "3g.20gb"])
async def test_an_instance_is_given_by_the_name_of_its_profile(profile: str) -> None:
    others = {"1g.10gb": 9728, "1g.10gb.me": 9728, "3g.20gb": 19968}
    menu = tuple(
        Template(name, {CORE: 1, MEMORY: memory * MiB, name: 1}, part=name)
        for name, memory in others.items()
    )
    counters = {CORE: 7, SLOTS: 3, **dict.fromkeys(others, 1)}
    card = nvidia("MIG", granularity=Templated(menu, whole=False), capacity=counters)

    async with scenario(n1=card) as it:
        limits = {f"nvidia.com/mig-{profile}": "1"}
        ((_, allocation),) = (await assigned(it, "p", limits, {})).containers

        assert [profile] == [piece.part for piece in allocation.pieces]


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "most"), [("nvidia.com/gpucores", 100), ("nvidia.com/gpumem-percentage", 100)]
)
async def test_more_than_a_hundred_percent_is_refused(word: str, most: int) -> None:
    def pod(amount: int) -> dict[str, Any]:
        limits = {"nvidia.com/gpu": "1", word: str(amount)}
        container = {"name": "main", "resources": {"limits": limits}}
        return {"metadata": {"name": "p"}, "spec": {"containers": [container]}}

    async def allowed(amount: int) -> bool:
        answer = await HOOK.admit({"uid": "r", "operation": "CREATE", "object": pod(amount)})
        return bool(answer["allowed"])

    assert [True, False] == [await allowed(most), await allowed(most + 1)]
