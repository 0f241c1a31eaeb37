"""What the agent tells Prometheus: each device, each container's share of it, and its own work.

Units and suffixes are Prometheus's; the labels UUID, modelName, Hostname, namespace, pod and
container are the ones other exporters of accelerators use, so that dashboards join. What a claim
holds has its name in `claim`, and no pod: several may use it.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import define, field
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from hetero.kube.agent.allocator import Allocator
from hetero.model import CORE, MEMORY, SLOTS, Device, Enforcement, Policy
from hetero.node.guard.monitor import Sighting
from hetero.node.inventory import inventory_of
from hetero.node.ledger.grant_file import CORE_FULL
from hetero.node.ledger.ledger import Grant
from hetero.node.view.bypass import time_past
from hetero.node.view.observe import CoreMeter, timeshares

_DEVICE = ("UUID", "vendor", "modelName", "Hostname")
_WHOSE = ("namespace", "pod", "container", "claim")
_SHARE = (*_DEVICE, *_WHOSE)
#: Of what is a mean since the scrape before: over so many seconds at least.
_WINDOW = 10.0
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


def _gauge(name: str, says: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"hetero_share_{name}", says, labels=_SHARE)


def _counter(name: str, says: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"hetero_share_{name}", says, labels=_SHARE)


@define(eq=False)
class Metrics(Collector):
    """One agent's metrics: its own work as it happens, the node's state when it is asked for."""

    allocator: Allocator
    sighting: Sighting = field(init=False, factory=Sighting)  # the monitor's last look
    registry: CollectorRegistry = field(init=False, factory=CollectorRegistry)
    _meter: CoreMeter = field(init=False)
    _calls: Counter = field(init=False)
    _seconds: Histogram = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._meter = CoreMeter(self.allocator.node, window=_WINDOW)
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
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.registry.register(self)

    def observe(self, call: str, result: str, seconds: float) -> None:
        """Note one call of the kubelet."""
        self._calls.labels(call, result).inc()
        self._seconds.labels(call).observe(seconds)

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield the state of the node's devices and shares as it is now."""
        snapshot = self.allocator.node.snapshot()
        yield from self._devices(inventory_of(self.allocator.discovery, snapshot).free())
        yield from self._shares(snapshot.grants)
        yield from self._counts(snapshot.grants)
        up = GaugeMetricFamily("hetero_vendor_up", "Whether the driver answers", labels=("vendor",))
        for row in self.allocator.discovery.rows:
            if row.state not in ("absent", "untrusted"):
                up.add_metric((row.name,), row.state == "ok")
        yield up
        yield GaugeMetricFamily(
            "hetero_ledger_unreadable",
            "Grants that stand and cannot be read",
            value=len(snapshot.unreadable),
        )

    def _devices(self, free: dict[str, dict[str, int]]) -> Iterator[GaugeMetricFamily]:
        def gauge(name: str, says: str, *more: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"hetero_device_{name}", says, labels=(*_DEVICE, *more))

        total = gauge("memory_total_bytes", "Memory this node promises of the device")
        given = gauge("memory_allocated_bytes", "Memory given to grants")
        used = gauge("memory_used_bytes", "Memory in use, as the driver says")
        core = gauge("core_allocated_ratio", "Share of the core given to grants")
        busy = gauge(
            "utilization_ratio", "Share of its time the device is busy, as the driver says"
        )
        slots = gauge("slots_total", "How many grants may share the device")
        taken = gauge("slots_allocated", "How many slots are taken")
        unowned = gauge(
            "memory_unowned_bytes", "Memory in use that is no process's, beyond idle use"
        )
        healthy = gauge("healthy", "Whether the device may be given out")
        enforcement = gauge("enforcement_info", "How the device's promise is kept", "enforcement")
        usages, _ = self.allocator.node.registry.observe_all(self.allocator.discovery.devices)
        for device, usage in usages:
            labels, left = self._labels(device), free[device.uuid]
            total.add_metric(labels, device.capacity[MEMORY])
            given.add_metric(labels, device.capacity[MEMORY] - left[MEMORY])
            slots.add_metric(labels, device.capacity[SLOTS])
            taken.add_metric(labels, device.capacity[SLOTS] - left[SLOTS])
            if device.capacity[CORE]:
                core.add_metric(labels, 1 - left[CORE] / device.capacity[CORE])
            if usage.memory is not None:
                used.add_metric(labels, usage.memory)
            if usage.core is not None:
                busy.add_metric(labels, usage.core)
            lost = sum(one.memory for one in self.sighting.unowned if one.device == device.uuid)
            unowned.add_metric(labels, lost)
            healthy.add_metric(labels, device.usable)
            enforcement.add_metric((*labels, device.enforcement.value), 1)
        yield from (total, given, used, unowned, core, busy, slots, taken, healthy, enforcement)

    def _shares(
        self, grants: tuple[Grant, ...]
    ) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        limit = _gauge("memory_limit_bytes", "Memory the container may hold of the device")
        core = _gauge("core_limit_ratio", "Share of the device's core the container may use")
        excess = _gauge(
            "memory_excess_bytes", "Memory the driver counts for it and its limiter did not"
        )
        past = _gauge("core_past_limiter_ratio", "Device time it takes past its limiter")
        enforcement = GaugeMetricFamily(
            "hetero_share_enforcement_info",
            "How the container is held to its share",
            labels=(*_SHARE, "enforcement"),
        )
        enforced = {it.uuid: it.enforcement for it in self.allocator.discovery.devices}
        seen = {(one.grant, one.device): one.memory for one in self.sighting.excess}
        noted = {entry.id: tuple(time_past(self.allocator.node, entry.id)) for entry in grants}
        for entry, position, labels in self._pieces(grants):
            device, bound = entry.allocation.pieces[position].device, entry.limits[position]
            held = entry.allocation.policy is not Policy.OFF
            how = enforced[device] if held else Enforcement.NONE
            enforcement.add_metric((*labels, how.value), 1)
            limit.add_metric(labels, bound.memory)
            core.add_metric(labels, bound.core / CORE_FULL)
            taken = sum(one.core for one in noted[entry.id] if one.device == device)
            past.add_metric(labels, taken / 100)
            if (beyond := seen.get((entry.id, device))) is not None:
                excess.add_metric(labels, beyond)
        yield from (limit, excess, core, past, enforcement)

    def _counts(
        self, grants: tuple[Grant, ...]
    ) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield what the processes of the grants count, and what follows from that."""
        used = _gauge("memory_used_bytes", "Memory the container holds of the device")
        spent = _counter("core_seconds", "Device time the container was given, where it is limited")
        stopped = _counter("stopped_seconds", "Time for which its processes waited for its share")
        borrowed = _counter("borrowed_seconds", "Of core_seconds, what others lent")
        denied = _counter("denied", "Allocations of device memory that were refused")
        lent = _gauge("core_lent_ratio", "What others borrow of its share, a mean since last asked")
        part = _gauge("row_ratio", "Part of the time that is its row, of a gang; 0: none was free")
        rows = _counter("rows", "Rows of a gang that were run")
        overruns = _counter("row_overruns", "Rows that ended with work in flight")
        shared = timeshares(self.allocator.node, grants, self._meter)
        for entry, position, labels in self._pieces(grants):
            region, row = shared[entry.id].region, shared[entry.id].row
            if (others := shared[entry.id].lent[position]) is not None:
                lent.add_metric(labels, others / 100)
            if region is not None and region.counts:
                counts = region.counts[position]
                used.add_metric(labels, counts.memory)
                spent.add_metric(labels, counts.device_ns / 1e9)
                stopped.add_metric(labels, counts.stopped_ns / 1e9)
                borrowed.add_metric(labels, counts.borrowed_ns / 1e9)
                denied.add_metric(labels, counts.denied)
            if row is not None:
                part.add_metric(labels, row.length / row.period)
            if row is not None and row.rows is not None and row.overruns is not None:
                rows.add_metric(labels, row.rows)
                overruns.add_metric(labels, row.overruns)
        yield from (used, spent, stopped, borrowed, denied, lent, part, rows, overruns)

    def _pieces(self, grants: tuple[Grant, ...]) -> Iterator[tuple[Grant, int, tuple[str, ...]]]:
        """Yield each device of each grant of a pod or claim, by its position, and its labels."""
        devices = {device.uuid: device for device in self.allocator.discovery.devices}
        for entry in grants:
            about = entry.owner
            if "container" not in about and "claim" not in about:
                continue  # a program of this machine, not a pod's
            whose = tuple(about.get(name, "") for name in _WHOSE)
            for position, piece in enumerate(entry.allocation.pieces):
                if piece.device in devices:
                    yield entry, position, (*self._labels(devices[piece.device]), *whose)

    def _labels(self, device: Device) -> tuple[str, ...]:
        return device.uuid, device.vendor, device.model, self.allocator.pods.node
