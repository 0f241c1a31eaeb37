"""What each vendor's library says of a card is on the device: where it is and what is near it."""

import ctypes
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import hetero_iluvatar
import pytest
from attrs import evolve
from hetero_simulator import fake_drivers, rack_keys
from racks import PLUGINS, Rack, card, discover, fault, registry

from hetero.model import Device, Enforcement, Fractional, Granularity, Link, Usage, Whole
from hetero.node.rack_check import cards_of_rack

MODELS = {
    "nvidia": ("NVIDIA A100", "80 GiB"),
    "amd": ("Instinct MI60", "32 GiB"),
    "ascend": ("910B3", "64 GiB"),
    "hygon": ("K100_AI", "64 GiB"),
    "cambricon": ("MLU370-X8", "24 GiB"),
    "iluvatar": ("Iluvatar BI-V150", "32 GiB"),
    "mthreads": ("MTT S4000", "48 GiB"),
    "metax": ("MXC500", "64 GiB"),
}
#: The vendor's own way between cards, faster than any over PCIe, and what it weighs.
OWN = {
    "nvidia": ("NV12", "NV12", 120),
    "amd": ("XGMI", "XGMI", 20),
    "ascend": ("HCCS", "HCCS", 20),
    "hygon": ("XGMI", "XGMI", 20),
    "mthreads": ("MTLINK2", "MtLink", 20),
    "metax": ("METAXLINK", "MetaXLink", 20),
}


def two(directory: Path, vendor: str, way: str | None) -> tuple[Device, ...]:
    """Discover two cards of a vendor on NUMA node 1, and the way between them."""
    model, memory = MODELS[vendor]
    first = {"pci": "0000:18:00.0", "numa": "1", **({"links": f"1:{way}"} if way else {})}
    second = {"pci": "0000:3b:00.0", "numa": "1", **({"links": f"0:{way}"} if way else {})}
    cards = [card(vendor, model, memory, **facts) for facts in (first, second)]
    return Rack(directory, *cards).meet(lambda: discover(vendor)).devices


@pytest.mark.parametrize("vendor", PLUGINS)
def test_a_card_says_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendor: str
) -> None:
    # Where a driver does not say the NUMA node, the kernel does.
    monkeypatch.setenv("HETERO_SYSFS", str(tmp_path))
    for address in ("0000:18:00.0", "0000:3b:00.0"):
        (tmp_path / "bus/pci/devices" / address).mkdir(parents=True)
        (tmp_path / "bus/pci/devices" / address / "numa_node").write_text("1\n")
    first, second = two(tmp_path, vendor, None)

    assert ["0000:18:00.0", "0000:3b:00.0"] == [first.pci, second.pci]
    assert [1, 1] == [first.numa, second.numa]


@pytest.mark.parametrize("vendor", ["amd", "cambricon", "hygon", "metax", "nvidia"])
def test_a_card_says_the_limit_of_its_power_where_its_driver_does(
    tmp_path: Path, vendor: str
) -> None:
    model, memory = MODELS[vendor]
    facts = card(vendor, model, memory, power="151", power_limit="350")
    rack = Rack(tmp_path, facts, card(vendor, model, memory, power="151"))

    def limits() -> list[float | None]:
        vendors = registry(vendor)
        return [vendors.observe(device).power_limit for device in vendors.discover().devices]

    assert [350.0, None] == rack.meet(limits)


@pytest.mark.parametrize("vendor", PLUGINS)
def test_a_card_says_its_temperature_and_power_where_its_driver_does(
    tmp_path: Path, vendor: str
) -> None:
    model, memory = MODELS[vendor]
    with_readings = card(vendor, model, memory, temperature="57", power="151")
    rack = Rack(tmp_path, with_readings, card(vendor, model, memory))

    def usages() -> list[tuple[int | None, float | None]]:
        vendors = registry(vendor)
        usages_read = [vendors.observe(device) for device in vendors.discover().devices]
        return [(usage.temperature, usage.power) for usage in usages_read]

    assert [(57, 151.0), (None, None)] == rack.meet(usages)


@pytest.mark.parametrize("vendor", OWN)
def test_cards_on_the_vendors_own_links_know_each_other(tmp_path: Path, vendor: str) -> None:
    link, kind, weight = OWN[vendor]
    first, second = two(tmp_path, vendor, link)

    assert (Link(second.uuid, kind, weight),) == first.links
    assert (Link(first.uuid, kind, weight),) == second.links


@pytest.mark.parametrize(
    ("vendor", "way", "weight"),
    [
        (vendor, way, weight)
        for vendor in PLUGINS
        for way, weight in (("PIX", 5), ("SYS", 1))
        # ROCm SMI counts hops between NUMA nodes and knows no switches.
        if (vendor, way) not in (("hygon", "PIX"), ("amd", "PIX"))
    ],
)
def test_the_way_over_pcie_is_told_by_the_name_all_vendors_share(
    tmp_path: Path, vendor: str, way: str, weight: int
) -> None:
    first, second = two(tmp_path, vendor, way)

    assert (Link(second.uuid, way, weight),) == first.links


#: The most that a rack may say, of every key.
EXTREMES = {
    "uuid": "GPU-423592d2d74e6a1b",
    "serial": "AB-0017",
    "pci": "ffff:ff:1f.0",
    "numa": "31",
    "health": "ok",
    "recovery": "0",
    "xid": "999",
    "used": "1 GiB",
    "busy": "100",
    "processes": "999999999:1",
    "core": "120",
    "compute": "99.9",
    "multiprocessors": "9999",
    "reserved": "0 B",
    "bandwidth": "999999999 GB/s",
    "context": "1 GiB",
    "power": "9999",
    "power_limit": "9999",
    "temperature": "199",
    "slice": "999999999 s",
    "switch": "0 us",
    "aicpu": "99",
    "card": "63",
    "chip": "0",
    "cpus": "0-23,48-71",
    "sgpu": "on",
    "smlu": "on",
}


@pytest.mark.parametrize("vendor", PLUGINS)
def test_what_the_check_of_racks_takes_is_a_card_to_every_driver(
    tmp_path: Path, vendor: str
) -> None:
    links = f"1:{rack_keys.LINKS[vendor].expected}"
    facts = {**EXTREMES, "links": links}
    assert rack_keys.KEYS["device"].keys() - {"vendor", "model", "memory", "mig"} == facts.keys()
    cards = [card(vendor, MODELS[vendor][0], "16 TiB", **each) for each in (facts, {})]
    rack = Rack(tmp_path, *cards)

    cards_of_rack(rack.path, rack_keys)
    discovery = rack.meet(lambda: discover(vendor))

    assert [("ok", 2)] == [(row.state, row.devices) for row in discovery.rows]
    assert all(device.usable for device in discovery.devices)


def test_what_runs_on_moore_threads_cards_knows_their_links(tmp_path: Path) -> None:
    cards = [card("mthreads", *MODELS["mthreads"], links=link) for link in ("1:MTLINK2", "0:SYS")]

    def start() -> int:
        return int(ctypes.CDLL(str(fake_drivers() / "libmusa.so.1")).muInit(0))

    assert 0 == Rack(tmp_path, *cards).meet(start)


def test_a_share_of_an_iluvatar_card_is_kept_only_where_a_cuda_driver_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_driver, _ = two(tmp_path, "iluvatar", None)
    monkeypatch.setattr(hetero_iluvatar, "_CUDA", ("libnowhere.so.1",))
    without, _ = two(tmp_path, "iluvatar", None)

    assert (Enforcement.PRELOAD, Enforcement.NONE) == (with_driver.enforcement, without.enforcement)


def test_a_cambricon_card_is_whole_until_its_smlu_mode_is_on(tmp_path: Path) -> None:
    def read_card(**mode: str) -> tuple[Granularity, Enforcement, Mapping[str, str]]:
        rack = Rack(tmp_path, card("cambricon", "MLU370-X8", "24 GiB", **mode))
        (device,) = rack.meet(lambda: discover("cambricon")).devices
        return device.granularity, device.enforcement, device.attributes

    off, on = read_card(smlu="off"), read_card(smlu="on")

    driver = {"driver": "6.2.10"}
    assert (Whole(), Enforcement.NONE, {"smlu": "off", **driver}) == off
    assert (True, Enforcement.PARTITION, driver) == (isinstance(on[0], Fractional), *on[1:])


def test_a_model_no_table_knows_is_whole_or_a_line_that_names_it(tmp_path: Path) -> None:
    unknown = {"cambricon": "MLU290", "mthreads": "MTT S80"}
    for vendor, model in unknown.items():
        (device,) = (
            Rack(tmp_path, card(vendor, model, "16 GiB")).meet(partial(discover, vendor)).devices
        )
        assert Whole() == device.granularity
    (row,) = Rack(tmp_path, card("ascend", "950X", "64 GiB")).meet(partial(discover, "ascend")).rows

    assert ("broken", 0) == (row.state, row.devices)
    assert "no declared model matches '950X'" in str(row.reason)


@pytest.mark.parametrize("vendor", ["amd", "hygon"])
@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ("", [{31: 1 << 30}, {32: 2 << 30}]),
        # As a kernel does that says nothing of its processes, and one that fails.
        (fault("rsmi_compute_process_info_by_device_get", "error 2"), [None, None]),
        (fault("rsmi_compute_process_info_by_device_get", "missing"), [None, None]),
        (fault("rsmi_compute_process_info_get", "error 999"), [None, None]),
    ],
)
def test_what_processes_have_of_a_card_is_told_or_not_known(
    tmp_path: Path, vendor: str, faults: str, expected: list[dict[int, int] | None]
) -> None:
    """Each of them on its own card, though the library's list is of the machine."""
    model, memory = MODELS[vendor]
    cards = [card(vendor, model, memory, processes=said) for said in ("31:1024", "32:2048")]

    def known() -> list[Mapping[int, int] | None]:
        vendors = registry(vendor)
        shared = [evolve(d, enforcement=Enforcement.PRELOAD) for d in vendors.discover().devices]
        return [vendors.observe(device).processes for device in shared]

    assert expected == Rack(tmp_path, *cards, faults).meet(known)


def test_of_a_hygon_card_that_no_limiter_shares_nothing_is_told_of_processes(
    tmp_path: Path,
) -> None:
    rack = Rack(tmp_path, card("hygon", *MODELS["hygon"], processes="31:1024"))

    def known() -> Mapping[int, int] | None:
        vendors = registry("hygon")
        return vendors.observe(vendors.discover().devices[0]).processes

    assert rack.meet(known) is None


@pytest.mark.parametrize(
    ("vendor", "call", "denied"),
    [
        ("ascend", "dcmi_get_device_resource_info", "-8002"),
        ("cambricon", "cndevGetProcessInfo", "13"),
    ],
)
def test_drivers_that_cut_cards_say_what_each_process_has_as_far_as_they_may(
    tmp_path: Path, vendor: str, call: str, denied: str
) -> None:
    """Of more processes than there is room for at first; denied, the rest is known all the same."""
    held_by_many = " ".join(f"{pid}:{pid}" for pid in range(31, 61))
    usages = []
    for number, faults in enumerate(("", fault(call, f"error {denied}"), fault(call, "missing"))):
        (tmp_path / str(number)).mkdir()
        cards = [card(vendor, *MODELS[vendor], processes=held) for held in (held_by_many, "7:1024")]

        def known() -> list[Usage]:
            vendors = registry(vendor)
            return [vendors.observe(device) for device in vendors.discover().devices]

        usages.append(Rack(tmp_path / str(number), *cards, faults).meet(known))

    (many, single), *unknown = usages
    assert {pid: pid << 20 for pid in range(31, 61)} == many.processes
    assert {7: 1 << 30} == single.processes
    assert [[None, None]] * 2 == [[usage.processes for usage in pair] for pair in unknown]
    assert [[many.memory, 1 << 30]] * 2 == [[usage.memory for usage in pair] for pair in unknown]
