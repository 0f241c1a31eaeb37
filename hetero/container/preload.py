"""Keeps what an image preloads by itself where our preload file is mounted over the image's.

The image is not trusted: no link in it is followed, and nothing but a small file is read. For a CDI
share this file is a program, the spec's createContainer hook: a spec cannot see the image, so the
engine's runtime runs it once the container's mounts are made, in its mount namespace and with the
host's files still in place. It starts with an environment of its own and without `site`: nothing of
the container's gets into it.
"""

from __future__ import annotations

import errno
import os
import stat
import sys

TYPE_CHECKING = False  # as in typing, which takes a while to import
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

#: Where containers see their grant and the limiter (limiters/core/grant.h looks there first).
PLACE = "/etc/hetero"
TARGET = "/etc/ld.so.preload"
_MOST_LIST_BYTES = 1 << 16
_LINK = "is a symbolic link"

#: mount(2) and umount2(2)
_READ_ONLY, _NO_SETUID, _NO_DEVICES, _REMOUNT, _BIND = 0x1, 0x2, 0x4, 0x20, 0x1000
_DETACH = 0x2


def preload_of(root_path: str) -> list[str]:
    """Return the libraries in the preload file of the image at `root_path`.

    Raises `OSError` if they cannot be determined.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    descriptors: list[int] = []
    try:
        descriptors.append(os.open(root_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        for path_part, added_flags in (("etc", os.O_DIRECTORY), ("ld.so.preload", 0)):
            descriptors.append(os.open(path_part, flags | added_flags, dir_fd=descriptors[-1]))
        if not stat.S_ISREG(os.fstat(descriptors[-1]).st_mode):
            raise OSError(errno.EINVAL, "is not a file")
        return libraries(os.read(descriptors[-1], _MOST_LIST_BYTES).decode(errors="replace"))
    except FileNotFoundError:
        return []
    except OSError as error:
        # A link cannot be followed safely, and to drop what the image preloads would change it.
        reason = _LINK if error.errno == errno.ELOOP else error.strerror
        raise OSError(error.errno, f"the image's {TARGET}: {reason}") from None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def libraries(preload_text: str) -> list[str]:
    """Return the libraries in a preload file, without ours; spaces and colons separate them."""
    lines = (line.partition("#")[0].replace(":", " ").split() for line in preload_text.splitlines())
    return [word for line_words in lines for word in line_words if not word.startswith(f"{PLACE}/")]


def preloading(limiter_paths: Iterable[str], preload_paths: Iterable[str]) -> str:
    """Return the text of a preload file with our libraries, then those of the image."""
    return "".join(f"{library}\n" for library in dict.fromkeys([*limiter_paths, *preload_paths]))


def hook() -> dict[str, object]:
    """Return the CDI hook that preserves an image's preload file."""
    return {
        "hookName": "createContainer",
        "path": sys.executable,
        "args": [sys.executable, "-IS", os.path.abspath(__file__)],
        # Not empty: a hook without an environment may be given the container's.
        "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
    }


def keep_own(bundle_path: str, config: Mapping[str, Any]) -> None:
    """Add the libraries of the image's preload file to ours, in a container with its mounts made.

    Raises `OSError`; the container must not be started then.
    """
    root_path = os.path.join(bundle_path, (config.get("root") or {}).get("path") or "rootfs")
    target = os.path.realpath(root_path) + TARGET
    if os.path.realpath(target) != target:  # our file is mounted where the link leads
        raise OSError(errno.ELOOP, f"the image's {TARGET}: {_LINK}")
    with open(target, encoding="utf-8") as file:
        contents = file.read()
    source_path = next(
        mount["source"]
        for mount in reversed(config.get("mounts") or ())
        if mount.get("destination") == TARGET
    )
    _libc("umount2", target, _DETACH)
    preloads = preload_of(root_path)
    if preloads:
        source_path = os.path.join(bundle_path, "hetero-ld.so.preload")
        with open(source_path, "w", encoding="utf-8") as file:
            file.write(preloading(contents.split(), preloads))
        os.chmod(source_path, 0o644)  # whatever the umask
    _libc("mount", source_path, target, None, _BIND, None)
    mount_flags = _REMOUNT | _BIND | _READ_ONLY | _NO_SETUID | _NO_DEVICES
    _libc("mount", None, target, None, mount_flags, None)


def _libc(function_name: str, *arguments: str | int | None) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    c_arguments = [
        os.fsencode(argument)
        if isinstance(argument, str)
        else ctypes.c_ulong(argument)
        if argument
        else None
        for argument in arguments
    ]
    if getattr(libc, function_name)(*c_arguments):
        error_number = ctypes.get_errno()
        raise OSError(error_number, f"{function_name} {arguments}: {os.strerror(error_number)}")


def main() -> None:
    """Run as the hook: the state of the container is on the standard input."""
    import json

    try:
        bundle = json.load(sys.stdin)["bundle"]
        with open(os.path.join(bundle, "config.json"), encoding="utf-8") as file:
            keep_own(bundle, json.load(file))
    except OSError as error:
        sys.exit(f"hetero: {error.strerror or error}")


if __name__ == "__main__":
    main()
