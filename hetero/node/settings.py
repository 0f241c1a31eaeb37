"""The node's settings: one small TOML file, checked word by word."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from hetero.model.names import did_you_mean
from hetero.model.units import parse_memory
from hetero.node.ledger.rows import Periods

#: Where the settings are when $HETERO_CONFIG does not say otherwise; no file means the defaults.
DEFAULT = Path("/etc/hetero/node.toml")
_MOST_SHARERS = 1000
#: Why cards are cordoned that the settings exclude.
_EXCLUDED = "excluded by the node's settings"
_PARTITIONED = "partitioned, which the node's settings exclude"


class Partitioned(str, Enum):
    """What becomes of cards that are partitioned already."""

    MIXED = "mixed"  # given out by their parts, as other cards are shared
    SINGLE = "single"  # given out where all cards of their vendor are partitioned alike
    NONE = "none"  # not given out


class Sharing(str, Enum):
    """By what the programs on a card share it."""

    TIME = "time"  # one after the other, in time slices that a limiter keeps
    MPS = "mps"  # at the same time, through a service of the card's vendor


class OnDebt(str, Enum):
    """What is done about a grant that owes device time and goes on while others have work."""

    REPORT = "report"  # said in the log, and in the events of a pod
    END = "end"  # its processes are ended, too


#: The least part of a card that a node gives out: a percent, the least of core that is cut.
_LEAST_FACTOR = Decimal("0.01")
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

    [scale]             # factors, 1 unless set
    memory = 1.5        # what does not fit on a card then lies with the host, and is slower; below
                        # 1 the rest of the card is given to nobody
    core = 2

    [cards]
    max_sharers = 10    # how many may share a card; at most as many as its driver can, if that cuts
    memory = "119Gi"    # of cards whose driver does not say what they have (unified memory)
    exclude = ["ab12"]  # cards that are not given out: a UUID, "vendor:index", or a view's number
    partitioned = "mixed"  # cards that are partitioned already (see `Partitioned`)
    sharing = "time"    # or "mps": by a service of the vendor's; or [cards.sharing], with a line
                        # for a card, named as above: 0 = "mps"; "*" is the others
    soft = []           # vendors whose cards a limiter shares, by 1 % and 1 MiB, instead of slices

    [count]
    context = true      # what the driver takes for a program counts as its memory; false: it does
                        # not, and the card needs room for it beside all grants

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
    on_debt = "report"   # or "end": of a grant with work in flight that owes others over a second
    ignore = ["agentd"]  # executables, by name or path, that are never ended; vendors' monitors
                         # of cards unless set
    """

    memory_scale: Decimal = Decimal(1)
    core_scale: Decimal = Decimal(1)
    max_sharers: int | None = None
    card_memory: int | None = None
    exclude: tuple[str | int, ...] = ()
    partitioned: Partitioned = Partitioned.MIXED
    sharing: Mapping[str, Sharing] = field(factory=dict)
    soft: tuple[str, ...] = ()
    context: bool = True
    vendors: tuple[str, ...] | None = None
    quota: Quota = _EACH
    user_quotas: Mapping[str, Quota] = field(factory=dict)
    group_quotas: Mapping[str, Quota] = field(factory=dict)
    on_excess: OnExcess = OnExcess.REFUSE
    on_bypass: OnBypass = OnBypass.REPORT
    on_debt: OnDebt = OnDebt.REPORT
    ignore: tuple[str, ...] | None = None
    periods: Periods = field(factory=Periods)

    def offered(
        self,
        devices: Iterable[Device],
        *,
        limiter_vendors: AbstractSet[str],
        serving_vendors: AbstractSet[str] = frozenset(),
    ) -> tuple[Device, ...]:
        """Return what this node gives out of its devices.

        A limiter of ours shares the cards of `limiter_vendors`. Those of `serving_vendors` may be
        shared by a service. A device that breaks a rule of the settings is listed as unhealthy,
        with that reason. One that they exclude is listed as cordoned: who holds it is seen, and
        the numbers of the others stay. Raises `BadInput` for a name that may be of several.
        """
        if self.soft:
            from hetero.plugin.vendor import with_software_limiter  # here: few nodes set it

        devices = [
            with_software_limiter(device) if device.vendor in self.soft else device
            for device in map(self._sized, devices)
        ]
        excluded_uuids = {
            card.uuid for entry in self.exclude if (card := _card("cards.exclude", entry, devices))
        }
        sharing_by_uuid = {
            card.uuid: sharing
            for entry, sharing in self.sharing.items()
            if entry != _ALL and (card := _card("cards.sharing", entry, devices))
        }
        devices = [
            evolve(device, cordon=_EXCLUDED, excluded=True)
            if device.uuid in excluded_uuids
            else device
            for device in devices
        ]
        if self.partitioned is Partitioned.NONE:
            devices = [
                evolve(device, cordon=_PARTITIONED, excluded=True) if device.partitioned else device
                for device in devices
            ]
        if self.partitioned is Partitioned.SINGLE:
            devices = list(map(_counted, _alike(devices)))
        devices = [
            self._shared(device, sharing_by_uuid.get(device.uuid), serving_vendors)
            for device in devices
        ]
        return tuple(self.scaled(self._limited(device, limiter_vendors)) for device in devices)

    @property
    def by_number(self) -> bool:
        """Whether the settings name a card by its number, which takes all vendors' cards."""
        return any(str(entry).isdecimal() for entry in (*self.exclude, *self.sharing))

    def unmatched(self, devices: Sequence[Device], vendor_names: Sequence[str]) -> tuple[str, ...]:
        """Return a sentence for each name of a card that none of `devices` has.

        And for each name of a vendor that is none of the installed ones.
        """
        entries = [
            *(("cards.exclude", entry) for entry in self.exclude),
            *(("cards.sharing", entry) for entry in self.sharing if entry != _ALL),
        ]
        unknown_vendors = (
            f"cards.soft names {name!r}, and no vendor of that name is installed"
            + did_you_mean(name, vendor_names)
            for name in self.soft
            if name not in vendor_names
        )
        unknown_cards = (
            f"{setting_key} names {str(entry)!r}, and no card of this machine is that: "
            "`hetero inventory --wide` lists them"
            for setting_key, entry in entries
            if _card(setting_key, entry, devices) is None
        )
        return (*unknown_vendors, *unknown_cards)

    def _sized(self, device: Device) -> Device:
        """Return a device with the memory that the settings say where its driver says none."""
        if self.card_memory is None or not device.size_unsaid:
            return device
        return evolve(device, health=None, capacity={**device.capacity, MEMORY: self.card_memory})

    def _shared(
        self, device: Device, own_sharing: Sharing | None, serving_vendors: AbstractSet[str]
    ) -> Device:
        """Return a device with how it is shared; one that no limiter shares stays as it is."""
        sharing = own_sharing or self.sharing.get(_ALL, Sharing.TIME)
        if sharing is Sharing.TIME or device.enforcement is not Enforcement.PRELOAD:
            return device
        if device.vendor in serving_vendors:
            return evolve(device, enforcement=Enforcement.SERVICE)
        if own_sharing is None or not device.usable:
            return device
        reason = (
            f"cards.sharing says {own_sharing.value}, and {device.vendor} has no service for that"
        )
        return evolve(device, health=reason)

    def scaled(self, device: Device) -> Device:
        """Return `device` with the capacity this node promises of it.

        A percentage still means a percentage of the card itself, of its memory at most what is
        promised. Only what is cut freely can be promised more than once, or in part: a whole card
        or a shape of it is there or not.
        """
        if self.memory_scale == self.core_scale == 1:
            return device
        if not isinstance(device.granularity, Fractional):
            return device
        factors = {MEMORY: self.memory_scale, CORE: self.core_scale}
        capacity = {
            counter: int(amount * factors.get(counter, 1))
            for counter, amount in device.capacity.items()
        }
        own = {**device.capacity, MEMORY: min(device.capacity[MEMORY], capacity[MEMORY])}
        return evolve(device, capacity=capacity, card=own)

    def _limited(self, device: Device, limiter_vendors: AbstractSet[str]) -> Device:
        if self.max_sharers is None or not isinstance(device.granularity, Fractional):
            return device
        has_no_own_limit = (
            device.vendor in limiter_vendors and device.enforcement is not Enforcement.PARTITION
        )
        slot_count = (
            self.max_sharers if has_no_own_limit else min(self.max_sharers, device.capacity[SLOTS])
        )
        return evolve(device, capacity={**device.capacity, SLOTS: slot_count})


def _card(setting_key: str, entry: str | int, devices: Sequence[Device]) -> Device | None:
    """Return the card that an entry of the settings names, None if there is none.

    A number that is one card's in the views and another's of its driver is refused: a machine's
    driver numbers cards otherwise, and such an entry may be older than that vendor's cards.
    Raises `BadInput`.
    """
    card_name = str(entry)
    for device in devices:
        if device.uuid.lower() == card_name.lower():
            return device
    from hetero.placement.match import named  # here: few nodes name cards

    matching_devices = named(devices, card_name)
    if card_name.isdecimal():
        matching_devices += [
            device
            for device in devices
            if device.index == int(card_name) and device not in matching_devices
        ]
    if len(matching_devices) > 1:
        choices = ", ".join(
            f'"{device.vendor}:{device.index}"' if card_name.isdecimal() else f'"{device.uuid}"'
            for device in matching_devices
        )
        raise BadInput(f"{setting_key} {entry!r} may be any of {choices}: write which one it is")
    return matching_devices[0] if matching_devices else None


def _alike(devices: Iterable[Device]) -> Iterator[Device]:
    """Yield the devices; those not partitioned as the first of their vendor are unhealthy."""
    device_list = list(devices)
    shape_by_vendor: dict[str, str] = {}
    for device in device_list:
        for shape in sorted(_shapes(device)):
            shape_by_vendor.setdefault(device.vendor, shape)
    for device in device_list:
        wanted_shape = shape_by_vendor.get(device.vendor)
        if wanted_shape is None or not device.usable or _shapes(device) == {wanted_shape}:
            yield device
        else:
            reason = f"not cut into {wanted_shape} alone, as this node's settings want"
            yield evolve(device, health=reason)


def _counted(device: Device) -> Device:
    """Return the device with parts that count as devices, if it is partitioned."""
    if not isinstance(device.granularity, Templated) or device.granularity.whole:
        return device
    return evolve(device, granularity=evolve(device.granularity, counted=True))


def _shapes(device: Device) -> frozenset[str]:
    return device.shapes if device.partitioned else frozenset()


def load_settings(environ: Mapping[str, str], base: NodeSettings | None = None) -> NodeSettings:
    """Return the settings of this node, over `base`. Raises `BadInput` with the line to mend."""
    config_path = environ.get("HETERO_CONFIG")
    path = Path(config_path) if config_path else DEFAULT
    try:
        toml_text = path.read_text()
    except FileNotFoundError:
        if config_path:
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
        return read_settings(tomllib.loads(toml_text, parse_float=Decimal), base)
    except (tomllib.TOMLDecodeError, BadInput) as error:
        raise BadInput(f"settings {path}: {error}") from None


def read_settings(document: Mapping[str, Any], base: NodeSettings | None = None) -> NodeSettings:
    """Return `base` with what the document says instead. Raises `BadInput`."""
    base_settings = base or NodeSettings()
    table_names = ("scale", "cards", "count", "vendors", "quota", "gangs", "heterod")
    _expect(document, known_keys=table_names)
    scale, cards, count, vendors, quota, gangs, heterod = (
        _table(document, table_name) for table_name in table_names
    )
    _expect(scale, known_keys=("memory", "core"))
    _expect(
        cards, known_keys=("max_sharers", "memory", "exclude", "partitioned", "sharing", "soft")
    )
    _expect(count, known_keys=("context",))
    _expect(vendors, known_keys=("allow",))
    _expect(quota, known_keys=("memory", "core", "grants", "users", "groups"))
    _expect(gangs, known_keys=("period", "overrun"))
    _expect(heterod, known_keys=("on_excess", "on_bypass", "on_debt", "ignore"))
    context = count.get("context", base_settings.context)
    if not isinstance(context, bool):
        raise BadInput(f"count.context {context!r} is not true or false")
    return NodeSettings(
        memory_scale=_factor("memory", scale.get("memory", base_settings.memory_scale)),
        core_scale=_factor("core", scale.get("core", base_settings.core_scale)),
        max_sharers=_max_sharers(cards.get("max_sharers", base_settings.max_sharers)),
        card_memory=_memory("cards.memory", cards["memory"])
        if "memory" in cards
        else base_settings.card_memory,
        exclude=_names(cards.get("exclude", base_settings.exclude)),
        partitioned=_word(
            "cards.partitioned", cards.get("partitioned", base_settings.partitioned), Partitioned
        ),
        sharing=_sharing(cards["sharing"], base_settings.sharing)
        if "sharing" in cards
        else base_settings.sharing,
        soft=_texts("cards.soft", "vendors", cards.get("soft", base_settings.soft)),
        context=context,
        vendors=_texts("vendors.allow", "distributions", vendors["allow"])
        if "allow" in vendors
        else base_settings.vendors,
        quota=_quota(quota, base_settings.quota, path="quota"),
        user_quotas=_quotas(quota, "users", base_settings.user_quotas),
        group_quotas=_quotas(quota, "groups", base_settings.group_quotas),
        on_excess=_word(
            "heterod.on_excess", heterod.get("on_excess", base_settings.on_excess), OnExcess
        ),
        on_debt=_word("heterod.on_debt", heterod.get("on_debt", base_settings.on_debt), OnDebt),
        on_bypass=_word(
            "heterod.on_bypass", heterod.get("on_bypass", base_settings.on_bypass), OnBypass
        ),
        ignore=_texts("heterod.ignore", "executables", heterod["ignore"])
        if "ignore" in heterod
        else base_settings.ignore,
        periods=_periods(gangs, base_settings.periods),
    )


def _periods(table: Mapping[str, Any], base_periods: Periods) -> Periods:
    """Return how time is cut for gangs; the settings say it in milliseconds."""

    def nanoseconds(setting_key: str, least_ms: int, most_ms: int) -> int:
        period_ms = table[setting_key]
        is_number = isinstance(period_ms, int) and not isinstance(period_ms, bool)
        if not is_number or not least_ms <= period_ms <= most_ms:
            raise BadInput(
                f"gangs.{setting_key} {period_ms!r} is not a whole number "
                f"from {least_ms} to {most_ms}"
            )
        return int(period_ms) * 1_000_000

    return Periods(
        period_ns=nanoseconds("period", 40, 400) if "period" in table else base_periods.period_ns,
        overrun_ns=nanoseconds("overrun", 1, 1000)
        if "overrun" in table
        else base_periods.overrun_ns,
    )


def _quotas(
    table: Mapping[str, Any], section: str, base: Mapping[str, Quota]
) -> Mapping[str, Quota]:
    """Return the quotas of the users or groups in a table, on top of the earlier settings."""
    quota_tables = _table(table, section, within="quota.")
    empty_quota = _EACH if section == "users" else Quota()
    quotas = dict(base)
    for table_name in quota_tables:
        quota_table = _table(quota_tables, table_name, within=f"quota.{section}.")
        _expect(quota_table, known_keys=("memory", "core", "grants"))
        quotas[table_name] = _quota(quota_table, empty_quota, path=f"quota.{section}.{table_name}")
    return quotas


def _quota(table: Mapping[str, Any], base_quota: Quota, *, path: str) -> Quota:
    limits: dict[str, int | None] = {"core": base_quota.core, "grants": base_quota.grants}
    for limit_name in limits:
        limit = table.get(limit_name, limits[limit_name])
        if limit is not None and (
            not isinstance(limit, int) or isinstance(limit, bool) or limit < 0
        ):
            raise BadInput(f"{path}.{limit_name} {limit!r} is not a whole number, 0 or more")
        limits[limit_name] = limit
    memory = _memory(f"{path}.memory", table["memory"]) if "memory" in table else base_quota.memory
    return Quota(memory=memory, **limits)


def _memory(setting_key: str, setting: object) -> int:
    """Return the bytes that a setting says. Raises `BadInput`."""
    if not isinstance(setting, str) or setting.strip().endswith("%"):
        raise BadInput(f'{setting_key} {setting!r} is not a size: write "40Gi"')
    return parse_memory(setting)


def _table(document: Mapping[str, Any], table_name: str, *, within: str = "") -> Mapping[str, Any]:
    table = document.get(table_name, {})
    if not isinstance(table, dict):
        raise BadInput(f"{within}{table_name} is a table: write [{within}{table_name}]")
    return table


def _expect(table: Mapping[str, Any], *, known_keys: tuple[str, ...]) -> None:
    for table_key in table:
        if table_key not in known_keys:
            raise BadInput(
                f"unknown key {table_key!r}: there is [scale] with memory and core, [cards] with "
                "max_sharers, memory, exclude, partitioned, sharing and soft, [count] with "
                "context, [vendors] with allow, [quota] with memory, core, grants, users and "
                "groups, [gangs] with period and overrun, [heterod] with on_excess, on_bypass, "
                "on_debt and ignore, nothing else"
            )


def _factor(setting_key: str, setting: object) -> Decimal:
    is_number = isinstance(setting, int | Decimal | float) and not isinstance(setting, bool)
    factor = Decimal(str(setting)) if is_number else Decimal("nan")
    if factor.is_nan() or not _LEAST_FACTOR <= factor <= 100:
        raise BadInput(
            f"scale.{setting_key} {setting!r} is not a number from {_LEAST_FACTOR} to 100"
        )
    return factor


def _max_sharers(setting: object) -> int | None:
    if setting is None:
        return None
    if (
        not isinstance(setting, int)
        or isinstance(setting, bool)
        or not 1 <= setting <= _MOST_SHARERS
    ):
        raise BadInput(
            f"cards.max_sharers {setting!r} is not a whole number from 1 to {_MOST_SHARERS}"
        )
    return setting


def _names(setting: object) -> tuple[str | int, ...]:
    items = setting if isinstance(setting, list | tuple) else [setting]
    if not all(isinstance(item, str | int) and not isinstance(item, bool) for item in items):
        raise BadInput(f"cards.exclude {setting!r} is not a list of UUIDs and numbers")
    _expect_no_blank("cards.exclude", items)
    return tuple(items)


def _expect_no_blank(setting_key: str, names: Iterable[object]) -> None:
    """Raise `BadInput` for a name without a letter, as of a variable that is not set."""
    if not all(str(name).strip() for name in names):
        raise BadInput(f"{setting_key} has an empty name, which means nothing: leave it out")


def _sharing(setting: object, base_sharing: Mapping[str, Sharing]) -> Mapping[str, Sharing]:
    """Return how cards are shared, by their names, on top of the earlier settings."""
    if not isinstance(setting, dict):
        return {_ALL: _word("cards.sharing", setting, Sharing)}
    _expect_no_blank("cards.sharing", setting)
    sharing = {
        card: _word(f"cards.sharing.{card}", sharing_text, Sharing)
        for card, sharing_text in setting.items()
    }
    return {**base_sharing, **sharing}


def _texts(setting_name: str, noun: str, setting: object) -> tuple[str, ...]:
    if not isinstance(setting, list | tuple) or not all(isinstance(item, str) for item in setting):
        raise BadInput(f"{setting_name} {setting!r} is not a list of names of {noun}")
    _expect_no_blank(setting_name, setting)
    return tuple(setting)


def _word(setting_key: str, setting: object, choices: type[E]) -> E:
    for choice in choices:
        if setting == choice.value:
            return choice
    raise BadInput(
        f"{setting_key} {setting!r} is none of {', '.join(choice.value for choice in choices)}"
    )
