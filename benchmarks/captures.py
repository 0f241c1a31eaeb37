"""Captures what ps, inventory, fit and doctor show in terminals of 60, 80, 120 and 200 columns.

    python benchmarks/captures.py [NAME ...]      (`make captures`: writes docs/captures)

The cards are those of simulated racks, and programs hold shares of them. Ids, PIDs and ages are
those of the run; tests/benchmarks/test_captures.py compares the rest. `picture.ansi` has colours:
README's picture is drawn from it.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import hetero_simulator
from cluster_inventory import generated

CHECKOUT = Path(__file__).resolve().parent.parent
FOLDER = CHECKOUT / "docs" / "captures"
WIDTHS = (60, 80, 120, 200)
COMMANDS = {
    "inventory": ("inventory",),
    "ps": ("ps", "--all"),
    "fit": ("fit", "--memory", "3000Mi", "--core", "30", "--explain"),
    "doctor": ("doctor",),
}
HETERO = (sys.executable, "-c", "from hetero.start import main; main()")
#: What each tenant asks, in the order in which they start.
TENANTS = (
    ("--device", "0", "--memory", "40Gi", "--core", "50", "--label", "trainer"),
    ("--device", "0", "--memory", "2Gi", "--core", "20", "--policy", "elastic"),
    ("--device", "3", "--memory", "3Gi"),
)
PROGRAM = ("sleep", "1000")
#: What a program does that has no grant, on the last card.
FOREIGN = ("--device", "4", "--seconds", "1000", "--memory", "12GiB")


#: The columns of README's picture.
PICTURE = 100
_H200 = """[device]
vendor = nvidia
model = NVIDIA H200
memory = 143771 MiB
compute = 9.0
multiprocessors = 132
power = {power}
power_limit = 700
temperature = {heat}
numa = {numa}
"""
_NPU = """[device]
vendor = ascend
model = 910B3
memory = 64 GiB
core = 20
power = 93
temperature = 41
numa = 0
"""
#: Machines that no shipped rack has: the rack, its tenants, and a program without a grant.
SCENES: dict[str, tuple[str, tuple[tuple[str, ...], ...], tuple[str, ...]]] = {
    "sick": (
        "".join(
            (
                _H200.format(power=431, heat=62, numa=0),
                _H200.format(power=96, heat=33, numa=0) + "health = ecc\n",
                *(_H200.format(power=80 + each, heat=30 + each, numa=1) for each in range(4)),
                _H200.format(power=118, heat=35, numa=1) + "mig = 2g.35gb x1, 1g.18gb x3\n",
                _NPU + "links = 1:HCCS\n",
                _NPU + "links = 0:HCCS\n",
            )
        ),
        (
            ("--vendor nvidia --device 2 --memory 60Gi --core 50 --label trainer",
             "-- train.py --seconds 1000 --memory 48GiB"),
            ("--vendor nvidia --device 2 --memory 20Gi --core 30 --label serve",
             "-- serve.py --seconds 1000 --memory 12GiB"),
            ("--vendor nvidia --device 8 --memory 17Gi --label notebook",),
            ("--vendor ascend --memory 10Gi --core 20 --label embed",),
        ),
        ("--device", "0", "--seconds", "1000", "--memory", "30GiB"),
    ),
    "mig": (
        _H200.format(power=118, heat=35, numa=0) + "mig = 2g.35gb x1, 1g.18gb x3\n"
        + _H200.format(power=118, heat=35, numa=1) + "mig = 3g.71gb x2\n",
        (
            ("--device 0 --memory 10Gi --label notebook",),
            ("--device 1 --memory 60Gi --label trainer",),
        ),
        (),
    ),
    "many": (
        "".join(
            _H200.format(power=80 + each % 7, heat=30 + each % 5, numa=each // 32)
            for each in range(64)
        ),
        tuple(
            (f"--device {each} --memory 40Gi --core 50 --label job{each}",)
            for each in (0, 1, 5, 33)
        ),
        (),
    ),
}  # fmt: skip
#: What a program does that computes, and looks like one of a user's.
JOB = """import os, sys
os.execv(os.environ["JOB"], sys.argv)
"""
#: The shipped racks: the tenants of each, and a program without a grant.
HERE: dict[str, tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]] = {
    **{
        vendor: (
            (
                (f"--device {vendor}:0 --memory {memory} --core 50 --label trainer",),
                (f"--device {vendor}:1 --memory {memory} --core 25 --policy elastic",),
            ),
            (),
        )
        for vendor, memory in (("amd", "12Gi"), ("hygon", "8Gi"), ("mthreads", "8Gi"))
    },
    "iluvatar": (
        (
            ("--device iluvatar:0 --memory 12Gi --core 50 --label trainer",),
            ("--device iluvatar:0 --memory 8Gi --core 25 --policy elastic",),
        ),
        (),
    ),
    "mixed": (TENANTS, FOREIGN),
    "one": (
        (
            ("--memory 12Gi --core 50 --label trainer",),
            ("--memory 8Gi --core 25 --policy elastic",),
        ),
        (),
    ),
    "seven": (
        tuple(
            (f"--device {vendor}:0 --memory 10Gi --core 25 --label {label}",)
            for vendor, label in (
                *(("ascend", "embed"), ("hygon", "trainer"), ("iluvatar", "notebook")),
                *(("mthreads", "render"), ("nvidia", "serve")),
            )
        ),
        (),
    ),
}


def main() -> None:
    """Write the captures that are named, or all."""
    names = sys.argv[1:]
    FOLDER.mkdir(exist_ok=True)
    for name, text in (*_all(names),):
        (FOLDER / name).write_text(text)
        print(f"docs/captures/{name}")


def _all(names: Collection[str]) -> Iterator[tuple[str, str]]:
    if not names or "commands" in names:
        yield from ((f"{name}.txt", text) for name, text in captures().items())
    for name in (*HERE, *SCENES):
        if not names or name in names:
            yield f"inventory-{name}.txt", "\n".join(scene(name).values())
    if not names or "cluster" in names:
        yield "inventory-cluster.txt", "\n".join(cluster().values())
    if not names or "picture" in names:
        yield "picture.ansi", scene("sick", (PICTURE,), host="gpu7", colour=True)[PICTURE]


def captures(widths: Iterable[int] = WIDTHS) -> dict[str, str]:
    """Return the text of each capture by its name, `ps-80`."""
    rack = hetero_simulator.rack("mixed").read_text()
    with _machine("mixed", rack, TENANTS, FOREIGN) as show:
        return {
            f"{name}-{columns}": show(words, columns)
            for name, words in COMMANDS.items()
            for columns in widths
        }


def scene(
    name: str, widths: Iterable[int] = WIDTHS, *, host: str | None = None, colour: bool = False
) -> dict[int, str]:
    """Return what `hetero inventory` shows of a machine, by the columns of the terminal."""
    if name in SCENES:
        rack, tenants, foreign = SCENES[name]
    else:
        rack, (tenants, foreign) = hetero_simulator.rack(name).read_text(), HERE[name]
    with _machine(host or name, rack, tenants, foreign, colour=colour) as show:
        return {columns: show(("inventory",), columns) for columns in widths}


def cluster(widths: Iterable[int] = WIDTHS) -> dict[int, str]:
    """Return what `hetero inventory --cluster` shows of 5,000 nodes, and of one of them."""
    items = generated(5000, 10_000)
    with tempfile.TemporaryDirectory(prefix="hetero-", ignore_cleanup_errors=True) as folder:
        path = Path(folder, "cluster.json")
        path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": items}))
        environ = _environ(folder, "")
        words = ("inventory", "--cluster", str(path))
        return {
            columns: "\n".join(
                _shown(each, environ, columns).replace(str(path), "cluster.json")
                for each in (words, (*words, "--node", "node-00003"))
            )
            for columns in widths
        }


@contextmanager
def _machine(
    name: str,
    rack: str,
    tenants: Iterable[tuple[str, ...]],
    foreign: tuple[str, ...],
    *,
    colour: bool = False,
) -> Iterator[Callable[[tuple[str, ...], int], str]]:
    """Have a machine with these cards and programs, and yield what shows commands on it."""
    with tempfile.TemporaryDirectory(prefix="hetero-", ignore_cleanup_errors=True) as folder:
        path = Path(folder, f"{name}.rack")
        path.write_text(_numbered(rack))
        environ = _environ(folder, str(path), colour=colour)
        for program in ("train.py", "serve.py"):
            Path(folder, program).write_text(JOB)
        programs = [_start(flags, environ, folder) for flags in tenants]
        if foreign:
            programs.append(_start_foreign(foreign, environ))
        try:
            yield (
                lambda words, columns: (
                    _shown(words, environ, columns)
                    .replace(folder, "/run")
                    .replace(str(CHECKOUT), "/opt/hetero")
                )
            )
        finally:
            for program_process in programs:
                program_process.kill()
                program_process.communicate()


def _environ(folder: str, rack: str, *, colour: bool = False) -> dict[str, str]:
    clean = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {
        **clean,
        "HETERO_STATE": f"{folder}/state",
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        **({"HETERO_RACK": rack} if rack else {}),
        **({} if colour else {"NO_COLOR": "1"}),
    }


def _numbered(rack: str) -> str:
    """Return a rack whose cards have UUIDs of their own, which it would derive from its path."""
    number = count(1)
    return re.sub(
        r"\[device\]\n(?=((?:(?!\[).*\n)*))",
        lambda matched: (
            matched[0]
            if "uuid = " in matched[1]
            else f"{matched[0]}uuid = GPU-{next(number):08x}-0000-4000-8000-000000000000\n"
        ),
        rack,
    )


def _start(words: tuple[str, ...], environ: dict[str, str], folder: str) -> subprocess.Popen[bytes]:
    """Start a program with a share, and return once it runs; what comes behind `--` is a job."""
    flags, _, memory = " ".join(words).partition(" -- ")
    program, *options = memory.split() or PROGRAM
    command = ("python3", program, *options) if memory else PROGRAM
    tenant = subprocess.Popen(
        [*HETERO, "run", *flags.split(), "--", *command],
        env={**environ, "JOB": str(hetero_simulator.job("cuda"))},
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    name = "hetero-job-cuda" if memory else PROGRAM[0]
    while Path(f"/proc/{tenant.pid}/comm").read_text().strip() != name[:15]:
        if tenant.poll() is not None:
            raise SystemExit(f"no share for {' '.join(words)}")
        time.sleep(0.05)
    return tenant


def _start_foreign(options: tuple[str, ...], environ: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a program without a grant, and return once it has its memory, and says so."""
    drivers = str(hetero_simulator.fake_drivers())
    job = str(hetero_simulator.job("cuda"))
    foreign = subprocess.Popen(
        [job, *options], env={**environ, "LD_LIBRARY_PATH": drivers}, stdout=subprocess.PIPE
    )
    if not foreign.stdout or not foreign.stdout.readline():
        raise SystemExit("the program without a grant did not start")
    return foreign


def _shown(words: tuple[str, ...], environ: dict[str, str], columns: int) -> str:
    """Return what a command shows in a terminal of so many columns."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(controller, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    with subprocess.Popen(
        [*HETERO, *words], stdin=terminal, stdout=terminal, env=environ
    ) as program:
        os.close(terminal)
        output = b""
        try:
            while some := os.read(controller, 65536):
                output += some
        except OSError:  # the last one closed the terminal
            pass
        program.wait()
    os.close(controller)
    return f"$ hetero {' '.join(words)}\n" + output.decode().replace("\r\n", "\n")


if __name__ == "__main__":
    main()
