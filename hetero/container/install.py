"""Registers the OCI runtime `hetero` with docker and podman, and heterod with systemd."""

from __future__ import annotations

import difflib
import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from hetero.container import runtime
from hetero.model.errors import BadInput, HeteroError, NotFound, Refused
from hetero.node.ledger.grant_dir import replace
from hetero.node.node import Node

NAME = "hetero"
_WRAPPER = "usr/local/bin/hetero-runtime"
_PODMAN = "etc/containers/containers.conf.d/hetero.conf"
_DOCKER = "etc/docker/daemon.json"
_UNITS = "etc/systemd/system"
#: What of our environment the runtime needs: engines start it with one of their own.
_PASSED = ("HETERO_STATE", "HETERO_CONFIG", "HETERO_RACK")


#: systemd holds the socket, so that no connection is lost while heterod is started again. The
#: ledger's directory outlives the service: programs have its files mapped. Drivers are asked in the
#: service, so devices, /sys and what drivers load stay within its reach.
_SOCKET_UNIT = """\
[Unit]
Description=Socket of heterod, which shares this machine's accelerators among its users

[Socket]
ListenStream=/run/hetero/heterod.sock
SocketMode=0666
DirectoryMode=0755
Backlog=256
RemoveOnStop=yes

[Install]
WantedBy=sockets.target
"""
#: A unit of its own: what mounts for all users may have no sandbox, which is a mount namespace.
#: systemd gives `ExecStartPre=+` that of its service, too (seen with 252).
_SETUP_UNIT = """\
[Unit]
Description=The files that heterod shows to all users

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={command} --set-up
{environment}"""
_SERVICE_UNIT = """\
[Unit]
Description=heterod, which shares this machine's accelerators among its users
Requires=heterod.socket heterod-setup.service
After=heterod.socket heterod-setup.service

[Service]
ExecStart={command}
{environment}\
Restart=always
RestartSec=1
RuntimeDirectory=hetero
RuntimeDirectoryMode=0755
RuntimeDirectoryPreserve=yes
StateDirectory=hetero
LimitNOFILE=4096
TasksMax=128
NoNewPrivileges=yes
ProtectSystem=full
ProtectHome=read-only
ProtectHostname=yes
ProtectClock=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
RestrictAddressFamilies=AF_UNIX AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native

[Install]
WantedBy=multi-user.target
Also=heterod.socket
"""
_HETEROD_UNITS = {
    "heterod.socket": _SOCKET_UNIT,
    "heterod-setup.service": _SETUP_UNIT,
    "heterod.service": _SERVICE_UNIT,
}


@frozen
class Change:
    """A file before (None: absent) and after the change."""

    path: Path
    before: str | None
    after: str | None
    executable: bool = False

    def diff(self) -> str:
        """Return the change as `diff -u` shows it."""
        lines = [
            (file_text or "").splitlines(keepends=True) for file_text in (self.before, self.after)
        ]
        file_names = [
            "/dev/null" if file_text is None else str(self.path)
            for file_text in (self.before, self.after)
        ]
        return "".join(difflib.unified_diff(lines[0], lines[1], file_names[0], file_names[1]))


def installation(
    *, prefix: Path, real_runtime: str | None, environ: Mapping[str, str]
) -> list[Change]:
    """Return the changes that register the runtime on the machine with the root `prefix`.

    `real_runtime` is the runtime that ours runs; None: the first of runc and crun that is
    installed.
    """
    runtime_path = next(
        filter(None, map(shutil.which, [real_runtime] if real_runtime else ["runc", "crun"])), None
    )
    if runtime_path is None:
        raise NotFound(
            f"no OCI runtime {real_runtime or 'runc or crun'} is on the PATH: install one"
        )
    wrapper_path = f"/{_WRAPPER}"
    wrapper_json = json.dumps(wrapper_path)
    changes = [
        _change(prefix / _WRAPPER, _script(runtime_path, environ), executable=True),
        _change(prefix / _PODMAN, f"[engine.runtimes]\n{NAME} = [{wrapper_json}]\n"),
    ]
    docker_config = prefix / _DOCKER
    if docker_config.parent.is_dir():
        settings = _settings(docker_config)
        runtimes = {**settings.get("runtimes", {}), NAME: {"path": wrapper_path}}
        changes.append(_change(docker_config, _document({**settings, "runtimes": runtimes})))
    return [change for change in changes if change.before != change.after]


def removal(*, prefix: Path) -> list[Change]:
    """Return the changes that undo those of `installation`."""
    changes = [_change(prefix / file_name, None) for file_name in (_WRAPPER, _PODMAN)]
    docker_config = prefix / _DOCKER
    if docker_config.exists():
        settings = _settings(docker_config)
        runtimes = {
            runtime_name: runtime
            for runtime_name, runtime in settings.get("runtimes", {}).items()
            if runtime_name != NAME
        }
        other_settings = {
            setting_name: setting
            for setting_name, setting in settings.items()
            if setting_name != "runtimes"
        }
        remaining_settings = (
            {**other_settings, "runtimes": runtimes} if runtimes else other_settings
        )
        if remaining_settings != settings:
            text_before = docker_config.read_text()
            original = _original(docker_config)
            if original.exists() and json.loads(original.read_text() or "{}") == remaining_settings:
                text_after: str | None = original.read_text() or None  # as it was, to the byte
            else:
                text_after = _document(remaining_settings)
            changes.append(Change(docker_config, text_before, text_after))
    return [change for change in changes if change.before != change.after]


def service_installation(*, prefix: Path, environ: Mapping[str, str]) -> list[Change]:
    """Return the changes that make systemd run heterod, for the machine with the root `prefix`."""
    setting_lines = "".join(
        f"Environment={_quoted(f'{variable_name}={_absolute(environ[variable_name])}')}\n"
        for variable_name in _PASSED
        if environ.get(variable_name)
    )
    command = " ".join(map(_quoted, (sys.executable, "-Im", "hetero.cli", "daemon")))
    if environ.get("HETERO_STATE"):
        raise BadInput("HETERO_STATE is set: heterod as a service keeps its ledger in /run/hetero")
    changes = [
        _change(
            prefix / _UNITS / unit_name,
            unit_text.format(command=command, environment=setting_lines),
        )
        for unit_name, unit_text in _HETEROD_UNITS.items()
    ]
    return [change for change in changes if change.before != change.after]


def service_removal(*, prefix: Path) -> list[Change]:
    """Return the changes that undo those of `service_installation`."""
    changes = [_change(prefix / _UNITS / unit_name, None) for unit_name in _HETEROD_UNITS]
    return [change for change in changes if change.before is not None]


def closed_to_users(*files: Path) -> Path | None:
    """Return the first directory above these files that some user may not enter."""
    folders = (folder for file in files for folder in reversed(file.resolve().parents))
    return next((folder for folder in folders if not folder.stat().st_mode & 0o001), None)


def _quoted(word: str) -> str:
    """Return a word quoted for a systemd unit (systemd.syntax(7)); specifiers are escaped."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def apply(changes: list[Change]) -> None:
    """Write the changes."""
    for change in changes:
        try:
            if change.path.name == Path(_DOCKER).name:
                _remember(change)
            if change.after is None:
                change.path.unlink()
                continue
            change.path.parent.mkdir(parents=True, exist_ok=True)
            mode = 0o755 if change.executable else 0o644
            replace(change.path, change.after.encode(), mode=mode)
        except OSError as error:
            raise HeteroError(f"{change.path}: {error.strerror}") from None


def expect_unused(node: Node) -> None:
    """Raise `Refused` with the names of the containers that hold grants of the runtime."""
    container_names = [grant.container.name for grant in node.snapshot().grants if grant.container]
    if container_names:
        raise Refused(f"in use by {', '.join(container_names)}: remove the containers first")


def _remember(change: Change) -> None:
    """Save docker's original settings, and delete the copy once they are restored."""
    original = _original(change.path)
    settings = json.loads(change.after or "{}")
    if NAME not in settings.get("runtimes", {}):
        original.unlink(missing_ok=True)
    elif NAME not in json.loads(change.before or "{}").get("runtimes", {}):
        replace(original, (change.before or "").encode(), mode=0o644)


def _original(config_path: Path) -> Path:
    return config_path.with_name("daemon.json.before-hetero")


def _change(path: Path, text_after: str | None, *, executable: bool = False) -> Change:
    return Change(path, path.read_text() if path.exists() else None, text_after, executable)


def _script(real_runtime: str, environ: Mapping[str, str]) -> str:
    setting_lines = "".join(
        f"export {variable_name}={shlex.quote(_absolute(environ[variable_name]))}\n"
        for variable_name in _PASSED
        if environ.get(variable_name)
    )
    command = shlex.join([sys.executable, "-IS", runtime.__file__, os.path.abspath(real_runtime)])
    return f'#!/bin/sh\n# Made by `hetero runtime install`.\n{setting_lines}exec {command} "$@"\n'


def _absolute(path_text: str) -> str:
    """Return a path that holds wherever the runtime is started; a shipped rack's name stays."""
    return (
        os.path.abspath(path_text) if os.path.exists(path_text) or "/" in path_text else path_text
    )


def _settings(config_path: Path) -> dict[str, Any]:
    if not config_path.exists():
        return {}
    try:
        settings = json.loads(config_path.read_text() or "{}")
    except ValueError as error:
        raise BadInput(f"{config_path}: {error}: mend it first") from None
    if not isinstance(settings, dict) or not isinstance(settings.get("runtimes", {}), dict):
        raise BadInput(f"{config_path}: not settings of docker: mend it first")
    return settings


def _document(settings: Mapping[str, object]) -> str:
    return json.dumps(settings, indent=4) + "\n"
