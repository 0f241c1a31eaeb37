"""Random pods on cards of all vendors: all books say the same after each step."""

import random
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.kube.api_server import Plain
from tests.kube.others import Others
from tests.kube.site import Site, differences, pod_of
from tests.kube.site_cards import ALL, SOAK_SEEDS, Card, tell

#: Of a card's eighths, how many containers ask for.
_SIZES = (1, 1, 1, 2, 2, 3, 4, 8)
#: How many cards a container asks for, where a node has two.
_CARDS = (1, 1, 2)
_PAIRS = ("cambricon", "ascend", "nvidia")
#: So many steps lie between two looks at the node by its own commands, which ask each driver.
_LOOK, _SOAK_LOOK = 25, 5


def random_pod(rng: random.Random, name: str) -> Plain:
    """Return a pod of up to three of each kind of container, of which each asks for some cards.

    Its sidecars are anywhere among its init containers.
    """
    kinds_of_cards = rng.sample([*ALL.items()], k=rng.choice((1, 1, 1, 2)))

    def containers(count: int) -> list[dict[str, str]]:
        return [_part(rng, *rng.choice(kinds_of_cards)) for _ in range(count)]

    pod = pod_of(
        name,
        *containers(rng.choice((1, 1, 1, 2, 3))),
        init=containers(rng.choice((0, 0, 1, 1, 2, 3))),
        sidecars=containers(rng.choice((0, 0, 0, 1, 2))),
    )
    rng.shuffle(pod["spec"]["initContainers"])
    return pod


def _part(rng: random.Random, kind: str, card: Card) -> dict[str, str]:
    limits = card.part(rng.choice(_SIZES))
    if kind in _PAIRS:
        limits[card.resource] = str(rng.choice(_CARDS))
    return limits


async def _live(it: Site, _: Card, *, seed: int, pods: int, look: int) -> None:
    rng = random.Random(seed)
    others = Others(it, random.Random(seed + 1))
    standing: list[Plain] = []
    running_on: list[Plain] = []
    placed = 0
    for step in range(pods):
        pod = random_pod(rng, f"pod-{step:05}")  # no UID is part of another
        if await it.apply(pod) is None:
            standing.append(pod)
            placed += 1
        while standing and rng.random() < (0.3 if placed < 5 else 0.6):
            ended, deleted = standing.pop(rng.randrange(len(standing))), rng.random() < 0.5
            if rng.random() < 0.1:
                await it.leave(ended, deleted=deleted)
                running_on.append(ended)
            else:
                await it.end(ended, deleted=deleted)
        while running_on and rng.random() < 0.2:
            await it.stop(running_on.pop(rng.randrange(len(running_on))))
        if rng.random() < 0.02:
            await it.restart_agent()
        if rng.random() < 0.02:
            await it.start_scheduler()
        await others.act()
        held_back = {device.uuid for device in it.at.agent.discovery.devices if device.cordon}
        books = it.within_slots(await it.settled(driver=step % look == 0), held_back)
        assert not (wrong := differences(books)), f"seed {seed}, step {step}: {wrong}"
        assert [] == it.shared_parts(), f"seed {seed}, step {step}"
        charges = it.charges()
        assert charges["agent"] == charges["quota"], f"seed {seed}, step {step}"
        for uuid, taken in books["scheduler"].items():
            capacity = it.capacity[uuid]
            assert all(0 <= taken[name] <= capacity[name] for name in capacity), (seed, step, uuid)
    assert placed > pods / 4


def _tell(path: Path, *, seed: int, pods: int, look: int = _LOOK, seconds: float = 280) -> None:
    print(f"seed {seed}", file=sys.stderr)
    cards = (*ALL.values(), *(ALL[kind] for kind in _PAIRS))
    tell(partial(_live, seed=seed, pods=pods, look=look), path, *cards, seconds=seconds)


@pytest.mark.timeout(300)  # 30 s of a processor, and several times that beside other tests
@pytest.mark.parametrize("seed", range(50, 55))
def test_five_times_a_hundred_random_pods_are_the_same_in_all_books(
    tmp_path: Path, seed: int
) -> None:
    _tell(tmp_path, seed=seed, pods=100)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", SOAK_SEEDS)
def test_ten_thousand_random_pods_are_the_same_in_all_books(tmp_path: Path, seed: int) -> None:
    _tell(tmp_path, seed=seed, pods=500, look=_SOAK_LOOK, seconds=1100)
