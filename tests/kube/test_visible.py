"""Which cards a vendor's own runtime gives: those of the agent, and none that a pod names."""

import asyncio
import base64
import json
from typing import Any

import pytest
from attrs import evolve

from hetero.kube.webhook.admission import Webhook
from hetero.kube.webhook.visible import POLICY
from hetero.kube.words.runtime_variables import InjectionWay
from hetero.plugin.vendor import Vendor
from tests.kube.fake_api import FakeApi
from tests.kube.test_pod_request import pod
from tests.kube.test_webhook import SHARE, webhook

WHO = {"userInfo": {"username": "alice"}, "namespace": "team"}
NAMED = {"NVIDIA_VISIBLE_DEVICES": "all"}


def answer(plain: dict[str, Any], *, hide: bool = False, **rest: Any) -> Any:
    api = FakeApi(rights=rest.pop("rights", ()))
    hook = evolve(webhook(api), hides_unasked=hide)
    asked = {"uid": "r", "operation": "CREATE", "object": plain, **WHO, **rest}
    return asyncio.run(hook.admit(asked))


def patched(plain: dict[str, Any], *, hide: bool = False) -> dict[str, Any]:
    """Return the variables that each container is given, by its path."""
    return variables(answer(plain, hide=hide))


def variables(answered: dict[str, Any]) -> dict[str, Any]:
    """Return the variables that each container is given by an answer, by its path."""
    by_container: dict[str, Any] = {}
    for operation in json.loads(base64.b64decode(answered.get("patch", "W10="))):
        where, env, last = operation["path"].partition("/env")
        if env:
            made = [operation["value"]] if last else operation["value"]
            by_container.setdefault(where, {}).update({v["name"]: v.get("value") for v in made})
    return by_container


def variables_of(settings: Webhook, plain: dict[str, Any]) -> dict[str, Any]:
    """Return the variables that the first container of a pod is given by a webhook."""
    asked = {"uid": "r", "operation": "CREATE", "object": plain, **WHO}
    return dict(variables(asyncio.run(settings.admit(asked))).get("/spec/containers/0", {}))


def mounting(path: str) -> dict[str, Any]:
    made = pod({"cpu": "1"})
    made["spec"]["containers"][0]["volumeMounts"] = [{"name": "null", "mountPath": path}]
    return made


def referring() -> dict[str, Any]:
    made = pod({"cpu": "1"})
    field = {"fieldRef": {"fieldPath": "metadata.annotations['cards']"}}
    made["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": field}]
    return made


def annotated(value: str, *, name: str = "cdi.k8s.io/mine") -> dict[str, Any]:
    made = pod({"cpu": "1"})
    made["metadata"]["annotations"] = {name: value}
    return made


def elsewhere() -> dict[str, Any]:
    made = pod({"cpu": "1"}, env=NAMED)
    made["spec"]["schedulerName"] = "tenants-own"
    made["metadata"]["labels"] = {"hetero.io/webhook": "ignore"}
    return made


@pytest.mark.parametrize(
    "plain",
    [
        pod({"cpu": "1"}, env=NAMED),
        pod(SHARE, env=NAMED),
        pod(SHARE, env={"NVIDIA_VISIBLE_DEVICES": "GPU-1"}),
        pod({"cpu": "1"}, env={"CAMBRICON_VISIBLE_DEVICES": "0"}),
        pod({"cpu": "1"}, env={"ASCEND_VISIBLE_DEVICES": "0-7"}),
        pod({"huawei.com/Ascend910B3": "1"}, env={"ASCEND_VNPU_SPECS": "vir10_3c_32g"}),
        pod(SHARE, env={"NVIDIA_NVSWITCH": "enabled"}),
        pod(SHARE, env={"NVIDIA_IMEX_CHANNELS": "0,1"}),
        pod({"cpu": "1"}, env={"AMD_VISIBLE_DEVICES": "all"}),
        pod({"cpu": "1"}, env={"DCU_VISIBLE_DEVICES": "all"}),
        annotated("nvidia.com/gpu=all"),
        annotated("nvidia.com/gpu=all", name="nvidia.cdi.k8s.io/mine"),
        annotated("other.org/card=0, runtime.nvidia.com/gpu=0"),
        annotated("hetero.io/claim=claim-of-another"),
        annotated("hetero.io/share=of-another"),
        mounting("/var/run/nvidia-container-devices/GPU-1"),
        mounting("/var/run/../run//nvidia-container-devices"),
        mounting("//var/run/nvidia-container-devices/all"),
        referring(),
        elsewhere(),
    ],
)
def test_a_pod_that_names_cards_to_a_runtime_needs_the_right(plain: dict[str, Any]) -> None:
    refused = answer(plain)

    assert not refused["allowed"]
    assert (
        "hetero: container main: names cards to their vendor's runtime by itself, and neither "
        f"alice nor system:serviceaccount:team:default may use policy {POLICY} in namespace team"
    ) in refused["status"]["message"]
    assert answer(plain, rights={("alice", "team", POLICY)})["allowed"]


@pytest.mark.parametrize("text", ["", "void", "none"])
def test_a_pod_may_say_that_it_sees_no_card(text: str) -> None:
    assert answer(pod({"cpu": "1"}, env={"NVIDIA_VISIBLE_DEVICES": text}))["allowed"]


def test_devices_of_others_are_named_by_whoever_has_them() -> None:
    assert answer(annotated("other.org/card=all,notnvidia.com/gpu=0"))["allowed"]


def test_an_annotation_that_names_cards_needs_the_right_later_too() -> None:
    old, new = pod({"cpu": "1"}), annotated("nvidia.com/gpu=all")

    def changed(**rest: Any) -> Any:
        return answer(new, operation="UPDATE", oldObject=old, **rest)

    assert "may use policy" in changed()["status"]["message"]
    assert changed(rights={("alice", "team", POLICY)})["allowed"]
    assert answer(new, operation="UPDATE", oldObject=new)["allowed"]


def test_a_vendors_runtime_is_told_of_no_card_for_a_pod_that_asks_for_none() -> None:
    """By "" where it has no word for none: images say `ASCEND_VISIBLE_DEVICES=0-7`."""
    hook = evolve(webhook(FakeApi()), vendor_runtime_classes=frozenset({"nvidia", "ascend"}))

    def of(runtime: str, **rest: Any) -> dict[str, str]:
        made = pod({"cpu": "1"})
        made["spec"] |= {"runtimeClassName": runtime, **rest}
        return variables_of(hook, made)

    none = of("nvidia")
    assert ("void", "") == (none["NVIDIA_VISIBLE_DEVICES"], none["ASCEND_VISIBLE_DEVICES"])
    assert none == of("ascend") == of("nvidia", schedulerName="tenants-own")
    assert {} == of("kata")


@pytest.mark.parametrize("way", InjectionWay)
def test_no_configmap_names_cards_to_the_nodes_default_runtime(way: InjectionWay) -> None:
    hook = evolve(webhook(FakeApi()), driver_injection_way=way)

    def of(**rest: Any) -> dict[str, str]:
        made = pod({"cpu": "1"})
        made["spec"] |= {"schedulerName": "tenants-own"}
        made["spec"]["containers"][0] |= rest
        return variables_of(hook, made)

    named = of(envFrom=[{"configMapRef": {"name": "cards"}}])
    default = way in (InjectionWay.ENVVAR, InjectionWay.VOLUME_MOUNTS)
    assert ("void" if default else None) == named.get("NVIDIA_VISIBLE_DEVICES")
    assert ("" if default else None) == named.get("ASCEND_VISIBLE_DEVICES")
    assert {} == of()


def test_a_container_that_is_added_to_look_at_a_pod_names_no_cards_either() -> None:
    def added(*names: str, old: tuple[str, ...] = (), **rest: Any) -> bool:
        def made(containers: tuple[str, ...]) -> dict[str, Any]:
            plain = pod(SHARE)
            env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
            plain["spec"]["ephemeralContainers"] = [{"name": n, "env": env} for n in containers]
            return plain

        change = {"operation": "UPDATE", "subResource": "ephemeralcontainers", **rest}
        return bool(answer(made(names), oldObject=made(old), **change)["allowed"])

    assert not added("debug")
    assert added("debug", rights={("alice", "team", POLICY)})
    assert added("debug", old=("debug",))  # whoever adds another has nothing to do with it
    assert not added("debug", "more", old=("debug",))


def test_a_container_that_is_added_sees_no_card_by_what_its_image_says() -> None:
    def hidden(limits: dict[str, str], *, hide: bool = False) -> dict[str, Any]:
        old = pod(limits)
        old["spec"]["ephemeralContainers"] = [{"name": "before"}]
        plain = pod(limits)
        plain["spec"]["ephemeralContainers"] = [{"name": "before"}, {"name": "debug"}]
        change = {"operation": "UPDATE", "subResource": "ephemeralcontainers", "oldObject": old}
        return variables(answer(plain, hide=hide, **change))

    assert {} == hidden({"cpu": "1"})
    for made in (hidden(SHARE), hidden({"cpu": "1"}, hide=True)):
        ((place, env),) = made.items()
        assert ("/spec/ephemeralContainers/1", "void") == (place, env["NVIDIA_VISIBLE_DEVICES"])


def test_containers_beside_one_with_a_share_see_no_card_by_what_their_image_says() -> None:
    made = pod({"cpu": "1"}, env={"A": "b"})
    made["spec"]["containers"].append({"name": "asks", "resources": {"limits": SHARE}})
    made["spec"]["initContainers"] = [{"name": "first"}]
    added = patched(made)

    assert {"/spec/containers/0", "/spec/initContainers/0"} == added.keys()
    assert all("void" == env["NVIDIA_VISIBLE_DEVICES"] for env in added.values())


def test_pods_that_ask_for_no_card_see_none_where_the_cluster_is_set_so() -> None:
    asking_none = pod({"cpu": "1"}, env={"NVIDIA_VISIBLE_DEVICES": "none"})
    other = pod({"cpu": "1"})
    other["spec"]["schedulerName"] = "volcano"

    assert {} == patched(pod({"cpu": "1"}))
    for made in (pod({"cpu": "1"}), other):
        ((where, env),) = patched(made, hide=True).items()
        assert ("/spec/containers/0", "void") == (where, env["NVIDIA_VISIBLE_DEVICES"])
    assert "NVIDIA_VISIBLE_DEVICES" not in str(patched(asking_none, hide=True))
    void = {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert {"/spec/containers/0": void} == patched(pod({"cambricon.com/vmlu": "1"}))


SERVED = [
    ("huawei.com/Ascend910", "ASCEND_VISIBLE_DEVICES", None),
    ("huawei.com/npu", "ASCEND_VISIBLE_DEVICES", None),
    ("huawei.com/Ascend910B3", "ASCEND_VISIBLE_DEVICES", "volcano"),
    ("iluvatar.com/gpu", "IX_VISIBLE_DEVICES", None),
    ("cambricon.com/mlu", "CAMBRICON_VISIBLE_DEVICES", None),
    ("nvidia.com/another", "NVIDIA_VISIBLE_DEVICES", None),
    ("nvidia.com/gpu", "NVIDIA_VISIBLE_DEVICES", "volcano"),
    ("volcano.sh/vgpu-number", "NVIDIA_VISIBLE_DEVICES", "volcano"),
]


@pytest.mark.parametrize(("resource", "variable", "scheduler"), SERVED)
@pytest.mark.parametrize("by_maps", [False, True])
def test_cards_that_another_plugin_gives_are_not_hidden(
    resource: str, variable: str, scheduler: str | None, *, by_maps: bool
) -> None:
    """The variable of a pod counts more than a plugin's, which would give cards for nothing."""
    hook = evolve(webhook(FakeApi()), hides_unasked=True, driver_injection_way=InjectionWay.ENVVAR)

    def of(amount: str, **rest: Any) -> dict[str, Any]:
        made = pod({resource: amount})
        made["spec"] |= {**({"schedulerName": scheduler} if scheduler else {}), **rest}
        if by_maps:
            made["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": "cards"}}]
        return variables_of(hook, made)

    given = of("1")
    assert variable not in given
    assert {"ASCEND_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"} - {variable} <= given.keys()
    assert variable in of("0")
    if resource not in hook.vocabulary.resources or scheduler:
        # A kubelet starts it without what its node does not have.
        assert variable in of("1", nodeName="n1")


def test_another_schedulers_pod_keeps_what_a_plugin_gives_by_a_runtime_class_too() -> None:
    """As docs/guides/coming-from.md says of pods that are to stay on the nodes of a plugin."""
    hook = evolve(webhook(FakeApi()), vendor_runtime_classes=frozenset({"nvidia"}))
    made = pod({"nvidia.com/gpu": "1"})
    made["spec"]["schedulerName"] = "volcano"
    made["spec"]["runtimeClassName"] = "nvidia"

    assert "NVIDIA_VISIBLE_DEVICES" not in variables_of(hook, made)


def test_what_only_adds_to_a_number_of_cards_is_given_by_nobody() -> None:
    """Schedulers pass over it, and the kubelet asks no plugin for a card."""
    hook = evolve(webhook(FakeApi()), hides_unasked=True)
    made = pod({"nvidia.com/gpumem": "1", "huawei.com/Ascend910B3-memory": "1"})
    made["spec"]["schedulerName"] = "volcano"
    none = variables_of(hook, made)

    assert ("void", "") == (none["NVIDIA_VISIBLE_DEVICES"], none["ASCEND_VISIBLE_DEVICES"])


@pytest.mark.parametrize(
    "vendor", webhook(FakeApi()).vocabulary.vendors, ids=lambda vendor: vendor.name
)
def test_no_image_names_cards_to_a_vendors_runtime_by_any_variable_it_reads(vendor: Vendor) -> None:
    """Some read what is an option elsewhere, and nothing else."""
    hook = evolve(webhook(FakeApi()), vendor_runtime_classes=frozenset({"its"}))
    of_its_class, neighbours, free = pod({"cpu": "1"}), pod({"cpu": "1"}), pod({"cpu": "1"})
    of_its_class["spec"]["runtimeClassName"] = "its"
    names = next(one for one in vendor.resource_names if "{" not in one.count)
    asks = {"name": "asks", "resources": {"limits": {names.count: "1"}}}
    neighbours["spec"]["containers"].append(asks)
    read = (*vendor.runtime.variables, *vendor.runtime.options)
    none = {name: vendor.runtime.hiding.get(name, "") for name in read}

    for settings, made in ((hook, of_its_class), (evolve(hook, hides_unasked=True), free)):
        assert none
        assert none.items() <= variables_of(settings, made).items()
    assert none.items() <= variables_of(hook, neighbours).items()
    assert {} == variables_of(hook, free)


def test_containers_beside_one_with_a_share_of_a_vendor_see_none_of_its_cards() -> None:
    made = pod({"cpu": "1"})
    asks = {"name": "asks", "resources": {"limits": {"huawei.com/Ascend910B3": "1"}}}
    made["spec"]["containers"].append(asks)

    assert "" == patched(made)["/spec/containers/0"]["ASCEND_VISIBLE_DEVICES"]
    assert "ASCEND" not in str(patched(made).get("/spec/containers/1"))
