"""Blocks of the fake card that several processes hold: counted once, until the last lets go."""

import pytest
from simulated import MIB, Machine

from tests.programs import next_line

START = """
    import os, socket, subprocess, sys
    cuda = Cuda()
    cuda.start()
    me = os.getpid()
    def figures(*pids):
        "What is used of the card, and what each of these processes is shown with, in MiB."
        told = rows()
        return [cuda.used() // MIB, *(told.get(pid, 0) // MIB for pid in pids)]
    def child(code, *fds):
        "A process with these descriptors, once it has said that it is ready."
        start = "from simulated import *; cuda = Cuda(); cuda.start(); "
        it = subprocess.Popen(
            [sys.executable, "-c", start + code],
            pass_fds=fds, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        assert it.stdout.readline() == "ready\\n"
        return it
    def ask(process, line=""):
        process.stdin.write(line + "\\n")
        process.stdin.flush()
        return process.stdout.readline().strip()
    def create(size):
        return cuda.made("cuMemCreate", size, byref(AllocationProperties(1, 1, FIRST)), 0)
    def export(block):
        fd = ctypes.c_int()
        cuda.cuMemExportToShareableHandle(byref(fd), block, c_uint(1), 0)
        return fd.value
    def take_in(fd):
        return cuda.made("cuMemImportFromShareableHandle", c_void_p(fd), c_uint(1))
    def importing(fd):
        "What a child does that has the block of this descriptor until it is told."
        return f'''
    block = cuda.made("cuMemImportFromShareableHandle", c_void_p({fd}), c_uint(1))
    print("ready", flush=True)
    input()
    cuda.cuMemRelease(block)
    print("released", flush=True)
    input()'''
"""


def test_an_exported_block_is_the_cards_until_its_last_descriptor_is_closed(
    machine: Machine,
) -> None:
    amounts = machine.run(f"""{START}
    block = create(256 * MIB)
    seen = [figures(me)]
    fd = export(block)
    again, other = os.dup(fd), export(block)
    cuda.cuMemRelease(block)
    seen.append(figures(me))
    os.close(fd), os.close(other)
    seen.append(figures(me))
    os.close(again)
    say([*seen, figures(me)])""")
    assert [[256, 256], [256, 0], [256, 0], [0, 0]] == amounts


def test_an_imported_block_is_another_handle_of_the_same_memory(machine: Machine) -> None:
    answers = machine.run(f"""{START}
    block = create(8 * MIB)
    fd = export(block)
    again = take_in(fd)
    os.close(fd)
    seen = [again != block, figures(me)]
    def show(block):
        place = cuda.made("cuMemAddressReserve", 8 * MIB, 0, 0, 0)
        cuda.cuMemMap(place, 8 * MIB, 0, block, 0)
        cuda.cuMemSetAccess(place, 8 * MIB, byref(Access(FIRST, 3)), 1)
        cuda.cuMemRelease(block)
        return place
    one, other = show(block), show(again)
    cuda.cuMemcpyHtoD_v2(one + MIB, b"the same", 8)
    back = ctypes.create_string_buffer(9)
    cuda.cuMemcpyDtoH_v2(back, other + MIB, 8)
    seen += [back.value.decode(), figures(me)]
    cuda.cuMemUnmap(one, 8 * MIB)
    seen.append(figures(me))
    cuda.cuMemUnmap(other, 8 * MIB)
    say([*seen, figures(me)])""")
    assert [True, [8, 8], "the same", [8, 8], [8, 0], [0, 0]] == answers


def test_a_block_is_shown_with_its_maker_and_then_with_who_imported_it(machine: Machine) -> None:
    amounts = machine.run(f"""{START}
    block = create(256 * MIB)
    fd = export(block)
    other = child(importing(fd), fd)
    seen = [figures(me, other.pid)]
    os.close(fd)
    cuda.cuMemRelease(block)
    seen.append(figures(me, other.pid))
    ask(other)
    seen.append(figures(me, other.pid))
    other.kill()
    other.wait()
    say([*seen, figures(me)])""")
    assert [[256, 256, 0], [256, 0, 256], [256, 0, 0], [0, 0]] == amounts


def test_a_killed_importer_leaves_nothing(machine: Machine) -> None:
    amounts = machine.run(f"""{START}
    block = create(64 * MIB)
    fd = export(block)
    other = child(importing(fd), fd)
    os.close(fd)
    cuda.cuMemRelease(block)
    seen = [figures(me, other.pid)]
    other.kill()
    other.wait()
    say([*seen, figures(me)])""")
    assert [[64, 0, 64], [0, 0]] == amounts


def test_a_killed_maker_leaves_what_it_sent_to_who_imports_it(machine: Machine) -> None:
    amounts = machine.run(f"""{START}
    here, there = socket.socketpair()
    maker = child(f'''
    import socket
    block, fd = c_uint64(), ctypes.c_int()
    cuda.cuMemCreate(byref(block), 64 * MIB, byref(AllocationProperties(1, 1, FIRST)), 0)
    cuda.cuMemExportToShareableHandle(byref(fd), block, c_uint(1), 0)
    socket.send_fds(socket.socket(fileno={{there.fileno()}}), [b"x"], [fd.value])
    print("ready", flush=True)
    input()''', there.fileno())
    seen = [figures(me, maker.pid)]
    maker.kill()
    maker.wait()
    there.close()
    seen.append(figures(me))
    _, (fd,), _, _ = socket.recv_fds(here, 1, 1)
    block = take_in(fd)
    os.close(fd)
    seen.append(figures(me))
    cuda.cuMemRelease(block)
    say([*seen, figures(me)])""")
    assert [[64, 0, 64], [64, 0], [64, 64], [0, 0]] == amounts


def test_a_descriptor_in_a_socket_holds_its_block_alone(machine: Machine) -> None:
    amounts = machine.run(f"""{START}
    here, there = socket.socketpair()
    block = create(64 * MIB)
    fd = export(block)
    socket.send_fds(there, [b"x"], [fd])
    os.close(fd)
    cuda.cuMemRelease(block)
    cuda.cuDevicePrimaryCtxReset_v2(c_uint(0))
    cuda.start()
    seen = [figures(me)]
    here.close(), there.close()
    say([*seen, figures(me)])""")
    assert [[64, 0], [0, 0]] == amounts


def test_a_descriptor_of_something_else_is_no_block(machine: Machine) -> None:
    codes = machine.run(f"""{START}
    file = os.open("/dev/null", os.O_RDWR)
    say([
        cuda.code("cuMemImportFromShareableHandle", byref(c_uint64()), c_void_p(fd), c_uint(1))
        for fd in (file, 12345)
    ])""")
    assert [1, 1] == codes


IPC = (
    START
    + """
    def opening(pointer):
        "What a child does that has this memory open and reads it as often as it is told."
        handle = ctypes.create_string_buffer(64)
        cuda.cuIpcGetMemHandle(handle, pointer)
        return f'''
    class Handle(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_char * 64)]
    handle = Handle.from_buffer_copy(bytes.fromhex("{handle.raw.hex()}"))
    it = cuda.made("cuIpcOpenMemHandle_v2", handle, c_uint(1))
    print("ready", flush=True)
    while input() == "read":
        back = ctypes.create_string_buffer(16)
        cuda.cuMemcpyDtoH_v2(back, it, 9)
        print(back.value.decode(), flush=True)
    cuda.cuIpcCloseMemHandle(it)
    print("closed", flush=True)
    input()'''
"""
)


@pytest.mark.parametrize("size", [200 * MIB, 4096])
def test_memory_that_others_have_open_outlives_its_free(machine: Machine, size: int) -> None:
    taken = max(size // MIB, 2)
    answers = machine.run(f"""{IPC}
    own = cuda.made("cuCtxCreate_v2", c_uint(0), c_uint(0))
    it = cuda.made("cuMemAlloc_v2", {size})
    cuda.cuMemcpyHtoD_v2(it, b"from afar", 9)
    other = child(opening(it))
    seen = [ask(other, "read"), figures(me, other.pid)]
    seen.append(cuda.code("cuMemFree_v2", it))
    cuda.cuCtxDestroy_v2(own)
    cuda.start()
    seen += [figures(me, other.pid), ask(other, "read"), ask(other), figures(me, other.pid)]
    other.kill()
    other.wait()
    say(seen)""")
    owned, moved, closed = [taken, taken, 0], [taken, 0, taken], [0, 0, 0]
    assert ["from afar", owned, 0, moved, "from afar", "closed", closed] == answers


def test_memory_that_others_have_open_outlives_its_owner(machine: Machine) -> None:
    owner = machine.start(f"""{IPC}
    it = cuda.made("cuMemAlloc_v2", 200 * MIB)
    print(opening(it).encode().hex(), flush=True)
    sys.stdin.read()""")
    code = bytes.fromhex(next_line(owner)).decode()
    watching = START + "    say(figures(*map(int, os.environ['PIDS'].split())))"
    with machine.standing(START + f"    other = child({code!r})") as opener:
        pids = {"PIDS": f"{owner.pid}"}
        amounts = [machine.run(watching, **pids)]
        owner.kill()
        owner.communicate()
        amounts.append(machine.run(watching, **pids))
        opener.kill()
        opener.communicate()
    assert [[200, 200], [200, 0]] == amounts
    assert [0, 0] == machine.run(watching, PIDS="0")
