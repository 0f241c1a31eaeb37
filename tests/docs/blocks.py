"""The fenced blocks of all documents."""

import re
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

ROOT = Path(__file__).parent.parent.parent
#: A block that no test can try says so, and why: `<!-- no-test: reason -->` in the line above.
_NO_TEST = re.compile(r"<!-- no-test: (.+) -->")
#: Of a console: `# ` is root's prompt, `#  ` the head of a table.
_PROMPT = re.compile(r"\w*(?:\$ +|# )(\S.*)")


@frozen
class Block:
    """A fenced block: what language it says, and why it is not tried, if it is not."""

    path: Path
    line: int
    language: str
    text: str
    no_test: str | None

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The lines of a shell without continuations; of a console what is behind a prompt."""
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.language == "console":
            return [matched[1] for line in lines if (matched := _PROMPT.match(line))]
        return lines


def documents() -> tuple[Path, ...]:
    """Return all pages that people read."""
    return (*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md")))


def blocks(*languages: str) -> list[Block]:
    """Return the blocks of these languages that are to be tried."""
    return [
        block
        for path in documents()
        for block in read(path)
        if block.language in languages and block.no_test is None
    ]


def read(path: Path) -> Iterator[Block]:
    """Yield the blocks of a page."""
    lines = path.read_text().splitlines()
    number = 0
    while number < len(lines):
        opening = re.match(r"( *)```(.*)", lines[number])
        if not opening:
            number += 1
            continue
        reason = _NO_TEST.match(lines[number - 1]) if number else None
        end = lines.index(f"{opening[1]}```", number + 1)
        text = "\n".join(lines[number + 1 : end]) + "\n"
        yield Block(path, number + 1, opening[2], text, reason[1] if reason else None)
        number = end + 1


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page outside of fenced blocks, with their numbers."""
    fenced = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line
