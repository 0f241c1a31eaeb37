"""The node's settings: one small TOML file, checked word by word."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from attrs import evolve, field

from hetero.model import (
    CORE,
    MEMORY,
    SLOTS,
    Device,
    Enforcement,
    Fractional,
    OnBypass,
    OnExcess,
    Templated,
)
from hetero.model.errors import BadInput
from hetero.model.frozen import frozen
from hetero.model.units import parse_memory
from hetero.node.ledger.rows import Periods
from hetero.plugin.vendor import shared_softly

#: Where the settings are when $HETERO_CONFIG does not say otherwise; no file means the defaults.
DEFAULT = Path("/etc/hetero/node.toml")
_MOST_SHARERS = 1000


class Partitioned(str, Enum):
    """What becomes of cards that are partitioned already."""

    MIXED = "mixed"  # given out by their parts, beside cards that are shared
    SINGLE = "single"  # given out where all cards of their vendor are partitioned alike
    NONE = "none"  # not given out


class Sharing(str, Enum):
    """By what the programs on a card share it."""

    TIME = "time"  # one after the other, in time slices that a limiter keeps
    MPS = "mps"  # at the same time, through a service of the card's vendor


#: What names all cards that are not named by themselves.
_ALL = "*"


@frozen(kw_only=True)
class Quota:
    """The most that may be held of this machine: bytes over all cards, percent of a card, grants.

    None is no limit.
    """

    memory: int | None = None
    core: int | None = None
    grants: int | None = None


#: What a user may hold where the settings say nothing: it bounds the ledger's directory.
_EACH = Quota(grants=64)


E = TypeVar("E", bound=Enum)


@frozen(kw_only=True)
class NodeSettings:
    """What the node gives out of its devices, and what counts as a program's memory.

    [scale]             # factors, at least 1 and 1 unless set
    memory = 1.5        # what does not fit on a card then lies with the host, and is slower
    core = 2

    [cards]
    max_sharers = 10    # how many may share a card; at most as many as its driver can, if that cuts
    exclude = ["ab12"]  # UUIDs, or the driver's indices, that are not given out
    partitioned = "mixed"  # cards that are partitioned already (see `Partitioned`)
    sharing = "time"    # or "mps": by a service of the vendor's; or [cards.sharing], with a line
                        # for a card, by UUID or the driver's index: 0 = "mps"; "*" is the others
    soft = []           # vendors whose cards a limiter shares, by 1 % and 1 MiB, instead of slices

    [count]
    context = true      # the driver's memory for a program counts against its grant; else not

    [vendors]
    allow = ["hetero-a"] # distributions whose vendors may be run here; all unless set

    [quota]             # what each user but root may hold of the machine's ledger (heterod)
    memory = "40Gi"     # over all cards
    core = 100          # percent of a card, over all cards; no core limit counts as 100
    grants = 16         # 64 unless set
    [quota.users.alice] # what this user may hold, in place of the above
    memory = "80Gi"
    [quota.groups.lab]  # what the members of a group may hold together
    core = 300

    [gangs]             # grants of several devices, which have all of them at the same time
    period = 100        # milliseconds, 40 to 400: each has its part of every one
    overrun = 100       # for how long one may run over the end of its part; a period unless set

    [heterod]            # what is done where a grant does not say (hetero run --help)
    on_excess = "refuse" # or "report", "kill"
    on_bypass = "report" # or "kill"
    ignore = ["agentd"]  # executables, by name or path, that are never ended; vendors' monitors
                         # of cards unless set
    """

    memory_scale: Decimal = Decimal(1)
    core_scale: Decimal = Decimal(1)
    max_sharers: int | None = None
    exclude: tuple[str | int, ...] = ()
    partitioned: Partitioned = Partitioned.MIXED
    sharing: Mapping[str, Sharing] = field(factory=dict)
    soft: tuple[str, ...] = ()
    context: bool = False
    vendors: tuple[str, ...] | None = None
    quota: Quota = _EACH
    user_quotas: Mapping[str, Quota] = field(factory=dict)
    group_quotas: Mapping[str, Quota] = field(factory=dict)
    on_excess: OnExcess = OnExcess.REFUSE
    on_bypass: OnBypass = OnBypass.REPORT
    ignore: tuple[str, ...] | None = None
    periods: Periods = field(factory=Periods)

    def offered(
        self,
        devices: Iterable[Device],
        *,
        limited: AbstractSet[str],
        serving: AbstractSet[str] = frozenset(),
    ) -> tuple[Device, ...]:
        """Return what this node gives out of its devices.

        A limiter of ours shares those of the vendors in `limited`; those in `serving` have a
        service that may share theirs.
        A device that breaks a rule of the settings is there but unhealthy, for that reason.
        """
        devices = [shared_softly(d) if d.vendor in self.soft else d for d in devices]
        left = [d for d in devices if d.uuid not in self.exclude and d.index not in self.exclude]
        if self.partitioned is Partitioned.NONE:
            left = [device for device in left if not _partitioned(device)]
        if self.partitioned is Partitioned.SINGLE:
            left = list(_alike(left))
        left = [self._shared(device, serving) for device in left]
        return tuple(self.scaled(self._limited(device, limited)) for device in left)

    def _shared(self, device: Device, serving: AbstractSet[str]) -> Device:
        """Return a device with how it is shared; one that no limiter shares stays as it is."""
        own = self.sharing.get(device.uuid) or self.sharing.get(str(device.index))
        sharing = own or self.sharing.get(_ALL, Sharing.TIME)
        if sharing is Sharing.TIME or device.enforcement is not Enforcement.PRELOAD:
            return device
        if device.vendor in serving:
            return evolve(device, enforcement=Enforcement.SERVICE)
        if own is None or not device.usable:
            return device
        why = f"cards.sharing says {own.value}, and {device.vendor} has no service for that"
        return evolve(device, health=why)

    def scaled(self, device: Device) -> Device:
        """Return `device` with the capacity this node promises of it.

        A percentage still means a percentage of the card itself. Only what is cut freely can be
        promised more than once: a whole card or a shape of it is there or not.
        """
        if self.memory_scale == self.core_scale == 1:
            return device
        if not isinstance(device.granularity, Fractional):
            return device
        factors = {MEMORY: self.memory_scale, CORE: self.core_scale}
        capacity = {
            name: int(amount * factors.get(name, 1)) for name, amount in device.capacity.items()
        }
        return evolve(device, capacity=capacity, card=device.capacity)

    def _limited(self, device: Device, limited: AbstractSet[str]) -> Device:
        if self.max_sharers is None or not isinstance(device.granularity, Fractional):
            return device
        free = device.vendor in limited and device.enforcement is not Enforcement.PARTITION
        slots = self.max_sharers if free else min(self.max_sharers, device.capacity[SLOTS])
        return evolve(device, capacity={**device.capacity, SLOTS: slots})


def _alike(devices: Iterable[Device]) -> Iterator[Device]:
    """Yield the devices, unhealthy where their vendor's are partitioned and they not like those."""
    given = list(devices)
    first: dict[str, str] = {}
    for device in given:
        for shape in sorted(_shapes(device)):
            first.setdefault(device.vendor, shape)
    for device in given:
        wanted = first.get(device.vendor)
        if wanted is None or not device.usable or _shapes(device) == {wanted}:
            yield device
        else:
            why = f"not cut into {wanted} alone, as this node's settings want"
            yield evolve(device, health=why)


def _partitioned(device: Device) -> bool:
    """Return whether the device is cut already, so that it is only given by its parts."""
    return isinstance(device.granularity, Templated) and not device.granularity.whole


def _shapes(device: Device) -> frozenset[str]:
    return device.shapes if _partitioned(device) else frozenset()


def load_settings(environ: Mapping[str, str], base: NodeSettings | None = None) -> NodeSettings:
    """Return the settings of this node, over `base`. Raises `BadInput` with the line to mend."""
    named = environ.get("HETERO_CONFIG")
    path = Path(named) if named else DEFAULT
    try:
        text = path.read_text()
    except FileNotFoundError:
        if named:
            raise BadInput(f"settings {path}: no such file (HETERO_CONFIG names it)") from None
        return base or NodeSettings()
    except OSError as error:
        raise BadInput(f"settings {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"settings {path}: not a text in UTF-8") from None
    if sys.version_info >= (3, 11):  # here: most nodes have no settings, and need no parser
        import tomllib
    else:
        import tomli as tomllib

    try:
        return read_settings(tomllib.loads(text, parse_float=Decimal), base)
    except (tomllib.TOMLDecodeError, BadInput) as error:
        raise BadInput(f"settings {path}: {error}") from None


def read_settings(document: Mapping[str, Any], base: NodeSettings | None = None) -> NodeSettings:
    """Return `base` with what the document says instead. Raises `BadInput`."""
    was = base or NodeSettings()
    tables = ("scale", "cards", "count", "vendors", "quota", "gangs", "heterod")
    _expect(document, known=tables)
    scale, cards, count, vendors, quota, gangs, heterod = (
        _table(document, name) for name in tables
    )
    _expect(scale, known=("memory", "core"))
    _expect(cards, known=("max_sharers", "exclude", "partitioned", "sharing", "soft"))
    _expect(count, known=("context",))
    _expect(vendors, known=("allow",))
    _expect(quota, known=("memory", "core", "grants", "users", "groups"))
    _expect(gangs, known=("period", "overrun"))
    _expect(heterod, known=("on_excess", "on_bypass", "ignore"))
    context = count.get("context", was.context)
    if not isinstance(context, bool):
        raise BadInput(f"count.context {context!r} is not true or false")
    return NodeSettings(
        memory_scale=_factor("memory", scale.get("memory", was.memory_scale)),
        core_scale=_factor("core", scale.get("core", was.core_scale)),
        max_sharers=_max_sharers(cards.get("max_sharers", was.max_sharers)),
        exclude=_names(cards.get("exclude", was.exclude)),
        partitioned=_word(
            "cards.partitioned", cards.get("partitioned", was.partitioned), Partitioned
        ),
        sharing=_sharing(cards["sharing"], was.sharing) if "sharing" in cards else was.sharing,
        soft=_texts("cards.soft", "vendors", cards.get("soft", was.soft)),
        context=context,
        vendors=_texts("vendors.allow", "distributions", vendors["allow"])
        if "allow" in vendors
        else was.vendors,
        quota=_quota(quota, was.quota, path="quota"),
        user_quotas=_quotas(quota, "users", was.user_quotas),
        group_quotas=_quotas(quota, "groups", was.group_quotas),
        on_excess=_word("heterod.on_excess", heterod.get("on_excess", was.on_excess), OnExcess),
        on_bypass=_word("heterod.on_bypass", heterod.get("on_bypass", was.on_bypass), OnBypass),
        ignore=_texts("heterod.ignore", "executables", heterod["ignore"])
        if "ignore" in heterod
        else was.ignore,
        periods=_periods(gangs, was.periods),
    )


def _periods(table: Mapping[str, Any], was: Periods) -> Periods:
    """Return how time is cut for gangs; the settings say it in milliseconds."""

    def nanoseconds(name: str, least: int, most: int) -> int:
        value = table[name]
        numeric = isinstance(value, int) and not isinstance(value, bool)
        if not numeric or not least <= value <= most:
            raise BadInput(f"gangs.{name} {value!r} is not a whole number from {least} to {most}")
        return int(value) * 1_000_000

    return Periods(
        period=nanoseconds("period", 40, 400) if "period" in table else was.period,
        overrun=nanoseconds("overrun", 1, 1000) if "overrun" in table else was.overrun,
    )


def _quotas(table: Mapping[str, Any], kind: str, was: Mapping[str, Quota]) -> Mapping[str, Quota]:
    """Return the quotas of the users or groups that a table names, over what was set before."""
    entries = _table(table, kind, within="quota.")
    none = _EACH if kind == "users" else Quota()
    made = dict(was)
    for name in entries:
        entry = _table(entries, name, within=f"quota.{kind}.")
        _expect(entry, known=("memory", "core", "grants"))
        made[name] = _quota(entry, none, path=f"quota.{kind}.{name}")
    return made


def _quota(table: Mapping[str, Any], was: Quota, *, path: str) -> Quota:
    memory = table.get("memory")
    if memory is not None and (not isinstance(memory, str) or memory.strip().endswith("%")):
        raise BadInput(f'{path}.memory {memory!r} is not a size: write "40Gi"')
    counts: dict[str, int | None] = {"core": was.core, "grants": was.grants}
    for name in counts:
        value = table.get(name, counts[name])
        if value is not None and (
            not isinstance(value, int) or isinstance(value, bool) or value < 0
        ):
            raise BadInput(f"{path}.{name} {value!r} is not a whole number, 0 or more")
        counts[name] = value
    return Quota(memory=was.memory if memory is None else parse_memory(memory), **counts)


def _table(document: Mapping[str, Any], name: str, *, within: str = "") -> Mapping[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise BadInput(f"{within}{name} is a table: write [{within}{name}]")
    return table


def _expect(table: Mapping[str, Any], *, known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            raise BadInput(
                f"unknown key {key!r}: there is [scale] with memory and core, [cards] with "
                "max_sharers, exclude, partitioned, sharing and soft, [count] with context, "
                "[vendors] with allow, [quota] with memory, core, grants, users and groups, "
                "[gangs] with period and overrun, [heterod] with on_excess, on_bypass and ignore, "
                "nothing else"
            )


def _factor(name: str, value: object) -> Decimal:
    numeric = isinstance(value, int | Decimal | float) and not isinstance(value, bool)
    factor = Decimal(str(value)) if numeric else Decimal("nan")
    if factor.is_nan() or not 1 <= factor <= 100:
        raise BadInput(f"scale.{name} {value!r} is not a number from 1 to 100")
    return factor


def _max_sharers(value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST_SHARERS:
        raise BadInput(
            f"cards.max_sharers {value!r} is not a whole number from 1 to {_MOST_SHARERS}"
        )
    return value


def _names(value: object) -> tuple[str | int, ...]:
    listed = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(name, str | int) and not isinstance(name, bool) for name in listed):
        raise BadInput(f"cards.exclude {value!r} is not a list of UUIDs and indices")
    return tuple(listed)


def _sharing(value: object, was: Mapping[str, Sharing]) -> Mapping[str, Sharing]:
    """Return how cards are shared, by UUID or index, over what was said before."""
    if not isinstance(value, dict):
        return {_ALL: _word("cards.sharing", value, Sharing)}
    sharings = {name: _word(f"cards.sharing.{name}", one, Sharing) for name, one in value.items()}
    return {**was, **sharings}


def _texts(name: str, of: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise BadInput(f"{name} {value!r} is not a list of names of {of}")
    return tuple(value)


def _word(name: str, value: object, choices: type[E]) -> E:
    for choice in choices:
        if value == choice.value:
            return choice
    raise BadInput(f"{name} {value!r} is none of {', '.join(choice.value for choice in choices)}")
