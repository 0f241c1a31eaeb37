"""The site's generated pages leave nothing out, and its picture is what the demo shows."""

import enum
import inspect
import re
from html import unescape
from pathlib import Path
from typing import Any

import attrs
import make_man
import make_picture
import make_reference
import make_site
import pytest

import hetero
from hetero import plugin
from hetero.kube.words import settings as cluster_settings
from hetero.kube.words.pod_request import Defaults
from hetero.node import settings as node_settings

SETTINGS = [
    pytest.param(node_settings.NodeSettings, node_settings.read_settings, id="node"),
    pytest.param(cluster_settings.Settings, cluster_settings._settings, id="cluster"),
]


@pytest.mark.parametrize(("settings", "read"), SETTINGS)
def test_the_reference_has_every_field_of_the_settings(settings: type[Any], read: Any) -> None:
    shown = {
        field
        for _, _, _, fields, _ in make_reference.settings_of(settings, read)
        for field in fields
    }

    assert {field.name for field in attrs.fields(settings)} == shown


def test_every_setting_of_a_pods_defaults_is_in_the_reference() -> None:
    rows = make_reference.settings_of(cluster_settings.Settings, cluster_settings._settings)
    shown = {key.split()[-1] for key, *_ in rows if key.startswith("[defaults]")}

    # What counts core without limiting it is said the other way round in the file.
    own_names = {
        "unlimited": "core-limit",
        "high_unlimited": "high-priority-core-limit",
        "whole_exclusive": "whole-memory",
    }
    fields = {own_names.get(field.name, field.name) for field in attrs.fields(Defaults)}
    assert {*fields, "limiter-log"} == shown


def test_every_command_and_option_is_in_the_reference() -> None:
    page = make_reference.command_line_page()
    commands = dict(make_reference.commands())

    assert len(commands) > 20
    for name, command in commands.items():
        assert f"## hetero {name}\n" in page
        for parameter in command.params:
            for option in parameter.opts:
                assert parameter.param_type_name == "argument" or option in page


def test_every_option_says_what_it_means_its_default_and_its_variable() -> None:
    rows = {
        (name, row[0].split(",")[-1].split()[0]): row
        for name, command in make_reference.commands()
        for row in make_reference.options_of(command)
    }

    assert len(rows) > 100
    assert [] == [name for name, (_, about, _, _) in rows.items() if not about]
    assert "low" == rows["run", "--priority"][2]
    assert "all" == rows["run", "--memory"][2]
    assert "/var/lib/kubelet" == rows["agent", "--kubelet"][2]
    assert "(required)" in rows["certificates", "--namespace"][1]
    assert ("$NODE_NAME",) == rows["agent", "--node"][3]
    assert "| `--node TEXT`, `$NODE_NAME` |" in make_reference.command_line_page()


def test_every_command_has_a_manual_page_with_its_options(tmp_path: Path) -> None:
    commands = dict(make_reference.commands())

    assert len(commands) + 1 == make_man.write(tmp_path)
    for name, command in commands.items():
        page = (tmp_path / f"hetero-{name.replace(' ', '-')}.1").read_text().replace("\\", "")
        assert command.get_short_help_str(limit=1000) in page
        for parameter in command.params:
            assert parameter.param_type_name == "argument" or parameter.opts[0] in page
    assert ".SH COMMANDS" in (tmp_path / "hetero.1").read_text()


def test_every_annotation_has_a_meaning() -> None:
    rows = list(make_reference.annotations_of_code())

    assert len(rows) >= 15
    assert [] == [f"{path}: {name}" for name, said, path in rows if not said]


@pytest.mark.parametrize("module", [hetero, plugin], ids=lambda module: module.__name__)
def test_every_public_name_says_what_it_is(module: Any) -> None:
    silent = []
    for name in module.__all__:
        value = getattr(module, name)
        if isinstance(value, (str, int, dict)) and not isinstance(value, enum.Enum):
            continue
        if not inspect.getdoc(value):
            silent.append(name)
    assert [] == silent


@pytest.mark.parametrize(
    "declared",
    [
        *(plugin.Vendor, plugin.ContainerEdits, plugin.ContainerRuntime, plugin.ResourceNames),
        *(plugin.MeantDevices, plugin.Policies, plugin.QosClasses, plugin.Modes),
    ],
)
def test_every_field_of_a_declaration_says_what_it_is(declared: type[Any]) -> None:
    described = "".join(make_reference._fields(declared))

    assert [] == [
        field.name for field in attrs.fields(declared) if f"`{field.name}`: " not in described
    ]


def test_a_page_outside_of_the_navigation_is_found(tmp_path: Path) -> None:
    (tmp_path / "guides").mkdir()
    (tmp_path / "guides" / "forgotten.md").write_text("# Forgotten\n")

    wrong = make_site.outside(tmp_path)

    assert "guides/forgotten.md: is in no navigation (docs/mkdocs.yml)" in wrong
    assert "index.md: is in the navigation, and nowhere else" in wrong


def test_the_picture_is_drawn_from_the_run_that_is_kept() -> None:
    """`make picture` keeps another run."""
    assert make_picture.drawn(make_picture.RECORD.read_text()) == make_picture.PICTURE.read_text()
    shown = make_picture.SHOWN.read_text()
    assert make_picture.drawn_inventory(shown) == make_picture.INVENTORY.read_text()


@pytest.mark.parametrize("picture", [make_picture.PICTURE, make_picture.INVENTORY])
def test_newcomer_a1_columns_of_a_picture_do_not_depend_on_how_spaces_are_drawn(
    picture: Path,
) -> None:
    """Some browsers make one of several, whatever the element around them says."""
    texts = re.findall(
        r'<text x="([\d.]+)" y="\d+" textLength="([\d.]+)".*?>(.*?)<', picture.read_text()
    )

    assert len(texts) > 30
    for x, length, text in texts:
        text = unescape(text)
        assert text.split(" ") == text.split()
        assert 8 * len(text) == float(length)
        assert 0 == (float(x) - 16) % 8
    assert "xml:space" not in picture.read_text()


@pytest.mark.parametrize(
    "page", sorted(make_site.DOCS.glob("measurements/*.md")), ids=lambda page: page.stem
)
def test_a_page_of_measurements_has_at_most_150_lines(page: Path) -> None:
    assert len(page.read_text().splitlines()) <= 150


@pytest.mark.parametrize(
    "page", sorted(make_site.DOCS.glob("measurements/[!R]*.md")), ids=lambda page: page.stem
)
def test_a_page_of_measurements_says_its_conclusion_before_its_figures(page: Path) -> None:
    """In bold, among the first two paragraphs: the other one says what the page is about."""
    first = page.read_text().split("\n\n")[1:3]

    assert [] != [one for one in first if one.startswith("**")]


def test_each_figure_that_the_readme_compares_is_on_the_page_that_its_row_names() -> None:
    root = make_site.CHECKOUT
    rows = re.findall(r"^\| (.+) \| \[.+?\]\((docs/measurements/[\w.]+)#.+\|$", _readme(), re.M)

    assert len(rows) >= 4
    for row, page in rows:
        figures = re.findall(r"\d+(?:\.\d+)?", " ".join(row.split(" | ")[1:]))
        measured = re.findall(r"\d+(?:\.\d+)?", (root / page).read_text())
        assert [] == [one for one in figures if one not in measured]


def _readme() -> str:
    return (make_site.CHECKOUT / "README.md").read_text()


def test_the_readme_shows_the_picture_in_at_most_150_lines() -> None:
    readme = _readme()

    assert readme.index("](docs/inventory.svg)") < readme.index("](docs/demo.svg)")
    assert len(readme.splitlines()) <= 150
