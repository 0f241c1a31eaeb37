"""The shipped contract, kept by the vendors that need no driver: the in-memory one and acme."""

from pathlib import Path

import hetero_acme
import pytest

from hetero import plugin
from hetero.model import CORE, MEMORY, SLOTS, Device, Enforcement
from hetero.model.units import GiB, MiB
from hetero.registry.registry import Registry
from hetero.testing import MemoryVendor, VendorContract, rack


class TestMemory(VendorContract):
    plugin = MemoryVendor(rack(80 * GiB, 24 * GiB))


def test_a_contract_without_a_device_to_check_raises() -> None:
    class Empty(VendorContract):
        plugin = MemoryVendor(())

    class Lost(VendorContract):
        plugin = MemoryVendor(rack(GiB, health="fallen"))

    for contract in (Empty(), Lost()):
        with pytest.raises(LookupError, match="no usable device to check"):
            contract.test_devices_survive_the_codec()
        contract.test_discovery_answers_or_says_why_not()


def test_a_contract_of_no_plugin_raises() -> None:
    class Nothing(VendorContract):
        pass

    with pytest.raises(NotImplementedError, match="Nothing does not set `plugin`"):
        Nothing().test_discovery_answers_or_says_why_not()


class TestAcme(VendorContract):
    plugin = hetero_acme

    @pytest.fixture(autouse=True)
    def _cards(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        cards = tmp_path / "cards"
        cards.write_text("AC-0017 Roadrunner 65536 ok\nAC-0018 Coyote 32768 fallen\n")
        monkeypatch.setenv("ACME_CARDS", str(cards))

    def test_the_list_of_cards_is_read_as_it_stands(self) -> None:
        expected = Device(
            uuid="AC-0018",
            vendor="acme",
            model="Coyote",
            index=1,
            capacity={CORE: 100, MEMORY: 32768 * MiB, SLOTS: 1},
            granularity=plugin.Whole(),
            enforcement=Enforcement.NONE,
            health="fallen",
        )

        first, second = Registry.of(hetero_acme).discover().devices
        assert ("AC-0017", True) == (first.uuid, first.usable)
        assert expected == second

    def test_a_driver_that_is_not_loaded_is_absent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ACME_CARDS", "/nowhere/cards")
        (row,) = Registry.of(hetero_acme).discover().rows

        assert ("absent", "/nowhere/cards not found (is the acme kernel module loaded?)") == (
            row.state,
            row.reason,
        )

    def test_a_list_that_is_not_one_is_a_broken_driver(self, tmp_path: Path) -> None:
        (tmp_path / "cards").write_text("AC-0017 Roadrunner 65536 ok\n<html>\n")
        (row,) = Registry.of(hetero_acme).discover().rows

        assert ("broken", 0) == (row.state, row.devices)
        assert str(row.reason).startswith("acme: discover: not enough values to unpack")
