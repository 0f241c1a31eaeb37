"""Reads what is asked of one device, as people write it: `0:mem=3276Mi,core=10`."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve

from hetero.model import Ask, Selector
from hetero.model.errors import BadInput
from hetero.model.units import parse_memory, parse_percent

#: What a share is written by, and the field of `Ask` that each word means.
SHARES = {"mem": "memory", "memory": "memory", "core": "core"}
#: What a core without a limit is written as.
OPEN = "open"
_EXAMPLE = "write 0:mem=3276Mi,core=10"


def ask_from(*, memory: str | None, core: str | None, device: str | None = None) -> Ask:
    """Return what is asked of one device. Raises `BadInput`."""
    percent = None
    size = None
    if memory is not None and memory.strip().endswith("%"):
        percent = parse_percent(memory, of="memory")
    elif memory is not None:
        size = parse_memory(memory)
    return Ask(
        memory=size,
        memory_percent=percent,
        core=None if core in (None, OPEN) else parse_percent(core, of="core"),
        device=device,
        open=core == OPEN,
    )


def ask_of_device(text: str, each: Ask, *, source: str) -> Ask:
    """Return the ask in `0:mem=3276Mi,core=10`; what it leaves out is as `each` says.

    `source` is how the text is introduced in an error. Raises `BadInput`.
    """
    name, _, shares = text.partition(":")
    if not name.strip():
        raise BadInput(f"{source} {text!r} names no device: write 0, or 0:mem=3276Mi,core=10")
    asked = pairs(shares, source=f"{source} {text!r}", known=SHARES, example=_EXAMPLE)
    own = ask_from(memory=asked.get("memory"), core=asked.get("core"), device=name.strip())
    if "memory" not in asked:
        own = evolve(own, memory=each.memory, memory_percent=each.memory_percent)
    if "core" not in asked:
        own = evolve(own, core=each.core, open=each.open, sm=each.sm)
    return own


def choice_of(names: Mapping[str, tuple[str, ...]], name: str) -> Selector:
    """Return what is chosen by the options `name` and `exclude_name`. Raises `BadInput`."""
    for option in (name, f"exclude_{name}"):
        if any(not value.strip() for value in names[option]):
            raise BadInput(
                f"--{option.replace('_', '-')} is empty: write a {name}, or leave it out"
            )
    return Selector(include=names[name], exclude=names[f"exclude_{name}"])


def pairs(text: str, *, source: str, known: Mapping[str, str], example: str) -> dict[str, str]:
    """Return `name=value,name=value` by what `known` calls each name."""
    texts: dict[str, str] = {}
    for share in filter(None, (part.strip() for part in text.split(","))):
        word, equals, value = share.partition("=")
        name = known.get(word.strip())
        if name in texts:
            raise BadInput(f"{source}: {word.strip()} is given twice: {example}")
        if not equals or name is None:
            names = " or ".join(f"{word}=…" for word in known if word != "memory")
            raise BadInput(f"{source}: {share!r} is not {names}: {example}")
        texts[name] = value.strip()
    return texts
