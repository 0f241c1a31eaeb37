"""What the scheduler tells Prometheus: its decisions as they happen, what nodes have and gave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import define, field
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from hetero.kube.words.quota import Quotas
from hetero.model import CORE, MEMORY
from hetero.placement.cache import SchedulerCache

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


@define(eq=False)
class SchedulerMetrics(Collector):
    """One scheduler's metrics."""

    cache: SchedulerCache
    quotas: Quotas
    registry: CollectorRegistry = field(init=False, factory=CollectorRegistry)
    _decisions: Counter = field(init=False)
    _seconds: Histogram = field(init=False)
    _refusals: Counter = field(init=False)
    _children: dict[tuple[str, str], tuple[Counter, Histogram]] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self._decisions = Counter(
            "hetero_scheduler_decisions",
            "Calls of kube-scheduler",
            ("verb", "result"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "hetero_scheduler_decision_seconds",
            "How long kube-scheduler waited for an answer",
            ("verb",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._refusals = Counter(
            "hetero_scheduler_refusals",
            "What nodes said to pods they cannot serve",
            ("reason",),
            registry=self.registry,
        )
        self.registry.register(self)

    def decided(self, verb: str, result: str, seconds: float) -> None:
        """Note one answer to kube-scheduler."""
        if (verb, result) not in self._children:
            self._children[verb, result] = (
                self._decisions.labels(verb, result),
                self._seconds.labels(verb),
            )
        decisions, waited = self._children[verb, result]
        decisions.inc()
        waited.observe(seconds)

    def refused(self, verdicts: Mapping[str, int]) -> None:
        """Note what nodes that cannot serve a pod said, and how many said it."""
        for verdict, count in verdicts.items():
            self._refusals.labels(verdict.partition(" (")[0]).inc(count)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield what the nodes have and what of it is given out, by vendor."""
        says = {
            "cards": "Cards of a node",
            "memory_bytes": "Memory of its cards",
            "memory_allocated_bytes": "Memory of its cards that is given out",
            "core_allocated_cards": "Core that is given out, in cards",
        }
        made = {
            name: GaugeMetricFamily(f"hetero_node_{name}", text, labels=("Hostname", "vendor"))
            for name, text in says.items()
        }
        for node in self.cache.inventory.nodes:
            free = self.cache.free(node)
            sums: dict[str, dict[str, float]] = {}
            for device in self.cache.inventory.devices(node):
                left = free[device.uuid]
                vendor_sums = sums.setdefault(device.vendor, dict.fromkeys(says, 0.0))
                core = device.capacity[CORE]
                vendor_sums["cards"] += 1
                vendor_sums["memory_bytes"] += device.capacity[MEMORY]
                vendor_sums["memory_allocated_bytes"] += device.capacity[MEMORY] - left[MEMORY]
                vendor_sums["core_allocated_cards"] += (core - left[CORE]) / core if core else 0
            for vendor, values in sums.items():
                for name, value in values.items():
                    made[name].add_metric((node, vendor), value)
        yield from made.values()
        yield from self._quotas()

    def _quotas(self) -> Iterator[GaugeMetricFamily]:
        labels, quotas = ("namespace", "quota", "resource"), self.quotas
        allowed = GaugeMetricFamily("hetero_quota_limit", "What a quota allows", labels=labels)
        used = GaugeMetricFamily("hetero_quota_used", "What counts against it", labels=labels)
        for namespace, by_quota in quotas.most.items():
            for quota, most in by_quota.items():
                for name, amount in most.items():
                    allowed.add_metric((namespace, quota, name), amount)
                    held = quotas.used[namespace][name] if namespace in quotas.used else 0
                    used.add_metric((namespace, quota, name), held)
        yield from (allowed, used)
