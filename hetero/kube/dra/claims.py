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
    MEMORY,
    SLOTS,
    Allocation,
    Counters,
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
    return [result for result in claim.status.allocation.devices.results if result.driver == DRIVER]


def prepared(claim: ResourceClaim, *, node_name: str, offers: Mapping[str, Offer]) -> Prepared:
    """Return what a claim holds of a node's devices, given what they offer.

    Raises `BadInput` or `NotFound` with the fault of the claim or its allocation.
    """
    results = results_of(claim)
    if not results:
        raise BadInput("it has no allocation of this driver's devices")
    for result in results:
        if result.pool != node_name:
            raise BadInput(
                f"it was allocated devices of node {result.pool}, and this is {node_name}"
            )
        if result.device not in offers:
            raise NotFound(f"device {result.device} is not on this node (any more)")
    access_kinds = {result.admin_access for result in results}
    if len(access_kinds) > 1:
        raise BadInput("some of its requests have adminAccess and some not: make two claims")
    config = config_of(claim.status.allocation.devices.config, results)
    policy = config.policy
    pieces: dict[str, DeviceAllocation] = {}
    devices: dict[str, Device] = {}
    for result in results:
        offer = offers[result.device]
        for device in offer.devices:
            devices[device.uuid] = device
            if access_kinds == {True}:
                pieces[device.uuid] = _all_of(device)
                continue
            piece = _piece(offer, device, result.consumed_capacity, policy)
            pieces[device.uuid] = _sum(device, pieces.get(device.uuid), piece)
    _expect_several(list(pieces.values()), devices)
    allocation = evolve(config, pieces=tuple(pieces.values()))
    return Prepared(
        admin=access_kinds == {True},
        allocation=allocation,
        results=tuple(
            Result(request=result.request, device=result.device, share=result.share_id)
            for result in results
        ),
    )


def taken(device: Device, consumed_amounts: Amounts) -> Counters:
    """Return what a claim takes of a device of which it consumes this, as far as slices tell.

    Raises `BadInput`.
    """
    offer = Offer(name=device.uuid, devices=(device,))
    return _piece(offer, device, consumed_amounts, Policy.FIXED).takes


def used_by(pod: Pod) -> dict[str, str]:
    """Return the claims that a pod uses, by the pod's names for them.

    The claim that kube-scheduler made for its extended resources has the name "".
    """
    status = pod.status
    pod_claims = [
        *(
            (pod_claim.name, pod_claim.resource_claim_name)
            for pod_claim in pod.spec.resource_claims
        ),
        *(
            (claim_status.name, claim_status.resource_claim_name)
            for claim_status in status.resource_claim_statuses
        ),
        ("", status.extended_resource_claim_status.resource_claim_name),
    ]
    return {pod_claim: claim for pod_claim, claim in pod_claims if claim}


def other_claims(pod: Pod, claim_name: str) -> dict[str, str]:
    """Return the claims that containers use together with one of their pod's, and which do."""
    user_of: dict[str, str] = {}
    for container, claim_names in _by_container(pod):
        if claim_name in claim_names:
            user_of |= dict.fromkeys(claim_names - {claim_name}, container.name)
    return user_of


def users(pod: Pod, claim_name: str) -> Iterator[Container]:
    """Yield the containers of a pod that use one of its claims by name."""
    return (container for container, claim_names in _by_container(pod) if claim_name in claim_names)


def _by_container(pod: Pod) -> Iterator[tuple[Container, set[str]]]:
    """Yield each container of a pod with the claims that it uses."""
    claim_by_pod_claim = used_by(pod)
    extended_claim = pod.status.extended_resource_claim_status
    served_containers = {mapping.container_name for mapping in extended_claim.request_mappings}
    for container in pod.containers:
        pod_claims = [claim.name for claim in container.resources.claims]
        pod_claims += [""] if container.name in served_containers else []
        yield (
            container,
            {
                claim_by_pod_claim[pod_claim]
                for pod_claim in pod_claims
                if pod_claim in claim_by_pod_claim
            },
        )


def config_of(configs: Iterable[DeviceConfig], results: Iterable[DeviceResult] = ()) -> Allocation:
    """Return an allocation without pieces, enforced as a claim's configuration requires.

    The claim's configuration goes before that of its DeviceClass. `results` are those of the claim,
    where it has any. Raises `BadInput`.
    """
    value_by_word: dict[str, Enum] = {}
    request_names = {result.request.partition("/")[0] for result in results}
    for config in sorted(configs, key=lambda config: config.source != "FromClass"):
        if config.opaque.driver != DRIVER:
            continue
        meant_requests = {
            request_name.partition("/")[0] for request_name in config.requests or request_names
        }
        if not request_names <= meant_requests:
            raise BadInput(
                "its configuration is for some of its requests: a claim is one grant, so write it "
                "for all of them, or make two claims"
            )
        value_by_word |= _read(config.opaque.parameters)
    allocation = Allocation(pieces=(), context=True)
    return evolve(
        allocation,
        policy=_of(value_by_word, "policy", Policy) or allocation.policy,
        priority=_of(value_by_word, "priority", Priority) or allocation.priority,
        on_excess=_of(value_by_word, "onExcess", OnExcess),
        on_bypass=_of(value_by_word, "onBypass", OnBypass),
        strict=_of(value_by_word, "strict", Truth) is Truth.TRUE,
    )


def _of(value_by_word: Mapping[str, Enum], word: str, value_type: type[_E]) -> _E | None:
    value = value_by_word.get(word)
    return value if isinstance(value, value_type) else None


def _read(parameters: object) -> dict[str, Enum]:
    """Return the values of a configuration of ours. Raises `BadInput`.

    The right to settings that take from neighbours was checked when the claim was made, and a
    claim's configuration cannot be changed.
    """
    if not isinstance(parameters, dict):
        raise BadInput(f"its configuration for {DRIVER} is no object: {CONFIG_KIND} is meant")
    version_and_kind = parameters.get("apiVersion"), parameters.get("kind")
    if version_and_kind != (CONFIG_VERSION, CONFIG_KIND):
        raise BadInput(
            f"its configuration for {DRIVER} is {version_and_kind[0]} {version_and_kind[1]}: "
            f"write apiVersion {CONFIG_VERSION}, kind {CONFIG_KIND}"
        )
    value_by_word: dict[str, Enum] = {}
    for word, value in parameters.items():
        if word in ("apiVersion", "kind"):
            continue
        if word not in _WORDS:
            raise BadInput(f"{CONFIG_KIND}: {word!r} is not known: there are {', '.join(_WORDS)}")
        value_text = str(value).lower() if isinstance(value, bool) else value
        choice_by_text = {choice.value: choice for choice in _WORDS[word]}
        if not isinstance(value_text, str) or value_text not in choice_by_text:
            raise BadInput(
                f"{CONFIG_KIND}: {word} {value!r} is none of {', '.join(choice_by_text)}"
            )
        value_by_word[word] = choice_by_text[value_text]
    return value_by_word


def _piece(
    offer: Offer, device: Device, consumed_amounts: Amounts, policy: Policy
) -> DeviceAllocation:
    """Return the piece of a device that one result is."""
    whole_piece = _all_of(device)
    if offer.template is not None:
        template = offer.template
        takes = {**template.takes, SLOTS: 1}
        return evolve(whole_piece, takes=takes, template=template.name, part=template.part)
    if not offer.shared:
        return whole_piece
    amount_by_capacity = {
        resource_name.removeprefix(f"{DRIVER}/"): amount
        for resource_name, amount in consumed_amounts.items()
    }
    consumed_by_capacity = {
        capacity_name: quantity(amount_by_capacity, capacity_name) for capacity_name in CAPACITIES
    }
    if None in consumed_by_capacity.values():
        raise BadInput(
            f"device {offer.name} is shared and the allocation does not say how much of it is "
            "consumed: is DRAConsumableCapacity on in kube-scheduler?"
        )
    published_amounts = published(device)
    takes = {
        counter: consumed_by_capacity[capacity] or 0 for capacity, counter in CAPACITIES.items()
    }
    for capacity, counter in CAPACITIES.items():
        if takes[counter] == published_amounts[capacity]:  # the rest below a step is its, too
            takes[counter] = device.capacity[counter]
    if takes[MEMORY] == device.capacity[MEMORY]:
        # Nobody else can be on the card, so it is counted as a pod's that has all of its memory.
        takes[SLOTS] = device.capacity[SLOTS]
        if takes[CORE] in (0, device.capacity[CORE]):
            return whole_piece
    core_units = takes[CORE]
    if following(policy) in device.capacity:
        takes[following(policy)] = 1
    return evolve(
        whole_piece, takes=takes, core=core_units if 0 < core_units < device.of_card(CORE) else None
    )


def _all_of(device: Device) -> DeviceAllocation:
    return DeviceAllocation(device=device.uuid, vendor=device.vendor, takes=device.capacity)


def _sum(
    device: Device, first_piece: DeviceAllocation | None, second_piece: DeviceAllocation
) -> DeviceAllocation:
    """Return both pieces of a device as one."""
    if first_piece is None:
        return second_piece
    if second_piece.template is not None:
        raise BadInput(f"it was allocated two parts of device {device.uuid}: ask for a larger one")
    takes = {
        counter: first_piece.takes.get(counter, 0) + amount
        for counter, amount in second_piece.takes.items()
    }
    for policy in Policy:
        if following(policy) in takes:
            takes[following(policy)] = 1
    is_limited = first_piece.core is not None and second_piece.core is not None
    core_units = takes[CORE] if is_limited and takes[CORE] < device.of_card(CORE) else None
    return evolve(first_piece, takes=takes, core=core_units)


def _expect_several(pieces: list[DeviceAllocation], devices: Mapping[str, Device]) -> None:
    """Raise `BadInput` for shares of several devices that are only given whole together."""
    for piece in pieces if len(pieces) > 1 else ():
        device = devices[piece.device]
        granularity = device.granularity
        is_whole_only = (
            isinstance(granularity, Fractional) and granularity.multi is MultiDevice.WHOLE
        )
        if is_whole_only and not piece.is_whole(device):
            raise BadInput(
                f"it has shares of {len(pieces)} devices, and several {device.model} are given "
                "whole: ask for all of each, or for one"
            )
