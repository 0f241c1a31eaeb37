"""The contract over one real plugin and one rack, in a process of its own.

A driver library, real or fake, is loaded once and for good, so each rack needs a fresh process:
`PLUGIN=hetero_x HETERO_RACK=… pytest tests/vendors/contract.py` (see `contract_holds`).
"""

import os
import sys
from importlib import import_module
from pathlib import Path

from hetero_simulator import fake_drivers

from hetero.registry.registry import Registry
from hetero.testing import VendorContract
from tests.programs import completed


def on_rack(command: list[str], rack: Path, **environment: str) -> str:
    """Run Python with the fake drivers over `rack` and return what it printed."""
    done = completed(
        [sys.executable, *command],
        env={
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(fake_drivers()),
            "HETERO_RACK": str(rack),
            **environment,
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def contract_holds(plugin: str, rack: Path) -> str:
    """Run this file over `plugin` and `rack`; return pytest's summary, or fail with its output."""
    alone = ["-p", "no:cacheprovider", "--noconftest"]  # the drivers are this process's own
    return on_rack(["-m", "pytest", *alone, __file__], rack, PLUGIN=plugin)


if "PLUGIN" in os.environ:

    class TestContract(VendorContract):
        plugin = import_module(os.environ["PLUGIN"])

        def test_the_rack_has_cards_for_it(self) -> None:
            assert Registry.of(self.plugin).discover().devices
