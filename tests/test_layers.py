"""What must never happen in the source, and which tool of `make check` holds it.

L1   A vendor is named in `hetero/`: here.
L2   A vendor imports anything of ours but `hetero.plugin`, or another vendor: import-linter, which
     lets two import what they share. Here: that its contract lists every vendor, and the same of
     the examples, which it cannot import.
L3   An upward import, between packages or inside one, or a circle: import-linter. In the limiters:
     limiters/check_layers.py.
L4   `model` or `placement` reaches a clock, a file, a process or the environment: import-linter,
     through any number of modules. Here: calls of built-in functions that do.
L5   Kubernetes' libraries outside `hetero/kube/`, or the terminal's outside `hetero/cli/`:
     import-linter, and which subcommands may know `hetero.kube`.
L6   The command line computes or reaches the machine by itself: import-linter.
L7   Importing a vendor, or asking for its declaration, needs a driver: here.
L8   `limiters/core` includes a driver's header, or a symbol is named in two places: here.
L9   Anything asks which vendor it is: here.
L10  A field of the model has no JSON, or old JSON no longer loads: tests/model/test_codec.py and
     tests/test_old_json.py.

Also here: how long a vendor's file may be.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs import completed

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
CORE = sorted((ROOT / "hetero").rglob("*.py"))
PLUGINS = sorted([*ROOT.glob("vendors/*/**/*.py"), *ROOT.glob("examples/*/**/*.py")])
#: Of these the modules, or the packages, that entry points name.
VENDORS = sorted(
    path
    for path in (*ROOT.glob("vendors/*/hetero_*"), *ROOT.glob("examples/*/hetero_*"))
    if "[project.entry-points" in (path.parent / "pyproject.toml").read_text()
)
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

    vendor_lines = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in CORE
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]

    assert [] == vendor_lines


# --- L2: vendors ---------------------------------------------------------------------------------


def test_the_contract_of_vendors_lists_each_of_them() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = (one for one in contracts["contracts"] if one["name"].startswith("L2"))

    vendors = {path.stem for path in ROOT.glob("vendors/*/hetero_*")}

    assert {"hetero", *vendors} == set(contract["forbidden_modules"])


def test_an_example_imports_the_front_door_and_nothing_else_of_ours() -> None:
    imports = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in ROOT.glob("examples/*/*.py")
        for name in re.findall(
            r"^\s*(?:from|import) (hetero\S*(?: import \w+)?)", path.read_text(), re.M
        )
        if not re.fullmatch(r"hetero\.plugin|hetero import plugin", name)
    ]

    assert [] == imports


def test_a_vendor_describes_and_searches_nothing() -> None:
    """What has to be searched for is found by the core, which knows what else stands on a card."""
    searches = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in PLUGINS
        for line in _searches(ast.parse(path.read_text()))
    ]

    assert {"hetero_amd.py", "mps.py"} <= {path.name for path in PLUGINS}
    assert [] == searches


def _searches(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of loops until a condition holds, recursion, and imports for searching."""
    for node in ast.walk(tree):
        match node:
            # One that nothing ends but its process waits for events.
            case ast.While(test=test, lineno=line) if not isinstance(test, ast.Constant):
                yield line
            case ast.FunctionDef(name=name, lineno=line):
                calls = (each for each in ast.walk(node) if isinstance(each, ast.Call))
                if name in {ast.unparse(call.func) for call in calls}:
                    yield line
            case ast.ImportFrom(module="bisect" | "heapq" | "itertools", lineno=line):
                yield line


# --- L4: what a pure module may not call ---------------------------------------------------------


def test_the_pure_packages_call_nothing_that_reads_writes_or_runs() -> None:
    calls = [
        f"{path.relative_to(ROOT)}:{node.lineno} calls {node.func.id}"
        for package in ("model", "placement")
        for path in sorted((ROOT / "hetero" / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id in {"open", "print", "input", "exec", "eval", "__import__"}
    ]

    assert [] == calls


def test_one_module_of_the_core_knows_the_simulator() -> None:
    assert ["place.py"] == [path.name for path in CORE if "hetero_simulator" in path.read_text()]


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


@pytest.mark.parametrize("path", VENDORS, ids=lambda path: str(path.stem))
def test_a_vendor_is_imported_and_declared_without_a_driver(path: Path) -> None:
    done = completed(
        [sys.executable, "-c", DECLARE.format(name=path.stem)],
        env={"PYTHONPATH": ":".join([str(path.parent), *sys.path])},
    )

    assert (0, "") == (done.returncode, done.stderr)


# --- L8, L9: native code -------------------------------------------------------------------------


def test_the_limiters_core_includes_no_driver_header() -> None:
    core = ROOT / "limiters/core"
    includes = [
        f"{path.relative_to(ROOT)}: {opening}{header}"
        for path in sorted(core.glob("*.[ch]"))
        for opening, header in re.findall(
            r'^\s*#\s*include\s*([<"])(.+)[>"]', path.read_text(), re.M
        )
        if (opening == '"' and "/" in header)
        or (opening == '"' and not (core / header).exists())
        or re.search(
            r"cuda|nvml|nvidia|hip|rocm|acl|dcmi|cndev|cn_api|mtml|musa|mxsml|mcr|ixml|abi", header
        )
    ]

    assert [] == includes


def test_a_driver_symbol_is_named_once_in_its_api_def_and_never_as_text() -> None:
    faults = []
    for definition in sorted(ROOT.glob("limiters/*/api.def")):
        names = re.findall(r"^[A-Z_]+\((\w+)", definition.read_text(), re.M)
        faults += [
            f"{definition.parent.name}: {name} twice" for name in names if names.count(name) > 1
        ]
        bodies = [*definition.parent.glob("*.c"), *ROOT.glob("limiters/shared/*.c")]
        for path in sorted(bodies):
            texts = set(re.findall(r'"(\w+)"', path.read_text()))
            faults += [f"{path.relative_to(ROOT)}: {name!r}" for name in texts & set(names)]

    assert [] == faults


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
