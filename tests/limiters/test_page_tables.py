"""Page tables are charged as a card was seen to take them, and given back with what was mapped."""

from pathlib import Path

import pytest
from tenancy import MIB, UUIDS, Grant, Rack, Terms

#: For a program: ways to have page tables, each of which tells how to give them back.
WAYS = """
from simulated import Access
NORESERVE, HUGE, block_bytes = 0x4022, 512 << 20, 2 << 20
libc = ctypes.CDLL(None)
libc.mmap.restype = c_uint64
libc.mmap.argtypes = [c_uint64, c_uint64, c_int, c_int, c_int, c_uint64]

def pages(count, apart):
    base = libc.mmap(0, count * apart, 3, NORESERVE, -1, 0)
    at = [base + each * apart for each in range(count)]
    for each in at:
        call("cuMemHostRegister_v2", each, 4096, c_uint(0))
    return lambda: [call("cuMemHostUnregister", each) for each in at]

def pinned(count, size):
    held = [c_void_p() for _ in range(count)]
    for each in held:
        call("cuMemHostAlloc", byref(each), size, c_uint(0))
    return lambda: [call("cuMemFreeHost", each) for each in held]

def pinned_by(name, count, size):
    held = [c_void_p() for _ in range(count)]
    for each in held:
        call(name, byref(each), size)
    return lambda: [call("cuMemFreeHost", each) for each in held]

def sparse(count):
    held = [c_void_p() for _ in range(count)]
    shape = ArrayShape3D(16384, 16384, 0, 0x20, 4, 0x40)
    for each in held:
        call("cuArray3DCreate_v2", byref(each), byref(shape))
    return lambda: [call("cuArrayDestroy", each) for each in held]

def mapped(count, apart, *devices):
    base, handle = c_uint64(), block(block_bytes)
    call("cuMemAddressReserve", byref(base), count * apart, 0, 0, 0)
    at = range(base.value, base.value + count * apart, apart)
    access = (Access * len(devices))(*(Access(each, 3) for each in devices))
    for each in at:
        call("cuMemMap", each, block_bytes, 0, handle, 0)
        if devices:
            call("cuMemSetAccess", each, block_bytes, access, len(devices))
    def give():
        [call("cuMemUnmap", each, block_bytes) for each in at]
        call("cuMemRelease", handle)
    return give
"""


@pytest.mark.parametrize(
    ("way", "mib"),
    [
        ("mapped(5000, HUGE, FIRST)", 2 + 18),
        ("mapped(5000, HUGE)", 2 + 0),
        ("mapped(5000, block_bytes, FIRST)", 2 + 0),
        ("pages(4999, 2 << 20)", 18),
        ("pages(1999, 32 << 20)", 8),
        ("pages(1999, HUGE)", 14),
        ("pages(5000, 4096)", 0),
        ("pinned(8, 256 << 20)", 4),
        ("pinned(4096, 4096)", 0),
        ("pinned_by('cuMemAllocHost', 8, 256 << 20)", 4),
        ("pinned_by('cuMemAllocHost_v2', 8, 256 << 20)", 4),
        ("sparse(64)", 34),
    ],
)
def test_page_tables_are_charged_what_an_h100_took_and_given_back(
    grant: Grant, way: str, mib: int
) -> None:
    """The figures are of docs/charges.md; what is mapped is a block of 2 MiB."""
    left_mib = grant.run(f"""{WAYS}
start()
left = [info()[0] >> 20]
for _ in range(2):
    give = {way}
    left.append(info()[0] >> 20)
    give()
    left.append(info()[0] >> 20)
say(left)
""")
    assert [64, 64 - mib, 64, 64 - mib, 64] == left_mib


@pytest.mark.parametrize("end", ["cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxRelease_v2"])
def test_page_tables_of_the_host_are_given_back_with_the_context(grant: Grant, end: str) -> None:
    left_mib = grant.run(f"""{WAYS}
start()
kept, left = pinned(8, 256 << 20), [info()[0] >> 20]
call("{end}", c_int(0))
start()
say([*left, info()[0] >> 20])
""")
    assert [60, 64] == left_mib


def test_what_does_not_fit_is_out_of_memory_and_costs_nothing(grant: Grant) -> None:
    answers = grant.run(f"""{WAYS}
start()
full, seen = take("plain", {62 * MIB}), []
seen.append(cuda.cuMemHostAlloc(byref(c_void_p()), c_uint64(2048 << 20), c_uint(0)))
seen.append(cuda.cuMemHostRegister_v2(c_void_p(4096), c_uint64(1 << 42), c_uint(0)))
seen.append(info()[0] >> 20)
pinned(3, 256 << 20)
seen.append(info()[0] >> 20)
give("plain", full)
say([*seen, info()[0] >> 20])
""")
    assert [2, 2, 2, 2, 64] == answers


def test_page_tables_are_charged_to_the_device_that_has_them(tmp_path: Path) -> None:
    """Memory of the host is mapped on each device with a context; a block on who is let at it."""
    rack = Rack.of(tmp_path, cards=2)
    grant = rack.grant(Terms(uuid=UUIDS[0]), Terms(uuid=UUIDS[1]))
    left_mib = grant.run(f"""{WAYS}
contexts = []
def enter(device):
    contexts.append(c_void_p())
    call("cuDevicePrimaryCtxRetain", byref(contexts[-1]), c_int(device))
def left():
    seen = []
    for each in contexts:
        call("cuCtxSetCurrent", each)
        seen.append(info()[0] >> 20)
    call("cuCtxSetCurrent", contexts[0])
    return seen
call("cuInit", 0)
enter(0)
call("cuCtxSetCurrent", contexts[0])
give_host, seen = pinned(8, 256 << 20), [left()]
enter(1)
seen.append(left())
give_host()
seen.append(left())
give_host = pinned(8, 256 << 20)
seen.append(left())
give_host()
SECOND = type(FIRST)(FIRST.type, 1)
give_first, give_second = mapped(2000, HUGE, FIRST), mapped(2000, HUGE, SECOND)
seen.append(left())
give_second()
seen.append(left())
give_first()
say([*seen, left()])
""")
    assert [[60], [60, 60], [64, 64], [60, 60], [54, 58], [56, 64], [64, 64]] == left_mib
