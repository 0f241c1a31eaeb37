"""Which nodes kube-scheduler offers for a pod: its own filters, as far as they are known here."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from attrs import define, field

from hetero.kube.objects.kinds import Plain, Pod, Requirement
from hetero.kube.objects.reading import read
from hetero.kube.words.host import amounts, pod_host
from hetero.kube.words.label_selector import meets
from hetero.model import Refusal, Shortage
from hetero.placement.cluster import CPU, HOST_MEMORY

_PODS = "pods"
_HOST = (CPU, HOST_MEMORY)
#: What a node is tainted with that is cordoned, by its `spec` alone, too.
_CORDONED = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_KEEPS_OUT = ("NoSchedule", "NoExecute")
_CLOSED, _ELSEWHERE = "are cordoned", "are not selected by the pod"


@define(eq=False)
class NodeFilters:
    """What kube-scheduler knows of nodes: their labels and taints, and what pods request of them.

    `ignored` are the resources that it leaves to the extender.
    """

    nodes: Mapping[str, Plain]
    ignored: Collection[str]
    _allocatable: dict[str, dict[str, int]] = field(init=False)
    _used: dict[str, Counter[str]] = field(init=False)
    _closed: dict[str, dict[str, str]] = field(factory=dict)  # why, by node; by what a pod says

    def __attrs_post_init__(self) -> None:
        ignored = set(self.ignored)
        self._allocatable = {}
        for name, node in self.nodes.items():
            allocatable = (node.get("status") or {}).get("allocatable") or {}
            self._allocatable[name] = amounts(allocatable, names=allocatable.keys() - ignored)
        self._used = {node: Counter() for node in self.nodes}

    def count(self, pod: Plain, node: str) -> None:
        """Count what a pod requests of the node it is on."""
        if node in self._used:
            self._used[node] += Counter(self._requests(pod))

    def offered(self, pod: Plain) -> tuple[list[str], Refusal]:
        """Return the nodes that are offered for a pod, and what the others say."""
        requests, closed = self._requests(pod), self._closed_to(pod["spec"])
        offered, counts, shortages = list[str](), Counter[str](), dict[str, Shortage]()
        for node, allocatable in self._allocatable.items():
            reason = closed.get(node)
            if reason is None:
                lacking = _lacking(requests, allocatable, self._used[node])
                if lacking is None:
                    offered.append(node)
                    continue
                if lacking.counter in _HOST:  # as the scheduler says it
                    reason = f"lack host {lacking.counter}"
                else:
                    reason = f"lack {lacking.counter}"
                    shortages[reason] = lacking.nearer(shortages.get(reason))
            counts[reason] += 1
        return offered, Refusal(
            wanted=1, verdicts={}, of="node", counts=counts, shortages=shortages
        )

    def _requests(self, pod: Plain) -> dict[str, int]:
        spec = pod["spec"]
        containers = (*spec["containers"], *(spec.get("initContainers") or ()))
        requested = ((one.get("resources") or {}).get("requests") or {} for one in containers)
        names = set().union(*requested, spec.get("overhead") or {}) - set(self.ignored)
        return {_PODS: 1, **pod_host(read(Pod, pod), names=names)}

    def _closed_to(self, spec: Plain) -> dict[str, str]:
        """Return why nodes are closed to a pod, whatever they have left."""
        affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
        required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
        selector, tolerations = spec.get("nodeSelector") or {}, spec.get("tolerations") or ()
        key = json.dumps([required, selector, tolerations], sort_keys=True)
        if key not in self._closed:
            verdicts = (
                (name, _closed(node, selector, required, tolerations))
                for name, node in self.nodes.items()
            )
            self._closed[key] = {name: reason for name, reason in verdicts if reason}
        return self._closed[key]


def _lacking(
    requests: Mapping[str, int], has: Mapping[str, int], used: Mapping[str, int]
) -> Shortage | None:
    """Return what a node has too little of; it has nothing of what it does not say."""
    for name, amount in requests.items():
        of = has.get(name, 0)
        free = max(of - used.get(name, 0), 0)
        if amount > free:
            return Shortage(counter=name, asked=amount, free=free, of=of)
    return None


def _closed(
    node: Plain,
    selector: Mapping[str, str],
    required: Plain | None,
    tolerations: Collection[Plain],
) -> str | None:
    spec, labels = node.get("spec") or {}, node["metadata"].get("labels") or {}
    taints = [one for one in spec.get("taints") or () if one["effect"] in _KEEPS_OUT]
    if spec.get("unschedulable") and not _tolerated(_CORDONED, tolerations):
        return _CLOSED
    for taint in taints:
        if not _tolerated(taint, tolerations):
            return f"have taint {taint['key']}"
    fields = {"metadata.name": node["metadata"]["name"]}
    terms = (required or {}).get("nodeSelectorTerms") or ()
    chosen = required is None or any(_meets(term, labels, fields) for term in terms)
    return None if chosen and selector.items() <= labels.items() else _ELSEWHERE


def _tolerated(taint: Plain, tolerations: Iterable[Plain]) -> bool:
    return any(
        one.get("effect") in (None, "", taint["effect"])
        and one.get("key") in (None, "", taint["key"])
        and (one.get("operator") == "Exists" or one.get("value", "") == taint.get("value", ""))
        for one in tolerations
    )


def _meets(term: Plain, labels: Mapping[str, str], fields: Mapping[str, str]) -> bool:
    """Return whether a node meets all that a term says; a term that says nothing chooses none."""
    requirements = [
        *((one, labels) for one in term.get("matchExpressions") or ()),
        *((one, fields) for one in term.get("matchFields") or ()),
    ]
    return bool(requirements) and all(
        meets(read(Requirement, each), values) for each, values in requirements
    )
