"""How a command ends: at once, with all that was to be done at its end."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Run

AT_THE_END = """
import atexit, os
class Torn:
    def __del__(self, write=os.write): write(1, b"taken apart")
torn = Torn()
atexit.register(print, "registered")
from hetero.start import main
main()
"""


@pytest.fixture
def command(command: tuple[str, ...]) -> tuple[str, ...]:
    return (*command[:-1], AT_THE_END)


def test_a_command_ends_without_taking_apart_what_it_imported(hetero: Run) -> None:
    done = hetero("fit", "--memory", "1Gi")

    assert 0 == done.returncode
    assert done.stdout.endswith("registered\n")
    assert "taken apart" not in done.stdout


def test_its_exit_code_is_that_of_its_error(hetero: Run) -> None:
    done = hetero("fit", "--memory", "1000Gi")

    assert (3, "registered\n") == (done.returncode, done.stdout)
    assert "hetero: " in done.stderr
