"""What a container is given by each way of bringing drivers, as its runtime finds it at the end.

On a node of each cluster; the late one's runtime alone knows CDI. The cards are simulated, so that
no way but CDI brings device nodes here: tests/kube/test_driver_injection.py has those of MIG
instances.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from hetero.kube.api.annotations import ALLOCATION
from hetero.kube.api.runtime_variables import InjectionWay
from tests.cluster.conftest import run_all, share, usually_on
from tests.cluster.lab import RACK, Lab, program
from tests.cluster.release import DAEMONS, NAMESPACE, Release
from tests.cluster.stand_in import MOUNTS, Given, given, runtime_of_nvidia
from tests.cluster.test_trust import runtime_class
from tests.kube.control_plane import wait_for

pytestmark = pytest.mark.cluster

HERE = {"kubernetes.io/hostname": "n1"}
#: By the name of the lab: the ways that a cluster's container runtime knows.
WAYS: Mapping[str, tuple[InjectionWay, ...]] = {
    "kube": (InjectionWay.ENVVAR, InjectionWay.VOLUME_MOUNTS),
    "kube136": tuple(way for way in InjectionWay if way is not InjectionWay.FILES),
}
#: Where device nodes of MIG instances are; some that a CDI spec brings, for two instances.
CAPS = Path("/dev/nvidia-caps")
NODES = {"mig-0": (12, 13), "mig-1": (21, 22), "shares": ()}
#: One card in MIG mode with two instances, and one that programs share.
CARDS = """[device]
vendor = nvidia
model = NVIDIA H200
memory = 143771 MiB
mig = 1g.18gb x2

[device]
vendor = nvidia
model = NVIDIA L4
memory = 23034 MiB
"""
#: Asks for an instance that is cut from a card.
CUT = {"hetero.io/slices": "hard"}


@pytest.fixture
def node(either: Release) -> Iterator[Release]:
    """A cluster with a card in MIG mode on n1."""
    rack = either.lab.own("n1", RACK)
    before = rack.read_text()
    rack.write_text(before.partition("[device]")[0] + CARDS)
    either.lab.patch(
        DAEMONS, {"spec": {"updateStrategy": {"type": "OnDelete", "rollingUpdate": None}}}
    )
    try:
        yield either
    finally:
        rack.write_text(before)
        restarted(either, InjectionWay.FILES)
        rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}
        either.lab.patch(DAEMONS, {"spec": {"updateStrategy": rolling}})


def restarted(release: Release, way: InjectionWay) -> None:
    """Have n1's agent bring drivers in a way from now on."""
    lab, old = release.lab, release.agent("n1")
    (container,) = lab.call("GET", DAEMONS)["spec"]["template"]["spec"]["containers"]
    args = [f"--driver={way.value}" if "--driver=" in one else one for one in container["args"]]
    kind = "application/strategic-merge-patch+json"
    spec = {"containers": [{"name": container["name"], "args": args}]}
    body = {"spec": {"template": {"spec": spec}}}
    lab.call("PATCH", DAEMONS, body, kind=kind)
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{old['metadata']['name']}"
    lab.call("DELETE", f"{path}?gracePeriodSeconds=0")

    def new() -> bool:
        found = release.pods("hetero-agent").values()
        mine = [one for one in found if one["spec"]["nodeName"] == "n1"]
        return bool(mine) and mine[0]["metadata"]["uid"] != old["metadata"]["uid"]

    wait_for(new)
    wait_for(lambda: release.serves("n1"))


@contextmanager
def described(lab: Lab, names: Mapping[str, tuple[str, ...]]) -> Iterator[None]:
    """Have a CDI spec on n1 of cards of NVIDIA's, each with device nodes that are there."""
    CAPS.mkdir(exist_ok=True)
    for device in (one for nodes in names.values() for one in nodes):
        os.mknod(device, 0o666 | stat.S_IFCHR, os.stat("/dev/null").st_rdev)
    devices = [
        {
            "name": name,
            "containerEdits": {
                "env": [f"GIVEN_BY_CDI={name}"],
                "deviceNodes": [{"path": path} for path in nodes],
            },
        }
        for name, nodes in names.items()
    ]
    spec = {"cdiVersion": "0.3.0", "kind": "nvidia.com/gpu", "devices": devices}
    path = lab.folder / "run/nodes/n1/cdi/nvidia.json"
    path.write_text(json.dumps(spec))
    try:
        yield
    finally:
        path.unlink()
        shutil.rmtree(CAPS)


def pods(release: Release, log: Path) -> dict[tuple[str, str], Given]:
    """Return what is given to a share, what is beside it, two MIG instances and a plain pod."""
    lab = release.lab
    beside = {**program({})["containers"][0], "name": "beside"}
    of_share = program(share())["containers"]
    l4 = {"nvidia.com/use-gputype": "L4"}
    lab.add("shares", {}, nodeSelector=HERE, notes=l4, containers=[*of_share, beside])
    for name in ("mig-0", "mig-1"):
        lab.add(name, share(memory=10_000, core=10), notes=CUT, nodeSelector=HERE)
    lab.add("plain", {}, nodeSelector=HERE, runtimeClassName="nvidia")
    run_all(lab, "shares", "plain", "mig-0", "mig-1")
    found = given(log)
    for name, card_of in (("shares", "GPU-"), ("mig-0", "GPU-")):
        assert card_of in lab.pods()[name]["metadata"]["annotations"][ALLOCATION]
    lab.clear()
    return found


def caps(one: Given) -> list[str]:
    return [path for path in one.nodes if path.startswith(f"{CAPS}/")]


@usually_on("kube136")
def test_each_way_gives_a_container_its_cards_and_others_none(node: Release) -> None:
    """A variable, mounts, annotations of CDI, the kubelet's field.

    The agent's own files come with the variable, too: test_trust.py has them.
    """
    lab = node.lab
    found: dict[InjectionWay, dict[tuple[str, str], Given]] = {}
    with runtime_class(lab, "nvidia"), runtime_of_nvidia(lab, "n1") as log:
        restarted(node, InjectionWay.ENVVAR)
        found[InjectionWay.ENVVAR] = told = pods(node, log)
        known = {
            told[name, "main"].by_variable: tuple(f"{CAPS}/nvidia-cap{one}" for one in of)
            for name, of in NODES.items()
        }
        assert 3 == len(known)
        for way in WAYS[lab.name][1:]:
            log.write_text("")
            restarted(node, way)
            with described(lab, known) if way.by_cdi else nullcontext():
                found[way] = pods(node, log)

    for way, given_by in found.items():
        for one in (given_by["shares", "beside"], given_by["plain", "main"]):
            assert ("void", [], []) == (one.by_variable, one.by_mounts, caps(one)), way
            assert "GIVEN_BY_CDI" not in one.env, way
        for name in NODES:
            main = given_by[name, "main"]
            assert {
                InjectionWay.ENVVAR: (True, False, False),
                InjectionWay.VOLUME_MOUNTS: (False, True, False),
                InjectionWay.CDI_ANNOTATIONS: (False, False, True),
                InjectionWay.CDI_CRI: (False, False, True),
            }[way] == (
                main.by_variable in known,
                [one for one in known if main.by_mounts == [one]] != [],
                main.env.get("GIVEN_BY_CDI") in known,
            ), (way, name)
            assert main.by_variable in (*known, MOUNTS, "void"), way
            by_cdi = known[main.env["GIVEN_BY_CDI"]] if "GIVEN_BY_CDI" in main.env else ()
            assert [*by_cdi] == caps(main), (way, name)
