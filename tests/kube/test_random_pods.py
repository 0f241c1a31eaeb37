"""Random pods on cards of all vendors: what each book says is taken is the same after each step."""

import random
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.kube.api_server import Plain
from tests.kube.site import Site, pod_of
from tests.kube.site_cards import ALL, Card, tell

#: Of a card's eighths, how many containers ask for.
_SIZES = (1, 1, 1, 2, 2, 3, 4, 8)
#: So many steps lie between two looks at the node by its own commands, which ask each driver.
_LOOK = 25


def random_pod(rng: random.Random, name: str) -> Plain:
    """Return a pod of up to three of each kind of container, of which each asks for a card."""
    vendors = rng.sample([*ALL.values()], k=rng.choice((1, 1, 1, 2)))

    def containers(count: int) -> list[dict[str, str]]:
        return [rng.choice(vendors).part(rng.choice(_SIZES)) for _ in range(count)]

    return pod_of(
        name,
        *containers(rng.choice((1, 1, 1, 2, 3))),
        init=containers(rng.choice((0, 0, 1, 1, 2, 3))),
        sidecars=containers(rng.choice((0, 0, 0, 1, 2))),
    )


async def _live(it: Site, _: Card, *, seed: int, pods: int) -> None:
    rng = random.Random(seed)
    standing: list[Plain] = []
    placed = 0
    for step in range(pods):
        pod = random_pod(rng, f"pod-{step}")
        if await it.apply(pod) is None:
            standing.append(pod)
            placed += 1
        while standing and rng.random() < (0.3 if placed < 5 else 0.6):
            await it.end(standing.pop(rng.randrange(len(standing))), deleted=rng.random() < 0.5)
        if rng.random() < 0.02:
            await it.restart_agent()
        if rng.random() < 0.02:
            await it.start_scheduler()
        books = await it.settled(driver=step % _LOOK == 0)
        assert dict.fromkeys(books, books["scheduler"]) == books, f"seed {seed}, step {step}"
        for uuid, taken in books["scheduler"].items():
            capacity = it.capacity[uuid]
            assert all(0 <= taken[name] <= capacity[name] for name in capacity), (seed, step, uuid)
    assert placed > pods / 4


def _tell(path: Path, *, seed: int, pods: int) -> None:
    print(f"seed {seed}", file=sys.stderr)
    tell(partial(_live, seed=seed, pods=pods), path, *ALL.values())


def test_five_hundred_random_pods_are_the_same_in_all_books(tmp_path: Path) -> None:
    _tell(tmp_path, seed=50, pods=500)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", random.sample(range(10**6), k=20))
def test_ten_thousand_random_pods_are_the_same_in_all_books(tmp_path: Path, seed: int) -> None:
    _tell(tmp_path, seed=seed, pods=500)
