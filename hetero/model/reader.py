"""Reads the values of the model from the dicts, lists, strings and numbers that codec.py writes.

What is in another form is cattrs' to read, or to say what is wrong with (codec.py). Nothing of ours
is. Without this, an admission executes 11 % more instructions (`benchmarks/admission.py --count`).
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, Union, get_args, get_origin

from attrs import fields, has, resolve_types

from hetero.model.granularity import Grain, Granularity
from hetero.model.json_keys import key_of

T = TypeVar("T")

#: Under which key the name of its class, in small letters, is with a value of a union.
UNIONS: Final[Mapping[Any, str]] = {Grain: "grain", Granularity: "kind"}
TAGS: Final[Mapping[type, str]] = {
    cls: key for union, key in UNIONS.items() for cls in get_args(union)
}


class OtherForm(Exception):
    """It is not in the form that codec.py writes."""


def tag(cls: type) -> str:
    """Return the name of a class of a union in a document."""
    return cls.__name__.lower()


def read(plain: object, cls: type[T]) -> T:
    """Return the `cls` that is written as `plain`. Keys that `cls` has not are ignored.

    Raises `OtherForm`, and what `cls` raises of values that it forbids.
    """
    value: T = _read_object(cls, plain)
    return value


def _read_object(cls: Any, plain: Any) -> Any:
    _expect(plain, dict)
    arguments = {
        argument: read_field(plain[key])
        for key, argument, read_field in _fields(cls)
        if key in plain
    }
    return cls(**arguments)


@cache
def _fields(cls: Any) -> tuple[tuple[str, str, Callable[[Any], Any]], ...]:
    """Return the key of each field, its argument of the class, and what reads it."""
    resolve_types(cls)
    return tuple(
        (key_of(attribute), attribute.alias or attribute.name, _reader(attribute.type))
        for attribute in fields(cls)
        if attribute.init
    )


@cache
def _reader(annotation: Any) -> Callable[[Any], Any]:
    """Return what reads values of a type. Raises `OtherForm` for one that is not read here."""
    origin, parameters = get_origin(annotation), get_args(annotation)
    if has(annotation):
        return partial(_read_object, annotation)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return annotation
    if annotation in (str, int, bool):
        return partial(_expect, cls=annotation)
    if annotation is float:
        return _read_float
    if origin in (tuple, frozenset) and parameters[1:] in ((), (...,)):
        read_element = _reader(parameters[0])
        return lambda plain: origin(map(read_element, _expect(plain, list)))
    if origin is tuple:
        element_readers = [_reader(parameter) for parameter in parameters]
        return lambda plain: tuple(
            read_element(element)
            for read_element, element in zip(element_readers, _expect(plain, list), strict=True)
        )
    if origin is abc.Mapping:
        key_type, read_element = parameters[0], _reader(parameters[1])
        return lambda plain: {
            key_type(key): read_element(element) for key, element in _expect(plain, dict).items()
        }
    if origin in (Union, UnionType):
        return _union_reader(parameters)
    raise OtherForm(f"a value of {annotation}")


def _union_reader(types: tuple[Any, ...]) -> Callable[[Any], Any]:
    """Return what reads a type or None, and one of the classes that are written with a tag."""
    classes = [cls for cls in types if cls is not NoneType]
    read_value = _reader(classes[0]) if len(classes) == 1 else _tagged_reader(classes)
    if NoneType not in types:
        return read_value
    return lambda plain: None if plain is None else read_value(plain)


def _tagged_reader(classes: Sequence[Any]) -> Callable[[Any], Any]:
    if not TAGS.keys() >= set(classes):
        raise OtherForm(f"one of {classes}")
    key = TAGS[classes[0]]
    class_by_tag = {tag(cls): cls for cls in classes}
    return lambda plain: _read_object(class_by_tag[_expect(plain, dict)[key]], plain)


def _expect(plain: Any, cls: type) -> Any:
    """Return `plain`. Raises `OtherForm` unless it is of exactly this type: True is no number."""
    if type(plain) is not cls:
        raise OtherForm(f"{plain!r} where {cls.__name__} was due")
    return plain


def _read_float(plain: Any) -> float:
    return float(plain if type(plain) is int else _expect(plain, float))
