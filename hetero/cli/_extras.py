"""Says how to install what a command needs that not every installation has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hetero.model.errors import BadInput

#: Packages by the extra of pyproject.toml that brings them.
_PACKAGES_BY_EXTRA = {
    "kube": (
        "aiohttp", "cel", "cryptography", "google", "grpc", "kubernetes", "msgspec",
        "prometheus_client", "yaml",
    ),
    "simulate": ("matplotlib", "numpy"),
}  # fmt: skip
EXTRA_BY_PACKAGE = {
    package: extra for extra, packages in _PACKAGES_BY_EXTRA.items() for package in packages
}


@contextmanager
def installed() -> Iterator[None]:
    """Let a package of an extra that is missing be the user's to install, not a fault of ours."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_BY_PACKAGE:
            raise
        raise BadInput(
            f"{package} is not installed: pip install 'hetero[{EXTRA_BY_PACKAGE[package]}]'"
        ) from None
