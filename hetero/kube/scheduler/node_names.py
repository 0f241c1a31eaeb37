"""Names of nodes as kube-scheduler sends them: thousands with each pod, and often the same ones."""

from __future__ import annotations

from attrs import define, field
from msgspec import Raw, json

_NAMES = json.Decoder(list[str])


@define(eq=False)
class NodeNames:
    """Names of nodes by their text: of thousands, reading them takes most of a decision."""

    text: Raw
    _each: list[str] | None = None
    _bytes: bytes = b""

    @classmethod
    def of(cls, names: list[str]) -> NodeNames:
        """Return the names as kube-scheduler would send them."""
        return cls(Raw(json.encode(names)), names)

    @property
    def each(self) -> list[str]:
        """The names, read when they are first wanted."""
        if self._each is None:
            self._each = _NAMES.decode(self.text)
        return self._each

    def __contains__(self, name: object) -> bool:
        """Return whether a node is among them; a node's name needs no escape in JSON."""
        self._bytes = self._bytes or bytes(self.text)
        return f'"{name}"'.encode() in self._bytes


@define(eq=False)
class LastNames:
    """The names that came or went last: they come again when those nodes are scored."""

    names: NodeNames = field(factory=lambda: NodeNames.of([]))

    def read(self, text: Raw) -> NodeNames:
        """Return the names of a text."""
        if text != self.names.text:
            self.names = NodeNames(text)
        return self.names
