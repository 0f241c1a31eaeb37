"""Escapes text of others, so that no terminal, log or table interprets it."""

from __future__ import annotations


def visible(text: str, *, keep: str = "") -> str:
    r"""Return `text` with each character that a terminal may interpret escaped: `\x1b`, `\u202e`.

    Those are the ones that `str.isprintable` refuses: control characters (C0, DEL, C1), line and
    paragraph separators, directional overrides and other invisible formats, unassigned and private
    ones. A byte that was no text (`surrogateescape`) is shown as that byte. Characters in `keep`
    stay.
    """
    if text.translate(str.maketrans("", "", keep)).isprintable():
        return text  # what most is: to look at each character takes long
    return "".join(
        character if character.isprintable() or character in keep else _escape(ord(character))
        for character in text
    )


def _escape(code_point: int) -> str:
    if 0xDC80 <= code_point <= 0xDCFF:
        code_point -= 0xDC00
    if code_point < 0x100:
        return f"\\x{code_point:02x}"
    return f"\\u{code_point:04x}" if code_point < 0x10000 else f"\\U{code_point:08x}"
