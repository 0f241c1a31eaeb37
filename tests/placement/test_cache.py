"""A whole cluster: what is placed, what is refused and why, and that all is counted right."""

from itertools import product

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hetero.model import CORE, MEMORY, SLOTS, Ask, Device, Refusal, Request, Selector, codec
from hetero.model.errors import BadInput
from hetero.model.rounding import portion
from hetero.model.units import GiB
from hetero.placement.cluster import PlacedNode, PlacedPod, Placement
from hetero.placement.demand import FIRST_LEARNING_PODS
from hetero.placement.placement_policy import WEIGHTS, weights
from hetero.placement.state import Cluster
from hetero.testing import rack
from tests.placement.conftest import (
    KINDS,
    Asked,
    cards,
    container,
    fail,
    node,
    placed,
    pod,
    refused,
    shut,
    sound,
    where,
)


def mixed(nodes: int) -> list[PlacedNode]:
    """Return nodes with cards of every kind, some with two kinds."""
    kinds = list(KINDS)
    made = []
    for number in range(nodes):
        name = f"n{number}"
        some = cards(kinds[number % 7], 1 + number % 4, node=name)
        other = cards(kinds[(number + 3) % 7], number % 3, node=name) if number % 5 == 0 else ()
        made.append(node(name, some, other))
    return made


@st.composite
def pods(draw: st.DrawFn) -> PlacedPod:
    memory = draw(st.sampled_from([None, GiB, 3 * GiB, 10 * GiB, 16 * GiB, 30 * GiB, 70 * GiB]))
    core = draw(st.sampled_from([None, 1, 10, 30, 50, 100]))
    kind = draw(st.sampled_from(["", "", *KINDS]))
    request = {
        "vendor": Selector(include=(kind,) if kind else ()),
        "exclusive": draw(st.sampled_from([False, False, False, True])),
        "empty": draw(st.sampled_from([False, False, False, True])),
    }
    count = draw(st.sampled_from([0, 1, 1, 1, 2, 3]))
    cpu = draw(st.sampled_from([0, 1000, 20_000]))
    return pod(count, cpu=cpu, memory=memory, core=core, request=request)


# --- costs that are kept, and what they stand for ------------------------------------------------


@given(st.data(), st.sampled_from(sorted(WEIGHTS)))
def test_costs_that_followed_every_change_are_those_worked_out_anew(
    data: st.DataObject, policy: str
) -> None:
    asked = Asked(mixed(7), weights=weights(policy))
    for number in range(data.draw(st.sampled_from([0, FIRST_LEARNING_PODS]))):  # so that pods end
        asked.cache.arrive(f"early-{number}", pod(cpu=1000), 0.0)
        asked.cache.demand.end()
    demands = data.draw(st.lists(pods(), min_size=1, max_size=6))
    names = sorted(asked.cache.inventory.nodes)
    standing: list[Placement] = []
    for step in range(30):
        if standing and data.draw(st.integers(0, 3)) == 0:
            asked.remove(standing.pop(data.draw(st.integers(0, len(standing) - 1))))
        demand = demands[step % len(demands)]
        kept = asked.cache.costs(demand, names)
        asked.cache.rows().clear()

        assert kept == asked.cache.costs(demand, names)
        best = asked.cache.best(demand, names)
        first = {name: place for place, name in enumerate(asked.cache.inventory.nodes)}
        assert best == min(kept, key=lambda name: (kept[name], first[name]), default=None)
        answer = asked.place(demand)
        if isinstance(answer, Placement):
            standing.append(answer)
    sound(asked, standing)


def test_a_shape_seen_first_after_nodes_changed_costs_what_it_does_in_a_new_cluster() -> None:
    names = [f"n{number}" for number in range(5)]
    was = [node(name, cards("free", 2, node=name), cpu=32_000) for name in names]
    asked = Asked(was)
    asked.cache.costs(pod(cpu=1000), names)  # all are known, and alike

    failed = evolve(was[2].devices[0], health="broken")
    now = [
        evolve(was[0], cordoned=True),
        evolve(was[1], host={**was[1].host, "cpu": 2000}),
        evolve(was[2], devices=(failed, *was[2].devices[1:])),
        *was[3:],
    ]
    for changed in now[:3]:
        asked.cache.update_node(changed)
    held = asked.cache.reserve("uid", pod(memory=60 * GiB), "n3")
    assert isinstance(held, Placement)
    anew = Asked(now)
    anew.cache.restore("uid", held)
    large = pod(2, cpu=4000, memory=30 * GiB)
    assert {"n4"} == anew.cache.costs(large, names).keys()
    assert anew.cache.costs(large, names) == asked.cache.costs(large, names)


def test_of_the_nodes_that_are_offered_the_cheapest_is_taken() -> None:
    asked = Asked([node(f"n{i}", cards("free", 2, node=f"n{i}")) for i in range(4)])
    demand = pod(memory=10 * GiB)
    placed(asked, demand)

    assert "n0" == asked.cache.best(demand, {"n0", "n1", "n2", "n3"})
    assert "n2" == asked.cache.best(demand, {"n3", "n2", "n9"})
    assert "n0" == asked.cache.best(demand, {"n0", "n1", "n2", "n3"})
    assert asked.cache.best(demand, {"n9"}) is None


# --- exactness -----------------------------------------------------------------------------------


def possible(devices: list[Device], free: list[dict[str, int]], demand: Request) -> bool:
    """Try every way to give each ask a device of its own, of one vendor, by the portion rule."""
    for chosen in product(range(len(devices)), repeat=len(demand.asks)):
        if len(set(chosen)) < len(chosen) or len({devices[i].vendor for i in chosen}) > 1:
            continue
        good = True
        for i, ask in zip(chosen, demand.asks, strict=True):
            cut = portion(devices[i], ask, count=len(demand.asks), free=free[i])
            good = good and cut is not None and all(free[i][k] >= v for k, v in cut.takes.items())
            if cut is not None and cut.takes.get(CORE) == 0 and free[i][CORE] <= 0:
                good = False
        if good:
            return True
    return False


ASKS = st.builds(
    Ask,
    memory=st.sampled_from([None, GiB, 8 * GiB, 12 * GiB, 20 * GiB, 40 * GiB]),
    core=st.sampled_from([None, 5, 25, 60]),
)


@given(
    st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3),
    st.lists(st.lists(ASKS, min_size=1, max_size=3), min_size=1, max_size=10),
    st.booleans(),
)
def test_a_place_is_found_exactly_when_trying_everything_finds_one(
    kinds: list[str], demands: list[list[Ask]], dense: bool
) -> None:
    nodes = [
        node("a", *(cards(kind, 2, node=f"a{i}") for i, kind in enumerate(kinds))),
        node("b", cards(kinds[0], 1, node="b")),
    ]
    asked = Asked(nodes)
    for asks in demands:
        demand = pod(asks=tuple(asks))
        request = Request(asks=tuple(asks))
        somewhere = False
        for number, machine in enumerate(nodes):
            free = asked.cluster.free(number)
            left = [dict(free[d.uuid]) for d in machine.devices]
            somewhere = somewhere or possible(list(machine.devices), left, request)

        assert somewhere == isinstance(asked.place(demand), Placement)


# --- refusals ------------------------------------------------------------------------------------


def test_cards_of_several_vendors_do_not_add_up() -> None:
    asked = Asked([node("a", cards("free", 2, node="a"), cards("coarse", 1, node="a"))])

    assert "1 cannot place it" in refused(asked, pod(3, memory=GiB))
    assert 2 == len(where(placed(asked, pod(2, memory=GiB))))


def test_a_refusal_counts_the_nodes_by_what_they_lack() -> None:
    nodes = [
        node("full", cards("free", 1, node="full")),
        node("small", cards("shares", 1, node="small")),
        node("busy", cards("free", 1, node="busy"), cpu=500),
        node("bare"),
        node("shut", cards("free", 1, node="shut")),
        node("sick", cards("free", 1, node="sick", health="fell off the bus")),
        node("pair", cards("free", 2, node="pair")),
    ]
    asked = Asked(nodes)
    shut(asked, "shut")
    placed(asked, pod(request={"uuid": Selector(include=("full/",))}))
    demand = pod(2, memory=40 * GiB, cpu=1000)
    placed(asked, pod(memory=50 * GiB, request={"uuid": Selector(include=("pair/free-0",))}))

    assert (
        "0 of 7 nodes: 1 cordoned, 1 have too few devices, 1 lack host cpu, "
        "1 lack memory on 2 devices, 1 too small, 1 unhealthy (fell off the bus), 1 have no device"
    ) == refused(asked, demand)
    assert "have too few devices" in refused(asked, pod(3, memory=GiB))
    refusal = asked.cache.refusal(pod(3, memory=GiB), [node.name for node in nodes])
    assert "4 have too few devices (3 wanted, most on a node 2), " in refusal.sentence


def test_cards_that_are_alike_and_out_of_use_have_each_its_own_reason() -> None:
    nodes = [
        node("hot", cards("free", 1, node="hot", health="too hot")),
        node("lost", cards("free", 1, node="lost", health="fell off the bus")),
        node("loud", cards("free", 1, node="loud", cordon="loud fan")),
        node("mute", cards("free", 1, node="mute", cordon="")),
    ]

    assert (
        "0 of 4 nodes: 1 cordoned, 1 cordoned (loud fan), 1 unhealthy (fell off the bus), "
        "1 unhealthy (too hot)"
    ) == refused(Asked(nodes), pod(memory=GiB))


def test_a_cluster_that_makes_no_sense_is_refused_in_one_line() -> None:
    twice = node("a", cards("free", 1, node="a"))

    with pytest.raises(BadInput, match="node 'a' is there twice"):
        Cluster([twice, node("a")])
    with pytest.raises(BadInput, match="device 'a/free-0' is there twice"):
        Cluster([twice, node("b", cards("free", 1, node="a"))])
    with pytest.raises(BadInput, match="node: cpu -1 is negative"):
        node("c", cpu=-1)
    with pytest.raises(BadInput, match=r"node 'd': memory [0-9]+ is more than"):
        Cluster([node("d", memory=1 << 20)])
    with pytest.raises(BadInput, match="has no container"):
        PlacedPod(name="p", containers=())


@pytest.mark.parametrize(
    "name",
    ["best", "fragmentation=much", "waist=1", "fragmentation=1,", "=3", "fragmentation=9999999"],
)
def test_an_order_nobody_knows_is_said_so(name: str) -> None:
    with pytest.raises(BadInput, match=r"is none of|is not one of|is out of range"):
        weights(name)


def test_weights_can_be_given_as_data() -> None:
    assert WEIGHTS["fragmentation"] == weights("fragmentation=2,whole_cards=1,host=1,usable=1")


# --- placement policies --------------------------------------------------------------------------


def test_binpack_fills_and_spread_empties_and_they_combine() -> None:
    def homes(policy: str) -> list[str]:
        nodes = [node(f"n{i}", cards("free", 2, node=f"n{i}")) for i in range(2)]
        asked = Asked(nodes, weights=weights(policy))
        return [where(placed(asked, pod(memory=20 * GiB)))[0] for _ in range(3)]

    assert ["n0/free-0", "n0/free-0", "n0/free-0"] == homes("binpack")
    assert ["n0/free-0", "n1/free-0", "n0/free-1"] == homes("spread")
    assert ["n0/free-0", "n0/free-1", "n0/free-0"] == homes("node-binpack-device-spread")
    assert ["n0/free-0", "n1/free-0", "n0/free-0"] == homes("node-spread-device-binpack")


def test_frag_learns_which_rest_of_a_card_is_of_use() -> None:
    """Where pods ask for 3/8 and 5/8, a card with 5/8 left is for a 5/8, not for another 3/8."""
    nodes = [node("a", cards("free", 3, node="a"))]
    asked = Asked(nodes)
    small, large = pod(memory=30 * GiB), pod(memory=50 * GiB)
    for _ in range(40):
        for demand in (small, large):
            asked.remove(placed(asked, demand))
    placed(asked, small)
    placed(asked, large)

    assert [0, 80 * GiB, 80 * GiB] == sorted(
        left[MEMORY] for left in asked.cluster.free(0).values()
    )


def test_frag_keeps_cards_with_processors_for_those_who_need_both() -> None:
    """A pod of processors alone goes where cards would be left over anyway."""
    nodes = [
        node("tight", cards("free", 4, node="tight"), cpu=40_000),
        node("ample", cards("free", 1, node="ample"), cpu=400_000),
    ]
    asked = Asked(nodes)
    for number in range(20):
        asked.cache.arrive(f"early-{number}", pod(memory=80 * GiB, cpu=10_000), 0.0)

    assert "ample" == placed(asked, pod(0, cpu=10_000)).node


# --- change --------------------------------------------------------------------------------------


def test_a_card_that_fails_gets_nothing_more_and_serves_again_when_it_is_well() -> None:
    asked = Asked([node("a", cards("free", 1, node="a"))])
    standing = placed(asked, pod(memory=GiB))
    fail(asked, "a", 0, "too hot")

    assert "0 of 1 node: 1 unhealthy (too hot)" == refused(asked, pod(memory=GiB))
    asked.remove(standing)
    fail(asked, "a", 0, None)
    placed(asked, pod())


def test_a_node_that_joins_is_placed_on_like_one_that_was_there() -> None:
    asked = Asked([node("a", cards("free", 1, node="a"))])
    standing = [placed(asked, pod())]
    asked.cache.update_node(node("b", cards("ladder", 2, node="b")))
    standing.append(placed(asked, pod(2, memory=GiB)))

    assert "b" == standing[1].node
    assert "0 of 2 nodes: 2 lack memory on one device" == refused(asked, pod(memory=GiB))
    sound(asked, standing)
    asked.cache.update_node(PlacedNode(name="c", host={"disk": 1}))
    sound(asked, standing)


def test_a_node_whose_host_grows_serves_more() -> None:
    asked = Asked([node("a", cpu=1000)])
    standing = [placed(asked, pod(0, cpu=800))]

    assert "0 of 1 node: 1 lack host cpu" == refused(asked, pod(0, cpu=800))
    asked.cache.update_node(node("a", cpu=2000))
    standing.append(placed(asked, pod(0, cpu=800)))
    sound(asked, standing)


class Life(RuleBasedStateMachine):
    """Pods come and go, nodes are shut, cards fail: nothing is ever over or counted wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = Asked(mixed(8))
        self.standing: list[Placement] = []

    @rule(some=pods())
    def place(self, some: PlacedPod) -> None:
        answer = self.asked.place(some)
        if isinstance(answer, Placement):
            self.standing.append(answer)

    @precondition(lambda self: self.standing)
    @rule(which=st.integers(0, 10_000))
    def free(self, which: int) -> None:
        self.asked.remove(self.standing.pop(which % len(self.standing)))

    @rule(which=st.integers(0, 7), closed=st.booleans())
    def cordon(self, which: int, closed: bool) -> None:
        shut(self.asked, f"n{which}", cordoned=closed)

    @rule(which=st.integers(0, 10_000), health=st.sampled_from([None, "lost"]))
    def fail(self, which: int, health: str | None) -> None:
        fail(self.asked, f"n{which % 8}", which // 8, health)

    @invariant()
    def nothing_is_over(self) -> None:
        sound(self.asked, self.standing)


TestLife = Life.TestCase
TestLife.settings = settings(stateful_step_count=40)


def test_ten_shapes_more_than_are_kept_in_mind_change_nothing_that_stands() -> None:
    asked = Asked([node("a", rack(1024 * GiB, slots=2000))])
    standing = [placed(asked, pod(memory=i * 1024 * 1024)) for i in range(1, 1035)]

    assert len(asked.cache.rows()) <= 1024
    sound(asked, standing)
    assert {SLOTS, MEMORY, CORE} == set(asked.cluster.free(0)["memory-0"])


def test_states_no_card_is_in_any_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hetero.placement.price_rows._MOST_STATES", 100)
    monkeypatch.setattr("hetero.placement.state._SPARE_STATE_COUNT", 50)
    asked = Asked([node("a", cards("free", 2, node="a"))])
    standing = []
    for step in range(1, 400):
        standing.append(placed(asked, pod(memory=step * 1024 * 1024)))
        if len(standing) > 5:
            asked.remove(standing.pop(0))

    assert len(asked.cluster.card_states.states) < 250
    sound(asked, standing)


def test_what_the_scheduler_says_survives_the_codec() -> None:
    asked = Asked([node("a", cards("free", 2, node="a"))])
    some = PlacedPod(containers=(container(10, 100), container()), init=(container(20),))
    placement = placed(asked, some)
    refusal = asked.place(pod(3, memory=GiB))

    assert placement == codec.loads(codec.dumps(placement), Placement, source="test")
    assert isinstance(refusal, Refusal)
    assert refusal == codec.loads(codec.dumps(refusal), Refusal, source="test")
    assert some == codec.loads(codec.dumps(some), PlacedPod, source="test")
