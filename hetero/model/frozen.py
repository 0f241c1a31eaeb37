"""attrs' frozen classes, with three methods that all of them share, and one that is made late.

attrs compiles a repr, an equality and a hash for each class. With those an admission executes 27 %
more instructions (`benchmarks/admission.py --count`).
The shared methods return the same; equality and hash take 0.1 us longer.

It compiles an `__init__`, too, which a command needs of few of its classes. That is compiled when
the first object of a class is made, or its signature is asked for.
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

    from attr import _make

    #: How attrs compiles the methods of a class: None where this version of it does that otherwise.
    _compiled = getattr(_make, "_linecache_and_compile", None)

    def frozen(cls=None, **attrs_options):
        """Return the class as `attrs.frozen` makes it, which keeps what a class has already."""
        if cls is None:
            return partial(frozen, **attrs_options)
        cls.__repr__, cls.__eq__, cls.__hash__ = _repr, _eq, _hash
        if _compiled is None:
            frozen_class = attrs.frozen(cls, **attrs_options)
        else:
            cls.__signature__ = _Signature()
            _make._linecache_and_compile = _late
            try:
                frozen_class = attrs.frozen(cls, **attrs_options)
            finally:
                _make._linecache_and_compile = _compiled
        frozen_class._parts = attrgetter(
            "__class__", *(field.name for field in attrs.fields(frozen_class))
        )
        return frozen_class

    def _late(script, *arguments, **options):
        """Return what the script defines, as attrs does; an `__init__` compiles itself."""
        if not script.startswith("def __init__("):
            return _compiled(script, *arguments, **options)

        def __init__(self, /, *values, **value_by_name):  # noqa: N807 - it takes that one's place
            _init_of(type(self))(self, *values, **value_by_name)

        __init__.compiled = partial(_compiled, script, *arguments, **options)
        return {"__init__": __init__}

    def _init_of(cls):
        """Return the `__init__` of a class, compiled from now on."""
        owner = next(each for each in cls.__mro__ if "__init__" in each.__dict__)
        late_init = owner.__dict__["__init__"]
        compiled = getattr(late_init, "compiled", None)
        if compiled is None:
            return late_init  # another thread was quicker
        init = compiled()["__init__"]
        for name in ("__annotations__", "__doc__", "__module__", "__qualname__"):
            setattr(init, name, getattr(late_init, name))
        owner.__init__ = init
        return init

    class _Signature:
        """The signature of a class, which its `__init__` has; objects have none of it."""

        def __get__(self, instance, cls):
            if instance is not None:
                raise AttributeError("__signature__")
            from inspect import signature

            init_signature = signature(_init_of(cls))
            _, *parameters = init_signature.parameters.values()
            return init_signature.replace(parameters=parameters)

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
