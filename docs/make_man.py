"""Writes the manual pages of all commands, from click: `make man PREFIX=/usr/local`.

    python docs/make_man.py FOLDER

`man` looks in share/man beside each bin of $PATH, so the default is the environment's own.
"""

from __future__ import annotations

import sys
from copy import copy
from pathlib import Path

import click
from click_man.core import write_man_pages

from hetero import __version__
from hetero.cli import hetero


def write(folder: Path) -> int:
    """Write the pages into a folder, and return how many there are."""
    folder.mkdir(parents=True, exist_ok=True)
    write_man_pages("hetero", _loaded(hetero), version=__version__, target_dir=str(folder))
    return len(list(folder.glob("hetero*.1")))


def _loaded(command: click.Command) -> click.Command:
    """Return a copy whose commands are loaded, where click-man looks for them, with whole texts."""
    made = copy(command)
    made.short_help = command.get_short_help_str(limit=1000)
    if isinstance(made, click.Group):
        context = click.Context(made)
        named = ((name, made.get_command(context, name)) for name in made.list_commands(context))
        made.commands = {name: _loaded(one) for name, one in named if one and not one.hidden}
    return made


if __name__ == "__main__":
    print(f"{write(Path(sys.argv[1]))} pages: {sys.argv[1]}")
