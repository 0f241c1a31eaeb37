"""Does what users ask of heterod, with their names and within their rights."""

from __future__ import annotations

from attrs import frozen

from hetero.model import codec
from hetero.model.errors import BadInput, HeteroError
from hetero.node.daemon_client import Answer, Question
from hetero.node.ledger.ledger import GrantHandle
from hetero.node.node import Node
from hetero.node.quota import User
from hetero.node.resize import resize


@frozen
class Done:
    """What came of a request; `handle` is held by this process until it is passed on or aborted."""

    answer: Answer
    handle: GrantHandle | None = None


def carry_out(node: Node, text: str, uid: int) -> Done:
    """Do what a user asks. What a user can act on is an answer, too; then nothing was changed."""
    asker = User.of(uid)
    try:
        question = codec.loads(text, Question, source="request")
        match question:
            case Question(do="admit", request=request) if request is not None:
                return _admit(node, question, asker)
            case Question(do="resize", grant=str(identity), ask=ask) if ask is not None:
                changed = resize(node, identity, ask, policy=question.policy, asker=asker)
                return Done(Answer(grant=changed))
            case Question(do="detach", grant=str(identity)):
                return _detach(node, identity, asker)
            case Question(do="sweep"):
                return Done(Answer(faults=node.sweep()))
            case Question(do="quota"):
                return Done(Answer(quotas=node.held_of_quotas(asker)))
        raise BadInput(f"request: {question.do!r} with what came with it is nothing heterod does")
    except HeteroError as error:
        return Done(refusal(error))


def refusal(error: HeteroError) -> Answer:
    """Return the answer that has the client raise the same error."""
    return Answer(error=type(error).__name__, says=str(error))


def _admit(node: Node, question: Question, asker: User) -> Done:
    assert question.request is not None  # noqa: S101 - the case above
    taken = node.take(question.request, command=question.command, label=question.label, asker=asker)
    handle = taken.handle
    return Done(Answer(grant=handle.grant, edits=taken.edits, sliced=handle.sliced), handle)


def _detach(node: Node, identity: str, asker: User) -> Done:
    for entry in node.ledger.snapshot().grants:
        if entry.id == identity:
            node.expect_own(entry, asker)
            node.detach(identity)
    return Done(Answer())


def abort(node: Node, handle: GrantHandle) -> None:
    """Take back a grant that nobody was left to have."""
    node.abort(handle)
    if handle.sliced:
        node.sweep(handle.grant.allocation.vendors)
