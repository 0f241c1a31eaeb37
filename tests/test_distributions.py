"""The wheels: what is in each, and what an environment says that has only some of them."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.programs import completed

ROOT = Path(__file__).parent.parent
DISTRIBUTIONS = (".", "limiters", "simulator", "benchmarks", *map(str, ROOT.glob("vendors/*")))
NO_SIMULATOR = (
    "hetero: simulated devices and the demo need the simulator: in hetero's sources, "
    "pip install ./simulator\n"
)


def build(distribution: str, kind: str, directory: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", directory],
        cwd=ROOT / distribution,
        capture_output=True,
        check=True,
    )


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the wheels of all distributions."""
    directory = tmp_path_factory.mktemp("wheels")
    for distribution in DISTRIBUTIONS:
        build(distribution, "wheel", directory)
    return directory


def others_required(requirements: Iterable[str]) -> set[str]:
    """Return the distributions that are not ours and that these require, directly or not."""
    distributions: dict[tuple[str, frozenset[str]], metadata.Distribution] = {}
    queue = [Requirement(text) for text in requirements]
    while queue:
        wanted = queue.pop()
        key = (wanted.name.lower().replace("_", "-"), frozenset(wanted.extras))
        if key in distributions:
            continue
        try:
            distributions[key] = metadata.distribution(wanted.name)
        except metadata.PackageNotFoundError:
            continue  # of another platform, or declared and not installed: then pip refuses
        for text in distributions[key].requires or ():
            needed = Requirement(text)
            extras = wanted.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in extras):
                queue.append(needed)
    return {name for name, _ in distributions if not name.startswith("hetero")}


class Environment:
    """A virtual environment of what was installed into it and what that declares it needs."""

    def __init__(self, path: Path, wheels: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", path], check=True)
        (self.site,) = path.glob("lib/python*/site-packages")
        self.path, self.wheels = path, wheels

    def _link(self, name: str) -> None:
        """Have a distribution of others, as it is installed for the tests."""
        installed = Path(sysconfig.get_path("purelib"))
        for file in metadata.distribution(name).files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (self.site / top).is_symlink():
                (self.site / top).symlink_to(installed / top)

    def install(self, *requirements: str) -> None:
        """Install as pip does, so that what the distributions require of each other counts."""
        for name in others_required(requirements):
            self._link(name)
        done = completed(
            [
                *(sys.executable, "-m", "pip", "--python", self.path / "bin/python"),
                *("install", "--no-index", "--find-links", self.wheels, "--no-compile"),
                *requirements,
            ],
            env={"PATH": os.environ["PATH"]},
        )
        assert 0 == done.returncode, done.stdout + done.stderr

    def hetero(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return completed(
            [self.path / "bin/hetero", *arguments],
            env={"PATH": os.environ["PATH"], "HETERO_STATE": str(self.path / "state"), **more},
            cwd=self.path,
        )


def test_fakes_racks_and_jobs_are_in_the_simulators_wheel_alone(wheels: Path) -> None:
    native: dict[str, set[str]] = {}
    racks = set()
    for wheel in wheels.glob("*.whl"):
        name = wheel.name.partition("-")[0]
        with zipfile.ZipFile(wheel) as contents:
            for path in contents.namelist():
                if contents.read(path).startswith(b"\x7fELF"):
                    native.setdefault(name, set()).add(Path(path).name)
                if path.endswith(".rack"):
                    racks.add(name)
    simulated = native.pop("hetero_simulator")

    assert len(DISTRIBUTIONS) == len(list(wheels.glob("*.whl")))
    limiters = {f"libhetero-{api}.so" for api in ("acl", "cuda", "hip", "musa")}
    assert {"hetero_limiters": limiters} == native
    assert {"libcuda.so.1", "libdcmi.so", "hetero-job-cuda", "hetero-timing-cuda"} <= simulated
    assert {"hetero_simulator"} == racks


def test_the_demo_without_the_simulator_is_one_line_and_with_it_works(
    wheels: Path, tmp_path: Path
) -> None:
    environment = Environment(tmp_path / "environment", wheels)
    environment.install("hetero[all]")

    for arguments, rack in ((("demo",), ""), (("inventory",), "mixed")):
        done = environment.hetero(*arguments, HETERO_RACK=rack)
        assert (2, "", NO_SIMULATOR) == (done.returncode, done.stdout, done.stderr)

    environment.install("hetero[demo]")
    done = environment.hetero("demo", "--seconds", "2")

    assert (0, "") == (done.returncode, done.stderr)
    assert done.stdout.startswith("The cards in this demo are SIMULATED")


def test_the_image_installs_the_wheels_for_clusters_and_none_of_the_fakes(
    wheels: Path, tmp_path: Path
) -> None:
    (line,) = re.findall(r"pip install (.*)", (ROOT / "deploy/Dockerfile").read_text())
    environment = Environment(tmp_path / "environment", wheels)
    asked = shlex.split(line)
    vendors = {f"hetero-{path.name}" for path in ROOT.glob("vendors/*") if path.is_dir()}
    names = {".[kube]": {"hetero[kube]"}, "./limiters": {"hetero-limiters"}, "./vendors/*": vendors}

    environment.install(*(name for folder in asked for name in names[folder]))

    packages = {path.name for path in environment.site.glob("hetero*.dist-info")}
    assert 2 + len(vendors) == len(packages)
    assert not [name for name in packages if "simulator" in name]
    assert not list(environment.site.rglob("libcuda.so*"))
    assert 0 == environment.hetero("scheduler", "--help").returncode


def test_the_simulators_source_distribution_has_what_it_is_built_from(tmp_path: Path) -> None:
    build("simulator", "sdist", tmp_path)
    (packed,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(packed) as contents:
        contents.extractall(tmp_path, filter="data")
    (source,) = tmp_path.glob("hetero_simulator-*/Makefile")

    # One of each way an object is made; all of them take a minute.
    objects = [f"build/{name}.o" for name in ("drivers/cuda_ipc", "musa/cuda_ipc", "drivers/ixml")]
    made = completed(["make", "-s", "-C", source.parent, *objects, "build/programs/timing.o"])

    assert (0, "") == (made.returncode, made.stderr)


@pytest.mark.parametrize("name", ["limiters", "simulator"])
def test_native_parts_are_built_without_the_tests(name: str, tmp_path: Path) -> None:
    """A source distribution has no tests; the simulator's brings the headers it needs."""
    for folder in ("limiters", "simulator"):
        leave = shutil.ignore_patterns("build", "lib", "__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=leave)

    done = completed(["make", "--dry-run", "-C", tmp_path / name])

    assert (0, "") == (done.returncode, done.stderr)
