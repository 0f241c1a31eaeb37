"""The one switch that puts simulated drivers in the place of real ones: $HETERO_RACK."""

from __future__ import annotations

import ctypes
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path

from hetero.model import Mount
from hetero.model.errors import BadInput, NotFound
from hetero.model.frozen import frozen
from hetero.node.native import native

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

    def enter(self) -> None:
        """Load the drivers into this process, so that whoever opens one by name gets these.

        The C library answers dlopen("libX.so.1") with a library that is loaded under that name.
        """
        os.environ["HETERO_RACK"] = str(self.rack)
        for library in sorted(self.drivers.glob("lib*.so*")):
            try:
                ctypes.CDLL(str(library))
            except OSError as error:
                raise NotFound(f"simulated driver {library}: {error}") from None

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


def simulation(environ: Mapping[str, str]) -> Simulation | None:
    """Return the simulation $HETERO_RACK asks for: a rack file, or the name of a shipped one."""
    named = environ.get("HETERO_RACK")
    if not named:
        return None
    limiters = native()
    try:
        rack = Path(named) if Path(named).is_file() else Path(limiters.rack(named))
        drivers = Path(limiters.fake_drivers())
        _expect_a_rack(rack)
    except (OSError, LookupError, ValueError) as error:
        raise BadInput(f"HETERO_RACK={named} is no rack file: {error}") from None
    return Simulation(rack=rack.resolve(), drivers=drivers.resolve())


def _expect_a_rack(path: Path) -> None:
    """Raise `ValueError` unless the file has a rack's form: each of the drivers would complain."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not _LINE.fullmatch(line.partition("#")[0].strip()):
            raise ValueError(f"line {number} is neither `[device]` nor `key = value`")
