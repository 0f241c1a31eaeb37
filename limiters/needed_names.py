#!/usr/bin/env python3
"""Says which of the functions that others' wheels call of an API its abi.h declares.

    limiters/needed_names.py [--api acl]
    limiters/needed_names.py [--api acl] --read WHEEL... > limiters/acl/clients.json

Without `--read`: a row for each wheel of the API's clients.json. Below are the names that have no
prototype, each with how many of the wheels call it. With `--read`: the names in these wheels, as
JSON. `linked` are undefined symbols of ELF files; `named` are their strings, and words of sources,
that are exactly a function's name: what a program looks up by dlsym, or makes code with.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import zipfile
from collections import Counter
from datetime import date
from pathlib import Path

from coverage import elves, symbols_of

HERE = Path(__file__).parent
#: An API's functions. Operators (aclnn, aclop) are none of a limiter's: they launch by the runtime.
FUNCTIONS = {"acl": r"acl(?:rt|mdl|tdt|dvpp)[A-Z]\w+|rts?[A-Z]\w+|hal[A-Z]\w+"}
#: Pointers to functions, and other types, have names of this shape, too.
TYPE = r"\w+(?:_t|Func)"
SOURCES = (".py", ".cpp", ".cc")


def read(wheel: Path, function: str) -> dict[str, list[str]]:
    """Return the names of an API's functions that are in a wheel, by how they are called."""
    linked: set[str] = set()
    named: set[str] = set()
    defined: set[str] = set()
    for data in elves(wheel):
        needed, own = symbols_of(data)
        linked |= {name for name in needed if re.fullmatch(function, name)}
        defined |= own
        texts = {text.decode() for text in re.findall(rb"(?<=\0)\w{4,128}(?=\0)", data)}
        named |= {text for text in texts if re.fullmatch(function, text)}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(SOURCES):
                text = archive.read(name).decode(errors="replace")
                named |= set(re.findall(rf"\b(?:{function})\b(?=\()", text))
    named = {name for name in named - defined - linked if not re.fullmatch(TYPE, name)}
    return {"linked": sorted(linked - defined), "named": sorted(named)}


def declared(api: str) -> set[str]:
    """Return the functions that the declarations of an API have."""
    text = (HERE / api / "abi.h").read_text()
    text += (HERE / "hal/abi.h").read_text() if api == "acl" else ""
    return set(re.findall(r"^\w+_?\w* \*?(\w+)\(", text, re.MULTILINE))


def coverage(api: str) -> None:
    """Print how many of the names in each wheel have a prototype, and which have none."""
    known = declared(api)
    wheels = json.loads((HERE / api / "clients.json").read_text())["wheels"]
    missing: Counter[str] = Counter()
    print(f"{'wheel':32}{'linked':>8}{'declared':>10}{'named':>8}{'declared':>10}")
    for wheel, names in wheels.items():
        linked, named = (set(names[kind]) for kind in ("linked", "named"))
        columns = f"{len(linked):8}{len(linked & known):10}{len(named):8}{len(named & known):10}"
        print(f"{wheel:32}{columns}")
        missing.update((linked | named) - known)
    for name, count in sorted(missing.items(), key=lambda each: (-each[1], each[0])):
        print(f"    {name}: in {count} of {len(wheels)}, no prototype")


def main() -> None:
    """Print the coverage, or the names of some wheels as JSON."""
    parser = argparse.ArgumentParser(description="Says which functions of an API wheels call.")
    parser.add_argument("--api", choices=sorted(FUNCTIONS), default="acl")
    parser.add_argument("--read", nargs="+", type=Path, metavar="WHEEL")
    asked = parser.parse_args()
    if not asked.read:
        coverage(asked.api)
        return
    wheels = {
        "-".join(wheel.stem.split("-")[:2]): read(wheel, FUNCTIONS[asked.api])
        for wheel in sorted(asked.read)
    }
    command = f"limiters/needed_names.py --api {asked.api} --read WHEEL..."
    known = {"command": command, "date": date.today().isoformat(), "wheels": wheels}
    json.dump(known, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
