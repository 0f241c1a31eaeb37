"""Reads what a ResourceClaim was allocated on this node, and how it is to be enforced.

A claim is one grant: what it consumes of one device under several requests is summed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import TypeVar

from attrs import evolve, frozen

from hetero.kube.dra.offers import CAPACITIES, DRIVER, Offer, published
from hetero.kube.objects.kinds import (
    Amounts,
    Container,
    DeviceConfig,
    DeviceResult,
    Pod,
    ResourceClaim,
)
from hetero.kube.words.quantity import quantity
from hetero.model import (
    CORE,
    SLOTS,
    Allocation,
    Device,
    DeviceAllocation,
    Fractional,
    MultiDevice,
    OnBypass,
    OnExcess,
    Policy,
    Priority,
    Truth,
    following,
)
from hetero.model.errors import BadInput, NotFound

_E = TypeVar("_E", bound=Enum)

CONFIG_VERSION, CONFIG_KIND = f"{DRIVER}/v1", "Share"
_WORDS: Mapping[str, type[Enum]] = {
    "policy": Policy,
    "priority": Priority,
    "onExcess": OnExcess,
    "onBypass": OnBypass,
    "strict": Truth,
}


@frozen(kw_only=True)
class Result:
    """One device of a claim's allocation: for which request, and which of its users it is."""

    request: str
    device: str
    share: str | None


@frozen(kw_only=True)
class Prepared:
    """What a claim holds on a node: one allocation, and the results that it is made of."""

    allocation: Allocation
    results: tuple[Result, ...]
    admin: bool = False  # it sees the devices and consumes nothing of them


def results_of(claim: ResourceClaim) -> list[DeviceResult]:
    """Return the devices of ours that a claim was allocated."""
    return [one for one in claim.status.allocation.devices.results if one.driver == DRIVER]


def prepared(claim: ResourceClaim, *, node: str, offers: Mapping[str, Offer]) -> Prepared:
    """Return what a claim holds of a node's devices, given what they offer.

    Raises `BadInput` or `NotFound` with what is wrong with the claim or its allocation.
    """
    results = results_of(claim)
    if not results:
        raise BadInput("it has no allocation of this driver's devices")
    for result in results:
        if result.pool != node:
            raise BadInput(f"it was allocated devices of node {result.pool}, and this is {node}")
        if result.device not in offers:
            raise NotFound(f"device {result.device} is not on this node (any more)")
    admin = {result.admin_access for result in results}
    if len(admin) > 1:
        raise BadInput("some of its requests have adminAccess and some not: make two claims")
    config = config_of(claim.status.allocation.devices.config, results)
    policy = config.policy
    pieces: dict[str, DeviceAllocation] = {}
    devices: dict[str, Device] = {}
    for result in results:
        offer = offers[result.device]
        for device in offer.devices:
            devices[device.uuid] = device
            if admin == {True}:
                pieces[device.uuid] = _all_of(device)
                continue
            piece = _piece(offer, device, result.consumed_capacity, policy)
            pieces[device.uuid] = _sum(device, pieces.get(device.uuid), piece)
    _expect_several(list(pieces.values()), devices)
    allocation = evolve(config, pieces=tuple(pieces.values()))
    return Prepared(
        admin=admin == {True},
        allocation=allocation,
        results=tuple(
            Result(request=result.request, device=result.device, share=result.share_id)
            for result in results
        ),
    )


def used_by(pod: Pod) -> dict[str, str]:
    """Return the claims that a pod uses, by what the pod calls them.

    The one that kube-scheduler made for its extended resources has no such name: "".
    """
    status = pod.status
    named = [
        *((one.name, one.resource_claim_name) for one in pod.spec.resource_claims),
        *((one.name, one.resource_claim_name) for one in status.resource_claim_statuses),
        ("", status.extended_resource_claim_status.resource_claim_name),
    ]
    return {name: claim for name, claim in named if claim}


def other_claims(pod: Pod, claim: str) -> dict[str, str]:
    """Return the other claims that containers use beside one of their pod's, and which do."""
    user_of: dict[str, str] = {}
    for container, claims in _by_container(pod):
        if claim in claims:
            user_of |= dict.fromkeys(claims - {claim}, container.name)
    return user_of


def users(pod: Pod, claim: str) -> Iterator[Container]:
    """Yield the containers of a pod that use one of its claims by name."""
    return (container for container, claims in _by_container(pod) if claim in claims)


def _by_container(pod: Pod) -> Iterator[tuple[Container, set[str]]]:
    """Yield each container of a pod with the claims that it uses."""
    named = used_by(pod)
    extended = pod.status.extended_resource_claim_status
    served = {one.container_name for one in extended.request_mappings}
    for container in pod.containers:
        used = [one.name for one in container.resources.claims]
        used += [""] if container.name in served else []
        yield container, {named[name] for name in used if name in named}


def config_of(entries: Iterable[DeviceConfig], results: Iterable[DeviceResult] = ()) -> Allocation:
    """Return an allocation of nothing, enforced as a claim's configuration says.

    What a claim says goes before what its DeviceClass says. `results` are those of the claim,
    where it has any. Raises `BadInput`.
    """
    values: dict[str, Enum] = {}
    own_requests = {one.request.partition("/")[0] for one in results}
    for entry in sorted(entries, key=lambda config: config.source != "FromClass"):
        if entry.opaque.driver != DRIVER:
            continue
        meant = {name.partition("/")[0] for name in entry.requests or own_requests}
        if not own_requests <= meant:
            raise BadInput(
                "its configuration is for some of its requests: a claim is one grant, so write it "
                "for all of them, or make two claims"
            )
        values |= _read(entry.opaque.parameters)
    made = Allocation(pieces=(), context=True)
    return evolve(
        made,
        policy=_of(values, "policy", Policy) or made.policy,
        priority=_of(values, "priority", Priority) or made.priority,
        on_excess=_of(values, "onExcess", OnExcess),
        on_bypass=_of(values, "onBypass", OnBypass),
        strict=_of(values, "strict", Truth) is Truth.TRUE,
    )


def _of(values: Mapping[str, Enum], name: str, kind: type[_E]) -> _E | None:
    value = values.get(name)
    return value if isinstance(value, kind) else None


def _read(parameters: object) -> dict[str, Enum]:
    """Return what configuration of ours says. Raises `BadInput`.

    Who may say what takes from neighbours was asked when the claim was made, and what a claim says
    cannot be changed.
    """
    if not isinstance(parameters, dict):
        raise BadInput(f"its configuration for {DRIVER} is no object: {CONFIG_KIND} is meant")
    kind = parameters.get("apiVersion"), parameters.get("kind")
    if kind != (CONFIG_VERSION, CONFIG_KIND):
        raise BadInput(
            f"its configuration for {DRIVER} is {kind[0]} {kind[1]}: write apiVersion "
            f"{CONFIG_VERSION}, kind {CONFIG_KIND}"
        )
    values: dict[str, Enum] = {}
    for name, value in parameters.items():
        if name in ("apiVersion", "kind"):
            continue
        if name not in _WORDS:
            raise BadInput(f"{CONFIG_KIND}: {name!r} is not known: there are {', '.join(_WORDS)}")
        text = str(value).lower() if isinstance(value, bool) else value
        choices = {one.value: one for one in _WORDS[name]}
        if not isinstance(text, str) or text not in choices:
            raise BadInput(f"{CONFIG_KIND}: {name} {value!r} is none of {', '.join(choices)}")
        values[name] = choices[text]
    return values


def _piece(offer: Offer, device: Device, consumed: Amounts, policy: Policy) -> DeviceAllocation:
    """Return the piece of a device that one result is."""
    made = _all_of(device)
    if offer.template is not None:
        template = offer.template
        takes = {**template.takes, SLOTS: 1}
        return evolve(made, takes=takes, template=template.name, part=template.part)
    if not offer.shared:
        return made
    plain = {name.removeprefix(f"{DRIVER}/"): amount for name, amount in consumed.items()}
    amounts = {name: quantity(plain, name) for name in CAPACITIES}
    if None in amounts.values():
        raise BadInput(
            f"device {offer.name} is shared and the allocation does not say how much of it is "
            "consumed: is DRAConsumableCapacity on in kube-scheduler?"
        )
    whole = published(device)
    takes = {of: amounts[name] or 0 for name, of in CAPACITIES.items()}
    for name, of in CAPACITIES.items():
        if takes[of] == whole[name]:  # the rest below a step is its, too
            takes[of] = device.capacity[of]
    core = takes[CORE]
    if following(policy) in device.capacity:
        takes[following(policy)] = 1
    return evolve(made, takes=takes, core=core if 0 < core < device.of_card(CORE) else None)


def _all_of(device: Device) -> DeviceAllocation:
    return DeviceAllocation(device=device.uuid, vendor=device.vendor, takes=device.capacity)


def _sum(
    device: Device, held: DeviceAllocation | None, other: DeviceAllocation
) -> DeviceAllocation:
    """Return both pieces of a device as one."""
    if held is None:
        return other
    if other.template is not None:
        raise BadInput(f"it was allocated two parts of device {device.uuid}: ask for a larger one")
    takes = {name: held.takes.get(name, 0) + amount for name, amount in other.takes.items()}
    for policy in Policy:
        if following(policy) in takes:
            takes[following(policy)] = 1
    limited = held.core is not None and other.core is not None
    core = takes[CORE] if limited and takes[CORE] < device.of_card(CORE) else None
    return evolve(held, takes=takes, core=core)


def _expect_several(pieces: list[DeviceAllocation], devices: Mapping[str, Device]) -> None:
    """Raise `BadInput` for shares of several devices that are only given whole together."""
    for piece in pieces if len(pieces) > 1 else ():
        device = devices[piece.device]
        grains = device.granularity
        whole = isinstance(grains, Fractional) and grains.multi is MultiDevice.WHOLE
        if whole and not piece.is_whole(device):
            raise BadInput(
                f"it has shares of {len(pieces)} devices, and several {device.model} are given "
                "whole: ask for all of each, or for one"
            )
