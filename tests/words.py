"""Counts words that tell a reader nothing, that mean two things, or that point nowhere.

    python tests/words.py [--list]            (`make words`)

1. Variables and parameters called `one`, `said` and the like, outside of comprehensions, although
   what they hold has a noun.
2. Public classes of one name and two meanings.
3. Places that docs and docstrings name, as `path:name` or `path`, and that are not there.

Exit code 1 while a number is not 0; `--list` prints each place.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
EMPTY = frozenset(
    {"one", "said", "told", "mine", "theirs", "ours", "its", "beside", "found", "there", "here"}
)
FOLDERS = ("benchmarks", "deploy", "docs", "hetero", "limiters", "simulator", "tests", "vendors")
_PLACE = re.compile(r"`((?:[\w-]+/)+[\w.-]+\.(?:py|c|h)):([\w.]+)`")
_PATH = re.compile(rf"`((?:{'|'.join(FOLDERS)}|examples)/[\w./-]*)[:`]")


def modules(*folders: str) -> Iterator[Path]:
    """Yield the Python files of folders that people wrote."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not {"proto", "build", "lib"} & {*path.parts}:
                yield path


def empty_names() -> Iterator[str]:
    """Yield each variable and parameter whose name tells nothing."""
    for path in modules(*FOLDERS):
        tree = ast.parse(path.read_text())
        loops = [node for node in ast.walk(tree) if isinstance(node, ast.comprehension)]
        bound = {id(name) for loop in loops for name in ast.walk(loop.target)}
        for node in ast.walk(tree):
            match node:
                case ast.Name(id=name, ctx=ast.Store()) if id(node) not in bound:
                    stored = name
                case ast.arg(arg=name) | ast.MatchAs(name=str(name)):
                    stored = name
                case _:
                    continue
            if stored in EMPTY:
                yield f"{path.relative_to(ROOT)}:{node.lineno} {stored}"


def double_classes() -> Iterator[str]:
    """Yield each name that several public classes have."""
    places = defaultdict(list)
    for path in modules("hetero", "vendors"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))
    for name, paths in sorted(places.items()):
        if len(paths) > 1:
            yield f"{name}: {', '.join(paths)}"


def dead_pointers() -> Iterator[str]:
    """Yield each place that docs and docstrings name and that is not there."""
    texts = {path: path.read_text() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))}
    for path in modules("hetero", "vendors", "simulator"):
        texts[path] = ast.get_docstring(ast.parse(path.read_text())) or ""
    for path, text in texts.items():
        for file, name in _PLACE.findall(text):
            if not is_defined(ROOT / file, name):
                yield f"{path.relative_to(ROOT)}: {file}:{name}"
        for file in _PATH.findall(text):  # what a build makes may not be made yet
            if "/build/" not in file and not (ROOT / file).exists():
                yield f"{path.relative_to(ROOT)}: {file}"


def is_defined(path: Path, name: str) -> bool:
    """Return whether a file is there and defines a name."""
    if not path.exists():
        return False
    source = path.read_text()
    return name in names_in_python(source) if path.suffix == ".py" else defined_in_c(source, name)


def names_in_python(source: str) -> set[str]:
    """Return the functions, classes and constants of a module, and `Class.member`."""
    names: set[str] = set()

    def add(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    names.add(prefix + name)
                case ast.ClassDef(name=name, body=inner):
                    names.add(prefix + name)
                    add(inner, f"{prefix}{name}.")
                case ast.AnnAssign(target=ast.Name(id=name)):
                    names.add(prefix + name)
                case ast.Assign(targets=targets):
                    names.update(prefix + each.id for each in targets if isinstance(each, ast.Name))

    add(ast.parse(source).body, "")
    return names


def defined_in_c(source: str, name: str) -> bool:
    """Return whether a function with a body, or a macro, of this name is in the source."""
    code = re.sub(r"/\*.*?\*/", "", source, flags=re.DOTALL)
    function = rf'^[A-Za-z_][\w \t*()",]*?\b{name}\([^;{{}}]*\)\s*\{{'
    return re.search(rf"{function}|^#define {name}\b", code, re.MULTILINE) is not None


COUNTED: dict[str, Callable[[], Iterator[str]]] = {
    "names that tell nothing": empty_names,
    "public class names with two meanings": double_classes,
    "pointers to what is not there": dead_pointers,
}


def main() -> int:
    """Print the numbers."""
    total = 0
    for title, count in COUNTED.items():
        places = list(count())
        total += len(places)
        print(f"{title}: {len(places)}")
        if "--list" in sys.argv[1:]:
            print("".join(f"  {place}\n" for place in places), end="")
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
