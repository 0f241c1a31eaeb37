"""hetero run: exit code, signals and streams are the program's own, and the grant comes back."""

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from .conftest import Run


def grants(environ: Mapping[str, str]) -> list[str]:
    path = Path(environ["HETERO_STATE"]) / "grants"
    return sorted(os.listdir(path)) if path.exists() else []


def test_the_program_runs_and_is_heard(hetero: Run) -> None:
    done = hetero("run", "-q", "--memory", "1Gi", "--", "sh", "-c", "echo hi")

    assert (0, "hi\n", "") == (done.returncode, done.stdout, done.stderr)


def test_the_exit_code_is_the_programs_own(hetero: Run) -> None:
    assert 7 == hetero("run", "--", "sh", "-c", "exit 7").returncode


def test_a_signal_that_ends_the_program_is_seen_as_such(hetero: Run) -> None:
    assert -signal.SIGKILL == hetero("run", "--", "sh", "-c", "kill -9 $$").returncode


def test_signals_reach_the_program_itself(
    environ: Mapping[str, str], command: tuple[str, ...]
) -> None:
    script = "trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.01; done"
    with subprocess.Popen(
        [*command, "run", "--", "sh", "-c", script],
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout
        assert "ready\n" == program.stdout.readline()
        program.terminate()

        assert ("caught\n", 5) == (program.stdout.read(), program.wait(10))


def test_a_broken_pipe_ends_the_program_as_without_us(hetero: Run) -> None:
    done = hetero("run", "-q", "--", "sh", "-c", "trap '' EXIT; yes | head -1; kill -PIPE $$")

    assert ("y\n", "", -signal.SIGPIPE) == (done.stdout, done.stderr, done.returncode)


def test_the_program_sees_its_devices_and_nothing_of_the_limiter_it_does_not_need(
    hetero: Run,
) -> None:
    done = hetero("run", "--device", "2", "--memory", "1Gi", "--", "env")
    seen = dict(line.partition("=")[::2] for line in done.stdout.splitlines())

    assert "T-2" == seen["TESTING_VISIBLE_DEVICES"]
    assert "HETERO_GRANT" not in seen
    assert "LD_PRELOAD" not in seen


def test_uneven_shares_over_several_cards(hetero: Run) -> None:
    spec = ("--device", "0:mem=3276Mi,core=10", "--device", "T-1:mem=8192Mi,core=50")
    done = hetero("run", *spec, "--", "sh", "-c", "cat $HETERO_STATE/grants/*/allocation.json")

    assert 2 == done.stdout.count('"device":')
    assert '"core": 1000' in done.stdout
    assert '"memory": 8589934592' in done.stdout


def test_flags_of_the_program_are_the_programs(hetero: Run) -> None:
    done = hetero("run", "--memory", "1Gi", "echo", "--memory", "2Gi", "--help")

    assert "--memory 2Gi --help\n" == done.stdout


def test_the_grant_is_free_when_the_program_ends(hetero: Run, environ: Mapping[str, str]) -> None:
    hetero("run", "--", "true")

    assert "no grants stand\n" == hetero("ps").stdout
    assert [] == grants(environ)


def test_a_child_left_behind_keeps_the_grant(hetero: Run, environ: Mapping[str, str]) -> None:
    hetero("run", "--", "sh", "-c", "sleep 30 >/dev/null 2>&1 & echo $! > $HETERO_STATE/pid")

    assert 3 == hetero("run", "--count", "5", "--", "true").returncode
    os.kill(int((Path(environ["HETERO_STATE"]) / "pid").read_text()), signal.SIGKILL)
    assert 0 == hetero("run", "--count", "5", "--", "true").returncode


@pytest.mark.parametrize(
    ("program", "code", "message"),
    [
        ("no-such-program", 127, "hetero: no-such-program: command not found\n"),
        ("/etc/passwd", 126, "hetero: /etc/passwd: Permission denied\n"),
        ("/", 126, "hetero: /: Permission denied\n"),
    ],
)
def test_a_program_that_cannot_start_gives_its_grant_back(
    hetero: Run, environ: Mapping[str, str], program: str, code: int, message: str
) -> None:
    done = hetero("run", "--", program)

    assert (code, message) == (done.returncode, done.stderr)
    assert [] == grants(environ)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--core", "110"], 2, "core '110' is not a percentage"),
        (["--core", "0"], 2, "core '0' is not a percentage"),
        (["--memory", "lots"], 2, "memory 'lots' is not a size: write 3000Mi, 3G or 50%"),
        (["--memory", "110%"], 2, "is not a percentage"),
        (["--count", "0"], 2, "--count"),
        (["--count", "2", "--device", "0"], 2, "--device and --count are both given"),
        (["--device", "0:mme=1Gi"], 2, "write 0:mem=3276Mi,core=10"),
        (["--device", ":mem=1Gi"], 2, "names no device"),
        (["--policy", "strict"], 2, "'strict' is not one of"),
        (["--memory", "17Gi"], 3, "0 of 5 devices: 5 too small"),
        (["--count", "6"], 3, "5 of 5 devices fit (6 needed)"),
        (
            ["--exclude-vendor", "testing"],
            4,
            "no device here is chosen by exclude-vendor 'testing'",
        ),
        (["--device", "0", "--device", "T-0"], 2, "device 'T-0' is named twice: each ask needs"),
        (["--uuid", "zzz"], 4, "no UUID 'zzz' here (`hetero inventory --wide` lists them)"),
        (["--exclude-uuid", "zzz"], 4, "no UUID 'zzz' here"),
        (["--exclude-model", "T2000"], 4, "here (here: T1000): did you mean T1000?"),
        (["--exclude-vendor", "testin"], 4, "testing): did you mean testing?"),
        (
            ["--device", "0", "--uuid", "T-3", "--exclude-uuid", "T-4"],
            4,
            "by device '0', uuid 'T-3', exclude-uuid 'T-4' together",
        ),
        (["--vendor", ""], 2, "--vendor is empty: write a vendor, or leave it out"),
        (["--exclude-model", " "], 2, "--exclude-model is empty"),
        (["--device", "T-9"], 4, "no device 'T-9' here"),
        (["--vendor", "nobody"], 4, "no vendor 'nobody' is installed"),
    ],
)
def test_what_cannot_be_is_one_line_and_a_code(
    hetero: Run, environ: Mapping[str, str], arguments: list[str], code: int, message: str
) -> None:
    done = hetero("run", *arguments, "--", "echo", "never")

    assert (code, "") == (done.returncode, done.stdout)
    assert done.stderr.startswith("hetero: ")
    assert message in done.stderr
    assert 1 == done.stderr.count("\n")
    assert [] == grants(environ)


def test_no_command_is_bad_input(hetero: Run) -> None:
    done = hetero("run", "--memory", "1Gi")

    assert (2, "hetero: Missing argument 'CMD...' (see `hetero run --help`)\n") == (
        done.returncode,
        done.stderr,
    )
