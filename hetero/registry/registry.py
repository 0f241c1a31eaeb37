"""Finds the vendors and asks them, one at a time, so that a broken one is a row and no outage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from pathlib import Path

from attrs import define, evolve, field

from hetero.model import Allocation, Device, Edits, Inventory, Usage
from hetero.model.errors import NotFound, Refused
from hetero.model.frozen import frozen
from hetero.plugin import hookspecs
from hetero.plugin.service import Service
from hetero.plugin.vendor import Vendor
from hetero.registry.entry_points import Entry, entries, normalised
from hetero.registry.message import Serve, WorkerReply, WorkerRequest
from hetero.registry.pauses import Pauses
from hetero.registry.process import Forks, Starter
from hetero.registry.respondent import Plugin, Respondent
from hetero.registry.supervisor import InProcess, Supervisor
from hetero.registry.vendor_row import VendorRow, addressable
from hetero.registry.watch import Watch

#: Seconds a vendor may take to answer before the node goes on without it; a driver that hangs must
#: hang nobody else. Cutting hardware into slices is slower than reading it.
LOOK, CUT = 5.0, 20.0
#: Seconds after which a second process of a vendor's ends, which has nothing to make or destroy: it
#: occupies 5 to 10 MiB, and another is there after some tens of milliseconds.
RESTS = 10.0


@frozen(kw_only=True)
class Discovery:
    """What one look at the node found, and the declarations it is read by (no resource names).

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
    name = getattr(plugin, "__name__", type(plugin).__name__)
    return _Given(str(name), "in process", plugin)


@define(eq=False)
class _Member:
    """A plugin, what asks it, and what is known of it by now."""

    plugin: Plugin
    asked: Supervisor | InProcess
    acting: Supervisor | InProcess  # of what takes long: nobody who looks waits for it
    trusted: bool = True
    watch: Watch | None = None
    vendor: Vendor | None = None
    whole: bool = False  # with its models and resource names
    cuts: bool = False
    serves: bool = False
    watches: bool = False
    refused: str | None = None  # why what it answers is not taken
    last: tuple[Device, ...] = ()  # at its last good answer

    def current_devices(self) -> list[Device]:
        """Return the devices of its last good answer, with the news of their health."""
        news = self.watch.health if self.watch else {}
        return [evolve(d, health=news[d.uuid]) if d.uuid in news else d for d in self.last]

    def row(self, answer: WorkerReply) -> VendorRow:
        """Return its row, but for what `addressable` finds."""
        known = None if self.refused else self.vendor
        reason = self.refused or answer.failure
        states = (
            ("untrusted", not self.trusted),
            ("ok", reason is None),
            ("broken", self.refused is not None),
            ("absent", answer.absent),
            ("stale", bool(self.last)),
            ("broken", True),
        )
        return VendorRow(
            name=known.name if known else self.plugin.name,
            source=self.plugin.source,
            state=next(state for state, holds in states if holds),
            reason=reason,
            title=known.title if known else None,
            file=self.plugin.file,
            trusted=self.trusted,
        )


@define(eq=False, repr=False, slots=False)
class Registry:
    """The vendors of one process, each asked in a process of its own, started when it is needed.

    They are those installed in this environment; `Registry.of(object, ...)` takes others. `starter`
    starts their processes: a program that has threads, or a driver open, needs a `ForkServer`.
    `allowed` are the distributions whose code may be run; None: all. An answer may take `seconds`;
    None: as long as its hook takes at most. `pauses` are what commands remember of each other's.
    The vendors in `soft` share cards by a limiter. Programs that go on and have threads `watch` for
    news of the devices' health, too, and have vendors enforce and reconcile in a second process: a
    look need not wait for a slice.
    """

    _plugins: Callable[[], Iterable[Plugin]] = installed
    _starter: Starter = field(factory=Forks)
    _allowed: Collection[str] | None = None
    _soft: Collection[str] = ()
    _apart: bool = True
    _seconds: float | None = None
    _pauses: Pauses | None = None
    _watch: bool = False

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
        """Return a plugin with what asks it, if its code may be run."""
        name = plugin.source.partition(" ")[0]
        allowed = self._allowed
        if allowed is not None and normalised(name) not in map(normalised, allowed):
            why = f"{name or plugin.name} is not among the vendors that the settings allow"
            nobody = InProcess(lambda _: WorkerReply(failure=why))
            return _Member(plugin, nobody, nobody, trusted=False)
        if not self._apart:
            in_process = InProcess(Respondent(plugin).answer)
            return _Member(plugin, in_process, in_process)
        acting = Supervisor(plugin, self._starter, self._pauses)
        if not self._watch:
            return _Member(plugin, acting, acting)
        looking = Supervisor(plugin, self._starter)
        return _Member(plugin, looking, acting, watch=Watch(plugin, self._starter))

    def vendor(self, name: str) -> Vendor:
        """Return the declaration of a working vendor. Raises `NotFound`."""
        member = self._member(name)
        if not member.whole:
            question = WorkerRequest(ask="vendor", within=self._seconds or LOOK)
            (answer,) = self._ask_all([member], question)
            if answer.failure is not None:
                raise NotFound(answer.failure)
        assert member.vendor is not None  # noqa: S101 - `_member` saw to it
        return member.vendor

    def plugin(self, name: str) -> Plugin:
        """Return an installed vendor that may be run, unloaded. Raises `NotFound`."""
        for member in self._members:
            if member.plugin.name == name and member.trusted:
                return member.plugin
        names = ", ".join(member.plugin.name for member in self._members if member.trusted)
        raise NotFound(f"no vendor {name!r} is installed and trusted here (there is: {names})")

    def declarations(self) -> tuple[Vendor, ...]:
        """Return the declarations of all working vendors."""
        return self.declared()[0]

    def declared(self) -> tuple[tuple[Vendor, ...], tuple[str, ...]]:
        """Return the declarations of all working vendors, and why each other one has none."""
        unknown = [member for member in self._members if not member.whole]
        question = WorkerRequest(ask="vendor", within=self._seconds or LOOK)
        answers = dict(zip(unknown, self._ask_all(unknown, question), strict=True))
        whole = [member.vendor for member in self._members if member.vendor and member.whole]
        failures = [member.refused for member in self._members if member.refused]
        failures += [
            answer.failure or f"{member.plugin.name}: no declaration"
            for member, answer in answers.items()
            if not member.whole
        ]
        return tuple(whole), tuple(failures)

    def discover(self, *, names: Collection[str] | None = None) -> Discovery:
        """Look at the node once through every vendor, or those named, all at the same time."""
        members = [
            member for member in self._members if names is None or member.plugin.name in names
        ]
        by_vendor: dict[str, list[Device]] = {}
        faults: dict[str, tuple[str, ...]] = {}
        rows: list[VendorRow] = []
        answers = self._ask_all(
            members, WorkerRequest(ask="discover", within=self._seconds or LOOK)
        )
        for member, answer in zip(members, answers, strict=True):
            if member.acting is not member.asked:
                member.acting.rest(RESTS)
            row = member.row(answer)
            rows.append(row)
            if row.state == "ok":
                member.last = answer.devices
                by_vendor[row.name], faults[row.name] = member.current_devices(), answer.faults
            elif row.state == "stale":
                # A driver that does not answer has not lost its cards: what stands on them does.
                by_vendor[row.name] = [evolve(one, health=row.reason) for one in member.last]
                faults[row.name] = ()
        count = Counter(device.uuid for devices in by_vendor.values() for device in devices)
        for place, row in enumerate(rows):
            if row.name in by_vendor and row.state in ("ok", "stale"):
                by_vendor[row.name], rows[place] = addressable(
                    row, by_vendor[row.name], faults[row.name], count
                )
        known = [member for member in members if member.vendor and not member.refused]
        return Discovery(
            devices=tuple(device for devices in by_vendor.values() for device in devices),
            rows=tuple(rows),
            vendors=tuple(member.vendor for member in known if member.vendor),
            cutting=frozenset(
                member.vendor.name for member in known if member.vendor and member.cuts
            ),
            serving=frozenset(
                member.vendor.name for member in known if member.vendor and member.serves
            ),
        )

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
        by_uuid = {device.uuid: device for device in devices}
        edits = Edits()
        for name in dict.fromkeys(piece.vendor for piece in allocation.pieces):
            vendor = self._member(name).vendor
            assert vendor is not None  # noqa: S101 - `_member` saw to it
            pieces = tuple(piece for piece in allocation.pieces if piece.vendor == name)
            granted = tuple(by_uuid[piece.device] for piece in pieces)
            answer = self._act(
                name,
                WorkerRequest(
                    ask="enforce",
                    within=self._seconds or CUT,
                    allocation=evolve(allocation, pieces=pieces),
                    devices=granted,
                    directory=str(directory / name),
                    container=container,
                ),
            )
            if answer.failure is not None:
                raise Refused(answer.failure)
            implied = vendor.implied(pieces, granted, container=container)
            edits = edits.merged(implied).merged(answer.edits or Edits())
        return edits

    def cuts(self, name: str) -> bool:
        """Whether a vendor's grants may have slices that outlive their processes."""
        return self._member(name).cuts

    def reconcile(
        self, devices: Iterable[Device], standing: Iterable[Allocation], *, directory: Path
    ) -> tuple[str, ...]:
        """Destroy the slices no standing grant holds; return a sentence about each failure."""
        parts: dict[str, set[str]] = {}
        for allocation in standing:
            for piece in allocation.pieces:
                if piece.part is not None:
                    parts.setdefault(piece.device, set()).add(piece.part)
        faults: list[str] = []
        for device in devices:
            if not self.cuts(device.vendor):
                continue
            question = WorkerRequest(
                ask="reconcile",
                within=self._seconds or CUT,
                device=device,
                parts=tuple(sorted(parts.get(device.uuid, ()))),
                directory=str(directory / device.vendor),
            )
            failure = self._act(device.vendor, question).failure
            faults += [failure] if failure is not None else []
        return tuple(dict.fromkeys(faults))

    def serve(
        self, device: Device, do: Serve, *, directory: Path, memory: int = 0, process: int = 0
    ) -> Service:
        """Bring a device's service to what is wanted. Raises `Refused` when its vendor fails."""
        question = WorkerRequest(
            ask="serve",
            within=self._seconds or CUT,
            device=device,
            do=do,
            directory=str(directory),
            memory=memory,
            process=process,
        )
        answer = self._act(device.vendor, question)
        if answer.failure is not None or answer.service is None:
            raise Refused(answer.failure or f"{device.vendor}: no service shares its cards")
        return answer.service

    def failures(self) -> tuple[str, ...]:
        """Return what each vendor said whose last enforce failed, here or in another command."""
        notes, asked = self._pauses, [one.plugin for one in self._members if one.trusted]
        return tuple(filter(None, (notes.failure(one, "enforce") for one in asked if notes)))

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
        given = tuple(devices)
        vendors = {device.vendor: self._member(device.vendor) for device in given}
        waiting = {
            member: [device for device in given if vendors[device.vendor] is member]
            for member in self._members  # whoever asks several asks them in this order
            if member in vendors.values()
        }
        usages: dict[str, Usage] = {}
        faults: list[str] = []
        while waiting:
            asked = [(member, left.pop(0)) for member, left in waiting.items()]
            within = self._seconds or LOOK
            answers = self._ask_each(
                (member, WorkerRequest(ask="observe", within=within, device=device))
                for member, device in asked
            )
            for (_, device), answer in zip(asked, answers, strict=True):
                usages[device.uuid] = answer.usage or Usage()
                faults += [answer.failure] if answer.failure is not None else []
            waiting = {member: left for member, left in waiting.items() if left}
        pairs = tuple((device, usages[device.uuid]) for device in given)
        return pairs, tuple(dict.fromkeys(faults))

    def close(self) -> None:
        """End the processes of all vendors; who is asked again is started again."""
        for member in self._members:
            member.asked.close()
            member.acting.close()
            if member.watch:
                member.watch.close()

    def _member(self, name: str) -> _Member:
        """Return the working vendor of this name. Raises `NotFound`."""
        likely = [member for member in self._members if member.plugin.name == name] or self._members
        unknown = [member for member in likely if member.vendor is None and member.refused is None]
        answers = self._ask_all(unknown, WorkerRequest(ask="vendor", within=self._seconds or LOOK))
        for member in likely:
            if member.vendor and member.vendor.name == name and not member.refused:
                return member
        for member, answer in zip(unknown, answers, strict=True):
            if member.plugin.name == name and answer.failure is not None:
                raise NotFound(answer.failure)
        refused = (member.refused for member in likely if member.plugin.name == name)
        raise NotFound(next(filter(None, refused), f"no vendor {name!r} is installed"))

    def _act(self, name: str, question: WorkerRequest) -> WorkerReply:
        """Have a vendor make or destroy something."""
        return self._member(name).acting.ask(question)()

    def _ask_all(self, members: Iterable[_Member], question: WorkerRequest) -> list[WorkerReply]:
        """Ask all of them the same at the same time."""
        return self._ask_each((member, question) for member in members)

    def _ask_each(self, questions: Iterable[tuple[_Member, WorkerRequest]]) -> list[WorkerReply]:
        """Ask at the same time. A process's first answer says who its vendor is."""
        waiting = [(member, asked.ask, member.asked.ask(asked)) for member, asked in questions]
        answers = []
        for member, ask, answer_of in waiting:
            answer = answer_of()
            answers.append(answer)
            if answer.vendor and not member.whole and member.refused is None:
                member.whole = ask == "vendor"
                self._meet(member, answer.vendor, answer)
            # Where there are no cards there is nothing to wait for.
            if member.watch and member.watches and answer.devices and member.refused is None:
                member.watch.start()
        return answers

    def _meet(self, member: _Member, vendor: Vendor, answer: WorkerReply) -> None:
        """Note who a plugin says it is, unless that is another one already."""
        name = member.plugin.name
        others = (other.vendor for other in self._members if other is not member)
        if any(other and other.name == vendor.name for other in others):
            member.refused = f"{name}: another plugin is the vendor {vendor.name!r} already"
        elif isinstance(member.plugin, Entry) and vendor.name != name:
            member.refused = f"{name}: its entry point is {name!r} and its vendor {vendor.name!r}"
        else:
            member.vendor = vendor.soft if vendor.name in self._soft else vendor
            member.cuts, member.serves = answer.cuts, answer.serves
            member.watches = answer.watches
