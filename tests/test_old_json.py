"""What an earlier version wrote loads, and says the same (L10): documents on file, never rewritten.

A field that is new, or a document in another form, gets a file of its own beside the old ones, with
the next number. A change that an old file does not survive needs a new `codec.VERSION`, and a way
to read the old one.
"""

import json
from collections.abc import Iterator, Mapping
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import Any

import attrs
import pytest

from hetero import model
from hetero.kube.words.annotations import Assignment, _Rack
from hetero.model import codec
from hetero.node.ledger.events import Event
from hetero.node.ledger.ledger import Grant

TESTS = Path(__file__).parent

#: The classes whose documents outlive the program that wrote them, by the beginning of their files'
#: names.
CLASSES: dict[str, type[Any]] = {
    "allocation": model.Allocation,
    "assignment": Assignment,
    "edits": model.Edits,
    "event": Event,
    "grant": Grant,
    "inventory": model.Inventory,
    "rack": _Rack,
    "refusal": model.Refusal,
    "request": model.Request,
    "usage": model.Usage,
}

#: The beginnings of the files' SHA-256. A file that changed would hide that what an earlier version
#: wrote no longer loads; so a line here is only ever added.
DIGESTS = {
    "container/data/event-1.json": "713f912a6c4ee594",
    "kube/data/assignment-1.json": "65d087532addb24e",
    "kube/data/assignment-2.json": "62abe280b6a8c51f",
    "kube/data/rack-1.json": "a3252293f4466ee4",
    "kube/data/rack-2.json": "2e986338828acdeb",
    "kube/data/rack-3.json": "ccf00bf9f73b2da5",
    "kube/data/rack-4.json": "ae522786ac89355b",
    "kube/data/rack-5.json": "0bb16959a076e840",
    "kube/data/rack-6.json": "3520e169da426ad4",
    "model/data/allocation-1.json": "dbd9239fd91b43ad",
    "model/data/allocation-2.json": "28811b9493d89b65",
    "model/data/allocation-3.json": "d1c87d96d89474a5",
    "model/data/allocation-4.json": "5e6bcaf3ff83570c",
    "model/data/allocation-5.json": "134a3ddbf2947cec",
    "model/data/edits-1.json": "ab98cc5090c8917e",
    "model/data/inventory-1.json": "72dfe05b5be16d6b",
    "model/data/inventory-2.json": "f4297a3a3f52a07b",
    "model/data/inventory-3.json": "62a49cfccbc4d8f5",
    "model/data/inventory-4.json": "0e84ad0c988ab0eb",
    "model/data/inventory-5.json": "0beef7e31bbfa346",
    "model/data/inventory-6.json": "34bbe99f8be0f346",
    "model/data/inventory-7.json": "59c6e69e278411ff",
    "model/data/refusal-1.json": "911f742ab088eb53",
    "model/data/refusal-2.json": "07b478ff7e4290f7",
    "model/data/refusal-3.json": "779ee72850c2633f",
    "model/data/refusal-4.json": "896be2821d4716a0",
    "model/data/request-1.json": "de0c565e8791a1ed",
    "model/data/request-2.json": "428af3d2f4d53b2d",
    "model/data/request-3.json": "b8522524f6722ae4",
    "model/data/request-4.json": "a05a04172cdf7299",
    "model/data/request-5.json": "03023d229823af8a",
    "model/data/request-6.json": "bd1861ce7f324cd4",
    "model/data/usage-1.json": "a84399642b66497b",
    "model/data/usage-2.json": "5038bc8eef390128",
    "model/data/usage-3.json": "83ad331064304cb3",
    "model/data/usage-4.json": "1f8ff9820993ae14",
    "node/data/event-2.json": "34d145448872e2a2",
    "node/data/grant-1.json": "8eba451f9934e777",
    "node/data/grant-2.json": "011ddf2e78dbe68c",
    "node/data/grant-4.json": "50ac9b28a2e38783",
    "node/data/grant-5.json": "eb6099b676a60cc6",
    "node/data/grant-6.json": "260ab78035476481",
    "node/data/grant-7.json": "38d116209b2e8089",
    "node/data/grant-8.json": "e48252a2bc26db0f",
    "node/data/grant-9.json": "8376b77cf8bfc5d4",
    "node/data/grant-3.json": "60d82bdaafd45946",
    "node/data/grant-10.json": "d81474b1203c8d79",
    "node/data/grant-11.json": "b400738d7b225885",
    "node/data/grant-12.json": "1264c64cb99c58cd",
    "node/data/grant-13.json": "2dbc0a2b11a08f64",
}


def on_file() -> Iterator[tuple[str, str, type[Any]]]:
    """Yield the path and the text of each document, and its class."""
    for path in sorted(TESTS.glob("*/data/*.json")):
        cls = CLASSES[path.stem.partition("-")[0]]
        yield str(path.relative_to(TESTS)), path.read_text(), cls


DOCUMENTS = list(on_file())


def test_no_document_on_file_was_changed() -> None:
    assert DIGESTS == {path: sha256(text.encode()).hexdigest()[:16] for path, text, _ in DOCUMENTS}


def test_every_kind_of_document_is_on_file() -> None:
    assert set(CLASSES.values()) == {cls for _, _, cls in DOCUMENTS}


def survives(old: Any, new: Any) -> bool:
    """Whether everything `old` says is still said by `new`, which may say more."""
    if isinstance(old, dict):
        return all(key in new and survives(value, new[key]) for key, value in old.items())
    if isinstance(old, list):
        return len(old) == len(new) and all(map(survives, old, new))
    return bool(old == new)


@pytest.mark.parametrize(("path", "text", "cls"), DOCUMENTS, ids=lambda each: str(each)[:40])
def test_an_old_document_loads_and_loses_nothing(path: str, text: str, cls: type[Any]) -> None:
    again = codec.dumps(codec.loads(text, cls, source=path))

    assert survives(json.loads(text), json.loads(again))


def filled_fields(value: Any) -> Iterator[tuple[type[Any], str]]:
    """Yield the class and name of each field that says something in a value, and in those in it."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple):
        for each in value:
            yield from filled_fields(each)
    elif attrs.has(type(value)):
        for attribute in attrs.fields(type(value)):
            held = getattr(value, attribute.name)
            if held not in (None, (), {}, False):
                yield type(value), attribute.name
            if not isinstance(held, Enum):
                yield from filled_fields(held)


def test_every_field_of_every_class_is_said_on_file() -> None:
    """A field that no document says could be renamed unnoticed."""
    values = (codec.loads(text, cls, source=path) for path, text, cls in DOCUMENTS)
    filled = {each for value in values for each in filled_fields(value)}
    unsaid = {
        f"{cls.__name__}.{one.name}"
        for cls in {cls for cls, _ in filled}
        for one in attrs.fields(cls)
        if (cls, one.name) not in filled
    }

    assert set() == unsaid
