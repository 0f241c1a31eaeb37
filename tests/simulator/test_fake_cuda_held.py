"""What the fake card holds for a program, and until when, as an H100 with driver 580 does."""

from pathlib import Path

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
    answers = machine.run(f"""{START}
    sizes = [1, 1, 512, 1000, 65536, MIB - 1]
    pieces = [alloc(size) for size in sizes]
    say([held(), pieces[0] % (2 * MIB), [piece - pieces[0] for piece in pieces]])""")
    assert [2, 0, [0, 0x200, 0x400, 0x600, 0xA00, 0x10A00]] == answers


def test_large_pieces_take_whole_blocks(machine: Machine) -> None:
    blocks = machine.run(f"""{START}
    seen = []
    for size in (MIB, MIB + 1, 2 * MIB, 2 * MIB + 1, 3 * MIB, 20 * MIB + 1):
        before = held()
        seen.append([alloc(size) % (2 * MIB), held() - before])
    say(seen)""")
    assert [[0, 2], [0, 2], [0, 2], [0, 4], [0, 4], [0, 22]] == blocks


def test_a_block_is_the_cards_while_it_has_a_piece(machine: Machine) -> None:
    held_mib = machine.run(f"""{START}
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
    say([*seen, held()])""")
    assert [2, 40, 40, 2] == held_mib


def test_each_context_has_small_blocks_of_its_own(machine: Machine) -> None:
    held_mib = machine.run(f"""{START}
    alloc(1)
    other = cuda.made("cuCtxCreate_v2", c_uint(0), c_uint(0))
    seen = [held()]
    alloc(1)
    seen.append(held())
    cuda.cuCtxDestroy_v2(other)
    cuda.start()
    say([*seen, held()])""")
    assert [2, 4, 2] == held_mib


def test_a_pitched_piece_counts_as_its_rows_together(machine: Machine) -> None:
    answers = machine.run(f"""{START}
    pitch = c_size_t()
    first = cuda.made("cuMemAllocPitch_v2", byref(pitch), 1000, 100, c_uint(4))
    other = alloc(1)
    say([held(), pitch.value, other - first])""")
    assert [2, 1024, 102400] == answers


def test_arrays_of_up_to_1_mib_share_blocks(machine: Machine) -> None:
    held_mib = machine.run(f"""{START}
    seen = []
    for count, width in ((500, 1024), (50, 256 * 1024), (20, 360_000), (5, 1024 * 1024)):
        before = held()
        for _ in range(count):
            cuda.made("cuArrayCreate_v2", byref(ArrayShape(width, 0, 0x20, 1)))
        seen.append(held() - before)
    say(seen)""")
    assert [2, 50, 40, 20] == held_mib


def test_what_a_context_held_goes_with_it(machine: Machine) -> None:
    held_mib = machine.run(f"""{START}
    cuda.made("cuCtxCreate_v2", c_uint(0), c_uint(0))
    alloc(1), alloc(8 * MIB), cuda.made("cuArrayCreate_v2", byref(ArrayShape(MIB, 0, 0x20, 1)))
    seen = [held()]
    other = c_uint64()
    cuda.cuCtxGetCurrent(byref(other))
    cuda.cuCtxDestroy_v2(other)
    cuda.start()
    say([*seen, held()])""")
    assert [14, 0] == held_mib


def test_each_context_takes_the_same_again(tmp_path: Path) -> None:
    rack = "[device]\nvendor = nvidia\nmodel = Card\nmemory = 2 GiB\ncontext = 518 MiB\n"
    answers = Machine(tmp_path, rack).run(f"""{START}
    seen = [held()]
    contexts = [cuda.made("cuCtxCreate_v2", c_uint(0), c_uint(0)) for _ in range(2)]
    seen.append(held())
    seen.append(cuda.code("cuCtxCreate_v2", byref(c_void_p()), c_uint(0), c_uint(0)))
    cuda.cuCtxDestroy_v2(contexts[0])
    say([*seen, held()])""")
    assert [518, 1554, 2, 1036] == answers


def test_each_four_streams_take_a_block_that_stays_with_their_context(machine: Machine) -> None:
    held_mib = machine.run(f"""{START}
    own = cuda.made("cuCtxCreate_v2", c_uint(0), c_uint(0))
    streams, seen = [], []
    for count in (1, 2, 3, 7, 15, 31):
        while len(streams) < count:
            streams.append(cuda.made("cuStreamCreate", c_uint(1)))
        seen.append(held())
    for stream in streams:
        cuda.cuStreamDestroy_v2(stream)
    cuda.made("cuStreamCreate", c_uint(1))
    seen.append(held())
    cuda.cuCtxDestroy_v2(own)
    cuda.start()
    say([*seen, held()])""")
    assert [0, 0, 2, 4, 8, 16, 16, 0] == held_mib


SPARSE = (
    START
    + """
    class Shape(ctypes.Structure):
        _fields_ = [
            ("width", c_size_t), ("height", c_size_t), ("depth", c_size_t),
            ("format", ctypes.c_int), ("channels", c_uint), ("flags", c_uint),
        ]
    class MapInfo(ctypes.Structure):
        _fields_ = [
            ("resource_type", c_uint), ("resource", c_void_p), ("subresource_type", c_uint),
            ("alignment", c_uint), ("subresource", c_uint * 8),
            ("operation", c_uint), ("handle_type", c_uint), ("block", c_uint64),
            ("offset", c_uint64), ("devices", c_uint), ("flags", c_uint), ("reserved", c_uint * 2),
        ]
    shape = Shape(4096, 4096, 0, 0x20, 1, 0x40)
    array = cuda.made("cuArray3DCreate_v2", byref(shape))
    mipmap = cuda.made("cuMipmappedArrayCreate", byref(shape), c_uint(1))
    def mapped(resource, block=0, where=0, kind=0):
        place = (c_uint * 8)(0, 0, where)
        operation = 1 if block else 2
        info = MapInfo(kind, resource, 0, 0, place, operation, 0, block, 0, 1, 0)
        return cuda.code("cuMemMapArrayAsync", byref(info), c_uint(1), None)
    def block():
        return cuda.made("cuMemCreate", 2 * MIB, byref(AllocationProperties(1, 0, FIRST)), 0)
"""
)


def test_a_sparse_array_holds_what_is_mapped_into_it_until_it_is_unmapped(
    machine: Machine,
) -> None:
    answers = machine.run(f"""{SPARSE}
    seen = [held()]
    one, other = block(), block()
    seen += [mapped(array, one), mapped(array, other, 64), held()]
    cuda.cuMemRelease(one), cuda.cuMemRelease(other)
    seen += [held(), mapped(array), held(), mapped(array, 0, 64), held()]
    say(seen)""")
    assert [0, 0, 0, 4, 4, 0, 2, 0, 0] == answers


def test_what_is_mapped_into_a_sparse_array_goes_with_it(machine: Machine) -> None:
    answers = machine.run(f"""{SPARSE}
    one, other = block(), block()
    seen = [mapped(array, one), mapped(mipmap, one, kind=1), mapped(mipmap, other, 64, kind=1)]
    cuda.cuMemRelease(one), cuda.cuMemRelease(other)
    cuda.cuArrayDestroy(array)
    seen.append(held())
    cuda.cuMipmappedArrayDestroy(mipmap)
    say([*seen, held()])""")
    assert [0, 0, 0, 4, 0] == answers


def test_only_a_block_is_mapped_and_only_into_a_sparse_array(machine: Machine) -> None:
    codes = machine.run(f"""{SPARSE}
    plain = cuda.made("cuArrayCreate_v2", byref(ArrayShape(1024, 0, 0x20, 1)))
    say([mapped(plain, block()), mapped(array, 12345), mapped(array, block(), kind=1)])""")
    assert [1, 1, 1] == codes
