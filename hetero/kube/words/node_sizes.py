"""What the cards of a node have together of the resources that no kubelet counts.

An autoscaler knows a node by what its `status` states and a pod by what it requests. It asks no
extender.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from hetero.kube.objects.kinds import Pod
from hetero.kube.words.host import pod_host
from hetero.model import CORE, MEMORY, SLOTS, Device
from hetero.plugin.resource_names import ResourceNames


def node_sizes(
    devices: Iterable[Device], names_of: Callable[[str], Iterable[ResourceNames]]
) -> dict[str, int]:
    """Return the sum over the devices of each such resource, in the resource's own units.

    `names_of` returns a vendor's resource names. A device counts whether it is usable or not: who
    holds a part of it is counted, too. One that is promised more than once counts as all that is
    promised: of that its kubelet is to take pods.
    """
    sums = Counter[str]()
    for device in devices:
        amounts: dict[str, int] = {}
        for names in names_of(device.vendor):
            if names.devices.shape is not None or not names.devices.mean(device):
                continue
            memory = device.capacity.get(MEMORY, 0) // names.memory_unit
            amounts |= dict.fromkeys(names.memory, memory)
            amounts |= dict.fromkeys(names.core, _promised(names.core_whole, device, CORE))
            if names.memory_percent:
                amounts[names.memory_percent] = _promised(100, device, MEMORY)
            if names.priority:  # 0 or 1 of each sharer
                amounts[names.priority] = device.capacity.get(SLOTS, 0)
        sums.update(amounts)
    return dict(sums)


def _promised(whole: int, device: Device, counter: str) -> int:
    """Return how many parts its node promises of a device whose card has `whole` of them."""
    of_card = device.of_card(counter)
    return whole * device.capacity[counter] // of_card if of_card else whole


def surpassed(sizes: Mapping[str, int], pods: Iterable[Pod]) -> str | None:
    """Return a resource of which pods request more than there is, None if there is none.

    Their kubelet would refuse every further pod that requests it. Raises `BadInput`.
    """
    requested = Counter[str]()
    for pod in pods:
        requested.update(pod_host(pod, resources=sizes))
    return next((name for name, amount in requested.items() if amount > sizes[name]), None)
