"""docs/guides/adding-a-vendor.md, followed to the letter: its files, its fake, its commands."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hetero import plugin
from hetero.kube.objects.kinds import Pod
from hetero.kube.objects.reading import read
from hetero.kube.words.pod_request import Vocabulary
from hetero.model import Ask
from hetero.model.units import MiB
from tests.programs import completed

ROOT = Path(__file__).parent.parent
GUIDE = ROOT / "docs" / "guides" / "adding-a-vendor.md"


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
    done = completed([sys.executable, *arguments], cwd=project, env=environ)
    assert code == done.returncode, done.stdout + done.stderr
    return done.stdout


CONTRACT = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_zephyr.py")


def test_the_guides_vendor_keeps_the_contract(project: Path) -> None:
    assert "failed" not in python(project, *CONTRACT)


def test_without_a_driver_the_contract_says_that_it_has_no_device_to_check(project: Path) -> None:
    output = python(project, *CONTRACT, driver=False, code=1)

    assert "no usable device to check (zephyr is absent: libzephyr.so not found" in output
    assert "24 failed, 3 passed" in output


@pytest.mark.parametrize(
    ("right", "wrong", "clause", "says"),
    [
        (
            'uuid=plugin.text(card.serial) or ""',
            "uuid=str(index)",
            "test_a_uuid_stays_with_its_card_when_another_one_is_gone",
            "0 is another card when the first one is gone: it names a position",
        ),
        (
            'visible=("ZEPHYR_VISIBLE_DEVICES",)',
            'container=plugin.ContainerEdits(device_nodes=("/dev/zephyr{index}",))',
            "test_a_program_is_told_which_card_is_its_own",
            "no variable tells a program its cards",
        ),
    ],
    ids=["a UUID that is the index", "no variable that is visible"],
)
def test_a_mistake_breaks_the_clause_that_says_so(
    project: Path, tmp_path: Path, right: str, wrong: str, clause: str, says: str
) -> None:
    source = (project / "hetero_zephyr.py").read_text()
    assert 1 == source.count(right)
    (tmp_path / "hetero_zephyr.py").write_text(source.replace(right, wrong))
    output = _mistaken(project, tmp_path)

    assert "1 failed, 26 passed" in output
    assert f"FAILED test_zephyr.py::TestZephyr::{clause}" in output
    assert says in output


def test_slices_whose_driver_does_not_say_that_they_are_in_use_break_a_clause(
    project: Path, tmp_path: Path
) -> None:
    _with_slices(project, tmp_path)
    source = (tmp_path / "hetero_zephyr.py").read_text()
    assert 1 == source.count("in_use=(9,),")
    (tmp_path / "hetero_zephyr.py").write_text(source.replace("in_use=(9,),", ""))
    output = _mistaken(tmp_path, tmp_path)

    assert "1 failed, 26 passed" in output
    assert (
        "FAILED test_zephyr.py::TestZephyr::test_a_slice_in_use_is_left_until_it_is_not" in output
    )
    assert "zephyr_destroy: no code says that a slice is in use (`in_use`)" in output


def _mistaken(driver: Path, path: Path) -> str:
    """Return what the contract says of the vendor in `path`, with the driver of another folder."""
    for name in ("test_zephyr.py", "libzephyr.so"):
        if driver != path:
            shutil.copy(driver / name, path)
    return python(path, *CONTRACT, code=1, ZEPHYR_SLICES=str(path / "slices"))


def test_the_guides_slices_keep_the_contract(project: Path, tmp_path: Path) -> None:
    _with_slices(project, tmp_path)
    slices = tmp_path / "slices"
    assert "27 passed" in python(tmp_path, *CONTRACT, ZEPHYR_SLICES=str(slices))
    assert slices.stat().st_size, "none was made"


def _with_slices(project: Path, path: Path) -> None:
    """Write the guide's vendor with slices, its driver and its test to `path`."""
    guide = GUIDE.read_text()
    (declared,) = re.findall(r"before `VENDOR`:\n\n```python\n(.*?)```", guide, re.DOTALL)
    (hooks,) = re.findall(r"at the end of the file:\n\n```python\n(.*?)```", guide, re.DOTALL)
    (model,) = re.findall(r"its model is then\n`plugin.(.+?)`", guide)
    (enforcement,) = re.findall(r"`_device` says\n`(.+?)`", guide)
    source = (project / "hetero_zephyr.py").read_text()
    for old, new in (
        (r"Model\(\s+match=\"Z2\*\".*?\)\), slots=8\s+\)", model),
        (r"enforcement=[\w.]+", enforcement),
        (r"VENDOR = plugin.Vendor\(", f"{declared}\n\nVENDOR = plugin.Vendor("),
    ):
        source, count = re.subn(old, new, source, count=1, flags=re.DOTALL)
        assert 1 == count
    (path / "hetero_zephyr.py").write_text(f"{source}\n\n{hooks}")
    (build,) = re.findall(r"^cc .* fake.c path/to/hetero/.*$", guide, re.MULTILINE)
    build = build.replace("path/to/hetero", str(ROOT)).replace("cc ", "cc -Wall ", 1)
    shutil.copy(project / "fake.c", path)
    subprocess.run(build.split(), cwd=path, check=True)
    (path / "test_zephyr.py").write_text((project / "test_zephyr.py").read_text())


def test_the_guides_vendor_is_listed_with_its_cards(project: Path) -> None:
    hetero = ("-c", "from hetero.cli import main; main()")
    rows = json.loads(python(project, *hetero, "vendors", "--json"))["items"]
    row = next(row for row in rows if row["name"] == "zephyr")
    table = python(project, *hetero, "inventory", "--wide")

    assert ("ok", 2, "hetero-zephyr 0.1") == (row["state"], row["devices"], row["source"])
    assert re.search(
        r"Z2 Pro +1 %, 64 MiB +0 % .* 16 of 16 GiB +0 .* 0/8 .* nothing ! +– +ZE-0001", table
    )
    assert re.search(r"Z1 +whole card +0 % .* ZE-0002", table)
    assert re.search(r"^(NUMA \d+  )?zephyr", table, re.MULTILINE)


def test_pods_ask_by_the_resource_names_that_the_guide_declares() -> None:
    (block,) = [
        one
        for one in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
        if "resource_names=" in one
    ]
    models = 'models=(plugin.Model(match="*", granularity=plugin.Fractional()),)'
    rest = f'api=2, name="zephyr", title="Zephyr", {models}'
    made: dict[str, object] = {"plugin": plugin}
    exec(block.replace("...,", f"{rest},"), made)
    (vendor,) = (one for one in made.values() if isinstance(one, plugin.Vendor))
    words = Vocabulary(vendors=(vendor,))
    limits = {"zephyr.example/card": 2, "zephyr.example/memory": 3000, "zephyr.example/core": 30}
    container = {"name": "main", "resources": {"limits": limits}}
    (asked,) = words.asked(read(Pod, {"spec": {"containers": [container]}}))

    assert 2 * (Ask(memory=3000 * MiB, core=30),) == asked.request.asks
