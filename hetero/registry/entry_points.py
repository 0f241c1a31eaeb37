"""Finds what installed distributions offer under an entry point group, as their files say it.

importlib.metadata gives the same answer, and an admission executes 15 % more instructions for it,
most of them its import (`benchmarks/admission.py --count`). The layout read here is that of the
packaging specifications (PyPA, "Recording installed projects" and "Entry points specification"),
and of older eggs.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec

from hetero.model.frozen import frozen

#: The directory of a distribution's metadata, and the file in it with name and version.
_KINDS = ((".dist-info", "METADATA"), (".egg-info", "PKG-INFO"))


@frozen
class Entry:
    """An entry point: its name, the object it stands for, and the distribution it came with."""

    name: str
    value: str
    source: str

    @property
    def file(self) -> str | None:
        """The file of its module, or of the package that is in; nothing of it is imported."""
        spec = find_spec(self.value.partition(":")[0].partition(".")[0].strip())
        return spec.origin if spec else None

    def load(self) -> object:
        """Import the module the entry names, and return it or what it names in there."""
        module, _, attributes = self.value.partition(":")
        target: object = import_module(module.strip())
        for attribute in filter(None, attributes.strip().split(".")):
            target = getattr(target, attribute)
        return target


def entries(group: str) -> list[Entry]:
    """Return the entry points of a group, by name; of two distributions of one name, the first."""
    found_entries: list[Entry] = []
    seen_distributions: set[str] = set()
    for path_entry in sys.path:
        with suppress(OSError):
            for directory_name in sorted(os.listdir(path_entry or ".")):
                stem, suffix = os.path.splitext(directory_name)
                if suffix not in dict(_KINDS):
                    continue
                distribution = normalised(stem.partition("-")[0])
                if distribution not in seen_distributions:
                    seen_distributions.add(distribution)
                    found_entries += _in(
                        os.path.join(path_entry, directory_name), group, dict(_KINDS)[suffix]
                    )
    return sorted(found_entries, key=lambda entry: entry.name)


def normalised(distribution_name: str) -> str:
    """Return the name of a distribution as all its spellings have it in common (PyPA)."""
    return re.sub(r"[-_.]+", "-", distribution_name).lower()


def _in(directory: str, group: str, metadata: str) -> Iterator[Entry]:
    listing = _text(os.path.join(directory, "entry_points.txt"))
    _, header, section_and_rest = f"\n{listing}".partition(f"\n[{group}]\n")
    if not header:
        return
    metadata_fields = dict(
        re.findall(r"^(Name|Version):\s*(.+)$", _text(f"{directory}/{metadata}"), re.M)
    )
    source = " ".join(
        metadata_fields[field].strip() for field in ("Name", "Version") if field in metadata_fields
    )
    for line in section_and_rest.partition("\n[")[0].splitlines():
        entry_name, equals, object_reference = line.partition("=")
        if equals and not line.lstrip().startswith(("#", ";")):
            yield Entry(entry_name.strip(), object_reference.partition("[")[0].strip(), source)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
