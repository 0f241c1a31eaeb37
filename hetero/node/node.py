"""The node: reads what the vendors discover and what stands in the ledger together.

Grants are made, changed and ended in grants.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import evolve, field

from hetero.model import Allocation, Device, Inventory, Policy, Request
from hetero.model.errors import BadInput, HeteroError, Refused
from hetero.model.frozen import frozen
from hetero.node.card_book import CardBook
from hetero.node.context_sizes import ContextSizes
from hetero.node.current_periods import CurrentPeriods
from hetero.node.daemon_client import DaemonClient, NoAnswer, client_of
from hetero.node.inventory import (
    devices_of,
    grants_by_device,
    inventory_of,
    over_promised,
    sharing_changed,
)
from hetero.node.ledger.grant_dir import USAGE
from hetero.node.ledger.grant_file import DeviceLimit, limit_of
from hetero.node.ledger.holders import holders
from hetero.node.ledger.ledger import ALIVE, Ledger, Snapshot
from hetero.node.ledger.state import check, is_roots, prepare
from hetero.node.native import limiter
from hetero.node.place import KEPT, SYSTEM, persistent_directory, state_directory
from hetero.node.quota import Held, User, expect_within, held_of_quotas
from hetero.node.settings import NodeSettings, load_settings
from hetero.node.simulation import Simulation, entered

if TYPE_CHECKING:
    from hetero.plugin.vendor import Vendor
    from hetero.registry.pauses import Pauses
    from hetero.registry.registry import Discovery, Registry


@frozen(kw_only=True)
class Node:
    """One machine as one user sees it.

    `daemon` is heterod where it serves root's ledger to this user: then `ledger` is that one, which
    this user reads. Elsewhere each user has a ledger, and `system` is root's: what root gave out
    counts here too, what other users gave out is not seen. `aside` is called before a vendor makes
    or destroys slices, which may take seconds and needs no ledger.
    """

    _registry: Registry | Callable[[], Registry]
    ledger: Ledger
    cards: CardBook | None = None
    settings: NodeSettings = field(factory=NodeSettings)
    system: Ledger | None = None
    daemon: DaemonClient | None = None
    simulation: Simulation | None = None
    environ: Mapping[str, str] = field(factory=dict, repr=False)
    aside: Callable[[], object] = field(default=lambda: None, repr=False)

    @classmethod
    def here(cls, environ: Mapping[str, str] = os.environ) -> Node:
        """Return the node this program runs on, as its environment says.

        Its devices are simulated where the program entered a simulation (simulation.py).
        """
        entered_simulation = entered(environ)

        def within(directory: Path) -> Path:
            # Simulated grants never mix with real ones, nor those of two racks.
            return directory / entered_simulation.name if entered_simulation else directory

        uid = os.geteuid()
        user_dir = state_directory(environ, uid=uid)
        machine_dir = user_dir if environ.get("HETERO_STATE") else SYSTEM
        daemon_client = _daemon_of(machine_dir, within(machine_dir))
        ledger_path, system_path = (
            within(machine_dir if daemon_client else user_dir),
            within(SYSTEM),
        )
        own_kept = persistent_directory(environ, uid=uid)
        persistent_path = None if daemon_client else own_kept
        if daemon_client is None:
            check(user_dir)
            check(ledger_path)
        settings = load_settings(environ)
        cards = CardBook(
            within(own_kept or (KEPT if daemon_client else user_dir)),
            others=() if own_kept or daemon_client else (within(KEPT),),
        )
        return cls(
            registry=cache(
                partial(_registry_of, settings, cards, ledger_path, environ=dict(environ))
            ),
            ledger=Ledger(
                ledger_path,
                persistent=within(persistent_path) if persistent_path else None,
                periods=CurrentPeriods(environ, settings.periods),
            ),
            cards=cards,
            settings=settings,
            system=Ledger(system_path) if system_path != ledger_path and uid != 0 else None,
            daemon=daemon_client,
            simulation=entered_simulation,
            environ=dict(environ),
        )

    @property
    def registry(self) -> Registry:
        """The vendors; what asks them is imported once they are asked."""
        return self._registry() if callable(self._registry) else self._registry

    @property
    def with_threads(self) -> Node:
        """The same for a program with threads, in which vendors' processes cannot be forked."""
        from hetero.registry.fault_notes import FaultMemory
        from hetero.registry.fork_server import ForkServer  # here: no command needs sockets for it
        from hetero.registry.registry import Registry

        simulator_variables = self.simulation.environment(self.environ) if self.simulation else {}
        starter = ForkServer({**self.environ, **simulator_variables})
        registry = Registry(
            starter=starter,
            allowed=self.settings.vendors,
            soft=self.settings.soft,
            pauses=_pauses(self.ledger.path),
            watch=True,
            faults=self.cards or FaultMemory(),
        )
        return evolve(self, registry=registry)

    @property
    def unseen(self) -> str | None:
        """Say that other users' grants are not seen, where that is so.

        A ledger in $HETERO_STATE is private on purpose, and in a pod, such as the agent's, nobody
        installs heterod for the machine.
        """
        if any(map(self.environ.get, ("HETERO_STATE", "KUBERNETES_SERVICE_HOST"))) or self.daemon:
            return None
        client = client_of(self.ledger.path)  # root's: it writes the ledger by itself
        if client and client.answers():
            return None
        return (
            "grants that other users made are not seen: `hetero install`, as root, gives this "
            "machine one ledger for all"
        )

    def unseen_news(self) -> str | None:
        """Return `unseen` where this ledger has not told it since the boot, and note that it did.

        `doctor` shows it each time.
        """
        if self.told_path.exists() or not self.unseen:
            return None
        with suppress(OSError, HeteroError):
            prepare(self.ledger.path)
            self.told_path.touch()
        return self.unseen

    @property
    def told_path(self) -> Path:
        """The file that says that `unseen` was told."""
        return self.ledger.path / "unseen-told"

    def discover(
        self, *, names: Collection[str] | None = None, anew: bool = False, links: bool = True
    ) -> Discovery:
        """Return the devices this node gives out, with the capacity it promises of them.

        `names` asks these vendors alone, unless the settings name a card by its number. `anew`
        asks also those that were absent a moment ago. Without `links` devices have none.
        """
        asked_names = None if self.settings.by_number else names
        discovery = self.registry.discover(names=asked_names, anew=anew, links=links)
        for vendor in discovery.vendors:
            if vendor.name in self.settings.soft and not vendor.limiter:
                raise BadInput(f"cards.soft: no limiter shares the cards of {vendor.name}")
        limiter_vendors = {vendor.name for vendor in discovery.vendors if vendor.limiter}
        devices = self.settings.offered(
            discovery.devices, limiter_vendors=limiter_vendors, serving_vendors=discovery.serving
        )
        declared = {vendor.name: vendor.context_bytes for vendor in discovery.vendors}
        devices = ContextSizes(self.ledger.path).noted(
            devices, declared, counts_context=self.settings.context
        )
        return evolve(discovery, devices=self.cards.noted(devices) if self.cards else devices)

    def snapshot(self) -> Snapshot:
        """Return all that stands on this node's devices, as far as this user can see."""
        return self.with_system(self.ledger.snapshot())

    def limits_of(
        self, allocation: Allocation, devices: Mapping[str, Device]
    ) -> tuple[DeviceLimit, ...]:
        """Return the limits for the grant file, one for each piece."""
        counts_context = self.settings.context if allocation.context is None else allocation.context
        return tuple(
            limit_of(piece, devices[piece.device], context=counts_context, strict=allocation.strict)
            for piece in allocation.pieces
        )

    def expect_within_quota(
        self,
        allocation: Allocation,
        snapshot: Snapshot,
        devices: Mapping[str, Device],
        asker: User | None = None,
    ) -> None:
        """Raise `Refused` if `allocation`, on top of `snapshot`, is more than the asker may hold.

        heterod's settings say that; while it is away those that this user reads do.
        """
        if asker:
            held_quotas = held_of_quotas(self.settings, asker, snapshot.grants, devices)
            expect_within(held_quotas, allocation, devices)
        elif self.daemon:
            try:
                held_quotas = self.daemon.hurried.quotas()
            except NoAnswer:
                user = User.of(os.geteuid())
                held_quotas = held_of_quotas(self.settings, user, snapshot.grants, devices)
            expect_within(held_quotas, allocation, devices)

    def held_of_quotas(self, asker: User) -> tuple[Held, ...]:
        """Return what a user holds of each of its quotas."""
        devices = devices_of(self.discover())
        return held_of_quotas(self.settings, asker, self.snapshot().grants, devices)

    def processes(self, grant_ids: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """Return the processes that hold each grant, as far as this user can see."""
        return holders({grant_id: self.files(grant_id) for grant_id in grant_ids})

    def directory(self, grant_id: str) -> Path:
        """Return the directory of a grant that this user sees."""
        own_directory = self.ledger.directory(grant_id)
        return (
            own_directory
            if self.system is None or own_directory.exists()
            else self.system.directory(grant_id)
        )

    def files(self, grant_id: str) -> list[Path]:
        """Return the files that the users of a grant hold open."""
        return [self.directory(grant_id) / file_name for file_name in (ALIVE, USAGE)]

    def with_system(self, snapshot: Snapshot) -> Snapshot:
        """Return `snapshot` and what root gave out."""
        if self.system is None:
            return snapshot
        system_snapshot = self.system.snapshot()
        return Snapshot(
            grants=snapshot.grants + system_snapshot.grants,
            unreadable=snapshot.unreadable + system_snapshot.unreadable,
            stale=snapshot.stale,
        )

    def softly(self, allocation: Allocation) -> tuple[str, ...]:
        """Return the vendors of its devices that the settings have shared by a limiter."""
        return tuple(sorted(allocation.vendors & set(self.settings.soft)))

    def inventory(self, discovery: Discovery, snapshot: Snapshot) -> Inventory:
        """Return the devices with what stands on them; those that are held back are cordoned."""
        inventory = inventory_of(discovery, snapshot)
        reason_by_uuid = self._reasons_held_back(inventory.devices, snapshot)
        devices = tuple(
            evolve(device, cordon=reason)
            if device.cordon is None and (reason := reason_by_uuid.get(device.uuid))
            else device
            for device in inventory.devices
        )
        return evolve(inventory, devices=devices)

    def held_back(self, device: Device, snapshot: Snapshot) -> str | None:
        """Return why nothing new is given of a device until standing grants end, None if it is.

        Its programs run on: neither the card nor they are at fault.
        """
        return self._reasons_held_back([device], snapshot).get(device.uuid)

    def _reasons_held_back(self, devices: Collection[Device], snapshot: Snapshot) -> dict[str, str]:
        """Return `held_back` of those devices that are, by UUID; each grant is looked at once."""
        from hetero.registry.message import SHOWN_LENGTH  # here: a view asks no vendor

        vendors = {device.vendor for device in devices}
        reason_by_vendor = {vendor: self._uncertain(vendor, snapshot) for vendor in vendors}
        grants_by_uuid = grants_by_device(snapshot.grants)
        over_by_uuid = over_promised(devices, snapshot, counts_context=self.settings.context)
        reasons = (
            reason_by_vendor[device.vendor]
            or sharing_changed(device, grants_by_uuid.get(device.uuid, ()))
            or over_by_uuid.get(device.uuid)
            for device in devices
        )
        return {
            device.uuid: reason[:SHOWN_LENGTH]
            for device, reason in zip(devices, reasons, strict=True)
            if reason
        }

    def expect_certain(self, snapshot: Snapshot, vendors: Iterable[str]) -> None:
        """Raise `Refused` where it is not known what standing grants take of vendors' devices."""
        for vendor in sorted(vendors):
            reason = self._uncertain(vendor, snapshot)
            if reason:
                raise Refused(reason)

    def _uncertain(self, vendor: str, snapshot: Snapshot) -> str | None:
        """Return why it is not known what standing grants take of a vendor's devices.

        A grant that cannot be read may be of any vendor. Usage of hardware slices cannot be
        compared with usage of shares that the software limiter keeps.
        """
        for unreadable_grant in snapshot.unreadable:
            return (
                f"grant {unreadable_grant.id} stands but cannot be read, "
                f"so what is free is not known: `hetero release --force {unreadable_grant.id}` "
                f"ends it ({unreadable_grant.reason})"
            )
        for grant in snapshot.grants:
            was_shared_by_limiter = vendor in grant.soft
            is_shared_by_limiter = vendor in self.settings.soft
            if vendor in grant.allocation.vendors and was_shared_by_limiter != is_shared_by_limiter:
                cause = "shared by a limiter" if was_shared_by_limiter else "cut into slices"
                return (
                    f"cards.soft was changed for {vendor} while grant {grant.id} stands, whose "
                    f"cards are {cause}: end that grant, or change the setting back"
                )
        return None

    def discover_for(self, request: Request) -> Discovery:
        """Discover, or raise `NotFound` when what the request names is not on this node."""
        from hetero.node.selection import expect_here  # here: views name nothing

        discovery = self.discover(anew=bool(request.vendor.include), links=request.links)
        expect_here(request, discovery)
        return discovery

    def limiters(self, allocation: Allocation, vendors: Iterable[Vendor]) -> tuple[Path, ...]:
        """Return the libraries that hold a program to its grants, of what `vendors` declare."""
        if allocation.policy is Policy.OFF:
            return ()
        driver_apis = {vendor.limiter for vendor in vendors if vendor.name in allocation.vendors}
        return tuple(limiter(driver_api) for driver_api in sorted(filter(None, driver_apis)))


def numbered(
    allocation: Allocation, vendors: Iterable[Vendor], env: Mapping[str, str]
) -> dict[str, str]:
    """Return those variables of `env` in which a limiter takes numbers, with the grant's devices.

    A grant of several vendors has none: each vendor's driver sees only its own devices.
    """
    numbers_text = ",".join(map(str, range(len(allocation.pieces))))
    return {
        variable: numbers_text
        for vendor in vendors
        if {vendor.name} == allocation.vendors and vendor.visible_by == "number" and vendor.limiter
        for variable in vendor.visible
        if variable in env
    }


def _registry_of(
    settings: NodeSettings, cards: CardBook, ledger_path: Path, *, environ: Mapping[str, str]
) -> Registry:
    """Return the vendors that the settings allow, with the notes of a ledger."""
    from hetero.registry.absences import Absences  # here: a view of the ledger asks no vendor
    from hetero.registry.registry import Registry

    return Registry(
        allowed=settings.vendors,
        soft=settings.soft,
        pauses=_pauses(ledger_path),
        faults=cards,
        absences=Absences(ledger_path / "absent.json", partial(prepare, ledger_path), environ),
    )


def _pauses(state_dir: Path) -> Pauses:
    """Return the state directory's notes about vendors that are paused."""
    from hetero.registry.pauses import Pauses

    return Pauses(state_dir / "vendors.json", partial(prepare, state_dir))


def _daemon_of(machine_directory: Path, ledger_path: Path) -> DaemonClient | None:
    """Return heterod as a plain user meets it: by its socket, in a ledger that is root's."""
    if os.geteuid() == 0 or not is_roots(machine_directory) or not is_roots(ledger_path):
        return None
    return client_of(ledger_path)
