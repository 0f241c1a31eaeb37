"""Sums over a cluster, and `hetero inventory --cluster` of one that is saved or large."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import attrs
import jsonschema
import pytest
from click.testing import CliRunner, Result

from hetero.cli import _fleet, hetero
from hetero.cli._draw import draw
from hetero.kube.cluster_objects import SAVE, ClusterObjects, read_saved
from hetero.kube.cluster_totals import plain_totals
from hetero.kube.cluster_view import totals_of, view_of
from hetero.kube.words.annotations import (
    ALLOCATION,
    GRANTS,
    INVENTORY,
    NodeGrant,
    NodeGrants,
    RunsOn,
    grants_text,
    inventory_text,
)
from hetero.model import (
    CORE,
    MEMORY,
    SLOTS,
    Allocation,
    ContainerKind,
    Device,
    DeviceAllocation,
    Enforcement,
    Template,
    Templated,
)
from hetero.model.codec import dumps
from hetero.model.units import GiB
from hetero.node.view.chosen import Choice
from hetero.testing import rack
from tests.cli.streams import Stream, console
from tests.kube.claimed_cards import CARDS, agent_of, claim_of, part_of, slices_of, user_of

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from cluster_inventory import generated, given_by_claims  # noqa: E402 - benchmarks is no package

SAVED = ROOT / "tests" / "kube" / "clusters" / "saved.json"


def saved(folder: Path, items: list[dict[str, Any]]) -> Path:
    path = folder / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return path


def node(name: str, text: str, **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "labels": labels, "annotations": {INVENTORY: text}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


def allocation(uuid: str, memory_gib: int, core: int) -> Allocation:
    takes = {CORE: core, MEMORY: memory_gib * GiB, SLOTS: 1}
    piece = DeviceAllocation(device=uuid, vendor="memory", takes=takes)
    return Allocation(pieces=(piece,))


def pod(name: str, node_name: str, held: dict[str, Allocation], **more: Any) -> dict[str, Any]:
    assignment = {"node": node_name, "uid": name, "containers": list(held.items())}
    metadata = {"name": name, "namespace": "ns", "uid": name}
    text = json.dumps(json.loads(dumps(assignment, indent=None)))
    spec = {"nodeName": node_name, "containers": [{"name": "main"}], **more.get("spec", {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "annotations": {ALLOCATION: text, **more.get("notes", {})}},
        "spec": spec,
        "status": {"phase": more.get("phase", "Running")},
    }


def remainders() -> list[dict[str, Any]]:
    """Return cards of which some is left that no request can have: below a context or a size."""
    templates = Templated(
        menu=tuple(
            Template(f"{size}g", {MEMORY: size * GiB, CORE: 3 * size, SLOTS: 1})
            for size in (16, 32)
        ),
        whole=True,
    )
    context = {"enforcement": Enforcement.PRELOAD, "attributes": {"context": str(GiB)}}
    kinds: dict[str, dict[str, Any]] = {
        "templated": {"granularity": templates},
        "limited": context,
        "plain": {},
    }
    cards = [rack(64 * GiB, vendor=vendor, **facts) for vendor, facts in kinds.items()]
    held = [
        pod(f"on-{vendor}", "n7", {"main": allocation(f"{vendor}-0", 63, 50)}) for vendor in kinds
    ]
    return [node("n7", inventory_text(tuple(card for (card,) in cards))), *held]


def odd_cluster() -> list[dict[str, Any]]:
    """Return a cluster with whatever is counted otherwise than a plain pod on a plain card."""
    cards = rack(*[80 * GiB] * 4, model="Memory M1")
    scaled = rack(160 * GiB, vendor="scaled", card={CORE: 100, MEMORY: 80 * GiB, SLOTS: 10})
    sick = rack(80 * GiB, vendor="sick", health="1 uncorrected memory errors")
    resting = rack(80 * GiB, vendor="resting", cordon="loud fan")
    gone = RunsOn(
        namespace="ns",
        pod="gone",
        containers=(("main", ContainerKind.MAIN, allocation("far-0", 7, 20)),),
    )
    grants = NodeGrants(
        ended_pods={"gone": gone},
        others={"g": NodeGrant(name="run", allocation=allocation("far-1", 3, 5))},
    )
    far = rack(*[80 * GiB] * 3, model="M1", vendor="far")
    first, second = allocation("memory-0", 10, 30), allocation("memory-0", 20, 10)
    third = allocation("memory-0", 30, 20)
    init = {"initContainers": [{"name": "first"}, {"name": "side", "restartPolicy": "Always"}]}
    return [
        node("n1", inventory_text((*cards, *scaled)), **{"hetero.io/pool": "a"}),
        node("n6", inventory_text(far, grants), **{"hetero.io/pool": "a"}),
        pod("plain", "n6", {"main": allocation("far-2", 5, 5)}),
        node("n2", inventory_text((*sick, *resting))),
        *remainders(),
        node("n3", "{"),
        node("n4", inventory_text(rack(80 * GiB, model="M1")).replace("memory-0", "other-0")),
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n5"}},
        pod("inits", "n1", {"first": second, "side": first, "main": third}, spec=init),
        pod(
            "two", "n1", {"main": allocation("memory-1", 5, 5), "log": allocation("memory-1", 1, 0)}
        ),
        pod("over", "n1", {"main": allocation("memory-2", 5, 5)}, phase="Succeeded"),
        pod("gone-card", "n1", {"main": allocation("nowhere", 5, 5)}),
        pod("broken", "n1", {}, notes={ALLOCATION: "{"}),
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "ns"}},
    ]


INSTANCES = Templated(
    menu=tuple(
        Template("1g.10gb", {MEMORY: 10 * GiB, CORE: 1, f"part {n}": 1, SLOTS: 1}, part=f"MIG-{n}")
        for n in range(4)
    )
)


#: The status of a pod whose init containers have ended.
STARTED = {"conditions": [{"type": "Initialized", "status": "True"}]}


def instance(number: int) -> Allocation:
    """Return an instance of the node's first card that is partitioned."""
    (template,) = (each for each in INSTANCES.menu if each.part == f"MIG-{number}")
    piece = DeviceAllocation(
        device="cut-0", vendor="cut", takes=template.takes, template="1g.10gb", part=template.part
    )
    return Allocation(pieces=(piece,))


def objects_in(folder: Path, items: list[dict[str, Any]]) -> ClusterObjects:
    return read_saved(saved(folder, items))


def claimed_cluster() -> list[dict[str, Any]]:
    """Return a cluster of cards that are given by claims, plain ones and whatever is odd."""
    plain = [*given_by_claims(generated(12, 60))]
    cards = rack(*[80 * GiB] * 3, model="M1", vendor="far")
    sick = rack(80 * GiB, vendor="sick", health="1 uncorrected memory errors")
    resting = rack(80 * GiB, vendor="resting", cordon="loud fan")
    grants = NodeGrants(others={"g": NodeGrant(name="run", allocation=allocation("far-1", 3, 5))})
    names = [*CARDS, "n5", "n6", "n7", "n8", "n9"]
    pools: dict[str, tuple[Device, ...]] = {**CARDS, "n5": cards, "n7": (*sick, *resting)}
    items: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in names
    ]
    items += [each for name, devices in pools.items() for each in slices_of(name, devices)]
    granted, foreign, unfinished = (
        slices_of(name, evolved(cards, name))[0] for name in ("n6", "n8", "n9")
    )
    granted["metadata"]["annotations"] = {GRANTS: grants_text(grants)}
    foreign["spec"]["driver"] = "gpu.nvidia.com"
    unfinished["spec"]["pool"]["resourceSliceCount"] = 2
    old = node("n10", inventory_text(evolved(cards, "n10")))
    first, second, third = (part_of("n5", card) for card in cards)
    several = claim_of("several", first, second, pods=["a"])
    twice = claim_of("twice", first, first)
    gone = claim_of("gone", {**third, "device": "gpu-gone"}, pods=["b"])
    admin = claim_of("admin", {**third, "adminAccess": True})
    odd = claim_of("odd", part_of("n7", sick[0]))
    odd["status"]["allocation"]["devices"]["config"] = [
        {"opaque": {"driver": "hetero.io", "parameters": {"kind": "Nothing"}}}
    ]
    before = claim_of("before", part_of("n10", evolved(cards, "n10")[0]))
    others = claim_of("others", {**third, "driver": "gpu.nvidia.com"})
    held = [claim_of(f"held-{name}", part_of(name, pools[name][0])) for name in CARDS]
    items += [granted, foreign, unfinished, old, several, admin, odd, before, others, *held]
    return [*plain, *items, twice, gone]


def evolved(cards: tuple[Device, ...], node_name: str) -> tuple[Device, ...]:
    """Return cards like these with the UUIDs of another node."""
    return tuple(attrs.evolve(card, uuid=f"{node_name}-{card.uuid}") for card in cards)


@pytest.mark.parametrize("which", ["odd", "generated", "saved", "claims", "claimed"])
def test_sums_of_thousands_of_nodes_are_those_of_their_cards(tmp_path: Path, which: str) -> None:
    """The quick way and the way by each card agree, to the last byte."""
    items = {
        "odd": odd_cluster(),
        "generated": generated(40, 120),
        "claims": [*given_by_claims(generated(40, 120))],
        "claimed": claimed_cluster(),
    }.get(which)
    objects = objects_in(tmp_path, items) if items else read_saved(SAVED)
    quick, exact = _fleet._totals(objects), totals_of(view_of(objects))

    assert len(exact.totals) >= 3
    assert [(each.pool, each.nodes) for each in exact.totals] == [
        (each.pool, each.nodes) for each in quick.totals
    ]
    for quick_total, exact_total in zip(quick.totals, exact.totals, strict=True):
        quick_sums, exact_sums = attrs.asdict(quick_total.total), attrs.asdict(exact_total.total)
        # Percentages of cores are added in another order.
        assert exact_sums == pytest.approx(quick_sums)
    assert (exact.nodes, exact.sick) == (quick.nodes, quick.sick)
    assert len(exact.faults) == len(quick.faults)
    assert exact.pods == quick.pods
    assert sorted(exact.notes) == sorted(quick.notes)
    if which == "odd":
        free_bytes = {each.total.vendor: each.total.memory_free_bytes for each in quick.totals}
        assert (0, 0) == (free_bytes["templated"], free_bytes["limited"])
        assert GiB == free_bytes["plain"]
    if which == "claimed":
        assert any(
            "devices of driver gpu.nvidia.com are not hetero's" in note for note in exact.notes
        )
        assert any("device gpu-gone is not on this node" in note for note in exact.notes)


def test_the_view_of_a_node_has_no_word_about_claims_of_others(tmp_path: Path) -> None:
    path = str(saved(tmp_path, [*given_by_claims(generated(3, 6))]))

    assert "(any more)" not in run("--cluster", path, "--node", "node-00001").output


def test_cards_of_claims_are_counted_by_kind_where_they_are_plain(tmp_path: Path) -> None:
    _, rest = plain_totals(objects_in(tmp_path, [*given_by_claims(generated(40, 120))]))
    _, odd_rest = plain_totals(objects_in(tmp_path, claimed_cluster()))

    assert None is rest
    assert odd_rest is not None
    odd_names = {each.metadata.name for each in odd_rest.nodes}
    assert {"n5", "n6", "n7", "n9", "n10"} <= odd_names
    assert not any(name.startswith("node-") for name in odd_names)


def test_what_is_odd_is_counted_as_a_pod_takes_it(tmp_path: Path) -> None:
    totals = _fleet._totals(objects_in(tmp_path, odd_cluster()))
    (first,) = [
        each for each in totals.totals if each.pool == "a" and each.total.vendor == "memory"
    ]

    # Sidecar and main beside each other, the init container before: 10 + 30; then 5 + 1 GiB.
    assert (40 + 6) * GiB == first.total.memory_held_bytes
    assert 4 * 100 - (30 + 20) - 5 == first.total.core_free_percent
    assert 2 == first.total.whole_count
    (far,) = [each for each in totals.totals if each.total.vendor == "far"]
    assert ((7 + 3 + 5) * GiB, 0) == (far.total.memory_held_bytes, far.total.whole_count)


def run(*words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(hetero, ["inventory", *words])
    assert code == getattr(done.exception, "code", 0), done.output
    return done


@pytest.mark.parametrize(("facts", "word"), [({}, "free"), ({"cordon": "loud fan"}, "cordoned")])
def test_instances_of_init_containers_and_sidecars_are_not_free_while_their_pod_holds_them(
    tmp_path: Path, facts: dict[str, Any], word: str
) -> None:
    """And the others are as their card is."""
    (card,) = rack(40 * GiB, vendor="cut", granularity=INSTANCES, core=7, **facts)
    cut = (attrs.evolve(card, capacity={**card.capacity, **{f"part {n}": 1 for n in range(4)}}),)
    init = {"initContainers": [{"name": "first"}, {"name": "side", "restartPolicy": "Always"}]}
    held = {"first": instance(0), "side": instance(1), "main": instance(2)}
    plain_pod = pod("p", "n1", held, spec=init)
    plain_pod["status"].update(STARTED)
    items = [node("n1", inventory_text(cut)), plain_pod]
    picture = run("--cluster", str(saved(tmp_path, items)), "--node", "n1").output

    assert [
        "partitions: 1g.10gb [ns/p/first]  1g.10gb [ns/p/side]  1g.10gb [ns/p/main]  "
        f"1g.10gb [{word}]"
    ] == [line.strip() for line in picture.splitlines() if "partitions" in line]


def test_the_rows_below_a_card_say_for_whom_each_part_of_it_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One container has two cards, and an init container that has ended a part of the second."""
    monkeypatch.setenv("COLUMNS", "200")
    both = Allocation(
        pieces=(*allocation("far-0", 5, 36).pieces, *allocation("far-1", 5, 36).pieces)
    )
    held = {"main": both, "first": allocation("far-1", 5, 60)}
    plain_pod = pod("p", "n1", held, spec={"initContainers": [{"name": "first"}]})
    plain_pod["status"].update(STARTED)
    open_takes = {MEMORY: 5 * GiB, SLOTS: 1}
    open_piece = DeviceAllocation(device="far-2", vendor="far", takes=open_takes)
    without_limit = pod("q", "n1", {"main": Allocation(pieces=(open_piece,))})
    far = rack(*[80 * GiB] * 3, model="M1", vendor="far")
    items = [node("n1", inventory_text(far)), plain_pod, without_limit]
    lines = [
        " ".join(line.split())
        for line in run(
            "--cluster", str(saved(tmp_path, items)), "--node", "n1"
        ).output.splitlines()
    ]

    assert "n1: 3 cards of 1 vendor free 204 of 300 % core, 225 of 240 GiB 3 grants" in lines
    assert "└ ns p main 36 % 5 GiB Running" in lines
    assert "├ ns p main 36 % 5 GiB Running" in lines
    assert "└ ns p first 60 % 5 GiB ended" in lines
    # Two grants that follow each other take one slot: what is counted so has another name.
    (heading,) = (line.split() for line in lines if line.startswith("card model"))
    assert (True, False) == ("slots" in heading, "grants" in heading)
    given = {line.split()[0]: line for line in lines if " M1 " in line}
    assert " 1/10 " in given["far:1"]
    assert (" 36 % ", " 60 % ", " open ") == tuple(
        core
        for core, line in zip((" 36 % ", " 60 % ", " open "), given.values(), strict=True)
        if core in line
    )


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_a_large_cluster_is_at_most_60_lines_by_model_and_pool(
    tmp_path: Path, columns: int
) -> None:
    items = generated(20, 60)
    items += [
        node(f"x{number}", inventory_text(rack(GiB, model=f"X{number}", health="lost")))
        for number in range(80)
    ]
    fleet = _fleet.read_fleet(saved(tmp_path, items), None, Choice(), full=False)
    stream = Stream(live=True)
    drawn = console(stream, TERM="xterm", NO_COLOR="1", COLUMNS=str(columns))
    draw(_fleet.render_fleet(fleet, folded=True), drawn)
    lines = stream.getvalue().splitlines()

    assert None is fleet.view
    assert len(lines) <= 60
    assert max(map(len, lines)) <= columns
    text = " ".join(stream.getvalue().split())
    assert "100 nodes with 240 cards 81 not well" in text
    assert "and 53 cards of 53 more models and pools" in text
    assert "and 69 more: --health sick" in text
    first = next(line for line in lines if "H200" in line)
    assert lines.index(first) <= 4


def test_a_node_of_a_saved_cluster_is_drawn_as_a_machine(tmp_path: Path) -> None:
    path = str(saved(tmp_path, generated(40, 120)))
    lines = run("--cluster", path, "--node", "node-00003").output.splitlines()
    plain = [" ".join(line.split()) for line in lines]

    assert "node-00003: 8 cards of 1 vendor" in plain[0]
    assert ["NUMA 0 nvidia 580.159.04", "NUMA 1 nvidia 580.159.04"] == [
        line for line in plain if line.startswith("NUMA")
    ]
    assert 8 == sum(bool(re.match(r"nvidia:\d H200 ", line)) for line in plain)
    at = plain.index(next(line for line in plain if line.startswith("nvidia:0 H200")))
    assert "└ research job-3 main 100 % 141 GiB Running" == plain[at + 1]


def test_cards_given_by_claims_have_their_claims_below_them(tmp_path: Path) -> None:
    node_name, device = "n1", CARDS["n1"][0]
    items = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in CARDS]
    items += [each for name, devices in CARDS.items() for each in slices_of(name, devices)]
    items.append(claim_of("shared", part_of(node_name, device), pods=["a", "b"]))
    items += [user_of("a", "shared"), user_of("b", "shared")]
    path = str(saved(tmp_path, items))
    lines = run("--cluster", path, "--node", node_name).output.splitlines()
    plain = [" ".join(line.split()) for line in lines]

    (at,) = [number for number, line in enumerate(plain) if " shared a, b main " in line]
    assert "└ default shared a, b main 30 % 16 GiB Running" == plain[at]
    assert f" {device.short_model} " in plain[at - 1]
    assert f"{len(CARDS)} nodes with " in run("--cluster", path).output


def test_the_document_of_a_saved_cluster_is_as_the_schema_says(tmp_path: Path) -> None:
    path = str(saved(tmp_path, odd_cluster()))
    document = json.loads(run("--cluster", path, "--json").output)
    node_document = json.loads(run("--cluster", path, "--node", "n1", "--json").output)

    jsonschema.validate(document, json.loads((ROOT / "docs" / "json.schema.json").read_text()))
    assert ["n1", "n6", "n2", "n7", "n3", "n4"] == [item["name"] for item in document["items"]]
    assert ["a", "a"] == [item["pool"] for item in document["items"][:2]]
    assert 4 == document["totals"][0]["total"]["devices"]
    assert ["n1"] == [item["name"] for item in node_document["items"]]


def test_few_nodes_are_shown_with_all_their_cards_and_wide_shows_those_of_many(
    tmp_path: Path,
) -> None:
    few = run("--cluster", str(SAVED)).output
    path = str(saved(tmp_path, generated(20, 20)))
    many, wide = run("--cluster", path).output, run("--cluster", path, "--wide").output

    assert "default    stands0  main       n1" in few
    assert "`--node NAME` shows a node" in many
    assert "node-00019" not in many
    assert 8 == sum(line.startswith("node-00019") for line in wide.splitlines())


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("--node", "node-3"), 4, "no node 'node-3' in this cluster: did you mean node-00"),
        (("--vendor", "nvidai"), 4, "no card of 'nvidai' in this cluster (here: nvidia"),
        (("--model", "H300"), 4, "no card of 'H300' in this cluster"),
    ],
    ids=str,
)
def test_what_a_cluster_has_not_is_one_line(
    tmp_path: Path, words: tuple[str, ...], code: int, sentence: str
) -> None:
    path = str(saved(tmp_path, generated(20, 0)))
    done = CliRunner().invoke(hetero, ["inventory", "--cluster", path, *words])

    assert code == getattr(done.exception, "code", None)
    assert sentence in str(done.exception)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "Input data was truncated: save it with `kubectl get nodes"),
        ("[]", "Expected `object`, got `array`"),
        ("{}", "missing required field `kind`"),
        ('{"kind": "List", "items": []}', "no node is in it: save it with `kubectl get nodes"),
        (None, "No such file"),
    ],
)
def test_a_file_that_is_no_cluster_is_one_line(
    tmp_path: Path, text: str | None, sentence: str
) -> None:
    path = tmp_path / "file"
    if text is not None:
        path.write_text(text)
    done = CliRunner().invoke(hetero, ["inventory", "--cluster", str(path)])

    assert 2 == getattr(done.exception, "code", None)
    assert f"--cluster {path}: " in str(done.exception)
    assert sentence in str(done.exception)


@pytest.mark.parametrize("words", [(), ("--wide",), ("--node", "n1"), ("--json",)])
def test_a_file_without_slices_says_what_is_not_counted_in_every_picture(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    nodes = [node(f"n{n}", inventory_text(rack(80 * GiB, vendor=f"v{n}"))) for n in range(1, 20)]
    path = str(saved(tmp_path, [*nodes, agent_of("n1", "/data/kubelet")]))
    sentence = (
        "no ResourceSlice is in the file: cards that are given by claims are not counted (n1): "
        f"save it with `{SAVE}`"
    )

    assert sentence in " ".join(run("--cluster", path, *words).output.split())


def test_a_node_without_a_cluster_is_bad_input() -> None:
    done = CliRunner().invoke(hetero, ["inventory", "--node", "n1"])

    assert "--node names a node of a cluster: add --cluster" in str(done.exception)
