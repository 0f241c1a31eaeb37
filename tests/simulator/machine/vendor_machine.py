"""A simulated machine with faults, whose programs begin by meeting one vendor's library."""

import subprocess
from pathlib import Path
from textwrap import dedent

from simulated import Machine


class VendorMachine(Machine):
    """Has this rack and faults ("call = ...; does = ..."); runs programs after the prelude."""

    def __init__(self, directory: Path, rack: str, prelude: str, *faults: str) -> None:
        sections = ["\n[fault]\n" + fault.replace("; ", "\n") + "\n" for fault in faults]
        super().__init__(directory, dedent(rack) + "".join(sections))
        self.prelude = "from ctypes import *\n" + dedent(prelude)

    def start(self, program: str, **more: str) -> subprocess.Popen[str]:
        return super().start(self.prelude + dedent(program), **more)
