"""What runs kube-scheduler: while the other side says so, and not a moment longer than it lives."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import count
from pathlib import Path

import pytest
from attrs import define, field

from tests.kube.binaries import supervisor
from tests.kube.control_plane import wait_for


@define
class Leading:
    """The other side of one supervisor, whose program notes its number and sleeps."""

    folder: Path
    process: subprocess.Popen[bytes]
    listener: socket.socket
    connection: socket.socket = field(init=False, factory=socket.socket)

    def accept(self) -> None:
        self.connection.close()
        self.connection, _ = self.listener.accept()

    def say(
        self, word: bytes, until: Callable[[], bool] = lambda: True, *, times: int = 6
    ) -> bytes:
        """Say a word so many times and until that holds; return what is answered last."""
        deadline = time.monotonic() + 60
        for number in count(1):
            self.connection.send(word)
            answer = self.connection.recv(64)
            if number >= times and until():
                break
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return answer

    @property
    def started(self) -> list[int]:
        """Return the numbers of the programs that were started, in their order."""
        with suppress(FileNotFoundError):
            return [int(line) for line in (self.folder / "started").read_text().split()]
        return []

    def runs(self) -> bool:
        with suppress(OSError, IndexError):
            os.kill(self.started[-1], 0)
            return True
        return False


@pytest.fixture
def leading(tmp_path: Path) -> Iterator[Leading]:
    path = tmp_path / "socket"
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(60)
        script = f"echo $$ >> {tmp_path}/started; exec sleep 600"
        with subprocess.Popen([supervisor(), path, "/bin/sh", "-c", script]) as process:
            made = Leading(tmp_path, process, listener)
            made.accept()
            yield made
            made.connection.close()
            process.kill()
    wait_for(lambda: not made.runs())  # it goes with the one that started it


def test_the_program_runs_while_it_leads(leading: Leading) -> None:
    assert b"0" == leading.say(b"0")
    assert [] == leading.started
    assert b"1" == leading.say(b"1", leading.runs)
    assert b"1" == leading.say(b"1")
    assert leading.runs()
    assert 1 == len(leading.started)
    leading.say(b"0", lambda: not leading.runs())
    leading.say(b"1", leading.runs)
    assert 2 == len(leading.started)


def test_the_program_ends_with_a_silent_other_side(leading: Leading) -> None:
    leading.say(b"1", leading.runs)
    began = time.monotonic()
    wait_for(lambda: not leading.runs())
    assert 1 < time.monotonic() - began
    leading.accept()
    leading.say(b"1", leading.runs)
    assert 2 == len(leading.started)


def test_the_program_ends_with_the_connection(leading: Leading) -> None:
    """Silence, too, would end it, but never sooner than in two seconds."""

    def seconds_to_end() -> float:
        leading.say(b"1", leading.runs)
        began = time.monotonic()
        leading.connection.close()
        wait_for(lambda: not leading.runs())
        took = time.monotonic() - began
        leading.accept()
        return took

    assert any(seconds_to_end() < 1 for _ in range(10))


def test_a_program_that_ends_by_itself_is_told_of_by_the_end_of_the_connection(
    leading: Leading,
) -> None:
    leading.say(b"1", leading.runs)
    os.kill(leading.started[-1], signal.SIGKILL)
    wait_for(lambda: not leading.say(b"1", times=1))
    assert 1 == len(leading.started)
    leading.connection.close()
    leading.accept()
    leading.say(b"1", leading.runs)


def test_told_to_stop_it_ends_its_program_first(leading: Leading) -> None:
    leading.say(b"1", leading.runs)
    leading.process.terminate()
    assert 0 == leading.process.wait(60)
    assert not leading.runs()
