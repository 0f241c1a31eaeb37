"""Prints the processor time of short commands, and of bare Python beside them.

    python benchmarks/cli_speed.py [--rounds 15]        (`make cli-speed`)

Simulated cards; modules are compiled before. The commands go round, so that a busy machine is
busy for all of them. Time is that of a process and its children (user and system, wait4), in
milliseconds: the least, and the median. `ps, busy` has three programs that keep a card busy.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

import hetero_simulator

START = (sys.executable, "-c", "from hetero.start import main; main()")
#: A command, the rack it is asked of, and its goal in milliseconds.
COMMANDS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "bare Python": ((sys.executable, "-c", ""), "mixed", ""),
    "--version": ((*START, "--version"), "mixed", "3 x bare"),
    "--help": ((*START, "--help"), "mixed", "80"),
    "ps": ((*START, "ps"), "one", "110"),
    "ps, busy": ((*START, "ps"), "mixed", "150"),
    "ps, seven racks": ((*START, "ps"), "seven", "120"),
    "run -- true": ((*START, "run", "-q", "-m", "1Gi", "--", "true"), "mixed", "180"),
    "inventory": ((*START, "inventory"), "mixed", "190"),
    "fit": ((*START, "fit", "--memory", "3000Mi"), "mixed", "150"),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    spent: dict[str, list[float]] = {name: [] for name in COMMANDS}
    waited: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory(prefix="hetero-") as state:
        clean = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environ = {**clean, "HETERO_STATE": state}
        job = str(hetero_simulator.job("cuda"))
        words = ("run", "--device", "0", "--memory", "1Gi", "--core", "10", "--", job)
        tenants = [
            subprocess.Popen(
                [*START, *words, "--seconds", "10000", "--memory", "128MiB"],
                env={**environ, "HETERO_RACK": "mixed"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for _ in range(3)
        ]
        try:
            time.sleep(3)
            for number in range(rounds + 1):
                for name, (command, rack, _) in COMMANDS.items():
                    processor, wall = _measured(command, {**environ, "HETERO_RACK": rack})
                    if number:  # the first compiles
                        spent[name].append(processor)
                        waited[name].append(wall)
        finally:
            for tenant in tenants:
                tenant.kill()
                tenant.wait()
    print("command            processor ms: least  median   wall ms: median   goal")
    for name, (_, _, goal) in COMMANDS.items():
        least, middle = min(spent[name]), statistics.median(spent[name])
        wall = statistics.median(waited[name])
        print(f"{name:17} {least:20.0f} {middle:7.0f} {wall:17.0f}   {goal}")


def _measured(command: tuple[str, ...], environ: dict[str, str]) -> tuple[float, float]:
    """Return the milliseconds of processor time and of wall time that a command takes."""
    began = time.monotonic()
    program = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(program.pid, 0)
    program.returncode = os.waitstatus_to_exitcode(status)
    if program.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {program.returncode}")
    return 1000 * (used.ru_utime + used.ru_stime), 1000 * (time.monotonic() - began)


if __name__ == "__main__":
    main()
