"""What a grant owes when it ends is kept for its user; a new grant of that user waits for it."""

import fcntl
import os
import signal
import struct
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from attrs import evolve

from hetero.model.units import GiB
from hetero.node.guard.monitor import Monitor
from hetero.node.ledger import debts as debts_module
from hetero.node.ledger import usage_region
from hetero.node.ledger.debts import FORGOTTEN_NS, LEAST_NS, MOST_NS, Debt
from hetero.node.ledger.grant_file import read_owes_until
from hetero.node.ledger.ledger import GrantHandle
from hetero.node.node import Node
from hetero.node.settings import OnDebt
from hetero.node.view.debt import owing, waits

from .conftest import MakeNode, admit, drop, request, standing

SECOND = 1_000_000_000


def spend(handle: GrantHandle, owed_s: float, *, balance_s: float | None = None) -> None:
    """Write into a grant's region what its limiter would: what it owes as of now."""
    balance_s = -owed_s if balance_s is None else balance_s
    counts = (0, 0, 0, 1, int(owed_s * SECOND), int(balance_s * SECOND), time.monotonic_ns())
    header = usage_region.HEADER.pack(usage_region.MAGIC, usage_region.VERSION, 1024, 0, 0)
    device = usage_region.DEVICE.pack(*counts, 0, 0, 0, int(owed_s * SECOND))
    with (handle.path / "tenant/usage").open("r+b") as file:
        file.write(header + device)


def lock(handle: GrantHandle, byte: int) -> int:
    """Lock a byte of a grant's region, as its limiter does; it is held until it is closed."""
    descriptor = os.open(handle.path / "tenant/usage", os.O_RDWR)
    first = usage_region.time_slice_bytes(0).start
    fcntl.fcntl(
        descriptor,
        fcntl.F_OFD_SETLK,
        struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, first + byte, 1, 0),
    )
    return descriptor


def wait_of(handle: GrantHandle) -> float:
    """Return for how many seconds the gate of a grant is closed from now on."""
    (until_ns,) = read_owes_until(handle.path / "tenant/grant", device_count=1)
    return max(until_ns - time.monotonic_ns(), 0) / SECOND


def new(node: Node, core: int) -> GrantHandle:
    return admit(node, request(memory=GiB, core=core))


def test_a_new_grant_waits_for_what_one_that_ended_owed(make_node: MakeNode) -> None:
    node = make_node()
    other = new(node, 60)
    debtor = new(node, 10)
    spend(debtor, 3.0)
    with open(lock(other, 0), "rb"):  # it has work
        drop(debtor)
        assert [other.grant.id] == standing(node)
        after = new(node, 20)

    assert 3 / 0.2 == pytest.approx(wait_of(after), abs=0.5)
    assert 0 == wait_of(other)  # it is older than the debt
    (wait,) = waits(node, after.grant)
    user = after.grant.user
    assert f"waits 15 s: {user} owes 3 s on memory:0 (job {debtor.grant.id})" == wait.what


def test_what_is_not_paid_when_the_grant_ends_waits_for_the_next(make_node: MakeNode) -> None:
    node = make_node()
    other = new(node, 60)
    with open(lock(other, 0), "rb"):
        for _ in range(3):
            debtor = new(node, 10)
            spend(debtor, 1.0)
            drop(debtor)
        after = new(node, 10)
        drop(after)  # it did nothing, and paid next to nothing
        last = new(node, 10)

    assert 3 / 0.1 == pytest.approx(wait_of(last), abs=1)


def test_who_owed_nothing_to_others_waits_for_nothing(make_node: MakeNode) -> None:
    node = make_node()
    for owed_s, balance_s in ((0.0, -5.0), (5.0, 0.2), (LEAST_NS / 2 / SECOND, -5.0)):
        debtor = new(node, 10)
        spend(debtor, owed_s, balance_s=balance_s)
        drop(debtor)
        after = new(node, 10)
        assert 0 == wait_of(after)
        assert () == waits(node, after.grant)
        drop(after)


def test_no_tenant_can_write_what_is_kept(make_node: MakeNode) -> None:
    node = make_node()
    debtor = new(node, 10)
    spend(debtor, 5.0)
    drop(debtor)
    standing(node)

    private = node.ledger.path / "private"
    (kept,) = private.glob("debts/*/*.json")
    assert 0o700 == private.stat().st_mode & 0o777
    assert 0o644 == kept.stat().st_mode & 0o777


def test_a_debt_is_kept_once_though_who_keeps_it_is_killed(make_node: MakeNode) -> None:
    node = make_node()
    debtor = new(node, 10)
    spend(debtor, 5.0)
    drop(debtor)
    ledger = node.ledger
    ledger._keep_debt(debtor.grant.id)  # and then it is killed

    assert [] == standing(node)
    (debt,) = ledger.debts.all()
    assert 5 == pytest.approx(debt.owed_ns / SECOND, abs=0.2)


#: Holds a grant as a program under a limiter does that owes much with work in flight.
OWES = """
import fcntl, os, struct, sys, time
file = os.open(sys.argv[1], os.O_RDWR)
lock = struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, int(sys.argv[2]), 1, 0)
fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
print("there", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("on_debt", list(OnDebt))
def test_its_processes_are_ended_where_the_node_says_so_and_nobody_elses(
    make_node: MakeNode, on_debt: OnDebt
) -> None:
    node = make_node()
    node = evolve(node, settings=evolve(node.settings, on_debt=on_debt))
    other, debtor = new(node, 60), new(node, 10)
    first = usage_region.time_slice_bytes(0).start
    devices = node.discover().devices
    with ExitStack() as programs:
        children = []
        for handle, byte in ((other, 0), (debtor, 24)):
            words = [sys.executable, "-c", OWES, str(handle.path / "tenant/usage")]
            child = programs.enter_context(
                subprocess.Popen([*words, str(first + byte)], stdout=subprocess.PIPE)
            )
            programs.callback(child.kill)
            assert child.stdout is not None
            assert b"there\n" == child.stdout.readline()
            spend(handle, 0.0)
            children.append(child)
        honest, owes = children
        news = [str(finding) for finding in Monitor(node).sample(devices).news]

        sentence = (
            f"owes 1 s on memory:0 (of {debtor.grant.user}) and goes on while others have work"
        )
        assert f"grant {debtor.grant.id} {sentence}" in news
        assert None is honest.poll()
        if on_debt is OnDebt.END:
            assert -signal.SIGKILL == owes.wait(timeout=60)
            killed = f"({owes.pid}) of grant {debtor.grant.id} is killed: {sentence}"
            assert [killed] == [line[line.index("(") :] for line in news if "is killed" in line]
        else:
            assert None is owes.poll()
            assert 1 == len(news)


DEBT = Debt(
    device="D-0",
    who="alice",
    job="4f1c",
    owed_ns=12 * SECOND,
    core_share=2000,
    payment_share=2000,
    at_ns=100 * SECOND,
    demand_ns=100 * SECOND,
)


def test_it_is_paid_while_others_want_the_device_and_forgotten_after_a_minute_without() -> None:
    def left_s(now_s: int, demand_s: int) -> float | None:
        left = DEBT.at(now_s * SECOND, demand_s * SECOND)
        return left.owed_ns / SECOND if left else None

    assert 60 * SECOND == DEBT.wait_ns
    assert 10 == left_s(110, 110)
    assert 11 == left_s(140, 105)  # nobody else wanted it from then on
    assert None is left_s(100 + 61, 0)
    assert 12 == left_s(100 + 59, 0)
    assert None is left_s(160, 160)  # paid
    assert 60 * SECOND == FORGOTTEN_NS


def test_no_more_than_half_a_minute_is_kept() -> None:
    hour = evolve(DEBT, owed_ns=3600 * SECOND)
    left = hour.at(100 * SECOND, 100 * SECOND)
    assert left is not None
    assert MOST_NS == left.owed_ns == 30 * SECOND


def test_a_grant_that_owes_much_and_goes_on_is_found_while_another_has_work(
    make_node: MakeNode,
) -> None:
    node = make_node()
    other, debtor = new(node, 60), new(node, 10)
    spend(debtor, 0.0, balance_s=0.9)  # its tenant wrote that

    def found() -> list[tuple[str, float]]:
        grants = node.snapshot().grants
        regions = {
            grant.id: usage_region.read_region(
                node.directory(grant.id) / "tenant/usage", device_count=1
            )
            for grant in grants
        }
        return [(one.grant, one.seconds) for one in owing(node, grants, regions)]

    with open(lock(debtor, 24), "rb"):  # its limiter's lock says otherwise
        assert [] == found()
        with open(lock(other, 0), "rb"):
            assert [(debtor.grant.id, 1.0)] == found()
            spend(debtor, 4.0)
            ((_, seconds),) = found()
            assert 4 == pytest.approx(seconds, abs=0.2)
    with open(lock(other, 0), "rb"), open(lock(debtor, 19), "rb"):  # works, by its count
        assert [debtor.grant.id] == [grant for grant, _ in found()]
    with open(lock(other, 0), "rb"):
        assert [] == found()  # nothing is in flight


def test_a_record_that_is_broken_is_removed(make_node: MakeNode) -> None:
    node = make_node()
    debtor = new(node, 10)
    spend(debtor, 5.0)
    drop(debtor)
    standing(node)
    (kept,) = node.ledger.path.glob("private/debts/*/*.json")
    kept.write_text("{")
    after = new(node, 10)

    assert 0 == wait_of(after)
    assert not kept.exists()


def test_an_earlier_boots_debts_are_forgotten(make_node: MakeNode, tmp_path: Path) -> None:
    node = make_node()
    debtor = new(node, 10)
    spend(debtor, 5.0)
    drop(debtor)
    standing(node)
    (node.ledger.path / "boot").write_text("another")

    assert 0 == wait_of(new(node, 10))
    assert () == node.ledger.debts.all()
    assert debts_module.DEBTS == "debts.json"
