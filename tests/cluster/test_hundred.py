"""Many pods at once: all that fit run, none over capacity, none with another's share, soon."""

import json
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Mapping

import pytest

from hetero.kube.agent.proto.deviceplugin_pb2 import ContainerAllocateResponse
from hetero.model.units import MiB
from hetero.node.ledger.ledger import PINNED
from tests.cluster import plain_plugin
from tests.cluster.books import Books
from tests.cluster.conftest import plain_plugins, run_all, share
from tests.cluster.lab import UNWATCHED, Lab
from tests.cluster.plain_plugin import RESOURCE
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

#: How many of them run on each node.
FITS = (25, 10, 38)
#: How often the simplest plugin is measured against ours.
ROUNDS = 3


def latencies(lab: Lab, bound: Mapping[str, float]) -> list[float]:
    """Return the seconds from the binding to Allocate, which notes it, of every pod that ran."""
    return [
        path.with_name(PINNED).stat().st_mtime - bound[json.loads(path.read_text())["owner"]["pod"]]
        for node in lab.racks
        for path in lab.records(node)
    ]


def summary(seconds: list[float]) -> str:
    """Return the percentiles of some durations."""
    ranked = sorted(seconds)
    at = {part: ranked[min(len(ranked) - 1, len(ranked) * part // 100)] for part in (50, 90, 99)}
    return ", ".join(f"p{part} {value * 1000:.0f} ms" for part, value in at.items())


def calls(lab: Lab, release: Release, call: str) -> Counter[float]:
    """Return how often kubelets called agents so, by the seconds it took at most."""
    return sum((release.calls(node, call) for node in lab.racks), Counter())


def most(calls: Counter[float], part: int) -> str:
    """Return within what so many percent of calls were answered."""
    so_far = 0
    for seconds, count in sorted(calls.items()):
        so_far += count
        if 100 * so_far >= part * calls.total():
            return f"p{part} <= {seconds * 1000:.0f} ms"
    raise AssertionError("nobody called")


def add_hundred(lab: Lab) -> None:
    """Make the pods of each kind in turn with the others'."""
    assert 100 == sum(count for _, count, _ in ASKED)
    for number, kind in sorted(
        (number * 100 // count, kind)
        for kind, (_, count, _) in enumerate(ASKED)
        for number in range(count)
    ):
        lab.add(f"pod-{kind}-{number}", ASKED[kind][0])


def run_so_many(lab: Lab, fit: int, *, namespace: str = "default") -> None:
    """Wait until so many pods run; none may fail."""

    def settled() -> bool:
        phases = [pod["status"]["phase"] for pod in lab.pods(namespace).values()]
        assert "Failed" not in phases
        return phases.count("Running") == fit

    wait_for(settled, seconds=200)


def test_twenty_pods_at_once_on_one_node_do_not_queue_behind_each_other(
    lab: Lab, release: Release, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"pod{number}" for number in range(20)]
    lab.calm()
    before, began = calls(lab, release, "allocate"), time.time()
    for number, name in enumerate(names):
        lab.add(name, share(memory=1000 + number, core=20))
    run_all(lab, *names)
    asked = calls(lab, release, "allocate") - before
    took = summary(latencies(lab, lab.bindings(began)))
    with capsys.disabled():
        print(f"\n20 pods on one node: bind to Allocate {took}; Allocate itself {most(asked, 99)}")

    assert 20 == asked.total()
    # A node-wide lock is held for as long as a container starts.
    assert 10 <= sum(count for seconds, count in asked.items() if seconds <= 1)
    assert {f"pod{number}": (1000 + number) * MiB for number in range(20)} == {
        entry["owner"]["pod"]: entry["allocation"]["pieces"][0]["takes"]["memory"]
        for entry in lab.standing("n1")
    }
    assert [] == Books(lab).strangers()


def test_of_a_hundred_pods_at_once_all_that_fit_run_each_in_its_own_share(
    lab: Lab, release: Release, capsys: pytest.CaptureFixture[str]
) -> None:
    books = Books(lab)
    fit = sum(fits for _, _, fits in ASKED)
    lab.calm()
    before, began = calls(lab, release, "allocate"), time.time()
    with books.kept():
        add_hundred(lab)
        run_so_many(lab, fit)

    assert [] == books.failures
    assert books.events > fit  # each is seen as it is bound, at least
    assert [] == books.strangers()
    assert [fits for _, _, fits in ASKED] == [
        sum(
            name.startswith(f"pod-{kind}-") and phase == "Running"
            for name, phase in lab.phases().items()
        )
        for kind in range(len(ASKED))
    ]
    asked = calls(lab, release, "allocate") - before
    with capsys.disabled():
        took = summary(latencies(lab, lab.bindings(began)))
        print(f"\n100 pods: {fit} run, bind to Allocate {took}; Allocate itself {most(asked, 99)}")


@pytest.mark.measured
def test_what_a_hundred_pods_wait_for_is_the_same_under_the_simplest_plugin(
    lab: Lab, release: Release, capsys: pytest.CaptureFixture[str]
) -> None:
    fit = sum(fits for _, _, fits in ASKED)
    hetero_latencies: list[float] = []
    others: list[float] = []
    before = {call: calls(lab, release, call) for call in ("prefer", "allocate", "start")}
    with plain_plugins(lab, RESOURCE, dict(zip(lab.racks, FITS, strict=True))):
        for _ in range(ROUNDS):
            lab.calm()
            began = time.time()
            add_hundred(lab)
            run_so_many(lab, fit)
            hetero_latencies += latencies(lab, lab.bindings(began))
            lab.clear()
            lab.calm()
            began = time.time()
            for number in range(100):
                lab.add(f"pod-{number}", {RESOURCE: "1"}, namespace=UNWATCHED)
            run_so_many(lab, fit, namespace=UNWATCHED)
            bound, pods = lab.bindings(began), lab.pods(UNWATCHED)
            asked = allocated(lab)
            others += [
                asked[pod["metadata"]["uid"]] - bound[name]
                for name, pod in pods.items()
                if pod["metadata"]["uid"] in asked
            ]
            lab.clear()
    assert ROUNDS * fit == len(hetero_latencies) == len(others)
    took = {call: calls(lab, release, call) - count for call, count in before.items()}
    with capsys.disabled():
        print(f"\nbind to Allocate of {fit} pods, {ROUNDS} times, in turn:")
        print(f"  hetero               {summary(hetero_latencies)}")
        print(f"  the simplest plugin  {summary(others)}")
        for call, count in took.items():
            print(f"  hetero's own part, {call}: {most(count, 50)}, {most(count, 99)}")


def allocated(lab: Lab) -> dict[str, float]:
    """Return when the simplest plugin was asked for each pod, by UID, as kubelets noted it."""
    cores = {}
    for node in lab.racks:
        note = (
            lab.folder / "run/nodes" / node / "kubelet/device-plugins/kubelet_internal_checkpoint"
        )
        for entry in json.loads(note.read_text())["Data"]["PodDeviceEntries"] or ():
            if entry["ResourceName"] == RESOURCE:
                given = ContainerAllocateResponse.FromString(b64decode(entry["AllocResp"]))
                cores[entry["PodUID"]] = float(given.envs[plain_plugin.ASKED])
    return cores
