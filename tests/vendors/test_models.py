"""Every card of the published table divides as its vendor says: numbers from facts, not our code.

Ascend templates, cores and allocatable sizes: MindCluster and HAMi's 2.10 chart. The other grains:
HAMi's FAQ on granularity, and each vendor's device plugin.
"""

from pathlib import Path

import pytest
import racks
from contract import contract_holds
from racks import PLUGINS, Rack, card, discover, request

from hetero.model import CORE, MEMORY, SLOTS, Allocation, Ask, Device, Inventory, Refusal
from hetero.model.rounding import portion
from hetero.model.units import GiB, MiB
from hetero.placement import fit

#: vendor, the model as its driver says it, memory of the card
CARDS = {
    "NVIDIA H200": ("nvidia", "NVIDIA H200", "143771 MiB"),
    "910A": ("ascend", "910A", "32768 MiB"),
    "910B2": ("ascend", "910B2", "65536 MiB"),
    "910B3": ("ascend", "910B3", "65536 MiB"),
    "910B4": ("ascend", "910B4", "32768 MiB"),
    "910B4-1": ("ascend", "910B4-1", "65536 MiB"),
    "910C": ("ascend", "Ascend910", "65536 MiB"),
    "310P3": ("ascend", "310P3", "24576 MiB"),
    "MI60": ("amd", "Instinct MI60", "32 GiB"),
    "Z100": ("hygon", "Z100", "16 GiB"),
    "Z100L": ("hygon", "Z100L", "32 GiB"),
    "K100": ("hygon", "K100", "64 GiB"),
    "K100-AI": ("hygon", "K100_AI", "64 GiB"),
    "MLU370-X8": ("cambricon", "MLU370-X8", "24 GiB"),
    "MLU590": ("cambricon", "MLU590", "80 GiB"),
    "MR-V100": ("iluvatar", "Iluvatar MR-V100", "32 GiB"),
    "BI-V150": ("iluvatar", "Iluvatar BI-V150", "32 GiB"),
    "MTT S4000": ("mthreads", "MTT S4000", "48 GiB"),
    "MXC500": ("metax", "MXC500", "64 GiB"),
}
CORES = {
    "910A": 30,
    "910B2": 24,
    "910B3": 20,
    "910B4": 20,
    "910B4-1": 20,
    "910C": 20,
    "310P3": 8,
    "Z100": 60,
    "Z100L": 60,
    "K100": 120,
    "K100-AI": 120,
    "MTT S4000": 16,
}
ON = {"cambricon": {"smlu": "on"}}


def on_rack(name: str) -> str:
    vendor, model, memory = CARDS[name]
    return card(vendor, model, memory, **ON.get(vendor, {}))


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Device]:
    """Every card of the table, as discovered: one machine of each vendor's."""
    devices_by_name: dict[str, Device] = {}
    for vendor in PLUGINS:
        names = [name for name, (whose, _, _) in CARDS.items() if whose == vendor]
        rack = Rack(tmp_path_factory.mktemp(vendor), *map(on_rack, names))
        devices = rack.meet(lambda vendor=vendor: discover(vendor)).devices  # type: ignore[misc]
        devices_by_name.update(zip(names, devices, strict=True))
    return devices_by_name


def cut(device: Device, ask: Ask, *, count: int = 1) -> tuple[str | None, int, int]:
    """Return the template, the memory in MiB and the core that an ask gets of an empty device."""
    got = portion(device, ask, count=count, free=device.capacity)
    assert got is not None
    return got.template, got.takes[MEMORY] // MiB, got.takes[CORE]


@pytest.mark.parametrize("vendor", [name for name in PLUGINS if name != "nvidia"])
def test_the_contract_holds_on_two_cards(tmp_path: Path, vendor: str) -> None:
    whole = next(name for name, (whose, *_) in CARDS.items() if whose == vendor)
    card = racks.CARDS.get(vendor) or on_rack(whole)
    contract_holds(f"hetero_{vendor}", Rack(tmp_path, card * 2).path)


@pytest.mark.parametrize("name", CARDS)
def test_a_card_is_named_and_has_the_cores_of_its_model(
    cards: dict[str, Device], name: str
) -> None:
    assert name in cards[name].model
    assert CORES.get(name, 100) == cards[name].capacity[CORE]
    assert "ok" == cards[name].health


# --- rounding: what 30 % and 3000 MiB become -----------------------------------------------------


@pytest.mark.parametrize(
    ("name", "template", "memory", "core"),
    [
        ("NVIDIA H200", None, 3000, 30),
        ("K100-AI", None, 3000, 36),
        ("MLU370-X8", None, 3072, 30),
        ("BI-V150", None, 3072, 30),
        ("MTT S4000", None, 4096, 5),
        ("910B3", "vir10_3c_32g", 32768, 10),
        ("910B2", "vir12_3c_32g", 32768, 12),
        ("310P3", "vir04", 12288, 4),
        ("MXC500", None, 65536, 100),
    ],
    ids=[
        "nvidia: 3000 MiB",
        "hygon: 3000 MiB",
        "cambricon: 3072 MiB",
        "iluvatar: 3072 MiB",
        "mthreads: 5 of 16 groups and 4096 MiB",
        "910B3: vir10_3c_32g",
        "910B2: vir12_3c_32g",
        "310P3: vir04",
        "MXC500: the whole card",
    ],
)
def test_30_percent_and_3000_mib_become(
    cards: dict[str, Device], name: str, template: str | None, memory: int, core: int
) -> None:
    assert (template, memory, core) == cut(cards[name], Ask(memory=3000 * MiB, core=30))


#: For every template: the largest request in MiB it serves. Above the last one: the whole card.
MENUS = {
    "910A": [("vir02", 2184), ("vir04", 4369), ("vir08", 8738), ("vir16", 17476)],
    "910B2": [("vir03_1c_8g", 8192), ("vir06_1c_16g", 16384), ("vir12_3c_32g", 32768)],
    "910B3": [("vir05_1c_16g", 16384), ("vir10_3c_32g", 32768)],
    "910B4": [("vir05_1c_8g", 8192), ("vir10_3c_16g", 16384)],
    "910B4-1": [("vir05_1c_16g", 16384), ("vir10_3c_32g", 32768)],
    "910C": [("vir05_1c_16g", 16384), ("vir10_3c_32g", 32768)],
    "310P3": [("vir01", 3072), ("vir02", 6144), ("vir04", 12288)],
}


@pytest.mark.parametrize("name", MENUS)
def test_the_smallest_template_that_covers_the_memory_is_taken(
    cards: dict[str, Device], name: str
) -> None:
    above = 1
    for template, largest in MENUS[name]:
        assert (template, largest) == cut(cards[name], Ask(memory=above * MiB))[:2]
        assert (template, largest) == cut(cards[name], Ask(memory=largest * MiB))[:2]
        above = largest + 1
    whole = cards[name].capacity
    assert (None, whole[MEMORY] // MiB, whole[CORE]) == cut(cards[name], Ask(memory=above * MiB))


def test_a_310p3_gives_out_21527_mib_of_its_24_gib(cards: dict[str, Device]) -> None:
    assert 21527 * MiB == cards["310P3"].capacity[MEMORY]
    assert (
        portion(cards["310P3"], Ask(memory=21528 * MiB), count=1, free=cards["310P3"].capacity)
        is None
    )


@pytest.mark.parametrize(
    ("name", "fits"),
    [("910A", 15), ("910B3", 4), ("910B4", 4), ("310P3", 7), ("910B2", 6)],
)
def test_as_many_of_the_smallest_template_fit_as_cores_memory_and_aicpus_allow(
    cards: dict[str, Device], name: str, fits: int
) -> None:
    standing: list[Allocation] = []
    while True:
        answer = fit(Inventory((cards[name],), tuple(standing)), request(Ask(memory=GiB)))
        if isinstance(answer, Refusal):
            break
        standing.append(answer)

    assert fits == len(standing)


@pytest.mark.parametrize("units", [2, 4, 8, 16, 32, 64, 96])
def test_an_s4000_gives_its_ladder_of_512_mib(cards: dict[str, Device], units: int) -> None:
    size = units * 512
    assert size == cut(cards["MTT S4000"], Ask(memory=(size - 1) * MiB, core=10))[1]
    assert size == cut(cards["MTT S4000"], Ask(memory=size * MiB, core=10))[1]


@pytest.mark.parametrize("name", ["MLU370-X8", "MLU590", "MR-V100", "BI-V150"])
def test_memory_comes_in_steps_of_256_mib(cards: dict[str, Device], name: str) -> None:
    assert (None, 256, 1) == cut(cards[name], Ask(memory=1, core=1))
    assert (None, 512, 7) == cut(cards[name], Ask(memory=256 * MiB + 1, core=7))


@pytest.mark.parametrize("name", ["Z100", "Z100L", "K100", "K100-AI"])
def test_a_dcu_is_cut_by_compute_units_and_mib_for_four(
    cards: dict[str, Device], name: str
) -> None:
    units = cards[name].capacity[CORE]

    assert (None, 1, -(-units // 100)) == cut(cards[name], Ask(memory=1, core=1))
    assert 4 == cards[name].capacity[SLOTS]


@pytest.mark.parametrize("name", ["MLU370-X8", "K100-AI", "MTT S4000"])
def test_core_that_is_not_named_comes_with_the_memory(cards: dict[str, Device], name: str) -> None:
    card = cards[name]
    quarter = Ask(memory=card.capacity[MEMORY] // 4)
    _, _, core = cut(card, quarter)
    standing: list[Allocation] = []
    while isinstance(
        answer := fit(Inventory((card,), tuple(standing)), request(quarter)), Allocation
    ):
        standing.append(answer)

    assert card.capacity[CORE] // 4 == core or "MTT S4000" == name
    assert (3 if name == "MTT S4000" else 4) == len(standing)  # its ladder has no 12 GiB


@pytest.mark.parametrize("name", [name for name in CARDS if name not in ("NVIDIA H200", "MI60")])
def test_several_cards_are_whole_cards(cards: dict[str, Device], name: str) -> None:
    card = cards[name]
    whole = (None, card.capacity[MEMORY] // MiB, card.capacity[CORE])

    assert whole == cut(card, Ask(memory=GiB, core=10), count=2)


@pytest.mark.parametrize("name", ["NVIDIA H200", "MI60"])
def test_several_cards_of_two_vendors_stay_shares(cards: dict[str, Device], name: str) -> None:
    assert (None, 1024, 10) == cut(cards[name], Ask(memory=GiB, core=10), count=2)


@pytest.mark.parametrize("name", [name for name in CARDS if name != "910C"])  # see its pairs
def test_a_whole_card_never_shares(cards: dict[str, Device], name: str) -> None:
    whole = fit(Inventory((cards[name],)), request(Ask()))
    assert isinstance(whole, Allocation)

    assert isinstance(fit(Inventory((cards[name],), (whole,)), request(Ask(memory=1))), Refusal)


# --- counting cards ------------------------------------------------------------------------------


def test_the_fifth_10_gib_of_a_910b3_is_refused_for_memory(cards: dict[str, Device]) -> None:
    standing: list[Allocation] = []
    for _ in range(4):
        answer = fit(Inventory((cards["910B3"],), tuple(standing)), request(Ask(memory=10 * GiB)))
        assert isinstance(answer, Allocation)
        standing.append(answer)
    fifth = fit(Inventory((cards["910B3"],), tuple(standing)), request(Ask(memory=10 * GiB)))

    assert isinstance(fifth, Refusal)
    assert "0 of 1 device: 1 lack memory (16 GiB wanted, largest free 0)" == fifth.sentence


def test_two_npus_with_1_gib_each_are_two_whole_cards(tmp_path: Path) -> None:
    rack = Rack(tmp_path, on_rack("910B3"), on_rack("910B3"))
    devices = rack.meet(lambda: discover("ascend")).devices
    answer = fit(Inventory(devices), request(Ask(memory=GiB), count=2))

    assert isinstance(answer, Allocation)
    assert [dict(device.capacity) for device in devices] == [g.takes for g in answer.pieces]


@pytest.fixture
def modules(tmp_path: Path) -> tuple[Device, ...]:
    """Two modules of two dies each, as 910C are sold."""
    dies = [
        card("ascend", "Ascend910", "65536 MiB", card=str(module), chip=str(chip))
        for module in (0, 1)
        for chip in (0, 1)
    ]
    return Rack(tmp_path, *dies).meet(lambda: discover("ascend")).devices


def test_a_910c_is_two_dies_of_one_group(modules: tuple[Device, ...]) -> None:
    first, second, third, fourth = modules

    assert first.group == second.group != third.group == fourth.group


@pytest.mark.parametrize("count", [1, 3])
def test_an_odd_number_of_910c_dies_is_refused(modules: tuple[Device, ...], count: int) -> None:
    answer = fit(Inventory(modules), request(count=count))

    assert isinstance(answer, Refusal)
    assert answer.sentence.endswith("4 only given 2 at a time")


def test_a_pair_of_910c_dies_is_one_module(modules: tuple[Device, ...]) -> None:
    first = fit(Inventory(modules), request(count=2))
    assert isinstance(first, Allocation)
    second = fit(Inventory(modules, (first,)), request(count=2))
    assert isinstance(second, Allocation)
    all_four = fit(Inventory(modules), request(count=4))
    group = {device.uuid: device.group for device in modules}

    assert 1 == len({group[grant.device] for grant in first.pieces})
    assert 1 == len({group[grant.device] for grant in second.pieces})
    assert isinstance(all_four, Allocation)
    assert isinstance(fit(Inventory(modules, (all_four,)), request(count=2)), Refusal)


def test_a_module_with_a_slice_on_one_die_is_not_given_whole(modules: tuple[Device, ...]) -> None:
    slices: list[Allocation] = []
    for _ in range(5):  # four on the first die, one on the next
        answer = fit(Inventory(modules, tuple(slices)), request(Ask(memory=10 * GiB)))
        assert isinstance(answer, Allocation)
        slices.append(answer)
    held = Inventory(modules, (slices[0],))
    pair = fit(held, request(count=2))
    both = fit(held, request(count=4))

    assert isinstance(pair, Allocation)
    group = {device.uuid: device.group for device in modules}
    assert group[slices[0].pieces[0].device] not in {group[g.device] for g in pair.pieces}
    assert isinstance(both, Refusal)
    assert "in a group of 2 that is not all free" in both.sentence


def test_half_a_module_by_name_is_refused(modules: tuple[Device, ...]) -> None:
    answer = fit(Inventory(modules), request(Ask(device="0"), Ask(device="2")))

    assert isinstance(answer, Refusal)
    assert "in a group of 2" in answer.sentence
