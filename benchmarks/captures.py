"""Captures what ps, inventory, fit and doctor show in terminals of 60, 80, 120 and 200 columns.

    python benchmarks/captures.py         (`make captures`: writes docs/captures)

The cards are those of a simulated rack, and programs hold shares of them. Ids, PIDs and ages are
those of the run; tests/benchmarks/test_captures.py compares the rest.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterable
from itertools import count
from pathlib import Path

import hetero_simulator

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


def main() -> None:
    """Write the captures."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in captures().items():
        (FOLDER / f"{name}.txt").write_text(text)
        print(f"docs/captures/{name}.txt")


def captures(widths: Iterable[int] = WIDTHS) -> dict[str, str]:
    """Return the text of each capture by its name, `ps-80`."""
    clean = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    with tempfile.TemporaryDirectory(prefix="hetero-") as folder:
        rack = Path(folder, "mixed.rack")
        rack.write_text(_numbered(hetero_simulator.rack("mixed").read_text()))
        environ = {
            **clean,
            "HETERO_RACK": str(rack),
            "HETERO_STATE": f"{folder}/state",
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
            "TERM": "xterm",
        }
        tenants = [_start(flags, environ) for flags in TENANTS]
        tenants.append(_start_foreign(environ))
        try:
            return {
                f"{name}-{columns}": _shown(words, environ, columns)
                .replace(folder, "/run")
                .replace(str(CHECKOUT), "/opt/hetero")
                for name, words in COMMANDS.items()
                for columns in widths
            }
        finally:
            for tenant in tenants:
                tenant.kill()
                tenant.communicate()


def _numbered(rack: str) -> str:
    """Return a rack whose cards have UUIDs of their own, which it would derive from its path."""
    number = count(1)
    return re.sub(
        r"\[device\]\n",
        lambda matched: f"{matched[0]}uuid = GPU-{next(number):08x}-0000-4000-8000-000000000000\n",
        rack,
    )


def _start(flags: tuple[str, ...], environ: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a program with a share, and return once it runs."""
    tenant = subprocess.Popen(
        [*HETERO, "run", *flags, "--", *PROGRAM], env=environ, stderr=subprocess.DEVNULL
    )
    while Path(f"/proc/{tenant.pid}/comm").read_text().strip() != PROGRAM[0]:
        if tenant.poll() is not None:
            raise SystemExit(f"no share for {' '.join(flags)}")
        time.sleep(0.05)
    return tenant


def _start_foreign(environ: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a program without a grant, and return once it has its memory, and says so."""
    drivers = str(hetero_simulator.fake_drivers())
    job = str(hetero_simulator.job("cuda"))
    foreign = subprocess.Popen(
        [job, *FOREIGN], env={**environ, "LD_LIBRARY_PATH": drivers}, stdout=subprocess.PIPE
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
