"""Settings that have a cluster behave as HAMi's does, one by one and by one line."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from hetero.kube.objects.kinds import Pod
from hetero.kube.objects.reading import read
from hetero.kube.scheduler.extender import Scheduler
from hetero.kube.webhook.admission import Webhook
from hetero.kube.words.annotations import INVENTORY, inventory_text
from hetero.kube.words.pod_request import Defaults
from hetero.kube.words.settings import Settings
from hetero.model import Ask, Policy, Priority
from hetero.model.errors import BadInput
from hetero.model.units import GiB, MiB
from tests.kube.conftest import card
from tests.kube.fake_api import FakeApi
from tests.kube.test_pod_request import VENDORS, WORDS, asked, asked_with, pod, settings
from tests.kube.test_scheduler import KEY
from tests.kube.test_webhook import webhook

SHARE = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}
OWN = "system:serviceaccount:team:default"


def admitted(plain: dict[str, Any], hook: Webhook) -> dict[str, Any]:
    request = {"uid": "r", "operation": "CREATE", "namespace": "team", "object": plain}
    answer: dict[str, Any] = asyncio.run(hook.admit(request))
    return answer


def hook_with(text: str, tmp_path: Path, api: FakeApi | None = None) -> Webhook:
    """Return the webhook of a cluster with these settings."""
    read_settings = settings(tmp_path, text)
    return evolve(
        webhook(api or FakeApi()),
        vocabulary=read_settings.vocabulary(VENDORS),
        refuses_privileged_sidecars=read_settings.privileged_sidecars == "refuse",
        takes_default_scheduler=read_settings.take_default_scheduler,
    )


# --- defaultGPUNum 0 ------------------------------------------------------------------------------


def test_a_size_alone_asks_for_no_card_where_none_is_added(tmp_path: Path) -> None:
    hook = hook_with("[defaults]\ncount = 0\n", tmp_path)
    size = {"nvidia.com/gpumem": "3000"}

    assert {"allowed": True} == admitted(pod(size), hook)
    assert "patch" in admitted(pod({"nvidia.com/gpu": "1", **size}), hook)


def test_a_lone_size_in_a_pod_of_ours_is_refused_there(tmp_path: Path) -> None:
    hook = hook_with("[defaults]\ncount = 0\n", tmp_path)
    by_name = pod({"nvidia.com/gpucores": "30", "nvidia.com/gpumem": "3000"})
    by_name["spec"]["schedulerName"] = "hetero-scheduler"
    mixed = pod(SHARE)
    mixed["spec"]["containers"].append(
        {"name": "other", "resources": {"limits": {"nvidia.com/gpumem": "3000"}}}
    )

    for plain, container, size in ((by_name, "main", "gpucores"), (mixed, "other", "gpumem")):
        answer = admitted(plain, hook)
        assert not answer["allowed"]
        assert (
            f"hetero: container {container}: nvidia.com/{size} without a number of cards asks for "
            "none here (defaults.count is 0 in the settings): write the number beside it"
        ) == answer["status"]["message"]


# --- memoryFactor ---------------------------------------------------------------------------------


def test_a_factor_is_what_one_of_a_resource_is(tmp_path: Path) -> None:
    text = '[memory-factors]\n"nvidia.com/gpumem" = 1024\n'
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4"}
    other = {"hygon.com/dcunum": "1", "hygon.com/dcumem": "2000"}

    assert (Ask(memory=4 * GiB),) == asked_with(tmp_path, text, limits).request.asks
    assert (Ask(memory=2000 * MiB),) == asked_with(tmp_path, text, other).request.asks
    in_bytes = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4Gi"}
    assert (Ask(memory=4 * GiB),) == asked_with(tmp_path, text, in_bytes).request.asks


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('"nvidia.com/gpumem" = 0', "memory-factors.'nvidia.com/gpumem' 0 is not a whole number"),
        ('"nvidia.com/gpumem" = true', "'nvidia.com/gpumem' True is not a whole number"),
        ('"nvidia.com/gpu" = 2', "no vendor has memory by the resource 'nvidia.com/gpu'"),
    ],
)
def test_a_factor_of_no_memory_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        settings(tmp_path, f"[memory-factors]\n{text}\n").vocabulary(VENDORS)


# --- priorities -----------------------------------------------------------------------------------


def test_who_goes_first_is_held_to_no_core_where_the_cluster_says_so(tmp_path: Path) -> None:
    text = "[defaults]\nhigh-priority-core-limit = false\n"
    first, second = {**SHARE, "nvidia.com/priority": "0"}, {**SHARE, "nvidia.com/priority": "1"}
    high, low = (asked_with(tmp_path, text, limits) for limits in (first, second))

    assert (True, Priority.HIGH) == (high.unlimited, high.request.priority)
    assert (False, Priority.LOW) == (low.unlimited, low.request.priority)
    assert not asked(first).unlimited


def test_that_needs_the_right_to_go_first_and_no_other(tmp_path: Path) -> None:
    text = "[defaults]\nhigh-priority-core-limit = false\n"
    plain = pod({**SHARE, "nvidia.com/priority": "0"})
    api = FakeApi(rights={(OWN, "team", "priority-0")})

    assert admitted(plain, hook_with(text, tmp_path, api))["allowed"]
    assert not admitted(plain, hook_with(text, tmp_path))["allowed"]


# --- all memory of a card -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "is_alone"),
    [
        ({"nvidia.com/gpu": "1"}, True),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "100"}, True),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}, False),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}, False),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpucores": "30"}, False),
        ({"hygon.com/dcunum": "1"}, False),
    ],
)
def test_all_memory_of_a_card_is_the_card_alone_where_the_cluster_says_so(
    tmp_path: Path, limits: dict[str, str], is_alone: bool
) -> None:
    text = '[defaults]\nwhole-memory = "exclusive"\ncore = 20\n'
    parsed = asked_with(tmp_path, text, limits)

    assert is_alone == parsed.request.exclusive
    assert is_alone == (parsed.request.asks[0].core is None)


# --- who is taken, and beside whom ----------------------------------------------------------------


def test_a_privileged_container_beside_one_with_a_card_is_refused_by_setting(
    tmp_path: Path,
) -> None:
    privileged = {"name": "beside", "securityContext": {"privileged": True}}
    plain, alone = pod(SHARE), pod({"cpu": "1"})
    for made in (plain, alone):
        made["spec"]["containers"].append(privileged)
    hook = hook_with('privileged-sidecars = "refuse"\n', tmp_path)

    refused = admitted(plain, hook)
    assert not refused["allowed"]
    assert "container beside: is privileged, so it sees every card" in refused["status"]["message"]
    assert {"allowed": True} == admitted(alone, hook)
    assert admitted(plain, hook_with("", tmp_path))["allowed"]


def test_pods_of_the_default_scheduler_may_be_left_alone(tmp_path: Path) -> None:
    hook = hook_with("take-default-scheduler = false\n", tmp_path)
    named = pod(SHARE)
    named["spec"]["schedulerName"] = "hetero-scheduler"

    assert {"allowed": True} == admitted(pod(SHARE), hook)
    assert {"allowed": True} == admitted(pod(SHARE, env={"CUDA_OVERSUBSCRIBE": "true"}), hook)
    assert "patch" in admitted(named, hook)


# --- node labels ----------------------------------------------------------------------------------


def node(name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    notes = {INVENTORY: inventory_text((card(f"GPU-{name}"),))}
    return {"metadata": {"name": name, "uid": name, "labels": labels, "annotations": notes}}


def test_cards_of_nodes_without_the_labels_are_not_given_out(tmp_path: Path) -> None:
    read_settings = settings(tmp_path, '[node-selector]\ngpu = "on"\nzone = "a"\n')
    api = FakeApi()
    both = {"gpu": "on", "zone": "a", "other": "x"}
    api.put_now("/api/v1/nodes/n1", node("n1", both))
    api.put_now("/api/v1/nodes/n2", node("n2", {"gpu": "on"}))

    async def follow() -> tuple[list[str], ...]:
        scheduler = Scheduler(api, WORDS, KEY, settings=read_settings)
        task = asyncio.ensure_future(scheduler.nodes.follow())
        seen = []
        for name, labels in ((None, both), ("n2", both), ("n1", {})):
            if name is not None:
                api.put_now(f"/api/v1/nodes/{name}", node(name, labels))
            await asyncio.sleep(0)
            seen.append(sorted(scheduler.cache.inventory.nodes))
        task.cancel()
        return tuple(seen)

    assert (["n1"], ["n1", "n2"], ["n2"]) == asyncio.run(follow())


# --- compat ---------------------------------------------------------------------------------------


def test_one_line_has_hamis_defaults(tmp_path: Path) -> None:
    read_settings = settings(tmp_path, 'compat = "hami"\n')

    assert ("binpack", "spread") == (read_settings.node_placement, read_settings.device_placement)
    assert "refuse" == read_settings.privileged_sidecars
    assert (
        Defaults(policy=Policy.ELASTIC, high_unlimited=True, whole_exclusive=True)
        == read_settings.defaults
    )


def test_what_the_settings_say_themselves_goes_before(tmp_path: Path) -> None:
    text = 'compat = "hami"\ndevice-placement = "binpack"\n[defaults]\npolicy = "fixed"\n'
    read_settings = settings(tmp_path, text)

    assert ("binpack", "binpack") == (read_settings.node_placement, read_settings.device_placement)
    assert (Policy.FIXED, True) == (
        read_settings.defaults.policy,
        read_settings.defaults.whole_exclusive,
    )


def test_a_product_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="compat 'volcano' is none of hami"):
        settings(tmp_path, 'compat = "volcano"\n')


def test_without_the_line_nothing_changes() -> None:
    assert Settings() == Settings(
        node_placement="fragmentation", device_placement="fragmentation", defaults=Defaults()
    )


def test_a_pod_with_a_lone_size_is_read_as_before_by_default() -> None:
    assert () == WORDS.lone_sizes(read(Pod, pod({"nvidia.com/gpumem": "1"})).spec.containers[0])
