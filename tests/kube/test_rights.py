"""Who may use the words that take something from neighbours: nobody who was not given the right."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from attrs import evolve

from hetero.kube.dra.templates import ASKED, templates
from hetero.kube.dra.way import AllocationWay
from hetero.kube.objects.kinds import Pod
from hetero.kube.objects.reading import read
from hetero.kube.webhook.rights import POLICIES
from hetero.kube.words.pod_request import Defaults
from tests.kube.fake_api import FakeApi
from tests.kube.test_pod_request import WORDS, pod
from tests.kube.test_webhook import webhook

SHARE = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}
OFF = {"hetero.io/policy": "off"}
ALICE = {"username": "alice", "groups": ["system:authenticated"]}
OWN = "system:serviceaccount:team:runner"


def answer(
    api: FakeApi,
    plain: dict[str, Any],
    user: Mapping[str, Any] = ALICE,
    way: AllocationWay = AllocationWay.CLASSIC,
    **rest: Any,
) -> Any:
    plain["spec"]["serviceAccountName"] = "runner"
    request = {"uid": "r", "operation": "CREATE", "namespace": "team", "object": plain, **rest}
    hook = evolve(webhook(api), allocation_way=way)
    return asyncio.run(hook.admit({"userInfo": dict(user), **request}))


def privileged(**rest: Any) -> dict[str, Any]:
    return pod(SHARE, notes=OFF, **rest)


def by_word(policy: str) -> dict[str, Any]:
    """Return a pod that uses a policy by our word, or by one of HAMi's."""
    return {
        "off": privileged(),
        "off, HAMi's": pod(SHARE, env={"GPU_CORE_UTILIZATION_POLICY": "disable"}),
        "off, MetaX's": pod(
            {"metax-tech.com/sgpu": "1"}, notes={"metax-tech.com/sgpu-qos-policy": "best-effort"}
        ),
        "priority-0": pod({**SHARE, "nvidia.com/priority": "0"}),
        "priority-0, MetaX's": pod(
            {"metax-tech.com/sgpu": "1"}, notes={"metax-tech.com/sgpu-app-class": "online"}
        ),
        "mps": pod(SHARE, notes={"nvidia.com/vgpu-mode": "mps"}),
        "on-excess-report": pod(SHARE, notes={"hetero.io/on-excess": "report"}),
        "on-bypass-report": pod(SHARE, notes={"hetero.io/on-bypass": "report"}),
        "visible-devices": pod(SHARE, env={"NVIDIA_VISIBLE_DEVICES": "all"}),
    }[policy]


@pytest.mark.parametrize(
    "word",
    [*POLICIES, "off, HAMi's", "off, MetaX's", "priority-0, MetaX's"],
)
def test_a_word_that_takes_from_neighbours_is_for_who_was_given_the_right(word: str) -> None:
    policy = word.partition(",")[0]
    others = {("alice", "team", name) for name in POLICIES if name != policy}
    elsewhere = {("alice", "default", policy)}

    refused = answer(FakeApi(rights=others | elsewhere), by_word(word))
    by_user = answer(FakeApi(rights={("alice", "team", policy)}), by_word(word))
    by_account = answer(FakeApi(rights={(OWN, "team", policy)}), by_word(word))

    assert (False, True, True) == tuple(one["allowed"] for one in (refused, by_user, by_account))
    assert (
        f"hetero: container main: {POLICIES[policy]}, and neither alice nor {OWN} may use policy "
        f"{policy} in namespace team: leave it out, or have ClusterRole hetero-use-{policy} bound "
        "there"
    ) == refused["status"]["message"]


def test_a_right_is_asked_about_once_however_many_containers_use_it() -> None:
    api = FakeApi(rights={("alice", "team", "visible-devices")})
    many = pod(SHARE, env={"NVIDIA_VISIBLE_DEVICES": "all"})
    (container,) = many["spec"]["containers"]
    many["spec"]["containers"] = [{**container, "name": f"c{number}"} for number in range(30)]

    assert answer(api, many)["allowed"]
    assert 1 == len([call for call in api.calls if "accessreview" in call])


@pytest.mark.parametrize(
    "notes",
    [
        {},
        {"hetero.io/policy": "elastic"},
        {"hetero.io/on-excess": "kill"},
        {"hetero.io/strict": "true"},
        {"hetero.io/slices": "hard"},
    ],
)
def test_words_that_take_nothing_from_neighbours_are_everybodys(notes: dict[str, str]) -> None:
    api = FakeApi()

    assert answer(api, pod(SHARE, notes=notes))["allowed"]
    assert not [call for call in api.calls if "accessreview" in call]


def test_what_the_cluster_gives_by_default_needs_no_right() -> None:
    hook = webhook(FakeApi())
    words = evolve(hook.vocabulary, defaults=Defaults(unlimited=True))
    request = {"uid": "r", "operation": "CREATE", "object": pod(SHARE)}

    assert asyncio.run(evolve(hook, vocabulary=words).admit(request))["allowed"]


@pytest.mark.parametrize(
    "user",
    [
        "system:serviceaccount:kube-system:replicaset-controller",
        "system:serviceaccount:operators:operator",
        "system:kube-controller-manager",
        "system:node:n1",
    ],
)
def test_who_makes_pods_for_others_lends_nobody_its_right(user: str) -> None:
    api = FakeApi(rights={(user, "team", "off")})

    refused = answer(api, privileged(), {"username": user})

    assert f"and {OWN} may not use policy off" in refused["status"]["message"]


def test_a_controller_that_is_an_administrator_lends_nobody_its_right() -> None:
    made = privileged()
    made["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "r", "controller": True}]
    api = FakeApi(rights={("alice", "team", "off")})

    assert not answer(api, made)["allowed"]


def test_a_program_of_the_pods_own_namespace_may_have_the_right_itself() -> None:
    user = "system:serviceaccount:team:deployer"

    assert answer(FakeApi(rights={(user, "team", "off")}), privileged(), {"username": user})[
        "allowed"
    ]


def test_a_word_that_comes_later_needs_the_right_too() -> None:
    def change(old: dict[str, Any], new: dict[str, Any], **rights: Any) -> bool:
        for version in (old, new):
            version["spec"]["schedulerName"] = "hetero-scheduler"
        api = FakeApi(**rights)
        return bool(answer(api, new, operation="UPDATE", oldObject=old)["allowed"])

    relabelled = privileged()
    relabelled["metadata"]["labels"] = {"a": "b"}

    assert not change(pod(SHARE), privileged())
    assert change(pod(SHARE), privileged(), rights={("alice", "team", "off")})
    assert change(privileged(), pod(SHARE))
    assert change(privileged(), relabelled)  # whoever writes there has nothing to do with it


SHARING = {"hetero.io/sharing": "mps"}
PUT_ASIDE = {ASKED: json.dumps({"main": SHARE})}


def by_claim(notes: Mapping[str, str], scheduler: str = "default-scheduler") -> dict[str, Any]:
    """Return a pod that names the template of what asks for MPS, as its maker may write it."""
    (template,) = templates(WORDS, read(Pod, pod(SHARE, notes=SHARING)))
    made = pod({}, notes={**notes})
    made["spec"]["schedulerName"] = scheduler
    made["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimTemplateName": template.name}]
    made["spec"]["containers"][0]["resources"] = {"claims": [{"name": "c"}]}
    return made


@pytest.mark.parametrize("scheduler", ["default-scheduler", "hetero-scheduler", "volcano"])
@pytest.mark.parametrize("before", [{}, PUT_ASIDE, SHARING, {ASKED: "nonsense", **SHARING}])
def test_a_word_that_comes_later_beside_a_claim_needs_the_right_too(
    before: dict[str, str], scheduler: str
) -> None:
    old, new = by_claim(before, scheduler), by_claim({**PUT_ASIDE, **SHARING}, scheduler)

    def change(old: dict[str, Any], new: dict[str, Any], **rights: Any) -> Any:
        way = AllocationWay.BOTH
        return answer(FakeApi(**rights), new, way=way, operation="UPDATE", oldObject=old)

    denied = change(old, new)["status"]["message"]
    assert f"hetero: container main: {POLICIES['mps']}, and neither alice nor" in denied
    assert change(old, new, rights={("alice", "team", "mps")})["allowed"]
    assert change(new, old)["allowed"]
    assert change(new, new)["allowed"]


@pytest.mark.parametrize("scheduler", ["default-scheduler", "hetero-scheduler", "volcano"])
@pytest.mark.parametrize("label", [None, "hetero.io/webhook", "hami.io/webhook"])
def test_words_beside_a_claim_need_the_right_whoever_schedules_their_pod(
    label: str | None, scheduler: str
) -> None:
    """Templates are made for all pods that name them."""
    made = by_claim({**PUT_ASIDE, **SHARING}, scheduler)
    made["metadata"]["labels"] = {label: "ignore"} if label else {}
    rights = {("alice", "team", "mps")}

    assert not answer(FakeApi(), made, way=AllocationWay.DRA)["allowed"]
    assert answer(FakeApi(rights=rights), made, way=AllocationWay.DRA)["allowed"]
    made["spec"]["containers"][0]["resources"] = {"limits": {"hygon.com/dcunum": "1"}}
    made["metadata"]["annotations"] = {**PUT_ASIDE, "nvidia.com/vgpu-mode": "mps"}
    assert not answer(FakeApi(), made, way=AllocationWay.BOTH)["allowed"]


@pytest.mark.parametrize("scheduler", ["default-scheduler", "hetero-scheduler", "volcano"])
@pytest.mark.parametrize("notes", [{}, SHARING, PUT_ASIDE, {ASKED: "nonsense", **SHARING}])
def test_nobody_names_the_template_of_a_pod_that_had_the_right(
    notes: dict[str, str], scheduler: str
) -> None:
    """Templates stay for an hour after the last pod that names them."""
    rights, way = {("alice", "team", "mps")}, AllocationWay.BOTH

    refused = answer(FakeApi(rights=rights), by_claim(notes, scheduler), way=way)
    assert not refused["allowed"]
    assert answer(FakeApi(), by_claim(notes, scheduler))["allowed"]  # classic: nobody makes any
    own = by_claim({**PUT_ASIDE, **SHARING}, scheduler)
    assert answer(FakeApi(rights=rights), own, way=way)["allowed"]


@pytest.mark.parametrize("label", ["hetero.io/webhook", "hami.io/webhook"])
def test_a_labelled_pod_that_names_our_scheduler_needs_the_right_too(label: str) -> None:
    made = privileged()
    made["metadata"]["labels"] = {label: "ignore"}
    made["spec"]["schedulerName"] = "hetero-scheduler"

    assert not answer(FakeApi(), made)["allowed"]


def test_nobody_has_a_right_that_cannot_be_asked() -> None:
    api = FakeApi(rights={("alice", "team", "off")}, fail={"subjectaccessreviews"})

    message = answer(api, privileged())["status"]["message"]

    assert "hetero: who may use policy off cannot be asked: POST" in message


def test_refusals_are_counted_by_policy() -> None:
    hook = webhook(FakeApi())
    request = {"uid": "r", "operation": "CREATE", "namespace": "team", "object": privileged()}
    for _ in range(2):
        asyncio.run(hook.admit({"userInfo": ALICE, **request}))

    def count(policy: str) -> float | None:
        return hook.rights.registry.get_sample_value(
            "hetero_webhook_denied_total", {"policy": policy}
        )

    assert (2.0, 0.0) == (count("off"), count("mps"))
