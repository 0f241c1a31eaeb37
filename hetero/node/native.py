"""Finds the native libraries, which are a distribution of their own (hetero-limiters)."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType

from hetero.model.errors import HeteroError, NotFound
from hetero.node.ledger import board, grant_file, usage_region


def native() -> ModuleType:
    """Return the package hetero_limiters. Raises `NotFound` when it is not installed."""
    try:
        return import_module("hetero_limiters")
    except ImportError:
        raise NotFound(
            "the native limiters are missing: in hetero's sources, pip install ./limiters"
        ) from None


def limiter(api: str) -> Path:
    """Return the limiter for a driver API, as LD_PRELOAD can name it. Raises `NotFound`.

    Raises `HeteroError` for limiters that do not read what this node writes.
    """
    limiters = native()
    try:
        path = Path(limiters.library(api))
        _expect_layouts(limiters.layouts())
    except (FileNotFoundError, LookupError, ValueError) as error:
        raise NotFound(f"the limiter for {api}: {error}") from None
    if any(character in str(path) for character in " :\t\n"):
        # The dynamic linker splits LD_PRELOAD at these and knows no quoting.
        raise NotFound(f"the limiter {path}: LD_PRELOAD cannot name a path with spaces or colons")
    return path


def _expect_layouts(built_versions: Mapping[str, int]) -> None:
    """Raise `HeteroError` unless limiters and node agree on the files that they share."""
    expected_versions = {
        "grant": grant_file.VERSION,
        "region": usage_region.VERSION,
        "board": board.VERSION,
    }
    for layout, version in expected_versions.items():
        if built_versions.get(layout) != version:
            from importlib.metadata import version as installed  # takes long to import

            raise HeteroError(
                f"hetero-limiters {installed('hetero-limiters')} reads {layout} layout "
                f"{built_versions.get(layout)}, hetero {installed('hetero')} writes {version}: "
                "install both from the same sources (pip install --upgrade . ./limiters)"
            )
