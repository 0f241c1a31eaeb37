"""The one switch that puts simulated drivers in the place of real ones: $HETERO_RACK.

A command enters the simulation when it starts (`enter`). The drivers and racks are a distribution
of their own (`place.simulator`).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from hetero.model import Mount
from hetero.model.errors import BadInput, HeteroError, NotFound
from hetero.model.frozen import frozen
from hetero.model.names import did_you_mean
from hetero.node.ledger.state import prepare
from hetero.node.place import of_rack, rack_file, simulator, state_directory


@frozen
class Simulation:
    """A rack file, and the directories of the drivers that simulate it and of their programs.

    `cards` is what the rack says of each card.
    """

    rack: Path
    drivers: Path
    programs: Path
    cards: tuple[Mapping[str, str], ...] = ()

    @property
    def name(self) -> str:
        """A name for state that belongs to this rack alone."""
        return of_rack(self.rack)

    def environment(
        self, environ: Mapping[str, str], vendors: Iterable[str] = ()
    ) -> dict[str, str]:
        """Return what makes a program meet the simulated drivers.

        Those in folders of `vendors` come first: they have names that others' drivers have, too.
        """
        vendor_directories = (self.drivers / vendor for vendor in sorted(vendors))
        directories = (*(path for path in vendor_directories if path.is_dir()), self.drivers)
        library_path = filter(None, (*map(str, directories), environ.get("LD_LIBRARY_PATH")))
        return {"HETERO_RACK": str(self.rack), "LD_LIBRARY_PATH": ":".join(library_path)}

    def on_this_machine(
        self, environ: Mapping[str, str], vendors: Iterable[str] = ()
    ) -> dict[str, str]:
        """Return `environment`, and a search path that ends with the programs of the simulator."""
        search_path = environ.get("PATH") or os.defpath
        return {**self.environment(environ, vendors), "PATH": f"{search_path}:{self.programs}"}

    def mounts(self) -> tuple[Mount, ...]:
        """Return what a container needs of this machine to meet the same simulated cards."""
        card_state = "/dev/shm"  # noqa: S108 - where the drivers keep what is on the cards
        return Mount(str(self.rack), str(self.rack)), Mount(card_state, card_state, writable=True)


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
    simulation_asked = simulation(environ)
    if not simulation_asked:
        return
    os.environ["HETERO_RACK"] = str(simulation_asked.rack)
    os.environ["HETERO_SYSFS"] = str(_sysfs(simulation_asked, environ))
    # A program of a driver's is asked by its name, and must not be a real one.
    os.environ["PATH"] = f"{simulation_asked.programs}:{os.environ.get('PATH') or os.defpath}"
    for library_path in sorted(simulation_asked.drivers.glob("lib*.so*")):
        try:
            ctypes.CDLL(str(library_path))
        except OSError as error:
            raise NotFound(f"simulated driver {library_path}: {error}") from None
    _entered = simulation_asked


def _sysfs(of_simulation: Simulation, environ: Mapping[str, str]) -> Path:
    """Return the `/sys` of a simulation, which says the NUMA nodes that drivers leave to it.

    It is in the rack's state directory, by what it says. Where that cannot be written, nothing is
    there and those nodes are unknown.
    """
    import zlib  # here: a real machine has its own
    from shutil import rmtree
    from tempfile import mkdtemp

    files = simulator().sysfs(of_simulation.cards)
    state_path = state_directory(environ, uid=os.geteuid()) / of_simulation.name
    sysfs_path = state_path / f"sysfs-{zlib.crc32(repr(files).encode()):08x}"
    if not sysfs_path.exists():
        with suppress(HeteroError, OSError):
            prepare(state_path)
            making_path = Path(mkdtemp(prefix="making-sysfs-", dir=state_path))
            for name, content in files.items():
                (making_path / name).parent.mkdir(parents=True, exist_ok=True)
                (making_path / name).write_text(content)
            try:
                making_path.rename(sysfs_path)
            except OSError:  # another command was first
                rmtree(making_path, ignore_errors=True)
    return sysfs_path


def entered(environ: Mapping[str, str]) -> Simulation | None:
    """Return the simulation this process is in.

    Raises `HeteroError` when $HETERO_RACK asks for one that was not entered: what is meant for
    simulated devices must not happen to real ones.
    """
    if environ.get("HETERO_RACK") and not _entered:
        raise HeteroError("HETERO_RACK is set and its simulation was not entered at the start")
    return _entered


def simulation(environ: Mapping[str, str]) -> Simulation | None:
    """Return the simulation $HETERO_RACK asks for: a rack file, or the name of a shipped one."""
    rack_name = environ.get("HETERO_RACK")
    if not rack_name:
        return None
    from hetero.node.rack_check import cards_of_rack  # here: a real machine has no rack

    shipped = simulator()
    try:
        rack_path = rack_file(rack_name)
        drivers_path, vendor_tools_path = Path(shipped.fake_drivers()), Path(shipped.programs())
        cards = cards_of_rack(rack_path, shipped.rack_keys)
    except FileNotFoundError as error:
        suggestion = did_you_mean(rack_name, shipped.racks())
        raise BadInput(f"HETERO_RACK={rack_name} is no rack file: {error}{suggestion}") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"HETERO_RACK={rack_name} is no rack file: {error}") from None
    return Simulation(rack_path, drivers_path.resolve(), vendor_tools_path.resolve(), cards)


def racks() -> dict[str, str]:
    """Return what the shipped racks are, by name: the comment that each file begins with."""
    return {
        rack_name: path.read_text().partition("\n")[0].lstrip("# ")
        for rack_name, path in simulator().racks().items()
    }
