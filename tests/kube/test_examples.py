"""What HAMi's own examples ask, file by file, through the webhook and the extender.

They are examples/ of its repository at 4707fb02, written anew with the same resources and
annotations.
"""

import base64
import copy
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import field, frozen

from hetero.kube.dra.templates import templates
from hetero.kube.objects.kinds import Pod
from hetero.kube.objects.reading import read
from hetero.model import (
    CORE,
    MEMORY,
    POLICY_SLOTS,
    SLOTS,
    Device,
    DeviceAllocation,
    Enforcement,
    Fractional,
    MultiDevice,
    Template,
    Templated,
)
from hetero.model.errors import BadInput
from hetero.model.units import GiB, MiB
from hetero.registry.registry import Registry
from tests.kube.fake_api import PODS, FakeApi
from tests.kube.test_pod_request import WORDS
from tests.kube.test_scheduler import Running, scenario
from tests.kube.test_webhook import webhook

DOC = Path(__file__).parents[2] / "docs/guides/from-hami.md"
#: What the files of those who use these policies need, and nobody has by default.
ACCOUNT = "system:serviceaccount:default:default"
RIGHTS = {(ACCOUNT, "default", policy) for policy in ("off", "priority-0")}
HOOK = webhook(FakeApi(rights=RIGHTS))
VENDORS = Registry()


@frozen
class Example:
    """A file's pods, each as what its containers ask.

    `gets` is how many cards each container of each pod then has, and the MiB of each (None: all).
    """

    pods: tuple[tuple[Mapping[str, str], ...], ...]
    gets: tuple[tuple[int, int | None], ...]
    notes: Mapping[str, str] = field(factory=dict)


def a_pod(*asks: str, gets: Sequence[tuple[int, int | None]], **notes: str) -> Example:
    """Return an example of one pod, whose containers ask `vendor.com/a=1 b=2` each."""
    return Example((tuple(map(_limits, asks)),), tuple(gets), _notes(notes))


def _limits(ask: str) -> dict[str, str]:
    domain, _, rest = ask.partition("/")
    pairs = (part.split("=") for part in rest.split())
    return {f"{domain}/{name}": amount for name, amount in pairs}


def _notes(notes: Mapping[str, str]) -> dict[str, str]:
    domains = {"nvidia": "nvidia.com", "hami": "hami.io", "hygon": "hygon.com"}
    made = {}
    for name, value in notes.items():
        domain, _, rest = name.partition("_")
        made[f"{domains.get(domain, 'metax-tech.com')}/{rest.replace('_', '-')}"] = value
    return made


SHARED = "nvidia.com/gpu=1 gpumem=3000 gpucores=30"
DCU = "hygon.com/dcunum=1 dcucores=60 dcumem=2000"
SGPU = "metax-tech.com/sgpu=1 vcore=60 vmemory=4"
UUID = "GPU-03f69c50-207a-2038-9b45-23cac89cb67d"
METAX_UUID = "GPU-36beae85-c835-6b14-6ab2-02671837a59c"

EXAMPLES: dict[str, Example] = {
    "nvidia/default_use.yaml": a_pod(SHARED, gets=[(1, 3000)]),
    "nvidia/default_use_legacy.yaml": a_pod("nvidia.com/gpu=2", gets=[(2, None)]),
    "nvidia/dynamic_mig_example.yaml": a_pod(
        "nvidia.com/gpu=2 gpumem=8000",
        gets=[(2, 9728)],
        nvidia_vgpu_mode="mig",
        hami_gpu_scheduler_policy="binpack",
    ),
    "nvidia/example.yaml": a_pod("nvidia.com/gpu=1 gpumem=3000", gets=[(1, 3000)]),
    "nvidia/mig_example.yaml": a_pod("nvidia.com/mig-3g.20gb=1", gets=[(1, 19968)]),
    "nvidia/specify_card_type_not_use.yaml": a_pod(
        "nvidia.com/gpu=2", gets=[(2, None)], nvidia_nouse_gputype="1080,2080"
    ),
    "nvidia/specify_card_type_to_use.yaml": a_pod(
        "nvidia.com/gpu=2", gets=[(2, None)], nvidia_use_gputype="A100,V100"
    ),
    "nvidia/specify_scheduling_policy.yaml": a_pod(
        "nvidia.com/gpu=1",
        gets=[(1, None)],
        hami_node_scheduler_policy="spread",
        hami_gpu_scheduler_policy="binpack",
    ),
    "nvidia/specify_uuid_not_use.yaml": a_pod(
        "nvidia.com/gpu=2", gets=[(2, None)], nvidia_nouse_gpuuuid=UUID
    ),
    "nvidia/specify_uuid_to_use.yaml": a_pod(
        "nvidia.com/gpu=1", gets=[(1, None)], nvidia_use_gpuuuid=f"{UUID},{UUID[:-1]}e"
    ),
    "nvidia/use_as_normal.yaml": Example(
        ((_limits("nvidia.com/gpu=1"),), (_limits("nvidia.com/gpu=1"),)), ((1, None), (1, None))
    ),
    "nvidia/use_exclusive_card.yaml": a_pod(
        "nvidia.com/gpu=2 gpumem-percentage=100 gpucores=100", gets=[(2, None)]
    ),
    "nvidia/use_memory_fraction.yaml": a_pod(
        "nvidia.com/gpu=2 gpumem-percentage=50 gpucores=30", gets=[(2, 20480)]
    ),
    "nvidia/use_sharing_card.yaml": Example(
        (
            (_limits("nvidia.com/gpu=1 gpumem-percentage=40 gpucores=60"),),
            (_limits("nvidia.com/gpu=1 gpumem-percentage=60 gpucores=40"),),
        ),
        ((1, 16384), (1, 24576)),
    ),
    # Of its documentation, not of its examples: the size goes before the percentage.
    "ai-benchmark-2": a_pod("nvidia.com/gpu=1 gpumem=3000 gpumem-percentage=50", gets=[(1, 3000)]),
    "nvidia/vllm_cross_vgpu.yaml": a_pod(
        "nvidia.com/gpu=2 gpumem-percentage=30 gpucores=30", gets=[(2, 12288)]
    ),
    **{
        f"ascend/job-{model}.yaml": a_pod(
            f"huawei.com/Ascend{model}=1 Ascend{model}-memory={asked}", gets=[(1, mib)]
        )
        for model, asked, mib in (
            ("310P", 2000, 3072),
            ("910A", 2000, 2184),
            ("910B2", 2000, 8192),
            ("910B3", 2000, 16384),
            ("910B4", 2000, 8192),
            ("910C", 16384, 16384),
        )
    },
    "hygon/default_use.yaml": a_pod(DCU, gets=[(1, 2000)]),
    "hygon/specify_card_type_not_use.yaml": a_pod(
        DCU, gets=[(1, 2000)], hygon_nouse_dcutype="DCU-K100_AI"
    ),
    "hygon/specify_card_type_to_use.yaml": a_pod(
        DCU, gets=[(1, 2000)], hygon_use_dcutype="DCU-K100_AI"
    ),
    "hygon/specify_uuid_not_use.yaml": a_pod(
        DCU,
        gets=[(1, 2000)],
        hygon_nouse_gpuuuid="DCU-TPXS320016070601,DCU-TPXS320010040501",
    ),
    "hygon/specify_uuid_to_use.yaml": a_pod(
        DCU, gets=[(1, 2000)], hygon_use_gpuuuid="DCU-TPXS320016070601"
    ),
    "hygon/use_exclusive_card.yaml": a_pod("hygon.com/dcunum=2", gets=[(2, None)]),
    **{
        f"iluvatar/{file}_{model}.yaml": a_pod(
            *(f"iluvatar.ai/{model}-vgpu={ask.format(model=model)}" for ask in asks), gets=gets
        )
        for model in ("BI-V100", "BI-V150", "MR-V100")
        for file, asks, gets in (
            ("default_use", ["1 {model}.vCore=50 {model}.vMem=64"], [(1, 16384)]),
            ("multi-containers", ["1 {model}.vCore=50 {model}.vMem=64"] * 2, [(1, 16384)] * 2),
            ("multi-devices", ["2"], [(2, None)]),
        )
    },
    "metax/gpu/binpack.yaml": a_pod(
        "metax-tech.com/gpu=1", gets=[(1, None)], hami_node_scheduler_policy="binpack"
    ),
    "metax/gpu/default_use.yaml": a_pod("metax-tech.com/gpu=1", gets=[(1, None)]),
    "metax/gpu/spread.yaml": a_pod(
        "metax-tech.com/gpu=1", gets=[(1, None)], hami_node_scheduler_policy="spread"
    ),
    "metax/sgpu/allocate_exclusive.yaml": a_pod("metax-tech.com/sgpu=1", gets=[(1, None)]),
    "metax/sgpu/allocate_specific_gpu.yaml": a_pod(
        SGPU, gets=[(1, 4096)], metax_use_gpuuuid=METAX_UUID
    ),
    "metax/sgpu/allocate_specific_qos.yaml": a_pod(
        SGPU, gets=[(1, 4096)], metax_sgpu_qos_policy="best-effort"
    ),
    "metax/sgpu/allocate_vmemory_MiB.yaml": a_pod(
        "metax-tech.com/sgpu=1 vcore=60 vmemory=2048Mi", gets=[(1, 2048)]
    ),
    "metax/sgpu/default_use.yaml": a_pod(SGPU, gets=[(1, 4096)]),
    "metax/sgpu/enable_topology_aware.yaml": a_pod(
        "metax-tech.com/sgpu=4", gets=[(4, None)], metax_sgpu_topology_aware="true"
    ),
    "metax/sgpu/multi-containers.yaml": a_pod(
        SGPU, "metax-tech.com/sgpu=1 vcore=30 vmemory=8", gets=[(1, 4096), (1, 8192)]
    ),
    "metax/sgpu/offline.yaml": a_pod(SGPU, gets=[(1, 4096)], metax_sgpu_app_class="offline"),
    "metax/sgpu/online.yaml": a_pod(
        "metax-tech.com/sgpu=1 vmemory=4", gets=[(1, 4096)], metax_sgpu_app_class="online"
    ),
    "mlu/allocate_whole.yaml": a_pod("cambricon.com/vmlu=1", gets=[(1, None)]),
    "mlu/default_use.yaml": a_pod(
        "cambricon.com/vmlu=1 mlu370.smlu.vmemory=20 mlu370.smlu.vcore=10", gets=[(1, 5120)]
    ),
    "mthreads/default_use.yaml": a_pod(
        "mthreads.com/vgpu=1 sgpu-memory=32 sgpu-core=8", gets=[(1, 16384)]
    ),
    "mthreads/multi_cards.yaml": a_pod("mthreads.com/vgpu=2", gets=[(2, None)]),
    "mthreads/use_exclusive.yaml": a_pod("mthreads.com/vgpu=1", gets=[(1, None)]),
}


def cards(vendor: str, model: str, gib: int, *uuids: str, **facts: Any) -> tuple[Device, ...]:
    """Return cards as the vendor declares them, on a driver that divides them."""
    return tuple(
        VENDORS.vendor(vendor).device(
            uuid=uuid,
            model=model,
            index=index,
            memory=gib * GiB,
            **{"enforcement": Enforcement.PARTITION, **facts},
        )
        for index, uuid in enumerate(uuids)
    )


def _mig(uuid: str) -> Device:
    sizes = {"1g.10gb": (1, 9728), "3g.20gb": (3, 19968)}
    menu = tuple(
        Template(name, {CORE: core, MEMORY: mib * MiB, f"{uuid}-{name}": 1}, part=f"{uuid}-{name}")
        for name, (core, mib) in sizes.items()
    )
    counters = {CORE: 7, SLOTS: 2, **{f"{uuid}-{name}": 1 for name in sizes}}
    (made,) = cards(
        "nvidia",
        "NVIDIA A100-SXM4-40GB",
        40,
        uuid,
        granularity=Templated(menu, whole=False),
        capacity=counters,
    )
    return made


_SGPU = Fractional(multi=MultiDevice.WHOLE, together=True)
NODES: dict[str, tuple[Device, ...]] = {
    "nvidia": cards(
        "nvidia",
        "NVIDIA A100-SXM4-40GB",
        40,
        UUID,
        "GPU-2",
        "GPU-3",
        enforcement=Enforcement.PRELOAD,
    ),
    "nvidia-mig": (_mig("MIG-1"), _mig("MIG-2")),
    **{
        f"ascend-{model.lower()}": cards("ascend", model, 64, f"{model}-1", f"{model}-2")
        for model in ("310P3", "910A", "910B2", "910B3", "910B4", "910C")
    },
    "hygon": (
        *cards("hygon", "K100-AI", 64, "DCU-TPXS320016070601"),
        *cards("hygon", "Z100L", 32, "DCU-5", "DCU-6"),
    ),
    **{
        f"iluvatar-{model.lower()}": cards("iluvatar", model, 32, f"{model}-1", f"{model}-2")
        for model in ("BI-V100", "BI-V150", "MR-V100")
    },
    "metax": cards("metax", "MXC500", 64, "C500-1", "C500-2", enforcement=Enforcement.NONE),
    "metax-sgpu": cards(
        "metax",
        "MXC500",
        64,
        METAX_UUID,
        *("C500-3", "C500-4", "C500-5"),
        granularity=_SGPU,
        capacity={SLOTS: 16, **POLICY_SLOTS},
    ),
    "cambricon": cards("cambricon", "MLU370-X8", 48, "MLU-1"),
    "mthreads": cards("mthreads", "MTT S4000", 48, "MTT-1", "MTT-2"),
}


async def admitted(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the pod as the API server has it after the webhook's patch."""
    answer = await HOOK.admit({"uid": "r", "operation": "CREATE", "object": pod})
    assert answer["allowed"], answer["status"]["message"]
    made = copy.deepcopy(pod)
    for change in json.loads(base64.b64decode(answer["patch"])):
        *way, last = change["path"].strip("/").split("/")
        at: Any = made
        for step in way:
            at = at[int(step) if isinstance(at, list) else step]
        at[last] = change["value"]
    return made


async def got(it: Running, name: str, pod: dict[str, Any]) -> list[tuple[int, int | None]]:
    """Schedule the pod and return, for each container, its cards and MiB of each."""
    stored = it.api.put_now(f"{PODS}/{name}", await admitted(pod))
    assert "hetero-scheduler" == stored["spec"]["schedulerName"]
    answer = await it.call("filter", Pod=stored, NodeNames=list(NODES))
    assert answer["NodeNames"], answer["FailedNodes"]
    assert {} == await it.bind(name, answer["NodeNames"][0])
    given = it.given(name)
    assert given is not None
    devices = {device.uuid: device for node in NODES.values() for device in node}
    return [
        (len(allocation.pieces), _mib(grant, of=devices[grant.device]))
        for _, allocation in given.containers
        for grant in allocation.pieces[:1]
    ]


def _mib(grant: DeviceAllocation, *, of: Device) -> int | None:
    held = grant.takes[MEMORY]
    return None if held == of.capacity[MEMORY] else held // MiB


@pytest.mark.parametrize("file", EXAMPLES)
async def test_an_example_of_hami_is_admitted_and_served_as_it_is(file: str) -> None:
    example = EXAMPLES[file]

    async with scenario(**NODES) as it:
        gets = []
        for number, asks in enumerate(example.pods):
            names = ["main", "second"]
            pod = {
                "metadata": {
                    "name": f"p{number}",
                    "namespace": "default",
                    "uid": f"uid-p{number}",
                    "annotations": dict(example.notes),
                },
                "spec": {
                    "containers": [
                        {"name": name, "resources": {"limits": dict(limits)}}
                        for name, limits in zip(names, asks, strict=False)
                    ]
                },
            }
            gets += await got(it, f"p{number}", pod)

        assert list(example.gets) == gets


def test_the_documentation_counts_the_files_of_each_folder() -> None:
    folders = Counter(file.partition("/")[0] for file in EXAMPLES if "/" in file)
    rows = re.findall(r"^\| [^|]+ \| `(\w+)` \| (\d+) \|", DOC.read_text(), re.M)

    assert folders == {folder: int(count) for folder, count in rows}


def test_the_documentation_says_how_many_files_claims_refuse() -> None:
    (word,) = re.findall(r"claims refuse (\w+) of them", DOC.read_text())

    assert len(NOT_BY_CLAIMS) == ["none", "one", "two", "three", "four", "five", "six"].index(word)


#: What claims cannot say, as docs/guides/claims.md lists it.
NOT_BY_CLAIMS = {
    "nvidia/use_memory_fraction.yaml": "write a size",
    "nvidia/use_sharing_card.yaml": "write a size",
    "nvidia/vllm_cross_vgpu.yaml": "write a size",
    "metax/sgpu/allocate_specific_qos.yaml": "is for a DeviceClass to say",
    "metax/sgpu/offline.yaml": "sgpu-app-class is not served by claims",
    "metax/sgpu/online.yaml": "sgpu-app-class is not served by claims",
}


@pytest.mark.parametrize("file", EXAMPLES)
def test_an_example_of_hami_is_said_by_claims_or_refused_with_a_sentence(file: str) -> None:
    def made() -> None:
        for asks in EXAMPLES[file].pods:
            containers = [
                {"name": f"main-{number}", "resources": {"limits": dict(limits)}}
                for number, limits in enumerate(asks)
            ]
            about = {"name": "p", "annotations": dict(EXAMPLES[file].notes)}
            templates(WORDS, read(Pod, {"metadata": about, "spec": {"containers": containers}}))

    if file not in NOT_BY_CLAIMS:
        made()
        return
    with pytest.raises(BadInput, match=NOT_BY_CLAIMS[file]):
        made()
