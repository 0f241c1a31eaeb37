"""Who shares a claim, and a card by claims, on a real Kubernetes 1.36: pods, containers, parts."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from hetero.kube.objects.kinds import Container
from hetero.kube.objects.reading import read
from hetero.kube.words.pod import expect_unhidden
from hetero.model.errors import BadInput
from hetero.model.units import GiB, MiB
from tests.cluster.claims import (
    CLAIMS,
    JOB,
    PODS,
    claim,
    cleared,
    given,
    pod_with,
    pool,
    remind,
    run_with,
    same_card,
    specs,
    tried,
)
from tests.cluster.conftest import ended
from tests.cluster.lab import RACK, UNWATCHED, Lab, Plain, documents, processes
from tests.cluster.release import Release
from tests.kube.control_plane import wait_for

pytestmark = pytest.mark.cluster

#: What a program tries again and again, and what it says of the larger and the smaller size.
TRIES = ("sh", "-c", f"while sleep 0.3; do {JOB} --alloc 1600MiB; {JOB} --alloc 900MiB; done")
HOLDS = (str(JOB), "--memory", "1600MiB", "--kernel-us", "1000", "--seconds", "300")
OVER = "CUDA_ERROR_OUT_OF_MEMORY"


@pytest.fixture
def release(by_claims: Release) -> Iterator[Release]:
    with cleared(by_claims):
        yield by_claims


def last_of(lab: Lab, pod: str, container: str) -> tuple[object, object]:
    """Return what a container that runs `TRIES` was told last of either size."""
    parsed = documents(lab.output(pod, f"container={container}"))
    last = (
        [json.loads(one) for one in parsed[len(parsed) % 2 :][-2:]] if len(parsed) > 1 else [{}, {}]
    )
    larger, smaller = (one.get("error", one.get("allocated")) for one in last)
    return larger, smaller


def card_of(release: Release, model: str) -> str:
    """Return the UUID of the first node's card of a model."""
    attributes = [one["attributes"] for one in wait_for(lambda: release.devices("n1")).values()]
    return next(str(one["uuid"]["string"]) for one in attributes if one["model"]["string"] == model)


def test_pods_and_containers_of_one_claim_have_one_grant_and_meet_one_limit(
    release: Release, lab: Lab
) -> None:
    """A program's context counts: 518 MiB on an H200, so 2118 MiB of 4000 are held."""
    selectors = same_card(card_of(release, "NVIDIA H200"))
    claim(lab, "shared", memory="4000Mi", cores=40, selectors=selectors)
    lab.call("POST", PODS, pod_with("holder", HOLDS, TRIES, claims=("shared",)))
    wait_for(lambda: lab.phases()["holder"] == "Running")
    lab.call("POST", PODS, pod_with("other", TRIES, claims=("shared",)))
    wait_for(lambda: lab.phases()["other"] == "Running")

    for pod, container in (("holder", "main-1"), ("other", "main")):
        wait_for(
            lambda pod=pod, container=container: (OVER, 900 * MiB) == last_of(lab, pod, container)
        )
    reserved = lab.call("GET", f"{CLAIMS}/shared")["status"]["reservedFor"]
    assert {"holder", "other"} == {one["name"] for one in reserved}
    assert ["default/shared"] == [one["label"] for one in lab.standing("n1")]

    lab.call("DELETE", f"{PODS}/holder?gracePeriodSeconds=0")
    wait_for(lambda: (1600 * MiB, 900 * MiB) == last_of(lab, "other", "main"))
    assert ["default/shared"] == [one["label"] for one in lab.standing("n1")]
    lab.call("DELETE", f"{PODS}/other?gracePeriodSeconds=0")
    wait_for(lambda: not lab.standing("n1"))


def test_three_claims_fill_a_card_and_a_fourth_waits_until_one_goes(
    release: Release, lab: Lab
) -> None:
    """Who consumes a card is no news of it: no agent writes a slice."""
    selectors = same_card(card_of(release, "Tesla T4"))  # of 15360 MiB
    published = pool(lab, "n1")
    names = ("one", "two", "three", "four")
    for name in names:
        claim(lab, name, memory="5120Mi", cores=30, selectors=selectors)
    for name in names[:3]:
        run_with(lab, name)
        wait_for(lambda name=name: given(lab, name))  # else kube-scheduler may leave the next one
    wait_for(lambda: [lab.phases()[name] for name in names[:3]] == ["Running"] * 3)
    run_with(lab, "four")
    wait_for(lambda: any("cannot allocate all claims" in one for one in lab.messages("four")))
    assert "Pending" == lab.phases()["four"]
    assert [] == given(lab, "four")
    assert sorted(f"default/{name}" for name in names[:3]) == labels(lab)

    lab.call("DELETE", f"{PODS}/two?gracePeriodSeconds=1")
    wait_for(lambda: lab.phases()["four"] == "Running")
    assert ["default/four", "default/one", "default/three"] == labels(lab)
    assert published == pool(lab, "n1")


def labels(lab: Lab) -> list[str]:
    return sorted(one["label"] for one in lab.standing("n1"))


def test_a_pod_that_never_had_a_claim_takes_it_from_nobody_by_going(
    release: Release, lab: Lab
) -> None:
    """Its other claim is not there, so the kubelet counts it among the users of neither.

    As it goes, that unprepares what another pod runs with (kubernetes#140212).
    """
    claim(lab, "used", memory="2Gi", cores=20)  # of NVIDIA's, which one node has
    run_with(lab, "stays", claims=("used",))
    wait_for(lambda: lab.phases()["stays"] == "Running")
    standing = lab.standing("n1")
    uid = lab.call("GET", f"{CLAIMS}/used")["metadata"]["uid"]
    pod = pod_with("goes", (), claims=("used", "missing"))
    lab.call("POST", PODS, {**pod, "spec": {**pod["spec"], "nodeName": "n1"}})
    wait_for(lambda: any("missing" in said for said in lab.messages("goes")))
    lab.call("DELETE", f"{PODS}/goes?gracePeriodSeconds=0")
    kept = f"claim {uid}: not unprepared while a container runs with it"
    wait_for(lambda: kept in release.agent_log("n1") or standing != lab.standing("n1"))
    assert standing == lab.standing("n1")
    assert 1 == len(specs(lab, "n1"))

    lab.call("DELETE", f"{PODS}/stays?gracePeriodSeconds=1")
    wait_for(lambda: "stays" not in lab.pods() and not given(lab, "used"))
    remind(lab, "n1")
    wait_for(lambda: not lab.standing("n1") and not specs(lab, "n1"))


#: Paths of a container's own files by which it hides what limits it, or may later by removing what
#: that is mounted on, and some by which it does not.
HIDING = (
    "/etc/ld.so.preload",
    "etc/ld.so.preload",
    "/etc//ld.so.preload/",
    "/etc/./ld.so.preload",
    "/etc/hetero",
    "/etc/hetero/",
    "//etc/hetero/grant",
    "/etc/hetero/limiters/libhetero-cuda.so",
    "/etc/x/../hetero",
    "/etc/",
    "/",
    "/proc/self/root/etc/hetero",
    "//proc/thread-self/root",
    "/proc/1/root/etc",
    "/proc/net/../root/etc",
)
HARMLESS = ("/proc/meminfo", "/etc/hetero2", "/etc/ld.so.preload.d", "/data/etc/hetero")


def with_own(path: str, kind: str) -> Plain:
    """Return a pod of the claim `used` with files of its own at a path."""
    pod = pod_with("second", (), claims=("used",))
    (main,) = pod["spec"]["containers"]
    if kind == "terminationMessagePath":
        main[kind] = path
    elif kind == "volumeMounts":
        main[kind].append({"name": "own", "mountPath": path})
        pod["spec"]["volumes"].append({"name": "own", "emptyDir": {}})
    else:
        main[kind] = [{"name": "own", "devicePath": path}]
        volume = {"name": "own", "persistentVolumeClaim": {"claimName": "any"}}
        pod["spec"]["volumes"].append(volume)
    return pod


def test_no_pod_of_a_claim_hides_what_limits_it_wherever_the_webhook_does_not_look(
    lab: Lab,
) -> None:
    """The claim is prepared: the kubelet asks the agent nothing of the pods that come later."""
    claim(lab, "used", memory="2Gi", cores=20)
    run_with(lab, "first", claims=("used",))
    wait_for(lambda: lab.phases()["first"] == "Running")

    def refused(pod: Plain, namespace: str) -> bool:
        try:
            lab.call("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)
        except OSError as error:
            refusal = "container main uses a claim and mounts its own at or above"
            if refusal not in str(error) and "can not contain backsteps" not in str(error):
                raise
            return True
        return False

    for kind in ("volumeMounts", "volumeDevices", "terminationMessagePath"):
        pods = {path: with_own(path, kind) for path in (*HIDING, *HARMLESS)}
        assert [*HIDING] == [path for path, pod in pods.items() if refused(pod, UNWATCHED)]
        refused_paths = [path for path, pod in pods.items() if hides(pod["spec"]["containers"][0])]
        assert [*HIDING] == refused_paths  # of the agent


def hides(container: Plain) -> bool:
    try:
        expect_unhidden(read(Container, container))
    except BadInput:
        return True
    return False


def test_a_second_pod_with_two_claims_in_a_container_gets_no_more_than_one_of_them(
    release: Release, lab: Lab
) -> None:
    """Both are prepared for others, so the kubelet starts it with what both claims bring."""
    for name, model in (("left", "NVIDIA H200"), ("right", "NVIDIA A100-SXM4-80GB")):
        selectors = same_card(card_of(release, model))
        claim(lab, name, memory="2000Mi", cores=20, selectors=selectors)
        run_with(lab, name)
    wait_for(lambda: {"Running"} == {*lab.phases().values()} and len(lab.phases()) == 2)
    second_card = f"{JOB} --device 1 --alloc 1MiB"
    run_with(lab, "both", "sh", "-c", f"{second_card}; {TRIES[-1]}", claims=("left", "right"))
    wait_for(lambda: lab.phases()["both"] == "Running")

    wait_for(lambda: (OVER, 900 * MiB) == last_of(lab, "both", "main"))
    assert "cuDeviceGet: CUDA_ERROR_INVALID_DEVICE" in lab.output("both")
    assert ["default/left", "default/right"] == labels(lab)


#: A card that its administrator has cut: only its parts are given.
CUT = """[device]
vendor = nvidia
model = NVIDIA H200
memory = 143771 MiB
compute = 9.0
context = 518 MiB
pci = 0000:bb:00.0
mig = 1g.18gb x1, 2g.35gb x1

"""


@contextmanager
def cut_card(release: Release) -> Iterator[None]:
    """Have a card in MIG instances on the second node meanwhile: drivers find cards once."""
    rack = release.lab.own("n2", RACK)
    had = rack.read_text()
    head, first, rest = had.partition("[device]")
    try:
        rack.write_text(f"{head}{CUT}{first}{rest}")
        release.replace(release.agent("n2"))
        wait_for(lambda: any("1g-18gb" in name for name in release.devices("n2")))
        wait_for(lambda: release.prepares("n2"))
        yield
    finally:
        rack.write_text(had)
        release.replace(release.agent("n2"))
        wait_for(lambda: not any("1g-18gb" in name for name in release.devices("n2")))
        wait_for(lambda: release.prepares("n2"))


def test_an_instance_that_a_card_is_cut_into_is_brought_by_the_kubelet_and_no_other(
    release: Release, lab: Lab
) -> None:
    """The simulated 1g.18gb has 18 GB, of which a context takes 518 MiB."""
    with cut_card(release):
        claim(lab, "part", deviceClassName="nvidia.com-mig-1g.18gb")
        tries = f"env; {JOB} --alloc 15GiB; {JOB} --alloc 17GiB; {JOB} --device 1 --alloc 1MiB"
        run_with(lab, "part", "sh", "-c", f"{tries}; sleep 1000")
        fits, over = tried(lab, "part", 2)
        wait_for(lambda: "cuDeviceGet: CUDA_ERROR_INVALID_DEVICE" in lab.output("part"))
        variables = lab.output("part")
        ((device, uuid),) = parts(lab, "n2")
        (result,) = given(lab, "part")
        (main,) = lab.pods()["part"]["status"]["containerStatuses"]
        for pid in processes(main):
            with suppress(ProcessLookupError):  # one of them ends with the other
                os.kill(pid, signal.SIGTERM)  # it ends, and its pod stays
        ended(lab, "part")
        wait_for(lambda: not lab.standing("n2"))

    assert uuid.startswith("MIG-")
    assert device.startswith("GPU-")
    assert "-1g-18gb-" in result["device"]
    assert {f"NVIDIA_VISIBLE_DEVICES={uuid}", f"CUDA_VISIBLE_DEVICES={uuid}"} < {*variables.split()}
    assert {"allocated": 15 * GiB} == fits
    assert OVER == over["error"]


def parts(lab: Lab, node: str) -> list[tuple[str, str]]:
    """Return the cards and the parts of them that stand on a node."""
    pieces = [one for grant in lab.standing(node) for one in grant["allocation"]["pieces"]]
    return [(one["device"], one["part"] or "") for one in pieces]


def test_a_whole_card_by_its_class_and_a_template_of_it_are_not_to_be_had_at_a_time(
    release: Release, lab: Lab
) -> None:
    card = next(
        one["attributes"]["uuid"]["string"]
        for one in release.devices("n2").values()
        if "template" in one["attributes"]
    )
    claim(lab, "whole", deviceClassName="huawei.com-ascend910b3", selectors=same_card(card))
    by_template = 'device.attributes["hetero.io"].?template.orValue("") == "vir05_1c_16g"'
    selectors = [*same_card(card), {"cel": {"expression": by_template}}]
    run_with(lab, "whole", "sh", "-c", "env; sleep 1000")
    wait_for(lambda: lab.phases()["whole"] == "Running")
    claim(lab, "part", deviceClassName="hetero", selectors=selectors)
    run_with(lab, "part", "sh", "-c", "env; sleep 1000")
    wait_for(lambda: any("cannot allocate all claims" in one for one in lab.messages("part")))

    all_of_it = {"memory": 64 * GiB, "core": 20, "aicpu": 7, "slots": 4}
    assert [(card, all_of_it, None)] == taken(lab, "n2")
    assert {"ASCEND_VISIBLE_DEVICES=0"} == environment(lab, "whole", "ASCEND_V")

    lab.call("DELETE", f"{PODS}/whole?gracePeriodSeconds=0")
    wait_for(lambda: lab.phases()["part"] == "Running")
    part_of_it = {"memory": 16 * GiB, "core": 5, "aicpu": 1, "slots": 1}
    assert [(card, part_of_it, "vir05_1c_16g")] == taken(lab, "n2")
    assert {"ASCEND_VISIBLE_DEVICES=0", "ASCEND_VNPU_SPECS=vir05_1c_16g"} == environment(
        lab, "part", "ASCEND_V"
    )


def taken(lab: Lab, node: str) -> list[tuple[str, Plain, str | None]]:
    """Return what the grants of a node take of which cards, and by which templates."""
    pieces = [one for grant in lab.standing(node) for one in grant["allocation"]["pieces"]]
    return [(one["device"], one["takes"], one["template"]) for one in pieces]


def environment(lab: Lab, pod: str, begins: str) -> set[str]:
    """Return the variables whose names begin so, as a pod that runs `env` printed them."""
    wait_for(lambda: begins in lab.output(pod))
    return {line for line in lab.output(pod).split() if line.startswith(begins)}
