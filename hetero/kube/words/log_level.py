"""How much a service of a cluster logs."""

from __future__ import annotations

from collections.abc import Mapping

from hetero.model.errors import BadInput

#: The variable that says it, and its values: those of Python's logging.
LOG_LEVEL = "HETERO_LOG_LEVEL"
_LEVELS = ("debug", "info", "warning", "error")


def log_level(environ: Mapping[str, str]) -> str:
    """Return the level for Python's logging; `info` where nothing is said. Raises `BadInput`."""
    text = environ.get(LOG_LEVEL, "info")
    if text not in _LEVELS:
        raise BadInput(f"{LOG_LEVEL} {text!r} is none of {', '.join(_LEVELS)}")
    return text.upper()
