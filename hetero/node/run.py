"""Gives this process a share of a device and turns it into a program that keeps the share."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from shutil import which
from typing import NoReturn

from hetero.model import Request
from hetero.model.errors import HeteroError
from hetero.model.frozen import frozen
from hetero.node.end_rest import end_rest_after_this
from hetero.node.grants import admit_program, grants_for, grants_of
from hetero.node.ledger.ledger import ALIVE, Grant, GrantHandle
from hetero.node.ledger.rows import GangRow
from hetero.node.mounts import enter
from hetero.node.node import Node
from hetero.node.view.debt import waits
from hetero.node.watch import watch


@frozen
class WaitTerms:
    """For how many seconds a request may wait (None: as long as it takes), and who hears of it.

    `report_place` is called with the request's name in the queue, its place and the reason.
    """

    within_s: float | None
    report_place: Callable[[str, int, HeteroError], None]


def run(
    request: Request,
    *,
    command: tuple[str, ...],
    label: str | None = None,
    report_grant: Callable[[Grant, GangRow | None], None],
    warn: Callable[[str], None],
    anyway: bool = False,
    wait: WaitTerms | None = None,
    ends_with_command: bool = False,
    user_name: str | None = None,
) -> NoReturn:
    """Take what the request asks and become `command`, which holds the grant until it ends.

    So do its children, which are ended with it where the grant `ends_with_command`.

    `warn` is called with what the user should know of this machine's ledger. `report_grant` is
    called with the grant and its row in time, if it has one, before the grant is handed over.
    `anyway` takes memory that programs without a grant hold. `wait`: while there is no room it
    waits in the queue. `user_name` is whose grant it is, if root makes it for another user.
    Raises `HeteroError`; then nothing is held.
    """
    node = Node.here()
    if news := node.unseen_news():
        warn(news)

    def watch_grant(handle: GrantHandle) -> None:
        watch(handle.path / ALIVE, handle.grant.allocation.vendors, node.environ)

    grants = grants_of(node) if user_name is None else grants_for(node, user_name)
    if wait is None:
        handle, environment = admit_program(
            grants, request, command=command, label=label, watch=watch_grant, anyway=anyway
        )
    else:
        from hetero.node.wait import admit_in_turn  # here: few wait

        handle, environment = admit_in_turn(
            grants,
            request,
            command=command,
            label=label,
            watch=watch_grant,
            anyway=anyway,
            within_s=wait.within_s,
            report_place=wait.report_place,
        )
    try:
        if ends_with_command:
            end_rest_after_this(handle.path, node.environ)
        enter(handle.mounts)
        handle.hand_over()
        node.registry.close()  # the program's children are to be its own
        if which(command[0], path=environment.get("PATH")):  # what cannot start has had no grant
            report_grant(handle.grant, node.ledger.row(handle.grant))
            for debt_wait in waits(node, handle.grant):
                warn(debt_wait.what)
        _become(command, environment)
    except BaseException:
        grants.abort(handle)
        raise


def _become(command: tuple[str, ...], environment: Mapping[str, str]) -> NoReturn:
    # Python ignores these two, and a program would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - no shell is the point
    except OSError as error:
        raise _Unstartable(command[0], error) from None


class _Unstartable(HeteroError):
    """A command that cannot be executed, with the code a shell gives that."""

    def __init__(self, program_name: str, error: OSError) -> None:
        is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        self.code = 127 if is_missing else 126
        super().__init__(f"{program_name}: {'command not found' if is_missing else error.strerror}")
