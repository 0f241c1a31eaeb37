"""What all services of a cluster share: one small TOML file, checked word by word."""

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
from hetero.node.settings import NodeSettings, load_settings, read_settings
from hetero.placement.demand import HALF_LIFE
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
_MOST_DAYS, _DAY = 3650, 86_400
_WORDS = (
    "node-placement",
    "device-placement",
    "choose",
    "half-life-days",
    "hide-unasked",
    "evict-unhealthy",
)
_TABLES = ("defaults", "resources", "runtime-classes", "vendors", "nodes")


@frozen(kw_only=True)
class Settings:
    """How this cluster schedules.

    node-placement = "fragmentation"    # what leaves the least useless; or binpack or spread
    device-placement = "fragmentation"  # the same of the devices of a node
    choose = "one"                # filter answers the first choice alone; score: all that serve
    half-life-days = 7            # a pod that came so long ago counts half of one that comes now
    hide-unasked = false          # true: vendors' runtimes give pods that ask for no card none

    evict-unhealthy = false       # true: pods with claims leave cards that are not well (NoExecute)

    [defaults]                    # for pods that do not say
    count = 1
    memory = "4Gi"                # of each card; not given: all of it
    core = 30                     # percent of each card; not given: no limit
    policy = "fixed"              # fixed or elastic
    core-limit = true             # false: core is counted and limits nobody

    [resources]                   # other names for resources
    "vendor.com/cards" = "example.com/cards"

    [runtime-classes]             # what a vendor's pods get that name no runtimeClassName
    vendor = "vendor-runtime"

    [vendors]
    allow = ["hetero-a"]          # distributions whose vendors the services and the agents may run

    [nodes."*".cards]             # by a pattern of nodes' names any table of a node's settings
    max_sharers = 10              # of two patterns for a node the later one counts
    [nodes."*".heterod]
    on_bypass = "kill"            # a program without a limiter is ended, where its pod does not say
    [nodes."old-*".scale]
    memory = 1.5                  # what does not fit on a card then lies with the host
    """

    node_placement: str = "fragmentation"
    device_placement: str = "fragmentation"
    choose: str = "one"
    half_life_days: float = HALF_LIFE / _DAY
    hide_unasked: bool = False
    evict_unhealthy: bool = False
    defaults: Defaults = field(default=Defaults())
    resources: Mapping[str, str] = field(factory=dict)
    runtime_classes: Mapping[str, str] = field(factory=dict)
    vendors: tuple[str, ...] | None = None
    nodes: Mapping[str, Mapping[str, Any]] = field(factory=dict)

    def of_node(self, name: str) -> NodeSettings:
        """Return what the cluster says of a node."""
        chosen = NodeSettings(vendors=self.vendors)
        for pattern, document in self.nodes.items():
            if fnmatchcase(name, pattern):
                chosen = read_settings(document, chosen)
        return chosen

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
        declared, left_out = registry.declared()
        for why in left_out:
            log.warning("vendor left out: %s", why)
        known = {
            name
            for vendor in declared
            for resource_names in vendor.resource_names
            for name in resource_names.resources
        }
        unknown = [
            f"no vendor knows the resource {name!r}" for name in self.resources if name not in known
        ]
        unknown += [
            f"runtime-classes: there is no vendor {name!r}"
            for name in self.runtime_classes
            if name not in [vendor.name for vendor in declared]
        ]
        for what in unknown:
            if not left_out:
                raise BadInput(f"settings: {what}")
            log.warning("settings: %s of those that work here", what)
        vendors = tuple(self._renamed(vendor) for vendor in declared)
        return Vocabulary(vendors=vendors, defaults=self.defaults)

    def _renamed(self, vendor: Vendor) -> Vendor:
        def new(name: str | None) -> str | None:
            return None if name is None else self.resources.get(name, name)

        def renamed(resource_names: ResourceNames) -> ResourceNames:
            return evolve(
                resource_names,
                count=self.resources.get(resource_names.count, resource_names.count),
                memory=tuple(self.resources.get(name, name) for name in resource_names.memory),
                memory_percent=new(resource_names.memory_percent),
                core=tuple(self.resources.get(name, name) for name in resource_names.core),
                priority=new(resource_names.priority),
            )

        return evolve(vendor, resource_names=tuple(map(renamed, vendor.resource_names)))


def load(path: Path | None) -> Settings:
    """Return the settings in a file, the defaults without one. Raises `BadInput`."""
    if path is None:
        return Settings()
    try:
        return read(path.read_text(), source=f"settings {path}")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"settings {path}: {error}") from None


def read(text: str, *, source: str) -> Settings:
    """Return the settings in a text; `source` is where it is from. Raises `BadInput`."""
    try:
        return _settings(tomllib.loads(text))
    except (BadInput, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"{source}: {error}") from None


def with_placements(chosen: Settings, *, node: str, device: str) -> Settings:
    """Return the settings with other placement policies. Raises `BadInput`."""
    return evolve(
        chosen,
        node_placement=_one_of({"node": node}, "node", _NODE_PLACEMENTS),
        device_placement=_one_of({"device": device}, "device", _DEVICE_PLACEMENTS),
    )


def _settings(document: dict[str, Any]) -> Settings:
    _known(document, *_WORDS, *_TABLES)
    defaults = document.get("defaults", {})
    _known(defaults, "count", "memory", "core", "policy", "core-limit")
    names = document.get("resources", {})
    classes = document.get("runtime-classes", {})
    for table, what in ((names, "resources"), (classes, "runtime-classes")):
        if not all(isinstance(name, str) for name in table.values()):
            raise BadInput(f"{what}: a name is a text")
    vendors = document.get("vendors", {})
    _known(vendors, "allow")
    nodes = document.get("nodes", {})
    if not isinstance(nodes, dict) or not all(isinstance(one, dict) for one in nodes.values()):
        raise BadInput('nodes is a table of tables: write [nodes."*".cards]')
    for pattern, table in nodes.items():
        try:
            read_settings(table)
        except BadInput as error:
            raise BadInput(f"nodes.{pattern!r}: {error}") from None
    count = defaults.get("count", 1)
    if not isinstance(count, int) or count < 1:
        raise BadInput(f"defaults.count {count!r} is not a positive whole number")
    days = document.get("half-life-days", HALF_LIFE / _DAY)
    if isinstance(days, bool) or not isinstance(days, (int, float)) or not 0 < days <= _MOST_DAYS:
        raise BadInput(f"half-life-days {days!r} is not a number above 0 and up to {_MOST_DAYS}")
    return Settings(
        hide_unasked=_truth(document, "hide-unasked"),
        evict_unhealthy=_truth(document, "evict-unhealthy"),
        choose=_one_of(document, "choose", _CHOICES),
        half_life_days=days,
        node_placement=_one_of(document, "node-placement", _NODE_PLACEMENTS),
        device_placement=_one_of(document, "device-placement", _DEVICE_PLACEMENTS),
        defaults=Defaults(
            count=count,
            memory=parse_memory(str(defaults["memory"])) if "memory" in defaults else None,
            core=parse_percent(str(defaults["core"]), of="defaults.core")
            if "core" in defaults
            else None,
            policy=Policy(_one_of(defaults, "policy", ("fixed", "elastic"))),
            unlimited=defaults.get("core-limit", True) is False,
        ),
        resources=names,
        runtime_classes=classes,
        vendors=read_settings({"vendors": vendors}).vendors,
        nodes=nodes,
    )


def _known(table: dict[str, Any], *names: str) -> None:
    for name in table:
        if name not in names:
            raise BadInput(f"{name!r} is not known: there are {', '.join(names)}")


def _truth(table: dict[str, Any], name: str) -> bool:
    value = table.get(name, False)
    if not isinstance(value, bool):
        raise BadInput(f"{name} {value!r} is neither true nor false")
    return value


def _one_of(table: dict[str, Any], name: str, choices: tuple[str, ...]) -> str:
    choice = str(table.get(name, choices[0]))
    if choice not in choices:
        raise BadInput(f"{name} {choice!r} is none of {', '.join(choices)}")
    return choice
