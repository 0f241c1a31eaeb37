"""What kube-scheduler asks before it binds a pod: which nodes serve it, how well, whom to evict.

The names of the verbs' fields are those of k8s.io/kube-scheduler/extender/v1; Go reads them
whatever their case, and so do we: arguments have theirs in lower case.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection
from time import monotonic, time

from attrs import define, evolve

from hetero.kube.client.api import ApiCalls, ApiError
from hetero.kube.objects.kinds import Plain, Pod
from hetero.kube.scheduler.agents import Agents
from hetero.kube.scheduler.expected_mix import ExpectedMix, arrive
from hetero.kube.scheduler.kubelet_watches import KubeletWatches
from hetero.kube.scheduler.node_names import LastNames, NodeNames
from hetero.kube.scheduler.pod_groups import PodGroups
from hetero.kube.scheduler.pod_table import PodState, PodTable
from hetero.kube.scheduler.preemption import Preemption
from hetero.kube.scheduler.readiness import Readiness
from hetero.kube.scheduler.scheduler_metrics import SchedulerMetrics
from hetero.kube.scheduler.signatures import Signatures
from hetero.kube.scheduler.waker import Waker, in_background
from hetero.kube.scheduler.whole_nodes import decoded_names, names_of, simulated_refusals
from hetero.kube.words.annotations import Assignment, without_core_limit
from hetero.kube.words.pod import expect_unhidden, kinds, path_of, read_pod
from hetero.kube.words.pod_request import PodRequest, Vocabulary
from hetero.kube.words.runtime_variables import notes_of_variables
from hetero.model import Refusal
from hetero.model.errors import HeteroError
from hetero.placement.cluster import Placement
from hetero.placement.placement_policy import (
    PLACEMENT_POLICIES,
    WEIGHTS,
    CardKey,
    PlacementChain,
    Weights,
)
from hetero.placement.price import of_least_shapes

log = logging.getLogger(__name__)

#: Seconds that a place counts which filter took for a pod.
_UNBOUND_S = 30.0
#: The best score a node can get.
_BEST_SCORE = 10


@define(eq=False)
class Placer:
    """Chooses by the placement policies of one cluster, where a pod does not say."""

    pods: PodTable
    node_placement: str
    device_placement: str

    def weights(self, pod_request: PodRequest) -> Weights:
        """Return what nodes are chosen by; other schedulers' words mean nothing here."""
        return WEIGHTS.get(pod_request.node_placement or "", WEIGHTS[self.node_placement])

    def choose(self, pod_request: PodRequest, node_names: Collection[str] | None) -> str | Refusal:
        """Return the best node for a pod, or why none serves it; of all nodes without names."""
        cache = self.pods.cache
        candidate_nodes = frozenset(cache.inventory.nodes) if node_names is None else node_names
        best_node = cache.best(pod_request.pod, candidate_nodes, weights=self.weights(pod_request))
        return best_node or cache.refusal(pod_request.pod, candidate_nodes)

    def reserve(self, uid: str, pod_request: PodRequest, node: str) -> Placement | Refusal:
        """Place a pod on a node, or return why that cannot be."""
        policy = PLACEMENT_POLICIES.get(pod_request.device_placement or self.device_placement)
        return self.pods.cache.reserve(
            uid, pod_request.pod, node, policy=self._chain(pod_request) or policy
        )

    def _chain(self, pod_request: PodRequest) -> PlacementChain | None:
        """Return the order of cards that a pod says; keys that it leaves out are the cluster's."""
        chain = pod_request.placement_chain
        if chain is None or chain.keys:
            return chain
        is_binpack = self.device_placement == CardKey.BINPACK.value
        first_key = CardKey.BINPACK if is_binpack else CardKey.SPREAD
        return evolve(chain, keys=(first_key, CardKey.NUMA))

    def hold(self, uid: str, pod_request: PodRequest, node_names: NodeNames) -> str | None:
        """Take the cheapest place for a pod and return its node, None if none serves."""
        record, weights = self.pods.get(uid), self.weights(pod_request)
        if record.placement is not None:
            self.pods.release(uid, record.placement)
        node = self.pods.cache.best(pod_request.pod, node_names, weights=weights, uid=uid)
        if node is None:
            return None
        place = self.reserve(uid, pod_request, node)
        if isinstance(place, Refusal):
            return None
        self.pods.hold(uid, place, monotonic() + _UNBOUND_S)
        return node

    def release_overdue(self) -> None:
        """Give back what filter took for pods that were not bound in time."""
        now_s = monotonic()
        for record in self.pods.within(PodState.HELD):
            if record.deadline_s > now_s:
                break
            self.pods.release(record.uid, record.placement)


@define(eq=False)
class NodeVerbs:
    """Filter, prioritize and preempt.

    `answers_one`: filter takes the pod's place on one node and answers that, so that what is
    filtered next sees it. Else it answers all nodes that serve, and nothing is taken before
    kube-scheduler binds the pod.
    """

    vocabulary: Vocabulary
    pods: PodTable
    placer: Placer
    groups: PodGroups
    preemption: Preemption
    metrics: SchedulerMetrics
    mix: ExpectedMix | None
    waker: Waker
    last_node_names: LastNames
    answers_one: bool

    async def filter(self, args: Plain) -> Plain:
        """Return the nodes that can serve the pod, and what each of the others said.

        Nodes that were sent whole are returned whole. Of those that the cluster does not have, none
        is given to the pod: who asks simulates.
        """
        pod, node_list = args["pod"], args.get("nodes")
        if args.get("nodenames") is not None:
            return self._filtered(pod, args["nodenames"])
        if node_list is None:
            raise HeteroError("hetero: the call has neither NodeNames nor Nodes")
        pod_request = self._request(pod)
        if pod_request is None or not pod_request.devices:
            return {"Nodes": node_list, "FailedNodes": {}}
        known_nodes = self.pods.cache.inventory.nodes
        reason_by_node = simulated_refusals(pod_request.pod, node_list, known_nodes)
        known_names = [name for name in names_of(node_list) if name not in reason_by_node]
        serving_names = {name for name, reason in reason_by_node.items() if reason is None}
        failed_nodes = {name: reason for name, reason in reason_by_node.items() if reason}
        if known_names:
            answer = self._filtered(pod, NodeNames.of(known_names))
            serving_names |= {*decoded_names(answer)}
            failed_nodes |= answer["FailedNodes"]
        kept = [node for node in node_list["items"] if node["metadata"]["name"] in serving_names]
        return {"Nodes": {**node_list, "items": kept}, "FailedNodes": failed_nodes}

    def _filtered(self, pod: Pod, node_names: NodeNames) -> Plain:
        """Return the names of the nodes that can serve the pod, and what each other one said."""
        pod_request = self._request(pod)
        if pod_request is None:
            return {"NodeNames": node_names.text, "FailedNodes": {}}
        self.pods.ask(pod, pod_request)
        self.placer.release_overdue()
        if not pod_request.devices:
            return self._without_devices(pod, pod_request, node_names)
        arrive(self.pods.cache, self.mix, pod, pod_request.pod, time())
        node_or_refusal = self._held(pod, pod_request, node_names)
        if node_or_refusal is None and self.answers_one:
            node_or_refusal = self.placer.hold(pod.metadata.uid, pod_request, node_names)
        if isinstance(node_or_refusal, str):
            return {"NodeNames": [node_or_refusal], "FailedNodes": {}}
        if node_or_refusal is not None:
            self.waker.tell_unfit(pod, node_or_refusal.sentence)
            return {
                "NodeNames": [],
                "FailedNodes": dict.fromkeys(node_names.each, node_or_refusal.sentence),
            }
        return self._serving(pod, pod_request, node_names)

    def _request(self, pod: Pod) -> PodRequest | None:
        """Return the request of a pod that is to be placed, as `Vocabulary.pod_request` does.

        Raises `BadInput` for one that its node would never start, as one that no webhook saw may
        be. That is an error of the call and no refusal by nodes: nobody is evicted for the pod.
        """
        pod_request = self.vocabulary.pod_request(pod)
        if pod_request is not None and pod_request.devices:
            for container in pod.containers:
                if container.name in pod_request.asking:
                    expect_unhidden(container)
        return pod_request

    def _serving(self, pod: Pod, pod_request: PodRequest, node_names: NodeNames) -> Plain:
        """Return all nodes that serve the pod; if none does, tell it why and look for victims."""
        placed_pod = pod_request.pod
        fitting_nodes, reason_by_node = self.pods.cache.serving(placed_pod, node_names.each)
        self.metrics.refused(Counter(reason_by_node.values()))
        if not fitting_nodes:
            refusal = self.pods.cache.refusal(placed_pod, node_names.each)
            self.waker.tell_unfit(pod, refusal.sentence)
            if self.groups.group(pod) is None:
                self.pods.cache.reserve_nodes(pod.metadata.uid, placed_pod, node_names.each)
                if self.preemption.wanted(pod):
                    in_background(self.preemption.make_room(pod, placed_pod, node_names.each))
        if reason_by_node:
            node_names = self.last_node_names.names = NodeNames.of(fitting_nodes)
        return {"NodeNames": node_names.text, "FailedNodes": reason_by_node}

    def _without_devices(self, pod: Pod, pod_request: PodRequest, node_names: NodeNames) -> Plain:
        """Return the offered nodes without devices, else the one whose devices lose least.

        kube-scheduler knows whether a node has the processors: none of them is refused here.
        """
        known_nodes = self.pods.cache.inventory.nodes
        offered_nodes = [name for name in node_names.each if name not in known_nodes]
        if not offered_nodes:
            arrive(self.pods.cache, self.mix, pod, pod_request.pod, time())
            uid = pod.metadata.uid
            held_node = self.placer.hold(uid, pod_request, node_names) if self.answers_one else None
            offered_nodes = [held_node] if held_node else node_names.each
        return {"NodeNames": offered_nodes, "FailedNodes": {}}

    def _held(self, pod: Pod, pod_request: PodRequest, nodes: NodeNames) -> str | Refusal | None:
        """Return the node where room is held for a pod, or why it waits; None: any may serve it."""
        uid = pod.metadata.uid
        node = self.preemption.node(uid)
        if node is None:
            return self.groups.place(pod, nodes.each) if self.groups.group(pod) else None
        if node in nodes and self.pods.cache.has_room(uid, pod_request.pod, node):
            return node
        reason = f"waits for those that it preempts on node {node} to end"
        return Refusal(wanted=1, verdicts={}, missing=reason)

    async def prioritize(self, args: Plain) -> list[Plain]:
        """Return the nodes' scores from 0 to 10, but for those of 0.

        Nodes that would give a larger shape than others have 0, and these 5 to 10.
        """
        pod, whole_nodes = args["pod"], args.get("nodes")
        offered_names = names_of(whole_nodes) if whole_nodes else args["nodenames"].each
        record = self.pods.get(pod.metadata.uid)
        is_filtered = record.request is not None and record.pod == pod  # it was just filtered
        pod_request = record.request if is_filtered else self.vocabulary.pod_request(pod)
        if pod_request is None:
            return []
        weights = self.placer.weights(pod_request)
        all_costs = self.pods.cache.costs(pod_request.pod, offered_names, weights=weights)
        costs = of_least_shapes(all_costs)
        lowest, highest = min(costs.values(), default=0), max(costs.values(), default=0)
        if len(costs) < len(all_costs):
            highest += highest - lowest or 1
        spread = highest - lowest or 1
        scores = ((name, _BEST_SCORE * (highest - cost) // spread) for name, cost in costs.items())
        return [{"Host": name, "Score": score} for name, score in scores if score]

    async def preempt(self, args: Plain) -> Plain:
        """Return, for each node kube-scheduler would clear, whom to evict so that the pod fits."""
        pod = args["pod"]
        pod_request = self.vocabulary.pod_request(pod)
        offered = args.get("nodenametometavictims", {})
        if pod_request is None:
            return {"NodeNameToMetaVictims": offered}
        uid = pod.metadata.uid
        held_node, placement_by_uid = self.preemption.node(uid), self.pods.cache.standing
        victims_by_node = {}
        for node, victims_json in offered.items():
            if held_node not in (None, node):
                continue  # its room is being made elsewhere
            fields = {name.lower(): value for name, value in victims_json.items()}
            certain_uids = [next(iter(victim.values())) for victim in fields.get("pods") or ()]
            victims = self.preemption.victims(uid, pod_request.pod, node, certain=certain_uids)
            # A node without victims is an error to kube-scheduler, and so is a victim on another
            # node: a gang on several is evicted by us alone.
            placements = filter(None, map(placement_by_uid.get, victims.uids if victims else ()))
            if victims and victims.uids and all(placement.node == node for placement in placements):
                victims_by_node[node] = {
                    "Pods": [{"UID": uid} for uid in victims.uids],
                    "NumPDBViolations": fields.get("numpdbviolations", 0),
                }
        return {"NodeNameToMetaVictims": victims_by_node}


@define(eq=False)
class PodBinder:
    """The bindings of one scheduler."""

    api: ApiCalls
    vocabulary: Vocabulary
    pods: PodTable
    placer: Placer
    groups: PodGroups
    signatures: Signatures
    agents: Agents | None
    kubelet_watches: KubeletWatches
    waker: Waker
    readiness: Readiness

    async def bind(self, args: Plain) -> Plain:
        """Reserve the pod's share and bind the pod with it; or undo that."""
        namespace, name = args["podnamespace"], args["podname"]
        uid, node = args["poduid"], args["node"]
        # Nothing is awaited between the call and the reservation, so that the pod that is filtered
        # next, perhaps at this very moment, sees what this one took.
        record = self.pods.get(uid)
        pod, pod_request = record.pod, record.request
        if pod is None or pod_request is None:
            pod = await read_pod(self.api, namespace, name)
            if pod is None:
                raise HeteroError(f"pod {namespace}/{name} is gone")
            if pod.metadata.uid != uid:
                raise HeteroError(f"pod {namespace}/{name} was replaced by another of its name")
            pod_request = self.vocabulary.pod_request(pod)
        annotations: dict[str, str] = {}
        if pod_request is not None:
            await self.groups.gather(pod)
            annotations = self._give(pod, pod_request, node)
        placement = self.pods.cache.standing.get(uid)
        try:
            if annotations:
                await self._until_watched(pod, node)
            if self.pods.cache.standing.get(uid) is not placement:
                # kube-scheduler gave up after its 10 s and asked again, or the pod is gone.
                raise HeteroError(f"pod {namespace}/{name}: its place was given anew meanwhile")
            self.readiness.expect_ready()
            log.info("pod %s/%s: binding to %s", namespace, name, node)
            await self.api.post(f"{path_of(pod)}/binding", _binding(pod, node, annotations))
        except HeteroError:
            if not await self._bound(pod, node):
                self.kubelet_watches.pass_on(node, uid)
                self.pods.release(uid, placement)
                raise
        if placement is not None:
            self.waker.tell_notes(pod, placement)
        return {}

    def _give(self, pod: Pod, pod_request: PodRequest, node: str) -> dict[str, str]:
        """Return the annotations that give a pod its share, which is taken from now on."""
        uid = pod.metadata.uid
        record = self.pods.get(uid)
        placement = record.placement
        if record.state is PodState.UNKNOWN:  # filter's question was forgotten
            self.pods.ask(pod, pod_request)
        is_standing = placement is not None and self.pods.cache.standing.get(uid) is placement
        self.pods.transition(uid, PodState.RESERVED).pod = pod if pod_request.devices else None
        answer: Placement | Refusal
        if (
            placement is not None
            and is_standing
            and placement.node == node
            and not self.pods.cache.inventory.is_cordoned(node)
        ):
            answer = placement
        else:
            answer = self.placer.reserve(uid, pod_request, node)
        if isinstance(answer, Refusal):
            self.pods.transition(uid, PodState.UNKNOWN)
            if pod_request.devices:
                raise self.waker.refuse(pod, f"node {node}: {answer.sentence}")
            return {}
        if not pod_request.devices:
            return {}
        row = self.groups.row(pod)
        assignment = Assignment(
            node=node,
            uid=uid,
            row=row.row if row else None,
            rows=row.rows if row else None,
            containers=tuple(
                (name, without_core_limit(share) if name in pod_request.unlimited else share)
                for name, share in zip(kinds(pod), answer.allocations, strict=True)
                if share is not None
            ),
        )
        variable_notes = notes_of_variables(
            pod,
            dict(assignment.containers),
            vendors=self.vocabulary.vendors,
            devices=self.pods.cache.inventory.devices(node),
        )
        return {**variable_notes, **self.signatures.sign(assignment)}

    async def _until_watched(self, pod: Pod, node: str) -> None:
        """Wait until a node's kubelet takes up pods. Raises `HeteroError` if it is shut by then."""
        await self.kubelet_watches.until_watched(node, pod.metadata.uid)
        if self.agents and self.pods.cache.inventory.is_cordoned(node):
            raise self.waker.refuse(pod, f"node {node}: {self.agents.why_shut(node)}")

    async def _bound(self, pod: Pod, node: str) -> bool:
        """Return whether a binding was made although its answer was an error or never came."""
        while True:
            try:
                current = await read_pod(self.api, *pod.full_name)
                break
            except ApiError:
                await asyncio.sleep(1)  # until we know, the reservation stands
        uid = pod.metadata.uid
        return current is not None and (uid, node) == (current.metadata.uid, current.spec.node_name)


def _binding(pod: Pod, node: str, annotations: dict[str, str]) -> Plain:
    """Return the Binding of a pod to a node; the API adds its annotations to the pod's."""
    metadata = pod.metadata
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": metadata.name,
            "namespace": metadata.namespace,
            "uid": metadata.uid,
            "annotations": annotations,
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
