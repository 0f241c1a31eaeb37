"""What `make rooms` counts stays within its goals."""

import sys
from pathlib import Path

from tests.programs import completed

ROOMS = Path(__file__).parent.parent.parent / "benchmarks/rooms.py"


def test_a_run_enters_few_packages_and_none_more_than_thrice() -> None:
    done = completed([sys.executable, ROOMS])
    stays = [line.split()[1] for line in done.stdout.splitlines()[:-1]]

    assert 0 == done.returncode, done.stdout + done.stderr
    assert ["hetero.cli", "hetero.node"] == stays[:2]
    assert {"hetero.plugin", "hetero.placement"} <= {*stays}
