"""The foreign DRA drivers that publish devices of this node, recorded for `hetero doctor`."""

from __future__ import annotations

import json
from collections.abc import Mapping

from hetero.model.errors import HeteroError
from hetero.node.ledger.grant_dir import replace
from hetero.node.ledger.state import prepare
from hetero.node.node import Node

_FILE = "elsewhere.json"


def note_other_dra_drivers(node: Node, driver_by_uuid: Mapping[str, str]) -> None:
    """Record the drivers that publish devices of this node, by UUID. Raises `HeteroError`."""
    if driver_by_uuid == other_dra_drivers(node):
        return
    path = node.ledger.path
    try:
        prepare(path)
        replace(path / _FILE, json.dumps(dict(driver_by_uuid)).encode(), mode=0o644)
    except OSError as error:
        raise HeteroError(f"{path / _FILE}: {error.strerror}") from None


def other_dra_drivers(node: Node) -> dict[str, str]:
    """Return the foreign drivers that publish devices of this node, by UUID."""
    try:
        driver_by_uuid = json.loads((node.ledger.path / _FILE).read_text())
    except (OSError, ValueError):
        return {}
    return (
        {str(uuid): str(driver) for uuid, driver in driver_by_uuid.items()}
        if isinstance(driver_by_uuid, dict)
        else {}
    )
