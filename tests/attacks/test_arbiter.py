"""What programs get that try to get more time than their grant says, alone and beside others."""

from pathlib import Path

import pytest
from attacks import (
    OF_OTHERS,
    OF_TIME,
    Attack,
    grant_for,
    honest_result,
    report_of,
    simulated_rack,
    start,
)


@pytest.mark.measured
@pytest.mark.parametrize("attack", OF_TIME, ids=[attack.name for attack in OF_TIME])
def test_work_of_any_length_and_by_any_call_gets_the_share(tmp_path: Path, attack: Attack) -> None:
    answer = report_of(start(attack, grant_for(attack, simulated_rack(attack, tmp_path)), tmp_path))
    assert answer["held"], answer["got"]
    print(answer["got"])


@pytest.mark.measured
@pytest.mark.parametrize("attack", OF_OTHERS, ids=[attack.name for attack in OF_OTHERS])
def test_an_honest_program_has_its_share_beside_one_that_is_not(
    tmp_path: Path, attack: Attack
) -> None:
    answer = honest_result(attack, tmp_path)
    assert answer["held"], answer["got"]
    print(answer["got"])
