"""What hetero costs a cluster where nothing happens."""

import os
import time
from collections import Counter

import pytest

from hetero.model.units import MiB
from tests.cluster.conftest import run_all, share
from tests.cluster.lab import Lab
from tests.cluster.release import Release
from tests.kube.control_plane import wait_for

pytestmark = pytest.mark.cluster

#: How long nothing is to happen, in seconds.
IDLE = int(os.environ.get("HETERO_IDLE", "15"))


def writers(lab: Lab, since: float) -> Counter[str]:
    """Return which program wrote what how often, but for the upkeep that any cluster pays.

    That is what kubelets say of themselves and the Leases of leaders and nodes: a kube-scheduler
    renews its own whether or not there is an extender.
    """
    return Counter(
        f"{event.get('userAgent', '').partition('/')[0]}: {event['verb']} {what['resource']}"
        for event in lab.writes(since)
        if (what := event["objectRef"])["resource"] != "leases"
        and (what["resource"], what.get("subresource")) != ("nodes", "status")
    )


def test_where_nothing_happens_nothing_is_written_and_agents_stay_small(
    lab: Lab, release: Release, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.time()
    lab.add("pod", share())
    run_all(lab, "pod")
    assert 1 == writers(lab, began)["hetero: create pods"]  # its binding: ours go by this name
    lab.calm()

    def quiet() -> bool:
        before = time.time()
        time.sleep(3)
        return not writers(lab, before)

    wait_for(quiet, seconds=120)  # what kubelets still had to tell is told
    before = time.time()
    time.sleep(IDLE)
    written = writers(lab, before)
    resident = {node: release.resident(node) for node in lab.racks}
    with capsys.disabled():
        sizes = ", ".join(f"{node} {size / MiB:.0f} MiB" for node, size in resident.items())
        print(f"\nidle for {IDLE} s: {dict(written)}; agents: {sizes}")

    assert not [what for what in written if what.startswith("hetero")]
    # 60 for the agent, and 8 to 12 for the process of each vendor that has cards on the node.
    assert max(resident.values()) <= 110 * MiB
