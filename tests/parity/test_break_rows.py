"""A word that is not read any more is noticed by each test of its row."""

from pathlib import Path

import pytest

from tests.parity.break_rows import survivors, written_otherwise


def test_a_word_is_broken_where_it_is_whole_and_in_python_only_in_strings() -> None:
    code = 'cards = {"a.com/cards": "a.com/cards-more", "b": f"see a.com/cards"}  # cards\n'
    broken = 'cards = {"a.com/cardszz": "a.com/cards-more", "b": f"see a.com/cardszz"}  # cards\n'

    assert broken == written_otherwise(Path("names.py"), code, "a.com/cards")
    assert 'cards = {"a.com/cards": "a.com/cards-more", "bzz": f"see a.com/cards"}  # cards\n' == (
        written_otherwise(Path("names.py"), code, "b")
    )
    assert code == written_otherwise(Path("names.py"), code, "card")
    assert 'f"zzz {z} zzz" + "zzz"' == written_otherwise(Path("a.py"), 'f"z {z} z" + "z"', "z")
    assert "urlzz: 1\n" == written_otherwise(Path("values.yaml"), "url: 1\n", "url=1")


@pytest.mark.soak
def test_each_test_of_a_row_notices_that_its_word_is_not_read() -> None:
    assert [] == survivors(seed=1, count=20)
