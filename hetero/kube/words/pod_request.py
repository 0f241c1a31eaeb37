"""Reads the request of a pod: resources and annotations by the names that vendors declare."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from hashlib import sha256
from typing import Any, TypeVar

from attrs import evolve, field, frozen

from hetero.kube.objects.kinds import Amounts, Container, Pod
from hetero.kube.words.annotations import read_note
from hetero.kube.words.host import pod_host
from hetero.kube.words.quantity import bytes_of, quantity
from hetero.model import (
    Ask,
    CoTenancy,
    Enforcement,
    OnBypass,
    OnExcess,
    Policy,
    Priority,
    Request,
    Selector,
    Truth,
)
from hetero.model.errors import BadInput
from hetero.model.units import GiB, KiB, MiB, parse_count
from hetero.node.ledger.grant_file import MAX_DEVICES
from hetero.placement.cluster import PlacedContainer, PlacedPod
from hetero.placement.placement_policy import CardKey, PlacementChain
from hetero.plugin.resource_names import (
    DeviceChoice,
    LimiterVariables,
    Policies,
    QosClasses,
    ResourceNames,
)
from hetero.plugin.vendor import Vendor

#: How nodes are chosen: `fragmentation`, `binpack` or `spread`. Our own name comes first.
NODE_PLACEMENT = ("hetero.io/node-placement", "hami.io/node-scheduler-policy")
#: How devices are chosen, of any vendor: `binpack` or `spread`, with `numa`, `mutex` and
#: `topology-aware`.
DEVICE_PLACEMENT = "hetero.io/device-placement"
#: The same in HAMi's words, where `binpack`, `spread` and `numa` are keys that devices are compared
#: by, in this order. The name is a pattern, since HAMi calls all devices what one kind of them is
#: called.
HAMI_DEVICE_PLACEMENT = "hami.io/?pu-scheduler-policy"
#: How much slots, core and memory of a device count there: `slot=1,core=1,memory=3`.
HAMI_WEIGHTS = "hami.io/device-scoring-weights"
#: What becomes of core time: `fixed`, `elastic` (idle time is lent) or `off` (no limiter).
POLICY = "hetero.io/policy"
#: What becomes of memory that a limiter did not count (`report`, `refuse` or `kill`), and of
#: programs without a limiter (`report` or `kill`).
ON_EXCESS, ON_BYPASS = "hetero.io/on-excess", "hetero.io/on-bypass"
#: `true` hides functions of the driver that the limiter does not know; else `false`.
STRICT = "hetero.io/strict"
#: How a share is to be held: `hard` for slices that are cut, `soft` for shares that a limiter
#: holds. Without it any card serves.
SLICES = "hetero.io/slices"
#: By what the programs on its card are to share it: `time` for time slices, `mps` for a service
#: of the vendor.
SHARING = "hetero.io/sharing"
#: What init containers ask of each card, where kubelets before 1.31 would refuse the pod for it:
#: they take it for their own to give. The webhook moves it here: resources by container.
INIT_PARTS = "hetero.io/init-parts"

#: What asks for the cluster's own way in so many words.
_DEFAULT = "default"
#: HAMi's names of what a card's weights are for, and ours.
_WEIGHT_NAMES = {"slot": "slots", "core": "core", "memory": "memory"}
#: Containers that ask alike are read once, until so many others were.
_MOST_READ = 4096
#: Names in a list of models or UUIDs, and its characters.
_MOST_NAMES, _MOST_LIST_CHARACTERS = 64, 4096
#: Containers of a pod that may ask for cards.
_MOST_ASKING_CONTAINERS = 32
#: And so many annotations, each of which is looked at for each of them.
_MOST_NOTES = 1000


class _Sharing(Enum):
    """One after the other, or at the same time through a service of the vendor's."""

    TIME = "time"
    MPS = "mps"


class _Slices(Enum):
    """Slices that are cut from a card, or shares of it that a limiter holds."""

    HARD = "hard"
    SOFT = "soft"


#: A service cuts nothing, and a pod that may be given to one needs a right: it has its own word.
_ENFORCEMENTS = {
    _Slices.HARD: (Enforcement.KERNEL, Enforcement.PARTITION),
    _Slices.SOFT: (Enforcement.PRELOAD,),
}
#: What a variable of another limiter may say of memory: a number, decimal or hexadecimal, and its
#: unit (HAMi-core 8f3a89c, src/multiprocess/multiprocess_memory_limit.c).
_LIMIT = re.compile(r"(0[xX][0-9a-fA-F]{1,16}|[1-9][0-9]{0,18})([kKmMgG]?)")
#: More bytes than any card has.
_LARGEST_LIMIT = 2**63
_LIMIT_UNITS = {"": 1, "k": KiB, "m": MiB, "g": GiB}
#: What Go's `strconv.ParseBool` takes for true.
_TRUE = ("1", "t", "T", "TRUE", "true", "True")
_T = TypeVar("_T")
_E = TypeVar("_E", bound=Enum)


@frozen(kw_only=True)
class Defaults:
    """The defaults of a request: cards, bytes and percent of each, and a policy.

    A `count` of 0: a size without a number of cards asks for none. `unlimited` counts core but
    limits nobody to it, `high_unlimited` those alone that go first. `whole_exclusive`: who asks for
    no core and for all memory of a card, or for no size of it, has the card alone.
    """

    count: int = 1
    memory: int | None = None
    core: int | None = None
    policy: Policy = Policy.FIXED
    unlimited: bool = False
    high_unlimited: bool = False
    whole_exclusive: bool = False


@frozen(kw_only=True)
class ContainerRequest:
    """The request of one container, and its resource names; `unlimited` as in `Defaults`.

    `off_variable` is the container's variable by which it is to run without a limiter, if that
    alone says so. `ineffective_variables` are those of its variables that change nothing.
    """

    container: str
    resource_names: ResourceNames
    count: int
    request: Request
    unlimited: bool
    off_variable: str | None = None
    ineffective_variables: tuple[str, ...] = ()


@frozen(kw_only=True)
class PodRequest:
    """The request of a pod.

    `pod` is its form for the packing core: its first container has the host requests of the pod.
    `asking` are its containers that ask for devices. `unlimited` are those without a core limit, as
    in `Defaults`. Nodes and devices are chosen by the placements; None: by those of the cluster.
    Devices are compared by `placement_chain` where there is one; without keys it compares by those
    of the cluster's placement.
    """

    pod: PlacedPod
    asking: frozenset[str]
    unlimited: frozenset[str]
    node_placement: str | None
    device_placement: str | None
    placement_chain: PlacementChain | None = None

    @property
    def devices(self) -> bool:
        """Whether it asks for any device."""
        return bool(self.asking)


@frozen(kw_only=True)
class Vocabulary:
    """All resource and annotation names with a meaning in this cluster."""

    vendors: tuple[Vendor, ...]
    defaults: Defaults = field(default=Defaults())
    _spoken: tuple[tuple[frozenset[str], ResourceNames, Vendor], ...] = field(init=False)
    _resources: frozenset[str] = field(init=False)
    _size_resources: frozenset[str] = field(init=False)  # those that are no counts of cards
    #: What containers asked, by a digest of all that says so, which may be megabytes of a pod's
    #: annotations and variables: most pods of a cluster are like another.
    _read: dict[bytes, ContainerRequest | None] = field(
        init=False, factory=dict, eq=False, repr=False
    )

    def __attrs_post_init__(self) -> None:
        known_names = tuple(
            (frozenset(resource_names.resources), resource_names, vendor)
            for vendor in self.vendors
            for resource_names in vendor.resource_names
        )
        resources = frozenset[str]().union(*(resources for resources, _, _ in known_names))
        count_names = {resource_names.count for _, resource_names, _ in known_names}
        object.__setattr__(self, "_spoken", known_names)
        object.__setattr__(self, "_size_resources", resources - count_names)
        object.__setattr__(self, "_resources", resources)

    @property
    def resources(self) -> frozenset[str]:
        """Every resource name with a meaning."""
        return self._resources

    @property
    def size_resources(self) -> frozenset[str]:
        """Those that are sizes and not counts of cards: no device plugin publishes them."""
        return self._size_resources

    def asked(self, pod: Pod) -> tuple[ContainerRequest, ...]:
        """Return the requests of a pod's containers, init containers last. Raises `BadInput`."""
        annotations, init_containers = pod.metadata.annotations, pod.spec.init_containers
        containers = (*pod.spec.containers, *init_containers)
        asking_containers = [
            (container, amounts) for container in containers if (amounts := self._names(container))
        ]
        # Before any of it is read: the API server asks before it has looked at how much there is.
        if len(asking_containers) > _MOST_ASKING_CONTAINERS:
            raise BadInput(
                f"{len(asking_containers)} containers ask for cards: "
                f"at most {_MOST_ASKING_CONTAINERS} of a pod may"
            )
        if asking_containers and len(annotations) > _MOST_NOTES:
            raise BadInput(
                f"{len(annotations)} annotations: a pod that asks for cards may have {_MOST_NOTES}"
            )
        parts_by_container, asked_list = _noted(annotations) if asking_containers else {}, []
        init_names = [container.name for container in init_containers]
        for container, amounts in asking_containers:
            # Anybody may have written the note: it only adds what the container itself leaves out.
            added_parts = (
                parts_by_container.get(container.name, {}) if container.name in init_names else {}
            )
            init_parts = {
                resource_name: added_parts[resource_name]
                for resource_name in self._size_resources.intersection(added_parts)
            }
            try:
                container_request = self._asked(container, {**init_parts, **amounts}, annotations)
            except BadInput as error:
                raise BadInput(f"container {container.name}: {error}") from None
            if container_request is not None:
                asked_list.append(container_request)
        return tuple(asked_list)

    def pod_request(
        self, pod: Pod, uuids_by_container: Mapping[str, Sequence[str]] | None = None
    ) -> PodRequest | None:
        """Return the request of a pod, None if it names none of our resources. Raises `BadInput`.

        A pod that counts 0 devices asks for a node and none of its devices. `uuids_by_container`
        has the UUIDs of the devices that containers hold already, and so ask for.
        """
        container_requests = self.asked(pod)
        if not container_requests and not any(map(self._names, pod.spec.containers)):
            return None
        uuids_of = uuids_by_container or {}
        requests = {
            container_request.container: _pinned(
                container_request.request, uuids_of.get(container_request.container, ())
            )
            for container_request in container_requests
        }
        spec, annotations = pod.spec, pod.metadata.annotations

        def containers(
            group: Iterable[Container], host: Mapping[str, int] | None = None
        ) -> tuple[PlacedContainer, ...]:
            placed_containers = [
                PlacedContainer(request=requests.get(container.name)) for container in group
            ]
            if host:
                placed_containers[0] = evolve(placed_containers[0], host=host)
            return tuple(placed_containers)

        placements = names(annotations.get(DEVICE_PLACEMENT))
        return PodRequest(
            pod=PlacedPod(
                name=pod.metadata.name,
                namespace=pod.metadata.namespace or "default",
                containers=containers(spec.containers, pod_host(pod)),
                init=containers(
                    container for container in spec.init_containers if not container.is_sidecar
                ),
                sidecars=containers(
                    container for container in spec.init_containers if container.is_sidecar
                ),
                priority=spec.priority,
            ),
            asking=frozenset(requests),
            unlimited=frozenset(
                container_request.container
                for container_request in container_requests
                if container_request.unlimited
            ),
            node_placement=_first(annotations, NODE_PLACEMENT),
            device_placement=next(
                (policy_name for policy_name in placements if policy_name in ("binpack", "spread")),
                None,
            ),
            placement_chain=placement_chain(annotations),
        )

    def words_of_no_card(self, container: Container) -> tuple[str, ...]:
        """Return a container's counts of 0 cards, and its priorities of cards it does not ask for.

        No node is to count these. Raises `BadInput`.
        """
        amounts = self._names(container)
        count_names = (self._resources - self._size_resources).intersection(amounts)
        zero_names = {name for name in count_names if quantity(amounts, name) == 0}
        meant_names = {resource_names.priority for resource_names, _ in self._meant_names(amounts)}
        priority_names = {resource_names.priority for _, resource_names, _ in self._spoken}
        lone_names = (priority_names - meant_names).intersection(amounts)
        return tuple(sorted(name for name in zero_names | lone_names if name is not None))

    def _names(self, container: Container) -> Amounts:
        """Return the amounts of a container's resources, nothing if it names none of ours."""
        amounts = container.resources.amounts
        return {} if self._resources.isdisjoint(amounts) else amounts

    def _asked(
        self, container: Container, amounts: Amounts, annotations: Mapping[str, str]
    ) -> ContainerRequest | None:
        value_by_name = {variable.name: variable.value for variable in container.env}
        cache_inputs = (amounts, annotations, value_by_name)
        cache_key = sha256(repr((container.name, cache_inputs)).encode()).digest()
        if cache_key not in self._read:
            if len(self._read) >= _MOST_READ:
                self._read.clear()
            self._read[cache_key] = self._container(container.name, *cache_inputs)
        return self._read[cache_key]

    def _container(
        self,
        container_name: str,
        amounts: Amounts,
        annotations: Mapping[str, str],
        variables: Mapping[str, str | None],
    ) -> ContainerRequest | None:
        meant_names = self._meant_names(amounts)
        if not meant_names:
            return None
        if len(meant_names) > 1:
            count_names = " and ".join(resource_names.count for resource_names, _ in meant_names)
            raise BadInput(f"asks for {count_names}: a container has cards of one kind")
        resource_names, vendor = meant_names[0]
        is_alone = self._has_card_alone(resource_names, amounts)
        ask = self._ask(resource_names, amounts)
        if is_alone:
            ask = evolve(ask, core=None)
        device_count = _count(
            resource_names, ask, quantity(amounts, resource_names.count) or self.defaults.count
        )
        if device_count > MAX_DEVICES:
            raise BadInput(
                f"{resource_names.count} {device_count}: "
                f"a container has at most {MAX_DEVICES} cards"
            )
        _expect_no_contradiction(resource_names.choice, annotations)
        own_placements, hami_placements = _placements(annotations)
        placements = (*own_placements, *hami_placements)
        placement_chain(annotations)
        off_variable = _off_variable(resource_names.policies, variables, annotations)
        policy = (
            Policy.OFF
            if off_variable
            else self._policy(resource_names, {**variables, **annotations}, annotations.get(POLICY))
        )
        lowered_ask, ineffective_variables = _lowered(
            ask, device_count, resource_names.limiter_variables, variables
        )
        qos_class = _qos_class(resource_names, annotations, device_count)
        is_first_class = qos_class in resource_names.qos_classes.first
        has_priority = quantity(amounts, resource_names.priority) == 0 or is_first_class
        devices, choice = resource_names.devices, resource_names.choice
        names_slices = _names_slices(resource_names, annotations)
        return ContainerRequest(
            container=container_name,
            resource_names=resource_names,
            count=device_count,
            unlimited=policy is None or (has_priority and self.defaults.high_unlimited),
            off_variable=off_variable,
            ineffective_variables=ineffective_variables,
            request=Request(
                asks=(lowered_ask,) * device_count,
                exclusive=devices.whole or is_alone or ask.core == 100,
                empty="mutex" in placements,
                numa="numa" in own_placements or _true(annotations, choice.numa),
                links="topology-aware" in placements or _true(annotations, choice.links),
                policy=policy or Policy.FIXED,
                priority=Priority.HIGH if has_priority else Priority.LOW,
                vendor=Selector(include=(vendor.name,)),
                model=Selector(
                    include=_models(annotations, choice.include_model, choice)
                    or devices.models.include,
                    exclude=(
                        *_models(annotations, choice.exclude_model, choice),
                        *devices.models.exclude,
                    ),
                ),
                uuid=Selector(
                    include=names(annotations.get(choice.include_uuid or "")),
                    exclude=names(annotations.get(choice.exclude_uuid or "")),
                ),
                enforcement=_enforcement(resource_names, annotations),
                unpartitioned=not (devices.partitioned or names_slices),
                least=names_slices,
                co_tenancy=_co_tenancy(resource_names.qos_classes, qos_class),
                on_excess=_word(annotations, ON_EXCESS, OnExcess),
                on_bypass=_word(annotations, ON_BYPASS, OnBypass),
                strict=_word(annotations, STRICT, Truth) is Truth.TRUE,
            ),
        )

    def _meant_names(self, amounts: Amounts) -> list[tuple[ResourceNames, Vendor]]:
        """Return the names by which a container asks for cards. Raises `BadInput`.

        Without a number of cards they mean the default one, but where the container counts no cards
        of any name.
        """
        named_names = [
            (resource_names, vendor)
            for resources, resource_names, vendor in self._spoken
            if not resources.isdisjoint(amounts)
        ]
        counts = {
            resource_names.count: quantity(amounts, resource_names.count)
            for resource_names, _ in named_names
        }
        zero_names = sorted(count_name for count_name, count in counts.items() if count == 0)
        says_no_card = bool(zero_names) and not any(counts.values())
        default_count = 0 if says_no_card else self.defaults.count
        meant_names = [
            (resource_names, vendor)
            for resource_names, vendor in named_names
            if (default_count if (count := counts[resource_names.count]) is None else count)
        ]
        _expect_cards_for_sizes(
            named_names, meant_names, amounts, no_card_name=zero_names[0] if says_no_card else None
        )
        return meant_names

    def lone_sizes(self, container: Container) -> tuple[str, ...]:
        """Return a container's sizes where they mean no card: without a number, and by default 0.

        Raises `BadInput`.
        """
        amounts = self._names(container)
        return tuple(
            sorted(
                resource
                for resources, resource_names, _ in self._spoken
                if resource_names.count not in amounts and not self.defaults.count
                for resource in (resources - {resource_names.count}).intersection(amounts)
                if quantity(amounts, resource)
            )
        )

    def _has_card_alone(self, resource_names: ResourceNames, amounts: Amounts) -> bool:
        """Return whether the cluster gives a card alone to who asks for no less than all memory."""
        if not self.defaults.whole_exclusive or resource_names.memory_percent is None:
            return False
        if any(name in amounts for name in resource_names.core):
            return False
        percent = quantity(amounts, resource_names.memory_percent)
        if percent is not None:
            return percent == 100
        return not any(name in amounts for name in resource_names.memory)

    def _ask(self, resource_names: ResourceNames, amounts: Amounts) -> Ask:
        if resource_names.devices.shape is not None:
            return Ask(shape=resource_names.devices.shape)
        sizes_bytes = (
            bytes_of(amounts, resource_name, resource_names.memory_unit)
            for resource_name in resource_names.memory
        )
        memory_bytes = next((size for size in sizes_bytes if size), None)
        memory_percent = quantity(amounts, resource_names.memory_percent) or None
        core_amounts = (quantity(amounts, resource_name) for resource_name in resource_names.core)
        core_amount = next(filter(None, core_amounts), None)
        if core_amount is not None and core_amount > resource_names.core_whole:
            raise BadInput(
                f"{resource_names.core[0]} {core_amount} is more than a card has: "
                f"it is at most {resource_names.core_whole}, per card"
            )
        if memory_percent is not None and memory_percent > 100:
            raise BadInput(
                f"{resource_names.memory_percent} {memory_percent} is over 100 percent of a card"
            )
        if memory_bytes is None and memory_percent is None:
            memory_bytes = self.defaults.memory
        if memory_bytes is not None:  # who says both means the size, as HAMi reads it
            memory_percent = None
        return Ask(
            memory=memory_bytes,
            memory_percent=memory_percent,
            core=core_amount or self.defaults.core,
            core_of=resource_names.core_whole if core_amount else 100,
        )

    def _policy(
        self,
        resource_names: ResourceNames,
        values: Mapping[str, str | None],
        annotation_text: str | None,
    ) -> Policy | None:
        """Return the container's policy, None if nobody is to hold it to its core."""
        if annotation_text is not None:
            if annotation_text not in [policy.value for policy in Policy]:
                raise BadInput(f"{POLICY} {annotation_text!r} is not fixed, elastic or off")
            return Policy(annotation_text)
        default = None if self.defaults.unlimited else self.defaults.policy
        meanings = {_DEFAULT: default, **resource_names.policies.values}
        return _said(values, resource_names.policies.name, meanings)


def placement_chain(annotations: Mapping[str, str]) -> PlacementChain | None:
    """Return the order of cards that a pod says in HAMi's words, None if it says none.

    Raises `BadInput` for weights that say none.
    """
    own_placements, hami_placements = _placements(annotations)
    weights_text = annotations.get(HAMI_WEIGHTS)
    if own_placements or not (hami_placements or weights_text is not None):
        return None
    known_names = [key.value for key in CardKey]
    keys = tuple(CardKey(name) for name in dict.fromkeys(hami_placements) if name in known_names)
    if hami_placements and not keys:  # filters alone
        keys = (CardKey.SPREAD,)
    if len(hami_placements) == 1 and CardKey.NUMA not in keys:  # one word is no chain
        keys = (*keys, CardKey.NUMA)
    return PlacementChain(
        keys=keys, **({} if weights_text is None else _card_weights(weights_text))
    )


def _placements(annotations: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return how devices are chosen in our words, and in HAMi's where there are none of ours."""
    own_placements = names(annotations.get(DEVICE_PLACEMENT))
    if own_placements:
        return own_placements, ()
    return (), names(_first(annotations, (HAMI_DEVICE_PLACEMENT,)))


def _card_weights(weights_text: str) -> dict[str, int]:
    """Return the weights in `slot=1,core=1,memory=3`. Raises `BadInput`, as HAMi refuses it."""
    parts = [part.partition("=") for part in weights_text.split(",")]
    weight_by_name = {
        name.strip(): int(text)
        for name, _, text in parts
        if re.fullmatch(r"\s*\+?[0-9]{1,9}\s*", text)
    }
    if (
        len(parts) != len(_WEIGHT_NAMES)
        or weight_by_name.keys() != _WEIGHT_NAMES.keys()
        or not any(weight_by_name.values())
    ):
        raise BadInput(
            f"{HAMI_WEIGHTS} {weights_text[:100]!r} is no weights: write whole numbers of slot, "
            "core and memory, not all 0, as slot=1,core=1,memory=3"
        )
    return {_WEIGHT_NAMES[name]: weight for name, weight in weight_by_name.items()}


def _expect_cards_for_sizes(
    named_names: Iterable[tuple[ResourceNames, Vendor]],
    meant_names: Iterable[tuple[ResourceNames, Vendor]],
    amounts: Amounts,
    *,
    no_card_name: str | None,
) -> None:
    """Raise `BadInput` for a part of a card beside 0 cards: no node has it to give.

    `no_card_name` is the resource by which a container says that it wants no card of any kind.
    """
    meant_resources = {
        resource_name
        for resource_names, _ in meant_names
        for resource_name in resource_names.resources
    }
    for resource_names, _ in named_names:
        count_name = resource_names.count
        zero_name = count_name if count_name in amounts else no_card_name
        if count_name in meant_resources or zero_name is None:
            continue
        for part_name in resource_names.sizes:
            if part_name not in meant_resources and quantity(amounts, part_name):
                raise BadInput(
                    f"{zero_name} is 0, and {part_name} {amounts[part_name]} is a part "
                    f"of a card: leave {part_name} out for no card, or ask for {count_name} 1"
                )


def expect_no_size_in_annotations(
    vocabulary: Vocabulary,
    container_requests: Iterable[ContainerRequest],
    annotations: Mapping[str, str],
) -> None:
    """Raise `BadInput` for a resource that a pod's annotations name, where it means nothing.

    Any vendor's counts, and any of its names: a user may know another one than the pod asks by.
    """
    known_names = {
        resource_name
        for vendor in vocabulary.vendors
        for resource_names in vendor.resource_names
        for resource_name in resource_names.resources
    }
    for container_request in container_requests:
        for resource_name in annotations:
            if resource_name in known_names:
                raise BadInput(
                    f"{resource_name} is among the pod's annotations, where it means nothing: "
                    f"write it to the limits of container {container_request.container}"
                )


def _enforcement(resource_names: ResourceNames, annotations: Mapping[str, str]) -> Selector:
    """Return which enforcements serve, by the resource's meaning and the pod's own words."""
    enforcements = _mode(resource_names, annotations) or resource_names.devices.enforcements
    slices, sharing = _word(annotations, SLICES, _Slices), _word(annotations, SHARING, _Sharing)
    if slices is None and sharing is None:
        return enforcements
    enforcements_asked = _ENFORCEMENTS[slices] if slices else tuple(Enforcement)
    if sharing:
        is_mps = sharing is _Sharing.MPS
        enforcements_asked = tuple(
            kind for kind in enforcements_asked if (kind is Enforcement.SERVICE) == is_mps
        )
    allowed_kinds = tuple(
        kind.value for kind in enforcements_asked if enforcements.allows(kind.value, all_of_it=True)
    )
    if not allowed_kinds:
        reason = f"{SLICES} {slices.value}" if slices else f"{SHARING} {annotations[SHARING]}"
        raise BadInput(f"{reason}: no {resource_names.count} is shared so")
    return Selector(include=allowed_kinds)


def _names_slices(resource_names: ResourceNames, annotations: Mapping[str, str]) -> bool:
    """Return whether the pod says that it is to have parts of cards that are cut, or none."""
    by_mode = _mode(resource_names, annotations) is not None
    return by_mode or _word(annotations, SLICES, _Slices) is not None


def _mode(resource_names: ResourceNames, annotations: Mapping[str, str]) -> Selector | None:
    """Return which enforcements the vendor's own word chooses, None without it."""
    modes = resource_names.modes
    is_other = modes.name not in annotations and modes.other_name in annotations
    return _said(annotations, modes.other_name if is_other else modes.name, modes.values)


def _off_variable(
    policies: Policies, variables: Mapping[str, str | None], annotations: Mapping[str, str]
) -> str | None:
    """Return the variable by which a container is to run without a limiter, None if none does.

    Our own annotation counts more. A value that is not known is none, as for HAMi.
    """
    variable = policies.unlimited
    if variable is None or POLICY in annotations or variables.get(variable) not in _TRUE:
        return None
    return variable


def _lowered(
    ask: Ask,
    device_count: int,
    limiter_variables: LimiterVariables,
    variables: Mapping[str, str | None],
) -> tuple[Ask, tuple[str, ...]]:
    """Return an ask with the memory that a container's variables leave of it.

    Also the variables that change nothing: what would raise the memory, or lower one that is no
    number of bytes, or that of some cards alone. All cards of a container have as much.
    """
    name = limiter_variables.memory
    if name is None:
        return ask, ()
    limit_by_variable = {
        variable: limit_bytes
        for variable in (name, *(f"{name}_{position}" for position in range(device_count)))
        if (limit_bytes := _limit_bytes(variables.get(variable)))
    }
    read_names = [
        of_card if (of_card := f"{name}_{position}") in limit_by_variable else name
        for position in range(device_count)
    ]
    lowest_for_all_bytes = max(
        limit_by_variable.get(variable, _LARGEST_LIMIT) for variable in read_names
    )
    if ask.memory is None or lowest_for_all_bytes >= ask.memory:
        return ask, tuple(limit_by_variable)
    effective_names = {
        variable for variable in read_names if limit_by_variable[variable] == lowest_for_all_bytes
    }
    return (
        evolve(ask, memory=lowest_for_all_bytes),
        tuple(variable for variable in limit_by_variable if variable not in effective_names),
    )


def _limit_bytes(limit_text: str | None) -> int | None:
    """Return the bytes that a variable of another limiter names, None if it names none."""
    match = _LIMIT.fullmatch(limit_text or "")
    if match is None:
        return None
    return int(match[1], 0) * _LIMIT_UNITS[match[2].lower()] or None


def _word(annotations: Mapping[str, str], annotation: str, choices: type[_E]) -> _E | None:
    """Return the choice in an annotation, None without the annotation. Raises `BadInput`."""
    annotation_text = annotations.get(annotation)
    if annotation_text is None:
        return None
    for choice in choices:
        if annotation_text == choice.value:
            return choice
    choice_list = ", ".join(str(choice.value) for choice in choices)
    raise BadInput(f"{annotation} {annotation_text!r} is none of {choice_list}")


def _noted(annotations: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the annotated requests of init containers. Raises `BadInput`."""
    try:
        init_parts = read_note(INIT_PARTS, annotations.get(INIT_PARTS) or "{}")
        return {
            str(container): {str(resource): str(amount) for resource, amount in parts.items()}
            for container, parts in init_parts.items()
        }
    except AttributeError:
        raise BadInput(f"{INIT_PARTS} is no table of resources: leave it out") from None


def _pinned(request: Request, uuids: Sequence[str]) -> Request:
    """Return the request for these devices; unchanged if their number differs from its asks."""
    if len(uuids) != len(request.asks):
        return request
    asks = (evolve(ask, device=uuid) for ask, uuid in zip(request.asks, uuids, strict=True))
    return evolve(request, asks=tuple(asks), unpartitioned=False)


def _count(resource_names: ResourceNames, ask: Ask, device_count: int) -> int:
    """Return the number of cards asked: whole cards come in modules."""
    module_cards = resource_names.devices.module
    parse_count(str(device_count), of=resource_names.count)
    if module_cards == 1 or (device_count == 1 and ask != Ask()):
        return device_count
    if device_count != 1 and device_count % module_cards:
        raise BadInput(
            f"{resource_names.count} {device_count}: cards come in modules of {module_cards}, "
            f"so ask for a multiple of {module_cards} (1 means one module)"
        )
    return max(device_count, module_cards)


def _qos_class(
    resource_names: ResourceNames, annotations: Mapping[str, str], device_count: int
) -> str:
    """Return the class of the pod, "" if it is in none."""
    classes = resource_names.qos_classes
    qos_class = annotations.get(classes.name or "", "")
    if qos_class not in classes.compatible and qos_class:
        known_classes = _list(classes.compatible)
        raise BadInput(f"{classes.name} {qos_class!r} is none of {known_classes}")
    if qos_class and device_count != 1:
        raise BadInput(
            f"{resource_names.count} {device_count}: a pod with {classes.name} has one card"
        )
    return qos_class


def _co_tenancy(classes: QosClasses, qos_class: str) -> tuple[CoTenancy, ...]:
    """Return the co-tenancy of a QoS class: the classes that it may share cards with."""
    if classes.name is None:
        return ()
    return (
        CoTenancy(
            key=classes.name,
            value=qos_class,
            compatible_with=classes.compatible[qos_class],
        ),
    )


def _said(
    annotations: Mapping[str, Any], annotation: str | None, meanings: Mapping[str, _T]
) -> _T | None:
    """Return the meaning of an annotation; without a value, the default."""
    annotation_text = (annotations.get(annotation) if annotation else None) or _DEFAULT
    if annotation_text not in meanings and annotation_text != _DEFAULT:
        raise BadInput(f"{annotation} {annotation_text!r} is none of {_list(meanings)}")
    return meanings.get(annotation_text)


def _list(texts: Iterable[str]) -> str:
    return ", ".join(sorted(filter(None, texts)))


def names(list_text: str | None) -> tuple[str, ...]:
    """Return the names in a list separated by commas. Raises `BadInput` for too many.

    Each is compared with each device of the cluster.
    """
    name_list = tuple(part.strip() for part in (list_text or "").split(",") if part.strip())
    if len(name_list) > _MOST_NAMES or len(list_text or "") > _MOST_LIST_CHARACTERS:
        raise BadInput(
            f"a list of {len(name_list)} names, {len(list_text or '')} characters: "
            f"at most {_MOST_NAMES} "
            f"names, {_MOST_LIST_CHARACTERS} characters"
        )
    return name_list


def _first(annotations: Mapping[str, str], patterns: Iterable[str]) -> str | None:
    if not annotations:
        return None
    annotation_texts = (
        annotations[annotation]
        for pattern in patterns
        for annotation in fnmatch.filter(sorted(annotations), pattern)
    )
    return next(filter(None, annotation_texts), None)


def _models(
    annotations: Mapping[str, str], annotation: str | None, choice: DeviceChoice
) -> tuple[str, ...]:
    """Return the models an annotation lists, spelt as the driver does."""
    model_list = (annotations.get(annotation) if annotation else None) or ""
    for foreign_name, own_name in choice.spelling.items():
        model_list = re.sub(re.escape(foreign_name), own_name, model_list, flags=re.IGNORECASE)
    return names(model_list)


def _expect_no_contradiction(choice: DeviceChoice, annotations: Mapping[str, str]) -> None:
    """Raise `BadInput` if annotations choose and exclude the same."""
    contradictory_pairs = (
        (choice.include_model, choice.exclude_model),
        (choice.include_uuid, choice.exclude_uuid),
    )
    for include, exclude in contradictory_pairs:
        contradiction = set(names(annotations.get(include or ""))) & set(
            names(annotations.get(exclude or ""))
        )
        if contradiction:
            raise BadInput(
                f"{include} and {exclude} both name {min(contradiction)}: leave one of them out"
            )


def _true(annotations: Mapping[str, str], annotation: str | None) -> bool:
    return annotation is not None and annotations.get(annotation, "").lower() == "true"
