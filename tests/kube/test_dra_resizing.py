"""The share of a claim in use, made smaller and as large again as it was."""

from __future__ import annotations

import pytest

from hetero.model import MEMORY
from hetero.model.units import GiB
from tests.kube.claims import allocated, prepare, story
from tests.kube.world import World


def sized(at: World) -> tuple[int, int | None]:
    """Return the bytes and the core of the one grant, as its ledger has them and its limiter."""
    (entry,) = at.node.snapshot().grants
    (piece,), (limit,) = entry.allocation.pieces, entry.limits
    assert piece.takes[MEMORY] == limit.memory
    assert limit.context
    return piece.takes[MEMORY], piece.core


def test_a_claim_in_use_is_resized_within_what_it_consumes() -> None:
    async def act(at: World) -> None:
        driver = at.agent.driver
        assert driver is not None
        metadata = allocated(at, "one", memory="4Gi", cores="40")["metadata"]
        first = await prepare(at, "one")
        assert [] == await driver.claims.reconcile()
        assert (4 * GiB, 40) == sized(at)
        for said, size in (
            ("memory=2Gi,cores=20", (2 * GiB, 20)),
            ("cores=10", (4 * GiB, 10)),
            ("memory=1Gi", (1 * GiB, 40)),
            ("", (4 * GiB, 40)),
        ):
            metadata["annotations"] = {"hetero.io/resize": said}
            assert [] == await driver.claims.reconcile()
            assert size == sized(at)
        assert first == await prepare(at, "one")

    story(act)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("memory=5Gi", "5 GiB of memory is more than the claim consumes, 4 GiB"),
        ("cores=41", "41 cores are more than the claim consumes, 40"),
        ("size=1", "'size=1': write memory=2Gi,cores=20, or one of them"),
        ("memory=", "'memory=': write memory=2Gi,cores=20, or one of them"),
        ("memory=much", "'much' is not a number"),
    ],
)
def test_a_size_that_cannot_be_had_is_refused_with_a_sentence(said: str, sentence: str) -> None:
    async def act(at: World) -> None:
        driver = at.agent.driver
        assert driver is not None
        metadata = allocated(at, "one", memory="4Gi", cores="40")["metadata"]
        await prepare(at, "one")
        metadata["annotations"] = {"hetero.io/resize": said}
        ((entry, why),) = await driver.claims.reconcile()
        assert "default/one" == entry.label
        assert why.startswith("claim default/one: ")
        assert why.endswith(sentence)
        assert (4 * GiB, 40) == sized(at)

    story(act)
