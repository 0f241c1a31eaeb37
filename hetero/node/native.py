"""Finds the native libraries, which are a distribution of their own (hetero-limiters)."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

from hetero.model.errors import NotFound


def native() -> ModuleType:
    """Return the package hetero_limiters. Raises `NotFound` when it is not installed."""
    try:
        return import_module("hetero_limiters")
    except ImportError:
        raise NotFound("the native limiters are missing: pip install hetero-limiters") from None


def limiter(api: str) -> Path:
    """Return the limiter for a driver API, as LD_PRELOAD can name it. Raises `NotFound`."""
    try:
        path = Path(native().library(api))
    except (FileNotFoundError, LookupError, ValueError) as error:
        raise NotFound(f"the limiter for {api}: {error}") from None
    if any(sign in str(path) for sign in " :\t\n"):
        # The dynamic linker splits LD_PRELOAD at these and knows no quoting.
        raise NotFound(f"the limiter {path}: LD_PRELOAD cannot name a path with spaces or colons")
    return path
