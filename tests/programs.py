"""Programs that tests run to their end."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, AnyStr

#: In front of a command of a grant: without its limiter, which else comes along where HETERO_GRANT
#: is not empty.
WITHOUT_LIMITER = ("env", "-u", "LD_PRELOAD", "HETERO_GRANT=")


def completed(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and return what came of it, with what it printed as text."""
    return subprocess.run(command, capture_output=True, text=True, **options)


def next_line(program: subprocess.Popen[AnyStr]) -> AnyStr:
    """Return what a program that runs prints next; empty once it has ended."""
    assert program.stdout is not None
    return program.stdout.readline()
