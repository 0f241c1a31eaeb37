"""A vendor's own binding asked through `hetero.Binding`: an answer, None, or one clear line."""

from collections.abc import Callable

import pytest

from hetero.plugin import Binding, DriverAbsent, DriverError

ABSENT, UNSUPPORTED, LOST = 1, 2, 3


class ZephyrError(Exception):
    """As bindings have it: a text, and the library's code as `value`."""

    def __init__(self, value: int) -> None:
        super().__init__(("", "No Driver", "Not Supported", "Card Is Lost")[value])
        self.value = value


def zephyrBusy(answer: object) -> object:  # noqa: N802 - as libraries name their calls
    if isinstance(answer, Exception):
        raise answer
    return answer


def binding(start: Callable[[], object] = lambda: None, stops: list[str] | None = None) -> Binding:
    return Binding(
        library="libzephyr.so",
        start=start,
        stop=lambda: (stops if stops is not None else []).append("stopped"),
        error=ZephyrError,
        absent=(ABSENT,),
        unsupported=(UNSUPPORTED,),
        hint="see `zephyr-smi`",
    )


def failing(error: Exception) -> Callable[[], object]:
    def start() -> object:
        raise error

    return start


def test_an_answer_is_given_as_it_is() -> None:
    assert 40 == binding().get(zephyrBusy, 40) == binding().find(zephyrBusy, 40)


def test_what_is_not_supported_is_none_where_it_may_be() -> None:
    assert binding().find(zephyrBusy, ZephyrError(UNSUPPORTED)) is None
    with pytest.raises(DriverError, match="Not Supported"):
        binding().get(zephyrBusy, ZephyrError(UNSUPPORTED))


def test_a_failure_names_the_call_its_code_and_where_to_look() -> None:
    with pytest.raises(DriverError) as error:
        binding().find(zephyrBusy, ZephyrError(LOST))

    assert "zephyrBusy: error 3 (Card Is Lost; see `zephyr-smi`)" == str(error.value)
    assert LOST == error.value.code


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ZephyrError(ABSENT), "No Driver"),
        (OSError("libzephyr.so: cannot open\nand more"), "libzephyr.so: cannot open"),
    ],
    ids=["no driver", "no library"],
)
def test_no_library_and_no_driver_are_absent(error: Exception, reason: str) -> None:
    with pytest.raises(DriverAbsent) as absent, binding(failing(error)).open():
        pass

    assert reason in str(absent.value)
    assert "\n" not in str(absent.value)


def test_a_library_that_does_not_start_is_broken() -> None:
    with (
        pytest.raises(DriverError, match="Card Is Lost"),
        binding(failing(ZephyrError(LOST))).open(),
    ):
        pass


def test_what_was_started_is_stopped_even_when_asking_fails() -> None:
    stops: list[str] = []
    asked = binding(stops=stops)
    with pytest.raises(DriverError), asked.open():
        asked.get(zephyrBusy, ZephyrError(LOST))

    assert ["stopped"] == stops
