"""attrs' frozen classes, with three methods that all of them share.

attrs compiles a repr, an equality and a hash for each class. With those an admission executes 27 %
more instructions (`benchmarks/admission.py --count`).
The shared methods return the same; equality and hash take 0.1 us longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from attrs import frozen as frozen
else:
    from functools import partial
    from operator import attrgetter
    from reprlib import recursive_repr

    def frozen(cls=None, **attrs_options):
        """Return the class as `attrs.frozen` makes it, which keeps what a class has already."""
        if cls is None:
            return partial(frozen, **attrs_options)
        cls.__repr__, cls.__eq__, cls.__hash__ = _repr, _eq, _hash
        frozen_class = attrs.frozen(cls, **attrs_options)
        frozen_class._parts = attrgetter(
            "__class__", *(field.name for field in attrs.fields(frozen_class))
        )
        return frozen_class

    @recursive_repr()
    def _repr(self) -> str:
        field_names = (field.name for field in attrs.fields(type(self)) if field.repr)
        fields_text = ", ".join(
            f"{field_name}={getattr(self, field_name)!r}" for field_name in field_names
        )
        return f"{type(self).__qualname__.rpartition('>.')[2]}({fields_text})"

    def _eq(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._parts(self) == other._parts(other)

    def _hash(self) -> int:
        return hash(self._parts(self))
