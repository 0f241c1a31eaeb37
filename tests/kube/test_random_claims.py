"""Random claims of cards of all vendors: all books say the same after each step."""

import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest
from attrs import frozen

from hetero.kube.dra import node_claims
from hetero.kube.dra.way import AllocationWay
from hetero.kube.words.quantity import quantity
from hetero.model import CORE, MEMORY, SLOTS
from tests.kube.api_server import Plain
from tests.kube.claims import prepare, unprepare
from tests.kube.others import Others
from tests.kube.site import Site, differences
from tests.kube.site_cards import ALL, SOAK_SEEDS, Card, tell
from tests.kube.world import until

_COUNTERS = {"memory": MEMORY, "cores": CORE, "slots": SLOTS}
#: Of a card's eighths, how many a claim consumes.
_SIZES = (1, 1, 1, 2, 2, 3, 4, 8)
#: So many steps lie between two looks at the node by its own commands, which ask each driver.
_LOOK, _SOAK_LOOK = 25, 5


@frozen
class Pool:
    """A node's slices, as kube-scheduler reads them: devices by name, and their counter sets."""

    devices: dict[str, Plain]
    counters: dict[str, dict[str, int]]

    @classmethod
    def of(cls, slices: Iterable[Plain]) -> "Pool":
        """Return the pool of these slices."""
        specs = [one["spec"] for one in slices]
        return cls(
            {device["name"]: device for spec in specs for device in spec.get("devices", ())},
            {
                counter_set["name"]: _amounts(counter_set["counters"])
                for spec in specs
                for counter_set in spec.get("sharedCounters", ())
            },
        )

    def allocated(self, rng: random.Random, name: str, standing: Iterable[Plain]) -> Plain:
        """Return a claim that was allocated a random device, or a part of it, room or not.

        It is none that one of the standing claims has alone, and none that is tainted.
        """
        held = (self._device(claim) for claim in standing)
        alone = {one["name"] for one in held if not one.get("allowMultipleAllocations")}
        tainted = {name for name, device in self.devices.items() if device.get("taints")}
        device = self.devices[rng.choice(sorted(self.devices.keys() - alone - tainted))]
        result = {"driver": "hetero.io", "pool": "n1", "request": "card", "device": device["name"]}
        if device.get("allowMultipleAllocations"):
            eighths = rng.choice(_SIZES)
            consumed = {
                capacity_name: str(_consumed(capacity, eighths))
                for capacity_name, capacity in device["capacity"].items()
                if capacity_name != "slots"
            }
            result["consumedCapacity"] = consumed | {"slots": "1"}
            result["shareID"] = f"share-{name}"
        return {
            "metadata": {"name": name, "namespace": "default", "uid": f"u-{name}"},
            "status": {
                "allocation": {"devices": {"results": [result]}},
                "reservedFor": [{"resource": "pods", "name": name, "uid": f"uid-{name}"}],
            },
        }

    def taken(self, claims: Iterable[Plain]) -> dict[str, Counter[str]]:
        """Return what claims take, by counter set, or by device where many share it."""
        taken: dict[str, Counter[str]] = {}
        for claim in claims:
            for set_name, amounts in self._takes(claim):
                taken.setdefault(set_name, Counter()).update(amounts)
        return taken

    def full(self, claims: Iterable[Plain]) -> set[str]:
        """Return the devices that many may share, and of which one claim has all memory."""
        return {
            self._device(claim)["name"]
            for claim in claims
            if any(
                set_name == self._device(claim)["name"]
                and amounts["memory"] == _amount(self._device(claim)["capacity"]["memory"]["value"])
                for set_name, amounts in self._takes(claim)
            )
        }

    def holds(self, claims: Iterable[Plain]) -> bool:
        """Return whether kube-scheduler may have allocated all of these, by their sizes."""
        totals = self.counters | {
            name: _amounts(device["capacity"])
            for name, device in self.devices.items()
            if "consumesCounters" not in device
        }
        return all(
            amount <= totals[set_name].get(counter, 0)
            for set_name, amounts in self.taken(claims).items()
            for counter, amount in amounts.items()
        )

    def _device(self, claim: Plain) -> Plain:
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        return self.devices[result["device"]]

    def _takes(self, claim: Plain) -> Iterator[tuple[str, dict[str, int]]]:
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        device = self._device(claim)
        if "consumesCounters" in device:
            for consumed in device["consumesCounters"]:
                yield consumed["counterSet"], _amounts(consumed["counters"])
        elif device.get("allowMultipleAllocations"):
            consumed = result["consumedCapacity"]
            yield device["name"], {name: _amount(consumed[name]) for name in consumed}
        else:
            yield device["name"], _amounts(device["capacity"])


def _amount(text: str) -> int:
    return quantity({"amount": text}, "amount") or 0


def _amounts(plain: Plain) -> dict[str, int]:
    return {name: _amount(one["value"]) for name, one in plain.items()}


def _consumed(capacity: Plain, eighths: int) -> int:
    """Return so many eighths of a capacity, rounded up by its policy."""
    total, policy = _amount(capacity["value"]), capacity["requestPolicy"]
    asked = -(-total * eighths // 8)
    if "validValues" in policy:
        sizes = [_amount(size) for size in policy["validValues"]]
        return min((size for size in sizes if size >= asked), default=max(sizes))
    least, most, step = (_amount(policy["validRange"][name]) for name in ("min", "max", "step"))
    return min(least + -(-max(asked - least, 0) // step) * step, most)


def user_of(rng: random.Random, name: str) -> Plain:
    """Return a pod of up to three containers that use the claim of its name."""
    uses = {"resources": {"claims": [{"name": "card"}]}}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {
            "nodeName": "n1",
            "resourceClaims": [{"name": "card", "resourceClaimName": name}],
            "initContainers": [{"name": "first", **uses}] * rng.choice((0, 0, 1)),
            "containers": [
                {"name": f"main-{number}", **uses} for number in range(rng.choice((1, 1, 2)))
            ],
        },
        "status": {"phase": "Pending"},
    }


async def _live(it: Site, _: Card, *, seed: int, claims: int, look: int) -> None:
    rng = random.Random(seed)
    others = Others(it, random.Random(seed + 1), changes_settings=False)
    api, standing = it.at.api, dict[str, Plain]()
    prepared = 0
    for step in range(claims):
        pool, name = Pool.of(api.slices.values()), f"claim-{step:05}"
        claim, pod = pool.allocated(rng, name, standing.values()), user_of(rng, name)
        api.put("pods", pod, event="ADDED")
        api.put("resourceclaims", claim, event="ADDED")
        answer = await prepare(it.at, name)
        fits = pool.holds([*standing.values(), claim])
        assert fits == (answer.error == ""), (seed, step, claim, answer.error)
        if fits:
            standing[name] = claim
            prepared += 1
        else:  # kube-scheduler allocates no such
            api.put("resourceclaims", claim, event="DELETED")
            api.put("pods", pod, event="DELETED")
        while standing and rng.random() < 0.45:
            ended = rng.choice([*standing])
            assert "" == await unprepare(it.at, ended)
            api.put("resourceclaims", standing.pop(ended), event="DELETED")
            api.put("pods", api.pods["default", ended], event="DELETED")
        if rng.random() < 0.02:
            await it.restart_agent()
        if rng.random() < 0.02:
            await it.start_scheduler()
        await others.act()
        await until(lambda: _tainted(it) == others.uuids)
        books = await it.settled(driver=step % look == 0)
        assert not (wrong := differences(books)), f"seed {seed}, step {step}: {wrong}"
        assert [] == it.shared_parts(), (seed, step)
        device_by_uuid = {
            device["attributes"]["uuid"]["string"]: name
            for name, device in pool.devices.items()
            if device.get("allowMultipleAllocations")
        }
        in_slices = pool.taken(standing.values())
        for uuid, name in device_by_uuid.items():
            if uuid in others.uuids:  # of which kube-scheduler knows nothing
                continue
            counted = in_slices.get(name, Counter())
            expected = {_COUNTERS[one]: counted[one] for one in _COUNTERS}
            if name in pool.full(standing.values()):  # nobody else can be on it, as with pods
                capacity = it.capacity[uuid]
                expected |= {CORE: counted["cores"] or capacity[CORE], SLOTS: capacity[SLOTS]}
            assert expected == {one: books["agent"][uuid][one] for one in expected}, (seed, step)
    assert prepared > claims / 4


def _tainted(it: Site) -> set[str]:
    """Return the UUIDs of the devices that have taints in the node's slices."""
    return {
        device["attributes"]["uuid"]["string"]
        for resource_slice in it.at.api.slices.values()
        for device in resource_slice["spec"].get("devices", ())
        if device.get("taints")
    }


def _tell(path: Path, *, seed: int, claims: int, look: int = _LOOK, seconds: float = 280) -> None:
    print(f"seed {seed}", file=sys.stderr)
    tell(
        partial(_impatient, seed=seed, claims=claims, look=look),
        path,
        *ALL.values(),
        seconds=seconds,
        allocation=AllocationWay.DRA,
    )


async def _impatient(it: Site, card: Card, *, seed: int, claims: int, look: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_claims, "_DEVICE_WAIT_S", 0.0)  # a claim that has no room waits for none
        await _live(it, card, seed=seed, claims=claims, look=look)


@pytest.mark.timeout(300)  # 30 s of a processor, and several times that beside other tests
def test_fifty_random_claims_of_all_vendors_are_the_same_in_all_books(tmp_path: Path) -> None:
    _tell(tmp_path, seed=50, claims=50)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", SOAK_SEEDS)
def test_ten_thousand_random_claims_are_the_same_in_all_books(tmp_path: Path, seed: int) -> None:
    _tell(tmp_path, seed=seed, claims=500, look=_SOAK_LOOK, seconds=1100)
