"""One vendor's process: how it is started, asked with a deadline, and ended.

What a vendor's C library does to its process (a crash, an exit, closed descriptors, text on the
standard output) stays in it. docs/decisions/vendor-process.md says why it is made as it is.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import resource
import select
import signal
import sys
import time
import weakref
from contextlib import suppress
from typing import NoReturn, Protocol

from hetero.model.errors import BadInput
from hetero.registry.message import (
    HEADER,
    MOST,
    WorkerReply,
    WorkerRequest,
    framed,
    is_last,
    prepare,
    read,
    written,
)
from hetero.registry.respondent import Plugin, Respondent

#: Seconds after which a process that was killed is waited for no longer: it is in the kernel.
PATIENCE = 1.0
#: Bytes of private memory, far above what a management library takes (tens of MiB).
_MEMORY = 1 << 30
#: Descriptors below may be the standard streams, or any that a program closed before it started us.
_CLEAR = 10
#: prctl(2): the signal that a process gets when its parent ends.
_PR_SET_PDEATHSIG = 1


class Overdue(Exception):
    """There was no answer in time."""


class WorkerEnded(Exception):
    """The process ended, or closed its pipe."""


class Starter(Protocol):
    """What starts processes, and buries those that ended."""

    def start(self, plugin: Plugin, questions: int, answers: int) -> int:
        """Start a process that answers what it reads; return its PID. Raises `Failure`."""

    def reap(self, pid: int) -> int | None:
        """Return the wait status of a process that ended; None: not known, or it runs."""


class Forks:
    """Starts processes by forking this one, which must have a single thread."""

    def start(self, plugin: Plugin, questions: int, answers: int) -> int:
        """Start a process that answers what it reads; return its PID."""
        prepare()  # else half of what the process computes is an import that all of them share
        pid = os.fork()
        if pid == 0:
            become(plugin, questions, answers)
        return pid

    def reap(self, pid: int) -> int | None:
        """Return the wait status of a process that ended; None: not known, or it runs."""
        with suppress(ChildProcessError):  # whoever started us may have SIGCHLD ignored
            ended, status = os.waitpid(pid, os.WNOHANG)
            return status if ended else None
        return None


class VendorProcess:
    """A process that was started for a vendor. It ends with this object, at the latest."""

    def __init__(self, plugin: Plugin, starter: Starter) -> None:
        asked, self._questions = os.pipe()
        self._answers, answer_end = os.pipe()
        try:
            self.pid = starter.start(plugin, asked, answer_end)
        except BaseException:
            os.close(self._questions)
            os.close(self._answers)
            raise
        finally:
            os.close(asked)
            os.close(answer_end)
        os.set_blocking(self._questions, False)
        self._pidfd = None
        with suppress(OSError):  # Linux before 5.3
            self._pidfd = os.pidfd_open(self.pid)
        self._starter, self._maker = starter, os.getpid()
        self._asked = 0  # questions
        self._texts: dict[tuple[str, str], tuple[WorkerRequest, bytes]] = {}  # of each, the last
        descriptors = [self._questions, self._answers, self._pidfd]
        self._finish = weakref.finalize(
            self,
            _dismiss,
            self._maker,
            self.pid,
            [d for d in descriptors if d is not None],
            starter,
        )

    def send(self, question: WorkerRequest, until: float) -> None:
        """Ask, by `until` (monotonic seconds). Raises `WorkerEnded`, `Overdue`."""
        self._asked += 1
        rest = framed(self._text(question), self._asked)
        while rest:
            try:
                rest = rest[os.write(self._questions, rest) :]
            except BlockingIOError:
                self._wait(self._questions, select.POLLOUT, until)
            except BrokenPipeError:
                raise WorkerEnded from None

    def _text(self, question: WorkerRequest) -> bytes:
        """Return the question's text: each device is asked of again and again."""
        key = question.ask, question.device.uuid if question.device else ""
        before, text = self._texts.get(key, (None, b""))
        if question != before:
            text = written(question)
            self._texts[key] = question, text
        return text

    def receive(self, until: float | None) -> WorkerReply:
        """Return the answer to what was sent; None waits for ever.

        Raises `WorkerEnded`, `Overdue`, `BadInput`.
        """
        length, number = HEADER.unpack(self._read(HEADER.size, until))
        if length > MOST:
            raise BadInput(f"an answer of {length} bytes")
        if number != self._asked:
            raise BadInput("an answer to another question")
        return read(self._read(length, until), WorkerReply, source="an answer")

    @property
    def is_ours(self) -> bool:
        """Whether this program started it, and is no fork of the one that did."""
        return os.getpid() == self._maker

    @property
    def runs(self) -> bool:
        """Whether the process has not ended, as far as that can be known."""
        return self._pidfd is None or not _ready(self._pidfd, select.POLLIN, 0.0)

    def kill(self) -> tuple[bool, int | None]:
        """End it and what it started; return whether it is gone, and its wait status."""
        _kill(self.pid)
        gone, status = _awaited(self.pid, self._pidfd, self._starter, PATIENCE)
        self._finish.detach()
        for descriptor in (self._questions, self._answers, self._pidfd):
            if descriptor is not None:
                os.close(descriptor)
        return gone, status

    def stop(self) -> None:
        """Have it end while another thread waits for its answer, which is to `kill` it then."""
        _kill(self.pid)

    def leave_to_its_parent(self) -> None:
        """Do not wait for it at exit: the kernel ends it with who forked it."""
        self._finish.detach()

    def close(self) -> None:
        """Have a process that has answered all it was asked end."""
        self._finish()

    def _read(self, size: int, until: float | None) -> bytes:
        contents = b""
        while len(contents) < size:
            self._wait(self._answers, select.POLLIN, until)
            part = os.read(self._answers, size - len(contents))
            if not part:
                raise WorkerEnded
            contents += part
        return contents

    def _wait(self, descriptor: int, event: int, until: float | None) -> None:
        """Wait until the pipe is ready. A grandchild may hold it, so its end is not enough."""
        poll = select.poll()
        poll.register(descriptor, event)
        if self._pidfd is not None:
            poll.register(self._pidfd, select.POLLIN)
        left = None if until is None else max(until - time.monotonic(), 0.0) * 1000
        ready = dict(poll.poll(left))
        if not ready:
            raise Overdue
        if descriptor not in ready:
            raise WorkerEnded


def _ready(descriptor: int, event: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(seconds * 1000))


def _awaited(
    pid: int, pidfd: int | None, starter: Starter, seconds: float
) -> tuple[bool, int | None]:
    """Wait for the end of a process; return whether it came, and the wait status if known."""
    if pidfd is not None:
        return _ready(pidfd, select.POLLIN, seconds), starter.reap(pid)
    until = time.monotonic() + seconds
    while (status := starter.reap(pid)) is None and time.monotonic() < until:
        time.sleep(0.01)
    return status is not None, status


def _kill(pid: int) -> None:
    for end in (os.killpg, os.kill):  # it may have no session of its own yet
        with suppress(ProcessLookupError, PermissionError):
            end(pid, signal.SIGKILL)


def _dismiss(maker: int, pid: int, descriptors: list[int], starter: Starter) -> None:
    """End a process that has answered: the end of its pipe tells it. Runs at exit, too."""
    if os.getpid() != maker:
        return  # a fork of who started it
    questions, answers, *pidfd = descriptors
    os.close(questions)
    os.close(answers)
    if pidfd:
        _ready(pidfd[0], select.POLLIN, PATIENCE)
    elif _awaited(pid, None, starter, PATIENCE)[0]:
        return
    _kill(pid)  # what it started, too, as long as nobody else has its number
    starter.reap(pid)
    for descriptor in pidfd:
        os.close(descriptor)


def how_it_ended(status: int | None) -> str:
    """Return what became of a process that gave no answer, as a part of a sentence."""
    if status is None:
        return "its process ended without an answer"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with suppress(ValueError):
            return f"its process was ended by {signal.Signals(number).name}"
        return f"its process was ended by signal {number}"
    return f"its process exited with code {os.WEXITSTATUS(status)} without an answer"


# --- in the process of the vendor -----------------------------------------------------------------


def become(plugin: Plugin, questions: int, answers: int) -> NoReturn:
    """Be the process of a vendor, which was just forked, until nobody asks any more."""
    code = 1
    gc.freeze()  # a search of the parent's objects for garbage would copy their pages
    try:
        questions, answers = _alone(questions, answers)
        _serve(plugin, questions, answers)
        code = 0
    finally:
        os._exit(code)  # what the vendor and its library registered for an exit is not run


def _alone(*pipes: int) -> tuple[int, ...]:
    """Leave everything of the parent's but two pipes; return them under their new numbers."""
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    high = tuple(fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _CLEAR) for each in pipes)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    # What these held back is the parent's to print.
    sys.stdout, sys.stderr = (open(each, "w", closefd=False) for each in (1, 2))  # noqa: SIM115
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in high:
            with suppress(OSError):
                os.close(int(name))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    return high


def _serve(plugin: Plugin, questions: int, answers: int) -> None:
    respondent = Respondent(plugin)
    while (received := _received(questions)) is not None:
        number, text = received
        question = read(text, WorkerRequest, source="a question")
        _bound_processor_time(question.within)
        answer = respondent.answer(question)
        try:
            message = framed(written(answer), number)
        except Exception as error:  # what it gave has no JSON
            failed = WorkerReply(failure=f"{plugin.name}: {question.ask}: {error}")
            message = framed(written(failed), number)
        while message:
            message = message[os.write(answers, message) :]
        if is_last(question, answer):
            return


def _received(descriptor: int) -> tuple[int, bytes] | None:
    """Return the next message with its number, None at the end of the pipe."""
    contents, wanted = b"", HEADER.size
    while len(contents) < wanted:
        part = os.read(descriptor, wanted - len(contents))
        if not part:
            return None
        contents += part
        if wanted == HEADER.size == len(contents):
            wanted += HEADER.unpack(contents)[0]
    return HEADER.unpack_from(contents)[1], contents[HEADER.size :]


def _bound_processor_time(seconds: float) -> None:
    """Have the kernel end this process where it computes for longer than its answer may take."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = int(time.process_time() + 2 * seconds) + 1
    with suppress(ValueError):  # less is allowed already
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
