"""Reads what an image preloads by itself, so that what is mounted over it can name that as well.

The image is not trusted: no link in it is followed, and nothing but a small file is read.
"""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False  # as in typing, which takes a while to import
if TYPE_CHECKING:
    from collections.abc import Iterable

#: Where containers see their grant and the limiter (limiters/core/grant.h looks there first).
PLACE = "/etc/hetero"
TARGET = "/etc/ld.so.preload"
_LARGEST = 1 << 16


def preload_of(root: str) -> list[str]:
    """Return the libraries that the image whose files are at `root` preloads by itself.

    Raises `OSError` where that cannot be told.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    descriptors: list[int] = []
    try:
        descriptors.append(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        for name, more in (("etc", os.O_DIRECTORY), ("ld.so.preload", 0)):
            descriptors.append(os.open(name, flags | more, dir_fd=descriptors[-1]))
        if not stat.S_ISREG(os.fstat(descriptors[-1]).st_mode):
            raise OSError(errno.EINVAL, "is not a file")
        return libraries(os.read(descriptors[-1], _LARGEST).decode(errors="replace"))
    except FileNotFoundError:
        return []
    except OSError as error:
        # A link cannot be followed safely, and to drop what the image preloads would change it.
        raise OSError(error.errno, f"the image's {TARGET}: {error.strerror}") from None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def libraries(text: str) -> list[str]:
    """Return the libraries a preload file names, but for ours: spaces and colons part them."""
    words = (line.partition("#")[0].replace(":", " ").split() for line in text.splitlines())
    return [word for line in words for word in line if not word.startswith(f"{PLACE}/")]


def preloading(ours: Iterable[str], own: Iterable[str]) -> str:
    """Return the text of a preload file that names our libraries, then the image's own."""
    return "".join(f"{library}\n" for library in dict.fromkeys([*ours, *own]))
