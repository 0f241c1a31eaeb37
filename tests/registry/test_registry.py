"""Vendors are found, asked and kept apart: whatever one does wrong is its own row."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

import hetero.registry.process
import hetero.registry.registry
import hetero.registry.supervisor
from hetero import plugin
from hetero.model import Usage
from hetero.model.errors import NotFound
from hetero.model.units import GiB
from hetero.plugin.vendor import Model, Vendor
from hetero.registry.registry import Registry
from hetero.registry.vendor_row import VendorRow
from hetero.testing import MemoryVendor, rack
from tests.registry.installed import good, install

NOTES = Path("/nonexistent")  # what no vendor here writes to


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory on the import path to install vendors in."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def snapshot(site: Path) -> dict[str, VendorRow]:
    """Return the rows of what is installed in `site`; nothing else of this environment is run."""
    listed = [path.name.split("-")[0].replace("_", "-") for path in site.glob("*.dist-info")]
    rows = Registry(allowed=listed).discover().rows
    return {row.source.split()[0]: row for row in rows if row.trusted}


def test_an_installed_vendor_is_found_with_where_it_came_from(site: Path) -> None:
    install(site, "good", good("good"))

    expected = VendorRow(
        name="good",
        source="hetero-good 1.0",
        state="ok",
        devices=1,
        title="good",
        file=f"{site}/hetero_good.py",
    )
    assert {"hetero-good": expected} == snapshot(site)


FAULTS = {
    "import": (
        "import no_such_library",
        "faulty: load: No module named 'no_such_library'",
    ),
    "syntax": ("def hetero_vendor(:", "faulty: load: invalid syntax"),
    "misspelt hook": (
        good("faulty") + "\n@plugin.hookimpl\ndef hetero_observ(): ...\n",
        "faulty: register: unknown hook 'hetero_observ'",
    ),
    "argument no hook has": (
        good("faulty") + "\n@plugin.hookimpl\ndef hetero_observe(card): ...\n",
        "faulty: register: Plugin 'faulty' for hook 'hetero_observe'",
    ),
    "no declaration": ("x = 1", "faulty: hetero_vendor: returned None, not a Vendor"),
    "declaration of another kind": (
        "from hetero import plugin\n\n"
        "@plugin.hookimpl\ndef hetero_vendor():\n    return {'name': 'faulty'}\n",
        "faulty: hetero_vendor: returned {'name': 'faulty'}, not a Vendor",
    ),
    "declaration that raises": (
        "from hetero import plugin\n\n"
        "@plugin.hookimpl\ndef hetero_vendor():\n    return plugin.Vendor()\n",
        "faulty: hetero_vendor: ",
    ),
    "declaration of before": (
        good("faulty").replace("    api=2,\n", '    runtime_none=("void",),\n'),
        "faulty: load: the declaration says no version of the plugin interface, and this is "
        "version 2: see docs/guides/adding-a-vendor.md",
    ),
    "declaration of another version": (
        good("faulty").replace("api=2", "api=3"),
        "faulty: load: the declaration says version 3 of the plugin interface, and this is "
        "version 2: see docs/guides/adding-a-vendor.md",
    ),
    "generator that fails half-way": (
        good("faulty") + "    raise OSError('the second card hangs')\n",
        "faulty: discover: the second card hangs",
    ),
    "devices of another kind": (
        good("faulty").replace("yield VENDOR.device(", "yield dict("),
        "faulty: discover: gave {'uuid': 'faulty-0'",
    ),
    "no list at all": (
        good("faulty").replace("yield VENDOR.device(", "return len; dict("),
        "faulty: discover: 'builtin_function_or_method' object is not iterable",
    ),
    "a card twice": (
        good("faulty").replace("    yield", "    for _ in 'ab': yield"),
        "faulty: discover: 2 cards have the UUID faulty-0",
    ),
    "a model it never declared": (
        good("faulty").replace('match="*"', 'match="Z*"'),
        "faulty: discover: faulty: no declared model matches 'M'",
    ),
    "exit": (
        good("faulty") + "    raise SystemExit('a library that quits')\n",
        "faulty: discover: a library that quits",
    ),
}


@pytest.mark.parametrize(("source", "reason"), FAULTS.values(), ids=FAULTS.keys())
def test_a_faulty_vendor_is_a_row_with_its_reason_and_harms_nobody(
    site: Path, source: str, reason: str
) -> None:
    install(site, "faulty", source)
    install(site, "good", good("good"))
    install(site, "later", good("later"))

    rows = snapshot(site)

    assert "broken" == rows["hetero-faulty"].state
    assert "hetero-faulty 1.0" == rows["hetero-faulty"].source
    assert str(rows["hetero-faulty"].reason).startswith(reason)
    assert [("ok", 1), ("ok", 1)] == [
        (rows[name].state, rows[name].devices) for name in ("hetero-good", "hetero-later")
    ]


def test_of_two_plugins_with_one_name_the_first_works_and_the_second_says_why_not() -> None:
    card, *_ = rack(GiB, vendor="cards")
    first, second = Registry.of(Cards(card), Cards(card)).discover().rows

    assert ("cards", "ok", 1) == (first.name, first.state, first.devices)
    assert ("broken", "Cards: another plugin is the vendor 'cards' already") == (
        second.state,
        second.reason,
    )


def test_an_entry_point_is_called_as_its_vendor(site: Path) -> None:
    install(site, "one", good("other"))

    row = snapshot(site)["hetero-one"]

    assert ("one", "broken") == (row.name, row.state)
    assert "one: its entry point is 'one' and its vendor 'other'" == row.reason


def test_two_wheels_with_one_entry_name_are_two_rows(site: Path) -> None:
    install(site, "same", good("same"))
    metadata = site / "hetero_copy-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: hetero-copy\nVersion: 1.2\n")
    (metadata / "entry_points.txt").write_text("[hetero.plugin.vendor]\nsame = hetero_same\n")

    rows = snapshot(site)

    assert ["broken", "ok"] == sorted(row.state for row in rows.values())
    assert 2 == len(rows)


def test_a_driver_that_is_not_there_is_absent_and_not_broken(site: Path) -> None:
    install(
        site,
        "bare",
        good("bare").replace(
            "def hetero_discover():\n",
            "def hetero_discover():\n    raise plugin.DriverAbsent('no libbare.so')\n",
        ),
    )

    row = snapshot(site)["hetero-bare"]

    assert ("absent", "no libbare.so", 0) == (row.state, row.reason, row.devices)


def test_a_node_without_any_vendor_has_an_empty_inventory() -> None:
    discovery = Registry.of().discover()

    assert ((), ()) == (discovery.rows, discovery.inventory.devices)


def test_asking_for_a_vendor_that_is_not_there_or_broken_says_which() -> None:
    class Broken:
        @plugin.hookimpl
        def hetero_vendor(self) -> Any:
            raise RuntimeError("not today")

    registry = Registry.of(Broken())

    with pytest.raises(NotFound, match="no vendor 'nobody' is installed"):
        registry.vendor("nobody")
    with pytest.raises(NotFound, match="Broken: hetero_vendor: not today"):
        registry.vendor("Broken")


# --- cards one by one, and time ------------------------------------------------------------------


class Cards:
    """A vendor whose discovery gives exactly this, after as long as it takes."""

    def __init__(self, *cards: object, takes: float = 0.0, name: str = "cards") -> None:
        self.cards, self.takes, self.name = cards, takes, name

    @plugin.hookimpl
    def hetero_vendor(self) -> Vendor:
        return Vendor(
            api=2,
            name=self.name,
            title="Cards",
            models=(Model(match="*", granularity=plugin.Whole()),),
        )

    @plugin.hookimpl
    def hetero_discover(self) -> Iterator[Any]:
        time.sleep(self.takes)
        yield from self.cards


def test_a_card_that_cannot_be_read_is_a_line_and_its_neighbours_work() -> None:
    card, *_ = rack(GiB, vendor="cards")
    discovery = Registry.of(Cards(plugin.DriverError("card 0: error 7"), card)).discover()

    assert (card,) == discovery.devices
    assert [("partial", 1, "cards: discover: card 0: error 7")] == [
        (row.state, row.devices, row.reason) for row in discovery.rows
    ]


def test_a_vendor_none_of_whose_cards_can_be_read_is_broken() -> None:
    (row,) = Registry.of(Cards(plugin.DriverError("card 0: error 7"))).discover().rows

    assert ("broken", 0) == (row.state, row.devices)


def test_one_uuid_of_two_vendors_is_a_line_for_both() -> None:
    (card,) = rack(GiB, vendor="cards")
    twin = evolve(card, vendor="more")
    discovery = Registry.of(Cards(card), Cards(twin, name="more")).discover()

    assert () == discovery.devices
    assert [
        f"{name}: discover: 2 cards have the UUID cards-0: none of them can be addressed"
        for name in ("cards", "more")
    ] == [row.reason for row in discovery.rows]


MEETS = """
    import pathlib, time
    pathlib.Path("{site}/{name}-{hook}").touch()
    while not pathlib.Path("{site}/{other}-{hook}").exists():
        time.sleep(0.01)
"""


def test_all_vendors_are_asked_at_the_same_time(site: Path) -> None:
    """Each of two answers when the other was asked."""
    for name, other in (("left", "right"), ("right", "left")):
        source = good(name)
        for head in ("def hetero_discover():", "def hetero_observe(device):"):
            meets = MEETS.format(site=site, name=name, other=other, hook=head[11:15])
            source = source.replace(head, head + meets)
        install(site, name, source)
    registry = Registry(allowed=["hetero-left", "hetero-right"])
    devices = registry.discover().devices
    usages, faults = registry.observe_all(devices)
    registry.close()

    assert ["left-0", "right-0"] == [device.uuid for device in devices]
    assert ([(devices[0], Usage(memory=5)), (devices[1], Usage(memory=5))], ()) == (
        list(usages),
        faults,
    )


def test_a_vendor_that_gave_no_answer_is_asked_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hetero.registry.registry, "DISCOVERY_TIMEOUT_S", 0.1)
    monkeypatch.setattr(hetero.registry.supervisor, "FIRST_PAUSE_S", 0.2)
    card, *_ = rack(GiB, vendor="cards")
    registry = Registry.of(Cards(card, takes=0.5), apart=True)

    (first,) = registry.discover().rows
    began = time.monotonic()
    (second,) = registry.discover().rows
    waited = time.monotonic() - began
    monkeypatch.setattr(hetero.registry.registry, "DISCOVERY_TIMEOUT_S", 5.0)
    time.sleep(0.3)
    (third,) = registry.discover().rows

    assert "Cards: discover: no answer within 0.1 s" == first.reason == second.reason
    assert waited < 0.1
    assert "ok" == third.state


@pytest.fixture
def crowded() -> Iterator[None]:
    """One processor for this process and eight that compute all the time."""
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(processors)})
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(8)]
    yield
    os.sched_setaffinity(0, processors)
    for loop in loops:
        loop.kill()
        loop.wait()


class Busy(Cards):
    """A vendor whose discovery computes for as long as it takes."""

    @plugin.hookimpl
    def hetero_discover(self) -> Iterator[Any]:
        ends = time.process_time() + self.takes
        while time.process_time() < ends:
            pass
        yield from self.cards


def test_row_5_a_slow_answer_of_a_busy_machine_is_not_a_broken_vendor(
    monkeypatch: pytest.MonkeyPatch, crowded: None
) -> None:
    monkeypatch.setattr(hetero.registry.registry, "DISCOVERY_TIMEOUT_S", 0.5)
    card, *_ = rack(GiB, vendor="cards")
    began = time.monotonic()

    (row,) = Registry.of(Busy(card, takes=0.3), apart=True).discover().rows

    assert "ok" == row.state
    assert time.monotonic() - began > 0.5


def test_a_vendor_that_hangs_is_not_waited_for_longer_on_a_busy_machine(
    monkeypatch: pytest.MonkeyPatch, crowded: None
) -> None:
    monkeypatch.setattr(hetero.registry.registry, "DISCOVERY_TIMEOUT_S", 0.5)
    # A process that is killed waits for a processor to end.
    monkeypatch.setattr(hetero.registry.process, "KILL_WAIT_S", 60.0)
    card, *_ = rack(GiB, vendor="cards")

    (row,) = Registry.of(Cards(card, takes=600.0), apart=True).discover().rows

    assert "Cards: discover: no answer within 0.5 s" == row.reason


def test_a_question_waits_for_the_one_before_it_while_that_is_in_time() -> None:
    card, *_ = rack(GiB, vendor="cards")
    registry = Registry.of(Cards(card, takes=0.3), apart=True)
    registry.discover()  # its process is forked before there are threads
    asked = threading.Thread(target=registry.discover)
    asked.start()
    (row,) = registry.discover().rows
    asked.join()

    assert "ok" == row.state


def test_nothing_is_loaded_before_a_vendor_is_asked() -> None:
    asked: list[str] = []

    class Watched(MemoryVendor):
        @plugin.hookimpl
        def hetero_vendor(self) -> plugin.Vendor:
            asked.append("vendor")
            return self._vendor

    registry = Registry.of(Watched(rack(GiB)))

    assert [] == asked
    assert ("memory",) == tuple(vendor.name for vendor in registry.discover().vendors)
    assert ("memory",) == tuple(vendor.name for vendor in registry.declarations())
    assert ["vendor"] == asked


def test_a_vendor_that_is_not_on_the_list_is_shown_and_nothing_of_it_is_run(
    site: Path, tmp_path: Path
) -> None:
    mark = f"import pathlib; pathlib.Path({str(tmp_path / 'mark')!r}).touch()\n"
    install(site, "stranger", mark + good("stranger"))
    install(site, "good", good("good"))
    registry = Registry(allowed=["hetero-good"])
    discovery = registry.discover()
    rows = {row.name: row for row in discovery.rows}

    assert ("untrusted", False, "hetero-stranger 1.0") == (
        rows["stranger"].state,
        rows["stranger"].trusted,
        rows["stranger"].source,
    )
    assert f"{site}/hetero_stranger.py" == rows["stranger"].file
    assert ("ok", True) == (rows["good"].state, rows["good"].trusted)
    assert ["good-0"] == [device.uuid for device in discovery.devices]
    assert "good" in [vendor.name for vendor in registry.declarations()]
    assert not (tmp_path / "mark").exists()
    assert "hetero_good" not in sys.modules
    with pytest.raises(NotFound, match="'stranger' is installed and trusted here"):
        registry.plugin("stranger")
