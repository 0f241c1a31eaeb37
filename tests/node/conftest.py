"""A node of in-memory devices with a ledger of its own, and processes that hold grants of it."""

import gc
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest
from attrs import frozen

from hetero.model import CORE, MEMORY, SLOTS, Ask, Request
from hetero.model.errors import HeteroError
from hetero.model.units import GiB
from hetero.node.grants import admit_program, grants_of
from hetero.node.ledger.ledger import Grant, GrantHandle, Ledger
from hetero.node.node import Node
from hetero.registry.registry import Registry
from hetero.testing import MemoryVendor, rack

from .users import Machine

MakeNode = Callable[..., Node]


def request(*, memory: int | None = None, core: int | None = None, count: int = 1) -> Request:
    return Request(asks=(Ask(memory=memory, core=core),) * count)


def admit(node: Node, asked: Request) -> GrantHandle:
    """Take what the request asks; it stands until `unpin`, or the end of this process."""
    handle, _ = admit_program(grants_of(node), asked, command=["test"])
    return handle


def drop(handle: GrantHandle) -> None:
    os.close(handle.descriptor)


def standing(node: Node) -> list[str]:
    return [entry.id for entry in node.snapshot().grants]


def taken(node: Node, device: str) -> tuple[int, int, int]:
    """Return the memory, core and slots that stand on a device."""
    return taken_of(node.snapshot().grants, device)


def taken_of(entries: Iterable[Grant], device: str) -> tuple[int, int, int]:
    """Return the memory, core and slots that these entries take of a device."""
    takes = [
        grant.takes
        for entry in entries
        for grant in entry.allocation.pieces
        if grant.device == device
    ]
    memory, core, slots = (sum(t[name] for t in takes) for name in (MEMORY, CORE, SLOTS))
    return memory, core, slots


#: What code asks the system with; the calls that only look, so that a kill between them is none.
_SYSTEM = {"posix", "_io", "fcntl", "mmap", "ctypes"}
_LOOKS = {
    *("access", "fspath", "fstat", "getpid", "geteuid", "getuid", "is_dir", "listdir", "lstat"),
    *("_path_normpath", "read", "readall", "readlink", "scandir", "stat", "urandom"),
}


def killed_at(step: int, action: Callable[[], object]) -> bool:
    """Run the action in a child that kills itself before its `step`th change to the machine.

    A step is a call into the system that may change what others see: between two of them it is the
    same whichever line the kill comes at. Return False when the action ended before that.
    """
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        assert status in (0, signal.SIGKILL)
        return status != 0
    left, runner = step, os.getpid()
    gc.disable()  # what a finalizer of an earlier test's object calls is no step of the action

    def watch(frame: FrameType, event: str, function: Any) -> None:
        nonlocal left
        if event != "c_call" or frame.f_code.co_filename.startswith("<frozen importlib"):
            return
        if os.getpid() != runner:
            return  # a vendor's process: without it the action would be refused, and end early
        owner = function.__self__
        kind = owner if isinstance(owner, type) else type(owner)
        module = owner.__name__ if isinstance(owner, ModuleType) else kind.__module__
        if module in _SYSTEM and function.__name__ not in _LOOKS:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(watch)
    try:
        action()
        ended = 0
    except HeteroError:
        ended = 0  # refused, which is an end like another
    except BaseException:
        ended = 1
        traceback.print_exc()
    sys.setprofile(None)
    os._exit(ended)


@frozen
class Process:
    """A process that holds a grant, until it is killed or told to end."""

    pid: int
    grant: str

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def holding(directory: Path) -> list[int]:
    """Return this process' descriptors that keep grants below a directory standing."""
    return [
        int(link.name)
        for link in Path("/proc/self/fd").iterdir()
        if link.is_symlink() and fnmatch(os.readlink(link), f"{directory}/*alive*")
    ]


@pytest.fixture(autouse=True)
def _grants_that_end_with_their_test(tmp_path: Path) -> Iterator[None]:
    yield
    for descriptor in holding(tmp_path):
        os.close(descriptor)


@pytest.fixture
def make_node(tmp_path: Path) -> MakeNode:
    def make(
        *memory: int, name: str = "state", slots: int = 10, limiter: str | None = None
    ) -> Node:
        vendor = MemoryVendor(rack(*(memory or (16 * GiB,)), slots=slots), limiter=limiter)
        return Node(registry=Registry.of(vendor), ledger=Ledger(tmp_path / name))

    return make


@pytest.fixture
def spawn() -> Iterator[Callable[[Node, Request], Process]]:
    """Admit requests in processes of their own; those still alive are killed at the end."""
    alive: list[int] = []

    def start(node: Node, asked: Request) -> Process:
        readable, writable = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(readable)
            try:
                answer = admit(node, asked).grant.id
            except HeteroError as error:
                answer = f"error: {error}"
            os.write(writable, answer.encode())
            os.close(writable)
            while True:
                signal.pause()
        alive.append(pid)
        os.close(writable)
        with os.fdopen(readable) as pipe:
            answer = pipe.read()
        assert not answer.startswith("error"), answer
        return Process(pid, answer)

    yield start
    for pid in alive:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            continue


@pytest.fixture
def stopped() -> Iterator[Machine]:
    """A machine whose heterod was not started."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    path.chmod(0o755)
    machine = Machine(path)
    yield machine
    machine.close()
    shutil.rmtree(path)


@pytest.fixture
def machine(stopped: Machine) -> Machine:
    stopped.start()
    return stopped
