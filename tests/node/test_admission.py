"""The admission rules, one by one."""

import os
import select
from collections.abc import Callable
from decimal import Decimal

import pytest
from attrs import evolve

from hetero.model import Ask, Request, Selector
from hetero.model.errors import BadInput, HeteroError, NotFound, Refused
from hetero.model.units import GiB
from hetero.node.grants import grants_of, release
from hetero.node.ledger.ledger import Ledger
from hetero.node.node import Node
from hetero.node.settings import NodeSettings

from .conftest import MakeNode, Process, admit, drop, request, standing, taken


def test_memory_above_a_card_is_refused(make_node: MakeNode) -> None:
    node = make_node(16 * GiB)

    with pytest.raises(Refused, match="too small"):
        admit(node, request(memory=16 * GiB + 1))

    assert [] == standing(node)


@pytest.mark.parametrize("core", [0, 101])
def test_core_out_of_range_is_refused_before_anything_is_reserved(
    make_node: MakeNode, core: int
) -> None:
    node = make_node()

    with pytest.raises(BadInput, match="1 to 100"):
        admit(node, request(core=core))

    assert not node.ledger.path.exists()


def test_the_sum_of_standing_memory_never_passes_the_card(make_node: MakeNode) -> None:
    node = make_node(16 * GiB)
    for _ in range(3):
        admit(node, request(memory=5 * GiB))

    with pytest.raises(Refused, match="0 of 1 device: 1 lack memory"):
        admit(node, request(memory=5 * GiB))

    admit(node, request(memory=1 * GiB))
    assert 16 * GiB == taken(node, "memory-0")[0]


def test_the_sum_of_standing_core_never_passes_the_card(make_node: MakeNode) -> None:
    node = make_node()
    admit(node, request(memory=GiB, core=60))

    with pytest.raises(Refused, match="lack core"):
        admit(node, request(memory=GiB, core=41))

    admit(node, request(memory=GiB, core=40))
    assert 100 == taken(node, "memory-0")[1]


def test_a_request_over_several_devices_takes_all_or_nothing(make_node: MakeNode) -> None:
    node = make_node(16 * GiB, 16 * GiB, 4 * GiB)

    with pytest.raises(Refused, match=r"2 of 3 devices fit \(3 needed\): 1 too small"):
        admit(node, request(memory=8 * GiB, count=3))

    assert [] == standing(node)
    assert 3 == len(admit(node, request(memory=4 * GiB, count=3)).grant.allocation.pieces)


def test_a_failure_on_the_third_device_gives_back_the_first_two(make_node: MakeNode) -> None:
    node = make_node(16 * GiB, 16 * GiB, 16 * GiB)
    drop(admit(node, request(memory=GiB)))
    blocked = node.ledger.boards / "memory-2"
    blocked.touch()

    with pytest.raises(HeteroError, match="Not a directory"):
        admit(node, request(memory=GiB, count=3))

    assert [] == os.listdir(node.ledger.path / "grants")
    assert {"board"} >= {page.name for page in node.ledger.boards.glob("*/*")}
    blocked.unlink()
    admit(node, request(memory=16 * GiB, count=3))


@pytest.mark.parametrize(
    "whole", [request(memory=GiB, core=100), request(memory=16 * GiB), request()]
)
def test_all_of_the_core_or_memory_makes_the_card_exclusive(
    make_node: MakeNode, whole: Request
) -> None:
    node = make_node(16 * GiB)
    first = admit(node, request(memory=GiB, core=1))

    with pytest.raises(Refused):
        admit(node, whole)
    drop(first)
    admit(node, whole)

    with pytest.raises(Refused):
        admit(node, request(memory=1, core=1))


def test_core_unset_on_a_fully_cored_card_is_refused(make_node: MakeNode) -> None:
    node = make_node(16 * GiB)
    admit(node, request(memory=GiB, core=50))
    admit(node, request(memory=GiB, core=50))

    with pytest.raises(Refused, match="lack core"):
        admit(node, request(memory=GiB))


def test_slots_are_respected(make_node: MakeNode) -> None:
    node = make_node(16 * GiB, slots=3)
    for _ in range(3):
        admit(node, request(memory=1, core=1))

    with pytest.raises(Refused, match="lack slots"):
        admit(node, request(memory=1, core=1))


def test_count_two_means_two_physical_cards(make_node: MakeNode) -> None:
    with pytest.raises(Refused, match="2 needed"):
        admit(make_node(16 * GiB, name="one"), request(memory=GiB, count=2))

    allocation = admit(make_node(16 * GiB, 16 * GiB), request(memory=GiB, count=2)).grant.allocation
    assert ["memory-0", "memory-1"] == sorted(piece.device for piece in allocation.pieces)


def test_a_refusal_says_that_a_whole_card_was_asked(make_node: MakeNode) -> None:
    node = make_node(16 * GiB)
    admit(node, request(memory=GiB))

    with pytest.raises(Refused, match="memory was not given, so all of a card's was asked"):
        admit(node, request())


def test_a_vendor_that_is_not_there_is_named(make_node: MakeNode) -> None:
    asked = Request(asks=(Ask(),), vendor=Selector(include=("nobody",)))

    with pytest.raises(NotFound, match=r"no vendor 'nobody' is installed \(installed: memory\)"):
        admit(make_node(), asked)


def test_scaling_raises_what_is_promised_and_percent_stays_percent_of_the_card(
    make_node: MakeNode,
) -> None:
    settings = NodeSettings(memory_scale=Decimal("1.5"), core_scale=Decimal(2))
    node = evolve(make_node(16 * GiB), settings=settings)
    half = Request(asks=(Ask(memory_percent=50, core=50),))
    holds = [admit(node, half) for _ in range(3)]

    assert [(8 * GiB, 5000)] * 3 == [
        (handle.grant.limits[0].memory, handle.grant.limits[0].core) for handle in holds
    ]
    with pytest.raises(Refused, match="lack memory"):
        admit(node, half)
    drop(holds[0])
    for _ in range(2):
        admit(node, request(memory=1, core=50))
    with pytest.raises(Refused, match="lack core"):
        admit(node, request(memory=1, core=1))


def test_what_root_gave_out_counts_for_a_plain_user(make_node: MakeNode) -> None:
    root = make_node(16 * GiB, name="root")
    user = evolve(make_node(16 * GiB, name="user"), system=root.ledger)
    first = admit(root, request(memory=10 * GiB))

    with pytest.raises(Refused, match="lack memory"):
        admit(user, request(memory=10 * GiB))

    assert [first.grant.id] == standing(user)
    with pytest.raises(Refused, match="is root's"):
        release(grants_of(user), first.grant.id)
    drop(first)
    admit(user, request(memory=10 * GiB))


def test_a_busy_ledger_is_waited_for_and_then_named(make_node: MakeNode) -> None:
    node = make_node()
    hasty = evolve(node, ledger=Ledger(node.ledger.path, patience_s=0.05))

    with node.ledger.admission(), pytest.raises(HeteroError, match="another hetero holds it"):
        admit(hasty, request(memory=GiB))

    admit(hasty, request(memory=GiB))


def test_an_owner_killed_leaves_nothing_behind(
    make_node: MakeNode, spawn: Callable[[Node, Request], Process]
) -> None:
    node = make_node(16 * GiB)
    owner = spawn(node, request())
    assert [owner.grant] == standing(node)

    owner.kill()

    assert [] == standing(node)
    assert [] == os.listdir(node.ledger.path / "grants")
    admit(node, request())


@pytest.mark.parametrize("number", [150, pytest.param(1000, marks=pytest.mark.soak)])
def test_however_many_at_once_never_pass_the_card(make_node: MakeNode, number: int) -> None:
    node = make_node(16 * GiB, slots=2000)
    asked = request(memory=GiB, core=7)
    begin, begin_end = os.pipe()
    answers, answers_end = os.pipe()
    stay, stay_end = os.pipe()
    children = []
    for _ in range(number):
        pid = os.fork()
        if pid == 0:
            os.close(begin_end)
            os.close(stay_end)
            os.read(begin, 1)  # all start when the parent closes its end
            try:
                admit(node, asked)
                os.write(answers_end, b"+")
                os.read(stay, 1)
            except Refused:
                os.write(answers_end, b"-")
            finally:
                os._exit(0)
        children.append(pid)
    os.close(begin_end)

    seen = b""
    while len(seen) < number:
        ready, _, _ = select.select([answers], [], [], 0.02)
        seen += os.read(answers, number) if ready else b""
        memory, core, _ = taken(node, "memory-0")
        assert memory <= 14 * GiB
        assert core <= 98

    assert (14, number - 14) == (seen.count(b"+"), seen.count(b"-"))
    assert (14 * GiB, 98, 14) == taken(node, "memory-0")
    os.close(stay_end)
    assert {0} == {os.waitpid(pid, 0)[1] for pid in children}
    assert [] == standing(node)
    for descriptor in (begin, answers, answers_end, stay):
        os.close(descriptor)
