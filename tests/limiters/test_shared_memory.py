"""Memory that more than one process has stays charged for as long as somebody has it."""

import json

from tenancy import MIB, Grant

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
    told = grant.run(
        LEFT
        + SHARED
        + f"""
first = exportable({40 * MIB})
file = exported(first)
call("cuMemRelease", first)
seen = [left(), exportable({40 * MIB})]
again = imported(file)
seen += [left(), exportable({40 * MIB})]
say(seen)
"""
    )
    assert [24, 2, 24, 2] == told


def test_a_block_that_was_exported_and_is_gone_is_given_back(grant: Grant) -> None:
    """As NCCL does: the descriptor is closed once the other side has the block."""
    told = grant.run(
        LEFT
        + SHARED
        + f"""
for _ in range(10):
    first = exportable({40 * MIB})
    file = exported(first)
    again = imported(file)
    os.close(file)
    call("cuMemRelease", again)
    call("cuMemRelease", first)
say(left())
"""
    )
    assert 64 == told


def test_memory_that_another_has_open_stays_charged_when_its_owner_frees_it(grant: Grant) -> None:
    told = grant.run(
        LEFT
        + f"""
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
"""
    )
    assert [24, 2] == told


def test_memory_that_another_has_open_stays_charged_when_its_owner_ends(grant: Grant) -> None:
    program = grant.start(
        f"""
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
"""
    )
    assert program.stdin
    assert program.stdout
    told = json.loads(program.stdout.readline())
    held = 1024 - grant.rack.run("start(); say(info()[0] >> 20)")
    after, _ = program.communicate("\n")

    assert ([True, 0, 24], [True]) == (told, json.loads(after))
    assert held <= 42
