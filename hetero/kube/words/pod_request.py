"""Reads what a pod asks for: resources and annotations by the names that vendors declare."""

from __future__ import annotations

import fnmatch
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
from hetero.model.units import parse_count
from hetero.placement.cluster import PlacedContainer, PlacedPod
from hetero.plugin.resource_names import DeviceChoice, QosClasses, ResourceNames
from hetero.plugin.vendor import Vendor

#: How nodes are chosen: `fragmentation`, `binpack` or `spread`. Our own name comes first.
NODE_PLACEMENT = ("hetero.io/node-placement", "hami.io/node-scheduler-policy")
#: How devices are chosen, whoever made them: `fragmentation`, `binpack` or `spread`, with `numa`,
#: `mutex` and `topology-aware`. HAMi's name is a pattern, since it calls all devices what one kind
#: of them is called.
DEVICE_PLACEMENT = ("hetero.io/device-placement", "hami.io/?pu-scheduler-policy")
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
#: Containers that ask alike are read once, until so many others were.
_MOST_READ = 4096
#: Names in a list of models or UUIDs, and its characters.
_MOST_NAMES, _MOST_TEXT = 64, 4096
#: Containers of a pod that may ask for cards.
_MOST_ASKING = 32
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


_ENFORCEMENTS = {
    _Slices.HARD: (Enforcement.KERNEL, Enforcement.PARTITION, Enforcement.SERVICE),
    _Slices.SOFT: (Enforcement.PRELOAD,),
}
_T = TypeVar("_T")
_E = TypeVar("_E", bound=Enum)


@frozen(kw_only=True)
class Defaults:
    """What a pod gets that does not say: cards, bytes and percent of each, and a policy.

    `unlimited` counts core but does not hold anybody to it.
    """

    count: int = 1
    memory: int | None = None
    core: int | None = None
    policy: Policy = Policy.FIXED
    unlimited: bool = False


@frozen(kw_only=True)
class Asked:
    """What one container asks for, and by whose names; `unlimited` as in `Defaults`."""

    container: str
    resource_names: ResourceNames
    count: int
    request: Request
    unlimited: bool


@frozen(kw_only=True)
class PodRequest:
    """What a pod wants.

    `pod` is how the packing core sees it: what it requests of the host stands with its first
    container. `devices` is whether it wants any. `unlimited` are its containers without a core
    limit, as in `Defaults`. Nodes and devices are chosen by the placements; None: by the cluster's
    own.
    """

    pod: PlacedPod
    devices: bool
    unlimited: frozenset[str]
    node_placement: str | None
    device_placement: str | None


@frozen(kw_only=True)
class Vocabulary:
    """All names that mean something in this cluster."""

    vendors: tuple[Vendor, ...]
    defaults: Defaults = field(default=Defaults())
    _spoken: tuple[tuple[frozenset[str], ResourceNames, Vendor], ...] = field(init=False)
    _resources: frozenset[str] = field(init=False)
    _parts: frozenset[str] = field(init=False)  # of them, those that are not numbers of cards
    #: What containers asked, by a digest of all that says so, which may be megabytes of a pod's
    #: annotations and variables: most pods of a cluster are like another.
    _read: dict[bytes, Asked | None] = field(init=False, factory=dict, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        spoken = tuple(
            (frozenset(w.resources), w, v) for v in self.vendors for w in v.resource_names
        )
        names = frozenset[str]().union(*(names for names, _, _ in spoken))
        counts = {w.count for _, w, _ in spoken}
        object.__setattr__(self, "_spoken", spoken)
        object.__setattr__(self, "_parts", names - counts)
        object.__setattr__(self, "_resources", names)

    @property
    def resources(self) -> frozenset[str]:
        """Every resource name with a meaning."""
        return self._resources

    def asked(self, pod: Pod) -> tuple[Asked, ...]:
        """Return what the pod's containers ask of us, init containers last. Raises `BadInput`."""
        notes, init = pod.metadata.annotations, pod.spec.init_containers
        containers = (*pod.spec.containers, *init)
        asking = [(one, amounts) for one in containers if (amounts := self._names(one))]
        # Before any of it is read: the API server asks before it has looked at how much there is.
        if len(asking) > _MOST_ASKING:
            raise BadInput(
                f"{len(asking)} containers ask for cards: at most {_MOST_ASKING} of a pod may"
            )
        if asking and len(notes) > _MOST_NOTES:
            raise BadInput(
                f"{len(notes)} annotations: a pod that asks for cards may have {_MOST_NOTES}"
            )
        noted, requested = _noted(notes) if asking else {}, []
        init_names = [one.name for one in init]
        for container, amounts in asking:
            # Whoever wrote the note, it only adds to what the container itself leaves out.
            added = noted.get(container.name, {}) if container.name in init_names else {}
            parts = {name: added[name] for name in self._parts.intersection(added)}
            try:
                asked = self._asked(container, {**parts, **amounts}, notes)
            except BadInput as error:
                raise BadInput(f"container {container.name}: {error}") from None
            if asked is not None:
                requested.append(asked)
        return tuple(requested)

    def pod_request(
        self, pod: Pod, given: Mapping[str, Sequence[str]] | None = None
    ) -> PodRequest | None:
        """Return what the pod wants, None if it names none of our resources. Raises `BadInput`.

        One that counts 0 devices wants a node and none of its devices. `given` are the UUIDs of
        the devices that containers hold already, and so ask for.
        """
        asked = self.asked(pod)
        if not asked and not any(map(self._names, pod.spec.containers)):
            return None
        held = given or {}
        requests = {
            one.container: _pinned(one.request, held.get(one.container, ())) for one in asked
        }
        spec, notes = pod.spec, pod.metadata.annotations

        def containers(
            some: Iterable[Container], host: Mapping[str, int] | None = None
        ) -> tuple[PlacedContainer, ...]:
            made = [PlacedContainer(request=requests.get(one.name)) for one in some]
            if host:
                made[0] = evolve(made[0], host=host)
            return tuple(made)

        placements = names(_first(notes, DEVICE_PLACEMENT))
        return PodRequest(
            pod=PlacedPod(
                name=pod.metadata.name,
                namespace=pod.metadata.namespace or "default",
                containers=containers(spec.containers, pod_host(pod)),
                init=containers(one for one in spec.init_containers if not one.is_sidecar),
                sidecars=containers(one for one in spec.init_containers if one.is_sidecar),
                priority=spec.priority,
            ),
            devices=bool(asked),
            unlimited=frozenset(one.container for one in asked if one.unlimited),
            node_placement=_first(notes, NODE_PLACEMENT),
            device_placement=next(
                (name for name in placements if name in ("binpack", "spread")), None
            ),
        )

    def _names(self, container: Container) -> Amounts:
        """Return the amounts of a container's resources, nothing if it names none of ours."""
        amounts = container.resources.amounts
        return {} if self._resources.isdisjoint(amounts) else amounts

    def _asked(
        self, container: Container, amounts: Amounts, notes: Mapping[str, str]
    ) -> Asked | None:
        variables = {one.name: one.value for one in container.env}
        inputs = (amounts, notes, variables)
        key = sha256(repr((container.name, inputs)).encode()).digest()
        if key not in self._read:
            if len(self._read) >= _MOST_READ:
                self._read.clear()
            self._read[key] = self._container(container.name, *inputs)
        return self._read[key]

    def _container(
        self,
        name: str,
        amounts: Amounts,
        notes: Mapping[str, str],
        variables: Mapping[str, str | None],
    ) -> Asked | None:
        spoken = [(w, v) for names, w, v in self._spoken if not names.isdisjoint(amounts)]
        meant = [(w, v) for w, v in spoken if quantity(amounts, w.count) or w.count not in amounts]
        if not meant:
            return None  # counts are there and are 0
        if len(meant) > 1:
            counts = " and ".join(resource_names.count for resource_names, _ in meant)
            raise BadInput(f"asks for {counts}: a container has cards of one kind")
        resource_names, vendor = meant[0]
        ask = self._ask(resource_names, amounts)
        count = _count(
            resource_names, ask, quantity(amounts, resource_names.count) or self.defaults.count
        )
        _expect_no_contradiction(resource_names.choice, notes)
        wanted = names(_first(notes, DEVICE_PLACEMENT))
        policy = self._policy(resource_names, {**variables, **notes}, notes.get(POLICY))
        qos_class = _qos_class(resource_names, notes, count)
        foremost = qos_class in resource_names.qos_classes.first
        first = quantity(amounts, resource_names.priority) == 0 or foremost
        devices, choice = resource_names.devices, resource_names.choice
        return Asked(
            container=name,
            resource_names=resource_names,
            count=count,
            unlimited=policy is None,
            request=Request(
                asks=(ask,) * count,
                exclusive=devices.whole or ask.core == 100,
                empty="mutex" in wanted,
                numa="numa" in wanted or _true(notes, choice.numa),
                links="topology-aware" in wanted or _true(notes, choice.links),
                policy=policy or Policy.FIXED,
                priority=Priority.HIGH if first else Priority.LOW,
                vendor=Selector(include=(vendor.name,)),
                model=Selector(
                    include=_models(notes, choice.include_model, choice) or devices.models.include,
                    exclude=(
                        *_models(notes, choice.exclude_model, choice),
                        *devices.models.exclude,
                    ),
                ),
                uuid=Selector(
                    include=names(notes.get(choice.include_uuid or "")),
                    exclude=names(notes.get(choice.exclude_uuid or "")),
                ),
                enforcement=_enforcement(resource_names, notes),
                co_tenancy=_co_tenancy(resource_names.qos_classes, qos_class),
                on_excess=_word(notes, ON_EXCESS, OnExcess),
                on_bypass=_word(notes, ON_BYPASS, OnBypass),
                strict=_word(notes, STRICT, Truth) is Truth.TRUE,
            ),
        )

    def _ask(self, resource_names: ResourceNames, amounts: Amounts) -> Ask:
        if resource_names.devices.shape is not None:
            return Ask(shape=resource_names.devices.shape)
        sizes = (
            bytes_of(amounts, name, resource_names.memory_unit) for name in resource_names.memory
        )
        memory = next((size for size in sizes if size), None)
        percent = quantity(amounts, resource_names.memory_percent) or None
        core = next((c for name in resource_names.core if (c := quantity(amounts, name))), None)
        if core is not None:
            if core > resource_names.core_whole:
                raise BadInput(
                    f"{resource_names.core[0]} {core} is more than a card has: it is at most "
                    f"{resource_names.core_whole}, per card"
                )
            core = max(core * 100 // resource_names.core_whole, 1)
        if percent is not None and percent > 100:
            raise BadInput(
                f"{resource_names.memory_percent} {percent} is over 100 percent of a card"
            )
        if memory is None and percent is None:
            memory = self.defaults.memory
        if memory is not None:  # who says both means the size, as HAMi reads it
            percent = None
        return Ask(memory=memory, memory_percent=percent, core=core or self.defaults.core)

    def _policy(
        self, resource_names: ResourceNames, notes: Mapping[str, str | None], text: str | None
    ) -> Policy | None:
        """Return the container's policy, None if nobody is to hold it to its core."""
        if text is not None:
            if text not in [policy.value for policy in Policy]:
                raise BadInput(f"{POLICY} {text!r} is not fixed, elastic or off")
            return Policy(text)
        default = None if self.defaults.unlimited else self.defaults.policy
        meanings = {_DEFAULT: default, **resource_names.policies.values}
        return _said(notes, resource_names.policies.name, meanings)


def _enforcement(resource_names: ResourceNames, notes: Mapping[str, str]) -> Selector:
    """Return which enforcements serve, by the resource's meaning and the pod's own words."""
    modes = resource_names.modes
    meant = _said(notes, modes.name, modes.values) or resource_names.devices.enforcements
    slices, sharing = _word(notes, SLICES, _Slices), _word(notes, SHARING, _Sharing)
    if slices is None and sharing is None:
        return meant
    kinds = _ENFORCEMENTS[slices] if slices else tuple(Enforcement)
    if sharing:
        by_service = sharing is _Sharing.MPS
        kinds = tuple(kind for kind in kinds if (kind is Enforcement.SERVICE) == by_service)
    left = tuple(kind.value for kind in kinds if meant.allows(kind.value, all_of_it=True))
    if not left:
        reason = f"{SLICES} {slices.value}" if slices else f"{SHARING} {notes[SHARING]}"
        raise BadInput(f"{reason}: no {resource_names.count} is shared so")
    return Selector(include=left)


def _word(notes: Mapping[str, str], name: str, choices: type[_E]) -> _E | None:
    """Return what an annotation says, None where it is not there. Raises `BadInput`."""
    word = notes.get(name)
    if word is None:
        return None
    for choice in choices:
        if word == choice.value:
            return choice
    raise BadInput(
        f"{name} {word!r} is none of {', '.join(str(choice.value) for choice in choices)}"
    )


def _noted(notes: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return what is noted of init containers. Raises `BadInput`."""
    try:
        noted = read_note(INIT_PARTS, notes.get(INIT_PARTS) or "{}")
        return {
            str(name): {str(resource): str(amount) for resource, amount in parts.items()}
            for name, parts in noted.items()
        }
    except AttributeError:
        raise BadInput(f"{INIT_PARTS} is no table of resources: leave it out") from None


def _pinned(request: Request, uuids: Sequence[str]) -> Request:
    """Return the request for these very devices, or as it is if they are not as many as asked."""
    if len(uuids) != len(request.asks):
        return request
    asks = (evolve(ask, device=uuid) for ask, uuid in zip(request.asks, uuids, strict=True))
    return evolve(request, asks=tuple(asks))


def _count(resource_names: ResourceNames, ask: Ask, count: int) -> int:
    """Return how many cards are meant: whole ones come in modules."""
    size = resource_names.devices.module
    parse_count(str(count), of=resource_names.count)
    if size == 1 or (count == 1 and ask != Ask()):
        return count
    if count != 1 and count % size:
        raise BadInput(
            f"{resource_names.count} {count}: cards come in modules of {size}, so ask for "
            f"a multiple of {size} (1 means one module)"
        )
    return max(count, size)


def _qos_class(resource_names: ResourceNames, notes: Mapping[str, str], count: int) -> str:
    """Return the class of the pod, "" if it is in none."""
    classes = resource_names.qos_classes
    qos_class = notes.get(classes.name or "", "")
    if qos_class not in classes.compatible and qos_class:
        known = _list(classes.compatible)
        raise BadInput(f"{classes.name} {qos_class!r} is none of {known}")
    if qos_class and count != 1:
        raise BadInput(f"{resource_names.count} {count}: a pod with {classes.name} has one card")
    return qos_class


def _co_tenancy(classes: QosClasses, qos_class: str) -> tuple[CoTenancy, ...]:
    """Return whom the container's cards may be shared with."""
    if classes.name is None:
        return ()
    return (
        CoTenancy(
            key=classes.name,
            value=qos_class,
            compatible_with=classes.compatible[qos_class],
        ),
    )


def _said(notes: Mapping[str, Any], name: str | None, meanings: Mapping[str, _T]) -> _T | None:
    """Return what the value of a note means; without one, or without a note, the default."""
    value = (notes.get(name) if name else None) or _DEFAULT
    if value not in meanings and value != _DEFAULT:
        raise BadInput(f"{name} {value!r} is none of {_list(meanings)}")
    return meanings.get(value)


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(filter(None, names)))


def names(text: str | None) -> tuple[str, ...]:
    """Return the names in a list separated by commas. Raises `BadInput` for too many.

    Each is compared with each device of the cluster.
    """
    listed = tuple(part.strip() for part in (text or "").split(",") if part.strip())
    if len(listed) > _MOST_NAMES or len(text or "") > _MOST_TEXT:
        raise BadInput(
            f"a list of {len(listed)} names, {len(text or '')} characters: at most {_MOST_NAMES} "
            f"names, {_MOST_TEXT} characters"
        )
    return listed


def _first(notes: Mapping[str, str], patterns: Iterable[str]) -> str | None:
    if not notes:
        return None
    texts = (notes[name] for pattern in patterns for name in fnmatch.filter(sorted(notes), pattern))
    return next(filter(None, texts), None)


def _models(notes: Mapping[str, str], name: str | None, choice: DeviceChoice) -> tuple[str, ...]:
    """Return the models an annotation lists, spelt as the driver does."""
    listed = (notes.get(name) if name else None) or ""
    for foreign, own in choice.spelling.items():
        listed = listed.replace(foreign, own)
    return names(listed)


def _expect_no_contradiction(choice: DeviceChoice, notes: Mapping[str, str]) -> None:
    """Raise `BadInput` if annotations choose and exclude the same."""
    pairs = (
        (choice.include_model, choice.exclude_model),
        (choice.include_uuid, choice.exclude_uuid),
    )
    for include, exclude in pairs:
        both = set(names(notes.get(include or ""))) & set(names(notes.get(exclude or "")))
        if both:
            raise BadInput(f"{include} and {exclude} both name {min(both)}: leave one of them out")


def _true(notes: Mapping[str, str], name: str | None) -> bool:
    return name is not None and notes.get(name, "").lower() == "true"
