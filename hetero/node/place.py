"""Where the state of a user lies, asked by a shell's completion, too: nothing heavy is imported."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType

#: Root's ledger: the one every user of the machine can read.
SYSTEM = Path("/run/hetero")
#: What of root's outlives a boot: the records of shares, and the log.
KEPT = Path("/var/lib/hetero")


def state_directory(environ: Mapping[str, str], *, uid: int) -> Path:
    """Return where `uid` keeps its state: $HETERO_STATE, or the runtime directory of the user.

    Raises `BadInput` for a relative one: it would be another ledger in each working directory.
    """
    if environ.get("HETERO_STATE"):
        return _absolute(environ["HETERO_STATE"])
    if uid == 0:
        return SYSTEM
    runtime = environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "hetero"
    return Path(f"/tmp/hetero-{uid}")  # noqa: S108 - `prepare` refuses one that is not ours


def persistent_directory(environ: Mapping[str, str], *, uid: int) -> Path | None:
    """Return where `uid` keeps what outlives a boot: root has a place for it, and $HETERO_STATE."""
    if environ.get("HETERO_STATE"):
        return _absolute(environ["HETERO_STATE"]) / "persistent"
    return KEPT if uid == 0 else None


def _absolute(path_text: str) -> Path:
    if not Path(path_text).is_absolute():
        from hetero.model.errors import BadInput  # as below

        raise BadInput(f"HETERO_STATE {path_text!r} is not an absolute path: write it from / on")
    return Path(path_text)


def simulator() -> ModuleType:
    """Return the package hetero_simulator. Raises `HeteroError` when it is not installed."""
    try:
        return import_module("hetero_simulator")
    except ImportError:
        from hetero.model.errors import HeteroError  # only here: it takes longer than all the rest

        raise HeteroError(
            "simulated devices and the demo need the simulator: "
            "in hetero's sources, pip install ./simulator"
        ) from None


def has_simulator() -> bool:
    """Return whether the package hetero_simulator is installed."""
    from importlib.util import find_spec  # only here: nobody else waits for it

    return find_spec("hetero_simulator") is not None


def rack_file(rack_name: str) -> Path:
    """Return the rack that $HETERO_RACK names: a file, or a shipped one, or `FileNotFoundError`."""
    path = Path(rack_name)
    return (path if path.is_file() else Path(simulator().rack(rack_name))).resolve()


def of_rack(rack_path: Path) -> str:
    """Return the name of what belongs to this rack alone."""
    return f"sim-{zlib.crc32(bytes(rack_path)):08x}"


def ledgers(environ: Mapping[str, str], *, uid: int) -> tuple[Path, ...]:
    """Return the ledgers that a user sees: the own one, and root's."""
    rack = environ.get("HETERO_RACK")
    subdir = of_rack(rack_file(rack)) if rack else ""
    return tuple(dict.fromkeys((state_directory(environ, uid=uid) / subdir, SYSTEM / subdir)))
