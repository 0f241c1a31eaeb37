#!/usr/bin/env python3
"""NVIDIA's nvidia-cuda-mps-control, as far as it is asked and told by its command line.

It speaks for simulated cards: its clients are the programs that have its pipe directory in their
environment and a simulated driver mapped. `-d` starts the daemon; without, the lines of the
standard input are commands to it. The file `fault` in the pipe directory stands for a program that
failed in a kernel, $MPS_OLD for a driver that knows no `-multiuser-server`. The daemon ends with
the process whose PID $MPS_ENDS_WITH has: a test that is interrupted ends none.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

PIPE = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))  # noqa: S108 - as NVIDIA's
DRIVER = "libcuda.so"


def called(name: str) -> None:
    """Be called so in the list of processes."""
    Path("/proc/self/comm").write_text(name[:15])


class Daemon:
    """The control daemon, with at most one server."""

    def __init__(self) -> None:
        self.server = 0
        self.limits: dict[str, str] = {}
        self.ended: set[int] = set()

    def clients(self) -> list[int]:
        """Return the programs that use the driver with this pipe directory."""
        variable, clients = f"CUDA_MPS_PIPE_DIRECTORY={PIPE}".encode(), []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if variable not in (path / "environ").read_bytes().split(b"\0"):
                    continue
                if DRIVER in (path / "maps").read_text() and int(path.name) not in self.ended:
                    clients.append(int(path.name))
        return sorted(clients)

    def refresh(self) -> None:
        """Have a server where there is a client, as the driver's first call would."""
        if self.server and not alive(self.server):
            self.server = 0
        if not self.server and self.clients():
            self.start_server()

    def start_server(self) -> None:
        """Start a server: a process that is there."""
        self.server = os.fork()
        if not self.server:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.closerange(3, 256)  # who asked the daemon waits for the end of its answer
            called("nvidia-cuda-mps-server")
            while True:
                time.sleep(60)

    def stop_server(self) -> None:
        """End the server."""
        if self.server:
            with suppress(OSError):
                os.kill(self.server, signal.SIGKILL)
                os.waitpid(self.server, 0)
            self.server = 0

    def answer(self, command: str) -> str:
        """Return what is printed for a command."""
        word, *rest = command.split() or [""]
        self.refresh()
        if word == "get_server_list":
            return f"{self.server}\n" if self.server else ""
        if word == "get_client_list" and rest == [str(self.server)]:
            return "".join(f"{pid}\n" for pid in self.clients())
        if word == "get_server_status" and rest == [str(self.server)]:
            return "FAULT\n" if (PIPE / "fault").exists() else "ACTIVE\n"
        if word == "terminate_client" and len(rest) == 2:
            return self.end(int(rest[1]))
        if word == "start_server":
            self.start_server()
            return ""
        if word == "set_default_device_pinned_mem_limit":
            self.limits[rest[0]] = rest[1]
            return ""
        if word == "get_default_device_pinned_mem_limit":
            return f"{self.limits.get(rest[0], '')}\n"
        if word == "set_device_pinned_mem_limit":
            return ""
        return f"Invalid command: {command}\n"

    def end(self, client: int) -> str:
        """Have a client lose its contexts, and note it for who asks."""
        if client not in self.clients():
            return f"No client {client}\n"
        self.ended.add(client)
        with (PIPE.parent / "log" / "terminated").open("a") as log:
            log.write(f"{client} {'lived' if alive(client) else 'had ended'}\n")
        return ""

    def serve(self, listener: socket.socket) -> None:
        """Answer until told to quit."""
        listener.settimeout(1)
        while lasts():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            with connection:
                command = connection.makefile().readline().strip()
                quits = command.split()[:1] == ["quit"]
                answer = "" if quits else self.answer(command)
                if quits:
                    self.stop_server()
                    listener.close()
                    (PIPE / "control").unlink(missing_ok=True)
                with suppress(OSError):
                    connection.sendall(answer.encode())
            if quits:
                return
        self.stop_server()


def lasts() -> bool:
    """Return whether who the daemon ends with is there."""
    whose = os.environ.get("MPS_ENDS_WITH")
    return whose is None or alive(int(whose))


def alive(pid: int) -> bool:
    """Return whether a process runs, and is not only left to be waited for."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def begin() -> int:
    """Start the daemon; return the exit code of who did."""
    if "-multiuser-server" in sys.argv and os.environ.get("MPS_OLD"):
        print("unknown option: -multiuser-server", file=sys.stderr)
        return 1
    control = PIPE / "control"
    with suppress(OSError), socket.socket(socket.AF_UNIX) as asked:
        asked.connect(str(control))
        print("An instance of this daemon is already running", file=sys.stderr)
        return 1
    control.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(control))
    listener.listen(16)
    if os.fork():
        return 0
    os.setsid()
    for number, standard in enumerate((os.O_RDONLY, os.O_WRONLY, os.O_WRONLY)):
        os.dup2(os.open(os.devnull, standard), number)
    called("nvidia-cuda-mps-control")
    (PIPE / "nvidia-cuda-mps-control.pid").write_text(f"{os.getpid()}\n")
    Daemon().serve(listener)
    os._exit(0)


def ask() -> int:
    """Send the commands of the standard input and print what is answered."""
    for command in sys.stdin:
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(str(PIPE / "control"))
            except OSError:
                print("Cannot find MPS control daemon process")
                return 1
            connection.sendall(command.encode())
            sys.stdout.write(connection.makefile().read())
    return 0


if __name__ == "__main__":
    sys.exit(begin() if "-d" in sys.argv else ask())
