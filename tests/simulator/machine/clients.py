"""A simulated machine on which `hetero` and others' programs, unmodified, meet the same drivers.

The programs are installed in an environment of their own (`make setup`), and each finds its
vendor's library as on a real machine.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from simulated import MIB, Machine

_CLIENTS = Path(__file__).parents[3] / ".venv-clients" / "bin"
#: The command line as a process of its own.
HETERO = [sys.executable, "-c", "from hetero.cli import main; main()"]

#: As gpustack uses it. It looks for MetaX's library in /opt alone, and asks the bus for its cards
#: unless told otherwise.
GPUSTACK = """
import ctypes, json
from gpustack_runtime.detector import detect_devices, pymxsml
pymxsml.mxSmlLib = ctypes.CDLL("libmxsml.so")
print(json.dumps([device.to_dict() for device in detect_devices(fast=False)]))
"""


class ClientMachine(Machine):
    """A machine with a rack, on which `hetero` and others' programs run beside each other."""

    def environment(self, **more: str) -> dict[str, str]:
        state = str(self.rack.parent / "state")
        return super().environment(HETERO_STATE=state, TERM="dumb", COLUMNS="80", **more)

    def client(self, program: str, *arguments: str, **more: str) -> str:
        """Return what a client prints; it complains of nothing."""
        environment = self.environment(**more)
        environment.pop("PYTHONPATH")
        return _printed([client_path(program), *arguments], environment)

    def hetero(self, *arguments: str) -> str:
        """Return what a command of ours prints."""
        return _printed([*HETERO, *arguments], self.environment())

    def inventory(self) -> list[dict[str, Any]]:
        """Return what `hetero inventory` says of the cards."""
        items: list[dict[str, Any]] = json.loads(self.hetero("inventory", "--json"))["items"]
        return items


def client_path(program: str) -> str:
    """Return where a client's program is."""
    path = _CLIENTS / program
    assert path.exists(), f"{path} is not there: run `make setup`"
    return str(path)


def detected(machine: ClientMachine) -> list[dict[str, Any]]:
    """Return what gpustack detects: each card as a JSON object of its own."""
    settings = {
        "GPUSTACK_RUNTIME_DETECT_NO_PCI_CHECK": "1",
        "GPUSTACK_RUNTIME_DETECT_NO_HEALTH_CHECK": "0",
    }
    shown: list[dict[str, Any]] = json.loads(machine.client("python", "-c", GPUSTACK, **settings))
    return shown


def figure(value: float | None, unit: str) -> str:
    """Return a figure as most clients show it."""
    return "N/A" if value is None else f"{value:.0f}{unit}"


def mebibytes(text: str) -> float:
    """Return a size such as 22.49GiB in MiB."""
    number, unit = re.fullmatch(r"([\d.]+)(\w+)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"B": 1 / MIB, "MiB": 1, "GiB": 1024}[unit]


def _printed(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ("", 0) == (done.stderr, done.returncode)
    return done.stdout
