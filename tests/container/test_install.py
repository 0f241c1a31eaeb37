"""Registering the runtime and heterod changes a few files, and taking them out puts each back."""

import json
import sys
from pathlib import Path

import pytest

from hetero.container.install import (
    apply,
    installation,
    removal,
    service_installation,
    service_removal,
)
from hetero.model.errors import BadInput, NotFound
from hetero.node.daemon_client import SOCKET
from hetero.node.place import SYSTEM
from tests.programs import completed

BEFORE = '{"log-level": "info",\n  "runtimes": {"kata": {"path": "/kata"}}}'


def files(prefix: Path) -> dict[str, str]:
    return {
        str(path.relative_to(prefix)): path.read_text()
        for path in sorted(prefix.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def docker(tmp_path: Path) -> Path:
    path = tmp_path / "etc/docker/daemon.json"
    path.parent.mkdir(parents=True)
    path.write_text(BEFORE)
    return path


def install(prefix: Path) -> None:
    apply(installation(prefix=prefix, real_runtime="true", environ={"HETERO_STATE": "/a b"}))


def test_docker_and_podman_know_the_runtime_and_docker_keeps_its_settings(
    tmp_path: Path, docker: Path
) -> None:
    install(tmp_path)

    runtimes = {"kata": {"path": "/kata"}, "hetero": {"path": "/usr/local/bin/hetero-runtime"}}
    assert {"log-level": "info", "runtimes": runtimes} == json.loads(docker.read_text())
    podman = files(tmp_path)["etc/containers/containers.conf.d/hetero.conf"]
    assert '[engine.runtimes]\nhetero = ["/usr/local/bin/hetero-runtime"]\n' == podman
    script = files(tmp_path)["usr/local/bin/hetero-runtime"]
    assert "export HETERO_STATE='/a b'\n" in script
    assert [] == installation(
        prefix=tmp_path, real_runtime="true", environ={"HETERO_STATE": "/a b"}
    )


def test_taking_it_out_puts_everything_back_to_the_byte(tmp_path: Path, docker: Path) -> None:
    before = files(tmp_path)
    install(tmp_path)
    install(tmp_path)
    apply(removal(prefix=tmp_path))

    assert before == files(tmp_path)
    assert [] == removal(prefix=tmp_path)


def test_what_was_changed_since_stays_when_it_is_taken_out(tmp_path: Path, docker: Path) -> None:
    install(tmp_path)
    docker.write_text(docker.read_text().replace("info", "debug"))
    apply(removal(prefix=tmp_path))

    left = {"log-level": "debug", "runtimes": {"kata": {"path": "/kata"}}}
    assert left == json.loads(docker.read_text())


def test_settings_that_cannot_be_read_are_not_touched(tmp_path: Path, docker: Path) -> None:
    docker.write_text("{")

    with pytest.raises(BadInput, match="mend it first"):
        installation(prefix=tmp_path, real_runtime="true", environ={})


def test_a_machine_without_a_runtime_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no OCI runtime no-such is on the PATH"):
        installation(prefix=tmp_path, real_runtime="no-such", environ={})


def test_it_shows_what_it_changes_and_asks_first(tmp_path: Path, docker: Path) -> None:
    before = files(tmp_path)
    command = [sys.executable, "-m", "hetero.cli", "runtime", "install", "--runtime", "true"]
    done = completed([*command, "--prefix", str(tmp_path)], input="n\n")

    assert (130, before) == (done.returncode, files(tmp_path))
    assert '+hetero = ["/usr/local/bin/hetero-runtime"]' in done.stdout
    assert f"+++ {docker}" in done.stdout


def test_the_units_of_heterod_are_written_and_taken_out(tmp_path: Path) -> None:
    environ = {"HETERO_CONFIG": "/etc/100 % mine.toml"}
    apply(service_installation(prefix=tmp_path, environ=environ))

    units = ("heterod-setup.service", "heterod.service", "heterod.socket")
    assert [f"etc/systemd/system/{name}" for name in units] == [*files(tmp_path)]
    service = files(tmp_path)["etc/systemd/system/heterod.service"].splitlines()
    assert f'ExecStart="{sys.executable}" "-Im" "hetero.cli" "daemon"' in service
    assert 'Environment="HETERO_CONFIG=/etc/100 %% mine.toml"' in service
    # Programs have files of this directory mapped when the service stops.
    assert {"RuntimeDirectoryPreserve=yes", "NoNewPrivileges=yes"} <= {*service}
    socket = files(tmp_path)["etc/systemd/system/heterod.socket"].splitlines()
    assert f"ListenStream={SYSTEM / SOCKET}" in socket
    assert [] == service_installation(prefix=tmp_path, environ=environ)

    apply(service_removal(prefix=tmp_path))

    assert {} == files(tmp_path)
    assert [] == service_removal(prefix=tmp_path)


def test_a_service_with_a_ledger_of_its_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="HETERO_STATE is set"):
        service_installation(prefix=tmp_path, environ={"HETERO_STATE": "/elsewhere"})


def test_what_starts_heterod_is_there() -> None:
    done = completed([sys.executable, "-Im", "hetero.cli", "daemon", "--help"])

    assert (0, "") == (done.returncode, done.stderr)
    assert "Be heterod" in done.stdout
