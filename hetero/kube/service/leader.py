"""The process that holds the scheduler's Lease, runs the extender and has kube-scheduler run.

The extender is its child and is started anew here: a kubelet would wait longer each time. When the
extender is silent for a second, or kube-scheduler for three, kube-scheduler is ended and the Lease
given up, in this order, so that another replica leads a moment later. A kube-scheduler that answers
and tries no pod is started anew by itself. While the API server is away nobody else can have the
Lease, and everything stays as it is. docs/decisions/leader.md says why it is built so.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from uuid import uuid4

import aiohttp
from attrs import define, field

from hetero.kube.client.api import Access, Api
from hetero.kube.client.leadership import (
    BUSY,
    DESCRIPTOR,
    HEARTBEAT_PERIOD_S,
    MOST_MESSAGE_BYTES,
    READY,
    UNTRIED,
    pair,
)
from hetero.kube.client.lease import LeaseElection
from hetero.kube.service.until_stopped import until_stopped
from hetero.kube.words.log_level import log_level
from hetero.model.errors import BadInput

log = logging.getLogger(__name__)

#: Seconds that an extender may be silent: while it starts, while it reads long lists, and else.
_START_SILENCE_S, _LIST_SILENCE_S, _SILENCE_S = 60.0, 30.0, 1.0
#: Seconds that the supervisor of kube-scheduler may be silent.
_SUPERVISOR_SILENCE_S = 2.0
#: Seconds that a kube-scheduler which has answered once may go without an answer, and between two
#: questions. It answers without the API server, too.
_UNANSWERED_S, _QUESTION_PERIOD_S = 3.0, 0.5
#: Seconds in which the supervisor ends a kube-scheduler that is to be started anew.
_RESTART_S = 1.0
#: Seconds until an extender that ended is started anew: the second time and later, if none of them
#: was ready, twice as many up to the second number.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 8.0
#: Seconds that an extender has to end when told to.
_STOP_TIMEOUT_S = 3.0
#: The supervisor's words: deploy/supervisor.c.
_LEAD, _STAND_BY = b"1", b"0"


@define(eq=False)
class ExtenderProcess:
    """The extender, a child process; `argv` starts it, and starts it anew when it is of no use.

    `changed` is called when `ready` is another, `untried` when kube-scheduler tries no pod.
    """

    argv: Sequence[str]
    changed: Callable[[], None]
    untried: Callable[[], None]
    ready: bool = field(default=False, init=False)  # it knows the cluster and answers
    _process: Process | None = field(default=None, init=False)
    _socket: socket.socket | None = field(default=None, init=False)  # our end

    async def keep(self) -> None:
        """Have an extender run that answers, for ever."""
        pause_s = _FIRST_PAUSE_S
        while True:
            self._socket, child_end = pair()
            env = {**os.environ, DESCRIPTOR: str(child_end.fileno())}
            with child_end:
                self._process = await asyncio.create_subprocess_exec(
                    *self.argv, env=env, pass_fds=(child_end.fileno(),)
                )
            reason = await self._listen(self._socket)
            pause_s = _FIRST_PAUSE_S if self.ready else min(2 * pause_s, _LONGEST_PAUSE_S)
            self.ready = False
            self.changed()
            with suppress(ProcessLookupError):
                self._process.kill()
            status = await self._process.wait()
            self.close()
            log.warning("extender: %s, status %s; starting it anew", reason, status)
            await asyncio.sleep(pause_s)

    async def _listen(self, connection: socket.socket) -> str:
        """Hear what an extender says until it is of no use, and return why that is."""
        loop, silence_limit_s = asyncio.get_running_loop(), _START_SILENCE_S
        while True:
            try:
                message = await asyncio.wait_for(
                    loop.sock_recv(connection, MOST_MESSAGE_BYTES), silence_limit_s
                )
            except asyncio.TimeoutError:
                return f"silent for {silence_limit_s:g} s"
            except ConnectionError:
                message = b""
            if not message:
                return "ended"
            silence_limit_s = _LIST_SILENCE_S if message == BUSY else _SILENCE_S
            if message == UNTRIED:
                self.untried()
            elif message != BUSY and self.ready != (message == READY):
                self.ready = message == READY
                self.changed()

    def tell(self, until_s: float) -> None:
        """Tell the extender until when it leads."""
        if self._socket is not None:
            with suppress(OSError):  # it has ended, which is heard of soon
                self._socket.send(repr(until_s).encode())

    async def end(self, *, at_once: bool) -> None:
        """End the extender that runs; it is started anew."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill() if at_once else self._process.terminate()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._process.wait(), _STOP_TIMEOUT_S)

    def close(self) -> None:
        """Close the connection to the extender."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


@define(eq=False)
class KubeSchedulerProcess:
    """kube-scheduler, which runs below a supervisor that is told whether it is to run.

    `healthz` is where kube-scheduler says that it lives; None: it is not asked. `changed` is called
    when it is another than before whether it can run.
    """

    healthz: str | None
    changed: Callable[[], None]
    hangs: bool = field(default=False, init=False)  # it was silent for too long
    _supervisor: asyncio.StreamWriter | None = field(default=None, init=False)
    _connections: dict[asyncio.StreamWriter, asyncio.Task[None]] = field(factory=dict, init=False)
    # When it answered last, or was told to start, and how long it may be silent then, in seconds.
    _heard: tuple[float, float] = field(default=(0.0, _START_SILENCE_S), init=False)
    _restart_end_s: float = field(default=0.0, init=False)  # then it starts anew

    @property
    def can_run(self) -> bool:
        """Whether its supervisor is there, and it does not hang."""
        return self._supervisor is not None and not self.hangs

    @property
    def silence_limit_s(self) -> float:
        """The seconds that it may be silent now."""
        return self._heard[1]

    def tell(self, *, leads: bool) -> None:
        """Tell its supervisor whether it is to run."""
        if self._supervisor is not None:
            runs = leads and self.can_run and monotonic() >= self._restart_end_s
            self._supervisor.write(_LEAD if runs else _STAND_BY)

    def note_start(self) -> None:
        """Note that it was told to start."""
        self._heard = (monotonic(), _START_SILENCE_S)

    def start_anew(self) -> None:
        """Have the supervisor end it and start another; the Lease is kept."""
        log.warning("kube-scheduler tries none of the pods that wait: starting it anew")
        self._restart_end_s = monotonic() + _RESTART_S
        self._heard = (self._restart_end_s, _START_SILENCE_S)
        self.changed()

    async def ask(self, leads: Callable[[], bool]) -> None:
        """Notice for ever one that runs and does not answer."""
        if self.healthz is None:
            await asyncio.Event().wait()
        timeout = aiohttp.ClientTimeout(total=_UNANSWERED_S / 2)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                heard, now_s = self._heard, monotonic()
                if leads() and await self._lives(session):
                    self._heard = (now_s, _UNANSWERED_S)
                elif leads() and heard == self._heard and monotonic() - heard[0] > heard[1]:
                    self.hangs = True
                    self.changed()
                await asyncio.sleep(_QUESTION_PERIOD_S)

    async def _lives(self, session: aiohttp.ClientSession) -> bool:
        """Whether kube-scheduler says so. Its certificate is its own: it is in this very pod."""
        with suppress(aiohttp.ClientError, asyncio.TimeoutError):
            async with session.get(self.healthz or "", ssl=False) as answer:
                return answer.status == 200
        return False

    async def supervise(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hold a supervisor's connection until it is silent or gone."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a server calls this in a task of its own
        self._connections[writer] = task
        self._supervisor = writer
        self.changed()
        with suppress(OSError, asyncio.TimeoutError):
            while await asyncio.wait_for(reader.read(MOST_MESSAGE_BYTES), _SUPERVISOR_SILENCE_S):
                pass
        if self._supervisor is writer:
            self._supervisor = None
            self.changed()
        del self._connections[writer]
        writer.close()

    async def close(self) -> None:
        """Close all connections of supervisors."""
        for writer in self._connections:
            writer.close()
        await asyncio.gather(*self._connections.values(), return_exceptions=True)


@define(eq=False, kw_only=True)
class Leader:
    """Runs an extender and a kube-scheduler together; `argv` starts the extender.

    `healthz` is the health endpoint of kube-scheduler; None: it is not checked.
    """

    lease: LeaseElection
    argv: Sequence[str]
    supervisor: str  # the socket where kube-scheduler's supervisor is told what to do; @: abstract
    healthz: str | None = None
    _extender: ExtenderProcess = field(init=False)
    _kube_scheduler: KubeSchedulerProcess = field(init=False)
    _does_lead: bool = field(default=False, init=False)
    _changed: asyncio.Event = field(factory=asyncio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self._kube_scheduler = KubeSchedulerProcess(self.healthz, self._change)
        untried = self._kube_scheduler.start_anew
        self._extender = ExtenderProcess(self.argv, self._change, untried)

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT; then stop everything, kube-scheduler first."""
        address = self.supervisor
        if address.startswith("@"):
            address = "\0" + address[1:]
        else:
            Path(address).unlink(missing_ok=True)
        unix_server = await asyncio.start_unix_server(self._kube_scheduler.supervise, address)
        try:
            await until_stopped(
                self._extender.keep(),
                self._contend(),
                self._beat(),
                self._kube_scheduler.ask(lambda: self._does_lead),
            )
        finally:
            await self._step_down(at_once=False)
            unix_server.close()
            self._extender.close()
            await self._kube_scheduler.close()

    @property
    def _fit(self) -> bool:
        """Whether both the extender and the supervisor of kube-scheduler are ready."""
        return self._extender.ready and self._kube_scheduler.can_run

    async def _contend(self) -> None:
        """Try to lead whenever both are ready, for ever."""
        while True:
            if self._fit:
                await self.lease.attempt()
            self._changed.clear()
            if self._does_lead and not (self._fit and self.lease.leads):
                # It holds reservations that a later leader knows nothing of.
                log.warning("lease %s: %s", self.lease.name, self._why())
                await self._step_down(at_once=True)
            elif self._fit and self.lease.leads and not self._does_lead:
                log.info("lease %s: leading", self.lease.name)
                self._does_lead = True
                self._kube_scheduler.note_start()
            elif self.lease.leads and not self._does_lead:
                await self.lease.release()
            self._tell()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self.lease.pause_s)

    def _why(self) -> str:
        if not self.lease.leads:
            return "lost; the extender starts anew"
        if self._kube_scheduler.hangs:
            limit_s = self._kube_scheduler.silence_limit_s
            return f"given up: kube-scheduler has not answered for {limit_s:g} s"
        part_name = "kube-scheduler" if self._extender.ready else "the extender"
        return f"given up: {part_name} is gone or silent"

    async def _step_down(self, *, at_once: bool) -> None:
        """End kube-scheduler and the extender, then release the Lease."""
        self._does_lead = self._kube_scheduler.hangs = False
        self._tell()
        await self._extender.end(at_once=at_once)
        await self.lease.release()

    def _change(self) -> None:
        """Have what changed be considered at once."""
        self._changed.set()
        self._tell()

    def _tell(self) -> None:
        """Send the extender the end of its leadership, and the supervisor whether to run."""
        self._extender.tell(self.lease.trusted_until_s if self._does_lead else 0.0)
        self._kube_scheduler.tell(leads=self._does_lead and self._fit)

    async def _beat(self) -> None:
        """Repeat the messages, for ever: the supervisor ends kube-scheduler when they stop."""
        while True:
            self._tell()
            await asyncio.sleep(HEARTBEAT_PERIOD_S)


def is_child(environ: Mapping[str, str]) -> bool:
    """Whether this process is the extender that the holder of a Lease started."""
    return DESCRIPTOR in environ


def lead(*, lease: str, supervisor: str, healthz: str | None, argv: Sequence[str]) -> None:
    """Hold a Lease, `namespace/name`, with an extender that `argv` starts, until told to stop."""
    namespace, _, lease_name = lease.partition("/")
    if not namespace or not lease_name:
        raise BadInput(f"lease {lease!r}: write namespace/name")
    log_format = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=log_level(os.environ), format=log_format)
    identity = f"{socket.gethostname()}_{uuid4()}"

    async def run() -> None:
        async with Api(Access.here()).open() as api:
            election = LeaseElection(api, namespace, lease_name, identity)
            leader = Leader(lease=election, argv=argv, supervisor=supervisor, healthz=healthz)
            await leader.run()

    asyncio.run(run())
