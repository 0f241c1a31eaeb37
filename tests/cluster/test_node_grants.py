"""A program of a node itself on a real cluster: no pod is sent to what it holds, by either way."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.conftest import run_all, share
from tests.cluster.lab import RACK, Lab
from tests.cluster.release import Release
from tests.cluster.test_cordon import hetero
from tests.cluster.test_what_if import held
from tests.kube.control_plane import wait_for

pytestmark = pytest.mark.cluster


@contextmanager
def program(lab: Lab, node: str, uuid: str) -> Iterator[None]:
    """Have `hetero run` of root hold all of a card of a node."""
    command = (
        sys.executable,
        "-m",
        "hetero.cli",
        "run",
        "-q",
        "--device",
        uuid,
        "--label",
        "train",
    )
    env = {"PATH": os.environ["PATH"], "HETERO_RACK": RACK}
    with subprocess.Popen([*lab._within(node), *command, "--", "sleep", "600"], env=env):
        try:
            yield
        finally:
            lab.run_on(node, sys.executable, "-m", "hetero.cli", "release", "--force", "train")


def test_no_pod_is_sent_to_what_a_program_of_its_node_holds(either: Release) -> None:
    lab = either.lab
    lab.calm()
    lab.add("finds", share())
    run_all(lab, "finds")
    node, [(uuid, _)] = held(lab.pods()["finds"])
    lab.call("DELETE", "/api/v1/namespaces/default/pods/finds?gracePeriodSeconds=1")
    wait_for(lambda: not lab.standing(node))

    with program(lab, node, uuid):
        wait_for(lambda: lab.standing(node))
        wait_for(lambda: "not a pod's" in hetero(lab, "inventory", "--cluster"))
        lab.add("waits", share(), notes={"nvidia.com/use-gpuuuid": uuid})
        wait_for(lambda: any("lack" in said for said in lab.messages("waits")))
        lab.add("other", share(), nodeSelector={"kubernetes.io/hostname": node})
        run_all(lab, "other")
        assert uuid not in dict(held(lab.pods()["other"])[1])
        assert "Pending" == lab.phases()["waits"]
    run_all(lab, "waits")
