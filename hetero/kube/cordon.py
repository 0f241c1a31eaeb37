"""Cordons a card of a cluster's node by an annotation, which its agent obeys within seconds."""

from __future__ import annotations

import asyncio

from attrs import evolve

from hetero.kube.client.api import VIEW_CONNECT_S, Access, Api, ApiError
from hetero.kube.cluster_view import snapshot
from hetero.kube.words.annotations import (
    CORDONED,
    cordons,
    cordons_text,
    idle_cordons,
    without_cordon,
)
from hetero.model.errors import NotFound, Refused
from hetero.node.card_book import expect_reason
from hetero.node.cordon import CordonResult, card_named
from hetero.node.view.observe import DeviceView

#: What an API server answers to a change of an object that somebody changed since it was read.
_CONFLICT, _ABSENT = 409, 404


def cordon_in_cluster(node_name: str, card_name: str, *, reason: str) -> CordonResult:
    """Give nothing new of a card from now on. Raises `HeteroError`."""
    return asyncio.run(_changed(node_name, card_name, expect_reason(reason)))


def uncordon_in_cluster(node_name: str, card_name: str) -> CordonResult:
    """Give of a card again. Raises `Refused` where its node cordons it."""
    return asyncio.run(_changed(node_name, card_name, None))


async def _changed(node_name: str, card_name: str, reason: str | None) -> CordonResult:
    """Cordon a card for a reason; None: uncordon it."""
    async with Api(Access.here(), connect_timeout_s=VIEW_CONNECT_S).open() as api:
        while True:
            try:
                return await _change(api, node_name, card_name, reason)
            except ApiError as error:
                if error.status == _ABSENT:
                    raise NotFound(
                        f"no node {node_name!r} in the cluster: kubectl get nodes"
                    ) from None
                if error.status != _CONFLICT:  # else somebody changed the node meanwhile
                    raise


async def _change(api: Api, node_name: str, card_name: str, reason: str | None) -> CordonResult:
    """Do so, unless somebody changes the node meanwhile. Raises `ApiError`."""
    path = f"/api/v1/nodes/{node_name}"
    metadata = (await api.get(path))["metadata"]
    annotations = metadata.get("annotations") or {}
    row_by_number = await _rows(api, node_name)
    number = card_named(
        [row.device for row in row_by_number.values()],
        card_name,
        numbers=[*row_by_number],
        place=f"on node {node_name}",
    )
    device = row_by_number[number].device
    if reason is None:
        changes = without_cordon(annotations, device.uuid, node=node_name)
        if not changes and device.cordon is not None:
            raise Refused(
                f"node {node_name}: card {number} is cordoned there and not by an annotation "
                f"({device.cordon or 'no reason is given'}): hetero uncordon {number} on that "
                "machine, or its settings"
            )
    else:
        own_text = annotations.get(CORDONED, "")
        own_cordons = {
            name: own_reason
            for name, own_reason in cordons({CORDONED: own_text}, node=node_name).items()
            if name.lower() != device.uuid.lower()  # as its node reads names
        }
        changes = {CORDONED: cordons_text({**own_cordons, device.uuid: reason})}
    notes = idle_cordons(
        {name: text for name, text in {**annotations, **changes}.items() if text is not None},
        [row.device.uuid for row in row_by_number.values()],
        node=node_name,
    )
    if changes:
        version = {"resourceVersion": metadata["resourceVersion"]}
        await api.patch(path, {"metadata": {**version, "annotations": changes}})
    return CordonResult(
        device_number=number,
        device=evolve(device, cordon=reason),
        holders=row_by_number[number].grants,
        node=node_name,
        notes=notes,
    )


async def _rows(api: Api, node_name: str) -> dict[int, DeviceView]:
    """Return the cards of a node as its view shows them, by number."""
    view = await snapshot(api)
    rows = next((node.devices for node in view.nodes if node.name == node_name), ())
    return {row.device_number: row for row in rows}
