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
from pathlib import Path
from typing import NoReturn, Protocol

from hetero.model.errors import BadInput
from hetero.registry.message import (
    HEADER,
    MOST_MESSAGE_BYTES,
    WorkerReply,
    WorkerRequest,
    framed,
    is_last,
    read,
    written,
)
from hetero.registry.respondent import Plugin, Respondent

#: Seconds after which a process that was killed is waited for no longer: it is in the kernel.
KILL_WAIT_S = 1.0
#: Seconds by which a busy machine may delay an answer, and those that are worth another look.
_LONGEST_DELAY_S, _SHORTEST_WAIT_S = 120.0, 0.01
#: Seconds in which a running process is seen to run: the kernel counts at ticks of 10 ms or less.
_TICKS_S = 0.03
#: Bytes of private memory, far above what a management library takes (tens of MiB).
_MOST_PRIVATE_BYTES = 1 << 30
#: Descriptors below may be the standard streams, or any that a program closed before it started us.
_FIRST_DESCRIPTOR = 10
#: prctl(2): the signal that a process gets when its parent ends.
_PR_SET_PDEATHSIG = 1


class Overdue(Exception):
    """There was no answer in time."""


class WorkerEnded(Exception):
    """The process ended, or closed its pipe."""


class Starter(Protocol):
    """Starts processes, and reaps those that ended."""

    def start(self, plugin: Plugin, request_fd: int, reply_fd: int) -> int:
        """Start a process that answers what it reads; return its PID. Raises `Failure`."""

    def reap(self, pid: int) -> int | None:
        """Return the wait status of a process that ended; None: not known, or it runs."""


class Forks:
    """Starts processes by forking this one, which must have a single thread."""

    def start(self, plugin: Plugin, request_fd: int, reply_fd: int) -> int:
        """Start a process that answers what it reads; return its PID."""
        pid = os.fork()
        if pid == 0:
            become(plugin, request_fd, reply_fd)
        return pid

    def reap(self, pid: int) -> int | None:
        """Return the wait status of a process that ended; None: not known, or it runs."""
        with suppress(ChildProcessError):  # our parent may have had SIGCHLD ignored
            ended_pid, status = os.waitpid(pid, os.WNOHANG)
            return status if ended_pid else None
        return None


class VendorProcess:
    """A process that was started for a vendor. It ends with this object, at the latest."""

    def __init__(self, plugin: Plugin, starter: Starter) -> None:
        question_end, self._questions = os.pipe()
        self._answers, answer_end = os.pipe()
        try:
            self.pid = starter.start(plugin, question_end, answer_end)
        except BaseException:
            os.close(self._questions)
            os.close(self._answers)
            raise
        finally:
            os.close(question_end)
            os.close(answer_end)
        os.set_blocking(self._questions, False)
        self._pidfd = None
        with suppress(OSError):  # Linux before 5.3
            self._pidfd = os.pidfd_open(self.pid)
        self._starter, self._maker = starter, os.getpid()
        self._asked = 0  # questions
        # Seconds for which it waited for a processor: before the request, and during it.
        self._kept_before_s, self._kept_s = 0.0, 0.0
        self._texts: dict[tuple[str, str], tuple[WorkerRequest, bytes]] = {}  # of each, the last
        open_descriptors = [self._questions, self._answers, self._pidfd]
        self._finish = weakref.finalize(
            self,
            _dismiss,
            self._maker,
            self.pid,
            [descriptor for descriptor in open_descriptors if descriptor is not None],
            starter,
        )

    def send(self, request: WorkerRequest, deadline_s: float) -> None:
        """Send a request by `deadline_s` (monotonic seconds). Raises `WorkerEnded`, `Overdue`."""
        self._asked += 1
        # The first request's time began when the process was made.
        self._kept_before_s = _kept_waiting_s(self.pid) if self._asked > 1 else 0.0
        self._kept_s = 0.0
        unsent_bytes = framed(self._text(request), self._asked)
        while unsent_bytes:
            try:
                unsent_bytes = unsent_bytes[os.write(self._questions, unsent_bytes) :]
            except BlockingIOError:
                self._wait(self._questions, select.POLLOUT, deadline_s)
            except BrokenPipeError:
                raise WorkerEnded from None

    def _text(self, request: WorkerRequest) -> bytes:
        """Return the request's text, cached since each device is asked again and again."""
        text_key = request.ask, request.device.uuid if request.device else ""
        request_before, message_text = self._texts.get(text_key, (None, b""))
        if request != request_before:
            message_text = written(request)
            self._texts[text_key] = request, message_text
        return message_text

    def receive(self, deadline_s: float | None) -> WorkerReply:
        """Return the reply to the request; None waits for ever.

        Raises `WorkerEnded`, `Overdue`, `BadInput`.
        """
        length_bytes, request_number = HEADER.unpack(self._read(HEADER.size, deadline_s))
        if length_bytes > MOST_MESSAGE_BYTES:
            raise BadInput(f"an answer of {length_bytes} bytes")
        if request_number != self._asked:
            raise BadInput("an answer to another question")
        return read(self._read(length_bytes, deadline_s), WorkerReply, source="an answer")

    @property
    def is_ours(self) -> bool:
        """Whether this program started it, and is no fork of the one that did."""
        return os.getpid() == self._maker

    @property
    def runs(self) -> bool:
        """Whether the process has not ended, as far as that can be known."""
        return self._pidfd is None or not _ready(self._pidfd, select.POLLIN, 0.0)

    def kill(self) -> tuple[bool, int | None]:
        """End it and what it started; return whether it is gone, and its wait status.

        Ask one that is not gone `has_ended` until it has.
        """
        _kill(self.pid)
        self._finish.detach()
        os.close(self._questions)
        os.close(self._answers)
        return self._waited(KILL_WAIT_S)

    def has_ended(self) -> bool:
        """Whether a process that was killed has ended by now; then it is not asked again."""
        return self._waited(0.0)[0]

    def _waited(self, timeout_s: float) -> tuple[bool, int | None]:
        is_gone, wait_status = _awaited(self.pid, self._pidfd, self._starter, timeout_s)
        if is_gone and self._pidfd is not None:
            os.close(self._pidfd)
        return is_gone, wait_status

    def stop(self) -> None:
        """End it while another thread waits for its reply; that thread then has to `kill` it."""
        _kill(self.pid)

    def leave_to_its_parent(self) -> None:
        """Do not wait for it at exit: the kernel ends it with the process that forked it."""
        self._finish.detach()

    def close(self) -> None:
        """End a process that has replied to all requests."""
        self._finish()

    def _read(self, size_bytes: int, deadline_s: float | None) -> bytes:
        contents = b""
        while len(contents) < size_bytes:
            self._wait(self._answers, select.POLLIN, deadline_s)
            chunk = os.read(self._answers, size_bytes - len(contents))
            if not chunk:
                raise WorkerEnded
            contents += chunk
        return contents

    def _wait(self, descriptor: int, poll_event: int, deadline_s: float | None) -> None:
        """Wait until the pipe is ready. A grandchild may hold it, so its end is not enough."""
        poller = select.poll()
        poller.register(descriptor, poll_event)
        if self._pidfd is not None:
            poller.register(self._pidfd, select.POLLIN)
        while True:
            left_s = None if deadline_s is None else deadline_s + self._kept_s - time.monotonic()
            ready_events = dict(poller.poll(None if left_s is None else max(left_s, 0.0) * 1000))
            if ready_events:
                break
            # A machine that is busy makes the answer late, and the vendor is not to blame.
            kept_s = _kept_waiting_s(self.pid) - self._kept_before_s
            if kept_s < self._kept_s + _SHORTEST_WAIT_S and _is_kept_waiting(self.pid):
                kept_s = self._kept_s + _SHORTEST_WAIT_S
            kept_s = min(kept_s, _LONGEST_DELAY_S)
            if kept_s < self._kept_s + _SHORTEST_WAIT_S:
                raise Overdue
            self._kept_s = kept_s
        if descriptor not in ready_events:
            raise WorkerEnded


def _kept_waiting_s(pid: int) -> float:
    """Return for how many seconds a process was ready to run and had no processor; 0: not known.

    The second number of /proc/PID/schedstat is that, in nanoseconds (proc(5),
    Documentation/scheduler/sched-stats.rst).
    """
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/schedstat").read_bytes().split()[1]) / 1e9
    return 0.0


def _is_kept_waiting(pid: int) -> bool:
    """Whether a process is ready to run, and has no processor for some ticks.

    The kernel counts how long that took once it has one again. Without this, one that waits for
    longer than it waited before would be overdue.
    """
    with suppress(OSError, IndexError):
        state_before, ran_before = _state_and_run_time(pid)
        time.sleep(_TICKS_S)
        return state_before == b"R" and (state_before, ran_before) == _state_and_run_time(pid)
    return False


def _state_and_run_time(pid: int) -> tuple[bytes, bytes]:
    """Return the letter of a process's state, and for how many nanoseconds it has run (proc(5))."""
    folder = Path(f"/proc/{pid}")
    state = (folder / "stat").read_bytes().rpartition(b") ")[2][:1]
    return state, (folder / "schedstat").read_bytes().split()[0]


def _ready(descriptor: int, poll_event: int, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(descriptor, poll_event)
    return bool(poller.poll(timeout_s * 1000))


def _awaited(
    pid: int, pidfd: int | None, starter: Starter, timeout_s: float
) -> tuple[bool, int | None]:
    """Wait for the end of a process; return whether it came, and the wait status if known."""
    if pidfd is not None:
        return _ready(pidfd, select.POLLIN, timeout_s), starter.reap(pid)
    deadline_s = time.monotonic() + timeout_s
    while (wait_status := starter.reap(pid)) is None and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return wait_status is not None, wait_status


def _kill(pid: int) -> None:
    for send_kill in (os.killpg, os.kill):  # it may have no session of its own yet
        with suppress(ProcessLookupError, PermissionError):
            send_kill(pid, signal.SIGKILL)


def _dismiss(maker_pid: int, pid: int, descriptors: list[int], starter: Starter) -> None:
    """End a process that has answered: the end of its pipe tells it. Runs at exit, too."""
    if os.getpid() != maker_pid:
        return  # a fork of who started it
    request_fd, reply_fd, *pidfd = descriptors
    os.close(request_fd)
    os.close(reply_fd)
    if pidfd:
        _ready(pidfd[0], select.POLLIN, KILL_WAIT_S)
    elif _awaited(pid, None, starter, KILL_WAIT_S)[0]:
        return
    _kill(pid)  # what it started, too, as long as nobody else has its number
    starter.reap(pid)
    for pidfd_left in pidfd:
        os.close(pidfd_left)


def how_it_ended(wait_status: int | None) -> str:
    """Return how a process ended that gave no reply, as a part of a sentence."""
    if wait_status is None:
        return "its process ended without an answer"
    if os.WIFSIGNALED(wait_status):
        signal_number = os.WTERMSIG(wait_status)
        with suppress(ValueError):
            return f"its process was ended by {signal.Signals(signal_number).name}"
        return f"its process was ended by signal {signal_number}"
    return f"its process exited with code {os.WEXITSTATUS(wait_status)} without an answer"


# --- in the process of the vendor -----------------------------------------------------------------


def become(plugin: Plugin, request_fd: int, reply_fd: int) -> NoReturn:
    """Run as the process of a vendor, which was just forked, until the requests end."""
    exit_code = 1
    gc.freeze()  # a search of the parent's objects for garbage would copy their pages
    try:
        request_fd, reply_fd = _alone(request_fd, reply_fd)
        _serve(plugin, request_fd, reply_fd)
        exit_code = 0
    finally:
        os._exit(exit_code)  # what the vendor and its library registered for an exit is not run


def _alone(*pipes: int) -> tuple[int, ...]:
    """Close every descriptor of the parent but two pipes; return their new numbers."""
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    high_descriptors = tuple(
        fcntl.fcntl(pipe, fcntl.F_DUPFD_CLOEXEC, _FIRST_DESCRIPTOR) for pipe in pipes
    )
    null_descriptor = os.open(os.devnull, os.O_RDWR)
    for stream_number in (0, 1, 2):
        os.dup2(null_descriptor, stream_number)
    # What these held back is the parent's to print.
    sys.stdout, sys.stderr = (open(stream_number, "w", closefd=False) for stream_number in (1, 2))  # noqa: SIM115
    for descriptor_text in os.listdir("/proc/self/fd"):
        if int(descriptor_text) > 2 and int(descriptor_text) not in high_descriptors:
            with suppress(OSError):
                os.close(int(descriptor_text))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
    with suppress(ValueError):  # less is allowed already
        resource.setrlimit(resource.RLIMIT_DATA, (_MOST_PRIVATE_BYTES, hard_limit))
    return high_descriptors


def _serve(plugin: Plugin, request_fd: int, reply_fd: int) -> None:
    respondent = Respondent(plugin)
    while (number_and_text := _received(request_fd)) is not None:
        request_number, request_text = number_and_text
        request = read(request_text, WorkerRequest, source="a question")
        if request.ask == "measure":  # a context maps more than a management library
            _, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (hard_limit, hard_limit))
        _bound_processor_time(request.within_s)
        reply = respondent.answer(request)
        try:
            message = framed(written(reply), request_number)
        except Exception as error:  # what it gave has no JSON
            failure_reply = WorkerReply(failure=f"{plugin.name}: {request.ask}: {error}")
            message = framed(written(failure_reply), request_number)
        while message:
            message = message[os.write(reply_fd, message) :]
        if is_last(request, reply):
            return


def _received(descriptor: int) -> tuple[int, bytes] | None:
    """Return the next message with its number, None at the end of the pipe."""
    contents, wanted_bytes = b"", HEADER.size
    while len(contents) < wanted_bytes:
        chunk = os.read(descriptor, wanted_bytes - len(contents))
        if not chunk:
            return None
        contents += chunk
        if wanted_bytes == HEADER.size == len(contents):
            wanted_bytes += HEADER.unpack(contents)[0]
    return HEADER.unpack_from(contents)[1], contents[HEADER.size :]


def _bound_processor_time(limit_s: float) -> None:
    """Let the kernel end this process if it computes for longer than its reply may take."""
    _, hard_limit_s = resource.getrlimit(resource.RLIMIT_CPU)
    soft_limit_s = int(time.process_time() + 2 * limit_s) + 1
    with suppress(ValueError):  # less is allowed already
        resource.setrlimit(resource.RLIMIT_CPU, (soft_limit_s, hard_limit_s))
