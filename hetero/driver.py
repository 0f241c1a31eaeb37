"""Opens a vendor's own driver library, lazily, and turns what can go wrong into one clear line.

Most discoveries are a dozen calls into a C library through ctypes. What they would otherwise each
repeat is here: finding the library, telling "not installed" from "broken", treating a function an
older driver lacks as "not said", and naming the call, its card and its code when one fails.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from attrs import evolve, field

from hetero.errors import DriverAbsent
from hetero.model import Device, Link
from hetero.value import frozen

Place = TypeVar("Place")

#: Handles are pointers; printing one in an error says nothing.
_LARGEST_SHOWN = 2**31
_MOST_CARDS = 64


class DriverError(Exception):
    """A driver library failed: which call, about what, with which code."""

    def __init__(self, said: str, code: int | None = None) -> None:
        super().__init__(said)
        self.code = code


@frozen(kw_only=True)
class Driver:
    """A driver library as declared: nothing is opened before `open`.

    `names` are tried in order. `start` is the function to call first, if any, with `flags`;
    codes in `absent` are its way to say that the library is there and the driver or any card is
    not. Codes in `unsupported` mean that this card or this version cannot say. `explain` names
    the library's own function from a code to a text; `meanings` is for libraries without one.
    """

    names: tuple[str, ...]
    start: str | None = None
    flags: tuple[int, ...] = ()
    absent: Collection[int] = ()
    unsupported: Collection[int] = ()
    explain: str | None = None
    meanings: Mapping[int, str] = field(factory=dict)

    def open(self) -> Library:
        """Return the library, started. Raises `DriverAbsent` when none of the names is there."""
        for name in self.names:
            try:
                library = Library(ctypes.CDLL(name), name, self)
            except OSError as error:
                if "cannot open shared object" not in str(error) or f"{name}:" not in str(error):
                    raise DriverError(f"{name} cannot be loaded: {error}") from None
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
        """Call `function`. Numbers and bytes go in by value, a ctypes object by reference.

        Raises `DriverError` when the function is missing or returns a code other than 0.
        """
        try:
            entry = getattr(self.handle, function)
        except AttributeError:
            raise DriverError(
                f"{self.name} has no {function}: the driver is older than this vendor supports"
            ) from None
        code = entry(*map(_passed, arguments))
        if code == 0:
            return
        shown = ", ".join(
            str(a) for a in arguments if isinstance(a, int) and abs(a) < _LARGEST_SHOWN
        )
        raise DriverError(f"{function}({shown}): error {code}{self._meaning(code)}", code)

    def get(self, function: str, *arguments: Any) -> Any:
        """Call `function` and return what it fills in: the argument that is a ctypes type.

        `get("zephyr_busy", index, c_uint)` is a number, an array of characters comes as bytes.
        Anything that makes a ctypes object may stand for a type. Raises `DriverError` as `call`.
        """
        given = [argument() if callable(argument) else argument for argument in arguments]
        self.call(function, *given)
        filled = next(made for made, was in zip(given, arguments, strict=True) if callable(was))
        return getattr(filled, "value", filled)

    def find(self, function: str, *arguments: Any) -> Any:
        """Return what `get` would, or None where the library cannot say.

        That is when this version has no such function, or the code is one of `unsupported`.
        """
        if not self.has(function):
            return None
        try:
            return self.get(function, *arguments)
        except DriverError as error:
            if error.code in self.driver.unsupported:
                return None
            raise

    def value(self, function: str, *arguments: Any, kind: Any) -> Any:
        """Call a function whose result is not a code but the answer, of the ctypes type `kind`."""
        entry = self.handle[function]  # a fresh object each time: its result type is ours to set
        entry.restype = kind
        return entry(*map(_passed, arguments))

    def _meaning(self, code: int) -> str:
        explain, said = self.driver.explain, self.driver.meanings.get(code)
        if said is None and explain is not None and self.has(explain):
            text = self.value(explain, code, kind=ctypes.c_char_p)
            said = text.decode(errors="replace") if text else None
        return f" ({said})" if said else ""


def _passed(argument: Any) -> Any:
    if isinstance(argument, int):
        return ctypes.c_long(argument)  # as wide as a register, so that handles pass whole
    if isinstance(argument, (bytes, type(None))):
        return argument
    return ctypes.byref(argument)


def counted(cards: int) -> range:
    """Return the indices of as many cards. Raises `DriverError` for more than any machine holds."""
    if not 0 <= cards <= _MOST_CARDS:
        raise DriverError(f"the driver counts {cards} cards")
    return range(cards)


def each_card(
    read: Callable[[Place], Device], places: Iterable[Place]
) -> Iterator[Device | DriverError]:
    """Read every card on its own: one that cannot be read costs that card, not its neighbours.

    What is yielded is what `hetero_discover` returns.
    """
    for place in places:
        try:
            yield read(place)
        except (DriverError, LookupError, ValueError) as error:
            yield DriverError(f"card {place}: {error}")


#: What two cards share on the way over PCIe, nearest first; the nearer, the heavier.
PCIE = {"board": 6, "PIX": 5, "PXB": 4, "PHB": 3, "NODE": 2, "SYS": 1}


def linked(
    cards: Iterable[Device | DriverError],
    between: Callable[[Device, Device], str | None],
    faster: Mapping[str, int] | None = None,
) -> Iterator[Device | DriverError]:
    """Give every card its links to the others: `between` names the way from one to another.

    Ways weigh what `PCIE` says, and the vendor's own `faster` ones what is given; a way of no known
    name is none.
    """
    weights = {**PCIE, **(faster or {})}
    found = list(cards)
    devices = [card for card in found if isinstance(card, Device)]
    for card in found:
        if not isinstance(card, Device):
            yield card
            continue
        links: list[Link] = []
        for other in devices:
            if other is card:
                continue
            try:
                way = between(card, other)
            except DriverError as error:
                yield DriverError(f"links of card {card.index}: {error}")
                break
            if way in weights:
                links.append(Link(other.uuid, way, weights[way]))
        yield evolve(card, links=tuple(links))


def mark(directory: Path) -> str:
    """Return what the names of slices begin with that the ledger owning `directory` answers for.

    Two ledgers of one machine, root's and a user's, must not take each other's slices for orphans.
    """
    import hashlib  # loads a library of cryptography; most starts do without

    return f"hetero-{hashlib.sha256(bytes(directory)).hexdigest()[:6]}-"


def note(path: Path, text: str = "") -> None:
    """Write a vendor's note about a slice: all of it or nothing, whenever we are killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}")
    draft.write_text(text)
    draft.replace(path)


def pci_address(domain: int, bus: int, device: int, function: int = 0) -> str:
    """Return a PCI address as every vendor's device shows it: `0000:18:00.0`."""
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


#: Where the kernel says what it knows of each PCI device.
PCI_DEVICES = Path("/sys/bus/pci/devices")


def numa_of(pci: str | None) -> int | None:
    """Return the NUMA node of the card at a PCI address, for drivers that do not say."""
    try:
        node = int((PCI_DEVICES / (pci or "") / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return None if node < 0 else node


def first_node(mask: int) -> int | None:
    """Return the first NUMA node in a set of bits, as most drivers give it; None for no node."""
    return (mask & -mask).bit_length() - 1 if mask else None


def drm_of(pci: str | None) -> dict[str, str]:
    """Return the attributes `card` and `render` of the card at a PCI address.

    They are the nodes that the kernel's graphics subsystem made for it, as far as it did.
    """
    found = {
        name: next((PCI_DEVICES / (pci or "") / "drm").glob(pattern), None)
        for name, pattern in (("card", "card*"), ("render", "renderD*"))
    }
    return {name: f"/dev/dri/{node.name}" for name, node in found.items() if node}


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

    What is returned is a ctypes type, laid out as the compiler of this machine would.
    """
    declared: list[tuple[str, Any]] = []
    for group in fields.split(";"):
        kind, *names = group.split()
        for field_name in names:
            bare, _, count = field_name.rstrip("]").partition("[")
            declared.append((bare, _TYPES[kind] * int(count) if count else _TYPES[kind]))
    return type(name, (ctypes.Structure,), {"_fields_": declared})


def text(buffer: Any) -> str | None:
    """Return the text in a C character array, None when it is empty. Raises `DriverError`."""
    said = bytes(buffer or b"").split(b"\0", 1)[0].strip()
    if not said.isascii() or not said.decode("ascii").isprintable():
        raise DriverError(f"the driver gave {said!r} where a text was due")
    return said.decode("ascii") or None
