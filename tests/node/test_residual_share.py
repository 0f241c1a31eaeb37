"""A grant without a core limit beside grants that have one takes time slices, and alone none."""

import struct
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from hetero.model import Ask, Policy
from hetero.model.units import GiB
from hetero.node.ledger import grant_file
from hetero.node.ledger.grant_file import CORE_FULL, DeviceLimit
from hetero.node.ledger.ledger import GrantHandle
from hetero.node.ledger.residual_share import LEAST_CORE, with_rest
from hetero.node.node import Node
from hetero.node.resize import resize

from .conftest import MakeNode, admit, drop, killed_at, request

FREE = (CORE_FULL, "fixed")


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    return make_node(16 * GiB, 16 * GiB, limiter="cuda")


def in_force(handle: GrantHandle) -> tuple[int, str]:
    """What the limiter reads of the grant's first device: its core, and by which policy."""
    contents = Path(handle.path / "tenant/grant").read_bytes()
    core, policy = struct.unpack_from("<II", contents, grant_file.HEADER.size + 72)
    return core, ("fixed", "elastic", "off")[policy]


def test_grants_without_a_limit_take_no_time_slices_among_themselves(node: Node) -> None:
    holds = [admit(node, request(memory=GiB)) for _ in range(3)]

    assert [FREE] * 3 == [in_force(handle) for handle in holds]


def test_beside_a_limited_one_it_has_what_that_leaves_and_alone_again_all(node: Node) -> None:
    free = admit(node, request(memory=GiB))
    assert FREE == in_force(free)

    limited = admit(node, request(memory=GiB, core=30))
    assert ((7000, "elastic"), (3000, "fixed")) == (in_force(free), in_force(limited))
    second = admit(node, request(memory=GiB))
    assert [(3500, "elastic")] * 2 == [in_force(free), in_force(second)]

    resize(node, limited.grant.id, Ask(core=50))
    assert [(2500, "elastic")] * 2 == [in_force(free), in_force(second)]
    resize(node, free.grant.id, Ask(memory=2 * GiB))
    assert [(2500, "elastic")] * 2 == [in_force(free), in_force(second)]

    drop(limited)
    node.snapshot()
    assert [FREE] * 2 == [in_force(free), in_force(second)]


def test_it_is_never_stopped_altogether(node: Node) -> None:
    free = admit(node, request(memory=GiB))
    for core in (60, 40):
        admit(node, request(memory=GiB, core=core))

    assert (LEAST_CORE, "elastic") == in_force(free)


def test_a_limit_of_its_own_is_its_own_again(node: Node) -> None:
    handle, _ = admit(node, request(memory=GiB)), admit(node, request(memory=GiB, core=30))

    resize(node, handle.grant.id, Ask(core=20))

    assert (2000, "fixed") == in_force(handle)


def test_who_is_off_is_left_out_of_it(node: Node) -> None:
    off = admit(node, evolve(request(memory=GiB), policy=Policy.OFF))
    neighbour = admit(node, evolve(request(memory=GiB, core=50), policy=Policy.OFF))
    free = admit(node, request(memory=GiB))

    assert (CORE_FULL, "off") == in_force(off)
    assert (5000, "off") == in_force(neighbour)
    assert FREE == in_force(free)


def test_what_is_written_when_an_admission_is_killed_is_put_right_by_the_next_look(
    node: Node,
) -> None:
    free = admit(node, request(memory=GiB))
    step = 0
    while killed_at(step := step + 1, lambda: admit(node, request(memory=GiB, core=30))):
        node.snapshot()
        assert FREE == in_force(free)

    assert step > 20


limits = st.builds(
    DeviceLimit,
    name=st.sampled_from(["D-0", "D-1"]),
    memory=st.just(GiB),
    core=st.integers(1, 4000) | st.just(CORE_FULL),
)
grants = st.dictionaries(
    st.uuids().map(str),
    st.tuples(st.sampled_from(Policy), st.lists(limits, min_size=1, max_size=2).map(tuple)),
)


@given(grants)
def test_where_anybody_is_limited_everybody_who_is_not_off_takes_time_slices(
    asked: dict[str, tuple[Policy, tuple[DeviceLimit, ...]]],
) -> None:
    held = with_rest(asked)
    persistent = [
        (was, now)
        for identity, (policy, before) in asked.items()
        for was, now in zip(before, held[identity], strict=True)
        if policy is not Policy.OFF
    ]

    for name in ("D-0", "D-1"):
        limits = [(was, now) for was, now in persistent if was.name == name]
        limited = [was for was, _ in limits if was.core < CORE_FULL]
        assert all(was == now for was, now in limits if was.core < CORE_FULL or not limited)
        assert not limited or all(now.core < CORE_FULL for _, now in limits)
        rest = sum(now.core for _, now in limits if now.rest)
        left = CORE_FULL - sum(was.core for was in limited)
        assert rest <= max(left, LEAST_CORE * len(limits))


def test_who_has_a_part_of_the_multiprocessors_never_takes_time_slices() -> None:
    part = DeviceLimit(name="D-0", memory=GiB, core=CORE_FULL, sm_percent=40)
    limited = DeviceLimit(name="D-0", memory=GiB, core=3000)
    open_ = DeviceLimit(name="D-0", memory=GiB, core=CORE_FULL)

    held = with_rest(
        {
            name: (Policy.FIXED, (one,))
            for name, one in zip("abc", (part, limited, open_), strict=True)
        }
    )

    assert (part,) == held["a"]
    assert (limited,) == held["b"]
    assert 7000 == held["c"][0].core
