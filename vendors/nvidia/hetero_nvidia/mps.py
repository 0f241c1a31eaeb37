"""MPS: the daemon through which programs share a card, as its control program is spoken to.

https://docs.nvidia.com/deploy/mps, appendix "Tools and Interface Reference".
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from attrs import define

from hetero.plugin import DriverError, Edits, MiB, Mount, Service, note

#: Seconds that the daemon may take to start or to answer: on a machine with far more to do than
#: processors over 10 s were seen.
_DAEMON_TIMEOUT_S = 15.0
#: What starts the daemon, and else passes commands from its standard input on to it.
_CONTROL = "nvidia-cuda-mps-control"
#: What the names of the daemon's and its servers' processes begin with.
_PROCESSES = "nvidia-cuda-mps"
_PIPES, _LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
#: Newer drivers serve several users at a time, if told so.
_SEVERAL_USERS = "-multiuser-server"
#: Where programs that share a card share memory, and what the machine calls that: an agent's pod
#: has one of its own.
_SHARED_MEMORY = "/dev/shm"  # noqa: S108
_SHARED_MEMORY_VARIABLE = "HETERO_SHM"
#: Where a container sees the machine's programs.
_HOST = "/host/usr/bin"


@define
class Daemon:
    """The one daemon of a card, with its files in a directory by which it is found again."""

    directory: Path
    card: str

    def start(self, memory: int) -> Service:
        """Start it unless it runs; each program may have so many bytes from now on."""
        if self._servers() is None:
            self._kill()  # what a killed one left
            self._start_daemon()
        memory_limit = f"0 {max(memory // MiB, 1)}M"
        self._ask(f"set_default_device_pinned_mem_limit {memory_limit}")
        for server in self._servers() or ():
            self._ask(f"set_device_pinned_mem_limit {server} {memory_limit}")
        return self.look()

    def look(self) -> Service:
        """Return how it is."""
        servers = self._servers()
        if servers is None:
            return Service()
        server_states = [self._ask(f"get_server_status {server}") or "" for server in servers]
        client_pids = {pid for server in servers for pid in self._clients(server)}
        shared_memory_path = os.environ.get(_SHARED_MEMORY_VARIABLE, _SHARED_MEMORY)
        return Service(
            running=True,
            processes=self._processes(),
            clients=tuple(sorted(client_pids)),
            one_user=self._one_user.exists(),
            fault="a program failed on it"
            if any("FAULT" in state for state in server_states)
            else None,
            sm="CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
            edits=Edits(
                env={_PIPES: str(self._pipes)},
                mounts=(
                    Mount(str(self._pipes), str(self._pipes)),
                    Mount(shared_memory_path, _SHARED_MEMORY, writable=True),
                ),
            ),
        )

    def end(self, process: int) -> Service:
        """Take a program off; return when what it had in work has ended."""
        for server in self._servers() or ():
            if process in self._clients(server):
                self._ask(f"terminate_client {server} {process}")
        return self.look()

    def stop(self) -> Service:
        """End it, and its servers with what they serve."""
        self._kill()
        return self.look()

    @property
    def _pipes(self) -> Path:
        return self.directory / "pipe"

    @property
    def _logs(self) -> Path:
        return self.directory / "log"

    @property
    def _one_user(self) -> Path:
        """A file that is there where the driver serves programs of one user at a time."""
        return self.directory / "one-user"

    @property
    def _environ(self) -> dict[str, str]:
        inherited_variables = {
            variable_name: variable_text
            for variable_name, variable_text in os.environ.items()
            if variable_name != "LD_PRELOAD"
        }
        own_variables = {
            _PIPES: str(self._pipes),
            _LOGS: str(self._logs),
            "CUDA_VISIBLE_DEVICES": self.card,
        }
        return {**inherited_variables, **own_variables}

    def _start_daemon(self) -> None:
        for path in (self._pipes, self._logs):
            path.mkdir(exist_ok=True)
        if _SHARED_MEMORY_VARIABLE in os.environ:
            Path(_SHARED_MEMORY).chmod(0o1777)  # a kubelet makes it for root alone
        self._one_user.unlink(missing_ok=True)
        if self._failed_to_start(_SEVERAL_USERS):
            note(self._one_user)
            if failure := self._failed_to_start():
                raise DriverError(f"{_CONTROL}: {failure}")

    def _failed_to_start(self, *options: str) -> str | None:
        """Start the daemon; return why it did not start."""
        output_path = self._logs / "start"
        with output_path.open("w") as file:  # no pipe: what runs on would keep it
            daemon_start = subprocess.run(
                [_control(), *options, "-d"],
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                timeout=_DAEMON_TIMEOUT_S,
                check=False,
                start_new_session=True,
            )
        if daemon_start.returncode == 0 and self._servers() is not None:
            return None
        lines = output_path.read_text(errors="replace").split("\n")
        return next(filter(None, reversed(lines)), f"exit code {daemon_start.returncode}")

    def _kill(self) -> None:
        self._ask("quit -t 1")
        for pid in self._processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _servers(self) -> list[int] | None:
        """Return the processes of its servers; None where the daemon does not run."""
        server_list = self._ask("get_server_list")
        return None if server_list is None else _pids(server_list)

    def _clients(self, server: int) -> list[int]:
        return _pids(self._ask(f"get_client_list {server}") or "")

    def _ask(self, command: str) -> str | None:
        """Return the daemon's answer to a command; None where it does not run."""
        if not self._pipes.exists():
            return None
        completed_process = subprocess.run(
            [_control()],
            env=self._environ,
            input=f"{command}\n",
            capture_output=True,
            text=True,
            timeout=_DAEMON_TIMEOUT_S,
            check=False,
        )
        return completed_process.stdout if completed_process.returncode == 0 else None

    def _processes(self) -> tuple[int, ...]:
        """Return its processes and its servers', started by any process."""
        own_variable = f"{_PIPES}={self._pipes}".encode()
        pids = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                is_named_so = (path / "comm").read_text().startswith(_PROCESSES)
                if is_named_so and own_variable in (path / "environ").read_bytes().split(b"\0"):
                    pids.append(int(path.name))
        return tuple(sorted(pids))


def _pids(answer: str) -> list[int]:
    return [int(word) for word in answer.split() if word.isdecimal()]


def _control() -> str:
    """Return the path of the control program. Raises `DriverError`."""
    path = shutil.which(_CONTROL, path=f"{os.environ.get('PATH', os.defpath)}:{_HOST}")
    if path is None:
        raise DriverError(f"{_CONTROL} is not installed: is the driver's whole here?")
    return path
