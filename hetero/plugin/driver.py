"""Opens a vendor's driver library lazily, and turns each failure into one clear line.

Most discoveries are a dozen calls into a C library through ctypes. This module has the parts that
they would otherwise repeat. It finds the library and tells "not installed" from "broken". It treats
a function that an older driver lacks as "no answer". It names the call, the card and the code of a
failure.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from attrs import field

from hetero.model.errors import DriverAbsent
from hetero.model.frozen import frozen

#: Handles are pointers; printing one in an error says nothing.
_LARGEST_SHOWN = 2**31


class DriverError(Exception):
    """A driver library failed: the message has the call and its arguments, `code` the code."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


@frozen(kw_only=True)
class Driver:
    """A driver library as declared: nothing is opened before `open`.

    `names` are tried in order. `start` is the function to call first, if any, with `flags`. Error
    codes have these meanings. `absent`: the library is there, and the driver or any card is not.
    `unsupported`: this card or this version has no answer. `in_use`: a program still uses what was
    to be destroyed. `explain` names the library's function from a code to a text; `meanings` is for
    libraries without one.

    Some structs begin with the `version` of the interface that they are laid out for. `versions`
    are those of our structs, newest first, and `other_version` is the code that refuses one.
    """

    names: tuple[str, ...]
    start: str | None = None
    flags: tuple[int, ...] = ()
    absent: Collection[int] = ()
    unsupported: Collection[int] = ()
    in_use: Collection[int] = ()
    versions: tuple[int, ...] = ()
    other_version: int | None = None
    explain: str | None = None
    meanings: Mapping[int, str] = field(factory=dict)

    def open(self) -> Library:
        """Return the library, started. Raises `DriverAbsent` where no name is found."""
        for library_name in self.names:
            try:
                library = Library(ctypes.CDLL(library_name), library_name, self)
            except OSError as error:
                if "cannot open shared object" not in str(error) or f"{library_name}:" not in str(
                    error
                ):
                    raise DriverError(f"{library_name} cannot be loaded: {error}") from None
                continue
            try:
                if self.start is not None:
                    library.call(self.start, *self.flags)
            except DriverError as error:
                if error.code in self.absent:
                    raise DriverAbsent(
                        f"{error} (is the driver loaded? is there a card?)"
                    ) from None
                raise
            return library
        raise DriverAbsent(
            f"{self.names[0]} not found (is the driver installed, or mounted into this container?)"
        )


@frozen
class Library:
    """An opened driver library whose functions return 0 or an error code."""

    handle: ctypes.CDLL
    name: str
    driver: Driver

    def has(self, function: str) -> bool:
        """Whether this version of the library exports `function`."""
        return hasattr(self.handle, function)

    def call(self, function: str, *arguments: Any) -> None:
        """Call `function`. Numbers and bytes are passed by value, a ctypes object by reference.

        Raises `DriverError` where the function is missing or returns a code other than 0.
        """
        try:
            function_pointer = getattr(self.handle, function)
        except AttributeError:
            raise DriverError(
                f"{self.name} has no {function}: the driver is older than this vendor supports"
            ) from None
        return_code = self._answer(function_pointer, arguments)
        if return_code == 0:
            return
        if self.driver.versions and return_code == self.driver.other_version:
            raise DriverError(
                f"{self.name} speaks none of the interface versions {self.driver.versions}",
                return_code,
            )
        shown_arguments = ", ".join(
            str(argument)
            for argument in arguments
            if isinstance(argument, int) and abs(argument) < _LARGEST_SHOWN
        )
        raise DriverError(
            f"{function}({shown_arguments}): error {return_code}{self._meaning(return_code)}",
            return_code,
        )

    def get(self, function: str, *arguments: Any) -> Any:
        """Call `function` and return its output: the argument that is a ctypes type.

        `get("zephyr_busy", index, c_uint)` is a number. An array of characters is returned as
        bytes. A callable that makes a ctypes object may stand for a type. Raises `DriverError` as
        `call`.
        """
        passed_arguments = [
            argument() if callable(argument) else argument for argument in arguments
        ]
        self.call(function, *passed_arguments)
        filled_argument = next(
            passed
            for passed, declared in zip(passed_arguments, arguments, strict=True)
            if callable(declared)
        )
        return getattr(filled_argument, "value", filled_argument)

    def find(self, function: str, *arguments: Any) -> Any:
        """Return the result of `get`, or None where the library has no answer.

        That is where this version has no such function, or the code is one of `unsupported`.
        """
        if not self.has(function):
            return None
        try:
            return self.get(function, *arguments)
        except DriverError as error:
            if error.code in self.driver.unsupported:
                return None
            raise

    def destroy(self, function: str, *arguments: Any) -> bool:
        """Call a function that destroys a slice. Return False where a program still uses it."""
        try:
            self.call(function, *arguments)
        except DriverError as error:
            if error.code in self.driver.in_use:
                return False
            raise
        return True

    def value(self, function: str, *arguments: Any, kind: Any) -> Any:
        """Call a function that returns a value of the ctypes type `kind`, and no error code."""
        function_pointer = self.handle[
            function
        ]  # a fresh object each time: its result type is ours to set
        function_pointer.restype = kind
        return function_pointer(*map(_passed, arguments))

    def _answer(self, function_pointer: Any, arguments: tuple[Any, ...]) -> Any:
        """Call a function with the newest struct version that both sides support."""
        structs = [struct for argument in arguments for struct in _structs(argument)]
        return_code = None
        for version in self.driver.versions or (None,):
            for struct in structs if version else ():
                struct.version = version
            return_code = function_pointer(*map(_passed, arguments))
            if return_code != self.driver.other_version:
                break
        return return_code

    def _meaning(self, return_code: int) -> str:
        explain_function, meaning = self.driver.explain, self.driver.meanings.get(return_code)
        if meaning is None and explain_function is not None and self.has(explain_function):
            explanation = self.value(explain_function, return_code, kind=ctypes.c_char_p)
            meaning = explanation.decode(errors="replace") if explanation else None
        return f" ({meaning})" if meaning else ""


def _structs(argument: Any) -> Iterator[Any]:
    """Yield the structs in an argument that have a version."""
    for element in argument if isinstance(argument, ctypes.Array) else (argument,):
        if isinstance(element, ctypes.Structure) and hasattr(element, "version"):
            yield element


def _passed(argument: Any) -> Any:
    if isinstance(argument, int):
        return ctypes.c_long(argument)  # as wide as a register, so that handles pass whole
    if isinstance(argument, (bytes, type(None))):
        return argument
    return ctypes.byref(argument)


_TYPES: dict[str, Any] = {
    "char": ctypes.c_char,
    "u8": ctypes.c_uint8,
    "u16": ctypes.c_uint16,
    "i32": ctypes.c_int32,
    "u32": ctypes.c_uint32,
    "i64": ctypes.c_int64,
    "u64": ctypes.c_uint64,
    "long": ctypes.c_long,
}


def struct(name: str, fields: str) -> Any:
    """Declare a C struct: `struct("pcie", "i32 domain; u32 bus device; char slot[16]")`.

    Returns a ctypes type with the layout of this machine's C compiler.
    """
    declared: list[tuple[str, Any]] = []
    for group in fields.split(";"):
        type_name, *declarators = group.split()
        for declarator in declarators:
            field_name, _, length = declarator.rstrip("]").partition("[")
            declared.append(
                (field_name, _TYPES[type_name] * int(length) if length else _TYPES[type_name])
            )
    return type(name, (ctypes.Structure,), {"_fields_": declared})


def text(buffer: Any) -> str | None:
    """Return the text in a C character array, None when it is empty. Raises `DriverError`."""
    content = bytes(buffer or b"").split(b"\0", 1)[0].strip()
    if not content.isascii() or not content.decode("ascii").isprintable():
        raise DriverError(f"the driver gave {content!r} where a text was due")
    return content.decode("ascii") or None
