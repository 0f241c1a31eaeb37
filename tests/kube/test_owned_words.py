"""Words of HAMi and Volcano in pods: each is served, or one sentence says that it is not."""

import asyncio
import base64
import copy
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from hetero.kube.client.events import Events
from hetero.kube.dra.template_controller import TemplateController
from hetero.kube.dra.templates import ASKED
from hetero.kube.dra.way import AllocationWay
from hetero.kube.objects.kinds import Pod
from hetero.kube.objects.reading import read
from hetero.kube.words.owned_words import (
    INEFFECTIVE_WORDS,
    Effect,
    OwnedWord,
    noted,
    owned_words,
    read_words,
)
from hetero.kube.words.settings import Settings, load
from hetero.kube.words.word_events import WordEvents
from hetero.model import Ask, Policy
from hetero.model.errors import BadInput
from hetero.model.units import GiB, MiB
from hetero.plugin.resource_names import WordKind
from tests.kube.fake_api import FakeApi
from tests.kube.test_pod_request import VENDORS, WORDS, asked, pod
from tests.kube.test_webhook import HOOK, patched, webhook

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SHARE = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}
OWN = "system:serviceaccount:team:default"
#: What a pattern of the table stands for here.
SAMPLES = {
    "nvidia.com/mig-*": "nvidia.com/mig-1g.10gb",
    "huawei.com/Ascend*": "huawei.com/Ascend910B3-memory",
    "iluvatar.ai/*-vgpu": "iluvatar.ai/BI-V150-vgpu",
    "iluvatar.ai/*.vCore": "iluvatar.ai/BI-V150.vCore",
    "iluvatar.ai/*.vMem": "iluvatar.ai/BI-V150.vMem",
    "hami.io/use-Ascend*-uuid": "hami.io/use-Ascend910B3-uuid",
    "hami.io/no-use-Ascend*-uuid": "hami.io/no-use-Ascend910B3-uuid",
    "hami.io/use-*V*-uuid": "hami.io/use-BI-V150-uuid",
    "hami.io/no-use-*V*-uuid": "hami.io/no-use-BI-V150-uuid",
    "huawei.com/enpu-*": "huawei.com/enpu-policy",
    "CUDA_DEVICE_MEMORY_LIMIT_*": "CUDA_DEVICE_MEMORY_LIMIT_0",
    "CUDA_DEVICE_SM_LIMIT_*": "CUDA_DEVICE_SM_LIMIT_0",
    "HIP_DEVICE_MEMORY_LIMIT_*": "HIP_DEVICE_MEMORY_LIMIT_0",
}


#: What the project says of each word, apart from where it is declared.
TABLE = tuple(
    OwnedWord(**{"sentence": "", **row})
    for row in tomllib.loads(
        (Path(__file__).parent / "data/hami-words.toml").read_text()
    )["words"]
)  # fmt: skip
DECLARED = owned_words(VENDORS.declarations())


def names(kind: WordKind, effect: Effect) -> list[tuple[str, str]]:
    """Return the table's words of a kind, each with a value that is meant."""
    return [
        (SAMPLES.get(name, name), word.values[0] if word.values else "1")
        for word in TABLE
        if (kind, effect) == (word.kind, word.effect)
        for name in word.names
    ]


def admitted(
    plain: dict[str, Any], api: FakeApi | None = None, **settings: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the answer of a webhook about a pod, and the pod with its patches."""
    hook = evolve(webhook(api or FakeApi()), **settings)
    request = {"uid": "r", "operation": "CREATE", "namespace": "team", "object": plain}
    answer = asyncio.run(hook.admit(request))
    return answer, patched(plain, json.loads(base64.b64decode(answer.get("patch", "W10="))))


# --- the table ------------------------------------------------------------------------------------


def rows(words: Iterable[OwnedWord], effect: Effect) -> list[tuple[WordKind, str, object, bool]]:
    """Return words of an effect: kind, name, the values that are meant, and whether by claims."""
    return [
        (word.kind, name, word.values, word.by_claims)
        for word in words
        if word.effect is effect
        for name in word.names
    ]


def test_each_word_is_in_one_row_and_says_where_it_comes_from() -> None:
    for words in (TABLE, DECLARED.words):
        assert len(
            {(kind, name) for effect in Effect for kind, name, *_ in rows(words, effect)}
        ) == sum(len(word.names) for word in words)
    assert all(word.source for word in TABLE)


def test_what_is_declared_is_what_the_table_says_is_reported() -> None:
    """Of words that are served, those are declared that have no effect in some pods."""
    assert {*rows(TABLE, Effect.REPORTED)} == {*rows(DECLARED.words, Effect.REPORTED)}
    assert {*rows(DECLARED.words, Effect.SERVED)} < {*rows(TABLE, Effect.SERVED)}


def test_a_clusters_words_are_those_of_its_own_vendors() -> None:
    """And those that no vendor declares."""
    no_words = owned_words(()).words
    names = {name for word in no_words for name in word.names}
    domains = {resource.partition("/")[0] for resource in WORDS.resources}

    assert {*no_words} < {*DECLARED.words}
    assert set() == {name for name in names if name.partition("/")[0] in domains}
    assert all("/" in name for name in names)


def test_a_reported_word_without_a_sentence_is_an_error() -> None:
    row = {"kind": "variable", "names": ["A"], "effect": "reported", "source": "s"}

    with pytest.raises(BadInput, match="A: is reported, and no sentence says what is so"):
        read_words({"words": [row]})


@pytest.mark.parametrize("name", [name for name, _ in names(WordKind.RESOURCE, Effect.SERVED)])
def test_a_served_resource_is_known_to_a_vendor(name: str) -> None:
    assert name in WORDS.resources


#: The resource of the cards that an annotation of this domain is about.
CARDS = {
    "nvidia.com": "nvidia.com/gpu",
    "volcano.sh": "volcano.sh/vgpu-number",
    "hygon.com": "hygon.com/dcunum",
    "cambricon.com": "cambricon.com/vmlu",
    "mthreads.ai": "mthreads.com/vgpu",
    "metax-tech.com": "metax-tech.com/sgpu",
    "amd.com": "amd.com/gpu",
    "hami.io/use-Ascend910B3-uuid": "huawei.com/Ascend910B3",
    "hami.io/no-use-Ascend910B3-uuid": "huawei.com/Ascend910B3",
    "hami.io/use-BI-V150-uuid": "iluvatar.ai/BI-V150-vgpu",
    "hami.io/no-use-BI-V150-uuid": "iluvatar.ai/BI-V150-vgpu",
}
VALUES = {
    "hami.io/node-scheduler-policy": "spread",
    "hami.io/gpu-scheduler-policy": "binpack",
    "hami.io/device-scoring-weights": "slot=1,core=1,memory=3",
    "nvidia.com/numa-bind": "true",
    "nvidia.com/vgpu-mode": "mig",
    "volcano.sh/vgpu-mode": "hami-core",
    "metax-tech.com/sgpu-qos-policy": "burst-share",
    "metax-tech.com/sgpu-app-class": "offline",
    "metax-tech.com/sgpu-topology-aware": "true",
}


@pytest.mark.parametrize("name", [name for name, _ in names(WordKind.ANNOTATION, Effect.SERVED)])
def test_a_served_annotation_changes_what_a_pod_asks(name: str) -> None:
    cards = CARDS.get(name) or CARDS.get(name.partition("/")[0], "nvidia.com/gpu")

    def request(notes: Mapping[str, str]) -> Any:
        return WORDS.pod_request(read(Pod, pod({cards: "1"}, notes=notes)))

    assert request({}) != request({name: VALUES.get(name, "X-1")})


# --- what is reported -----------------------------------------------------------------------------


def with_word(kind: WordKind, name: str, value: str) -> dict[str, Any]:
    """Return a pod of ours with a word."""
    if kind is WordKind.RESOURCE:
        plain = pod({**SHARE, name: value})
    elif kind is WordKind.ANNOTATION:
        plain = pod(SHARE, notes={name: value})
    else:
        plain = pod(SHARE, env={name: value})
    plain["spec"]["schedulerName"] = "hetero-scheduler"
    return plain


REPORTED = [
    (kind, name, value) for kind in WordKind for name, value in names(kind, Effect.REPORTED)
]


@pytest.mark.parametrize(("kind", "name", "value"), REPORTED)
def test_a_word_without_effect_is_a_warning_a_note_and_a_count(
    kind: WordKind, name: str, value: str
) -> None:
    hook = webhook(FakeApi())
    plain = with_word(kind, name, value)
    request = {"uid": "r", "operation": "CREATE", "namespace": "team", "object": plain}
    answer = asyncio.run(hook.admit(request))
    made = patched(plain, json.loads(base64.b64decode(answer["patch"])))

    (warning,) = answer["warnings"]
    assert warning.startswith(f"{kind.value} {name} has no effect: ")
    assert (name,) == noted(made["metadata"]["annotations"])
    labels = {"word": DECLARED.pattern(name)}
    count = hook.rights.registry.get_sample_value("hetero_webhook_ineffective_words_total", labels)
    assert 1 == count


@pytest.mark.parametrize(("kind", "name", "value"), REPORTED)
def test_by_setting_a_pod_with_such_a_word_is_refused(
    kind: WordKind, name: str, value: str
) -> None:
    answer, _ = admitted(with_word(kind, name, value), refuses_ineffective_words=True)

    assert not answer["allowed"]
    assert f"{kind.value} {name} has no effect: " in answer["status"]["message"]


def test_by_claims_a_pod_hears_that_kube_scheduler_places_it() -> None:
    plain = pod(SHARE, notes={"hami.io/gpu-scheduler-policy": "numa,binpack"})
    classic, _ = admitted(plain)
    by_claims, made = admitted(plain, allocation_way=AllocationWay.DRA)

    assert "warnings" not in classic
    (warning,) = by_claims["warnings"]
    assert warning.startswith("annotation hami.io/gpu-scheduler-policy has no effect: the pod asks")
    assert ASKED in made["metadata"]["annotations"]
    assert ("hami.io/gpu-scheduler-policy",) == noted(made["metadata"]["annotations"])


def test_a_pod_of_our_schedulers_that_asks_for_cards_of_nobodys_is_warned() -> None:
    plain = pod({"birentech.com/gpu": "1"})
    plain["spec"]["schedulerName"] = "hetero-scheduler"

    answer, _ = admitted(plain)

    assert ["resource birentech.com/gpu has no effect: hetero has no vendor of these cards"] == [
        warning.partition(": let")[0] for warning in answer["warnings"]
    ]


def test_a_pod_that_is_admitted_again_is_counted_once_and_noted_alike() -> None:
    hook = webhook(FakeApi())
    plain = pod(SHARE, env={"CUDA_DISABLE_CONTROL": "true", "CUDA_TASK_PRIORITY": "0"})

    def again(plain: dict[str, Any]) -> dict[str, Any]:
        request = {"uid": "r", "operation": "CREATE", "namespace": "team", "object": plain}
        answer = asyncio.run(hook.admit(request))
        return patched(plain, json.loads(base64.b64decode(answer.get("patch", "W10="))))

    once = again(plain)

    assert ("CUDA_DISABLE_CONTROL", "CUDA_TASK_PRIORITY") == noted(once["metadata"]["annotations"])
    assert once == again(once)
    samples = [
        sample.value
        for metric in hook.rights.registry.collect()
        for sample in metric.samples
        if sample.name == "hetero_webhook_ineffective_words_total"
    ]
    assert [1, 1] == samples


# --- words that hang on a right or a size ---------------------------------------------------------


@pytest.mark.parametrize("text", ["1", "t", "T", "TRUE", "true", "True"])
def test_who_may_run_without_a_limiter_says_so_by_hamis_variable(text: str) -> None:
    plain = pod(SHARE, env={"CUDA_DISABLE_CONTROL": text})

    by_right, made = admitted(plain, FakeApi(rights={(OWN, "team", "off")}))
    (container_request,) = WORDS.asked(read(Pod, made))

    assert "warnings" not in by_right
    assert Policy.OFF is container_request.request.policy


def test_who_may_not_keeps_the_limiter_and_hears_why() -> None:
    answer, made = admitted(pod(SHARE, env={"CUDA_DISABLE_CONTROL": "true"}))
    (container_request,) = WORDS.asked(read(Pod, made))

    assert Policy.FIXED is container_request.request.policy
    assert [{"name": "CUDA_DISABLE_CONTROL", "value": "false"}] == made["spec"]["containers"][0][
        "env"
    ]
    assert [
        "variable CUDA_DISABLE_CONTROL has no effect: to run without a limiter needs the right to "
        "policy off, which nobody who asks has: it is set to false; have ClusterRole "
        "hetero-use-off bound in the namespace"
    ] == answer["warnings"]


@pytest.mark.parametrize("text", ["false", "0", "yes", ""])
def test_a_value_that_is_not_true_changes_nothing(text: str) -> None:
    answer, made = admitted(pod(SHARE, env={"CUDA_DISABLE_CONTROL": text}))

    assert "warnings" not in answer
    assert Policy.FIXED is asked(SHARE, env={"CUDA_DISABLE_CONTROL": text}).request.policy
    assert text == made["spec"]["containers"][0]["env"][0]["value"]


def test_our_own_annotation_counts_more_than_hamis_variable() -> None:
    parsed = asked(
        SHARE, env={"CUDA_DISABLE_CONTROL": "true"}, notes={"hetero.io/policy": "elastic"}
    )

    assert (Policy.ELASTIC, None) == (parsed.request.policy, parsed.off_variable)


@pytest.mark.parametrize(
    ("limits", "memory", "without_effect"),
    [
        ({"CUDA_DEVICE_MEMORY_LIMIT": "2000m"}, 2000 * MiB, ()),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "1g"}, GiB, ()),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "0x40000000"}, GiB, ()),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "1024M"}, GiB, ()),
        (
            {"CUDA_DEVICE_MEMORY_LIMIT_0": "1g", "CUDA_DEVICE_MEMORY_LIMIT": "2g"},
            GiB,
            ("CUDA_DEVICE_MEMORY_LIMIT",),
        ),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "16g"}, 3000 * MiB, ("CUDA_DEVICE_MEMORY_LIMIT",)),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "3000m"}, 3000 * MiB, ("CUDA_DEVICE_MEMORY_LIMIT",)),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "0"}, 3000 * MiB, ()),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "much"}, 3000 * MiB, ()),
    ],
)
def test_hamis_memory_limit_lowers_a_size_and_raises_none(
    limits: dict[str, str], memory: int, without_effect: tuple[str, ...]
) -> None:
    parsed = asked(SHARE, env=limits)

    assert (Ask(memory=memory, core=30),) == parsed.request.asks
    assert without_effect == parsed.ineffective_variables


def test_limits_of_two_cards_leave_both_the_larger() -> None:
    two = {**SHARE, "nvidia.com/gpu": "2"}
    parsed = asked(
        two, env={"CUDA_DEVICE_MEMORY_LIMIT_0": "1g", "CUDA_DEVICE_MEMORY_LIMIT_1": "2g"}
    )
    halfway = asked(two, env={"CUDA_DEVICE_MEMORY_LIMIT_0": "1g"})

    assert (Ask(memory=2 * GiB, core=30),) * 2 == parsed.request.asks
    assert ("CUDA_DEVICE_MEMORY_LIMIT_0",) == parsed.ineffective_variables
    assert (Ask(memory=3000 * MiB, core=30),) * 2 == halfway.request.asks
    assert ("CUDA_DEVICE_MEMORY_LIMIT_0",) == halfway.ineffective_variables


def test_a_memory_limit_beside_a_percentage_is_reported() -> None:
    percent = {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}
    answer, _ = admitted(pod(percent, env={"CUDA_DEVICE_MEMORY_LIMIT": "1g"}))

    (warning,) = answer["warnings"]
    assert warning.startswith("variable CUDA_DEVICE_MEMORY_LIMIT has no effect: it lowers a size")


def test_the_policy_variable_is_read_in_capitals() -> None:
    def policy(value: str) -> tuple[Policy, bool]:
        parsed = asked(SHARE, env={"GPU_CORE_UTILIZATION_POLICY": value})
        return parsed.request.policy, parsed.unlimited

    assert [(Policy.FIXED, False), (Policy.FIXED, True)] == [policy("FORCE"), policy("DISABLE")]


@pytest.mark.parametrize(
    ("env", "default", "level"),
    [
        ({"LIBCUDA_LOG_LEVEL": "0"}, None, "off"),
        ({"LIBCUDA_LOG_LEVEL": "1"}, None, "error"),
        ({"LIBCUDA_LOG_LEVEL": "3"}, "off", "info"),
        ({"LIBCUDA_LOG_LEVEL": "4", "HETERO_LOG": "off"}, None, "off"),
        ({"LIBCUDA_LOG_LEVEL": "9"}, None, None),
        ({}, "error", "error"),
        ({}, None, None),
    ],
)
def test_limiters_log_as_hamis_variable_says(
    env: dict[str, str], default: str | None, level: str | None
) -> None:
    _, made = admitted(pod(SHARE, env=env), limiter_log=default)
    container = made["spec"]["containers"][0]

    assert level == {one["name"]: one["value"] for one in container["env"]}.get("HETERO_LOG")


# --- events ---------------------------------------------------------------------------------------


def noted_pod(**spec: Any) -> Pod:
    note = json.dumps(["CUDA_OVERSUBSCRIBE", "whatever a tenant writes", "HSA_CU_MASK"])
    plain = pod(SHARE, notes={INEFFECTIVE_WORDS: note})
    plain["spec"] |= spec
    return read(Pod, plain)


def told(*, leads: bool, pods: list[tuple[str, Pod]]) -> list[str]:
    api = FakeApi()

    async def follow() -> None:
        words = WordEvents(Events(api), DECLARED, lambda _: leads)
        words.pods_listed(set())
        for event, changed in pods:
            words.pod_changed(event, changed)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(follow())
    return [message.partition(" has")[0] for message in api.events]


def test_a_pod_is_told_once_of_each_word_of_the_table_that_has_no_effect() -> None:
    both = ["variable CUDA_OVERSUBSCRIBE", "variable HSA_CU_MASK"]
    changes = [("ADDED", noted_pod()), ("MODIFIED", noted_pod())]

    assert both == told(leads=True, pods=changes)
    assert [] == told(leads=False, pods=changes)
    assert [] == told(leads=True, pods=[("ADDED", noted_pod(nodeName="n"))])


def test_a_pod_that_asks_by_claims_is_told_by_who_makes_its_templates() -> None:
    api = FakeApi()
    controller = TemplateController(api, WORDS)  # type: ignore[arg-type]
    named = noted_pod(
        resourceClaims=[{"name": "c", "resourceClaimTemplateName": "hetero-0"}],
    )

    async def follow() -> None:
        controller._pod_changed("ADDED", named)
        controller._pod_changed("MODIFIED", named)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(follow())

    assert ["variable CUDA_OVERSUBSCRIBE", "variable HSA_CU_MASK"] == [
        message.partition(" has")[0] for message in api.events if "has no effect" in message
    ]


@pytest.mark.parametrize("note", ["", "{}", "7", "[" * 5000, '[1, {"a": 2}]'])
def test_a_note_that_is_not_ours_says_nothing(note: str) -> None:
    assert [] == [*DECLARED.sentences({INEFFECTIVE_WORDS: note})]


# --- pods of others -------------------------------------------------------------------------------


def other_pods() -> dict[str, dict[str, Any]]:
    """Return pods of clusters that know nothing of hetero, by what they are."""
    hami = {"hami.io/device-scoring-weights": "nonsense", "huawei.com/vnpu-mode": "hami-core"}
    variables = {"CUDA_DISABLE_CONTROL": "true", "CUDA_OVERSUBSCRIBE": "true"}
    fpga, biren = {"xilinx.com/fpga": "1"}, {"birentech.com/gpu": "1", "cpu": "4"}
    made = {
        "a web server": pod({"cpu": "1", "memory": "1Gi"}),
        "one without limits": pod({}),
        "annotations of HAMi's, no cards": pod({"cpu": "1"}, notes=hami),
        "variables of HAMi's, no cards": pod({"cpu": "1"}, env=variables),
        "another device": pod(fpga),
        "cards that hetero has no vendor of": pod(biren, notes={"birentech.com/use-gpuuuid": "B"}),
        "Volcano's cards and scheduler": pod({"volcano.sh/vgpu-number": "1"}, env=variables),
        "cards by another scheduler": pod(SHARE, env=variables, notes=hami),
        "Kueue's queue": pod({"cpu": "1"}),
        "a DaemonSet on its node": pod({"memory": "50Mi"}),
    }
    made["Volcano's cards and scheduler"]["spec"]["schedulerName"] = "volcano"
    made["cards by another scheduler"]["spec"]["schedulerName"] = "kai-scheduler"
    made["Kueue's queue"]["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    made["a DaemonSet on its node"]["spec"] |= {"nodeName": "n1", "hostNetwork": True}
    return made


@pytest.mark.parametrize("name", other_pods())
def test_a_pod_that_hetero_does_not_serve_passes_as_it_is(name: str) -> None:
    plain = other_pods()[name]
    before = copy.deepcopy(plain)
    request = {"uid": "r", "operation": "CREATE", "namespace": "team", "object": plain}

    for hook in (HOOK, evolve(HOOK, refuses_ineffective_words=True, limiter_log="off")):
        assert {"allowed": True} == asyncio.run(hook.admit(request))
    assert before == plain


# --- settings -------------------------------------------------------------------------------------


def test_settings_say_what_becomes_of_such_words_and_what_limiters_log(tmp_path: Any) -> None:
    path = tmp_path / "settings.toml"
    path.write_text('ineffective-words = "refuse"\n[defaults]\nlimiter-log = "error"\n')
    read_settings = load(path)

    assert ("refuse", "error") == (read_settings.ineffective_words, read_settings.limiter_log)
    assert ("report", None) == (Settings().ineffective_words, Settings().limiter_log)
    path.write_text('ineffective-words = "hide"\n')
    with pytest.raises(BadInput, match="ineffective-words 'hide' is none of report, refuse"):
        load(path)
