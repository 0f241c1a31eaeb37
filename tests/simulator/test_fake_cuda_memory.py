"""The memory of the fake CUDA driver through its ABI: how it is counted, shared and given back."""

import signal
from pathlib import Path

import pytest
from simulated import MIB, Machine

from tests.programs import next_line

START = "    cuda = Cuda()\n    cuda.start()\n"


def test_memory_is_counted_and_given_back(machine: Machine) -> None:
    answers = machine.run(f"""{START}
    pointer = cuda.made("cuMemAlloc_v2", 600 * MIB)
    taken = cuda.used()
    too_much = cuda.code("cuMemAlloc_v2", byref(c_uint64()), 425 * MIB)
    just_right = cuda.made("cuMemAlloc_v2", 424 * MIB)
    full = cuda.used()
    cuda.cuMemFree_v2(just_right)
    cuda.cuMemFree_v2(pointer)
    say([taken, too_much, full, cuda.used(), cuda.code("cuMemFree_v2", pointer)])""")
    assert [600 * MIB, 2, 1024 * MIB, 0, 1] == answers


@pytest.mark.parametrize(
    ("take", "give", "size"),
    [
        ('made("cuMemAllocManaged", 64 * MIB, c_uint(1))', "cuMemFree_v2(it)", 128 * MIB),
        (
            'made("cuMemAllocPitch_v2", byref(c_size_t()), 1000, 3072, c_uint(4))',
            "cuMemFree_v2(it)",
            4 * MIB,
        ),
        (
            'made("cuArrayCreate_v2", byref(ArrayShape(1024, 1024, 0x20, 4)))',
            "cuArrayDestroy(it)",
            16 * MIB,
        ),
        (
            'made("cuMemCreate", 64 * MIB, byref(AllocationProperties(1, 0, FIRST)), 0)',
            "cuMemRelease(it)",
            64 * MIB,
        ),
    ],
    ids=["managed", "pitch", "array", "physical"],
)
def test_every_kind_of_memory_is_counted(machine: Machine, take: str, give: str, size: int) -> None:
    used_bytes = machine.run(
        START + f"    it = cuda.{take}\n    taken = cuda.used()\n"
        f"    cuda.{give}\n    say([taken, cuda.used()])"
    )
    assert [size, 0] == used_bytes


def test_what_is_written_is_read_back(machine: Machine) -> None:
    answers = machine.run(f"""{START}
    one, other = cuda.made("cuMemAlloc_v2", 4096), cuda.made("cuMemAlloc_v2", 4096)
    cuda.cuMemcpyHtoD_v2(one, b"hello card", 10)
    cuda.cuMemcpyDtoDAsync_v2(other, one, 10, 0)
    cuda.cuMemsetD8_v2(other + 5, ord("-"), 1)
    back = ctypes.create_string_buffer(16)
    cuda.cuMemcpyDtoH_v2(back, other, 10)
    wild = cuda.code("cuMemcpyDtoH_v2", back, other + (1 << 40), 10)
    say([back.value.decode(), wild])""")
    assert ["hello-card", 1] == answers


def test_a_pool_keeps_what_it_may_and_gives_back_the_rest(machine: Machine) -> None:
    answers = machine.run(f"""{START}
    pool = cuda.made("cuMemPoolCreate", byref(PoolProperties(1, 0, FIRST)))
    threshold = c_uint64(64 * MIB)
    cuda.cuMemPoolSetAttribute(pool, 4, byref(threshold))
    it = cuda.made("cuMemAllocFromPoolAsync", 100 * MIB, pool, 0)
    taken = cuda.used()
    cuda.cuMemFreeAsync(it, 0)
    kept = cuda.used()
    cuda.cuStreamSynchronize(0)
    settled = cuda.used()
    cuda.cuMemPoolTrimTo(pool, 0)
    trimmed = cuda.used()
    cuda.made("cuMemAllocAsync", 10 * MIB, 0)
    default = cuda.used()
    too_much = cuda.code("cuMemAllocAsync", byref(c_uint64()), 2000 * MIB, 0)
    say([taken, kept, settled, trimmed, default, too_much])""")
    assert [128 * MIB, 128 * MIB, 64 * MIB, 0, 32 * MIB, 2] == answers


def test_physical_memory_is_mapped_and_outlives_its_handle(machine: Machine) -> None:
    answers = machine.run(f"""{START}
    properties = AllocationProperties(1, 0, FIRST)
    grain = cuda.made("cuMemGetAllocationGranularity", byref(properties), c_uint(0))
    odd = cuda.code("cuMemCreate", byref(c_uint64()), MIB, byref(properties), 0)
    block = cuda.made("cuMemCreate", 4 * MIB, byref(properties), 0)
    place = cuda.made("cuMemAddressReserve", 8 * MIB, 0, 0, 0)
    cuda.cuMemMap(place, 4 * MIB, 0, block, 0)
    cuda.cuMemSetAccess(place, 4 * MIB, byref(Access(FIRST, 3)), 1)
    cuda.cuMemRelease(block)
    held = cuda.used()
    cuda.cuMemcpyHtoD_v2(place + 3 * MIB, b"mapped", 6)
    back = ctypes.create_string_buffer(8)
    cuda.cuMemcpyDtoH_v2(back, place + 3 * MIB, 6)
    mapped = cuda.code("cuMemAddressFree", place, 8 * MIB)
    cuda.cuMemUnmap(place, 4 * MIB)
    cuda.cuMemAddressFree(place, 8 * MIB)
    say([grain, odd, held, back.value.decode(), mapped, cuda.used()])""")
    assert [2 * MIB, 1, 4 * MIB, "mapped", 1, 0] == answers


def test_memory_is_shared_with_another_process_and_charged_once(machine: Machine) -> None:
    owner = machine.start(f"""{START}
    import sys
    it = cuda.made("cuMemAlloc_v2", 8 * MIB)
    cuda.cuMemcpyHtoD_v2(it + MIB, b"from afar", 9)
    handle = ctypes.create_string_buffer(64)
    cuda.cuIpcGetMemHandle(handle, it)
    print(handle.raw.hex(), flush=True)
    sys.stdin.read()""")
    handle = next_line(owner).strip()
    answers = machine.run(f"""{START}
    class Handle(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_char * 64)]
    handle = Handle.from_buffer_copy(bytes.fromhex("{handle}"))
    it = cuda.made("cuIpcOpenMemHandle_v2", handle, c_uint(1))
    back = ctypes.create_string_buffer(16)
    cuda.cuMemcpyDtoH_v2(back, it + MIB, 9)
    used = cuda.used()
    cuda.cuIpcCloseMemHandle(it)
    say([back.value.decode(), used])""")
    owner.communicate()
    assert ["from afar", 8 * MIB] == answers


def test_a_context_costs_what_the_rack_says(tmp_path: Path) -> None:
    rack = """
        [device]
        vendor = nvidia
        model = Card
        memory = 1 GiB
        context = 300 MiB
    """
    use = "cuda = Cuda(); cuda.start(); say(cuda.used())"
    machine = Machine(tmp_path, rack)
    hold = 'cuda = Cuda(); cuda.start(); cuda.made("cuMemAlloc_v2", 500 * MIB)'
    with machine.standing(hold):
        start = "cuda = Cuda(); cuda.cuInit(0); "
        retain = 'say(cuda.code("cuDevicePrimaryCtxRetain", byref(c_uint64()), 0))'
        assert 2 == machine.run(start + retain)
    assert 300 * MIB == machine.run(use)


def test_a_killed_process_leaves_no_memory_behind(machine: Machine) -> None:
    use = "cuda = Cuda(); cuda.start(); say(cuda.used())"
    with machine.standing('cuda = Cuda(); cuda.start(); cuda.made("cuMemAlloc_v2", MIB)') as other:
        assert 2 * MIB == machine.run(use)
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert 0 == machine.run(use)
