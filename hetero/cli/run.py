"""hetero run: give a program a share of a device and become that program."""

from __future__ import annotations

from typing import Any

import click

from hetero.cli import _json
from hetero.cli._done import gang, limits, quiet_option
from hetero.cli._request import anyway_option, request_from, request_options
from hetero.cli._show import dumps
from hetero.cli._terminal import note
from hetero.model.errors import BadInput, HeteroError
from hetero.model.units import parse_duration
from hetero.node.ledger.ledger import Grant
from hetero.node.ledger.rows import GangRow
from hetero.node.run import WaitTerms, run

#: `--wait` without a time while click reads the words: no word of a command line has such a sign.
_NO_TIME = "--wait=\0"


class _Command(click.Command):
    """A command whose `--wait` takes a time behind `=` alone: what follows may be the program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words, as click does."""
        return super().parse_args(ctx, [_NO_TIME if word == "--wait" else word for word in args])


@click.command(cls=_Command, context_settings={"allow_interspersed_args": False})
@request_options
@anyway_option
@click.option(
    "--wait",
    "wait_text",
    metavar="[=TIME]",
    help="While there is no room, wait in the queue, at most TIME (90s, 10m, 2h). Who came first "
    "is served first; ps shows who waits.",
)
@click.option(
    "--end-with",
    type=click.Choice(("processes", "command")),
    default="processes",
    show_default=True,
    help="When the grant ends: with the last of its processes, or with CMD, and then the others "
    "that hold it are ended.",
)
@click.option(
    "--for-user",
    "user_name",
    metavar="USER",
    help="Root alone: whose grant it is, by name or number. CMD starts as root and may become USER "
    "before it opens the card, as gosu and setpriv do.",
)
@click.option("--label", help="A name of yours for the grant, shown and taken by all commands.")
@quiet_option
@click.option(
    "-j", "--json", "as_json", is_flag=True, help="What it got as JSON, a line on standard error."
)
@click.argument("command", metavar="CMD...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    *,
    command: tuple[str, ...],
    label: str | None,
    quiet: bool,
    as_json: bool,
    anyway: bool,
    wait_text: str | None,
    end_with: str,
    user_name: str | None,
    **flags: Any,
) -> None:
    """Run CMD with a share of a device, and free it when CMD and its children are gone.

    CMD takes the place of this program: its exit code, its signals and its
    terminal are its own. Without --memory it gets a whole card. What it got is
    said on standard error, unless -q. Cards come first on which no program runs
    without a grant; where none has room for what is asked, it is refused unless
    --anyway.

    \b
      hetero run --memory 3000Mi --core 30 -- python train.py
      hetero run --memory 50% --policy elastic -- ./serve
      hetero run --wait=30m --memory 20Gi -- python train.py
      hetero run --count 2 -- torchrun --nproc-per-node 2 train.py
      hetero run --count 2 --core 50 --gang left --row 1/2 -- ./train
      hetero run --device 0:mem=3276Mi,core=10 --device 1:mem=8192Mi,core=50 -- ./job
    """
    command = tuple("--wait" if word == _NO_TIME else word for word in command)
    if not command[0]:
        raise BadInput("no command to run: its first word is empty")

    def warn(message: str) -> None:
        if not (quiet or as_json):
            note(f"hetero: {message}")

    def tell(grant: Grant, row: GangRow | None) -> None:
        if as_json:
            note(dumps(_json.granted(grant), indent=None))
            return
        for line in () if quiet else (*limits(grant), *gang(grant, row)):
            note(f"hetero: {line}")

    def tell_place(name: str, place: int, reason: HeteroError) -> None:
        warn(f"{name} waits, place {place} in the queue: {reason}")

    try:
        run(
            request_from(**flags),
            command=command,
            label=label,
            report_grant=tell,
            warn=warn,
            anyway=anyway,
            wait=None if wait_text is None else WaitTerms(_within_s(wait_text), tell_place),
            ends_with_command=end_with == "command",
            user_name=user_name,
        )
    except HeteroError as error:
        if as_json:
            note(dumps(_json.failure(error), indent=None))
        raise


def _within_s(wait_text: str) -> float | None:
    """Return the seconds that a request may wait, None for as long as it takes."""
    return None if wait_text == "\0" else parse_duration(wait_text, of="--wait")
