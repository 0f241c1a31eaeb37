"""Init containers on cards that are cut: one slice, handed from container to container."""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from tests.kube.site import Site, pod_of
from tests.kube.site_cards import ALL, CUT, HANDED, Card, Story, tell


def tell_of_each(path: Path, cards: Mapping[str, Card], *stories: Story) -> None:
    """Tell stories of each of these cards, which one node has, one after the other."""
    tell(partial(_of_each, kinds=tuple(cards), stories=stories), path, *cards.values())


async def _of_each(
    it: Site, _: Card, *, kinds: tuple[str, ...], stories: tuple[Story, ...]
) -> None:
    for kind in kinds:
        for story in stories:
            print(f"{story.__name__}: {kind}", file=sys.stderr)
            await story(it, ALL[kind])
            for pod in [*it.at.api.pods.values()]:
                if pod["status"]["phase"] != "Succeeded":
                    await it.end(pod)
            await expect_equal_books(it)  # the next story's pods have the same UIDs


async def expect_equal_books(it: Site) -> None:
    books = await it.settled()
    assert dict.fromkeys(books, books["scheduler"]) == books


def parts(it: Site) -> dict[str, list[str | None]]:
    """Return the slices of each pod's containers, in the order in which they start."""
    slices: dict[str, list[str | None]] = {}
    for grant in it.at.node.snapshot().grants:
        pod = slices.setdefault(grant.owner["pod"], [])
        pod += [piece.part for piece in grant.allocation.pieces]
    return slices


async def beside_a_neighbour(it: Site, card: Card) -> None:
    larger = card.part(4)
    assert None is await it.apply(pod_of("pod", larger, init=[larger, card.part(1)]))
    await expect_equal_books(it)
    assert None is await it.apply(pod_of("neighbour", card.part(4)))
    await expect_equal_books(it)


def test_an_init_container_as_large_as_the_main_one_takes_no_more(tmp_path: Path) -> None:
    tell_of_each(tmp_path, ALL, beside_a_neighbour)


async def with_a_sidecar(it: Site, card: Card) -> None:
    pod = pod_of("pod", card.part(4), init=[card.part(5), card.part(1)], sidecars=[card.part(1)])
    assert None is await it.apply(pod)
    await expect_equal_books(it)
    by_container = {
        grant.owner["container"]: grant.allocation.pieces[0]
        for grant in it.at.node.snapshot().grants
    }
    handed = by_container["init-0"]
    assert (handed, handed) == (by_container["init-1"], by_container["main-0"])
    assert handed.part not in (None, by_container["sidecar-0"].part)


async def on_a_full_card(it: Site, card: Card) -> None:
    assert None is await it.apply(pod_of("first", card.part(5), init=[card.part(2)]))
    assert None is await it.apply(pod_of("second", card.part(3)))
    assert "lack" in str(await it.apply(pod_of("third", card.part(1))))
    await expect_equal_books(it)


async def with_two_main_containers(it: Site, card: Card) -> None:
    pod = pod_of("pod", card.part(1), card.part(3), init=[card.part(4)])
    assert None is await it.apply(pod)
    assert None is await it.apply(pod_of("neighbour", card.part(3)))
    first, small, large = parts(it)["pod"]
    assert (first, True) == (large, small != large)
    await expect_equal_books(it)


async def with_equal_containers(it: Site, card: Card) -> None:
    """Of four containers that ask alike three run at a time, and have a slice each."""
    equal = card.part(2)
    pod = pod_of("pod", equal, equal, init=[equal], sidecars=[equal])
    pod["spec"]["initContainers"].reverse()  # the sidecar starts after the init container
    assert None is await it.apply(pod)
    assert [] == it.shared_parts()
    assert 3 == len({*parts(it)["pod"]})
    await expect_equal_books(it)


def test_init_containers_hand_one_slice_to_the_largest_main_one_and_a_sidecar_has_its_own(
    tmp_path: Path,
) -> None:
    stories = (with_a_sidecar, on_a_full_card, with_two_main_containers, with_equal_containers)
    tell_of_each(tmp_path, HANDED, *stories)


async def with_another_agent(it: Site, card: Card) -> None:
    pod = pod_of("pod", card.part(6), init=[card.part(6)])
    assert None is await it.place(pod)
    given = await it.at.kubelet.admit(pod)
    await it.at.kubelet.start_container(pod, "init-0")
    before = parts(it)
    await it.restart_agent()
    await it.at.kubelet.start_container(pod, "main-0")
    await it.start_scheduler()
    assert ({"init-0", "main-0"}, before) == ({*given}, parts(it))
    await expect_equal_books(it)


def test_one_slice_is_handed_on_when_the_agent_starts_anew_between_two_containers(
    tmp_path: Path,
) -> None:
    tell_of_each(tmp_path, HANDED, with_another_agent)


async def rollouts(it: Site, card: Card, *, count: int) -> None:
    """A Deployment with Recreate: its pod has an init container as large as its main one."""
    neighbour = pod_of("neighbour", card.part(2))
    assert None is await it.apply(neighbour)
    for round_number in range(count):
        pod = pod_of(
            f"pod-{round_number}",
            card.part(4),
            init=[card.part(4)],
            sidecars=[card.part(2)],
        )
        assert None is await it.apply(pod)
        if round_number % 5 == 0:
            assert await it.apply(pod_of("more", card.part(1))) is not None
            await expect_equal_books(it)
        await it.end(pod, deleted=round_number % 2 == 0)
    await expect_equal_books(it)


async def six_rollouts(it: Site, card: Card) -> None:
    await rollouts(it, card, count=6)


async def twenty_rollouts(it: Site, card: Card) -> None:
    await rollouts(it, card, count=20)


@pytest.mark.parametrize(
    "story", [six_rollouts, pytest.param(twenty_rollouts, marks=pytest.mark.soak)]
)
def test_rollouts_at_a_full_card_beside_a_neighbour_are_never_refused(
    tmp_path: Path, story: Story
) -> None:
    tell_of_each(tmp_path, CUT, story)
