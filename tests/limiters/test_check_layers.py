"""The limiters' layers hold, and the script that says so finds what breaks them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import completed

SCRIPT = Path(__file__).parents[2] / "limiters/check_layers.py"


def check(*arguments: str | Path) -> list[str]:
    done = completed([sys.executable, SCRIPT, *arguments])
    lines = done.stdout.splitlines()
    assert (bool(lines), "") == (bool(done.returncode), done.stderr)
    return lines


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("core", "timeshare", "nvml", "cuda", "build/core", "build/timeshare"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    (root / name).write_text(text)
    if name.endswith(".c"):
        compiled = root / "build" / name.replace(".c", ".o")
        subprocess.run(["gcc", "-c", "-o", compiled, root / name], check=True)


def checked(root: Path) -> list[str]:
    return check("--root", root, "--build", root / "build")


def test_the_limiters_have_no_circle_and_need_nothing_above_them() -> None:
    assert [] == check()


def test_units_that_include_each_other_are_a_circle(root: Path) -> None:
    write(root, "core/a.h", '#include "b.h"\n')
    write(root, "core/b.h", "")
    write(root, "core/c.h", '#include "b.h"\n')
    write(root, "core/b.c", '#include "b.h"\n#include "c.h"\n')
    assert ["circle: core/b core/c: each includes another"] == checked(root)


def test_a_layer_that_includes_one_above_it_is_told(root: Path) -> None:
    write(root, "timeshare/gate.h", "")
    write(root, "core/log.h", '#include "../timeshare/gate.h"\n')
    assert ["layer: core/log includes timeshare/gate"] == checked(root)


def test_units_that_call_each_other_are_a_circle_whatever_they_include(root: Path) -> None:
    write(root, "core/one.c", "void other(void);\nvoid one(void) { other(); }\n")
    write(root, "core/other.c", "void one(void);\nvoid other(void) { one(); }\n")
    assert ["circle: core/one core/other: each needs a symbol of another"] == checked(root)


def test_a_layer_that_calls_one_above_it_is_told(root: Path) -> None:
    write(root, "timeshare/gate.c", "int gate;\n")
    write(root, "core/log.c", "extern int gate;\nint log_line(void) { return gate; }\n")
    assert ["layer: core/log needs a symbol of timeshare/gate"] == checked(root)


def test_a_missing_build_is_told_and_nothing_passes(root: Path) -> None:
    nowhere = root / "nowhere"
    expected = f"no build in {nowhere}, so symbols cannot be checked: run make -C limiters"
    assert [expected] == check("--root", root, "--build", nowhere)


def test_a_source_that_was_not_built_is_told(root: Path) -> None:
    write(root, "core/log.c", "int line;\n")
    (root / "build/core/log.o").unlink()
    expected = f"no object of {root}/core/log.c in {root}/build: run make -C limiters"
    assert [expected] == checked(root)


def test_an_object_without_its_source_is_not_looked_at(root: Path) -> None:
    write(root, "timeshare/gate.c", "int gate;\n")
    write(root, "core/log.c", "extern int gate;\nint log_line(void) { return gate; }\n")
    (root / "core/log.c").unlink()
    assert [] == checked(root)
