"""Which cards a vendor's own runtime gives: those of the agent, and none that a pod names."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from attrs import evolve

from hetero.kube.api.runtime_variables import InjectionWay
from hetero.kube.webhook.visible import POLICY
from tests.kube.fake_api import FakeApi
from tests.kube.test_pod_request import pod
from tests.kube.test_webhook import SHARE, webhook

WHO = {"userInfo": {"username": "alice"}, "namespace": "team"}
NAMED = {"NVIDIA_VISIBLE_DEVICES": "all"}


def answer(plain: dict[str, Any], *, hide: bool = False, **rest: Any) -> Any:
    api = FakeApi(rights=rest.pop("rights", ()))
    hook = evolve(webhook(api), hide_unasked=hide)
    asked = {"uid": "r", "operation": "CREATE", "object": plain, **WHO, **rest}
    return asyncio.run(hook.admit(asked))


def patched(plain: dict[str, Any], *, hide: bool = False) -> dict[str, Any]:
    """Return what is added to each container's variables, by the path it is added at."""
    made = json.loads(base64.b64decode(answer(plain, hide=hide).get("patch", "W10=")))
    return {one["path"]: one["value"] for one in made if "/env" in one["path"]}


def mounting(path: str) -> dict[str, Any]:
    made = pod({"cpu": "1"})
    made["spec"]["containers"][0]["volumeMounts"] = [{"name": "null", "mountPath": path}]
    return made


def referring() -> dict[str, Any]:
    made = pod({"cpu": "1"})
    field = {"fieldRef": {"fieldPath": "metadata.annotations['cards']"}}
    made["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": field}]
    return made


def annotated(said: str, *, name: str = "cdi.k8s.io/mine") -> dict[str, Any]:
    made = pod({"cpu": "1"})
    made["metadata"]["annotations"] = {name: said}
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
    hook = evolve(webhook(FakeApi()), vendor_runtimes=frozenset({"nvidia", "ascend"}))

    def told(runtime: str, **rest: Any) -> dict[str, str]:
        made = pod({"cpu": "1"})
        made["spec"] |= {"runtimeClassName": runtime, **rest}
        asked = {"uid": "r", "operation": "CREATE", "object": made, **WHO}
        patch = asyncio.run(hook.admit(asked)).get("patch", "W10=")
        values = [one["value"] for one in json.loads(base64.b64decode(patch))]
        return {one["name"]: one["value"] for value in values for one in value}

    none = told("nvidia")
    assert ("void", "") == (none["NVIDIA_VISIBLE_DEVICES"], none["ASCEND_VISIBLE_DEVICES"])
    assert none == told("ascend") == told("nvidia", schedulerName="tenants-own")
    assert {} == told("kata")


@pytest.mark.parametrize("way", InjectionWay)
def test_no_configmap_names_cards_to_the_nodes_default_runtime(way: InjectionWay) -> None:
    hook = evolve(webhook(FakeApi()), driver=way)

    def told(**rest: Any) -> dict[str, str]:
        made = pod({"cpu": "1"})
        made["spec"] |= {"schedulerName": "tenants-own"}
        made["spec"]["containers"][0] |= rest
        asked = {"uid": "r", "operation": "CREATE", "object": made, **WHO}
        patch = asyncio.run(hook.admit(asked)).get("patch", "W10=")
        return {
            one["name"]: one["value"]
            for made in json.loads(base64.b64decode(patch))
            for one in made["value"]
        }

    named = told(envFrom=[{"configMapRef": {"name": "cards"}}])
    default = way in (InjectionWay.ENVVAR, InjectionWay.VOLUME_MOUNTS)
    assert ("void" if default else None) == named.get("NVIDIA_VISIBLE_DEVICES")
    assert ("" if default else None) == named.get("ASCEND_VISIBLE_DEVICES")
    assert {} == told()


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
        made = json.loads(base64.b64decode(answer(plain, hide=hide, **change).get("patch", "W10=")))
        return {one["path"]: one["value"] for one in made}

    void = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
    there = {"/spec/ephemeralContainers/1/env": [void]}
    assert (there, {}) == (hidden(SHARE), hidden({"cpu": "1"}))
    ((place, variables),) = hidden({"cpu": "1"}, hide=True).items()
    assert "/spec/ephemeralContainers/1/env" == place
    assert void in variables


def test_containers_beside_one_with_a_share_see_no_card_by_what_their_image_says() -> None:
    made = pod({"cpu": "1"}, env={"A": "b"})
    made["spec"]["containers"].append({"name": "asks", "resources": {"limits": SHARE}})
    made["spec"]["initContainers"] = [{"name": "first"}]
    void = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}

    assert {"/spec/containers/0/env/-": void, "/spec/initContainers/0/env": [void]} == patched(made)


def test_pods_that_ask_for_no_card_see_none_where_the_cluster_is_set_so() -> None:
    said = pod({"cpu": "1"}, env={"NVIDIA_VISIBLE_DEVICES": "none"})
    other = pod({"cpu": "1"})
    other["spec"]["schedulerName"] = "volcano"
    void = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}

    assert {} == patched(pod({"cpu": "1"}))
    for one in (pod({"cpu": "1"}), other):
        ((where, variables),) = patched(one, hide=True).items()
        assert "/spec/containers/0/env" == where
        assert void in variables
    assert "NVIDIA_VISIBLE_DEVICES" not in str(patched(said, hide=True))
    assert {"/spec/containers/0/env": [void]} == patched(pod({"cambricon.com/vmlu": "1"}))


def test_containers_beside_one_with_a_share_of_a_vendor_see_none_of_its_cards() -> None:
    made = pod({"cpu": "1"})
    asks = {"name": "asks", "resources": {"limits": {"huawei.com/Ascend910B3": "1"}}}
    made["spec"]["containers"].append(asks)

    beside = patched(made)["/spec/containers/0/env"]
    assert {"name": "ASCEND_VISIBLE_DEVICES", "value": ""} in beside
    assert "ASCEND" not in str(patched(made).get("/spec/containers/1/env"))
