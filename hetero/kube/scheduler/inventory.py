"""Keeps what there is as the API has it: nodes, whose agents open them to pods, and quotas."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Mapping

from attrs import define, field

from hetero.kube.client.api import ApiCalls
from hetero.kube.dra.node_pools import NodePool
from hetero.kube.objects.kinds import NodeObject, Pod, ResourceQuota
from hetero.kube.scheduler.agents import Agents
from hetero.kube.scheduler.readiness import Readiness
from hetero.kube.scheduler.standing_pods import StandingPods
from hetero.kube.scheduler.waker import Waker, in_background
from hetero.kube.words.annotations import INVENTORY, NodeGrants, published
from hetero.kube.words.host import node_host
from hetero.kube.words.quota import Quotas, limits
from hetero.model import Device
from hetero.model.errors import BadInput
from hetero.placement.cache import SchedulerCache
from hetero.placement.cluster import PlacedNode
from hetero.placement.state import UNLIMITED_AMOUNT

log = logging.getLogger(__name__)

#: What a node says to pods that ask by resource names.
BY_CLAIMS = "give their cards by claims"


@define(eq=False)
class ClusterNodes:
    """The nodes of one cluster. Without `agents` every node is taken to have one that serves."""

    api: ApiCalls
    cache: SchedulerCache
    agents: Agents | None
    counted: StandingPods
    waker: Waker
    readiness: Readiness
    #: Whether nodes whose devices are given by claims are open to pods, as in a simulation.
    opens_claims: bool = False
    pools: dict[str, NodePool] = field(
        factory=dict
    )  # the devices that are given by claims, by node
    #: Labels of the nodes that count, all without any.
    labels: Mapping[str, str] = field(factory=dict)
    devices_changed: Callable[[str], None] = field(default=lambda _: None)  # hears of a node's name
    # What was told of nodes that publish devices of others.
    _duplicate_owners: dict[str, str | None] = field(factory=dict)
    # The nodes whose agents publish no device in their inventory.
    _unpublished: dict[str, NodeObject] = field(factory=dict)

    @property
    def by_claims(self) -> frozenset[str]:
        """The nodes whose devices are given by claims."""
        return frozenset(self._unpublished.keys() & self.pools.keys())

    async def follow(self) -> None:
        """Follow the nodes, for ever."""
        await self.api.follow(
            "/api/v1/nodes",
            NodeObject,
            listed=self.listed,
            changed=self.changed,
            lost=lambda error: log.warning("nodes: %s", error),
        )

    def listed(self, nodes: list[NodeObject]) -> None:
        """Note that there are no other nodes than these."""
        self.readiness.busy()
        nodes = [node for node in nodes if self._counts(node)]
        names = {node.metadata.name for node in nodes}
        self._unpublished.clear()
        for name in set(self.cache.inventory.nodes) - names:
            self._remove(name)
        for node in nodes:  # in this order they are counted, whichever is older
            name, annotations = node.metadata.name, node.metadata.annotations
            if name not in self.cache.inventory.nodes and INVENTORY in annotations:
                self.cache.update_node(PlacedNode(name=name))
        # Of two that publish one card it is the older's.
        for node in sorted(nodes, key=lambda node: node.created):
            self.changed("ADDED", node)
        self.cache.rows()  # no pod waits for it
        # Thousands of nodes' devices live as long as this process: walking them at every full
        # collection would hold up one decision in a hundred for tens of milliseconds.
        gc.collect()
        gc.freeze()
        self.readiness.listed.add("nodes")

    def changed(self, event: str, node: NodeObject) -> None:
        """Note what a node has by now."""
        name, inventory_text = node.metadata.name, node.metadata.annotations.get(INVENTORY)
        self._unpublished.pop(name, None)
        if not self._counts(node):
            event = "DELETED"
        if event == "DELETED" or (inventory_text is None and name not in self.pools):
            if event != "DELETED":
                self._unpublished[name] = node
            self._remove(name)
            return
        devices_before = self.cache.inventory.devices(name)
        devices: tuple[Device, ...] = ()
        grants = NodeGrants()
        try:
            if inventory_text is not None:
                devices, grants = published(inventory_text, node=name)
            if not devices:  # its agent never published any, or has withdrawn them
                self._unpublished[name] = node
                devices = self.pools[name].devices if name in self.pools else ()
            host = {
                counter: min(amount, UNLIMITED_AMOUNT)
                for counter, amount in node_host(node).items()
            }
            conflict = self.cache.update_node(PlacedNode(name=name, devices=devices, host=host))
        except Exception as error:  # whatever its agent wrote, it harms this node alone
            log.error("node %s: %s", name, error, exc_info=not isinstance(error, BadInput))
            self.cache.update_node(
                PlacedNode(name=name), fault="publish an inventory that this version cannot read"
            )
            conflict = None
        self._tell_of_conflict(node, conflict)
        if self.cache.inventory.devices(name) != devices_before:
            self.counted.count_hami(name)
            self.devices_changed(name)
        if name in self.pools:  # an inventory beside slices may be older
            grants = self.pools[name].grants
        if self.counted.count_node(name, grants):
            self.waker.wake_for(name)
        self._cordon(name)

    def pool_changed(self, name: str, pool: NodePool) -> None:
        """Note what a node's slices say by now."""
        self.pools.pop(name, None)
        if pool.devices:
            self.pools[name] = pool
        if name in self._unpublished:
            self.changed("MODIFIED", self._unpublished[name])

    def _counts(self, node: NodeObject) -> bool:
        """Whether a node's cards are given out, by its labels."""
        return self.labels.items() <= node.metadata.labels.items()

    def _remove(self, name: str) -> None:
        self.counted.count_node(name, NodeGrants())
        self.cache.remove_node(name)

    def _tell_of_conflict(self, node: NodeObject, sentence: str | None) -> None:
        """Tell of a node that publishes what another has, when that is new."""
        name = node.metadata.name
        if sentence is not None and self._duplicate_owners.get(name) != sentence:
            log.error("node %s: %s", name, sentence)
            message = f"hetero uses no device of two nodes at both: this node {sentence}"
            events = self.waker.events
            in_background(events.tell(node.metadata, "PublishedTwice", message, kind="Node"))
        self._duplicate_owners[name] = sentence

    # --- their agents ---------------------------------------------------------------------------

    def pods_listed(self, uids: set[str]) -> None:
        """Note that there are no other pods of agents than these."""
        if self.agents:
            self.agents.pods_listed(uids)

    def pod_changed(self, event: str, pod: Pod) -> None:
        """Have pods bound to a node while its agent serves, if this is its agent's pod."""
        node = self.agents.pod_changed(event, pod) if self.agents else None
        if node is not None:
            self._cordon(node)

    def cordon_all(self) -> None:
        """Have pods bound to those nodes whose agent serves, once all agents are known."""
        for node in self.cache.inventory.nodes:
            self._cordon(node)

    def _cordon(self, node: str) -> None:
        if node not in self.cache.inventory.nodes:
            return
        reason = None
        if node in self._unpublished and node in self.pools:
            reason = None if self.opens_claims else BY_CLAIMS
        elif self.agents is not None:
            if "pods" not in self.readiness.listed:
                return
            reason = self.agents.why_shut(node)
        if self.cache.cordon(node, reason) and reason is None:
            self.counted.count_hami(node)
            self.waker.wake_for(node)


@define(eq=False)
class QuotaInformer:
    """The quotas of one cluster; pods that wait for a quota are tried again when it changes."""

    api: ApiCalls
    quotas: Quotas
    waker: Waker
    readiness: Readiness

    async def follow(self) -> None:
        """Follow the quotas, for ever."""
        await self.api.follow(
            "/api/v1/resourcequotas",
            ResourceQuota,
            listed=self.listed,
            changed=self._changed,
            lost=lambda error: log.warning("quotas: %s", error),
        )

    def listed(self, quotas: list[ResourceQuota]) -> None:
        """Note that there are no other quotas than these."""
        names = {quota.full_name for quota in quotas}
        for namespace, limits_by_quota in list(self.quotas.most.items()):
            for name in [*limits_by_quota]:
                if (namespace, name) not in names:
                    self._allow(namespace, name, {})
        for quota in quotas:
            self._changed("ADDED", quota)
        self.readiness.listed.add("quotas")

    def _changed(self, event: str, quota: ResourceQuota) -> None:
        hard = quota.spec.hard if event != "DELETED" else {}
        self._allow(*quota.full_name, limits(hard, self.quotas.vocabulary.resources))

    def _allow(self, namespace: str, name: str, limit_by_name: dict[str, int]) -> None:
        if self.quotas.allow(namespace, name, limit_by_name):
            self.waker.wake_in(namespace)
