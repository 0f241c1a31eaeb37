"""The packages that `hetero run` enters, in order: how far a reader has to walk to follow it.

    python benchmarks/rooms.py            (`make rooms`)

A program is admitted on the simulated rack `one`, a machine of one vendor, by a process that sees
this vendor alone. Each call of a function from another package begins a stay in its package; a
return ends it. Each `hetero.<package>` is a package.

What does not count: the bodies of modules that are imported, with what those call, since imports
follow the same order whoever makes them; methods that attrs generates, and `__new__`, since a value
is made wherever it is read; and the vendor, which is asked in a process of its own. Calls into
`hetero.model` are counted apart: its values travel through every package, so a call of theirs is no
step of the walk.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
#: The goals: how many stays there may be, and how many of one package. The registry is asked for
#: devices, for what others hold of the device that would be given, and for the edits, and ends the
#: vendors' processes before the program starts. A device is chosen before that question and after
#: it. The registry asks the node once which faults of cards are noted there, and once for the
#: folder in which it notes the vendors without a driver. Once a boot it is asked for what a context
#: of a card takes.
MOST_STAYS, MOST_OF_ONE = 14, 5
#: The vendor of the rack `one`.
VENDOR = "nvidia"
REQUEST = ("run", "--", "true")


def room(frame: FrameType) -> str | None:
    """Return the package whose code a frame runs, None if it is not one of ours."""
    file = frame.f_code.co_filename
    if not file.startswith(f"{CHECKOUT}/"):
        return None
    top, *inner = Path(file).relative_to(CHECKOUT).parts
    if top == "hetero":
        return f"hetero.{inner[0].removesuffix('.py')}"
    return inner[0] if top == "vendors" else None


class Walk:
    """The packages whose functions are called from another one, each with the first function."""

    def __init__(self) -> None:
        self.stays: list[tuple[str, str]] = []
        self.of_model = 0
        self._resumed: set[FrameType] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Note a call, as `sys.setprofile` reports it."""
        entered = room(frame) if event == "call" else None
        made = frame.f_code.co_name == "__new__"
        if entered is None or made or frame in self._resumed:
            return
        if frame.f_code.co_flags & inspect.CO_GENERATOR:
            self._resumed.add(frame)
        callers = list(_ours(frame.f_back))
        if any(_is_import(each) for each in callers) or _is_import(frame):
            return
        if entered == "hetero.model":
            self.of_model += 1
            return
        packages = [package for package in map(room, callers) if package != "hetero.model"]
        asked = any(not str(package).startswith("hetero") for package in packages)
        if asked:
            return
        began_thread = not packages and threading.current_thread() is not threading.main_thread()
        if not began_thread and entered != next(iter(packages), None):
            self.stays.append((entered, frame.f_code.co_name))


def _ours(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames of our packages among this one and its callers, the nearest first."""
    while frame is not None:
        if room(frame):
            yield frame
        frame = frame.f_back


def _is_import(frame: FrameType) -> bool:
    """Return whether the frame is the body of a module: an import runs it."""
    return frame.f_code.co_name == "<module>"


def walk() -> None:
    """Run the command and report its stays when it becomes the program."""
    from hetero.cli import main

    noted = Walk()

    def report(event: str, _: object) -> None:
        if event == "os.exec" and sys.getprofile():  # the first of those that PATH makes
            sys.setprofile(None)
            json.dump({"stays": noted.stays, "model": noted.of_model}, sys.stdout)
            sys.stdout.flush()

    sys.argv = ["hetero", *REQUEST]
    sys.addaudithook(report)
    threading.setprofile(noted)
    sys.setprofile(noted)
    main()


def walked() -> dict[str, Any]:
    """Return what `walk` reports in a process to which one vendor is installed."""
    with tempfile.TemporaryDirectory() as name:
        site = Path(name) / "site"
        site.mkdir()
        for path in Path(sysconfig.get_path("purelib")).iterdir():
            if not re.match(rf"hetero_(?!{VENDOR}|limiters|simulator).*\.dist-info", path.name):
                (site / path.name).symlink_to(path)
        sources = (site, CHECKOUT, *(CHECKOUT / part for part in ("limiters", "simulator")))
        done = subprocess.run(
            [sys.executable, "-S", __file__, "--walk"],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": ":".join(map(str, (*sources, CHECKOUT / "vendors" / VENDOR))),
                "HETERO_RACK": "one",
                "HETERO_STATE": f"{name}/state",
            },
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def main() -> None:
    """Print the stays; fail where there are more than the goals allow."""
    summary, _, what_counts = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary,
        epilog=what_counts.partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--walk", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().walk:
        walk()
    report = walked()
    stays = report["stays"]
    for number, (name, function) in enumerate(stays, 1):
        print(f"{number:2}  {name:18}  {function}")
    most, times = Counter(name for name, _ in stays).most_common(1)[0]
    print(f"{len(stays)} stays; {most} has {times}; {report['model']} calls of hetero.model")
    if len(stays) > MOST_STAYS or times > MOST_OF_ONE:
        sys.exit(f"rooms: the goals are {MOST_STAYS} stays, and {MOST_OF_ONE} of one package")


if __name__ == "__main__":
    main()
