"""The binary layouts Python reads and writes are those of the limiter's headers, byte by byte."""

import fcntl
import struct
import subprocess
from pathlib import Path

import pytest

from hetero.model import Policy, Priority
from hetero.model.errors import BadInput
from hetero.node.ledger import grant_file, usage_region
from hetero.node.ledger.grant_file import DeviceLimit
from tests.programs import completed

CORE = Path(__file__).parents[2] / "limiters" / "core"

#: Prints every name with its number: sizes, offsets, then the constants.
PROGRAM = r"""
#include "region.h"
#include <stddef.h>
#include <stdio.h>
#define SIZE(t) printf(#t " %zu\n", sizeof(struct t))
#define AT(t, m) printf(#t "." #m " %zu\n", offsetof(struct t, m))
#define IS(c) printf(#c " %llu\n", (unsigned long long)(c))
int main(void)
{
    SIZE(hetero_grant); SIZE(hetero_grant_device);
    AT(hetero_grant, magic); AT(hetero_grant, version); AT(hetero_grant, device_count);
    AT(hetero_grant, id); AT(hetero_grant, devices);
    AT(hetero_grant_device, uuid); AT(hetero_grant_device, memory_bytes);
    AT(hetero_grant_device, core);
    AT(hetero_grant_device, policy); AT(hetero_grant_device, priority);
    AT(hetero_grant_device, flags); AT(hetero_grant_device, excess_bytes);
    AT(hetero_grant_device, owes_until_ns);
    SIZE(hetero_region); SIZE(hetero_region_device); SIZE(hetero_region_slot);
    AT(hetero_region, magic); AT(hetero_region, version); AT(hetero_region, slot_count);
    AT(hetero_region, reached_slot_count); AT(hetero_region, unknown_lookup_count);
    AT(hetero_region, devices); AT(hetero_region, slots);
    AT(hetero_region_device, used_bytes); AT(hetero_region_device, peak_bytes);
    AT(hetero_region_device, denied_allocation_count); AT(hetero_region_device, gpu_ns);
    AT(hetero_region_device, reserved_total_bytes); AT(hetero_region_device, stopped_ns);
    AT(hetero_region_device, borrowed_ns); AT(hetero_region_device, owed_ns);
    AT(hetero_region_device, stamp_ns); AT(hetero_region_device, balance_ns);
    AT(hetero_region_slot, used_bytes); AT(hetero_region_slot, pid);
    AT(hetero_region_slot, reports);
    IS(HETERO_REPORT_UNCHARGED); IS(HETERO_REGION_ORPHANED);
    IS(HETERO_GRANT_MAGIC); IS(HETERO_GRANT_VERSION); IS(HETERO_MAX_DEVICES); IS(HETERO_CORE_FULL);
    IS(HETERO_POLICY_FIXED); IS(HETERO_POLICY_ELASTIC); IS(HETERO_POLICY_OFF);
    IS(HETERO_PRIORITY_LOW); IS(HETERO_PRIORITY_HIGH);
    IS(HETERO_FLAG_SPILL); IS(HETERO_FLAG_CONTEXT); IS(HETERO_FLAG_SERVICE);
    IS(HETERO_REGION_MAGIC); IS(HETERO_REGION_VERSION); IS(HETERO_REGION_SLOTS);
    IS(HETERO_REGION_SLOT_OFFSET);
    return 0;
}
"""


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    folder = tmp_path_factory.mktemp("layout")
    (folder / "layout.c").write_text(PROGRAM)
    subprocess.run(
        ["cc", "-std=gnu11", f"-I{CORE}", "-o", "layout", "layout.c"], cwd=folder, check=True
    )
    done = completed([folder / "layout"], check=True)
    return {name: int(number) for name, number in map(str.split, done.stdout.splitlines())}


def test_the_grant_file_is_laid_out_as_the_limiter_reads_it(layout: dict[str, int]) -> None:
    limits = [
        DeviceLimit(name="D-0", memory=3 << 30, core=3000),
        DeviceLimit(name="D-1", memory=1, core=10000),
    ]
    packed = grant_file.pack("4f1c", limits, policy=Policy.ELASTIC, priority=Priority.HIGH)

    def number(name: str, *, device: int | None = None, form: str = "<I") -> int:
        at = layout[name]
        if device is not None:
            at += layout["hetero_grant.devices"] + device * layout["hetero_grant_device"]
        value: int = struct.unpack_from(form, packed, at)[0]
        return value

    assert layout["hetero_grant"] == len(packed) == grant_file.SIZE
    assert layout["HETERO_GRANT_MAGIC"] == number("hetero_grant.magic", form="<Q")
    assert layout["HETERO_GRANT_VERSION"] == number("hetero_grant.version")
    assert 2 == number("hetero_grant.device_count")
    assert b"4f1c\0" == packed[layout["hetero_grant.id"] :][:5]
    for position, limit in enumerate(limits):
        uuid = layout["hetero_grant.devices"] + position * layout["hetero_grant_device"]
        assert limit.name.encode() + b"\0" == packed[uuid : uuid + 4]
        at = position
        assert limit.memory == number("hetero_grant_device.memory_bytes", device=at, form="<Q")
        assert limit.core == number("hetero_grant_device.core", device=at)
        policy = number("hetero_grant_device.policy", device=at)
        priority = number("hetero_grant_device.priority", device=at)
        assert layout["HETERO_POLICY_ELASTIC"] == policy
        assert layout["HETERO_PRIORITY_HIGH"] == priority
    assert (layout["HETERO_MAX_DEVICES"], layout["HETERO_CORE_FULL"]) == (
        grant_file.MAX_DEVICES,
        grant_file.CORE_FULL,
    )


def test_limits_are_stored_where_the_limiter_reads_them(
    layout: dict[str, int], tmp_path: Path
) -> None:
    path = tmp_path / "grant"
    limits = [DeviceLimit(name="D-0", memory=5, core=6), DeviceLimit(name="D-1", memory=7, core=8)]
    path.write_bytes(grant_file.pack("4f1c", limits, policy=Policy.FIXED, priority=Priority.LOW))
    changed = [
        DeviceLimit(name="D-0", memory=1 << 40, core=1, spill=True),
        DeviceLimit(name="D-1", memory=2, core=9999, context=True, service=True),
    ]

    grant_file.store_limits(path, changed, policy=Policy.ELASTIC)

    assert tuple(changed) == grant_file.read_limits(path)
    second = layout["hetero_grant.devices"] + layout["hetero_grant_device"]
    memory = second + layout["hetero_grant_device.memory_bytes"]
    assert 2 == struct.unpack_from("<Q", path.read_bytes(), memory)[0]
    flags = second + layout["hetero_grant_device.flags"]
    both_flags = layout["HETERO_FLAG_CONTEXT"] | layout["HETERO_FLAG_SERVICE"]
    assert both_flags == struct.unpack_from("<I", path.read_bytes(), flags)[0]


def test_the_usage_region_is_read_where_the_limiter_writes_it(
    layout: dict[str, int], tmp_path: Path
) -> None:
    contents = bytearray(layout["hetero_region"])

    def put(form: str, at: int, value: int) -> None:
        struct.pack_into(form, contents, at, value)

    put("<Q", layout["hetero_region.magic"], layout["HETERO_REGION_MAGIC"])
    put("<I", layout["hetero_region.version"], layout["HETERO_REGION_VERSION"])
    put("<I", layout["hetero_region.slot_count"], layout["HETERO_REGION_SLOTS"])
    device = layout["hetero_region.devices"] + 1 * layout["hetero_region_device"]
    put("<I", layout["hetero_region.reached_slot_count"], 256)
    put("<Q", layout["hetero_region.unknown_lookup_count"], 5)
    device_counts = {"used_bytes": 99, "peak_bytes": 70, "denied_allocation_count": 3}
    device_counts |= {"gpu_ns": 123456789, "reserved_total_bytes": 1234}
    device_counts |= {"stopped_ns": 777, "borrowed_ns": 88, "stamp_ns": 1000}
    for name, value in device_counts.items():
        put("<Q", device + layout[f"hetero_region_device.{name}"], value)
    put("<q", device + layout["hetero_region_device.balance_ns"], -500)
    put("<q", device + layout["hetero_region_device.owed_ns"], 400)
    for slot, used in ((0, 40), (255, 20), (7, 1000)):
        at = layout["hetero_region.slots"] + slot * layout["hetero_region_slot"]
        put("<Q", at + layout["hetero_region_slot.used_bytes"] + 8, used)
        put("<I", at + layout["hetero_region_slot.pid"], 1)
        uncharged = layout["HETERO_REPORT_UNCHARGED"] * 16 * 8 + 8
        put("<Q", at + layout["hetero_region_slot.reports"] + uncharged, 11)
    path = tmp_path / "usage"
    path.write_bytes(contents)

    assert layout["hetero_region"] == usage_region.SIZE
    assert layout["HETERO_REGION_SLOT_OFFSET"] == usage_region.SLOT_OFFSET
    assert [0, 0] == [
        counts.memory_bytes for counts in usage_region.read_counts(path, device_count=2)
    ]
    # Two of the three processes live: their slots are locked. The third one's bytes are gone.
    with path.open("r+b") as first, path.open("r+b") as last:
        for holder, slot in ((first, 0), (last, 255)):
            region_lock(holder.fileno(), slot)

        region = usage_region.read_region(path)

    counted = usage_region.Counts(
        memory_bytes=60,
        peak_bytes=70,
        denied_count=3,
        device_ns=123456789,
        granted_bytes=1234,
        stopped_ns=777,
        borrowed_ns=88,
        charged_at_ns=1000,
        balance_ns=-500,
        owed_ns=400,
    )
    assert 400 == counted.owed_at(1000, core=5000)
    assert 150 == counted.owed_at(1500, core=5000)
    assert 0 == counted.owed_at(9000, core=5000)
    assert counted == region.counts[1]
    assert 5 == region.unknown
    assert {0, 255} == region.slots.keys()
    last_slot = region.slots[255]
    assert (1, 20, 11) == (last_slot.pid, last_slot.used[1], last_slot.uncharged[1])
    assert layout["HETERO_REGION_ORPHANED"] == usage_region.LEFT


@pytest.mark.parametrize("size", [0, 100, usage_region.SIZE - 1])
def test_a_region_that_its_tenant_cut_short_is_none(size: int, tmp_path: Path) -> None:
    (tmp_path / "usage").write_bytes(bytes(size))

    with pytest.raises(ValueError, match=f"{size} bytes"):
        usage_region.read_region(tmp_path / "usage")


def test_excess_is_stored_where_the_limiter_reads_it_and_changes_no_limit(
    layout: dict[str, int], tmp_path: Path
) -> None:
    path = tmp_path / "grant"
    limits = [DeviceLimit(name="D-0", memory=5, core=6), DeviceLimit(name="D-1", memory=7, core=8)]
    packed = grant_file.pack("4f1c", limits, policy=Policy.FIXED, priority=Priority.LOW)
    path.write_bytes(packed)
    assert (0, 0) == grant_file.read_excess(path, device_count=2)

    grant_file.store_excess(path, (1 << 40, 3))

    second = layout["hetero_grant.devices"] + layout["hetero_grant_device"]
    at = second + layout["hetero_grant_device.excess_bytes"]
    assert (3,) == struct.unpack_from("<Q", path.read_bytes(), at)
    assert (1 << 40, 3) == grant_file.read_excess(path, device_count=2)
    assert tuple(limits) == grant_file.read_limits(path)
    assert grant_file.holds_limits(path.read_bytes(), packed)
    grant_file.store_limits(path, limits[1:], policy=Policy.FIXED)
    assert not grant_file.holds_limits(path.read_bytes(), packed)
    assert (1 << 40, 3) == grant_file.read_excess(path, device_count=2)


def test_until_when_a_debt_is_paid_is_stored_where_the_limiter_reads_it_and_changes_no_limit(
    layout: dict[str, int], tmp_path: Path
) -> None:
    path = tmp_path / "grant"
    limits = [DeviceLimit(name="D-0", memory=5, core=6), DeviceLimit(name="D-1", memory=7, core=8)]
    packed = grant_file.pack("4f1c", limits, policy=Policy.FIXED, priority=Priority.LOW)
    path.write_bytes(packed)

    grant_file.store_owes_until(path, 1, 1 << 50)

    second = layout["hetero_grant.devices"] + layout["hetero_grant_device"]
    at = second + layout["hetero_grant_device.owes_until_ns"]
    assert (1 << 50,) == struct.unpack_from("<Q", path.read_bytes(), at)
    assert (0, 1 << 50) == grant_file.read_owes_until(path, device_count=2)
    assert grant_file.holds_limits(path.read_bytes(), packed)


def region_lock(descriptor: int, byte: int) -> None:
    lock = struct.pack("@hhqqi4x", fcntl.F_WRLCK, 0, byte, 1, 0)
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, lock)


def test_a_region_nobody_came_to_yet_counts_nothing(tmp_path: Path) -> None:
    (tmp_path / "usage").write_bytes(bytes(usage_region.SIZE))

    assert () == usage_region.read_counts(tmp_path / "usage", device_count=1)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (
            [DeviceLimit(name="D", memory=1, core=1)] * 17,
            "17 devices asked: one grant holds at most 16",
        ),
        ([DeviceLimit(name="D" * 64, memory=1, core=1)], "at most 63 bytes"),
    ],
)
def test_what_the_layout_cannot_hold_is_refused(limits: list[DeviceLimit], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        grant_file.pack("4f1c", limits, policy=Policy.FIXED, priority=Priority.LOW)
