"""What programs get that try to get more than their grant, on the simulated driver."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from attacks import (
    ATTACKS,
    BY_NAME,
    HERE,
    SOON,
    Attack,
    grant_for,
    report_of,
    seen,
    simulated_rack,
    start,
)
from tenancy import Rack

from tests.programs import completed

HELD = [attack for attack in ATTACKS if attack.held]


@pytest.mark.parametrize("attack", HELD, ids=[attack.name for attack in HELD])
def test_an_attack_on_the_limits_is_held(tmp_path: Path, attack: Attack) -> None:
    """What each tries is said where they are listed."""
    answer = report_of(start(attack, grant_for(attack, simulated_rack(attack, tmp_path)), tmp_path))
    assert answer["held"], answer["got"]
    print(answer["got"])


PARTS = """
#include "memory.h"
PART(fails, "one") { open_card(); must((int)CU(cuMemUnmap)(1, 1), "cuMemUnmap"); }
PART(hangs, "two")
{
    open_card();
    CUstream stream = blocked_stream();
    CU(cuStreamSynchronize)(stream);
}
PART(crashes, "three") { open_card(); CU(cuMemGetInfo_v2)((size_t *)1, (size_t *)1); }
PART(works, "four") { open_card(); }
int main(void) { run_parts(); }
"""


def test_a_part_that_fails_or_does_not_end_is_told_of_by_its_call(tmp_path: Path) -> None:
    rack, program = Rack.of(tmp_path), tmp_path / "parts"
    words = ["cc", "-D_GNU_SOURCE", "-DPART_S=2", f"-I{HERE}", "-x", "c", "-", "-o", str(program)]
    subprocess.run(words, input=PARTS, text=True, check=True)
    answer = report_of(rack.machine.spawn([str(program)], ATTACK_MEMORY=str(64 << 20)))
    assert not answer["held"]
    assert [
        "4 ways",
        "one: cuMemUnmap answered 1",
        "two: not at its end after 2 s, in cuStreamSynchronize",
        "three: status 0xb in cuMemGetInfo_v2",
    ] == answer["got"].split("; ")


ISOLATION = Path(__file__).parents[2] / "docs/isolation.md"


@pytest.mark.parametrize("name", [each.name for each in ATTACKS if not each.held])
def test_what_user_space_cannot_close_is_in_the_table_of_what_is_not_closed(
    tmp_path: Path, name: str
) -> None:
    attack = BY_NAME[name]
    answer = report_of(start(attack, grant_for(attack, simulated_rack(attack, tmp_path)), tmp_path))
    listed = [line for line in ISOLATION.read_text().splitlines() if f"`{name}.c`" in line]

    assert [True] == ["not closed" in line for line in listed]
    assert not answer["held"], answer["got"]
    assert "MiB" in answer["got"]  # it ran, and got past the limit


def test_what_user_space_cannot_close_is_seen_by_who_watches(tmp_path: Path) -> None:
    """Side by side, each on a machine of its own: to see it takes half a minute."""

    def seconds(name: str) -> float:
        (tmp_path / name).mkdir()
        rack = Rack.of(tmp_path / name)
        return seen(BY_NAME[name], rack.machine, rack.directory)

    names = [attack.name for attack in ATTACKS if not attack.held]
    with ThreadPoolExecutor() as pool:
        took = dict(zip(names, pool.map(seconds, names), strict=True))
    print(*(f"{name} seen after {each:.0f} s of {SOON}" for name, each in took.items()))
    assert max(took.values()) < 3 * SOON


def test_an_attack_that_is_not_there_is_refused_in_one_line() -> None:
    command = [sys.executable, str(HERE / "attacks.py"), "libc_dlsym", "no_such", "nor_this"]
    environment = {"PYTHONPATH": ":".join(sys.path)}
    done = completed(command, env=environment)

    assert (2, "") == (done.returncode, done.stdout)
    assert done.stderr.startswith("no_such, nor_this: no such attack; there are libc_dlsym, ")
    assert 1 == done.stderr.count("\n")
