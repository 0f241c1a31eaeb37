"""Memory in the order of streams: pools, graphs, and what is freed behind a wait."""

from simulated import Machine

START = """
    cuda = Cuda()
    cuda.start()
    def held():
        return cuda.used() // MIB
    def alloc(size):
        return cuda.made("cuMemAlloc_v2", size)
"""

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
    figures = machine.run(f"""{BLOCKED}
    mine = pool()
    it = cuda.made("cuMemAllocFromPoolAsync", 100 * MIB, mine, blocked)
    seen = [[held(), *told(mine)]]
    cuda.cuMemFreeAsync(it, blocked)
    cuda.cuMemPoolTrimTo(mine, 0)
    seen.append([held(), *told(mine)])
    value.value = 1
    cuda.cuStreamSynchronize(blocked)
    say([*seen, [held(), *told(mine)]])""")
    assert [[128, 128, 100], [128, 128, 0], [0, 0, 0]] == figures


def test_a_trim_gives_back_what_the_stream_has_passed(machine: Machine) -> None:
    answers = machine.run(f"""{BLOCKED}
    mine = pool()
    kept = cuda.made("cuMemAllocFromPoolAsync", MIB, mine, blocked)
    cuda.cuMemFreeAsync(cuda.made("cuMemAllocFromPoolAsync", 100 * MIB, mine, blocked), blocked)
    value.value = 1
    seen = [told(mine)]
    cuda.cuMemPoolTrimTo(mine, 0)
    say([*seen, told(mine), held()])""")
    assert [[128, 1], [32, 1], 32] == answers


def test_memory_freed_in_one_stream_is_not_anothers_until_it_has_passed(machine: Machine) -> None:
    figures = machine.run(f"""{BLOCKED}
    mine, other = pool(), stream()
    cuda.cuMemFreeAsync(cuda.made("cuMemAllocFromPoolAsync", 64 * MIB, mine, blocked), blocked)
    again = cuda.made("cuMemAllocFromPoolAsync", 64 * MIB, mine, blocked)
    seen = [told(mine)]
    cuda.cuMemFreeAsync(again, blocked)
    cuda.made("cuMemAllocFromPoolAsync", 64 * MIB, mine, other)
    seen.append(told(mine))
    value.value = 1
    cuda.made("cuMemAllocFromPoolAsync", 64 * MIB, mine, other)
    say([*seen, told(mine)])""")
    assert [[64, 64], [128, 64], [128, 128]] == figures


def test_a_pool_destroyed_holds_what_is_freed_behind_a_wait(machine: Machine) -> None:
    answers = machine.run(f"""{BLOCKED}
    mine = pool()
    live = cuda.made("cuMemAllocFromPoolAsync", 40 * MIB, mine, blocked)
    cuda.cuMemFreeAsync(cuda.made("cuMemAllocFromPoolAsync", 100 * MIB, mine, blocked), blocked)
    cuda.cuMemPoolDestroy(mine)
    seen = [held(), cuda.code("cuMemPoolTrimTo", mine, 0)]
    value.value = 1
    seen.append(held())
    cuda.cuMemFreeAsync(live, blocked)
    cuda.cuStreamSynchronize(blocked)
    say([*seen, held()])""")
    assert [160, 1, 64, 0] == answers


def test_plain_memory_freed_behind_a_wait_is_the_cards_until_somebody_waits_for_it(
    machine: Machine,
) -> None:
    answers = machine.run(f"""{BLOCKED}
    large, small = alloc(128 * MIB), alloc(1)
    cuda.cuMemFreeAsync(large, blocked)
    cuda.cuMemFreeAsync(small, blocked)
    seen = [held(), cuda.code("cuMemFree_v2", large), alloc(1) != small]
    value.value = 1
    seen.append(held())
    cuda.cuStreamSynchronize(blocked)
    say([*seen, held()])""")
    assert [130, 1, True, 130, 2] == answers


def test_a_host_function_that_blocks_holds_what_is_freed_behind_it(machine: Machine) -> None:
    answers = machine.run(f"""{BLOCKED}
    import threading
    passed = threading.Event()
    waits = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: passed.wait() and None)
    other, mine = stream(), pool()
    cuda.cuLaunchHostFunc(other, waits, None)
    cuda.cuMemFreeAsync(cuda.made("cuMemAllocFromPoolAsync", 64 * MIB, mine, other), other)
    cuda.cuMemPoolTrimTo(mine, 0)
    seen = told(mine)
    passed.set()
    cuda.cuStreamSynchronize(other)
    say([*seen, *told(mine)])""")
    assert [64, 0, 0, 0] == answers


def test_an_event_carries_a_wait_to_another_stream(machine: Machine) -> None:
    codes = machine.run(f"""{BLOCKED}
    other, event = stream(), c_void_p()
    cuda.cuEventCreate(byref(event), c_uint(2))
    cuda.cuEventRecord(event, blocked)
    free = cuda.code("cuStreamQuery", other)
    cuda.cuStreamWaitEvent(other, event, c_uint(0))
    seen = [free, cuda.code("cuStreamQuery", other), cuda.code("cuEventQuery", event)]
    value.value = 1
    cuda.cuStreamSynchronize(other)
    say([*seen, cuda.code("cuEventQuery", event)])""")
    assert [0, 600, 600, 0] == codes


def test_each_kind_of_wait_for_a_value_ends_as_documented(machine: Machine) -> None:
    codes = machine.run(f"""{BLOCKED}
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
    say(seen)""")
    assert [[600, 0]] * 5 == codes


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
    figures = machine.run(f"""{GRAPHS}
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
    say(seen)""")
    kept = [320, 320, 320]
    assert [[0, 0, 0], kept, kept, kept, [320, 320, 0], [320, 320, 0], [0, 0, 0]] == figures


def test_what_a_graph_kept_is_given_back_by_a_plain_free(machine: Machine) -> None:
    figures = machine.run(f"""{GRAPHS}
    exec, (pointer,) = allocating(40 * MIB, free=False)
    cuda.cuGraphLaunch(exec, None)
    cuda.cuGraphExecDestroy(exec)
    cuda.cuMemFree_v2(pointer)
    seen = graphs()
    cuda.cuDeviceGraphMemTrim(c_uint(0))
    say([seen, graphs()])""")
    assert [[64, 0], [0, 0]] == figures


def test_the_allocations_of_one_launch_share_chunks(machine: Machine) -> None:
    figures = machine.run(f"""{GRAPHS}
    exec, pointers = allocating(MIB, MIB, MIB, free=False)
    cuda.cuGraphLaunch(exec, None)
    seen = [graphs()]
    cuda.cuMemFree_v2(pointers[0])
    seen.append(graphs())
    other, _ = allocating(MIB, free=False)
    cuda.cuGraphLaunch(other, None)
    say([*seen, graphs()])""")
    assert [[32, 32], [32, 32], [64, 64]] == figures


def test_graphs_in_two_blocked_streams_need_memory_each(machine: Machine) -> None:
    figures = machine.run(f"""{GRAPHS}
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
    say([*seen, graphs()])""")
    assert [[128, 0], [128, 0]] == figures
