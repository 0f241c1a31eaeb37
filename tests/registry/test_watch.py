"""Vendors that tell of their devices' health: news counts, and its end is no failure."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import hetero.registry.registry
import hetero.registry.watch
from hetero.model.errors import HeteroError
from hetero.registry.fork_server import ForkServer
from hetero.registry.registry import Registry
from hetero.registry.supervisor import Supervisor
from hetero.registry.vendor_row import VendorRow
from tests.registry.installed import good, install
from tests.registry.test_hostile_vendors import eventually, granted

#: What is written to the file `event` is done, once.
TELLS = """
@plugin.hookimpl
def hetero_watch(faults):
    import os, pathlib, time
    pathlib.Path("{site}/asked").write_text(str(os.getpid()))
    event = pathlib.Path("{site}/event")
    while not event.exists():
        time.sleep(0.01)
    what = event.read_text()
    event.unlink()
    if what == "end":
        os._exit(0)
    return {{"good-0": what or None}}
"""


@pytest.fixture
def telling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """The registry, in a program that goes on, of a vendor that tells what `say` gives it."""
    monkeypatch.setattr(hetero.registry.watch, "FIRST_PAUSE_S", 0.05)
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = install(tmp_path, "good", good() + TELLS.format(site=tmp_path))
    registry = Registry(lambda: [entry], ForkServer(dict(os.environ)), watch=True)
    yield registry
    registry.close()


def say(site: Path, what: str) -> None:
    (site / "draft").write_text(what)
    (site / "draft").rename(site / "event")


def row_and_health(registry: Registry) -> tuple[VendorRow, str | None]:
    (row,), (device,) = (looked := registry.discover()).rows, looked.devices
    return row, device.health


def test_a_device_is_not_well_from_one_news_to_the_next(telling: Registry, tmp_path: Path) -> None:
    row, well = row_and_health(telling)
    say(tmp_path, "fell off the bus")

    assert ("ok", "ok") == (row.state, well)
    assert eventually(lambda: row_and_health(telling) == (row, "fell off the bus"))
    say(tmp_path, "")
    assert eventually(lambda: row_and_health(telling) == (row, "ok"))


def test_the_end_of_the_question_is_no_failure_and_it_is_put_again(
    telling: Registry, tmp_path: Path
) -> None:
    before = row_and_health(telling)
    say(tmp_path, "end")
    assert eventually(lambda: not (tmp_path / "event").exists())
    assert before == row_and_health(telling)
    say(tmp_path, "hot")

    assert eventually(lambda: row_and_health(telling) == (before[0], "hot"))
    say(tmp_path, "end")
    assert eventually(lambda: not (tmp_path / "event").exists())
    assert (before[0], "hot") == row_and_health(telling)  # it was not told anything else


def test_what_waits_for_news_ends_with_the_registry(telling: Registry, tmp_path: Path) -> None:
    row_and_health(telling)
    asked = tmp_path / "asked"
    assert eventually(lambda: asked.exists() and bool(asked.read_text()))
    waiting = Path("/proc", asked.read_text())
    telling.close()

    assert eventually(lambda: not waiting.exists())


def test_a_vendor_without_cards_is_asked_for_no_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    some = "    import os\n    if os.path.exists('{site}/cards'):\n        yield VENDOR"
    source = good().replace("    yield VENDOR", some.format(site=tmp_path))
    entry = install(tmp_path, "good", source + TELLS.format(site=tmp_path))
    registry, asked = Registry(lambda: [entry], ForkServer(), watch=True), tmp_path / "asked"
    try:
        assert () == registry.discover().devices
        assert {} == watched(registry)
        (tmp_path / "cards").touch()
        assert 1 == len(registry.discover().devices)
        assert eventually(lambda: asked.exists())
    finally:
        registry.close()


def watched(registry: Registry) -> dict[str, bool]:
    """Return the vendors whose news are waited for."""
    return {
        one.plugin.name: True
        for one in registry._members
        if one.watch and one.watch._ended is not None
    }


def test_a_process_that_has_nothing_more_to_make_ends(
    telling: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (member,), devices = telling._members, telling.discover().devices
    making = member.acting
    assert isinstance(making, Supervisor)
    telling.enforce(granted("good"), devices, directory=tmp_path)
    process = making._process
    assert process
    assert process.runs
    telling.discover()
    assert process is making._process  # it may be wanted again
    monkeypatch.setattr(hetero.registry.registry, "SPARE_PROCESS_S", 0.0)
    telling.discover()

    assert making._process is None
    assert not Path("/proc", str(process.pid)).exists()
    telling.enforce(granted("good"), devices, directory=tmp_path)
    assert telling.discover().devices == devices


class Full:
    """Notes that cannot be written while `is_full`."""

    def __init__(self) -> None:
        self.is_full = True
        self.noted: dict[str, str | None] = {}

    def standing(self) -> Mapping[str, str]:
        return {uuid: reason for uuid, reason in self.noted.items() if reason is not None}

    def note(self, reason_by_uuid: Mapping[str, str | None], *, module: str | None) -> None:
        if self.is_full:
            raise HeteroError("cards: no space left")
        self.noted |= reason_by_uuid


def test_news_that_cannot_be_noted_counts_and_is_noted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hetero.registry.watch, "FIRST_PAUSE_S", 0.05)
    monkeypatch.syspath_prepend(str(tmp_path))
    entry, notes = install(tmp_path, "good", good() + TELLS.format(site=tmp_path)), Full()
    registry = Registry(lambda: [entry], ForkServer(dict(os.environ)), watch=True, faults=notes)
    try:
        registry.discover()
        say(tmp_path, "fell off the bus")
        assert eventually(lambda: row_and_health(registry)[1] == "fell off the bus")
        assert {} == notes.noted
        notes.is_full = False
        assert eventually(lambda: notes.noted == {"good-0": "fell off the bus"})
        assert "fell off the bus" == row_and_health(registry)[1]
        say(tmp_path, "")
        assert eventually(lambda: row_and_health(registry)[1] == "ok")
    finally:
        registry.close()
