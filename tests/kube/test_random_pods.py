"""Random pods on cards of all vendors, and claims: all books say the same after each step."""

import random
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest

from hetero.kube.client.api import Access, Api
from hetero.kube.cluster_view import snapshot
from hetero.kube.dra import node_claims
from hetero.model import CORE, MEMORY, SLOTS
from hetero.model.units import GiB
from hetero.node.inventory import inventory_of
from hetero.node.view.observe import observe_node
from tests.kube.api_server import Plain
from tests.kube.claims import allocated, dra_world, prepare, unprepare
from tests.kube.site import Site, pod_of, taken_amounts
from tests.kube.site_cards import ALL, Card, tell

#: Of a card's eighths, how many containers ask for.
_SIZES = (1, 1, 1, 2, 2, 3, 4, 8)
#: How many cards a container asks for, where a node has two.
_CARDS = (1, 1, 2)
_PAIRS = ("cambricon", "hygon", "ascend", "nvidia")
#: So many steps lie between two looks at the node by its own commands, which ask each driver.
_LOOK = 10


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


async def _live(it: Site, _: Card, *, seed: int, pods: int) -> None:
    rng = random.Random(seed)
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
            if rng.random() < 0.15:
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
        books = await it.settled(driver=step % _LOOK == 0)
        assert dict.fromkeys(books, books["scheduler"]) == books, f"seed {seed}, step {step}"
        charges = it.charges()
        assert charges["agent"] == charges["quota"], f"seed {seed}, step {step}"
        for uuid, taken in books["scheduler"].items():
            capacity = it.capacity[uuid]
            assert all(0 <= taken[name] <= capacity[name] for name in capacity), (seed, step, uuid)
    assert placed > pods / 4


def _tell(path: Path, *, seed: int, pods: int, seconds: float = 180) -> None:
    print(f"seed {seed}", file=sys.stderr)
    cards = (*ALL.values(), *(ALL[kind] for kind in _PAIRS))
    tell(partial(_live, seed=seed, pods=pods), path, *cards, seconds=seconds)


def _claimed(claims: Iterable[Plain]) -> dict[str, dict[str, int]]:
    """Return what claims consume of each of two cards, as the API has them."""
    taken = {uuid: {MEMORY: 0, CORE: 0, SLOTS: 0} for uuid in ("memory-0", "memory-1")}
    for claim in claims:
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        consumed = result["consumedCapacity"]
        taken[result["device"]][MEMORY] += int(consumed["memory"].removesuffix("Gi")) * GiB
        taken[result["device"]][CORE] += int(consumed["cores"])
        taken[result["device"]][SLOTS] += 1
    return taken


async def _live_by_claims(*, seed: int, claims: int) -> None:
    rng = random.Random(seed)
    standing: dict[str, Plain] = {}
    capacity = {MEMORY: 32 * GiB, CORE: 100, SLOTS: 10}
    async with dra_world(capacity[MEMORY], capacity[MEMORY]) as at:
        for step in range(claims):
            name, device = f"claim-{step}", rng.choice(["memory-0", "memory-1"])
            memory, cores = rng.choice([1, 2, 4, 8]), rng.choice([5, 10, 20, 40])
            claim = allocated(at, name, memory=f"{memory}Gi", cores=str(cores), device=device)
            after = _claimed([*standing.values(), claim])[device]
            fits = all(after[counter] <= capacity[counter] for counter in capacity)
            answer = await prepare(at, name)
            assert fits == (answer.error == ""), (seed, step, answer.error)
            if fits:
                standing[name] = claim
            else:
                del at.api.claims[name]  # kube-scheduler allocates no such
            while standing and rng.random() < 0.45:
                ended = rng.choice([*standing])
                del standing[ended]
                assert "" == await unprepare(at, ended)
                del at.api.claims[ended]
            if rng.random() < 0.02:
                await at.crash()
                await at.start()
            discovery = at.agent.allocator.discovery
            books = {
                "claims": _claimed(standing.values()),
                "agent": taken_amounts(
                    discovery.devices, inventory_of(discovery, at.node.snapshot()).free()
                ),
            }
            if step % _LOOK == 0:
                rows = observe_node(at.node).devices
                books["node's view"] = {row.device.uuid: dict(row.held) for row in rows}
                async with Api(Access(server=at.url)).open() as api:
                    (node,) = (await snapshot(api)).nodes
                held = {row.device.uuid: dict(row.held) for row in node.devices}
                books["cluster's view"] = held
            assert dict.fromkeys(books, books["claims"]) == books, f"seed {seed}, step {step}"


async def test_a_hundred_and_fifty_random_claims_are_the_same_in_all_books(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_claims, "_PATIENCE", 0.0)  # a claim that has no room waits for none
    await _live_by_claims(seed=50, claims=150)


@pytest.mark.parametrize("seed", range(50, 55))
def test_five_times_a_hundred_random_pods_are_the_same_in_all_books(
    tmp_path: Path, seed: int
) -> None:
    _tell(tmp_path, seed=seed, pods=100)


@pytest.mark.soak
@pytest.mark.timeout(1200)
async def test_ten_thousand_random_claims_are_the_same_in_all_books(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_claims, "_PATIENCE", 0.0)
    seed = random.randrange(10**6)
    print(f"seed {seed}", file=sys.stderr)
    await _live_by_claims(seed=seed, claims=10_000)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", random.sample(range(10**6), k=20))
def test_ten_thousand_random_pods_are_the_same_in_all_books(tmp_path: Path, seed: int) -> None:
    _tell(tmp_path, seed=seed, pods=500, seconds=1100)
