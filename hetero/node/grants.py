"""Makes, changes and ends the grants of a node: in the ledger, or by heterod for a plain user."""

from __future__ import annotations

import os
import pwd
import shlex
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from attrs import evolve

from hetero.model import Allocation, Ask, Edits, Policy, Refusal, Request
from hetero.model.errors import BadInput, HeteroError, Refused
from hetero.model.frozen import frozen
from hetero.model.names import check_label
from hetero.node import services
from hetero.node.confinement import persisting, reconcile, slices_held
from hetero.node.context_sizes import ContextSizes
from hetero.node.daemon_client import DaemonClient, NoAnswer
from hetero.node.grant_names import one_of
from hetero.node.inventory import devices_of, hidden
from hetero.node.ledger.events import record
from hetero.node.ledger.grant_dir import GRANT
from hetero.node.ledger.holders import end, program
from hetero.node.ledger.ledger import ContainerInfo, Grant, GrantHandle, Snapshot
from hetero.node.ledger.queue import Ticket, WaitingRequest
from hetero.node.node import Node, numbered
from hetero.node.outlook import Outlook, expect_possible, recovered, requests_ahead
from hetero.node.quota import User, expect_own
from hetero.node.selection import refused
from hetero.node.transaction import GrantDraft, new_grant
from hetero.placement import fit
from hetero.plugin.vendor import Vendor
from hetero.registry.registry import Discovery

#: Seconds to wait for a vendor's slices where the next sweep can do the work as well.
_SLICES_WAIT_S = 0.5
#: The most requests of one user that wait: each may hold up others.
_MOST_WAITING = 100
#: Starts a watcher that waits for the end of a grant's program and removes what outlives it.
Watch = Callable[[GrantHandle], None]


@frozen(kw_only=True)
class Admission:
    """What an admission took: the grant, its confinement, and the limiters that enforce it.

    `vendors` are those of the machine, as they declare themselves.
    """

    handle: GrantHandle
    edits: Edits
    limiters: tuple[Path, ...]
    vendors: tuple[Vendor, ...]


class LocalGrants:
    """The grants of a ledger that this process writes: a private one, or root's.

    `asker` may change only what is theirs; None: all.
    """

    def __init__(self, node: Node, asker: User | None = None) -> None:
        self.node, self.asker = node, asker
        self._discovery: Discovery | None = None  # of a request that waits

    def take(
        self,
        request: Request,
        *,
        command: Sequence[str] = (),
        label: str | None = None,
        container: ContainerInfo | None = None,
        share: str | None = None,
        watch: Watch | None = None,
        anyway: bool = False,
        ticket: int | None = None,
    ) -> Admission:
        """Take what the request asks, for this process, for a container or as a share.

        `watch` as in `admit_program`, `anyway` as in `Outlook`; `ticket` is the request's number in
        the queue, which it leaves. Raises `Refused` with the reason; after any error nothing is
        taken.
        """
        if label is not None:
            check_label(label)
        node = self.node
        # Before the ledger is locked: asking drivers takes long, and no grant changes the answer.
        discovery = measured(node, node.discover_for(request))
        waited = None if ticket is None else self._own_place(ticket)
        outlook = Outlook(node, discovery, request, anyway=anyway)
        # Drivers are asked of what it would get now, too: mostly the admission chooses the same.
        snapshot = node.with_system(node.ledger.unswept())
        outlook.ahead = requests_ahead(node, discovery, snapshot, before=ticket)
        if outlook.choose(snapshot) is None:
            outlook.look(snapshot)
        while True:
            with node.ledger.admission() as own_snapshot:
                _expect_new(own_snapshot, container=container, share=share)
                snapshot = node.with_system(own_snapshot)
                outlook.ahead = requests_ahead(node, discovery, snapshot, before=ticket)
                allocation = self._chosen(outlook, snapshot)
                if allocation is not None:
                    limiters = node.limiters(allocation, discovery.vendors)
                    grant = new_grant(
                        node,
                        allocation,
                        discovery,
                        command=tuple(command),
                        label=label,
                        asker=self.asker,
                    )
                    added_handle = node.ledger.add(grant, own_snapshot.grants)
                    if ticket is not None:
                        node.ledger.queue.remove(ticket)
                    break
            outlook.look(snapshot)
        draft = GrantDraft(node, discovery, added_handle)
        is_sliced = bool(draft.persisting)
        handle = evolve(added_handle, sliced=is_sliced)
        _watched(self, handle, watch)
        is_contained = container is not None or share is not None
        with draft.confined(container=is_contained) as edits:
            if is_contained or edits.parts:
                final_grant = draft.committed(edits.parts, container=container, share=share)
                with node.ledger.admission() as own_snapshot:
                    _expect_new(own_snapshot, container=container, share=share)
                    handle = evolve(
                        node.ledger.replace(handle, final_grant, own_snapshot.grants),
                        sliced=is_sliced,
                    )
                _watched(self, handle, watch)  # its slice has another name now
        if not is_contained:  # a process sees all of the machine's cards
            edits = hidden(allocation, discovery).merged(edits)
            node.ledger.record_begin(handle.grant)
            if waited:
                _record(node, waited, f"{waited.user} has grant {handle.grant.id}")
        handle = evolve(handle, mounts=edits.mounts)
        vendors = tuple(discovery.vendors)
        return Admission(handle=handle, edits=edits, limiters=limiters, vendors=vendors)

    def join(self, request: Request, *, command: Sequence[str], label: str | None) -> Ticket:
        """Have a request wait behind all others. Raises `NoRoom` where it would wait for ever."""
        if label is not None:
            check_label(label)
        node = self.node
        self._discovery = recovered(node.discover_for(request))
        expect_possible(node, self._discovery, request, self.asker)
        user = self.asker or User.of(os.getuid())
        waiting = WaitingRequest(
            queue_number=0,
            request=request,
            command=tuple(command),
            user=user.name,
            uid=self.asker.uid if self.asker else None,
            since_utc=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            label=label,
        )
        with node.ledger.admission():
            own_requests = [
                other for other in node.ledger.queue.waiting() if other.uid == waiting.uid
            ]
            if len(own_requests) >= _MOST_WAITING:
                raise Refused(f"{len(own_requests)} requests of {user.name} wait already")
            ticket = node.ledger.queue.join(waiting)
        _record(node, ticket.waiting, f"{user.name} waits: {shlex.join(command)}")
        return ticket

    def may_get(self, ticket: Ticket) -> bool:
        """Whether a request that waits is worth to be asked for again, by the ledger alone."""
        if self._discovery is None:
            return True
        node, waiting = self.node, ticket.waiting
        snapshot = node.snapshot()
        devices = self._discovery.devices
        discovery = evolve(
            self._discovery, devices=node.cards.noted(devices) if node.cards else devices
        )
        ahead = requests_ahead(node, discovery, snapshot, before=waiting.queue_number)
        inventory = node.inventory(discovery, snapshot)
        if ahead:
            from hetero.placement.queued import kept_for  # here: no admission needs it

            requests = (earlier.request for earlier in ahead)
            inventory = kept_for(requests, inventory, waiting.request)
        return isinstance(fit(inventory, waiting.request), Allocation)

    def leave(self, ticket: Ticket) -> None:
        """Give up a place in the queue, if the request still has it."""
        os.close(ticket.descriptor)
        self.node.ledger.queue.remove(ticket.waiting.queue_number)

    def _own_place(self, number: int) -> WaitingRequest:
        """Return the request of this number, if the asker has it wait. Raises `Refused`."""
        uid = self.asker.uid if self.asker else None
        for waiting in self.node.ledger.queue.waiting():
            if waiting.queue_number == number and waiting.uid == uid:
                return waiting
        raise Refused(f"w{number} is no request of yours that waits")

    def _chosen(self, outlook: Outlook, snapshot: Snapshot) -> Allocation | None:
        """Return what the request gets of what is free, or None; within `admission`."""
        outcome = outlook.choose(snapshot)
        if isinstance(outcome, Refusal):
            raise refused(outcome, outlook.request)
        if outcome is not None:
            devices = devices_of(outlook.discovery)
            self.node.expect_within_quota(outcome, snapshot, devices, self.asker)
        return outcome

    def resize(
        self, grant_name: str, ask: Ask, *, policy: Policy | None = None, anyway: bool = False
    ) -> Grant:
        """Change a grant, as `resize.resize` does."""
        from hetero.node.resize import resize  # here: no admission needs it

        return resize(self.node, grant_name, ask, policy=policy, asker=self.asker, anyway=anyway)

    def abort(self, handle: GrantHandle) -> None:
        """End a grant that was admitted and never handed over."""
        self.node.ledger.abort(handle)

    def sweep(self, vendors: Collection[str] | None = None) -> tuple[str, ...]:
        """Destroy the slices that no standing grant holds; return a sentence for each failure.

        `vendors` restricts it to these. A vendor that works for another grant is not waited for.
        """
        node = self.node
        discovery = node.discover(names=vendors)
        with node.ledger.admission():
            pass  # ended grants are removed, even if their slices are not
        faults: list[str] = []
        for vendor in sorted(persisting(node, discovery)):
            try:
                with slices_held(node, {vendor}, within_s=_SLICES_WAIT_S):
                    faults += reconcile(node, discovery, {vendor})
            except HeteroError as error:
                faults.append(str(error))
        return tuple(dict.fromkeys(faults))

    def detach(self, grant_id: str, pid: int | None = None) -> None:
        """Have services end what a grant's processes have on its devices, or what one process has.

        A process that is killed within a kernel can take down others on its card. Where a service
        cannot do it, the process is ended all the same.
        """
        node = self.node
        with suppress(HeteroError):
            for grant in node.ledger.snapshot().grants:
                if grant.id != grant_id or not grant.served:
                    continue
                devices = devices_of(node.discover(names=grant.allocation.vendors))
                pids = node.processes([grant_id])[grant_id] if pid is None else (pid,)
                for uuid in grant.served:
                    services.end(node.registry, node.ledger, devices[uuid], pids)

    def unpin(self, grant_id: str) -> None:
        """Stop keeping a grant that no process holds."""
        self.node.ledger.unpin(grant_id)

    def drop(self, grant_id: str) -> str:
        """Remove a grant that nothing holds any more; return what was done."""
        with self.node.ledger.admission():  # sweeps it
            self.node.ledger.drop(grant_id)
        return f"released grant {grant_id}"


def measured(node: Node, discovery: Discovery) -> Discovery:
    """Return the devices with what a context takes of them; some may be made to learn that.

    Where contexts count as no grant's memory, none is made.
    """
    if not node.settings.context:
        return discovery
    sizes = ContextSizes(node.ledger.path)
    return evolve(discovery, devices=sizes.measure(discovery.devices, node.registry.measure))


class RemoteGrants:
    """The grants of the machine's ledger, which heterod changes for the user who asks."""

    def __init__(self, node: Node, daemon: DaemonClient) -> None:
        self.node, self.daemon = node, daemon
        #: The user this process runs as, as the kernel tells heterod.
        self.asker = User.of(os.geteuid())

    def take(
        self,
        request: Request,
        *,
        command: Sequence[str] = (),
        label: str | None = None,
        watch: Watch | None = None,
        anyway: bool = False,
        ticket: int | None = None,
    ) -> Admission:
        """Take it from heterod; the limiters are those that this user's programs can read."""
        if label is not None:
            check_label(label)
        node = self.node
        reply, descriptor = self.daemon.admit(
            request, command=command, label=label, anyway=anyway, ticket=ticket
        )
        try:
            assert reply.grant is not None  # noqa: S101 - `admit` saw to it
            vendors = tuple(node.registry.declarations())
            limiters = node.limiters(reply.grant.allocation, vendors)
            path = node.ledger.directory(reply.grant.id)
        except BaseException:
            os.close(descriptor)
            raise
        handle = GrantHandle(
            reply.grant, path, descriptor, mounts=reply.edits.mounts, sliced=reply.sliced
        )
        _watched(self, handle, watch)
        return Admission(handle=handle, edits=reply.edits, limiters=limiters, vendors=vendors)

    def join(self, request: Request, *, command: Sequence[str], label: str | None) -> Ticket:
        """Have heterod put a request into the queue."""
        if label is not None:
            check_label(label)
        return self.daemon.join(request, command=command, label=label)

    def may_get(self, ticket: Ticket) -> bool:  # noqa: ARG002 - as `LocalGrants`
        """Leave it to heterod, which has the cards in mind."""
        return True

    def leave(self, ticket: Ticket) -> None:
        """Give up a place in the queue: heterod takes out the rest of it."""
        os.close(ticket.descriptor)

    def resize(
        self, grant_name: str, ask: Ask, *, policy: Policy | None = None, anyway: bool = False
    ) -> Grant:
        """Have a grant of this user changed."""
        return self.daemon.resize(grant_name, ask, policy=policy, anyway=anyway)

    def abort(self, handle: GrantHandle) -> None:
        """End a grant that was admitted and never handed over."""
        os.close(handle.descriptor)
        self.daemon.sweep()

    def sweep(self) -> tuple[str, ...]:
        """Have the slices that no standing grant holds destroyed."""
        return self.daemon.sweep()

    def detach(self, grant_id: str) -> None:
        """Have services end what a grant of this user has on its devices."""
        with suppress(HeteroError):
            self.daemon.detach(grant_id)

    def unpin(self, grant_id: str) -> None:
        """Do nothing: only root has pinned grants."""

    def drop(self, grant_id: str) -> str:
        """Have a grant removed that nothing holds any more; return what was done."""
        try:
            self.daemon.hurried.sweep()
        except NoAnswer:
            return f"ended what held grant {grant_id}: its entry goes when heterod is back"
        return f"released grant {grant_id}"


#: What changes the grants of a node: this process, or heterod for it.
Grants = LocalGrants | RemoteGrants


def grants_of(node: Node) -> Grants:
    """Return what changes the grants of a node for the user of this process."""
    return RemoteGrants(node, node.daemon) if node.daemon else LocalGrants(node)


def grants_for(node: Node, user_name: str) -> LocalGrants:
    """Return what makes grants of another user, which programs that root starts become.

    `user_name` is a name or a number. Raises `BadInput`; `HeteroError` where the user's programs
    cannot be shown the boards.
    """
    if os.geteuid() != 0:
        raise BadInput("--for-user is for root: the grants of others are their own")
    try:
        uid = int(user_name) if user_name.isdecimal() else pwd.getpwnam(user_name).pw_uid
    except KeyError:
        raise BadInput(f"--for-user {user_name!r} is no user of this machine") from None
    if uid:
        from hetero.node.mounts import show_boards  # here: few run for others

        show_boards(node.ledger)
    return LocalGrants(node, asker=User.of(uid) if uid else None)


def admit_program(
    grants: Grants,
    request: Request,
    *,
    command: Sequence[str],
    label: str | None = None,
    watch: Watch | None = None,
    anyway: bool = False,
    ticket: int | None = None,
) -> tuple[GrantHandle, dict[str, str]]:
    """Take what the request asks: the grant, held by this process, and a confined environment.

    If something outlives the grant's program, `watch` is called with the grant before that is made.
    `anyway` is that of `Outlook`, `ticket` that of `LocalGrants.take`.
    Raises `Refused` with the reason; after any error nothing is taken.
    """
    node = grants.node
    admission = grants.take(
        request, command=command, label=label, watch=watch, anyway=anyway, ticket=ticket
    )
    environment = dict(node.environ)
    if node.simulation:
        vendors = admission.handle.grant.allocation.vendors
        environment.update(node.simulation.on_this_machine(node.environ, vendors))
    environment.update(admission.edits.env)
    if admission.limiters:
        preloaded = environment.get("LD_PRELOAD", "").replace(" ", ":").split(":")
        # The user's own come first, as in containers: what wraps the driver's functions is called.
        preload_paths = dict.fromkeys([*filter(None, preloaded), *map(str, admission.limiters)])
        environment["LD_PRELOAD"] = ":".join(preload_paths)
        environment["HETERO_GRANT"] = str(admission.handle.path / GRANT)
        allocation = admission.handle.grant.allocation
        environment.update(numbered(allocation, admission.vendors, admission.edits.env))
    return admission.handle, environment


def release(grants: Grants, grant_name: str, *, force: bool = False, grace: float = 5.0) -> str:
    """Free a grant: refused while processes hold it, unless `force` ends exactly those.

    They are asked first (SIGTERM) and killed after `grace` seconds. `grant_name` is the start of
    its id, or its label; or the name of a request that waits, whose process is ended. Return what
    was done.
    """
    node = grants.node
    snapshot = node.ledger.snapshot()
    if waiting := _waiting_named(node, grant_name):
        return _leave_queue(grants, waiting, grace)
    uid = grants.asker.uid or None if grants.asker else None
    grant_id = one_of(snapshot, grant_name, uid=uid, system=node.system)
    owner_uid = None
    for grant in snapshot.grants:
        if grant.id == grant_id:
            owner_uid = grant.uid
            expect_own(grant, grants.asker)
            _expect_releasable(grant, force=force)
    if not force:
        raise Refused(
            f"grant {grant_id} is in use by {_users(node, grant_id)}: it is free when they end; "
            f"`hetero release --force {grant_id}` ends them"
        )
    grants.unpin(grant_id)
    grants.detach(grant_id)
    for _ in range(3):  # a process may start another while we end it
        end(node.files(grant_id), grace_s=grace, owner_uid=owner_uid)
        holding_pids = node.processes([grant_id])[grant_id]
        if holding_pids == (os.getpid(),):
            return f"grant {grant_id} is free when the program that asked ends"
        broken_share = node.ledger.is_share(grant_id) and not holding_pids
        if broken_share or not node.ledger.stands(grant_id):
            return grants.drop(grant_id)
    raise Refused(f"grant {grant_id} is still in use by {_users(node, grant_id)}")


def _record(node: Node, waiting: WaitingRequest, message: str) -> None:
    """Write to the log what became of a request in the queue."""
    record(node.ledger.persistent, waiting.label or waiting.id, message, grant_id=waiting.id)


def _waiting_named(node: Node, asked_name: str) -> WaitingRequest | None:
    """Return the request that waits under this name in the queue, `w12`."""
    return next(
        (waiting for waiting in node.ledger.queue.waiting() if waiting.id == asked_name), None
    )


def _leave_queue(grants: Grants, waiting: WaitingRequest, grace_s: float) -> str:
    """End the process of a request that waits: it leaves the queue with it."""
    queue = grants.node.ledger.queue
    if grants.asker and grants.asker.uid and waiting.uid not in (None, grants.asker.uid):
        raise Refused(f"request {waiting.id} is {waiting.user}'s, not yours")
    end(queue.files(waiting.queue_number), grace_s=grace_s, owner_uid=waiting.uid)
    if any(waiting.queue_number == other.queue_number for other in queue.waiting()):
        raise Refused(f"request {waiting.id} still waits: its process is not this user's to end")
    return f"request {waiting.id} left the queue"


def _users(node: Node, grant_id: str) -> str:
    """Return who holds a grant, for people to read."""
    for grant in node.ledger.snapshot().grants:
        if grant.id == grant_id and grant.container:
            return f"container {grant.container.name}"
    pids = node.processes([grant_id])[grant_id]
    named_processes = ", ".join(f"{pid} ({program(pid)})" for pid in pids)
    return f"process {named_processes}" if pids else "processes this user cannot see"


def _watched(grants: Grants, handle: GrantHandle, watch: Watch | None) -> None:
    """Start a watcher for what outlives a grant's program; after an error the grant is gone."""
    if watch is None or not handle.sliced:
        return
    try:
        watch(handle)
    except BaseException:
        grants.abort(handle)
        raise


def _expect_releasable(grant: Grant, *, force: bool) -> None:
    """Raise `Refused` for a grant that something else ends, or that is not whole yet."""
    if grant.share:
        raise Refused(
            f"grant {grant.id} is the share {grant.share}: `hetero share rm {grant.share}` ends it"
        )
    if grant.owner and not force:
        raise Refused(f"grant {grant.id} is pinned for {grant.label}: it ends with that")
    if not (grant.command or grant.owner or grant.container):
        # Its maker, the node's agent or `share`, holds it meanwhile and must not be ended.
        raise Refused(f"grant {grant.id} is still being made: try again")


def _expect_new(snapshot: Snapshot, *, container: ContainerInfo | None, share: str | None) -> None:
    """Raise `Refused` when the container or the share has a grant already."""
    for grant in snapshot.grants:
        if share and grant.share == share:
            raise Refused(
                f"share {share} is there already: `hetero share resize {share}` changes it"
            )
        if container and grant.container and grant.container.state == container.state:
            raise Refused(f"container {container.name} holds grant {grant.id} already")
