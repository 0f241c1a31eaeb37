"""What hetero costs a cluster where nothing happens."""

from __future__ import annotations

import os
import re
import time

import pytest

from hetero.units import MiB
from tests.cluster.conftest import run_all, share
from tests.cluster.lab import API, Lab
from tests.cluster.release import Release
from tests.kube.control_plane import wait_for

pytestmark = pytest.mark.cluster

#: How long nothing is to happen, in seconds.
IDLE = int(os.environ.get("HETERO_IDLE", "15"))


def writes(lab: Lab) -> float:
    """Return how often anybody wrote to nodes, pods or events, kubelets' own status apart."""
    said = lab.ask(API, "GET", "/metrics").decode()
    requests = re.findall(r"^apiserver_request_total\{(.*)\} (\S+)$", said, re.MULTILINE)
    return sum(
        float(count)
        for labels, count in requests
        if re.search(r'resource="(nodes|pods|events)"', labels)
        and 'subresource=""' in labels
        and re.search(r'verb="(POST|PUT|PATCH|DELETE)"', labels)
    )


def test_where_nothing_happens_nothing_is_written_and_agents_stay_small(
    lab: Lab, release: Release, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.add("pod", share())
    run_all(lab, "pod")

    def quiet() -> bool:
        before = writes(lab)
        time.sleep(3)
        return writes(lab) == before

    wait_for(quiet)  # what the tests before this one left behind is over
    before = writes(lab)
    time.sleep(IDLE)
    written = writes(lab) - before
    resident = {node: release.resident(node) for node in lab.racks}
    with capsys.disabled():
        sizes = ", ".join(f"{node} {size / MiB:.0f} MiB" for node, size in resident.items())
        print(f"\nidle for {IDLE} s: {written:.0f} writes; agents: {sizes}")

    assert 0 == written
    assert max(resident.values()) <= 80 * MiB
