"""Real shells complete what a user types: names, words, and behind `--` another command's line."""

import getpass
import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hetero.model import Ask, Request
from hetero.model.units import GiB
from hetero.node.grants import LocalGrants
from hetero.node.ledger.ledger import Ledger
from hetero.node.node import Node
from hetero.registry.registry import Registry
from hetero.testing import MemoryVendor, rack
from tests.programs import completed, next_line

from .conftest import Begin, Run

#: How a shell is started without its user's files. What takes a Debian package is selected by -m.
SHELLS = [
    pytest.param(("bash", "--norc", "--noprofile", "-i"), id="bash"),
    pytest.param(("zsh", "-f", "-i"), id="zsh", marks=pytest.mark.shells),
    pytest.param(("fish", "--no-config", "-i"), id="fish", marks=pytest.mark.shells),
]
#: What is typed, and what the shell then shows.
TYPED = [
    ("hetero comp", "completion"),
    ("hetero release tra", "trainer"),
    ("hetero run --memory 1Gi --dev", "--device"),
    ("hetero release my", "my\\ job"),
    ("hetero resize 'my j", "'my job'"),
    ('hetero release "my j', '"my job"'),
    ("hetero release my\\ j", "my\\ job"),
    (f"hetero ps --user {getpass.getuser()[:2]}", getpass.getuser()),
    ("hetero bench isol", "isolation"),
    ("hetero bench isolation long /etc/hostn", "/etc/hostname"),
    ("hetero run --device T-", "T-3"),
    ("hetero fit --vendor te", "testing"),
    ("hetero fit --vendor nvi", "nvidia"),
    ("hetero fit --model T1", "T1000"),
    ("hetero fit --policy el", "elastic"),
    ("hetero share rest", "restore"),
    ("hetero simulate --trace /etc/hostn", "/etc/hostname"),
    ("hetero simulate --cluster /etc/hostn", "/etc/hostname"),
    ("hetero simulate --cluster --witho", "--without"),
    ("hetero run --core 30 -- cat /etc/hostn", "/etc/hostname"),
    ("hetero run -q cat /etc/hostn", "/etc/hostname"),
    ("hetero run -- mkfif", "mkfifo"),
]
_PATIENCE = 10.0


class Shell:
    """A shell at a terminal of its own."""

    def __init__(self, words: tuple[str, ...], environ: Mapping[str, str]) -> None:
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.execvpe(words[0], words, {**environ, "TERM": "xterm", "COLUMNS": "100"})

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def shown(self, expected: str) -> str:
        """Return what was shown until `expected` was, or for as long as a test has patience."""
        seen, end = b"", time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            if select.select([self._terminal], [], [], 0.1)[0]:
                seen += os.read(self._terminal, 1 << 16)
            plain = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|[\x07\r]", b"", seen).decode()
            if expected in plain:
                return plain
        raise AssertionError(f"{expected!r} is not in {plain!r}")

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._terminal)


@pytest.fixture
def shell(
    request: pytest.FixtureRequest, hetero: Run, environ: Mapping[str, str], tmp_path: Path
) -> Iterator[Shell]:
    words: tuple[str, ...] = request.param
    script = tmp_path / "script"
    script.write_text(hetero("completion", words[0]).stdout)
    begun = Shell(words, {**environ, "HOME": str(tmp_path)})
    begun.type(f"source {script}; echo rea''dy\n")
    begun.shown("ready")
    yield begun
    begun.end()


@pytest.mark.parametrize("shell", SHELLS, indirect=True)
def test_row_17_a_shell_completes_names_words_and_other_commands(
    shell: Shell, begin: Begin, command: tuple[str, ...]
) -> None:
    for label in ("trainer", "my job"):
        program = begin(
            *command, "run", "-q", "--memory", "1Gi", "--label", label, "--",
            "sh", "-c", "echo $$; exec sleep 600",
        )  # fmt: skip
        next_line(program)

    for typed, expected in TYPED:
        shell.type(f"{typed}\t\t")
        shell.shown(expected)
        shell.type("\x15")  # take the line back


def test_row_17_names_are_those_that_stand_and_are_plain_words(
    environ: Mapping[str, str], begin: Begin, command: tuple[str, ...], tmp_path: Path
) -> None:
    for label in ("mine", "two words", "\x1b[31mred"):
        program = begin(
            *command, "run", "-q", "--memory", "1Gi", "--label", label, "--",
            "sh", "-c", "echo $$; exec sleep 600",
        )  # fmt: skip
        next_line(program)
    share = Request(asks=(Ask(memory=GiB),))
    ledger = Ledger(Path(environ["HETERO_STATE"]), persistent=tmp_path / "persistent")
    node = Node(registry=Registry.of(MemoryVendor(rack(8 * GiB))), ledger=ledger)
    LocalGrants(node).take(share, share="train")

    def names(kind: str, **more: str) -> list[str]:
        command = [sys.executable, "-m", "hetero.node.complete", kind]
        done = completed(command, env={**environ, **more}, check=True)
        return [line.partition("\t")[0] for line in done.stdout.splitlines()]

    grants = names("grants")
    assert ["train"] == names("shares")
    assert ["mine", "two words"] == sorted(
        name for name in grants if not re.fullmatch("[0-9a-f]{8}", name)
    )
    assert 6 == len(grants)
    assert [getpass.getuser()] == names("users")
    assert "isolation" in names("benchmarks")
    assert ["0", "1", "2", "3", "4", *(f"T-{n}" for n in range(5))] == names("devices")
    assert "testing" in names("vendors")
    assert ["T1000"] == names("models")
    assert {"NVIDIA H200", "NVIDIA", "H200"} <= {*names("models", HETERO_RACK="mixed")}
    assert [] == names("nothing")


def test_every_option_that_takes_a_name_of_something_completes_it(hetero: Run) -> None:
    script = hetero("completion", "bash").stdout

    for kind, places in (
        ("grants", ("release 0", "resize 0")),
        ("shares", ("share rm 0", "share resize 0")),
        ("devices", ("run --device", "fit --device", "resize --device", "share create --device")),
        ("vendors", ("run --vendor", "fit --exclude-vendor")),
        ("users", ("ps -u", "top --user")),
        ("file", ("simulate --trace", "simulate --plot", "runtime install --prefix")),
        ("command", ("run 0",)),
    ):
        (line,) = re.findall(rf"^(.*)\) _h_kind={kind} ;;$", script, re.M)[-1:]
        (option,) = re.findall(rf"^(.*)\) _h_kind={kind} ;;$", script, re.M)[:1]
        for place in places:
            assert f"' {place}'" in f"{line} {option}"


def test_a_shell_that_nobody_knows_is_one_line(hetero: Run) -> None:
    done = hetero("completion", "tcsh")

    assert (2, "", 1) == (done.returncode, done.stdout, done.stderr.count("\n"))
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in done.stderr
