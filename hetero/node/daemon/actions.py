"""Carries out the requests of users to heterod, under their names and within their rights."""

from __future__ import annotations

from attrs import frozen

from hetero.model import Request, codec
from hetero.model.errors import BadInput, HeteroError
from hetero.node.daemon_client import DaemonReply, DaemonRequest
from hetero.node.grants import LocalGrants
from hetero.node.ledger.ledger import GrantHandle
from hetero.node.ledger.queue import Ticket
from hetero.node.node import Node
from hetero.node.quota import User, expect_own


@frozen
class Done:
    """The result of a request; what it made is held here until it is passed on or aborted."""

    answer: DaemonReply
    handle: GrantHandle | None = None
    ticket: Ticket | None = None

    @property
    def descriptor(self) -> int | None:
        """What keeps a grant or a place in the queue standing, and goes to the client."""
        holder = self.handle or self.ticket
        return holder.descriptor if holder else None


def carry_out(node: Node, request_text: str, uid: int) -> Done:
    """Carry out a user's request.

    An error that the user can act on is a reply, too; then nothing was changed.
    """
    grants = LocalGrants(node, User.of(uid))
    try:
        message = codec.loads(request_text, DaemonRequest, source="request")
        match message:
            case DaemonRequest(do="admit", request=request) if request is not None:
                return _admit(grants, request, message)
            case DaemonRequest(do="queue", request=request) if request is not None:
                ticket = grants.join(request, command=message.command, label=message.label)
                return Done(DaemonReply(waiting=ticket.waiting), ticket=ticket)
            case DaemonRequest(do="resize", grant=str(grant_id), ask=ask) if ask is not None:
                changed_grant = grants.resize(
                    grant_id, ask, policy=message.policy, anyway=message.anyway
                )
                return Done(DaemonReply(grant=changed_grant))
            case DaemonRequest(do="detach", grant=str(grant_id)):
                return _detach(grants, grant_id)
            case DaemonRequest(do="sweep"):
                return Done(DaemonReply(faults=grants.sweep()))
            case DaemonRequest(do="quota"):
                return Done(DaemonReply(quotas=node.held_of_quotas(User.of(uid))))
        raise BadInput(f"request: {message.do!r} with what came with it is nothing heterod does")
    except HeteroError as error:
        return Done(refusal(error))


def refusal(error: HeteroError) -> DaemonReply:
    """Return the answer that has the client raise the same error."""
    return DaemonReply(error=type(error).__name__, says=str(error))


def _admit(grants: LocalGrants, request: Request, message: DaemonRequest) -> Done:
    admission = grants.take(
        request,
        command=message.command,
        label=message.label,
        anyway=message.anyway,
        ticket=message.ticket,
    )
    handle = admission.handle
    return Done(
        DaemonReply(grant=handle.grant, edits=admission.edits, sliced=handle.sliced), handle
    )


def _detach(grants: LocalGrants, grant_id: str) -> Done:
    for grant in grants.node.ledger.snapshot().grants:
        if grant.id == grant_id:
            expect_own(grant, grants.asker)
            grants.detach(grant_id)
    return Done(DaemonReply())


def abort(node: Node, handle: GrantHandle) -> None:
    """Take back a grant whose client is gone."""
    grants = LocalGrants(node)
    grants.abort(handle)
    if handle.sliced:
        grants.sweep(handle.grant.allocation.vendors)
