"""Vendors without a driver here are not asked by each command."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from hetero.model import Link
from hetero.registry.absences import Absence, Absences
from hetero.registry.registry import Registry
from hetero.testing import MemoryVendor, rack
from tests.cli.conftest import Run, command, environ, hetero
from tests.registry.installed import install

__all__ = ["command", "environ", "hetero"]

#: A vendor whose driver is not here, which notes each look.
LACKING = """
import os
from hetero import plugin

VENDOR = plugin.Vendor(
    api=2, name="lacking", title="Lacking",
    models=(plugin.Model(match="*", granularity=plugin.Whole()),), visible=("LACKING",),
)

@plugin.hookimpl
def hetero_vendor():
    return VENDOR

@plugin.hookimpl
def hetero_discover():
    with open(os.environ["HETERO_LOOKS"], "a") as looks:
        looks.write("look\\n")
    raise plugin.DriverAbsent("liblacking.so not found")
"""


@pytest.fixture
def looks(environ: Mapping[str, str], tmp_path: Path) -> Path:
    """The file to which each look for the driver adds a line."""
    install(tmp_path / "site", "lacking", LACKING)
    return tmp_path / "looks"


def test_an_absent_vendor_is_looked_for_once_by_commands_that_follow_each_other(
    hetero: Run, looks: Path
) -> None:
    for words in (("inventory",), ("fit", "--memory", "1Gi"), ("inventory", "--json")):
        done = hetero(*words, HETERO_LOOKS=str(looks))
        assert 0 == done.returncode, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)["vendors"]}

    assert "look\n" == looks.read_text()
    assert ("absent", "Lacking") == (rows["lacking"]["state"], rows["lacking"]["title"])
    assert "liblacking.so not found" in rows["lacking"]["reason"]


def test_vendors_doctor_and_who_names_one_look_always(hetero: Run, looks: Path) -> None:
    hetero("inventory", HETERO_LOOKS=str(looks))
    for words in (("vendors",), ("doctor",), ("fit", "--vendor", "lacking", "--memory", "1Gi")):
        before = looks.read_text()
        hetero(*words, HETERO_LOOKS=str(looks))
        assert before != looks.read_text()


def test_a_note_of_other_circumstances_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "a.rack").touch()

    def notes(**environ: str) -> Absences:
        return Absences(tmp_path / "absent.json", lambda: None, environ)

    rack_path = str(tmp_path / "a.rack")
    notes(HETERO_RACK=rack_path).note({"one": Absence("why", "One")})

    assert {"one": Absence("why", "One")} == notes(HETERO_RACK=rack_path).noted()
    assert notes().noted() is None
    assert notes(HETERO_RACK=rack_path, LD_LIBRARY_PATH="/opt").noted() is None
    (tmp_path / "a.rack").write_text("[device]\n")
    assert notes(HETERO_RACK=rack_path).noted() is None


def test_who_asks_is_waited_for_and_its_note_is_taken(tmp_path: Path) -> None:
    first, second = (Absences(tmp_path / "absent.json", lambda: None, {}) for _ in range(2))

    with first.one_by_one() as noted:
        assert {} == noted
        first.note({"one": Absence("why", None)})
    with second.one_by_one() as noted:
        assert {"one": Absence("why", None)} == noted


def test_devices_come_without_links_where_nobody_needs_them() -> None:
    first, second = rack(1 << 30, 1 << 30)
    linked = MemoryVendor([*rack(1 << 30, links=(Link(second.uuid, "NV", 9),)), second])
    registry = Registry.of(linked)

    assert 1 == len(registry.discover().devices[0].links)
    assert () == registry.discover(links=False).devices[0].links
    assert [first.uuid, second.uuid] == [
        device.uuid for device in registry.discover(links=False).devices
    ]
