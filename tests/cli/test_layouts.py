"""Limiters and a node that do not agree on the files they share: one line, and nothing is given."""

import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import hetero_limiters
import hetero_simulator
import pytest

from hetero.kube.words.signing import SigningKey
from hetero.node.ledger import board, grant_file, usage_region
from tests.cli.conftest import Run

OURS = {
    "grant": grant_file.VERSION,
    "region": usage_region.VERSION,
    "board": board.VERSION,
}


@pytest.fixture
def environ(environ: dict[str, str], one_card: Path) -> dict[str, str]:
    return {**environ, "HETERO_RACK": str(one_card)}


@pytest.fixture(params=["grant", "region", "board"])
def mismatch(request: pytest.FixtureRequest, environ: dict[str, str], tmp_path: Path) -> str:
    """Install limiters of a later layout beside this node; return what is to be said of them."""
    name: str = request.param
    package = Path(hetero_limiters.__file__).parent
    installed = tmp_path / "site" / package.name
    shutil.copytree(package, installed)
    layouts = {**OURS, name: OURS[name] + 1}
    text = "".join(f"{each} {number}\n" for each, number in layouts.items())
    (installed / "lib/layouts").write_text(text)
    return (
        f"hetero-limiters {version('hetero-limiters')} reads {name} layout {layouts[name]}, "
        f"hetero {version('hetero')} writes {OURS[name]}: "
        "install both from the same sources (pip install --upgrade . ./limiters)"
    )


def test_limiters_of_another_layout_are_one_line_and_nothing_is_taken(
    hetero: Run, mismatch: str
) -> None:
    done = hetero("run", "--vendor", "nvidia", "--memory", "1Gi", "--", "true")

    assert (2, "", f"hetero: {mismatch}\n") == (done.returncode, done.stdout, done.stderr)
    assert "0 grants stand" in hetero("doctor").stdout


def test_an_agent_with_limiters_of_another_layout_does_not_start(
    hetero: Run, mismatch: str, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.pem"
    keys.write_text(SigningKey.new().public.text())

    done = hetero("agent", "--node", "n1", "--public-keys", str(keys))

    assert (2, f"hetero: {mismatch}") == (done.returncode, done.stderr.splitlines()[-1])


def test_the_doctor_finds_limiters_of_another_layout(hetero: Run, mismatch: str) -> None:
    done = hetero("doctor", COLUMNS="300")

    (row,) = [line for line in done.stdout.splitlines() if "limiter cuda" in line]
    assert mismatch in row
    assert 1 == done.returncode


def test_the_limiters_are_built_for_the_layouts_of_this_node() -> None:
    assert OURS == hetero_limiters.layouts()


@pytest.mark.parametrize(
    ("made", "fault"),
    [
        # The node was not asked: say, a container that was kept while the limiter was exchanged.
        (
            f"head -c 8 $HETERO_GRANT > $made; printf '\\{grant_file.VERSION + 1:03o}' >> $made; "
            "tail -c +10 $HETERO_GRANT >> $made",
            "a version this limiter does not know",
        ),
        # What a container's runtime makes of a mount whose source is not there.
        ("mkdir $made", "too short, or no file"),
    ],
    ids=["version", "directory"],
)
def test_the_limiter_says_in_one_line_that_a_grant_is_none(
    hetero: Run, tmp_path: Path, made: str, fault: str
) -> None:
    path = tmp_path / "grant"
    job = str(hetero_simulator.job("cuda"))
    script = f"made={path}; {made}; HETERO_GRANT=$made exec {job} --alloc 1MiB"
    asked = ("--vendor", "nvidia", "--memory", "1Gi")
    done = hetero("run", "-q", *asked, "--", "sh", "-c", script)

    # Fails closed: the driver does not even start for it.
    limiter_says, job_says = done.stderr.splitlines()
    says = f"{fault}: everything is refused; start the container, or the command, anew"
    assert limiter_says.endswith(f"grant {path}: {says}")
    assert (1, "hetero-job-cuda: cuInit: an unknown error (800)") == (done.returncode, job_says)


def test_the_wheel_of_the_limiters_says_which_layouts_they_read(tmp_path: Path) -> None:
    """Written by make from the headers, not by hand."""
    source = Path(hetero_limiters.__file__).parents[1]
    make = ["make", "-s", "-C", str(source), f"LIB={tmp_path}", f"{tmp_path}/layouts"]
    subprocess.run(make, check=True)

    assert (tmp_path / "layouts").read_text().split() == [
        word for name, number in OURS.items() for word in (name, str(number))
    ]
