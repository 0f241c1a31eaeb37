"""Admits a container before it is created: takes its grant and edits its config.json.

This process holds the grant until the runtime that it becomes keeps a state of the container. That
state holds it until the container is deleted, so no process of ours runs meanwhile.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hetero.container.cdi import mount_options
from hetero.container.edits import confine, in_place
from hetero.container.preload import PLACE, TARGET, libraries, preload_of
from hetero.container.request import EGPU, HETERO, request_in
from hetero.model import Edits
from hetero.model.errors import HeteroError, Refused
from hetero.model.frozen import frozen
from hetero.node.grants import LocalGrants
from hetero.node.ledger.events import record
from hetero.node.ledger.grant_dir import PRELOAD, replace
from hetero.node.ledger.ledger import Grant, GrantHandle
from hetero.node.node import Node
from hetero.node.simulation import enter
from hetero.node.tenants.containers import describe
from hetero.node.tenants.oci import read_json, runtime_state


@frozen
class Creation:
    """A container that an engine asks an OCI runtime to create."""

    container: str
    bundle: Path
    #: Where the runtime keeps the container's state.
    state: str
    #: The options before the subcommand.
    options: Mapping[str, str]
    #: The runtime, its words and its environment: what this process becomes.
    command: Sequence[str]
    environ: Mapping[str, str]


def admit(creation: Creation, *, note: str) -> None:
    """Admit the container if it asks for devices, and become the runtime; return if it does not.

    The annotation `note` of its config.json records the variables that were added to its
    environment. A refusal is reported, and the process ends.
    """
    config = read_json(creation.bundle / "config.json")
    share_variables = _asked(config) if isinstance(config, dict) else {}
    if not share_variables:
        return
    try:
        _confine(creation, config, share_variables, note=note)
    except HeteroError as error:
        _say(creation, str(error), level="error")
        sys.exit(1)


def carry_over(process_file: str, state_directory: str, *, note: str) -> None:
    """Give a process that is started later the variables that the first process was given."""
    bundle = runtime_state(Path(state_directory)).bundle
    annotations = read_json(bundle / "config.json").get("annotations") or {} if bundle else {}
    if environment_text := annotations.get(note):
        process = read_json(Path(process_file))
        environment = process.get("env") or []
        variable_names = {variable.partition("=")[0] for variable in environment}
        added_variables = [
            f"{variable_name}={variable_value}"
            for variable_name, variable_value in json.loads(environment_text).items()
            if variable_name not in variable_names
        ]
        process["env"] = [*environment, *added_variables]
        Path(process_file).write_text(json.dumps(process))


def _asked(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of the container's environment that ask for a share."""
    variables = (config.get("process") or {}).get("env") or ()
    variable_parts = (variable.partition("=") for variable in variables)
    return {
        variable_name: variable_value
        for variable_name, _, variable_value in variable_parts
        if variable_name in (HETERO, EGPU) and variable_value
    }


def _confine(
    creation: Creation, config: dict[str, Any], share_variables: Mapping[str, str], *, note: str
) -> None:
    """Admit the container and become the runtime. Raises `HeteroError`; then nothing is held."""
    enter(os.environ)
    node = Node.here()
    container = describe(creation.container, creation.bundle, state=creation.state)

    def log_event(message: str, grant: Grant | None = None) -> None:
        record(
            node.ledger.persistent,
            container.name,
            message,
            grant_id=grant.id if grant else None,
            numbers=grant.device_numbers if grant else (),
        )

    log_event(
        "asked "
        + " ".join(
            f"{variable_name}={variable_value}"
            for variable_name, variable_value in share_variables.items()
        )
    )
    try:
        if node.ledger.persistent is None:
            raise Refused("containers are root's to confine: run this as root")
        request = request_in(share_variables)
        if os.path.exists(creation.state):
            raise Refused(f"{creation.state} is there already: a container of this name exists")
        image_preload = _preload_of(creation.bundle, config)
        assert request is not None  # noqa: S101 - something was asked
        command = tuple((config.get("process") or {}).get("args") or ())
        admission = LocalGrants(node).take(
            request, command=command, container=container, anyway=True
        )
    except HeteroError as error:
        log_event(f"refused, nothing was taken: {error}")
        raise
    handle: GrantHandle = admission.handle
    try:
        limiters = in_place(handle.path, admission.limiters, image_preload)
        edits = confine(node, handle.grant, admission.edits, limiters=limiters)
        log_event(f"admitted: grant {handle.grant.id} of {handle.grant.cards}", handle.grant)
        for sentence in handle.grant.allocation.notes:
            log_event(f"grant {handle.grant.id}: {sentence}")
            _say(creation, sentence, level="warning")
        _apply(config, edits, note=note)
        _write(config, creation.bundle / "config.json")
        handle.hand_over()
        node.registry.close()  # the runtime's children are to be its own
        os.execve(creation.command[0], list(creation.command), creation.environ)  # noqa: S606
    except BaseException as error:
        node.ledger.abort(handle)
        log_event(f"given back: {error}")
        if isinstance(error, OSError):
            location = error.filename or creation.bundle
            raise HeteroError(f"{location}: {error.strerror}") from None
        raise


def _apply(config: dict[str, Any], edits: Edits, *, note: str) -> None:
    """Merge the edits into the container's config.

    An existing entry for a device or a file of the driver stays. The grant, and all other files of
    ours, replace existing mounts at their targets.
    """
    process = config.setdefault("process", {})
    other_env = [
        variable
        for variable in process.get("env") or ()
        if variable.partition("=")[0] not in edits.env
    ]
    process["env"] = [
        *other_env,
        *(
            f"{variable_name}={variable_value}"
            for variable_name, variable_value in edits.env.items()
        ),
    ]
    config.setdefault("annotations", {})[note] = json.dumps(dict(edits.env))
    config["mounts"] = _mounts(config.get("mounts") or (), edits)
    _add_device_nodes(config.setdefault("linux", {}), edits.device_nodes)


def _mounts(present_mounts: Sequence[dict[str, Any]], edits: Edits) -> list[dict[str, Any]]:
    taken_targets = {mount.target for mount in edits.mounts if mount.writable} | {TARGET}
    kept_mounts = [
        mount
        for mount in present_mounts
        if mount.get("destination") not in taken_targets
        and not str(mount.get("destination")).startswith(f"{PLACE}/")
    ]
    targets = {mount.get("destination") for mount in kept_mounts}
    return kept_mounts + [
        {
            "destination": mount.target,
            "type": "bind",
            "source": mount.source,
            "options": mount_options(writable=mount.writable),
        }
        for mount in edits.mounts
        if mount.target not in targets
    ]


def _add_device_nodes(linux: dict[str, Any], paths: Sequence[str]) -> None:
    devices = linux.setdefault("devices", [])
    rules = linux.setdefault("resources", {}).setdefault("devices", [])
    present_paths = {device.get("path") for device in devices}
    for path in paths:
        status = os.stat(path)
        device_type = "b" if stat.S_ISBLK(status.st_mode) else "c"
        device_number = {"major": os.major(status.st_rdev), "minor": os.minor(status.st_rdev)}
        if path not in present_paths:
            devices.append(
                {
                    "path": path,
                    "type": device_type,
                    **device_number,
                    "fileMode": 0o666,
                    "uid": 0,
                    "gid": 0,
                }
            )
        rules.append({"allow": True, "type": device_type, **device_number, "access": "rwm"})


def _write(config: Mapping[str, Any], config_path: Path) -> None:
    replace(config_path, json.dumps(config).encode(), mode=stat.S_IMODE(config_path.stat().st_mode))


def _preload_of(bundle_path: Path, config: Mapping[str, Any]) -> list[str]:
    """Return the libraries that the image preloads, or a file mounted there. Raises `Refused`."""
    try:
        for mount in config.get("mounts") or ():
            source_path = str(mount.get("source"))
            # One of ours is what an earlier start of the same bundle left.
            if mount.get("destination") == TARGET and not source_path.endswith(PRELOAD):
                return libraries(Path(source_path).read_text(errors="replace"))
        root_path = (config.get("root") or {}).get("path") or "rootfs"
        return preload_of(str(bundle_path / root_path))
    except OSError as error:
        raise Refused(str(error.strerror)) from None


def _say(creation: Creation, sentence: str, *, level: str) -> None:
    """Write a sentence to the log of the engine, in its format, and to the standard error."""
    sentence = " ".join(f"hetero: container {creation.container[:12]}: {sentence}".split())
    print(sentence, file=sys.stderr)
    log_path = creation.options.get("--log")
    if log_path:
        now_text = datetime.now(timezone.utc).isoformat(timespec="seconds")
        line = f'time="{now_text}" level={level} msg={json.dumps(sentence)}'
        if creation.options.get("--log-format") == "json":
            line = json.dumps({"level": level, "msg": sentence, "time": now_text})
        with suppress(OSError), open(log_path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
