"""Checks a rack file before a driver reads it: the drivers ignore what they do not know."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from attrs import define, field

from hetero.model.names import did_you_mean

#: A section by its kind, a key with its value, or nothing.
_LINE = re.compile(r"\[\s*(?P<kind>[^\]\s]+)[^\]]*\]|(?P<key>[^=\s][^=]*?)\s*=\s*(?P<value>.*)|")
#: The most cards that the simulated drivers have room for.
_MOST_CARDS = 64
_SIZE = re.compile(r"0*[1-9][0-9]*(\.[0-9]+)?\s*([KMGT]i)?B", re.ASCII)


@define(eq=False, repr=False)
class _Section:
    """A section of a rack: the line it begins in, and the line and the value of each key."""

    kind: str
    line_number: int
    values: dict[str, tuple[int, str]] = field(factory=dict)

    def add(self, key: str, value: str, line_number: int) -> None:
        if key in self.values:
            first_number = self.values[key][0]
            raise ValueError(f"line {line_number}: {key} was said in line {first_number} already")
        self.values[key] = line_number, value

    def value_of(self, key: str) -> tuple[int, str]:
        """Return the line and the value of a key; an empty value where it is not said."""
        return self.values.get(key, (self.line_number, ""))


def expect_a_rack(path: Path, *, keys: Mapping[str, Sequence[str]], vendors: Sequence[str]) -> None:
    """Raise `ValueError` with the line unless the file is a rack.

    `keys` are those of each kind of section, `vendors` those with a simulated driver.
    """
    section: _Section | None = None
    cards: list[_Section] = []
    for line_number, line in enumerate(path.read_text().splitlines(), 1):
        line_match = _LINE.fullmatch(line.partition("#")[0].strip())
        if line_match is None:
            raise ValueError(f"line {line_number} is neither `[device]` nor `key = value`")
        kind, key, value = line_match["kind"], line_match["key"], line_match["value"]
        if kind:
            _expect(kind, keys, f"line {line_number}: unknown section")
            section = _Section(kind, line_number)
            cards += [section] if kind == "device" else []
        if key and section:
            _expect(key, keys[section.kind], f"line {line_number}: unknown key of [{section.kind}]")
            section.add(key, value, line_number)
        if key == "vendor":
            _expect(value, vendors, f"line {line_number}: no simulated driver of")
    if not cards:
        raise ValueError("it has no [device]")
    if len(cards) > _MOST_CARDS:
        line_number = cards[_MOST_CARDS].line_number
        raise ValueError(f"line {line_number}: it has {len(cards)} cards, at most {_MOST_CARDS}")
    card_counts = Counter(card.value_of("vendor")[1] for card in cards)
    for card in cards:
        _expect_size(card)
        _expect_links(card, card_counts[card.value_of("vendor")[1]])
    _expect_different(cards)


def _expect_size(card: _Section) -> None:
    for key, example in (("model", "NAME"), ("memory", "23034 MiB")):
        line_number, value = card.value_of(key)
        if not value:
            raise ValueError(f"line {line_number}: [device] without {key}: write {key} = {example}")
    line_number, size = card.value_of("memory")
    if _SIZE.fullmatch(size) is None:
        fault = "has no unit" if size.isdecimal() else "is no size"
        raise ValueError(f"line {line_number}: memory {size!r} {fault}: write 23034 MiB")


def _expect_links(card: _Section, card_count: int) -> None:
    line_number, links = card.value_of("links")
    for link in links.split():
        peer, _, word = link.partition(":")
        if not (peer.isdecimal() and word):
            raise ValueError(f"line {line_number}: {link!r} is no link: write 1:NV18")
        if int(peer) >= card_count:
            raise ValueError(
                f"line {line_number}: link {link!r} is to no card: those of its vendor are 0 to "
                f"{card_count - 1}"
            )


def _expect_different(cards: Iterable[_Section]) -> None:
    line_by_uuid: dict[str, int] = {}
    for card in cards:
        line_number, uuid = card.value_of("uuid")
        if uuid and uuid in line_by_uuid:
            first_number = line_by_uuid[uuid]
            raise ValueError(f"line {line_number}: uuid {uuid} is in line {first_number}, too")
        line_by_uuid[uuid] = line_number


def _expect(word: str, known_words: Iterable[str], noun: str) -> None:
    if word not in known_words:
        raise ValueError(f"{noun} {word!r}{did_you_mean(word, known_words)}")
