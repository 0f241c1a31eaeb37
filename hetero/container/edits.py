"""Says what goes into a container: its grant, the limiter, and the driver where nobody brings it.

Only the usage region and the grant's own pages can be written from inside; they hold no limit. The
limiter gets in by /etc/ld.so.preload, which no process of the container can lose, and never by
LD_PRELOAD: a hook of another vendor's that runs with more rights would inherit it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from hetero.container.cdi import Specs
from hetero.container.preload import PLACE, TARGET, preloading
from hetero.model import Edits, Mount
from hetero.node.ledger.grant_dir import GRANT, PRELOAD, USAGE, board_of, page_name, replace
from hetero.node.ledger.ledger import Grant
from hetero.node.node import Node

#: Where the dynamic linker looks for libraries by itself: Debian's place, and everybody else's.
_SEARCHED = (f"/usr/lib/{os.uname().machine}-linux-gnu", "/usr/lib64")


def confine(
    node: Node,
    grant: Grant,
    edits: Edits,
    *,
    limiters: Sequence[Mount],
    specs: Specs | None = None,
) -> Edits:
    """Return all edits that confine a container to its grant: `edits` are those of the vendors.

    `limiters` are the mounts of the limiter libraries, and of the preload file that loads them.
    """
    specs = specs or Specs()
    directory = node.ledger.directory(grant.id)
    env = dict(edits.env)
    mounts = list(edits.mounts)
    device_nodes: tuple[str, ...] = ()
    if not edits.cdi or not all(map(specs.present, edits.cdi)):
        mounts += driver_files(
            edits.files, libraries=node.simulation.drivers if node.simulation else None
        )
        device_nodes = tuple(path for path in edits.device_nodes if os.path.exists(path))
    if node.simulation:
        env["HETERO_RACK"] = str(node.simulation.rack)
        mounts += node.simulation.mounts()
    # Without a limiter nothing reads it; it still says whose the container is.
    mounts.append(Mount(str(directory / GRANT), f"{PLACE}/grant"))
    if limiters:
        mounts.append(Mount(str(directory / USAGE), f"{PLACE}/usage", writable=True))
        for position, limit in enumerate(grant.limits):
            page_path = directory / page_name(position)
            board_dir = board_of(node.ledger.boards, limit.name)
            mounts.append(Mount(str(page_path), f"{PLACE}/page.{position}", writable=True))
            mounts.append(Mount(str(board_dir), f"{PLACE}/board.{position}"))
    return Edits(
        env=env, mounts=tuple(dict.fromkeys([*mounts, *limiters])), device_nodes=device_nodes
    )


def in_place(
    directory: Path, limiter_paths: Sequence[Path], preloads: Iterable[str] = ()
) -> list[Mount]:
    """Return the mounts of the installed limiters, for the grant in `directory`.

    Their preload file names the libraries that the image preloads, `preloads`, after them.
    """
    if not limiter_paths:
        return []
    mounts = [Mount(str(path), f"{PLACE}/{path.name}") for path in limiter_paths]
    preload_text = preloading((mount.target for mount in mounts), preloads)
    preload_path = directory / PRELOAD
    # A container that has the file mounted must never see it empty.
    if not preload_path.exists() or preload_path.read_text() != preload_text:
        replace(preload_path, preload_text.encode(), mode=0o644)
    return [*mounts, Mount(str(preload_path), TARGET)]


def driver_files(
    file_names: Iterable[str], *, root: Path = Path("/"), libraries: Path | None = None
) -> Iterator[Mount]:
    """Yield the mounts of those files of a driver that exist on the machine with the root `root`.

    A library comes from the directory `libraries`, or else from the cache of the machine's dynamic
    linker.
    """
    path_by_name: dict[str, str] | None = None
    for file_name in file_names:
        path, _, target = file_name.partition(":")
        if path.startswith("/"):
            if _is_there(root, path):
                yield Mount(path, target or path)
            continue
        if libraries:
            source_path = str(libraries / file_name)
        else:
            path_by_name = _linked(root) if path_by_name is None else path_by_name
            source_path = path_by_name.get(file_name, "")
        if _is_there(root, source_path):
            for search_directory in _SEARCHED:
                yield Mount(source_path, f"{search_directory}/{file_name}")


def _is_there(root_directory: Path, path: str) -> bool:
    return bool(path) and os.path.lexists(root_directory / path.lstrip("/"))


def _linked(root_directory: Path) -> dict[str, str]:
    """Return the library paths of the machine's dynamic linker by name, for its architecture."""
    import subprocess  # a container's start waits for every import; most need no library of ours

    is_host_root = root_directory == Path("/")
    linker_cache = subprocess.run(
        [
            "ldconfig",
            "-p",
            *(() if is_host_root else ("-C", str(root_directory / "etc/ld.so.cache"))),
        ],
        env={"PATH": "/sbin:/usr/sbin:/bin:/usr/bin"},
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    names_and_paths = re.findall(
        r"^\s+(\S+) \(libc6,(?:x86-64|AArch64)[^)]*\) => (/\S+)$", linker_cache, re.M
    )
    # Another root's links are for the machine itself to follow.
    resolve: Callable[[str], str] = (
        os.path.realpath if is_host_root else partial(_in_usr, root_directory)
    )
    return {library_name: resolve(path) for library_name, path in reversed(names_and_paths)}


def _in_usr(root_directory: Path, path: str) -> str:
    """Return where a library is: below /usr where a link of the root is not visible."""
    return (
        path
        if _is_there(root_directory, path) or not _is_there(root_directory, f"/usr{path}")
        else f"/usr{path}"
    )
