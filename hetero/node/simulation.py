"""The one switch that puts simulated drivers in the place of real ones: $HETERO_RACK.

A command enters the simulation when it starts (`enter`). The drivers and racks are a distribution
of their own (hetero-simulator), and this is the only module that knows it.
"""

from __future__ import annotations

import ctypes
import os
import re
import zlib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType

from hetero.model import Mount
from hetero.model.errors import BadInput, HeteroError, NotFound
from hetero.model.frozen import frozen

#: A section, a key with its value, or nothing.
_LINE = re.compile(r"\[[^\]]+\]|[^=]+=.*|")


@frozen
class Simulation:
    """The rack file that is simulated, and the directory of the drivers that read it."""

    rack: Path
    drivers: Path

    @property
    def name(self) -> str:
        """A name for state that belongs to this rack alone."""
        return f"sim-{zlib.crc32(bytes(self.rack)):08x}"

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return what makes a program meet the simulated drivers."""
        path = environ.get("LD_LIBRARY_PATH")
        return {
            "HETERO_RACK": str(self.rack),
            "LD_LIBRARY_PATH": f"{self.drivers}:{path}" if path else str(self.drivers),
        }

    def cards(self) -> tuple[Mount, ...]:
        """Return what a container needs of this machine to meet the same simulated cards."""
        state = "/dev/shm"  # noqa: S108 - where the drivers keep what is on the cards
        return Mount(str(self.rack), str(self.rack)), Mount(state, state, writable=True)


_entered: Simulation | None = None


def enter(environ: Mapping[str, str]) -> None:
    """Have this process meet the simulated drivers from now on, if $HETERO_RACK asks for them.

    Changes this process: the drivers are loaded for good, and read $HETERO_RACK from its own
    environment. The C library answers dlopen("libX.so.1") with a library that is loaded under that
    name.
    """
    global _entered
    if _entered:
        return
    simulated = simulation(environ)
    if not simulated:
        return
    os.environ["HETERO_RACK"] = str(simulated.rack)
    for library in sorted(simulated.drivers.glob("lib*.so*")):
        try:
            ctypes.CDLL(str(library))
        except OSError as error:
            raise NotFound(f"simulated driver {library}: {error}") from None
    _entered = simulated


def entered(environ: Mapping[str, str]) -> Simulation | None:
    """Return the simulation this process is in.

    Raises `HeteroError` when $HETERO_RACK asks for one that was not entered: what is meant for
    simulated devices must not happen to real ones.
    """
    if environ.get("HETERO_RACK") and not _entered:
        raise HeteroError("HETERO_RACK is set and its simulation was not entered at the start")
    return _entered


def simulator() -> ModuleType:
    """Return the package hetero_simulator. Raises `HeteroError` when it is not installed."""
    try:
        return import_module("hetero_simulator")
    except ImportError:
        raise HeteroError(
            "simulated devices and the demo need the simulator: pip install 'hetero[demo]'"
        ) from None


def simulation(environ: Mapping[str, str]) -> Simulation | None:
    """Return the simulation $HETERO_RACK asks for: a rack file, or the name of a shipped one."""
    named = environ.get("HETERO_RACK")
    if not named:
        return None
    shipped = simulator()
    try:
        rack = Path(named) if Path(named).is_file() else Path(shipped.rack(named))
        drivers = Path(shipped.fake_drivers())
        _expect_a_rack(rack)
    except (OSError, LookupError, ValueError) as error:
        raise BadInput(f"HETERO_RACK={named} is no rack file: {error}") from None
    return Simulation(rack=rack.resolve(), drivers=drivers.resolve())


def _expect_a_rack(path: Path) -> None:
    """Raise `ValueError` unless the file has a rack's form: each of the drivers would complain."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not _LINE.fullmatch(line.partition("#")[0].strip()):
            raise ValueError(f"line {number} is neither `[device]` nor `key = value`")
