"""A service that a daemon gives, which is asked and told by the lines its own program reads."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from attrs import define, field

from hetero.model import Device, Edits, Mount
from hetero.model.frozen import frozen
from hetero.model.units import MiB
from hetero.plugin.driver import DriverError
from hetero.plugin.service import Serve, Service
from hetero.plugin.slices import note

#: Seconds that it may take to start or to answer.
_PATIENCE = 10.0
#: Where programs that share a device share memory, and what the machine calls that: an agent's pod
#: has one of its own.
_SHARED_MEMORY = "/dev/shm"  # noqa: S108
_SHARED_MEMORY_VARIABLE = "HETERO_SHM"
#: Where a container sees the machine's programs.
_HOST = "/host/usr/bin"


@frozen(kw_only=True)
class ControlDaemon:
    """How such a daemon is started and spoken to.

    `program` is the file that starts it with the words of `start`, and that else takes commands
    from its standard input. With `several_users` before those it serves programs of several users;
    where that is refused, of one at a time. `processes` is what the names of its processes begin
    with. `pipe` and `log` are the variables that name its directories, by the first of which its
    programs find it, `visible` names its device, and `sm` holds a program to a percent of its
    multiprocessors. The others are commands: those that list its
    servers and a server's programs, that say how a server is (`failed` is in the answer where it
    serves nobody any more), that limit each program's memory (`limits` of all servers that begin,
    `server_limits` of one that runs), that take a program off a server, and that end it all.
    """

    program: str
    processes: str
    start: tuple[str, ...]
    several_users: str
    pipe: str
    log: str
    visible: str
    sm: str
    servers: str
    clients: str
    status: str
    failed: str
    limits: tuple[str, ...]
    server_limits: tuple[str, ...]
    end: str
    stop: str

    def serve(
        self, device: Device, do: Serve, directory: Path, *, memory: int, process: int
    ) -> Service:
        """Do what `hetero_serve` is asked for a device, in the directory of its service."""
        daemon = _Daemon(self, directory, device.uuid)
        match do:
            case Serve.START:
                daemon.start(max(memory // MiB, 1))
            case Serve.END:
                daemon.end(process)
            case Serve.STOP:
                daemon.stop()
        return daemon.state()


@define
class _Daemon:
    """The one daemon of a device, found by its pipe directory."""

    says: ControlDaemon
    directory: Path
    device: str
    _pipe: Path = field(init=False)
    _one_user: Path = field(init=False)
    _environ: dict[str, str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._pipe, self._one_user = self.directory / "pipe", self.directory / "one-user"
        self._environ = {
            **{name: text for name, text in os.environ.items() if name != "LD_PRELOAD"},
            self.says.pipe: str(self._pipe),
            self.says.log: str(self.directory / "log"),
            self.says.visible: self.device,
        }

    def state(self) -> Service:
        servers = self._pids(self.says.servers)
        if servers is None:
            return Service()
        clients = (self._pids(self.says.clients.format(server=one)) or () for one in servers)
        states = [self._asked(self.says.status.format(server=one)) or "" for one in servers]
        shared = os.environ.get(_SHARED_MEMORY_VARIABLE, _SHARED_MEMORY)
        return Service(
            running=True,
            processes=self._processes(),
            clients=tuple(sorted({pid for some in clients for pid in some})),
            one_user=self._one_user.exists(),
            fault="a program failed on it" if any(map(self._is_failed, states)) else None,
            sm=self.says.sm,
            edits=Edits(
                env={self.says.pipe: str(self._pipe)},
                mounts=(
                    Mount(str(self._pipe), str(self._pipe)),
                    Mount(shared, _SHARED_MEMORY, writable=True),
                ),
            ),
        )

    def start(self, mebibytes: int) -> None:
        """Start it unless it runs; each program may have so much memory from now on."""
        if self._pids(self.says.servers) is None:
            self.stop()  # what a killed one left
            for path in (self._pipe, self.directory / "log"):
                path.mkdir(exist_ok=True)
            if _SHARED_MEMORY_VARIABLE in os.environ:
                Path(_SHARED_MEMORY).chmod(0o1777)  # a kubelet makes it for root alone
            self._one_user.unlink(missing_ok=True)
            if self._started(self.says.several_users):
                note(self._one_user)
                if failure := self._started():
                    raise DriverError(f"{self.says.program}: {failure}")
        for command in self.says.limits:
            self._asked(command.format(mebibytes=mebibytes))
        for server in self._pids(self.says.servers) or ():
            for command in self.says.server_limits:
                self._asked(command.format(server=server, mebibytes=mebibytes))

    def end(self, client: int) -> None:
        """Take a program off; return when what it had in work has ended."""
        for server in self._pids(self.says.servers) or ():
            if client in (self._pids(self.says.clients.format(server=server)) or ()):
                self._asked(self.says.end.format(server=server, client=client))

    def stop(self) -> None:
        """End it, and its servers with what they serve."""
        import signal

        self._asked(self.says.stop)
        for pid in self._processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _is_failed(self, state: str) -> bool:
        return self.says.failed in state

    def _started(self, *options: str) -> str | None:
        """Start it; return why it did not."""
        said = self.directory / "log" / "start"
        import subprocess  # here: most starts of a vendor need no service

        with said.open("w") as output:  # no pipe: what runs on would keep it
            done = subprocess.run(
                [self._program(), *options, *self.says.start],
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=_PATIENCE,
                check=False,
                start_new_session=True,
            )
        if done.returncode == 0 and self._pids(self.says.servers) is not None:
            return None
        lines = said.read_text(errors="replace").split("\n")
        return next(filter(None, reversed(lines)), f"exit code {done.returncode}")

    def _pids(self, command: str) -> list[int] | None:
        """Return the processes that it lists; None where it does not run."""
        said = self._asked(command)
        return None if said is None else [int(one) for one in said.split() if one.isdecimal()]

    def _asked(self, command: str) -> str | None:
        """Return what it answers to a command; None where it does not run."""
        if not self._pipe.exists():
            return None
        import subprocess

        done = subprocess.run(
            [self._program()],
            env=self._environ,
            input=f"{command}\n",
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
        return done.stdout if done.returncode == 0 else None

    def _program(self) -> str:
        import shutil

        path = f"{os.environ.get('PATH', os.defpath)}:{_HOST}"
        found = shutil.which(self.says.program, path=path)
        if found is None:
            raise DriverError(f"{self.says.program} is not installed: is the driver's whole here?")
        return found

    def _processes(self) -> tuple[int, ...]:
        """Return its processes and its servers', whoever started them."""
        mine = f"{self.says.pipe}={self._pipe}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                ours = (path / "comm").read_text().startswith(self.says.processes)
                if ours and mine in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
        return tuple(sorted(found))
