"""What a container is given by each way of bringing drivers, as its runtime finds it at the end.

On a node of each cluster; the late one's runtime alone knows CDI. The cards are simulated, so that
no way but CDI brings device nodes here: tests/kube/test_driver_injection.py has those of MIG
instances.
"""

import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from hetero.kube.words.annotations import ALLOCATION
from hetero.kube.words.runtime_variables import InjectionWay
from tests.cluster.conftest import run_all, share, usually_on
from tests.cluster.lab import RACK, Lab, program
from tests.cluster.release import DAEMONS, NAMESPACE, Release
from tests.cluster.stand_in import MOUNTS, Given, given, runtime_of_nvidia
from tests.cluster.users import PODS, as_user, pod
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
#: Variables that name cards to the runtimes of two vendors.
VISIBLE, OTHERS = "NVIDIA_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES"
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
        agents = release.pods("hetero-agent").values()
        of_n1 = [one for one in agents if one["spec"]["nodeName"] == "n1"]
        return bool(of_n1) and of_n1[0]["metadata"]["uid"] != old["metadata"]["uid"]

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
    sidecar = {**program({})["containers"][0], "name": "beside"}
    of_share = program(share())["containers"]
    l4 = {"nvidia.com/use-gputype": "L4"}
    lab.add("shares", {}, nodeSelector=HERE, notes=l4, containers=[*of_share, sidecar])
    for name in ("mig-0", "mig-1"):
        lab.add(name, share(memory=10_000, core=10), notes=CUT, nodeSelector=HERE)
    lab.add("plain", {}, nodeSelector=HERE, runtimeClassName="nvidia")
    run_all(lab, "shares", "plain", "mig-0", "mig-1")
    given_by_name = given(log)
    for name, card_of in (("shares", "GPU-"), ("mig-0", "GPU-")):
        assert card_of in lab.pods()[name]["metadata"]["annotations"][ALLOCATION]
    lab.clear()
    return given_by_name


def caps(container: Given) -> list[str]:
    return [path for path in container.nodes if path.startswith(f"{CAPS}/")]


@usually_on("kube136")
def test_each_way_gives_a_container_its_cards_and_others_none(node: Release) -> None:
    """A variable, mounts, annotations of CDI, the kubelet's field.

    The agent's own files come with the variable, too: the next test has them.
    """
    lab = node.lab
    given_by_way: dict[InjectionWay, dict[tuple[str, str], Given]] = {}
    with runtime_class(lab, "nvidia"), runtime_of_nvidia(lab, "n1") as log:
        restarted(node, InjectionWay.ENVVAR)
        given_by_way[InjectionWay.ENVVAR] = by_variable = pods(node, log)
        known = {
            by_variable[name, "main"].by_variable: tuple(f"{CAPS}/nvidia-cap{one}" for one in of)
            for name, of in NODES.items()
        }
        assert 3 == len(known)
        for way in WAYS[lab.name][1:]:
            log.write_text("")
            restarted(node, way)
            with described(lab, known) if way.by_cdi else nullcontext():
                given_by_way[way] = pods(node, log)

    for way, given_by in given_by_way.items():
        for given_here in (given_by["shares", "beside"], given_by["plain", "main"]):
            assert ("void", [], []) == (
                given_here.by_variable,
                given_here.by_mounts,
                caps(given_here),
            ), way
            assert "GIVEN_BY_CDI" not in given_here.env, way
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


def test_a_runtime_gives_a_container_the_cards_that_the_scheduler_gave_it_and_no_others(
    either: Release, tenant: str
) -> None:
    """The stand-in takes a container that is told nothing for one of an image that is given all."""
    lab, on_n1 = either.lab, {"kubernetes.io/hostname": "n1"}
    of_share = program(share())["containers"]
    plain = program({})["containers"][0]
    sidecar = {**plain, "name": "beside"}
    for limits in ({}, share()):
        made = pod("sees-all", limits, {}, nodeSelector=on_n1)
        for name, value in ((VISIBLE, "all"), ("ASCEND_VISIBLE_DEVICES", "0-7")):
            made["spec"]["containers"][0]["env"] = [{"name": name, "value": value}]
            with pytest.raises(OSError, match="may use policy visible-devices"):
                as_user(lab, tenant, "POST", PODS, made)
    with pytest.raises(OSError, match="may use policy visible-devices"):
        as_user(lab, tenant, "POST", PODS, pod("cdi", {}, {"cdi.k8s.io/a": "nvidia.com/gpu=all"}))

    space = "/api/v1/namespaces/default/configmaps"
    lab.call(
        "POST",
        space,
        {"metadata": {"name": "all"}, "data": dict.fromkeys((VISIBLE, OTHERS), "all")},
    )
    from_all = {"envFrom": [{"configMapRef": {"name": "all"}}]}
    brings = {**plain, **from_all}
    also = {**of_share[0], **from_all, "name": "also"}
    old = {**plain, "env": [{"name": "CUDA_VERSION", "value": "10.0"}]}
    with runtime_class(lab, "nvidia"), runtime_of_nvidia(lab, "n1") as log:
        lab.add("shares", {}, nodeSelector=on_n1, containers=[*of_share, sidecar, also])
        lab.add("plain", {}, nodeSelector=on_n1)
        for name, container in (("by-class", plain), ("brings", brings), ("old", old)):
            by = "nvidia"
            lab.add(name, {}, nodeSelector=on_n1, runtimeClassName=by, containers=[container])
        run_all(lab, "shares", "plain", "by-class", "brings", "old")
        given_by_name = given(log)
        served = pod("served", {"nvidia.com/another": "1"}, {}, runtimeClassName="nvidia")
        (alone,) = lab.call("POST", f"{PODS}?dryRun=All", served)["spec"]["containers"]
    lab.call("DELETE", f"{space}/all")
    seen = {name: one.by_variable for name, one in given_by_name.items()}

    allocation = lab.pods()["shares"]["metadata"]["annotations"][ALLOCATION]
    hidden = [("shares", "beside"), *((name, "main") for name in ("by-class", "brings", "old"))]
    assert {"void"} == {seen[one] for one in hidden}
    # Where the cluster is set to hide cards from all pods that ask for none: on 1.20 here.
    assert seen["plain", "main"] == ("void" if lab.name == "kube" else "all")
    # By no variable that another vendor's runtime reads, and of cards of another plugin nothing.
    cardless = [("shares", "also"), *((name, "main") for name in ("by-class", "brings", "old"))]
    assert {""} == {given_by_name[one].env.get(OTHERS) for one in cardless}
    of_another = {one["name"] for one in alone["env"]}
    assert (True, False) == (OTHERS in of_another, VISIBLE in of_another)
    for container in ("main", "also"):
        assert seen["shares", container].startswith("GPU-"), container
        assert f'"{seen["shares", container]}"' in allocation


@contextmanager
def runtime_class(lab: Lab, name: str) -> Iterator[None]:
    """Have a runtime class that nodes run as any other."""
    classes = "/apis/node.k8s.io/v1/runtimeclasses"
    lab.call("POST", classes, {"metadata": {"name": name}, "handler": "runc"})
    try:
        yield
    finally:
        lab.call("DELETE", f"{classes}/{name}")
