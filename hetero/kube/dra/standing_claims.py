"""What claims hold of the cards of a cluster, as the API has it: one sum for each claim.

A claim holds what kube-scheduler gave it from its allocation until its deallocation, whether a pod
uses it or not, and however many do. What it takes is what the agent that prepares it has its grant
take: `claims.prepared`. Devices of other drivers are theirs to count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeVar

from attrs import field, frozen

from hetero.kube.client.api import Api, ApiError
from hetero.kube.dra.claims import prepared, results_of
from hetero.kube.dra.node_pools import NodePool, node_pools, notes_of_other_drivers
from hetero.kube.dra.offers import CAPACITIES, DRIVER, Offer, offers
from hetero.kube.objects.kinds import DeviceResult, Object, PoolSlice, ResourceClaim
from hetero.kube.words.quantity import quantity
from hetero.model import CORE, SLOTS, Allocation, Counters, Device, DeviceAllocation
from hetero.model.errors import BadInput, HeteroError

_O = TypeVar("_O", bound=Object)

#: Claims of devices that many share are of this version: Kubernetes 1.34 and later have it.
SLICES, CLAIMS = (f"/apis/resource.k8s.io/v1/resource{plural}" for plural in ("slices", "claims"))


@frozen(kw_only=True)
class StandingClaim:
    """What a claim holds of the cards of a node; `pods` are the UIDs of those it is reserved for.

    `fault` says why its agent will not prepare it, as far as the API tells: it is held all the
    same.
    """

    namespace: str
    name: str
    uid: str
    node: str
    allocation: Allocation
    pods: tuple[str, ...] = ()
    fault: str | None = None


@frozen(kw_only=True)
class ClaimBooks:
    """The cards that a cluster gives by claims, by node, and the claims that hold any.

    `notes` say what is not in them.
    """

    pools: Mapping[str, NodePool] = field(factory=dict)
    claims: tuple[StandingClaim, ...] = ()
    notes: tuple[str, ...] = ()


async def read_claims(api: Api) -> tuple[list[PoolSlice], list[ResourceClaim], list[str]]:
    """Return the slices and claims of a cluster, and a note for what the caller may not list.

    An API server without claims has none. Raises `ApiError` for any other failure.
    """
    notes: list[str] = []

    async def objects(path: str, kind: type[_O]) -> list[_O]:
        try:
            return await api.objects(path, kind)
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            if error.status == 403:
                notes.append(f"cards that are given by claims are not counted: {error}")
            return []

    slices, claims = await asyncio.gather(
        objects(SLICES, PoolSlice), objects(CLAIMS, ResourceClaim)
    )
    return slices, claims, notes[:1]


def claim_books(
    slices: Collection[PoolSlice],
    claims: Iterable[ResourceClaim],
    devices_by_node: Mapping[str, Iterable[Device]],
) -> ClaimBooks:
    """Return the cards and the claims that these objects say.

    `devices_by_node` are those of nodes that give their cards otherwise: a claim from before may
    still hold some.
    """
    pools = node_pools(slices)
    offers_by_node: dict[str, Mapping[str, Offer]] = {
        node: offers(devices) for node, devices in devices_by_node.items() if node not in pools
    }
    offers_by_node |= {node: pool.offers for node, pool in pools.items()}
    standing = standing_claims(claims, offers_by_node)
    notes = [f"node {node}: {fault}" for node, pool in pools.items() for fault in pool.faults]
    notes += [
        f"claim {claim.namespace}/{claim.name} of node {claim.node}: {claim.fault}"
        for claim in standing
        if claim.fault
    ]
    notes += notes_of_other_drivers(slices)
    return ClaimBooks(pools=pools, claims=standing, notes=tuple(notes))


def standing_claims(
    claims: Iterable[ResourceClaim], offers_by_node: Mapping[str, Mapping[str, Offer]]
) -> tuple[StandingClaim, ...]:
    """Return what the claims hold that were allocated devices of ours."""
    standing = (_standing(claim, offers_by_node) for claim in claims)
    return tuple(claim for claim in standing if claim is not None)


def _standing(
    claim: ResourceClaim, offers_by_node: Mapping[str, Mapping[str, Offer]]
) -> StandingClaim | None:
    """Return what a claim holds, None where that is nothing."""
    results = results_of(claim)
    if not results or all(result.admin_access for result in results):
        return None
    node, fault = results[0].pool, None
    node_offers = offers_by_node.get(node, {})
    try:
        allocation = prepared(claim, node_name=node, offers=node_offers).allocation
    except HeteroError as error:
        allocation, fault = _consumed(claim, node_offers), str(error)
    return StandingClaim(
        namespace=claim.metadata.namespace,
        name=claim.metadata.name,
        uid=claim.metadata.uid,
        node=node,
        allocation=allocation,
        pods=tuple(
            consumer.uid for consumer in claim.status.reserved_for if consumer.resource == "pods"
        ),
        fault=fault,
    )


def _consumed(claim: ResourceClaim, node_offers: Mapping[str, Offer]) -> Allocation:
    """Return what a claim consumes that no agent would prepare, or whose device is gone."""
    pieces: dict[str, DeviceAllocation] = {}
    for result in results_of(claim):
        if result.admin_access:
            continue
        for uuid, vendor, takes in _taken(claim, result, node_offers.get(result.device)):
            before = pieces[uuid].takes if uuid in pieces else {}
            sums = {counter: before.get(counter, 0) + takes[counter] for counter in takes}
            core_units = sums.get(CORE) or None
            pieces[uuid] = DeviceAllocation(device=uuid, vendor=vendor, takes=sums, core=core_units)
    return Allocation(pieces=tuple(pieces.values()))


def _taken(
    claim: ResourceClaim, result: DeviceResult, offer: Offer | None
) -> Iterator[tuple[str, str, Counters]]:
    """Yield what a result takes of each device, with its UUID and vendor.

    Of a device that is gone, the claim says how much, and its agent said in its status of which.
    """
    consumed = {
        counter: _amount(result.consumed_capacity, capacity)
        for capacity, counter in CAPACITIES.items()
    }
    if offer is None:
        uuids, vendor = _named(claim, result.device)
        yield from ((uuid, vendor, consumed) for uuid in uuids)
        return
    for device in offer.devices:
        whole = device.capacity if offer.template is None else {**offer.template.takes, SLOTS: 1}
        yield device.uuid, device.vendor, consumed if offer.shared else whole


def _amount(amounts: Mapping[str, object], capacity: str) -> int:
    """Return what is consumed of a capacity, 0 where that cannot be read."""
    for capacity_name in (capacity, f"{DRIVER}/{capacity}"):
        try:
            amount = quantity(amounts, capacity_name)
        except BadInput:
            return 0
        if amount is not None:
            return amount
    return 0


def _named(claim: ResourceClaim, device_name: str) -> tuple[tuple[str, ...], str]:
    """Return the UUIDs and the vendor of a device, as its agent wrote them into the status."""
    for status in claim.status.devices:
        data = status.get("data")
        if status.get("device") == device_name and isinstance(data, dict):
            uuids = data.get("uuids")
            if isinstance(uuids, list) and uuids:
                return tuple(map(str, uuids)), str(data.get("vendor") or "")
    return (device_name,), ""
