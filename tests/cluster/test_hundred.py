"""Many pods at once: all that fit run, none over capacity, none with another's share, soon."""

from __future__ import annotations

import json

import pytest

from hetero.units import MiB
from tests.cluster.books import Books
from tests.cluster.conftest import run_all, share
from tests.cluster.lab import Lab
from tests.cluster.release import Release
from tests.kube.control_plane import wait_for

pytestmark = pytest.mark.cluster

#: What is asked, by how many pods, and how many of them fit on the three nodes.
ASKED = (
    (share(memory=1000, core=20), 45, 25),  # five cards, five fifths of core each
    (
        {
            "iluvatar.ai/BI-V150-vgpu": "1",
            "iluvatar.ai/BI-V150.vMem": "4",
            "iluvatar.ai/BI-V150.vCore": "5",
        },
        20,
        20,
    ),
    (
        {"hygon.com/dcunum": "1", "hygon.com/dcumem": "8000", "hygon.com/dcucores": "25"},
        15,
        8,  # two cards, each in four
    ),
    (
        {
            "mthreads.com/vgpu": "1",
            "mthreads.com/sgpu-memory": "4",
            "mthreads.com/sgpu-core": "1",
        },
        10,
        10,
    ),
    (
        {
            "cambricon.com/vmlu": "1",
            "cambricon.com/mlu.smlu.vmemory": "4",
            "cambricon.com/mlu.smlu.vcore": "5",
        },
        10,
        10,
    ),
)


def latencies(lab: Lab, release: Release) -> dict[str, float]:
    """Return the seconds from the binding to the grant of every pod that has one, by node/pod."""
    bound = release.bindings()
    found = {}
    for node in lab.racks:
        for path in lab.records(node):
            name = json.loads(path.read_text())["keeper"]["pod"]
            found[f"{node}/{name}"] = path.stat().st_mtime - bound[name]
    return found


def told(seconds: list[float]) -> str:
    """Return the percentiles of some durations."""
    ranked = sorted(seconds)
    at = {part: ranked[min(len(ranked) - 1, len(ranked) * part // 100)] for part in (50, 90, 99)}
    return ", ".join(f"p{part} {value * 1000:.0f} ms" for part, value in at.items())


def test_twenty_pods_at_once_on_one_node_do_not_queue_behind_each_other(
    lab: Lab, release: Release, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"pod{number}" for number in range(20)]
    before = release.calls("n1", "allocate")
    for number, name in enumerate(names):
        lab.add(name, share(memory=1000 + number, core=20))
    run_all(lab, *names)
    served, seconds = (
        now - then for now, then in zip(release.calls("n1", "allocate"), before, strict=True)
    )
    took = told([*latencies(lab, release).values()])
    with capsys.disabled():
        print(f"\n20 pods on one node: bind to Allocate {took}, each {1000 * seconds / 20:.0f} ms")

    assert 20 == served
    assert seconds / served < 1  # a node-wide lock is held for as long as a container starts
    assert {f"pod{number}": (1000 + number) * MiB for number in range(20)} == {
        entry["keeper"]["pod"]: entry["allocation"]["grants"][0]["takes"]["memory"]
        for entry in lab.standing("n1")
    }
    assert [] == Books(lab).strangers()


def test_of_a_hundred_pods_at_once_all_that_fit_run_each_in_its_own_share(
    lab: Lab, release: Release, capsys: pytest.CaptureFixture[str]
) -> None:
    books = Books(lab)
    assert 100 == sum(count for _, count, _ in ASKED)
    fit = sum(fits for _, _, fits in ASKED)
    with books.kept():
        for number, kind in sorted(
            (number * 100 // count, kind)
            for kind, (_, count, _) in enumerate(ASKED)
            for number in range(count)
        ):
            lab.add(f"pod-{kind}-{number}", ASKED[kind][0])

        def settled() -> bool:
            phases = list(lab.phases().values())
            assert "Failed" not in phases
            return phases.count("Running") == fit

        wait_for(settled, seconds=200)

    assert [] == books.found
    assert books.events > 200
    assert [] == books.strangers()
    assert [fits for _, _, fits in ASKED] == [
        sum(
            name.startswith(f"pod-{kind}-") and phase == "Running"
            for name, phase in lab.phases().items()
        )
        for kind in range(len(ASKED))
    ]
    with capsys.disabled():
        print(
            f"\n100 pods: {fit} run, bind to Allocate {told([*latencies(lab, release).values()])}"
        )
