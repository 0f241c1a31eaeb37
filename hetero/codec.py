"""Turns every value of the model into JSON and back, one versioned form for files and `--json`.

Written out rather than taken from a library: a container's start waits for us a tenth longer while
cattrs is imported and makes its functions. Types are read from the classes themselves, once each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import cache
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import attrs

from hetero.errors import BadInput
from hetero.model import Fractional, Ladder, Step, Templated, Whole

#: The schema of everything written; it changes only when old readers could no longer cope.
VERSION = 1

#: Where a field may hold one of several classes, a key of the document says which.
_TAGS: Mapping[type, tuple[str, str]] = {
    **{cls: ("grain", cls.__name__.lower()) for cls in (Step, Ladder)},
    **{cls: ("kind", cls.__name__.lower()) for cls in (Whole, Fractional, Templated)},
}

T = TypeVar("T")
#: Makes a value of what JSON has, which is at a place that errors name.
_Read = Callable[[Any, str], Any]


def to_plain(value: object) -> Any:
    """Return `value` as dicts, lists, strings and numbers."""
    cls: Any = type(value)
    return _writer(cls)(value)


def dumps(value: object) -> str:
    """Return `value` as one JSON document with its schema version."""
    plain = to_plain(value)
    document = plain if isinstance(plain, dict) else {"items": plain}
    return json.dumps({"version": VERSION, **document}, indent=2)


def loads(text: str, cls: type[T], *, source: str) -> T:
    """Return the `cls` in a JSON document; `source` names it in errors. Raises `BadInput`.

    Keys it does not know are passed over, so that newer writers stay readable.
    """
    try:
        document = json.loads(text)
        version = document.pop("version", VERSION)
        if version > VERSION:
            raise BadInput(f"{source}: written by a newer hetero (schema {version})")
        kind: Any = cls
        value: T = _reader(kind)(document, "")
    except BadInput:
        raise
    except Exception as error:  # json, the readers and the classes' own rules raise many kinds
        why = str(error) or type(error).__name__
        raise BadInput(f"{source}: not a valid {cls.__name__}: {why}") from None
    return value


@cache
def _writer(cls: Any) -> Callable[[Any], Any]:
    """Return the function that makes what JSON has of a `cls`."""
    if issubclass(cls, Enum):
        return attrgetter("value")
    if issubclass(cls, (str, int, float, NoneType)):
        return lambda value: value
    if attrs.has(cls):
        names = [field.name for field in attrs.fields(cls)]
        tag = dict([_TAGS[cls]] if cls in _TAGS else [])
        return lambda value: {name: to_plain(getattr(value, name)) for name in names} | tag
    if issubclass(cls, Mapping):
        return lambda value: {str(key): to_plain(each) for key, each in value.items()}
    if issubclass(cls, (Sequence, AbstractSet)):
        return lambda value: [to_plain(each) for each in value]
    raise TypeError(f"a {cls.__name__} has no form in JSON")


@cache
def _reader(kind: Any) -> _Read:
    """Return the function that makes a `kind`, as types are written in the model's classes."""
    origin, of = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _one_of(of)
    if origin is tuple and of[-1] is Ellipsis:
        each = _reader(of[0])
        return lambda value, at: tuple(
            each(item, f"{at}[{number}]") for number, item in enumerate(_a(list, value, at))
        )
    if origin is tuple:
        readers = [_reader(part) for part in of]
        return lambda value, at: tuple(
            read(item, f"{at}[{number}]")
            for number, (read, item) in enumerate(zip(readers, _a(list, value, at), strict=True))
        )
    if origin is Mapping:
        each = _reader(of[1])
        return lambda value, at: {
            key: each(item, f"{at}[{key!r}]") for key, item in _a(dict, value, at).items()
        }
    if attrs.has(kind):
        return _object(kind)
    if issubclass(kind, Enum):
        return lambda value, _: kind(value)
    if kind is float:
        return lambda value, at: float(_a((int, float), value, at))
    return lambda value, at: _a(kind, value, at)


def _one_of(kinds: Sequence[Any]) -> _Read:
    """Return the reader of a union: of classes that have a tag, or of something and None."""
    tags = {_TAGS[kind] for kind in kinds if kind in _TAGS}
    if tags:
        ((key),) = {key for key, _ in tags}
        tagged = {_TAGS[kind][1]: _reader(kind) for kind in kinds}
        return lambda value, at: tagged[_a(dict, value, at).get(key)](value, at)
    (read,) = (_reader(kind) for kind in kinds if kind is not NoneType)
    return lambda value, at: None if value is None else read(value, at)


def _object(cls: type) -> _Read:
    hints = get_type_hints(cls)
    fields = [(field.name, _reader(hints[field.name])) for field in attrs.fields(cls)]

    def read(value: Any, at: str) -> Any:
        given = _a(dict, value, at)
        values = {name: each(given[name], f"{at}.{name}") for name, each in fields if name in given}
        try:
            return cls(**values)
        except (TypeError, ValueError, BadInput) as error:  # one is missing, or its own rules
            raise ValueError(f"{at.lstrip('.')}: {error}" if at else str(error)) from None

    return read


def _a(kind: Any, value: Any, at: str) -> Any:
    """Return the value, which is to be of that kind."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{at.lstrip('.') or 'the document'}: {value!r} is of another type")
    return value
