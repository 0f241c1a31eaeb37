"""What is noted of cards outlives programs and upgrades, and ends when it is over."""

import os
from pathlib import Path

import pytest

import hetero.node.card_book
import hetero.node.card_notes
from hetero.model.errors import HeteroError
from hetero.model.units import GiB
from hetero.node.card_book import CardBook
from hetero.node.ledger.locks import try_lock
from hetero.registry.registry import Registry
from hetero.testing import MemoryVendor, rack


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /sys/module of which tests load and unload modules."""
    path = tmp_path / "module"
    (path / "card").mkdir(parents=True)
    monkeypatch.setattr(hetero.node.card_notes, "_MODULES", path)
    return path


def load_anew(modules: Path, name: str) -> None:
    """Make the module's directory another one, as sysfs does."""
    (modules / f"{name}.new").mkdir()
    (modules / name).rmdir()
    (modules / f"{name}.new").rename(modules / name)


def health(book: CardBook, *, driver: str = "ok") -> str | None:
    """Return the health of a card whose driver says one, with what is noted of it."""
    given = Registry.of(MemoryVendor(rack(GiB, health=driver)))
    (device,) = Registry(given._plugins, apart=False, faults=book).discover().devices
    return device.health


def test_a_fault_stands_for_each_program_until_it_is_told_that_it_is_over(
    tmp_path: Path, modules: Path
) -> None:
    CardBook(tmp_path).note({"memory-0": "Xid 48"}, module="card")

    assert "Xid 48" == health(CardBook(tmp_path))
    CardBook(tmp_path).note({"memory-0": None}, module="card")
    assert "ok" == health(CardBook(tmp_path))


def test_a_fault_is_over_when_its_driver_is_loaded_anew(tmp_path: Path, modules: Path) -> None:
    book = CardBook(tmp_path)
    book.note({"memory-0": "Xid 48"}, module="card")
    book.note({"memory-1": "fell"}, module=None)
    load_anew(modules, "card")

    assert {"memory-1": "fell"} == book.standing()
    book.note({"memory-2": "hot"}, module="card")
    assert {"memory-1", "memory-2"} == book.own().faults.keys()


def test_a_fault_is_over_after_a_boot_and_a_cordon_is_not(
    tmp_path: Path, modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = CardBook(tmp_path)
    book.note({"memory-0": "Xid 48"}, module=None)
    book.cordon("memory-1", "swap")
    (tmp_path / "boot").write_text("another")
    monkeypatch.setattr(hetero.node.card_notes, "_BOOT", tmp_path / "boot")

    assert ({}, {"memory-1": "swap"}) == (book.standing(), book.read().cordons)


def test_what_is_noted_goes_before_what_the_driver_says_now(tmp_path: Path) -> None:
    CardBook(tmp_path).note({"memory-0": "Xid 48"}, module=None)

    assert "Xid 48" == health(CardBook(tmp_path), driver="reset it")
    CardBook(tmp_path).clear_fault("memory-0")
    assert "reset it" == health(CardBook(tmp_path), driver="reset it")


def test_the_own_notes_and_those_of_root_count_and_the_own_alone_are_changed(
    tmp_path: Path,
) -> None:
    root, own = CardBook(tmp_path / "root"), CardBook(tmp_path / "own", (tmp_path / "root",))
    root.cordon("a", "swap")
    root.set_cluster_cordons({"b": "audit"})
    own.cordon("a", "mine")
    own.uncordon("b")

    assert ({"a": "mine"}, {"b": "audit"}) == (own.read().cordons, own.read().cluster_cordons)
    own.uncordon("a")
    assert {"a": "swap"} == own.read().cordons


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become a user who may not read")
def test_notes_that_a_user_may_not_read_are_not_seen_and_keep_nobody_from_working(
    tmp_path: Path,
) -> None:
    book = CardBook(tmp_path / "root")
    book.cordon("a", "swap")
    tmp_path.chmod(0o700)
    os.seteuid(65534)
    try:
        seen = CardBook(tmp_path / "own", (tmp_path / "root",)).read()
    finally:
        os.seteuid(0)

    assert ({}, {"a": "swap"}) == (seen.cordons, book.read().cordons)


def test_the_clusters_cordons_replace_those_of_before_and_leave_the_nodes(tmp_path: Path) -> None:
    book = CardBook(tmp_path)
    book.cordon("a", "swap")
    book.set_cluster_cordons({"a": "audit", "b": ""})
    book.set_cluster_cordons({"a": "audit"})
    book.uncordon("a")

    assert ({}, {"a": "audit"}) == (book.read().cordons, book.read().cluster_cordons)


def test_a_writer_that_waits_in_vain_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = CardBook(tmp_path)
    book.cordon("a", "swap")
    monkeypatch.setattr(hetero.node.card_book, "_LOCK_WAIT_S", 0.05)
    descriptor = os.open(tmp_path / ".cards.json.lock", os.O_RDWR)
    assert try_lock(descriptor)

    with pytest.raises(HeteroError, match="another program changes it: try again"):
        book.cordon("b", "")
    os.close(descriptor)
    assert {"a": "swap"} == book.read().cordons
