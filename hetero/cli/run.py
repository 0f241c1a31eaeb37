"""hetero run: give a program a share of a device and become that program."""

from __future__ import annotations

import os
import signal
from typing import Any

import click

from hetero.cli._request import request_from, request_options
from hetero.model.errors import HeteroError
from hetero.node.ledger.ledger import ALIVE
from hetero.node.mounts import enter
from hetero.node.node import Node
from hetero.node.watch import watch


@click.command(context_settings={"allow_interspersed_args": False})
@request_options
@click.option("--label", help="A name of yours for the grant, shown by `hetero ps`.")
@click.argument("command", metavar="CMD...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(command: tuple[str, ...], label: str | None, **flags: Any) -> None:
    """Run CMD with a share of a device, and free it when CMD and its children are gone.

    CMD takes the place of this program: its exit code, its signals and its
    terminal are its own. Without --memory it gets a whole card.

    \b
      hetero run --memory 3000Mi --core 30 -- python train.py
      hetero run --memory 50% --policy elastic -- ./serve
      hetero run --count 2 -- torchrun --nproc-per-node 2 train.py
      hetero run --device 0:mem=3276Mi,core=10 --device 1:mem=8192Mi,core=50 -- ./job
    """
    node = Node.here()
    handle, environment = node.admit(request_from(**flags), command=command, label=label)
    try:
        if any(node.registry.cuts(piece.vendor) for piece in handle.grant.allocation.pieces):
            watch(handle.path / ALIVE, node.environ)
        enter(handle.mounts)
        handle.hand_over()
        _become(command, environment)
    except BaseException:
        node.ledger.abort(handle)
        raise


def _become(command: tuple[str, ...], environment: dict[str, str]) -> None:
    # Python ignores these two, and a program would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - no shell is the point
    except OSError as error:
        raise _Unstartable(command[0], error) from None


class _Unstartable(HeteroError):
    """A command that cannot be executed, with the code a shell gives that."""

    def __init__(self, name: str, error: OSError) -> None:
        missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        self.code = 127 if missing else 126
        super().__init__(f"{name}: {'command not found' if missing else error.strerror}")
