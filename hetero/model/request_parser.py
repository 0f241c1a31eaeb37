"""Parses the request for one device as people write it: `0:mem=3276Mi,core=10`."""

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
    """Return the ask for one device. Raises `BadInput`."""
    memory_percent = None
    memory_bytes = None
    if memory is not None and memory.strip().endswith("%"):
        memory_percent = parse_percent(memory, of="memory")
    elif memory is not None:
        memory_bytes = parse_memory(memory)
    return Ask(
        memory=memory_bytes,
        memory_percent=memory_percent,
        core=None if core in (None, OPEN) else parse_percent(core, of="core"),
        device=device,
        open=core == OPEN,
    )


def ask_of_device(text: str, default: Ask, *, source: str) -> Ask:
    """Return the ask in `0:mem=3276Mi,core=10`; what it omits is taken from `default`.

    `source` introduces the text in an error. Raises `BadInput`.
    """
    device_name, _, sizes_text = text.partition(":")
    index_text, _, later_text = sizes_text.partition(":")
    if index_text.isdecimal():  # a vendor and its driver's index
        device_name, sizes_text = f"{device_name}:{index_text}", later_text
    if not device_name.strip():
        raise BadInput(f"{source} {text!r} names no device: write 0, or 0:mem=3276Mi,core=10")
    sizes = pairs(sizes_text, source=f"{source} {text!r}", names=SHARES, example=_EXAMPLE)
    device_ask = ask_from(
        memory=sizes.get("memory"), core=sizes.get("core"), device=device_name.strip()
    )
    if "memory" not in sizes:
        device_ask = evolve(
            device_ask, memory=default.memory, memory_percent=default.memory_percent
        )
    if "core" not in sizes:
        device_ask = evolve(
            device_ask, core=default.core, open=default.open, sm_percent=default.sm_percent
        )
    return device_ask


def choice_of(values_by_option: Mapping[str, tuple[str, ...]], include_option: str) -> Selector:
    """Return the selector of an option and its `exclude_…` option. Raises `BadInput`."""
    for option in (include_option, f"exclude_{include_option}"):
        if any(not value_text.strip() for value_text in values_by_option[option]):
            raise BadInput(
                f"--{option.replace('_', '-')} is empty: write a {include_option}, or leave it out"
            )
    return Selector(
        include=values_by_option[include_option],
        exclude=values_by_option[f"exclude_{include_option}"],
    )


def pairs(text: str, *, source: str, names: Mapping[str, str], example: str) -> dict[str, str]:
    """Return the values in `name=value,name=value`, by the key that `names` has for each name."""
    value_texts: dict[str, str] = {}
    for pair_text in filter(None, (pair_text.strip() for pair_text in text.split(","))):
        word, equals, value_text = pair_text.partition("=")
        full_name = names.get(word.strip())
        if full_name in value_texts:
            raise BadInput(f"{source}: {word.strip()} is given twice: {example}")
        if not equals or full_name is None:
            word_list = " or ".join(f"{word}=…" for word in names if word != "memory")
            raise BadInput(f"{source}: {pair_text!r} is not {word_list}: {example}")
        value_texts[full_name] = value_text.strip()
    return value_texts
