"""The limiter for HIP on what came after Debian's runtime, in front of a simulated one of HIP 7.

What the limiter holds as all of ours do is in test_isolation.py.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import hetero_limiters
import hetero_simulator
import pytest
from simulated import Machine
from tenancy import COUNTED, MIB, STRICT, Grant, Rack, Terms, in_front

UUID = "GPU-423592d2d74e6a1b"
CARD = f"""
[device]
vendor = amd
model = Instinct MI60
memory = 1024 MiB
uuid = {UUID}
"""
SEVEN = hetero_simulator.fake_drivers() / "hip7/libamdhip64.so.7"


@pytest.fixture
def grant(tmp_path: Path) -> Grant:
    """Of 64 MiB, with a core limit so that launches pass the gate."""
    return granted(tmp_path)


def granted(directory: Path, flags: int = 0) -> Grant:
    rack = Rack(directory, Machine(directory, CARD), api="hip_driver")
    terms = Terms(memory=64 * MIB, core=9000, uuid=UUID, flags=flags)
    return rack.grant(terms, limiter=hetero_limiters.library("hip"))


def answers_of(grant: Grant, program: str) -> Any:
    return grant.run(program, CALLS_PATH=str(SEVEN), HETERO_LOG="off")


#: Blocks of physical memory. AMD's runtime 5.2.3 refuses to make them.
BLOCKS = """
import ctypes
class Properties(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("type", "handle", "where", "card")]
    _fields_ += [("more", c_uint64 * 2)]
def made(size=8 * MIB):
    block, one = c_void_p(), Properties(1, 1, 1, 0)
    return code("hipMemCreate", byref(block), size, byref(one), 0), block
def mapped(block):
    at = c_void_p()
    call("hipMemAddressReserve", byref(at), 8 * MIB, 0, None, 0)
    call("hipMemMap", at, 8 * MIB, 0, block, 0)
    return at
held = []
def note():
    free, total = memory()
    held.append([total - free, on_card() // MIB])
_, block = made()
note()
"""


def test_a_block_of_physical_memory_is_charged_until_its_handle_is_released(grant: Grant) -> None:
    program = f"""
{BLOCKS}
call("hipMemRelease", block)
note()
say([held, made(65 * MIB)[0]])
"""
    assert [[[8, 8], [0, 0]], 2] == answers_of(grant, program)


def test_a_mapping_holds_its_block_until_its_addresses_are_given_up(grant: Grant) -> None:
    """The grant's count is the card's, at each step."""
    program = f"""
{BLOCKS}
at = mapped(block)
call("hipMemRelease", block)
note()
call("hipMemUnmap", at, 8 * MIB)
note()
call("hipMemAddressFree", at, 8 * MIB)
note()
say(held)
"""
    assert [[8, 8], [8, 8], [8, 8], [0, 0]] == answers_of(grant, program)


def test_a_block_that_others_may_have_stays_charged(grant: Grant) -> None:
    program = f"""
{BLOCKS}
file = ctypes.c_int()
call("hipMemExportToShareableHandle", byref(file), block, 1, 0)
call("hipMemRelease", block)
note()
say([charged for charged, _ in held])
"""
    assert [8, 8] == answers_of(grant, program)


def test_a_reset_that_gives_memory_back_gives_it_back_to_the_grant(grant: Grant) -> None:
    """As the runtime's own figure says; AMD's of 5.2 gives none back (test_hip.py)."""
    program = """
made = [malloc(20 * MIB), malloc(20 * MIB)]
held = [memory()]
call("hipDeviceReset")
say([*held, memory(), malloc(60 * MIB) > 0])
"""
    assert [[24, 64], [64, 64], True] == answers_of(grant, program)


def test_properties_in_both_forms_show_the_grant(grant: Grant) -> None:
    program = """
import ctypes
properties = ctypes.create_string_buffer(4096)
def total(form, at):
    call("hipGetDeviceProperties" + form, properties, 0)
    return c_size_t.from_buffer(properties, at).value // MIB
say([total("R0000", 256), total("R0600", 288)])
"""
    assert [64, 64] == answers_of(grant, program)


def test_no_graph_takes_memory(grant: Grant) -> None:
    """Of AMD's runtimes nothing is known of what a graph takes: it is refused, and not charged."""
    program = """
import simulated
made, graph, run, node, on = c_void_p(), c_void_p(), c_void_p(), c_void_p(), stream()
call("hipStreamBeginCapture", on, 2)
captured = code("hipMallocAsync", byref(made), 8 * MIB, on)
call("hipStreamEndCapture", on, byref(graph))
place = simulated.PoolProperties(1, 0, simulated.FIRST)
block = simulated.AllocNode(place, None, 0, 8 * MIB)
added = code("hipGraphAddMemAllocNode", byref(node), graph, None, 0, byref(block))
any_node = (c_uint64 * 40)(10)
added_so = code("hipGraphAddNode", byref(node), graph, None, 0, any_node)
empty = code("hipGraphAddNode", byref(node), graph, None, 0, (c_uint64 * 40)(5))
call("hipGraphInstantiate", byref(run), graph, None, None, 0)
call("hipGraphLaunch", run, on)
call("hipDeviceSynchronize")
say([captured, added, added_so, empty, on_card()])
"""
    assert [900, 801, 801, 0, 0] == answers_of(grant, program)


def test_a_call_in_a_librarys_constructor_is_limited(grant: Grant, tmp_path: Path) -> None:
    """It runs before the constructors of what is preloaded."""
    asks = "void *at; int hipMalloc(void **, unsigned long); int printf(const char *, ...);"
    early = f'{asks} __attribute__((constructor)) void e(void) {{ printf("%d ", TOO_MUCH); }}'
    late = f'{asks} void e(void); int main(void) {{ return printf("%d\\n", TOO_MUCH) < 0; e(); }}'
    library, program = tmp_path / "libearly.so", tmp_path / "program"
    flags = ["-DTOO_MUCH=hipMalloc(&at, 65u << 20)", "-Wl,--no-as-needed", "-x", "c", "-"]
    linked = ["-x", "none", str(SEVEN), f"-Wl,-rpath,{SEVEN.parent}", f"-Wl,-rpath,{tmp_path}"]
    for source, made in ((early, ["-shared", "-fPIC", "-o", library]), (late, ["-o", program])):
        more = [str(library)] if made[-1] == program else []
        command = ["cc", *map(str, made), *flags, *linked, *more]
        subprocess.run(command, input=source, text=True, check=True)
    job = grant.rack.machine.spawn([str(program)], **grant.environment, HETERO_LOG="off")
    assert ("2 2\n", "") == job.communicate(timeout=60)


#: A call of each function that works on the device and is younger than 5.2, by its name.
WORK = """
import ctypes
class Dim3(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in "xyz"]
class Launch(ctypes.Structure):
    _fields_ = [("grid", Dim3), ("block", Dim3), ("shared", c_size_t), ("stream", c_void_p)]
    _fields_ += [("attributes", c_void_p), ("count", c_uint)]
class DriverLaunch(ctypes.Structure):
    _fields_ = [("sizes", c_uint * 6), ("shared", c_uint), ("stream", c_void_p)]
    _fields_ += [("attributes", c_void_p), ("count", c_uint)]
class Several(ctypes.Structure):
    _fields_ = [("function", c_void_p), ("sizes", c_uint * 6), ("shared", c_uint)]
    _fields_ += [("stream", c_void_p), ("arguments", ctypes.POINTER(c_void_p))]
class Pitched(ctypes.Structure):
    _fields_ = [("pointer", c_void_p), *((name, c_size_t) for name in ("pitch", "x", "y"))]
class Extent(ctypes.Structure):
    _fields_ = [(name, c_size_t) for name in ("width", "height", "depth")]
class Format(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("x", "y", "z", "w", "kind")]
def made(name, *arguments):
    it = c_void_p()
    call(name, byref(it), *arguments)
    return it
function, s, m = spin(), stream(), made("hipMalloc", MIB)
a = made("hipMallocArray", byref(Format(32, 0, 0, 0, 2)), 1024, 4, c_uint(0))
managed = made("hipMallocManaged", 4096, c_uint(1))
h, us, one, none = ctypes.create_string_buffer(4096), c_uint64(1), c_uint(1), c_void_p()
arguments = (c_void_p * 1)(ctypes.addressof(us))
image = ctypes.create_string_buffer(EMPTY)
kernels, host = (c_void_p * 3)(0x148495046, ctypes.addressof(image)), c_void_p(0x1234)
hip.__hipRegisterFatBinary.restype = c_void_p
registered = c_void_p(hip.__hipRegisterFatBinary(kernels))
hip.__hipRegisterFunction(registered, host, b"spin", b"spin", *[none] * 6)
grid = Dim3(1, 1, 1)
call("hipStreamBeginCapture", s, 2)
call("hipModuleLaunchKernel", function, *[one] * 6, c_uint(0), s, arguments, None)
graph = c_void_p()
call("hipStreamEndCapture", s, byref(graph))
exec = made("hipGraphInstantiate", graph, None, None, 0)
launch_of = byref(Launch(grid, grid, 0, s, None, 0))
driver_launch = byref(DriverLaunch((c_uint * 6)(*[1] * 6), 0, s, None, 0))
at = [(c_void_p * 1)(m.value), (c_void_p * 1)(m.value + 4096), (c_size_t * 1)(64)]
several = Several(function, (c_uint * 6)(*[1] * 6), 0, s, arguments)
attributes, indices = (c_uint64 * 8)(1), (c_size_t * 1)(0)
pages, places = (c_void_p * 1)(managed.value), (c_uint64 * 1)(1)
works = {
    "hipModuleLaunchCooperativeKernelMultiDevice": (byref(several), one, c_uint(0)),
    "hipModuleLaunchCooperativeKernel": (function, *[one] * 6, c_uint(0), s, arguments),
    "hipLaunchKernelExC": (launch_of, host, arguments),
    "hipDrvLaunchKernelEx": (driver_launch, function, arguments, None),
    "hipLaunchKernel_spt": (host, grid, grid, arguments, 0, none),
    "hipLaunchCooperativeKernel_spt": (host, grid, grid, arguments, c_uint(0), none),
    "hipGraphUpload": (exec, s),
    "hipGraphLaunch_spt": (exec, none),
    "hipMemcpyAtoD": (m, a, 0, 64),
    "hipMemcpyDtoA": (a, 0, m, 64),
    "hipMemcpyAtoA": (a, 0, a, 64, 64),
    "hipMemcpyAtoHAsync": (h, a, 0, 64, s),
    "hipMemcpyHtoAAsync": (a, 0, h, 64, s),
    "hipMemcpy2DArrayToArray": (a, 0, 0, a, 64, 0, 64, 1, 3),
    "hipMemcpy2DToArrayAsync_spt": (a, 0, 0, m, 64, 64, 1, 3, none),
    "hipMemcpy2DFromArrayAsync_spt": (m, 64, a, 0, 0, 64, 1, 3, none),
    "hipMemcpyFromArray_spt": (m, a, 0, 0, 64, 3),
    "hipMemcpy2DAsync_spt": (m, 64, c_void_p(m.value + 4096), 64, 64, 1, 3, none),
    "hipMemcpyBatchAsync": (*at, 1, attributes, indices, 1, byref(c_size_t()), s),
    "hipMemsetAsync_spt": (m, 0, 64, none),
    "hipMemset2DAsync_spt": (m, 256, 0, 64, 2, none),
    "hipMemset3DAsync_spt": (Pitched(m, 256, 64, 2), c_uint(0), Extent(64, 2, 1), none),
    **{f"hipMemsetD2D{bits}": (m, 256, 0, 16, 2) for bits in (8, 16, 32)},
    **{f"hipMemsetD2D{bits}Async": (m, 256, 0, 16, 2, s) for bits in (8, 16, 32)},
    "hipMemPrefetchAsync_v2": (managed, 4096, c_uint64(1), c_uint(0), s),
    **{
        f"hip{what}BatchAsync": (pages, (c_size_t * 1)(4096), 1, places, indices, 1, 0, s)
        for what in ("MemPrefetch", "MemDiscardAndPrefetch", "DrvMemDiscardAndPrefetch")
    },
}
"""


def test_each_later_function_that_works_on_the_device_passes_the_gate_once(grant: Grant) -> None:
    program = f"""
{COUNTED}
{WORK}
failed = [(name, given) for name, sent in works.items() if (given := code(name, *sent))]
call("hipDeviceSynchronize")
counted(len(works))
say([failed, len(works)])
"""
    failed, works = answers_of(grant, program)
    assert [] == failed
    assert works == grant.usage().launches


#: A runtime of a version yet to come, over the simulated one.
FUTURE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
void hipFromTheFuture(void) {}
int hipGetProcAddress(const char *name, void **found, int version, unsigned long flags, void *out)
{
    *found = dlsym(dlopen("libamdhip64.so.7", RTLD_LAZY | RTLD_NOLOAD), name);
    return *found ? 0 : 1 + 0 * (version + flags + (out != 0));
}
"""


@pytest.mark.parametrize("strict", [False, True])
def test_the_lookup_answers_ours_and_hides_the_unknown_where_asked(
    tmp_path: Path, strict: bool
) -> None:
    grant = granted(tmp_path, STRICT if strict else 0)
    program = f"""
import ctypes
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
hip = ctypes.CDLL("{in_front(tmp_path, SEVEN, FUTURE)}")
def looked_up(name):
    found = c_void_p()
    return hip.hipGetProcAddress(name, byref(found), 70000000, c_uint64(0), None), found.value
code, address = looked_up(b"hipMalloc")
allocate = ctypes.CFUNCTYPE(c_int, c_void_p, c_size_t)(address)
out = c_void_p()
asked = [allocate(ctypes.addressof(out), size << 20) for size in (65, 64)]
print(code, asked, looked_up(b"hipFromTheFuture")[0] != 0)
"""
    job = grant.rack.machine.spawn(
        [sys.executable, "-c", program], **grant.environment, HETERO_LOG="off"
    )
    assert (f"0 [2, 0] {strict}\n", "") == job.communicate(timeout=60)
    assert 1 == grant.unknown()


def test_every_lookup_answers_ours_in_the_variant_asked_for(grant: Grant) -> None:
    program = f"""
import ctypes
limiter = ctypes.CDLL("{grant.limiter}")
def answers(through, name, flags, *more):
    found = c_void_p()
    call(through, name.encode(), byref(found), *more[:1], flags, None)
    return found.value
def ours(name):
    return ctypes.cast(getattr(limiter, name), c_void_p).value
own, threads = "hipMemcpyAsync", "hipMemcpyAsync_spt"
say([
    answers("hipGetProcAddress", own, 0, ctypes.c_int(70000000)) == ours(own),
    answers("hipGetProcAddress", own, 2, ctypes.c_int(70000000)) == ours(threads),
    answers("hipGetProcAddress_spt", own, 0, ctypes.c_int(70000000)) == ours(threads),
    answers("hipGetDriverEntryPoint", own, 0) == ours(own),
    answers("hipGetDriverEntryPoint_spt", own, 0) == ours(threads),
])
"""
    assert [True] * 5 == answers_of(grant, program)
