"""The OCI runtime `hetero`: admits what a container's environment asks, then becomes the real one.

It reads $HETERO (asks.py) from the container's config.json before the container is created, adds
what confines it, and execs runc or crun with the arguments it was called with. The grant is held by
that process until the runtime keeps a state of the container, and by that state until it is
deleted: nothing of ours runs on. Engines run this file by its path, through a script that `hetero
runtime install` writes, so that a container that asks for nothing waits for no import of ours.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

#: The subcommands that make a container, of runc(8) and crun(1).
_MAKING = ("create", "run", "restore")
#: Options that are followed by a value, before the subcommand and after it.
_VALUED = ("--root", "--log", "--log-format", "--criu", "--rootless", "--cgroup-manager")
_BUNDLE, _PROCESS = ("-b", "--bundle"), ("-p", "--process")
#: Where a container's config.json says what we added to its environment, for what is started later.
_NOTE = "io.hetero.environment"


class _Call(NamedTuple):
    """What the engine asked of the runtime."""

    command: str
    options: Mapping[str, str]
    words: Sequence[str]

    @property
    def container(self) -> str:
        return self.words[-1] if self.words else ""

    @property
    def bundle(self) -> Path:
        return Path(self.word_after(_BUNDLE) or ".").absolute()

    def word_after(self, names: Sequence[str]) -> str | None:
        """Return the value of an option of the subcommand."""
        for word, following in zip(self.words, [*self.words[1:], ""], strict=True):
            name, equals, value = word.partition("=")
            if name in names:
                return value if equals else following
        return None

    def state(self, runtime: str) -> Path:
        """Return where the runtime keeps the container's state."""
        return Path(self.options.get("--root") or f"/run/{Path(runtime).name}") / self.container


def main(runtime: str, arguments: Sequence[str]) -> NoReturn:
    """Do what the engine asks by way of `runtime`; a container that is refused is not created."""
    environ = dict(os.environ)
    call = _call(arguments)
    if call and call.command in _MAKING:
        config = _config(call.bundle)
        asked = {name: value for name, value in _environment(config) if name in ("HETERO", "EGPU")}
        if any(asked.values()):
            from hetero.errors import HeteroError

            try:
                _confine(runtime, call, config, asked, [runtime, *arguments], environ)
            except HeteroError as error:
                _complain(call, f"hetero: container {call.container[:12]}: {error}")
                sys.exit(1)
    elif call and call.command == "exec":
        _carry_over(call, runtime)
    os.execve(runtime, [runtime, *arguments], environ)  # noqa: S606 - no shell is the point


def _call(arguments: Sequence[str]) -> _Call | None:
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).partition("=")
        options[name] = rest.pop(0) if not equals and name in _VALUED and rest else value
    if not rest:
        return None
    return _Call(rest[0], options, rest[1:])


def _config(bundle: Path) -> dict[str, Any]:
    try:
        config = json.loads((bundle / "config.json").read_text())
    except (OSError, ValueError):
        return {}  # the real runtime says it better
    return config if isinstance(config, dict) else {}


def _carry_over(call: _Call, runtime: str) -> None:
    """Give a process that is started later the environment we gave the first one."""
    from hetero.node.oci import kept, read_json

    named, bundle = call.word_after(_PROCESS), kept(call.state(runtime)).bundle
    note = (_config(bundle).get("annotations") or {}).get(_NOTE) if bundle else None
    if named and note:
        process = read_json(Path(named))
        there = {variable.partition("=")[0] for variable in process.get("env") or ()}
        more = [f"{name}={value}" for name, value in json.loads(note).items() if name not in there]
        process["env"] = [*(process.get("env") or ()), *more]
        Path(named).write_text(json.dumps(process))


def _environment(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for variable in (config.get("process") or {}).get("env") or ():
        name, _, value = variable.partition("=")
        yield name, value


def _confine(
    runtime: str,
    call: _Call,
    config: dict[str, Any],
    asked: Mapping[str, str],
    command: list[str],
    environ: Mapping[str, str],
) -> NoReturn:
    """Admit the container and become the runtime. Raises `HeteroError`; then nothing is held."""
    from hetero.asks import request_in
    from hetero.container.edits import confine
    from hetero.container.log import tell
    from hetero.errors import HeteroError, Refused
    from hetero.node.containers import describe
    from hetero.node.node import Node

    node = Node.here()
    state = call.state(runtime)
    container = describe(call.container, call.bundle, state=str(state))
    subject = container.name

    def story(says: str) -> None:
        tell(node, subject, says)

    story("asked " + " ".join(f"{name}={value}" for name, value in asked.items()))
    try:
        if node.ledger.kept is None:
            raise Refused("containers are root's to confine: run this as root")
        request = request_in(asked)
        if state.exists():
            raise Refused(f"{state} is there already: a container of this name exists")
        preload = _preload_of(call.bundle, config)
        assert request is not None  # noqa: S101 - something was asked
        taken = node.take(request, command=_words(config), container=container)
    except HeteroError as error:
        story(f"refused, nothing was taken: {error}")
        raise
    try:
        edits = confine(
            node, taken.hold.path, taken.edits, limiters=taken.limiters, preload=preload
        )
        story(f"admitted: grant {taken.hold.standing.id}")
        _apply(config, edits, call.bundle)
        taken.hold.hand_over()
        os.execve(runtime, command, environ)  # noqa: S606
    except BaseException as error:
        node.ledger.give_back(taken.hold)
        story(f"given back: {error}")
        if isinstance(error, OSError):
            raise HeteroError(f"{error.filename or call.bundle}: {error.strerror}") from None
        raise


def _words(config: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple((config.get("process") or {}).get("args") or ())


def _apply(config: dict[str, Any], edits: Any, bundle: Path) -> None:
    """Write the edits into the container's config.json.

    What the config has already of a device or a driver's file stays; the grant, and all else that
    is written from inside, takes the place of what was there.
    """
    from hetero.container.cdi import mount_options
    from hetero.container.edits import PLACE, PRELOAD_TARGET
    from hetero.node.tenant import replace

    process, linux = config.setdefault("process", {}), config.setdefault("linux", {})
    names = [variable.partition("=")[0] for variable in process.get("env") or ()]
    others = [
        variable
        for name, variable in zip(names, process.get("env") or (), strict=True)
        if name not in edits.env
    ]
    process["env"] = [*others, *(f"{name}={value}" for name, value in edits.env.items())]
    config.setdefault("annotations", {})[_NOTE] = json.dumps(dict(edits.env))

    taken = {mount.target for mount in edits.mounts if mount.writable} | {PRELOAD_TARGET}
    mounts = [
        mount
        for mount in config.get("mounts") or ()
        if mount.get("destination") not in taken
        and not str(mount.get("destination")).startswith(f"{PLACE}/")
    ]
    there = {mount.get("destination") for mount in mounts}
    config["mounts"] = mounts + [
        {
            "destination": mount.target,
            "type": "bind",
            "source": mount.source,
            "options": mount_options(writable=mount.writable),
        }
        for mount in edits.mounts
        if mount.target not in there
    ]

    devices = linux.setdefault("devices", [])
    rules = linux.setdefault("resources", {}).setdefault("devices", [])
    there = {device.get("path") for device in devices}
    for path in edits.device_nodes:
        found = os.stat(path)
        kind = "b" if stat.S_ISBLK(found.st_mode) else "c"
        number = {"major": os.major(found.st_rdev), "minor": os.minor(found.st_rdev)}
        if path not in there:
            devices.append(
                {"path": path, "type": kind, **number, "fileMode": 0o666, "uid": 0, "gid": 0}
            )
        rules.append({"allow": True, "type": kind, **number, "access": "rwm"})
    path = bundle / "config.json"
    replace(path, json.dumps(config).encode(), mode=stat.S_IMODE(path.stat().st_mode))


def _preload_of(bundle: Path, config: Mapping[str, Any]) -> list[str]:
    """Return what the image preloads by itself, or what is mounted there.

    The image is not trusted: no link in it is followed, and nothing but a small file is read.
    """
    from hetero.container.edits import PRELOAD_TARGET
    from hetero.errors import Refused
    from hetero.node.tenant import PRELOAD

    root = bundle / ((config.get("root") or {}).get("path") or "rootfs")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    descriptors: list[int] = []
    try:
        for mount in config.get("mounts") or ():
            source = str(mount.get("source"))
            # One of ours is what an earlier start of the same bundle left.
            if mount.get("destination") == PRELOAD_TARGET and not source.endswith(PRELOAD):
                return _lines(Path(source).read_text(errors="replace"))
        descriptors.append(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        for name, more in (("etc", os.O_DIRECTORY), ("ld.so.preload", 0)):
            descriptors.append(os.open(name, flags | more, dir_fd=descriptors[-1]))
        if not stat.S_ISREG(os.fstat(descriptors[-1]).st_mode):
            raise Refused(f"the image's {PRELOAD_TARGET} is not a file")
        return _lines(os.read(descriptors[-1], 1 << 16).decode(errors="replace"))
    except FileNotFoundError:
        return []
    except OSError as error:
        # A link cannot be followed safely, and to drop what the image preloads would change it.
        raise Refused(f"the image's {PRELOAD_TARGET}: {error.strerror}") from None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _lines(text: str) -> list[str]:
    """Return the libraries a preload file names: spaces and colons part them."""
    words = (line.partition("#")[0].replace(":", " ").split() for line in text.splitlines())
    return [word for line in words for word in line if not word.startswith("/etc/hetero/")]


def _complain(call: _Call, sentence: str) -> None:
    """Say it where the engine looks: its log, in its format, and the standard error."""
    sentence = " ".join(sentence.split())
    print(sentence, file=sys.stderr)
    log = call.options.get("--log")
    if log:
        from contextlib import suppress
        from datetime import datetime, timezone

        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        line = f'time="{now}" level=error msg={json.dumps(sentence)}'
        if call.options.get("--log-format") == "json":
            line = json.dumps({"level": "error", "msg": sentence, "time": now})
        with suppress(OSError), open(log, "a", encoding="utf-8") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
