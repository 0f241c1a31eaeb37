"""Vendors that tell of their devices' health: news counts, and its end is no failure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import hetero.plugin.watch
from hetero.plugin.fork_server import ForkServer
from hetero.plugin.registry import Registry
from hetero.plugin.vendor_row import VendorRow
from tests.plugin.installed import good, install
from tests.plugin.test_hostile_vendors import eventually

#: What is written to the file `event` is done, once.
TELLS = """
@plugin.hookimpl
def hetero_watch():
    import os, pathlib, time
    pathlib.Path("{site}/asked").write_text(str(os.getpid()))
    event = pathlib.Path("{site}/event")
    while not event.exists():
        time.sleep(0.01)
    what = event.read_text()
    event.unlink()
    if what == "end":
        os._exit(0)
    return {{"good-0": what}} if what else {{}}
"""


@pytest.fixture
def telling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """The registry, in a program that goes on, of a vendor that tells what `say` gives it."""
    monkeypatch.setattr(hetero.plugin.watch, "PAUSE", 0.05)
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = install(tmp_path, "good", good() + TELLS.format(site=tmp_path))
    registry = Registry(lambda: [entry], ForkServer(dict(os.environ)), watch=True)
    yield registry
    registry.close()


def say(site: Path, what: str) -> None:
    (site / "draft").write_text(what)
    (site / "draft").rename(site / "event")


def found(registry: Registry) -> tuple[VendorRow, str | None]:
    (row,), (device,) = (looked := registry.discover()).rows, looked.devices
    return row, device.health


def test_a_device_is_not_well_from_one_news_to_the_next(telling: Registry, tmp_path: Path) -> None:
    row, well = found(telling)
    say(tmp_path, "fell off the bus")

    assert ("ok", "ok") == (row.state, well)
    assert eventually(lambda: found(telling) == (row, "fell off the bus"))
    say(tmp_path, "")
    assert eventually(lambda: found(telling) == (row, "ok"))


def test_the_end_of_the_question_is_no_failure_and_it_is_put_again(
    telling: Registry, tmp_path: Path
) -> None:
    before = found(telling)
    say(tmp_path, "end")
    assert eventually(lambda: not (tmp_path / "event").exists())
    assert before == found(telling)
    say(tmp_path, "hot")

    assert eventually(lambda: found(telling) == (before[0], "hot"))
    say(tmp_path, "end")
    assert eventually(lambda: not (tmp_path / "event").exists())
    assert (before[0], "hot") == found(telling)  # it was not told anything else


def test_what_waits_for_news_ends_with_the_registry(telling: Registry, tmp_path: Path) -> None:
    found(telling)
    asked = tmp_path / "asked"
    assert eventually(lambda: asked.exists() and bool(asked.read_text()))
    waiting = Path("/proc", asked.read_text())
    telling.close()

    assert eventually(lambda: not waiting.exists())
