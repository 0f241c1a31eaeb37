"""What programs without a grant hold is said by every view, and is no room for a request."""

import json
import subprocess
from pathlib import Path

import hetero_simulator
import pytest

from tests.programs import next_line

from .conftest import Begin, Run

#: Two cards of a driver that counts processes, two of one that does not, and three sick ones.
RACK = """
[device]
vendor = nvidia
model = NVIDIA Small
memory = 16 GiB
context = 500 MiB
[device]
vendor = nvidia
model = NVIDIA Large
memory = 32 GiB
context = 500 MiB
[device]
vendor = ascend
model = 910B3
memory = 64 GiB
used = 50 GiB
[device]
vendor = ascend
model = 910B3
memory = 64 GiB
used = 3 GiB
[device]
vendor = nvidia
model = NVIDIA Small
memory = 16 GiB
health = ecc
[device]
vendor = nvidia
model = NVIDIA Small
memory = 16 GiB
health = lost
[device]
vendor = nvidia
model = NVIDIA Small
memory = 16 GiB
health = hot
[kernel spin]
time = 2 us
per_arg0 = 1 ns
"""
#: Numbers in the inventory, which is by vendor.
USED_ASCEND, IDLE_ASCEND, SMALL, LARGE, ECC, LOST, HOT = range(7)


@pytest.fixture
def environ(environ: dict[str, str], tmp_path: Path) -> dict[str, str]:
    rack = tmp_path / "world.rack"
    rack.write_text(RACK)
    return {**environ, "HETERO_RACK": str(rack), "PYTHONPATH": "", "COLUMNS": "120"}


@pytest.fixture
def foreign(begin: Begin) -> "subprocess.Popen[str]":
    """A program without a grant that holds 12 GiB of the smaller card, and a context."""
    job = str(hetero_simulator.job("cuda"))
    drivers = str(hetero_simulator.fake_drivers())
    program = begin(job, "--seconds", "600", "--memory", "12GiB", LD_LIBRARY_PATH=drivers)
    next_line(program)
    return program


def items(hetero: Run, *words: str) -> list[dict[str, object]]:
    listed = json.loads(hetero(*words, "--json").stdout)["items"]
    assert isinstance(listed, list)
    return listed


def test_a_card_with_room_in_fact_is_taken_and_one_without_is_refused_with_who_holds_it(
    hetero: Run, foreign: "subprocess.Popen[str]"
) -> None:
    uuids = [card["uuid"] for card in items(hetero, "inventory")]
    asked = ("--vendor", "nvidia", "--memory", "10Gi")
    on_card = (*asked, "--device", str(SMALL))

    (free_choice,) = items(hetero, "fit", *asked)
    refused = hetero("fit", *on_card)
    run = hetero("run", *on_card, "--", "true")
    anyway = hetero("run", "--anyway", *on_card, "--", "true")

    assert uuids[LARGE] == free_choice["device"]
    assert (3, 3, 0) == (refused.returncode, run.returncode, anyway.returncode)
    for words in (
        f"device {SMALL} (Small) has 3.5 GiB free",
        f"process {foreign.pid} (hetero-job-cuda of ",
        "holds 12.4 GiB without a grant",
        "take it with --anyway",
    ):
        assert words in refused.stderr
        assert words in run.stderr
    assert "holds 12.4 GiB without a grant" in anyway.stderr
    assert 0 == hetero("run", "--device", str(SMALL), "--memory", "3Gi", "--", "true").returncode
    assert [] == items(hetero, "ps")
