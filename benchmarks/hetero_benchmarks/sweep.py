"""Ends the services that outlive the programs of a ledger, where nobody can wait for its watchers.

A state directory that is removed takes along the only way to them. $HETERO_STATE says which it is.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping

from hetero.model.errors import HeteroError
from hetero.node.grants import LocalGrants
from hetero.node.node import Node
from hetero.node.simulation import enter

#: Seconds that a watcher may be at work for a grant that ended, and how often it is looked at.
_PATIENCE, _PAUSE = 30.0, 0.1


def sweep(environ: Mapping[str, str]) -> None:
    """End what no standing grant needs, in a process that has this environment.

    Raises `HeteroError` where something is left.
    """
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise HeteroError(f"left on the machine: {done.stderr.strip()}")


def _main() -> int:
    enter(os.environ)
    deadline = time.monotonic() + _PATIENCE
    while faults := LocalGrants(Node.here()).sweep():
        if time.monotonic() > deadline:
            print("; ".join(faults), file=sys.stderr)
            return 1
        time.sleep(_PAUSE)
    return 0


if __name__ == "__main__":
    sys.exit(_main())
