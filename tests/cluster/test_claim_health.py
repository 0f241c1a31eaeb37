"""Cards that fall ill, and what others see of claims, on a real Kubernetes 1.36."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest

from tests.cluster.claims import CLAIMS, PODS, claim, cleared, given, pool, run_with, runs
from tests.cluster.lab import RACK, Lab, Plain
from tests.cluster.release import Release
from tests.kube.control_plane import wait_for

pytestmark = pytest.mark.cluster

CLASS = "cambricon.com-vmlu"


@pytest.fixture
def release(by_claims: Release) -> Iterator[Release]:
    with cleared(by_claims):
        yield by_claims


@contextmanager
def ill(lab: Lab) -> Iterator[None]:
    """Have the driver of the second node's cards of a vendor report a problem meanwhile."""
    with driver_of("n2", lab, "vendor = cambricon\n", "vendor = cambricon\nhealth = bad\n"):
        yield


#: What the driver says of a card of the first node, and what is told of it.
ILLS = {
    "NVIDIA A100-SXM4-80GB": ("xid = 48", "Xid 48: see the kernel log, reset the card"),
    "NVIDIA L4": ("health = ecc", "1 uncorrected memory errors: reset the card"),
    "Tesla T4": ("health = hot", "too hot: the hardware slows it down"),
}


@contextmanager
def fallen_ill(lab: Lab) -> Iterator[None]:
    """Have the driver of the first node's cards say so of each of `ILLS` meanwhile."""
    rack = lab.own("n1", RACK)
    well = text = rack.read_text()
    for model, (ill, _) in ILLS.items():
        text = text.replace(f"model = {model}\n", f"model = {model}\n{ill}\n")
    rack.write_text(text)
    try:
        yield
    finally:
        rack.write_text(well)


@contextmanager
def driver_of(node: str, lab: Lab, well: str, changed: str) -> Iterator[None]:
    """Have the driver of a node's cards say something else meanwhile."""
    rack = lab.own(node, RACK)
    text = rack.read_text()
    rack.write_text(text.replace(well, changed))
    try:
        yield
    finally:
        rack.write_text(text)


def tainted(release: Release, node: str) -> dict[str, str]:
    """Return what the taints of a node's devices say, by the models."""
    return {
        one["attributes"]["model"]["string"]: taint["value"]
        for one in release.devices(node).values()
        for taint in one.get("taints") or ()
    }


def conditions(lab: Lab, name: str) -> dict[str, str]:
    """Return the conditions of a claim's one device, by type."""
    devices = lab.call("GET", f"{CLAIMS}/{name}")["status"].get("devices") or ()
    return {one["type"]: one["status"] for said in devices for one in said["conditions"]}


def health(lab: Lab, name: str) -> list[tuple[str, str]]:
    """Return what a pod's status says of its cards: whether they are healthy, and why not."""
    return [
        (one["health"], one.get("message", ""))
        for status in lab.pods()[name]["status"].get("containerStatuses") or ()
        for resource in status.get("allocatedResourcesStatus") or ()
        for one in resource.get("resources") or ()
    ]


def test_a_card_that_falls_ill_is_for_claims_that_tolerate_it_and_its_users_are_told(
    release: Release, lab: Lab
) -> None:
    claim(lab, "used", memory="2Gi", cores=10, deviceClassName=CLASS)
    run_with(lab, "used")
    (result,) = wait_for(lambda: given(lab, "used"))
    wait_for(lambda: conditions(lab, "used") == {"Ready": "True", "Healthy": "True"})
    ((before, _), *_) = pool(lab, "n2").values()

    def taints() -> list[Plain]:
        device = release.devices("n2").get(result["device"], {})
        return [{**one, "timeAdded": ""} for one in device.get("taints") or ()]

    why = "the driver reports a problem"
    with ill(lab):
        wait_for(taints)
        assert [
            {
                "key": "hetero.io/unhealthy",
                "value": why.replace(" ", "-"),
                "effect": "NoSchedule",
                "timeAdded": "",
            }
        ] == taints()
        assert {before + 1} == {generation for generation, _ in pool(lab, "n2").values()}
        wait_for(lambda: health(lab, "used") == [("Unhealthy", why)])
        wait_for(lambda: conditions(lab, "used") == {"Ready": "True", "Healthy": "False"})
        tolerations = [{"key": "hetero.io/unhealthy", "operator": "Exists"}]
        claim(lab, "careful", memory="2Gi", cores=10, deviceClassName=CLASS)
        run_with(lab, "careful")
        more = {"deviceClassName": CLASS, "tolerations": tolerations}
        claim(lab, "brave", memory="2Gi", cores=10, **more)
        run_with(lab, "brave")
        wait_for(lambda: lab.phases()["brave"] == "Running")
        waits = "cannot allocate all claims"
        wait_for(lambda: any(waits in said for said in lab.messages("careful")))
        assert ("Running", []) == (lab.phases()["used"], given(lab, "careful"))
    wait_for(lambda: not taints())
    wait_for(lambda: lab.phases()["careful"] == "Running", seconds=90)
    wait_for(lambda: conditions(lab, "used")["Healthy"] == "True")


def test_a_card_with_an_xid_memory_errors_or_heat_is_tainted_and_its_users_are_told(
    release: Release, lab: Lab
) -> None:
    """Of an Xid until its driver wants no recovery, whoever starts anew; of heat for a minute."""
    assert {} == tainted(release, "n1")
    names = {model: model.split()[1].lower() for model in ILLS}
    for model, name in names.items():
        selectors = by_model(model)
        claim(lab, name, memory="2Gi", cores=10, selectors=selectors)
        run_with(lab, name)
    for name in names.values():
        runs(lab, name, seconds=60)
    with fallen_ill(lab):
        for model, (_, why) in ILLS.items():
            name = names[model]
            wait_for(lambda name=name, why=why: health(lab, name) == [("Unhealthy", why)])
            wait_for(
                lambda name=name: conditions(lab, name) == {"Ready": "True", "Healthy": "False"}
            )
        assert {
            model: "-".join(why.replace(":", "").replace(",", "").split())
            for model, (_, why) in ILLS.items()
        } == tainted(release, "n1")
        # All that is well of the three is nothing.
        claim(lab, "next", memory="2Gi", cores=10, selectors=by_model(*ILLS))
        run_with(lab, "next")
        waits = "cannot allocate all claims"
        wait_for(lambda: any(waits in said for said in lab.messages("next")))
        assert ["Running"] * 3 == [lab.phases()[name] for name in names.values()]
    release.replace(release.agent("n1"))
    model, (_, why) = next(iter(ILLS.items()))
    value = "-".join(why.replace(":", "").replace(",", "").split())
    wait_for(lambda: tainted(release, "n1") == {model: value})
    with driver_of("n1", lab, f"model = {model}\n", f"model = {model}\nrecovery = 0\n"):
        wait_for(lambda: not tainted(release, "n1"))
    wait_for(lambda: given(lab, "next"))
    wait_for(lambda: release.prepares("n1"))
    for name in names.values():
        wait_for(lambda name=name: conditions(lab, name)["Healthy"] == "True")


def by_model(*models: str) -> list[Plain]:
    expression = f'device.attributes["hetero.io"].model in {json.dumps(models)}'
    return [{"cel": {"expression": expression}}]


def test_pods_that_share_a_claim_share_one_grant_that_goes_with_the_last(lab: Lab) -> None:
    claim(lab, "common", memory="2Gi", cores=20)
    run_with(lab, "first", claims=("common",))
    run_with(lab, "second", claims=("common",))
    wait_for(lambda: {"Running"} == {*lab.phases().values()} and len(lab.phases()) == 2)
    (result,) = given(lab, "common")
    standing = lab.standing(result["pool"])
    assert ["default/common"] == [one["label"] for one in standing]

    lab.call("DELETE", f"{PODS}/first?gracePeriodSeconds=0")
    wait_for(lambda: "first" not in lab.pods())
    assert standing == lab.standing(result["pool"])
    lab.call("DELETE", f"{PODS}/second?gracePeriodSeconds=0")
    wait_for(lambda: not lab.standing(result["pool"]))


def test_the_kubelet_and_metrics_show_what_a_claim_holds(release: Release, lab: Lab) -> None:
    claim(lab, "seen", memory="2Gi", cores=20)
    run_with(lab, "seen")
    wait_for(lambda: lab.phases()["seen"] == "Running")
    (result,) = given(lab, "seen")
    node = result["pool"]
    uid = lab.call("GET", f"{CLAIMS}/seen")["metadata"]["uid"]
    socket = lab.kubelet(node) / "pod-resources/kubelet.sock"
    options = [("grpc.default_authority", "localhost")]
    with grpc.insecure_channel(f"unix://{socket}", options=options) as channel:
        listed: bytes = channel.unary_unary("/v1.PodResourcesLister/List")(b"")

    # `dynamic_resources` of the protocol: the claim, and the CDI device that brings its grant.
    assert b"seen" in listed
    assert f"hetero.io/claim=claim-{uid}".encode() in listed

    def limits() -> list[float]:
        lines = [one for one in release.metrics(node).splitlines() if 'claim="seen"' in one]
        limit = "hetero_share_memory_limit_bytes{"
        return [float(one.rpartition(" ")[2]) for one in lines if one.startswith(limit)]

    wait_for(lambda: [2.0 * 2**30] == limits())
