"""What doctor says of gangs: processes that wait for nobody, and a clock that rows depend on."""

import time
from pathlib import Path

import pytest

from hetero.model import Ask, Gang, Request
from hetero.model.units import GiB
from hetero.node.grants import admit_program, grants_of
from hetero.node.ledger.grant_dir import USAGE
from hetero.node.ledger.grant_file import MAX_DEVICES
from hetero.node.ledger.usage_region import (
    DEVICE,
    GANG,
    HEADER,
    LEFT,
    MAGIC,
    SIZE,
    SLOT,
    SLOTS,
    VERSION,
    read_region,
)
from hetero.node.node import Node
from hetero.node.view.doctor import Finding, examine
from hetero.node.view.gangs import Clock

from .conftest import MakeNode, drop

SECOND = 10**9


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    return make_node(16 * GiB, 16 * GiB)


def write(region: Path, *used: tuple[int, int], met: float | None, asked: float = 60) -> None:
    """Write a region whose processes hold so much; times are seconds ago."""
    now = time.monotonic_ns()
    slots = [
        SLOT.pack(*held, *(0,) * (4 * MAX_DEVICES - len(held)), LEFT)  # its process needs no lock
        for held in used
    ]
    since = now - int(asked * SECOND)
    gang = GANG.pack(
        *(0, 1, 0, 0, 0, 0, 0, since, 7, 2, 6 * 10**6, 0, 2, 3, 0, 0, 5 * 10**6),
        0 if met is None else now - int(met * SECOND),
    )
    contents = bytearray(SIZE)
    contents[: HEADER.size] = HEADER.pack(MAGIC, VERSION, SLOTS, len(used), 0)
    at = HEADER.size + MAX_DEVICES * DEVICE.size
    contents[at : at + len(slots) * SLOT.size] = b"".join(slots)
    at += SLOTS * SLOT.size
    contents[at : at + GANG.size] = gang
    region.write_bytes(contents)


def findings(node: Node) -> list[Finding]:
    return [found for found in examine(node) if "wait for another" in found.says]


def test_a_gang_whose_processes_wait_for_nobody_is_told(node: Node) -> None:
    asks = (Ask(memory=GiB, core=50),) * 2
    handle, _ = admit_program(grants_of(node), Request(asks=asks), command=["job"])
    region = node.directory(handle.grant.id) / USAGE

    write(region, (GiB, 0), (0, GiB), met=None)
    (finding,) = findings(node)
    assert ("note", f"grant {handle.grant.id}") == (finding.verdict.value, finding.subject)
    assert "s: `--gang off`" in finding.says
    write(region, (GiB, 0), (0, GiB), met=12)
    assert 1 == len(findings(node))

    write(region, (GiB, 0), (0, GiB), met=1)  # one waited a moment ago
    assert [] == findings(node)
    write(region, (GiB, 0), (0, GiB), met=None, asked=1)  # it has only begun
    assert [] == findings(node)
    write(region, (GiB, GiB), (0, GiB), met=None)  # a process uses both
    assert [] == findings(node)
    write(region, (GiB, 0), (GiB, 0), met=None)  # nobody uses the second
    assert [] == findings(node)
    drop(handle)


def test_what_a_region_says_of_rows_is_read(tmp_path: Path) -> None:
    write(tmp_path / "usage", (GiB, 0), met=1)
    gang = read_region(tmp_path / "usage").gang

    assert gang
    assert (True, 7, 2, 6 * 10**6) == (gang.runs, gang.row_count, gang.overrun_count, gang.end_ns)
    assert (3, 5 * 10**6) == (gang.intrusion_count, gang.intruded_ns)


def test_where_a_row_is_by_hand_doctor_says_how_wrong_the_clock_may_be(node: Node) -> None:
    def clocks() -> list[Finding]:
        return [found for found in examine(node) if found.subject == "clock"]

    assert [] == clocks()
    ask = Ask(memory=GiB, core=50)
    gang = Gang(name="us", row=1, rows=2)
    handle, _ = admit_program(grants_of(node), Request(asks=(ask,), gang=gang), command=["job"])
    assert 1 == len(clocks())
    drop(handle)


def test_the_clock_is_said_in_milliseconds_or_not_to_be_kept() -> None:
    assert "0.25 ms from true time" in str(Clock(synchronised=True, error=0.25, most=3.5))
    assert "3.5 ms at most" in str(Clock(synchronised=True, error=0.25, most=3.5))
    assert "is not synchronised" in str(Clock(synchronised=False, error=0, most=0))
