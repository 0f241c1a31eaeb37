"""Public words that were given up stay out: users write and read one name for a thing."""

import ast
import importlib
import json
import pkgutil
import re
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import click
import pytest

import hetero
from hetero.cli import hetero as command_line
from tests.docs.blocks import ROOT, documents

#: Retired in every place but documents, as a word or a part of one; and its successor.
RETIRED = {
    "rung": "enforcement", "rungs": "enforcements", "divides": "granularity", "order": "placement",
    "frag": "fragmentation", "waste": "fragmentation", "avoid": "exclude", "split": "max_sharers",
    "former": "adopt-scheduler", "callers": "client-ca", "without": "exclude", "grade": "qos_class",
    "door": "entry point", "doors": "entry points", "mate": "co-tenant", "mates": "co-tenants",
    "turn": "time slice", "turns": "time slices", "keeper": "owner", "kept": "pinned",
    "wish": "request", "dice": "rng",
}  # fmt: skip
_SETTINGS = {"only": "include", "never": "exclude", "beside": "compatible_with"}
#: The same by place, as a whole word alone.
RETIRED_IN = {
    "CLI": {"set": "resize", "--writer": "--allocation-writer"},
    "values": _SETTINGS,
    "settings": {**_SETTINGS, "parts": "partitioned", "writer": "allocation-writer"},
    "JSON": {**_SETTINGS, "by": "measured_by", "standing": "grants"},
    "documents": {
        "--avoid-vendor": "--exclude-vendor", "--avoid-model": "--exclude-model",
        "--avoid-uuid": "--exclude-uuid", "--former": "--adopt-scheduler",
        "--callers": "--client-ca", "--writer": "--allocation-writer",
        "hetero set": "hetero resize", "split =": "max_sharers =", "without =": "exclude =",
        "parts =": "partitioned =",
    },
}  # fmt: skip
#: In use with another meaning: what a cluster is to do without, and the allocations that stand.
KEPT = {
    *("CLI --without", "titles without", "titles --without"),
    *("JSON WhatIfRequest.without", "JSON SimulatedPlacement.without", "JSON Inventory.standing"),
}


def cli_words(command: click.Command) -> Iterator[str]:
    """Yield the names of all commands below, of their options and of the choices of these."""
    for parameter in command.params:
        choices = parameter.type.choices if isinstance(parameter.type, click.Choice) else ()
        yield from (*parameter.opts, *parameter.secondary_opts, *map(str, choices))
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from (name, *cli_words(below))


def texts(*patterns: str, word: str) -> Iterator[str]:
    """Yield the strings in Python sources that are such a word."""
    for source in (source for pattern in patterns for source in ROOT.glob(pattern)):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Constant) and re.fullmatch(word, str(node.value)):
                yield str(node.value)


def schema_keys(schema: Any) -> Iterator[str]:
    """Yield the names of all properties of a JSON schema."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        for below in schema.values():
            yield from schema_keys(below)


def json_keys() -> Iterator[str]:
    """Yield the fields of every attrs class: the codec writes any of them by these names."""
    for module in pkgutil.walk_packages(hetero.__path__, "hetero."):
        if not re.search(r"__main__$|\.proto\.", module.name):
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, type) and attrs.has(value):
                    yield from (f"{value.__name__}.{each.name}" for each in attrs.fields(value))


SETTINGS = ("hetero/node/settings.py", "hetero/kube/words/settings.py")
VALUES = ROOT / "deploy/chart/values.schema.json"
#: By place: what yields its words, and how many there are at least.
PLACES: dict[str, tuple[Callable[[], Iterator[str]], int]] = {
    "CLI": (lambda: cli_words(command_line), 150),
    "titles": (lambda: texts("hetero/cli/*.py", word=r"[\w-]+"), 500),
    "settings": (lambda: texts(*SETTINGS, word="[a-z_-]+"), 20),
    "values": (lambda: schema_keys(json.loads(VALUES.read_text())), 50),
    "JSON": (json_keys, 500),
    "annotations": (lambda: texts("hetero/**/*.py", word=r"hetero\.io/.*"), 19),
    "variables": (lambda: texts("hetero/**/*.py", word=r"HETERO_\w+"), 10),
    "documents": (lambda: (page.read_text() for page in documents()), 20),
}


def retired(place: str, text: str) -> list[str]:
    """Return the retired words of a text of such a place, each with its successor."""
    words = RETIRED_IN.get(place, {})
    if place == "documents":
        matched = {word for word in words if re.search(rf"(?<![\w-]){re.escape(word)}(?!\w)", text)}
    else:
        name = text.rpartition(".")[2]
        matched = {*re.findall("[a-z]+", name.lower()), name} & {*RETIRED, *({name} & words.keys())}
    return (
        []
        if f"{place} {text}" in KEPT
        else [f"{word}: {(RETIRED | words)[word]}" for word in sorted(matched)]
    )


@pytest.mark.parametrize("place", PLACES)
def test_no_retired_word_is_public(place: str) -> None:
    read, fewest = PLACES[place]
    words = list(read())
    assert len(words) >= fewest
    assert {} == {
        text[:200]: retired_words for text in words if (retired_words := retired(place, text))
    }


@pytest.mark.parametrize(
    ("place", "text", "expected"),
    [
        ("CLI", "--avoid-vendor", ["avoid: exclude"]),
        ("CLI", "set", ["set: resize"]),
        ("CLI", "--set-file", []),
        ("settings", "parts", ["parts: partitioned"]),
        ("JSON", "Sample.rung_of", ["rung: enforcement"]),
        ("annotations", "hetero.io/node-order", ["order: placement"]),
        ("variables", "HETERO_TURN_MS", ["turn: time slice"]),
        ("documents", "run `hetero set` and", ["hetero set: hetero resize"]),
        ("documents", "hetero settings", []),
    ],
)
def test_a_retired_word_is_seen(place: str, text: str, expected: list[str]) -> None:
    assert expected == retired(place, text)
