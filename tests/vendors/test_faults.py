"""Each vendor under each fault of its driver: one clear row, and the other six unharmed."""

from pathlib import Path

import pytest
from racks import LIBRARIES, PLUGINS, SHARE, Machine, Rack, card, discover, fault, registry

import hetero.registry.registry
from hetero.model import Device
from hetero.model.errors import Refused
from hetero.registry.registry import Discovery
from hetero.registry.vendor_row import VendorRow

MODELS = {
    "nvidia": ("NVIDIA L4", "24 GiB"),
    "amd": ("Instinct MI60", "32 GiB"),
    "ascend": ("910B3", "64 GiB"),
    "hygon": ("K100_AI", "64 GiB"),
    "cambricon": ("MLU370-X8", "24 GiB"),
    "iluvatar": ("Iluvatar BI-V150", "32 GiB"),
    "mthreads": ("MTT S4000", "48 GiB"),
    "metax": ("MXC500", "64 GiB"),
}
#: A machine with two cards of each.
RACK = "".join(card(vendor, *model) for vendor, model in MODELS.items() for _ in range(2))
#: For each vendor: the call that counts its cards, and one that no card can be known without.
COUNT = {
    "nvidia": "nvmlDeviceGetCount_v2",
    "amd": "rsmi_num_monitor_devices",
    "ascend": "dcmi_get_card_list",
    "hygon": "rsmi_num_monitor_devices",
    "cambricon": "cndevGetDeviceCount",
    "iluvatar": "nvmlDeviceGetCount_v2",
    "mthreads": "mtmlLibraryCountDevice",
    "metax": "mxSmlGetDeviceInfo",  # its count is no call that can fail
}
IDENTITY = {
    "nvidia": "nvmlDeviceGetUUID",
    "amd": "rsmi_dev_unique_id_get",
    "ascend": "dcmi_get_device_die_v2",
    "hygon": "rsmi_dev_serial_number_get",
    "cambricon": "cndevGetUUID",
    "iluvatar": "nvmlDeviceGetUUID",
    "mthreads": "mtmlDeviceGetUUID",
    "metax": "mxSmlGetDeviceInfo",
}
MEMORY = {
    "nvidia": "nvmlDeviceGetMemoryInfo*",
    "amd": "rsmi_dev_memory_total_get",
    "ascend": "dcmi_get_device_hbm_info",
    "hygon": "rsmi_dev_memory_total_get",
    "cambricon": "cndevGetMemoryUsageV2",
    "iluvatar": "nvmlDeviceGetMemoryInfo",
    "mthreads": "mtmlMemoryGetTotal",
    "metax": "mxSmlGetMemoryInfo",
}
#: What an older library may lack, and the card does without.
NEWER = {
    "nvidia": ("nvmlDeviceGetMemoryAffinity", "numa"),
    "amd": ("rsmi_dev_ecc_count_get", "health"),
    "ascend": ("dcmi_get_device_health", "health"),
    "hygon": ("rsmi_dev_ecc_count_get", "health"),
    "cambricon": ("cndevGetCardHealthState", "health"),
    "iluvatar": ("ixmlDeviceGetHealth", "health"),
    "mthreads": ("mtmlMemoryGetRetiredPagesPendingStatus", "health"),
    "metax": ("mxSmlGetDeviceState", "health"),
}
ERROR = {"ascend": "-8008", "mthreads": "2"}  # else 999 or what it means: unknown


def rows(discovery: Discovery) -> dict[str, VendorRow]:
    return {row.name: row for row in discovery.rows}


def others_are_well(discovery: Discovery, vendor: str) -> None:
    """All of the others: ok, with both their cards."""
    well = {name: ("ok", 2) for name in PLUGINS if name != vendor}
    assert well == {n: (r.state, r.devices) for n, r in rows(discovery).items() if n != vendor}


def broken(discovery: Discovery, vendor: str) -> str:
    """The reason in the vendor's row, which has no card, while the others are well."""
    others_are_well(discovery, vendor)
    row = rows(discovery)[vendor]
    assert ("broken", 0) == (row.state, row.devices)
    assert str(row.reason).startswith(f"{vendor}: discover: ")
    assert "\n" not in str(row.reason)
    return str(row.reason)


def test_all_are_well_without_a_fault(tmp_path: Path) -> None:
    others_are_well(Rack(tmp_path, RACK).meet(discover), "nobody")


@pytest.mark.parametrize("vendor", PLUGINS)
def test_a_library_that_is_missing_is_absent(tmp_path: Path, vendor: str) -> None:
    discovery = Rack(tmp_path, RACK).meet(discover, without=[vendor])

    others_are_well(discovery, vendor)
    row = rows(discovery)[vendor]
    assert ("absent", 0) == (row.state, row.devices)
    assert LIBRARIES[vendor].split(".")[0] in str(row.reason)


@pytest.mark.parametrize("vendor", PLUGINS)
def test_an_error_names_the_call_and_its_code(tmp_path: Path, vendor: str) -> None:
    code = ERROR.get(vendor, "7")
    rack = Rack(tmp_path, RACK, fault(COUNT[vendor], f"error {code}", vendor=vendor))
    reason = broken(rack.meet(discover), vendor)

    assert COUNT[vendor].removesuffix("_v2") in reason
    assert f"error {code}" in reason


@pytest.mark.parametrize("vendor", PLUGINS)
def test_a_driver_that_hangs_is_given_up_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendor: str
) -> None:
    monkeypatch.setattr(hetero.registry.registry, "DISCOVERY_TIMEOUT_S", 1.0)
    rack = Rack(tmp_path, RACK, fault(COUNT[vendor], "hang", vendor=vendor))

    assert f"{vendor}: discover: no answer within 1 s" == broken(rack.meet(discover), vendor)


@pytest.mark.parametrize("vendor", PLUGINS)
def test_noise_instead_of_an_answer_is_told(tmp_path: Path, vendor: str) -> None:
    rack = Rack(tmp_path, RACK, fault(IDENTITY[vendor], "garbage", vendor=vendor))

    broken(rack.meet(discover), vendor)


@pytest.mark.parametrize("vendor", PLUGINS)
def test_a_symbol_nothing_works_without_is_named(tmp_path: Path, vendor: str) -> None:
    rack = Rack(tmp_path, RACK, fault(MEMORY[vendor], "missing", vendor=vendor))
    reason = broken(rack.meet(discover), vendor)

    if vendor not in ("nvidia", "ascend"):  # "Function Not Found"; its other memory call
        assert MEMORY[vendor] in reason


@pytest.mark.parametrize("vendor", PLUGINS)
def test_what_an_older_library_cannot_say_is_not_said(tmp_path: Path, vendor: str) -> None:
    call, field = NEWER[vendor]
    discovery = Rack(tmp_path, RACK, fault(call, "missing", vendor=vendor)).meet(discover)

    others_are_well(discovery, "nobody")
    cards = [device for device in discovery.devices if device.vendor == vendor]
    assert [None, None] == [getattr(device, field) for device in cards]
    assert all(device.usable for device in cards)


def test_an_older_interface_version_is_spoken(tmp_path: Path) -> None:
    five = Rack(tmp_path, RACK, "\n[driver]\ncndev = 5\n").meet(discover)

    others_are_well(five, "nobody")


def test_an_interface_version_nobody_knows_is_one_line(tmp_path: Path) -> None:
    rack = Rack(tmp_path, RACK, fault("cndevGetDeviceCount", "error 3", vendor="cambricon"))

    assert "speaks none of the interface versions (6, 5)" in broken(
        rack.meet(discover), "cambricon"
    )


def test_older_dcmi_calls_serve_where_the_newer_are_missing(tmp_path: Path) -> None:
    discovery = Rack(tmp_path, RACK, fault("dcmi_*_v2", "missing", vendor="ascend")).meet(discover)

    others_are_well(discovery, "ascend")
    assert "dcmi_get_device_chip_info_v2" in str(rows(discovery)["ascend"].reason)


@pytest.mark.parametrize("vendor", PLUGINS)
def test_a_card_that_cannot_be_read_costs_that_card(tmp_path: Path, vendor: str) -> None:
    code = ERROR.get(vendor, "7")
    bad = fault(IDENTITY[vendor], f"error {code}", vendor=vendor, device="1")
    discovery = Rack(tmp_path, RACK, bad).meet(discover)

    others_are_well(discovery, vendor)
    row = rows(discovery)[vendor]
    assert ("partial", 1) == (row.state, row.devices)
    assert str(row.reason).startswith(f"{vendor}: discover: card ")
    assert f"error {code}" in str(row.reason)


@pytest.mark.parametrize("vendor", PLUGINS)
def test_a_card_that_vanishes_is_gone_at_the_next_look(tmp_path: Path, vendor: str) -> None:
    gone = fault(IDENTITY[vendor], "vanish", vendor=vendor, device="1")

    def twice() -> tuple[Discovery, Discovery]:
        asked = registry()
        return asked.discover(), asked.discover()

    before, after = Rack(tmp_path, RACK, gone).meet(twice)

    others_are_well(before, "nobody")
    others_are_well(after, vendor)
    usable = [d for d in after.devices if d.vendor == vendor and d.usable]
    assert 1 == len(usable)


@pytest.mark.parametrize("vendor", PLUGINS)
def test_two_cards_of_one_serial_are_one_line(tmp_path: Path, vendor: str) -> None:
    uuid = {
        "ascend": "1 2 3 4 5",
        "nvidia": "GPU-00000000-0000-4000-8000-000000000001",
        "amd": "GPU-00000000-0000-4000-8000-000000000004",
        "iluvatar": "GPU-00000000-0000-4000-8000-000000000002",
    }.get(vendor, "00000000-0000-4000-8000-000000000003")
    same = {"serial": "77"} if vendor == "hygon" else {"uuid": uuid}
    twins = card(vendor, *MODELS[vendor], **same) * 2
    discovery = Rack(tmp_path, RACK, twins).meet(discover)

    others_are_well(discovery, vendor)
    row = rows(discovery)[vendor]
    assert ("partial", 2) == (row.state, row.devices)
    assert "2 cards have the UUID" in str(row.reason)
    assert "none of them can be addressed" in str(row.reason)


@pytest.mark.parametrize("vendor", PLUGINS)
def test_what_is_wrong_with_a_card_is_its_health(tmp_path: Path, vendor: str) -> None:
    ill = {"nvidia": "XID 79", "iluvatar": "ecc"}.get(vendor, "failed")
    discovery = Rack(tmp_path, RACK, card(vendor, *MODELS[vendor], health=ill)).meet(discover)
    cards: list[Device] = [device for device in discovery.devices if device.vendor == vendor]

    others_are_well(discovery, vendor)
    assert [True, True, False] == [device.usable for device in cards]


@pytest.mark.parametrize("vendor", ["ascend", "cambricon", "metax"])
def test_a_driver_that_hangs_while_cutting_is_given_up_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, vendor: str
) -> None:
    monkeypatch.setattr(hetero.registry.registry, "ENFORCEMENT_TIMEOUT_S", 1.0)
    call = {
        "ascend": "dcmi_create_vdevice",
        "cambricon": "cndevCreateSMluInstanceByProfileId",
        "metax": "mxSmlCreateSgpu",
    }[vendor]
    on = {"smlu": "on", "sgpu": "on", "core": "20"}

    def cut() -> str:
        with pytest.raises(Refused) as error:
            Machine(tmp_path, vendor).take(SHARE)
        return str(error.value)

    rack = Rack(tmp_path, card(vendor, *MODELS[vendor], **on), fault(call, "hang", vendor=vendor))

    assert f"{vendor}: enforce: no answer within 1 s" == rack.meet(cut)
