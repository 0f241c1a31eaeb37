"""What must never happen, executed: the rules of CONTRIBUTING.md as tests over the source."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hetero

ROOT = Path(__file__).parent.parent
CORE = sorted((ROOT / "hetero").rglob("*.py"))
PLUGINS = sorted([*ROOT.glob("vendors/*/**/*.py"), *ROOT.glob("examples/*/**/*.py")])
NATIVE = sorted((ROOT / "limiters").rglob("*.[ch]"))

# --- L1: the core names no vendor ----------------------------------------------------------------

#: Companies, their drivers and what they call their cards, as words or parts of identifiers.
NAMES = (
    *("nvidia", "nvml", "cuda", "geforce", "gpus?", "mig", "amd", "rocm", "hip", "intel"),
    *("ascend", "huawei", "davinci", "cann", "v?npus?", "cambricon", "cndev", "s?mlus?"),
    *("hygon", "dcus?", "iluvatar", "corex", "mthreads", "moore threads", "musa", "metax", "maca"),
)


def test_the_core_names_no_vendor() -> None:
    names = {*NAMES, *(path.name for path in (ROOT / "vendors").iterdir())}
    pattern = re.compile(rf"(?<![a-z])({'|'.join(sorted(names))})(?![a-z])", re.IGNORECASE)

    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in CORE
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]

    assert [] == found


# --- L2 to L6: who may import whom ---------------------------------------------------------------


def module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Yield every name a file imports, wherever in it, as `package.module.name` with its line."""
    package = module(path) if path.name == "__init__.py" else module(path).rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) + 1 - node.level]
            source = ".".join([*(base if node.level else []), *filter(None, [node.module])])
            for alias in node.names:
                yield f"{source}.{alias.name}", node.lineno


def violations(paths: list[Path], forbidden: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in paths
        for name, line in imports(path)
        if forbidden.match(name)
    ]


def test_a_vendor_imports_the_front_door_and_nothing_else_of_ours() -> None:
    public = {"hetero", *(f"hetero.{name}" for name in hetero.__all__)}
    plugins = {path.stem for path in PLUGINS}

    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in PLUGINS
        if path.name != "hatch_build.py" and "tests" not in path.parts
        for name, line in imports(path)
        if (name.split(".")[0] == "hetero" and name not in public)
        or (name.split(".")[0] in plugins - {path.stem} and path.stem.startswith("hetero_"))
    ]

    assert [] == found


def test_a_vendor_is_a_description_of_at_most_250_lines() -> None:
    """What two of them would both write out is a better declaration in the core."""
    lines = {
        vendor.name: sum(len(path.read_text().splitlines()) for path in vendor.rglob("*.py"))
        for vendor in (ROOT / "vendors").iterdir()
    }

    assert {} == {name: count for name, count in lines.items() if count > 250}


#: Lower may not import higher; what shares a rank may. A new module needs a place here.
RANKS = {
    **dict.fromkeys(("units", "errors", "value"), 0),
    "model": 1,
    **dict.fromkeys(("question", "entries"), 1),
    **dict.fromkeys(
        ("granularity", "codec", "driver", "binding", "cards", "slicing", "words", "asks"), 2
    ),
    **dict.fromkeys(("vendor", "grouped"), 3),
    "hookspecs": 4,
    "registry": 5,
    **dict.fromkeys(("fit", "policy"), 6),
    **dict.fromkeys(("node", "simulate", "testing"), 7),
    "container": 8,
    **dict.fromkeys(("cli", "kube", "__main__"), 9),
}


def component(name: str) -> str:
    return name.split(".")[1]


def test_imports_go_one_way() -> None:
    inner = [path for path in CORE if module(path) != "hetero"]  # __init__ is the front door
    unplaced = {module(path) for path in inner if component(module(path)) not in RANKS}
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in inner
        for name, line in imports(path)
        if name.split(".")[0] == "hetero" and name != "hetero"
        if RANKS.get(component(name), 99) > RANKS.get(component(module(path)), 0)
    ]

    assert (set(), []) == (unplaced, found)


#: All of the standard library that the pure modules may touch: no clock, no files, no environment.
PURE = re.compile(
    r"(__future__|typing|collections|enum|re|decimal|fractions|math|functools|itertools|operator"
    r"|bisect|heapq|string|fnmatch|array|zlib|numpy|attrs|hetero\.\w+)\b"
)


def test_the_pure_modules_touch_nothing_outside_themselves() -> None:
    pure = {"units", "errors", "model", "granularity", "grouped", "vendor", "words", "fit"}
    pure |= {"policy", "asks"}
    paths = [path for path in CORE if path.parent != ROOT and module(path) != "hetero"]
    paths = [path for path in paths if component(module(path)) in pure]
    calls = [
        f"{path.relative_to(ROOT)}:{node.lineno} calls {node.func.id}"
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id in {"open", "print", "input", "exec", "eval", "__import__"}
    ]

    assert pure == {component(module(path)) for path in paths}
    assert [] == violations(paths, re.compile(rf"(?!{PURE.pattern})"))
    assert [] == calls


def test_kubernetes_and_rich_stay_in_their_corners() -> None:
    outside = {
        name: [path for path in CORE if component(f"{module(path)}.") != name]
        for name in ("kube", "cli")
    }

    assert [] == violations(outside["kube"], re.compile(r"(kubernetes|grpc)\b"))
    assert [] == violations(outside["cli"], re.compile(r"(rich|click)\b"))
    assert [] == violations(
        [path for path in CORE if "kube" in path.parts], re.compile(r"hetero\.cli\b")
    )


def test_the_command_line_formats_and_does_not_compute() -> None:
    """It reaches the machine through the node, and packs through fit: neither by itself."""
    cli = [path for path in CORE if "cli" in path.parts]
    machine = r"(ctypes|fcntl|mmap|socket|struct|random|statistics|math|threading)\b"

    assert [] == violations(cli, re.compile(machine))
    assert [] == violations(cli, re.compile(r"hetero\.(granularity|hookspecs)\b"))


def test_one_module_of_the_core_knows_the_simulator() -> None:
    assert ["simulation.py"] == [
        path.name for path in CORE if "hetero_simulator" in path.read_text()
    ]


# --- L7: a declaration needs no driver -----------------------------------------------------------

DECLARE = """
import ctypes, sys

def refuse(*_, **__):
    raise SystemExit("opened a native library while being imported")

ctypes.CDLL = ctypes.cdll.LoadLibrary = refuse
import {name}
before = dict(sys.modules)
assert {name}.hetero_vendor() == {name}.hetero_vendor(), "two answers"
assert before.keys() == sys.modules.keys(), "hetero_vendor() imports"
"""


@pytest.mark.parametrize(
    "path", [path for path in PLUGINS if path.stem.startswith("hetero_")], ids=lambda p: str(p.stem)
)
def test_a_vendor_is_imported_and_declared_without_a_driver(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DECLARE.format(name=path.stem)],
        env={"PYTHONPATH": ":".join([str(path.parent), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (0, "") == (done.returncode, done.stderr)


# --- L8, L9: native code -------------------------------------------------------------------------


def test_the_limiters_core_includes_no_driver_header() -> None:
    core = ROOT / "limiters/core"
    found = [
        f"{path.relative_to(ROOT)}: {opening}{header}"
        for path in sorted(core.glob("*.[ch]"))
        for opening, header in re.findall(
            r'^\s*#\s*include\s*([<"])(.+)[>"]', path.read_text(), re.M
        )
        if (opening == '"' and "/" in header)
        or (opening == '"' and not (core / header).exists())
        or re.search(r"cuda|nv|hip|rocm|acl|dcmi|cndev|cn_api|mtml|musa|mxsml|mcr|ixml|abi", header)
    ]

    assert [] == found


def test_a_driver_symbol_is_named_once_in_its_api_def_and_never_as_text() -> None:
    found = []
    for definition in sorted(ROOT.glob("limiters/*/api.def")):
        names = re.findall(r"^[A-Z_]+\((\w+)", definition.read_text(), re.M)
        found += [
            f"{definition.parent.name}: {name} twice" for name in names if names.count(name) > 1
        ]
        for path in sorted(definition.parent.glob("*.c")):
            texts = set(re.findall(r'"(\w+)"', path.read_text()))
            found += [f"{path.relative_to(ROOT)}: {name!r}" for name in texts & set(names)]

    assert [] == found


def test_nothing_asks_which_vendor_it_is() -> None:
    """Neither `vendor == "…"` in Python nor a comparison of that name in C."""
    in_python = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in [*CORE, *PLUGINS]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
        if isinstance(side, ast.Constant) and isinstance(side.value, str)
        if any(
            re.search(r"\bvendor(\.name)?$", ast.unparse(other))
            for other in (node.left, *node.comparators)
        )
    ]
    in_c = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in NATIVE
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r'cmp\s*\([^)]*vendor[^)]*"', line)
    ]

    assert ([], []) == (in_python, in_c)
