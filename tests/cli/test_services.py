"""A card that its programs share by a service: NVIDIA's MPS, whose command line is simulated."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import hetero_nvidia
import hetero_simulator
import pytest

from hetero.node.ledger.grant_file import read_limits
from hetero.plugin import Enforcement, GiB
from tests.programs import WITHOUT_LIMITER, completed

from .conftest import Begin, Run

CONTROL = hetero_simulator.programs() / "nvidia-cuda-mps-control"
JOB = str(hetero_simulator.job("cuda"))


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "node.toml"
    path.write_text('[cards]\nsharing = "mps"\n')
    return path


@pytest.fixture
def environ(environ: dict[str, str], settings: Path, one_card: Path) -> Iterator[dict[str, str]]:
    own = {"HETERO_RACK": str(one_card), "HETERO_CONFIG": str(settings), "PYTHONPATH": ""}
    own["MPS_ENDS_WITH"] = str(os.getpid())  # also where these tests are interrupted
    # The control program is one of Python: not by a version manager's script, which is slow
    own["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as short:
        # A socket's path has 107 characters at most
        yield {**environ, **own, "HETERO_STATE": short}
        for left in Path(short).glob("*/services/*"):
            asked(left, "quit")
        for mounted in Path(short).glob("*/boards"):  # heterod's
            subprocess.run(["umount", "--lazy", mounted], check=False, capture_output=True)


def eventually(what: Callable[[], object]) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + 120
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def service(environ: Mapping[str, str]) -> Callable[[], Path | None]:
    """Return the directory of the one service that runs, if any."""

    def find() -> Path | None:
        directories = [*Path(environ["HETERO_STATE"]).glob("*/services/*")]
        return directories[0] if directories else None

    return find


def asked(service: Path, command: str) -> list[str]:
    """Return what the control daemon answers to a command, as a user would ask it."""
    done = completed(
        [CONTROL],
        env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(service / "pipe")},
        input=f"{command}\n",
        timeout=60,
    )
    return done.stdout.split()


def clients(service: Path) -> list[str]:
    return [
        client
        for server in asked(service, "get_server_list")
        for client in asked(service, f"get_client_list {server}")
    ]


Find = Callable[[], "Path | None"]


def test_a_program_on_such_a_card_meets_its_service(
    hetero: Run,
    begin: Begin,
    command: tuple[str, ...],
    service: Find,
    environ: Mapping[str, str],
) -> None:
    assert "service" in hetero("inventory").stdout

    job = begin(*command, "run", "--memory", "2Gi", "--", JOB, "--seconds", "600")
    eventually(lambda: (place := service()) and clients(place) == [str(job.pid)])

    place = service()
    assert place is not None
    assert ["2048M"] == asked(place, "get_default_device_pinned_mem_limit 0")
    (limits,) = map(read_limits, Path(environ["HETERO_STATE"]).glob("*/grants/*/tenant/grant"))
    assert [True] == [limit.service for limit in limits]  # what its limiter goes by
    job.kill()
    job.wait()
    eventually(lambda: service() is None)


def test_a_container_gets_the_pipe_directory_and_the_shared_memory_by_mounts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", f"{CONTROL.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HETERO_SHM", "/run/hetero-shm")
    device = hetero_nvidia.hetero_vendor().device(
        uuid="GPU-1", model="NVIDIA L4", index=0, memory=GiB, enforcement=Enforcement.PRELOAD
    )
    with tempfile.TemporaryDirectory() as short:
        driver = hetero_nvidia.hetero_serve(device, Path(short))
        begun, gone = driver.start(GiB), driver.stop()

    pipe = f"{short}/pipe"
    assert {"CUDA_MPS_PIPE_DIRECTORY": pipe} == begun.edits.env
    assert [(pipe, pipe, False), ("/run/hetero-shm", "/dev/shm", True)] == [
        (mount.source, mount.target, mount.writable) for mount in begun.edits.mounts
    ]
    assert (True, False) == (begun.running, gone.running)


def test_a_program_that_is_killed_while_its_service_starts_leaves_none(
    begin: Begin, command: tuple[str, ...], service: Find
) -> None:
    job = begin(*command, "run", "--memory", "1Gi", "--", "sleep", "600")
    eventually(service)  # its directory is made before it is started
    job.kill()
    job.wait()

    eventually(lambda: service() is None)


def test_the_service_limits_programs_to_the_largest_grant(
    hetero: Run, begin: Begin, command: tuple[str, ...], service: Find
) -> None:
    begin(*command, "run", "--memory", "1Gi", "--", "sleep", "600")
    eventually(service)
    assert 0 == hetero("run", "--memory", "3Gi", "--", "true").returncode

    place = service()
    assert place is not None
    assert ["3072M"] == asked(place, "get_default_device_pinned_mem_limit 0")


def test_a_program_has_the_part_of_the_multiprocessors_that_it_asked_for(
    hetero: Run, begin: Begin, command: tuple[str, ...]
) -> None:
    name = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
    begin(*command, "run", "--core", "30", "--memory", "1Gi", "--", "sleep", "600")
    eventually(lambda: "sleep" in hetero("ps").stdout)
    begin(*command, "run", "--sm", "40", "--memory", "1Gi", "--label", "part", "--", "sleep", "600")
    eventually(lambda: "part" in hetero("ps").stdout)

    items = json.loads(hetero("ps", "--json").stdout)["items"]
    (share,) = next(item["shares"] for item in items if item["label"] == "part")
    refused = hetero("run", "--sm", "40", "--memory", "1Gi", "--", "true")
    without = hetero("run", "--core", "30", "--memory", "1Gi", "--", "env").stdout
    resized = hetero("resize", "part", "--core", "10")

    assert (40, None, False) == (share["sm"], share["core"], share["rest"])
    assert "40 % of SMs" in hetero("ps").stdout
    assert 3 == refused.returncode  # 70 of the card are promised
    assert "core" in refused.stderr
    assert name not in without
    assert "decided when its program starts" in resized.stderr
    assert 0 == hetero("resize", "part", "--memory", "2Gi").returncode
    assert f"{name}=25\n" in hetero("run", "--sm", "25", "--memory", "1Gi", "--", "env").stdout


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--sm", "100"), "sm '100' is not a percentage: write a whole number from 1 to 99"),
        (("--sm", "30", "--core", "30"), "core and sm are both given"),
        (("--sm", "x"), "sm 'x'"),
    ],
)
def test_a_part_of_the_multiprocessors_that_is_none_is_refused(
    hetero: Run, options: tuple[str, ...], says: str
) -> None:
    refused = hetero("run", *options, "--memory", "1Gi", "--", "true")

    assert 2 == refused.returncode
    assert says in refused.stderr


def test_what_such_a_card_gives_up_is_said(hetero: Run) -> None:
    ran = hetero("run", "--memory", "1Gi", "--", "true")

    assert "shares its card by a service" in ran.stderr


def test_a_card_changes_its_mode_when_no_grant_stands(
    hetero: Run, begin: Begin, command: tuple[str, ...], settings: Path, service: Find
) -> None:
    sleeper = begin(*command, "run", "--memory", "1Gi", "--", "sleep", "600")
    eventually(lambda: "sleep" in hetero("ps").stdout)
    eventually(service)
    settings.write_text('[cards]\nsharing = "time"\n')

    refused = hetero("run", "--memory", "1Gi", "--", "true")
    sleeper.kill()
    sleeper.wait()
    eventually(lambda: service() is None)

    assert 3 == refused.returncode
    assert "cards.sharing was changed for it" in refused.stderr
    ran = hetero("run", "--memory", "1Gi", "--", "env")
    assert 0 == ran.returncode
    assert "CUDA_MPS" not in ran.stdout


def test_a_grant_of_several_cards_needs_cards_without_a_service(hetero: Run) -> None:
    refused = hetero("fit", "--count", "2", "--memory", "1Gi", HETERO_RACK="mixed")

    assert "shared by a service, which is of one card" in refused.stdout + refused.stderr


def test_each_card_may_be_shared_in_its_own_way(hetero: Run, settings: Path) -> None:
    settings.write_text('[cards.sharing]\n0 = "mps"\n')

    items = json.loads(hetero("inventory", "--json", HETERO_RACK="mixed").stdout)["items"]
    nvidia = [item["enforcement"] for item in items if item["vendor"] == "nvidia"]

    assert "service" == nvidia[0]
    assert {"service"}.isdisjoint(nvidia[1:])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('sharing = "MPS"', "cards.sharing 'MPS' is none of time, mps"),
        ("sharing = 1", "cards.sharing 1 is none of time, mps"),
        ('sharing = { 0 = "fast" }', "cards.sharing.0 'fast' is none of time, mps"),
    ],
)
def test_a_way_of_sharing_that_is_none_is_refused(
    hetero: Run, settings: Path, text: str, says: str
) -> None:
    settings.write_text(f"[cards]\n{text}\n")

    refused = hetero("inventory")

    assert 2 == refused.returncode
    assert says in refused.stderr


def test_a_driver_that_serves_one_user_at_a_time_is_known(
    hetero: Run, begin: Begin, command: tuple[str, ...], service: Find
) -> None:
    begin(*command, "run", "--memory", "1Gi", "--", "sleep", "600", MPS_OLD="yes")
    eventually(lambda: (place := service()) and (place / "one-user").exists())

    again = hetero("run", "--memory", "1Gi", "--", "true", MPS_OLD="yes")

    assert 0 == again.returncode  # the same user


def test_a_card_without_a_service_gives_no_part_of_its_multiprocessors(
    hetero: Run, settings: Path
) -> None:
    settings.write_text("")
    refused = hetero("fit", "--sm", "30", "--memory", "1Gi")

    assert 3 == refused.returncode
    assert "not shared by a service, as sm needs" in refused.stdout + refused.stderr


def test_a_card_whose_vendor_has_no_service_is_not_given_out(hetero: Run, settings: Path) -> None:
    items = json.loads(hetero("inventory", "--json", HETERO_RACK="amd").stdout)["items"]
    settings.write_text(f'[cards.sharing]\n"{items[0]["uuid"]}" = "mps"\n')

    again = json.loads(hetero("inventory", "--json", HETERO_RACK="amd").stdout)["items"]

    assert "cards.sharing says mps, and amd has no service for that" == again[0]["health"]
    assert ["ok"] * (len(items) - 1) == [item["health"] for item in again[1:]]


def test_a_program_that_is_released_is_taken_off_its_service_first(
    hetero: Run, begin: Begin, command: tuple[str, ...], service: Find
) -> None:
    job = begin(*command, "run", "--label", "job", "--memory", "2Gi", "--", JOB, "--seconds", "600")
    eventually(lambda: (place := service()) and clients(place) == [str(job.pid)])
    neighbour = begin(*command, "run", "--memory", "1Gi", "--", "sleep", "600")
    eventually(lambda: "sleep" in hetero("ps").stdout)
    place = service()
    assert place is not None

    assert 0 == hetero("release", "--force", "job").returncode

    assert 0 > job.wait()
    assert f"{job.pid} lived\n" == (place / "log" / "terminated").read_text()
    assert neighbour.poll() is None


def test_a_program_that_is_ended_for_a_bypass_is_taken_off_its_service_first(
    begin: Begin, command: tuple[str, ...], service: Find
) -> None:
    begin(*command, "daemon")
    begin(*command, "run", "--memory", "1Gi", "--", "sleep", "600")  # so that the service stays
    eventually(service)
    job = begin(
        *(*command, "run", "--on-bypass", "kill", "--memory", "1Gi", "--"),
        *(*WITHOUT_LIMITER, JOB, "--seconds", "600", "--memory", "256MiB"),
    )

    assert -signal.SIGKILL == job.wait()
    place = service()
    assert place is not None
    assert f"{job.pid} lived\n" == (place / "log" / "terminated").read_text()


def test_a_fault_is_told_of_and_the_service_is_started_anew(
    hetero: Run, begin: Begin, command: tuple[str, ...], service: Find
) -> None:
    begin(*command, "daemon")
    job = begin(*command, "run", "--memory", "2Gi", "--", JOB, "--seconds", "600")
    eventually(lambda: (place := service()) and clients(place) == [str(job.pid)])
    place = service()
    assert place is not None
    (server,) = asked(place, "get_server_list")

    (place / "pipe/fault").touch()
    eventually(lambda: "lost its work on its card: the service" in hetero("ps").stdout)
    refused = hetero("run", "--memory", "1Gi", "--", "true")
    job.kill()
    job.wait()
    (place / "pipe/fault").unlink()  # a new server has none
    eventually(lambda: not hetero("run", "--memory", "1Gi", "--", "true").returncode)
    neighbour = begin(*command, "run", "--memory", "1Gi", "--", JOB, "--seconds", "600")

    assert "is being started anew after a fault" in refused.stderr
    eventually(lambda: asked(place, "get_server_list") not in ([server], []))
    assert "lost its work" not in hetero("ps").stdout
    assert neighbour.poll() is None


def test_a_service_that_is_killed_is_started_anew(
    hetero: Run, begin: Begin, command: tuple[str, ...], service: Find
) -> None:
    begin(*command, "daemon")
    job = begin(*command, "run", "--memory", "2Gi", "--", JOB, "--seconds", "600")
    eventually(lambda: (place := service()) and clients(place) == [str(job.pid)])
    place = service()
    assert place is not None
    before = int((place / "pipe/nvidia-cuda-mps-control.pid").read_text())

    os.kill(before, signal.SIGKILL)

    eventually(lambda: int((place / "pipe/nvidia-cuda-mps-control.pid").read_text()) != before)
    eventually(lambda: clients(place) == [str(job.pid)])


def test_a_service_outlives_the_daemon_that_started_it(
    begin: Begin, command: tuple[str, ...], service: Find
) -> None:
    """The next one finds it by its directory. Its group is none that ends with the first one."""
    first = begin(*command, "daemon")
    job = begin(*command, "run", "--memory", "1Gi", "--", JOB, "--seconds", "600")
    eventually(lambda: (place := service()) and clients(place) == [str(job.pid)])
    place = service()
    assert place is not None
    control = (place / "pipe/nvidia-cuda-mps-control.pid").read_text().strip()
    groups = Path(f"/proc/{control}/cgroup").read_text().splitlines()
    cgroups = Path(f"/proc/{first.pid}/cgroup").read_text().splitlines()
    apart = [*Path("/sys/fs/cgroup").glob("**/hetero-services/cgroup.procs")]

    first.kill()
    first.wait()
    begin(*command, "daemon")
    neighbour = begin(*command, "run", "--memory", "1Gi", "--", JOB, "--seconds", "600")

    eventually(lambda: clients(place) == sorted((str(job.pid), str(neighbour.pid)), key=int))
    assert control == (place / "pipe/nvidia-cuda-mps-control.pid").read_text().strip()
    assert job.poll() is None
    assert len(apart) == sum(group.endswith("/hetero-services") for group in groups)
    assert not any(group.endswith("/hetero-services") for group in cgroups)


def test_a_simulated_service_ends_with_the_test_that_was_interrupted(tmp_path: Path) -> None:
    environ = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    with subprocess.Popen(["sleep", "600"]) as test:
        started = {**environ, "MPS_ENDS_WITH": str(test.pid)}
        subprocess.run([CONTROL, "-d"], env=started, check=True, timeout=60)
        daemon = int((tmp_path / "nvidia-cuda-mps-control.pid").read_text())
        ran = Path(f"/proc/{daemon}").exists()
        test.kill()

    assert ran
    eventually(lambda: not Path(f"/proc/{daemon}").exists())
