"""Each of our declarations of Ascend's libraries names where it is from, and they compile alone."""

import re
import shutil
from pathlib import Path

import pytest

from tests.programs import completed

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("cc") or shutil.which("gcc") or "cc"
DECISION = ROOT / "docs/decisions/native-limiters.md"
ABIS = [ROOT / "limiters" / layer / "abi.h" for layer in ("acl", "hal")]

#: A comment that begins with keys of sources, or the head of a prototype.
_KEYS_OR_PROTOTYPE = re.compile(
    r"^/\* (?P<keys>[A-Z](?:, [A-Z])*)(?:\. .*)? \*/$|^\w+ (?P<name>(?:acl|rt|hal)\w+)\(", re.M
)


def usable() -> frozenset[str]:
    """Return the keys of the sources that the decision lists."""
    return frozenset(re.findall(r"^\| ([A-Z]) \|", DECISION.read_text(), re.M))


def unsourced(text: str) -> list[str]:
    """Return the functions declared behind a blank line without keys, or by a key not listed."""
    names = []
    for group in re.split(r"\n{2,}", text):
        keys: frozenset[str] = frozenset()
        for match in _KEYS_OR_PROTOTYPE.finditer(group):
            if match["keys"]:
                keys = frozenset(match["keys"].split(", "))
            elif not keys or not keys <= usable():
                names.append(match["name"])
    return names


@pytest.mark.parametrize("abi", ABIS, ids=lambda path: path.parent.name)
def test_every_prototype_names_a_source_that_may_be_used(abi: Path) -> None:
    text = abi.read_text()
    assert 10 < len([found for found in _KEYS_OR_PROTOTYPE.finditer(text) if found["name"]])
    assert [] == unsourced(text)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("/* V, S */\nrtError_t rtFree(void *p);\n", []),
        ("/* P */\naclError aclA(void);\n\naclError aclB(void);\n", ["aclB"]),
        ("/* P, Z */\naclError aclA(void);\n", ["aclA"]),
    ],
)
def test_a_prototype_without_a_source_is_named(text: str, names: list[str]) -> None:
    assert names == unsourced(text)


@pytest.mark.parametrize("abi", ABIS, ids=lambda path: path.parent.name)
def test_the_declarations_compile_alone(abi: Path) -> None:
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-fsyntax-only", "-x", "c"]
    assert "" == completed([COMPILER, *flags, str(abi)]).stderr


def test_no_function_is_declared_twice() -> None:
    names = [
        match["name"]
        for abi in ABIS
        for match in _KEYS_OR_PROTOTYPE.finditer(abi.read_text())
        if match["name"]
    ]
    assert len({*names}) == len(names)
