"""Where the limiters are, and what they were built to read."""

from __future__ import annotations

from pathlib import Path

__all__ = ["layouts", "library"]

_HERE = Path(__file__).parent


def library(api: str) -> Path:
    """Return the limiter to preload in front of the driver with this API, such as "cuda"."""
    return _built(_HERE / "lib" / f"libhetero-{api}.so")


def layouts() -> dict[str, int]:
    """Return the versions of the files that limiters share with the node: "grant", "region"."""
    lines = _built(_HERE / "lib" / "layouts").read_text().splitlines()
    return {name: int(version) for name, version in map(str.split, lines)}


def _built(path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError(f"{path}: not built yet; run: make -C {_HERE.parent}")
    return path
