"""A pod takes the same of a card whether its node gives cards by pods or by claims."""

from pathlib import Path

import pytest
from racks import CARDS, Rack, card, registry

from hetero.kube.dra.availability import Pools
from hetero.kube.dra.explanation import explain
from hetero.kube.dra.offers import offers, slices
from hetero.kube.dra.publisher import counted
from hetero.kube.dra.standing_claims import standing_claims
from hetero.kube.dra.templates import templates
from hetero.kube.objects.kinds import Pod, ResourceClaim
from hetero.kube.objects.reading import read
from hetero.kube.words.quota import Quotas
from hetero.model import Allocation, Device, Inventory
from hetero.placement import fit
from tests.kube.api_server import Plain
from tests.kube.test_pod_request import WORDS, pod

_NAMES = {vendor.name: vendor.resource_names for vendor in WORDS.vendors}
L4, BI_V150 = card("nvidia", "NVIDIA L4", "23034 MiB"), card("iluvatar", "BI-V150", "32 GiB")


def device_class(resource: str) -> Plain:
    """Return the class of devices that a resource counts, as the chart makes it."""
    attributes = 'device.attributes["hetero.io"]'
    is_so = f'name in {attributes} && {attributes}[name] == "{resource}"'
    cel = f'["resource", "alias"].exists(name, {is_so})'
    name = resource.replace("/", "-").lower()
    return {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": cel}}]}}


def by_claim(device: Device, asking: Pod) -> Allocation:
    """Return what the claim that the webhook writes for a pod holds of a node's one card."""
    (template,) = templates(WORDS, asking)
    specs = slices(
        (device,),
        node_name="n1",
        resources=counted((device,), lambda vendor: _NAMES[vendor]),
        roots={},
    )
    pools = Pools.read(
        slices=[{"spec": {**spec, "pool": {**spec["pool"], "generation": 1}}} for spec in specs],
        classes=[device_class(next(iter(asking.spec.containers[0].resources.limits)))],
        claims=[],
        rules=[],
    )
    (given,) = explain(template.spec, pools).given
    result = {
        "driver": "hetero.io",
        "pool": "n1",
        "request": "cards",
        "device": given.device,
        "consumedCapacity": dict(given.consumes),
    }
    claim = {
        "metadata": {"name": "claim", "namespace": "default", "uid": "u-claim"},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }
    (standing,) = standing_claims([read(ResourceClaim, claim)], {"n1": offers((device,))})
    return standing.allocation


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        (L4, {"nvidia.com/gpu": "1"}),
        (L4, {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "100"}),
        (L4, {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "30"}),
        (L4, {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000"}),
        (L4, {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "100"}),
        (BI_V150, {"iluvatar.ai/BI-V150-vgpu": "1"}),
        (BI_V150, {"iluvatar.ai/BI-V150-vgpu": "1", "iluvatar.ai/BI-V150.vCore": "100"}),
        (CARDS["hygon"], {"hygon.com/dcunum": "1"}),
        (CARDS["cambricon"], {"cambricon.com/vmlu": "1"}),
    ],
)
def test_a_pod_takes_the_same_of_a_card_and_of_a_quota_by_both_ways(
    tmp_path: Path, text: str, limits: dict[str, str]
) -> None:
    (vendor,) = {line.partition(" = ")[2] for line in text.splitlines() if "vendor" in line}
    (device,) = Rack(tmp_path, text).meet(lambda: registry(vendor).discover().devices)
    asking = read(Pod, pod(dict(limits)))
    (request,) = WORDS.asked(asking)
    classic, claimed = fit(Inventory((device,)), request.request), by_claim(device, asking)
    assert isinstance(classic, Allocation)
    (of_pod,), (of_claim,) = classic.pieces, claimed.pieces
    quotas = Quotas(WORDS)

    assert dict(of_pod.takes) == dict(of_claim.takes)
    assert of_pod.core_percent(device) == of_claim.core_percent(device)
    assert quotas.charge(device, of_pod.takes) == quotas.charge(device, of_claim.takes)
