"""The kinds of the API's objects, each with the fields that are read of it.

Every field may be missing: its default is what Kubernetes means by that. Of metadata `name`,
`namespace` and `uid` are empty until the API server has given them.
"""

from __future__ import annotations

from datetime import datetime
from time import time
from typing import Any

from msgspec import Struct, field

#: JSON of an object, or of a part of one: what is written, and what is read whatever it says.
Plain = dict[str, Any]
#: The API writes amounts as texts, and a manifest may have numbers.
Amounts = dict[str, str | int | float]


class Part(Struct, rename="camel", kw_only=True, frozen=True, gc=False):
    """What is read of a part of an object: it may have more."""


class OwnerReference(Part, frozen=True):
    """An object that another one goes with."""

    kind: str = ""
    controller: bool = False


class Metadata(Part, frozen=True):
    """What every object has."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()


class Object(Part, frozen=True):
    """An object of any kind."""

    metadata: Metadata = Metadata()

    @property
    def is_named(self) -> bool:
        """Whether the API server has given it what it is known by."""
        return bool(self.metadata.name)

    @property
    def full_name(self) -> tuple[str, str]:
        """Its namespace and name."""
        return self.metadata.namespace, self.metadata.name

    @property
    def created(self) -> float:
        """When it was made, in seconds since 1970; now if the API does not say."""
        created_at = self.metadata.creation_timestamp
        return time() if created_at is None else created_at.timestamp()


# --- nodes ----------------------------------------------------------------------------------------


class NodeInfo(Part, frozen=True):
    """What a kubelet says of itself."""

    kubelet_version: str = ""


class NodeStatus(Part, frozen=True):
    """What a kubelet says of its node."""

    capacity: Amounts = {}
    allocatable: Amounts = {}
    node_info: NodeInfo = NodeInfo()


class NodeObject(Object, frozen=True):
    """A node."""

    status: NodeStatus = NodeStatus()


# --- pods -----------------------------------------------------------------------------------------


class Named(Part, frozen=True):
    """A reference by name."""

    name: str = ""


class Resources(Part, frozen=True):
    """What a container, or a whole pod, asks for."""

    limits: Amounts = {}
    requests: Amounts = {}
    claims: tuple[Named, ...] = ()

    @property
    def amounts(self) -> Amounts:
        """All amounts; a limit goes before the request of the same resource."""
        return {**self.requests, **self.limits}


class FieldRef(Part, frozen=True):
    """A field of the pod itself."""

    field_path: str = ""


class ValueSource(Part, frozen=True):
    """Where a variable has its value from: it has one of these."""

    field_ref: FieldRef | None = None
    config_map_key_ref: Part | None = None
    file_key_ref: Part | None = None
    resource_field_ref: Part | None = None
    secret_key_ref: Part | None = None


class Variable(Part, frozen=True):
    """A variable of a container's environment."""

    name: str = ""
    value: str | None = None
    value_from: ValueSource | None = None


class VolumeMount(Part, frozen=True):
    """Where a container has a volume's files."""

    mount_path: str = ""


class VolumeDevice(Part, frozen=True):
    """Where a container has a volume as a block device."""

    device_path: str = ""


class ContainerPort(Part, frozen=True):
    """A port of a container."""

    name: str | None = None
    container_port: int = 0


class SecurityContext(Part, frozen=True):
    """What a container may do."""

    privileged: bool = False


class Container(Part, frozen=True):
    """A container of a pod; the sources of `env_from` are not read."""

    name: str = ""
    restart_policy: str | None = None
    resources: Resources = Resources()
    env: tuple[Variable, ...] = ()
    env_from: tuple[Part, ...] = ()
    ports: tuple[ContainerPort, ...] = ()
    volume_mounts: tuple[VolumeMount, ...] = ()
    volume_devices: tuple[VolumeDevice, ...] = ()
    termination_message_path: str | None = None
    security_context: SecurityContext = SecurityContext()

    @property
    def is_sidecar(self) -> bool:
        """Whether an init container runs on with those that come after it."""
        return self.restart_policy == "Always"


class PodClaim(Part, frozen=True):
    """What a pod calls one of its claims, and the claim or the template that it is."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class SchedulingGroup(Part, frozen=True):
    """The PodGroup that a pod is in."""

    pod_group_name: str | None = None


class PodSpec(Part, frozen=True):
    """What a pod is to be."""

    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    ephemeral_containers: tuple[Container, ...] = ()
    resources: Resources = Resources()
    overhead: Amounts = {}
    node_name: str | None = None
    scheduler_name: str | None = None
    service_account_name: str | None = None
    runtime_class_name: str | None = None
    host_network: bool = False
    priority: int = 0
    preemption_policy: str | None = None
    termination_grace_period_seconds: int | None = None
    resource_claims: tuple[PodClaim, ...] = ()
    scheduling_gates: tuple[Part, ...] = ()
    scheduling_group: SchedulingGroup | None = None
    workload_ref: Part | None = None


class Condition(Part, frozen=True):
    """Whether something is so."""

    type: str = ""
    status: str = ""


class ContainerState(Part, frozen=True):
    """What a container does."""

    running: Part | None = None
    terminated: Part | None = None


class ContainerStatus(Part, frozen=True):
    """What a kubelet says of a container."""

    name: str = ""
    ready: bool = False
    state: ContainerState = ContainerState()


class RequestMapping(Part, frozen=True):
    """A container that a claim for extended resources serves."""

    container_name: str = ""


class ExtendedClaim(Part, frozen=True):
    """The claim that kube-scheduler made for a pod's extended resources."""

    resource_claim_name: str | None = None
    request_mappings: tuple[RequestMapping, ...] = ()


class Address(Part, frozen=True):
    """An address of a pod."""

    ip: str = ""


class PodStatus(Part, frozen=True):
    """What became of a pod."""

    phase: str | None = None
    reason: str = ""
    message: str = ""
    qos_class: str = ""
    start_time: str | None = None
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    resource_claim_statuses: tuple[PodClaim, ...] = ()
    extended_resource_claim_status: ExtendedClaim = ExtendedClaim()
    pod_ip: str = field(name="podIP", default="")
    pod_ips: tuple[Address, ...] = field(name="podIPs", default=())

    def is_true(self, condition_type: str) -> bool:
        """Whether a condition is so."""
        return any(
            condition.type == condition_type and condition.status == "True"
            for condition in self.conditions
        )


class Pod(Object, frozen=True):
    """A pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def is_named(self) -> bool:
        """Whether the API server has given it what it is known by."""
        return bool(self.metadata.name and self.metadata.uid)

    @property
    def containers(self) -> tuple[Container, ...]:
        """The containers in the order the kubelet admits them."""
        return (*self.spec.init_containers, *self.spec.containers)


# --- what pods are scheduled by -------------------------------------------------------------------


class Requirement(Part, frozen=True):
    """What a label has to be."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class LabelSelector(Part, frozen=True):
    """What labels are chosen."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[Requirement, ...] = ()


class QuotaSpec(Part, frozen=True):
    """What a namespace may have."""

    hard: Amounts = {}


class ResourceQuota(Object, frozen=True):
    """A quota of a namespace."""

    spec: QuotaSpec = QuotaSpec()


class GangPolicy(Part, frozen=True):
    """How many pods of a group are the least that run."""

    min_count: int | None = None


class SchedulingPolicy(Part, frozen=True):
    """How the pods of a group are placed."""

    gang: GangPolicy = GangPolicy()


class PodGroupSpec(Part, frozen=True):
    """What a group of pods is to be: `min_member` is the scheduler plugin's word for its least."""

    min_member: int | None = None
    scheduling_policy: SchedulingPolicy = SchedulingPolicy()


class PodGroup(Object, frozen=True):
    """Pods that are placed together: of Kubernetes' own API, or of the scheduler plugin's."""

    spec: PodGroupSpec = PodGroupSpec()


class DisruptionBudgetSpec(Part, frozen=True):
    """Which pods a budget is for; None: for none."""

    selector: LabelSelector | None = None


class DisruptionBudgetStatus(Part, frozen=True):
    """How many of a budget's pods may go now."""

    disruptions_allowed: int = 0


class DisruptionBudget(Object, frozen=True):
    """A PodDisruptionBudget."""

    spec: DisruptionBudgetSpec = DisruptionBudgetSpec()
    status: DisruptionBudgetStatus = DisruptionBudgetStatus()


class ConfigMap(Object, frozen=True):
    """A ConfigMap."""

    data: dict[str, str] = {}


class LeaseSpec(Part, frozen=True):
    """Who holds a Lease, since when, and for how many seconds."""

    holder_identity: str = ""
    renew_time: str = ""
    lease_duration_seconds: int = 0
    lease_transitions: int = 0


class Lease(Object, frozen=True):
    """A Lease."""

    spec: LeaseSpec = LeaseSpec()


# --- claims ---------------------------------------------------------------------------------------


class ResourceSlice(Object, frozen=True):
    """Devices of a driver; all of its spec is kept, to be compared with what is published.

    Who counts devices reads a `PoolSlice`.
    """

    spec: dict[str, Any] = {}


class PoolPart(Part, frozen=True):
    """The pool of a slice, its generation, and how many slices that generation has."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class AttributeValue(Part, frozen=True):
    """The value of a device's attribute, where it is a text or a number."""

    string: str | None = None
    number: int | None = field(name="int", default=None)


class ValidRange(Part, frozen=True):
    """The sizes between two others, by a step."""

    max: str = ""
    step: str = ""


class RequestPolicy(Part, frozen=True):
    """The sizes in which a capacity is consumed; `default` where a request names none."""

    default: str = ""
    valid_values: tuple[str, ...] = ()
    valid_range: ValidRange = ValidRange()


class DeviceCapacity(Part, frozen=True):
    """How much of something a device has."""

    value: str = ""
    request_policy: RequestPolicy = RequestPolicy()


class CounterSet(Part, frozen=True):
    """Counters of a pool, or what a device consumes of them (then `counter_set` is its name)."""

    name: str = ""
    counter_set: str = ""
    counters: dict[str, DeviceCapacity] = {}


class DeviceTaint(Part, frozen=True):
    """What keeps a device from claims that do not tolerate it."""

    key: str = ""
    value: str = ""


class SliceDevice(Part, frozen=True):
    """A device of a slice."""

    name: str = ""
    attributes: dict[str, AttributeValue] = {}
    capacity: dict[str, DeviceCapacity] = {}
    consumes_counters: tuple[CounterSet, ...] = ()
    taints: tuple[DeviceTaint, ...] = ()
    allow_multiple_allocations: bool = False


class SliceSpec(Part, frozen=True):
    """What a slice says."""

    driver: str = ""
    node_name: str = ""
    pool: PoolPart = PoolPart()
    devices: tuple[SliceDevice, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()


class PoolSlice(Object, frozen=True):
    """A slice, with what is read of its devices."""

    spec: SliceSpec = SliceSpec()


class Consumer(Part, frozen=True):
    """Who may use a claim."""

    resource: str = ""
    name: str = ""
    uid: str = ""


class DeviceResult(Part, frozen=True):
    """A device that a claim was allocated."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = field(name="shareID", default=None)
    admin_access: bool = False
    consumed_capacity: Amounts = {}


class OpaqueConfig(Part, frozen=True):
    """Configuration of a driver's own; its parameters are whatever somebody wrote."""

    driver: str = ""
    parameters: Any = None


class DeviceConfig(Part, frozen=True):
    """Configuration for some requests of a claim, for all where it names none."""

    source: str = ""
    requests: tuple[str, ...] = ()
    opaque: OpaqueConfig = OpaqueConfig()


class DeviceAllocations(Part, frozen=True):
    """What a claim was allocated of devices."""

    results: tuple[DeviceResult, ...] = ()
    config: tuple[DeviceConfig, ...] = ()


class ClaimAllocation(Part, frozen=True):
    """What a claim was allocated."""

    devices: DeviceAllocations = DeviceAllocations()


class ClaimStatus(Part, frozen=True):
    """What became of a claim; `devices` is what drivers say, each of its own."""

    allocation: ClaimAllocation = ClaimAllocation()
    reserved_for: tuple[Consumer, ...] = ()
    devices: tuple[dict[str, Any], ...] = ()


class ResourceClaim(Object, frozen=True):
    """A claim."""

    status: ClaimStatus = ClaimStatus()
