"""What the fake card holds for a program, and until when, as an H100 with driver 580 does."""

from __future__ import annotations

from pathlib import Path

from simulated import MIB, Machine

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


BLOCKED = (
    START
    + """
    def stream():
        made = c_void_p()
        cuda.cuStreamCreate(byref(made), c_uint(1))
        return made
    def pool():
        return c_void_p(cuda.made("cuMemPoolCreate", byref(PoolProperties(1, 0, FIRST))))
    def told(pool):
        reserved, used = c_uint64(), c_uint64()
        cuda.cuMemPoolGetAttribute(pool, 5, byref(reserved))
        cuda.cuMemPoolGetAttribute(pool, 7, byref(used))
        return [reserved.value // MIB, used.value // MIB]
    gate = c_void_p()
    cuda.cuMemAllocHost_v2(byref(gate), 4096)
    value = c_uint.from_address(gate.value)
    blocked = stream()
    cuda.cuStreamWaitValue32_v2(blocked, gate.value, c_uint(1), c_uint(0))
"""
)


def test_memory_freed_behind_a_wait_is_the_cards_until_the_stream_has_passed(
    machine: Machine,
) -> None:
    told = machine.run(
        BLOCKED
        + """
    mine = pool()
    it = cuda.made("cuMemAllocFromPoolAsync", 100 * MIB, mine, blocked)
    seen = [[held(), *told(mine)]]
    cuda.cuMemFreeAsync(it, blocked)
    cuda.cuMemPoolTrimTo(mine, 0)
    seen.append([held(), *told(mine)])
    value.value = 1
    cuda.cuStreamSynchronize(blocked)
    say([*seen, [held(), *told(mine)]])"""
    )
    assert [[128, 128, 100], [128, 128, 0], [0, 0, 0]] == told


def test_a_trim_gives_back_what_the_stream_has_passed(machine: Machine) -> None:
    told = machine.run(
        BLOCKED
        + """
    mine = pool()
    kept = cuda.made("cuMemAllocFromPoolAsync", MIB, mine, blocked)
    cuda.cuMemFreeAsync(cuda.made("cuMemAllocFromPoolAsync", 100 * MIB, mine, blocked), blocked)
    value.value = 1
    seen = [told(mine)]
    cuda.cuMemPoolTrimTo(mine, 0)
    say([*seen, told(mine), held()])"""
    )
    assert [[128, 1], [32, 1], 32] == told


def test_memory_freed_in_one_stream_is_not_anothers_until_it_has_passed(machine: Machine) -> None:
    told = machine.run(
        BLOCKED
        + """
    mine, other = pool(), stream()
    cuda.cuMemFreeAsync(cuda.made("cuMemAllocFromPoolAsync", 64 * MIB, mine, blocked), blocked)
    again = cuda.made("cuMemAllocFromPoolAsync", 64 * MIB, mine, blocked)
    seen = [told(mine)]
    cuda.cuMemFreeAsync(again, blocked)
    cuda.made("cuMemAllocFromPoolAsync", 64 * MIB, mine, other)
    seen.append(told(mine))
    value.value = 1
    cuda.made("cuMemAllocFromPoolAsync", 64 * MIB, mine, other)
    say([*seen, told(mine)])"""
    )
    assert [[64, 64], [128, 64], [128, 128]] == told


def test_a_pool_destroyed_holds_what_is_freed_behind_a_wait(machine: Machine) -> None:
    told = machine.run(
        BLOCKED
        + """
    mine = pool()
    live = cuda.made("cuMemAllocFromPoolAsync", 40 * MIB, mine, blocked)
    cuda.cuMemFreeAsync(cuda.made("cuMemAllocFromPoolAsync", 100 * MIB, mine, blocked), blocked)
    cuda.cuMemPoolDestroy(mine)
    seen = [held(), cuda.code("cuMemPoolTrimTo", mine, 0)]
    value.value = 1
    seen.append(held())
    cuda.cuMemFreeAsync(live, blocked)
    cuda.cuStreamSynchronize(blocked)
    say([*seen, held()])"""
    )
    assert [160, 1, 64, 0] == told


def test_plain_memory_freed_behind_a_wait_is_the_cards_until_it_has_passed(
    machine: Machine,
) -> None:
    told = machine.run(
        BLOCKED
        + """
    large, small = alloc(128 * MIB), alloc(1)
    cuda.cuMemFreeAsync(large, blocked)
    cuda.cuMemFreeAsync(small, blocked)
    seen = [held(), cuda.code("cuMemFree_v2", large), alloc(1) != small]
    value.value = 1
    say([*seen, held()])"""
    )
    assert [130, 1, True, 2] == told


def test_a_host_function_that_blocks_holds_what_is_freed_behind_it(machine: Machine) -> None:
    told = machine.run(
        BLOCKED
        + """
    import threading
    let_go = threading.Event()
    waits = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: let_go.wait() and None)
    other, mine = stream(), pool()
    cuda.cuLaunchHostFunc(other, waits, None)
    cuda.cuMemFreeAsync(cuda.made("cuMemAllocFromPoolAsync", 64 * MIB, mine, other), other)
    cuda.cuMemPoolTrimTo(mine, 0)
    seen = told(mine)
    let_go.set()
    cuda.cuStreamSynchronize(other)
    say([*seen, *told(mine)])"""
    )
    assert [64, 0, 0, 0] == told


def test_an_event_carries_a_wait_to_another_stream(machine: Machine) -> None:
    told = machine.run(
        BLOCKED
        + """
    other, event = stream(), c_void_p()
    cuda.cuEventCreate(byref(event), c_uint(2))
    cuda.cuEventRecord(event, blocked)
    free = cuda.code("cuStreamQuery", other)
    cuda.cuStreamWaitEvent(other, event, c_uint(0))
    seen = [free, cuda.code("cuStreamQuery", other), cuda.code("cuEventQuery", event)]
    value.value = 1
    cuda.cuStreamSynchronize(other)
    say([*seen, cuda.code("cuEventQuery", event)])"""
    )
    assert [0, 600, 600, 0] == told


def test_each_kind_of_wait_for_a_value_ends_as_documented(machine: Machine) -> None:
    told = machine.run(
        BLOCKED
        + """
    seen = []
    for flags, wanted, not_yet, then in (
        (0, 5, 4, 6), (0, 1, 0xFFFFFFFF, 1), (1, 5, 6, 5), (2, 6, 9, 12), (3, 1, 0xFFFFFFFF, 0)
    ):
        other = stream()
        value.value = not_yet
        cuda.cuStreamWaitValue32_v2(other, gate.value, c_uint(wanted), c_uint(flags))
        before = cuda.code("cuStreamQuery", other)
        cuda.cuStreamWriteValue32_v2(stream(), gate.value, c_uint(then), c_uint(0))
        seen.append([before, cuda.code("cuStreamQuery", other)])
    say(seen)"""
    )
    assert [[600, 0]] * 5 == told


GRAPHS = (
    BLOCKED
    + """
    def allocating(*sizes, free=True):
        graph, node, pointers = c_void_p(), c_void_p(), []
        cuda.cuGraphCreate(byref(graph), c_uint(0))
        for size in sizes:
            params = AllocNode(PoolProperties(1, 0, FIRST), None, 0, size, 0)
            cuda.cuGraphAddMemAllocNode(byref(node), graph, None, 0, byref(params))
            pointers.append(params.pointer)
        for pointer in pointers if free else []:
            cuda.cuGraphAddMemFreeNode(byref(node), graph, None, 0, pointer)
        made = c_void_p()
        cuda.cuGraphInstantiateWithFlags(byref(made), graph, 0)
        return made, pointers
    def graphs():
        told = c_uint64(), c_uint64()
        for attribute, value in zip((2, 0), told):
            cuda.cuDeviceGetGraphMemAttribute(c_uint(0), c_uint(attribute), byref(value))
        return [value.value // MIB for value in told]
"""
)


def test_a_graph_takes_its_memory_when_it_is_launched_and_keeps_what_it_does_not_free(
    machine: Machine,
) -> None:
    told = machine.run(
        GRAPHS
        + """
    exec, (pointer,) = allocating(300 * MIB, free=False)
    seen = [[held(), *graphs()]]
    def step(name, *arguments):
        getattr(cuda, name)(*arguments)
        seen.append([held(), *graphs()])
    step("cuGraphLaunch", exec, None)
    step("cuGraphExecDestroy", exec)
    step("cuDeviceGraphMemTrim", c_uint(0))
    step("cuMemFreeAsync", pointer, None)
    value.value = 1
    step("cuCtxSynchronize")
    step("cuDeviceGraphMemTrim", c_uint(0))
    say(seen)"""
    )
    kept = [320, 320, 320]
    assert [[0, 0, 0], kept, kept, kept, [320, 320, 0], [320, 320, 0], [0, 0, 0]] == told


def test_what_a_graph_kept_is_given_back_by_a_plain_free(machine: Machine) -> None:
    told = machine.run(
        GRAPHS
        + """
    exec, (pointer,) = allocating(40 * MIB, free=False)
    cuda.cuGraphLaunch(exec, None)
    cuda.cuGraphExecDestroy(exec)
    cuda.cuMemFree_v2(pointer)
    seen = graphs()
    cuda.cuDeviceGraphMemTrim(c_uint(0))
    say([seen, graphs()])"""
    )
    assert [[64, 0], [0, 0]] == told


def test_the_allocations_of_one_launch_share_chunks(machine: Machine) -> None:
    told = machine.run(
        GRAPHS
        + """
    exec, pointers = allocating(MIB, MIB, MIB, free=False)
    cuda.cuGraphLaunch(exec, None)
    seen = [graphs()]
    cuda.cuMemFree_v2(pointers[0])
    seen.append(graphs())
    other, _ = allocating(MIB, free=False)
    cuda.cuGraphLaunch(other, None)
    say([*seen, graphs()])"""
    )
    assert [[32, 32], [32, 32], [64, 64]] == told


def test_graphs_in_two_blocked_streams_need_memory_each(machine: Machine) -> None:
    told = machine.run(
        GRAPHS
        + """
    other = stream()
    cuda.cuStreamWaitValue32_v2(other, gate.value, c_uint(1), c_uint(0))
    for each in (blocked, other):
        exec, _ = allocating(64 * MIB)
        cuda.cuGraphLaunch(exec, each)
    seen = [graphs()]
    value.value = 1
    cuda.cuCtxSynchronize()
    exec, _ = allocating(64 * MIB)
    cuda.cuGraphLaunch(exec, other)
    say([*seen, graphs()])"""
    )
    assert [[128, 0], [128, 0]] == told


MODULES = (
    START
    + '''
    import struct
    def ptx(variables, body="ret;"):
        text = f"""
            .version 8.0
            .target sm_80
            .address_size 64
            // .global .b8 in_a_comment[104857600];
            /* .global .b8 nor_here[104857600]; */
            .extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
            .extern .func (.param .b64 r) malloc (.param .b64 a);
            {variables}
            .visible .entry k(.param .u64 .ptr .global .align 4 p) {{ ret; }}
            .visible .entry touch() {{ .reg .b64 %r<2>; ld.global.u32 %r1, [big]; {body} }}"""
        return ctypes.c_char_p(text.encode())
    def elf(**sections):
        """An image with these sections of so many bytes, and a variable as large in each."""
        names = ["", *sections, "symtab", "strings"]
        strings = b"".join(name.encode() + b"\\0" for name in names)
        where = [strings.index(name.encode()) for name in names]
        symbols = b"".join(
            struct.pack("<IBBHQQ", where[i + 1], 0x11, 0, i + 1, 0, size)
            for i, size in enumerate(sections.values())
        )
        last = len(names) - 1
        rows = [(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)]
        for at, size in zip(where[1:], sections.values()):
            rows.append((at, 8, 3, 0, 0, size, 0, 0, 8, 0))
        rows.append((where[-2], 2, 0, 0, 64, len(symbols), last, 0, 8, 24))
        rows.append((where[-1], 3, 0, 0, 64 + len(symbols), len(strings), 0, 0, 1, 0))
        head = struct.pack(
            "<16sHHIQQQIHHHHHH", b"\\x7fELF\\x02\\x01\\x01", 2, 190, 1, 0, 0,
            64 + len(symbols) + len(strings), 0, 64, 0, 0, 64, len(rows), last,
        )
        body = head + symbols + strings + b"".join(struct.pack("<IIQQQQIIQQ", *row) for row in rows)
        return ctypes.c_char_p(body)
    def global_of(module, name, call="cuModuleGetGlobal_v2"):
        pointer, size = c_uint64(), c_size_t()
        cuda.__getattr__(call)(byref(pointer), byref(size), module, name)
        return pointer.value, size.value
'''
)


def test_a_modules_variables_are_the_cards_from_its_load_to_its_unload(machine: Machine) -> None:
    told = machine.run(
        MODULES
        + """
    module = cuda.made("cuModuleLoadData", ptx(".visible .global .align 4 .b8 big[100000000];"))
    pointer, size = global_of(module, b"big")
    seen = [held(), pointer % 256, size]
    cuda.cuMemsetD8_v2(pointer, 1, size)
    seen.append(cuda.code("cuMemFree_v2", pointer))
    cuda.cuModuleUnload(module)
    too_much = ptx(".global .b8 big[2147483648];")
    say([*seen, held(), cuda.code("cuModuleLoadData", byref(c_void_p()), too_much)])"""
    )
    assert [96, 0, 100_000_000, 1, 0, 2] == told


def test_small_variables_of_many_modules_share_a_block(machine: Machine) -> None:
    told = machine.run(
        MODULES
        + """
    modules = [
        cuda.made("cuModuleLoadData", ptx(".global .b8 mine[4096];")) for _ in range(20)
    ]
    seen = held()
    say([seen, len({global_of(module, b"mine")[0] for module in modules})])"""
    )
    assert [2, 20] == told


def test_variables_are_counted_in_every_spelling_of_ptx(machine: Machine) -> None:
    told = machine.run(
        MODULES
        + """
    cases = {
        ".global .u32 a;": 4,
        ".visible .global .align 16 .b8 a[1024][3];": 3072,
        ".global.align 8.b8 a[0x100];": 256,
        ".weak .global .v4 .f32 a[8];": 128,
        ".const .align 4 .f16x2 a[10];": 40,
        ".global .b64 a[2*(4+4)<<1U];": 256,
        ".global .b16 a[] = {1, 2, 3};": 6,
        ".global .s32 a[][2] = {{1, 2}, {3, 4}, {5, 6}};": 24,
        ".global .u64 a[4] = {b, generic(b)+8};": 32,
        ".common .global .b8 x[12], a[0b1000];": 8,
        ".global .attribute(.managed) .b8 a[010];": 8,
        ".global .b128 a[2];": 32,
    }
    seen = [
        global_of(cuda.made("cuModuleLoadData", ptx(".global .b32 b;" + each)), b"a")[1]
        for each in cases
    ]
    extern = cuda.made("cuModuleLoadData", ptx(".extern .global .b8 a[999];"))
    missing = cuda.code("cuModuleGetGlobal_v2", byref(c_uint64()), None, extern, b"a")
    counted = cuda.made("cuModuleLoadData", ptx(".global .b32 a<100>[4];"))
    say([seen == list(cases.values()), seen, missing, held()])"""
    )
    assert [True, told[1], 500, 2] == told


def test_an_images_variables_are_its_sections(machine: Machine) -> None:
    told = machine.run(
        MODULES
        + """
    image = elf(**{".nv.global": 5 * MIB, ".nv.global.init": 4096, ".debug": 90 * MIB})
    module = cuda.made("cuModuleLoadData", image)
    seen = [held(), global_of(module, b".nv.global")[1], global_of(module, b".nv.global.init")[1]]
    say([*seen, cuda.code("cuModuleGetGlobal_v2", byref(c_uint64()), None, module, b".debug")])"""
    )
    assert [6, 5 * MIB, 4096, 500] == told


LIBRARY = (
    MODULES
    + """
    image = ptx(".global .b8 big[50331648];")
    def library():
        return cuda.made("cuLibraryLoadData", image, None, None, c_uint(0), None, None, c_uint(0))
    def after(name, *arguments):
        mine = library()
        kernel = cuda.made("cuLibraryGetKernel", mine, b"k")
        seen = [held()]
        if name == "launch":
            code = cuda.launch(kernel, 0)
        elif name == "cuKernelGetFunction":
            code = cuda.code(name, byref(c_void_p()), kernel)
        else:
            code = cuda.code(name, byref(c_void_p()), *arguments[:1], mine, *arguments[1:])
        seen += [code, held()]
        cuda.cuLibraryUnload(mine)
        return [*seen, held()]
"""
)


def test_a_library_takes_nothing_until_something_of_it_is_asked_for(machine: Machine) -> None:
    told = machine.run(
        LIBRARY
        + """
    say([
        after("cuKernelGetFunction"),
        after("cuLibraryGetModule"),
        after("cuLibraryGetGlobal", None, b"big"),
        after("launch"),
    ])""",
        CUDA_MODULE_LOADING="LAZY",
    )
    assert [[0, 0, 48, 0]] * 4 == told


def test_a_library_takes_its_variables_at_once_where_loading_is_eager(machine: Machine) -> None:
    program = """
    mode = c_uint()
    cuda.cuModuleGetLoadingMode(byref(mode))
    library()
    say([held(), mode.value])"""
    assert [48, 1] == machine.run(LIBRARY + program, CUDA_MODULE_LOADING="EAGER")
    assert [0, 2] == machine.run(LIBRARY + program)


H100 = """
    [device]
    vendor = nvidia
    model = Card
    memory = 80 GiB
    multiprocessors = 132

    [kernel touch]
    time = 1 us
"""


def test_a_larger_stack_is_taken_at_once_and_given_back_at_once(tmp_path: Path) -> None:
    told = Machine(tmp_path, H100).run(
        START
        + """
    seen = []
    for size in (1024, 4096, 65536, 512, 1 << 60):
        seen.append([cuda.code("cuCtxSetLimit", c_uint(0), size), held()])
    say(seen)"""
    )
    assert [[0, 0], [0, 792], [0, 16632], [0, 0], [2, 0]] == told


def test_heap_and_printf_buffer_are_taken_when_a_program_first_needs_them(tmp_path: Path) -> None:
    told = Machine(tmp_path, H100).run(
        MODULES
        + """
    def limits():
        values = [c_size_t() for _ in range(10)]
        codes = [cuda.code("cuCtxGetLimit", byref(it), c_uint(i)) for i, it in enumerate(values)]
        return [value.value for value in values[:8]], codes[3]
    seen = [limits()]
    def step(name, *arguments):
        seen.append([cuda.code(name, *arguments), held()])
    PRINTF, HEAP = c_uint(1), c_uint(2)
    step("cuCtxSetLimit", HEAP, 1024 * MIB)
    step("cuCtxSetLimit", PRINTF, 256 * MIB)
    plain = cuda.made("cuModuleLoadData", ptx(""))
    cuda.launch(cuda.made("cuModuleGetFunction", plain, b"touch"), 0)
    prints = "{ call.uni (r), vprintf, (a, b); } { call (r), malloc, (a); }"
    module = c_void_p()
    step("cuModuleLoadData", byref(module), ptx("", prints))
    for name in (b"k", b"touch"):
        kernel = cuda.made("cuModuleGetFunction", module, name)
        seen.append([cuda.launch(kernel, 0), held()])
    step("cuModuleUnload", module)
    step("cuCtxSetLimit", HEAP, 2048 * MIB)
    step("cuCtxSetLimit", PRINTF, 512 * MIB)
    step("cuCtxSetLimit", c_uint(3), 4)
    step("cuCtxSetLimit", c_uint(4), 65536)
    cuda.cuDevicePrimaryCtxReset_v2(c_uint(0))
    cuda.start()
    say([*seen, held()])"""
    )
    assert [
        [[1024, 8650752, 8388608, 0, 2048, 64, 9830400, 232448], 215],
        *([[0, 0]] * 2),
        *([[0, 256]] * 2),
        *([[0, 1282]] * 2),
        *([[1, 1282]] * 2),
        [215, 1282],
        [0, 1282],
        0,
    ] == told


def test_each_context_takes_the_same_again(tmp_path: Path) -> None:
    rack = H100.replace("memory = 80 GiB", "memory = 2 GiB\n    context = 518 MiB")
    told = Machine(tmp_path, rack).run(
        START
        + """
    seen = [held()]
    contexts = [cuda.made("cuCtxCreate_v2", c_uint(0), c_uint(0)) for _ in range(2)]
    seen.append(held())
    seen.append(cuda.code("cuCtxCreate_v2", byref(c_void_p()), c_uint(0), c_uint(0)))
    cuda.cuCtxDestroy_v2(contexts[0])
    say([*seen, held()])"""
    )
    assert [518, 1554, 2, 1036] == told


def test_each_four_streams_take_a_block_that_stays_with_their_context(machine: Machine) -> None:
    told = machine.run(
        START
        + """
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
    say([*seen, held()])"""
    )
    assert [0, 0, 2, 4, 8, 16, 16, 0] == told
