"""Cards of every vendor for a node's tests, and what a pod writes for a part of one."""

import multiprocessing
import os
import random
from collections.abc import Callable, Coroutine
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from attrs import frozen
from racks import CARDS, Rack, card, threaded_registry

from hetero.kube.dra.way import AllocationWay
from tests.kube.site import Site, site
from tests.kube.world import run

#: What random tests of a soak begin with: other seeds each time, and the same in all workers of
#: pytest-xdist, which has them collect the same tests.
SOAK_SEEDS = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID")).sample(range(10**6), k=20)


@frozen
class Card:
    """A card in a rack's words, of a vendor; `part` returns the limits for so many eighths."""

    vendor: str
    rack: str
    part: Callable[[int], dict[str, str]]

    @property
    def resource(self) -> str:
        """What its parts are counted by."""
        return next(iter(self.part(1)))


Story = Callable[[Site, Card], Coroutine[None, None, None]]


def tell(
    story: Story,
    path: Path,
    *cards: Card,
    seconds: float = 180,
    allocation: AllocationWay = AllocationWay.CLASSIC,
) -> None:
    """Tell a story of the first of these cards, which a node has, in a process of its own.

    It is made by one that has no threads, as a process that has used gRPC has: vendors' processes
    are forks.
    """
    clean = multiprocessing.get_context("forkserver")
    clean.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(1, mp_context=clean) as process:
        process.submit(_tell, story, path, cards, seconds, allocation).result()


def _tell(
    story: Story,
    path: Path,
    cards: tuple[Card, ...],
    seconds: float,
    allocation: AllocationWay,
) -> None:
    async def told() -> None:
        vendors = threaded_registry(*dict.fromkeys(card.vendor for card in cards))
        resources = (card.resource for card in cards)
        async with site(vendors, *resources, allocation=allocation) as made:
            await story(made, cards[0])

    Rack(path, *(card.rack for card in cards)).meet(lambda: run(told, seconds=seconds))


def _cambricon(eighths: int) -> dict[str, str]:
    return {
        "cambricon.com/vmlu": "1",
        "cambricon.com/mlu.smlu.vmemory": str(12 * eighths),
        "cambricon.com/mlu.smlu.vcore": str(12 * eighths),
    }


def _hygon(eighths: int) -> dict[str, str]:
    return {
        "hygon.com/dcunum": "1",
        "hygon.com/dcumem": str(8190 * eighths),
        "hygon.com/dcucores": str(12 * eighths),
    }


def _metax(eighths: int) -> dict[str, str]:
    return {
        "metax-tech.com/sgpu": "1",
        "metax-tech.com/vmemory": str(8 * eighths),
        "metax-tech.com/vcore": str(12 * eighths),
    }


def _ascend(eighths: int) -> dict[str, str]:
    return {
        "huawei.com/Ascend910B3": "1",
        "huawei.com/Ascend910B3-memory": str(8 * 1024 * eighths),
    }


def _mthreads(eighths: int) -> dict[str, str]:
    return {
        "mthreads.com/vgpu": "1",
        "mthreads.com/sgpu-memory": str(8 * eighths),  # of 96: its sizes are powers of two
        "mthreads.com/sgpu-core": str(2 * eighths),
    }


def _nvidia(eighths: int) -> dict[str, str]:
    return {
        "nvidia.com/gpu": "1",
        "nvidia.com/gpumem": str(2_800 * eighths),
        "nvidia.com/gpucores": str(12 * eighths),
    }


def _amd(eighths: int) -> dict[str, str]:
    return {
        "amd.com/gpu": "1",
        "amd.com/gpumem": str(2_048 * eighths),
        "amd.com/gpucores": str(12 * eighths),
    }


def _iluvatar(eighths: int) -> dict[str, str]:
    return {
        "iluvatar.ai/BI-V150-vgpu": "1",
        "iluvatar.ai/BI-V150.vMem": str(16 * eighths),
        "iluvatar.ai/BI-V150.vCore": str(12 * eighths),
    }


def _mig(_: int) -> dict[str, str]:
    return {"nvidia.com/mig-1g.18gb": "1"}


#: Cards of whose slices one is handed from container to container.
HANDED = {
    "cambricon": Card("cambricon", CARDS["cambricon"], _cambricon),
    "hygon": Card("hygon", CARDS["hygon"], _hygon),
    "metax": Card("metax", CARDS["metax"], _metax),
}
#: Cards that are cut, by whomever.
CUT = {
    **HANDED,
    "ascend": Card("ascend", CARDS["ascend"], _ascend),
    "mthreads": Card("mthreads", card("mthreads", "MTT S4000", "48 GiB", core="16"), _mthreads),
    "mig": Card("nvidia", card("nvidia", "NVIDIA H200", "141 GiB", mig="1g.18gb x3"), _mig),
}
#: One of each way that a card is shared.
ALL = {
    **CUT,
    "nvidia": Card("nvidia", card("nvidia", "NVIDIA L4", "23034 MiB"), _nvidia),
    "amd": Card("amd", card("amd", "gfx942", "16 GiB"), _amd),
    "iluvatar": Card("iluvatar", card("iluvatar", "BI-V150", "32 GiB"), _iluvatar),
}
