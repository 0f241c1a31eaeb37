"""Checks what would keep a grant from being given or kept, and says what to do about it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from tempfile import TemporaryFile

from attrs import frozen

from hetero.model import Device, Enforcement, Whole
from hetero.model.errors import HeteroError
from hetero.node.daemon_client import DaemonClient, client_of
from hetero.node.foreign import ForeignUse, foreign_uses
from hetero.node.grants import grants_of
from hetero.node.inventory import over_promised
from hetero.node.ledger.grant_dir import GRANT
from hetero.node.ledger.ledger import Grant, Ledger
from hetero.node.ledger.state import prepare
from hetero.node.ledger.usage_region import SIZE
from hetero.node.native import limiter
from hetero.node.node import Node
from hetero.node.other_dra_drivers import other_dra_drivers
from hetero.node.settings import NodeSettings, Partitioned
from hetero.node.tenants.containers import containers
from hetero.node.tenants.owners import Owners
from hetero.node.view.bypass import find_bypass, unowned_memory
from hetero.node.view.enforcement import enforcement_of
from hetero.node.view.excess import compare
from hetero.node.view.gangs import apart, by_hand, clock
from hetero.registry.registry import Discovery
from hetero.registry.vendor_row import VendorRow

#: As the tables say it: there is one limiter, and one kernel.
_PHRASE_BY_ENFORCEMENT = {Enforcement.PRELOAD: "the limiter", Enforcement.KERNEL: "the kernel"}


class Diagnosis(str, Enum):
    """What a finding calls for."""

    OK = "ok"
    NOTE = "note"  # nothing to mend, but good to know
    BAD = "bad"


@frozen
class Finding:
    """A result of doctor: what was checked, the verdict, and what it is or what to do."""

    subject: str
    verdict: Diagnosis
    says: str


def examine(node: Node) -> tuple[Finding, ...]:
    """Return what was found, drivers first."""
    discovery = node.discover(anew=True)
    return (
        *_simulated(node),
        *_settings(node.settings),
        *(
            Finding("settings", Diagnosis.BAD, sentence)
            for sentence in node.settings.unmatched(
                discovery.devices, [row.name for row in discovery.rows]
            )
        ),
        *map(_vendor, discovery.rows),
        *(_device(device, other_dra_drivers(node)) for device in discovery.devices),
        *_over_promised(node, discovery),
        *_limiters(discovery),
        _state(node),
        *_daemon(node),
        *_ledger(node),
        *_slices(node, discovery),
        *_enforcing(node),
        *_bypass(node, discovery),
        *_open_to_each_other(node, discovery),
        *_by_variable(node, discovery),
        *_gangs(node),
    )


def standing_anywhere(node: Node) -> tuple[Grant, ...]:
    """Return all standing grants, also of this user's simulations: an uninstall breaks them."""
    top_directory = node.ledger.path.parent if node.simulation else node.ledger.path
    ledgers = [Ledger(path) for path in (top_directory, *sorted(top_directory.glob("sim-*")))]
    if node.system:
        ledgers.append(node.system)
    return tuple(grant for ledger in ledgers for grant in ledger.snapshot().grants)


def what_for(node: Node, grant: Grant) -> str:
    """Return what a grant is for: its containers by name, its share, or its command."""
    inner_containers = [grant.container] if grant.container else []
    if grant.share:
        containers_by_grant = containers({grant.id: node.directory(grant.id) / GRANT})
        inner_containers += containers_by_grant[grant.id]
    labels = [f"share {grant.share}"] if grant.share else []
    labels += [f"container {container.name}" for container in inner_containers]
    return ", ".join(labels) or shlex.join(grant.command)


def _simulated(node: Node) -> Iterator[Finding]:
    if node.simulation:
        rack = node.simulation.rack
        yield Finding("simulation", Diagnosis.NOTE, f"every device below is simulated by {rack}")


def _settings(settings: NodeSettings) -> Iterator[Finding]:
    """Yield what the settings change about the devices."""
    if settings.memory_scale > 1:
        message = f"is granted {settings.memory_scale} times: what does not fit lies with the host"
        yield Finding("memory", Diagnosis.NOTE, message)
    if settings.core_scale > 1:
        yield Finding("core", Diagnosis.NOTE, f"is granted {settings.core_scale} times")
    excluded_cards = [*map(str, settings.exclude)]
    if settings.partitioned is Partitioned.NONE:
        excluded_cards.append("cards that are partitioned already")
    if excluded_cards:
        yield Finding(
            "left out", Diagnosis.NOTE, f"{', '.join(excluded_cards)}: the settings say so"
        )
    if not settings.context:
        message = "count as no grant's memory: the settings say so"
        yield Finding("contexts", Diagnosis.NOTE, message)


def _vendor(row: VendorRow) -> Finding:
    subject, distribution, device_count = f"vendor {row.name}", row.source, row.devices
    match row.state:
        case "ok":
            count_text = f"{device_count} device{'s' * (device_count != 1)}"
            return Finding(subject, Diagnosis.OK, f"{distribution}: {count_text}")
        case "absent" | "partial" | "untrusted":
            return Finding(subject, Diagnosis.NOTE, f"{distribution}: {row.reason}")
        case _:
            return Finding(
                subject, Diagnosis.BAD, f"{distribution}: {row.reason}: repair or remove it"
            )


def _device(device: Device, driver_by_uuid: Mapping[str, str]) -> Finding:
    """Return how a device is given out, or which other driver gives it out."""
    subject = device.name
    if device.uuid in driver_by_uuid:
        driver = driver_by_uuid[device.uuid]
        message = f"claims get it from driver {driver}, which publishes {device.uuid}, too"
        return Finding(subject, Diagnosis.NOTE, f"{message}: nothing is given of it here")
    if not device.healthy:
        return Finding(subject, Diagnosis.BAD, f"{device.health}: nothing is given of it")
    if not device.usable:
        return Finding(subject, Diagnosis.NOTE, f"{device.condition}: nothing new is given of it")
    if isinstance(device.granularity, Whole):
        return Finding(subject, Diagnosis.OK, "given as a whole")
    if device.enforcement is Enforcement.NONE:
        return Finding(subject, Diagnosis.NOTE, "shares are counted but not enforced")
    meaning = _PHRASE_BY_ENFORCEMENT.get(device.enforcement, f"a {device.enforcement.value}")
    return Finding(subject, Diagnosis.OK, f"shares are kept by {meaning}")


def _over_promised(node: Node, discovery: Discovery) -> Iterator[Finding]:
    """Yield the devices of which standing grants were promised more than there is."""
    reason_by_uuid = over_promised(
        discovery.devices, node.snapshot(), counts_context=node.settings.context
    )
    names = _names(discovery)
    for uuid, reason in reason_by_uuid.items():
        yield Finding(names[uuid], Diagnosis.BAD, f"nothing new is given of it: {reason}")


def _limiters(discovery: Discovery) -> Iterator[Finding]:
    apis = {vendor.limiter for vendor in discovery.vendors}
    for driver_api in sorted(filter(None, apis)):
        yield _limiter(driver_api)


def _limiter(driver_api: str) -> Finding:
    """Load the limiter as `hetero run` does; the dynamic linker says so when it cannot."""
    subject = f"limiter {driver_api}"
    try:
        path = limiter(driver_api)
    except HeteroError as error:
        return Finding(subject, Diagnosis.BAD, str(error))
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", ""],
        env={"LD_PRELOAD": str(path)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if loaded.returncode or loaded.stderr:
        reason = loaded.stderr.strip() or f"exit code {loaded.returncode}"
        return Finding(subject, Diagnosis.BAD, f"does not load ({reason}): build it again")
    return Finding(subject, Diagnosis.OK, f"{path} loads")


def _daemon(node: Node) -> Iterator[Finding]:
    """Yield whether users share one ledger; nothing for a ledger that is private on purpose."""
    client = node.daemon or client_of(node.ledger.path)
    if client:
        yield from _answers(client)
    elif node.unseen:
        yield Finding("heterod", Diagnosis.NOTE, node.unseen)


def _answers(client: DaemonClient) -> Iterator[Finding]:
    """Yield whether heterod answers a question, and what this user holds of its quotas."""
    try:
        held_quotas = client.hurried.quotas()
    except HeteroError as error:
        yield Finding("heterod", Diagnosis.BAD, str(error))
        return
    yield Finding("heterod", Diagnosis.OK, f"all users share {client.path.parent}")
    for owner in dict.fromkeys(held_quota.of for held_quota in held_quotas):
        message = ", ".join(
            held_quota.sentence for held_quota in held_quotas if held_quota.of == owner
        )
        yield Finding(f"quota {owner}", Diagnosis.OK, message)


def _state(node: Node) -> Finding:
    path = node.ledger.path
    try:
        if node.daemon is None:
            prepare(path)
            with TemporaryFile(dir=path) as trial_file:  # what a grant takes there
                trial_file.write(bytes(SIZE))
    except HeteroError as error:
        return Finding("state", Diagnosis.BAD, str(error))
    except OSError as error:
        message = f"{path} takes no grant: {error.strerror}: make room there, or set HETERO_STATE"
        return Finding("state", Diagnosis.BAD, message)
    return Finding("state", Diagnosis.OK, str(path))


def _bypass(node: Node, discovery: Discovery) -> Iterator[Finding]:
    """Yield the devices of unknown usage, and what no limiter counted.

    It is bad where a process of a grant has no limiter, or the grant holds more than its limit.
    """
    snapshot = node.snapshot()
    owner_finder = Owners(node)
    comparison = compare(node, snapshot, discovery.devices, owner_finder)
    for fault in comparison.faults:
        yield Finding("usage", Diagnosis.BAD, f"{fault}: nothing is known of its devices' usage")
    for bypass in find_bypass(node, snapshot, comparison):
        yield Finding(bypass.subject, Diagnosis.BAD, str(bypass))
    use_by_uuid = foreign_uses(node, snapshot, comparison.usages, owner_finder)
    yield from _foreign({device.name: use_by_uuid.get(device.uuid) for device in discovery.devices})
    for excess in comparison.excess.values():
        if excess.is_told:
            verdict = Diagnosis.BAD if excess.is_over else Diagnosis.NOTE
            yield Finding(excess.subject, verdict, excess.what)
    for unowned in unowned_memory(node):
        yield Finding(unowned.subject, Diagnosis.NOTE, str(unowned))


def _names(discovery: Discovery) -> dict[str, str]:
    """Return the names of the devices by UUID."""
    return {device.uuid: device.name for device in discovery.devices}


def _foreign(use_by_card: Mapping[str, ForeignUse | None]) -> Iterator[Finding]:
    """Yield who holds memory of a card without a grant."""
    for card, use in use_by_card.items():
        if use is None:
            continue
        for process in use.processes:
            owner_text = f" of {process.user}" if process.user else ""
            message = (
                f"{process.program or 'a program'}{owner_text} holds "
                f"{process.memory >> 20} MiB of {card} without a grant"
            )
            yield Finding(f"process {process.pid}", Diagnosis.NOTE, message)
        if use.overuse or (use.memory and not use.processes):
            yield Finding(card, Diagnosis.NOTE, use.sentence)


def _open_to_each_other(node: Node, discovery: Discovery) -> Iterator[Finding]:
    """Yield the grants of one device whose programs can reach each other's files."""
    grants_by_device_and_user: dict[tuple[str, str], list[str]] = {}
    for grant in node.snapshot().grants:
        if not grant.is_contained:
            for device_uuid in dict.fromkeys(piece.device for piece in grant.allocation.pieces):
                grants_by_device_and_user.setdefault((device_uuid, grant.user), []).append(grant.id)
    shared_uuids = {device.uuid for device in discovery.devices if device.enforcement.by_limiter}
    names = _names(discovery)
    for (device_uuid, user), grant_ids in grants_by_device_and_user.items():
        if device_uuid in shared_uuids and len(grant_ids) > 1:
            message = f"are programs of {user} without containers: each can write the others' files"
            sentence = f"grants {', '.join(grant_ids)} {message}"
            yield Finding(names[device_uuid], Diagnosis.NOTE, sentence)


def _by_variable(node: Node, discovery: Discovery) -> Iterator[Finding]:
    """Yield the grants whose programs are told their part of a device, and not confined to it."""
    device_by_uuid = {device.uuid: device for device in discovery.devices}
    for grant in node.snapshot().grants:
        uuids = [
            piece.device
            for piece in grant.allocation.pieces
            if enforcement_of(grant, piece, device_by_uuid.get(piece.device))
            is Enforcement.VARIABLE
        ]
        if uuids:
            names = ", ".join(
                device_by_uuid[uuid].name if uuid in device_by_uuid else uuid[:12] for uuid in uuids
            )
            message = (
                f"is told its part of {names}, and not confined to it: a program that ignores that "
                "has the whole card; one in a container does not"
            )
            yield Finding(f"grant {grant.id}", Diagnosis.NOTE, message)


def _gangs(node: Node) -> Iterator[Finding]:
    """Yield what makes rows of gangs useless."""
    for grant_id, message in apart(node):
        yield Finding(f"grant {grant_id}", Diagnosis.NOTE, message)
    if any(map(by_hand, node.snapshot().grants)):
        try:
            timekeeping = clock()
        except OSError as error:
            yield Finding("clock", Diagnosis.NOTE, f"is not known to be kept: {error.strerror}")
            return
        yield Finding(
            "clock", Diagnosis.OK if timekeeping.synchronised else Diagnosis.NOTE, str(timekeeping)
        )


def _ledger(node: Node) -> Iterator[Finding]:
    snapshot = node.snapshot()
    for unreadable_grant in snapshot.unreadable:
        yield Finding(
            f"grant {unreadable_grant.id}",
            Diagnosis.BAD,
            f"stands but {unreadable_grant.reason}; nothing is given until it ends: "
            f"`hetero release --force {unreadable_grant.id}` ends it",
        )
    pids_by_grant = node.processes(grant.id for grant in snapshot.grants)
    for grant in snapshot.grants:
        if not pids_by_grant[grant.id] and not grant.is_contained:
            yield Finding(
                f"grant {grant.id}", Diagnosis.NOTE, "stands by processes this user cannot see"
            )
    message = f"{len(snapshot.grants)} grants stand"
    if snapshot.stale:
        stale_ids = ", ".join(snapshot.stale)
        yield Finding(
            "ledger", Diagnosis.BAD, f"{message}; dead ones cannot be removed: {stale_ids}"
        )
    else:
        yield Finding("ledger", Diagnosis.OK, f"{message}, nothing stale")


def _slices(node: Node, discovery: Discovery) -> Iterator[Finding]:
    """Destroy slices of ended grants, where a vendor makes any."""
    if not any(row.works and node.registry.cuts(row.name) for row in discovery.rows):
        return
    try:
        faults = grants_of(node).sweep()
    except HeteroError as error:
        faults = (str(error),)
    for fault in faults:
        yield Finding("slices", Diagnosis.BAD, f"{fault}: it is tried again at every admission")
    if not faults:
        yield Finding("slices", Diagnosis.OK, "none is left over")


def _enforcing(node: Node) -> Iterator[Finding]:
    """Yield the failures of vendors at the last grant of their devices."""
    for failure in node.registry.failures():
        message = f"{failure}: kept until a grant of its devices succeeds"
        yield Finding("enforce", Diagnosis.BAD, message)
