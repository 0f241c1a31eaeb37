"""What people type who come from docker, kubectl and git; ids and JSON for scripts; the log."""

import json
import re
import subprocess
import time
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.programs import next_line

from .conftest import Begin, Run

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/json.schema.json").read_text())


def document(text: str) -> Any:
    """Return a document that is valid by the schema."""
    parsed = json.loads(text)
    jsonschema.Draft202012Validator(SCHEMA).validate(parsed)
    return parsed


@pytest.fixture
def trainer(begin: Begin, command: tuple[str, ...]) -> "subprocess.Popen[str]":
    """A program that holds a grant with a label until it reads a line."""
    words = ("--device", "1", "-m", "2Gi", "-c", "30")
    script = "echo holds; read line"
    program = begin(*command, "run", "-q", *words, "--label", "trainer", "--", "sh", "-c", script)
    assert "holds\n" == next_line(program)
    return program


def ends(program: "subprocess.Popen[str]") -> None:
    """End a program that reads a line."""
    program.communicate("\n", timeout=30)


def test_row_26_words_of_habit_do_what_is_meant(hetero: Run, trainer: object) -> None:
    assert hetero("inventory", "--help").stdout == hetero("ls", "--help").stdout
    assert "trainer" in hetero("ls").stdout
    assert hetero("--version").stdout == hetero("version").stdout
    assert hetero("run", "--help").stdout == hetero("help", "run").stdout
    assert hetero("--help").stdout == hetero("help").stdout
    assert "trainer" in hetero("logs").stdout
    refused = hetero("rm", "trainer")
    assert (3, True) == (refused.returncode, "--force" in refused.stderr)
    killed = hetero("kill", "trainer")
    assert (0, True) == (killed.returncode, killed.stdout.startswith("released grant "))


@pytest.mark.parametrize(
    "words", [("get",), ("events",), ("run", "--wiat"), ("demo", "--json"), ("ps", "--xyz")]
)
def test_row_26_nothing_is_suggested_that_is_not_near(hetero: Run, words: tuple[str, ...]) -> None:
    done = hetero(*words)

    assert 2 == done.returncode
    assert ("--wiat" in words) == ("did you mean --wait?" in done.stderr)
    assert ("--wiat" in words) == ("did you mean" in done.stderr)


def test_row_18_short_options_for_what_is_typed_most(hetero: Run, trainer: object) -> None:
    (grant,) = document(hetero("ps", "--json").stdout)["items"]

    assert (2 << 30, 30) == (grant["shares"][0]["memory"], grant["shares"][0]["core"])


@pytest.mark.parametrize(
    ("size", "sentence"),
    [
        ("3g", "--memory 3g = 2861 MiB; write 3GiB for the size that docker means"),
        ("512mb", "--memory 512mb = 488 MiB; write 512MiB for the size that docker means"),
        ("3G", ""),
        ("3Gi", ""),
    ],
)
def test_row_18_a_size_in_dockers_letters_is_told(hetero: Run, size: str, sentence: str) -> None:
    done = hetero("fit", "--memory", size)

    assert (0, f"hetero: {sentence}\n" if sentence else "") == (done.returncode, done.stderr)
    assert "" == hetero("run", "-q", "--memory", size, "true").stderr


def test_row_20_ids_alone_for_scripts(hetero: Run, trainer: object) -> None:
    text = hetero("ps", "-q").stdout

    assert re.fullmatch(r"[0-9a-f]{8}\n", text)
    assert "" == hetero("ps", "-q", "--user", "nobody").stdout.replace("no grants stand", "")


def test_row_20_what_makes_or_changes_a_grant_says_it_as_json(hetero: Run) -> None:
    ran = hetero("run", "--json", "--memory", "1Gi", "--label", "x", "--", "echo", "out")
    (grant,) = document(ran.stderr)["items"]
    assert ("out\n", "x", 1 << 30) == (ran.stdout, grant["label"], grant["shares"][0]["memory"])

    refused = hetero("resize", "nosuch", "-c", "10", "--json")
    assert (4, 4) == (refused.returncode, document(refused.stdout)["code"])


def test_row_20_resize_and_release_say_it_as_json(
    hetero: Run, begin: Begin, command: tuple[str, ...], one_card: Path
) -> None:
    rack = {"HETERO_RACK": str(one_card)}
    words = ("run", "-q", "-m", "2Gi", "-c", "30", "--label", "trainer")
    program = begin(*command, *words, "--", "sh", "-c", "echo holds; read line", **rack)
    assert "holds\n" == next_line(program)

    changed = hetero("resize", "trainer", "-m", "3Gi", "-c", "20", "--json", **rack)
    (grant,) = document(changed.stdout)["items"]
    share = grant["shares"][0]
    assert (3 << 30, 20, 0) == (share["memory"], share["core"], share["number"])

    (released,) = document(hetero("release", "--force", "trainer", "--json", **rack).stdout)[
        "items"
    ]
    assert {"grant": "trainer", "says": f"released grant {grant['id']}"} == released


def test_who_had_a_card_last_night_is_in_the_log(
    hetero: Run, trainer: "subprocess.Popen[str]"
) -> None:
    ends(trainer)
    hetero("ps")  # somebody looks
    assert 0 == hetero("run", "-q", "--device", "0", "-m", "1Gi", "true").returncode

    began, ended = document(hetero("log", "--device", "1", "--json").stdout)["items"]

    assert ("trainer", [1], began["grant"]) == (began["subject"], [1], ended["grant"])
    assert re.search(r" has 2 GiB, 30 % of testing:1: sh -c ", began["says"])
    assert ended["says"].endswith(" has ended")
    assert [began, ended] == document(hetero("log", "--json", began["grant"]).stdout)["items"]


def test_the_log_is_cut_by_number_and_by_time(hetero: Run, environ: Mapping[str, str]) -> None:
    log = Path(environ["HETERO_STATE"]) / "persistent/log"
    log.parent.mkdir(parents=True)
    now = datetime.now(timezone.utc)
    with log.open("w") as file:
        for hours in (30, 20, 1):
            at = (now - timedelta(hours=hours)).isoformat(timespec="milliseconds")
            file.write(json.dumps({"at": at, "subject": f"before-{hours}", "says": "x"}) + "\n")

    def subjects(*words: str) -> list[str]:
        items = document(hetero("log", "--json", *words).stdout)["items"]
        return [event["subject"] for event in items]

    assert ["before-30", "before-20", "before-1"] == subjects()
    assert ["before-20", "before-1"] == subjects("--since", "1d")
    assert ["before-1"] == subjects("--tail", "1")
    assert [] == subjects("--tail", "0")
    since = (now - timedelta(hours=2)).isoformat(timespec="seconds")
    assert ["before-1"] == subjects("--since", since)
    refused = hetero("log", "--since", "yesterday")
    assert (2, 1) == (refused.returncode, len(refused.stderr.splitlines()))


def test_the_log_is_followed(begin: Begin, command: tuple[str, ...], hetero: Run) -> None:
    hetero("run", "-q", "-m", "1Gi", "--label", "before", "true")
    follower = begin(*command, "log", "--follow", "--tail", "1", "--json")
    assert ["before"] == [event["subject"] for event in document(next_line(follower))["items"]]

    hetero("run", "-q", "-m", "1Gi", "--label", "after", "true")

    deadline_s = time.monotonic() + 30
    seen: list[str] = []
    while "after" not in seen and time.monotonic() < deadline_s:
        seen += [event["subject"] for event in document(next_line(follower))["items"]]
    assert "after" in seen


@pytest.mark.parametrize(("word", "name"), [("rm", "release"), ("ls", "inventory")])
def test_help_of_a_word_of_habit_is_that_of_its_command(hetero: Run, word: str, name: str) -> None:
    assert hetero("help", name).stdout == hetero("help", word).stdout != ""
