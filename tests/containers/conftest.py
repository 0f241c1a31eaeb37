"""A machine with four simulated cards of 32 GiB, and real engines that start containers on it."""

import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from attrs import frozen

from tests.programs import completed

from .image import NAME, root_filesystem, write_image

_CARD = "[device]\nvendor = nvidia\nmodel = Card 32GB\nmemory = 32 GiB\nuuid = {}\n"
_KERNEL = "[kernel spin]\ntime = 2 us\nper_arg0 = 1 ns\n"

Done = subprocess.CompletedProcess[str]


def run(command: list[str], *, environ: dict[str, str] | None = None) -> Done:
    return completed(command, env=environ, timeout=120)


@frozen
class Machine:
    """A rack with books of its own, and the OCI runtime installed for it."""

    directory: Path

    @property
    def uuids(self) -> list[str]:
        mark = uuid.uuid5(uuid.NAMESPACE_URL, str(self.directory)).hex[:8]
        return [f"GPU-{mark}-0000-4000-8000-00000000000{card}" for card in range(4)]

    @property
    def environ(self) -> dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("HETERO_", "LD_"))}
        rack, state = self.directory / "four.rack", self.directory / "state"
        return {**clean, "HETERO_RACK": str(rack), "HETERO_STATE": str(state), "COLUMNS": "200"}

    @property
    def runtime(self) -> str:
        return str(self.directory / "usr/local/bin/hetero-runtime")

    def set_up(self) -> None:
        self.directory.mkdir()
        cards = "".join(map(_CARD.format, self.uuids))
        (self.directory / "four.rack").write_text(cards + _KERNEL)
        done = self.hetero("runtime", "install", "--prefix", str(self.directory), "--yes")
        assert (0, "") == (done.returncode, done.stderr)

    def hetero(self, *arguments: str) -> Done:
        return run([sys.executable, "-m", "hetero.cli", *arguments], environ=self.environ)

    def output(self, *arguments: str) -> str:
        done = self.hetero(*arguments)
        assert (0, "") == (done.returncode, done.stderr)
        return done.stdout

    @contextmanager
    def share(self, *arguments: str) -> Iterator[str]:
        """Have a share whose name nobody else's share of this machine has."""
        name = f"test-{uuid.uuid4().hex[:8]}"
        self.output("share", "create", name, *arguments)
        try:
            yield name
        finally:
            assert until(lambda: self.hetero("share", "rm", name).returncode in (0, 4))


def until(true: Callable[[], bool], *, within: float = 10) -> bool:
    deadline = time.monotonic() + within
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@frozen
class Podman:
    """podman with storage of its own, as root in a place without systemd."""

    machine: Machine
    storage: Path

    def _global(self, runtime: str | None) -> list[str]:
        return [
            *(*_stored(self.storage), "--cgroup-manager=cgroupfs"),
            *("--runtime", runtime or self.machine.runtime),
        ]

    def __call__(self, *arguments: str) -> Done:
        return run([*self._global(None), *arguments])

    def command(self, *options: str, image: str = NAME, runtime: str | None = None) -> list[str]:
        """Return the start of a `podman run`; the command inside follows."""
        limits = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")
        return [
            *(*self._global(runtime), "run", "--rm", "--network=host"),
            *(*limits, *options, image),
        ]

    def run(self, options: list[str], *command: str, image: str = NAME) -> Done:
        return run([*self.command(*options, image=image), *command])

    def output(self, options: list[str], *command: str, image: str = NAME) -> str:
        done = self.run(options, *command, image=image)
        assert (0, "") == (done.returncode, done.stderr)
        return done.stdout

    @contextmanager
    def standing(self, options: list[str], *command: str, name: str | None = None) -> Iterator[str]:
        """Have a container that stands until the block ends."""
        name = name or f"test-{uuid.uuid4().hex[:8]}"
        words = command or ("sleep", "1000")
        done = run([*self.command("--detach", "--name", name, *options), *words])
        assert (0, "") == (done.returncode, done.stderr)
        try:
            yield name
        finally:
            self("rm", "--force", "--time", "0", name)


def load(storage: Path, archive: Path) -> None:
    done = run([*_stored(storage), "load", "--input", str(archive)])
    assert 0 == done.returncode, done.stderr


def _stored(storage: Path) -> list[str]:
    return ["podman", "--root", str(storage / "root"), "--runroot", str(storage / "run")]


@pytest.fixture(scope="session", autouse=True)
def _engines() -> None:
    needed = ("podman", "runc", "ctr", "busybox", "dockerd")
    missing = [name for name in needed if shutil.which(name) is None]
    if os.geteuid() != 0 or missing:
        lacks = f"; not installed: {', '.join(missing)}" if missing else ""
        pytest.skip(
            f"needs root{lacks} (.ci/packages podman runc containerd docker.io busybox-static "
            "installs them)"
        )


@pytest.fixture(scope="session")
def rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return root_filesystem(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="session")
def archive(rootfs: Path) -> Path:
    path = rootfs.parent / "image.tar"
    write_image(rootfs, path)
    return path


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "machine")
    machine.set_up()
    yield machine
    # What stands on the machine when the test is over would be a grant that was lost.
    assert until(lambda: machine.output("ps").endswith("no grants stand\n"))


@pytest.fixture(scope="session")
def storage(archive: Path) -> Iterator[Path]:
    path = archive.parent / "storage"
    load(path, archive)
    yield path
    run([*_stored(path), "rmi", "--all", "--force"])


@pytest.fixture
def podman(machine: Machine, storage: Path) -> Podman:
    return Podman(machine, storage)
