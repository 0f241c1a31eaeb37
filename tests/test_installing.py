"""A third party's wheel, installed by pip into a fresh environment: seen, or seen to be broken."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests.programs import completed

ROOT = Path(__file__).parent.parent

HETERO = "from hetero.cli import main; main()"  # what the script `hetero` does

BROKEN = {
    "pyproject.toml": """
        [build-system]
        requires = ["hatchling"]
        build-backend = "hatchling.build"

        [project]
        name = "hetero-broken"
        version = "0.3"

        [project.entry-points."hetero.plugin.vendor"]
        broken = "hetero_broken"

        [tool.hatch.build]
        include = ["hetero_broken.py"]
    """,
    "hetero_broken.py": "import libbroken\n",
}


class Environment:
    """A virtual environment that sees what this one has, and that nobody else sees into."""

    def __init__(self, path: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", path], check=True)
        (site,) = path.glob("lib/python*/site-packages")
        # addsitedir, not a plain path: this environment's own editable installs are .pth files.
        own_packages = sysconfig.get_path("purelib")
        (site / "outer.pth").write_text(f"import site; site.addsitedir({own_packages!r})\n")
        self.python = path / "bin/python"

    def install(self, project: Path) -> None:
        # Offline: the build back end is here already, and dependencies are what we test with.
        offline = ["--no-deps", "--no-build-isolation", "--no-index", "--no-cache-dir"]
        pip: list[str | Path] = [self.python, "-m", "pip", "install", "--disable-pip-version-check"]
        done = completed([*pip, *offline, project])
        assert 0 == done.returncode, done.stdout + done.stderr

    def vendors(self, cards: Path) -> dict[str, dict[str, Any]]:
        done = completed(
            [self.python, "-c", HETERO, "vendors", "--json"],
            env={"ACME_CARDS": str(cards), "HETERO_STATE": str(cards.parent / "state")},
        )
        assert (0, "") == (done.returncode, done.stderr)
        return {row["name"]: row for row in json.loads(done.stdout)["items"]}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("environment"))


def test_installing_acme_shows_it_and_a_broken_wheel_beside_it_harms_nobody(
    environment: Environment, tmp_path: Path
) -> None:
    cards = tmp_path / "cards"
    cards.write_text("AC-0017 Roadrunner 65536 ok\n")
    before = environment.vendors(cards)

    # pip builds inside a source tree: give it a copy, so that this one stays as it is.
    acme = tmp_path / "hetero-acme"
    subprocess.run(["cp", "-r", ROOT / "examples/hetero-acme", acme], check=True)
    environment.install(acme)
    with_acme = environment.vendors(cards)

    broken = tmp_path / "broken"
    broken.mkdir()
    for name, text in BROKEN.items():
        (broken / name).write_text(text)
    environment.install(broken)
    with_both = environment.vendors(cards)

    acme_row = {
        "source": "hetero-acme 0.1.0",
        "state": "ok",
        "reason": None,
        "devices": 1,
        "trusted": True,
    }
    broken_row = {
        "source": "hetero-broken 0.3",
        "state": "broken",
        "reason": "broken: load: No module named 'libbroken'",
        "devices": 0,
        "trusted": True,
    }
    assert with_acme["acme"].pop("file").endswith("hetero_acme.py")
    with_both["acme"].pop("file")
    assert with_both["broken"].pop("file").endswith("hetero_broken.py")
    assert "acme" not in before
    assert {**before, "acme": {"name": "acme", "title": "Acme", **acme_row}} == with_acme
    assert {**with_acme, "broken": {"name": "broken", "title": None, **broken_row}} == with_both
