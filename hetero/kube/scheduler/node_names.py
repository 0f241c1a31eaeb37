"""Lists of node names as kube-scheduler sends them: thousands with each pod, often the same."""

from __future__ import annotations

from attrs import define, field
from msgspec import Raw, json

_NAMES = json.Decoder(list[str])


@define(eq=False)
class NodeNames:
    """A list of node names that is parsed late: parsing thousands takes most of a decision."""

    text: Raw
    _each: list[str] | None = None
    _bytes: bytes = b""

    @classmethod
    def of(cls, names: list[str]) -> NodeNames:
        """Return the list in kube-scheduler's form."""
        return cls(Raw(json.encode(names)), names)

    @property
    def each(self) -> list[str]:
        """The names, parsed at the first use."""
        if self._each is None:
            self._each = _NAMES.decode(self.text)
        return self._each

    def __contains__(self, name: object) -> bool:
        """Return whether a node is in the list; a node's name needs no escape in JSON."""
        self._bytes = self._bytes or bytes(self.text)
        return f'"{name}"'.encode() in self._bytes


@define(eq=False)
class LastNames:
    """The last list that was received or sent: it is received again when those nodes are scored."""

    names: NodeNames = field(factory=lambda: NodeNames.of([]))

    def read(self, text: Raw) -> NodeNames:
        """Return the list of a text."""
        if text != self.names.text:
            self.names = NodeNames(text)
        return self.names
