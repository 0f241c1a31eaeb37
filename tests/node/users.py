"""A machine with heterod and several users, each in a process of its own."""

import ctypes
import gc
import os
import pickle
import signal
import subprocess
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import define, evolve, field, frozen

from hetero.model import Request
from hetero.model.units import GiB
from hetero.node.daemon.server import serve
from hetero.node.daemon_client import SOCKET
from hetero.node.grants import admit_program, grants_of
from hetero.node.ledger.ledger import Ledger
from hetero.node.node import Node
from hetero.node.settings import NodeSettings
from hetero.registry.registry import Registry
from hetero.testing import MemoryVendor, rack

ROOT, ALICE, BOB = 0, 64001, 64002
#: prctl(2)
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4


def become(uid: int) -> None:
    """Have this process be a user's, with nothing left of root's."""
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        # What execve does for a program that a user starts: its /proc entry is the user's.
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a test that was killed leaves none


def forked(action: Callable[[], object]) -> int:
    """Run the action in a child; return its PID."""
    pid = os.fork()
    if pid == 0:
        gc.disable()
        become(ROOT)
        code = 1
        try:
            action()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


@frozen
class Held:
    """A process of a user's that holds a grant until it ends."""

    pid: int
    grant: str

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@define
class Machine:
    """One card of 16 GiB, a ledger of root's, and heterod."""

    path: Path
    settings: NodeSettings = field(factory=NodeSettings)
    vendor: type[MemoryVendor] = MemoryVendor
    daemon: int | None = None
    _children: list[int] = field(factory=list)

    @property
    def state(self) -> Path:
        return self.path / "state"

    def node(self) -> Node:
        """Return the node as the calling user meets it."""
        vendor = self.vendor(rack(16 * GiB), limiter="cuda")
        if os.geteuid() == 0:
            return Node(
                registry=Registry.of(vendor), ledger=Ledger(self.state), settings=self.settings
            )
        node = Node.here({"HETERO_STATE": str(self.state)})
        return evolve(node, registry=Registry.of(vendor), settings=self.settings)

    def start(self) -> None:
        """Start heterod, and return when it serves."""
        readable, writable = os.pipe()

        def daemon() -> None:
            os.close(readable)
            serve(self.node(), ready=lambda _: os.close(writable), tell=print)

        self.daemon = forked(daemon)
        os.close(writable)
        os.read(readable, 1)
        os.close(readable)
        assert (self.state / SOCKET).is_socket()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End heterod; return how it ended."""
        assert self.daemon is not None
        os.kill(self.daemon, number)
        _, status = os.waitpid(self.daemon, 0)
        self.daemon = None
        return status

    def said_by(self, uid: int, action: Callable[[Node], Any]) -> Any:
        """Have a user's process do it; return what it returned, or raise what it raised."""
        return self.begin(uid, action)()

    def begin(self, uid: int, action: Callable[[Node], Any]) -> Callable[[], Any]:
        """Have a user's process begin it; what is returned waits for what `said_by` returns."""
        readable, writable = os.pipe()

        def child() -> None:
            os.close(readable)
            become(uid)
            try:
                answer: Any = action(self.node())
            except Exception as error:
                answer = error
            with os.fdopen(writable, "wb") as pipe:
                pickle.dump(answer, pipe)

        pid = forked(child)
        os.close(writable)

        def wait() -> Any:
            with os.fdopen(readable, "rb") as pipe:
                pickled = pipe.read()
            assert 0 == os.waitpid(pid, 0)[1]
            answer = pickle.loads(pickled)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return wait

    def hold(self, uid: int, asked: Request, label: str | None = None) -> Held:
        """Have a user's process hold a grant."""
        readable, writable = os.pipe()

        def child() -> None:
            os.close(readable)
            become(uid)
            try:
                handle, _ = admit_program(
                    grants_of(self.node()), asked, command=["test"], label=label
                )
                answer: object = handle.grant.id
            except Exception as error:
                answer = error
            with os.fdopen(writable, "wb") as pipe:
                pickle.dump(answer, pipe)
            while True:
                signal.pause()

        pid = forked(child)
        self._children.append(pid)
        os.close(writable)
        with os.fdopen(readable, "rb") as pipe:
            answer = pickle.loads(pipe.read())
        if isinstance(answer, Exception):
            raise answer
        return Held(pid, answer)

    def close(self) -> None:
        for pid in self._children:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                continue
        if self.daemon is not None:
            self.stop(signal.SIGKILL)
        unmount_all(self.state)


def unmount_all(state: Path) -> None:
    """Undo what heterod mounted in its state directory, which stays when it ends."""
    if (state / "boards").exists():  # else heterod did not start
        subprocess.run(["umount", "--lazy", str(state / "boards")], check=False)


def plain(node: Node) -> Node:
    """Return the node with a vendor that needs no limiter, which a test's tree need not have."""
    return evolve(node, registry=Registry.of(MemoryVendor(rack(16 * GiB))))


def until(true: Callable[[], object], *, within: float = 60) -> bool:
    deadline = time.monotonic() + within
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def grants(node: Node) -> dict[str, str]:
    return {entry.id: entry.user for entry in node.snapshot().grants}
