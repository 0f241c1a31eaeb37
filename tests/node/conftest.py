"""A node of in-memory devices with a ledger of its own, and processes that hold grants of it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from attrs import frozen

from hetero.errors import HeteroError
from hetero.model import CORE, MEMORY, SLOTS, Ask, Request
from hetero.node.ledger import Hold, Ledger
from hetero.node.node import Node
from hetero.registry import Registry
from hetero.testing import MemoryVendor, rack
from hetero.units import GiB

MakeNode = Callable[..., Node]


def request(*, memory: int | None = None, core: int | None = None, count: int = 1) -> Request:
    return Request(asks=(Ask(memory=memory, core=core),) * count)


def admit(node: Node, wish: Request) -> Hold:
    """Take what the request asks; it stands until `let_go`, or the end of this process."""
    hold, _ = node.admit(wish, command=["test"])
    return hold


def let_go(hold: Hold) -> None:
    os.close(hold.descriptor)


def standing(node: Node) -> list[str]:
    return [entry.id for entry in node.look().standing]


def taken(node: Node, device: str) -> tuple[int, int, int]:
    """Return the memory, core and slots that stand on a device."""
    takes = [
        grant.takes
        for entry in node.look().standing
        for grant in entry.allocation.grants
        if grant.device == device
    ]
    memory, core, slots = (sum(t[name] for t in takes) for name in (MEMORY, CORE, SLOTS))
    return memory, core, slots


def killed_after(lines: int, action: Callable[[], object], within: str = "/hetero/node/") -> bool:
    """Run the action in a child that kills itself on its `lines`th line in the code `within`.

    Return False when the action ended before that.
    """
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        assert status in (0, signal.SIGKILL)
        return status != 0
    left = lines

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if within not in frame.f_code.co_filename:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(None)
        os._exit(0)


@frozen
class Process:
    """A process that holds a grant, until it is killed or told to end."""

    pid: int
    grant: str

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


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

    def start(node: Node, wish: Request) -> Process:
        readable, writable = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(readable)
            try:
                answer = admit(node, wish).standing.id
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
