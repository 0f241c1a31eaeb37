"""Finds the vendors and asks them, one at a time, so that a broken one is a row and no outage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import define, evolve, field

from hetero.model import Allocation, Device, Edits, Inventory, Usage
from hetero.model.errors import NotFound, Refused
from hetero.model.frozen import frozen
from hetero.plugin import hookspecs
from hetero.plugin.service import Service
from hetero.plugin.vendor import Vendor
from hetero.registry.absences import Absence, Absences
from hetero.registry.entry_points import Entry, entries, normalised
from hetero.registry.fault_notes import FaultMemory, FaultNotes
from hetero.registry.message import Serve, WorkerReply, WorkerRequest
from hetero.registry.pauses import Pauses
from hetero.registry.process import Forks, Starter
from hetero.registry.respondent import Plugin, Respondent
from hetero.registry.supervisor import InProcess, Supervisor
from hetero.registry.vendor_row import VendorRow, addressable

if TYPE_CHECKING:
    from hetero.registry.watch import Watch

#: Seconds a vendor may take to answer before the node goes on without it; a driver that hangs must
#: hang nobody else. Cutting hardware into slices is slower than reading it.
DISCOVERY_TIMEOUT_S, ENFORCEMENT_TIMEOUT_S = 5.0, 20.0
#: Seconds after which a second process of a vendor's ends, which has nothing to make or destroy: it
#: occupies 5 to 10 MiB, and another is there after some tens of milliseconds.
SPARE_PROCESS_S = 10.0


@frozen(kw_only=True)
class Discovery:
    """The devices of one discovery, and the declarations they are read by (no resource names).

    The grants of vendors in `cutting` may have slices that outlive their processes. Those in
    `serving` have services that share cards.
    """

    devices: tuple[Device, ...]
    rows: tuple[VendorRow, ...]
    vendors: tuple[Vendor, ...] = ()
    cutting: frozenset[str] = frozenset()
    serving: frozenset[str] = frozenset()

    @property
    def inventory(self) -> Inventory:
        """The devices with nothing standing on them."""
        return Inventory(self.devices)


def installed() -> Iterable[Plugin]:
    """Return every plugin of the entry point group `hetero.plugin.vendor` in this environment."""
    return entries(hookspecs.GROUP)


@frozen
class _Given:
    """A plugin that this program has as an object."""

    name: str
    source: str
    plugin: object
    file: str | None = None

    def load(self) -> object:
        return self.plugin


def given(plugin: object) -> Plugin:
    """Return a plugin that this program has as an object, under the name it has as that."""
    plugin_name = getattr(plugin, "__name__", type(plugin).__name__)
    return _Given(str(plugin_name), "in process", plugin)


@define(eq=False, repr=False)
class _Member:
    """A plugin, its process, and what is known of it so far."""

    plugin: Plugin
    asked: Supervisor | InProcess
    acting: Supervisor | InProcess  # for what takes long: discoveries do not wait for it
    trusted: bool = True
    watch: Watch | None = None
    vendor: Vendor | None = None
    whole: bool = False  # with its models and resource names
    cuts: bool = False
    serves: bool = False
    watches: bool = False
    refused: str | None = None  # why its replies are refused
    last: tuple[Device, ...] = ()  # at its last good answer

    def current_devices(self, faults: Mapping[str, str]) -> list[Device]:
        """Return the devices of its last good reply, with faults that its driver told of once."""
        reasons = {**faults, **(self.watch.unnoted if self.watch else {})}
        return [
            evolve(device, health=reasons[device.uuid]) if reasons.get(device.uuid) else device
            for device in self.last
        ]

    @property
    def source(self) -> str:
        """What it is noted by: its name, and the distribution and version that it came with."""
        return f"{self.plugin.name} of {self.plugin.source}"

    @property
    def title(self) -> str | None:
        """Its title, None where it has not declared itself."""
        return self.vendor.title if self.vendor else None

    def row(self, reply: WorkerReply, title: str | None = None) -> VendorRow:
        """Return its row, but for what `addressable` finds; `title` is its own where it has one."""
        declaration = None if self.refused else self.vendor
        reason = self.refused or reply.failure
        state_and_holds = (
            ("untrusted", not self.trusted),
            ("ok", reason is None),
            ("broken", self.refused is not None),
            ("absent", reply.absent),
            ("stale", bool(self.last)),
            ("broken", True),
        )
        return VendorRow(
            name=declaration.name if declaration else self.plugin.name,
            source=self.plugin.source,
            state=next(state for state, is_so in state_and_holds if is_so),
            reason=reason,
            title=declaration.title if declaration else title,
            file=self.plugin.file,
            trusted=self.trusted,
        )


@define(eq=False, repr=False, slots=False)
class Registry:
    """The vendors of one process, each in a worker process of its own, started when it is needed.

    They are those installed in this environment; `Registry.of(object, ...)` takes others. `starter`
    starts their processes: a program that has threads, or a driver open, needs a `ForkServer`.
    `allowed` are the distributions whose code may be run; None: all. A reply may take `seconds`;
    None: as long as its hook takes at most. `pauses` and `absences` are notes that commands share.
    The vendors in `soft` share cards by a limiter. `faults` are what drivers told of once.
    Long-lived programs with threads `watch` the devices' health, too, and enforce and reconcile in
    a second process, so that a discovery need not wait for a slice.
    """

    _plugins: Callable[[], Iterable[Plugin]] = installed
    _starter: Starter = field(factory=Forks)
    _allowed: Collection[str] | None = None
    _soft: Collection[str] = ()
    _apart: bool = True
    _seconds: float | None = None
    _pauses: Pauses | None = None
    _watch: bool = False
    _faults: FaultNotes = field(factory=FaultMemory)
    _absences: Absences | None = None

    @classmethod
    def of(cls, *plugins: object, apart: bool = False) -> Registry:
        """Return a registry of the given plugin objects, named by their declarations.

        They are asked in this process, without a deadline, unless they are to be `apart`.
        """
        given_plugins = [given(plugin) for plugin in plugins]
        return cls(lambda: given_plugins, apart=apart)

    @cached_property
    def _members(self) -> list[_Member]:
        return [self._new(plugin) for plugin in self._plugins()]

    def _new(self, plugin: Plugin) -> _Member:
        """Return a plugin with its supervisors, if its code may be run."""
        distribution = plugin.source.partition(" ")[0]
        allowed_names = self._allowed
        if allowed_names is not None and normalised(distribution) not in map(
            normalised, allowed_names
        ):
            refusal = (
                f"{distribution or plugin.name} is not among the vendors that the settings allow"
            )
            refusing = InProcess(lambda _: WorkerReply(failure=refusal))
            return _Member(plugin, refusing, refusing, trusted=False)
        if not self._apart:
            in_process = InProcess(Respondent(plugin).answer)
            return _Member(plugin, in_process, in_process)
        acting_supervisor = Supervisor(plugin, self._starter, self._pauses)
        if not self._watch:
            return _Member(plugin, acting_supervisor, acting_supervisor)
        from hetero.registry.watch import Watch  # here: no program that admits and ends watches

        looking_supervisor = Supervisor(plugin, self._starter)
        return _Member(
            plugin,
            looking_supervisor,
            acting_supervisor,
            watch=Watch(plugin, self._starter, self._faults),
        )

    def vendor(self, vendor_name: str) -> Vendor:
        """Return the declaration of a working vendor. Raises `NotFound`."""
        member = self._member(vendor_name)
        if not member.whole:
            request = WorkerRequest(ask="vendor", within_s=self._seconds or DISCOVERY_TIMEOUT_S)
            (reply,) = self._ask_all([member], request)
            if reply.failure is not None:
                raise NotFound(reply.failure)
        assert member.vendor is not None  # noqa: S101 - `_member` saw to it
        return member.vendor

    def plugin(self, vendor_name: str) -> Plugin:
        """Return an installed vendor that may be run, unloaded. Raises `NotFound`."""
        for member in self._members:
            if member.plugin.name == vendor_name and member.trusted:
                return member.plugin
        vendor_names = ", ".join(member.plugin.name for member in self._members if member.trusted)
        raise NotFound(
            f"no vendor {vendor_name!r} is installed and trusted here (there is: {vendor_names})"
        )

    def declarations(self) -> tuple[Vendor, ...]:
        """Return the declarations of all working vendors."""
        return self.declared()[0]

    def declared(self) -> tuple[tuple[Vendor, ...], tuple[str, ...]]:
        """Return the declarations of all working vendors, and the failures of the others."""
        unknown_members = [member for member in self._members if not member.whole]
        request = WorkerRequest(ask="vendor", within_s=self._seconds or DISCOVERY_TIMEOUT_S)
        reply_by_member = dict(
            zip(unknown_members, self._ask_all(unknown_members, request), strict=True)
        )
        declarations = [member.vendor for member in self._members if member.vendor and member.whole]
        failures = [member.refused for member in self._members if member.refused]
        failures += [
            reply.failure or f"{member.plugin.name}: no declaration"
            for member, reply in reply_by_member.items()
            if not member.whole
        ]
        return tuple(declarations), tuple(failures)

    def discover(
        self, *, names: Collection[str] | None = None, anew: bool = False, links: bool = True
    ) -> Discovery:
        """Discover through every vendor, or those named, all at the same time.

        Vendors that were seen to be absent a moment ago are not asked, unless `anew`, or nothing
        else is here. Without `links` devices have none, which takes much less of many devices.
        """
        members = [
            member for member in self._members if names is None or member.plugin.name in names
        ]
        anew = anew or names is not None  # those that are named are here
        noted_faults = self._faults.standing()
        devices_by_vendor: dict[str, list[Device]] = {}
        faults: dict[str, tuple[str, ...]] = {}
        rows: list[VendorRow] = []
        request = WorkerRequest(
            ask="discover", within_s=self._seconds or DISCOVERY_TIMEOUT_S, links=links
        )
        absence_notes: AbstractContextManager[dict[str, Absence]] = (
            self._absences.one_by_one() if self._absences and not anew else nullcontext({})
        )
        with absence_notes as absence_by_source:
            replies = self._discovered(members, request, absence_by_source)
            if absence_by_source and not any(reply.devices for reply in replies):
                absence_by_source.clear()
                replies = self._discovered(members, request, absence_by_source)
            if self._absences and not absence_by_source and names is None:
                self._absences.note(
                    {
                        member.source: Absence(reply.failure or "", member.title)
                        for member, reply in zip(members, replies, strict=True)
                        if reply.absent
                    }
                )
        for member, reply in zip(members, replies, strict=True):
            if member.acting is not member.asked:
                member.acting.rest(SPARE_PROCESS_S)
            absence = absence_by_source.get(member.source)
            row = member.row(reply, absence.title if absence else None)
            rows.append(row)
            if row.state == "ok":
                member.last = reply.devices
                devices_by_vendor[row.name], faults[row.name] = (
                    member.current_devices(noted_faults),
                    reply.faults,
                )
            elif row.state == "stale":
                # A driver that does not answer has not lost its cards: what stands on them does.
                devices_by_vendor[row.name] = [
                    evolve(device, health=row.reason) for device in member.last
                ]
                faults[row.name] = ()
        count_by_uuid = Counter(
            device.uuid for devices in devices_by_vendor.values() for device in devices
        )
        for position, row in enumerate(rows):
            if row.name in devices_by_vendor and row.state in ("ok", "stale"):
                devices_by_vendor[row.name], rows[position] = addressable(
                    row, devices_by_vendor[row.name], faults[row.name], count_by_uuid
                )
        known_members = [member for member in members if member.vendor and not member.refused]
        return Discovery(
            devices=tuple(device for devices in devices_by_vendor.values() for device in devices),
            rows=tuple(rows),
            vendors=tuple(member.vendor for member in known_members if member.vendor),
            cutting=frozenset(
                member.vendor.name for member in known_members if member.vendor and member.cuts
            ),
            serving=frozenset(
                member.vendor.name for member in known_members if member.vendor and member.serves
            ),
        )

    def _discovered(
        self,
        members: Iterable[_Member],
        request: WorkerRequest,
        absence_by_source: Mapping[str, Absence],
    ) -> list[WorkerReply]:
        """Return the reply of each member to a discovery, of those noted as absent without it."""
        reply_by_source = {
            source: WorkerReply(failure=absence.reason, absent=True)
            for source, absence in absence_by_source.items()
        }
        asked_members = [member for member in members if member.source not in reply_by_source]
        replies = self._ask_all(asked_members, request)
        reply_by_source |= {
            member.source: reply for member, reply in zip(asked_members, replies, strict=True)
        }
        return [reply_by_source[member.source] for member in members]

    def enforce(
        self,
        allocation: Allocation,
        devices: Iterable[Device],
        *,
        directory: Path,
        container: bool = False,
    ) -> Edits:
        """Return the edits that confine a container to `allocation`, of all its vendors together.

        Vendors that cut slices keep their notes in subdirectories of `directory`. Raises `Refused`
        when a vendor fails: what cannot be confined is not started. What the others have made by
        then is an orphan, for `reconcile` to remove.
        """
        device_by_uuid = {device.uuid: device for device in devices}
        edits = Edits()
        for vendor_name in dict.fromkeys(piece.vendor for piece in allocation.pieces):
            vendor = self._member(vendor_name).vendor
            assert vendor is not None  # noqa: S101 - `_member` saw to it
            pieces = tuple(piece for piece in allocation.pieces if piece.vendor == vendor_name)
            granted_devices = tuple(device_by_uuid[piece.device] for piece in pieces)
            reply = self._act(
                vendor_name,
                WorkerRequest(
                    ask="enforce",
                    within_s=self._seconds or ENFORCEMENT_TIMEOUT_S,
                    allocation=evolve(allocation, pieces=pieces),
                    devices=granted_devices,
                    directory=str(directory / vendor_name),
                    container=container,
                ),
            )
            if reply.failure is not None:
                raise Refused(reply.failure)
            implied_edits = vendor.implied(pieces, granted_devices, container=container)
            edits = edits.merged(implied_edits).merged(reply.edits or Edits())
        return edits

    def cuts(self, vendor_name: str) -> bool:
        """Whether a vendor's grants may have slices that outlive their processes."""
        return self._member(vendor_name).cuts

    def reconcile(
        self,
        devices: Iterable[Device],
        standing_allocations: Iterable[Allocation],
        *,
        directory: Path,
    ) -> tuple[str, ...]:
        """Destroy the slices no standing grant holds; return a sentence about each failure."""
        parts_by_device: dict[str, set[str]] = {}
        for allocation in standing_allocations:
            for piece in allocation.pieces:
                if piece.part is not None:
                    parts_by_device.setdefault(piece.device, set()).add(piece.part)
        faults: list[str] = []
        for device in devices:
            if not self.cuts(device.vendor):
                continue
            request = WorkerRequest(
                ask="reconcile",
                within_s=self._seconds or ENFORCEMENT_TIMEOUT_S,
                device=device,
                parts=tuple(sorted(parts_by_device.get(device.uuid, ()))),
                directory=str(directory / device.vendor),
            )
            failure = self._act(device.vendor, request).failure
            faults += [failure] if failure is not None else []
        return tuple(dict.fromkeys(faults))

    def serve(
        self, device: Device, do: Serve, *, directory: Path, memory: int = 0, process: int = 0
    ) -> Service:
        """Call a method of a device's service. Raises `Refused` when its vendor fails."""
        request = WorkerRequest(
            ask="serve",
            within_s=self._seconds or ENFORCEMENT_TIMEOUT_S,
            device=device,
            do=do,
            directory=str(directory),
            memory=memory,
            process=process,
        )
        reply = self._act(device.vendor, request)
        if reply.failure is not None or reply.service is None:
            raise Refused(reply.failure or f"{device.vendor}: no service shares its cards")
        return reply.service

    def measure(self, device: Device) -> int | None:
        """Return the bytes that a context takes of a device; None where its vendor cannot say.

        Raises `Refused` when the vendor fails, as on a card that is full.
        """
        request = WorkerRequest(
            ask="measure", within_s=self._seconds or ENFORCEMENT_TIMEOUT_S, device=device
        )
        reply = self._act(device.vendor, request)
        if reply.failure is not None:
            raise Refused(reply.failure)
        return reply.context

    def failures(self) -> tuple[str, ...]:
        """Return the failures of vendors whose last enforce failed, here or in another command."""
        pauses, plugins = (
            self._pauses,
            [member.plugin for member in self._members if member.trusted],
        )
        return tuple(
            filter(None, (pauses.failure(plugin, "enforce") for plugin in plugins if pauses))
        )

    def observe(self, device: Device) -> Usage:
        """Return the device's usage now; everything unknown when its vendor fails."""
        (((_, usage),), _) = self.observe_all([device])
        return usage

    def observe_all(
        self, devices: Iterable[Device]
    ) -> tuple[tuple[tuple[Device, Usage], ...], tuple[str, ...]]:
        """Return each device with its usage now, and a sentence about each failure.

        Vendors are asked at the same time, each about one device after the other.
        """
        device_list = tuple(devices)
        listed_devices = [device for device in device_list if not device.lost]
        member_by_vendor = {device.vendor: self._member(device.vendor) for device in listed_devices}
        waiting_devices = {
            member: [one for one in listed_devices if member_by_vendor[one.vendor] is member]
            for member in self._members  # several are always asked in this order
            if member in member_by_vendor.values()
        }
        usage_by_uuid: dict[str, Usage] = {}
        faults: list[str] = []
        while waiting_devices:
            members_and_devices = [
                (member, queue.pop(0)) for member, queue in waiting_devices.items()
            ]
            timeout_s = self._seconds or DISCOVERY_TIMEOUT_S
            replies = self._ask_each(
                (member, WorkerRequest(ask="observe", within_s=timeout_s, device=device))
                for member, device in members_and_devices
            )
            for (_, device), reply in zip(members_and_devices, replies, strict=True):
                usage_by_uuid[device.uuid] = reply.usage or Usage()
                faults += [reply.failure] if reply.failure is not None else []
            waiting_devices = {member: queue for member, queue in waiting_devices.items() if queue}
        devices_and_usages = tuple(
            (device, usage_by_uuid.get(device.uuid, Usage())) for device in device_list
        )
        return devices_and_usages, tuple(dict.fromkeys(faults))

    def close(self) -> None:
        """End the processes of all vendors; a later request starts them again."""
        for member in self._members:
            member.asked.close()
            member.acting.close()
            if member.watch:
                member.watch.close()

    def _member(self, vendor_name: str) -> _Member:
        """Return the working vendor of this name. Raises `NotFound`."""
        candidates = [
            member for member in self._members if member.plugin.name == vendor_name
        ] or self._members
        unknown_members = [
            member for member in candidates if member.vendor is None and member.refused is None
        ]
        replies = self._ask_all(
            unknown_members,
            WorkerRequest(ask="vendor", within_s=self._seconds or DISCOVERY_TIMEOUT_S),
        )
        for member in candidates:
            if member.vendor and member.vendor.name == vendor_name and not member.refused:
                return member
        for member, reply in zip(unknown_members, replies, strict=True):
            if member.plugin.name == vendor_name and reply.failure is not None:
                raise NotFound(reply.failure)
        refusals = (member.refused for member in candidates if member.plugin.name == vendor_name)
        raise NotFound(next(filter(None, refusals), f"no vendor {vendor_name!r} is installed"))

    def _act(self, vendor_name: str, request: WorkerRequest) -> WorkerReply:
        """Have a vendor make or destroy something."""
        return self._member(vendor_name).acting.ask(request)()

    def _ask_all(self, members: Iterable[_Member], request: WorkerRequest) -> list[WorkerReply]:
        """Send all of them the same request at the same time."""
        return self._ask_each((member, request) for member in members)

    def _ask_each(self, requests: Iterable[tuple[_Member, WorkerRequest]]) -> list[WorkerReply]:
        """Send the requests at the same time. A first reply has the vendor's declaration."""
        waiting_replies = [
            (member, request.ask, member.asked.ask(request)) for member, request in requests
        ]
        replies = []
        for member, hook, wait_reply in waiting_replies:
            reply = wait_reply()
            replies.append(reply)
            if reply.vendor and not member.whole and member.refused is None:
                member.whole = hook == "vendor"
                self._meet(member, reply.vendor, reply)
            # Where there are no cards there is nothing to wait for.
            if member.watch and member.watches and reply.devices and member.refused is None:
                member.watch.start(module=member.vendor.module if member.vendor else None)
        return replies

    def _meet(self, member: _Member, vendor: Vendor, reply: WorkerReply) -> None:
        """Note the declaration of a plugin, unless another plugin has its name."""
        plugin_name = member.plugin.name
        other_vendors = (
            other_member.vendor for other_member in self._members if other_member is not member
        )
        if any(other_vendor and other_vendor.name == vendor.name for other_vendor in other_vendors):
            member.refused = f"{plugin_name}: another plugin is the vendor {vendor.name!r} already"
        elif isinstance(member.plugin, Entry) and vendor.name != plugin_name:
            member.refused = (
                f"{plugin_name}: its entry point is {plugin_name!r} and its vendor {vendor.name!r}"
            )
        else:
            member.vendor = vendor.soft if vendor.name in self._soft else vendor
            member.cuts, member.serves = reply.cuts, reply.serves
            member.watches = reply.watches
