"""How tests run: what bare `pytest` selects is what `make test` does, and no skip is silent."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kube.binaries import script
from tests.programs import completed

ROOT = Path(__file__).parent.parent
#: What make tells the makes that it starts.
_MAKES = ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "PART")
#: With measured tests, others, and some that any machine cannot run.
SOME = ("tests/limiters/test_aarch64.py", "tests/limiters/test_shares.py", "tests/cli/test_demo.py")


def run_pytest(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    env = {**os.environ, **environment}
    return completed(command, cwd=ROOT, env=env)


def selected(*arguments: str) -> set[str]:
    done = run_pytest("--collect-only", *arguments, *SOME)
    return {line for line in done.stdout.splitlines() if "::" in line}


def commands_of(*arguments: str) -> list[str]:
    """Return the arguments of each pytest that make would run for these."""
    argv = ["make", "--no-print-directory", "--dry-run", *arguments]
    # What the make that runs these tests was told is not for this one.
    env = {name: value for name, value in os.environ.items() if name not in _MAKES}
    dry_run = completed(argv, cwd=ROOT, env=env, check=True)
    return re.findall(r"^\S*/pytest (.*)$", dry_run.stdout, re.MULTILINE)


def test_bare_pytest_selects_what_make_test_does() -> None:
    commands = commands_of("test")
    runs = [selected("-m", *re.findall(r'-m "(.*?)"', command)) for command in commands]

    bare = selected()
    assert 2 == len(runs)
    assert all(runs)
    assert (bare, set()) == (runs[0] | runs[1], runs[0] & runs[1])
    assert not any("aarch64" in name for name in bare)
    assert not any("tests" in command for command in commands)  # neither leaves a folder out
    assert any("aarch64" in name for name in selected("-m", "aarch64"))


@pytest.mark.parametrize("suite", ["test", "test-hip", "test-containers"])
def test_the_two_parts_of_a_suite_are_all_of_it_and_what_is_measured_is_the_second(
    suite: str,
) -> None:
    parallel, measured = commands_of(suite)
    assert [parallel] == commands_of(suite, "PART=parallel")
    assert [measured] == commands_of(suite, "PART=measured")
    assert "not measured" in parallel
    assert "not measured" not in measured


def test_what_a_test_starts_can_be_interrupted_also_in_a_background_job(tmp_path: Path) -> None:
    (tmp_path / "test_signals.py").write_text(
        "import re, signal, subprocess\n"
        "def test_ignores() -> None:\n"
        "    status = subprocess.check_output(['cat', '/proc/self/status'], text=True)\n"
        "    ignored = int(re.search(r'SigIgn:\\s*(\\w+)', status)[1], 16)\n"
        "    four = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)\n"
        "    assert [] == [number.name for number in four if ignored >> number - 1 & 1]\n"
    )
    rules = ("-p", "tests.conftest", "--rootdir", str(tmp_path), str(tmp_path))
    run = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *rules)
    done = completed(["sh", "-c", 'trap "" HUP INT QUIT TERM; exec "$@"', "sh", *run], cwd=ROOT)

    assert 0 == done.returncode, done.stdout


def test_a_skip_is_a_failure_with_its_reason_where_none_may_be(tmp_path: Path) -> None:
    (tmp_path / "test_skips.py").write_text(
        "import pytest\n"
        "@pytest.mark.skipif(True, reason='no such engine')\n"
        "def test_by_a_mark(): ...\n"
        "@pytest.fixture\n"
        "def card(): pytest.skip('no such card')\n"
        "def test_by_its_fixture(card): ...\n"
        "@pytest.mark.xfail\n"
        "def test_known_to_fail(): assert False\n"
    )
    # The rules are those of this folder, for a test that does not lie in it.
    rules = ("-p", "tests.conftest", "--rootdir", str(tmp_path), str(tmp_path))

    lenient, strict = run_pytest(*rules), run_pytest(*rules, "--no-skips")

    assert (0, 1) == (lenient.returncode, strict.returncode), lenient.stdout + strict.stdout
    assert "1 xfailed, 2 errors" in strict.stdout
    assert "skipped: no such engine" in strict.stdout
    assert "skipped: no such card" in strict.stdout


@pytest.mark.skipif(script("kube136") is None, reason="needs the lab of a late Kubernetes")
def test_without_kubernetes_1_36_its_tests_are_counted_in_the_last_line(tmp_path: Path) -> None:
    rules = ("-m", "cluster and late", "--no-skips", "tests/kube/test_dra_hundred.py")
    done = run_pytest(*rules, KUBE136_ASSETS=str(tmp_path))

    *_, last = done.stdout.splitlines()
    assert 0 == done.returncode, done.stdout
    assert re.fullmatch(r"not run: 3 tests: .*\$KUBE136_ASSETS.*: it must hold .*", last), last
    assert str(tmp_path) in last
