"""The labels that people may give a grant, and the name that is probably meant by a wrong one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from hetero.model.errors import BadInput

_NONE: Mapping[str, str] = {}


def did_you_mean(
    word: str,
    names: Iterable[str],
    *,
    aliases: Mapping[str, str] = _NONE,
    alike: bool = False,
) -> str:
    """Return `: did you mean NAME?` with the nearest known name, or "" where none is near.

    `aliases` are further names, each with the known name that it means. A word of a name counts as
    the name, and the letter O as a zero. `alike`: a name with another first letter is not near.
    """
    from difflib import get_close_matches  # only here: nobody else waits for it

    name_by_spelling: dict[str, str] = {}
    for spelling, known_name in (
        *((known_name, known_name) for known_name in names),
        *aliases.items(),
    ):
        for spelling_part in (spelling, *re.split(r"[\s_-]+", spelling)):
            name_by_spelling.setdefault(_plain(spelling_part), known_name)
    if alike:
        first_letter = _plain(word).lstrip("-")[:1]
        name_by_spelling = {
            spelling: known_name
            for spelling, known_name in name_by_spelling.items()
            if spelling.lstrip("-")[:1] == first_letter
        }
    near_spellings = get_close_matches(_plain(word), name_by_spelling, n=1)
    return f": did you mean {name_by_spelling[near_spellings[0]]}?" if near_spellings else ""


def _plain(word: str) -> str:
    return word.lower().replace("o", "0")


def check_label(label: str) -> None:
    """Raise `BadInput` for a label that looks like another label or like a grant's id."""
    if not label.strip():
        raise BadInput(f"label {label!r} is blank: write one that can be seen")
    if re.fullmatch("[0-9a-f]{8}", label):
        raise BadInput(f"label {label!r} could be the id of a grant: choose another")
