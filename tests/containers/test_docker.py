"""Debian's docker with the runtime: without a bridge, with storage and a socket of its own."""

import json
import re
import subprocess
import tarfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from attrs import frozen

from .conftest import Done, Machine, run, until
from .image import NAME

pytestmark = pytest.mark.containers

#: The first docker that knows CDI devices, then as an experimental feature.
KNOWS_CDI = 25


@frozen
class Docker:
    """The client of a docker daemon whose runtime `hetero` is the machine's."""

    machine: Machine
    socket: Path

    def __call__(self, *arguments: str) -> Done:
        return run(["docker", "--host", f"unix://{self.socket}", *arguments])

    def run(self, options: list[str], *command: str) -> Done:
        hetero = ("--runtime", "hetero", "--network", "none")
        return self("run", "--rm", *hetero, *options, NAME, *command)

    def output(self, *arguments: str) -> str:
        done = self(*arguments)
        assert (0, "") == (done.returncode, done.stderr)
        return done.stdout

    @property
    def major(self) -> int:
        return int(self.output("version", "--format", "{{.Server.Version}}").partition(".")[0])

    @contextmanager
    def standing(self, *options: str) -> Iterator[str]:
        """Have a container that runs until the block ends."""
        name = f"test-{uuid.uuid4().hex[:8]}"
        hetero = ("--detach", "--runtime", "hetero", "--network", "none", "--name", name)
        self.output("run", *hetero, *options, NAME, "sleep", "1000")
        try:
            yield name
        finally:
            self("rm", "--force", name)

    def grants(self) -> list[list[tuple[int, int, float | None]]]:
        """Return the number, MiB and core of each device of each grant that stands."""
        items = json.loads(self.machine.output("ps", "--json"))["items"]
        return [
            [(share["number"], share["memory"] >> 20, share["core"]) for share in item["shares"]]
            for item in items
        ]


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory, rootfs: Path) -> Iterator[Docker]:
    place = tmp_path_factory.mktemp("docker")
    machine = Machine(place / "machine")
    machine.set_up()
    docker = Docker(machine, place / "socket")
    with (place / "log").open("w") as log:
        server = subprocess.Popen(
            [
                *("dockerd", "--iptables=false", "--ip6tables=false", "--bridge=none"),
                *("--storage-driver=vfs", "--add-runtime", f"hetero={machine.runtime}"),
                *("--data-root", str(place / "data"), "--exec-root", str(place / "exec")),
                *("--pidfile", str(place / "pid"), "--host", f"unix://{docker.socket}"),
            ],
            stdout=log,
            stderr=log,
        )
    try:
        assert until(lambda: 0 == docker("version").returncode, within=30), (
            place / "log"
        ).read_text()[-2000:]
        layer = place / "layer.tar"
        with tarfile.open(layer, "w") as archive:
            archive.add(rootfs, ".")
        docker.output("import", "--change", "ENV PATH=/bin", str(layer), NAME)
        yield docker
        assert until(lambda: [] == docker.grants())
    finally:
        server.terminate()
        server.wait(timeout=30)


def asked(text: str) -> list[str]:
    return ["--env", f"HETERO={text}"]


def test_docker_gives_a_container_its_share(docker: Docker) -> None:
    done = docker.run(asked("0:mem=3276Mi"), "nvidia-smi")
    beyond = docker.run(asked("0:mem=3276Mi"), "job", "--alloc", "7600MiB")

    assert (0, "3276 MiB\n") == (done.returncode, done.stdout), done.stderr
    assert (1, "CUDA_ERROR_OUT_OF_MEMORY") == (
        beyond.returncode,
        json.loads(beyond.stdout)["error"],
    )


def test_docker_passes_the_older_form_and_what_is_started_later_has_the_share(
    docker: Docker,
) -> None:
    older = "POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=3276,WEIGHT=10:PGPU=1,MEM=8192,WEIGHT=20"
    with docker.standing("--env", f"EGPU={older}") as name:
        assert [[(0, 3276, 10), (1, 8192, 20)]] == docker.grants()
        assert "3276 MiB\n" == docker.output("exec", name, "nvidia-smi")


def test_docker_shows_why_a_container_is_refused(docker: Docker) -> None:
    done = docker.run(asked("count=1,mem=40Gi"), "true")

    assert 0 != done.returncode
    assert "0 of 4 devices: 4 too small" in done.stderr
    assert [] == docker.grants()


def test_a_container_that_docker_stops_frees_its_share_and_gets_it_again_when_started(
    docker: Docker,
) -> None:
    with docker.standing(*asked("0:mem=20Gi,core=60")) as name:
        assert [[(0, 20 << 10, 60)]] == docker.grants()
        docker.output("stop", "--time", "0", name)
        assert until(lambda: [] == docker.grants())
        docker.output("start", name)
        assert [[(0, 20 << 10, 60)]] == docker.grants()
        docker.output("stop", "--time", "0", name)
        with docker.standing(*asked("0:mem=20Gi,core=60")):
            done = docker("start", name)
            assert 0 != done.returncode
            assert "0 of 4 devices: 1 lack memory" in done.stderr


def test_a_container_that_asks_for_nothing_passes_docker_untouched(docker: Docker) -> None:
    done = docker.run([], "ls", "/etc")

    assert (0, "") == (done.returncode, done.stderr)
    assert "hetero" not in done.stdout


def test_docker_takes_a_share_by_its_name_where_it_knows_cdi(docker: Docker) -> None:
    """Where it does not, it says so and starts nothing: a container never runs without limits."""
    with docker.machine.share("--device", "0", "--memory", "2Gi") as name:
        device = ["--device", f"hetero.io/share={name}"]
        done = docker("run", "--rm", "--network", "none", *device, NAME, "nvidia-smi")

    if docker.major >= KNOWS_CDI:
        assert (0, "2048 MiB\n") == (done.returncode, done.stdout), done.stderr
    else:
        assert (125, "") == (done.returncode, done.stdout)
        # The client since 25 asks for a driver "cdi"; an older one takes the name for a path.
        assert re.search(f'"cdi"|hetero.io/share={name}', done.stderr)
