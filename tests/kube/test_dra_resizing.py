"""The share of a claim in use, made smaller and as large again as it was."""

import pytest
from attrs import evolve

from hetero.model import CORE, MEMORY, SLOTS, Fractional, Step
from hetero.model.units import GiB, MiB
from tests.kube.claims import allocated, dra_world, prepare
from tests.kube.world import World, until


def sized(at: World) -> tuple[int, int | None]:
    """Return the bytes and the core of the one grant, as its ledger has them and its limiter."""
    (entry,) = at.node.snapshot().grants
    (piece,), (limit,) = entry.allocation.pieces, entry.limits
    (device,) = [one for one in at.vendor.devices if one.uuid == piece.device]
    core = 10000 if piece.core is None else piece.core * 10000 // device.capacity[CORE]
    assert (piece.takes[MEMORY], core) == (limit.memory, limit.core)
    assert 1 == piece.takes[SLOTS]  # kube-scheduler gives the others away
    assert limit.context
    return piece.takes[MEMORY], piece.core


#: What a claim consumes, what it says, and the size that it has then: bytes and core.
SIZES = [
    ("40", "memory=2Gi,cores=20", (2 * GiB, 20)),
    ("40", "cores=10", (4 * GiB, 10)),
    ("40", "cores=40", (4 * GiB, 40)),
    ("40", "memory=1Gi", (1 * GiB, 40)),
    ("40", "", (4 * GiB, 40)),
    ("100", "cores=10", (4 * GiB, 10)),
    ("100", "", (4 * GiB, None)),
    ("100", "memory=1Gi", (1 * GiB, None)),
    ("100", "memory=4Gi,cores=100", (4 * GiB, None)),
    ("0", "memory=1Gi", (1 * GiB, None)),
]


@pytest.mark.parametrize("cores", ["40", "100", "0"])
async def test_a_claim_in_use_is_resized_within_what_it_consumes(cores: str) -> None:
    async with dra_world() as at:
        driver = at.driver
        metadata = allocated(at, "one", memory="4Gi", cores=cores)["metadata"]
        first = await prepare(at, "one")
        whole = None if cores in ("0", "100") else int(cores)
        assert [] == await driver.claims.reconcile()
        assert (4 * GiB, whole) == sized(at)
        for size_text, size in [row[1:] for row in SIZES if row[0] == cores]:
            metadata["annotations"] = {"hetero.io/resize": size_text}
            assert [] == await driver.claims.reconcile()
            assert size == sized(at)
            metadata["annotations"] = {}
            assert [] == await driver.claims.reconcile()
            assert (4 * GiB, whole) == sized(at)
        assert first == await prepare(at, "one")


@pytest.mark.parametrize(
    ("grains", "units", "consumed"),
    [
        (Fractional(memory=Step(256 * MiB), together=True), 100, "100"),
        (Fractional(memory=Step(256 * MiB), together=True), 120, "7"),
        (Fractional(memory=Step(256 * MiB), core=Step(5)), 100, "15"),
    ],
)
async def test_a_claim_that_says_no_size_keeps_what_it_consumes_however_its_card_is_cut(
    grains: Fractional, units: int, consumed: str
) -> None:
    """And one that says a size has that, rounded up as the card is cut, and slots as it had."""
    async with dra_world() as at:
        driver = at.driver
        for number, device in enumerate(at.vendor.devices):
            capacity = {**device.capacity, CORE: units}
            at.vendor.devices[number] = evolve(device, granularity=grains, capacity=capacity)
        await until(lambda: driver.claims.discovery().devices[0].granularity == grains)
        metadata = allocated(at, "one", memory="4Gi", cores=consumed)["metadata"]
        assert "" == (await prepare(at, "one")).error
        before = sized(at)
        (standing,) = at.node.snapshot().grants
        assert [] == await driver.claims.reconcile()
        assert (standing,) == at.node.snapshot().grants

        metadata["annotations"] = {"hetero.io/resize": "memory=1000Mi,cores=6"}
        assert [] == await driver.claims.reconcile()
        core = 10 if grains.core == Step(5) else 6
        assert (1 * GiB, core) == sized(at)
        metadata["annotations"] = {}
        assert [] == await driver.claims.reconcile()
        assert before == sized(at)


@pytest.mark.parametrize(
    ("size_text", "sentence"),
    [
        ("memory=5Gi", "5 GiB of memory is more than the claim consumes, 4 GiB"),
        ("cores=41", "41 cores are more than the claim consumes, 40"),
        ("size=1", "'size=1': write memory=2Gi,cores=20, or one of them"),
        ("memory=", "'memory=': write memory=2Gi,cores=20, or one of them"),
        ("memory=much", "'much' is not a number"),
        ("memory=0", "0 is no size: leave out what is to be as the claim consumes it"),
        ("cores=0", "0 is no size: leave out what is to be as the claim consumes it"),
        ("memory=2Gi,cores=41", "41 cores are more than the claim consumes, 40"),
    ],
)
async def test_a_size_that_cannot_be_had_is_refused_with_a_sentence(
    size_text: str, sentence: str
) -> None:
    async with dra_world() as at:
        driver = at.driver
        metadata = allocated(at, "one", memory="4Gi", cores="40")["metadata"]
        await prepare(at, "one")
        metadata["annotations"] = {"hetero.io/resize": size_text}
        ((entry, why),) = await driver.claims.reconcile()
        assert "default/one" == entry.label
        assert why.startswith("claim default/one: ")
        assert why.endswith(sentence)
        assert (4 * GiB, 40) == sized(at)


async def test_a_claim_that_was_lowered_does_not_grow_back_while_its_card_is_cordoned() -> None:
    async with dra_world() as at:
        driver = at.driver
        metadata = allocated(at, "one", memory="4Gi", cores="40")["metadata"]
        await prepare(at, "one")
        metadata["annotations"] = {"hetero.io/resize": "memory=2Gi"}
        assert [] == await driver.claims.reconcile()
        at.vendor.devices[0] = evolve(at.vendor.devices[0], cordon="loud fan")
        await until(lambda: not driver.claims.discovery().devices[0].usable)

        metadata["annotations"] = {}
        ((_, why),) = await driver.claims.reconcile()
        metadata["annotations"] = {"hetero.io/resize": "memory=1Gi"}
        smaller = await driver.claims.reconcile()

        assert why.endswith(
            "stays as it is: nothing more is given of memory:0: cordoned (loud fan)"
        )
        assert [] == smaller
        assert (1 * GiB, 40) == sized(at)
        at.vendor.devices[0] = evolve(at.vendor.devices[0], cordon=None)
        await until(lambda: driver.claims.discovery().devices[0].usable)
        metadata["annotations"] = {}
        assert [] == await driver.claims.reconcile()
        assert (4 * GiB, 40) == sized(at)
