"""How much one class or struct may hold: what a reader can keep in mind at once."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
MOST_FIELDS, MOST_METHODS, MOST_MEMBERS = 12, 20, 20


def classes(folder: str) -> Iterator[tuple[str, int, int]]:
    """Yield the classes with behaviour: name, fields and public methods.

    Records do not count: what is frozen, or has no method; nor do the tests of a contract.
    """
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and _methods(node) and "frozen" not in _head(node):
                yield node.name, len(_fields(node)), len(_public(node))


def _head(node: ast.ClassDef) -> str:
    """Return a class's decorators, bases and options, as text."""
    options = (f"{option.arg}={ast.unparse(option.value)}" for option in node.keywords)
    return " ".join([*map(ast.unparse, (*node.decorator_list, *node.bases)), *options])


def _fields(node: ast.ClassDef) -> set[str]:
    """Return what a class's body annotates and what `__init__` assigns."""
    fields = {ast.unparse(part.target) for part in node.body if isinstance(part, ast.AnnAssign)}
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            stored = (each for each in ast.walk(part) if isinstance(each, ast.Attribute))
            fields |= {each.attr for each in stored if isinstance(each.ctx, ast.Store)}
    return fields


def _methods(node: ast.ClassDef) -> list[str]:
    return [p.name for p in node.body if isinstance(p, ast.FunctionDef | ast.AsyncFunctionDef)]


def _public(node: ast.ClassDef) -> list[str]:
    return [name for name in _methods(node) if not name.startswith(("_", "test_"))]


def test_a_class_has_at_most_twelve_fields_and_twenty_public_methods() -> None:
    larger = {
        name: (fields, methods)
        for folder in ("hetero", "vendors", "simulator/hetero_simulator")
        for name, fields, methods in classes(folder)
        if fields > MOST_FIELDS or methods > MOST_METHODS
    }

    assert {} == larger


def test_a_struct_of_the_limiters_has_at_most_twenty_members() -> None:
    """But for abi.h, which has those of a driver."""
    larger = {
        name
        for path in sorted(ROOT.glob("limiters/*/*.[ch]"))
        if path.name != "abi.h"
        for name, body in structs(path.read_text())
        if members(body) > MOST_MEMBERS
    }

    assert set() == larger


def structs(source: str) -> Iterator[tuple[str, str]]:
    """Yield the named structs of C: name and body."""
    code = re.sub(r"/\*.*?\*/", "", source, flags=re.DOTALL)
    yield from re.findall(r"^struct (\w+) \{$(.*?)^\}", code, re.MULTILINE | re.DOTALL)


def members(body: str) -> int:
    """Return how many members a struct's body declares, those of structs inside included."""
    declared = re.findall(r"([^;{}]*);", re.sub(r"\([^()]*\)", "", body))
    return sum(1 + declaration.count(",") for declaration in declared if declaration.strip())


def test_a_struct_is_counted_by_its_members() -> None:
    two = "struct two {\n    int a, b; /* one; */\n};\n"
    single = "struct one {\n    void (*run)(int, int);\n};\n"
    nested = "struct nested {\n    struct {\n        int x;\n    } *in;\n};\n"
    counted = {name: members(body) for name, body in structs(two + single + nested)}

    assert {"two": 2, "one": 1, "nested": 2} == counted
