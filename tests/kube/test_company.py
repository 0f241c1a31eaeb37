"""Whom a card is shared with, and cards that come in modules: what some vendors' words ask for."""

import asyncio
import base64
import json
from typing import Any

import pytest
from attrs import evolve

from hetero.model import (
    CORE,
    MEMORY,
    POLICY_SLOTS,
    SLOTS,
    Device,
    Enforcement,
    Fractional,
    MultiDevice,
    Template,
    Templated,
)
from hetero.model.units import GiB
from hetero.registry.registry import Registry
from tests.kube.conftest import card
from tests.kube.fake_api import FakeApi
from tests.kube.test_pod_request import asked, pod
from tests.kube.test_scheduler import Running, scenario
from tests.kube.test_webhook import webhook

VENDORS = Registry()
CLASS, POLICY = "metax-tech.com/sgpu-app-class", "metax-tech.com/sgpu-qos-policy"
SLICE = {"metax-tech.com/sgpu": "1", "metax-tech.com/vcore": "20", "metax-tech.com/vmemory": "4"}
HOOK = webhook(FakeApi())


def sliced(uuid: str) -> Device:
    """Return a card that its driver cuts into slices, all of which share it alike."""
    return VENDORS.vendor("metax").device(
        uuid=uuid,
        model="MXC500",
        index=0,
        memory=64 * GiB,
        enforcement=Enforcement.PARTITION,
        granularity=Fractional(multi=MultiDevice.WHOLE, together=True),
        capacity={SLOTS: 16, **POLICY_SLOTS},
    )


def module(*uuids: str, group: str) -> tuple[Device, ...]:
    """Return the dies of one module."""
    return tuple(
        VENDORS.vendor("ascend").device(
            uuid=uuid,
            model="910C",
            index=index,
            memory=64 * GiB,
            enforcement=Enforcement.PARTITION,
            group=group,
        )
        for index, uuid in enumerate(uuids)
    )


def put(it: Running, name: str, limits: dict[str, str], **notes: str) -> dict[str, Any]:
    made = it.pod(name, limits)
    made["metadata"]["annotations"] = notes
    return it.api.put_now(f"/api/v1/namespaces/default/pods/{name}", made)


async def refusal_of(it: Running, name: str, limits: dict[str, str], **notes: str) -> str | None:
    """Return what node n1 says to a new pod, None if it serves and the pod is bound."""
    made = put(it, name, limits, **notes)
    answer = await it.call("filter", Pod=made, NodeNames=["n1"])
    if answer["NodeNames"]:
        assert {} == await it.bind(name, "n1")
    refusal: str | None = answer["FailedNodes"].get("n1")
    return refusal


def devices(it: Running, name: str) -> set[str]:
    given = it.given(name)
    assert given is not None
    return {grant.device for _, allocation in given.containers for grant in allocation.pieces}


# --- classes --------------------------------------------------------------------------------------


async def test_pods_of_a_class_and_others_never_share_a_card() -> None:
    async with scenario(n1=(sliced("A"), sliced("B"))) as it:
        await refusal_of(it, "plain", SLICE)
        await refusal_of(it, "offline", SLICE, **{CLASS: "offline"})
        await refusal_of(it, "plain-too", SLICE)
        await refusal_of(it, "offline-too", SLICE, **{CLASS: "offline"})

        assert devices(it, "plain") == devices(it, "plain-too")
        assert devices(it, "offline") == devices(it, "offline-too")
        assert devices(it, "plain") != devices(it, "offline")


async def test_an_online_pod_joins_an_offline_one_and_never_the_other_way_round() -> None:
    async with scenario(n1=(sliced("A"),)) as it:
        assert None is await refusal_of(it, "first", SLICE, **{CLASS: "offline"})
        assert None is await refusal_of(it, "online", SLICE, **{CLASS: "online"})
        assert "shared otherwise" == await refusal_of(it, "late", SLICE, **{CLASS: "offline"})
        assert "shared otherwise" == await refusal_of(it, "plain", SLICE)
    assert "0 of 1 node: 1 shared otherwise" in it.api.events


async def test_slices_of_one_card_all_share_it_by_one_policy() -> None:
    async with scenario(n1=(sliced("A"),)) as it:
        assert None is await refusal_of(it, "fixed", SLICE, **{POLICY: "fixed-share"})
        said_no = await refusal_of(it, "burst", SLICE, **{POLICY: "burst-share"})
        assert "shared by another policy" == said_no
        assert None is await refusal_of(it, "fixed-too", SLICE, **{POLICY: "fixed-share"})


async def test_a_card_is_anybodys_again_when_those_on_it_are_gone() -> None:
    async with scenario(n1=(sliced("A"),)) as it:
        await refusal_of(it, "offline", SLICE, **{CLASS: "offline"})
        it.api.delete("/api/v1/namespaces/default/pods/offline")
        assert None is await refusal_of(it, "plain", SLICE)


async def test_of_pods_bound_at_once_only_those_that_may_share_get_the_card() -> None:
    async with scenario(n1=(sliced("A"),)) as it:
        for name in ("plain", "offline"):
            notes = {CLASS: name} if name == "offline" else {}
            made = put(it, name, SLICE, **notes)
            answer = await it.call("filter", Pod=made, NodeNames=["n1"])
            assert ["n1"] == answer["NodeNames"]
        answers = await asyncio.gather(*(it.bind(name, "n1") for name in ("plain", "offline")))

        assert [{}, {"Error": "node n1: 0 of 1 device: 1 shared otherwise"}] == answers


def test_an_online_pod_goes_first_on_its_card() -> None:
    priorities = [
        asked(SLICE, notes={CLASS: one}).request.priority for one in ("online", "offline")
    ]

    assert ["high", "low"] == priorities


@pytest.mark.parametrize(
    ("notes", "limits", "sentence"),
    [
        ({CLASS: "batch"}, SLICE, f"{CLASS} 'batch' is none of offline, online"),
        (
            {CLASS: "online"},
            {"metax-tech.com/sgpu": "2"},
            f"metax-tech.com/sgpu 2: a pod with {CLASS} has one card",
        ),
        (
            {POLICY: "fair"},
            SLICE,
            f"{POLICY} 'fair' is none of best-effort, burst-share, default, fixed-share",
        ),
        (
            {"nvidia.com/vgpu-mode": "vm"},
            {"nvidia.com/gpu": "1"},
            "nvidia.com/vgpu-mode 'vm' is none of hami-core, mig, mps",
        ),
        (
            {},
            {"huawei.com/Ascend910C": "3"},
            "huawei.com/Ascend910C 3: cards come in modules of 2, so ask for a multiple of 2 "
            "(1 means one module)",
        ),
    ],
)
def test_nonsense_is_refused_at_admission(
    notes: dict[str, str], limits: dict[str, str], sentence: str
) -> None:
    request = {"uid": "r", "operation": "CREATE", "object": pod(limits, notes=notes)}
    answer = asyncio.run(HOOK.admit(request))

    assert f"hetero: container main: {sentence}" == answer["status"]["message"]


# --- modules --------------------------------------------------------------------------------------


def test_one_whole_die_means_its_module_and_the_pod_says_so() -> None:
    plain = pod({"huawei.com/Ascend910C": "1"})
    plain["spec"]["containers"][0]["resources"]["requests"] = {"huawei.com/Ascend910C": "1"}
    answer = asyncio.run(HOOK.admit({"uid": "r", "operation": "CREATE", "object": plain}))
    count, *_ = json.loads(base64.b64decode(answer["patch"]))

    assert {
        "limits": {"huawei.com/Ascend910C": "2"},
        "requests": {"huawei.com/Ascend910C": "2"},
    } == count["value"]


async def test_whole_dies_are_given_by_modules() -> None:
    cards = [module(f"{name}0", f"{name}1", group=name) for name in "abcd"]
    async with scenario(n1=tuple(device for pair in cards for device in pair)) as it:
        assert None is await refusal_of(
            it, "slice", {"huawei.com/Ascend910C": "1", "huawei.com/Ascend910C-memory": "16384"}
        )
        assert None is await refusal_of(it, "one", {"huawei.com/Ascend910C": "1"})
        assert None is await refusal_of(it, "four", {"huawei.com/Ascend910C": "4"})

        assert 1 == len(devices(it, "slice"))
        assert devices(it, "one") in ({"a0", "a1"}, {"b0", "b1"}, {"c0", "c1"}, {"d0", "d1"})
        pairs = {device[0] for device in devices(it, "four")}
        assert (2, 4) == (len(pairs), len(devices(it, "four")))
        assert None is not await refusal_of(it, "five", {"huawei.com/Ascend910C": "1"})


# --- modes ----------------------------------------------------------------------------------------


def partitioned(uuid: str, *, counted: bool = False) -> Device:
    """Return a card with one instance."""
    part = Template("1g.5gb", {CORE: 1, MEMORY: 5 * GiB, "p": 1}, part="p")
    return evolve(
        card(uuid),
        enforcement=Enforcement.PARTITION,
        granularity=Templated((part,), whole=False, counted=counted),
        capacity={CORE: 7, MEMORY: 16 * GiB, SLOTS: 1, "p": 1},
    )


@pytest.mark.parametrize(
    "limits",
    [
        {"nvidia.com/gpu": "1"},
        {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "10"},
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"},
        {"volcano.sh/vgpu-number": "1"},
    ],
)
async def test_a_number_of_cards_is_of_whole_cards_or_shares_of_them(
    limits: dict[str, str],
) -> None:
    async with scenario(n1=(partitioned("MIG"), card("PLAIN"))) as it:
        assert None is await refusal_of(it, "first", limits)
        assert {"PLAIN"} == devices(it, "first")


async def test_cards_by_number_are_never_an_instance_and_a_whole_card() -> None:
    """CUDA shows a program one instance and no card beside it."""
    async with scenario(n1=(partitioned("MIG"), card("PLAIN"))) as it:
        sentence = str(await refusal_of(it, "two", {"nvidia.com/gpu": "2"}))
        assert "have too few devices" == sentence

        by_name = {"nvidia.com/mig-1g.5gb": "1"}
        assert None is await refusal_of(it, "named", by_name)
        assert {"MIG"} == devices(it, "named")


async def test_instances_count_as_cards_where_the_node_has_nothing_else() -> None:
    async with scenario(n1=(partitioned("ONE", counted=True),)) as it:
        assert None is await refusal_of(it, "one", {"nvidia.com/gpu": "1"})
        assert {"ONE"} == devices(it, "one")


async def test_a_pod_that_asks_for_cards_that_are_cut_may_have_an_instance() -> None:
    async with scenario(n1=(partitioned("MIG"), card("PLAIN"))) as it:
        limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}
        assert None is await refusal_of(it, "hard", limits, **{"hetero.io/slices": "hard"})
        assert {"MIG"} == devices(it, "hard")


async def test_a_pod_chooses_between_partitioned_cards_and_shared_ones() -> None:
    async with scenario(n1=(partitioned("MIG"), card("PLAIN"))) as it:
        mode = "nvidia.com/vgpu-mode"
        limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}
        await refusal_of(it, "mig", limits, **{mode: "mig"})
        await refusal_of(it, "core", limits, **{mode: "hami-core"})

        assert ({"MIG"}, {"PLAIN"}) == (devices(it, "mig"), devices(it, "core"))
        assert "not chosen" in str(await refusal_of(it, "mps", limits, **{mode: "mps"}))
