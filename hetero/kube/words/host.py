"""Reads the processor and memory requests of a pod, and the capacity of a node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal

from hetero.kube.objects.kinds import Amounts, Container, NodeObject, Pod, PodSpec
from hetero.kube.words.quantity import rounded_up
from hetero.placement.cluster import CPU, HOST_MEMORY

#: The size of one of each counter, in the API's unit of the resource of the same name.
_ONE = Decimal(1)
_UNITS = {CPU: Decimal("0.001"), HOST_MEMORY: _ONE}


def node_host(node: NodeObject) -> dict[str, int]:
    """Return what all pods together may request of a node, by the counters that it states."""
    return amounts(node.status.allocatable)


def pod_host(pod: Pod, *, resources: Iterable[str] = _UNITS) -> dict[str, int]:
    """Return what a pod requests, by the rules of kube-scheduler. Raises `BadInput`.

    That is the most it requests at any time. A sidecar counts from its start on. What the pod says
    as a whole (Kubernetes 1.34) goes before what its containers say. `resources` are counted.
    """

    def requests(owner: Container | PodSpec) -> dict[str, int]:
        return amounts(owner.resources.requests, resources=resources)

    sidecars_host, most_init = dict[str, int](), dict[str, int]()
    for container in pod.spec.init_containers:
        init_host = _total((sidecars_host, requests(container)))
        most_init = _larger(most_init, init_host)
        if container.is_sidecar:
            sidecars_host = init_host
    main_host = _total((sidecars_host, *map(requests, pod.spec.containers)))
    pod_amounts = {**_larger(most_init, main_host), **requests(pod.spec)}
    return _total((pod_amounts, amounts(pod.spec.overhead, resources=resources)))


def amounts(quantities: Amounts, *, resources: Iterable[str] = _UNITS) -> dict[str, int]:
    """Return the amounts of some resources: processors in thousandths, all others as they count."""
    return {
        resource_name: rounded_up(
            resource_name, quantities[resource_name], unit=_UNITS.get(resource_name, _ONE)
        )
        for resource_name in resources
        if resource_name in quantities
    }


def _total(counters: Iterable[Mapping[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for counter_amounts in counters:
        for counter, amount in counter_amounts.items():
            sums[counter] = sums.get(counter, 0) + amount
    return sums


def _larger(first_amounts: Mapping[str, int], second_amounts: Mapping[str, int]) -> dict[str, int]:
    return {
        counter: max(first_amounts.get(counter, 0), second_amounts.get(counter, 0))
        for counter in {**first_amounts, **second_amounts}
    }
