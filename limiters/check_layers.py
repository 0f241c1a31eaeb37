#!/usr/bin/env python3
"""Checks the layers of the limiters, and prints a line for each violation.

    limiters/check_layers.py [--root limiters] [--build limiters/build]

A unit is a source with its header (x.c and x.h). Sources that a driver API chooses from (its
features.mk), and the header they share, are a unit each. What a unit needs is told in two ways: by
what it includes, and by the symbols of its object that other objects define (`nm`).

1. Includes between folders go down only: LAYERS.
2. The units' includes have no circle.
3. Symbols between folders go down only, too.
4. The units' symbols have no circle inside a folder.

Symbols are read from a build, so one must be there, with an object of each source.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

#: From the bottom up: a folder may need those before it, and itself. The bodies that driver APIs
#: share are compiled once for each, as a part of it. HSA's are a part of HIP's limiter. Those of
#: hal are a part of that for acl, whose own bodies are above them.
LAYERS = ("core", "timeshare", "nvml", "cuda")
PLACE = {
    **{folder: place for place, folder in enumerate(LAYERS)},
    **dict.fromkeys(("shared", "hip", "hsa", "musa", "acl", "hal"), LAYERS.index("cuda")),
}

API = LAYERS.index("cuda")
BELOW = {"hip": ("hsa",), "acl": ("hal",)}

Graph = Mapping[str, frozenset[str]]


def units(
    root: Path, pattern: str, folders: Iterable[str] = PLACE, shared: str = "shared"
) -> Iterator[tuple[str, Path]]:
    """Yield each file of the layers with the unit that it is of: folder/name."""
    for folder in folders:
        for path in sorted((root / (shared if folder == "shared" else folder)).glob(pattern)):
            yield f"{folder}/{path.stem}", path


def included(root: Path) -> Graph:
    """Return what each unit includes of other units."""
    needs_of: dict[str, set[str]] = {}
    for unit, path in units(root, "*.[ch]"):
        needs = needs_of.setdefault(unit, set())
        for name in re.findall(r'^\s*#\s*include\s*"([^"]+)"', path.read_text(), re.MULTILINE):
            target = (path.parent / name).resolve()
            if target.suffix == ".h" and target.is_relative_to(root.resolve()):
                needs.add(f"{target.parent.name}/{target.stem}")
    return {unit: frozenset(needs - {unit}) for unit, needs in needs_of.items()}


def linked(root: Path, build: Path, api: str) -> Graph:
    """Return of which units each unit's object needs symbols, in the limiter of one API."""
    tables = {unit: symbols(path) for unit, path in objects(root, build, api)}
    definers = {
        symbol: unit
        for unit, table in tables.items()
        for symbol, kind in table
        if kind.isupper() and kind != "U"
    }
    return {
        unit: frozenset(definers[s] for s, kind in table if kind == "U" and s in definers) - {unit}
        for unit, table in tables.items()
    }


def objects(root: Path, build: Path, api: str) -> Iterator[tuple[str, Path]]:
    """Yield each unit of an API's limiter with its object."""
    own = ("shared", api, *BELOW.get(api, ()))
    folders = [folder for folder, place in PLACE.items() if place < API or folder in own]
    shared = "shared" if api == "cuda" else f"{api}/shared"
    sources = {unit for unit, _ in units(root, "*.c")}  # of others an old object may lie about
    for unit, path in units(build, "*.o", folders, shared):
        if unit in sources:
            yield unit, path


def symbols(path: Path) -> list[tuple[str, str]]:
    """Return the symbols of an object, each with its kind as `nm` has it."""
    listed = ["nm", "--format=posix", str(path)]
    lines = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.splitlines()
    return [(words[0], words[1]) for words in map(str.split, lines)]


def upward(graph: Graph) -> Iterator[tuple[str, str]]:
    """Yield each unit with one that it needs of a layer above its own, or beside it."""
    for unit, needs in sorted(graph.items()):
        own = unit.split("/")[0]
        for need in sorted(needs):
            other = need.split("/")[0]
            if own == other or other in BELOW.get(own, ()):
                continue
            if "shared" in (own, other) and PLACE[own] == PLACE[other] == API:
                continue
            if PLACE.get(other, len(LAYERS)) >= PLACE[own]:
                yield unit, need


def circles(graph: Graph) -> Iterator[list[str]]:
    """Yield each group of units that need each other (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []

    def visit(unit: str) -> Iterator[list[str]]:
        index[unit] = lowest[unit] = len(index)
        path.append(unit)
        for need in sorted(graph.get(unit, ())):
            if need not in index:
                yield from visit(need)
                lowest[unit] = min(lowest[unit], lowest[need])
            elif need in path:
                lowest[unit] = min(lowest[unit], index[need])
        if lowest[unit] == index[unit]:
            group = path[path.index(unit) :]
            del path[path.index(unit) :]
            if len(group) > 1:
                yield sorted(group)

    for unit in sorted(graph):
        if unit not in index:
            yield from visit(unit)


def unbuilt(root: Path, build: Path) -> Iterator[str]:
    """Yield a line for each source that has no object: its symbols cannot be checked."""
    shared = (
        "shared",
        "hip/shared",
        "musa/shared",
        "acl/shared",
    )  # each API has some of these bodies
    built = {unit for folder in shared for unit, _ in units(build, "*.o", shared=folder)}
    for unit, path in units(root, "*.c"):
        if unit not in built:
            yield f"no object of {path} in {build}: run make -C limiters"


def violations(root: Path, build: Path) -> Iterator[str]:
    """Yield a line for each violation, and for each source whose symbols are not known."""
    if not build.is_dir():
        yield f"no build in {build}, so symbols cannot be checked: run make -C limiters"
        return
    yield from unbuilt(root, build)
    graphs = [("includes", included(root))]
    graphs += [
        ("needs a symbol of", linked(root, build, api)) for api in ("cuda", "hip", "musa", "acl")
    ]
    violated: dict[str, None] = {}  # each once, where both limiters have it
    for verb, graph in graphs:
        for unit, need in upward(graph):
            violated[f"layer: {unit} {verb} {need}"] = None
        for group in circles(graph):
            violated[f"circle: {' '.join(group)}: each {verb} another"] = None
    yield from violated


def main() -> int:
    """Print the violations; 1 if there is one."""
    folder = Path(__file__).parent
    parser = argparse.ArgumentParser(description="Checks the layers of the limiters.")
    parser.add_argument("--root", type=Path, default=folder)
    parser.add_argument("--build", type=Path, default=folder / "build")
    asked = parser.parse_args()
    violated = list(violations(asked.root, asked.build))
    for line in violated:
        print(line)
    return 1 if violated else 0


if __name__ == "__main__":
    sys.exit(main())
