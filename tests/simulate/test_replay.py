"""Replays: a small trace of our own, read, sampled, placed and summed up; and what is misread."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from hetero.kube.scheduler.extender import Scheduler
from hetero.kube.words.settings import Settings
from hetero.kube.words.signing import SigningKey
from hetero.model import Ask, Request, Selector, codec
from hetero.model.errors import BadInput
from hetero.model.units import GiB, MiB
from hetero.placement.cluster import PlacedContainer, PlacedNode, PlacedPod
from hetero.placement.state import Cluster
from hetero.simulate.baselines import SCORES, Room, demand
from hetero.simulate.departures import MODES, Protocol, Size, live, loads
from hetero.simulate.player import Player
from hetero.simulate.replay import arrivals, placements, replay, replay_all
from hetero.simulate.report import draw, draw_lives, summarise, summarise_lives
from hetero.simulate.trace import Trace, read
from hetero.testing import rack
from tests.kube.fake_api import FakeApi
from tests.kube.test_pod_request import WORDS

NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"


def excerpt(folder: Path) -> Path:
    """Write a small trace in openb's form: 30 nodes of two models, 200 pods of a dozen shapes."""
    rng = random.Random(5)
    nodes = [
        f"n{i},{64000 if i % 3 else 96000},262144,{2 + i % 3 * 3},{'AB'[i % 2]}" for i in range(30)
    ]
    shapes = [
        (rng.choice([4000, 8000, 12000]), 16384, 1, share, spec)
        for share, spec in ((1000, ""), (810, ""), (470, "A"), (320, "A|B"), (160, ""), (50, "B"))
    ] + [(8000, 8192, 0, 0, ""), (32000, 65536, 2, 1000, ""), (16000, 32768, 4, 1000, "")]
    pods = [",".join(map(str, (f"p{i}", *rng.choice(shapes)))) for i in range(200)]
    (folder / "openb_node_list_gpu_node.csv").write_text(NODES + "\n".join(nodes) + "\n")
    (folder / "openb_pod_list_small.csv").write_text(PODS + "\n".join(pods) + "\n")
    return folder


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return read(excerpt(tmp_path), pods="small")


# --- reading -------------------------------------------------------------------------------------


def test_a_folder_of_csv_files_becomes_nodes_and_pods(trace: Trace) -> None:
    assert (30, 200) == (len(trace.nodes), len(trace.pods))
    assert {"cpu": 96_000, "memory": 256 * GiB} == trace.nodes[0].host
    assert ["n1/0", "n1/1", "n1/2", "n1/3", "n1/4"] == [d.uuid for d in trace.nodes[1].devices]
    asked = [p.containers[0].request for p in trace.pods]
    assert Request(asks=(Ask(memory=320 * MiB),), model=Selector(include=("A", "B"))) in asked
    assert Request(asks=(Ask(),) * 4) in asked
    assert None in asked


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("nodes", "", "no row below the heading|line 1: no column"),
        ("nodes", NODES, "no row below the heading"),
        ("nodes", "sn,cpu_milli\nn0,1\n", "line 1: no column memory_mib, gpu, model"),
        ("nodes", NODES + "n0,64000,1,2\n", "line 2: not 5 columns"),
        ("nodes", NODES + "n0,64000,1,2,A,9\n", "line 2: not 5 columns"),
        ("nodes", NODES + "n0,64000,1,9999,A\n", "line 2: gpu '9999' is more than 1024"),
        ("nodes", NODES + "n0,9e9,1,2,A\n", "line 2: cpu_milli '9e9' is not a whole number"),
        ("pods", PODS + "p0,1,1,1,500,\np1,-5,1,1,500,\n", "line 3: cpu_milli '-5' is not a whole"),
        ("pods", PODS + "p0,1,1,1,0,\n", "line 2: gpu_milli '0' is 0 for a pod that wants cards"),
        ("pods", PODS + "p0,1,1,1,1001,\n", "line 2: gpu_milli '1001' is more than a whole card"),
        ("pods", PODS + "p0,1,1,one,500,\n", "line 2: num_gpu 'one' is not a whole number"),
        ("pods", PODS + "p0,1,1,1,५,\n", "line 2: gpu_milli '५' is not a whole number"),
    ],
)
def test_a_malformed_row_is_named_by_file_and_line(
    tmp_path: Path, file: str, text: str, says: str
) -> None:
    folder = excerpt(tmp_path)
    name = {"nodes": "openb_node_list_gpu_node.csv", "pods": "openb_pod_list_small.csv"}[file]
    (folder / name).write_text(text)

    with pytest.raises(BadInput, match=says) as caught:
        read(folder, pods="small")
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_trace_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such trace"):
        read(tmp_path / "nowhere")
    with pytest.raises(BadInput, match=r"openb_pod_list_big.csv: no such file"):
        read(excerpt(tmp_path), pods="big")


def own_cluster(path: Path) -> Path:
    """Write a cluster of two vendors' cards in our own form."""
    large, small = rack(80 * GiB, 80 * GiB, vendor="one"), rack(24 * GiB, vendor="other")
    nodes = [PlacedNode(name="a", devices=large), PlacedNode(name="b", devices=small)]
    pods = [
        PlacedPod(
            name=f"p{i}",
            containers=(PlacedContainer(request=Request(asks=(Ask(memory=i * GiB),))),),
        )
        for i in range(1, 30)
    ]
    document = {"nodes": codec.to_plain(nodes), "pods": codec.to_plain(pods)}
    path.write_text(json.dumps(document))
    return path


def test_our_own_json_holds_any_cluster(tmp_path: Path) -> None:
    trace = read(own_cluster(tmp_path / "mixed.json"))
    run = replay(trace, "fragmentation", 42)

    assert ["a", "b"] == [node.name for node in trace.nodes]
    assert run.arrived_count == run.placed_count + sum(run.refused_count_by_reason.values())
    assert run.fragmented_percent is None
    with pytest.raises(BadInput, match="cards of one size only"):
        replay(trace, "fgd", 42)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d["pods"][1].pop("containers"), "pods 2: not a valid Pod"),
        (lambda d: d["nodes"][0]["devices"][0]["capacity"].update(memory=-1), "has -1 memory"),
        (lambda d: d["nodes"][1]["devices"][0]["capacity"].pop("slots"), "does not count slots"),
        (lambda d: d["nodes"][0].update(host={"cpu": -4}), "nodes 1: .*cpu -4 is negative"),
        (lambda d: d.update(nodes=[]), "nodes is not a list of at least one"),
    ],
)
def test_nonsense_in_json_is_named_by_its_place(tmp_path: Path, change, says: str) -> None:  # type: ignore[no-untyped-def]
    path = own_cluster(tmp_path / "mixed.json")
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))

    with pytest.raises(BadInput, match=says):
        read(path)


# --- replaying -----------------------------------------------------------------------------------


def test_arrivals_ask_for_130_percent_and_depend_on_the_seed_alone(trace: Trace) -> None:
    nodes, pods = arrivals(trace, 42)
    card = Room(Cluster(trace.nodes)).card_bytes
    asked = sum(
        one.card_count * one.share_milli for one in (demand(pod, card_bytes=card) for pod in pods)
    )
    cards = sum(len(node.devices) for node in trace.nodes)

    assert 1.3 * cards * 1000 - 4000 < asked <= 1.3 * cards * 1000
    assert (nodes, pods) == arrivals(trace, 42)
    assert pods != arrivals(trace, 43)[1]
    assert sorted(nodes, key=lambda n: n.name) == sorted(trace.nodes, key=lambda n: n.name)


@pytest.mark.parametrize(
    "placement", ["fragmentation", "binpack", "fragmentation=1,host=1", *SCORES]
)
def test_every_order_gives_the_same_answer_twice_and_nothing_twice(
    trace: Trace, placement: str
) -> None:
    run = replay(trace, placement, 42)

    assert run.arrived_count == run.placed_count + sum(run.refused_count_by_reason.values())
    assert 60 < run.allocated_percent <= 100
    assert run.fragmented_percent is not None
    assert 0 <= run.fragmented_percent <= 100 - run.allocated_percent + 0.01
    assert 0 == run.curve[0].arrived_percent
    assert 130 == run.curve[-1].arrived_percent
    again = replay(trace, placement, 42)
    assert (run.curve, run.refused_count_by_reason) == (again.curve, again.refused_count_by_reason)


def test_ours_packs_the_excerpt_better_than_the_best_published(trace: Trace) -> None:
    seeds = range(42, 47)
    frag, fgd = (
        sum(replay(trace, o, s).allocated_percent for s in seeds) for o in ("fragmentation", "fgd")
    )

    assert frag > fgd


def test_seeds_run_in_processes_and_come_to_the_same(trace: Trace, tmp_path: Path) -> None:
    alone = list(replay_all(tmp_path, "small", ["fragmentation", "bestfit"], [42, 43], processes=1))
    parallel = list(
        replay_all(tmp_path, "small", ["fragmentation", "bestfit"], [42, 43], processes=2)
    )
    alone_summaries, two = (
        summarise(runs, ["fragmentation", "bestfit"]) for runs in (alone, parallel)
    )

    assert [("fragmentation", 2), ("bestfit", 2)] == [
        (s.placement, s.seed_count) for s in alone_summaries
    ]
    assert [
        (s.allocated_percent, s.fragmented_percent, s.refused_count_by_reason)
        for s in alone_summaries
    ] == [(s.allocated_percent, s.fragmented_percent, s.refused_count_by_reason) for s in two]


def test_a_plot_is_a_picture_file(trace: Trace, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(
        summarise([replay(trace, "fragmentation", 42)], ["fragmentation"]),
        tmp_path / "c.png",
        title="small",
    )

    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("mode", MODES)
def test_a_plot_of_pods_that_end_is_a_picture_file(trace: Trace, tmp_path: Path, mode: str) -> None:
    pytest.importorskip("matplotlib")
    lives = [live(trace, "fgd", 42, short(mode=mode, load_percent=load)) for load in (60, 115)]
    draw_lives(summarise_lives(lives, ["fgd"]), tmp_path / "c.png", title="small")

    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_orders_are_named_one_after_the_other_and_weights_stay_together() -> None:
    assert ["fragmentation", "fragmentation=2,host=1", "fgd"] == placements(
        "fragmentation, fragmentation=2,host=1,fgd,fragmentation"
    )
    for nonsense in ("frog", "", "fragmentation,fragmentation=x", "frag,waist=1"):
        with pytest.raises(BadInput):
            placements(nonsense)


# --- pods that end -------------------------------------------------------------------------------


def short(**changed: Any) -> Protocol:
    given = {"lifetimes": "exponential", "mode": "loss", "load_percent": 90, "warm_up_count": 300}
    return Protocol(**{**given, "measured_count": 300, **changed})


@pytest.mark.parametrize("placement", ["fragmentation", "fgd", "clustering"])
@pytest.mark.parametrize("mode", MODES)
def test_pods_come_and_go_and_the_same_seed_gives_the_same(
    trace: Trace, placement: str, mode: str
) -> None:
    life = live(trace, placement, 42, short(mode=mode))

    assert life == live(trace, placement, 42, short(mode=mode))
    assert 300 == sum(size.arrived_count for size in life.sizes)
    assert 40 < life.allocated_percent < 100
    if mode == "loss":
        assert all(size.mean_wait_s == 0 for size in life.sizes)
    else:
        assert all(size.refused_count == 0 for size in life.sizes)


def of_eight(trace: Trace, cpu: int, load: int) -> Size:
    """Return what becomes in a queue of pods of eight cards, the most that a node has."""
    asks = Request(asks=(Ask(),) * 8)
    huge = PlacedPod(containers=(PlacedContainer(request=asks, host={"cpu": cpu}),))
    added = evolve(trace, pods=(*trace.pods, *(huge,) * 9), lives=())
    made = live(added, "fragmentation", 42, short(mode="queue", load_percent=load)).sizes
    return next(size for size in made if size.card_count == 8)


def test_pods_that_wait_at_the_end_count_with_what_they_have_waited(trace: Trace) -> None:
    size = of_eight(trace, 64_000, load=300)

    assert size.arrived_count == size.refused_count > 0
    assert 0 < size.mean_wait_s <= size.wait_p99_s


def test_a_pod_that_no_empty_node_serves_is_refused_and_does_not_wait(trace: Trace) -> None:
    size = of_eight(trace, 97_000, load=90)

    assert size.arrived_count == size.refused_count > 0
    assert (0, 0) == (size.mean_wait_s, size.wait_p99_s)


def test_a_load_is_what_is_allocated_while_nothing_is_refused(trace: Trace) -> None:
    life = live(
        trace, "fragmentation", 42, short(load_percent=30, warm_up_count=400, measured_count=1000)
    )

    assert 0 == sum(size.refused_count for size in life.sizes)
    assert 25 < life.allocated_percent < 35


def test_when_all_has_ended_nothing_is_counted(trace: Trace) -> None:
    player = Player("fragmentation", trace.nodes, trace.pods, 42)
    total = player.cluster.left()
    for number, pod in enumerate(trace.pods):
        player.place(str(number), pod, float(number))
    assert player.cluster.left() < total
    for number in range(len(trace.pods)):
        player.end(str(number))

    assert (total, len(trace.nodes)) == (player.cluster.left(), player.cluster.whole_nodes())


def test_lives_of_a_trace_need_its_times(trace: Trace, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="small: its pods have no times"):
        live(trace, "fragmentation", 42, short(lifetimes="trace"))
    folder = excerpt(tmp_path)
    file = folder / "openb_pod_list_small.csv"
    head, *rows = file.read_text().splitlines()
    timed = [f"{row},100,{'' if n % 2 else 160},{400 + n}" for n, row in enumerate(rows)]
    file.write_text("\n".join([f"{head},creation_time,scheduled_time,deletion_time", *timed]))
    read_again = read(folder, pods="small")

    assert (240.0, 301.0) == read_again.lives[:2]
    assert 40 < live(read_again, "fragmentation", 42, short(lifetimes="trace")).allocated_percent


@pytest.mark.parametrize("text", ["", "ninety", "0", "90,1001", "-5"])
def test_a_load_that_is_none_is_said_so(text: str) -> None:
    with pytest.raises(BadInput, match=r"--load"):
        loads(text)


def test_in_the_order_of_the_file_every_pod_comes_once_and_nothing_is_drawn(trace: Trace) -> None:
    run, again = (replay(trace, "fragmentation", seed, arrival="file") for seed in (1, 2))

    assert (200, run.allocated_percent, run.refused_count_by_reason) == (
        run.arrived_count,
        again.allocated_percent,
        again.refused_count_by_reason,
    )
    player = Player("fragmentation", trace.nodes, trace.pods, 0)
    placed = [player.place(pod.name, pod, 0.0) for pod in trace.pods]
    assert run.placed_count == sum(placed)


def test_what_is_measured_forgets_as_fast_as_what_a_cluster_runs(trace: Trace) -> None:
    player = Player("fragmentation", trace.nodes, trace.pods, 0)
    half_life_s = player.cache.demand.half_life_s

    assert half_life_s == Settings().half_life_days * 86_400
    scheduler = Scheduler(FakeApi(), WORDS, SigningKey.new())
    assert half_life_s == scheduler.cache.demand.half_life_s
