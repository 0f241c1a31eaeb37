"""What stands on a node and is in no object of the API as it stands: for the inventory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from attrs import evolve

from hetero.kube.agent.node_pods import NodePods
from hetero.kube.dra.node_claims import CLAIM, CLAIM_UID, NAMESPACE
from hetero.kube.words.annotations import Held, NodeGrant, NodeGrants, RunsOn
from hetero.kube.words.pod import ended, kinds
from hetero.model import Allocation, ContainerKind, Device, occupancies
from hetero.model.errors import BadInput
from hetero.node.ledger.ledger import Grant


def node_grants(
    grants: Iterable[Grant], pods: NodePods, running_on: Held, gone_claims: Collection[str]
) -> NodeGrants:
    """Return what of these grants neither a pod's allocation nor a claim says.

    `running_on` are the pods that are over and whose containers run, and `gone_claims` the UIDs of
    claims of which the same is so.
    """
    others: dict[str, NodeGrant] = {}
    allocations_by_uid: dict[str, dict[str, Allocation]] = {}
    for grant in grants:
        owner = grant.owner
        if "uid" in owner:
            allocations_by_uid.setdefault(owner["uid"], {})[owner["container"]] = grant.reserved
        elif owner.get(CLAIM_UID) in gone_claims:
            others[grant.id] = NodeGrant(
                name=owner[CLAIM], allocation=grant.reserved, namespace=owner[NAMESPACE]
            )
        elif not owner and not grant.promised:  # else it is being made for a pod or a claim
            others[grant.id] = NodeGrant(name=_name(grant), allocation=grant.reserved)
    corrected_pods = {
        uid: corrected
        for uid, allocations in allocations_by_uid.items()
        if uid not in running_on and (corrected := _corrected(pods, uid, allocations))
    }
    return NodeGrants(ended_pods=running_on, corrected_pods=corrected_pods, others=others)


def without_held(
    devices: Iterable[Device], grants: Iterable[Grant], gone_claims: Collection[str]
) -> tuple[Device, ...]:
    """Return the devices, those cordoned that are held by anything else than claims.

    kube-scheduler counts what claims consume and nothing else, and gives the rest of a card as all
    of it to who names no size. So it is to give nothing new of such a card.
    """
    holder_by_uuid = {
        piece.device: _name(grant)
        for grant in grants
        if grant.owner.get(CLAIM_UID, "") in ("", *gone_claims)
        and (grant.owner or not grant.promised)
        for piece in grant.allocation.pieces
    }
    return tuple(
        evolve(device, cordon=f"held by {holder_by_uuid[device.uuid]}, which is no claim's")
        if device.cordon is None and device.uuid in holder_by_uuid
        else device
        for device in devices
    )


def _name(grant: Grant) -> str:
    container_name = grant.container.name if grant.container else None
    return grant.share or grant.label or container_name or grant.id


def _corrected(pods: NodePods, uid: str, allocations: Mapping[str, Allocation]) -> RunsOn | None:
    """Return what a pod's containers hold, None where that is what its allocation says.

    A container without a grant, whose turn has not come yet, holds what its allocation says.
    """
    pod = pods.by_uid.get(uid)
    if pod is None or ended(pod):
        return None  # `running_on` says so soon
    try:
        signed_allocations = {share.container: share.allocation for share in pods.signed(pod)}
    except BadInput:
        signed_allocations = {}
    kind_by_container = kinds(pod)

    def containers(
        allocation_by_name: Mapping[str, Allocation],
    ) -> tuple[tuple[str, ContainerKind, Allocation], ...]:
        return tuple(
            (name, kind, allocation_by_name[name])
            for name, kind in kind_by_container.items()
            if name in allocation_by_name
        )

    corrected = RunsOn(
        namespace=pod.metadata.namespace,
        pod=pod.metadata.name,
        containers=containers({**signed_allocations, **allocations}),
    )
    signed_takes = occupancies(
        (kind, allocation) for _, kind, allocation in containers(signed_allocations)
    )
    return None if corrected.takes == signed_takes else corrected
