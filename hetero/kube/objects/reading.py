"""Makes objects of what the API says, whatever somebody wrote into one of them.

A field of another type than it has is taken for one that is not there, and what is no object is
passed over. Such are rare: so an object is decoded in one go, and looked at only where that fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Generic, TypeVar

from msgspec import Raw, Struct, ValidationError, convert, field, json

from hetero.kube.objects.kinds import Object, Part

_T = TypeVar("_T")
_O = TypeVar("_O", bound=Object)
_P = TypeVar("_P", bound=Part)

#: Fields of one object that may be of another type.
_MOST_ODD = 100
#: What an error of msgspec says: the type that it got, if it says that, and the place.
_ERROR = re.compile(r"(?:.*, got `(?P<got>\w+)`|.*) - at `\$(?P<place>.*)`", re.DOTALL)
#: A step of a place: a field, a position in a list, or some value of a table.
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_SOME = "..."
_TYPES: Mapping[str, type] = {
    "array": list,
    "bool": bool,
    "float": float,
    "int": int,
    "null": type(None),
    "object": dict,
    "str": str,
}


class ListMetadata(Struct, rename="camel"):
    """The version of a list, and what names its next part; empty after the last one."""

    resource_version: str = ""
    continue_token: str = field(name="continue", default="")


class Page(Struct, Generic[_T]):
    """A part of a list."""

    metadata: ListMetadata
    items: list[_T] | None = None  # null where metadata alone was asked for


class WatchEvent(Struct, Generic[_T]):
    """What a line of a watch tells of an object."""

    type: str
    object: _T


class Reader(Generic[_O]):
    """Reads the lists and watches of one kind. Its methods raise `DecodeError` for what is none."""

    def __init__(self, kind: type[_O]) -> None:
        page, event = Page[kind], WatchEvent[kind]  # type: ignore[valid-type]
        self._kind = kind
        self._object: json.Decoder[_O] = json.Decoder(kind, strict=False)
        self._page: json.Decoder[Page[_O]] = json.Decoder(page, strict=False)
        self._event: json.Decoder[WatchEvent[_O]] = json.Decoder(event, strict=False)

    def object(self, object_json: bytes | str | Raw) -> _O | None:
        """Return an object, None for what is none."""
        try:
            decoded_object = self._object.decode(object_json)
        except ValidationError:
            decoded_object = read(self._kind, json.decode(object_json))
        return decoded_object if decoded_object.is_named else None

    def page(self, page_json: str) -> Page[_O]:
        """Return a part of a list, without what is no object."""
        try:
            page = self._page.decode(page_json)
        except ValidationError:
            plain = _PAGE.decode(page_json)
            page = Page(plain.metadata, read_all(self._kind, plain.items))
        page.items = [page_object for page_object in page.items or () if page_object.is_named]
        return page

    def event(self, line: bytes) -> WatchEvent[_O]:
        """Return what a line of a watch tells; its object may be none."""
        try:
            return self._event.decode(line)
        except ValidationError:
            plain = _EVENT.decode(line)
            return WatchEvent(plain.type, read(self._kind, plain.object))


_PAGE = json.Decoder(Page[Any])
_EVENT = json.Decoder(WatchEvent[Any])


def plain_page(page_json: str) -> Page[dict[str, Any]]:
    """Return a part of a list as its JSON. Raises `DecodeError` for what is none."""
    page = _PAGE.decode(page_json)
    page.items = [page_object for page_object in page.items or () if isinstance(page_object, dict)]
    return page


@cache
def reader(kind: type[_O]) -> Reader[_O]:
    """Return the reader of a kind."""
    return Reader(kind)


def read(kind: type[_P], plain: object) -> _P:
    """Return an object of a kind by its JSON, one without any field for what is none."""
    for _ in range(_MOST_ODD):
        try:
            return convert(plain, kind, strict=False)
        except ValidationError as error:
            error_match = _ERROR.fullmatch(str(error))
            if error_match is None:
                break
            path_steps = [
                field_name or item_position
                for field_name, item_position in _STEP.findall(error_match["place"])
            ]
            plain = _without(plain, path_steps, _TYPES.get(error_match["got"] or ""))
    return kind()


def expect(kind: type[_P], plain: object) -> _P:
    """Return an object of a kind by its JSON, in which null is what is not there.

    Raises `msgspec.ValidationError` for a field of another type.
    """
    try:
        return convert(plain, kind)
    except ValidationError:
        return convert(_without_nulls(plain), kind)


def read_all(kind: type[_P], plain_objects: Iterable[object] | None) -> list[_P]:
    """Return the objects of a kind in a list."""
    return [read(kind, plain) for plain in plain_objects or () if isinstance(plain, dict)]


def _without_nulls(plain: object) -> object:
    if isinstance(plain, dict):
        return {
            field_name: _without_nulls(field_value)
            for field_name, field_value in plain.items()
            if field_value is not None
        }
    return [*map(_without_nulls, plain)] if isinstance(plain, list) else plain


def _without(plain: Any, path_steps: list[str], wrong_type: type | None) -> Any:
    """Return JSON without what is at a place; of a table's values without those of a type."""
    step, *other_steps = path_steps
    if step == _SOME:
        return {
            field_name: field_value
            for field_name, field_value in plain.items()
            if wrong_type and type(field_value) is not wrong_type
        }
    step_key = int(step) if isinstance(plain, list) else step
    plain_copy = plain.copy()
    if other_steps:
        plain_copy[step_key] = _without(plain[step_key], other_steps, wrong_type)
    else:
        del plain_copy[step_key]
    return plain_copy
