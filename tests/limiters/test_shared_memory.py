"""Memory that more than one process has stays charged for as long as somebody has it."""

import json

from tenancy import MIB, Grant

from tests.programs import next_line

#: In each program: MiB that are free of the grant.
LEFT = """
def left():
    return info()[0] >> 20
"""

SHARED = """
import os
start()
def exportable(size):
    made = c_uint64()
    properties = AllocationProperties(1, 1, FIRST)
    code = driver.code("cuMemCreate", byref(made), size, byref(properties), 0)
    return made.value if code == 0 else code
def exported(handle):
    file = c_int()
    call("cuMemExportToShareableHandle", byref(file), handle, c_uint(1), 0)
    return file.value
def imported(file):
    made = c_uint64()
    call("cuMemImportFromShareableHandle", byref(made), c_void_p(file), c_uint(1))
    return made.value
"""


def test_a_block_that_lives_on_in_a_descriptor_stays_charged(grant: Grant) -> None:
    answers = grant.run(f"""{LEFT}{SHARED}
first = exportable({40 * MIB})
file = exported(first)
call("cuMemRelease", first)
seen = [left(), exportable({40 * MIB})]
again = imported(file)
seen += [left(), exportable({40 * MIB})]
say(seen)
""")
    assert [24, 2, 24, 2] == answers


def test_a_block_that_was_exported_and_is_gone_is_given_back(grant: Grant) -> None:
    """As NCCL does: the descriptor is closed once the other side has the block."""
    left_mib = grant.run(f"""{LEFT}{SHARED}
for _ in range(10):
    first = exportable({40 * MIB})
    file = exported(first)
    again = imported(file)
    os.close(file)
    call("cuMemRelease", again)
    call("cuMemRelease", first)
say(left())
""")
    assert 64 == left_mib


def test_memory_that_another_has_open_stays_charged_when_its_owner_frees_it(grant: Grant) -> None:
    answers = grant.run(f"""{LEFT}
import subprocess, sys
start()
def shared():
    pointer = take("plain", {40 * MIB})
    if pointer < 1000:
        return pointer
    handle = (ctypes.c_ubyte * 64)()
    call("cuIpcGetMemHandle", handle, pointer)
    child = subprocess.Popen([sys.executable, "-c", '''
import sys
from driver import *
start()
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]
handle = Handle((ctypes.c_ubyte * 64)(*bytes.fromhex(sys.argv[1])))
pointer = c_uint64()
call("cuIpcOpenMemHandle_v2", byref(pointer), handle, c_uint(1))
print("open", flush=True)
sys.stdin.readline()
''', bytes(handle).hex()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "open\\n"
    give("plain", pointer)
    return child
child = shared()
seen = [left(), shared()]
child.communicate("\\n")
say(seen)
""")
    assert [24, 2] == answers


def test_a_free_that_fails_leaves_shared_memory_shared(grant: Grant) -> None:
    answers = grant.run(f"""{LEFT}
import subprocess, sys
start()
pointer = take("plain", {40 * MIB})
handle = (ctypes.c_ubyte * 64)()
call("cuIpcGetMemHandle", handle, pointer)
child = subprocess.Popen([sys.executable, "-c", '''
import sys
from driver import *
start()
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]
handle = Handle((ctypes.c_ubyte * 64)(*bytes.fromhex(sys.argv[1])))
pointer = c_uint64()
call("cuIpcOpenMemHandle_v2", byref(pointer), handle, c_uint(1))
print("open", flush=True)
sys.stdin.readline()
''', bytes(handle).hex()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
assert child.stdout.readline() == "open\\n"
seen = [driver.code("cuMemFreeAsync", pointer, c_void_p(12345)), left()]
give("plain", pointer)
seen.append(left())
child.communicate("\\n")
say(seen)
""")
    assert [400, 24, 24] == answers  # CUDA_ERROR_INVALID_HANDLE


def test_memory_that_another_has_open_stays_charged_when_its_owner_ends(grant: Grant) -> None:
    program = grant.start(f"""
import subprocess, sys
OWNER = '''
import sys
from driver import *
start()
pointer = take("plain", {40 * MIB})
handle = (ctypes.c_ubyte * 64)()
if pointer > 1000:
    call("cuIpcGetMemHandle", handle, pointer)
print(bytes(handle).hex() if pointer > 1000 else "refused", flush=True)
sys.stdin.readline()
'''
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]
start()
def opened():
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
    told, pointer = owner.stdout.readline().strip(), c_uint64()
    if told != "refused":
        handle = Handle((ctypes.c_ubyte * 64)(*bytes.fromhex(told)))
        call("cuIpcOpenMemHandle_v2", byref(pointer), handle, c_uint(1))
    owner.communicate("\\n")
    return pointer.value
first, second = opened(), opened()
seen = [first > 0, second, info()[0] >> 20]
say(seen)
input()
call("cuIpcCloseMemHandle", first)
say([opened() > 0])
""")
    assert program.stdin
    answers = json.loads(next_line(program))
    held = 1024 - grant.rack.run("start(); say(info()[0] >> 20)")
    after, _ = program.communicate("\n")

    assert ([True, 0, 24], [True]) == (answers, json.loads(after))
    assert held <= 42


#: A program that owns an exported pool, says how to import it, and ends when it is told to.
OWNER = f"""
import os, socket, sys
from driver import *
from simulated import PoolProperties
start()
made, pointer, file = c_void_p(), c_uint64(), c_int()
call("cuMemPoolCreate", byref(made), byref(PoolProperties(1, 1, FIRST)))
code = driver.code("cuMemAllocFromPoolAsync", byref(pointer), {20 * MIB}, made, None)
up = socket.socket(fileno=int(sys.argv[1]))
if code == 0:
    data = (ctypes.c_ubyte * 64)()
    call("cuMemPoolExportToShareableHandle", byref(file), made, c_uint(1), 0)
    call("cuMemPoolExportPointer", data, pointer.value)
    socket.send_fds(up, [bytes(data)], [file.value])
    os.close(file.value)
else:
    up.send(b"refused")
for word in iter(lambda: up.recv(1), b""):
    if word == b"f":
        call("cuMemFreeAsync", pointer.value, None)
        call("cuMemPoolDestroy", made)
        up.send(b"freed")
"""
IMPORTER = f"""
import os, socket, subprocess, sys
start()
def owner():
    ours, theirs = socket.socketpair()
    words = [sys.executable, "-c", {OWNER!r}, str(theirs.fileno())]
    child = subprocess.Popen(words, pass_fds=[theirs.fileno()])
    theirs.close()
    data, files, _, _ = socket.recv_fds(ours, 64, 1)
    return child, ours, data, files
def end(child, socket):
    socket.close()
    assert child.wait() == 0
def imported(data, files):
    made, pointer = c_void_p(), c_uint64()
    call("cuMemPoolImportFromShareableHandle", byref(made), c_void_p(files[0]), c_uint(1), 0)
    call("cuMemPoolImportPointer", byref(pointer), made, ctypes.create_string_buffer(data, 64))
    os.close(files[0])
    return made, pointer
"""


def test_a_pool_that_was_imported_stays_charged_when_its_owner_ends(grant: Grant) -> None:
    left_mib = grant.run(f"""{LEFT}{IMPORTER}
child, up, data, files = owner()
made, pointer = imported(data, files)
seen = [left()]
end(child, up)
seen.append(left())
call("cuMemPoolDestroy", made)
seen.append(left())
call("cuMemFreeAsync", pointer.value, None)
call("cuCtxSynchronize")
say([*seen, left()])
""")
    assert [32, 32, 32, 64] == left_mib


def test_owners_of_pools_that_end_leave_no_more_than_the_limit(grant: Grant) -> None:
    taken = grant.run(f"""{LEFT}{IMPORTER}
seen = []
for _ in range(4):
    child, up, data, files = owner()
    seen.append(data != b"refused")
    if files:
        imported(data, files)
    end(child, up)
say(seen)
""")
    assert [True, True, False, False] == taken


def test_a_pool_that_its_owner_destroys_is_given_back_if_nobody_has_it(grant: Grant) -> None:
    left_mib = grant.run(f"""{LEFT}{IMPORTER}
seen = []
for keep in (False, True):
    child, up, data, files = owner()
    if keep:
        imported(data, files)
    else:
        os.close(files[0])
    up.send(b"f")
    assert up.recv(5) == b"freed"
    seen.append(left())
say(seen)
""")
    assert [64, 32] == left_mib
