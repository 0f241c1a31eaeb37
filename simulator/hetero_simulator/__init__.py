"""Simulated accelerators: fake drivers, the racks they read, and programs that use a driver."""

from __future__ import annotations

from pathlib import Path

__all__ = ["fake_drivers", "job", "rack", "timing"]

_HERE = Path(__file__).parent


def fake_drivers() -> Path:
    """Return the directory of the fake drivers, to search for libraries first (LD_LIBRARY_PATH).

    They simulate the rack file that $HETERO_RACK names; without it they answer as a machine that
    has no driver.
    """
    return _built(_HERE / "lib" / "drivers")


def job(api: str) -> Path:
    """Return the program that keeps a device with this API busy and says how fast it went."""
    return _built(_HERE / "lib" / f"hetero-job-{api}")


def timing(api: str) -> Path:
    """Return the program that says what calls of the driver with this API cost."""
    return _built(_HERE / "lib" / f"hetero-timing-{api}")


def rack(name: str) -> Path:
    """Return an example rack that is shipped, such as "mixed" or "one"."""
    racks = {path.stem: path for path in (_HERE / "racks").glob("*.rack")}
    if name not in racks:
        raise FileNotFoundError(f"no such file, and shipped are {', '.join(sorted(racks))}")
    return racks[name]


def _built(path: Path) -> Path:
    if not path.exists():
        source = _HERE.parent
        raise FileNotFoundError(f"{path}: not built yet; run: make -C {source}")
    return path
