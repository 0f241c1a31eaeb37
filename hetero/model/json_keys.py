"""What documents call a field whose own name has its unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attrs import Attribute


def json_key(name: str) -> Mapping[str, str]:
    """Return the metadata of a field that documents call `name`."""
    return {"key": name}


def key_of(attribute: Attribute[Any]) -> str:
    """Return what documents call a field."""
    key: str = attribute.metadata.get("key", attribute.name)
    return key
