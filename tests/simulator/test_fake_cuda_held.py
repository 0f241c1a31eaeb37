"""What the fake card holds for a program, and until when, as an H100 with driver 580 does."""

from __future__ import annotations

from simulated import Machine

START = """
    cuda = Cuda()
    cuda.start()
    def held():
        return cuda.used() // MIB
    def alloc(size):
        return cuda.made("cuMemAlloc_v2", size)
"""


def test_small_pieces_share_blocks_of_2_mib(machine: Machine) -> None:
    told = machine.run(
        START
        + """
    sizes = [1, 1, 512, 1000, 65536, MIB - 1]
    pieces = [alloc(size) for size in sizes]
    say([held(), pieces[0] % (2 * MIB), [piece - pieces[0] for piece in pieces]])"""
    )
    assert [2, 0, [0, 0x200, 0x400, 0x600, 0xA00, 0x10A00]] == told


def test_large_pieces_take_whole_blocks(machine: Machine) -> None:
    told = machine.run(
        START
        + """
    seen = []
    for size in (MIB, MIB + 1, 2 * MIB, 2 * MIB + 1, 3 * MIB, 20 * MIB + 1):
        before = held()
        seen.append([alloc(size) % (2 * MIB), held() - before])
    say(seen)"""
    )
    assert [[0, 2], [0, 2], [0, 2], [0, 4], [0, 4], [0, 22]] == told


def test_a_block_is_the_cards_while_it_has_a_piece(machine: Machine) -> None:
    told = machine.run(
        START
        + """
    first = alloc(1)
    cuda.cuMemFree_v2(first)
    seen = [held()]
    pieces = [alloc(MIB - 512) for _ in range(40)]
    seen.append(held())
    for piece in pieces[::2]:
        cuda.cuMemFree_v2(piece)
    seen.append(held())
    for piece in pieces[1::2]:
        cuda.cuMemFree_v2(piece)
    say([*seen, held()])"""
    )
    assert [2, 40, 40, 2] == told


def test_each_context_has_small_blocks_of_its_own(machine: Machine) -> None:
    told = machine.run(
        START
        + """
    alloc(1)
    other = cuda.made("cuCtxCreate_v2", c_uint(0), c_uint(0))
    seen = [held()]
    alloc(1)
    seen.append(held())
    cuda.cuCtxDestroy_v2(other)
    cuda.start()
    say([*seen, held()])"""
    )
    assert [2, 4, 2] == told


def test_a_pitched_piece_counts_as_its_rows_together(machine: Machine) -> None:
    told = machine.run(
        START
        + """
    pitch = c_size_t()
    first = cuda.made("cuMemAllocPitch_v2", byref(pitch), 1000, 100, c_uint(4))
    other = alloc(1)
    say([held(), pitch.value, other - first])"""
    )
    assert [2, 1024, 102400] == told


def test_arrays_of_up_to_1_mib_share_blocks(machine: Machine) -> None:
    told = machine.run(
        START
        + """
    seen = []
    for count, width in ((500, 1024), (50, 256 * 1024), (20, 360_000), (5, 1024 * 1024)):
        before = held()
        for _ in range(count):
            cuda.made("cuArrayCreate_v2", byref(ArrayShape(width, 0, 0x20, 1)))
        seen.append(held() - before)
    say(seen)"""
    )
    assert [2, 50, 40, 20] == told


def test_what_a_context_held_goes_with_it(machine: Machine) -> None:
    told = machine.run(
        START
        + """
    cuda.made("cuCtxCreate_v2", c_uint(0), c_uint(0))
    alloc(1), alloc(8 * MIB), cuda.made("cuArrayCreate_v2", byref(ArrayShape(MIB, 0, 0x20, 1)))
    seen = [held()]
    other = c_uint64()
    cuda.cuCtxGetCurrent(byref(other))
    cuda.cuCtxDestroy_v2(other)
    cuda.start()
    say([*seen, held()])"""
    )
    assert [14, 0] == told
