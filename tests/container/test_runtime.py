"""The OCI runtime before it becomes the real one: what it reads, writes, holds, and lets go of."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hetero.container import runtime
from hetero.node.ledger.ledger import Ledger
from hetero.node.simulation import simulation
from hetero.registry.registry import Registry
from tests.node.conftest import killed_at
from tests.programs import completed

_RACK = """
[device]
vendor = nvidia
model = Card
memory = 32 GiB
"""


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle that asks for a simulated card, on a machine with books of its own."""
    (tmp_path / "rack").write_text(_RACK)
    monkeypatch.setenv("HETERO_RACK", str(tmp_path / "rack"))
    monkeypatch.setenv("HETERO_STATE", str(tmp_path / "state"))
    path = tmp_path / "bundle"
    (path / "rootfs/etc").mkdir(parents=True)
    write(path, asked="0:mem=3276Mi,core=10")
    return path


def write(bundle: Path, *, asked: str | None, **more: Any) -> None:
    env = ["PATH=/bin", *([f"HETERO={asked}"] if asked else [])]
    config = {"process": {"env": env, "args": ["job"]}, "root": {"path": "rootfs"}, **more}
    (bundle / "config.json").write_text(json.dumps(config))


def read(bundle: Path) -> Any:
    return json.loads((bundle / "config.json").read_text())


def call(bundle: Path, *, real: str = "/bin/true") -> subprocess.CompletedProcess[str]:
    log = ("--log", str(bundle / "log"), "--log-format=json")
    states = ("--root", str(bundle / "states"))
    return completed(
        [
            *(sys.executable, "-IS", runtime.__file__, real),
            *(*states, *log, "create", "--bundle", str(bundle), "one"),
        ]
    )


def grants() -> list[str]:
    # Not by `Node.here`, which would load the simulated drivers into this process for good.
    simulated = simulation(os.environ)
    assert simulated
    snapshot = Ledger(Path(os.environ["HETERO_STATE"]) / simulated.name).snapshot()
    return [entry.id for entry in snapshot.grants]


def events() -> str:
    logs = (Path(os.environ["HETERO_STATE"]) / "persistent").rglob("log")
    return "".join(path.read_text() for path in logs)


def test_the_config_gets_what_confines_the_container(bundle: Path) -> None:
    assert 0 == call(bundle).returncode

    config = read(bundle)
    mounts = {mount["destination"]: mount for mount in config["mounts"]}
    assert ["ro", "nosuid", "nodev", "bind"] == mounts["/etc/hetero/grant"]["options"]
    assert {"/etc/hetero/grant", "/etc/ld.so.preload", "/usr/lib64/libcuda.so.1"} <= set(mounts)
    assert any(variable.startswith("CUDA_VISIBLE") for variable in config["process"]["env"])
    assert not any(variable.startswith("LD_") for variable in config["process"]["env"])
    assert [] == grants()  # /bin/true makes no container


def test_a_whole_card_for_a_part_is_said_where_the_container_is_made_and_in_the_log(
    bundle: Path, tmp_path: Path
) -> None:
    card = "[device]\nvendor = mthreads\nmodel = MTT S80\nmemory = 16 GiB\n"
    (tmp_path / "rack").write_text(card)
    done = call(bundle)

    why = "hetero: container one: MTT S80 is given whole for a part of it: it has no parts"
    assert (0, f"{why}\n") == (done.returncode, done.stderr)
    (logged,) = map(json.loads, (bundle / "log").read_text().splitlines())
    assert ("warning", why) == (logged["level"], logged["msg"])
    assert "given whole for a part of it" in events()


def test_a_share_that_is_one_says_nothing_where_the_container_is_made(bundle: Path) -> None:
    done = call(bundle)

    assert (0, "") == (done.returncode, done.stderr)
    assert not (bundle / "log").exists()


def test_a_container_that_asks_nothing_is_left_as_it_is(bundle: Path) -> None:
    write(bundle, asked=None)
    before = (bundle / "config.json").read_bytes()

    assert 0 == call(bundle).returncode
    assert before == (bundle / "config.json").read_bytes()


def test_what_the_engine_brought_stays_and_an_earlier_start_leaves_nothing(bundle: Path) -> None:
    brought = [
        {"destination": "/usr/lib64/libcuda.so.1", "source": "/theirs"},
        {"destination": "/etc/hetero/page.7", "source": "/earlier"},
        {"destination": "/proc", "type": "proc", "source": "proc"},
    ]
    write(bundle, asked="0:mem=1Gi", mounts=brought)
    call(bundle)
    once = [mount["destination"] for mount in read(bundle)["mounts"]]
    call(bundle)

    mounts = {mount["destination"]: mount["source"] for mount in read(bundle)["mounts"]}
    assert ("/theirs", "proc") == (mounts["/usr/lib64/libcuda.so.1"], mounts["/proc"])
    assert "/etc/hetero/page.7" not in mounts
    assert sorted(once) == sorted(mount["destination"] for mount in read(bundle)["mounts"])


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("0:mem=40960Mi", "1 too small"),
        ("0:core=110", "core '110' is not a percentage"),
        ("7:mem=1Gi", "no device '7' here"),
    ],
)
def test_a_refusal_is_one_sentence_where_the_engine_looks_for_it(
    bundle: Path, asked: str, says: str
) -> None:
    write(bundle, asked=asked)
    before = (bundle / "config.json").read_bytes()

    done = call(bundle)

    assert 1 == done.returncode
    assert done.stderr.startswith("hetero: container one: ")
    assert says in done.stderr
    assert done.stderr.strip() == json.loads((bundle / "log").read_text())["msg"]
    assert ([], before) == (grants(), (bundle / "config.json").read_bytes())


def test_a_runtime_that_cannot_be_started_gives_the_grant_back(bundle: Path) -> None:
    done = call(bundle, real="/no/such/runtime")

    assert (1, True) == (done.returncode, "/no/such/runtime: No such file" in done.stderr)
    assert [] == grants()


@pytest.mark.timeout(600)  # one process a step
def test_killed_at_any_step_it_leaves_no_grant(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each vendor's process is some twenty steps more that change nothing of a grant.
    (tmp_path / "config.toml").write_text('[vendors]\nallow = ["hetero-nvidia"]\n')
    monkeypatch.setenv("HETERO_CONFIG", str(tmp_path / "config.toml"))
    Registry().declarations()  # what is imported is the same each time

    def create() -> None:
        runtime.main("/bin/true", ["create", "--bundle", str(bundle), "one"])

    write(bundle, asked="0:mem=32Gi")  # a grant left behind would be in the way of the next
    step = 0
    while killed_at(step := step + 1, create):
        assert [] == grants()
        write(bundle, asked="0:mem=32Gi")

    assert step > 20


# --- what the image preloads by itself --------------------------------------------------------


def test_an_image_keeps_what_it_preloads(bundle: Path, tmp_path: Path) -> None:
    (bundle / "rootfs/etc/ld.so.preload").write_text(
        "# a comment\n/opt/a.so:/opt/b.so\n /c.so # d\n"
    )
    # Instead of a runtime: copy what would be mounted, while the grant stands.
    spy = tmp_path / "spy"
    spy.write_text(f"#!/bin/sh\ncp {tmp_path}/state/*/grants/*/tenant/ld.so.preload {tmp_path}\n")
    spy.chmod(0o755)

    assert 0 == call(bundle, real=str(spy)).returncode

    limiter, *own = (tmp_path / "ld.so.preload").read_text().split()
    assert ("/etc/hetero/libhetero-cuda.so", ["/opt/a.so", "/opt/b.so", "/c.so"]) == (limiter, own)


@pytest.mark.parametrize("name", ["etc", "etc/ld.so.preload"])
def test_a_link_in_the_image_is_not_followed_out_of_it(bundle: Path, name: str) -> None:
    path = bundle / "rootfs" / name
    if path.exists():
        path.rmdir()
    path.symlink_to("/etc" if name == "etc" else "/etc/passwd")

    done = call(bundle)

    assert 1 == done.returncode
    assert "the image's /etc/ld.so.preload: " in done.stderr
    assert [] == grants()


def test_a_pipe_in_the_image_does_not_hold_the_runtime_up(bundle: Path) -> None:
    os.mkfifo(bundle / "rootfs/etc/ld.so.preload")

    done = call(bundle)

    assert (1, True) == (done.returncode, "ld.so.preload: is not a file" in done.stderr)
    assert stat.S_ISFIFO((bundle / "rootfs/etc/ld.so.preload").stat().st_mode)
