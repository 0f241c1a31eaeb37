"""Checks a rack file before a driver reads it: the drivers ignore what they do not know."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from attrs import define, field

from hetero.model.errors import BadInput
from hetero.model.names import did_you_mean
from hetero.model.units import GiB, MiB, format_memory, parse_memory

#: A section by its kind, a key with its value, or nothing.
_LINE = re.compile(
    r"\[\s*(?P<kind>[^\]\s]+)(?P<name>[^\]]*)\]|(?P<key>[^=\s][^=]*?)\s*=\s*(?P<value>.*)|"
)
#: The most cards that the simulated drivers have room for.
_MOST_CARDS = 64
#: No card has more; the drivers count bytes in 64 bits.
_MOST_MEMORY_BYTES = 16 * 1024 * GiB
#: What is a part of a card's memory.
_PARTS = ("used", "reserved", "context")


class ValueForm(Protocol):
    """How a value is written: a regular expression of it, and the words that say so.

    `most` is the largest that the number may be, None where the expression says enough.
    """

    @property
    def pattern(self) -> str: ...  # noqa: D102 - said above
    @property
    def expected(self) -> str: ...  # noqa: D102
    @property
    def most(self) -> int | None: ...  # noqa: D102


class RackKeys(Protocol):
    """What the simulated drivers know: the values of each key by kind of section, and more.

    `REQUIRED` are the keys that a section must have, `LINKS` the words for a link and `UUIDS` the
    form of a UUID by vendor. `PARTITIONS` are the keys that cut a card, with the expression of a
    part, and `MOST_SLICES` what all parts of a card have together.
    """

    @property
    def KEYS(self) -> Mapping[str, Mapping[str, ValueForm]]: ...  # noqa: D102, N802
    @property
    def REQUIRED(self) -> Mapping[str, Sequence[str]]: ...  # noqa: D102, N802
    @property
    def LINKS(self) -> Mapping[str, ValueForm]: ...  # noqa: D102, N802
    @property
    def UUIDS(self) -> Mapping[str, ValueForm]: ...  # noqa: D102, N802
    @property
    def PARTITIONS(self) -> Mapping[str, str]: ...  # noqa: D102, N802
    @property
    def MOST_SLICES(self) -> int: ...  # noqa: D102, N802


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

    def fault(self, key: str, expected: str) -> ValueError:
        """Return that a value is not what is expected of its key."""
        line_number, value = self.value_of(key)
        return ValueError(f"line {line_number}: [{self.kind}] {key} = {value}: expected {expected}")


def cards_of_rack(path: Path, known: RackKeys) -> tuple[Mapping[str, str], ...]:
    """Return what a rack says of each card, by key.

    Raises `ValueError` with the line unless the file is a rack that the drivers can mean.
    """
    sections = _sections(path, known)
    cards = [section for section in sections if section.kind == "device"]
    if not cards:
        raise ValueError("it has no [device]")
    if len(cards) > _MOST_CARDS:
        line_number = cards[_MOST_CARDS].line_number
        raise ValueError(f"line {line_number}: it has {len(cards)} cards, at most {_MOST_CARDS}")
    for section in sections:
        _expect_values(section, known)
    cards_by_vendor: dict[str, list[_Section]] = {}
    for card in cards:
        _expect_sizes(card)
        _expect_partitions(card, known)
        cards_by_vendor.setdefault(card.value_of("vendor")[1], []).append(card)
    for vendor, cards_of_vendor in cards_by_vendor.items():
        for position, card in enumerate(cards_of_vendor):
            _expect_form(card, "uuid", known.UUIDS.get(vendor))
            _expect_links(card, position, len(cards_of_vendor), known.LINKS[vendor])
    _expect_different(cards, "uuid")
    return tuple({key: value for key, (_, value) in card.values.items()} for card in cards)


def _sections(path: Path, known: RackKeys) -> list[_Section]:
    sections: list[_Section] = []
    for line_number, line in enumerate(path.read_text().splitlines(), 1):
        line_match = _LINE.fullmatch(line.partition("#")[0].strip())
        if line_match is None:
            raise ValueError(f"line {line_number} is neither `[device]` nor `key = value`")
        kind, key, value = line_match["kind"], line_match["key"], line_match["value"]
        if kind:
            _expect(kind, known.KEYS, f"line {line_number}: unknown section")
            if kind == "kernel" and not line_match["name"].strip():
                raise ValueError(
                    f"line {line_number}: [kernel] without a name: write [kernel spin]"
                )
            sections.append(_Section(kind, line_number))
        elif key and not sections:
            raise ValueError(f"line {line_number}: {key} before any section: write [device] first")
        elif key:
            section = sections[-1]
            keys = known.KEYS[section.kind]
            _expect(key, keys, f"line {line_number}: unknown key of [{section.kind}]")
            section.add(key, value, line_number)
    return sections


def _expect_values(section: _Section, known: RackKeys) -> None:
    forms = known.KEYS[section.kind]
    if "vendor" in section.values:
        line_number, vendor = section.values["vendor"]
        _expect(vendor, known.LINKS, f"line {line_number}: no simulated driver of")
    for key in known.REQUIRED.get(section.kind, ()):
        line_number, value = section.value_of(key)
        if not value:
            fault = f"[{section.kind}] without {key}: expected {forms[key].expected}"
            raise ValueError(f"line {line_number}: {fault}")
    for key in section.values:
        _expect_form(section, key, forms[key])


def _expect_form(section: _Section, key: str, form: ValueForm | None) -> None:
    if form is None or key not in section.values:
        return
    value = section.values[key][1]
    if re.fullmatch(form.pattern, value, re.ASCII) is None or (
        form.most is not None and int(value) > form.most
    ):
        raise section.fault(key, form.expected)


def _expect_sizes(card: _Section) -> None:
    """Raise `ValueError` unless the memory is some that a card may have, and its parts are less."""
    memory_bytes = _bytes(card, "memory")
    if not 0 < memory_bytes <= _MOST_MEMORY_BYTES:
        raise card.fault("memory", f"more than 0 and at most {format_memory(_MOST_MEMORY_BYTES)}")
    for key in _PARTS:
        if key in card.values and _bytes(card, key) > memory_bytes:
            raise card.fault(key, _at_most(memory_bytes))
    held_mebibytes = sum(
        int(process.partition(":")[2]) for process in card.value_of("processes")[1].split()
    )
    if held_mebibytes * MiB > memory_bytes:
        raise card.fault("processes", f"together {_at_most(memory_bytes)}")


def _expect_partitions(card: _Section, known: RackKeys) -> None:
    memory_bytes = _bytes(card, "memory")
    for key, pattern in known.PARTITIONS.items():
        parts = [
            (int(part["slices"]), int(part["size"]), int(part["count"] or 1))
            for part in re.finditer(pattern, card.value_of(key)[1])
        ]
        if sum(slices * count for slices, _, count in parts) > known.MOST_SLICES:
            raise card.fault(key, f"parts of {known.MOST_SLICES} slices or less together")
        if sum(size * count * 10**9 for _, size, count in parts) > memory_bytes:
            raise card.fault(key, f"parts that have together {_at_most(memory_bytes)}")


def _at_most(memory_bytes: int) -> str:
    return f"at most the card's memory, {format_memory(memory_bytes)}"


def _bytes(card: _Section, key: str) -> int:
    value = card.values[key][1]
    if not any(digit in value for digit in "123456789"):
        return 0
    try:
        return parse_memory(value)
    except BadInput:
        raise card.fault(key, "a size such as 23034 MiB") from None


def _expect_links(card: _Section, position: int, card_count: int, words: ValueForm) -> None:
    line_number, links = card.value_of("links")
    for link in re.split(r"[\s,]+", links) if links else ():
        peer_text, _, word = link.partition(":")
        peer = int(peer_text)
        if peer >= card_count:
            raise ValueError(
                f"line {line_number}: link {link!r} is to no card: those of its vendor are 0 to "
                f"{card_count - 1}"
            )
        if peer == position:
            raise ValueError(
                f"line {line_number}: link {link!r} is to the card itself: {peer} is its position"
            )
        if re.fullmatch(words.pattern, word) is None:
            raise ValueError(
                f"line {line_number}: link {link!r} has no word of this vendor's driver: write "
                f"{peer}:{words.expected}"
            )


def _expect_different(cards: Iterable[_Section], key: str) -> None:
    line_by_value: dict[str, int] = {}
    for card in cards:
        line_number, value = card.value_of(key)
        if value and value in line_by_value:
            first_number = line_by_value[value]
            raise ValueError(f"line {line_number}: {key} {value} is in line {first_number}, too")
        line_by_value[value] = line_number


def _expect(word: str, known_words: Iterable[str], noun: str) -> None:
    if word not in known_words:
        raise ValueError(f"{noun} {word!r}{did_you_mean(word, known_words)}")
