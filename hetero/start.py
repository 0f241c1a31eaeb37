"""The script `hetero`: says its version at once, and starts the command line for all else."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # `signal` without its enums
import atexit
import gc
import os
import sys
from contextlib import suppress

from hetero import __version__

#: Objects between two searches for garbage: what a command imports stays until it ends, and is not
#: to be searched again and again while it is imported.
_YOUNG_OBJECT_COUNT = 100_000


# Until all is imported Ctrl-C simply ends this process: there is nothing to undo or to say.
if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


def main() -> None:
    """Run the command line as `sys.argv` says."""
    if sys.argv[1:] == ["--version"]:
        with suppress(OSError):  # the command line says what is wrong
            print(f"hetero {__version__}", flush=True)
            return
    gc.set_threshold(_YOUNG_OBJECT_COUNT)
    import threading  # which the version does without, too

    from hetero.cli import main as command_line

    if _signal.getsignal(_signal.SIGINT) == _signal.SIG_DFL:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    try:
        command_line()
    except SystemExit as end:
        if isinstance(end.code, int) and threading.active_count() == 1:
            _end(end.code)
        raise


def _end(code: int) -> None:
    """End, unless what was printed cannot be flushed: then the interpreter says so.

    It would take everything apart first that was imported, an eighth of what a short command
    computes. Files, locks and memory are the kernel's to take back.
    """
    atexit._run_exitfuncs()  # what was registered is done, as ever
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
