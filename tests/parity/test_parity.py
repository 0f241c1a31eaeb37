"""docs/from-hami.md is what its rows give, and what its tests send is found out."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from make_parity import (
    OPEN,
    PAGE,
    SHOWN,
    VERDICTS,
    Row,
    absent_tests,
    not_sent,
    page,
    read_rows,
    recorded,
)

from tests.kube.fake_api import PODS
from tests.parity import recorder as recording
from tests.parity.recorder import Recorder
from tests.programs import completed

ROWS = read_rows()


# --- the page -------------------------------------------------------------------------------------


def test_the_page_is_what_the_rows_give() -> None:
    assert page(ROWS) == PAGE.read_text(), "python docs/make_parity.py writes it"


def test_each_row_has_a_verdict_and_what_goes_with_it() -> None:
    assert 331 == len({row.key for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert row.verdict in VERDICTS, row.key
        assert (row.verdict in SHOWN) == bool(row.words) == bool(row.tests), row.key
        assert (row.verdict == "not shown") == bool(row.lacks), row.key


def test_few_rows_are_for_later_or_cannot_be_shown() -> None:
    counts = Counter(row.verdict for row in ROWS)

    for verdict, most in VERDICTS.items():
        assert most is None or counts[verdict] <= most


def test_what_is_open_stands_first_on_the_page() -> None:
    text = page(ROWS)
    first = text.partition("## What is open")[2].partition("\n## ")[0]

    for row in ROWS:
        assert (row.verdict in OPEN) == (f"| {row.key} |" in first)


def test_each_test_that_a_row_names_is_there() -> None:
    assert [] == [*absent_tests(ROWS)]
    row = evolve(ROWS[0], tests=("tests/parity/test_parity.py::test_of_nothing",))
    assert [f"{row.key}: there is no test {row.tests[0]}"] == [*absent_tests([row])]


# --- what was sent --------------------------------------------------------------------------------


def a_row(*words: str) -> Row:
    return Row("X1", "Words", "a word", "has it", "the same", "same", words, ("a.py::test_it",))


def test_a_row_whose_words_were_not_sent_is_a_line() -> None:
    row = a_row("vendor.com/cards", "vendor.com/memory")
    half = {"a.py::test_it": ["vendor.com/cards"], "b.py::test_other": ["vendor.com/memory"]}

    assert [] == [*not_sent([row], {"a.py::test_it": row.words})]
    assert ["X1: its tests did not send vendor.com/memory"] == [*not_sent([row], half)]
    assert "X1: a.py::test_it was not run" in [*not_sent([row], {})]
    assert [] == [*not_sent([evolve(row, verdict="later")], {})]


def test_of_two_runs_of_a_test_the_later_one_counts_with_all_of_its_processes(
    tmp_path: Path,
) -> None:
    files = {
        "early-1": '{"a.py::test_it": ["old"], "b.py::test_other": ["kept"]}',
        "late-2": '{"a.py::test_it": ["new"]}',
        "late-3": '{"a.py::test_it": ["of another process"]}',
    }
    for second, (name, text) in enumerate(files.items()):
        (tmp_path / f"{name}.json").write_text(text)
        os.utime(tmp_path / f"{name}.json", (second, second))

    assert {
        "a.py::test_it": {"new", "of another process"},
        "b.py::test_other": {"kept"},
    } == recorded(tmp_path)


class Words:
    """What a recorder has noted by now."""

    def __init__(self, *words: str) -> None:
        self.recorder = Recorder(words)

    def of(self, sent: Any) -> set[str]:
        self.recorder.note(sent)
        return self.recorder.now


def test_words_are_keys_texts_their_parts_and_ends_of_paths() -> None:
    words = Words("a.com/cards", "LOG", "cards.memory", "a.com/mode=mig", "--lease", "off=true")
    document = {
        "limits": {"a.com/cards": 1, "a.com/cards-more": 2},
        "annotations": {"a.com/mode": "mig"},
        "env": [{"name": "LOG"}],
        "settings": {"nodes": {"*": {"cards": {"memory": "1Gi"}}}},
    }

    seen = {"a.com/cards", "LOG", "cards.memory", "a.com/mode=mig"}
    assert seen == words.of(document)
    assert seen | {"--lease", "off=true"} == words.of(["--lease=kube/one", {"off": True}])
    assert set() == Words("a.com/card", "cards").of(["a.com/cards", "a.com/cards-more"])


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What is noted of what is sent, by whatever is listened to."""
    noted: list[Any] = []
    owners: list[tuple[Any, str, Any]] = []
    monkeypatch.setattr(recording, "_replaced", owners)
    recording.listen(noted.append)
    yield noted
    for owner, name, called in reversed(owners):
        setattr(owner, name, called)


async def test_what_goes_to_the_api_a_program_and_the_chart_is_listened_to(
    listening: list[Any], tmp_path: Path
) -> None:
    from tests.kube.fake_api import FakeApi
    from tests.kube.test_chart import rendered
    from tests.kube.test_webhook import HOOK

    pod = {"metadata": {"name": "p"}, "spec": {"containers": []}}
    (tmp_path / "settings.toml").write_text('choose = "score"\n')
    await FakeApi().post(PODS, pod)
    await HOOK.admit({"uid": "u", "operation": "CREATE", "object": pod})
    completed(["true", f"--settings={tmp_path / 'settings.toml'}"], env={"ONLY_HERE": "1"})
    rendered(allocation="both")

    notes = [str(note) for note in listening]
    assert any("'name': 'p'" in one and PODS in one for one in notes)
    assert any("'operation': 'CREATE'" in one for one in notes)
    assert any("ONLY_HERE" in one and "{'choose': 'score'}" in one for one in notes)
    assert any("'allocation': 'both'" in one for one in notes)
