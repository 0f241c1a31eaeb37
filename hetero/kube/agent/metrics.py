"""The agent's Prometheus metrics: each device, each container's share of it, and its own work.

Units and suffixes are Prometheus's. The labels UUID, modelName, Hostname, namespace, pod and
container are the ones other exporters of accelerators use, so that dashboards join. A claim's share
has its name in `claim`, and no pod, since several may use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attrs import define, field
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from hetero.kube.agent.allocator import Allocator
from hetero.model import CORE, MEMORY, SLOTS, Device, Enforcement, Policy, Usage
from hetero.node.guard.monitor import Sighting
from hetero.node.inventory import devices_of, inventory_of
from hetero.node.ledger.ledger import ENDED_FILE, Grant, Snapshot
from hetero.node.view.bypass import time_past
from hetero.node.view.observe import CoreMeter, timeshares

_DEVICE = ("UUID", "vendor", "modelName", "Hostname")
_OWNER_LABELS = ("namespace", "pod", "container", "claim")
_SHARE = (*_DEVICE, *_OWNER_LABELS)
#: The least seconds of a mean since the scrape before.
_SHORTEST_WINDOW_S = 10.0
_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


def _gauge(metric_name: str, help_text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"hetero_share_{metric_name}", help_text, labels=_SHARE)


def _counter(metric_name: str, help_text: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"hetero_share_{metric_name}", help_text, labels=_SHARE)


@define(eq=False)
class Metrics(Collector):
    """One agent's metrics: its own work as it happens, the node's state at each scrape."""

    allocator: Allocator
    sighting: Sighting = field(init=False, factory=Sighting)  # the monitor's last sample
    registry: CollectorRegistry = field(init=False, factory=CollectorRegistry)
    _meter: CoreMeter = field(init=False)
    _calls: Counter = field(init=False)
    _seconds: Histogram = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._meter = CoreMeter(self.allocator.node, window_s=_SHORTEST_WINDOW_S)
        self._calls = Counter(
            "hetero_agent_calls",
            "Calls of the kubelet, by what came of them",
            ("call", "result"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "hetero_agent_call_seconds",
            "How long the kubelet waited for an answer",
            ("call",),
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self.registry.register(self)

    def observe(self, call_name: str, outcome: str, duration_s: float) -> None:
        """Note one call of the kubelet."""
        self._calls.labels(call_name, outcome).inc()
        self._seconds.labels(call_name).observe(duration_s)

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield the state of the node's devices and shares as it is now."""
        snapshot = self.allocator.node.snapshot()
        offered_devices = self.allocator.cards.resting.published(self.allocator.discovery.devices)
        usages, _ = self.allocator.node.registry.observe_all(offered_devices)
        yield from self.of_devices(snapshot, usages)
        yield from self._shares(snapshot.grants)
        yield from self._counts(snapshot.grants)
        up_metric = GaugeMetricFamily(
            "hetero_vendor_up", "Whether the driver answers", labels=("vendor",)
        )
        for row in self.allocator.discovery.rows:
            if row.state not in ("absent", "untrusted"):
                up_metric.add_metric((row.name,), row.state == "ok")
        yield up_metric
        yield GaugeMetricFamily(
            "hetero_ledger_unreadable",
            "Grants that stand and cannot be read",
            value=len(snapshot.unreadable),
        )

    def of_devices(
        self, snapshot: Snapshot, usages: Iterable[tuple[Device, Usage]]
    ) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics of the devices of which drivers said these usages; asks none."""
        free_by_uuid = inventory_of(self.allocator.discovery, snapshot).free()

        def gauge(metric_name: str, help_text: str, *more_labels: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(
                f"hetero_device_{metric_name}", help_text, labels=(*_DEVICE, *more_labels)
            )

        total_memory = gauge("memory_total_bytes", "Memory this node promises of the device")
        allocated_memory = gauge("memory_allocated_bytes", "Memory given to grants")
        used_memory = gauge("memory_used_bytes", "Memory in use, as the driver says")
        allocated_core = gauge("core_allocated_ratio", "Share of the core given to grants")
        utilization = gauge(
            "utilization_ratio", "Share of its time the device is busy, as the driver says"
        )
        total_slots = gauge("slots_total", "How many grants may share the device")
        allocated_slots = gauge("slots_allocated", "How many slots are taken")
        unowned_memory = gauge(
            "memory_unowned_bytes", "Memory in use that is no process's, beyond idle use"
        )
        health = gauge("healthy", "Whether the driver says nothing against the device")
        cordoned = gauge("cordoned", "Whether nothing new is given of the device")
        enforcement = gauge("enforcement_info", "How the device's promise is kept", "enforcement")
        for device, usage in usages:
            labels, device_free = self._labels(device), free_by_uuid[device.uuid]
            total_memory.add_metric(labels, device.capacity[MEMORY])
            allocated_memory.add_metric(labels, device.capacity[MEMORY] - device_free[MEMORY])
            total_slots.add_metric(labels, device.capacity[SLOTS])
            allocated_slots.add_metric(labels, device.capacity[SLOTS] - device_free[SLOTS])
            if device.capacity[CORE]:
                allocated_core.add_metric(labels, 1 - device_free[CORE] / device.capacity[CORE])
            if usage.memory is not None:
                used_memory.add_metric(labels, usage.memory)
            if usage.core is not None:
                utilization.add_metric(labels, usage.core)
            unowned_bytes = sum(
                unowned.memory for unowned in self.sighting.unowned if unowned.device == device.uuid
            )
            unowned_memory.add_metric(labels, unowned_bytes)
            health.add_metric(labels, device.healthy)
            cordoned.add_metric(labels, device.cordon is not None)
            enforcement.add_metric((*labels, device.enforcement.value), 1)
        yield from (
            total_memory,
            allocated_memory,
            used_memory,
            unowned_memory,
            allocated_core,
            utilization,
            total_slots,
            allocated_slots,
            health,
            cordoned,
            enforcement,
        )

    def _shares(
        self, grants: tuple[Grant, ...]
    ) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        memory_limit = _gauge("memory_limit_bytes", "Memory the container may hold of the device")
        core_limit = _gauge("core_limit_ratio", "Share of the device's core the container may use")
        excess = _gauge(
            "memory_excess_bytes", "Memory the driver counts for it and its limiter did not"
        )
        past_limiter = _gauge("core_past_limiter_ratio", "Device time it takes past its limiter")
        enforcement = GaugeMetricFamily(
            "hetero_share_enforcement_info",
            "How the container is held to its share",
            labels=(*_SHARE, "enforcement"),
        )
        devices = devices_of(self.allocator.discovery)
        excess_by_grant = {
            (excess.grant, excess.device): excess.memory for excess in self.sighting.excess
        }
        past_by_grant = {
            grant.id: tuple(time_past(self.allocator.node, grant.id)) for grant in grants
        }
        for grant, position, labels in self._pieces(grants):
            piece, device_limit = grant.allocation.pieces[position], grant.limits[position]
            device = devices[piece.device]
            has_limiter = grant.allocation.policy is not Policy.OFF
            kept_by = device.enforcement if has_limiter else Enforcement.NONE
            enforcement.add_metric((*labels, kept_by.value), 1)
            memory_limit.add_metric(labels, device_limit.memory)
            core_percent = device_limit.core_given(piece, device) or 100
            core_limit.add_metric(labels, core_percent / 100)
            past_core = sum(
                bypass.core_percent
                for bypass in past_by_grant[grant.id]
                if bypass.device == device.uuid
            )
            past_limiter.add_metric(labels, past_core / 100)
            if (excess_bytes := excess_by_grant.get((grant.id, device.uuid))) is not None:
                excess.add_metric(labels, excess_bytes)
        yield from (memory_limit, excess, core_limit, past_limiter, enforcement)

    def _counts(
        self, grants: tuple[Grant, ...]
    ) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield what the processes of the grants count, and what is derived from that."""
        used_memory = _gauge("memory_used_bytes", "Memory the container holds of the device")
        core_seconds = _counter(
            "core_seconds", "Device time the container was given, where it is limited"
        )
        stopped_seconds = _counter(
            "stopped_seconds", "Time for which its processes waited for its share"
        )
        borrowed_seconds = _counter("borrowed_seconds", "Of core_seconds, what others lent")
        denials = _counter("denied", "Allocations of device memory that were refused")
        core_lent = _gauge(
            "core_lent_ratio", "What others borrow of its share, a mean since last asked"
        )
        row_ratio = _gauge(
            "row_ratio", "Part of the time that is its row, of a gang; 0: none was free"
        )
        row_count = _counter("rows", "Rows of a gang that were run")
        overrun_count = _counter("row_overruns", "Rows that ended with work in flight")
        shared_by_grant = timeshares(self.allocator.node, grants, self._meter)
        for grant, position, labels in self._pieces(grants):
            region, row = shared_by_grant[grant.id].region, shared_by_grant[grant.id].row
            if (lent_core := shared_by_grant[grant.id].lent_percent[position]) is not None:
                core_lent.add_metric(labels, lent_core / 100)
            if region is not None and region.counts:
                device_counts = region.counts[position]
                used_memory.add_metric(labels, device_counts.memory_bytes)
                core_seconds.add_metric(labels, device_counts.device_ns / 1e9)
                stopped_seconds.add_metric(labels, device_counts.stopped_ns / 1e9)
                borrowed_seconds.add_metric(labels, device_counts.borrowed_ns / 1e9)
                denials.add_metric(labels, device_counts.denied_count)
            if row is not None:
                row_ratio.add_metric(labels, row.length_ms / row.period_ms)
            if row is not None and row.row_count is not None and row.overrun_count is not None:
                row_count.add_metric(labels, row.row_count)
                overrun_count.add_metric(labels, row.overrun_count)
        yield from (
            used_memory,
            core_seconds,
            stopped_seconds,
            borrowed_seconds,
            denials,
            core_lent,
            row_ratio,
            row_count,
            overrun_count,
        )

    def _pieces(self, grants: tuple[Grant, ...]) -> Iterator[tuple[Grant, int, tuple[str, ...]]]:
        """Yield each device of every container that has not ended and of every claim.

        With it come its index in the allocation and the values of the labels.
        """
        devices = devices_of(self.allocator.discovery)
        for grant in grants:
            owner = grant.owner
            if "container" not in owner and "claim" not in owner:
                continue  # a program of this machine, not a pod's
            if (self.allocator.node.directory(grant.id) / ENDED_FILE).exists():
                continue  # the container has ended: only its pod or claim still reserves the device
            owner_labels = tuple(owner.get(label_name, "") for label_name in _OWNER_LABELS)
            for position, piece in enumerate(grant.allocation.pieces):
                if piece.device in devices:
                    yield grant, position, (*self._labels(devices[piece.device]), *owner_labels)

    def _labels(self, device: Device) -> tuple[str, ...]:
        return device.uuid, device.vendor, device.model, self.allocator.pods.node
