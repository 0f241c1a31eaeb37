"""A card that its node's annotation cordons: no pod gets it, and who has it is still seen."""

import asyncio
import base64
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from click.testing import CliRunner, Result

from hetero.cli import hetero
from hetero.kube.cordon import cordon_in_cluster
from hetero.kube.dra.way import AllocationWay
from hetero.kube.webhook.admission import Webhook
from hetero.kube.words.annotations import INVENTORY, published_devices
from hetero.kube.words.settings import Settings
from hetero.model import Device
from hetero.model.units import GiB
from hetero.node.settings import NodeSettings
from hetero.node.view.observe import observe_node
from hetero.registry.message import SHOWN_LENGTH
from tests.kube.claims import dra_world
from tests.kube.fake_api import FakeApi
from tests.kube.kubelet import UnexpectedAdmissionError
from tests.kube.test_webhook import patched
from tests.kube.world import CARD, DISCOVER, World, pod_named, until, world

OURS, HAMIS = "hetero.io/cordoned", "hami.io/device-cordon"
#: Seconds within which a node obeys a cordon, however seldom it asks its drivers.
OBEYED = 5.0
SELDOM = 600.0


async def hetero_with(at: World, path: Path, *words: str) -> Result:
    """Run a command with the rights of the cluster's administrator."""
    config = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "clusters": [{"name": "here", "cluster": {"server": at.url}}],
        "users": [{"name": "me", "user": {}}],
    }
    (path / "kubeconfig").write_text(json.dumps(config))
    environ = {"KUBECONFIG": str(path / "kubeconfig")}
    return await asyncio.to_thread(
        CliRunner().invoke, hetero, [*words], env=environ, standalone_mode=False
    )


def annotations(at: World) -> dict[str, str]:
    kept: dict[str, str] = at.api.nodes["n1"]["metadata"].get("annotations", {})
    return kept


def annotate(at: World, **changes: str) -> None:
    node = at.api.nodes["n1"]
    merged = {**annotations(at), **changes}
    at.api.put("nodes", {**node, "metadata": {**node["metadata"], "annotations": merged}})


def published(at: World) -> tuple[Device, ...]:
    text = annotations(at).get(INVENTORY)
    return published_devices(text, node="n1") if text else ()


def healthy_slots(at: World) -> int:
    return [*at.kubelet.devices.get(CARD, {}).values()].count("Healthy")


def cordons_of(at: World) -> list[str | None]:
    return [device.cordon for device in published(at)]


async def test_a_cordoned_card_leaves_the_allocatable_and_keeps_its_holder_and_number(
    tmp_path: Path,
) -> None:
    async with world() as at:
        await until(lambda: healthy_slots(at) == 20)
        await at.kubelet.admit(at.bind("holder", memory=2 * GiB, core=30))

        done = await hetero_with(at, tmp_path, "cordon", "n1", "0", "--reason", "loud  fan")
        assert (
            "n1: memory:0 (M1, memory-0) is cordoned: nothing new is given of it\n"
            "still held by default/holder/main\n"
        ) == done.output
        await until(lambda: healthy_slots(at) == 10 and cordons_of(at) == ["loud fan", None])
        assert ["memory-0", "memory-1"] == [device.uuid for device in published(at)]
        view = await hetero_with(at, tmp_path, "inventory", "--cluster")
        lines = [" ".join(line.split()) for line in view.output.splitlines()]
        assert "cordoned (loud fan)" in view.output
        assert "default holder main n1 memory:0 30 % 2 GiB Pending" in lines
        answer = (await at.kubelet.admit(at.bind("next", memory=2 * GiB, core=30)))["main"]
        assert "memory-1" == answer.envs["MEMORY_VISIBLE_DEVICES"]

        done = await hetero_with(at, tmp_path, "uncordon", "n1", "0", "--json")
        (card,) = json.loads(done.output)["items"]
        assert ("n1", 0, "memory-0", None) == tuple(
            card[key] for key in ("node", "number", "uuid", "cordon")
        )
        await until(lambda: healthy_slots(at) == 20 and cordons_of(at) == [None, None])
        assert OURS not in annotations(at)


@pytest.mark.parametrize("annotation", [OURS, HAMIS])
async def test_a_cordon_is_obeyed_within_five_seconds_before_the_drivers_are_due(
    annotation: str,
) -> None:
    async with world(look_s=SELDOM) as at:
        await until(lambda: at.agent.allocator.reconciled)
        at.agent.cards.due.set()  # the first look was before that, and published nothing
        await until(lambda: healthy_slots(at) == 20 and cordons_of(at) == [None, None])
        annotate(at, **{annotation: "memory-0"})
        await until(
            lambda: healthy_slots(at) == 10 and cordons_of(at) == ["", None], seconds=OBEYED
        )
        annotate(at, **{annotation: ""})
        await until(
            lambda: healthy_slots(at) == 20 and cordons_of(at) == [None, None], seconds=OBEYED
        )


def cordon_some(at: World, count: int) -> None:
    uuids = [device.uuid for device in at.vendor.devices][:count]
    annotate(at, **{OURS: ",".join(uuids)})


def sicken_some(at: World, count: int) -> None:
    at.vendor.devices[:count] = [
        evolve(device, health="XID 48") for device in at.vendor.devices[:count]
    ]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("spoil", [cordon_some, sicken_some])
async def test_a_pod_that_counts_no_cards_starts_beside_cards_that_are_cordoned_or_sick(
    spoil: Callable[[World, int], None], count: int
) -> None:
    """A kubelet admits no pod that names a resource of which no card is healthy."""
    async with world() as at:
        await until(lambda: healthy_slots(at) == 20)
        hook = Webhook(
            vocabulary=Settings().vocabulary(at.node.registry),
            scheduler_name="hetero-scheduler",
            allocation_writer_name="the-scheduler",
            api=FakeApi(),
        )
        written = pod_named("none", "main")
        written["spec"] = {
            "containers": [{"name": "main", "resources": {"limits": {CARD: "0", "cpu": "1"}}}],
            "initContainers": [{"name": "first", "resources": {"limits": {CARD: 0}}}],
        }
        answer = await hook.admit({"uid": "r", "operation": "CREATE", "object": written})
        pod = patched(written, json.loads(base64.b64decode(answer["patch"])))
        spoil(at, count)
        await until(lambda: healthy_slots(at) == 20 - 10 * count)

        assert {} == await at.kubelet.admit(pod)
        assert [] == at.given()
        if count == 2:
            with pytest.raises(UnexpectedAdmissionError):
                await at.kubelet.admit(written)


async def test_a_cordon_outlives_the_agent_that_heard_of_it(tmp_path: Path) -> None:
    async with world() as at:
        annotate(at, **{OURS: json.dumps({"memory-1": "swap"})})
        await until(lambda: cordons_of(at) == [None, "swap"])
        await at.crash()

        assert [None, "swap"] == [device.cordon for device in at.node.discover().devices]


async def test_hamis_annotation_is_obeyed_and_taken_back_by_uncordon(tmp_path: Path) -> None:
    async with world() as at:
        annotate(at, **{HAMIS: " MEMORY-0 , memory-1,"})
        await until(lambda: cordons_of(at) == ["", ""])
        await hetero_with(at, tmp_path, "uncordon", "n1", "memory:1")
        await until(lambda: cordons_of(at) == ["", None])

        assert "MEMORY-0" == annotations(at)[HAMIS]


async def test_a_card_that_is_cordoned_in_another_spelling_gets_the_new_reason(
    tmp_path: Path,
) -> None:
    async with world() as at:
        annotate(at, **{OURS: "Memory-1,MEMORY-0"})
        await until(lambda: cordons_of(at) == ["", ""])
        await hetero_with(at, tmp_path, "cordon", "n1", "1", "--reason", "swap")
        await until(lambda: cordons_of(at) == ["", "swap"])

        assert {"MEMORY-0": "", "memory-1": "swap"} == json.loads(annotations(at)[OURS])


async def test_an_annotation_that_cannot_be_read_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with world() as at:
        annotate(at, **{OURS: json.dumps({"memory-1": "swap"})})
        await until(lambda: cordons_of(at) == [None, "swap"])
        annotate(at, **{OURS: '{"memory-1": 7}'})
        await until(lambda: "cards stay cordoned as they were" in caplog.text)

        assert "node n1: hetero.io/cordoned is no JSON object of reasons by UUID" in caplog.text
        assert "kubectl annotate node n1 hetero.io/cordoned-: cards stay" in caplog.text
        await asyncio.sleep(1)
        assert [None, "swap"] == cordons_of(at)


#: Annotations that cordon nothing, and what a node's event says of each.
IDLE = {
    "memory-9": "names 'memory-9', and no card of this node has that UUID",
    '{"memory-8": "swap"}': "names 'memory-8', and no card of this node has that UUID",
    '["memory-0"]': """names '["memory-0"]', and no card of this node""",
    "0": "names '0', and no card of this node",
    "null": "names 'null', and no card of this node",
    "memory-0;memory-1": "names 'memory-0;memory-1', and no card of this node",
    '{"a\\u0000\\u001b[31m": ""}': r"names 'a\x00\x1b[31m', and no card of this node",
    '{"memory-0": 1}': "is no JSON object of reasons by UUID: mend it, or remove it with",
    '{"memory-0": ': "is no JSON: leave it out",
    ",".join(f"m{n}" for n in range(900)): "names 896 more that are no cards of this node",
}


def tells(at: World, start: str) -> bool:
    """Return whether an event says what begins so."""
    return any(event["message"].startswith(start) for event in at.api.events)


@pytest.mark.parametrize("annotation", [OURS, HAMIS])
async def test_a_cordon_that_means_no_card_is_told_of_once(tmp_path: Path, annotation: str) -> None:
    async with world() as at:
        await until(lambda: cordons_of(at) == [None, None])
        for text, sentence in IDLE.items():
            at.api.events.clear()
            annotate(at, **{annotation: text})
            await until(partial(tells, at, f"node n1: {annotation} {sentence}"))
        event = at.api.events[-1]
        assert "NoSuchCard" == event["reason"]
        assert {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-n1"} == (
            event["involvedObject"]
        )
        view = await hetero_with(at, tmp_path, "inventory", "--cluster")
        assert "names 896 more that are no cards of this node" in " ".join(view.output.split())
        count = len(at.api.events)
        annotate(at, other="changed")
        await asyncio.sleep(3 * DISCOVER)
        assert [None, None] == cordons_of(at)
        assert count == len(at.api.events)


async def test_by_claims_a_cordon_that_means_no_card_is_told_of(tmp_path: Path) -> None:
    async with dra_world() as at:
        annotate(at, **{OURS: "memory-1,memory-9"})
        sentence = f"node n1: {OURS} names 'memory-9', and no card of this node"
        await until(partial(tells, at, sentence))
        view = await hetero_with(at, tmp_path, "inventory", "--cluster")
        assert sentence in " ".join(view.output.split())
        assert "names 'memory-1'" not in view.output


async def test_who_cordons_a_card_hears_of_cordons_that_mean_none(tmp_path: Path) -> None:
    async with world() as at:
        await until(lambda: cordons_of(at) == [None, None])
        annotate(at, **{OURS: "memory-9,memory-1"})
        await until(lambda: cordons_of(at) == [None, ""])
        done = await hetero_with(at, tmp_path, "cordon", "n1", "0")
        note = "node n1: hetero.io/cordoned names 'memory-9', and no card of this node has that"
        assert note in done.output
        done = await hetero_with(at, tmp_path, "uncordon", "n1", "0", "--json")
        assert note in json.loads(done.output)["notes"][0]

        annotate(at, **{OURS: '{"memory-0": 1}'})
        done = await hetero_with(at, tmp_path, "cordon", "n1", "0")
        assert "or remove it with kubectl annotate node n1 hetero.io/cordoned-" in str(
            done.exception
        )
        assert '{"memory-0": 1}' == annotations(at)[OURS]


async def test_a_reason_reaches_nobody_with_codes_that_a_terminal_obeys(tmp_path: Path) -> None:
    reason = "a\0b\x1b[31mred\u202eback\r\n\tend" + "x" * 500
    async with world() as at:
        annotate(at, **{OURS: json.dumps({"memory-0": reason})})
        await until(lambda: cordons_of(at) != [None, None])
        (shown, _) = cordons_of(at)

        assert shown is not None
        assert shown.startswith("a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}[31mred")
        assert "back end" in shown
        assert shown.isprintable()
        assert SHOWN_LENGTH == len(shown)


async def test_a_card_that_the_settings_exclude_is_the_kubelets_only_while_it_is_held() -> None:
    """Another plugin may serve it there; the inventory has it, so that no number shifts."""
    async with world() as at:
        await at.kubelet.admit(at.bind("first", memory=16 * GiB, core=100))
        holder = at.bind("holder", memory=2 * GiB, core=30)
        await at.kubelet.admit(holder)
        await at.crash()
        at.node = evolve(at.node, settings=NodeSettings(exclude=("memory-1",)))
        await at.start()

        reason = "excluded by the node's settings"
        await until(lambda: cordons_of(at) == [None, reason] and healthy_slots(at) == 10)
        assert [False, True] == [device.excluded for device in published(at)]
        assert 20 == len(at.kubelet.devices[CARD])
        at.kubelet.known.remove(holder)
        at.api.put("pods", holder, event="DELETED")
        await until(lambda: len(at.kubelet.devices[CARD]) == 10)
        assert cordons_of(at) == [None, reason]


async def test_a_cordon_with_the_settings_own_words_is_a_cordon_as_any_other() -> None:
    async with world() as at:
        await until(lambda: healthy_slots(at) == 20)
        annotate(at, **{OURS: json.dumps({"memory-0": "excluded by the node's settings"})})
        await until(lambda: healthy_slots(at) == 10)

        assert 20 == len(at.kubelet.devices[CARD])
        assert [False, False] == [device.excluded for device in published(at)]


def taints(at: World) -> list[Any]:
    """Return the taints of each of the node's cards that is given by claims."""
    (resource_slice,) = at.api.slices.values()
    return [device.get("taints") for device in resource_slice["spec"]["devices"]]


async def test_by_claims_a_cordon_is_obeyed_within_five_seconds_as_well() -> None:
    async with world(allocation=AllocationWay.DRA, look_s=SELDOM) as at:
        await until(lambda: at.api.slices)
        taint = {"key": "hetero.io/cordoned", "effect": "NoSchedule"}
        annotate(at, **{OURS: "memory-1"})
        await until(lambda: taints(at) == [None, [taint]], seconds=OBEYED)
        annotate(at, **{OURS: ""})
        await until(lambda: taints(at) == [None, None], seconds=OBEYED)


async def test_by_claims_a_cordoned_card_is_tainted_and_its_holders_stay(tmp_path: Path) -> None:
    async with dra_world() as at:
        assert [None, None] == taints(at)
        done = await hetero_with(at, tmp_path, "cordon", "n1", "1", "--reason", "swap (rack 4)")
        assert done.output.startswith("n1: memory:1 (M1, memory-1) is cordoned")
        taint = {"key": "hetero.io/cordoned", "value": "swap-rack-4", "effect": "NoSchedule"}
        await until(lambda: taints(at) == [None, [taint]])

        await hetero_with(at, tmp_path, "uncordon", "n1", "memory-1")
        await until(lambda: taints(at) == [None, None])


async def test_by_claims_an_excluded_card_leaves_the_others_the_numbers_that_their_node_has(
    tmp_path: Path,
) -> None:
    """Another plugin may serve the excluded card, so no claim and no view of a cluster has it."""
    async with dra_world(*3 * [16 * GiB]) as at:
        await at.crash()
        at.node = evolve(at.node, settings=NodeSettings(exclude=("memory-0",)))
        await at.start()
        await until(lambda: "memory-0" not in json.dumps([*at.api.slices.values()]))

        view = await hetero_with(at, tmp_path, "inventory", "--cluster", "--json")
        (shown,) = json.loads(view.output)["items"]
        numbers = {row.device.uuid: row.device_number for row in observe_node(at.node).devices}
        assert {"memory-0": 0, "memory-1": 1, "memory-2": 2} == numbers
        assert [("memory-1", 1), ("memory-2", 2)] == [
            (card["uuid"], card["number"]) for card in shown["devices"]
        ]
        done = await hetero_with(at, tmp_path, "cordon", "n1", "1", "--reason", "swap")
        assert done.output.startswith("n1: memory:1 (M1, memory-1) is cordoned")
        await until(lambda: at.node.discover().devices[1].cordon == "swap")
        done = await hetero_with(at, tmp_path, "uncordon", "n1", "memory:2")
        assert done.output.startswith("n1: memory:2 (M1, memory-2)")
        gone = await hetero_with(at, tmp_path, "cordon", "n1", "0")
        assert "no card '0' on node n1" in str(gone.exception)
        assert {OURS: '{"memory-1":"swap"}'} == annotations(at)


async def test_who_cordons_at_once_cordons_each_their_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(*4 * [16 * GiB]) as at:
        await until(lambda: len(cordons_of(at)) == 4)
        await hetero_with(at, tmp_path, "cordon", "n1", "0")
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        calls = (
            asyncio.to_thread(cordon_in_cluster, "n1", number, reason="ecc") for number in "123"
        )
        await asyncio.gather(*calls)

        assert 4 == len(json.loads(annotations(at)[OURS]))


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("cordon", "n2", "0"), 4, "no node 'n2' in the cluster: kubectl get nodes"),
        (("cordon", "n1", ""), 4, "no card '' on node n1"),
        (("cordon", "n1", "7"), 4, "no card '7' on node n1: name one as vendor:index, by its"),
        (("cordon", "n1", "memory"), 2, "card 'memory' may be any of memory-0, memory-1"),
        (("cordon", "n1", "0", "1"), 2, "3 names: write [NODE] CARD, one card at a time"),
        (("cordon", "n1", "0", "--reason", "x" * 201), 2, "--reason has 201 characters"),
        (("uncordon", "n1", "1"), 3, "card 1 is cordoned there and not by an annotation (here)"),
    ],
)
async def test_what_cannot_be_cordoned_is_one_line_and_changes_nothing(
    tmp_path: Path, words: tuple[str, ...], code: int, sentence: str
) -> None:
    async with world() as at:
        assert at.node.cards is not None
        at.node.cards.cordon("memory-1", "here")
        await until(lambda: cordons_of(at) == [None, "here"])
        done = await hetero_with(at, tmp_path, *words)

        assert done.exception is not None
        assert sentence in str(done.exception)
        assert code == getattr(done.exception, "code", 1)
        assert {INVENTORY} == annotations(at).keys()


async def test_a_card_that_is_lost_stays_in_the_views_of_the_cluster_until_its_pods_have_ended(
    tmp_path: Path,
) -> None:
    def health() -> dict[str, str | None]:
        return {device.uuid: device.health for device in published(at)}

    lost = "lost by its driver"
    async with world() as at:
        await until(lambda: healthy_slots(at) == 20)
        holder = at.bind("holder", memory=2 * GiB, core=30)
        await at.kubelet.admit(holder)
        known_card, _ = published(at)
        device = at.vendor.devices.pop(0)
        await until(lambda: health() == {"memory-1": "ok", "memory-0": lost})
        assert evolve(known_card, health=lost) == published(at)[1]  # it divides as it did
        await until(lambda: healthy_slots(at) == 10 and len(at.kubelet.devices[CARD]) == 20)
        await at.crash()
        await at.start()
        await until(lambda: health() == {"memory-1": "ok", "memory-0": lost})

        view = await hetero_with(at, tmp_path, "inventory", "--cluster")
        lines = [" ".join(line.split()) for line in view.output.splitlines()]
        assert lost in view.output
        assert "default holder main n1 memory:0 30 % 2 GiB Pending" in lines
        assert [True, False] == [card.usable for card in published(at)]

        at.api.put("pods", holder, event="DELETED")
        await until(lambda: health() == {"memory-1": "ok"})
        at.vendor.devices.insert(0, device)
        await until(lambda: health() == {"memory-0": "ok", "memory-1": "ok"})
