"""The guide docs/adding-a-vendor.md, followed to the letter: its files, its fake, its commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parent.parent / "docs" / "adding-a-vendor.md"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guide's files under the names it gives them, with the vendor installed beside them."""
    path = tmp_path_factory.mktemp("zephyr")
    text = GUIDE.read_text()
    files = re.findall(r"This is `([^`]+)`:\n\n```\w+\n(.*?)```", text, re.DOTALL)
    for name, contents in files:
        (path / name).write_text(contents)
    assert {"pyproject.toml", "hetero_zephyr.py", "test_zephyr.py", "fake.c"} == {
        name for name, _ in files
    }
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--no-cache-dir", "--quiet"]
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", *offline]
    subprocess.run([*pip, "--target", path / "site", path], check=True)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "libzephyr.so", "fake.c"], cwd=path, check=True)
    return path


def python(
    project: Path, *arguments: str, driver: bool = True, code: int = 0, **environment: str
) -> str:
    environ = {
        **environment,
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(project / "site"),
        "HETERO_STATE": str(project / "state"),
        **({"LD_LIBRARY_PATH": str(project)} if driver else {}),
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=project,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert code == done.returncode, done.stdout + done.stderr
    return done.stdout


CONTRACT = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_zephyr.py")


def test_the_guides_vendor_keeps_the_contract(project: Path) -> None:
    assert "failed" not in python(project, *CONTRACT)


def test_without_a_driver_the_contract_says_that_it_has_no_device_to_check(project: Path) -> None:
    told = python(project, *CONTRACT, driver=False, code=1)

    assert "no usable device to check (zephyr is absent: libzephyr.so not found" in told
    assert "19 failed, 3 passed" in told


def test_the_guides_slices_keep_the_contract(project: Path, tmp_path: Path) -> None:
    (example,) = re.findall(r"and add:\n\n```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    declared, hooks = example.split("\n\n\n", 1)
    source = (project / "hetero_zephyr.py").read_text()
    shared = "granularity=plugin.Fractional(memory=plugin.Step(64 * MiB)), slots=8"
    assert shared in source
    source = source.replace(shared, "core=8, slots=8, granularity=_MENU")
    source = source.replace("VENDOR = plugin.Vendor(", f"{declared}\n\nVENDOR = plugin.Vendor(")
    (tmp_path / "hetero_zephyr.py").write_text(f"{source}\n\n{hooks}")
    fake = [project / "fake.c", Path(__file__).with_name("zephyr_slices.c")]
    build = ["cc", "-Wall", "-Werror", "-shared", "-fPIC", "-o", tmp_path / "libzephyr.so"]
    subprocess.run(list(map(str, (*build, *fake))), check=True)
    (tmp_path / "test_zephyr.py").write_text((project / "test_zephyr.py").read_text())

    slices = tmp_path / "slices"
    assert "22 passed" in python(tmp_path, *CONTRACT, ZEPHYR_SLICES=str(slices))
    assert slices.stat().st_size, "none was made"


def test_the_guides_vendor_is_listed_with_its_cards(project: Path) -> None:
    hetero = ("-c", "from hetero.cli import main; main()")
    rows = json.loads(python(project, *hetero, "vendors", "--json"))["items"]
    row = next(row for row in rows if row["name"] == "zephyr")
    table = python(project, *hetero, "inventory", "--wide")

    assert ("ok", 2, "hetero-zephyr 0.1") == (row["state"], row["devices"], row["source"])
    assert re.search(
        r"zephyr +Z2 Pro +100 % +16/16 GiB +0/8 +nothing ! +– +1 %, 64 MiB +ZE-0001", table
    )
    assert re.search(r"zephyr +Z1 +whole only .* whole card +ZE-0002", table)
