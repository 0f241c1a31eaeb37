"""kube-scheduler's own filters, as far as the simulation has them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from attrs import define, field

from hetero.kube.dra.way import BY_CLAIMS as BY_CLAIMS_ANNOTATION
from hetero.kube.objects.kinds import Plain, Pod, Requirement
from hetero.kube.objects.reading import read
from hetero.kube.scheduler.inventory import BY_CLAIMS
from hetero.kube.words.host import amounts, pod_host
from hetero.kube.words.label_selector import meets
from hetero.model import Refusal, Shortage
from hetero.placement.cluster import CPU, HOST_MEMORY

_PODS = "pods"
_HOST = (CPU, HOST_MEMORY)
#: What a node is tainted with that is cordoned, by its `spec` alone, too.
_CORDONED = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_KEEPS_OUT = ("NoSchedule", "NoExecute")
_BY_NAMES = "give their cards by resource names"
_CLOSED, _ELSEWHERE = "are cordoned", "are not selected by the pod"


@define(eq=False)
class NodeFilters:
    """The labels and taints of nodes, and the resources that pods request of them.

    `ignored` are the resources that kube-scheduler leaves to the extender, `counts` those that
    count cards. The nodes `by_claims` have cards for pods that are served by claims, others for
    those that are not. The annotation of a pod says so, unless pods are `all_by_claims`.
    """

    nodes: Mapping[str, Plain]
    ignored: Collection[str]
    counts: Collection[str] = ()
    by_claims: Collection[str] = ()
    all_by_claims: bool = False
    _allocatable_by_node: dict[str, dict[str, int]] = field(init=False)
    _used_by_node: dict[str, Counter[str]] = field(init=False)
    _closed: dict[str, dict[str, str]] = field(factory=dict)  # why, by node; by what a pod says

    def __attrs_post_init__(self) -> None:
        ignored = set(self.ignored)
        self._allocatable_by_node = {}
        for node_name, node in self.nodes.items():
            allocatable = (node.get("status") or {}).get("allocatable") or {}
            counted = allocatable.keys() - ignored
            self._allocatable_by_node[node_name] = amounts(allocatable, resources=counted)
        self._used_by_node = {node_name: Counter() for node_name in self.nodes}

    def count(self, pod: Plain, node_name: str) -> None:
        """Count the requests of a pod on its node."""
        if node_name in self._used_by_node:
            self._used_by_node[node_name] += Counter(self._requests(pod))

    def offered(self, pod: Plain) -> tuple[list[str], Refusal]:
        """Return the names of the nodes that pass the filters, and the reasons of the others."""
        requests, reason_by_node = self._requests(pod), self._closed_to(pod["spec"])
        card_counts = requests.keys() & set(self.counts)
        is_by_claims = self._is_by_claims(pod) if card_counts else None
        other_requests = {name: requests[name] for name in requests.keys() - card_counts}
        offered_names, count_by_reason, shortages = (
            list[str](),
            Counter[str](),
            dict[str, Shortage](),
        )
        for node_name, allocatable in self._allocatable_by_node.items():
            reason = reason_by_node.get(node_name)
            has_claims = node_name in self.by_claims
            if reason is None and is_by_claims not in (None, has_claims) and self.by_claims:
                reason = BY_CLAIMS if has_claims else _BY_NAMES
            if reason is None:
                node_requests = other_requests if has_claims else requests
                shortage = _lacking(node_requests, allocatable, self._used_by_node[node_name])
                if shortage is None:
                    offered_names.append(node_name)
                    continue
                if shortage.counter in _HOST:  # as the scheduler says it
                    reason = f"lack host {shortage.counter}"
                else:
                    reason = f"lack {shortage.counter}"
                    shortages[reason] = shortage.nearer(shortages.get(reason))
            count_by_reason[reason] += 1
        return offered_names, Refusal(
            wanted=1, verdicts={}, of="node", counts=count_by_reason, shortages=shortages
        )

    def _is_by_claims(self, pod: Plain) -> bool:
        annotation_name, annotation_value = BY_CLAIMS_ANNOTATION
        annotations = pod["metadata"].get("annotations") or {}
        return self.all_by_claims or annotations.get(annotation_name) == annotation_value

    def _requests(self, pod: Plain) -> dict[str, int]:
        spec = pod["spec"]
        containers = (*spec["containers"], *(spec.get("initContainers") or ()))
        requests_of_containers = (
            (container.get("resources") or {}).get("requests") or {} for container in containers
        )
        resources = set().union(*requests_of_containers, spec.get("overhead") or {}) - set(
            self.ignored
        )
        return {_PODS: 1, **pod_host(read(Pod, pod), resources=resources)}

    def _closed_to(self, spec: Plain) -> dict[str, str]:
        """Return the reasons of the nodes that exclude a pod whatever they have free, by node."""
        affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
        required_affinity = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
        selector, tolerations = spec.get("nodeSelector") or {}, spec.get("tolerations") or ()
        constraints_key = json.dumps([required_affinity, selector, tolerations], sort_keys=True)
        if constraints_key not in self._closed:
            names_and_reasons = (
                (node_name, _closed(node, selector, required_affinity, tolerations))
                for node_name, node in self.nodes.items()
            )
            self._closed[constraints_key] = {
                node_name: reason for node_name, reason in names_and_reasons if reason
            }
        return self._closed[constraints_key]


def _lacking(
    requests: Mapping[str, int], allocatable: Mapping[str, int], used_amounts: Mapping[str, int]
) -> Shortage | None:
    """Return the first resource of which a node has too little; a missing resource counts 0."""
    for resource, amount in requests.items():
        allocatable_amount = allocatable.get(resource, 0)
        free_amount = max(allocatable_amount - used_amounts.get(resource, 0), 0)
        if amount > free_amount:
            return Shortage(counter=resource, asked=amount, free=free_amount, of=allocatable_amount)
    return None


def _closed(
    node: Plain,
    selector: Mapping[str, str],
    required_affinity: Plain | None,
    tolerations: Collection[Plain],
) -> str | None:
    spec, labels = node.get("spec") or {}, node["metadata"].get("labels") or {}
    taints = [taint for taint in spec.get("taints") or () if taint["effect"] in _KEEPS_OUT]
    if spec.get("unschedulable") and not _tolerated(_CORDONED, tolerations):
        return _CLOSED
    for taint in taints:
        if not _tolerated(taint, tolerations):
            return f"have taint {taint['key']}"
    fields = {"metadata.name": node["metadata"]["name"]}
    selector_terms = (required_affinity or {}).get("nodeSelectorTerms") or ()
    is_chosen = required_affinity is None or any(
        _meets(term, labels, fields) for term in selector_terms
    )
    return None if is_chosen and selector.items() <= labels.items() else _ELSEWHERE


def _tolerated(taint: Plain, tolerations: Iterable[Plain]) -> bool:
    return any(
        toleration.get("effect") in (None, "", taint["effect"])
        and toleration.get("key") in (None, "", taint["key"])
        and (
            toleration.get("operator") == "Exists"
            or toleration.get("value", "") == taint.get("value", "")
        )
        for toleration in tolerations
    )


def _meets(term: Plain, labels: Mapping[str, str], fields: Mapping[str, str]) -> bool:
    """Return whether a node meets every requirement of a term; an empty term chooses no node."""
    requirements = [
        *((requirement, labels) for requirement in term.get("matchExpressions") or ()),
        *((requirement, fields) for requirement in term.get("matchFields") or ()),
    ]
    return bool(requirements) and all(
        meets(read(Requirement, requirement), node_values)
        for requirement, node_values in requirements
    )
