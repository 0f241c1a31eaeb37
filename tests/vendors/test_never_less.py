"""Over every model of all vendors: what is given has all that was asked, in the smallest size."""

import random
from collections import Counter
from collections.abc import Iterator
from typing import cast

import hetero_metax
import pytest
from attrs import evolve
from racks import PLUGINS, request

from hetero.cli import _done, _json
from hetero.cli._render import core_limit_of
from hetero.model import (
    CORE,
    MEMORY,
    SLOTS,
    Allocation,
    Ask,
    Device,
    DeviceAllocation,
    Enforcement,
    Granularity,
    Inventory,
    Refusal,
    Usage,
)
from hetero.model.rounding import portion
from hetero.model.units import GiB, MiB, format_memory
from hetero.node.ledger.grant_file import limit_of
from hetero.node.ledger.ledger import Grant
from hetero.node.node import Node
from hetero.node.view.observe import CoreMeter, DeviceView, NodeView, Share, _shares
from hetero.placement import fit
from hetero.plugin import Template, Templated, Vendor
from hetero.plugin.vendor import with_software_limiter
from hetero.testing.sizes import covers, fault_of

#: Cards of these sizes have been sold; the odd ones are what a driver leaves of one.
SIZES = tuple(size * MiB for size in (16384, 21527, 32768, 49152, 65536, 81559, 143771))
#: Instances of an H200 in MIG mode: profile, MiB and sevenths of the core.
INSTANCES = (
    ("1g.18gb", 16384, 1),
    ("1g.35gb", 33280, 1),
    ("2g.35gb", 33280, 2),
    ("3g.71gb", 70656, 3),
)
#: Percent: a limit is written in hundredths, and shown to a tenth.
SHOWN = 0.01
ROUNDED = 0.05 + SHOWN


def device_of(
    vendor: Vendor, model: str, memory_bytes: int, granularity: Granularity | None = None
) -> Device:
    return vendor.device(
        uuid=f"{vendor.name}-{model}-{memory_bytes}",
        model=model,
        index=0,
        memory=memory_bytes,
        enforcement=Enforcement.PARTITION,
        granularity=granularity,
        capacity={CORE: 7} if granularity and isinstance(granularity, Templated) else None,
    )


def every_device() -> Iterator[Device]:
    """Yield a card of every declared model and memory, each as its vendor and as softly shared."""
    for plugin in PLUGINS.values():
        vendor = plugin.hetero_vendor()
        for model in vendor.models:
            largest_bytes = max(
                (template.takes[MEMORY] for template in getattr(model.granularity, "menu", ())),
                default=0,
            )
            for memory_bytes in SIZES:
                if memory_bytes >= largest_bytes:
                    device = device_of(vendor, model.match.replace("*", "X"), memory_bytes)
                    yield from (device, with_software_limiter(device))
    sliced = hetero_metax._SLICED
    yield device_of(hetero_metax.VENDOR, "MXC500", 64 * GiB, sliced)
    parts = tuple(
        Template(name, {MEMORY: mib * MiB, CORE: core}, part=f"MIG-{name}-{number}")
        for number, (name, mib, core) in enumerate(INSTANCES)
    )
    nvidia = PLUGINS["nvidia"].hetero_vendor()
    yield device_of(nvidia, "NVIDIA H200", 143771 * MiB, Templated(parts, whole=False))


DEVICES = tuple(every_device())
DEVICES_BY_VENDOR = {
    vendor_name: [device for device in DEVICES if device.vendor == vendor_name]
    for vendor_name in PLUGINS
}


def random_ask(rng: random.Random, device: Device) -> Ask:
    """Return an ask for a part of a device, often one of its sizes or a byte beside it."""
    core = rng.choice((None, rng.randint(1, 100)))
    kind = rng.randrange(4)
    if kind == 0:
        return Ask(core=core)
    if kind == 1:
        return Ask(memory_percent=rng.randint(1, 100), core=core)
    menu = device.granularity.menu if isinstance(device.granularity, Templated) else ()
    sizes = [template.takes[MEMORY] for template in menu] or [256 * MiB * rng.randint(1, 300)]
    edge = rng.choice(sizes) + rng.choice((-1, 0, 1))
    return Ask(memory=edge if kind == 2 else rng.randint(1, device.capacity[MEMORY]), core=core)


def check(requests: int) -> None:
    """Assert the promise for so many requests, to an empty card and to what others left of it."""
    rng = random.Random(requests)
    for _ in range(requests):
        device = rng.choice(DEVICES)
        ask = random_ask(rng, device)
        cut = portion(device, ask, count=1, free=device.capacity)
        assert fault_of(device, ask, cut) is None, f"{device.model}: {ask}"
        of_several = portion(device, ask, count=rng.randint(2, 8), free=device.capacity)
        assert (cut is None) == (of_several is None)
        assert of_several is None or covers(device, ask, of_several.takes)

        check_machine(rng, device, ask)
        first = fit(Inventory((device,)), request(random_ask(rng, device)))
        standing = (first,) if isinstance(first, Allocation) else ()
        answer = fit(Inventory((device,), standing), request(ask))
        if isinstance(answer, Refusal):
            assert standing or cut is None, f"{device.model}: {ask}: {answer.sentence}"
            continue
        (piece,) = answer.pieces
        assert covers(device, ask, piece.takes), f"{device.model}: {ask}: {piece}"
        said_percent = limit_of(piece, device, context=False).granted_percent
        assert said_percent is None or (ask.core or 0) <= said_percent + SHOWN
        if piece.template is not None:
            shown_percent = 100 * piece.takes[CORE] / device.of_card(CORE)
            assert abs(shown_percent - (said_percent or 0)) < SHOWN
        check_what_is_said(device, answer, Inventory((device,), (*standing, answer)))


def check_machine(rng: random.Random, device: Device, ask: Ask) -> None:
    """Assert that a machine of several cards of one vendor gives the smallest that one of them has.

    The cards are of several models, and others hold parts of them.
    """
    cards = [device, *rng.choices(DEVICES_BY_VENDOR[device.vendor], k=rng.randint(1, 3))]
    machine = tuple(
        evolve(card, uuid=f"{card.uuid}-{number}", index=number)
        for number, card in enumerate(rng.sample(cards, len(cards)))
    )
    standing: tuple[Allocation, ...] = ()
    for _ in range(rng.randrange(2 * len(machine))):
        card = rng.choice(machine)
        held = fit(Inventory((card,), standing), request(random_ask(rng, card)))
        standing += (held,) if isinstance(held, Allocation) else ()

    answer = fit(Inventory(machine, standing), request(ask))
    alone = [(card, fit(Inventory((card,), standing), request(ask))) for card in machine]
    sizes = {
        card.uuid: size_beyond(card, ask, given.pieces[0])
        for card, given in alone
        if isinstance(given, Allocation)
    }
    if isinstance(answer, Refusal):
        assert not sizes, f"{ask}: {answer.sentence}, and {sizes} would do"
        return
    (piece,) = answer.pieces
    (card,) = (card for card in machine if card.uuid == piece.device)
    assert covers(card, ask, piece.takes)
    assert min(sizes.values()) == size_beyond(card, ask, piece), f"{ask}: {sizes}"


def size_beyond(device: Device, ask: Ask, piece: DeviceAllocation) -> tuple[bool, int, int]:
    """Return whether a piece is a card for a part, and what it has beyond the ask.

    That is in MiB and in percent of the core. Of who asks for all of a card nothing is beyond.
    """
    asked_bytes = piece.takes[MEMORY] if ask.memory is None else ask.memory
    if ask.memory_percent is not None:
        asked_bytes = -(-device.of_card(MEMORY) * ask.memory_percent // 100)
    names_size = ask.memory is not None or ask.memory_percent is not None
    is_all = ask.core is None and not (names_size and asked_bytes < device.capacity[MEMORY])
    if is_all:
        return False, 0, 0
    asked_units = -(-device.of_card(CORE) * (ask.core or 0) // 100)
    return (
        piece.is_whole(device),
        (piece.takes[MEMORY] - asked_bytes) // MiB,
        100 * (piece.takes[CORE] - asked_units) // device.of_card(CORE),
    )


def grant_of(answer: Allocation, device: Device) -> Grant:
    return Grant(
        id="4f1c",
        allocation=answer,
        limits=tuple(limit_of(piece, device, context=False) for piece in answer.pieces),
        command=(),
        user="alice",
        since_utc="2026-11-29",
        devices=(device,),
    )


def share_of(answer: Allocation, device: Device) -> Share:
    """Return what ps says of a grant on one device."""
    grant = grant_of(answer, device)
    (share,) = _shares(
        grant,
        grant.limits,
        {},
        bytes_by_device={},
        region=None,
        meter=CoreMeter(cast("Node", None)),
        devices={device.uuid: device},
        excess={},
        seconds_by_device={},
    )
    return share


def check_what_is_said(device: Device, answer: Allocation, inventory: Inventory) -> None:
    """Assert that fit, ps, inventory and metrics say of a grant what it was given."""
    (piece,) = answer.pieces
    given_units = piece.takes[CORE] or None
    given_percent = None if given_units is None else 100 * given_units / device.of_card(CORE)
    (fitted,) = _json.fit(answer, {device.uuid: device})["items"]
    assert (given_percent, piece.takes[MEMORY]) == (fitted["core"], fitted["memory"])

    # Metrics have the same (`DeviceLimit.core_given`), and 100 % in place of no limit.
    share = share_of(answer, device)
    assert piece.takes[MEMORY] == share.memory_bytes
    assert (given_percent is None) == (share.core_percent is None)
    assert abs((given_percent or 0) - (share.core_percent or 0)) < SHOWN
    check_core_text(core_limit_of(share), given_percent)
    if share.core_units is not None:
        assert (given_units, device.of_card(CORE)) == share.core_units

    (granted,) = _json.granted(grant_of(answer, device))["items"]
    (granted_share,) = granted["shares"]
    assert share.memory_bytes == granted_share["memory"]
    assert share.core_percent == granted_share["core"]
    check_line(device, answer, given_percent)

    free = inventory.free()[device.uuid]
    held = {counter: total - free[counter] for counter, total in device.capacity.items()}
    row = DeviceView(device_number=0, device=device, held=held, usage=Usage(), grants=())
    view = NodeView(devices=(row,), grants=(), unreadable=(), vendors=(), rack_file=None)
    document = _json.node(view)
    (listed,) = document["items"]
    assert free[MEMORY] == listed["memory"] - listed["memory_held"]
    assert row.free[MEMORY] == listed["memory_free"] <= free[MEMORY]
    check_free(row, inventory)
    of_others = Counter[str]()
    for allocation in inventory.standing[:-1]:
        for other in allocation.pieces:
            of_others.update(other.takes)
    assert listed["memory_held"] - of_others[MEMORY] == share.memory_bytes
    others_percent = 100 * of_others[CORE] / device.of_card(CORE)
    assert abs(listed["core_held"] - others_percent - (given_percent or 0)) < SHOWN
    assert listed["core_units"] == device.of_card(CORE)
    assert abs(listed["core"] - 100 * device.capacity[CORE] / device.of_card(CORE)) < SHOWN
    assert listed["core_held"] <= listed["core"] + SHOWN
    assert listed["slots_held"] == of_others[SLOTS] + piece.takes[SLOTS]


def check_free(row: DeviceView, inventory: Inventory) -> None:
    """Assert that requests can have what is shown as free, and no other can have anything."""
    core_free = row.free[CORE] > 0
    of_any_size = Ask(memory=1 + row.device.counted_context_bytes)
    one_unit = evolve(of_any_size, core=1, core_of=row.device.of_card(CORE))
    for ask, is_free in (
        (of_any_size, row.free[MEMORY] > 0),
        (one_unit, core_free),
    ):
        answer = fit(inventory, request(ask))
        assert is_free == isinstance(answer, Allocation), f"{row.device.model}: {row.free}: {ask}"
    if isinstance(answer, Allocation):
        (piece,) = answer.pieces
        assert piece.takes[MEMORY] <= row.free[MEMORY]
        assert piece.takes[CORE] <= row.free[CORE]


def check_line(device: Device, answer: Allocation, given_percent: float | None) -> None:
    """Assert that the line which run prints says the memory and the core that were given."""
    (piece,) = answer.pieces
    line, *notes = _done.limits(grant_of(answer, device))
    assert list(answer.notes) == [note.partition("  ")[2] for note in notes]
    _, _, memory_and_core = line.partition("  memory ")
    memory_text, _, core_text = memory_and_core.partition("  ")
    assert memory_text == format_memory(piece.takes[MEMORY])
    if core_text == "all of the core":
        assert given_percent == 100
        return
    core_text, _, template_text = core_text.removeprefix("core ").partition(", by template ")
    assert (piece.template or "") == template_text
    check_core_text(core_text, given_percent)


def check_core_text(core_text: str, given_percent: float | None) -> None:
    if core_text == "no limit":
        assert given_percent is None
        return
    assert given_percent is not None
    assert abs(float(core_text.removesuffix(" %")) - given_percent) <= ROUNDED


def test_every_vendor_has_a_card_among_these() -> None:
    assert set(PLUGINS) == {device.vendor for device in DEVICES}


def test_5000_requests_get_all_that_they_ask_in_the_smallest_size_or_nothing() -> None:
    check(5000)


@pytest.mark.soak
def test_100000_requests_get_all_that_they_ask_in_the_smallest_size_or_nothing() -> None:
    check(100_000)
