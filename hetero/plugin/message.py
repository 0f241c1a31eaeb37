"""What is asked of a vendor's process and what it answers, as JSON with a length before it."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cache
from typing import TypeVar

from hetero.model import Allocation, Device, Edits, Usage, codec
from hetero.model.frozen import frozen
from hetero.plugin.vendor import Vendor

#: A message is this length and then as many bytes of JSON.
LENGTH = struct.Struct("!I")
#: The most bytes of a message; 64 cards with a link to each other take 0.3 MiB.
MOST = 4 << 20

T = TypeVar("T")


class Failure(Exception):
    """A vendor did not answer as it should; carries the sentence for its row."""


@frozen(kw_only=True)
class Question:
    """One hook's call: `ask` is its name without `hetero_`, `within` the seconds it may take.

    The other fields are the hook's arguments.
    """

    ask: str
    within: float
    device: Device | None = None
    devices: tuple[Device, ...] = ()
    allocation: Allocation | None = None
    parts: tuple[str, ...] = ()
    directory: str = ""
    container: bool = False


@frozen(kw_only=True)
class Answer:
    """What a hook gave, or why it gave nothing (`failure`, one sentence).

    `absent`: the driver is not installed here. `loaded`: the vendor could be imported and says who
    it is; then `vendor` comes with a process's first answer, without models and resource names
    unless it was asked for, `cuts` says whether its grants may have slices that outlive their
    processes, and `watches` whether it tells of its devices' health. `faults` are of cards that
    could not be read.
    """

    failure: str | None = None
    absent: bool = False
    loaded: bool = True
    vendor: Vendor | None = None
    cuts: bool = False
    watches: bool = False
    devices: tuple[Device, ...] = ()
    faults: tuple[str, ...] = ()
    edits: Edits | None = None
    usage: Usage | None = None
    health: Mapping[str, str] | None = None


def is_last(question: Question, answer: Answer) -> bool:
    """Whether a process ends after an answer: only a vendor whose library is there keeps one."""
    return answer.absent or not answer.loaded or question.ask == "vendor"


def framed(message: Question | Answer) -> bytes:
    """Return a message as it goes through a pipe. Raises `ValueError` for one that is too long."""
    text = codec.dumps(message, indent=None).encode()
    if len(text) > MOST:
        raise ValueError(f"{len(text)} bytes, which is more than {MOST}")
    return LENGTH.pack(len(text)) + text


def read(text: bytes, cls: type[T], *, source: str) -> T:
    """Return the message in what came behind a length. Raises `BadInput`."""
    return codec.loads(text.decode(errors="replace"), cls, source=source)


@cache
def prepare() -> None:
    """Import and make here what reading takes, so that no fork of this process has to."""
    read(framed(Question(ask="vendor", within=0.0))[LENGTH.size :], Question, source="a question")
