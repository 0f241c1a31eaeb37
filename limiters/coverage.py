#!/usr/bin/env python3
"""Says which functions of a driver a program's wheel calls, and which of them a limiter answers.

    limiters/coverage.py [--api hip] WHEEL...

Reads every ELF file in each wheel. Two kinds of names count: symbols that are undefined in it, and
strings of its own that are exactly a function's name, which a program looks up by dlsym. A string
counts if a table of the limiter has it (api.def, others.def); a symbol counts if it begins as the
API's functions do. Names with C++'s parameters count by what they are in the tables.

One row a wheel: how many functions are limited, harmless and open, as the tables say, and the names
in no table. What is open or unknown is named below it. `covered` is what part of those that
allocate, launch, end or export is limited: limited / (limited + open + unknown). Exits 1 where
that is less than all.
"""

from __future__ import annotations

import argparse
import re
import sys
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from elftools.elf.elffile import ELFFile

HERE = Path(__file__).parent
#: What the functions of an API begin with, behind what C++ puts before a name.
PREFIX = {"cuda": "cu", "hip": "hip", "musa": "mu"}
#: Of a name that each variant of a function has the end of.
VARIANTS = {"cuda": ("_ptsz", "_ptds"), "hip": ("_spt",), "musa": ("_ptsz", "_ptds")}
KINDS = {
    "limited": r"\w*OWN\w*|\w*GATED\w*|\w*COPY\w*|\w*LAUNCH",
    "harmless": r"HARMLESS|\w*WAITS",
    "open": "OPEN",
}


def tables(api: str) -> dict[str, str]:
    """Return each function that the tables of an API name, with its kind."""
    made = HERE / "build" / api  # MUSA's tables are made of CUDA's by the build
    folder = made if (made / "api.def").exists() else HERE / api
    text = (folder / "api.def").read_text() + (folder / "others.def").read_text()
    kinds: dict[str, str] = {}
    for kind, macros in KINDS.items():
        for name in re.findall(rf"^(?:{macros})\((\w+),", text, re.MULTILINE):
            kinds |= dict.fromkeys((name, *(name + end for end in VARIANTS[api])), kind)
    return kinds


def called(wheel: Path, api: str, known: dict[str, str]) -> set[str]:
    """Return the functions of an API that the programs and libraries in a wheel call."""
    named = re.compile(rf"(?:_Z\d+)?{PREFIX[api]}[A-Z]\w*")
    names: set[str] = set()
    for data in elves(wheel):
        symbols, defined = symbols_of(data)
        texts = {text.decode() for text in re.findall(rb"(?<=\0)\w{4,128}(?=\0)", data)}
        names |= {name for name in symbols if named.fullmatch(name)}
        names |= (texts & known.keys()) - defined
    return names


def elves(wheel: Path) -> Iterator[bytes]:
    """Yield the bytes of every ELF file in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            with archive.open(name) as file:
                if file.read(4) == b"\x7fELF":
                    yield b"\x7fELF" + file.read()


def symbols_of(data: bytes) -> tuple[set[str], set[str]]:
    """Return the names that an ELF file needs of others, and those that it has for others."""
    table = ELFFile(BytesIO(data)).get_section_by_name(".dynsym")
    needed: set[str] = set()
    defined: set[str] = set()
    for symbol in table.iter_symbols() if table else ():
        (needed if symbol["st_shndx"] == "SHN_UNDEF" else defined).add(symbol.name)
    return needed, defined


def main() -> int:
    """Print a row for each wheel; 1 if any calls what no limiter answers."""
    parser = argparse.ArgumentParser(description="Says what of a wheel's calls a limiter answers.")
    parser.add_argument("--api", choices=sorted(PREFIX), default="hip")
    parser.add_argument("wheels", nargs="+", type=Path, metavar="WHEEL")
    asked = parser.parse_args()
    known, partly = tables(asked.api), False
    print(f"{'wheel':44}{'limited':>9}{'harmless':>9}{'open':>6}{'unknown':>9}{'covered':>9}")
    for wheel in asked.wheels:
        names = called(wheel, asked.api, known)
        kinds = {kind: {n for n in names if known.get(n) == kind} for kind in KINDS}
        unknown = names - known.keys()
        limited, past = len(kinds["limited"]), sorted(kinds["open"] | unknown)
        share = f"{100 * limited / max(limited + len(past), 1):.0f} %"
        row = (limited, len(kinds["harmless"]), len(kinds["open"]))
        print(
            f"{'-'.join(wheel.stem.split('-')[:2]):44}"
            f"{row[0]:9}{row[1]:9}{row[2]:6}{len(unknown):9}{share:>9}"
        )
        for name in past:
            print(f"    {name}: {known.get(name, 'in no table')}")
        partly = partly or bool(past)
    return 1 if partly else 0


if __name__ == "__main__":
    sys.exit(main())
