"""The contract of every limiter, as tests that pytest runs on the driver in question.

    from pathlib import Path
    from hetero.testing import IsolationContract

    class TestAcme(IsolationContract):
        vendor = "acme"
        driver = Path(__file__).with_name("acme_calls.py")

`driver` is the file with a program's calls of the driver: the names of
`isolation_programs.DriverCalls`. Programs are started by `hetero run`, so discovery, the grant and
the limiter are those of this machine.
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


def _state_directory() -> TemporaryDirectory[str]:
    """Return a ledger's directory, in which the watcher of a grant may write a little longer."""
    return TemporaryDirectory(ignore_cleanup_errors=True)


class IsolationContract:
    """The limits of memory and device time that every limiter keeps, a promise a method.

    It needs a card that nobody else uses. Its grants are in a ledger of its own.
    """

    #: Whose card it is, and the file that says how a program calls its driver.
    vendor: ClassVar[str]
    driver: ClassVar[Path]
    #: Further environment of `hetero run`, and options of it that choose a card.
    environ: ClassVar[Mapping[str, str]] = {}
    options: ClassVar[Sequence[str]] = ()
    #: The memory of a grant, in MiB: room for the contexts of three processes, and the card has at
    #: least three times that.
    memory: ClassVar[int] = 2048
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
        """Make each promise in `lacks` fail where the limiter keeps it after all."""
        for test_name, reason in cls.lacks.items():
            setattr(cls, test_name, _broken(getattr(cls, test_name), reason))

    def test_memory_is_refused_at_the_limit_and_not_below(self) -> None:
        """The driver's memory query also returns the grant's total and free bytes."""
        size_bytes = self.memory * MiB
        expected_outcome = {
            "held": True,
            "full": [0, size_bytes],
            "over": 0,
            "freed": [True, size_bytes],
        }
        self._assert(expected_outcome, self._run("limit", size_bytes))

    def test_memory_that_is_freed_is_the_grants_again(self) -> None:
        """Allocation and release are repeated many times."""
        self._assert([True, True, self.memory * MiB], self._run("refund"))

    def test_a_fork_shares_the_limit_and_gives_nothing_back(self) -> None:
        """A child that was forked before the first driver call shares the limit with its parent.

        The end of one that was forked later changes nothing in its parent's charge.
        """
        self._assert([True, True, True], self._run("fork"))

    def test_memory_of_a_killed_process_is_the_grants_again(self) -> None:
        """The memory is free again although the killed process could not release it."""
        self._assert(True, self._run("kill"))

    def test_two_tenants_have_30_and_60_of_a_card(self) -> None:
        """The rates are in percent of the rate that a program has alone on the card."""
        with _state_directory() as state_dir:
            alone_kernels_per_s = self._alone(state_dir)
            programs = [
                self._start(state_dir, core_percent, "busy", *self._periods(), measured_count=2)
                for core_percent in (30, 60)
            ]
            self._assert_shares(
                [100 * self._said(process) / alone_kernels_per_s for process in programs]
            )

    def test_a_grant_can_be_resized_while_its_program_runs(self) -> None:
        """Alone on the card, the program has its share before and after, and no more."""
        size_bytes = self.memory * MiB
        larger_share = ("--memory", f"{2 * self.memory}Mi", "--core", "60")
        with _state_directory() as state_dir:
            alone_kernels_per_s = self._alone(state_dir)
            with self._start(
                state_dir, 30, "resized", *self._periods(), measured_count=1, label="contract"
            ) as process:
                first_rate, *answers_before = self._line(process)
                self._ended(self._hetero(state_dir, "resize", "-q", "contract", *larger_share))
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
                second_rate, *answers_after = self._line(process)
        self._assert(
            [[True, [0, size_bytes]], [True, [0, 2 * size_bytes]]], [answers_before, answers_after]
        )
        self._assert_shares(
            [100 * rate / alone_kernels_per_s for rate in (first_rate, second_rate)]
        )

    def test_every_way_to_the_driver_leads_to_the_limiter(self) -> None:
        """By linking, by dlsym of an older handle, of RTLD_DEFAULT and of RTLD_NEXT."""
        code_by_way = self._run("ways", 2 * self.memory * MiB)
        assert len(code_by_way) == 5
        assert len({*code_by_way.values()}) == 1, code_by_way
        assert 0 not in code_by_way.values()
        assert -1 not in code_by_way.values()

    def test_memory_of_another_process_is_charged_once(self) -> None:
        """The process that allocated it is charged."""
        size_bytes = self.memory * MiB // 2
        self._assert([True, True, True, False], self._run("export", size_bytes))

    def test_a_function_that_is_not_known_is_passed_on_and_logged(self) -> None:
        """With HETERO_LOG=info it is logged once."""
        with _state_directory() as state_dir:
            process = self._start(state_dir, 100, "unknown", log="info")
            output, errors = process.communicate(timeout=60)
        assert (0, "true") == (process.returncode, output.strip()), errors
        assert errors.count("is not known") == 1, errors

    def test_a_program_that_ends_with_work_in_flight_ends(self) -> None:
        """It keeps its own exit status."""
        with _state_directory() as state_dir:
            process = self._start(state_dir, 30, "leave")
            output, errors = process.communicate(timeout=60)
        assert (isolation_programs.LEFT, 1) == (process.returncode, len(output.splitlines())), (
            errors
        )

    def test_without_a_grant_nothing_is_limited(self) -> None:
        """A limiter that is loaded into a program without a grant changes nothing."""
        results = self._run("free", 2 * self.memory * MiB)
        assert results["full"][1] > 2 * self.memory * MiB, results

    # --- how programs are run ---

    def _run(self, program_name: str, *arguments: Any, core_percent: int = 100) -> Any:
        with _state_directory() as state_dir:
            return self._said(self._start(state_dir, core_percent, program_name, *arguments))

    def _alone(self, state_dir: str) -> float:
        """Return the kernels per second of a program that is alone on the card."""
        kernels_per_s = self._said(self._start(state_dir, 100, "alone", measured_count=1))
        return float(kernels_per_s)

    def _periods(self) -> tuple[float, float]:
        """Return the seconds of a program's warm-up and of its measurement."""
        return (0.8, 1.5) if self.clock is None else (0.5, self.virtual_seconds)

    def _start(
        self,
        state_dir: str,
        core_percent: int,
        program_name: str,
        *arguments: Any,
        label: str = "",
        log: str = "",
        measured_count: int = 0,
    ) -> subprocess.Popen[str]:
        """Start a program under a grant. `measured_count` programs are measured together.

        Where there is a `clock`, they run in virtual time.
        """
        share_options = ("--memory", f"{self.memory}Mi", "--core", str(core_percent))
        run_options = (
            "--vendor",
            self.vendor,
            *share_options,
            *(("--label", label) if label else ()),
        )
        program_command = (isolation_programs.__file__, str(self.driver), program_name)
        command = (sys.executable, *program_command, *map(json.dumps, arguments))
        if measured_count and self.clock is not None:
            command = (
                "sh",
                "-c",
                _PRELOADED,
                str(self.clock),
                f"{measured_count}:{state_dir}/clock",
                *command,
            )
        log_variable = {"HETERO_LOG": log} if log else {}
        return self._hetero(
            state_dir, "run", "-q", *run_options, *self.options, "--", *command, **log_variable
        )

    def _hetero(self, state_dir: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "hetero.cli", *arguments],
            env={**os.environ, **self.environ, "HETERO_STATE": state_dir, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _line(self, process: subprocess.Popen[str]) -> Any:
        """Return the next line of a program's output."""
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        return json.loads(line)

    def _said(self, process: subprocess.Popen[str]) -> Any:
        """Return the last value that a program printed, once it has ended."""
        return json.loads(self._ended(process).splitlines()[-1])

    def _ended(self, process: subprocess.Popen[str]) -> str:
        # Virtual time is slow where others work, too.
        output, errors = process.communicate(timeout=100)
        assert process.returncode == 0, f"exit {process.returncode}\n{output}\n{errors}"
        return output

    def _assert(self, expected_value: Any, actual_value: Any) -> None:
        assert expected_value == actual_value, (
            f"expected {expected_value}, and there was {actual_value}"
        )

    def _assert_shares(self, shares_percent: Sequence[float]) -> None:
        print(
            f"of 30 and 60: {', '.join(f'{share_percent:.2f}' for share_percent in shares_percent)}"
        )
        most_points = self.points if self.clock is None else self.virtual_points
        assert abs(shares_percent[0] - 30) <= most_points, shares_percent
        assert abs(shares_percent[1] - 60) <= most_points, shares_percent


def _broken(promise: Any, reason: str) -> Any:
    """Return a test that replaces a promise's, and fails where the promise is kept."""

    @wraps(promise)
    def stated(self: IsolationContract) -> None:
        try:
            promise(self)
        except AssertionError:
            return
        raise AssertionError(f"it is kept, though it is said that {reason}")

    return stated
