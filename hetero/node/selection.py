"""Checks that what a request names is on this node, before its sizes are looked at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hetero.model import Ask, Device, Refusal, Request, Selector
from hetero.model.errors import BadInput, NotFound, Refused
from hetero.model.names import did_you_mean
from hetero.placement.match import named, named_twice
from hetero.registry.registry import Discovery
from hetero.registry.vendor_row import VendorRow


def refused(refusal: Refusal, request: Request) -> NotFound | Refused:
    """Return the error for a refusal, with what the asker may not have meant to ask."""
    if refusal.missing:
        return NotFound(refusal.missing)
    sentence = refusal.sentence
    if all(ask.memory is None and ask.memory_percent is None for ask in request.asks):
        sentence += " (memory was not given, so all of a card's was asked)"
    return Refused(sentence)


def expect_here(request: Request, discovery: Discovery) -> None:
    """Raise `NotFound` for a name that no device has, and for names that no device has together.

    Raises `BadInput` for a device that is named twice.
    """
    _expect_vendors(request.vendor, discovery.rows)
    devices = discovery.devices
    if not devices:
        raise NotFound(_no_device(discovery))
    models = dict.fromkeys(device.model for device in devices)
    _expect_parts(request.model, models, noun="model", lists=f"(here: {', '.join(models)})")
    uuids = [device.uuid for device in devices]
    _expect_parts(request.uuid, uuids, noun="UUID", lists="(`hetero inventory --wide` lists them)")
    if any(ask.device is not None for ask in request.asks):
        twice = named_twice(devices, request)
        if twice:
            raise BadInput(twice)
    for ask in dict.fromkeys(request.asks):
        _expect_together(ask, request, devices)


def _expect_vendors(wanted: Selector, vendor_rows: Iterable[VendorRow]) -> None:
    rows = {row.name: row for row in vendor_rows}
    installed = {name.lower(): row for name, row in rows.items()}
    for name in (*wanted.include, *wanted.exclude):
        row = installed.get(name.lower())
        if row is None:
            titles = {row.title or row.name: row.name for row in rows.values()}
            have = ", ".join(rows) or "none"
            raise NotFound(
                f"no vendor {name!r} is installed (installed: {have})"
                + did_you_mean(name, rows, aliases=titles)
            )
        if not row.works and name in wanted.include:
            raise NotFound(f"vendor {row.name} is {row.state}: {row.reason}")


def _expect_parts(wanted: Selector, names: Iterable[str], *, noun: str, lists: str) -> None:
    """Raise `NotFound` when parts of names are none of any device's: one of `include` is enough."""
    for parts in filter(None, (wanted.include, *((part,) for part in wanted.exclude))):
        if not any(Selector(include=parts).allows(name) for name in names):
            unknown = ", ".join(map(repr, parts))
            raise NotFound(f"no {noun} {unknown} here {lists}{did_you_mean(parts[0], names)}")


def _expect_together(ask: Ask, request: Request, devices: Sequence[Device]) -> None:
    """Raise `NotFound` where each name is some device's and no device has them all."""
    meant = devices if ask.device is None else named(devices, ask.device)
    if meant and not any(request.chooses(device) for device in meant):
        raise NotFound(
            f"no device here is chosen by {', '.join(_choices(ask, request))}"
            + (" together" if len([*_choices(ask, request)]) > 1 else "")
        )


def _choices(ask: Ask, request: Request) -> Iterator[str]:
    """Yield what a device is chosen by, as the options are called."""
    if ask.device is not None:
        yield f"device {ask.device!r}"
    for option, choice in (
        ("vendor", request.vendor),
        ("model", request.model),
        ("uuid", request.uuid),
        ("enforcement", request.enforcement),
    ):
        yield from (f"{option} {name!r}" for name in choice.include)
        yield from (f"exclude-{option} {name!r}" for name in choice.exclude)


def _no_device(discovery: Discovery) -> str:
    """Return the sentence about a machine without devices: only broken vendors are named."""
    broken = [row for row in discovery.rows if row.state not in ("absent", "untrusted")]
    why = "; ".join(f"{row.name} is {row.state}: {row.reason}" for row in broken)
    if not discovery.rows:
        why = "no vendor is installed"
    return (
        f"no device here ({why or 'no driver is installed'}; see `hetero vendors`): "
        "without a card, try `export HETERO_RACK=mixed`"
    )
