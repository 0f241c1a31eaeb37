import asyncio
import base64
import copy
import io
import json
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from attrs import evolve

from hetero.kube.dra.templates import ASKED
from hetero.kube.dra.way import AllocationWay
from hetero.kube.objects.kinds import Pod
from hetero.kube.objects.reading import read
from hetero.kube.webhook.admission import Webhook
from hetero.kube.words.annotations import ALLOCATION
from tests.cluster.test_attacks import MALFORMED
from tests.kube.fake_api import FakeApi
from tests.kube.test_pod_request import WORDS, pod


def webhook(api: FakeApi) -> Webhook:
    """Return the webhook of a cluster."""
    return Webhook(
        vocabulary=WORDS,
        scheduler_name="hetero-scheduler",
        allocation_writer_name="the-scheduler",
        api=api,
    )


HOOK = webhook(FakeApi())
SHARE = {"nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}


def admit(plain: dict[str, Any], **rest: Any) -> Any:
    asked = {"uid": "r", "operation": "CREATE", "namespace": "default", "object": plain, **rest}
    return asyncio.run(HOOK.admit(asked))


def patches(plain: dict[str, Any]) -> list[dict[str, Any]]:
    answer = admit(plain)
    assert answer["allowed"]
    made: list[dict[str, Any]] = json.loads(base64.b64decode(answer.get("patch", "W10=")))
    return made


def refusal(plain: dict[str, Any], **rest: Any) -> str:
    answer = admit(plain, **rest)
    assert not answer["allowed"]
    return str(answer["status"]["message"])


def test_a_pod_gets_our_scheduler_and_the_card_it_meant() -> None:
    count, scheduler = patches(pod(SHARE))

    assert {"nvidia.com/gpu": "1", **SHARE} == count["value"]["limits"]
    assert ("/spec/schedulerName", "hetero-scheduler") == (scheduler["path"], scheduler["value"])


def test_a_pod_that_asks_nothing_of_us_is_left_alone() -> None:
    assert [] == patches(pod({"cpu": "1"}))


def patched(plain: dict[str, Any], made: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a pod with what a patch adds to it, and without what it removes."""
    result = copy.deepcopy(plain)
    for operation in made:
        *way, last = operation["path"].strip("/").split("/")
        at: Any = result
        for part in way:
            at = at[int(part)] if isinstance(at, list) else at[part]
        if operation["op"] == "remove":
            del at[last.replace("~1", "/")]
        elif last == "-":
            at.append(operation["value"])
        else:
            at[last] = operation["value"]
    return result


@pytest.mark.parametrize("old_kubelets", [False, True])
def test_a_number_of_no_cards_is_left_out_since_kubelets_may_start_no_such_container(
    old_kubelets: bool,
) -> None:
    hygon = {"hygon.com/dcunum": "0", "hygon.com/dcumem": "0"}
    zeros = {"cpu": "1", "nvidia.com/gpu": "0", "nvidia.com/priority": "1", **hygon}
    made = pod(zeros)
    made["spec"]["initContainers"] = [{"name": "first", "resources": {"limits": dict(zeros)}}]
    made["spec"]["containers"][0]["resources"]["requests"] = {"nvidia.com/gpu": 0}
    mixed = pod({"nvidia.com/gpu": "0", "nvidia.com/priority": "1", "hygon.com/dcunum": "1"})
    meant = pod({"nvidia.com/gpu": "1", "nvidia.com/priority": "1", "hygon.com/dcunum": "0"})

    def admitted(plain: dict[str, Any], hook: Webhook) -> dict[str, Any]:
        answer = asyncio.run(hook.admit({"uid": "r", "operation": "CREATE", "object": plain}))
        return patched(plain, json.loads(base64.b64decode(answer.get("patch", "W10="))))

    hook = evolve(HOOK, serves_old_kubelets=old_kubelets)
    spec = admitted(made, hook)["spec"]
    left = {"cpu": "1", "hygon.com/dcumem": "0"}
    assert {"limits": left, "requests": {}} == spec["containers"][0]["resources"]
    assert {"limits": left} == spec["initContainers"][0]["resources"]
    one_kind = admitted(mixed, hook)["spec"]
    assert {"limits": {"hygon.com/dcunum": "1"}} == one_kind["containers"][0]["resources"]
    kept = {"nvidia.com/gpu": "1", "nvidia.com/priority": "1"}
    assert {"limits": kept} == admitted(meant, hook)["spec"]["containers"][0]["resources"]


def test_by_claims_a_container_of_no_card_asks_for_no_priority() -> None:
    """No node states one, so the pod would wait without end."""
    plain = pod(SHARE)
    plain["metadata"]["annotations"] = {"hetero.io/by-claims": "true"}
    zeros = {"cpu": "1", "nvidia.com/gpu": "0", "nvidia.com/priority": "1"}
    plain["spec"]["containers"].append({"name": "beside", "resources": {"limits": zeros}})
    hook = evolve(HOOK, allocation_way=AllocationWay.BOTH)
    answer = asyncio.run(hook.admit({"uid": "r", "operation": "CREATE", "object": plain}))
    spec = patched(plain, json.loads(base64.b64decode(answer["patch"])))["spec"]

    assert {"limits": {"cpu": "1"}} == spec["containers"][1]["resources"]
    assert ["claims", "limits"] == sorted(spec["containers"][0]["resources"])


@pytest.mark.parametrize("old_kubelets", [False, True])
@pytest.mark.parametrize("by_claims", [False, True])
def test_a_pod_that_was_admitted_is_admitted_again_unchanged(
    *, old_kubelets: bool, by_claims: bool
) -> None:
    """Another webhook that changes it has the API server ask a second time."""
    way = AllocationWay.BOTH
    hook = evolve(HOOK, serves_old_kubelets=old_kubelets, hides_unasked=True, allocation_way=way)
    plain = pod(SHARE)
    sidecar = {"name": "beside", "env": [{"name": "A", "value": "b"}]}
    plain["spec"]["containers"].append(sidecar)
    if by_claims:
        plain["metadata"]["annotations"] = {"hetero.io/by-claims": "true"}
    else:
        first = {"name": "first", "resources": {"limits": dict(SHARE)}}
        plain["spec"]["initContainers"] = [first]

    def again(plain: dict[str, Any]) -> dict[str, Any]:
        answer = asyncio.run(hook.admit({"uid": "r", "operation": "CREATE", "object": plain}))
        assert answer["allowed"], answer
        return patched(plain, json.loads(base64.b64decode(answer.get("patch", "W10="))))

    once = again(plain)
    assert once != plain
    assert once == again(once)


def test_words_that_a_tenant_puts_aside_by_itself_need_the_right_that_they_name() -> None:
    hook, forged = evolve(HOOK, allocation_way=AllocationWay.BOTH), pod({})
    asked = json.dumps({"main": {"nvidia.com/gpu": "1", **SHARE}})
    forged["metadata"]["annotations"] = {ASKED: asked, "hetero.io/policy": "off"}
    answer = asyncio.run(hook.admit({"uid": "r", "operation": "CREATE", "object": forged}))

    assert not answer["allowed"]
    assert "may use policy off" in answer["status"]["message"]


@pytest.mark.parametrize("way", AllocationWay)
@pytest.mark.parametrize(
    ("limits", "notes", "sentence"),
    [
        (
            {"nvidia.com/gpu": 0, "nvidia.com/gpumem": 1000},
            {},
            "container main: nvidia.com/gpu is 0, and nvidia.com/gpumem 1000 is a part of a card: "
            "leave nvidia.com/gpumem out for no card, or ask for nvidia.com/gpu 1",
        ),
        (
            {"nvidia.com/mig-1g.10gb": 0, "nvidia.com/gpumem": 1000},
            {},
            "container main: nvidia.com/mig-1g.10gb is 0, and nvidia.com/gpumem 1000 is a part of "
            "a card: leave nvidia.com/gpumem out for no card, or ask for nvidia.com/gpu 1",
        ),
        (
            {"nvidia.com/gpu": 1},
            {"volcano.sh/vgpu-memory": "3000"},
            "volcano.sh/vgpu-memory is among the pod's annotations, where it means nothing: write "
            "it to the limits of container main",
        ),
        (
            {"iluvatar.ai/BI-V150-vgpu": 1},
            {"nvidia.com/gpumem": "3000"},
            "nvidia.com/gpumem is among the pod's annotations, where it means nothing: write it to "
            "the limits of container main",
        ),
        (
            {"nvidia.com/gpu": 1},
            {"nvidia.com/gpumem": "3000"},
            "nvidia.com/gpumem is among the pod's annotations, where it means nothing: write it to "
            "the limits of container main",
        ),
    ],
)
def test_a_size_that_means_nothing_is_refused_in_every_way(
    way: AllocationWay, limits: dict[str, Any], notes: dict[str, str], sentence: str
) -> None:
    plain = pod(limits)
    plain["metadata"]["annotations"] = {"hetero.io/by-claims": "true", **notes}
    hook = evolve(HOOK, allocation_way=way)
    answer = asyncio.run(hook.admit({"uid": "r", "operation": "CREATE", "object": plain}))

    assert (False, f"hetero: {sentence}") == (answer["allowed"], answer["status"]["message"])


def test_a_size_among_the_annotations_of_a_pod_without_cards_is_nobodys_concern() -> None:
    plain = pod({"cpu": "1"})
    plain["metadata"]["annotations"] = {"nvidia.com/gpumem": "3000"}

    assert [] == patches(plain)


def test_a_vendors_pods_get_its_runtime_class_unless_they_name_one() -> None:
    hook = evolve(HOOK, runtime_class_by_vendor={"nvidia": "nvidia-legacy"})

    def classes(plain: dict[str, Any]) -> list[str]:
        asked = {"uid": "r", "operation": "CREATE", "object": plain}
        made = json.loads(base64.b64decode(asyncio.run(hook.admit(asked))["patch"]))
        return [one["value"] for one in made if one["path"] == "/spec/runtimeClassName"]

    named = pod(SHARE)
    named["spec"]["runtimeClassName"] = "mine"

    assert ["nvidia-legacy"] == classes(pod(SHARE))
    assert [] == classes(named)
    assert [] == classes(pod({"hygon.com/dcunum": "1"}))


def test_a_pod_that_names_another_scheduler_is_left_alone() -> None:
    other = pod(SHARE)
    other["spec"]["schedulerName"] = "volcano"

    assert [] == patches(other)


@pytest.mark.parametrize("label", ["hetero.io/webhook", "hami.io/webhook"])
def test_a_label_of_a_pod_leaves_it_to_no_other_scheduler(label: str) -> None:
    """A tenant made ten failed pods a second by it: the node offers cards to every scheduler."""
    labelled = pod(SHARE)
    labelled["metadata"]["labels"] = {label: "ignore"}

    assert patches(pod(SHARE)) == patches(labelled)
    assert [] != patches(labelled)


def test_pods_of_a_scheduler_that_is_gone_are_moved_to_ours() -> None:
    hook = evolve(HOOK, adopted_scheduler_names=frozenset({"hami-scheduler"}))

    def scheduler(plain: dict[str, Any]) -> str | None:
        plain["spec"]["schedulerName"] = "hami-scheduler"
        answer = asyncio.run(hook.admit({"uid": "r", "operation": "CREATE", "object": plain}))
        made = json.loads(base64.b64decode(answer.get("patch", "W10=")))
        return next((p["value"] for p in made if p["path"] == "/spec/schedulerName"), None)

    assert "hetero-scheduler" == scheduler(pod(SHARE))
    assert None is scheduler(pod({"cpu": "1"}))


def privileged() -> dict[str, Any]:
    made = pod(SHARE)
    made["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    return made


def pinned() -> dict[str, Any]:
    made = pod(SHARE)
    made["spec"]["nodeName"] = "n1"
    return made


@pytest.mark.parametrize(
    ("made", "sentence"), [(privileged(), "is privileged"), (pinned(), "nodeName is set")]
)
def test_a_label_and_the_name_of_our_scheduler_suspend_no_rule(
    made: dict[str, Any], sentence: str
) -> None:
    made["metadata"]["labels"] = {"hetero.io/webhook": "ignore"}
    made["spec"]["schedulerName"] = "hetero-scheduler"
    answer = asyncio.run(HOOK.admit({"uid": "r", "operation": "CREATE", "object": made}))

    assert not answer["allowed"]
    assert sentence in answer["status"]["message"]


def covering(limits: dict[str, str], **container: Any) -> dict[str, Any]:
    made = pod(limits)
    made["spec"]["containers"][0] |= container
    return made


def at_the_preload_file(path: str = "/etc/../etc/ld.so.preload") -> dict[str, Any]:
    return {"volumeMounts": [{"name": "own", "mountPath": path}]}


HIDES = "container main: mounts its own at "
CLIMBS = f"{HIDES}/opt/a/../b: `..` may lead to what limits its cards: write the path without"


@pytest.mark.parametrize(
    ("plain", "sentence"),
    [
        (covering(SHARE, **at_the_preload_file()), HIDES),
        (covering(SHARE, **at_the_preload_file("//etc/hetero/grant")), HIDES),
        (covering(SHARE, **at_the_preload_file("etc/hetero")), f"{HIDES}etc/hetero, where what"),
        (covering(SHARE, **at_the_preload_file("/etc/x/..")), HIDES),
        (covering(SHARE, **at_the_preload_file("/opt/a/../b")), CLIMBS),
        (covering(SHARE, **at_the_preload_file("/")), HIDES),
        (covering(SHARE, **at_the_preload_file("/proc/self/root/etc/hetero")), HIDES),
        (covering(SHARE, **at_the_preload_file("/proc/1/root")), HIDES),
        (covering(SHARE, **at_the_preload_file("/proc/net/../root/etc")), HIDES),
        (covering(SHARE, terminationMessagePath="/etc/ld.so.preload"), HIDES),
        (covering(SHARE, volumeDevices=[{"name": "a", "devicePath": "/etc/hetero/usage"}]), HIDES),
        (
            covering({}, resources={"claims": [{"name": "c"}]}, **at_the_preload_file()),
            HIDES,
        ),
        (privileged(), "hetero: container main: is privileged"),
        (pinned(), "nodeName is set, which passes the scheduler by: use a nodeSelector"),
        (pod({"nvidia.com/gpucores": "130"}), "is more than a card has"),
        (pod(SHARE, notes={"hetero.io/allocation": "{}"}), "written by the scheduler alone"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(plain: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(plain)


@pytest.mark.parametrize(
    "plain",
    [
        covering({"cpu": "1"}, **at_the_preload_file()),
        covering(SHARE, **at_the_preload_file("/etc/hetero-of-mine")),
        covering(SHARE, **at_the_preload_file("/proc/meminfo")),  # as lxcfs does
    ],
)
def test_what_hides_nothing_may_be_mounted(plain: dict[str, Any]) -> None:
    assert admit(plain)["allowed"]


def test_nobody_but_the_scheduler_changes_an_allocation() -> None:
    old, new = pod(SHARE), pod(SHARE, notes={"hetero.io/allocation": "{}"})
    change = {"operation": "UPDATE", "oldObject": old}

    tenant = refusal(new, **change, userInfo={"username": "tenant"})
    scheduler = admit(new, **change, userInfo={"username": "the-scheduler"})

    assert f"hetero: {ALLOCATION} is written by the scheduler alone: leave it out" == tenant
    assert {"allowed": True} == scheduler


HAMI = {"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,2000,20:;"}


@pytest.mark.parametrize(
    ("change", "plain", "scheduler"),
    [
        ({}, pod(SHARE, notes=HAMI), None),
        ({}, pod({"cpu": "1"}, notes=HAMI), "tenants-own"),
        ({"operation": "UPDATE", "oldObject": pod(SHARE)}, pod(SHARE, notes=HAMI), None),
        ({"operation": "UPDATE", "oldObject": pod(SHARE, notes=HAMI)}, pod(SHARE), None),
    ],
)
def test_nobody_but_hami_says_which_devices_hami_gave(
    change: dict[str, Any], plain: dict[str, Any], scheduler: str | None
) -> None:
    plain["spec"]["schedulerName"] = scheduler
    hook = evolve(HOOK, other_writer_names=frozenset({"hami"}))

    def answer(user: str) -> Any:
        request = {"uid": "r", "operation": "CREATE", "object": plain, **change}
        return asyncio.run(hook.admit({**request, "userInfo": {"username": user}}))

    assert [False, True] == [answer(user)["allowed"] for user in ("tenant", "hami")]
    assert (
        "hetero: hami.io/vgpu-devices-allocated says which devices HAMi gave, and is written by "
        "HAMi alone: leave it out"
    ) == answer("tenant")["status"]["message"]


def test_what_hami_gave_stays_where_a_pod_changes_otherwise() -> None:
    old, new = pod(SHARE, notes=HAMI), pod(SHARE, notes={**HAMI, "note": "changed"})

    assert admit(new, operation="UPDATE", oldObject=old)["allowed"]


def test_what_init_containers_ask_of_a_card_is_noted_where_kubelets_would_refuse_it() -> None:
    made = pod({"cpu": "1"}, notes={"a": "b"})
    limits = {"cpu": "1", **SHARE}
    made["spec"]["initContainers"] = [{"name": "first", "resources": {"limits": limits}}]
    review = {"uid": "r", "operation": "CREATE", "object": made}

    def patched(hook: Webhook) -> dict[str, Any]:
        operations = json.loads(base64.b64decode(asyncio.run(hook.admit(review))["patch"]))
        return {one["path"]: one["value"] for one in operations}

    old, new = patched(evolve(HOOK, serves_old_kubelets=True)), patched(HOOK)
    resources = "/spec/initContainers/0/resources"

    assert {"cpu": "1", "nvidia.com/gpu": "1", **SHARE} == new[resources]["limits"]
    assert {"cpu": "1", "nvidia.com/gpu": "1"} == old[resources]["limits"]
    assert {"first": SHARE} == json.loads(old["/metadata/annotations"]["hetero.io/init-parts"])
    assert "b" == old["/metadata/annotations"]["a"]
    moved = copy.deepcopy(made)
    moved["metadata"]["annotations"] = old["/metadata/annotations"]
    moved["spec"]["initContainers"][0]["resources"] = old[resources]
    made["spec"]["initContainers"][0]["resources"] = new[resources]
    assert WORDS.asked(read(Pod, made)) == WORDS.asked(read(Pod, moved))


@pytest.mark.parametrize("text", ["[]", "{", '{"first": 1}'])
def test_a_note_of_init_containers_that_is_none_is_refused(text: str) -> None:
    assert "hetero.io/init-parts is no " in refusal(
        pod(SHARE, notes={"hetero.io/init-parts": text})
    )


NOTHING = {"nvidia.com/gpu": "0", "nvidia.com/gpumem": "0", "nvidia.com/gpucores": "0"}


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_no_note_hides_what_a_container_asks_from_the_rules(kind: str) -> None:
    """It would be written away before the pod is bound."""
    asks = {**privileged()["spec"]["containers"][0], "name": "asks"}
    made = pod({"cpu": "1"}, notes={"hetero.io/init-parts": json.dumps({"asks": NOTHING})})
    made["spec"].setdefault(kind, []).append(asks)

    assert "container asks: is privileged" in refusal(made)
    asks["resources"] = {"limits": {"nvidia.com/gpumem": "3000"}}  # the webhook writes the count
    assert "container asks: is privileged" in refusal(made)


def test_what_a_pod_says_later_keeps_to_the_rules_that_it_met_when_it_was_made() -> None:
    """As a pod may that was made while nobody looked."""
    elastic = {"hetero.io/policy": "elastic"}
    for was, sentence in (
        (privileged(), "is privileged"),
        (covering(SHARE, **at_the_preload_file()), HIDES),
    ):
        was["spec"]["schedulerName"] = "hetero-scheduler"
        now = copy.deepcopy(was)
        now["metadata"]["annotations"] = elastic
        assert sentence in refusal(now, operation="UPDATE", oldObject=was)
        assert admit(was, operation="UPDATE", oldObject=was)["allowed"]


def test_a_sidecar_that_kubernetes_took_for_an_init_container_is_refused() -> None:
    def applied(policy: str) -> dict[str, Any]:
        side = {"name": "side", "restartPolicy": policy}
        applied_text = json.dumps({"spec": {"initContainers": [side]}})
        made = pod(SHARE, notes={"kubectl.kubernetes.io/last-applied-configuration": applied_text})
        made["spec"]["initContainers"] = [{"name": "side"}]
        return made

    known = applied("Always")
    known["spec"]["initContainers"][0]["restartPolicy"] = "Always"

    assert "container side: with restartPolicy Always it is a sidecar" in refusal(applied("Always"))
    assert [True, True] == [admit(one)["allowed"] for one in (known, applied(""))]


def test_who_is_answered_has_the_webhook_ask_and_write_nothing() -> None:
    """Whoever it is: a pod on a host's network says of itself that it is anybody."""
    api = FakeApi()
    hook = evolve(webhook(api), allocation_way=AllocationWay.BOTH)
    who = {"uid": "r", "namespace": "theirs", "userInfo": {"username": "admin"}}
    off = pod(SHARE, notes={"hetero.io/policy": "off"})
    by_claims = pod(SHARE, notes={"hetero.io/by-claims": "true"})
    for plain in (pod(SHARE), off, by_claims, pod({"cpu": "1"}), pod({"nvidia.com/gpu": "x"})):
        made = {**who, "operation": "CREATE", "object": plain}
        changed = {**who, "operation": "UPDATE", "object": plain, "oldObject": pod(SHARE)}
        for asked in (made, changed, {**changed, "subResource": "ephemeralcontainers"}):
            asyncio.run(hook.admit(asked))

    review = "POST /apis/authorization.k8s.io/v1/subjectaccessreviews"
    assert {review, "GET /api/v1/namespaces/theirs/resourcequotas"} == {*api.calls}
    assert [] == api.events
    assert {} == api.objects


async def test_no_pod_is_too_large_to_be_changed_later() -> None:
    """A review of a change has both states of a pod, and no more than 3 MiB are read."""

    def large(size: int) -> dict[str, Any]:
        return pod({"cpu": "1"}, env={"A": "<" * size})

    most = 1_500_000
    grows, more, shrinks = (most, most + 1000), (most, 1_510_000), (1_530_000, 1_520_000)
    sizes = [(0, most), (0, 1_510_000), (0, 3_000_000), (most, most), grows, more, shrinks]
    verdicts = list[tuple[int, bool, str]]()
    async with TestClient(TestServer(HOOK.app())) as client:
        for old, new in sizes:
            asked = dict[str, Any](operation="UPDATE" if old else "CREATE", object=large(new))
            asked |= {"uid": "r", "oldObject": large(old) if old else None}
            text = json.dumps({"request": asked}).encode()
            async with client.post("/admit", data=io.BytesIO(text)) as answer:
                response = (await answer.json())["response"]
                why = response.get("status", {}).get("message", "")
                verdicts.append((answer.status, response["allowed"], why))
    assert {200} == {status for status, _, _ in verdicts}
    assert [True, False, False, True, True, False, True] == [one for _, one, _ in verdicts]
    assert "bytes: over 1507328 it could not be changed any more" in verdicts[1][2]


@pytest.mark.parametrize("body", MALFORMED, ids=lambda body: body[:60])
async def test_what_is_no_admission_review_is_answered_400(body: str) -> None:
    async with TestClient(TestServer(webhook(FakeApi()).app())) as client:
        answer = await client.post("/admit", data=body)
        assert 400 == answer.status
