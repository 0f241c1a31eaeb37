"""What cluster admins reported of other schedulers and of this one, as they wrote it down."""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest

from hetero.kube.words.annotations import INVENTORY, published_devices
from hetero.model import Device
from tests.cluster.conftest import CARD, share, usually_on
from tests.cluster.lab import ENDS, RACK, Lab, Plain, program
from tests.cluster.release import NAMESPACE, Release
from tests.cluster.test_cordon import hetero
from tests.cluster.test_what_if import held
from tests.kube.control_plane import wait_for
from tests.kube.site_cards import ALL, HANDED

pytestmark = pytest.mark.cluster

#: Whose cards the cluster has, and which of them can be shared.
VENDORS = ("nvidia", "amd", "ascend", "cambricon", "hygon", "iluvatar", "metax", "mthreads")
TYPE = "nvidia.com/use-gputype"
POD_LIST = "/api/v1/namespaces/default/pods"
SETTINGS = f"/api/v1/namespaces/{NAMESPACE}/configmaps/hetero"
#: What the first node's second card is cut into, once its first pods run.
CUT = "mig = 1g.18gb x3, 2g.35gb x1\n"
MIG = {"nvidia.com/vgpu-mode": "mig"}


def prepared(name: str, limits: Mapping[str, str], *, notes: Mapping[str, str]) -> Plain:
    """Return a pod whose init container takes as much as its main one."""
    spec = program(limits)
    init = {**program(limits, "true")["containers"][0], "name": "prepare"}
    about = {"name": name, "annotations": dict(notes)}
    return {"metadata": about, "spec": {**spec, "initContainers": [init], "restartPolicy": "Never"}}


def all_run(lab: Lab, names: set[str]) -> bool:
    """Whether these pods run; none may have failed."""
    phases = lab.phases()
    assert "Failed" not in phases.values(), [pod["status"] for pod in lab.pods().values()]
    return names <= {name for name, phase in phases.items() if phase == "Running"}


def devices(lab: Lab, node: str) -> tuple[Device, ...]:
    """Return the cards of a node, as its agent publishes them."""
    notes = lab.call("GET", f"/api/v1/nodes/{node}")["metadata"]["annotations"]
    return published_devices(notes[INVENTORY], node=node)


def cordoned(lab: Lab, node: str) -> list[str]:
    return [device.uuid for device in devices(lab, node) if device.cordon is not None]


def sick(lab: Lab, node: str) -> set[str]:
    return {device.uuid for device in devices(lab, node) if not device.healthy}


def test_pods_that_were_never_admitted_run_and_what_a_driver_keeps_is_promised_to_none(
    either: Release,
) -> None:
    """An init container of 62 % beside a main one of 62 %, and a neighbour in the rest."""
    lab = either.lab
    for vendor in VENDORS:
        part = ALL[vendor].part
        notes = {TYPE: "H200"} if vendor == "nvidia" else {}
        lab.call("POST", POD_LIST, prepared(f"prepare-{vendor}", part(5), notes=notes))
    # The A100 has 81920 MiB, of which its driver keeps 551.
    a100 = {TYPE: "NVIDIA-NVIDIA A100-SXM4-80GB"}  # as HAMi's nodes have it
    lab.add("half", share(40960, 10), notes=a100)
    lab.add("dcu", ALL["hygon"].part(1), notes={"hygon.com/use-dcutype": "DCU-K100_AI"})
    names = {*(f"prepare-{vendor}" for vendor in VENDORS), "half", "dcu"}
    wait_for(lambda: all_run(lab, names), seconds=90)
    lab.add("other-half", share(40960, 10), notes=a100)
    lab.add("rest", share(81920 - 551 - 40960, 10), notes=a100)
    for vendor in HANDED:
        lab.add(f"neighbour-{vendor}", HANDED[vendor].part(2 if vendor == "hygon" else 3))
    names |= {"rest", *(f"neighbour-{vendor}" for vendor in HANDED)}
    wait_for(lambda: all_run(lab, names), seconds=90)

    wait_for(lambda: any("lack memory" in message for message in lab.messages("other-half")))
    assert "Pending" == lab.phases()["other-half"]


def test_what_means_nothing_is_refused_for_every_vendors_cards(either: Release) -> None:
    expect_refused(either.lab)


def expect_refused(lab: Lab) -> None:
    """Have a webhook refuse parts of no card, and sizes that are annotations."""
    for name, card in ALL.items():
        size = [resource for resource in card.part(4) if resource != card.resource]
        for resource in size:
            none = {**card.part(4), card.resource: "0"}
            with pytest.raises(OSError, match=rf"{re.escape(card.resource)} is 0, and"):
                lab.add(name, none)
            with pytest.raises(OSError, match="among the pod's annotations, where it means nothin"):
                lab.add(name, {card.resource: "1"}, notes={resource: card.part(4)[resource]})
    assert {} == lab.pods()


@contextmanager
def racks(lab: Lab) -> Iterator[Callable[[str, str, str], None]]:
    """Give what adds lines to a node's simulated cards; all is as before after the block."""
    before = {node: lab.own(node, RACK).read_text() for node in lab.racks}

    def change(node: str, line: str, lines: str) -> None:
        path = lab.own(node, RACK)
        text = path.read_text()
        assert line in text
        path.write_text(text.replace(line, f"{line}{lines}", 1))

    try:
        yield change
    finally:
        for node, text in before.items():
            lab.own(node, RACK).write_text(text)
        recovered = before["n1"].replace("vendor = nvidia\n", "vendor = nvidia\nrecovery = 0\n")
        lab.own("n1", RACK).write_text(recovered)  # an Xid is over
        wait_for(lambda: not any(sick(lab, node) for node in lab.racks))
        lab.own("n1", RACK).write_text(before["n1"])


@contextmanager
def restarting(release: Release, *nodes: str) -> Iterator[Callable[[str], None]]:
    """Give what has agents of nodes start anew with more settings, until the block ends.

    An upgrade with other settings would start all agents, schedulers and webhooks anew.
    """
    lab = release.lab
    before = lab.call("GET", SETTINGS)["data"]["settings.toml"]

    def restart(text: str) -> None:
        lab.patch(SETTINGS, {"data": {"settings.toml": f"{before}\n{text}"}})
        for node in nodes:
            release.replace(release.agent(node))

    try:
        yield restart
    finally:
        restart("")
        wait_for(lambda: not any(cordoned(lab, node) for node in nodes))
        wait_for(release.works)


#: What the driver of each vendor's card says where it is not well.
ILLS = {
    "nvidia": "xid = 48\n",
    **dict.fromkeys(VENDORS[1:], "health = bad\n"),
    "iluvatar": "health = ecc\n",
}


@usually_on("kube136")  # it starts two agents anew, twice
def test_cards_fall_ill_are_excluded_and_cut_beside_pods_that_hold_them(either: Release) -> None:
    """Their pods are told, no number shifts, and nobody who wants whole cards gets an instance."""
    lab, instance = either.lab, "nvidia.com/mig-1g.18gb"
    l4 = {TYPE: "L4"}
    for vendor in VENDORS:
        lab.add(vendor, ALL[vendor].part(1), notes=l4 if vendor == "nvidia" else {})
    lab.add("long", share(4000, 40), notes=l4)
    wait_for(lambda: all_run(lab, {*VENDORS, "long"}), seconds=90)
    pods = lab.pods()
    cards = {name: (pod["spec"]["nodeName"], held(pod)[1][0][0]) for name, pod in pods.items()}
    numbers = shown(lab)

    with restarting(either, "n1", "n3") as restart, racks(lab) as change:
        for vendor, ill in ILLS.items():
            node, uuid = cards[vendor]
            (pci,) = (device.pci for device in devices(lab, node) if device.uuid == uuid)
            change(node, f"pci = {pci}\n", ill)
        for vendor in VENDORS:
            wait_for(lambda vendor=vendor: told(lab, vendor, cards[vendor][1]))

        ill_uuids = {node: sick(lab, node) for node in lab.racks}
        change("n1", "model = NVIDIA H200\n", CUT)  # a driver is told of that once
        excluded = f'[nodes.n1.cards]\nexclude = ["{cards["long"][1]}"]\n'
        restart(f"{excluded}[nodes.n3.cards]\nexclude = [3]\n")
        wait_for(lambda: [cards["long"][1]] == cordoned(lab, "n1"))
        wait_for(lambda: [3] == [numbers[uuid] for uuid in cordoned(lab, "n3")])
        wait_for(lambda: instance in lab.allocatable("n1"))
        assert ill_uuids == {node: sick(lab, node) for node in lab.racks}
        lines = [line.split() for line in hetero(lab, "inventory", "--cluster").splitlines()]
        (card_name,) = (one.name for one in devices(lab, "n1") if one.uuid == cards["long"][1])
        row = ["default", "long", "main", "n1", card_name, "40", "%"]
        assert row in [words[:7] for words in lines]
        assert numbers == shown(lab)
        assert all_run(lab, {*pods})

        expect_whole_cards_and_instances(lab, instance)
        lab.clear()


def expect_whole_cards_and_instances(lab: Lab, instance: str) -> None:
    """Have pods ask for both, beside a card that is cut and three that are whole."""
    shows = (*ENDS, "sh", "-c", "env | grep VISIBLE; sleep 1000")
    lab.add("two", {CARD: "2"}, *shows)
    lab.add("volcano", {"volcano.sh/vgpu-number": "1"}, *shows)
    lab.add("instance", {instance: "1"}, *shows)
    lab.add("by-mode", {CARD: "1", "nvidia.com/gpumem": "20000"}, *shows, notes=MIG)
    lab.call("POST", POD_LIST, prepared("both", {instance: "1"}, notes={}))
    names = ["two", "volcano", "instance", "by-mode"]
    wait_for(lambda: all_run(lab, {*names, "both"}), seconds=90)
    visible = {name: wait_for(lambda name=name: lab.output(name)) for name in names}

    lines = {
        name: next(line for line in text.splitlines() if line.startswith("CUDA_VISIBLE_DEVICES="))
        for name, text in visible.items()
    }
    assert {"two": (0, 2), "volcano": (0, 1), "instance": (1, 0), "by-mode": (1, 0)} == {
        name: (line.count("MIG-"), line.count("GPU-")) for name, line in lines.items()
    }


def shown(lab: Lab) -> dict[str, int]:
    """Return the number of each card in the cluster's view, by UUID."""
    view = json.loads(hetero(lab, "inventory", "--cluster", "--json"))
    return {card["uuid"]: card["number"] for node in view["items"] for card in node["devices"]}


def told(lab: Lab, name: str, uuid: str) -> bool:
    """Whether an event of a pod says that its card is unhealthy."""
    return any(f"card {uuid} is unhealthy" in message for message in lab.messages(name))


def test_a_number_that_may_be_of_several_vendors_cards_excludes_none(either: Release) -> None:
    lab, path = either.lab, "/var/lib/hetero/ambiguous.toml"
    command = f"HETERO_CONFIG={path} {sys.executable} -m hetero.cli inventory 2>&1; echo rc $?"
    for number, vendor in ((0, "iluvatar"), (1, "metax")):
        lab.own("n3", path).write_text(f"[cards]\nexclude = [{number}]\n")
        printed = lab.run_on("n3", "sh", "-c", command)

        assert f'cards.exclude {number} may be any of "hygon:{number}", "{vendor}:' in printed
        assert printed.endswith("rc 2\n")
