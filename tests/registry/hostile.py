"""A vendor that does what C libraries have done, at one of its hooks.

A copy that is installed as `hostile-HOOK-DEED` does that deed of `DEEDS` at that hook, or at
"import"; one that is installed as `hostile` what `HOSTILE_DOES` says, where `HOSTILE_AT` does.
"""

import ctypes
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from hetero import plugin
from hetero.plugin import Allocation, Device, Edits, Usage

#: What the vendor's process says it did, by its number: for a test to find what it left running.
LEFT = "HOSTILE_LEFT"


def segfault() -> None:
    ctypes.string_at(0)


def exit_0() -> None:
    ctypes.CDLL(None).exit(0)


def close_descriptors() -> None:
    os.closerange(0, 1000)


def fork_that_stays() -> None:
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    if LEFT in os.environ:
        Path(os.environ[LEFT]).write_text(str(pid))


def hang() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while True:
        time.sleep(600)


def print_much() -> None:
    print("text", flush=True)
    ctypes.CDLL(None).puts(b"text of a C library")
    for descriptor in (1, 2):
        os.write(descriptor, b"more text\n" * 10_000)


def raise_an_exit() -> None:
    raise BaseException("a library that gives up")


def take_all_memory() -> None:
    taken = [bytes(1 << 20)]
    while True:
        taken.append(bytes(64 << 20))


def compute_for_ever() -> None:
    while True:
        pass


def write_everywhere() -> None:
    for descriptor in range(256):
        try:
            os.write(descriptor, b"\xff" * 100)
        except OSError:
            continue


def signal_the_group() -> None:
    os.kill(0, signal.SIGTERM)
    time.sleep(600)


def leave_a_mark() -> None:
    Path(os.environ[LEFT]).touch()


DEEDS = {
    deed.__name__: deed
    for deed in (
        segfault,
        exit_0,
        close_descriptors,
        fork_that_stays,
        hang,
        print_much,
        raise_an_exit,
        take_all_memory,
        compute_for_ever,
        write_everywhere,
        signal_the_group,
        leave_a_mark,
    )
}
#: After these a hook still has its answer.
HARMLESS = ("fork_that_stays", "print_much", "leave_a_mark")
HOOKS = ("vendor", "discover", "enforce", "reconcile", "observe", "watch")

_, _, _COPY = __name__.partition("hetero_hostile_")
NAME = f"hostile-{_COPY}".replace("_", "-") if _COPY else "hostile"

VENDOR = plugin.Vendor(
    api=2,
    name=NAME,
    title="Hostile",
    models=(plugin.Model(match="*", granularity=plugin.Fractional(), slots=4),),
    resource_names=(plugin.ResourceNames(count=f"example.com/{NAME}"),),
    visible=("HOSTILE_VISIBLE_DEVICES",),
)


def _at(hook: str) -> None:
    at, _, does = _COPY.partition("_")
    if hook == (at or os.environ.get("HOSTILE_AT")):
        DEEDS[does or os.environ["HOSTILE_DOES"]]()


_at("import")


@plugin.hookimpl
def hetero_vendor() -> plugin.Vendor:
    _at("vendor")
    return VENDOR


@plugin.hookimpl
def hetero_discover() -> Iterable[Device]:
    _at("discover")
    yield VENDOR.device(
        uuid=f"{NAME}-0",
        model="H1",
        index=0,
        memory=8 << 30,
        enforcement=plugin.Enforcement.NONE,
        health="ok",
    )


@plugin.hookimpl
def hetero_enforce(allocation: Allocation) -> Edits | None:
    _at("enforce")
    return Edits(env={"HOSTILE": str(len(allocation.pieces))})


@plugin.hookimpl
def hetero_reconcile(device: Device) -> None:
    _at("reconcile")


@plugin.hookimpl
def hetero_observe(device: Device) -> Usage:
    _at("observe")
    return Usage(memory=1, processes={os.getpid(): 7}, core=0.5)


if _COPY.startswith("watch_"):  # else each copy had a second process

    @plugin.hookimpl
    def hetero_watch() -> dict[str, str | None]:
        _at("watch")
        return {f"{NAME}-0": "not well"}
