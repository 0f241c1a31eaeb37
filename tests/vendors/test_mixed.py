"""One node with cards of seven vendors, through the command line as a user meets it."""

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import hetero_simulator
import pytest
from attrs import evolve
from racks import PLUGINS, Machine, Rack, card, discover, fault, request

from hetero.model import MEMORY, Allocation, Ask, Inventory, Refusal, Request, Selector
from hetero.model.units import GiB
from hetero.placement import fit
from tests.programs import completed, next_line

SEVEN = hetero_simulator.rack("seven").read_text()
#: Those of its cards; AMD has none there.
VENDORS = tuple(name for name in PLUGINS if name != "amd")
#: What a card's line begins with.
CARD = re.compile(r"\w+:\d+ ")


class Node:
    """The command line on a simulated node of its own."""

    def __init__(self, directory: Path, *rack: str) -> None:
        self.rack = Rack(directory, *rack)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("HETERO_", "LD_"))}
        self.environ = {
            **clean,
            "HETERO_RACK": str(self.rack.path),
            "HETERO_STATE": str(directory / "state"),
            "COLUMNS": "100",
        }

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", "from hetero.cli import main; main()", *arguments]

    def run(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return completed(self.command(*arguments), env={**self.environ, **more}, timeout=60)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a program that says a line when it runs."""
        started = subprocess.Popen(
            self.command(*arguments), env=self.environ, stdout=subprocess.PIPE, text=True
        )
        assert "up\n" == next_line(started)
        return started

    def grants(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = json.loads(self.run("ps", "--json").stdout)["items"]
        return items


def eventually(holds: Callable[[], bool], *, within: float = 60.0) -> bool:
    deadline = time.monotonic() + within
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@pytest.fixture
def seven(tmp_path: Path) -> Node:
    return Node(tmp_path, SEVEN)


def test_seven_vendors_are_ok(seven: Node) -> None:
    rows = json.loads(seven.run("vendors", "--json").stdout)["items"]

    states = {row["name"]: row["state"] for row in rows}
    assert dict.fromkeys(VENDORS, "ok") | {"amd": "absent"} == states


@pytest.mark.parametrize("present", ["amd", "iluvatar", "nvidia"])
def test_a_vendor_without_a_card_is_absent_as_where_its_driver_is_not_loaded(
    tmp_path: Path, present: str
) -> None:
    node = Node(tmp_path, card(present, "Some card", "16 GiB"))
    rows = json.loads(node.run("vendors", "--json").stdout)["items"]

    states = {row["name"]: row["state"] for row in rows}
    assert dict.fromkeys(PLUGINS, "absent") | {present: "ok"} == states


def test_the_inventory_shows_a_line_for_every_card_within_100_columns(seven: Node) -> None:
    lines = seven.run("inventory").stdout.splitlines()
    header = next(number for number, line in enumerate(lines) if line.startswith("card"))
    picture = lines[header + 1 : lines.index("")]
    cards = [line for line in picture if CARD.match(line)]
    blocks = [line for line in picture if not CARD.match(line)]

    assert max(len(line.rstrip()) for line in lines[header:]) <= 100
    assert 10 == len({line.split()[0] for line in cards}) == len(cards)
    assert len(picture) == len(cards) + len(blocks)
    assert len(VENDORS) == len(blocks)
    assert set(VENDORS) == {word for line in blocks for word in line.split()} & set(VENDORS)


def test_no_line_of_the_inventory_is_folded_while_all_seven_are_in_use(seven: Node) -> None:
    arguments = ("--memory", "3000Mi", "--core", "30", "--", "sh", "-c", "echo up; exec sleep 600")
    holders = [seven.start("run", "--vendor", vendor, *arguments) for vendor in VENDORS]
    lines = seven.run("inventory").stdout.splitlines()
    for holder in holders:
        holder.kill()
        holder.communicate()
    header = next(number for number, line in enumerate(lines) if line.startswith("card"))
    picture = lines[header + 1 : lines.index("")]
    cards = [line for line in picture if CARD.match(line)]
    grants = [line for line in picture if line.startswith("   └")]

    assert max(len(line.rstrip()) for line in lines) <= 100
    assert 10 == len({line.split()[0] for line in cards}) == len(cards)
    assert len(VENDORS) == len(grants)
    assert all("sh -c" in line for line in grants)


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_vendor_that_is_asked_for_is_given(tmp_path: Path, vendor: str) -> None:
    devices = Rack(tmp_path, SEVEN).meet(discover).devices
    answer = fit(Inventory(devices), request(Ask(memory=GiB, core=10), vendor=vendor))

    assert isinstance(answer, Allocation)
    assert [vendor] == [grant.vendor for grant in answer.pieces]


@pytest.mark.parametrize(
    ("model", "vendor"),
    [
        ("910B3", "ascend"),
        ("k100", "hygon"),
        ("mlu370", "cambricon"),
        ("BI-V150", "iluvatar"),
        ("S4000", "mthreads"),
        ("mxc500", "metax"),
        ("L4", "nvidia"),
    ],
)
def test_a_model_that_is_asked_for_is_given(tmp_path: Path, model: str, vendor: str) -> None:
    devices = Rack(tmp_path, SEVEN).meet(discover).devices
    answer = fit(Inventory(devices), request(Ask(memory=GiB, core=10), model=model))

    assert isinstance(answer, Allocation)
    assert [vendor] == [grant.vendor for grant in answer.pieces]


def test_any_card_with_20_gib_free_is_any_vendors_until_none_is_left(tmp_path: Path) -> None:
    devices = Rack(tmp_path, SEVEN).meet(discover).devices
    asked = request(Ask(memory=20 * GiB))
    standing: list[Allocation] = []
    while isinstance(answer := fit(Inventory(devices, tuple(standing)), asked), Allocation):
        standing.append(answer)
    vendors = {grant.vendor for allocation in standing for grant in allocation.pieces}
    free = Inventory(devices, tuple(standing)).free()

    assert set(VENDORS) == vendors
    assert all(g.takes[MEMORY] >= 20 * GiB for a in standing for g in a.pieces)
    assert all(min(counters.values()) >= 0 for counters in free.values())


def test_two_cards_of_one_request_are_of_one_vendor(tmp_path: Path) -> None:
    devices = Rack(tmp_path, SEVEN).meet(discover).devices
    answer = fit(Inventory(devices), request(Ask(memory=GiB), count=2))

    assert isinstance(answer, Allocation)
    assert 1 == len({grant.vendor for grant in answer.pieces})


def test_a_request_no_vendor_can_satisfy_says_what_each_lacks(tmp_path: Path) -> None:
    devices = Rack(tmp_path, SEVEN).meet(discover).devices
    answer = fit(Inventory(devices), request(Ask(memory=500 * GiB)))

    assert isinstance(answer, Refusal)
    for vendor in VENDORS:
        count = sum(device.vendor == vendor for device in devices)
        assert f"{count} {vendor} too small" in answer.sentence


def test_five_requests_of_10_gib_on_one_910b3_and_the_fifth_is_refused(tmp_path: Path) -> None:
    node = Node(tmp_path, card("ascend", "910B3", "64 GiB", core="20"))
    arguments = ("--memory", "10Gi", "--", "sh", "-c", "echo up; exec sleep 600")
    holders = [node.start("run", *arguments) for _ in range(4)]
    fifth = node.run("run", *arguments)
    entries = [json.loads(path.read_text()) for path in tmp_path.glob("state/*/grants/*/*.json")]
    parts = {entry["allocation"]["pieces"][0]["part"] for entry in entries}
    for holder in holders:
        holder.kill()
        holder.communicate()

    assert (3, "") == (fifth.returncode, fifth.stdout)
    assert "0 of 1 device: 1 lack memory" in fifth.stderr
    assert {"100", "101", "102", "103"} == parts


def vnpus(node: Node, directory: Path) -> int:
    """How many vNPUs the driver has on the first card."""

    def count() -> int:
        import hetero_ascend

        machine = Machine(directory, "ascend")
        place = hetero_ascend._place(machine.devices[0])
        return len(hetero_ascend._vnpus(hetero_ascend._DCMI.open(), *place))

    return node.rack.meet(count)


def test_the_slice_of_a_killed_program_is_gone_without_anybody_looking(tmp_path: Path) -> None:
    node = Node(tmp_path, card("ascend", "910B3", "64 GiB", core="20"))
    program = node.start("run", "--memory", "10Gi", "--", "sh", "-c", "echo up; exec sleep 600")
    during = vnpus(node, tmp_path)
    os.kill(program.pid, signal.SIGKILL)
    program.communicate()

    assert 1 == during
    assert eventually(lambda: vnpus(node, tmp_path) == 0)


def test_a_program_does_not_wait_for_the_watcher_of_its_slice(tmp_path: Path) -> None:
    node = Node(tmp_path, card("ascend", "910B3", "64 GiB", core="20"))
    waits = "import os\ntry:\n os.wait()\nexcept ChildProcessError:\n print('no child')"
    done = node.run("run", "--memory", "10Gi", "--", sys.executable, "-c", waits)

    assert (0, "no child\n") == (done.returncode, done.stdout)


def test_a_command_that_cannot_start_leaves_no_slice(tmp_path: Path) -> None:
    node = Node(tmp_path, card("ascend", "910B3", "64 GiB", core="20"))

    assert 127 == node.run("run", "--memory", "10Gi", "--", "no-such-command").returncode
    assert eventually(lambda: vnpus(node, tmp_path) == 0)


def test_set_changes_a_slice_in_the_driver(tmp_path: Path) -> None:
    node = Node(tmp_path, card("cambricon", "MLU370-X8", "24 GiB", smlu="on"))
    program = node.start(
        "run", "--memory", "4Gi", "--core", "20", "--", "sh", "-c", "echo up; exec sleep 600"
    )
    (grant,) = node.grants()
    done = node.run("resize", grant["id"], "--memory", "8Gi", "--core", "50")

    def quota() -> tuple[int, int]:
        import hetero_cambricon

        cndev = hetero_cambricon._CNDEV.open()
        (instance,) = hetero_cambricon._instances(cndev, 0)
        return instance.core[0], instance.memory[0] // GiB

    size = node.rack.meet(quota)
    program.kill()
    program.communicate()

    assert 0 == done.returncode, done.stderr
    assert (50, 8) == size


def may_mount() -> bool:
    pid = os.fork()
    if pid == 0:
        os._exit(ctypes.CDLL(None).unshare(0x00020000) != 0)
    return os.waitpid(pid, 0)[1] == 0


@pytest.mark.skipif(not may_mount(), reason="needs a mount namespace of its own: be root")
def test_a_program_finds_its_vdev_where_the_runtime_looks_and_nobody_else_does(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path, card("hygon", "K100_AI", "64 GiB"))
    inside = "cat /etc/vdev/docker/vdev0.conf; echo spoilt >> /etc/vdev/docker/vdev0.conf"
    done = node.run("run", "--memory", "4Gi", "--core", "25", "--", "sh", "-c", inside)
    outside = Path("/etc/vdev/docker/vdev0.conf")
    left = outside.read_text() if outside.exists() else ""
    if left == "":  # the mount point, which the vendor's runtime looks at: no test leaves it
        outside.unlink(missing_ok=True)
        for folder in (outside.parent, outside.parent.parent):
            with suppress(OSError):  # of a machine that has it
                folder.rmdir()

    assert "cu_count: 30\nmem: 4096 MiB\n" in done.stdout
    assert "Read-only" in done.stderr
    assert "" == left


def test_the_limiter_keeps_an_iluvatar_share(tmp_path: Path) -> None:
    node = Node(tmp_path, card("iluvatar", "Iluvatar BI-V150", "32 GiB", compute="7.1"))
    job = [str(hetero_simulator.job("cuda")), "--alloc"]
    share = ("run", "--vendor", "iluvatar", "--memory", "1000Mi", "--core", "30", "--")
    within, above = (node.run(*share, *job, size) for size in ("1GiB", "2GiB"))

    assert {"allocated": 1 << 30} == json.loads(within.stdout)  # 1000 MiB become 1024
    assert "CUDA_ERROR_OUT_OF_MEMORY" == json.loads(above.stdout)["error"]


def test_one_vendor_that_hangs_does_not_hang_the_node(tmp_path: Path) -> None:
    node = Node(tmp_path, SEVEN, fault("cndevGetDeviceCount", "hang", vendor="cambricon"))
    before = time.monotonic()
    asking = subprocess.Popen(
        node.command("vendors", "--json"), env=node.environ, stdout=subprocess.PIPE, text=True
    )
    done = node.run("run", "--vendor", "hygon", "--", "echo", "hi")
    rows = json.loads(asking.communicate()[0])["items"]
    took = time.monotonic() - before
    by_name = {row["name"]: row for row in rows}

    assert "cambricon: discover: no answer within 5 s" == by_name["cambricon"]["reason"]
    assert {"ok"} == {by_name[name]["state"] for name in VENDORS if name != "cambricon"}
    assert took < 20
    assert (0, "hi\n") == (done.returncode, done.stdout), done.stderr


#: What programs of each vendor learn their cards from.
SEEN_BY = {
    "nvidia": {"CUDA_VISIBLE_DEVICES"},
    "ascend": {"ASCEND_RT_VISIBLE_DEVICES"},
    "hygon": {"HIP_VISIBLE_DEVICES"},
    "cambricon": {"MLU_VISIBLE_DEVICES"},
    "iluvatar": {"CUDA_VISIBLE_DEVICES"},
    "mthreads": {"MUSA_VISIBLE_DEVICES"},
    "metax": {"MACA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"},
}


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_program_sees_no_card_of_the_vendors_it_was_not_given(seven: Node, vendor: str) -> None:
    done = seven.run("run", "--vendor", vendor, "--", "env", CUDA_VISIBLE_DEVICES="0")
    environ = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    own, others = SEEN_BY[vendor], set().union(*SEEN_BY.values()) - SEEN_BY[vendor]

    assert dict.fromkeys(others, "-1") == {name: environ.get(name) for name in others}
    assert all(environ[name] not in ("-1", "") for name in own)


def test_a_program_that_was_given_a_dcu_cannot_use_the_nvidia_card_by_default(seven: Node) -> None:
    job = [str(hetero_simulator.job("cuda")), "--alloc", "1MiB"]
    alone = seven.run("run", "--vendor", "nvidia", "--memory", "1Gi", "--", *job)
    given = seven.run("run", "--vendor", "hygon", "--memory", "1Gi", "--", *job)

    assert {"allocated": 1 << 20} == json.loads(alone.stdout)
    assert "CUDA_ERROR_NO_DEVICE" in given.stderr


def test_avoiding_and_choosing_over_seven_vendors(tmp_path: Path) -> None:
    devices = Rack(tmp_path, SEVEN).meet(discover).devices
    others = tuple(vendor for vendor in VENDORS if vendor != "hygon")
    asked = evolve(Request(asks=(Ask(memory=GiB),)), vendor=Selector((), others))
    answer = fit(Inventory(devices), asked)

    assert isinstance(answer, Allocation)
    assert "hygon" == answer.pieces[0].vendor
