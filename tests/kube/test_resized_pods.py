"""A pod's grant that `hetero resize` changes, in the books of its node and of the scheduler."""

from pathlib import Path

import pytest

from hetero.model import CORE, MEMORY, Ask
from hetero.model.errors import BadInput
from hetero.node.resize import resize
from tests.kube.site import Site, differences, pod_of
from tests.kube.site_cards import ALL, Card, tell


async def _resized(it: Site, card: Card) -> None:
    assert None is await it.apply(pod_of("pod", card.part(4)))
    (grant,) = it.at.node.snapshot().grants
    (piece,) = grant.allocation.pieces
    books_before = await it.settled()
    for ask in (Ask(memory=piece.takes[MEMORY] + 2**30), Ask(core=80), Ask(open=True)):
        with pytest.raises(BadInput, match=r"default/pod/main-0 was given .* and 48"):
            resize(it.at.node, grant.id, ask)
    lower = resize(it.at.node, grant.id, Ask(memory=piece.takes[MEMORY] // 2, core=20))
    books_lowered = await it.settled()
    neighbour = await it.apply(pod_of("neighbour", card.part(4)))
    too_much = await it.apply(pod_of("too-much", card.part(4)))
    resize(it.at.node, grant.id, Ask(memory=piece.takes[MEMORY], core=48))

    assert piece.takes[MEMORY] // 2 == lower.limits[0].memory
    assert not differences(books_before)
    assert books_before == books_lowered
    assert neighbour is None
    assert too_much
    assert "lack" in too_much
    (again,) = (one for one in it.at.node.snapshot().grants if one.id == grant.id)
    assert piece.takes[CORE] == again.allocation.pieces[0].takes[CORE]


@pytest.mark.parametrize("kind", ["nvidia", "iluvatar"])  # slices of Hygon's keep their size
def test_a_pods_grant_is_resized_within_what_its_scheduler_counts(
    tmp_path: Path, kind: str
) -> None:
    tell(_resized, tmp_path, ALL[kind], seconds=40)
