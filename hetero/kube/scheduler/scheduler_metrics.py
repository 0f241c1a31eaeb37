"""The scheduler's Prometheus metrics: its decisions, and the capacity and allocation of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import define, field
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from hetero.kube.words.quota import Quotas
from hetero.model import CORE, MEMORY
from hetero.placement.cache import SchedulerCache

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


@define(eq=False)
class SchedulerMetrics(Collector):
    """One scheduler's metrics."""

    cache: SchedulerCache
    quotas: Quotas
    registry: CollectorRegistry = field(init=False, factory=CollectorRegistry)
    _decisions: Counter = field(init=False)
    _seconds: Histogram = field(init=False)
    _refusals: Counter = field(init=False)
    _metrics_by_verb_and_result: dict[tuple[str, str], tuple[Counter, Histogram]] = field(
        factory=dict
    )

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
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self._refusals = Counter(
            "hetero_scheduler_refusals",
            "What nodes said to pods they cannot serve",
            ("reason",),
            registry=self.registry,
        )
        self.registry.register(self)

    def decided(self, verb: str, result: str, duration_s: float) -> None:
        """Count one answer to kube-scheduler, and its duration."""
        if (verb, result) not in self._metrics_by_verb_and_result:
            self._metrics_by_verb_and_result[verb, result] = (
                self._decisions.labels(verb, result),
                self._seconds.labels(verb),
            )
        decision_counter, duration_histogram = self._metrics_by_verb_and_result[verb, result]
        decision_counter.inc()
        duration_histogram.observe(duration_s)

    def refused(self, verdicts: Mapping[str, int]) -> None:
        """Count the verdicts of nodes that cannot serve a pod."""
        for verdict, count in verdicts.items():
            self._refusals.labels(verdict.partition(" (")[0]).inc(count)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the capacity and the allocated amounts of each node, by vendor."""
        help_by_name = {
            "cards": "Cards of a node",
            "memory_bytes": "Memory of its cards",
            "memory_allocated_bytes": "Memory of its cards that is given out",
            "core_allocated_cards": "Core that is given out, in cards",
        }
        metric_by_name = {
            name: GaugeMetricFamily(f"hetero_node_{name}", help_text, labels=("Hostname", "vendor"))
            for name, help_text in help_by_name.items()
        }
        for node in self.cache.inventory.nodes:
            free_by_uuid = self.cache.free(node)
            sums_by_vendor: dict[str, dict[str, float]] = {}
            for device in self.cache.inventory.devices(node):
                free = free_by_uuid[device.uuid]
                sums = sums_by_vendor.setdefault(device.vendor, dict.fromkeys(help_by_name, 0.0))
                core, card_core = device.capacity[CORE], device.of_card(CORE)
                sums["cards"] += 1
                sums["memory_bytes"] += device.capacity[MEMORY]
                sums["memory_allocated_bytes"] += device.capacity[MEMORY] - free[MEMORY]
                sums["core_allocated_cards"] += (core - free[CORE]) / card_core if core else 0
            for vendor, values in sums_by_vendor.items():
                for name, value in values.items():
                    metric_by_name[name].add_metric((node, vendor), value)
        yield from metric_by_name.values()
        yield from self._quotas()

    def _quotas(self) -> Iterator[GaugeMetricFamily]:
        labels, quotas = ("namespace", "quota", "resource"), self.quotas
        limit_metric = GaugeMetricFamily("hetero_quota_limit", "What a quota allows", labels=labels)
        usage = GaugeMetricFamily("hetero_quota_used", "What counts against it", labels=labels)
        for namespace, limits_by_quota in quotas.most.items():
            for quota, limit_by_name in limits_by_quota.items():
                for name, amount in limit_by_name.items():
                    limit_metric.add_metric((namespace, quota, name), amount)
                    used_amount = quotas.used[namespace][name] if namespace in quotas.used else 0
                    usage.add_metric((namespace, quota, name), used_amount)
        yield from (limit_metric, usage)
