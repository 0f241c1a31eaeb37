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
from hetero.model import CORE, MEMORY, ContainerKind, Counters, Device, peak
from hetero.model.errors import BadInput
from hetero.placement.cluster import PlacedContainer, PlacedPod
from hetero.placement.offer import cut_of

log = logging.getLogger(__name__)

PREFIX = "limits."
#: Charges kept in mind; beyond it they are worked out anew.
_MOST_CHARGES = 4096


def limits(hard: Mapping[str, object], resources: Iterable[str]) -> dict[str, int]:
    """Return the limits in a quota's `spec.hard` for the resources that we know."""
    allowed_amounts = {}
    for resource in resources:
        try:
            allowed_amount = quantity(hard, f"{PREFIX}{resource}")
        except BadInput as error:
            log.warning("quota: %s: it limits nothing", error)
            continue
        if allowed_amount is not None:
            allowed_amounts[resource] = allowed_amount
    return allowed_amounts


def least_of_pod(charges: Iterable[tuple[ContainerKind, Counter[str]]]) -> Counter[str]:
    """Return the least that a pod is charged for containers of these charges, wherever they are.

    That is what it takes of one card that has them all. On several it takes no less in sum.
    """
    return Counter(peak(charges))


@define(eq=False)
class Quotas:
    """The quotas of all namespaces, and their usage. Not safe for concurrent use."""

    vocabulary: Vocabulary
    #: By namespace and quota, what it allows of each resource.
    most: dict[str, dict[str, dict[str, int]]] = field(factory=dict)
    used: dict[str, Counter[str]] = field(factory=dict)  # by namespace
    _charges: dict[object, Counter[str]] = field(factory=dict)  # of alike pieces of alike devices

    def allow(self, namespace: str, quota_name: str, allowed_amounts: dict[str, int]) -> bool:
        """Record the limits of a quota, none if it is gone; return whether they changed."""
        limits_by_quota = self.most.setdefault(namespace, {})
        if limits_by_quota.get(quota_name, {}) == allowed_amounts:
            return False
        limits_by_quota[quota_name] = allowed_amounts
        if not allowed_amounts:
            del limits_by_quota[quota_name]
        if not limits_by_quota:
            del self.most[namespace]
        return True

    def charge(self, device: Device, takes: Counters) -> Counter[str]:
        """Return the amounts of these device counters in the units of each resource for them."""
        charge_key = (
            *(device.vendor, device.model, device.enforcement, device.shapes),
            *(device.of_card(CORE), takes.get(MEMORY), takes.get(CORE)),
        )
        charge = self._charges.get(charge_key)
        if charge is None:
            if len(self._charges) >= _MOST_CHARGES:
                self._charges.clear()
            charge = self._charges[charge_key] = self._charge(device, takes)
        return charge

    def _charge(self, device: Device, takes: Counters) -> Counter[str]:
        charge: Counter[str] = Counter()
        for vendor in self.vocabulary.vendors:
            for resource_names in vendor.resource_names if vendor.name == device.vendor else ():
                counted_names = resource_names.memory or resource_names.core
                if not counted_names or not resource_names.devices.mean(device):
                    continue
                for counter in resource_names.memory:
                    charge[counter] = -(-takes.get(MEMORY, 0) // resource_names.memory_unit)
                for counter in resource_names.core:
                    units = takes.get(CORE, 0) * resource_names.core_whole
                    charge[counter] = -(-units // max(device.of_card(CORE), 1))
        return charge

    def move(self, namespace: str, charge: Counter[str], *, direction: int) -> None:
        """Count a charge (`direction` 1) or give it back (-1)."""
        used_amounts = self.used.setdefault(namespace, Counter())
        for counter, amount in charge.items():
            used_amounts[counter] += direction * amount

    def over(self, namespace: str, charge: Mapping[str, int]) -> str | None:
        """Return the quota that an additional charge would exceed, None if none."""
        used_amounts = self.used.get(namespace, Counter())
        for quota, allowed_amounts in self.most.get(namespace, {}).items():
            for counter, allowed_amount in allowed_amounts.items():
                if used_amounts[counter] + charge.get(counter, 0) > allowed_amount and charge.get(
                    counter
                ):
                    used_text = f"{used_amounts[counter]} used, " if used_amounts[counter] else ""
                    return (
                        f"over quota {quota} of namespace {namespace} "
                        f"({counter}: {allowed_amount} allowed, "
                        f"{used_text}{charge[counter]} asked)"
                    )
        return None

    def least(self, pod: PlacedPod, example_cards: Iterable[Device]) -> Counter[str]:
        """Return the least that a pod is charged on a node with cards of these kinds."""
        devices = list(example_cards)
        return least_of_pod(
            (kind, self._least(container, devices)) for kind, container in pod.kinds_and_containers
        )

    def _least(self, container: PlacedContainer, devices: list[Device]) -> Counter[str]:
        request, least_charge = container.request, Counter[str]()
        if request is None:
            return least_charge
        for ask in request.asks:
            cuts = ((device, cut_of(device, ask, request, device.capacity)) for device in devices)
            charges = [
                self.charge(device, cut.takes) for device, cut in cuts if not isinstance(cut, str)
            ]
            for counter in set().union(*charges):
                least_charge[counter] += min(charge[counter] for charge in charges)
        return least_charge
