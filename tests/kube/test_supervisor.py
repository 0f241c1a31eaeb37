"""What runs kube-scheduler: while the other side says so, and not a moment longer than it lives."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from subprocess import PIPE

import pytest
from attrs import define, field

from tests.kube.binaries import supervisor
from tests.kube.control_plane import wait_for
from tests.programs import next_line


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


@contextmanager
def supervised(folder: Path, address: str, *options: str) -> Iterator[Leading]:
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(address.replace("@", "\0", 1))
        listener.listen()
        listener.settimeout(60)
        script = f"echo $$ >> {folder}/started; exec sleep 600"
        argv = (str(supervisor()), *options, address, "/bin/sh", "-c", script)
        with subprocess.Popen(argv) as process:
            made = Leading(folder, process, listener)
            try:
                yield made
            finally:
                made.connection.close()
                process.kill()
    wait_for(lambda: not made.runs())  # it goes with the one that started it


@pytest.fixture
def leading(tmp_path: Path) -> Iterator[Leading]:
    with supervised(tmp_path, str(tmp_path / "socket")) as made:
        made.accept()
        yield made


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


def test_an_abstract_socket_is_in_no_file_system(tmp_path: Path) -> None:
    with supervised(tmp_path, f"@{tmp_path}/socket") as leading:
        leading.accept()
        assert b"1" == leading.say(b"1", leading.runs)
        assert [tmp_path / "started"] == [*tmp_path.iterdir()]


@contextmanager
def other_root(folder: Path, argument: str) -> Iterator[subprocess.Popen[str]]:
    """Have a process that ends with an argument, and in whose root a folder is what /mnt is."""
    script = f"mount --bind {folder} /mnt && echo mounted && read _"
    argv = ("unshare", "--mount", "sh", "-c", script, argument)
    with subprocess.Popen(argv, stdin=PIPE, stdout=PIPE, text=True) as process:
        try:
            assert "mounted\n" == next_line(process)
            yield process
        finally:
            process.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a mount namespace")
def test_the_program_sees_the_files_of_the_process_that_is_named(tmp_path: Path) -> None:
    """It neither runs before that is there nor after it has gone, and goes to the next one."""
    argument, folder = f"--config={tmp_path}", tmp_path / "files"
    folder.mkdir()

    def seen() -> os.stat_result:
        return os.stat(f"/proc/{at.started[-1]}/root/mnt")

    with supervised(tmp_path, str(tmp_path / "socket"), f"--root-of={argument}") as at:
        at.listener.settimeout(1)
        with pytest.raises(TimeoutError):
            at.accept()
        at.listener.settimeout(60)
        with other_root(folder, argument):
            at.accept()
            at.say(b"1", at.runs)
            assert os.path.samestat(folder.stat(), seen())
        wait_for(lambda: not at.runs())
        with other_root(folder, argument) as other:
            at.accept()
            at.say(b"1", at.runs)
            assert os.path.samestat(folder.stat(), seen())
            at.process.terminate()
            assert -signal.SIGKILL == other.wait(60)  # it would wait for its input for ever
