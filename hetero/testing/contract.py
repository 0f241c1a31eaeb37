"""The contract of every vendor, as tests that pytest or `hetero vendors check` runs.

A vendor's whole test is

    from hetero.testing import VendorContract
    import hetero_acme

    class TestAcme(VendorContract):
        plugin = hetero_acme
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attrs import evolve

from hetero.model import (
    CORE,
    MEMORY,
    SLOTS,
    Allocation,
    Ask,
    Device,
    DeviceAllocation,
    Edits,
    Fractional,
    Ladder,
    Step,
    Templated,
    Usage,
    Whole,
    codec,
)
from hetero.model.errors import Refused
from hetero.model.frozen import frozen
from hetero.model.rounding import Portion, portion
from hetero.model.units import MiB
from hetero.plugin.hookspecs import VendorModule
from hetero.registry.entry_points import Entry
from hetero.registry.registry import Registry, given
from hetero.registry.respondent import Plugin
from hetero.testing import injection
from hetero.testing.injection import Calls, Injected
from hetero.testing.sizes import fault_of

#: Seconds for which the contract waits for a library that hangs.
_HANG_WAIT_S = 1.0
#: A card with less memory gives MiB where bytes are due.
_LEAST_MEMORY_BYTES = 16 * MiB
#: Above these a figure is in another unit: degrees Celsius, watts.
_HOTTEST_CELSIUS, _MOST_POWER_W = 150, 10_000
#: A device that no machine has.
_NOWHERE = "no-such-device"
_TENTH = Ask(memory_percent=10, core=10)


@frozen
class Clause:
    """One promise of the contract, and the reason why it is broken. None: it holds.

    Not `shown`: this machine has not what it takes to see whether it holds, as `failure` says.
    """

    says: str
    failure: str | None
    shown: bool = True


def check(plugin: Plugin) -> Iterator[Clause]:
    """Yield each clause of the contract, checked on an installed vendor."""
    contract = type("Checked", (VendorContract,), {"plugin": plugin})()
    for attribute_name in vars(VendorContract):
        if not attribute_name.startswith("test_"):
            continue
        clause, failure, shown = getattr(contract, attribute_name), None, True
        with TemporaryDirectory(prefix="hetero-") as directory:
            fixtures = {"tmp_path": Path(directory)} if signature(clause).parameters else {}
            try:
                clause(**fixtures)
            except Exception as error:
                # No key or index that is missing, but what the contract itself says it lacks.
                shown = type(error) is not LookupError
                failed_line = traceback.extract_tb(error.__traceback__)[-1].line
                kind_text = f"{type(error).__name__}: " if shown else ""
                failure = f"{kind_text}{str(error) or failed_line}"
        yield Clause(attribute_name.removeprefix("test_").replace("_", " "), failure, shown)


class VendorContract:
    """The promises of every vendor: subclass it, set `plugin`, inherit the tests.

    The vendor runs in processes of its own, on the driver or fake driver of the environment. A
    promise that cannot be checked fails: tests of devices raise `LookupError` where no device is
    usable. A vendor that opens no C library passes the tests of a failing library.
    """

    @property
    def plugin(self) -> VendorModule | Plugin:
        """The plugin under test: a module, an object with hooks, or an entry point."""
        raise NotImplementedError(f"{type(self).__name__} does not set `plugin`")

    # --- what it says -----------------------------------------------------------------------------

    def test_the_declaration_is_pure_and_complete(self) -> None:
        """Two processes get the same declaration. Every model has a positive core and a slot."""
        (first_declaration,), (second_declaration,) = (
            self._registry().declarations() for _ in range(2)
        )

        assert first_declaration == second_declaration
        assert first_declaration.name == first_declaration.name.lower()
        assert first_declaration.models
        for model in first_declaration.models:
            assert model.core >= 1
            assert model.slots >= 1

    def test_importing_the_plugin_needs_no_driver(self) -> None:
        """The import and the declaration succeed where no library can be opened."""
        registry = self._registry(injection.without_library)
        assert registry.declarations(), registry.discover().rows[0].reason

    def test_discovery_answers_or_says_why_not(self) -> None:
        """Discovery returns devices, or one row that says that the driver is absent."""
        (row,) = self._registry().discover().rows

        assert row.state in ("ok", "absent"), row.reason
        assert (row.state == "absent") == bool(row.reason)

    def test_devices_are_the_same_at_every_look(self) -> None:
        """UUIDs, indices and their order do not change, in one process and in another."""
        registry = self._registry()
        assert self._usable(registry)
        discoveries = [registry.discover(), registry.discover(), self._registry().discover()]

        first_cards, *other_cards = (
            [(device.uuid, device.index, device.model) for device in discovery.devices]
            for discovery in discoveries
        )
        assert [first_cards, first_cards] == other_cards
        assert len({card_uuid for card_uuid, *_ in first_cards}) == len(first_cards)

    def test_a_uuid_stays_with_its_card_when_another_one_is_gone(self) -> None:
        """No card takes over a UUID when the driver renumbers its cards."""
        identity_by_uuid = {
            device.uuid: _identity(device) for device in self._usable(self._registry())
        }
        for device in self._registry(injection.renumber).discover().devices:
            assert identity_by_uuid.get(device.uuid, _identity(device)) == _identity(device), (
                f"{device.uuid} is another card when the first one is gone: it names a position"
            )

    def test_amounts_are_in_our_units(self) -> None:
        """Usage is in bytes, parts of 1, degrees Celsius and watts, and within the capacity."""
        registry = self._registry()
        for device in self._usable(registry):
            assert device.capacity[MEMORY] >= _LEAST_MEMORY_BYTES, "memory is in bytes"
            usage = registry.observe(device)
            assert usage.memory is None or 0 <= usage.memory <= device.capacity[MEMORY]
            for used_part in (usage.core, *(usage.busy or {}).values()):
                assert used_part is None or 0 <= used_part <= 1
            assert usage.temperature is None or -50 <= usage.temperature <= _HOTTEST_CELSIUS
            assert usage.power is None or 0 <= usage.power <= _MOST_POWER_W
            for pid, held_bytes in (usage.processes or {}).items():
                assert pid > 0 <= held_bytes <= device.capacity[MEMORY]

    def test_usage_is_unknown_of_a_device_that_is_not_there(self) -> None:
        """The usage of a missing device is None or an error, never a figure, and never 0."""
        registry = self._registry()
        device, *_ = self._usable(registry)
        usage = registry.observe(evolve(device, uuid=_NOWHERE, index=10_000, attributes={}))

        assert (None, None) == (usage.memory, usage.core)

    def test_two_programs_may_ask_at_once(self) -> None:
        """Two processes at the same time get the same devices, and both get their usage."""
        first_registry, second_registry = self._registry(), self._registry()
        discoveries = [first_registry.discover(), second_registry.discover()]

        assert discoveries[0].devices == discoveries[1].devices
        assert self._usable(first_registry)
        for device in self._usable(first_registry):
            are_unknown = [
                usage == Usage()
                for usage in (first_registry.observe(device), second_registry.observe(device))
            ]
            assert are_unknown[0] == are_unknown[1]

    # --- how its devices divide -------------------------------------------------------------------

    def test_every_device_is_addressable_and_divides_by_its_declaration(self) -> None:
        """Each device has a UUID and the three counters, and serves a request for a whole card."""
        registry = self._registry()
        vendor = self._vendor(registry)
        for device in self._devices(registry):
            assert device.uuid
            assert {CORE, MEMORY, SLOTS} <= set(device.capacity)
            assert min(device.capacity.values()) >= 0
            vendor.declared(device.model)
            if device.usable:
                whole_portion = portion(device, Ask(), count=1, free=device.capacity)
                assert whole_portion is not None
                assert all(
                    amount <= device.capacity[counter]
                    for counter, amount in whole_portion.takes.items()
                )

    def test_a_portion_is_of_the_granularity_and_never_less_than_asked(self) -> None:
        """Each portion is a size of the granularity, and covers what was requested."""
        for device in self._usable(self._registry()):
            for percent in (1, 10, 34, 50, 100):
                cut = _cut(device, percent, device.capacity)
                if cut is None:
                    continue
                assert cut.takes[MEMORY] * 100 >= device.capacity[MEMORY] * percent
                assert cut.takes[CORE] * 100 >= device.capacity[CORE] * percent
                assert _is_legal(device, cut), f"{device.model}: {cut.takes}"

    def test_what_is_given_is_the_smallest_size_that_has_all_that_was_asked(self) -> None:
        """Memory and core of an empty device are covered, and no smaller size covers them."""
        for device in self._usable(self._registry()):
            for ask in _asks(device):
                fault = fault_of(device, ask, portion(device, ask, count=1, free=device.capacity))
                assert fault is None, f"{device.model}: {ask}: {fault}"

    def test_a_device_that_is_full_is_not_overfull(self) -> None:
        """Shares that fill a device take no more than its capacity."""
        for device in self._usable(self._registry()):
            takes_of_cuts = [cut.takes for cut in _filling(device)]
            assert takes_of_cuts
            for counter, amount in device.capacity.items():
                assert sum(takes.get(counter, 0) for takes in takes_of_cuts) <= amount

    def test_devices_survive_the_codec(self) -> None:
        """The scheduler decodes the devices that a node encoded."""
        for device in self._devices(self._registry()):
            assert device == codec.loads(codec.dumps(device), Device, source="contract")

    # --- how a program is confined ----------------------------------------------------------------

    def test_what_a_container_needs_is_named_by_its_kind(self, tmp_path: Path) -> None:
        """Device nodes are in /dev. Files are absolute paths, or libraries by name."""
        registry = self._registry()
        for device in self._usable(registry):
            edits = _enforced(registry, device, _whole(device), tmp_path, container=True)
            assert all(node.startswith("/dev/") for node in edits.device_nodes)
            assert all(file.startswith("/") or "/" not in file for file in edits.files)
            assert not any("{" in text for text in (*edits.device_nodes, *edits.files))
            assert all("=" not in variable for variable in edits.env)
            assert registry.reconcile([device], (), directory=tmp_path) == ()

    def test_enforcing_a_whole_card_names_it(self, tmp_path: Path) -> None:
        """Some edit confines a container to its device. Nothing is left behind."""
        registry = self._registry()
        for device in self._usable(registry):
            assert _enforced(registry, device, _whole(device), tmp_path) != Edits()
            assert registry.reconcile([device], (), directory=tmp_path) == ()

    def test_a_program_is_told_which_card_is_its_own(self, tmp_path: Path) -> None:
        """The `visible` variables name the card, differ between cards, and can hide all cards."""
        registry = self._registry()
        visible = self._vendor(registry).visible
        assert visible, "no variable tells a program its cards, or that it has none (`visible`)"
        values_by_card = []
        for device in self._usable(registry):
            env = _enforced(registry, device, _whole(device), tmp_path).env
            values_by_card.append([env[variable_name] for variable_name in visible])
            assert values_by_card[-1] not in values_by_card[:-1], (
                f"two cards are both {values_by_card[-1]}"
            )
            assert registry.reconcile([device], (), directory=tmp_path) == ()

    def test_slices_are_made_and_unmade(self, tmp_path: Path) -> None:
        """A card is filled with slices, emptied, and filled again with as many."""
        with self._cutting(tmp_path) as (registry, devices):
            for device in devices:
                pieces = _filled(registry, device, tmp_path)
                assert registry.reconcile([device], _standing(pieces), directory=tmp_path) == ()
                edits_again = _enforced(registry, device, pieces[0], tmp_path)
                assert edits_again.parts.get(device.uuid, pieces[0].part) == pieces[0].part
                assert registry.reconcile([device], (), directory=tmp_path) == ()
                assert registry.reconcile([device], (), directory=tmp_path) == ()
                assert len(_filled(registry, device, tmp_path)) == len(pieces)

    def test_slices_of_containers_are_declared(self, tmp_path: Path) -> None:
        """`cut_at_admission` is said where, and only where, slices are cut for containers."""
        with self._cutting(tmp_path) as (registry, devices):
            for device in devices:
                piece = _piece(device, next(_filling(device)))
                edits = _enforced(registry, device, piece, tmp_path, container=True)
                assert device.cut_at_admission == (device.uuid in edits.parts)
                assert registry.reconcile([device], (), directory=tmp_path) == ()

    def test_slices_that_grants_hold_keep_all_that_was_granted(self, tmp_path: Path) -> None:
        """Of each size: when they fill a card and were reconciled, its driver refuses one more."""
        with self._cutting(tmp_path) as (registry, devices):
            for device in devices:
                for ask in _sizes(device):
                    pieces = _filled(registry, device, tmp_path, ask)
                    assert registry.reconcile([device], _standing(pieces), directory=tmp_path) == ()
                    _assert_full(registry, device, pieces, tmp_path)
                    assert registry.reconcile([device], (), directory=tmp_path) == ()

    def test_a_slice_that_is_gone_is_made_again(self, tmp_path: Path) -> None:
        """After a reboot, a grant that names its slice gets it again, at its size."""
        with self._cutting(tmp_path) as (registry, devices):
            for device in devices:
                *_, ask = _sizes(device)
                pieces = _filled(registry, device, tmp_path, ask)
                assert registry.reconcile([device], (), directory=tmp_path) == ()
                for piece in pieces:
                    _enforced(registry, device, piece, tmp_path)
                _assert_full(registry, device, pieces, tmp_path)

    def test_slices_of_another_ledger_are_left_alone(self, tmp_path: Path) -> None:
        """A reconcile without standing grants destroys the slices of its own ledger alone."""
        other_ledger, own_ledger = tmp_path / "theirs", tmp_path / "ours"
        with self._cutting(other_ledger) as (registry, devices):
            for device in devices:
                *_, ask = _sizes(device)
                pieces = _filled(registry, device, other_ledger, ask)
                assert registry.reconcile([device], (), directory=own_ledger) == ()
                _assert_full(registry, device, pieces, other_ledger)

    def test_a_slice_in_use_is_left_until_it_is_not(self, tmp_path: Path) -> None:
        """The driver's `in_use` codes keep a slice that a program uses; others are destroyed."""
        with self._cutting(tmp_path) as (registry, devices):
            for device in devices:
                slice_count, calls = len(_filled(registry, device, tmp_path)), Calls()
                registry_in_use = self._registry(calls.keep_first)
                faults = registry_in_use.reconcile([device], (), directory=tmp_path)
                registry_in_use.close()
                assert not faults, "; ".join(faults)
                assert calls.count == 0 or calls.count >= slice_count  # 0: no library destroys them
                assert registry.reconcile([device], (), directory=tmp_path) == ()
                assert len(_filled(registry, device, tmp_path)) == slice_count

    def test_what_confines_a_program_names_its_slice(self, tmp_path: Path) -> None:
        """The edits of two slices of a card differ, and differ from those of the whole card."""
        with self._cutting(tmp_path) as (registry, devices):
            for device in devices:
                whole_edits = evolve(
                    _enforced(registry, device, _whole(device), tmp_path), parts={}
                )
                assert registry.reconcile([device], (), directory=tmp_path) == ()
                seen_edits = [whole_edits]
                for cut in _filling(device):
                    edits = _enforced(registry, device, _piece(device, cut), tmp_path)
                    seen_edits.append(evolve(edits, parts={}))
                    assert seen_edits[-1] not in seen_edits[:-1], (
                        f"{device.model}: a program in a slice is confined as one in another slice "
                        f"or on the whole card: {seen_edits[-1]}"
                    )

    def test_a_slice_whose_maker_is_killed_at_any_call_leaves_nothing(self, tmp_path: Path) -> None:
        """The process is killed before or after each call that creates or destroys a slice."""
        with self._cutting(tmp_path) as (whole_registry, devices):
            for device in devices:
                slice_count = len(_filled(whole_registry, device, tmp_path))
                assert whole_registry.reconcile([device], (), directory=tmp_path) == ()
                for is_unmade in (False, True):
                    step = 0
                    while self._killed(step := step + 1, device, tmp_path, is_unmade=is_unmade):
                        assert whole_registry.reconcile([device], (), directory=tmp_path) == ()
                assert whole_registry.reconcile([device], (), directory=tmp_path) == ()
                assert len(_filled(whole_registry, device, tmp_path)) == slice_count

    # --- what its library may do ------------------------------------------------------------------

    def test_a_library_that_is_absent_is_no_fault(self) -> None:
        """Where no library can be opened, the vendor's row says that the driver is absent."""
        if self._calls():
            (row,) = self._registry(injection.without_library).discover().rows
            assert "absent" == row.state, row.reason

    def test_a_library_that_misbehaves_harms_nobody(self) -> None:
        """A library that crashes, exits or hangs is one row of its vendor. Its output is lost."""
        first_step = 1 if self._calls() else 0
        misdeeds: tuple[Callable[[], int | None], ...]
        misdeeds = (injection.crash, injection.leave, injection.hang)
        for misdeed in misdeeds if first_step else ():
            library_calls = Calls()
            registry = self._registry(
                lambda calls=library_calls, deed=misdeed: calls.inject(1, deed)  # type: ignore[misc]
            )
            (row,) = registry.discover().rows
            assert "broken" == row.state, f"{misdeed.__name__}: {row.reason}"
            assert row.reason
            assert "\n" not in row.reason
        library_calls = Calls()
        (row,) = (
            self._registry(lambda: library_calls.inject(first_step, injection.chatter))
            .discover()
            .rows
        )
        assert "ok" == row.state, row.reason

    def test_a_call_that_fails_costs_at_most_one_card(self) -> None:
        """Each call fails once, in turn. At least one of them costs one card and no other."""
        if not self._calls():
            return
        card_count = len(self._usable(self._registry()))
        if card_count < 2:
            raise LookupError("the contract needs two usable devices to see one of them fail")
        usable_counts = set()
        for step in range(1, self._calls() + 1, 2):
            library_calls = Calls()
            registry = self._registry(
                lambda calls=library_calls, call_number=step: calls.inject(
                    call_number, injection.fail
                )  # type: ignore[misc]
            ).discover()
            (row,) = registry.rows
            assert row.state in ("ok", "partial", "broken", "absent")
            assert row.state == "ok" or (row.reason and "\n" not in row.reason)
            usable_counts.add(sum(device.usable for device in registry.devices))
        assert card_count - 1 in usable_counts, (
            f"of {card_count} cards, {usable_counts} were left after one call failed"
        )

    # --- how it is shown --------------------------------------------------------------------------

    def _plugin(self) -> Plugin:
        plugin = self.plugin
        return plugin if isinstance(plugin, Entry) else given(plugin)

    def _registry(self, inject: Callable[[], None] | None = None) -> Registry:
        """Return a registry of the vendor alone, whose processes run an injected action first."""
        plugin = self._plugin()
        plugins = [Injected(plugin, inject) if inject else plugin]
        return Registry(lambda: plugins, seconds=_HANG_WAIT_S if inject else None)

    def _calls(self) -> int:
        """Return the number of steps in one discovery: two for each library call.

        Raises `LookupError` where it finds no usable device.
        """
        self._usable(self._registry())
        calls = Calls()
        self._registry(calls.inject).discover()
        return calls.count

    def _vendor(self, registry: Registry) -> Any:
        (vendor,) = registry.declarations()
        return vendor

    def _devices(self, registry: Registry) -> tuple[Device, ...]:
        """Return the devices discovered here. Raises `LookupError` where none is usable."""
        discovery = registry.discover()
        if not any(device.usable for device in discovery.devices):
            state_list = "; ".join(
                f"{row.name} is {row.state}: {row.reason}" for row in discovery.rows
            )
            raise LookupError(
                f"the contract has no usable device to check ({state_list}): "
                "give it a machine with a card, or a fake driver library"
            )
        return discovery.devices

    def _usable(self, registry: Registry) -> tuple[Device, ...]:
        return tuple(device for device in self._devices(registry) if device.usable)

    @contextmanager
    def _cutting(self, directory: Path) -> Iterator[tuple[Registry, tuple[Device, ...]]]:
        """Yield the devices that are cut into slices, and destroy what is left at the end.

        Raises `LookupError` where a vendor that cuts has no such device.
        """
        registry = self._registry()
        usable_devices = self._usable(registry)
        if not registry.cuts(self._vendor(registry).name):
            yield registry, ()
            return
        try:
            devices = tuple(
                device for device in usable_devices if _is_cut(registry, device, directory)
            )
            if not devices:
                raise LookupError("the contract needs a device that slices are made of")
            yield registry, devices
        finally:
            faults = registry.reconcile(usable_devices, (), directory=directory)
        assert faults == ()

    def _killed(self, step: int, device: Device, directory: Path, *, is_unmade: bool) -> bool:
        """Create or destroy a slice in a process killed at a step. False: it has fewer steps."""
        calls = Calls()
        piece = next(_piece(device, cut) for cut in _filling(device))
        if is_unmade:
            _enforced(self._registry(), device, piece, directory)
        registry = self._registry(lambda: calls.inject(step, injection.die))
        if is_unmade:
            registry.reconcile([device], (), directory=directory)
        else:
            with suppress(Refused):
                _enforced(registry, device, piece, directory)
        registry.close()
        return calls.count >= step


def _identity(device: Device) -> tuple[object, ...]:
    """Return the facts of a card that stay the same while it is in its place."""
    return device.model, device.capacity[MEMORY], device.pci


def _cut(device: Device, percent: int, free: Any) -> Portion | None:
    return portion(device, Ask(memory_percent=percent, core=percent), count=1, free=free)


def _asks(device: Device) -> Iterator[Ask]:
    """Yield asks for parts of a device: a byte less and more than each template, too."""
    menu = device.granularity.menu if isinstance(device.granularity, Templated) else ()
    sizes_bytes = {1, *(template.takes[MEMORY] for template in menu)}
    for core in (None, 1, 10, 26, 34, 51, 80, 100):
        yield Ask(core=core)
        for percent in (1, 10, 34, 51, 100):
            yield Ask(memory_percent=percent, core=core)
        for size_bytes in sizes_bytes:
            yield Ask(memory=size_bytes, core=core)
            yield Ask(memory=size_bytes + 1, core=core)


def _filling(device: Device, slice_ask: Ask = _TENTH) -> Iterator[Portion]:
    """Yield portions of a device until it is full: one of all of it where it is not shared."""
    free_counters = dict(device.capacity)
    while (cut := portion(device, slice_ask, count=1, free=free_counters)) is not None:
        if any(amount > free_counters[counter] for counter, amount in cut.takes.items()):
            return
        yield cut
        for counter, amount in cut.takes.items():
            free_counters[counter] -= amount


def _sizes(device: Device) -> list[Ask]:
    """Return asks for slices that exhaust a device's core or memory before its slots.

    There is one for each template, or one for half of the device. Raises `LookupError` without any.
    """
    match device.granularity:
        case Templated(menu):
            asks = [
                Ask(shape=template_name)
                for template_name in dict.fromkeys(template.name for template in menu)
            ]
        case _:
            asks = [Ask(memory_percent=50, core=50)]
    filling_asks = []
    for ask in asks:
        cuts = list(_filling(device, ask))
        if cuts and not cuts[0].is_whole(device):
            needed_amounts = {
                counter: (len(cuts) + 1) * cuts[0].takes[counter] for counter in (CORE, MEMORY)
            }
            filling_asks += (
                [ask]
                if any(
                    amount > device.capacity[counter] for counter, amount in needed_amounts.items()
                )
                else []
            )
    if not filling_asks:
        raise LookupError(f"{device.model}: as many slices as its slots allow never fill it")
    return filling_asks


def _is_cut(registry: Registry, device: Device, directory: Path) -> bool:
    """Return whether a share of a device is a slice. Leaves no slice behind."""
    piece = next((_piece(device, cut) for cut in _filling(device)), None)
    part_by_device = _enforced(registry, device, piece, directory).parts if piece else {}
    assert registry.reconcile([device], (), directory=directory) == ()
    return bool(part_by_device)


def _filled(
    registry: Registry, device: Device, directory: Path, ask: Ask = _TENTH
) -> list[DeviceAllocation]:
    """Fill a device with slices, and return the grants that hold them."""
    pieces: list[DeviceAllocation] = []
    for cut in _filling(device, ask):
        piece = _piece(device, cut)
        part_name = _enforced(registry, device, piece, directory).parts[device.uuid]
        assert part_name not in [other_piece.part for other_piece in pieces]
        pieces.append(evolve(piece, part=part_name))
    return pieces


def _assert_full(
    registry: Registry, device: Device, pieces: list[DeviceAllocation], directory: Path
) -> None:
    """Assert that a driver refuses one slice more than those that fill its device."""
    try:
        _enforced(registry, device, evolve(pieces[0], part=None), directory)
    except Refused:
        return
    size_text = pieces[0].template or f"{pieces[0].takes[MEMORY] // MiB} MiB"
    raise AssertionError(
        f"{device.model}: filled with {len(pieces)} slices of {size_text}, it gave one more: "
        "some were not made, made too small, or destroyed while a grant held them"
    )


def _standing(pieces: list[DeviceAllocation]) -> list[Allocation]:
    return [Allocation(pieces=(piece,)) for piece in pieces]


def _is_legal(device: Device, cut: Portion) -> bool:
    """Return whether an amount is a size of the device's granularity, or the whole device."""
    if all(cut.takes[counter] == device.capacity[counter] for counter in (CORE, MEMORY)):
        return True
    match device.granularity:
        case Whole():
            return False
        case Fractional(memory=Step(step_bytes)):
            return cut.takes[MEMORY] % step_bytes == 0
        case Fractional(memory=Ladder(ladder_bytes)):
            return cut.takes[MEMORY] in ladder_bytes
        case Templated(menu):
            return any(dict(template.takes).items() <= dict(cut.takes).items() for template in menu)
    return False


def _whole(device: Device) -> DeviceAllocation:
    cut = portion(device, Ask(), count=1, free=device.capacity)
    assert cut is not None
    return _piece(device, cut)


def _enforced(
    registry: Registry,
    device: Device,
    piece: DeviceAllocation,
    directory: Path,
    *,
    container: bool = False,
) -> Edits:
    allocation = Allocation(pieces=(piece,))
    return registry.enforce(allocation, [device], directory=directory, container=container)


def _piece(device: Device, cut: Portion) -> DeviceAllocation:
    return DeviceAllocation(
        device=device.uuid,
        vendor=device.vendor,
        takes=cut.takes,
        core=cut.core_limit_units,
        template=cut.template,
        part=cut.part,
    )
