"""What a driver counts beyond the charges is charged, told of and acted upon; nobody else is."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from hetero.model import Enforcement, OnBypass, OnExcess, Request, Usage
from hetero.model.units import GiB, MiB
from hetero.node.guard.monitor import Ended, Monitor, Sighting
from hetero.node.guard.notes import note_unowned
from hetero.node.ledger.grant_dir import GRANT, USAGE
from hetero.node.ledger.grant_file import read_excess
from hetero.node.ledger.ledger import GrantHandle, Ledger
from hetero.node.node import Node
from hetero.node.settings import NodeSettings
from hetero.node.view.bypass import Bypass, Unowned, unowned_memory
from hetero.node.view.doctor import examine
from hetero.node.view.excess import (
    Excess,
)
from hetero.registry.registry import Registry
from hetero.testing import MemoryVendor, rack
from tests.node.conftest import admit, request
from tests.programs import next_line

CARD = "memory-0"
LIMIT = 4 * GiB

#: A process with a limiter, as far as others see: it keeps slot 0 of a region, and says what it
#: holds. Its arguments: the region, and the bytes used, of contexts, ever granted.
LIMITED = """
import fcntl, mmap, os, struct, sys, time
path, used, context, granted = sys.argv[1], *map(int, sys.argv[2:])
from hetero.node.ledger import usage_region as region
file = os.open(path, os.O_RDWR)
os.pwrite(file, region.HEADER.pack(region.MAGIC, region.VERSION, region.SLOTS, 1, 0), 0)
os.pwrite(file, region.DEVICE.pack(0, 0, 0, 0, 0, 0, 0, granted, 0, 0, 0), region.HEADER.size)
words = [used, *[0] * 15, context, *[0] * 47]
os.pwrite(file, region.SLOT.pack(*words, os.getpid()), region._FIRST)
fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("@hhqqi4x", fcntl.F_WRLCK, 0, 0, 1, 0))
kept = mmap.mmap(file, 1, flags=mmap.MAP_SHARED, prot=0)
os.close(file)
print("there", flush=True)
time.sleep(600)
"""

#: Starts a program that starts another when it reads a line, then maps the region it is told, as
#: the limiter does, and starts a third. It prints their PIDs, and in the end how the first and the
#: third are. All end with it, since they read from it.
STARTER = """
import mmap, subprocess, sys
def start(*command):
    return subprocess.Popen(command, stdin=-1, stdout=-1, text=True, bufsize=1)
older = start("sh", "-c", "exec 3<&0; read line; cat <&3 & echo $!; wait")
print(older.pid, flush=True)
with open(sys.stdin.readline().strip(), "r+b") as file:
    region = mmap.mmap(file.fileno(), 1)
older.stdin.write("start\\n")
print(older.stdout.readline().strip(), flush=True)
younger = start("cat")
print(younger.pid, flush=True)
print(older.poll() if younger.wait(60) else "ended", younger.returncode, flush=True)
sys.stdin.read()
"""

Start = Callable[..., int]


@pytest.fixture
def vendor() -> MemoryVendor:
    card = evolve(rack(16 * GiB)[0], enforcement=Enforcement.PRELOAD)
    return MemoryVendor([card], limiter="cuda")


@pytest.fixture
def node(vendor: MemoryVendor, tmp_path: Path) -> Node:
    """Contexts do not count, so what limiters report of them is believed."""
    return Node(
        registry=Registry.of(vendor),
        ledger=Ledger(tmp_path / "state"),
        settings=NodeSettings(context=False),
    )


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[Any]]]:
    started: list[subprocess.Popen[Any]] = []
    yield started
    for child in started:
        child.kill()
        child.communicate()


@pytest.fixture
def limited(children: list[subprocess.Popen[Any]]) -> Start:
    """Start a process of a grant with a limiter in it; return its PID."""

    def start(handle: GrantHandle, *, used: int, context: int = 0, granted: int = 0) -> int:
        words = map(str, (handle.path / USAGE, used, context, granted))
        command = [sys.executable, "-c", LIMITED, *words]
        child = subprocess.Popen(command, stdout=subprocess.PIPE)
        children.append(child)
        assert b"there\n" == next_line(child)
        return child.pid

    return start


@pytest.fixture
def unlimited(children: list[subprocess.Popen[Any]]) -> Start:
    """Start a program that holds a grant's files, and no limiter; or that holds none."""

    def start(handle: GrantHandle | None = None, *, program: str = "sleep") -> int:
        held = open(handle.path / USAGE, "r+b") if handle else None  # noqa: SIM115 - it is its own
        children.append(subprocess.Popen([program, "60"], stdin=held or subprocess.DEVNULL))
        if held:
            held.close()
        return children[-1].pid

    return start


def says(vendor: MemoryVendor, counted: Mapping[int, int] | None, *, unlisted: int = 0) -> None:
    """Have the driver say this of the card's processes."""
    used = sum((counted or {}).values()) + unlisted
    vendor.usage[CARD] = Usage(memory=used, core=None, processes=counted)


def sample(node: Node, monitor: Monitor | None = None) -> Sighting:
    return (monitor or Monitor(node)).sample(node.discover().devices)


def charged(handle: GrantHandle) -> int:
    return read_excess(handle.path / GRANT, device_count=1)[0]


def asking(**more: Any) -> Request:
    return evolve(request(memory=LIMIT), **more)


def is_alive(pid: int) -> bool:
    """Whether a child has not ended."""
    return os.waitpid(pid, os.WNOHANG) == (0, 0)


# --- charged and told -----------------------------------------------------------------------------


def test_excess_is_charged_at_once_and_taken_back_when_it_is_gone(
    node: Node, vendor: MemoryVendor, limited: Start
) -> None:
    handle = admit(node, asking())
    pid = limited(handle, used=2 * GiB, context=500 * MiB, granted=2 * GiB)
    says(vendor, {pid: 3572 * MiB})
    monitor = Monitor(node)

    first = sample(node, monitor)
    assert GiB == charged(handle)
    (excess,) = first.news
    assert isinstance(excess, Excess)
    assert (handle.grant.id, GiB, 0, pid) == (excess.grant, excess.memory, excess.over, excess.pid)
    assert f"grant {handle.grant.id} holds 1024 MiB of {CARD}" in str(excess)
    assert () == sample(node, monitor).news

    says(vendor, {pid: 2548 * MiB})
    sample(node, monitor)
    assert 0 == charged(handle)


def test_where_contexts_count_nothing_that_a_process_says_of_them_is_believed(
    node: Node, vendor: MemoryVendor, limited: Start
) -> None:
    node = evolve(node, settings=NodeSettings())
    handle = admit(node, asking())
    pid = limited(handle, used=100 * MiB, context=GiB)
    says(vendor, {pid: 480 * MiB})

    sample(node)

    assert 380 * MiB == charged(handle)


def test_a_little_is_charged_and_not_told_of(
    node: Node, vendor: MemoryVendor, limited: Start
) -> None:
    handle = admit(node, asking())
    pid = limited(handle, used=2 * GiB, context=500 * MiB)
    says(vendor, {pid: 2558 * MiB})

    seen = sample(node)

    assert 10 * MiB == charged(handle)
    assert () == seen.news
    assert [10 * MiB] == [one.memory for one in seen.excess]


def test_who_is_to_report_only_charges_nothing(
    node: Node, vendor: MemoryVendor, limited: Start
) -> None:
    handle = admit(node, asking(on_excess=OnExcess.REPORT))
    pid = limited(handle, used=0, context=500 * MiB)
    says(vendor, {pid: 2548 * MiB})

    assert [2 * GiB] == [one.memory for one in sample(node).news if isinstance(one, Excess)]
    assert 0 == charged(handle)


@pytest.mark.parametrize("available", [False, True])
def test_figures_that_are_not_available_change_nothing(
    node: Node, vendor: MemoryVendor, unlimited: Start, available: bool
) -> None:
    handle = admit(node, asking(on_bypass=OnBypass.KILL, on_excess=OnExcess.KILL))
    pid = unlimited(handle)
    vendor.usage[CARD] = Usage(memory=10 * GiB, processes={pid: 10 * GiB} if available else None)

    seen = sample(node)

    assert (os.waitpid(pid, 0)[1] == signal.SIGKILL) if available else is_alive(pid)
    assert available == bool(seen.news)
    assert available == bool(charged(handle))


def test_who_watches_no_longer_charges_nobody(
    node: Node, vendor: MemoryVendor, unlimited: Start
) -> None:
    handle = admit(node, asking())
    says(vendor, {unlimited(handle): GiB})
    monitor = Monitor(node)
    sample(node, monitor)
    assert GiB == charged(handle)

    monitor.forget()

    assert 0 == charged(handle)


def test_a_sweep_leaves_the_excess_as_it_is(
    node: Node, vendor: MemoryVendor, unlimited: Start
) -> None:
    handle = admit(node, asking())
    says(vendor, {unlimited(handle): GiB})
    sample(node)

    os.close(admit(node, request(memory=GiB, core=10)).descriptor)
    node.snapshot()

    assert GiB == charged(handle)


# --- ended ----------------------------------------------------------------------------------------


def test_a_program_without_a_limiter_is_ended_where_its_grant_says_so_and_nobody_else(
    node: Node, vendor: MemoryVendor, limited: Start, unlimited: Start
) -> None:
    handle = admit(node, asking(on_bypass=OnBypass.KILL))
    other = admit(node, asking())
    thief, sibling = unlimited(handle), limited(handle, used=GiB, context=500 * MiB)
    neighbour, stranger = unlimited(other), unlimited()
    says(vendor, dict.fromkeys((thief, sibling, neighbour, stranger), 1524 * MiB))

    seen = sample(node)

    (ended,) = (one for one in seen.news if isinstance(one, Ended))
    assert (handle.grant.id, thief) == (ended.grant, ended.pid)
    assert f"sleep ({thief}) of grant {handle.grant.id} is killed: holds 1524 MiB" in str(ended)
    assert (thief, signal.SIGKILL) == os.waitpid(thief, 0)
    assert [True] * 3 == [is_alive(pid) for pid in (sibling, neighbour, stranger)]
    assert {thief, neighbour} == {one.pid for one in seen.bypass}


def test_of_what_a_program_with_a_limiter_started_only_what_is_younger_than_the_grant_is_the_grants(
    node: Node, vendor: MemoryVendor, children: list[subprocess.Popen[Any]]
) -> None:
    """A script may leave programs running and then become a program of a grant."""
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    children.append(starter)
    assert starter.stdin
    older = int(next_line(starter))
    handle = admit(node, asking(on_bypass=OnBypass.KILL))
    time.sleep(2 / os.sysconf("SC_CLK_TCK"))  # the kernel counts starts in ticks
    starter.stdin.write(bytes(handle.path / USAGE) + b"\n")
    starter.stdin.flush()
    of_older, younger = int(next_line(starter)), int(next_line(starter))
    says(vendor, dict.fromkeys((older, of_older, younger), GiB))

    seen = sample(node)

    assert [younger] == [one.pid for one in seen.bypass]
    assert [younger] == [one.pid for one in seen.news if isinstance(one, Ended)]
    assert b"None -9\n" == next_line(starter)


def test_beyond_the_limit_the_process_with_most_excess_is_ended(
    node: Node, vendor: MemoryVendor, limited: Start
) -> None:
    handle = admit(node, asking(on_excess=OnExcess.KILL))
    pid = limited(handle, used=3 * GiB, context=500 * MiB)
    says(vendor, {pid: 4500 * MiB})
    monitor = Monitor(node)
    sample(node, monitor)
    assert is_alive(pid)  # all of it fits under the limit

    says(vendor, {pid: 5 * GiB})
    sample(node, monitor)

    assert (pid, signal.SIGKILL) == os.waitpid(pid, 0)


@pytest.mark.parametrize("by", ["name", "path", "vendor"])
def test_an_executable_that_is_ignored_is_told_of_and_not_ended(
    node: Node, vendor: MemoryVendor, unlimited: Start, tmp_path: Path, by: str
) -> None:
    program = tmp_path / "monitord"
    shutil.copy(shutil.which("sleep") or "", program)
    if by == "vendor":
        vendor._vendor = evolve(vendor._vendor, monitors=("monitord",))
        node = evolve(node, registry=Registry.of(vendor))
    else:
        ignored = {"name": "monitord", "path": str(program)}[by]
        node = evolve(node, settings=NodeSettings(ignore=(ignored,)))
    handle = admit(node, asking(on_bypass=OnBypass.KILL))
    ignored_one, other = unlimited(handle, program=str(program)), unlimited(handle)
    says(vendor, {ignored_one: GiB, other: GiB})

    seen = sample(node)

    assert {ignored_one, other} == {one.pid for one in seen.bypass}
    assert (other, signal.SIGKILL) == os.waitpid(other, 0)
    assert is_alive(ignored_one)


class Changing(dict[str, Usage]):
    """What a driver says: the first answer, then others, after something has happened."""

    def __init__(self, *answers: Usage, between: Callable[[], None]) -> None:
        self.answers, self.between = list(answers), between

    def get(self, _: str, __: Any = None) -> Any:
        if len(self.answers) > 1:
            return self.answers.pop(0)
        self.between()
        return self.answers[0]


def test_who_gave_its_memory_back_before_the_second_look_is_not_ended(
    node: Node, vendor: MemoryVendor, unlimited: Start
) -> None:
    handle = admit(node, asking(on_bypass=OnBypass.KILL))
    pid = unlimited(handle)
    first, then = (Usage(memory=GiB, processes=each) for each in ({pid: GiB}, {}))
    vendor.usage = Changing(first, then, between=lambda: None)

    seen = sample(node)

    assert [pid] == [one.pid for one in seen.bypass]
    assert is_alive(pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="root says which number the next process has")
def test_another_process_with_the_same_number_is_not_ended(
    node: Node, vendor: MemoryVendor, unlimited: Start, children: list[subprocess.Popen[Any]]
) -> None:
    """The first is gone and its number is given to another while the drivers are asked again."""
    handle = admit(node, asking(on_bypass=OnBypass.KILL))
    pid = unlimited(handle)
    pids: list[int] = []

    def reuse() -> None:
        if pids:
            return
        children[-1].kill()
        children[-1].wait()
        while pid not in pids and len(pids) < 100:  # others may take the number first
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
            pids.append(unlimited(handle))

    usage = Usage(memory=GiB, processes={pid: GiB})
    vendor.usage = Changing(usage, usage, between=reuse)

    seen = sample(node)

    assert pid == pids[-1]
    assert [] == [one for one in seen.news if isinstance(one, Ended)]
    assert is_alive(pid)


def test_a_process_that_only_has_the_number_is_not_ended(
    node: Node, vendor: MemoryVendor, unlimited: Start
) -> None:
    """What is held against it is read again when a pidfd stands for it."""
    handle = admit(node, asking(on_bypass=OnBypass.KILL))
    stranger = unlimited()
    says(vendor, {stranger: GiB})
    monitor = Monitor(node)
    (device,) = node.discover().devices
    bypass = Bypass(
        device=CARD, pid=stranger, program="sleep", grant=handle.grant.id, memory_bytes=GiB
    )

    assert not monitor._end(bypass, device)
    assert is_alive(stranger)


def test_a_program_that_replaced_a_limited_one_has_no_limiter(
    node: Node, vendor: MemoryVendor, children: list[subprocess.Popen[Any]]
) -> None:
    """Its PID and start are the same; it holds the grant by what it inherited."""
    handle = admit(node, asking())
    program = LIMITED.replace(
        "time.sleep(600)",
        "os.dup2(os.open(path, os.O_RDWR), 9)\nsys.stdin.read(1)\n"
        "os.execlp('sh', 'sh', '-c', 'echo replaced; exec sleep 600')",
    )
    words = [str(handle.path / USAGE), *map(str, (0, 500 * MiB, 0))]
    children.append(
        subprocess.Popen(
            [sys.executable, "-c", program, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
    )
    child = children[-1]
    assert child.stdin
    assert b"there\n" == next_line(child)
    says(vendor, {child.pid: 510 * MiB})
    monitor = Monitor(node)
    assert () == sample(node, monitor).bypass

    child.stdin.write(b"x")
    child.stdin.flush()
    assert b"replaced\n" == next_line(child)
    deadline = time.monotonic() + 60
    while "sleep" not in Path(f"/proc/{child.pid}/comm").read_text():
        assert time.monotonic() < deadline

    assert [child.pid] == [one.pid for one in sample(node, monitor).bypass]


@pytest.mark.parametrize("how", ["its first thread ended", "a name of any bytes"])
def test_a_process_does_not_hide_in_what_proc_says_of_it(
    node: Node, vendor: MemoryVendor, children: list[subprocess.Popen[Any]], how: str
) -> None:
    """Its first thread ends and another goes on; its name is no text and has a bracket."""
    handle = admit(node, asking())
    if how == "its first thread ended":
        then = "Thread(target=time.sleep, args=(600,)).start(); libc.pthread_exit(None)"
    else:
        then = "libc.prctl(15, bytes([0x29, 0x20, 0xFF, 0x29, 0x20]), 0, 0, 0); time.sleep(600)"
    program = "import ctypes, sys, time; from threading import Thread; libc = ctypes.CDLL(None); "
    program += "print('there', flush=True); " + then
    with open(handle.path / USAGE, "r+b") as held:
        children.append(
            subprocess.Popen([sys.executable, "-c", program], stdin=held, stdout=subprocess.PIPE)
        )
    child = children[-1]
    assert b"there\n" == next_line(child)
    stat = Path(f"/proc/{child.pid}/stat")
    deadline = time.monotonic() + 60
    while b"\xff" not in stat.read_bytes() and b") Z " not in stat.read_bytes():
        assert time.monotonic() < deadline
    says(vendor, {child.pid: GiB})

    assert [child.pid] == [one.pid for one in sample(node).bypass]
    assert GiB == charged(handle)


def test_who_looks_once_is_told_what_the_monitor_saw(node: Node) -> None:
    os.close(admit(node, asking()).descriptor)  # there is a ledger
    unowned = (Unowned(device=CARD, memory=GiB),)

    note_unowned(node, unowned)
    assert unowned == tuple(unowned_memory(node))
    assert any(one.says == str(unowned[0]) for one in examine(node))
    note_unowned(node, ())
    assert () == tuple(unowned_memory(node))
