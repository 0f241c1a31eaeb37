"""What is installed, as its files say it: the same that importlib.metadata finds."""

import sys
from importlib import metadata
from pathlib import Path

import pytest

from hetero.registry.entry_points import Entry, entries


@pytest.mark.parametrize(
    "group", ["console_scripts", "hetero.plugin.vendor", "pytest11", "no.such"]
)
def test_every_group_here_is_what_the_standard_library_says(group: str) -> None:
    expected = {
        (
            entry.name,
            entry.value.partition("[")[0].strip(),
            f"{entry.dist.name} {entry.dist.version}",
        )
        for entry in metadata.entry_points(group=group)
        if entry.dist
    }

    assert expected == {(entry.name, entry.value, entry.source) for entry in entries(group)}


def install(place: Path, folder: str, points: str, *, version: str = "1") -> None:
    (place / folder).mkdir(parents=True)
    (place / folder / "entry_points.txt").write_text(points)
    name = "METADATA" if folder.endswith("dist-info") else "PKG-INFO"
    (place / folder / name).write_text(f"Name: acme-cards\nVersion: {version}\n")


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    folders = tmp_path / "first", tmp_path / "second"
    monkeypatch.setattr(sys, "path", [*map(str, folders), str(tmp_path / "none")])
    return folders


def test_of_two_installations_the_first_on_the_path_counts(places: tuple[Path, Path]) -> None:
    first, second = places
    install(first, "acme_cards-2.dist-info", "[g]\nacme = acme\n", version="2")
    install(second, "acme.cards-1.dist-info", "[g]\nacme = old\n")

    assert [Entry("acme", "acme", "acme-cards 2")] == entries("g")


def test_comments_extras_other_groups_and_eggs_are_read(places: tuple[Path, Path]) -> None:
    points = (
        "[other]\nx = y\n\n[g]\n# one\n; two\nb = pack.mod:made.it [extra]\na=mod\n[z]\nq = r\n"
    )
    install(places[1], "acme_cards.egg-info", points)

    source = "acme-cards 1"
    assert [Entry("a", "mod", source), Entry("b", "pack.mod:made.it", source)] == entries("g")


def test_an_entry_is_what_it_names() -> None:
    assert Path is Entry("path", "pathlib:Path", "").load()
    assert Path.home == Entry("home", "pathlib : Path.home", "").load()
