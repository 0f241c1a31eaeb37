"""What `hetero migrate hami` prints is installed, and pods get what HAMi would give them.

On the oldest Kubernetes, as an upgrade of what the other tests use: what is installed does not hang
on the version.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from attrs import evolve
from hetero_simulator import job

from hetero.kube.migrate.hami import migrate
from hetero.model.units import MiB
from tests.cluster.books import given
from tests.cluster.conftest import CARD, ended, run_all
from tests.cluster.lab import Lab, documents
from tests.cluster.release import LABEL, Release, values
from tests.cluster.test_permissions import rolled
from tests.kube.control_plane import wait_for

#: Each takes a minute: two upgrades.
pytestmark = [pytest.mark.cluster, pytest.mark.soak]

JOB = Path(job("cuda"))
NODES = {"devicePlugin": {"nvidiaNodeSelector": {LABEL: "on"}}}
#: Two pods a card, and cards filled one after the other.
TWO_A_CARD = {
    "schedulerName": "hami-scheduler",
    "scheduler": {"defaultSchedulerPolicy": {"gpuSchedulerPolicy": "binpack"}},
    "devicePlugin": {**NODES["devicePlugin"], "deviceSplitCount": 2},
}
#: A size for who says none, in units of 100 MiB.
SIZED = {
    **NODES,
    "device-config": {
        "content": "nvidia: {defaultMemory: 1500, memoryFactor: 100, gpuCorePolicy: force}"
    },
}


def merged(under: Any, over: Any) -> Any:
    if not isinstance(under, Mapping) or not isinstance(over, Mapping):
        return over
    return {**under, **{name: merged(under.get(name), value) for name, value in over.items()}}


@pytest.fixture
def migrated(cluster: Release, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Release]:
    """Hetero with the values that HAMi's come to; after the test, as it was."""
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump(request.param))
    more = merged(values(cluster.lab, cluster.allocation), migrate(path, ()).values)
    release = evolve(cluster, more=more)
    cluster.replace_by(release)
    wait_for(lambda: rolled(cluster, release), seconds=180)
    yield release
    cluster.lab.clear()
    release.replace_by(cluster)
    wait_for(lambda: rolled(release, cluster), seconds=180)


def cards(lab: Lab, *names: str) -> list[str]:
    """Return the card of each pod."""
    pods = lab.pods()
    return [
        piece["device"]
        for name in names
        for allocation in given(pods[name], pods[name]["spec"]["nodeName"])
        for piece in allocation["pieces"]
    ]


@pytest.mark.parametrize("migrated", [TWO_A_CARD], indirect=True)
def test_two_pods_fill_a_card_and_the_third_takes_another(migrated: Release) -> None:
    lab, names = migrated.lab, ("a", "b", "c")
    for name in names:
        lab.add(name, {CARD: "1", "nvidia.com/gpumem": "1000"}, schedulerName="hami-scheduler")
        run_all(lab, name)

    counts = Counter(cards(lab, *names))
    assert [1, 2] == sorted(counts.values())


@pytest.mark.parametrize("migrated", [SIZED], indirect=True)
def test_who_says_no_size_has_hamis_default_and_sizes_have_its_factor(migrated: Release) -> None:
    lab = migrated.lab
    tries = f"{JOB} --alloc 900MiB; {JOB} --alloc 1501MiB"
    lab.add("unsized", {CARD: "1", "nvidia.com/gpucores": "20"}, "sh", "-c", tries)
    lab.add("sized", {CARD: "1", "nvidia.com/gpumem": "15"}, "sh", "-c", tries)
    ended(lab, "unsized", "sized")

    for name in ("unsized", "sized"):
        fits, over = map(json.loads, documents(lab.output(name)))
        assert {"allocated": 900 * MiB} == fits
        assert "CUDA_ERROR_OUT_OF_MEMORY" == over["error"]
