"""Resource names said by claims: what the templates say, and what the webhook writes."""

import asyncio
import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from attrs import evolve

from hetero.kube.dra.template_controller import TemplateController
from hetero.kube.dra.templates import ASKED, template_name, templates, templates_again
from hetero.kube.dra.way import AllocationWay
from hetero.kube.objects.kinds import Pod
from hetero.kube.objects.reading import read
from hetero.kube.what_if.claims import read_claims
from hetero.model import (
    Allocation,
    Device,
    Enforcement,
    Fractional,
    Inventory,
    Refusal,
    Template,
    Templated,
)
from hetero.model.errors import BadInput
from hetero.model.units import GiB
from hetero.placement import fit
from hetero.testing import rack
from tests.kube.fake_api import FakeApi
from tests.kube.test_pod_request import WORDS, pod
from tests.kube.test_webhook import webhook

#: HAMi's example ai-benchmark-2.
BENCHMARK = {
    "nvidia.com/gpu": "1",
    "nvidia.com/gpumem": "3000",
    "nvidia.com/gpumem-percentage": "50",
}
SHARE = {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "2048", "nvidia.com/gpucores": "30"}
#: Slices that are cut, without those of a service, which are a right.
CUT = {"hetero.io/slices": "hard", "hetero.io/sharing": "time"}
#: By number: words, annotations, and the instance that a pod gets. Of 7 slices 10 percent are one,
#: 30 are three.
INSTANCES = [
    ({"gpu": "1"}, {"nvidia.com/vgpu-mode": "mig"}, ("M", "1g.10gb")),
    ({"gpu": "1"}, CUT, ("M", "1g.10gb")),
    ({"gpu": "1", "gpucores": "10"}, {"nvidia.com/vgpu-mode": "mig"}, ("M", "1g.10gb")),
    ({"gpu": "1", "gpucores": "10"}, CUT, ("M", "1g.10gb")),
    ({"gpu": "1", "gpucores": "30"}, {"nvidia.com/vgpu-mode": "mig"}, ("M", "3g.20gb")),
]
HOOK = evolve(webhook(FakeApi()), allocation_way=AllocationWay.BOTH)


def instances() -> Device:
    """Return a card that its administrator has cut into two MIG instances."""
    (made,) = rack(80 * GiB, vendor="nvidia", model="NVIDIA H200", granularity=Fractional())
    menu = tuple(
        Template(f"{slices}g.{size}gb", {"core": slices, "memory": size * GiB}, part=f"MIG-{size}")
        for slices, size in ((1, 10), (3, 20))
    )
    return evolve(
        made,
        uuid="M",
        granularity=Templated(menu, whole=False),
        enforcement=Enforcement.PARTITION,
        capacity={**made.capacity, "core": 7, "slots": 2},
    )


def devices(limits: Mapping[str, str], **rest: Any) -> Any:
    """Return what the template of a pod's only container says."""
    (made,) = templates(WORDS, read(Pod, pod(dict(limits), **rest)))
    return made.spec["devices"]


def requested(limits: Mapping[str, str], **rest: Any) -> Any:
    (request,) = devices(limits, **rest)["requests"]
    return request["exactly"]


def test_a_size_goes_before_a_percentage() -> None:
    assert {
        "deviceClassName": "nvidia.com-gpu",
        "allocationMode": "ExactCount",
        "count": 1,
        "capacity": {"requests": {"memory": "3000Mi"}},
    } == requested(BENCHMARK)


def test_shares_of_several_cards_are_of_different_cards() -> None:
    spec = devices(SHARE)

    assert {"memory": "2Gi", "cores": "30"} == spec["requests"][0]["exactly"]["capacity"][
        "requests"
    ]
    assert [{"requests": ["cards"], "distinctAttribute": "hetero.io/uuid"}] == spec["constraints"]


def test_a_size_of_a_card_that_is_cut_by_a_menu_may_be_one_of_its_parts() -> None:
    ascend = {"huawei.com/Ascend910B3": "1", "huawei.com/Ascend910B3-memory": "16384"}
    attributes = 'device.attributes["hetero.io"]'
    expressions = [one["cel"]["expression"] for one in requested(ascend)["selectors"]]
    instance = requested(BENCHMARK, notes={"nvidia.com/vgpu-mode": "mig"})

    assert "hetero" == requested(ascend)["deviceClassName"] == instance["deviceClassName"]
    assert [
        f'({attributes}.vendor.lowerAscii() == "ascend")',
        f'({attributes}.model.lowerAscii().contains("910b3"))',
    ] == expressions
    assert "huawei.com-ascend910b3" == requested({"huawei.com/Ascend910B3": "1"})["deviceClassName"]


def test_an_instance_by_number_is_one_of_the_parts_that_are_there() -> None:
    attributes = 'device.attributes["hetero.io"]'
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "10"}
    instance = requested(limits, notes={"nvidia.com/vgpu-mode": "mig"})
    (request,) = devices(limits, notes={"hetero.io/slices": "hard"})["requests"]

    assert ("hetero", None) == (instance["deviceClassName"], instance.get("capacity"))
    assert [
        f'({attributes}.vendor.lowerAscii() == "nvidia")',
        f'({attributes}.enforcement.lowerAscii() == "partition")',
        f"{attributes}.corePercent >= 10",
    ] == [one["cel"]["expression"] for one in instance["selectors"]]
    assert ["hetero", "hetero"] == [one["deviceClassName"] for one in request["firstAvailable"]]


@pytest.mark.parametrize(("words", "notes", "part"), INSTANCES)
def test_an_instance_by_number_is_the_same_in_the_classic_way(
    words: dict[str, str], notes: dict[str, str], part: tuple[str, str | None]
) -> None:
    limits = {f"nvidia.com/{name}": amount for name, amount in words.items()}
    (container,) = WORDS.asked(read(Pod, pod(limits, notes=notes)))
    answer = fit(Inventory((instances(),)), container.request)
    assert isinstance(answer, Allocation)
    (piece,) = answer.pieces

    assert part == (piece.device, piece.template)


def test_more_core_than_any_instance_has_is_refused_and_never_a_whole_card_with_all_of_them() -> (
    None
):
    for core in ("50", "100"):
        limits = {"nvidia.com/gpu": "1", "nvidia.com/gpucores": core}
        (container,) = WORDS.asked(read(Pod, pod(limits, notes={"nvidia.com/vgpu-mode": "mig"})))
        answer = fit(Inventory((instances(),)), container.request)
        assert isinstance(answer, Refusal)
        assert "0 of 1 device: 1 too small (80 GiB wanted, largest part 20)" == answer.sentence


def test_core_of_a_card_that_is_cut_by_a_menu_is_asked_with_its_memory() -> None:
    """A 910B3 has 20 AI cores: 30 percent are 6, which the smallest template does not have."""
    ascend = {"huawei.com/Ascend910B3": "1", "huawei.com/Ascend910B3-memory": "3000"}
    asked = requested({**ascend, "huawei.com/Ascend910B3-core": "30"})["capacity"]["requests"]

    assert {"memory": "3000Mi", "cores": "6"} == asked
    assert {"memory": "3000Mi"} == requested(ascend)["capacity"]["requests"]


def test_core_of_cards_with_units_of_their_own_is_asked_by_alternatives() -> None:
    """60 percent of a DCU with 60, 120 and 128 compute units."""
    limits = {"hygon.com/dcunum": "1", "hygon.com/dcumem": "2000", "hygon.com/dcucores": "60"}
    (request,) = devices(limits)["requests"]
    asked = [one["capacity"]["requests"]["cores"] for one in request["firstAvailable"]]
    models = [one["selectors"][-1]["cel"]["expression"] for one in request["firstAvailable"]]
    notes = {"hygon.com/use-dcutype": "DCU-Z100L"}

    assert ["36", "72", "77"] == asked
    attribute = 'device.attributes["hetero.io"].model.lowerAscii()'
    assert f'({attribute} == "z100" || {attribute} == "z100l")' == models[0]
    assert "36" == requested(limits, notes=notes)["capacity"]["requests"]["cores"]


def test_core_is_in_the_units_of_those_models_that_are_divided() -> None:
    """An S4000 has 16; another of Moore Threads' cards is only given whole."""
    exactly = requested({"mthreads.com/vgpu": "1", "mthreads.com/sgpu-core": "8"})

    assert "8" == exactly["capacity"]["requests"]["cores"]


@pytest.mark.parametrize("asked", ["1", "2"])
def test_a_module_is_one_device_however_many_cards_it_has(asked: str) -> None:
    assert 1 == requested({"huawei.com/Ascend910C": asked})["count"]


def test_several_cards_that_are_only_given_whole_are_asked_whole() -> None:
    """As the classic way rounds them; each has the memory that was asked."""
    exactly = requested({"cambricon.com/vmlu": "2", "cambricon.com/mlu370.smlu.vmemory": "4"})

    assert (2, "cambricon.com-vmlu") == (exactly["count"], exactly["deviceClassName"])
    assert "capacity" not in exactly
    assert ['device.capacity["hetero.io"].memory.compareTo(quantity("1Gi")) >= 0'] == [
        one["cel"]["expression"] for one in exactly["selectors"]
    ]


@pytest.mark.parametrize(
    ("limits", "notes"),
    [
        ({"nvidia.com/gpu": "2"}, {"nvidia.com/numa-bind": "true"}),
        ({"nvidia.com/gpu": "2"}, {"hetero.io/device-placement": "topology-aware"}),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "100"}, {}),
        ({"huawei.com/Ascend910C": "2"}, {}),  # kube-scheduler would count two modules
        # A kubelet that a device plugin told of these would start no pod that still asks so.
        ({"nvidia.com/gpu": "2"}, {}),
        ({"cambricon.com/vmlu": "1"}, {}),
        ({"metax-tech.com/gpu": "1"}, {}),
    ],
)
def test_whole_cards_are_not_left_to_kube_scheduler(
    limits: dict[str, str], notes: dict[str, str]
) -> None:
    made = admitted(pod(limits, notes=notes), way=AllocationWay.DRA)

    assert 1 == len(made["spec"]["resourceClaims"])
    assert not limits.keys() & made["spec"]["containers"][0]["resources"]["limits"].keys()


def test_a_sidecar_with_a_whole_card_beside_one_with_another_has_a_claim_of_its_own() -> None:
    written = pod({"nvidia.com/gpu": "1"})
    (main,) = written["spec"]["containers"]
    written["spec"]["initContainers"] = [
        {**main, "name": "init"},
        {**main, "name": "sidecar", "restartPolicy": "Always"},
    ]
    spec = admitted(written, way=AllocationWay.DRA)["spec"]

    claims = [
        container["resources"]["claims"]
        for container in (*spec["containers"], *spec["initContainers"])
    ]
    assert (2, True, True) == (
        len(spec["resourceClaims"]),
        claims[0] == claims[1],
        claims[0] != claims[2],
    )


def test_a_card_without_a_size_is_a_whole_one() -> None:
    assert "capacity" not in requested({"nvidia.com/gpu": "1"})
    assert "capacity" not in requested({**BENCHMARK, "nvidia.com/gpucores": "100"})


def test_cards_are_chosen_as_annotations_say() -> None:
    notes = {"nvidia.com/use-gputype": "A100,H100", "nvidia.com/nouse-gpuuuid": "GPU-7"}
    expressions = [
        one["cel"]["expression"] for one in requested(BENCHMARK, notes=notes)["selectors"]
    ]

    assert [
        '(device.attributes["hetero.io"].model.lowerAscii().contains("a100") || '
        'device.attributes["hetero.io"].model.lowerAscii().contains("h100"))',
        '!(device.attributes["hetero.io"].uuid.lowerAscii().contains("gpu-7"))',
    ] == expressions


def test_a_policy_is_the_claims_configuration() -> None:
    (config,) = devices(BENCHMARK, notes={"hetero.io/policy": "elastic"})["config"]

    assert {"apiVersion": "hetero.io/v1", "kind": "Share", "policy": "elastic"} == (
        config["opaque"]["parameters"]
    )


@pytest.mark.parametrize(
    ("limits", "notes", "why"),
    [
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}, {}, "write a size"),
        (BENCHMARK, {"hetero.io/policy": "off"}, "for a DeviceClass to say"),
        ({**BENCHMARK, "nvidia.com/priority": "0"}, {}, "for a DeviceClass to say"),
        (BENCHMARK, {"hetero.io/device-placement": "mutex"}, "nobody holds"),
    ],
)
def test_what_claims_cannot_say_is_refused(
    limits: dict[str, str], notes: dict[str, str], why: str
) -> None:
    with pytest.raises(BadInput, match=f"container main: .*{why}"):
        templates(WORDS, read(Pod, pod(limits, notes=notes)))


def test_a_pod_as_the_cluster_has_it_is_explained_as_its_user_wrote_it(tmp_path: Path) -> None:
    """That is the pod an admin has in hand: `kubectl get pod -o yaml`."""
    written = pod({**SHARE, "cpu": "1"}, notes={"nvidia.com/use-gputype": "L4"})
    written["kind"] = "Pod"
    live = admitted(written, way=AllocationWay.DRA)
    assert "nvidia.com/gpu" not in live["spec"]["containers"][0]["resources"].get("limits", {})
    claims = []
    for number, made in enumerate((written, live)):
        path = tmp_path / f"{number}.yaml"
        path.write_text(json.dumps({**made, "status": {"phase": "Pending"}}))
        claims.append(read_claims(path))

    assert claims[0] == claims[1]
    (request,) = claims[1]["p"]["devices"]["requests"]
    assert {"memory": "2Gi", "cores": "30"} == request["exactly"]["capacity"]["requests"]


def admitted(plain: dict[str, Any], *, way: AllocationWay = AllocationWay.BOTH) -> dict[str, Any]:
    """Return a pod as the webhook makes it."""
    asked = {"uid": "r", "operation": "CREATE", "namespace": "default", "object": plain}
    answer = asyncio.run(evolve(HOOK, allocation_way=way).admit(asked))
    assert answer["allowed"], answer
    made: dict[str, Any] = json.loads(json.dumps(plain))
    for patch in json.loads(base64.b64decode(answer.get("patch", "W10="))):
        *path, last = patch["path"].removeprefix("/").split("/")
        place: Any = made
        for part in path:
            place = place[int(part) if part.isdigit() else part]
        place[last] = patch["value"]
    return made


def by_claims(limits: dict[str, str]) -> dict[str, Any]:
    return pod(limits, notes={"hetero.io/by-claims": "true"})


def test_the_webhook_says_by_a_claim_what_a_pod_asks_for() -> None:
    made = admitted(by_claims({**BENCHMARK, "cpu": "2"}))
    (template,) = templates(WORDS, read(Pod, pod(BENCHMARK)))
    (container,) = made["spec"]["containers"]

    assert [{"name": "hetero-0", "resourceClaimTemplateName": template.name}] == (
        made["spec"]["resourceClaims"]
    )
    assert {"limits": {"cpu": "2"}, "claims": [{"name": "hetero-0"}]} == container["resources"]
    assert "schedulerName" not in made["spec"]
    assert {"main": BENCHMARK} == json.loads(made["metadata"]["annotations"][ASKED])


def test_init_containers_have_the_claim_of_a_main_container_that_asks_for_the_same() -> None:
    """So the pod is charged once; a sidecar runs beside the others, and has its own."""
    asked = by_claims(BENCHMARK)
    asked["spec"]["initContainers"] = [
        {"name": name, "resources": {"limits": limits}, **more}
        for name, limits, more in (
            ("same", BENCHMARK, {}),
            ("again", BENCHMARK, {}),
            ("other", SHARE, {}),
            ("beside", BENCHMARK, {"restartPolicy": "Always"}),
        )
    ]
    made = admitted(asked)
    spec = made["spec"]
    claims = {
        container["name"]: [claim["name"] for claim in container["resources"]["claims"]]
        for container in (*spec["containers"], *spec["initContainers"])
    }

    assert {
        "main": ["hetero-0"],
        "same": ["hetero-0"],
        "again": ["hetero-0"],
        "other": ["hetero-1"],
        "beside": ["hetero-2"],
    } == claims
    assert ["hetero-0", "hetero-1", "hetero-2"] == [one["name"] for one in spec["resourceClaims"]]
    assert templates(WORDS, read(Pod, asked)) == templates_again(WORDS, read(Pod, made))


def test_what_a_pod_asked_is_read_again_from_what_the_webhook_wrote() -> None:
    made = admitted(by_claims(SHARE))

    again = templates_again(WORDS, read(Pod, made))
    assert templates(WORDS, read(Pod, by_claims(SHARE))) == again


def test_a_pod_that_does_not_say_so_is_served_in_the_classic_way() -> None:
    made = admitted(pod(BENCHMARK))

    assert "hetero-scheduler" == made["spec"]["schedulerName"]
    assert "resourceClaims" not in made["spec"]


def test_with_claims_alone_a_schedulers_name_is_the_clusters_own() -> None:
    named = pod(BENCHMARK)
    named["spec"]["schedulerName"] = "hetero-scheduler"
    made = admitted(named, way=AllocationWay.DRA)

    assert "default-scheduler" == made["spec"]["schedulerName"]
    assert "resourceClaims" in made["spec"]


@pytest.mark.parametrize("text", ["[]", "{", '{"main": "3000"}'])
def test_words_that_nobody_wrote_so_are_refused(text: str) -> None:
    made = read(Pod, pod({}, notes={ASKED: text}))

    with pytest.raises(BadInput, match=f"{ASKED} is no"):
        templates_again(WORDS, made)


def test_a_name_is_of_what_a_template_says() -> None:
    (template,) = templates(WORDS, read(Pod, pod(BENCHMARK)))
    (other,) = templates(WORDS, read(Pod, pod(SHARE)))

    assert template_name(template.spec) == template.name != other.name
    assert len(template.name) <= 63


def test_a_namespace_has_no_more_templates_than_it_may() -> None:
    api = FakeApi()
    for number, limits in enumerate((BENCHMARK, SHARE)):
        made = admitted(by_claims(limits))
        made["metadata"] |= {"name": f"p{number}", "uid": f"u{number}"}
        api.objects[f"/api/v1/namespaces/default/pods/p{number}"] = made

    async def act() -> None:
        controller = TemplateController(cast(Any, api), WORDS, most=1)
        task = asyncio.create_task(controller.follow())
        while not api.events:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(asyncio.wait_for(act(), timeout=60))

    assert 1 == sum(path.split("/")[-2] == "resourceclaimtemplates" for path in api.objects)
    (event,) = api.events
    assert "namespace default has 1 templates" in event
