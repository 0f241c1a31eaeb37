"""Checks that what a request names is on this node, before its sizes are looked at."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from hetero.model import NOT_CHOSEN, Ask, Device, Refusal, Request, Selector
from hetero.model.errors import BadInput, HeteroError, NoRoom, NotFound
from hetero.model.names import did_you_mean
from hetero.node.place import simulator
from hetero.placement.match import named, named_twice
from hetero.placement.offer import BELOW_CONTEXT
from hetero.registry.registry import Discovery
from hetero.registry.vendor_row import VendorRow


def refused(refusal: Refusal, request: Request) -> HeteroError:
    """Return the error for a refusal, with a hint at what the request left out.

    It is `BadInput` where less was asked of each device than a context takes.
    """
    if refusal.missing:
        return NotFound(refusal.missing)
    sentence = refusal.sentence
    verdicts = {*refusal.verdicts.values()} - {NOT_CHOSEN}
    if verdicts and all(BELOW_CONTEXT in verdict for verdict in verdicts):
        return BadInput(f"{sentence}: ask for more")
    if all(ask.memory is None and ask.memory_percent is None for ask in request.asks):
        sentence += " (memory was not given, so all of a card's was asked)"
    return NoRoom(sentence)


def expect_here(request: Request, discovery: Discovery) -> None:
    """Raise `NotFound` for a name that no device has, and for names that no device has together.

    Raises `BadInput` for a device that is named twice.
    """
    _expect_vendors(request.vendor, discovery.rows)
    devices = discovery.devices
    if not devices:
        raise NotFound(_no_device(discovery))
    models = dict.fromkeys(device.model for device in devices)
    _expect_parts(request.model, models, noun="model", listing=f"(here: {', '.join(models)})")
    device_uuids = [device.uuid for device in devices]
    _expect_parts(
        request.uuid, device_uuids, noun="UUID", listing="(`hetero inventory --wide` lists them)"
    )
    if any(ask.device is not None for ask in request.asks):
        twice_named = named_twice(devices, request)
        if twice_named:
            raise BadInput(twice_named)
    for ask in dict.fromkeys(request.asks):
        _expect_together(ask, request, devices)


def _expect_vendors(selector: Selector, vendor_rows: Iterable[VendorRow]) -> None:
    row_by_name = {row.name: row for row in vendor_rows}
    row_by_lower_name = {vendor_name.lower(): row for vendor_name, row in row_by_name.items()}
    for vendor_name in (*selector.include, *selector.exclude):
        row = row_by_lower_name.get(vendor_name.lower())
        if row is None:
            name_by_title = {row.title or row.name: row.name for row in row_by_name.values()}
            vendor_list = ", ".join(row_by_name) or "none"
            raise NotFound(
                f"no vendor {vendor_name!r} is installed (installed: {vendor_list})"
                + did_you_mean(vendor_name, row_by_name, aliases=name_by_title)
            )
        if not row.works and vendor_name in selector.include:
            raise NotFound(f"vendor {row.name} is {row.state}: {row.reason}")


def _expect_parts(selector: Selector, names: Iterable[str], *, noun: str, listing: str) -> None:
    """Raise `NotFound` when parts of names are none of any device's: one of `include` is enough."""
    for parts in filter(None, (selector.include, *((part,) for part in selector.exclude))):
        if not any(Selector(include=parts).allows(name) for name in names):
            unknown_names = ", ".join(map(repr, parts))
            raise NotFound(
                f"no {noun} {unknown_names} here {listing}{did_you_mean(parts[0], names)}"
            )


def _expect_together(ask: Ask, request: Request, devices: Sequence[Device]) -> None:
    """Raise `NotFound` where each name is some device's and no device has them all."""
    matching_devices = devices if ask.device is None else named(devices, ask.device)
    if matching_devices and not any(request.chooses(device) for device in matching_devices):
        raise NotFound(
            f"no device here is chosen by {', '.join(_choices(ask, request))}"
            + (" together" if len([*_choices(ask, request)]) > 1 else "")
        )


def _choices(ask: Ask, request: Request) -> Iterator[str]:
    """Yield the names by which a request chooses devices, as command options."""
    if ask.device is not None:
        yield f"device {ask.device!r}"
    for option, selector in (
        ("vendor", request.vendor),
        ("model", request.model),
        ("uuid", request.uuid),
        ("enforcement", request.enforcement),
    ):
        yield from (f"{option} {chosen_name!r}" for chosen_name in selector.include)
        yield from (f"exclude-{option} {excluded_name!r}" for excluded_name in selector.exclude)


def _no_device(discovery: Discovery) -> str:
    """Return the sentence about a machine without devices: only broken vendors are named."""
    silent_states = ("absent", "untrusted", "ok")
    broken_rows = [row for row in discovery.rows if row.state not in silent_states]
    reasons = "; ".join(f"{row.name} is {row.state}: {row.reason}" for row in broken_rows)
    if not discovery.rows:
        reasons = "no vendor is installed"
    sentence = f"no device here ({reasons or 'no driver is installed'}; see `hetero vendors`)"
    if os.environ.get("HETERO_RACK"):
        return sentence
    try:
        simulator()
    except HeteroError:
        return sentence
    return f"{sentence}: without a card, try `export HETERO_RACK=mixed`"
