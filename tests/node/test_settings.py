"""The node's settings file: what it may say, and the line for everything else."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from hetero.errors import BadInput
from hetero.model import CORE, MEMORY, SLOTS, Grant, Whole
from hetero.node.grant import limit_of
from hetero.node.settings import Settings, load_settings
from hetero.testing import rack
from hetero.units import GiB


def load(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "node.toml"
    path.write_text(text)
    return load_settings({"HETERO_CONFIG": str(path)})


def test_nothing_said_is_one_card_for_one_card(tmp_path: Path) -> None:
    settings = load(tmp_path, "")
    (device,) = rack(16 * GiB)

    assert Settings() == settings
    assert device == settings.scaled(device)


def test_scaling_is_exact(tmp_path: Path) -> None:
    settings = load(tmp_path, "[scale]\nmemory = 1.1\ncore = 3\nslots = 2\n")
    (device,) = rack(10 * GiB)
    scaled = settings.scaled(device)

    assert (
        Settings(memory_scale=Decimal("1.1"), core_scale=Decimal(3), slots_scale=Decimal(2))
        == settings
    )
    assert {CORE: 300, MEMORY: 11 * GiB, SLOTS: 20} == scaled.capacity
    assert (100, 10 * GiB) == (scaled.of_card(CORE), scaled.of_card(MEMORY))


def test_what_a_grant_is_told_follows_from_the_settings(tmp_path: Path) -> None:
    settings = load(tmp_path, "[scale]\nmemory = 2\n[count]\ncontext = true\n")
    (card,) = rack(16 * GiB)
    grant = Grant(device=card.uuid, vendor="memory", takes={MEMORY: GiB}, core=None)

    beyond = limit_of(grant, settings.scaled(card), context=settings.context)
    plain = limit_of(grant, card, context=Settings().context)

    assert (True, True) == (beyond.spill, beyond.context)
    assert (False, False) == (plain.spill, plain.context)


def test_a_whole_card_is_never_promised_twice(tmp_path: Path) -> None:
    (device,) = rack(16 * GiB, granularity=Whole())

    assert device == load(tmp_path, "[scale]\nmemory = 2").scaled(device)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("scale = 2", r"write \[scale\]"),
        ("[scale]\nmemroy = 2", "unknown key 'memroy'"),
        ("[sclae]\nmemory = 2", "unknown key 'sclae'"),
        ("[scale]\nmemory = 0.5", "is not a number from 1 to 100"),
        ("[scale]\ncore = 101", "is not a number from 1 to 100"),
        ("[scale]\ncore = true", "is not a number from 1 to 100"),
        ('[scale]\ncore = "2"', "is not a number from 1 to 100"),
        ("[scale]\ncore = nan", "is not a number from 1 to 100"),
        ("count = 1", r"write \[count\]"),
        ("[count]\ncontext = 1", "count.context 1 is not true or false"),
        ("[count]\ncontexts = true", "unknown key 'contexts'"),
        ("[scale", "node.toml: Expected ']'"),
    ],
)
def test_anything_else_is_one_clear_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said) as raised:
        load(tmp_path, text)

    assert str(tmp_path / "node.toml") in str(raised.value)


def test_a_settings_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        load_settings({"HETERO_CONFIG": str(tmp_path / "nothing.toml")})
