"""Cards that could give a pod no share: the scheduler sends no other pod there for a while."""

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from time import monotonic

import grpc
import pytest
from attrs import evolve

from hetero.kube.agent import resting_cards
from hetero.kube.agent.resting_cards import FIRST_REST_S, LONGEST_REST_S, RestingCards
from hetero.model import Ask, Request
from hetero.model.errors import HeteroError
from hetero.model.units import GiB
from hetero.node.grants import LocalGrants
from hetero.testing import rack
from tests.kube.site import Site, pod_of
from tests.kube.site_cards import ALL, Card, tell
from tests.kube.world import until

#: Seconds for which a card of a site rests the first time, for which a controller makes one pod
#: after the other, and how many may fail.
SHORT, SECONDS, MOST = 7.0, 5.0, 3
#: The cards of two vendors on one node.
DEVICES = rack(*[16 * GiB] * 5)
CARDS = [device.uuid for device in DEVICES]
OURS, OTHERS = CARDS[:3], CARDS[3:]


class Clock:
    """A clock that is set by hand."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        patch.setattr(resting_cards, "monotonic", lambda: self.now_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def nothing() -> None:
    """Publish nothing."""


def resting(cards: RestingCards) -> list[str]:
    return [device.uuid for device in cards.published(DEVICES) if device.cordon is not None]


async def test_a_card_rests_twice_as_long_each_time_until_it_gives_a_share(
    clock: Clock, tmp_path: Path
) -> None:
    cards, lengths_s = RestingCards(tmp_path / "resting.json", nothing), []
    for _ in range(9):
        await cards.note_refusal(OURS[:1], OURS[:1], "no room")
        began_s = clock.now_s
        while resting(cards):
            clock.now_s += FIRST_REST_S / 2
        lengths_s.append(clock.now_s - began_s)
    assert [15, 30, 60, 120, 240, 480, LONGEST_REST_S, LONGEST_REST_S, LONGEST_REST_S] == lengths_s

    cards.note_share(OURS[:1], OURS)
    await cards.note_refusal(OURS[:1], OURS, "no room")
    clock.now_s += FIRST_REST_S
    assert [] == resting(cards)


async def test_what_a_card_rests_for_is_published_and_told_once(
    clock: Clock, tmp_path: Path
) -> None:
    cards = RestingCards(tmp_path / "resting.json", nothing)
    await cards.note_refusal(OURS[:1], OURS, "limiters:\n no space")
    await cards.note_refusal(OURS[:1], OURS, "another pod that was on its way")
    (sentence,) = cards.untold
    (cordon,) = {device.cordon for device in cards.published(DEVICES)} - {None}

    assert f"card {OURS[0]} {cordon}" == sentence
    assert str(cordon).startswith("rests until ")
    assert str(cordon).endswith(" UTC: limiters: no space")
    (cordoned,) = cards.published([evolve(DEVICES[0], cordon="loud fan")])
    assert "loud fan" == cordoned.cordon

    await cards.note_refusal(OURS[1:2], OURS, "no room")
    assert cards.untold[1].startswith(f"cards {', '.join(OURS)} rest until ")


async def test_a_refusal_waits_until_it_is_published_and_not_for_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    published: list[list[str]] = []

    async def publish() -> None:
        published.append(resting(cards))
        if len(published) == 2:
            await asyncio.sleep(60)
        if len(published) == 3:
            raise HeteroError("the API is away")

    cards = RestingCards(tmp_path / "resting.json", publish)
    monkeypatch.setattr(resting_cards, "_PUBLISH_WAIT_S", 0.1)
    for uuid in CARDS[:3]:
        await asyncio.wait_for(cards.note_refusal([uuid], [uuid], "no room"), 30)
    assert [CARDS[:1], CARDS[:2], CARDS[:3]] == published


async def test_after_two_refusals_all_cards_of_the_vendor_rest_and_no_other_vendors(
    clock: Clock, tmp_path: Path
) -> None:
    cards = RestingCards(tmp_path / "resting.json", nothing)
    await cards.note_refusal(OURS[:1], OURS, "no room")
    assert OURS[:1] == resting(cards)

    await cards.note_refusal(OTHERS[:1], OTHERS, "no room")
    assert [OURS[0], OTHERS[0]] == resting(cards)

    await cards.note_refusal(OURS[1:2], OURS, "no room")
    assert [*OURS, OTHERS[0]] == resting(cards)

    clock.now_s += 2 * FIRST_REST_S
    assert [] == resting(cards)
    await cards.note_refusal(OURS[2:], OURS, "no room")
    assert OURS == resting(cards)


async def test_one_pod_of_several_cards_lets_no_other_card_rest(
    clock: Clock, tmp_path: Path
) -> None:
    cards = RestingCards(tmp_path / "resting.json", nothing)
    await cards.note_refusal(OURS[:2], OURS, "no room")
    assert OURS[:2] == resting(cards)


async def test_a_share_lets_cards_serve_that_rest_since_others_refused(
    clock: Clock, tmp_path: Path
) -> None:
    """A pod that was on its way shows that the fault was not of them all."""
    cards = RestingCards(tmp_path / "resting.json", nothing)
    await cards.note_refusal(OURS[:1], OURS, "no room")
    await cards.note_refusal(OURS[1:2], OURS, "no room")
    cards.note_share(OURS[1:2], OURS)
    assert OURS[:1] == resting(cards)


async def test_an_agent_that_starts_anew_knows_which_cards_rest(
    clock: Clock, tmp_path: Path
) -> None:
    path = tmp_path / "resting.json"
    await RestingCards(path, nothing).note_refusal(OURS[:1], OURS, "no room")
    assert OURS[:1] == resting(RestingCards(path, nothing))

    clock.now_s = 5.0  # the machine was booted
    assert [] == resting(RestingCards(path, nothing))
    path.write_text("{")
    assert [] == resting(RestingCards(path, nothing))
    shutil.rmtree(tmp_path)
    await RestingCards(path, nothing).note_refusal(
        OURS[:1], OURS, "no room"
    )  # nothing can be written


async def failed_pods(it: Site, card: Card, name: str, seconds: float = SECONDS) -> tuple[int, str]:
    """Return how many pods of a controller without back-off failed, and why none was placed."""
    count, refusal, until_s = 0, "", monotonic() + seconds
    while monotonic() < until_s:
        pod = pod_of(f"{name}-{count}", card.part(2))
        if reason := await it.place(pod):
            refusal = reason
            await asyncio.sleep(0.05)
            continue
        try:
            await it.run(pod)
        except grpc.aio.AioRpcError:
            count += 1
            it.at.kubelet.forget(pod)
            pod["status"] = {"phase": "Failed", "reason": "UnexpectedAdmissionError"}
            it.at.api.put("pods", pod)
        else:
            return count, ""
    return count, refusal


async def has_no_place_for_limiters(it: Site, card: Card) -> Callable[[], None]:
    path = it.at.path / "lib"
    shutil.rmtree(path, ignore_errors=True)
    path.write_text("")
    return path.unlink


async def has_no_place_for_links(it: Site, card: Card) -> Callable[[], None]:
    path = it.at.path / "kept/remembered"
    shutil.rmtree(path, ignore_errors=True)
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    return path.unlink


async def runs_a_program_of_its_own(it: Site, card: Card) -> Callable[[], None]:
    grants = LocalGrants(it.at.node)
    handle = grants.take(Request(asks=(Ask(memory=20 * GiB, core=50),)), command=("train",)).handle
    return lambda: grants.abort(handle)


async def fails_few_and_serves_later(
    becomes: Callable[[Site, Card], Coroutine[None, None, Callable[[], None]]],
    it: Site,
    card: Card,
) -> None:
    resting_cards.FIRST_REST_S = SHORT  # in this process alone
    end = await becomes(it, card)
    count, refusal = await failed_pods(it, card, "early")
    assert "cordoned (rests until" in refusal, refusal
    await it.restart_agent()
    count_after, _ = await failed_pods(it, card, "after", seconds=0.5)
    assert 1 <= count + count_after <= MOST
    await until(lambda: any(event["reason"] == "CardsRest" for event in it.at.api.events))
    end()
    assert (0, "") == await failed_pods(it, card, "late", seconds=20)


@pytest.mark.parametrize(
    ("becomes", "card"),
    [
        (has_no_place_for_limiters, "nvidia"),
        (has_no_place_for_limiters, "amd"),
        (has_no_place_for_links, "hygon"),
        (runs_a_program_of_its_own, "nvidia"),
    ],
)
def test_a_node_that_cannot_serve_fails_few_pods_and_serves_again_later(
    becomes: Callable[[Site, Card], Coroutine[None, None, Callable[[], None]]],
    card: str,
    tmp_path: Path,
) -> None:
    tell(partial(fails_few_and_serves_later, becomes), tmp_path, ALL[card], seconds=60)
