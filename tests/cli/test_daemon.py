"""The command line of two users and root on one machine, with heterod as `hetero daemon` starts it.

The commands run in forks of this process, which import what they need as root: so a checkout, or a
Python, that only root can enter does.
"""

import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import hetero_simulator
import pytest
from attrs import define, field

from hetero.cli import main
from tests.node.users import ALICE, BOB, ROOT, become, forked, unmount_all
from tests.registry.installed import install

from .conftest import VENDOR

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become several users")


@define
class Machine:
    """A state directory of root's, where users have been told that it is the machine's."""

    path: Path
    _running: list[int] = field(factory=list)

    def begin(self, uid: int, *words: str, **more: str) -> int:
        """Start a command line of a user's; return its PID."""
        out, err = (self.path / f"{name}-{uid}" for name in ("out", "err"))

        def command() -> None:
            for number, file in ((1, out), (2, err)):
                os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
            sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
            for name in [name for name in os.environ if name.startswith(("HETERO_", "LD_", "XDG"))]:
                del os.environ[name]
            os.environ.update(HETERO_STATE=str(self.path / "private"), COLUMNS="120")
            sys.path.insert(0, str(self.path / "site"))
            if uid:
                with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                    _call("fit" if words[0] == "run" else words[0])
            os.environ.update({"HETERO_STATE": str(self.path / "state"), **more})
            become(uid)
            code = _call(*words)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

        pid = forked(command)
        self._running.append(pid)
        return pid

    def run(self, uid: int, *words: str, **more: str) -> tuple[int, str, str]:
        """Run a command line of a user's to its end; return its code and what it said."""
        code = self.end(self.begin(uid, *words, **more))
        out, err = ((self.path / f"{name}-{uid}").read_text() for name in ("out", "err"))
        return code, out, err

    def end(self, pid: int, number: int = 0) -> int:
        self._running.remove(pid)
        os.kill(pid, number)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def close(self) -> None:
        for pid in [*self._running]:
            self.end(pid, signal.SIGKILL)


def _call(*words: str) -> int:
    sys.argv = ["hetero", *words]
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def until(path: Path, text: str) -> bool:
    deadline = time.monotonic() + 60
    while text not in (path.read_text() if path.exists() else ""):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def machine() -> Iterator[Machine]:
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    path.chmod(0o755)
    (path / "site").mkdir()
    install(path / "site", "testing", VENDOR)
    machine = Machine(path)
    machine.begin(ROOT, "daemon")
    assert until(path / f"out-{ROOT}", f"heterod serves {path}/state/heterod.sock\n")
    yield machine
    machine.close()
    unmount_all(path / "state")
    shutil.rmtree(path)


def test_row_10_two_users_and_root_share_one_ledger(machine: Machine) -> None:
    share = ("--device", "0", "--memory", "10Gi", "--core", "60", "--vendor", "testing")
    program = ("sh", "-c", "echo began; exec sleep 1000")
    held = machine.begin(ALICE, "run", *share, "--", *program)
    assert until(machine.path / f"out-{ALICE}", "began")

    code, _, error = machine.run(BOB, "run", *share, "--", "true")
    assert (3, "hetero: ") == (code, error[:8])
    assert re.search("lacks? (core|memory)", error)
    for uid in (ROOT, BOB):
        code, out, error = machine.run(uid, "ps", "--json")
        (grant,) = json.loads(out)["items"]
        assert (0, "", str(ALICE)) == (code, error, grant["user"])
    code, _, error = machine.run(BOB, "release", "--force", grant["id"])
    refusal = f"hetero: grant {grant['id']} is {ALICE}'s: {ALICE} or root can change or release it"
    assert (3, f"{refusal}\n") == (code, error)
    assert 0 == machine.run(ALICE, "release", "--force", grant["id"])[0]
    assert -signal.SIGTERM == machine.end(held)
    assert (0, "") == machine.run(BOB, "run", "--quiet", *share, "--", "true")[::2]


def test_users_wait_for_each_other_in_the_queue_of_heterod(machine: Machine) -> None:
    card = ("--device", "0", "--memory", "10Gi", "--vendor", "testing")
    held = machine.begin(ALICE, "run", *card, "--", "sh", "-c", "echo began; exec sleep 1000")
    assert until(machine.path / f"out-{ALICE}", "began")

    waits = machine.begin(BOB, "run", "--wait", *card, "--", "echo", "served")
    assert until(machine.path / f"err-{BOB}", "w1 waits, place 1 in the queue")
    (request,) = json.loads(machine.run(ROOT, "ps", "--json")[1])["waiting"]
    assert (str(BOB), [waits], 10 << 30) == (
        request["user"],
        request["processes"],
        request["memory"],
    )

    machine.end(held, signal.SIGKILL)
    assert until(machine.path / f"out-{BOB}", "served")
    assert 0 == machine.end(waits)
    assert [] == json.loads(machine.run(ROOT, "ps", "--json")[1])["waiting"]


def test_a_program_that_cannot_start_leaves_no_grant(machine: Machine) -> None:
    code, _, error = machine.run(ALICE, "run", "--memory", "1Gi", "--", "/nowhere/program")

    assert (127, "hetero: /nowhere/program: command not found\n") == (code, error)
    assert [] == json.loads(machine.run(BOB, "ps", "--json")[1])["items"]


@pytest.mark.parametrize("words", [("run", "--memory", "1Gi", "--", "true"), ("ps",)])
def test_without_heterod_users_are_told_that_others_are_not_seen(
    machine: Machine, words: tuple[str, ...]
) -> None:
    alone = {"HETERO_STATE": "", "XDG_RUNTIME_DIR": str(machine.path / "alice")}
    (machine.path / "alice").mkdir(mode=0o700)
    os.chown(machine.path / "alice", ALICE, ALICE)

    code, _, error = machine.run(ALICE, *words, **alone)

    assert 0 == code
    assert "hetero: grants that other users made are not seen: `hetero install`" in error
    assert 1 == sum("not seen" in line for line in error.splitlines())
    assert "" == machine.run(ALICE, "ps", "--json", **alone)[2]


def test_a_second_heterod_says_that_there_is_one(machine: Machine) -> None:
    code, out, error = machine.run(ROOT, "daemon")

    assert (3, "", f"hetero: heterod runs already for {machine.path}/state\n") == (code, out, error)


def test_root_cordons_a_card_for_all_users_at_once_and_nobody_else_does(machine: Machine) -> None:
    code, out, _ = machine.run(ROOT, "cordon", "1", "--reason", "loud fan")
    assert (0, "testing:1 (T1000, T-1) is cordoned: nothing new is given of it\n") == (code, out)

    asked = ("run", "--device", "1:mem=1Gi", "--", "true")
    code, _, err = machine.run(ALICE, *asked)
    assert (3, True) == (code, "1 cordoned (loud fan)" in err)
    for words in (("uncordon", "1"), ("cordon", "0"), ("health", "clear", "1")):
        code, _, err = machine.run(ALICE, *words)
        assert (3, True) == (code, "are for all its users: only root does that" in err)
    _, out, _ = machine.run(BOB, "inventory")
    assert 1 == out.count("cordoned (loud fan)")
    assert "5 cards of 1 vendor   1 cordoned   " in out
    machine.run(ROOT, "uncordon", "1")

    assert 0 == machine.run(ALICE, *asked)[0]


def test_without_heterod_only_root_cordons_but_for_a_ledger_of_the_users_own(
    machine: Machine,
) -> None:
    own = machine.path / "alice"
    own.mkdir(mode=0o700)
    os.chown(own, ALICE, ALICE)
    alone = {"HETERO_STATE": "", "XDG_RUNTIME_DIR": str(own)}
    for words in (("cordon", "0"), ("uncordon", "1"), ("health", "clear", "1")):
        code, out, err = machine.run(ALICE, *words, **alone)
        assert (2, "", 1) == (code, out, len(err.splitlines()))
        assert "only root does that, as with sudo; a ledger in $HETERO_STATE" in err
    assert [] == [*own.iterdir()]

    private = {"HETERO_STATE": str(own / "state")}
    for words in (("cordon", "0"), ("uncordon", "0"), ("health", "clear", "0")):
        code, _, err = machine.run(ALICE, *words, **private)
        sentence = f"hetero: for what is run with HETERO_STATE={own}/state alone: other users"
        assert (0, f"{sentence} do not see it\n") == (code, err)


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is of util-linux")
def test_a_program_of_roots_that_becomes_another_user_keeps_the_grant_of_that_user(
    machine: Machine,
) -> None:
    """As gosu does, with heterod and without: the boards are shown by whoever makes the grant."""
    job = str(hetero_simulator.job("cuda"))
    rack = {"HETERO_RACK": str(shutil.copy(hetero_simulator.rack("one"), machine.path))}
    becomes = ("setpriv", f"--reuid={ALICE}", "--clear-groups", job, "--alloc")
    ask = ("run", "-q", "--memory", "2Gi", "--for-user")

    def outcomes() -> list[tuple[int, bool]]:
        tries = [
            machine.run(ROOT, *ask, str(user), "--", *becomes, size, **rack)
            for user, size in ((ALICE, "1000MiB"), (ALICE, "3000MiB"), (BOB, "1000MiB"))
        ]
        return [(code, "--for-user" in errors) for code, _, errors in tries]

    expected = [(0, False), (1, False), (1, True)]
    assert expected == outcomes()
    (ledger,) = (machine.path / "state").glob("sim-*")
    unmount_all(ledger)
    machine.begin(ROOT, "daemon", **rack)
    try:
        assert until(machine.path / f"out-{ROOT}", f"heterod serves {ledger}/heterod.sock\n")
        assert expected == outcomes()
    finally:
        unmount_all(ledger)


def test_root_alone_makes_grants_for_others_and_for_users_that_are_there(machine: Machine) -> None:
    ask = ("run", "--memory", "2Gi", "--for-user")
    asked = [machine.run(ALICE, *ask, str(BOB), "--", "true"), machine.run(ROOT, *ask, "x", "true")]

    assert [2, 2] == [code for code, _, _ in asked]
    assert "--for-user is for root" in asked[0][2]
    assert "--for-user 'x' is no user of this machine" in asked[1][2]
