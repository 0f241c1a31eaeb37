"""The limiter's core as an ordinary library: every test of core_test.c, by name."""

import subprocess
from pathlib import Path

import pytest
from tenancy import LIMITER

CORE_TEST = LIMITER.parents[2] / "build" / "core_test"
SOURCE = Path(__file__).with_name("core_test.c")
NAMES = [
    line.strip()[len("TEST(") : -len("),")]
    for line in SOURCE.read_text().splitlines()
    if line.startswith("        TEST(")
]


@pytest.mark.parametrize("name", NAMES)
def test_core(name: str) -> None:
    done = subprocess.run([CORE_TEST, name], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
