"""Lines of code by folder, and the largest classes: here and, to compare, in another checkout.

    python benchmarks/sizes.py [CHECKOUT]            (`make sizes AGAINST=CHECKOUT`)

A line of code is one that holds more than blanks, comments and docstrings. Generated files do not
count. A class's fields are what its body annotates and what `__init__` assigns.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("hetero", "limiters", "vendors", "tests")
LARGEST = 12
_COMMENT = re.compile(r'/\*.*?\*/|//[^\n]*|("(?:\\.|[^"\\\n])*")', re.DOTALL)


def sources(folder: Path) -> Iterator[Path]:
    """Yield what people wrote in a folder."""
    for path in sorted(folder.rglob("*")):
        parts = {part for part in path.parts if part in ("build", "lib", "proto", "__pycache__")}
        if not parts and path.suffix in (".py", ".c", ".h", ".def", ".sh"):
            yield path


def code_lines(path: Path) -> int:
    """Return how many lines of a file are code."""
    text = path.read_text()
    if path.suffix == ".py":
        return len(_python_lines(text))
    if path.suffix != ".sh":
        text = _COMMENT.sub(lambda match: match[1] or "\n" * match[0].count("\n"), text)
    lines = (line.strip() for line in text.splitlines())
    return sum(bool(line) and not (path.suffix == ".sh" and line[0] == "#") for line in lines)


def _python_lines(text: str) -> set[int]:
    """Return the numbers of the lines that are code."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=int(last)):
                documented.update(range(first, last + 1))
    no_code = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    held = {
        line
        for token in tokens
        if token.type not in (*no_code, tokenize.ENDMARKER)
        for line in range(token.start[0], token.end[0] + 1)
    }
    return held - documented


def classes(root: Path) -> Iterator[tuple[int, str, int, int]]:
    """Yield the classes of the core: lines, name, fields and methods."""
    for path in sources(root / "hetero"):
        for node in ast.walk(ast.parse(path.read_text())) if path.suffix == ".py" else ():
            if isinstance(node, ast.ClassDef):
                methods = sum(
                    isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) for part in node.body
                )
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                yield lines, node.name, len(_fields(node)), methods


def _fields(of: ast.ClassDef) -> set[str]:
    """Return the fields that a class's body annotates and those that `__init__` assigns."""
    names = {ast.unparse(part.target) for part in of.body if isinstance(part, ast.AnnAssign)}
    for part in of.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            stored = (node for node in ast.walk(part) if isinstance(node, ast.Attribute))
            names |= {node.attr for node in stored if isinstance(node.ctx, ast.Store)}
    return names


def main() -> None:
    """Print the tables."""
    roots = [Path(__file__).parent.parent, *map(Path, sys.argv[1:2])]
    totals = []
    print("lines of code".ljust(28) + "  ".join(f"{str(root)[-24:]:>24}" for root in roots))
    for folder in FOLDERS:
        counts = [sum(map(code_lines, sources(root / folder))) for root in roots]
        totals.append(counts)
        print(folder.ljust(28) + "  ".join(f"{count:24,}" for count in counts))
    sums = [sum(column) for column in zip(*totals, strict=True)]
    print("all".ljust(28) + "  ".join(f"{count:24,}" for count in sums))
    for root in roots:
        print(f"\nlargest classes of the core in {root}: lines, fields, methods")
        for lines, name, fields, methods in sorted(classes(root), reverse=True)[:LARGEST]:
            print(f"{name:28}{lines:6}{fields:6}{methods:6}")


if __name__ == "__main__":
    main()
