"""What a context takes is measured once a model and driver, of cards that a limiter shares."""

from pathlib import Path

import pytest
from attrs import evolve

from hetero.model import MEMORY, Device, DeviceAllocation, Enforcement
from hetero.model.errors import Refused
from hetero.model.units import MiB
from hetero.node.context_sizes import ContextSizes
from hetero.node.ledger.grant_file import limit_of
from hetero.testing.memory_vendor import rack

Asked = list[str]


@pytest.fixture
def sizes(tmp_path: Path) -> ContextSizes:
    return ContextSizes(tmp_path)


def card(uuid: str, *, driver: str = "580", by: Enforcement = Enforcement.PRELOAD) -> Device:
    (device,) = rack(MiB)
    return evolve(device, uuid=uuid, enforcement=by, attributes={"driver": driver})


def measured(
    sizes: ContextSizes, *cards: Device, answer: int | Refused | None = 7
) -> tuple[Asked, list[int]]:
    """Return the cards that were asked, and what is known of each then."""
    asked: Asked = []

    def ask(device: Device) -> int | None:
        asked.append(device.uuid)
        if isinstance(answer, Refused):
            raise answer
        return answer

    return asked, [device.context_bytes for device in sizes.measure(cards, ask)]


def test_one_card_of_a_model_and_driver_is_measured_for_all(sizes: ContextSizes) -> None:
    assert (["a"], [7, 7]) == measured(sizes, card("a"), card("b"))
    assert ([], [7]) == measured(sizes, card("c"))
    assert (["d"], [9]) == measured(sizes, card("d", driver="590"), answer=9)


def test_what_a_vendor_cannot_say_is_not_asked_again(sizes: ContextSizes) -> None:
    assert (["a"], [0]) == measured(sizes, card("a"), answer=None)
    assert ([], [0]) == measured(sizes, card("a"))


def test_a_card_that_was_full_is_tried_again_after_30_s(
    sizes: ContextSizes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time of a boot before is none: the file may be where a boot ends nothing."""
    full = Refused("the card is full")
    for now_s, answer, asked, known in (
        (100, full, ["a"], [0]),
        (129, full, [], [0]),
        (131, full, ["a"], [0]),
        (20, 7, ["a"], [7]),
        (60, full, [], [7]),
    ):
        monkeypatch.setattr("time.monotonic", lambda now_s=now_s: now_s)
        assert (asked, known) == measured(sizes, card("a"), answer=answer)


def test_what_the_vendor_declares_counts_until_it_is_measured(sizes: ContextSizes) -> None:
    declared, cards = {"memory": 5, "other": 6}, (card("a"), card("b", driver="590"))

    before = sizes.noted(cards, declared)
    measured(sizes, cards[0])
    measured(sizes, cards[1], answer=Refused("the card is full"))

    after = sizes.noted(cards, declared)
    assert [(5, True)] * 2 == [(card.context_bytes, card.context_is_declared) for card in before]
    assert [(7, False), (5, True)] == [
        (card.context_bytes, card.context_is_declared) for card in after
    ]


def test_a_declared_size_that_is_measured_is_declared_no_more(sizes: ContextSizes) -> None:
    (declared,) = sizes.noted((card("a"),), {"memory": 5})
    (known,) = sizes.measure((declared,), lambda _: 7)

    assert (7, False) == (known.context_bytes, known.context_is_declared)


def test_where_contexts_do_not_count_they_do_for_claims_alone(sizes: ContextSizes) -> None:
    (uncounted,) = sizes.noted((card("a"),), {"memory": 5}, counts_context=False)

    assert (5, 0) == (uncounted.context_bytes, uncounted.counted_context_bytes)
    assert uncounted.charges_contexts


def test_where_a_limiter_charges_no_contexts_a_grant_counts_none(sizes: ContextSizes) -> None:
    (uncharged,) = sizes.noted((card("a"),), {"memory": None})
    piece = DeviceAllocation(device="a", vendor="memory", takes={MEMORY: MiB}, core=None)

    assert (0, False) == (uncharged.context_bytes, uncharged.charges_contexts)
    assert not limit_of(piece, uncharged, context=True).context
    assert limit_of(piece, card("a"), context=True).context


def test_cards_that_no_limiter_shares_are_left_alone(sizes: ContextSizes) -> None:
    others = (Enforcement.NONE, Enforcement.PARTITION, Enforcement.SERVICE)
    cordoned = evolve(card("e"), cordon="")

    assert ([], [0] * 4) == measured(sizes, *(card(by.value, by=by) for by in others), cordoned)


def test_a_file_that_cannot_be_read_is_written_anew(sizes: ContextSizes, tmp_path: Path) -> None:
    for text in ("", "[]", '{"x": "y"}', "\0"):
        (tmp_path / "contexts.json").write_text(text)
        assert (["a"], [7]) == measured(sizes, card("a"))
