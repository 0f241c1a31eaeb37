"""What a cluster would do: its own scheduler on a copy of what the API says."""

import asyncio
import json
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from time import time
from typing import Any

import jsonschema
import pytest
import yaml
from attrs import evolve
from click.testing import CliRunner, Result

from hetero.cli import hetero
from hetero.kube.client.api import VIEW_CONNECT_S, Access, Api, ApiError
from hetero.kube.scheduler.expected_mix import written
from hetero.kube.what_if.node_filters import NodeFilters
from hetero.kube.what_if.snapshot import _READ, SAVE, read_file
from hetero.kube.words.annotations import ALLOCATION, INVENTORY, inventory_text
from hetero.kube.words.signing import PUBLIC_KEYS, SigningKey
from hetero.model import Ask, Device, Refusal, Request
from hetero.model.errors import BadInput, HeteroError
from hetero.model.units import GiB
from hetero.placement.cache import SchedulerCache
from hetero.placement.cluster import PlacedContainer, PlacedNode, PlacedPod
from tests.kube.api_server import FakeApi, Plain
from tests.kube.claimed_cards import CARDS as CLAIM_CARDS
from tests.kube.claimed_cards import agent_of, claim_of, part_of, slices_of, user_of
from tests.kube.conftest import ROOT, card
from tests.kube.fake_api import PODS
from tests.kube.fake_api import FakeApi as Objects
from tests.kube.test_scheduler import KEY, SHARE, running

#: Three nodes of seven vendors' cards with three pods of 4000 MiB and 30 % on n1, as kubectl saved
#: them of a cluster of Kubernetes 1.20; without what is not read.
SAVED = ROOT / "tests" / "kube" / "clusters" / "saved.json"
SCHEMAS = json.loads((ROOT / "docs" / "json.schema.json").read_text())
CARD = "nvidia.com/gpu"
FULL = "0 of 1 node: 1 lack a whole device (16 GiB wanted, largest free 0)"
HOST = {"cpu": "16", "memory": "64Gi", "pods": "110", CARD: "20"}


def node(name: str, *cards: Device, **rest: Any) -> Plain:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {INVENTORY: inventory_text(cards)},
            "labels": rest.pop("labels", {}),
        },
        "spec": rest,
        "status": {"allocatable": HOST},
    }


def pod(name: str, limits: Mapping[str, str] = SHARE, **spec: Any) -> Plain:
    resources = {"limits": dict(limits), "requests": dict(limits)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "annotations": {},
            "labels": spec.pop("labels", {}),
        },
        "spec": {"containers": [{"name": "main", "resources": resources}], **spec},
        "status": {"phase": "Pending"},
    }


def save(folder: Path, *items: Plain) -> str:
    path = folder / "saved.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return str(path)


def manifests(folder: Path, *documents: Plain) -> str:
    path = folder / "manifests.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return str(path)


def called(*words: str) -> Result:
    return CliRunner().invoke(hetero, ["simulate", *words], standalone_mode=False)


def answered(cluster: str, *words: str) -> Plain:
    """Return the document of `hetero simulate --cluster`, which is as its schema says."""
    done = called("--cluster", cluster, *words, "--json")
    document: Plain = json.loads(done.output)
    jsonschema.validate(document, {**SCHEMAS, "oneOf": [{"$ref": "#/$defs/what-if"}]})
    refused = [one for one in document["items"] if one["refusal"] and one["origin"] != "waiting"]
    assert (3 if refused else 0) == done.return_value
    return document


def nodes_of(document: Plain) -> dict[str, str | None]:
    return {one["pod"]: one["node"] for one in document["items"]}


def stands(items: list[Plain]) -> list[Plain]:
    """Return the objects as they are once the extender has bound all pods that wait."""

    async def play() -> list[Plain]:
        api = Objects()
        for item in items:
            kind, name = item["kind"].lower(), item["metadata"]["name"]
            path = f"{PODS}/{name}" if kind == "pod" else f"/api/v1/{kind}s/{name}"
            api.put_now(path, item)
        async with running(api, "one") as it:
            names = [item["metadata"]["name"] for item in items if item["kind"] == "Node"]
            for item in items:
                if item["kind"] == "Pod" and "nodeName" not in item["spec"]:
                    answer = await it.call("filter", Pod=item, NodeNames=names)
                    await it.bind(item["metadata"]["name"], *answer["NodeNames"])
        return list(api.objects.values())

    return asyncio.run(play())


# --- these pods more ------------------------------------------------------------------------------


def test_pods_of_a_shape_are_placed_beside_those_that_stand_and_the_rest_hear_why_not() -> None:
    shape = ("--replicas", "6", "--vendor", "nvidia", "--memory", "24Gi", "--core", "50")
    document = answered(str(SAVED), *shape)

    assert ["n1"] * 4 + [None] * 2 == [one["node"] for one in document["items"]]
    assert {"0 of 1 node: 1 lack core on one device (50 % wanted, largest free 10)"} == {
        one["refusal"] for one in document["items"][4:]
    }
    assert {(24 * GiB, 50)} == {
        (piece["memory"], piece["core"])
        for one in document["items"][:4]
        for container in one["containers"]
        for piece in container["pieces"]
    }
    before, after = document["before"], document["after"]
    assert (14, 13, 2) == (before["devices"], before["whole_devices"], before["whole_nodes"])
    assert (14, 11, 2) == (after["devices"], after["whole_devices"], after["whole_nodes"])
    assert after["allocated"] - before["allocated"] == pytest.approx(100 * 2 / 14, abs=0.1)


def test_the_simulation_places_every_pod_where_the_extender_does(tmp_path: Path) -> None:
    cards = {name: tuple(card(f"{name}-{at}") for at in range(4)) for name in ("a", "b", "c")}
    cluster = [node(name, *mine) for name, mine in cards.items()]
    sizes = [(3000, 30, 1), (9000, 60, 1), (4000, 50, 2), (16384, 100, 3), (1000, 5, 1)] * 2
    pods = [
        pod(f"p{at}", {CARD: str(n), "nvidia.com/gpumem": str(m), "nvidia.com/gpucores": str(c)})
        for at, (m, c, n) in enumerate(sizes)
    ]

    document = answered(save(tmp_path, *cluster), "--add", manifests(tmp_path, *pods))
    done = {one["metadata"]["name"]: one for one in stands([*cluster, *pods])}
    for row in document["items"]:
        real = done[row["pod"]]
        given = json.loads(real["metadata"]["annotations"][ALLOCATION])["containers"]
        assert real["spec"]["nodeName"] == row["node"]
        assert [piece["device"] for _, each in given for piece in each["pieces"]] == [
            piece["device"] for each in row["containers"] for piece in each["pieces"]
        ]
    assert 10 == len(document["items"])


def test_manifests_are_read_as_the_api_would_make_pods_of_them(tmp_path: Path) -> None:
    template = {
        "metadata": {"labels": {"app": "x"}},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {CARD: 1, "cpu": 6}}}]},
    }
    about = {"name": "web", "namespace": "team"}
    made = manifests(
        tmp_path,
        {"kind": "Service", "apiVersion": "v1", "metadata": about, "spec": {}},
        {"kind": "Deployment", "metadata": about, "spec": {"replicas": 3, "template": template}},
        {"kind": "List", "items": [{"kind": "Job", "metadata": about | {"name": "job"},
                                    "spec": {"template": template}}]},
    )  # fmt: skip
    cards = [card(f"GPU-{number}") for number in range(4)]
    document = answered(save(tmp_path, node("n1", *cards)), "--add", made)

    # What is limited is requested: three of them take 18 of 16 processors.
    assert {"web-0": "n1", "web-1": "n1", "web-2": None, "job-0": None} == nodes_of(document)
    assert {"team"} == {one["namespace"] for one in document["items"]}
    assert "0 of 1 node: 1 lack host cpu" == document["items"][2]["refusal"]


def test_who_has_a_higher_priority_is_placed_first_and_who_waits_before_who_comes(
    tmp_path: Path,
) -> None:
    classes = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "high"},
        "value": 1000,
    }
    whole = {CARD: "1"}
    cluster = save(tmp_path, node("n1", card("A"), card("B")), classes, pod("waits", whole))
    added = manifests(tmp_path, pod("late", whole), pod("first", whole, priorityClassName="high"))
    document = answered(cluster, "--add", added)

    assert ["first", "waits", "late"] == [one["pod"] for one in document["items"]]
    assert {"first": "n1", "waits": "n1", "late": None} == nodes_of(document)


def test_that_a_pod_goes_on_waiting_is_no_refusal_of_what_was_asked(tmp_path: Path) -> None:
    cluster = save(tmp_path, node("n1", card("A")), pod("waits", {CARD: "2"}))
    document = answered(cluster, "--replicas", "1")

    assert {"waits": None, "what-if-0": "n1"} == nodes_of(document)


def test_a_group_is_placed_whole_or_not_at_all(tmp_path: Path) -> None:
    def group(name: str, least: int) -> Plain:
        return {
            "apiVersion": "scheduling.x-k8s.io/v1alpha1",
            "kind": "PodGroup",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"minMember": least},
        }

    def member(name: str, of: str) -> Plain:
        return pod(name, {CARD: "1"}, labels={"scheduling.x-k8s.io/pod-group": of})

    cards = [card(f"GPU-{number}") for number in range(3)]
    cluster = save(tmp_path, node("n1", *cards), group("large", 4), group("pair", 2))
    large = [member(f"l{number}", "large") for number in range(4)]
    pair = [member(f"p{number}", "pair") for number in range(2)]
    document = answered(cluster, "--add", manifests(tmp_path, *large, *pair))

    assert {None} == {one["node"] for one in document["items"][:4]}
    assert ["n1", "n1"] == [one["node"] for one in document["items"][4:]]
    assert document["items"][0]["refusal"].startswith("pod group large: room for 3 of 4 pods")


def test_a_quota_counts(tmp_path: Path) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q", "namespace": "default"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": "20000"}},
    }
    cluster = save(tmp_path, node("n1", card("A"), card("B")), quota)
    document = answered(cluster, "--replicas", "3", "--memory", "8Gi")

    assert ["n1", "n1", None] == [one["node"] for one in document["items"]]
    assert "over quota q of namespace default" in document["items"][2]["refusal"]


# --- this node less -------------------------------------------------------------------------------


def test_the_pods_of_a_node_that_goes_are_placed_again_or_named(tmp_path: Path) -> None:
    whole = {CARD: "1"}
    cluster = stands(
        [
            *(node(name, card(f"{name}0"), card(f"{name}1")) for name in ("a", "b")),
            *(pod(f"p{number}", whole) for number in range(3)),
        ]
    )
    left = next(one["spec"]["nodeName"] for one in cluster if one["metadata"]["name"] == "p0")
    document = answered(save(tmp_path, *cluster), "--without", left)
    moved = [(one["origin"], one["from_node"]) for one in document["items"]]

    (other,) = {"a", "b"} - {left}
    assert [("moved", left)] * 2 == moved
    assert [other, None] == [one["node"] for one in document["items"]]
    assert FULL == document["items"][1]["refusal"]
    assert {"nothing makes it again: it has no controller"} == {
        note for one in document["items"] for note in one["notes"]
    }
    assert (4, 2) == (document["before"]["devices"], document["after"]["devices"])
    assert (75, 100) == (document["before"]["allocated"], document["after"]["allocated"])


def test_pods_of_daemon_sets_go_with_their_node_and_others_are_left_to_kube_scheduler() -> None:
    document = answered(str(SAVED), "--without", "n2")

    (row,) = document["items"]
    assert row["pod"].startswith("hetero-scheduler-")
    assert (None, None) == (row["node"], row["refusal"])
    assert ["kube-scheduler places it: it asks for no device"] == row["notes"]


# --- that policy ----------------------------------------------------------------------------------


def test_another_placement_policy_chooses_other_nodes(tmp_path: Path) -> None:
    cluster = save(tmp_path, *(node(name, card(f"{name}0"), card(f"{name}1")) for name in "ab"))
    shape = ("--replicas", "4", "--memory", "4Gi", "--core", "20")
    cards = {
        policy: [
            piece["device"]
            for one in answered(cluster, *shape, "--placement", policy)["items"]
            for piece in one["containers"][0]["pieces"]
        ]
        for policy in ("binpack", "spread", "node-binpack-device-spread")
    }

    assert {"binpack": 1, "spread": 4, "node-binpack-device-spread": 2} == {
        policy: len(set(devices)) for policy, devices in cards.items()
    }


def test_the_settings_of_the_cluster_hold(tmp_path: Path) -> None:
    def settings(text: str) -> Plain:
        about = {"name": "hetero", "namespace": "hetero-system"}
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": about,
            "data": {"settings.toml": text},
        }

    cluster = [node(name, card(name)) for name in "ab"]
    spread = settings('node-placement = "spread"\n[defaults]\nmemory = "4Gi"\n')
    document = answered(save(tmp_path, *cluster, spread), "--replicas", "2")

    assert {"node": "spread", "device": "fragmentation"} == document["placement"]
    assert {"a", "b"} == set(nodes_of(document).values())
    wrong = called("--cluster", save(tmp_path, *cluster, settings("choose = 1")))
    assert "ConfigMap hetero-system/hetero: choose '1' is none of" in str(wrong.exception)


def test_the_expected_mix_of_the_cluster_counts(tmp_path: Path) -> None:
    """A card of a pair costs more where pairs are asked for; else the first node does."""
    learned, now = SchedulerCache(), time()
    learned.update_node(PlacedNode(name="a", devices=(card("A"), card("B"))))
    pair = PlacedPod(containers=(PlacedContainer(request=Request(asks=(Ask(),) * 2)),))
    for number in range(100):
        learned.arrive(str(number), pair, now)
    mix = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "hetero-mix", "namespace": "hetero-system"},
        "data": {"mix": written(learned, now)},
    }
    cluster = [node("a", card("a0"), card("a1")), node("b", card("b0"))]
    without, with_it = (
        nodes_of(answered(save(tmp_path, *items), "--replicas", "1"))
        for items in (cluster, [*cluster, mix])
    )

    assert ({"what-if-0": "a"}, {"what-if-0": "b"}) == (without, with_it)


# --- what stands ----------------------------------------------------------------------------------


def test_with_the_key_what_is_forged_counts_nothing_and_without_it_all_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = stands([node("n1", card("A")), pod("stands", {CARD: "1"})])
    path = save(tmp_path, *cluster)
    keys = tmp_path / "keys.pem"

    assert FULL == answered(path, "--replicas", "1")["items"][0]["refusal"]
    monkeypatch.setenv(PUBLIC_KEYS, str(keys))
    keys.write_text(KEY.public.text())
    assert FULL == answered(path, "--replicas", "1")["items"][0]["refusal"]
    keys.write_text(SigningKey.new().public.text())
    document = answered(path, "--replicas", "1")
    assert "n1" == document["items"][0]["node"]
    assert "is not signed by this cluster's scheduler" in document["notes"][0]


# --- what kube-scheduler decides before -----------------------------------------------------------


def term(key: str, operator: str, *values: str) -> Plain:
    required = {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": key, "operator": operator, "values": [*values]}]}
        ]
    }
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": required}
    return {"affinity": {"nodeAffinity": affinity}}


@pytest.mark.parametrize(
    ("spec", "offered"),
    [
        ({}, "plain zone"),
        ({"nodeSelector": {"zone": "2"}}, "zone"),
        ({"tolerations": [{"key": "card", "operator": "Exists"}]}, "plain zone tainted"),
        ({"tolerations": [{"key": "card", "value": "a", "effect": "NoSchedule"}]}, "plain zone"),
        ({"tolerations": [{"operator": "Exists"}]}, "plain zone tainted cordoned"),
        (term("zone", "In", "1", "2"), "zone"),
        (term("zone", "NotIn", "2"), "plain"),
        (term("zone", "DoesNotExist"), "plain"),
        (term("zone", "Gt", "1"), "zone"),
        (term("zone", "Lt", "2"), ""),
    ],
)  # fmt: skip
def test_nodes_are_offered_as_kube_scheduler_offers_them(spec: Plain, offered: str) -> None:
    taint = {"key": "card", "value": "b", "effect": "NoSchedule"}
    nodes = {
        one["metadata"]["name"]: one
        for one in (
            node("plain"),
            node("zone", labels={"zone": "2"}),
            node("tainted", taints=[taint]),
            node("cordoned", unschedulable=True),
        )
    }
    assert offered.split() == NodeFilters(nodes, ()).offered(pod("p", {}, **spec))[0]


def test_a_node_that_is_closed_says_why_with_numbers() -> None:
    nodes = {
        one["metadata"]["name"]: one
        for one in (node("a", taints=[{"key": "t", "effect": "NoExecute"}]), node("b"), node("c"))
    }
    filters = NodeFilters(nodes, ())
    for number in range(19):
        filters.count(pod(f"p{number}", {CARD: "1"}), "b")
    offered, refusal = filters.offered(pod("p", {CARD: "21"}))

    assert [] == offered
    assert isinstance(refusal, Refusal)
    assert refusal.sentence == (
        "0 of 3 nodes: 2 lack nvidia.com/gpu (21 wanted, largest free 20), 1 have taint t"
    )


def test_what_is_not_looked_at_is_said(tmp_path: Path) -> None:
    spread: Plain = {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}
    required: Plain = {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}
    added = manifests(tmp_path, pod("p", **spread, affinity={"podAntiAffinity": required}))
    document = answered(save(tmp_path, node("n1", card("A"))), "--add", added)

    assert [
        "its podAntiAffinity is not looked at",
        "its topologySpreadConstraints are not looked at",
    ] == document["items"][0]["notes"]


def test_a_vendor_whose_package_is_missing_is_named(tmp_path: Path) -> None:
    cards = [card("A"), evolve(card("B"), vendor="acme"), evolve(card("C"), vendor="zorn")]
    document = answered(save(tmp_path, node("n1", *cards), pod("p", {"acme.com/card": "1"})))

    assert [] == document["items"]
    assert [
        "no package here of acme, zorn: pods that ask for such cards are not placed, and what they "
        "hold is not counted: install hetero-acme, hetero-zorn"
    ] == document["notes"]


# --- from the command line ------------------------------------------------------------------------


def test_the_tables_show_the_pods_and_the_cluster_before_and_after() -> None:
    shape = ("--replicas", "6", "--vendor", "nvidia", "--memory", "24Gi", "--core", "50")
    done = called("--cluster", str(SAVED), *shape)
    lines = [line.split() for line in done.output.splitlines()]

    assert 3 == done.return_value
    assert ["default", "what-if-0", "added", "n1", "GPU-08c1d045", "24", "GiB", "50", "%"] in lines
    assert ["default", "what-if-4", "+1", "added", "–"] == lines[5][:5]
    assert "\n4 of 6 pods placed, 2 refused\n" in done.output
    assert ["before", "3", "14", "6.4", "%", "13", "2"] in lines
    assert ["after", "3", "14", "20.7", "%", "11", "2"] in lines


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "give either --trace, a recorded workload, or --cluster"),
        (("--cluster", "@", "--seeds", "2"), "--seeds needs --trace"),
        (("--trace", "@", "--without", "n1"), "--without needs --cluster"),
        (("--cluster", "nothing.json"), "--cluster nothing.json: No such file or directory"),
        (("--cluster", str(ROOT / "README.md")), "README.md: not JSON: save it with `kubectl"),
        (("--cluster", "@", "--without", "n11"), "--without n11: no such node: did you mean n1?"),
        (("--cluster", "@", "--memory", "3Gi"), "need --replicas"),
        (("--cluster", "@", "--replicas", "1"), "say which are asked for by --vendor"),
        (("--cluster", "@", "--replicas", "1", "--vendor", "acme"), "has no device of acme"),
        (
            ("--cluster", "@", "--replicas", "1", "--vendor", "cambricon", "--memory", "50%"),
            "--memory: pods ask for cambricon.com/vmlu in bytes, not in percent",
        ),
        (("--cluster", "@", "--placement", "fgd"), "a cluster places by fragmentation, binpack or"),
        (("--cluster", "@", "--add", "nothing.yaml"), "--add nothing.yaml: No such file"),
        (("--cluster", "@", "--add", str(SAVED)), "pod default/stands0 is there already"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_one_line(words: tuple[str, ...], says: str) -> None:
    done = called(*(str(SAVED) if word == "@" else word for word in words))

    assert isinstance(done.exception, BadInput)
    assert (2, 1) == (done.exception.code, len(str(done.exception).splitlines()))
    assert says in str(done.exception)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("a: [", "--add {}: while parsing"),
        ("kind: Pod\nspec: {}", "document 1 has no 'name'"),
        ("kind: Service\nmetadata: {name: x}", "no pod is in it (what makes pods here: Pod, Dep"),
        ("3", "document 1 is not a manifest"),
        (json.dumps(pod("p", {CARD: "two"})), "pod default/p: container main: nvidia.com/gpu"),
        (json.dumps(pod("p", priorityClassName="hgh")), "no PriorityClass 'hgh' in the cluster"),
        (json.dumps(pod("stands")), "pod default/stands is there already"),
    ],
)  # fmt: skip
def test_a_manifest_that_the_api_would_not_take_is_one_line(
    tmp_path: Path, document: str, says: str
) -> None:
    path = tmp_path / "manifest.yaml"
    path.write_text(document)
    cluster = save(tmp_path, node("n1", card("A")), pod("stands"))
    done = called("--cluster", cluster, "--add", str(path))

    assert isinstance(done.exception, BadInput)
    assert says.format(path) in str(done.exception)


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ({}, "items[0]: object missing required field apiVersion"),
        ({"kind": "Pod", "apiVersion": "v1"}, "items[0]: object missing required field metadata"),
        (pod("p") | {"spec": {}}, "items[0] (Pod default/p): spec: object missing required field"),
        (pod("p", priority="high"), "(Pod default/p): spec.priority: expected a whole number or "),
        (3, "items[0]: expected an object, got a whole number"),
    ],
)
def test_a_file_that_kubectl_did_not_write_is_one_line(
    tmp_path: Path, item: Any, says: str
) -> None:
    done = called("--cluster", save(tmp_path, item))

    assert isinstance(done.exception, BadInput)
    line = str(done.exception)
    assert line.startswith(f"--cluster {tmp_path / 'saved.json'}: items[0]")
    assert says in line
    assert ": save it with `kubectl get nodes," in line


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield path
    for key, inner in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        yield from places(inner, (*path, key))


def test_a_saved_value_of_a_wrong_type_is_one_line_that_names_its_place(tmp_path: Path) -> None:
    file, whole = tmp_path / "saved.json", json.loads(SAVED.read_text())
    for at, path in enumerate(places(whole)):
        document = json.loads(SAVED.read_text())
        outer: Any = {"document": document}
        for key in ("document", *path)[:-1]:
            outer = outer[key]
        last = ("document", *path)[-1]
        wrong = [one for one in (3.5, [3.5], {"a": 3.5}) if type(one) is not type(outer[last])]
        outer[last] = wrong[at % len(wrong)]
        file.write_text(json.dumps(outer["document"] if not path else document))
        with pytest.raises(BadInput) as caught:
            read_file(file)
        line = str(caught.value)
        where = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path[2:])
        by_name = re.search(r"\.(labels|annotations|allocatable|limits|requests|data|"
                            r"nodeSelector|matchLabels)\.", where)  # fmt: skip

        assert (2, 1) == (caught.value.code, len(line.splitlines()))
        assert line.startswith(f"--cluster {file}: {f'items[{path[1]}]' if path[1:] else ''}")
        assert (where[: by_name.end() - 1] if by_name else where).removeprefix(".") in line
        assert not re.search(r"\b(str|int|float|dict|list object|NoneType|\w+Error)\b", line), line


def test_a_live_cluster_is_only_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items = stands([node("n1", card("A")), pod("stands", {CARD: "1"})])

    async def play() -> tuple[Plain, set[str]]:
        api = FakeApi()
        for item in items:
            api.put("pods" if "containers" in item["spec"] else "nodes", item, event="ADDED")
        async with api.serve() as url:
            (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig(url)))
            monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
            words = ("--cluster", "--replicas", "1", "--without", "n1", "--json")
            done = await asyncio.to_thread(called, *words)
            assert done.exception is None, done.exception
            return json.loads(done.output), api.methods

    document, methods = asyncio.run(play())
    assert {"GET"} == methods
    assert {"stands": None, "what-if-0": None} == nodes_of(document)


def kubeconfig(server: str) -> Plain:
    return {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "clusters": [{"name": "here", "cluster": {"server": server}}],
        "users": [{"name": "me", "user": {}}],
    }


# --- a cluster that cannot be reached -------------------------------------------------------------


@pytest.mark.parametrize("command", ["inventory", "simulate"])
def test_without_a_kubeconfig_one_line_names_the_file(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere/config")
    done = CliRunner().invoke(hetero, [command, "--cluster"])

    assert isinstance(done.exception, BadInput)
    assert "Kubernetes: no access (/nowhere/config: no such file); set KUBECONFIG" == str(
        done.exception
    )


async def test_who_looks_on_does_not_wait_for_a_server_that_takes_no_connection() -> None:
    with ExitStack() as sockets:
        server = sockets.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):  # its queue is full: whoever comes next hears nothing
            client = sockets.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        url = "http://127.0.0.1:{1}".format(*server.getsockname())
        async with Api(Access(server=url), connect_timeout_s=VIEW_CONNECT_S / 10).open() as api:
            with pytest.raises(ApiError, match=f"GET /api/v1/nodes: {url} cannot be reached"):
                await api.get("/api/v1/nodes")


async def test_a_server_that_is_not_there_is_named() -> None:
    async with Api(Access(server="http://127.0.0.1:1")).open() as api:
        with pytest.raises(HeteroError) as caught:
            await api.get("/api/v1/nodes")
    assert "GET /api/v1/nodes: http://127.0.0.1:1 cannot be reached (Connection refused)" == str(
        caught.value
    )


# --- cards that are given by claims ---------------------------------------------------------------


def claim_node(name: str, *cards: Device) -> list[Plain]:
    """Return a node whose cards are given by claims, and its slices."""
    bare = node(name)
    bare["metadata"]["annotations"], bare["status"] = {}, {"allocatable": {"pods": "110"}}
    return [bare, *slices_of(name, cards)]


@pytest.mark.parametrize("name", sorted(CLAIM_CARDS))
def test_nodes_that_give_their_cards_by_claims_are_known_with_what_claims_hold(
    tmp_path: Path, name: str
) -> None:
    cards = CLAIM_CARDS[name]
    items = [*claim_node(name, *cards), claim_of("held", part_of(name, cards[0]))]
    document = answered(save(tmp_path, *items))

    before = document["before"]
    assert (1, len(cards), len(cards) - 1) == (
        before["nodes"],
        before["devices"],
        before["whole_devices"],
    )
    assert 0 < before["allocated"] < 100


def test_an_inventory_from_before_its_node_gave_claims_does_not_count(tmp_path: Path) -> None:
    bare, *slices = claim_node("n1", card("GPU-1"))
    bare["metadata"]["annotations"] = {INVENTORY: inventory_text((card("GPU-1"), card("GPU-2")))}
    added_pods = manifests(tmp_path, pod("a"))
    document = answered(save(tmp_path, bare, *slices), "--add", added_pods)

    assert {"a": "n1"} == nodes_of(document)
    assert 1 == document["before"]["devices"]


def test_pods_are_placed_by_claims_beside_the_claims_that_stand(tmp_path: Path) -> None:
    cards = (card("GPU-1"),)
    items = [*claim_node("n1", *cards), claim_of("held", part_of("n1", cards[0], memory=8 * GiB))]
    added_pods = manifests(tmp_path, *(pod(name, SHARE) for name in ("a", "b")))
    document = answered(save(tmp_path, *items), "--add", added_pods)

    assert {"a": "n1", "b": None} == nodes_of(document)
    (note,) = document["notes"]
    assert note.startswith("1 of 1 nodes give their cards by claims: ")


def test_with_both_ways_each_pod_goes_to_nodes_of_its_own(tmp_path: Path) -> None:
    bare, *slices = claim_node("n1", card("GPU-1"))
    bare["metadata"]["annotations"] = {INVENTORY: inventory_text(())}  # as once it is withdrawn
    items = [bare, *slices, node("n2", card("GPU-2"))]
    by_claims = pod("claims")
    by_claims["metadata"]["annotations"] = {"hetero.io/by-claims": "true"}
    more = manifests(tmp_path, by_claims, pod("names"), pod("large", {CARD: "2"}))
    document = answered(save(tmp_path, *items), "--add", more)

    assert {"claims": "n1", "names": "n2", "large": None} == nodes_of(document)
    (large,) = (one["refusal"] for one in document["items"] if one["pod"] == "large")
    # Of those for its kind.
    assert large == "0 of 1 node: 1 have too few devices (2 wanted, most on a node 1)"


def test_the_pods_of_a_node_that_goes_ask_by_claims_again(tmp_path: Path) -> None:
    """They are as the webhook had them created: the words are in an annotation."""
    moved = user_of("moved", "moved-card", node="n1")
    moved["metadata"]["annotations"] = {"hetero.io/asked": json.dumps({"main": SHARE})}
    moved["metadata"]["ownerReferences"] = [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u"}
    ]
    first, second = card("GPU-1"), card("GPU-2")
    claim = claim_of("moved-card", part_of("n1", first, memory=8 * GiB), pods=["moved"])
    items = [*claim_node("n1", first), *claim_node("n2", second), moved, claim]
    document = answered(save(tmp_path, *items), "--without", "n1")

    (answer,) = document["items"]
    assert ("moved", "n1", "n2") == (answer["origin"], answer["from_node"], answer["node"])
    (container,) = answer["containers"]
    assert ["GPU-2"] == [piece["device"] for piece in container["pieces"]]


def test_saved_slices_and_claims_that_are_odd_stop_no_simulation(tmp_path: Path) -> None:
    odd: list[Plain] = [
        {**one, "apiVersion": "resource.k8s.io/v1", "kind": kind}
        for one in ({"metadata": {"name": "odd"}}, {"metadata": {"name": "odd-2"}, "spec": 7})
        for kind in ("ResourceSlice", "ResourceClaim")
    ]
    document = answered(save(tmp_path, *claim_node("n1", card("GPU-1")), *odd))

    assert 1 == document["before"]["devices"]


def test_the_command_that_saves_a_cluster_has_all_that_is_read_of_one() -> None:
    kinds = {path.rpartition("/")[2] for path, _ in _READ} - {"podgroups"}
    saving = " ".join(SAVE.split())
    help_text = " ".join(called("--help").output.split())
    (in_help,) = re.findall(r" K=(\S+) kubectl get \$K -A -o json > saved.json", help_text)

    assert kinds == set(in_help.split(","))
    assert saving == f"kubectl get {in_help} -A -o json"
    assert (
        f"K={in_help}\nkubectl get $K -A -o json > saved.json"
        in (ROOT / "docs" / "packing.md").read_text()
    )


def test_a_file_without_slices_or_claims_says_what_is_not_counted(tmp_path: Path) -> None:
    """Of claims the pods and the agents tell: kubectl leaves out what it was not asked for."""
    agents = [agent_of(name) for name in ("n1", "n2", "n3", "n4", "n5")]
    pods = [user_of("p", "p-card"), *agents]
    bare, *slices = claim_node("n1", card("GPU-1"))
    claim = claim_of("p-card", part_of("n1", card("GPU-1"), memory=8 * GiB), pods=["p"])
    without_slices = answered(save(tmp_path, bare, *pods))["notes"]
    without_claims = answered(save(tmp_path, bare, *slices, *pods))["notes"]
    with_both = answered(save(tmp_path, bare, *slices, claim, *pods))["notes"]

    assert (
        "no ResourceSlice is in the file: cards that are given by claims are not counted "
        f"(n1, n2, n3 and 2 more): save it with `{SAVE}`"
    ) in without_slices
    assert (
        "no ResourceClaim is in the file: what pods hold by claims is not counted (default/p): "
        f"save it with `{SAVE}`"
    ) in without_claims
    assert [] == [sentence for sentence in with_both if "in the file" in sentence]


def test_agents_are_known_by_the_socket_that_the_chart_gives_them() -> None:
    chart = (ROOT / "deploy" / "chart" / "templates" / "agent.yaml").read_text()

    assert "mountPath: {{ .Values.agent.kubelet }}/plugins/hetero.io\n" in chart
    assert "app: hetero-agent\n" in chart
