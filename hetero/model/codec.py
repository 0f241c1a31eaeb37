"""Turns every value of the model into JSON and back, in one versioned form for files and `--json`.

What is in the form that is written here is read by reader.py. Only what is not, such as a damaged
file, is read by cattrs, which says where the error is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import fields, has

from hetero.model.errors import BadInput
from hetero.model.json_keys import key_of
from hetero.model.reader import TAGS, UNIONS, read, tag

if TYPE_CHECKING:
    from cattrs import BaseConverter

#: The schema of everything written; it changes only when old readers could no longer cope.
VERSION = 1

T = TypeVar("T")


def to_plain(value: object) -> Any:
    """Return `value` as dicts, lists, strings and numbers."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, str | int | float):
        return value  # what most are; to ask attrs takes longer than all the rest
    if isinstance(value, Mapping):
        return {field_key: to_plain(element) for field_key, element in value.items()}
    if isinstance(value, tuple | list | frozenset | set):
        return [to_plain(element) for element in value]
    cls = type(value)
    if not has(cls):
        return value
    plain = {key: to_plain(getattr(value, name)) for key, name in _names(cls)}
    return {**plain, TAGS[cls]: tag(cls)} if cls in TAGS else plain


@cache
def _names(cls: type) -> tuple[tuple[str, str], ...]:
    """Return the key and the name of each field."""
    return tuple((key_of(attribute), attribute.name) for attribute in fields(cls))


def dumps(value: object, *, indent: int | None = 2) -> str:
    """Return `value` as one JSON document with its schema version; in one line without `indent`."""
    plain = to_plain(value)
    document = plain if isinstance(plain, dict) else {"items": plain}
    return json.dumps({"version": VERSION, **document}, indent=indent)


def loads(text: str, cls: type[T], *, source: str) -> T:
    """Return the `cls` in a JSON document; `source` names it in errors. Raises `BadInput`.

    The document names a class by its `TITLE`, else by its name.
    """
    try:
        document = json.loads(text, parse_constant=_no_number)
        version = document.pop("version", VERSION)
        if version > VERSION:
            raise BadInput(f"{source}: written by a newer hetero (schema {version})")
        with suppress(Exception):
            return read(document, cls)
        return _exact().structure(document, cls)  # which fails, too, and says where
    except BadInput:
        raise
    except Exception as error:  # cattrs and json raise many kinds; all mean the same here
        import cattrs

        message = str(error) or type(error).__name__
        title = getattr(cls, "TITLE", cls.__name__)
        if isinstance(error, cattrs.BaseValidationError):
            message = "; ".join(cattrs.transform_error(error))
        raise BadInput(f"{source}: not a valid {title}: {message}") from None


def _no_number(constant_name: str) -> float:
    raise ValueError(f"{constant_name} is no number")


@cache
def _exact() -> BaseConverter:
    """Return cattrs' converter, whose errors name the place in a document.

    Unknown keys are ignored, for newer writers. A Mapping is our read-only face of a dict; JSON has
    its keys as strings.
    """
    from cattrs import Converter
    from cattrs.cols import is_mapping
    from cattrs.gen import make_dict_structure_fn, override
    from cattrs.strategies import configure_tagged_union

    converter = Converter()
    converter.register_structure_hook_func(
        is_mapping,
        lambda value, mapping_type: {
            mapping_type.__args__[0](key): converter.structure(element, mapping_type.__args__[1])
            for key, element in value.items()
        },
    )

    def reader_of(cls: type) -> Any:
        """Return what reads a class, whose fields may have other keys in documents."""
        renames: Any = {
            attribute.name: override(rename=key_of(attribute)) for attribute in fields(cls)
        }
        return make_dict_structure_fn(cls, converter, **renames)

    converter.register_structure_hook_factory(has, reader_of)
    for union, key in UNIONS.items():
        configure_tagged_union(union, converter, tag_name=key, tag_generator=tag)
    return converter
