"""Keeps what the cluster's claims hold as the API has it: kube-scheduler gives it, and we count it.

So a namespace's quota counts pods and claims alike, and a card that a claim holds from before its
node went back to the classic way is not given out twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict

from attrs import define, evolve, field

from hetero.kube.client.api import ApiCalls, ApiError
from hetero.kube.dra.claims import results_of
from hetero.kube.dra.node_pools import NodePool, node_pools
from hetero.kube.dra.offers import offers
from hetero.kube.dra.standing_claims import CLAIMS, SLICES, standing_claims
from hetero.kube.objects.kinds import PoolSlice, ResourceClaim
from hetero.kube.scheduler.inventory import ClusterNodes
from hetero.kube.scheduler.standing_pods import CLAIM, WITHOUT_DEVICES
from hetero.kube.scheduler.waker import Waker
from hetero.model import ContainerKind, occupancies
from hetero.placement.cluster import Placement

log = logging.getLogger(__name__)

#: Seconds between two attempts where the API server has no claims, or does not let us list them.
_RETRY_S = 60.0


@define(eq=False)
class ClaimInformer:
    """The slices and the allocated claims of one cluster, those of hetero's devices alone."""

    api: ApiCalls
    nodes: ClusterNodes
    waker: Waker
    _slices: defaultdict[str, dict[str, PoolSlice]] = field(
        init=False, factory=lambda: defaultdict(dict)
    )  # by node and name
    _claims: defaultdict[str, dict[str, ResourceClaim]] = field(
        init=False, factory=lambda: defaultdict(dict)
    )  # by node and UID

    def __attrs_post_init__(self) -> None:
        self.nodes.devices_changed = self._count

    async def follow(self) -> None:
        """Follow both, for ever."""
        await asyncio.gather(self._follow_slices(), self._follow_claims())

    async def _follow_slices(self) -> None:
        await self.api.follow(
            SLICES,
            PoolSlice,
            listed=self.slices_listed,
            changed=self._slice_changed,
            lost=_lost,
            retry_s=_RETRY_S,
        )

    async def _follow_claims(self) -> None:
        await self.api.follow(
            CLAIMS,
            ResourceClaim,
            listed=self.claims_listed,
            changed=self._claim_changed,
            lost=_lost,
            retry_s=_RETRY_S,
        )

    # --- what there is ----------------------------------------------------------------------------

    def slices_listed(self, slices: list[PoolSlice]) -> None:
        """Note that there are no other slices than these."""
        nodes_before = {*self._slices}
        self._slices.clear()
        for resource_slice in slices:
            self._slices[_node_of(resource_slice)][resource_slice.metadata.name] = resource_slice
        for node in nodes_before | {*self._slices}:
            self._read(node)

    def _slice_changed(self, event: str, resource_slice: PoolSlice) -> None:
        node, slice_name = _node_of(resource_slice), resource_slice.metadata.name
        self._slices[node].pop(slice_name, None)
        if event != "DELETED":
            self._slices[node][slice_name] = resource_slice
        self._read(node)

    def _read(self, node: str) -> None:
        """Note the devices that a node's slices say."""
        pool = node_pools(self._slices[node].values()).get(node, NodePool())
        if not pool.complete and node in self.nodes.pools:
            return  # its agent is still writing: what it said before is so until then
        if not self._slices[node]:
            del self._slices[node]
        if self.nodes.pools.get(node, NodePool()) != pool:
            self.nodes.pool_changed(node, pool)
            self._count(node)

    # --- who holds it -----------------------------------------------------------------------------

    def claims_listed(self, claims: list[ResourceClaim]) -> None:
        """Note that there are no other claims than these."""
        nodes_before = {*self._claims}
        self._claims.clear()
        for claim in claims:
            if results := results_of(claim):
                self._claims[results[0].pool][claim.metadata.uid] = claim
        for node in nodes_before | {*self._claims}:
            self._count(node)

    def _claim_changed(self, event: str, claim: ResourceClaim) -> None:
        uid = claim.metadata.uid
        nodes = [node for node, claims in self._claims.items() if claims.pop(uid, None)]
        results = results_of(claim)
        if results and event != "DELETED":
            nodes.append(results[0].pool)
            self._claims[results[0].pool][uid] = claim
        for node in dict.fromkeys(nodes):
            self._count(node)

    def _count(self, node: str) -> None:
        """Count what claims hold of a node's devices by now."""
        cache, pools = self.nodes.cache, self.nodes.pools
        pool = pools.get(node)
        node_offers = pool.offers if pool else offers(cache.inventory.devices(node))
        claims = standing_claims(self._claims.get(node, {}).values(), {node: node_offers})
        names = {f"{CLAIM}{claim.uid}" for claim in claims}
        for uid in cache.on(node) - names:
            if uid.startswith(CLAIM):
                namespace = cache.standing[uid].pod.namespace
                cache.release(uid)
                if cache.quotas is not None and namespace in cache.quotas.most:
                    self.waker.wake_in(namespace)
                if node not in pools:
                    self.waker.wake_for(node)
        for claim in claims:
            placement = Placement(
                node=node,
                pod=evolve(WITHOUT_DEVICES, namespace=claim.namespace),
                allocations=(None,),
                holds=occupancies(((ContainerKind.MAIN, claim.allocation),)),
                host={},
            )
            cache.restore(f"{CLAIM}{claim.uid}", placement)


def _node_of(resource_slice: PoolSlice) -> str:
    return resource_slice.spec.node_name


def _lost(error: Exception) -> None:
    """Log a failure, but that of an API server that serves no claims or shows us none."""
    if not isinstance(error, ApiError) or error.status not in (403, 404):
        log.warning("claims: the API does not answer: %s", error)
