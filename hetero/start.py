"""The script `hetero`: says its version at once, and starts the command line for all else."""

from __future__ import annotations

import sys

from hetero import __version__


def main() -> None:
    """Run the command line as `sys.argv` says."""
    if sys.argv[1:] == ["--version"]:
        print(f"hetero {__version__}")
        return
    from hetero.cli import main as command_line

    command_line()
