"""What programs get that try to get more time than their grant says, alone and beside others."""

from __future__ import annotations

from pathlib import Path

import pytest
from attacks import CORE, MEMORY, OF_TIME, Attack, beside, start, told
from tenancy import Rack, Terms


@pytest.mark.measured
@pytest.mark.parametrize("attack", OF_TIME, ids=[attack.name for attack in OF_TIME])
def test_work_of_any_length_and_in_any_number_of_streams_gets_the_share(
    tmp_path: Path, attack: Attack
) -> None:
    grant = Rack.of(tmp_path).grant(Terms(memory=MEMORY, core=100 * CORE))
    answer = told(start(attack, grant, tmp_path))
    assert answer["held"], answer["got"]
    print(answer["got"])


@pytest.mark.measured
@pytest.mark.parametrize("name", ["stuck_launcher", "shared_files"])
def test_an_honest_program_has_its_share_beside_one_that_is_not(tmp_path: Path, name: str) -> None:
    answer = beside(Attack(name, name), tmp_path)
    assert answer["held"], answer["got"]
    print(answer["got"])
