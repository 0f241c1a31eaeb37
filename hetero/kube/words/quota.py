"""What namespaces may hold by their ResourceQuotas, against what their pods hold of the cards.

A quota's `limits.<resource>` counts memory or core over all cards, in that resource's unit: what
was given of the cards its word means, whichever words a pod asked in. Kubernetes itself counts no
`limits.` of such resources, so nothing is counted twice.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping

from attrs import define, field

from hetero.kube.words.pod_request import Vocabulary
from hetero.kube.words.quantity import quantity
from hetero.model import CORE, MEMORY, Counters, Device
from hetero.model.errors import BadInput
from hetero.placement.cluster import PlacedContainer, PlacedPod
from hetero.placement.offer import cut_of

log = logging.getLogger(__name__)

PREFIX = "limits."
#: Charges kept in mind; beyond it they are worked out anew.
_MOST_CHARGES = 4096


def limits(hard: Mapping[str, object], known: Iterable[str]) -> dict[str, int]:
    """Return what a quota's `spec.hard` allows of each resource that we know and it limits."""
    most = {}
    for name in known:
        try:
            allowed = quantity(hard, f"{PREFIX}{name}")
        except BadInput as error:
            log.warning("quota: %s: it limits nothing", error)
            continue
        if allowed is not None:
            most[name] = allowed
    return most


@define(eq=False)
class Quotas:
    """The quotas of all namespaces, and what counts against them. One caller at a time."""

    vocabulary: Vocabulary
    #: By namespace and quota, what it allows of each resource.
    most: dict[str, dict[str, dict[str, int]]] = field(factory=dict)
    used: dict[str, Counter[str]] = field(factory=dict)  # by namespace
    _charges: dict[object, Counter[str]] = field(factory=dict)  # of alike pieces of alike devices

    def allow(self, namespace: str, name: str, most: dict[str, int]) -> bool:
        """Note what a quota allows, nothing if it is gone; return whether that is news."""
        by_quota = self.most.setdefault(namespace, {})
        if by_quota.get(name, {}) == most:
            return False
        by_quota[name] = most
        if not most:
            del by_quota[name]
        if not by_quota:
            del self.most[namespace]
        return True

    def charge(self, device: Device, takes: Counters) -> Counter[str]:
        """Return what these counters of a device are in the units of every word that means it."""
        alike = (
            *(device.vendor, device.model, device.enforcement, device.shapes),
            *(device.of_card(CORE), takes.get(MEMORY), takes.get(CORE)),
        )
        known = self._charges.get(alike)
        if known is None:
            if len(self._charges) >= _MOST_CHARGES:
                self._charges.clear()
            known = self._charges[alike] = self._charge(device, takes)
        return known

    def _charge(self, device: Device, takes: Counters) -> Counter[str]:
        made: Counter[str] = Counter()
        for vendor in self.vocabulary.vendors:
            for resource_names in vendor.resource_names if vendor.name == device.vendor else ():
                counted = resource_names.memory or resource_names.core
                if not counted or not resource_names.devices.mean(device):
                    continue
                for name in resource_names.memory:
                    made[name] = -(-takes.get(MEMORY, 0) // resource_names.memory_unit)
                for name in resource_names.core:
                    units = takes.get(CORE, 0) * resource_names.core_whole
                    made[name] = -(-units // max(device.of_card(CORE), 1))
        return made

    def move(self, namespace: str, charge: Counter[str], *, times: int) -> None:
        """Count a charge (`times` 1) or give it back (-1)."""
        used = self.used.setdefault(namespace, Counter())
        for name, amount in charge.items():
            used[name] += times * amount

    def over(self, namespace: str, charge: Mapping[str, int]) -> str | None:
        """Return which quota so much more would pass, None if none."""
        used = self.used.get(namespace, Counter())
        for quota, most in self.most.get(namespace, {}).items():
            for name, allowed in most.items():
                if used[name] + charge.get(name, 0) > allowed and charge.get(name):
                    held = f"{used[name]} used, " if used[name] else ""
                    return (
                        f"over quota {quota} of namespace {namespace} ({name}: {allowed} allowed, "
                        f"{held}{charge[name]} asked)"
                    )
        return None

    def least(self, pod: PlacedPod, kinds: Iterable[Device]) -> Counter[str]:
        """Return the least a pod is charged on a node whose cards are of these kinds."""
        devices = list(kinds)

        def of(containers: Iterable[PlacedContainer]) -> list[Counter[str]]:
            return [self._least(container, devices) for container in containers]

        main, first, sidecars = of(pod.containers), of(pod.init), of(pod.sidecars)
        held = sum(main, Counter())
        for charge in first:
            held |= charge  # name by name the larger
        return sum(sidecars, held)

    def _least(self, container: PlacedContainer, devices: list[Device]) -> Counter[str]:
        request, made = container.request, Counter[str]()
        if request is None:
            return made
        for ask in request.asks:
            cuts = ((d, cut_of(d, ask, request, d.capacity)) for d in devices)
            charges = [self.charge(d, cut.takes) for d, cut in cuts if not isinstance(cut, str)]
            for name in set().union(*charges):
                made[name] += min(charge[name] for charge in charges)
        return made
