"""A small style: sentences that are not too long, no weasel words, no riddles.

A semicolon or a bracket ends no sentence, and a table's cells are read, too. Retired words are
`tests/test_words.py`'s. Code, links' targets and diaries are not read.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, documents, prose

#: Words of the longest sentence, and of pages that have longer ones yet: a figure here only falls.
LONGEST = 35
LONGER = {
    "docs/decisions/arbiter.md": 70,
    "docs/decisions/busy-time.md": 43,
    "docs/decisions/gangs.md": 107,
    "docs/measurements/gangs.md": 40,
    "docs/measurements/light.md": 53,
    "docs/measurements/pods.md": 53,
}
#: Columns of a line that is no table.
WIDEST = 120
#: Says nothing, or says that it is easy.
WEASEL = (
    "basically", "beside them", "blazing", "cutting-edge", "effortless", "effortlessly", "easily",
    "extremely", "just works", "leverage", "leverages", "obviously", "of course", "of late",
    "powerful", "quite", "rather", "robust",
    "seamless", "seamlessly", "simply", "state-of-the-art", "trivially", "utilise",
    "utilize", "very", "whoever", "world-class",
)  # fmt: skip
#: "Rather than" compares.
HONEST = re.compile(r"rather than", re.IGNORECASE)
#: Not read: how the limiter came to be, version by version.
DIARIES = {"docs/notes/limiter.md"}


def sentences(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a page, those of its tables' cells too, with the line of each."""
    start, words = 0, ""
    for number, line in (*prose(path), (0, "")):
        text = line.strip()
        if text.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", _bare(text)):
                yield from _split(number, cell.strip())
            text = ""
        item = re.match(r"([-*]|\d+\.) |#", text)
        if (not text or item) and words:
            yield from _split(start, words)
            words = ""
        if text and not text.startswith(("#", "!", "<")):
            start = start if words else number
            words = f"{words} {text}".strip()


def _bare(text: str) -> str:
    """Return text without code and without links' targets."""
    return re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "CODE", text))


def _split(start: int, text: str) -> Iterator[tuple[int, str]]:
    for sentence in re.split(r"(?<=[.!?:])(?:\*\*)?\s+", _bare(text)):
        yield start, sentence


PAGES = [path for path in documents() if str(path.relative_to(ROOT)) not in DIARIES]


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PAGES, ids=shown)
def test_no_sentence_is_too_long(path: Path) -> None:
    longest = LONGER.get(shown(path), LONGEST)
    long = [
        f"{shown(path)}:{line}: {len(said.split())} words: {said}"
        for line, said in sentences(path)
        if len(said.split()) > longest
    ]
    assert [] == long


@pytest.mark.parametrize("path", PAGES, ids=shown)
def test_no_weasel_word_is_used(path: Path) -> None:
    weasels = re.compile(rf"\b({'|'.join(WEASEL)})\b", re.IGNORECASE)
    assert [] == [
        f"{shown(path)}:{line}: {weasel[0]}: {said}"
        for line, said in sentences(path)
        if (weasel := weasels.search(HONEST.sub("", said)))
    ]


@pytest.mark.parametrize("path", PAGES, ids=shown)
def test_no_line_is_too_wide(path: Path) -> None:
    assert [] == [
        f"{shown(path)}:{number}: {len(line)} columns"
        for number, line in prose(path)
        if len(line) > WIDEST and not line.lstrip().startswith("|") and " " in line.strip()
    ]


@pytest.mark.parametrize(
    ("text", "weasels_found"),
    [
        ("It simply works.\n", ["It simply works."]),
        ("`simply` is code.\n", []),
        ("| a cell | a very `very` long one |\n", ["a very CODE long one"]),
        ("It is so; and (very) much so.\n", ["It is so; and (very) much so."]),
        ("```sh\nvery\n```\n", []),
    ],
)
def test_what_is_read_is_prose(tmp_path: Path, text: str, weasels_found: list[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    weasels = re.compile(rf"\b({'|'.join(WEASEL)})\b")

    assert weasels_found == [said for _, said in sentences(page) if weasels.search(said)]
