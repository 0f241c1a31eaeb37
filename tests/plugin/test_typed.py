"""mypy reads a vendor's module by what its hooks are specified to give, and refuses a wrong one."""

import re
import sys
from pathlib import Path
from subprocess import run

import pytest

ROOT = Path(__file__).parents[2]
RIGHT = (ROOT / "examples/hetero-acme/hetero_acme.py").read_text()
#: The test of a vendor, which has mypy compare its module with the specification.
TEST = """
import {module}

from hetero.testing import VendorContract


class TestIt(VendorContract):
    plugin = {module}
"""
NO_VENDOR = 'expression has type Module, base class "VendorContract" defined the type as'
#: What is right, what stands there in a wrong module, and what mypy says of that.
WRONG = {
    "no_version": ("    api=2,\n", "", 'Missing named argument "api" for "Vendor"'),
    "no_field": (
        "    visible=(",
        "    runtime_none=(",
        'Unexpected keyword argument "runtime_none" for "Vendor"',
    ),
    "no_hook": ("def hetero_discover(", "def hetero_discovers(", NO_VENDOR),
    "no_result_of_a_hook": (
        "def hetero_vendor() -> plugin.Vendor:",
        "def hetero_vendor() -> str:",
        'Value of type variable "Hook" of "hookimpl" cannot be "Callable[[], str]"',
    ),
    "result_of_another_hook": (
        "def hetero_vendor() -> plugin.Vendor:",
        "def hetero_vendor() -> plugin.Usage:",
        NO_VENDOR,
    ),
}


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What mypy says of the right module, and of each wrong one."""
    folder = tmp_path_factory.mktemp("typed")
    modules = {"right": RIGHT}
    for name, (right, wrong, _) in WRONG.items():
        assert 1 == RIGHT.count(right)
        modules[name] = RIGHT.replace(right, wrong)
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source)
        (folder / f"test_{name}.py").write_text(TEST.format(module=name))
    options = ("--strict", "--config-file=", "--cache-dir=cache", ".")
    done = run(
        [sys.executable, "-m", "mypy", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "" == done.stderr
    lines = re.findall(r"^(?:test_)?(\w+)\.py:\d+: error: (.*)$", done.stdout, re.MULTILINE)
    return {name: "\n".join(said for of, said in lines if of == name) for name in modules}


def test_mypy_takes_a_right_module(errors: dict[str, str]) -> None:
    assert "" == errors["right"]


@pytest.mark.parametrize("name", WRONG)
def test_mypy_refuses_a_wrong_module(errors: dict[str, str], name: str) -> None:
    assert WRONG[name][2] in errors[name]
