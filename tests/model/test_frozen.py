"""Our frozen classes keep what attrs promises of its own: the same words, the same equality."""

import inspect
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from hetero.model import frozen as frozen_module
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


def test_an_init_is_compiled_when_the_first_value_is_made_or_its_signature_asked_for() -> None:
    for late_class, attrs_class in zip(classes(frozen), classes(attrs.frozen), strict=True):
        late = late_class.__init__
        assert inspect.signature(attrs_class) == inspect.signature(late_class)
        assert late is not late_class.__init__

    _, some, other = classes(frozen)
    late = other.__init__
    assert ("a", (1,), "s") == attrs.astuple(other("a", sizes=(1,)))
    assert late is not other.__init__
    assert "Other.__init__" in other.__init__.__qualname__
    with pytest.raises(TypeError, match=r"Some.__init__\(\) missing 1 required keyword-only"):
        some()


def test_an_init_of_a_class_below_calls_what_follows_it() -> None:
    made: list[object] = []

    @frozen
    class Above:
        name: str

        def __attrs_post_init__(self) -> None:
            made.append(self)

    @frozen
    class Below(Above):
        size: int = 2

    late: Any = frozen  # mypy knows attrs' own

    @late
    class Own:
        size: int

        def __init__(self, text: str) -> None:
            self.__attrs_init__(len(text))  # type: ignore[attr-defined]

    @late
    class Inheriting(Own):
        def __init__(self) -> None:
            super().__init__("four")

    values = [Below("a", 3), Above("b"), Below("c")]

    assert values == made
    assert [("a", 3), ("b",), ("c", 2)] == [attrs.astuple(value) for value in values]
    assert (3, 4) == (Own("abc").size, Inheriting().size)


def test_with_an_attrs_that_compiles_otherwise_a_class_is_made_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frozen_module, "_compiled", None)
    _, some, _ = classes(frozen)

    assert "name" in inspect.getfullargspec(some.__init__).kwonlyargs
    assert some(name="a") == some(name="a")
