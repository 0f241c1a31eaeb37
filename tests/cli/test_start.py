"""How a command ends: with all that was to be done, at once, or for want of a package."""

import json
import re
import subprocess
import sys
from importlib import import_module
from importlib.metadata import packages_distributions, requires

import pytest

from hetero import cli
from hetero.cli._extras import EXTRA_BY_PACKAGE
from tests.cli.conftest import Run
from tests.programs import completed

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


WITH_MODULES = """
import atexit, sys
atexit.register(lambda: print(*sorted(sys.modules)))
from hetero.start import main
main()
"""


@pytest.mark.parametrize(("words", "asks"), [(("ps",), False), (("fit", "--memory", "1Gi"), True)])
def test_what_asks_vendors_is_imported_by_who_asks_them(
    environ: dict[str, str], words: tuple[str, ...], asks: bool
) -> None:
    done = completed([sys.executable, "-c", WITH_MODULES, *words], env=environ)
    modules = done.stdout.splitlines()[-1].split()

    for package in ("hetero.plugin", "hetero.placement", "hetero.registry.registry", "pluggy"):
        assert (package in modules) is asks, package


WITHOUT = """
import sys
sys.modules[{!r}] = None
from hetero.start import main
main()
"""


@pytest.mark.parametrize(
    ("package", "words", "extra"),
    [
        ("prometheus_client", ("inventory", "--cluster"), "kube"),
        ("prometheus_client", ("top", "--cluster", "--once"), "kube"),
        ("cel", ("explain", "claim", "claims.yaml"), "kube"),
        ("numpy", ("simulate", "--trace", "examples/trace.json"), "simulate"),
    ],
)
def test_a_package_that_is_missing_is_named_with_the_extra_that_brings_it(
    environ: dict[str, str], package: str, words: tuple[str, ...], extra: str
) -> None:
    done = without(package, *words, environ=environ)

    says = f"hetero: {package} is not installed: pip install 'hetero[{extra}]'\n"
    assert (2, says) == (done.returncode, done.stderr)


def test_json_says_it_too(environ: dict[str, str]) -> None:
    done = without("prometheus_client", "inventory", "--cluster", "--json", environ=environ)

    document = json.loads(done.stdout)
    assert ("hetero.error", 2) == (document["schema"], document["code"])
    assert "prometheus_client is not installed" in document["error"]


def test_a_module_of_ours_that_is_missing_is_a_fault(environ: dict[str, str]) -> None:
    done = without("hetero.kube.cluster_view", "inventory", "--cluster", environ=environ)

    assert 1 == done.returncode
    assert "Traceback" in done.stderr


def test_all_that_the_extras_bring_is_known() -> None:
    extra = re.compile(r"([\w-]+).*extra == ['\"](kube|simulate)['\"]")
    needed = [matched for line in requires("hetero") or [] if (matched := extra.match(line))]
    brought = {
        name: [one.replace("_", "-") for one in by] for name, by in packages_distributions().items()
    }

    assert needed
    assert [] == [
        matched[1]
        for matched in needed
        if all(
            EXTRA_BY_PACKAGE.get(name) != matched[2]
            for name, by in brought.items()
            if matched[1] in by
        )
    ]


def without(package: str, *words: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command where a package cannot be imported."""
    return completed([sys.executable, "-c", WITHOUT.format(package), *words], env=environ)


def test_each_sentence_of_help_is_the_commands_own() -> None:
    """Help imports no command, so its sentences are a table."""
    table = {
        name: text for texts in cli._SENTENCES_BY_SECTION.values() for name, text in texts.items()
    }
    own = {
        name: import_module(f"hetero.cli.{name}").command.get_short_help_str(limit=1000)
        for name in cli._COMMANDS
    }

    assert own == table


def test_second_tour_17_help_imports_no_command_and_nothing_of_the_node() -> None:
    script = "import sys; sys.argv = ['hetero', '--help']; from hetero.start import main; main()"
    loaded = "import atexit, sys; atexit.register(lambda: print(*sorted(sys.modules)))\n"
    done = completed([sys.executable, "-c", loaded + script])

    assert 0 == done.returncode
    modules = set(done.stdout.splitlines()[-1].split())
    assert {"hetero.cli", "click"} <= modules
    assert not {"hetero.cli.run", "hetero.node.node", "pluggy", "rich", "asyncio"} & modules
