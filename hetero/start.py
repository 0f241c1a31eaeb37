"""The script `hetero`: says its version at once, and starts the command line for all else."""

from __future__ import annotations

import gc
import sys
from contextlib import suppress

from hetero import __version__

#: Objects between two searches for garbage: what a command imports stays until it ends, and is not
#: to be searched again and again while it is imported.
_YOUNG = 100_000


def main() -> None:
    """Run the command line as `sys.argv` says."""
    if sys.argv[1:] == ["--version"]:
        with suppress(OSError):  # the command line says what is wrong
            print(f"hetero {__version__}", flush=True)
            return
    gc.set_threshold(_YOUNG)
    from hetero.cli import main as command_line

    command_line()
