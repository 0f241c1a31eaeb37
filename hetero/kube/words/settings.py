"""The settings that all services of a cluster share: a small TOML file, fully checked."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from hetero.kube.words.pod_request import Defaults, Vocabulary
from hetero.model import Policy
from hetero.model.errors import BadInput
from hetero.model.units import parse_memory, parse_percent
from hetero.node.settings import NodeSettings, OnDebt, load_settings, read_settings
from hetero.placement.demand import HALF_LIFE_S
from hetero.plugin.resource_names import ResourceNames
from hetero.plugin.vendor import Vendor
from hetero.registry.registry import Registry

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

log = logging.getLogger(__name__)

#: The placement policies over nodes and over devices that may be a cluster's default.
_NODE_PLACEMENTS = ("fragmentation", "binpack", "spread")
_DEVICE_PLACEMENTS = ("fragmentation", "binpack", "spread")
#: Whether filter answers the first choice alone, or every node that serves, to be scored.
_CHOICES = ("one", "score")
#: What becomes of pods of ours with words of other products that have no effect.
_INEFFECTIVE = ("report", "refuse")
#: What a limiter may be told to log (limiters/core/log.c).
_LOG_LEVELS = ("off", "error", "notice", "info", "debug")
_MOST_DAYS, _DAY_S = 3650, 86_400
_WORDS = (
    "node-placement",
    "device-placement",
    "choose",
    "half-life-days",
    "hide-unasked",
    "evict-unhealthy",
    "ineffective-words",
    "privileged-sidecars",
    "take-default-scheduler",
    "compat",
)
_TABLES = (
    *("defaults", "resources", "memory-factors", "node-selector", "runtime-classes", "vendors"),
    "nodes",
)
_DEFAULTS = (
    *("count", "memory", "core", "policy", "core-limit", "high-priority-core-limit"),
    *("whole-memory", "limiter-log"),
)
#: What a privileged container may stand beside, and whether all memory of a card is the card.
_SIDECARS, _WHOLE = ("allow", "refuse"), ("shared", "exclusive")
#: The keys that have other defaults where a cluster is to behave as another product: HAMi 2.10.0,
#: charts/hami/values.yaml (placements); pkg/scheduler/webhook.go (privileged containers);
#: pkg/device (all memory is the card alone); cmd/vGPUmonitor/feedback.go (a program alone on its
#: card, and those that go first among themselves, are not held to their core).
_COMPAT: Mapping[str, Mapping[str, Any]] = {
    "hami": {
        "node-placement": "binpack",
        "device-placement": "spread",
        "privileged-sidecars": "refuse",
        "defaults": {
            "policy": "elastic",
            "high-priority-core-limit": False,
            "whole-memory": "exclusive",
        },
    }
}
_LARGEST_FACTOR = 1_000_000


@frozen(kw_only=True)
class Settings:
    """How this cluster schedules.

    node-placement = "fragmentation"    # what leaves the least useless; or binpack or spread
    device-placement = "fragmentation"  # the same of the devices of a node
    choose = "one"                # filter answers the first choice alone; score: all that serve
    half-life-days = 7            # a pod that came so long ago counts half of one that comes now
    hide-unasked = false          # true: vendors' runtimes give pods that ask for no card none

    evict-unhealthy = false       # true: pods with claims leave cards that are not well (NoExecute)
    ineffective-words = "report"  # of other products, in pods of ours; or refuse the pods
    privileged-sidecars = "allow" # beside containers with cards; or refuse the pods
    take-default-scheduler = true # false: pods that ask for cards have to name our scheduler
    compat = "hami"               # other defaults, as that product has them; not given: these

    [defaults]                    # for pods that do not say
    count = 1
    memory = "4Gi"                # of each card; not given: all of it
    core = 30                     # percent of each card; not given: no limit
    policy = "fixed"              # fixed or elastic
    core-limit = true             # false: core is counted and limits nobody
    high-priority-core-limit = true # false: the same for pods that go first
    whole-memory = "shared"       # exclusive: who asks for all memory, and no core, is alone
    limiter-log = "error"         # what limiters log; not given: the first refusal

    [resources]                   # other names for resources
    "vendor.com/cards" = "example.com/cards"

    [memory-factors]              # what one of a resource is, in its units
    "vendor.com/memory" = 1024

    [node-selector]               # labels of the nodes whose cards are given out; none: all nodes
    cards = "on"

    [runtime-classes]             # what a vendor's pods get that name no runtimeClassName
    vendor = "vendor-runtime"

    [vendors]
    allow = ["hetero-a"]          # distributions whose vendors the services and the agents may run

    [nodes."*".cards]             # by a pattern of nodes' names any table of a node's settings
    max_sharers = 10              # of two patterns for a node the later one counts
    [nodes."*".heterod]
    on_debt = "report"            # else processes that owe others over a second are ended
    on_bypass = "kill"            # a program without a limiter is ended, where its pod does not say
    [nodes."old-*".scale]
    memory = 1.5                  # what does not fit on a card then lies with the host
    """

    node_placement: str = "fragmentation"
    device_placement: str = "fragmentation"
    choose: str = "one"
    half_life_days: float = HALF_LIFE_S / _DAY_S
    hide_unasked: bool = False
    evict_unhealthy: bool = False
    ineffective_words: str = "report"
    privileged_sidecars: str = "allow"
    take_default_scheduler: bool = True
    limiter_log: str | None = None
    defaults: Defaults = field(default=Defaults())
    resources: Mapping[str, str] = field(factory=dict)
    memory_factors: Mapping[str, int] = field(factory=dict)
    node_selector: Mapping[str, str] = field(factory=dict)
    runtime_classes: Mapping[str, str] = field(factory=dict)
    vendors: tuple[str, ...] | None = None
    nodes: Mapping[str, Mapping[str, Any]] = field(factory=dict)

    def of_node(self, node_name: str) -> NodeSettings:
        """Return the node settings that the cluster sets for a node, which tenants share."""
        node_settings = NodeSettings(vendors=self.vendors, on_debt=OnDebt.END)
        for pattern, document in self.nodes.items():
            if fnmatchcase(node_name, pattern):
                node_settings = read_settings(document, node_settings)
        return node_settings

    def registry(self, environ: Mapping[str, str] = os.environ) -> Registry:
        """Return the vendors that a service may run: what its machine's settings say counts more.

        That is the rule of the agents, too.
        """
        node_settings = load_settings(environ, NodeSettings(vendors=self.vendors))
        return Registry(allowed=node_settings.vendors)

    def vocabulary(self, registry: Registry) -> Vocabulary:
        """Return the resource names of all vendors, as this cluster has renamed them.

        Which vendors are left out, and why, is in the log. Raises `BadInput` for names that nobody
        knows, unless a vendor that was left out may.
        """
        declarations, failures = registry.declared()
        for failure in failures:
            log.warning("vendor left out: %s", failure)
        known_resources = {
            resource
            for vendor in declarations
            for resource_names in vendor.resource_names
            for resource in resource_names.resources
        }
        faults = [
            f"no vendor knows the resource {resource!r}"
            for resource in self.resources
            if resource not in known_resources
        ]
        faults += [
            f"memory-factors: no vendor has memory by the resource {resource!r}"
            for resource in self.memory_factors
            if not any(
                resource in resource_names.memory
                for vendor in declarations
                for resource_names in vendor.resource_names
            )
        ]
        faults += [
            f"runtime-classes: there is no vendor {vendor_name!r}"
            for vendor_name in self.runtime_classes
            if vendor_name not in [vendor.name for vendor in declarations]
        ]
        for fault in faults:
            if not failures:
                raise BadInput(f"settings: {fault}")
            log.warning("settings: %s of those that work here", fault)
        renamed_vendors = tuple(self._renamed(vendor) for vendor in declarations)
        return Vocabulary(vendors=renamed_vendors, defaults=self.defaults)

    def _renamed(self, vendor: Vendor) -> Vendor:
        def new(resource: str | None) -> str | None:
            return None if resource is None else self.resources.get(resource, resource)

        def renamed(resource_names: ResourceNames) -> ResourceNames:
            return evolve(
                resource_names,
                count=self.resources.get(resource_names.count, resource_names.count),
                memory=tuple(
                    self.resources.get(resource, resource) for resource in resource_names.memory
                ),
                memory_percent=new(resource_names.memory_percent),
                core=tuple(
                    self.resources.get(resource, resource) for resource in resource_names.core
                ),
                priority=new(resource_names.priority),
                memory_unit=resource_names.memory_unit
                * max(
                    (self.memory_factors.get(resource, 1) for resource in resource_names.memory),
                    default=1,
                ),
            )

        return evolve(vendor, resource_names=tuple(map(renamed, vendor.resource_names)))


def load(path: Path | None) -> Settings:
    """Return the settings in a file, the defaults without one. Raises `BadInput`."""
    if path is None:
        return Settings()
    try:
        return read(path.read_text(), source_name=f"settings {path}")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"settings {path}: {error}") from None


def read(toml_text: str, *, source_name: str) -> Settings:
    """Return the settings in a text; `source_name` names it in errors. Raises `BadInput`."""
    try:
        return _settings(tomllib.loads(toml_text))
    except (BadInput, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"{source_name}: {error}") from None


def with_placements(
    cluster_settings: Settings, *, node_placement: str, device_placement: str
) -> Settings:
    """Return the settings with other placement policies. Raises `BadInput`."""
    return evolve(
        cluster_settings,
        node_placement=_one_of({"node": node_placement}, "node", _NODE_PLACEMENTS),
        device_placement=_one_of({"device": device_placement}, "device", _DEVICE_PLACEMENTS),
    )


def _settings(document: Mapping[str, Any]) -> Settings:
    _known(document, *_WORDS, *_TABLES)
    defaults = document.get("defaults", {})
    _known(defaults, *_DEFAULTS)
    compat = _COMPAT[_one_of(document, "compat", (*_COMPAT,))] if "compat" in document else {}
    document = {**compat, **document}
    defaults = {**compat.get("defaults", {}), **defaults}
    memory_factors = document.get("memory-factors", {})
    for resource, factor in memory_factors.items():
        is_number = isinstance(factor, int) and not isinstance(factor, bool)
        if not is_number or not 1 <= factor <= _LARGEST_FACTOR:
            raise BadInput(
                f"memory-factors.{resource!r} {factor!r} is not a whole number "
                f"from 1 to {_LARGEST_FACTOR}"
            )
    node_selector = document.get("node-selector", {})
    renamed_resources = document.get("resources", {})
    classes = document.get("runtime-classes", {})
    for node_table, section in (
        (renamed_resources, "resources"),
        (classes, "runtime-classes"),
        (node_selector, "node-selector"),
    ):
        if not all(isinstance(renamed, str) for renamed in node_table.values()):
            raise BadInput(f"{section}: a name is a text")
    vendors = document.get("vendors", {})
    _known(vendors, "allow")
    document_by_pattern = document.get("nodes", {})
    if not isinstance(document_by_pattern, dict) or not all(
        isinstance(node_document, dict) for node_document in document_by_pattern.values()
    ):
        raise BadInput('nodes is a table of tables: write [nodes."*".cards]')
    for pattern, node_table in document_by_pattern.items():
        try:
            read_settings(node_table)
        except BadInput as error:
            raise BadInput(f"nodes.{pattern!r}: {error}") from None
    default_count = defaults.get("count", 1)
    if not isinstance(default_count, int) or isinstance(default_count, bool) or default_count < 0:
        raise BadInput(
            f"defaults.count {default_count!r} is not a whole number, 0 (none is added) or more"
        )
    days = document.get("half-life-days", HALF_LIFE_S / _DAY_S)
    if isinstance(days, bool) or not isinstance(days, (int, float)) or not 0 < days <= _MOST_DAYS:
        raise BadInput(f"half-life-days {days!r} is not a number above 0 and up to {_MOST_DAYS}")
    return Settings(
        hide_unasked=_truth(document, "hide-unasked"),
        evict_unhealthy=_truth(document, "evict-unhealthy"),
        privileged_sidecars=_one_of(document, "privileged-sidecars", _SIDECARS),
        take_default_scheduler=_truth(document, "take-default-scheduler", default=True),
        ineffective_words=_one_of(document, "ineffective-words", _INEFFECTIVE),
        limiter_log=_one_of(defaults, "limiter-log", _LOG_LEVELS)
        if "limiter-log" in defaults
        else None,
        choose=_one_of(document, "choose", _CHOICES),
        half_life_days=days,
        node_placement=_one_of(document, "node-placement", _NODE_PLACEMENTS),
        device_placement=_one_of(document, "device-placement", _DEVICE_PLACEMENTS),
        defaults=Defaults(
            count=default_count,
            memory=parse_memory(str(defaults["memory"])) if "memory" in defaults else None,
            core=parse_percent(str(defaults["core"]), of="defaults.core")
            if "core" in defaults
            else None,
            policy=Policy(_one_of(defaults, "policy", ("fixed", "elastic"))),
            unlimited=not _truth(defaults, "core-limit", default=True),
            high_unlimited=not _truth(defaults, "high-priority-core-limit", default=True),
            whole_exclusive=_one_of(defaults, "whole-memory", _WHOLE) == "exclusive",
        ),
        memory_factors=memory_factors,
        node_selector=node_selector,
        resources=renamed_resources,
        runtime_classes=classes,
        vendors=read_settings({"vendors": vendors}).vendors,
        nodes=document_by_pattern,
    )


def _known(table: Mapping[str, Any], *known_keys: str) -> None:
    for table_key in table:
        if table_key not in known_keys:
            raise BadInput(f"{table_key!r} is not known: there are {', '.join(known_keys)}")


def _truth(table: Mapping[str, Any], table_key: str, *, default: bool = False) -> bool:
    is_on = table.get(table_key, default)
    if not isinstance(is_on, bool):
        raise BadInput(f"{table_key} {is_on!r} is neither true nor false")
    return is_on


def _one_of(table: Mapping[str, Any], table_key: str, choices: tuple[str, ...]) -> str:
    choice = str(table.get(table_key, choices[0]))
    if choice not in choices:
        raise BadInput(f"{table_key} {choice!r} is none of {', '.join(choices)}")
    return choice
