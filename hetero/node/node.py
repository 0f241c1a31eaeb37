"""The node: brings what the vendors discover and what stands in the ledger together.

Over 400 lines because an admission is one transaction: whoever changes a step of it must see what
undoes the others.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from attrs import evolve, field

from hetero.model import Allocation, Device, Edits, Inventory, Policy, Refusal, Request
from hetero.model.errors import BadInput, HeteroError, NotFound, Refused
from hetero.model.frozen import frozen
from hetero.model.names import check_label
from hetero.node import services, slices
from hetero.node.current_periods import CurrentPeriods
from hetero.node.daemon_client import DaemonClient, NoAnswer, client_of
from hetero.node.grant_names import one_of
from hetero.node.ledger.grant_dir import GRANT, USAGE
from hetero.node.ledger.grant_file import DeviceLimit, limit_of
from hetero.node.ledger.holders import end, holders
from hetero.node.ledger.ledger import ALIVE, Container, Grant, GrantHandle, Ledger, Snapshot
from hetero.node.ledger.state import check, is_roots, prepare
from hetero.node.native import limiter
from hetero.node.place import SYSTEM, persistent_directory, state_directory
from hetero.node.quota import Held, User, expect_within, held_of_quotas
from hetero.node.selection import expect_here
from hetero.node.settings import Settings, load_settings
from hetero.node.simulation import Simulation, entered
from hetero.placement import Explanation, explain, fit
from hetero.plugin.pauses import Pauses
from hetero.plugin.registry import Discovery, Registry
from hetero.plugin.vendor import Vendor

#: Seconds for which a vendor's slices are waited for by who can leave them to the next one.
_BRIEFLY = 0.5
#: Begins to wait for the end of a grant's program, to take down what outlives that.
Watch = Callable[[GrantHandle], None]


@frozen(kw_only=True)
class Admission:
    """What an admission took: the grant, how it is confined, and the limiters that see to it."""

    handle: GrantHandle
    edits: Edits
    limiters: tuple[Path, ...]


@frozen(kw_only=True)
class Node:
    """One machine as one user sees it.

    `daemon` is heterod where it serves root's ledger to this user: then `ledger` is that one, which
    this user reads. Elsewhere each user has a ledger, and `system` is root's: what root gave out
    counts here too, what other users gave out is not seen. `aside` is called before a vendor makes
    or destroys slices, which may take seconds and needs no ledger.
    """

    registry: Registry
    ledger: Ledger
    settings: Settings = field(factory=Settings)
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
        simulated = entered(environ)

        def within(directory: Path) -> Path:
            # Simulated grants never mix with real ones, nor those of two racks.
            return directory / simulated.name if simulated else directory

        uid = os.geteuid()
        own = state_directory(environ, uid=uid)
        machine = own if environ.get("HETERO_STATE") else SYSTEM
        daemon = _daemon_of(machine, within(machine))
        state, shared = within(machine if daemon else own), within(SYSTEM)
        persistent = None if daemon else persistent_directory(environ, uid=uid)
        if daemon is None:
            check(own)
            check(state)
        settings = load_settings(environ)
        return cls(
            registry=Registry(allowed=settings.vendors, soft=settings.soft, pauses=_pauses(state)),
            ledger=Ledger(
                state,
                persistent=within(persistent) if persistent else None,
                periods=CurrentPeriods(environ, settings.periods),
            ),
            settings=settings,
            system=Ledger(shared) if shared != state and uid != 0 else None,
            daemon=daemon,
            simulation=simulated,
            environ=dict(environ),
        )

    @property
    def with_threads(self) -> Node:
        """The same for a program with threads, in which vendors' processes cannot be forked."""
        from hetero.plugin.fork_server import ForkServer  # here: no command needs sockets for it

        more = self.simulation.environment(self.environ) if self.simulation else {}
        starter = ForkServer({**self.environ, **more})
        registry = Registry(
            starter=starter,
            allowed=self.settings.vendors,
            soft=self.settings.soft,
            pauses=_pauses(self.ledger.path),
            watch=True,
        )
        return evolve(self, registry=registry)

    @property
    def unseen(self) -> str | None:
        """Say that other users' grants are not seen, where that is so.

        A ledger in $HETERO_STATE is private on purpose.
        """
        if self.environ.get("HETERO_STATE") or self.daemon:
            return None
        client = client_of(self.ledger.path)  # root's: it writes the ledger by itself
        if client and client.answers():
            return None
        return (
            "grants that other users made are not seen: `hetero install`, as root, gives this "
            "machine one ledger for all"
        )

    def discover(self, *, names: Collection[str] | None = None) -> Discovery:
        """Return the devices this node gives out, with the capacity it promises of them.

        `names` asks these vendors alone.
        """
        found = self.registry.discover(names=names)
        for vendor in found.vendors:
            if vendor.name in self.settings.soft and not vendor.limiter:
                raise BadInput(f"cards.soft: no limiter shares the cards of {vendor.name}")
        ours = {vendor.name for vendor in found.vendors if vendor.limiter}
        return evolve(
            found, devices=self.settings.offered(found.devices, ours=ours, serving=found.serving)
        )

    def snapshot(self) -> Snapshot:
        """Return all that stands on this node's devices, as far as this user can see."""
        return self.with_system(self.ledger.snapshot())

    def fit(self, request: Request) -> Allocation | Refusal:
        """Return what the request would get now, without taking it.

        Raises `Refused` where the devices could give it and the user's quota does not.
        """
        discovery = self._discover_for(request)
        snapshot = self.snapshot()
        self.expect_certain(snapshot)
        answer = fit(inventory_of(discovery, snapshot), request)
        if isinstance(answer, Allocation):
            self.expect_within_quota(answer, snapshot, devices_of(discovery))
        return answer

    def explain(self, request: Request) -> Explanation:
        """Return what `fit` would, with what every device says to it; raise what it raises."""
        discovery = self._discover_for(request)
        snapshot = self.snapshot()
        self.expect_certain(snapshot)
        explained = explain(inventory_of(discovery, snapshot), request)
        if isinstance(explained.answer, Allocation):
            self.expect_within_quota(explained.answer, snapshot, devices_of(discovery))
        return explained

    def admit(
        self,
        request: Request,
        *,
        command: Sequence[str],
        label: str | None = None,
        watch: Watch | None = None,
    ) -> tuple[GrantHandle, dict[str, str]]:
        """Take what the request asks: the grant, held by this process, and a confined environment.

        `watch` is called with a grant that something is to be made for which outlives its program,
        before that is made. Raises `Refused` with the reason; then, as after any error, nothing was
        taken.
        """
        taken = self.take(request, command=command, label=label, watch=watch)
        environment = dict(self.environ)
        if self.simulation:
            vendors = taken.handle.grant.allocation.vendors
            environment.update(self.simulation.on_this_machine(self.environ, vendors))
        environment.update(taken.edits.env)
        if taken.limiters:
            before = environment.get("LD_PRELOAD", "").replace(" ", ":").split(":")
            preload = dict.fromkeys([*map(str, taken.limiters), *filter(None, before)])
            environment["LD_PRELOAD"] = ":".join(preload)
            environment["HETERO_GRANT"] = str(taken.handle.path / GRANT)
        return taken.handle, environment

    def take(
        self,
        request: Request,
        *,
        command: Sequence[str] = (),
        label: str | None = None,
        container: Container | None = None,
        share: str | None = None,
        asker: User | None = None,
        watch: Watch | None = None,
    ) -> Admission:
        """Take what the request asks, for this process, for a container or as a share.

        `asker` is the user it is for where that is not this process's; `watch` as in `admit`.
        Raises `Refused` with the reason; then, as after any error, nothing was taken.
        """
        if label is not None:
            check_label(label)
        if self.daemon:
            return self._asked_for(self.daemon, request, command=command, label=label, watch=watch)
        # Before the ledger is locked: asking drivers takes long, and no grant changes the answer.
        discovery = self._discover_for(request)
        devices = devices_of(discovery)
        with self.ledger.admission() as own:
            _expect_new(own, container=container, share=share)
            snapshot = self.with_system(own)
            self.expect_certain(snapshot)
            answer = fit(inventory_of(discovery, snapshot), request)
            if isinstance(answer, Refusal):
                raise refused(answer, request)
            self.expect_within_quota(answer, snapshot, devices, asker)
            limiters = self.limiters(answer, discovery.vendors)
            handle = self.ledger.add(
                Grant(
                    id="",
                    allocation=answer,
                    limits=self.limits_of(answer, devices),
                    command=tuple(command),
                    user=asker.name if asker else user(),
                    uid=asker.uid if asker else None,
                    since=datetime.now(timezone.utc).isoformat(timespec="seconds"),
                    label=label,
                    numbers=numbers_of(answer, discovery),
                    soft=self.softly(answer),
                    served=served(answer, devices),
                )
            )
        sliced = not answer.vendors.isdisjoint(self.acting(discovery, handle.grant))
        handle = evolve(handle, sliced=sliced)
        self._watched(handle, watch)
        inside = container is not None or share is not None
        with self.confined(handle, discovery, container=inside) as edits:
            if inside or edits.parts:
                allocation = with_parts(answer, edits.parts)
                final = evolve(
                    handle.grant,
                    allocation=allocation,
                    limits=self.limits_of(allocation, devices),
                    container=container,
                    share=share,
                )
                with self.ledger.admission() as own:
                    _expect_new(own, container=container, share=share)
                    handle = evolve(self.ledger.replace(handle, final), sliced=sliced)
                self._watched(handle, watch)  # it has another name now
        if not inside:  # a process sees all of the machine's cards
            edits = hidden(answer, discovery).merged(edits)
        handle = evolve(handle, mounts=edits.mounts)
        return Admission(handle=handle, edits=edits, limiters=limiters)

    def _watched(self, handle: GrantHandle, watch: Watch | None) -> None:
        """Have what outlives its program watched; after an error the grant is gone."""
        if watch is None or not handle.sliced:
            return
        try:
            watch(handle)
        except BaseException:
            self.abort(handle)
            raise

    @contextmanager
    def confined(
        self,
        handle: GrantHandle,
        discovery: Discovery,
        *,
        container: bool = False,
        sweep: bool = True,
    ) -> Iterator[Edits]:
        """Have the vendors confine what this process holds, and give the block their edits.

        Not within `admission`: the entry holds its units, and others have the ledger while a vendor
        works. The slices are held until the block has written them down; those that nobody holds
        go first if it is to `sweep`. After any error, the block's too, the grant and what was cut
        for it are gone.
        """
        allocation, devices = handle.grant.allocation, devices_of(discovery)
        cutting = allocation.vendors & self.acting(discovery, handle.grant)
        try:
            with self.slices_held(cutting):
                try:
                    if sweep:
                        self.reconcile(discovery, cutting)
                    edits = self.enforce(allocation, devices, container=container)
                    yield edits.merged(self._serve(handle.grant, devices, container=container))
                except BaseException:  # what was cut for it is nobody's now
                    with suppress(HeteroError):  # else at the next admission
                        self.reconcile(discovery, cutting)
                    raise
        except BaseException:
            self.ledger.abort(handle)
            self.ledger.snapshot()  # brings back what its neighbours had
            raise

    def _serve(self, grant: Grant, devices: Mapping[str, Device], *, container: bool) -> Edits:
        """Return what brings a grant's programs to the services of its devices, which run then."""
        edits = Edits()
        for uuid in grant.served:
            standing = self.ledger.snapshot().grants
            service = services.start(self.registry, self.ledger, devices[uuid], standing)
            # On the machine itself its files are where they are.
            edits = edits.merged(service.edits if container else evolve(service.edits, mounts=()))
            for piece in grant.allocation.pieces:
                if piece.device == uuid and piece.sm is not None:
                    if service.sm is None:
                        raise Refused(f"device {uuid}: its service has no parts of multiprocessors")
                    edits = edits.merged(Edits(env={service.sm: str(piece.sm)}))
        return edits

    def acting(self, discovery: Discovery, grant: Grant | None = None) -> frozenset[str]:
        """Return the vendors with slices or services that outlive programs, a grant's included."""
        mine = grant.allocation.vendors if grant and grant.served else frozenset[str]()
        return discovery.cutting | services.running(self.ledger, discovery) | mine

    @contextmanager
    def slices_held(self, vendors: Iterable[str], *, within: float | None = None) -> Iterator[None]:
        """Keep the slices of these vendors from all others; not within `admission`.

        Raises `HeteroError` when somebody else holds them for longer than `within` seconds; None:
        as long as the ledger is waited for.
        """
        self.aside()
        with slices.held(
            self.ledger, vendors, within=self.ledger.patience if within is None else within
        ):
            yield

    def reconcile(self, discovery: Discovery, vendors: Collection[str]) -> tuple[str, ...]:
        """Bring the slices of these vendors, which are held, in line with what stands.

        Not within `admission`. Return a sentence about each failure.
        """
        if not vendors:
            return ()
        with self.ledger.admission() as own:
            snapshot = self.with_system(own)
        faults = slices.reconcile(self.registry, self.ledger, discovery, snapshot, vendors=vendors)
        if snapshot.unreadable:
            return faults
        return faults + services.stop_unused(self.registry, self.ledger, discovery, snapshot.grants)

    def _asked_for(
        self,
        daemon: DaemonClient,
        request: Request,
        *,
        command: Sequence[str],
        label: str | None,
        watch: Watch | None,
    ) -> Admission:
        """Take it from heterod; the limiters are those that this user's programs can read."""
        answer, descriptor = daemon.admit(request, command=command, label=label)
        try:
            assert answer.grant is not None  # noqa: S101 - `admit` saw to it
            limiters = self.limiters(answer.grant.allocation, self.registry.declarations())
            path = self.ledger.directory(answer.grant.id)
        except BaseException:
            os.close(descriptor)
            raise
        handle = GrantHandle(
            answer.grant, path, descriptor, mounts=answer.edits.mounts, sliced=answer.sliced
        )
        self._watched(handle, watch)
        return Admission(handle=handle, edits=answer.edits, limiters=limiters)

    def abort(self, handle: GrantHandle) -> None:
        """End a grant that was admitted and never handed over."""
        if self.daemon:
            os.close(handle.descriptor)
            self.daemon.sweep()
        else:
            self.ledger.abort(handle)

    def enforce(
        self, allocation: Allocation, devices: Mapping[str, Device], *, container: bool = False
    ) -> Edits:
        """Have the vendors confine `allocation`, with the slices of those that cut them held."""
        return slices.enforce(self.registry, self.ledger, allocation, devices, container=container)

    def sweep(self, vendors: Collection[str] | None = None) -> tuple[str, ...]:
        """Destroy the slices that no standing grant holds; return a sentence about each failure.

        `vendors` asks these alone. One that is at work for another grant is not waited for.
        """
        if self.daemon:
            return self.daemon.sweep()
        discovery = self.discover(names=vendors)
        with self.ledger.admission():
            pass  # what ended goes, whatever becomes of its slices
        faults: list[str] = []
        for name in sorted(self.acting(discovery)):
            try:
                with self.slices_held({name}, within=_BRIEFLY):
                    faults += self.reconcile(discovery, {name})
            except HeteroError as error:
                faults.append(str(error))
        return tuple(dict.fromkeys(faults))

    def limits_of(
        self, allocation: Allocation, devices: Mapping[str, Device]
    ) -> tuple[DeviceLimit, ...]:
        """Return what the grant file is to say, one limit for each grant."""
        counts = self.settings.context if allocation.context is None else allocation.context
        return tuple(
            limit_of(piece, devices[piece.device], context=counts, strict=allocation.strict)
            for piece in allocation.pieces
        )

    def release(self, name: str, *, force: bool = False, grace: float = 5.0) -> str:
        """Free a grant: refused while processes hold it, unless `force` ends exactly those.

        They are asked first (SIGTERM) and killed after `grace` seconds. `name` is the start of its
        id, or its label. Return what was done.
        """
        snapshot = self.ledger.snapshot()
        identity = one_of(snapshot, name, uid=self.uid, system=self.system)
        owner = None
        for entry in snapshot.grants:
            if entry.id == identity:
                owner = entry.uid
                self.expect_own(entry)
                _expect_releasable(entry, force=force)
        if not force:
            raise Refused(
                f"grant {identity} is in use by {self._who(identity)}: it is free when they end; "
                f"`hetero release --force {identity}` ends them"
            )
        if self.daemon is None:
            self.ledger.unpin(identity)
        self.detach(identity)
        for _ in range(3):  # a process may start another while we end it
            end(self._files(identity), grace=grace, owner=owner)
            holding = self.processes([identity])[identity]
            if holding == (os.getpid(),):
                return f"grant {identity} is free when the program that asked ends"
            broken_share = self.ledger.is_share(identity) and not holding
            if broken_share or not self.ledger.stands(identity):
                return self._drop(identity)
        raise Refused(f"grant {identity} is still in use by {self._who(identity)}")

    def detach(self, identity: str, pid: int | None = None) -> None:
        """Have the services of a grant's devices end what its processes have there, or one has.

        A process that is killed within a kernel can take those along that share its card. What
        cannot be done is left: the process is ended all the same.
        """
        with suppress(HeteroError):
            if self.daemon:
                self.daemon.detach(identity)
                return
            for grant in self.ledger.snapshot().grants:
                if grant.id != identity or not grant.served:
                    continue
                devices = devices_of(self.discover(names=grant.allocation.vendors))
                pids = self.processes([identity])[identity] if pid is None else (pid,)
                for uuid in grant.served:
                    services.end(self.registry, self.ledger, devices[uuid], pids)

    def expect_within_quota(
        self,
        allocation: Allocation,
        snapshot: Snapshot,
        devices: Mapping[str, Device],
        asker: User | None = None,
    ) -> None:
        """Raise `Refused` if `allocation`, beside `snapshot`, is more than the asker may hold.

        heterod's settings say that; while it is away those that this user reads do.
        """
        if asker:
            held = held_of_quotas(self.settings, asker, snapshot.grants, devices)
            expect_within(held, allocation, devices)
        elif self.daemon:
            try:
                held = self.daemon.hurried.quotas()
            except NoAnswer:
                user = User.of(os.geteuid())
                held = held_of_quotas(self.settings, user, snapshot.grants, devices)
            expect_within(held, allocation, devices)

    def held_of_quotas(self, asker: User) -> tuple[Held, ...]:
        """Return what a user holds of what it may."""
        devices = devices_of(self.discover())
        return held_of_quotas(self.settings, asker, self.snapshot().grants, devices)

    @property
    def uid(self) -> int | None:
        """The user this program runs as, as grants say it: None for who keeps the ledger."""
        return (os.geteuid() or None) if self.daemon else None

    def expect_own(self, entry: Grant, asker: User | None = None) -> None:
        """Raise `Refused` unless the asker may change a grant: in heterod's ledger, its user."""
        if asker is None and self.daemon:
            asker = User.of(os.geteuid())
        if asker and asker.uid != 0 and not asker.owns(entry):
            whose = entry.user if entry.uid else "root"
            raise Refused(
                f"grant {entry.id} is {whose}'s: {whose} or root can change or release it"
            )

    def _drop(self, identity: str) -> str:
        """Remove a grant that nothing holds any more; return what was done."""
        if self.daemon:
            try:
                self.daemon.hurried.sweep()
            except NoAnswer:
                return f"ended what held grant {identity}: its entry goes when heterod is back"
        else:
            with self.ledger.admission():  # sweeps it
                self.ledger.drop(identity)
        return f"released grant {identity}"

    def processes(self, identities: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """Return the processes that hold each grant, as far as this user can see."""
        return holders({identity: self._files(identity) for identity in identities})

    def directory(self, identity: str) -> Path:
        """Return the directory of a grant that this user sees."""
        own = self.ledger.directory(identity)
        return own if self.system is None or own.exists() else self.system.directory(identity)

    def _files(self, identity: str) -> list[Path]:
        return [self.directory(identity) / name for name in (ALIVE, USAGE)]

    def with_system(self, snapshot: Snapshot) -> Snapshot:
        """Return `snapshot` and what root gave out."""
        if self.system is None:
            return snapshot
        shared = self.system.snapshot()
        return Snapshot(
            grants=snapshot.grants + shared.grants,
            unreadable=snapshot.unreadable + shared.unreadable,
            stale=snapshot.stale,
        )

    def softly(self, allocation: Allocation) -> tuple[str, ...]:
        """Return the vendors of its devices that the settings have shared by a limiter."""
        return tuple(sorted(allocation.vendors & set(self.settings.soft)))

    def expect_certain(self, snapshot: Snapshot) -> None:
        """Raise `Refused` where it is not known what standing grants take of the devices.

        What a grant took of a card that was cut says nothing of a share of it, and the reverse.
        """
        for entry in snapshot.unreadable:
            raise Refused(
                f"grant {entry.id} stands but cannot be read, so what is free is not known "
                f"({entry.reason}): `hetero release --force {entry.id}` ends it"
            )
        for grant in snapshot.grants:
            now = self.softly(grant.allocation)
            for vendor in sorted(set(grant.soft).symmetric_difference(now)):
                before = "a limiter shared" if vendor in grant.soft else "slices were cut from"
                raise Refused(
                    f"cards.soft was changed for {vendor} while grant {grant.id} stands, for which "
                    f"{before} its cards: end that grant, or change the setting back"
                )

    def _discover_for(self, request: Request) -> Discovery:
        """Discover, or raise `NotFound` when what the request names is not on this node."""
        discovery = self.discover()
        expect_here(request, discovery)
        return discovery

    def limiters(self, allocation: Allocation, vendors: Iterable[Vendor]) -> tuple[Path, ...]:
        """Return the libraries that hold a program to its grants, of what `vendors` declare."""
        if allocation.policy is Policy.OFF:
            return ()
        apis = {vendor.limiter for vendor in vendors if vendor.name in allocation.vendors}
        return tuple(limiter(api) for api in sorted(filter(None, apis)))

    def _who(self, identity: str) -> str:
        for entry in self.ledger.snapshot().grants:
            if entry.id == identity and entry.container:
                return f"container {entry.container.name}"
        pids = self.processes([identity])[identity]
        named = ", ".join(f"{pid} ({program(pid)})" for pid in pids)
        return f"process {named}" if pids else "processes this user cannot see"


def _pauses(state: Path) -> Pauses:
    """Return what a state directory has noted of vendors."""
    return Pauses(state / "vendors.json", partial(prepare, state))


def _daemon_of(machine: Path, ledger: Path) -> DaemonClient | None:
    """Return heterod as a plain user meets it: by its socket, in a ledger that is root's."""
    if os.geteuid() == 0 or not is_roots(machine) or not is_roots(ledger):
        return None
    return client_of(ledger)


def _expect_releasable(entry: Grant, *, force: bool) -> None:
    """Raise `Refused` for a grant that something else ends, or that is not whole yet."""
    if entry.share:
        raise Refused(
            f"grant {entry.id} is the share {entry.share}: `hetero share rm {entry.share}` ends it"
        )
    if entry.owner and not force:
        raise Refused(f"grant {entry.id} is pinned for {entry.label}: it ends with that")
    if not (entry.command or entry.owner or entry.container):
        # Who makes it, the node's agent or `share`, holds it meanwhile and is not to end.
        raise Refused(f"grant {entry.id} is still being made: try again")


def _expect_new(snapshot: Snapshot, *, container: Container | None, share: str | None) -> None:
    """Raise `Refused` when the container or the share has a grant already."""
    for entry in snapshot.grants:
        if share and entry.share == share:
            raise Refused(
                f"share {share} is there already: `hetero share resize {share}` changes it"
            )
        if container and entry.container and entry.container.state == container.state:
            raise Refused(f"container {container.name} holds grant {entry.id} already")


def refused(refusal: Refusal, request: Request) -> NotFound | Refused:
    """Return the error for a refusal, with what the asker may not have meant to ask."""
    if refusal.missing:
        return NotFound(refusal.missing)
    sentence = refusal.sentence
    if all(ask.memory is None and ask.memory_percent is None for ask in request.asks):
        sentence += " (memory was not given, so all of a card's was asked)"
    return Refused(sentence)


def with_parts(allocation: Allocation, parts: Mapping[str, str]) -> Allocation:
    """Return the allocation with the slices that were made for it named in its grants."""
    return evolve(
        allocation,
        pieces=tuple(
            evolve(piece, part=parts.get(piece.device, piece.part)) for piece in allocation.pieces
        ),
    )


def hidden(allocation: Allocation, discovery: Discovery) -> Edits:
    """Return what keeps a process away from devices of the vendors it was granted none of."""
    here = {device.vendor for device in discovery.devices}
    others = here - allocation.vendors
    mine = (vendor.hiding for vendor in discovery.vendors if vendor.name in others)
    return Edits(env={name: text for hiding in mine for name, text in hiding.items()})


def served(allocation: Allocation, devices: Mapping[str, Device]) -> tuple[str, ...]:
    """Return those of its devices that programs share by a service."""
    uuids = (piece.device for piece in allocation.pieces)
    return tuple(uuid for uuid in uuids if services.by_service(devices[uuid]))


def devices_of(discovery: Discovery) -> dict[str, Device]:
    """Return the devices by their UUIDs."""
    return {device.uuid: device for device in discovery.devices}


def numbers_of(allocation: Allocation, discovery: Discovery) -> tuple[int, ...]:
    """Return the numbers of an allocation's devices in the inventory."""
    numbers = {device.uuid: number for number, device in enumerate(discovery.devices)}
    return tuple(numbers[piece.device] for piece in allocation.pieces)


def inventory_of(discovery: Discovery, snapshot: Snapshot) -> Inventory:
    """Return the devices with what stands on them.

    One whose grants share it otherwise than the settings say now takes no more until they end.
    """
    devices = tuple(_in_mode(device, snapshot.grants) for device in discovery.devices)
    return Inventory(devices, tuple(entry.allocation for entry in snapshot.grants))


def expect_mode(new: Grant, devices: Mapping[str, Device], snapshot: Snapshot) -> None:
    """Raise `Refused` where a device of a new grant is shared otherwise by those that stand."""
    for piece in new.allocation.pieces:
        now = _in_mode(devices[piece.device], snapshot.grants)
        if now.health != devices[piece.device].health:
            raise Refused(f"device {piece.device}: {now.health}")


def _in_mode(device: Device, grants: Iterable[Grant]) -> Device:
    by_service = services.by_service(device)
    for entry in grants if device.enforcement.by_limiter and device.usable else ():
        here = any(piece.device == device.uuid for piece in entry.allocation.pieces)
        if here and (device.uuid in entry.served) != by_service:
            why = f"cards.sharing was changed for it, which counts when grant {entry.id} has ended"
            return evolve(device, health=why)
    return device


def user() -> str:
    """Return the name of the user this program runs as."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def program(pid: int) -> str:
    """Return the name of the program a process runs, for people to read."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "ended"
