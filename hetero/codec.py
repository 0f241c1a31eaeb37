"""Turns every value of the model into JSON and back, one versioned form for files and `--json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import cattrs
from cattrs.preconf.json import make_converter
from cattrs.strategies import configure_tagged_union

from hetero.errors import BadInput
from hetero.model import Fractional, Ladder, Step, Templated, Whole

#: The schema of everything written; it changes only when old readers could no longer cope.
VERSION = 1

T = TypeVar("T")


@cache
def converter() -> cattrs.Converter:
    """Return the converter, built once; it ignores unknown keys, so newer writers stay readable."""
    made = make_converter()
    # Mapping[str, …] is our read-only face of a dict.
    made.register_structure_hook_func(
        lambda t: getattr(t, "__origin__", None) is Mapping,
        lambda value, t: {str(k): made.structure(v, t.__args__[1]) for k, v in value.items()},
    )
    configure_tagged_union(Step | Ladder, made, tag_name="grain", tag_generator=_tag)
    configure_tagged_union(
        Whole | Fractional | Templated, made, tag_name="kind", tag_generator=_tag
    )
    return made


def _tag(cls: type) -> str:
    return cls.__name__.lower()


def to_plain(value: object) -> Any:
    """Return `value` as dicts, lists, strings and numbers."""
    return converter().unstructure(value)


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
        return converter().structure(document, cls)
    except BadInput:
        raise
    except Exception as error:  # cattrs and json raise many kinds; all mean the same here
        raise BadInput(f"{source}: not a valid {cls.__name__}: {_why(error)}") from None


def _why(error: Exception) -> str:
    if isinstance(error, cattrs.BaseValidationError):
        return "; ".join(cattrs.transform_error(error))
    return str(error) or type(error).__name__
