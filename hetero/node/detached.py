"""Start a module of ours as a process that stays when its starter ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping


def start_detached(module: str, *arguments: str, environ: Mapping[str, str]) -> None:
    """Run the module, whose first process forks and ends: the other one is nobody's child then.

    So a program that waits for its children does not wait for it.
    """
    subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=dict(environ),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        check=True,
    )
