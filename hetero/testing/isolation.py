"""What a limiter must hold, shown on the driver it stands in front of: run by pytest.

    from pathlib import Path
    from hetero.testing import IsolationContract

    class TestAcme(IsolationContract):
        vendor = "acme"
        driver = Path(__file__).with_name("acme_calls.py")

`driver` says how a program calls the driver: the names of `isolation_programs.DriverCalls`.
Programs are started by `hetero run`, so that discovery, the grant and the limiter are those of this
machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from hetero.model.units import MiB
from hetero.testing import isolation_programs

#: Has the program alone the clock, and none that starts it.
_PRELOADED = 'export VIRTUAL_CLOCK=$1; shift; LD_PRELOAD=$0:$LD_PRELOAD exec "$@"'


class IsolationContract:
    """What every limiter keeps of a grant's memory and time. Each method is one promise.

    Meant for a card that nobody else uses. The grants are in a ledger of the contract's own.
    """

    #: Whose card it is, and the file that says how a program calls its driver.
    vendor: ClassVar[str]
    driver: ClassVar[Path]
    #: Further environment of `hetero run`, and options of it that choose a card.
    environ: ClassVar[Mapping[str, str]] = {}
    options: ClassVar[Sequence[str]] = ()
    #: The memory of a grant, in MiB. The card has at least three times that.
    memory: ClassVar[int] = 256
    #: How far, in points, what a program gets may be from its share.
    points: ClassVar[float] = 3
    #: Of a simulated card: the library under which programs have a clock of their own, which no
    #: load disturbs (the simulator's `clock()`), for how many seconds of it they are measured, and
    #: how far, in points, what they get may then be from their share.
    clock: ClassVar[Path | None] = None
    virtual_seconds: ClassVar[float] = 5
    virtual_points: ClassVar[float] = 1
    #: What this limiter cannot do, by the name of the promise. It is tried, and must be broken.
    lacks: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls) -> None:
        """Have each promise that is said to be broken fail where it is kept."""
        for name, why in cls.lacks.items():
            setattr(cls, name, _broken(getattr(cls, name), why))

    def test_memory_is_refused_at_the_limit_and_not_below(self) -> None:
        """Also, programs are told what the grant has, and what of it is free."""
        size = self.memory * MiB
        want = {"held": True, "full": [0, size], "over": 0, "freed": [size // 4, size]}
        self._assert(want, self._run("limit", size))

    def test_memory_that_is_freed_is_the_grants_again(self) -> None:
        """Many times over."""
        size = self.memory * MiB
        self._assert([True, [size, size], [size, size]], self._run("refund", size))

    def test_a_fork_shares_the_limit_and_gives_nothing_back(self) -> None:
        """A child that was forked before the driver was used is limited, together with its parent.

        One that was forked after and ends leaves its parent's charge as it was.
        """
        size = self.memory * MiB
        self._assert([True, size // 4, size], self._run("fork", size))

    def test_memory_of_a_killed_process_is_the_grants_again(self) -> None:
        """No process outlives the kill that could give it back."""
        self._assert(True, self._run("kill", self.memory * MiB))

    def test_two_tenants_have_30_and_60_of_a_card(self) -> None:
        """In percent of what a program does alone on the card."""
        with TemporaryDirectory() as state:
            alone = self._alone(state)
            jobs = [
                self._start(state, core, "busy", *self._periods(), together=2) for core in (30, 60)
            ]
            self._assert_shares([100 * self._said(job) / alone for job in jobs])

    def test_a_grant_can_be_resized_while_its_program_runs(self) -> None:
        """Alone on the card the program has its share, before and after, and no more."""
        size = self.memory * MiB
        more = ("--memory", f"{2 * self.memory}Mi", "--core", "60")
        with TemporaryDirectory() as state:
            alone = self._alone(state)
            arguments = (size, *self._periods())
            with self._start(state, 30, "resized", *arguments, together=1, label="contract") as job:
                first, *before = self._line(job)
                self._ended(self._hetero(state, "resize", "-q", "contract", *more))
                assert job.stdin is not None
                job.stdin.write("\n")
                job.stdin.flush()
                second, *after = self._line(job)
        self._assert([[True, [0, size]], [True, [0, 2 * size]]], [before, after])
        self._assert_shares([100 * each / alone for each in (first, second)])

    def test_every_way_to_the_driver_leads_to_the_limiter(self) -> None:
        """Linked, dlsym of a handle that was there before, of the whole program, and RTLD_NEXT."""
        answers = self._run("ways", 2 * self.memory * MiB)
        assert len(answers) == 5
        assert len({*answers.values()}) == 1, answers
        assert 0 not in answers.values()
        assert -1 not in answers.values()

    def test_memory_of_another_process_is_charged_once(self) -> None:
        """To the process that allocated it."""
        size = self.memory * MiB // 2
        self._assert([size, size, True, False], self._run("export", size))

    def test_a_function_that_is_not_known_is_passed_on_and_logged(self) -> None:
        """With HETERO_LOG=info, once."""
        with TemporaryDirectory() as state:
            job = self._start(state, 100, "unknown", log="info")
            out, errors = job.communicate(timeout=60)
        assert (0, "true") == (job.returncode, out.strip()), errors
        assert errors.count("is not known") == 1, errors

    def test_a_program_that_ends_with_work_in_flight_ends(self) -> None:
        """With its own exit status."""
        with TemporaryDirectory() as state:
            job = self._start(state, 30, "leave")
            out, errors = job.communicate(timeout=60)
        assert (isolation_programs.LEFT, 1) == (job.returncode, len(out.splitlines())), errors

    def test_without_a_grant_nothing_is_limited(self) -> None:
        """The limiter may be loaded into programs that have none."""
        results = self._run("free", 2 * self.memory * MiB)
        assert results["full"][1] > 2 * self.memory * MiB, results

    # --- how programs are run ---

    def _run(self, name: str, *arguments: Any, core: int = 100) -> Any:
        with TemporaryDirectory() as state:
            return self._said(self._start(state, core, name, *arguments))

    def _alone(self, state: str) -> float:
        """Return the kernels per second of a program that has the card."""
        rate = self._said(self._start(state, 100, "alone", together=1))
        return float(rate)

    def _periods(self) -> tuple[float, float]:
        """Return the seconds for which a program warms up, and then is measured."""
        return (0.8, 1.5) if self.clock is None else (0.5, self.virtual_seconds)

    def _start(
        self,
        state: str,
        core: int,
        name: str,
        *arguments: Any,
        label: str = "",
        log: str = "",
        together: int = 0,
    ) -> subprocess.Popen[str]:
        """Start a program of a grant, which is measured together with others: so many in all.

        That is in virtual time where there is a `clock` for it.
        """
        share = ("--memory", f"{self.memory}Mi", "--core", str(core))
        options = ("--vendor", self.vendor, *share, *(("--label", label) if label else ()))
        program = (isolation_programs.__file__, str(self.driver), name)
        job = (sys.executable, *program, *map(json.dumps, arguments))
        if together and self.clock is not None:
            job = ("sh", "-c", _PRELOADED, str(self.clock), f"{together}:{state}/clock", *job)
        level = {"HETERO_LOG": log} if log else {}
        return self._hetero(state, "run", "-q", *options, *self.options, "--", *job, **level)

    def _hetero(self, state: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "hetero.cli", *arguments],
            env={**os.environ, **self.environ, "HETERO_STATE": state, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _line(self, job: subprocess.Popen[str]) -> Any:
        """Return the next line that a program says."""
        assert job.stdout is not None
        line = job.stdout.readline()
        assert line, job.communicate()[1]
        return json.loads(line)

    def _said(self, job: subprocess.Popen[str]) -> Any:
        """Return what a program said last, once it is over."""
        return json.loads(self._ended(job).splitlines()[-1])

    def _ended(self, job: subprocess.Popen[str]) -> str:
        out, errors = job.communicate(timeout=100)  # virtual time is slow where others work, too
        assert job.returncode == 0, f"exit {job.returncode}\n{out}\n{errors}"
        return out

    def _assert(self, want: Any, actual: Any) -> None:
        assert want == actual, f"expected {want}, and there was {actual}"

    def _assert_shares(self, shares: Sequence[float]) -> None:
        print(f"of 30 and 60: {', '.join(f'{share:.2f}' for share in shares)}")
        most = self.points if self.clock is None else self.virtual_points
        assert abs(shares[0] - 30) <= most, shares
        assert abs(shares[1] - 60) <= most, shares


def _broken(promise: Any, why: str) -> Any:
    """Return a promise's stand-in that fails where the promise is kept."""

    @wraps(promise)
    def stated(self: IsolationContract) -> None:
        try:
            promise(self)
        except AssertionError:
            return
        raise AssertionError(f"it is kept, though it is said that {why}")

    return stated
