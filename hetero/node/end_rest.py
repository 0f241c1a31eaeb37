"""A process that waits for the end of a grant's command and then ends what holds the grant still.

It holds nothing itself. Where it is killed, the grant lives as long as its processes, as any other.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Mapping
from pathlib import Path

from hetero.node.detached import start_detached
from hetero.node.ledger.grant_dir import USAGE
from hetero.node.ledger.holders import end
from hetero.node.ledger.ledger import ALIVE

#: Seconds between SIGTERM and SIGKILL.
_GRACE_S = 10.0


def end_rest_after_this(directory: Path, environ: Mapping[str, str]) -> None:
    """Have the holders of the grant in `directory` ended once this process has ended.

    What this process executes later is this process.
    """
    start_detached("hetero.node.end_rest", str(os.getpid()), str(directory), environ=environ)


def _main(pid: int, directory: Path) -> None:
    pidfd = os.pidfd_open(pid)  # while it waits for us: it is no later process of that number
    if os.fork():
        os._exit(0)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.poll()
    end([directory / ALIVE, directory / USAGE], grace_s=_GRACE_S)


if __name__ == "__main__":
    _main(int(sys.argv[1]), Path(sys.argv[2]))
