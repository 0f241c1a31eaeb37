"""The command line: one subcommand, one file, each loaded when it is asked for.

A file without `_` in front defines `command`, and its name is the subcommand's. It parses, asks
the package that knows, and formats: texts and tables (`_render`) or JSON (`_json`), which `_show`
prints. `_draw` draws and escapes, in a `_screen` where frames follow each other; `_terminal`
escapes all else. Imports everything below; of `hetero.kube` `service`, `agent`, `cluster_view`,
`cluster_totals` and `what_if`.
Start with `run` and `_request`.
"""

from __future__ import annotations

import os
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from hetero import __version__
from hetero.cli._extras import installed
from hetero.cli._terminal import guard_streams, note
from hetero.model.errors import HeteroError
from hetero.model.names import did_you_mean

_COMMANDS = sorted(
    path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_")
)
#: The commands and their sentences, which a test compares with their own: help imports none of
#: them. One that is in no section is imported for its sentence.
_SENTENCES_BY_SECTION: dict[str, dict[str, str]] = {
    "Look": {
        "inventory": "Show every card, what is free of it, and who has the rest.",
        "describe": "Show all that is known of a card.",
        "topo": "Show the links between the cards of this machine, as a matrix.",
        "ps": "Show the grants that stand, whose they are, and what they use.",
        "top": "Show what is in use now: devices, grants, containers, processes.",
        "fit": "Show what a request would get now, without taking it.",
        "log": (
            "Show who had which card when, and what containers and shares asked for, oldest first."
        ),
        "doctor": "Check drivers, limiters, devices, state and ledger.",
        "health": "Show the faults that are noted of this machine's cards.",
        "vendors": "Show the vendors that are installed, from where, working or why not.",
    },
    "Give": {
        "run": "Run CMD with a share of a device, and free it when CMD and its children are gone.",
        "resize": (
            "Change the memory, core or policy of GRANT; the running program meets it at once."
        ),
        "release": "Free GRANT.",
        "cordon": "Give nothing new of CARD; what holds it goes on, and stays in all views.",
        "uncordon": "Give of CARD again, which `hetero cordon` took out of use.",
    },
    "Containers": {
        "share": "Keep a named share of a device for whichever container asks for it.",
        "runtime": "Let containers ask for a share in their environment.",
    },
    "Cluster": {
        "simulate": "Replay a workload under placement policies, or ask what a cluster would do.",
        "explain": "Say what something would get of the cluster of $KUBECONFIG, or why not.",
        "migrate": "Print what another product's configuration is in hetero's.",
    },
    "Services": {
        "install": "Give all users of this machine one ledger: write heterod's systemd units.",
        "daemon": (
            "Be heterod: give all users of this machine shares from one ledger, until SIGTERM."
        ),
        "agent": "Offer this node's devices to its kubelet and publish them to the scheduler.",
        "scheduler": "Answer kube-scheduler: which nodes serve a pod, how well, and bind it.",
        "webhook": "Fill in what pods leave out, and refuse nonsense in one sentence.",
        "certificates": (
            "Make the certificates and the signing key of a cluster, or renew them in time."
        ),
    },
    "Try and learn": {
        "demo": "Share one card between two programs and show what each of them gets.",
        "bench": "Run the benchmark NAME with its own ARGUMENTS; without NAME, list what there is.",
        "completion": "Print a script that has SHELL complete commands, options, names and files.",
    },
}
#: What people of docker, git and kubectl type first, and what is meant.
_WORDS_BY_HABIT: dict[str, tuple[str, ...]] = {
    "ls": ("inventory",),
    "rm": ("release",),
    "kill": ("release", "--force"),
    "logs": ("log",),
    "version": ("--version",),
}


class _ReaderGone(Exception):
    """Who read what a command prints has closed the pipe."""


class _Lazy(click.Group):
    """A group whose commands are this folder's modules, imported on first use."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words, as click does; words of habit have become ours."""
        is_help = args[:1] == ["help"]
        words = args[1:] if is_help else args
        if words:
            words = [*_WORDS_BY_HABIT.get(words[0], words[:1]), *words[1:]]
        return super().parse_args(ctx, [*words, "--help"] if is_help else words)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        return _COMMANDS

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002
        cmd_name: str,
    ) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = import_module(f"hetero.cli.{cmd_name}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, as click does, but for a reader that closed the pipe."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # which click would exit with 1 for
            raise _ReaderGone from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, sentence_by_name in self._sections(ctx).items():
            with formatter.section(section):
                formatter.write_dl([*sentence_by_name.items()])

    def _sections(self, ctx: click.Context) -> dict[str, dict[str, str]]:
        listed_names = {name for sentences in _SENTENCES_BY_SECTION.values() for name in sentences}
        commands = {
            name: self.get_command(ctx, name) for name in _COMMANDS if name not in listed_names
        }
        others = {
            name: command.get_short_help_str(limit=_UNCUT_CHARACTERS)
            for name, command in commands.items()
            if command
        }
        return {**_SENTENCES_BY_SECTION, **({"Others": others} if others else {})}


#: As wide as the tables, where the terminal is.
_HELP_COLUMNS = 100
_UNCUT_CHARACTERS = 1000


@click.group(
    cls=_Lazy,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": _HELP_COLUMNS},
)
@click.version_option(__version__, message="hetero %(version)s")
def hetero() -> None:
    """Let many programs share an accelerator, each within its share.

    \b
    See what there is, give a program a piece of it, watch it:
      hetero inventory
      hetero run --memory 3000Mi --core 30 -- python train.py
      hetero ps --watch

    \b
    Exit codes: the program's own for `run`; 2 bad input, or a state directory
    that cannot be used; 3 refused; 4 no such device or vendor, or its vendor is
    broken; 126 and 127 as in a shell.

    \b
    Without a card: HETERO_RACK=mixed takes simulated ones (hetero demo --list),
    and hetero demo shows what sharing does.

    \b
    Completion: eval "$(hetero completion bash)" in your shell's start-up file;
    zsh and fish in hetero completion --help.

    \b
    Environment:
      HETERO_STATE   where standing grants are kept (root: /run/hetero; a user:
                     the runtime directory)
      HETERO_CONFIG  the node's settings (/etc/hetero/node.toml)
      HETERO_RACK    a rack file, or the name of a shipped one: simulated cards
                     take the place of real ones
    """
    if "HETERO_RACK" in os.environ:
        from hetero.node.simulation import enter

        try:
            enter(os.environ)
        except HeteroError as error:
            if {"-j", "--json"} & {*sys.argv[1:]}:
                from hetero.cli import _json
                from hetero.cli._show import dumps

                click.echo(dumps(_json.failure(error)))
            raise


def main() -> None:
    """Run the command line; what a user can act on is one line and an exit code."""
    guard_streams()
    tell_warnings()
    try:
        # Not standalone: click would print usage before every error.
        with installed():
            code = hetero.main(prog_name="hetero", standalone_mode=False)
    except HeteroError as error:
        sys.exit(_complain(str(error), error.code))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(0)
    except click.UsageError as error:
        sys.exit(_complain(_usage(error), 2))
    except click.ClickException as error:
        sys.exit(_complain(error.format_message(), error.exit_code))
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except (_ReaderGone, BrokenPipeError):
        # The reader closed the pipe; what is left to flush goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        # A full disk, a file system that cannot be written: the user's to mend, not ours.
        sys.exit(_complain(_fault(error), 2))
    sys.exit(code if isinstance(code, int) else 0)


def tell_warnings() -> None:
    """Write what a package warns of to standard error from now on, as a line of ours."""

    def tell(message: Warning | str, *_: object, **__: object) -> None:
        _complain(str(message), 0)

    warnings.showwarning = tell


def _usage(error: click.UsageError) -> str:
    path = error.ctx.command_path if error.ctx else "hetero"
    if error.ctx is None and sys.argv[1:2] and sys.argv[1] in _COMMANDS:
        path = f"hetero {sys.argv[1]}"  # click's parser does not know its command
    message = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchCommand) and error.ctx:
        group = error.ctx.command
        command_names = group.list_commands(error.ctx) if isinstance(group, click.Group) else []
        message = (
            f"no command {error.command_name!r}"
            f"{did_you_mean(error.command_name, command_names, alike=True)}"
        )
    elif isinstance(error, click.NoSuchOption):
        option_names = error.possibilities or ()
        message = (
            f"No such option {error.option_name!r}"
            f"{did_you_mean(error.option_name, option_names, alike=True)}"
        )
    return f"{message} (see `{path} --help`)"


def _fault(error: OSError) -> str:
    file_prefix = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
    return f"{file_prefix}{error.strerror or error}"


def _complain(sentence: str, code: int) -> int:
    note("hetero: " + " ".join(sentence.split()))
    return code
