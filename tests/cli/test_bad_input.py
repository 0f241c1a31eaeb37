"""What nobody can mean is one line that says what to write, exit code 2, and changes nothing."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.programs import completed

from .conftest import Run

MANY_DIGITS = "9" * 5000  # more than Python makes an integer of


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--memory", "3X"], "memory '3X' is not a size: write 3000Mi, 3G or 50%"),
        (["--memory", ""], "memory '' is not a size"),
        (["--memory", "-5Gi"], "memory '-5Gi' is not a size"),
        (["--memory", "３Gi"], "memory '３Gi' is not a size"),
        (["--memory", MANY_DIGITS], "is not a size"),
        (["--memory", f"{MANY_DIGITS}%"], "is not a percentage"),
        (["--memory", "0"], "memory '0' is not a whole, positive number of bytes"),
        (["--memory", "150%"], "memory '150%' is not a percentage"),
        (["--core", "0"], "core '0' is not a percentage: write a whole number from 1 to 100"),
        (["--core", "30.5"], "core '30.5' is not a percentage"),
        (["--core", "½"], "core '½' is not a percentage"),
        (["--core", MANY_DIGITS], "is not a percentage"),
        (
            ["--count", "0"],
            "--count '0' is not a number of devices: write a whole number from 1 to",
        ),
        (["--count", "-3"], "count '-3' is not a number of devices"),
        (["--count", "1000000000"], "count '1000000000' is not a number of devices"),
        (["--count", MANY_DIGITS], "is not a number of devices"),
        (["--device", "0:mem="], "memory '' is not a size"),
        (["--device", "0:foo=1"], "'foo=1' is not mem=… or core=…: write 0:mem=3276Mi,core=10"),
        (["--device", "0", "--count", "2"], "--device and --count are both given"),
        (["--policy", "sometimes"], "'sometimes' is not one of 'fixed', 'elastic', 'off'"),
    ],
    ids=lambda value: None if isinstance(value, str) else " ".join(value)[:24],
)
def test_a_request_that_means_nothing(hetero: Run, flags: list[str], says: str) -> None:
    done = hetero("run", *flags, "--", "true")

    assert (2, 1, "") == (done.returncode, done.stderr.count("\n"), done.stdout)
    assert says in done.stderr
    assert "no grants stand\n" == hetero("ps").stdout


@pytest.mark.parametrize(
    "words",
    [["ps", "--seconds", "nan"], ["top", "--interval", "nan"], ["release", "--grace", "nan", "x"]],
    ids=" ".join,
)
def test_a_time_that_is_no_number(hetero: Run, words: list[str]) -> None:
    done = hetero(*words)

    assert (2, 1) == (done.returncode, done.stderr.count("\n"))
    assert "'nan' is no number" in done.stderr


def test_a_vendor_that_nobody_installed_is_named_with_those_there_are(hetero: Run) -> None:
    done = hetero("run", "--vendor", "nvidía", "--", "true")

    assert (4, 1) == (done.returncode, done.stderr.count("\n"))
    assert "no vendor 'nvidía' is installed (installed: " in done.stderr


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        (b"root:x:0:0:root:/root:/bin/sh\n", "line 1 is neither `[device]` nor `key = value`"),
        (b"[device]\nvendor = nvidia # a comment\n\nmodel\n", "line 4 is neither"),
        (b"\xff\xfe", "can't decode"),
    ],
)
def test_a_file_that_is_no_rack(hetero: Run, tmp_path: Path, contents: bytes, says: str) -> None:
    rack = tmp_path / "no.rack"
    rack.write_bytes(contents)
    done = hetero("inventory", HETERO_RACK=str(rack))

    assert (2, 1) == (done.returncode, done.stderr.count("\n"))
    assert f"HETERO_RACK={rack} is no rack file: " in done.stderr
    assert says in done.stderr


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        (None, "Is a directory"),
        (b"\xff\xfe", "not a text in UTF-8"),
        (b"cards = = 2\n", "at line 1"),
        (b"[memory]\nscale = 2\n", "unknown key 'memory'"),
    ],
)
def test_settings_that_cannot_be_read(
    hetero: Run, tmp_path: Path, contents: bytes | None, says: str
) -> None:
    settings = tmp_path / "node.toml"
    settings.mkdir() if contents is None else settings.write_bytes(contents)
    done = hetero("inventory", HETERO_CONFIG=str(settings))

    assert (2, 1) == (done.returncode, done.stderr.count("\n"))
    assert f"settings {settings}: " in done.stderr
    assert says in done.stderr


def test_a_state_directory_that_is_a_file(hetero: Run, tmp_path: Path) -> None:
    file = tmp_path / "state"
    file.write_text("mine")

    for words in (["inventory"], ["ps"], ["fit"], ["run", "--", "true"]):
        done = hetero(*words, HETERO_STATE=str(file))
        assert (2, 1) == (done.returncode, done.stderr.count("\n"))
        assert "set HETERO_STATE to a directory of yours" in done.stderr
    assert "mine" == file.read_text()


def test_a_disk_without_room_gives_no_grant_and_keeps_none(
    command: tuple[str, ...], environ: Mapping[str, str], hetero: Run
) -> None:
    full = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh"]  # no file may have a byte
    done = completed([*full, *command, "run", "--memory", "1Gi", "--", "echo", "ran"], env=environ)

    assert (2, "", 1) == (done.returncode, done.stdout, done.stderr.count("\n"))
    assert "File too large" in done.stderr
    assert "no grants stand\n" == hetero("ps").stdout


@pytest.mark.parametrize("other", ["--json", "--uninstall-check"])
def test_a_watch_that_is_to_do_something_else_as_well(hetero: Run, other: str) -> None:
    done = hetero("doctor", "--watch", other)

    assert 2 == done.returncode
    assert "--watch: not with --json or --uninstall-check" in done.stderr
