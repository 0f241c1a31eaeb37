"""Devices of this node that another driver gives out, noted for doctor."""

from __future__ import annotations

import json
from collections.abc import Mapping

from hetero.model.errors import HeteroError
from hetero.node.ledger.grant_dir import replace
from hetero.node.ledger.state import prepare
from hetero.node.node import Node

_FILE = "elsewhere.json"


def note_elsewhere(node: Node, devices: Mapping[str, str]) -> None:
    """Write down which driver gives out which devices, by UUID. Raises `HeteroError`."""
    if devices == elsewhere(node):
        return
    path = node.ledger.path
    try:
        prepare(path)
        replace(path / _FILE, json.dumps(dict(devices)).encode(), mode=0o644)
    except OSError as error:
        raise HeteroError(f"{path / _FILE}: {error.strerror}") from None


def elsewhere(node: Node) -> dict[str, str]:
    """Return the drivers that give out devices of this node in our place, by UUID."""
    try:
        giver_by_uuid = json.loads((node.ledger.path / _FILE).read_text())
    except (OSError, ValueError):
        return {}
    return (
        {str(uuid): str(giver) for uuid, giver in giver_by_uuid.items()}
        if isinstance(giver_by_uuid, dict)
        else {}
    )
