"""The contract finds what a vendor that cuts slices does wrong, each mistake by its own clause."""

import json
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest

from hetero import plugin
from hetero.model import CORE, MEMORY, Allocation, Device, DeviceAllocation, Edits
from hetero.model.units import GiB
from hetero.testing.contract import VendorContract

_EIGHTHS = {"eighth": 1, "half": 4}
_MENU = tuple(plugin.Template(name, {MEMORY: n * 8 * GiB, CORE: n}) for name, n in _EIGHTHS.items())
_VISIBLE = "EIGHTHS_VISIBLE_DEVICES"
_VENDOR = plugin.Vendor(
    api=2,
    name="eighths",
    title="Eighths",
    models=(plugin.Model(match="*", core=8, slots=8, granularity=plugin.Templated(_MENU)),),
    visible=(_VISIBLE,),
)
_MADE = VendorContract.test_slices_are_made_and_unmade
_HELD = VendorContract.test_slices_that_grants_hold_keep_all_that_was_granted
_AGAIN = VendorContract.test_a_slice_that_is_gone_is_made_again
_OTHERS = VendorContract.test_slices_of_another_ledger_are_left_alone
_NAMED = VendorContract.test_what_confines_a_program_names_its_slice


class Eighths:
    """A vendor of one card in eight parts, whose driver keeps its slices in a file."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._write({})

    @plugin.hookimpl
    def hetero_vendor(self) -> plugin.Vendor:
        return _VENDOR

    @plugin.hookimpl
    def hetero_discover(self) -> list[Device]:
        return [
            _VENDOR.device(
                uuid="eighths-0",
                model="E",
                index=0,
                memory=64 * GiB,
                enforcement=plugin.Enforcement.PARTITION,
            )
        ]

    @plugin.hookimpl
    def hetero_enforce(
        self, allocation: Allocation, devices: Sequence[Device], directory: Path
    ) -> Edits:
        parts = {}
        for piece, device in plugin.shares(allocation, devices):
            parts[device.uuid] = plugin.slice_name(piece, directory)
            self.make(parts[device.uuid], piece)
        return Edits(env=self.env(parts), parts=parts)

    @plugin.hookimpl
    def hetero_reconcile(self, parts: AbstractSet[str], directory: Path) -> None:
        kept = {
            name: size
            for name, size in self._slices().items()
            if not self.unmade(name, parts, directory)
        }
        self._write(kept)

    def make(self, name: str, piece: DeviceAllocation) -> None:
        assert piece.template is not None
        slices = {**self._slices(), name: _EIGHTHS[piece.template]}
        if sum(slices.values()) > 8:
            raise plugin.DriverError("the card is full")
        self._write(slices)

    def env(self, parts: dict[str, str]) -> dict[str, str]:
        return {_VISIBLE: ",".join(parts.values())} if parts else {}

    def unmade(self, name: str, parts: AbstractSet[str], directory: Path) -> bool:
        return plugin.orphaned(name, parts, directory)

    def _slices(self) -> dict[str, int]:
        return dict(json.loads(self._state.read_text()))

    def _write(self, slices: dict[str, int]) -> None:
        self._state.write_text(json.dumps(slices))


class CutsNothing(Eighths):
    def make(self, name: str, piece: DeviceAllocation) -> None:
        """Leave the card as it is."""


class CutsTooSmall(Eighths):
    def make(self, name: str, piece: DeviceAllocation) -> None:
        super().make(name, DeviceAllocation(device="", vendor="", takes={}, template="eighth"))


class MakesOnce(Eighths):
    def make(self, name: str, piece: DeviceAllocation) -> None:
        if piece.part is None:
            super().make(name, piece)


class DestroysWhatIsHeld(Eighths):
    def unmade(self, name: str, parts: AbstractSet[str], directory: Path) -> bool:
        return plugin.orphaned(name, (), directory)


class DestroysStrangers(Eighths):
    def unmade(self, name: str, parts: AbstractSet[str], directory: Path) -> bool:
        return name not in parts


class SaysNothingOfTheSlice(Eighths):
    def env(self, parts: dict[str, str]) -> dict[str, str]:
        return {}


class NamesTheCard(Eighths):
    def env(self, parts: dict[str, str]) -> dict[str, str]:
        return {_VISIBLE: ",".join(parts)}


@pytest.mark.parametrize(
    ("vendor", "broken"),
    [
        (Eighths, set()),
        (CutsNothing, {_HELD, _AGAIN, _OTHERS}),
        (CutsTooSmall, {_HELD, _AGAIN, _OTHERS}),
        (MakesOnce, {_AGAIN}),
        (DestroysWhatIsHeld, {_HELD}),
        (DestroysStrangers, {_OTHERS}),
        (SaysNothingOfTheSlice, {_NAMED}),
        (NamesTheCard, {_NAMED}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_mistake_with_slices_breaks_its_clauses(
    tmp_path: Path, vendor: type[Eighths], broken: set[Callable[..., None]]
) -> None:
    state = tmp_path / "slices"
    failures = _failures(vendor(state), tmp_path)

    assert broken == failures.keys(), failures
    assert "{}" == state.read_text(), "a clause that fails leaves no slice either"


def test_a_card_that_its_slots_keep_from_being_full_cannot_be_shown(tmp_path: Path) -> None:
    class TwoEighths(Eighths):
        @plugin.hookimpl
        def hetero_discover(self) -> list[Device]:
            (device,) = super().hetero_discover()
            return [
                _VENDOR.device(
                    uuid=device.uuid,
                    model=device.model,
                    index=0,
                    memory=64 * GiB,
                    enforcement=plugin.Enforcement.PARTITION,
                    granularity=plugin.Templated(_MENU[:1]),
                    capacity={plugin.SLOTS: 2},
                )
            ]

    failures = _failures(TwoEighths(tmp_path / "slices"), tmp_path)

    assert {_HELD, _AGAIN, _OTHERS} == failures.keys()
    assert "as many slices as its slots allow never fill it" in failures[_HELD]


def _failures(vendor: Eighths, directory: Path) -> dict[Callable[..., None], str]:
    """Return why which clauses about slices do not hold."""

    class Checked(VendorContract):
        plugin = vendor

    failures = {}
    for clause in (_MADE, _HELD, _AGAIN, _OTHERS, _NAMED):
        try:
            clause(Checked(), directory / clause.__name__)
        except (AssertionError, LookupError) as error:
            failures[clause] = str(error)
    return failures
