"""Reads the words of the repository where they are used, for the table of test_words.py."""

from __future__ import annotations

import ast
import importlib
import io
import json
import pkgutil
import re
import subprocess
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import click

import hetero
from hetero.cli import hetero as command_line

ROOT = Path(__file__).parent.parent

#: A comment, a string or a character is read past; what is left of C are its identifiers.
_C = re.compile(
    r"""(?P<text>//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|(?P<name>[A-Za-z_]\w*)""",
    re.DOTALL,
)
#: From Python 3.12 the texts of an f-string are tokens of their own.
_TEXT = (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


class Place(str, Enum):
    """Where a word can be retired."""

    PYTHON = "Python identifier"
    C = "C identifier"
    CLI = "CLI word"
    SETTING = "setting"
    JSON = "JSON key"
    ANNOTATION = "annotation"
    FILE = "file name"
    PROSE = "prose"


@attrs.frozen
class Used:
    """A word as it is read: an identifier, a key or a name; of prose, one comment or string."""

    text: str
    path: str
    line: int = 0

    def __str__(self) -> str:
        """Show the word as a compiler would point at it."""
        return f"{self.path}:{self.line}: {self.text}"


@attrs.frozen
class Retired:
    """A word that is used no more in these places, and the word that took its place.

    An identifier is retired as it is spelt, leading underscores aside. With `anywhere` it is
    retired as a part of longer names, too, in any case: `kin` in `kin_of`, not in `kind`. In prose
    it is a word or a phrase in any case. `paths` are where it is looked for, `but` patterns of
    paths where it is allowed, with the reason.
    """

    word: str
    successor: str
    places: tuple[Place, ...]
    anywhere: bool = False
    paths: tuple[str, ...] = ("*",)
    but: Mapping[str, str] = attrs.field(factory=dict)

    def is_in(self, text: str, place: Place) -> bool:
        """Return whether this word is in a text of such a place."""
        if not (self.anywhere or place is Place.PROSE):
            return text.strip("_") == self.word
        if self.word.lower() not in text.lower():
            return False
        if place is Place.PROSE:
            pattern = rf"(?<![\w-]){re.escape(self.word)}(?!\w)"
            return re.search(pattern, text, re.IGNORECASE) is not None
        return f" {' '.join(parts(self.word))} " in f" {' '.join(parts(text))} "

    def applies_to(self, path: str) -> bool:
        """Return whether this word is retired in such a file."""
        named = any(fnmatchcase(path, pattern) for pattern in self.paths)
        return named and not any(fnmatchcase(path, pattern) for pattern in self.but)


def parts(name: str) -> list[str]:
    """Return the words that a name is made of, in small letters."""
    return [part.lower() for part in _PARTS.findall(name)]


@cache
def files(*patterns: str) -> tuple[str, ...]:
    """Return the paths of the files under version control that match one of the patterns."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    there = sorted(path for path in listed if path and (ROOT / path).is_file())
    return tuple(path for path in there if any(fnmatchcase(path, one) for one in patterns))


def python_names(source: str, path: str) -> Iterator[Used]:
    """Yield every identifier of a Python source, be it defined, used or imported there."""
    for node in ast.walk(ast.parse(source)):
        found: Iterable[str | None] = ()
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                found = (name,)
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                found = (name,)
            case ast.keyword(arg=keyword):
                found = (keyword,)
            case ast.alias(name=name, asname=alias):
                found = (*name.split("."), alias)
            case ast.MatchAs(name=keyword) | ast.MatchStar(name=keyword):
                found = (keyword,)
        yield from (Used(name, path, getattr(node, "lineno", 0)) for name in found if name)


def c_names(source: str, path: str) -> Iterator[Used]:
    """Yield every identifier of a C source, without its comments and strings."""
    yield from _c_tokens(source, path, "name")


def _c_tokens(source: str, path: str, kind: str) -> Iterator[Used]:
    for match in _C.finditer(source):
        if match[kind] is not None:
            yield Used(match[kind], path, source.count("\n", 0, match.start()) + 1)


def cli_words(command: click.Command, path: str = "hetero") -> Iterator[Used]:
    """Yield the names of a command, of its options and of their values, and of all below it."""
    for parameter in command.params:
        said = [*parameter.opts, *parameter.secondary_opts, parameter.metavar or ""]
        choices = parameter.type.choices if isinstance(parameter.type, click.Choice) else ()
        yield from (Used(str(word), path) for word in (*said, *choices) if word)
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            below = command.get_command(click.Context(command), name)
            yield Used(name, path)
            if below is not None:
                yield from cli_words(below, f"{path} {name}")


def constants(source: str, path: str) -> Iterator[Used]:
    """Yield the strings of a Python source, but for its docstrings."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                yield Used(text, path, node.lineno)


def json_keys(classes: Iterable[type[Any]]) -> Iterator[Used]:
    """Yield the keys under which the codec writes values of these classes."""
    for cls in classes:
        path = cls.__module__.replace(".", "/") + ".py"
        yield from (Used(one.name, path) for one in attrs.fields(cls))


def schema_keys(schema: Any, path: str) -> Iterator[Used]:
    """Yield the names of all properties of a JSON schema."""
    if isinstance(schema, dict):
        properties = schema.get("properties", {})
        yield from (Used(name, path) for name in properties)
        for below in (*properties.values(), *(v for k, v in schema.items() if k != "properties")):
            yield from schema_keys(below, path)


def python_prose(source: str, path: str) -> Iterator[Used]:
    """Yield the comments and the strings of a Python source: docstrings, help and messages."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in _TEXT:
            text = token.string.replace("\\n", " ")
            yield Used(" ".join(text.split()), path, token.start[0])


def c_prose(source: str, path: str) -> Iterator[Used]:
    """Yield the comments and the strings of a C source."""
    for used in _c_tokens(source, path, "text"):
        text = re.sub(r"\s+(\*(?!/)\s)?\s*", " ", used.text.replace("\\n", " "))
        yield attrs.evolve(used, text=text)


def written_classes() -> list[type[Any]]:
    """Return every attrs class of ours: the codec writes any of them by the names of its fields."""
    found: dict[type[Any], None] = {}
    for module in pkgutil.walk_packages(hetero.__path__, "hetero."):
        if module.name.endswith("__main__") or ".proto." in module.name:
            continue
        members = vars(importlib.import_module(module.name)).values()
        found |= dict.fromkeys(one for one in members if isinstance(one, type) and attrs.has(one))
    return [cls for cls in found if cls.__module__.startswith("hetero.")]


def _read(
    read: Callable[[str, str], Iterator[Used]], *patterns: str, word: str = ""
) -> Iterator[Used]:
    """Yield what `read` finds in the files of these patterns, of it what is a `word`."""
    for path in files(*patterns):
        found = read((ROOT / path).read_text(), path)
        yield from (one for one in found if not word or re.fullmatch(word, one.text))


def _lines(source: str, path: str) -> Iterator[Used]:
    return (Used(line, path, number) for number, line in enumerate(source.splitlines(), 1))


def _command_line() -> Iterator[Used]:
    """Yield commands and options, and each string of one word: the titles of columns are those."""
    yield from cli_words(command_line)
    yield from _read(constants, "hetero/cli/*.py", word=r"[\w-]+")


def _settings() -> Iterator[Used]:
    parsers = ("hetero/node/settings.py", "hetero/kube/words/settings.py")
    yield from _read(constants, *parsers, word=r"[a-z][a-z_-]*")
    schema = "deploy/chart/values.schema.json"
    yield from schema_keys(json.loads((ROOT / schema).read_text()), schema)


def _prose() -> Iterator[Used]:
    yield from _read(python_prose, "*.py")
    yield from _read(c_prose, "*.[ch]", "*.def")
    texts = ("*.md", "*.toml", "*.yaml", "*.sh", "*Makefile", "*Dockerfile", ".ci/run", "*.sed")
    yield from _read(_lines, *texts)


_READERS: dict[Place, Callable[[], Iterator[Used]]] = {
    Place.PYTHON: lambda: _read(python_names, "*.py"),
    Place.C: lambda: _read(c_names, "*.[ch]", "*.def"),
    Place.CLI: _command_line,
    Place.SETTING: _settings,
    Place.JSON: lambda: json_keys(written_classes()),
    Place.ANNOTATION: lambda: _read(
        constants, "hetero/kube/*.py", "hetero/container/*.py", word=r"hetero\.io/[^\0]*"
    ),
    Place.FILE: lambda: (Used(Path(path).stem, path) for path in files("*")),
    Place.PROSE: _prose,
}


@cache
def used(place: Place) -> tuple[Used, ...]:
    """Return every word of the repository in such a place."""
    return tuple(_READERS[place]())
