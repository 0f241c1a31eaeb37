"""Labels what containers get of the agent's directories, where SELinux confines containers."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

log = logging.getLogger(__name__)

#: The extended attribute that is a file's SELinux label (selinux(8)).
ATTRIBUTE = "security.selinux"


def label(directories: Iterable[Path], selinux_type: str) -> None:
    """Give directories, and all below them, a type that containers may read and write.

    What is made there later has its directory's. A node that takes no labels is logged: the limits
    hold with and without them, and only a container that SELinux confines cannot start.
    """
    # A level without categories is open to all containers, whatever theirs are.
    context = f"system_u:object_r:{selinux_type}:s0\0".encode()
    for path in (path for directory in directories for path in _below(directory)):
        try:
            os.setxattr(path, ATTRIBUTE, context, follow_symlinks=False)
        except FileNotFoundError:
            continue  # removed meanwhile
        except OSError as error:
            log.warning("%s: no SELinux label %s: %s", path, selinux_type, error.strerror)
            return


def _below(directory: Path) -> Iterator[Path]:
    """Yield a directory and all below it."""
    directory.mkdir(parents=True, exist_ok=True)
    yield directory
    for parent, directory_names, file_names in os.walk(directory):
        yield from (Path(parent, name) for name in (*directory_names, *file_names))
