"""docs/architecture.md names places in the code, and documents each other: none may be stale."""

import re
from pathlib import Path

import pytest

from tests.words import defined_in_c, is_defined

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()

#: `path:name`, as the page writes it.
PLACES = sorted(set(re.findall(r"`([\w./-]+\.(?:py|c|h)):([\w.]+)`", PAGE)))
#: The rooms, which are the first cells of their table.
ROOMS = re.findall(r"^\| `([\w/]+)` \|", PAGE, re.MULTILINE)
#: `path`, with or without a name behind it.
PATHS = sorted(
    set(re.findall(r"`((?:hetero|limiters|simulator|benchmarks|vendors|tests)[\w./-]*)[:`]", PAGE))
)

QUESTIONS = (
    "a new driver symbol is charged",
    "a new placement policy",
    "a new vendor",
    "a new subcommand",
    "a new annotation",
    "a new metric",
    "kill -9 cleaned up",
    "a share turned into time",
    "units rounded",
    "who may write the usage region",
)


@pytest.mark.parametrize(("path", "name"), PLACES)
def test_every_place_that_the_page_names_exists(path: str, name: str) -> None:
    assert is_defined(ROOT / path, name)


@pytest.mark.parametrize("path", sorted({*PATHS, *ROOMS}))
def test_every_path_that_the_page_names_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_each_package_of_the_core_has_a_room() -> None:
    packages = {str(path.parent.relative_to(ROOT)) for path in ROOT.glob("hetero/**/__init__.py")}

    generated = {f"hetero/kube/{package}/proto" for package in ("agent", "dra")}
    assert {"hetero", "hetero/kube", *generated} == packages - {*ROOMS}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("int other(int x)\n{\n}\n", "thing"),
        ("int thing(int x);\n", "thing"),
        ("int other(void)\n{\n    return thing(1);\n}\n", "thing"),
        ("/* int thing(int x)\n{\n} */\n", "thing"),
    ],
    ids=["another function", "a declaration", "a call", "a comment"],
)
def test_what_is_no_definition_in_c_is_not_taken_for_one(source: str, name: str) -> None:
    assert not defined_in_c(source, name)


def test_the_page_has_at_most_300_lines() -> None:
    assert 300 >= len(PAGE.splitlines())


def test_each_question_is_answered_in_one_line_by_a_place() -> None:
    rows = dict(re.findall(r"^\| ([^|]+?) \| (.+) \|$", PAGE, re.MULTILINE))

    assert [] == [
        question
        for question in QUESTIONS
        if not re.search(r"`[\w./-]+:[\w.]+`", rows.get(question, ""))
    ]


def test_each_step_of_a_walk_begins_with_a_place() -> None:
    walks = re.findall(r"^## Walk: .+?(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
    steps = [line for walk in walks for line in walk.splitlines() if re.match(r"\d+\. ", line)]

    assert 3 == len(walks)
    assert [] == [step for step in steps if not re.match(r"\d+\. `[\w./-]+:[\w.]+`", step)]


@pytest.mark.parametrize(
    "document", [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")], ids=lambda path: path.name
)
def test_the_links_of_a_document_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", document.read_text())

    assert [] == [link for link in links if not (document.parent / link).exists()]
