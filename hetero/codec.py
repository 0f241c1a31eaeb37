"""Turns every value of the model into JSON and back, one versioned form for files and `--json`."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

import cattrs
from attrs import has, resolve_types
from cattrs.cols import is_mapping
from cattrs.strategies import configure_tagged_union

from hetero.errors import BadInput
from hetero.model import Fractional, Ladder, Step, Templated, Whole

#: The schema of everything written; it changes only when old readers could no longer cope.
VERSION = 1

T = TypeVar("T")


@cache
def _quick() -> cattrs.BaseConverter:
    """Return the converter for everything, built once.

    It generates no code, which takes longer than a program's few documents, and looks at a class
    when it first meets one.
    """
    made = cattrs.BaseConverter()
    made.register_structure_hook_factory(
        has, lambda cls: resolve_types(cls) and made.structure_attrs_fromdict
    )
    made.register_unstructure_hook_factory(
        has, lambda cls: resolve_types(cls) and made.unstructure_attrs_asdict
    )
    return _taught(made)


@cache
def _exact() -> cattrs.BaseConverter:
    """Return the converter that says where in a document a fault is."""
    return _taught(cattrs.Converter())


def _taught(converter: cattrs.BaseConverter) -> cattrs.BaseConverter:
    """Return the converter with our form in it; unknown keys pass, so newer writers stay readable.

    A Mapping is our read-only face of a dict with strings for keys.
    """
    converter.register_structure_hook_func(
        is_mapping,
        lambda value, t: {str(k): converter.structure(v, t.__args__[1]) for k, v in value.items()},
    )
    converter.register_unstructure_hook_func(
        is_mapping, lambda value: {key: converter.unstructure(v) for key, v in value.items()}
    )
    configure_tagged_union(Step | Ladder, converter, tag_name="grain", tag_generator=_tag)
    configure_tagged_union(
        Whole | Fractional | Templated, converter, tag_name="kind", tag_generator=_tag
    )
    return converter


def _tag(cls: type) -> str:
    return cls.__name__.lower()


def to_plain(value: object) -> Any:
    """Return `value` as dicts, lists, strings and numbers."""
    return _quick().unstructure(value)


def dumps(value: object) -> str:
    """Return `value` as one JSON document with its schema version."""
    plain = to_plain(value)
    document = plain if isinstance(plain, dict) else {"items": plain}
    return json.dumps({"version": VERSION, **document}, indent=2)


def loads(text: str, cls: type[T], *, source: str) -> T:
    """Return the `cls` in a JSON document; `source` names it in errors. Raises `BadInput`."""
    try:
        document = json.loads(text)
        version = document.pop("version", VERSION)
        if version > VERSION:
            raise BadInput(f"{source}: written by a newer hetero (schema {version})")
        with suppress(Exception):
            return _quick().structure(document, cls)
        return _exact().structure(document, cls)  # which fails, too, and says where
    except BadInput:
        raise
    except Exception as error:  # cattrs and json raise many kinds; all mean the same here
        raise BadInput(f"{source}: not a valid {cls.__name__}: {_why(error)}") from None


def _why(error: Exception) -> str:
    if isinstance(error, cattrs.BaseValidationError):
        return "; ".join(cattrs.transform_error(error))
    return str(error) or type(error).__name__
