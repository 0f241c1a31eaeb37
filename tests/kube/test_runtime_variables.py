"""A ConfigMap taken by `envFrom` names no card to a vendor's runtime: the container itself does."""

import asyncio
import base64
import copy
import json
from typing import Any

import hetero_ascend
import pytest
from attrs import evolve

from hetero.kube.words.annotations import ALLOCATION
from hetero.kube.words.runtime_variables import InjectionWay, noted_variable
from hetero.model import CORE, MEMORY, Enforcement, Template, Templated
from hetero.model.units import GiB
from tests.kube.conftest import card
from tests.kube.fake_api import PODS, FakeApi
from tests.kube.test_pod_request import pod
from tests.kube.test_scheduler import scenario
from tests.kube.test_webhook import HOOK, SHARE, admit, patched, webhook

VARIABLE = "NVIDIA_VISIBLE_DEVICES"
NOTE = f"main.visible.hetero.io/{VARIABLE}"
BRINGS = [{"configMapRef": {"name": "any"}}]


def brings(limits: dict[str, str], **env: str) -> dict[str, Any]:
    made = pod(limits, env=env)
    made["spec"]["containers"][0]["envFrom"] = BRINGS
    return made


def admitted(plain: dict[str, Any], hook: Any = HOOK) -> dict[str, Any]:
    """Return a pod as the webhook leaves it, looked at twice."""
    for _ in range(2):
        asked = {"uid": "r", "operation": "CREATE", "namespace": "default", "object": plain}
        answer = asyncio.run(hook.admit(asked))
        assert answer["allowed"], answer
        plain = patched(plain, json.loads(base64.b64decode(answer.get("patch", "W10="))))
    return plain


def env(plain: dict[str, Any]) -> dict[str, Any]:
    (container,) = plain["spec"]["containers"]
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


def test_a_container_with_a_share_and_a_configmap_names_its_runtimes_variables_itself() -> None:
    variables = env(admitted(brings(SHARE, A="b")))

    field = {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{NOTE}']"}
    assert {"fieldRef": field} == variables.pop(VARIABLE)
    assert "b" == variables.pop("A")
    assert {""} == set(variables.values())
    assert {"ASCEND_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES", "NVIDIA_MIG_CONFIG_DEVICES"} < {
        *variables
    }
    assert VARIABLE not in env(admitted(pod(SHARE)))


@pytest.mark.parametrize(
    ("way", "value"),
    [
        (InjectionWay.VOLUME_MOUNTS, "/var/run/nvidia-container-devices"),
        (InjectionWay.CDI_CRI, "void"),
        (InjectionWay.CDI_ANNOTATIONS, "void"),
    ],
)
def test_a_runtime_that_is_told_by_other_means_is_told_so(way: InjectionWay, value: str) -> None:
    assert value == env(admitted(brings(SHARE), evolve(HOOK, driver_injection_way=way)))[VARIABLE]


def test_a_runtime_class_brings_cards_by_the_variable_where_others_get_them_by_cdi() -> None:
    hook = evolve(webhook(FakeApi()), driver_injection_way=InjectionWay.CDI_CRI)
    by_vendor = evolve(hook, runtime_class_by_vendor={"nvidia": "nvidia"})
    own = brings(SHARE)
    own["spec"]["runtimeClassName"] = "nvidia"

    for made in (admitted(own, hook), admitted(brings(SHARE), by_vendor)):
        assert [noted_variable("main", VARIABLE)] == [
            one for one in made["spec"]["containers"][0]["env"] if one["name"] == VARIABLE
        ]


@pytest.mark.parametrize(
    ("card", "variables"),
    [
        ("amd.com/gpu", ["AMD_VISIBLE_DEVICES"]),
        ("hygon.com/dcunum", ["DCU_VISIBLE_DEVICES", "DTK_VISIBLE_DEVICES"]),
        ("metax-tech.com/gpu", ["METAX_VISIBLE_DEVICES"]),
    ],
)
def test_a_configmap_names_no_card_to_a_runtime_that_nobody_tells_of_cards(
    card: str, variables: list[str]
) -> None:
    variables_shown = env(admitted(brings({card: "1"})))

    assert {""} == {variables_shown[name] for name in variables}


@pytest.mark.parametrize(
    ("more", "cut"),
    [
        ({}, False),  # all of the card
        ({"huawei.com/Ascend910B3-core": "30"}, False),  # as users of Ascend mean it
        ({"huawei.com/Ascend910B3-memory": "3000"}, True),
        ({"huawei.com/Ascend910B3-memory": "32768"}, True),  # its largest template
        ({"huawei.com/Ascend910B3-memory": "32769"}, False),
        ({"huawei.com/Ascend910B3-memory": "3000", "huawei.com/Ascend910B3-core": "100"}, False),
        ({"huawei.com/Ascend910B3": "2", "huawei.com/Ascend910B3-memory": "3000"}, False),
    ],
)
def test_a_runtime_that_cuts_cards_is_told_of_the_template_where_there_is_one(
    more: dict[str, str], cut: bool
) -> None:
    """Ascend's starts no container whose template is empty."""
    variables = env(admitted(brings({"huawei.com/Ascend910B3": "1", **more})))

    assert "void" == variables[VARIABLE]
    names = {name for name in variables if name.startswith("ASCEND_")}
    assert names == {"ASCEND_VISIBLE_DEVICES", *(["ASCEND_VNPU_SPECS"] if cut else [])}
    for name in names:
        assert noted_variable("main", name)["valueFrom"] == variables[name]


def test_a_container_says_of_no_other_field_that_it_names_its_cards() -> None:
    for path in (
        f"metadata.annotations['other.visible.hetero.io/{VARIABLE}']",
        "metadata.annotations['main.visible.hetero.io/OTHER']",
        "metadata.name",
    ):
        made = pod(SHARE)
        source = {"fieldRef": {"fieldPath": path}}
        made["spec"]["containers"][0]["env"] = [{"name": VARIABLE, "valueFrom": source}]
        assert "may use policy visible-devices" in admit(made)["status"]["message"]


def test_nobody_but_the_scheduler_says_what_a_variable_is() -> None:
    old = pod(SHARE)
    new = copy.deepcopy(old)
    new["metadata"]["annotations"] = {NOTE: "all"}

    for response in (admit(new), admit(new, operation="UPDATE", oldObject=old)):
        assert f"{NOTE} is written by the scheduler alone" in response["status"]["message"]
    who = {"userInfo": {"username": "the-scheduler"}}
    assert admit(new, operation="UPDATE", oldObject=old, **who)["allowed"]


async def test_the_scheduler_says_by_the_binding_what_the_variables_are() -> None:
    """A card by its UUID, a part of one by its own; of containers that have it so alone."""
    part = Template("1g.18gb", {MEMORY: 16 * GiB, CORE: 100}, part="MIG-a")
    cut = evolve(
        card("GPU-cut", granularity=Templated((part,), whole=False)),
        enforcement=Enforcement.PARTITION,
    )

    async with scenario(n1=(card("GPU-1"),), n2=(cut,)) as it:
        for name, node in (("shares", "n1"), ("cut", "n2"), ("plain", "n1")):
            made = it.pod(name)
            variable = noted_variable("main", VARIABLE)
            made["spec"]["containers"][0]["env"] = [] if name == "plain" else [variable]
            if name == "cut":
                made["metadata"].setdefault("annotations", {})["nvidia.com/vgpu-mode"] = "mig"
            it.api.put_now(f"{PODS}/{name}", made)
            assert {} == await it.bind(name, node)

        def notes(name: str) -> dict[str, str]:
            annotations: dict[str, str] = it.api.objects[f"{PODS}/{name}"]["metadata"][
                "annotations"
            ]
            return annotations

        assert "GPU-1" == notes("shares")[NOTE]
        assert "MIG-a" == notes("cut")[NOTE]
        assert ALLOCATION in notes("plain")
        assert NOTE not in notes("plain")


async def test_the_scheduler_says_what_ascends_runtime_is_to_cut() -> None:
    """By the number that the machine has for the card; of a whole one no template."""
    names = ("ASCEND_VISIBLE_DEVICES", "ASCEND_VNPU_SPECS")
    npu = hetero_ascend.VENDOR.device(
        uuid="A", model="910B3", index=0, memory=64 * GiB, attributes={"physical": 5},
        enforcement=Enforcement.PARTITION,
    )  # fmt: skip
    sizes = {"part": {"huawei.com/Ascend910B3-memory": "3000"}, "all": {}}

    async with scenario(n1=(npu,), n2=(evolve(npu, uuid="B"),)) as it:
        for (name, size), node in zip(sizes.items(), ("n1", "n2"), strict=True):
            made = it.pod(name)
            (container,) = made["spec"]["containers"]
            container["resources"] = {"limits": {"huawei.com/Ascend910B3": "1", **size}}
            container["env"] = [noted_variable("main", variable) for variable in names]
            it.api.put_now(f"{PODS}/{name}", made)
            assert {} == await it.bind(name, node)
        notes = {
            name: {
                note.partition("/")[2]: said
                for note, said in it.api.objects[f"{PODS}/{name}"]["metadata"][
                    "annotations"
                ].items()
                if ".visible." in note
            }
            for name in sizes
        }
        assert {
            "part": dict(zip(names, ("5", "vir05_1c_16g"), strict=True)),
            "all": {names[0]: "5"},
        } == notes
