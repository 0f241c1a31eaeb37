"""What programs get that try to get more time than their grant says, alone and beside others."""

from __future__ import annotations

from pathlib import Path

import pytest
from attacks import CORE, MEMORY, Attack, beside, start, told
from tenancy import Rack, Terms


@pytest.mark.measured
@pytest.mark.parametrize("name", ["long_kernels", "long_graphs", "many_streams"])
def test_work_of_any_length_and_in_any_number_of_streams_gets_the_share(
    tmp_path: Path, name: str
) -> None:
    grant = Rack.of(tmp_path).grant(Terms(memory=MEMORY, core=100 * CORE))
    answer = told(start(Attack(name, name), grant, tmp_path))
    assert answer["held"], answer["got"]
    print(answer["got"])


@pytest.mark.measured
@pytest.mark.parametrize("name", ["stuck_launcher", "shared_files"])
def test_an_honest_program_has_its_share_beside_one_that_is_not(tmp_path: Path, name: str) -> None:
    answer = beside(Attack(name, name), tmp_path)
    assert answer["held"], answer["got"]
    print(answer["got"])
