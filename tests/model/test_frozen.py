"""Our frozen classes keep what attrs promises of its own: the same words, the same equality."""

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from hetero.model.frozen import frozen


def classes(decorator: Callable[..., Any]) -> tuple[type[Any], type[Any], type[Any]]:
    @decorator
    class Nothing:
        pass

    @decorator(kw_only=True)
    class Some:
        name: str
        sizes: tuple[int, ...] = ()
        secret: str = attrs.field(default="s", repr=False)

    @decorator
    class Other:
        name: str
        sizes: tuple[int, ...] = ()
        secret: str = "s"

    return Nothing, Some, Other


def test_a_value_says_what_it_would_say_of_itself_with_attrs() -> None:
    for fast_class, attrs_class in zip(classes(frozen), classes(attrs.frozen), strict=True):
        given = {} if fast_class.__name__ == "Nothing" else {"name": "a'b", "sizes": (1, 2)}

        assert repr(attrs_class(**given)) == repr(fast_class(**given))


def test_a_value_that_holds_itself_can_be_shown() -> None:
    _, _, other = classes(frozen)
    sizes: list[object] = []
    value = other("a", sizes)
    sizes.append(value)

    assert "Other(name='a', sizes=[...], secret='s')" == repr(value)


def test_values_are_equal_when_they_are_of_one_class_and_say_the_same() -> None:
    nothing, some, other = classes(frozen)

    assert some(name="a") == some(name="a")
    assert hash(some(name="a")) == hash(some(name="a"))
    assert some(name="a") != some(name="b")
    assert some(name="a") != some(name="a", secret="other")
    assert some(name="a") != other(name="a")
    assert nothing() == nothing()
    assert nothing() != some(name="a")
    assert 3 == len({some(name="a"), some(name="a"), other(name="a"), nothing()})


def test_a_value_cannot_be_changed_but_evolved() -> None:
    _, some, _ = classes(frozen)
    value = some(name="a")

    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        value.name = "b"
    assert some(name="b") == attrs.evolve(value, name="b")
    assert not hasattr(value, "__dict__")
