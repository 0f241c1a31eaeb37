"""A process that waits for one grant to end and then has its slices destroyed.

Hardware that was cut for a program stays cut when the program is killed. The next admission would
see to that; this makes it prompt. It holds nothing, and nothing is lost when it is killed too.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from hetero.node.detached import start_detached
from hetero.node.ledger.locks import wait_until_free

#: Seconds between looks at a grant that only processes using the device keep standing.
_POLL_PERIOD_S = 0.5
#: How often slices are tried to be destroyed: a vendor works 20 s for another grant at most.
_TRY_COUNT = 30


def watch(alive_path: Path, vendors: Iterable[str], environ: Mapping[str, str]) -> None:
    """Start a watcher of the grant whose file `alive_path` is locked while its program lives.

    `vendors` are those whose slices it may have.
    """
    start_detached("hetero.node.watch", str(alive_path), *sorted(vendors), environ=environ)


def _wait(alive_path: Path) -> None:
    with suppress(FileNotFoundError):
        descriptor = os.open(alive_path, os.O_RDONLY | os.O_CLOEXEC)
        wait_until_free(descriptor)
        os.close(descriptor)


def _main(alive_path: Path, *vendors: str) -> None:
    if os.fork():
        os._exit(0)
    _wait(alive_path)
    # Only now, so that what waits for days is small.
    from hetero.model.errors import HeteroError
    from hetero.node.grants import LocalGrants
    from hetero.node.node import Node
    from hetero.node.simulation import enter

    enter(os.environ)
    for _ in range(_TRY_COUNT):
        with suppress(HeteroError):  # what is wrong now, settings say, may be right at the next try
            node = Node.here()
            while node.ledger.stands(alive_path.parent.name):
                time.sleep(_POLL_PERIOD_S)
            if not LocalGrants(node).sweep(vendors):
                break
        time.sleep(_POLL_PERIOD_S)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), *sys.argv[2:])
