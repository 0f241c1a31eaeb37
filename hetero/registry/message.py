"""The requests to a vendor's process and its replies, as JSON with two numbers in front."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import lru_cache
from typing import ClassVar, TypeVar

from attrs import field

from hetero.model import CORE, MEMORY, SLOTS, Allocation, Device, Edits, Usage, codec
from hetero.model.errors import BadInput
from hetero.model.frozen import frozen
from hetero.plugin.service import Service
from hetero.plugin.vendor import Vendor

#: A message is a length, the number of the request, and then as many bytes of JSON.
HEADER = struct.Struct("!II")
#: The most bytes of a message; 64 cards with a link to each other take 0.3 MiB.
MOST_MESSAGE_BYTES = 4 << 20
#: The most bytes of a message that is remembered for when it comes again.
_SHORT_MESSAGE_BYTES = 16 << 10
#: The most devices of one vendor on a machine; a card counts once, however many parts it has.
MOST_DEVICES = 256
#: The most characters of what a vendor says is wrong: it is one line of a table.
SHOWN_LENGTH = 400
#: The most bytes of a name that the grant file holds, and of a string that execve(2) passes on.
_NAME_BYTES, _STRING_BYTES = 63, 1 << 17
#: Names that are parts of paths, those of variables, and what is filled into paths of a container.
_WORD = r"[a-z0-9][a-z0-9_-]{0,62}"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]{0,254}"
_TEMPLATE = r"([^{}\0]|\{[A-Za-z_][A-Za-z0-9_-]*\}){1,4096}"
#: Variables that programs of other vendors need: a program that is given none of a vendor's devices
#: has the vendor's variables set to "no device".
_NOT_ITS_OWN = r"PATH|HOME|USER|SHELL|PWD|TERM|LANG|TMPDIR|(LC|LD|HETERO|PYTHON).*"
#: Above what 64 bits with a sign hold.
_INTEGER_LIMIT = 1 << 63

T = TypeVar("T")


class Serve(str, Enum):
    """The methods of a service's driver."""

    START = "start"
    LOOK = "look"
    END = "end"
    STOP = "stop"


class Failure(Exception):
    """A vendor did not answer as it should; carries the sentence for its row."""


@frozen(kw_only=True)
class WorkerRequest:
    """The call of one hook: `ask` is its name without `hetero_`, `within` the seconds it may take.

    The other fields are the hook's arguments, but for `links`: whether devices are to have theirs.
    `do` is a method of the service's driver, with
    `memory` or `process`.
    """

    #: Its name in errors.
    TITLE: ClassVar[str] = "Question"
    ask: str
    within_s: float
    device: Device | None = None
    devices: tuple[Device, ...] = ()
    allocation: Allocation | None = None
    parts: tuple[str, ...] = ()
    directory: str = ""
    container: bool = False
    do: Serve | None = None
    memory: int = 0
    process: int = 0
    faults: Mapping[str, str] = field(factory=dict)
    links: bool = True


@frozen(kw_only=True)
class WorkerReply:
    """What a hook returned, or why it returned nothing (`failure`, one sentence).

    `absent`: the driver is not installed here. `loaded`: the vendor could be imported and declared.
    Then `vendor` comes with a process's first reply, without models and resource names unless it
    was asked for. With it, `cuts` says whether its grants may have slices that outlive their
    processes, `serves` whether a service of its may share cards, and `watches` whether it reports
    its devices' health. `faults` are of cards that could not be read.
    """

    #: Its name in errors.
    TITLE: ClassVar[str] = "Answer"
    failure: str | None = None
    absent: bool = False
    loaded: bool = True
    vendor: Vendor | None = None
    cuts: bool = False
    serves: bool = False
    watches: bool = False
    devices: tuple[Device, ...] = ()
    faults: tuple[str, ...] = ()
    edits: Edits | None = None
    usage: Usage | None = None
    context: int | None = None
    service: Service | None = None
    health: Mapping[str, str | None] | None = None


def is_last(request: WorkerRequest, reply: WorkerReply) -> bool:
    """Whether a process ends after a reply.

    Only a vendor whose library is there keeps one, and none in which a context was made.
    """
    return reply.absent or not reply.loaded or request.ask in ("vendor", "measure")


def written(message: WorkerRequest | WorkerReply) -> bytes:
    """Return a message as text. Raises `ValueError` for one that is too long."""
    json_bytes = codec.dumps(message, indent=None).encode()
    if len(json_bytes) > MOST_MESSAGE_BYTES:
        raise ValueError(f"{len(json_bytes)} bytes, which is more than {MOST_MESSAGE_BYTES}")
    return json_bytes


def framed(json_bytes: bytes, request_number: int) -> bytes:
    """Return a message's text as it goes through a pipe."""
    return HEADER.pack(len(json_bytes), request_number) + json_bytes


def read(json_bytes: bytes, cls: type[T], *, source: str) -> T:
    """Return the message in what came behind a header. Raises `BadInput`."""
    if len(json_bytes) > _SHORT_MESSAGE_BYTES:
        return _read(json_bytes, cls, source)
    message: T = _read_again(json_bytes, cls, source)  # type: ignore[arg-type] # classes are hashable
    return message


def _read(json_bytes: bytes, cls: type[T], source: str) -> T:
    return codec.loads(json_bytes.decode(errors="replace"), cls, source=source)


@lru_cache(maxsize=32)
def _read_again(json_bytes: bytes, cls: type[T], source: str) -> T:
    """Return a message parsed earlier: idle devices give the same one each time."""
    return _read(json_bytes, cls, source)


def expect_sound(request: WorkerRequest, reply: WorkerReply) -> None:
    """Raise `BadInput` for what has the right types and can be no device, edit or figure."""
    if reply.vendor is not None:
        _expect_vendor(reply.vendor)
    if len(reply.devices) > MOST_DEVICES:
        raise BadInput(f"gave {len(reply.devices)} devices: {MOST_DEVICES} at most")
    for device in reply.devices:
        expect_sound_device(device)
    if reply.edits is not None:
        _expect_edits(reply.edits, {device.uuid for device in request.devices})
    if reply.service is not None:
        _expect_edits(reply.service.edits, ())
        if any(pid <= 0 for pid in (*reply.service.processes, *reply.service.clients)):
            raise BadInput("gave a process of its service that is none")
    if reply.usage is not None:
        usage = reply.usage
        per_process = (*(usage.processes or {}).values(), *(usage.busy or {}).values())
        for figure in (usage.memory, usage.core, usage.power, *per_process):
            if figure is not None and not 0 <= figure < _INTEGER_LIMIT:
                raise BadInput(f"gave {figure} where a figure of what is used was due")


def _expect_vendor(vendor: Vendor) -> None:
    for word in filter(None, (vendor.name, vendor.limiter, vendor.soft_limiter)):
        if not re.fullmatch(_WORD, word):
            raise BadInput(
                f"gave {word[:_NAME_BYTES]!r} as a name: lower case letters, digits, - and _"
            )
    runtime, container = vendor.runtime, vendor.container
    runtime_words = (*runtime.variables, *runtime.options, runtime.template)
    for variable_name in filter(None, (*vendor.visible, *runtime_words)):
        if not re.fullmatch(_VARIABLE, variable_name) or re.fullmatch(_NOT_ITS_OWN, variable_name):
            raise BadInput(
                f"gave {variable_name[:_NAME_BYTES]!r} as a variable that names its devices"
            )
    runtime_texts = filter(None, (runtime.mounts, runtime.name))
    for no_device_text in (*container.device_nodes, *container.files, *runtime_texts):
        if not re.fullmatch(_TEMPLATE, no_device_text):
            raise BadInput(
                f"gave {no_device_text[:_NAME_BYTES]!r} as a path: braces have names of attributes"
            )
    for no_device_text in runtime.none:
        if not _is_string(no_device_text):
            raise BadInput(f"gave {no_device_text[:_NAME_BYTES]!r} for no device")


def expect_sound_device(device: Device) -> None:
    """Raise `BadInput` for what has the right types and can be no device."""
    if not _is_name(device.uuid):
        raise BadInput(
            f"gave {device.uuid!r} as a UUID: at most {_NAME_BYTES} bytes, all printable"
        )
    missing_counters = {CORE, MEMORY, SLOTS} - device.capacity.keys()
    if missing_counters:
        raise BadInput(
            f"device {device.uuid}: no {' or '.join(sorted(missing_counters))} in its capacity"
        )
    for noun, amount in (*device.capacity.items(), ("index", device.index)):
        if not 0 <= amount < _INTEGER_LIMIT:
            raise BadInput(f"device {device.uuid}: {noun} {amount}")
    for noun, text in (("health", device.health), ("cordon", device.cordon)):
        if len(text or "") > SHOWN_LENGTH:
            raise BadInput(
                f"device {device.uuid}: its {noun} has more than {SHOWN_LENGTH} characters"
            )


def _expect_edits(edits: Edits, devices: Iterable[str]) -> None:
    for device, part_name in edits.parts.items():
        if device not in devices or not _is_name(part_name):
            raise BadInput(f"gave {part_name!r} as the name of a slice of {device!r}")
    mounted_paths = (path for mount in edits.mounts for path in (mount.source, mount.target))
    for edit_text in (
        *edits.env.values(),
        *edits.device_nodes,
        *edits.cdi,
        *edits.files,
        *mounted_paths,
    ):
        if not _is_string(edit_text):
            raise BadInput(f"gave {edit_text[:_NAME_BYTES]!r} in its edits")
    for variable in edits.env:
        if not variable or "=" in variable or not _is_string(variable):
            raise BadInput(f"gave {variable[:_NAME_BYTES]!r} as a variable")


def _is_name(tested_text: str) -> bool:
    return tested_text.isprintable() and 0 < len(tested_text.encode()) <= _NAME_BYTES


def _is_string(tested_text: str) -> bool:
    """Whether the kernel takes a text: without NUL, and no half of a character."""
    without_halves = tested_text.encode(errors="replace").decode() == tested_text
    return without_halves and "\0" not in tested_text and len(tested_text) < _STRING_BYTES
