"""Simulated accelerators: fake drivers, the racks they read, and programs that use a driver."""

from __future__ import annotations

from pathlib import Path

from hetero_simulator import rack_keys
from hetero_simulator.rack_keys import KEYS, VENDORS

__all__ = [
    "KEYS",
    "VENDORS",
    "clock",
    "fake_drivers",
    "job",
    "programs",
    "rack",
    "rack_keys",
    "racks",
    "timing",
]

_HERE = Path(__file__).parent


def fake_drivers() -> Path:
    """Return the directory of the fake drivers, to search for libraries first (LD_LIBRARY_PATH).

    They simulate the rack file that $HETERO_RACK names; without it they answer as a machine that
    has no driver.
    """
    return _built(_HERE / "lib" / "drivers")


def clock() -> Path:
    """Return the library under which programs have a clock of their own (LD_PRELOAD).

    Then what they and their limiters do does not depend on the machine's speed.
    """
    return _built(_HERE / "lib" / "libpthread.so.virtual")


def programs() -> Path:
    """Return the directory of the programs, for the search path of commands (PATH)."""
    return _HERE / "lib"


def job(api: str) -> Path:
    """Return the program that keeps a device with this API busy and says how fast it went."""
    return _built(_HERE / "lib" / f"hetero-job-{api}")


def timing(api: str) -> Path:
    """Return the program that says what calls of the driver with this API cost."""
    return _built(_HERE / "lib" / f"hetero-timing-{api}")


def racks() -> dict[str, Path]:
    """Return the racks that are shipped, by name."""
    return {path.stem: path for path in sorted((_HERE / "racks").glob("*.rack"))}


def rack(name: str) -> Path:
    """Return a rack that is shipped, such as "mixed" or "one"."""
    shipped = racks()
    if name not in shipped:
        raise FileNotFoundError(f"no such file, and shipped are {', '.join(shipped)}")
    return shipped[name]


def _built(path: Path) -> Path:
    if not path.exists():
        source = _HERE.parent
        raise FileNotFoundError(f"{path}: not built yet; run: make -C {source}")
    return path
