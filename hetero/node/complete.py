"""Prints the names that a shell completes a line with, in a fraction of a second.

Only the standard library is imported: grants are read from their files, and cards from the last
discovery.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from hetero.node.place import ledgers

#: What a shell takes as one word whatever is in front of it, and such words with blanks between.
_NAME = re.compile(r"[\w.@%+/-]+(?: [\w.@%+/-]+)*", re.ASCII)
#: Seconds after which cards are looked for again, while the shell has the answer already.
_REFRESH_AGE_S = 60.0
#: What of the cards is remembered, in the ledger's directory.
_SEEN = "seen.json"

Names = Iterator[tuple[str, str]]  # each with a few words about it


def main() -> None:
    """Print the names of a kind (`sys.argv[1]`), each with a tab and a short description."""
    with suppress(AttributeError, ImportError, LookupError, OSError, TypeError, ValueError):
        for completion_name, description in dict(_names(sys.argv[1])).items():
            if _NAME.fullmatch(completion_name):
                print(
                    completion_name,
                    "".join(
                        character if character.isprintable() else " " for character in description
                    ),
                    sep="\t",
                )


def _names(kind: str) -> Names:
    ledger_paths = ledgers(os.environ, uid=os.geteuid())
    if kind in ("grants", "shares"):
        for ledger_path in ledger_paths:
            yield from _grants(ledger_path, shares=kind == "shares")
    elif kind == "users":
        for ledger_path in ledger_paths:
            yield from ((grant["user"], "") for grant in _entries(ledger_path) if grant["user"])
    elif kind == "benchmarks":
        from importlib.metadata import entry_points

        yield from ((entry_point.name, "") for entry_point in entry_points(group="hetero.bench"))
    else:
        yield from _seen(ledger_paths[0] / _SEEN)[kind]


def _grants(ledger_path: Path, *, shares: bool) -> Names:
    """Yield labels and ids of the grants in a ledger, or the names of the shares."""
    for grant in _entries(ledger_path):
        label, share_name = grant["label"], grant["share"]
        if shares:
            yield from [(share_name, grant["id"])] if share_name else []
        else:
            yield from [(label, grant["id"])] if label else []
            yield grant["id"], label or share_name or " ".join(grant["command"])


def _entries(ledger_path: Path) -> Iterator[dict[str, Any]]:
    """Yield the entry file of each grant in a ledger."""
    for path in sorted(ledger_path.glob("grants/[!.]*/allocation.json")):
        with suppress(LookupError, OSError, TypeError, ValueError):  # half written, or not ours
            grant = json.loads(path.read_text())
            shown_fields = {
                field_name: grant.get(field_name) for field_name in ("label", "share", "user")
            }
            yield {**shown_fields, "id": grant["id"], "command": [*map(str, grant["command"])]}


def _seen(path: Path) -> dict[str, list[tuple[str, str]]]:
    """Return the names of cards, models and vendors by the last discovery, for each kind."""
    if not path.exists():
        remember()  # the first time, and again after a reboot
    elif time.time() - path.stat().st_mtime > _REFRESH_AGE_S:
        import subprocess

        subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import remember; remember()"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    names_by_kind: dict[str, list[tuple[str, str]]] = json.loads(path.read_text())
    return names_by_kind


def remember() -> None:
    """Discover the cards, and write their names to a file."""
    from hetero.node.ledger.grant_dir import replace
    from hetero.node.ledger.state import prepare
    from hetero.node.node import Node
    from hetero.node.simulation import enter

    enter(os.environ)
    discovery = Node.here().discover()
    ledger_path = ledgers(os.environ, uid=os.geteuid())[0]
    prepare(ledger_path)
    cards = [(device.uuid, device.model) for device in discovery.devices]
    names_by_kind = {
        "vendors": [(row.name, row.title or "") for row in discovery.rows],
        "models": [
            (model_name, model)
            for _, model in cards
            for model_name in dict.fromkeys((model, *model.split()))
        ],
        "uuids": cards,
        "devices": [(str(index), f"{model} {uuid}") for index, (uuid, model) in enumerate(cards)]
        + cards,
    }
    replace(ledger_path / _SEEN, json.dumps(names_by_kind).encode(), mode=0o600)


if __name__ == "__main__":
    main()
