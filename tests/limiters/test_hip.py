"""The limiter for HIP in front of AMD's own runtime, which runs unchanged on simulated cards.

The runtime, its HSA runtime and its compiler are Debian's packages; what is simulated is the
library below them (simulator/drivers/kfd.h). So what is asserted of memory is asserted on the card.
What the limiter holds as all of ours do is in test_isolation.py.
"""

import os
import random
import re
import shutil
import subprocess
import time
from pathlib import Path

import hetero_limiters
import pytest
from elftools.elf.elffile import ELFFile
from simulated import Machine
from tenancy import MIB, Grant, Rack, Terms, meanwhile

from tests.programs import completed, next_line

pytestmark = pytest.mark.hip

LIMITER = hetero_limiters.library("hip")
UUID = "GPU-423592d2d74e6a1b"
SPIN = "[kernel spin]\ntime = 0 us\nper_arg0 = 1 us\n"


def device(uuid: str) -> str:
    """Return what a rack says of a card; more lines may follow."""
    return f"""
[device]
vendor = amd
model = Instinct MI60
memory = 1024 MiB
compute = 9.0
multiprocessors = 64
uuid = {uuid}
"""


RACK = device(UUID) + SPIN


@pytest.fixture
def rack(tmp_path: Path) -> Rack:
    """A card of 1 GiB for tenants."""
    return Rack(tmp_path, Machine(tmp_path, RACK), api="hip_driver")


def granted(rack: Rack, memory: int, core: int = 100, name: str = "grant") -> Grant:
    terms = Terms(memory=memory * MIB, core=core * 100, uuid=UUID)
    return rack.grant(terms, name=name, limiter=LIMITER)


def test_amds_runtime_runs_on_the_simulated_card(rack: Rack) -> None:
    """Its allocator, its copies and its compiled kernels."""
    program = """
from ctypes import create_string_buffer
pointer, back = malloc(8 * MIB), create_string_buffer(1001)
call("hipMemset", pointer, 0x5A, 1000)
call("hipMemcpy", back, pointer, 1001, 2)
function, on = spin(), stream()
launch(function, 20000, on)
busy = code("hipStreamQuery", on)
call("hipStreamSynchronize", on)
say([back.raw[:1000] == b"Z" * 1000, busy, code("hipStreamQuery", on), memory()[1]])
"""
    assert [True, 600, 0, 1024] == rack.run(program)


def test_a_limit_is_what_programs_are_told_the_card_has(rack: Rack) -> None:
    program = """
total, properties = c_size_t(), ctypes.create_string_buffer(2048)
call("hipDeviceTotalMem", byref(total), 0)
call("hipGetDeviceProperties", properties, 0)
say([memory(), total.value // MIB, c_size_t.from_buffer(properties, 256).value // MIB])
"""
    assert [[64, 64], 64, 64] == granted(rack, 64).run(program)


#: How memory is taken and given back, for random calls: all functions of this runtime that allocate
#: (mipmapped arrays it refuses), by size and the place for what is got; then those of the host's.
TAKERS = """
class Extent(ctypes.Structure):
    _fields_ = [(name, c_size_t) for name in ("width", "height", "depth")]
    def sizes(self):
        return self.width, self.height, self.depth
class Pitched(ctypes.Structure):
    _fields_ = [("pointer", c_void_p), *((name, c_size_t) for name in ("pitch", "x", "y"))]
class Format(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("x", "y", "z", "w", "kind")]
class Shape(ctypes.Structure):
    _fields_ = [(name, c_size_t) for name in ("width", "height")]
    _fields_ += [(name, c_uint) for name in ("format", "channels")]
class Shape3D(ctypes.Structure):
    _fields_ = [(name, c_size_t) for name in ("width", "height", "depth")]
    _fields_ += [(name, c_uint) for name in ("format", "channels", "flags")]
class Properties(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("kind", "handles", "place", "device")]
    _fields_ += [("none", c_void_p), ("reserved", ctypes.c_char * 64)]
KIB, floats, FLOAT = 1024, Format(32, 0, 0, 0, 2), 0x20
on, pool, pitch, pitched = stream(), c_void_p(), c_size_t(), Pitched()
call("hipMemPoolCreate", byref(pool), byref(Properties(1, 0, 1, 0)))
#: Rows of up to 64 KiB.
def row(size):
    return min(size, 64 * KIB)
def rows(size):
    return -(-size // (64 * KIB))
def units(size):
    return max(row(size) // 4, 1)
def flat(size):
    return Extent(units(size), rows(size), 1)
CARDS = {
    "hipMalloc": lambda got, size: (got, size),
    "hipExtMallocWithFlags": lambda got, size: (got, size, c_uint(0)),
    "hipMallocPitch": lambda got, size: (got, byref(pitch), row(size), rows(size)),
    "hipMemAllocPitch": lambda got, size: (got, byref(pitch), row(size), rows(size), c_uint(4)),
    "hipMalloc3D": lambda got, size: (byref(pitched), Extent(row(size), rows(size), 1)),
    "hipMallocArray": lambda got, size: (got, byref(floats), units(size), rows(size), c_uint(0)),
    "hipMalloc3DArray": lambda got, size: (got, byref(floats), flat(size), c_uint(0)),
    "hipArrayCreate": lambda got, size: (got, byref(Shape(units(size), rows(size), FLOAT, 1))),
    "hipArray3DCreate": lambda got, size: (got, byref(Shape3D(*flat(size).sizes(), FLOAT, 1, 0))),
    "hipMallocAsync": lambda got, size: (got, size, on),
    "hipMallocFromPoolAsync": lambda got, size: (got, size, pool, on),
}
HOSTS = {
    "hipMallocManaged": lambda got, size: (got, size, c_uint(1)),
    "hipHostMalloc": lambda got, size: (got, size, c_uint(0)),
    "hipHostAlloc": lambda got, size: (got, size, c_uint(0)),
    "hipMemAllocHost": lambda got, size: (got, size),
}
KINDS = [*CARDS, *HOSTS]
def taken(kind, size):
    got = c_void_p()
    answer = code(kind, *(CARDS | HOSTS)[kind](byref(got), size))
    assert answer in (0, OUT_OF_MEMORY), (kind, size, answer)
    if answer == 0 and kind == "hipMalloc3D":
        got = c_void_p(pitched.pointer)
    return got if answer == 0 else None
def given(kind, got, in_order=False):
    if kind.endswith("Async") and in_order:
        call("hipFreeAsync", got, on)
        call("hipStreamSynchronize", on)
    elif "Array" in kind:
        call("hipFreeArray", got)
    elif "Host" in kind:
        call("hipHostFree", got)
    else:
        call("hipFree", got)
"""


def test_what_is_charged_is_never_less_than_what_the_card_gave(rack: Rack) -> None:
    """By all ways, from a byte on; and what is charged for empty blocks is had when it is needed.

    Pieces share blocks of 2 MiB, and the runtime keeps some of those that become empty.
    """
    program = f"""
import random
{TAKERS}
chosen = random.Random(1)
first, held, missing = malloc(4096), [], 0
base = on_card() - 2 * MIB
for _ in range(3000):
    if held and (chosen.random() < 0.5 or len(held) > 60):
        given(*held.pop(chosen.randrange(len(held))), chosen.random() < 0.5)
    else:
        kind = chosen.choice(KINDS)
        size = chosen.choice([chosen.randrange(1, 64), chosen.randrange(1, MIB),
                              chosen.randrange(MIB, 6 * MIB), 2 * MIB])
        got = taken(kind, size)
        held += [(kind, got)] if got else []
    free, total = memory()
    missing = max(missing, on_card() - base - (total - free) * MIB)
for one in held:
    given(*one)
say([missing // MIB, malloc(620 * MIB) > 0, (on_card() - base) // MIB])
"""
    missing, fits, taken = granted(rack, 700).run(program)
    assert (0, True) == (missing, fits)  # the 36 KiB of a queue are nobody's
    assert 620 <= taken <= 700


def test_small_arrays_leave_no_room_that_the_card_does_not_have(rack: Rack) -> None:
    """The runtime keeps blocks that became empty, and nothing tells in which an array lies."""
    program = f"""
{TAKERS}
held, base = [], on_card()
while got := taken("hipMallocArray", MIB):
    held.append(got)
for got in held:
    given("hipMallocArray", got)
say([len(held) > 9, malloc(60 * MIB) > 0, (on_card() - base) // MIB])
"""
    assert [True, True, 60] == granted(rack, 64).run(program)


def test_memory_of_the_host_is_the_hosts(rack: Rack) -> None:
    """By hipHostAlloc, too, for which this runtime takes the card's."""
    program = """
_, got, base = memory(), c_void_p(), on_card()
call("hipHostAlloc", byref(got), 300 * MIB, 0)
ctypes.memset(got, 7, 300 * MIB)
said = [on_card() - base, memory()[0]]
call("hipHostFree", got)
say(said)
"""
    assert [0, 64] == granted(rack, 64).run(program)


@pytest.mark.parametrize("shared", [False, True])
def test_the_block_of_a_piece_that_others_may_have_stays_charged(rack: Rack, shared: bool) -> None:
    """The runtime gives back a block that has become empty, which would make room for all."""
    program = f"""
import ctypes
piece, handle = malloc(4096), ctypes.create_string_buffer(64)
if {shared}:
    call("hipIpcGetMemHandle", handle, piece)
call("hipFree", piece)
say([malloc(8 * MIB) > 0, malloc(6 * MIB) > 0])
"""
    everything, rest = granted(rack, 8).run(program)
    assert (not shared, shared) == (everything, rest)


def test_a_call_that_the_runtime_makes_within_another_is_charged_once(rack: Rack) -> None:
    """By its exported name, which leads to the limiter: hipMallocPitch of hipMemAllocPitch."""
    program = """
pointer, pitch = c_void_p(), c_size_t()
said = [memory()[0]]
call("hipMemAllocPitch", byref(pointer), byref(pitch), 1000, 8192, 4)
said += [pitch.value, memory()[0]]
call("hipFree", pointer)
say([*said, memory()[0]])
"""
    assert [12, 1024, 4, 12] == granted(rack, 12).run(program)  # there is no room for it twice


def test_hashcat_sees_the_grant(rack: Rack) -> None:
    """It loads the runtime by dlopen and takes each function by dlsym of that handle."""
    grant = granted(rack, 256)
    environment = {**grant.environment, "HOME": str(rack.directory)}
    program = rack.machine.spawn(["hashcat", "-I"], **environment)
    out, _ = program.communicate(timeout=60)  # of CUDA's library beside it, it says what lacks

    figures = dict(re.findall(r"^ +(Name|Memory\.Total|Memory\.Free)\.+: (.*)$", out, re.MULTILINE))
    want = {"Name": "Instinct MI60", "Memory.Total": "256 MB", "Memory.Free": "256 MB"}
    assert want == figures


#: rocRAND, whose kernels hipcc compiled into the library. A program that hipcc builds calls what it
#: calls: __hipRegisterFatBinary and hipLaunchKernel. hipcc itself is not installed for it: with its
#: compilers and tools it takes 260 MB more.
ROCRAND = """
rocrand = ctypes.CDLL("librocrand.so.1")
def numbers(name, *arguments):
    return int(getattr(rocrand, "rocrand_" + name)(*arguments))
generator = c_void_p()
XORWOW, ALLOCATION_FAILED = c_uint(401), 102
"""
GENERATES = (
    "_ZN12rocrand_host6detailL15generate_kernelIf20uniform_distributionIfEEEv"
    "PN14rocrand_device13xorwow_engineEjPT_mT0_"
)


def test_rocrand_is_charged_for_what_it_takes_and_refused_above_the_limit(rack: Rack) -> None:
    program = f"""
{ROCRAND}
rest, empty = malloc(8 * MIB), on_card()
free, _ = memory()
answers = [numbers("create_generator", byref(generator), XORWOW)]
charged, taken = free - memory()[0], (on_card() - empty) // MIB
answers.append(numbers("destroy_generator", generator))
left = malloc(memory()[0] * MIB)
answers.append(numbers("create_generator", byref(generator), XORWOW) == ALLOCATION_FAILED)
say([charged, taken, left > 0, answers])
"""
    charged, taken, fits, answers = granted(rack, 64).run(program)
    assert charged == taken > 0
    assert (True, [0, 0, True]) == (fits, answers)


def test_kernels_that_hipcc_built_have_their_share_of_the_time(tmp_path: Path) -> None:
    kernel = f"{RACK}\n[kernel {GENERATES}]\ntime = 5 ms\n"
    program = f"""
{ROCRAND}
call("hipSetDeviceFlags", 4)
assert numbers("create_generator", byref(generator), XORWOW) == 0
out = c_void_p(malloc(8 * MIB))
def made(times):
    since = time.monotonic()
    for _ in range(times):
        assert numbers("generate_uniform", generator, out, c_size_t(2 * MIB)) == 0
        call("hipDeviceSynchronize")
    return time.monotonic() - since
made(40)
say(100 * 60 * 0.005 / made(60))
"""
    rack = Rack(tmp_path, Machine(tmp_path, kernel), api="hip_driver")
    # More by the credit of a time slice, of 0.1 s in 0.75; less where others take processors.
    assert 2 < granted(rack, 64, core=40).run(program) < 56


#: As hipcc takes it: a launch by <<<>>>, and a function of the host for the kernel.
COMPILED = """
#include <hip/hip_runtime.h>
#include <cstdio>
__global__ void spin(unsigned long long us) {}
int main()
{
    void *at;
    unsigned long long us = 5000;
    void *arguments[] = {&us};
    int over = hipMalloc(&at, 65ul << 20), within = hipMalloc(&at, 64ul << 20);
    for (int i = 0; i < 20; i++)
        spin<<<1, 1>>>(us);
    int launched = hipDeviceSynchronize();
    int together = hipLaunchCooperativeKernel((void *)spin, dim3(1), dim3(1), arguments, 0, 0);
    printf("%d %d %d %d\\n", over, within, launched + hipDeviceSynchronize(), together);
}
"""


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("hipcc") is None, reason="hipcc takes 260 MB more")
def test_a_program_that_hipcc_built_is_limited(tmp_path: Path) -> None:
    source, program = tmp_path / "program.hip", tmp_path / "program"
    source.write_text(COMPILED)
    command = ["hipcc", "--offload-arch=gfx906", str(source), "-o", str(program)]
    subprocess.run(command, env={**os.environ, "HIP_PLATFORM": "amd"}, check=True)
    kernel = RACK.replace("[kernel spin]", "[kernel _Z4spiny]")
    grant = granted(Rack(tmp_path, Machine(tmp_path, kernel), api="hip_driver"), 64, core=50)
    job = grant.rack.machine.spawn([str(program)], **grant.environment, HETERO_LOG="off")
    assert ("2 0 0 0\n", "") == job.communicate(timeout=60)
    assert grant.usage().gpu_ns > 100_000_000


def test_the_ledger_is_the_cards_own_count_after_ten_thousand_calls(rack: Rack) -> None:
    """What takes blocks of its own: every block is charged, and no other, also near the limit.

    But managed memory, which is charged in full and lies with the host on this card. What is freed
    in the order of a stream stays charged with its pool, also where the pool gives some of it back.
    """
    program = f"""
import random
{TAKERS}
chosen, held, differ, used = random.Random(2), [], [], dict.fromkeys(KINDS, 0)
refused, managed = 0, 0
def blocks(kind, size):
    return -(-size // (2 * MIB)) * 2 if kind == "hipMallocManaged" else 0
first = malloc(4 * MIB)
base = on_card() - 4 * MIB
for each in range(10000):
    if held and (chosen.random() < 0.48 or len(held) > 90):
        kind, got, size = held.pop(chosen.randrange(len(held)))
        given(kind, got)
        managed -= blocks(kind, size)
    else:
        kind = chosen.choice(KINDS)
        # An array of less may lie in a block with others.
        size = chosen.randrange((4 if "Array" in kind else 2) * MIB + 64 * KIB, 12 * MIB)
        got = taken(kind, size)
        refused += got is None
        used[kind] += got is not None
        held += [(kind, got, size)] if got else []
        managed += blocks(kind, size) if got else 0
    if each % 20 == 0:
        free, total = memory()
        # The 36 KiB of a queue are nobody's.
        over = (on_card() - base) // MIB + managed - (total - free)
        differ += [(each, over)] if over else []
say([differ[:9], refused > 100, min(used.values()) > 100])
"""
    assert [[], True, True] == granted(rack, 300).run(program)


def test_more_than_the_card_has_is_refused_by_the_limit_first(tmp_path: Path) -> None:
    """AMD's runtime is not asked: it would search for room, and free what it keeps."""
    machine = Machine(tmp_path, RACK.replace("1024 MiB", "16 GiB"))
    grant = granted(Rack(tmp_path, machine, api="hip_driver"), 16 * 1024)
    assert [0, True] == grant.run("say([malloc(40 << 30), malloc(15 << 30) > 0])")
    assert (1, 15 << 30) == (grant.usage().denied, grant.usage().used)


@pytest.mark.parametrize(
    "kills", [3, pytest.param(500, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
)
def test_a_kill_at_any_time_leaves_nothing_stuck(rack: Rack, kills: int) -> None:
    """Neither memory of the grant or of the card, nor the time of another grant."""
    chosen = random.Random(kills)
    program = """
function, on, held = spin(), stream(), []
say("ready")
while True:
    held.append(malloc(16 * MIB))
    launch(function, 2000, on)
    if len(held) == 4:
        call("hipStreamSynchronize", on)
        while held:
            call("hipFree", held.pop())
"""
    victim, neighbour = granted(rack, 64, core=50), granted(rack, 64, core=40, name="beside")
    see = "say([malloc(62 * MIB) > 0, on_card() // MIB])"
    fresh = neighbour.run(see)
    for _ in range(kills):
        job = victim.start(program)
        with meanwhile(job):
            assert "ready" in next_line(job)
            time.sleep(chosen.random() / 10)
    assert fresh == victim.run(see)
    since = time.monotonic()
    neighbour.run(
        "function, on = spin(), stream()\n" + "launch(function, 5000, on)\n" * 20 + "say(0)"
    )
    assert time.monotonic() - since < 30


#: An image that declares an array of 40 MiB.
ARRAY = """
image = built(b'__device__ char array[40 << 20];'
              b'extern "C" __global__ void touch() { array[threadIdx.x] = 1; }')
"""


def test_a_module_is_charged_for_its_code_and_arrays_until_it_is_unloaded(rack: Rack) -> None:
    """By each of three calls, as the runtime's compiler makes an image and as hipcc bundles it."""
    program = f"""
import tempfile
{ARRAY}
def seen(by, image):
    file = tempfile.NamedTemporaryFile()
    file.write(image.raw)
    file.flush()
    what = file.name.encode() if by == "hipModuleLoad" else image
    more = (c_uint(0), None, None) if by == "hipModuleLoadDataEx" else ()
    module, other = c_void_p(), c_void_p()
    call(by, byref(module), what, *more)
    held = on_card() - empty
    loaded = memory()
    refused = code(by, byref(other), what, *more)
    call("hipModuleUnload", module)
    return [loaded, held // MIB, refused, memory()]
images, empty = (image, ctypes.create_string_buffer(bundle(image.raw))), on_card()
ways = ("hipModuleLoad", "hipModuleLoadData", "hipModuleLoadDataEx")
say([seen(by, image) for image in images for by in ways])
"""
    assert [[[22, 64], 42, 2, [64, 64]]] * 6 == granted(rack, 64).run(program)


#: What hipLaunchKernel takes: a block, and 5 ms.
KERNEL = """
class Dim3(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in "xyz"]
one, argument = Dim3(1, 1, 1), c_uint64(5000)
arguments = (c_void_p * 1)(ctypes.cast(byref(argument), c_void_p))
"""
#: Kernels with an array of so many bytes, as hipcc leaves them in a program.
ARRAYS = f"""{KERNEL}
def array(size):
    return b"__device__ char array[%d];" % size + SOURCE[:-1] + b"array[us] = 1; }}"
def launched(host):
    return code("hipLaunchKernel", host, one, one, arguments, 0, on)
def more():
    return round((on_card() - empty) / MIB)
def in_time(what):
    until = time.monotonic() + 10  # an event of the last kernel may hold it for a moment
    while not what() and time.monotonic() < until:
        time.sleep(0.01)
    return what()
"""


@pytest.mark.parametrize("core", [100, 50])
def test_arrays_that_hipcc_left_in_a_program_are_charged_until_it_is_unloaded(
    rack: Rack, core: int
) -> None:
    """The runtime has HSA's load them with the first kernel, and refuses the launch if it cannot.

    The first block of small ones is the runtime's own, for its kernels.
    """
    program = f"""
{ARRAYS}
large, fitting = c_void_p(0x1234), c_void_p(0x5678)
registered(large, array(200 * MIB))
module = registered(fitting, array(40 * MIB))
on, _ = stream(), on_card()
small, far = built(array(3 * MIB // 2)), bytearray(built(array(8)).raw)
segments, = struct.unpack_from("<Q", far, 32)
for at in range(segments, segments + 56 * far[56], 56):
    address, = struct.unpack_from("<Q", far, at + 16)
    struct.pack_into("<Q", far, at + 16, address + 100 * MIB)
empty = on_card()
refused = [launched(large), code("hipGetLastError"), more(), memory()]
charged = [launched(fitting), code("hipStreamSynchronize", on), more(), memory()]
again = [launched(large), malloc(24 * MIB)]
hip["__hipUnregisterFatBinary"](module)
back = in_time(lambda: memory() == (64, 64) and more() == 0)
loaded = []
while len(loaded) < 100 and code("hipModuleLoadData", byref(module), small) == 0:
    loaded.append(c_void_p(module.value))
held = [40 < len(loaded) < 46, 60 < more() <= 66]
for each in loaded:
    call("hipModuleUnload", each)
distant = code("hipModuleLoadData", byref(module), ctypes.create_string_buffer(bytes(far)))
say([refused, charged, again, back, held, memory(), distant])
"""
    want = [
        [98, 98, 0, [64, 64]],  # no such function, as AMD's runtime says where a card is full
        [0, 0, 40, [22, 64]],
        [98, 0],
        True,
        [True, True],
        [64, 64],
        2,
    ]
    assert want == granted(rack, 64, core).run(f"import struct\n{program}", HETERO_LOG="off")


def test_a_pool_is_charged_for_what_it_keeps_until_that_is_needed(rack: Rack) -> None:
    program = """
on, first, second = stream(), c_void_p(), c_void_p()
call("hipMallocAsync", byref(first), 40 * MIB, on)
call("hipFreeAsync", first, on)
call("hipStreamSynchronize", on)
kept = memory()
call("hipMallocAsync", byref(second), 40 * MIB, on)
again = memory()
over = code("hipMallocAsync", byref(first), 40 * MIB, on)
call("hipFreeAsync", second, on)
call("hipStreamSynchronize", on)
say([kept, again, over, malloc(60 * MIB) > 0, memory()])
"""
    assert [[24, 64], [24, 64], 2, True, [4, 64]] == granted(rack, 64).run(program)


#: A pool of the program's own, and what it takes and gives back; what is free, and what is taken.
POOL = """
class Properties(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("kind", "handles", "place", "device")]
    _fields_ += [("none", c_void_p), ("reserved", ctypes.c_char * 64)]
on = stream()
base, said = on_card(), []
def pool():
    made = c_void_p()
    call("hipMemPoolCreate", byref(made), byref(Properties(1, 0, 1, 0)))
    return made
def of(pool, mib):
    got = c_void_p()
    call("hipMallocFromPoolAsync", byref(got), mib * MIB, pool, on)
    return got
def see():
    said.append([memory()[0], (on_card() - base) // MIB])
"""


def test_what_of_a_pool_is_in_use_stays_charged_when_the_pool_goes(rack: Rack) -> None:
    """AMD's runtime keeps it on the card until it is freed, and frees it at once by hipFree."""
    program = f"""
{POOL}
first, second = pool(), pool()
one, freed = of(first, 20), of(second, 30)
call("hipMemPoolDestroy", first)
see()
said.append(malloc(40 * MIB))
call("hipFree", one)
see()
call("hipFree", freed)
see()
say([*said, malloc(60 * MIB) > 0])
"""
    assert [[14, 50], 0, [34, 30], [64, 0], True] == granted(rack, 64).run(program)


def test_what_one_pool_has_of_another_stays_charged(rack: Rack) -> None:
    """The runtime gives a chunk to the pool that had another one there, freed by hipFree."""
    program = f"""
{TAKERS}
base, live = on_card(), []
def chunk(kind):
    return len(live) < 20 and taken(kind, 6 * MIB)
while lost := chunk("hipMallocAsync"):
    call("hipFree", lost)
    given("hipMallocFromPoolAsync", chunk("hipMallocFromPoolAsync"), True)
    memory()
    live.append(chunk("hipMallocAsync"))
say([len(live), (on_card() - base) // MIB])
"""
    assert [10, 60] == granted(rack, 64).run(program)


def test_memory_that_a_program_frees_twice_is_the_pools_once(rack: Rack) -> None:
    """The runtime would give it back under its pool, and end by SIGSEGV with the pool's next trim.

    The limiter trims where a grant needs the room, which may be long before the card is full. Other
    memory that is had where a pool's was, which gave that back, is freed as ever.
    """
    program = f"""
{POOL}
own = pool()
live, *freed = (of(own, 8) for _ in range(4))
for each, *again in zip(freed, ("hipFreeAsync", "hipFree", "hipFreeAsync"), ((on,), (), (on,))):
    call("hipFreeAsync", each, on)
    call(again[0], each, *again[1])
call("hipStreamSynchronize", on)
call("hipMemPoolTrimTo", own, 20 * MIB)
see()
had = [malloc(8 * MIB) for _ in range(4)]
see()
for each in had:
    call("hipFree", each)
see()
large = malloc(50 * MIB)
see()
say([said, large > 0, any(each.value in had for each in freed)])
"""
    counts = [[32, 24], [0, 56], [32, 24], [6, 58]]
    assert [counts, True, True] == granted(rack, 64).run(program)


def test_a_storm_of_signals_leaves_the_count_that_of_the_card(rack: Rack) -> None:
    """With kernels in between, which wait at the gate."""
    program = f"""
import random
import signal
{TAKERS}
signals, chosen, function, held = [], random.Random(3), spin(), []
base = on_card()
signal.signal(signal.SIGALRM, lambda *_: signals.append(None))
signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
for _ in range(800):
    if held and (chosen.random() < 0.5 or len(held) > 40):
        given(*held.pop(chosen.randrange(len(held))), chosen.random() < 0.5)
    else:
        kind = chosen.choice(list(CARDS))
        got = taken(kind, chosen.randrange(2 * MIB + 1, 6 * MIB))
        held += [(kind, got)] if got else []
    if chosen.random() < 0.1:
        launch(function, 50, on)
    free, total = memory()
    assert on_card() - base <= (total - free) * MIB
call("hipStreamSynchronize", on)
signal.setitimer(signal.ITIMER_REAL, 0)
for one in held:
    given(*one)
say([len(signals) > 99, malloc(60 * MIB) > 0])
"""
    assert [True, True] == granted(rack, 64, core=50).run(program)


def test_what_a_pool_gave_back_is_had_again_while_some_of_it_is_in_use(rack: Rack) -> None:
    """By sizes of which none serves twice; what is used again is no more given back than before."""
    program = f"""
{POOL}
def freed(got):
    call("hipFreeAsync", got, on)
    call("hipStreamSynchronize", on)
made = pool()
kept = of(made, 4)
for mib in range(6, 60, 4):
    freed(of(made, mib))
see()
call("hipFree", malloc(60 * MIB))
see()
freed(of(made, 20))
again = of(made, 20)
see()
freed(again)
call("hipFree", kept)
see()
said.append(malloc(60 * MIB) > 0)
say(said)
"""
    grown, had, again, freed, rest = granted(rack, 64).run(program)
    assert 64 - grown[0] == grown[1] >= 58
    assert [[60, 4], [40, 24], [44, 20], True] == [had, again, freed, rest]


def test_a_pool_that_was_destroyed_is_no_pool_any_more(rack: Rack) -> None:
    """The limiter knows 64 at once, and the runtime waits for ever in one that is gone."""
    program = f"""
{POOL}
signal.alarm(30)
for made in [pool() for _ in range(80)]:
    call("hipFreeAsync", of(made, 4), on)
    call("hipStreamSynchronize", on)
    call("hipMemPoolTrimTo", made, 0)
    see()
    call("hipMemPoolDestroy", made)
say([said == [[64, 0]] * 80, memory()[0]])
"""
    assert [True, 64] == granted(rack, 64).run(f"import signal\n{program}")


def test_memory_of_a_device_that_is_reset_stays_charged_as_long_as_the_card_has_it(
    rack: Rack,
) -> None:
    """AMD's runtime 5.2.3 forgets it and gives none back before the process ends.

    Where a primary context is to be reset it does nothing.
    """
    program = f"""
{POOL}
first, second = pool(), pool()
kept = [of(first, 10), of(second, 10), malloc(4096), malloc(12 * MIB), malloc(8 * MIB)]
call("hipMemPoolDestroy", second)
call("hipDevicePrimaryCtxReset", 0)
call("hipFree", kept.pop())
kept.append(malloc(8 * MIB))
see()
call("hipDeviceReset")
see()
said.append(malloc(40 * MIB))
call("hipDeviceReset")
see()
say(said)
os._exit(0)
"""
    before, after, refused, again = granted(rack, 64).run(program)
    assert before == after == again == [22, 40]  # a piece was in the block that hipInit took
    assert 0 == refused


def test_a_child_after_fork_holds_nothing_of_its_parents(rack: Rack) -> None:
    program = """
pointer = malloc(40 * MIB)
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
call("hipFree", pointer)
say(memory())
"""
    assert [64, 64] == granted(rack, 64).run(program)


#: How programs come by a launch: linked names, and those that C++ mangled.
LAUNCHES = {
    "hipModuleLaunchKernel": "launch(function, 5000, on)",
    "hipExtModuleLaunchKernel": """hip[
    "_Z24hipExtModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_j"
](function, *[c_uint(1)] * 6, c_size_t(0), on, arguments, None, None, None, c_uint(0))""",
    "hipHccModuleLaunchKernel": """hip[
    "_Z24hipHccModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_"
](function, *[c_uint(1)] * 6, c_size_t(0), on, arguments, None, None, None)""",
    "hipLaunchKernel": 'call("hipLaunchKernel", host, one, one, arguments, 0, on)',
    "hipLaunchCooperativeKernel": """call(
        "hipLaunchCooperativeKernel", host, one, one, arguments, c_uint(0), on)""",
    # As hcc's programs do: by the name that C++ mangled, and arguments in one piece.
    "hipLaunchKernelGGLImpl": """hip[
    "_ZN8hip_impl22hipLaunchKernelGGLImplEmRK4dim3S2_jP12ihipStream_tPPv"
](host, byref(one), byref(one), c_uint(0), on, packed)""",
    "a wait that spins": """call("hipSetDeviceFlags", 1)
    launch(function, 5000, on)
    call("hipStreamSynchronize", on)
    call("hipSetDeviceFlags", 4)""",
    # Half of the compute units take twice as long.
    "of a stream with a mask": """launch(function, 2500, half)
    call("hipStreamSynchronize", half)""",
    # This runtime runs a captured graph once: a second launch ends at once.
    "hipGraphLaunch": """call("hipStreamBeginCapture", on, 2)
    launch(function, 5000, on)
    call("hipStreamEndCapture", on, byref(captured))
    call("hipGraphInstantiate", byref(graph), captured, None, None, 0)
    call("hipGraphLaunch", graph, on)""",
}


def test_kernels_have_their_share_of_the_time_however_they_are_launched(rack: Rack) -> None:
    """One program goes through all doors: it starts once, and its first credit is spent once."""
    doors = "".join(
        f"def launched():\n    {how}\ndoors[{name!r}] = launched\n"
        for name, how in LAUNCHES.items()
    )
    program = f"""
{KERNEL}
host = c_void_p(0x1234)
registered(host)
call("hipSetDeviceFlags", 4)
function, on = spin(), stream()
captured, graph = c_void_p(), c_void_p()
size = c_size_t(8)
packed = (c_void_p * 5)(1, ctypes.addressof(argument), 2, ctypes.addressof(size), 3)
half, mask = c_void_p(), (c_uint * 2)(0xFFFFFFFF, 0)
call("hipExtStreamCreateWithCUMask", byref(half), c_uint(2), mask)
doors = {{}}
{doors}
def share(launched, times):
    since = time.monotonic()
    for _ in range(times):
        launched()
        call("hipStreamSynchronize", on)
    return 100 * times * 0.005 / (time.monotonic() - since)
share(doors["hipModuleLaunchKernel"], 40)
say({{name: share(launched, 30) for name, launched in doors.items()}})
"""
    shares = granted(rack, 64, core=40).run(program)
    # More by the credit of a time slice, of 0.1 s in 0.4; less where others take processors.
    assert list(LAUNCHES) == [name for name, share in shares.items() if 2 < share < 60], shares


def test_a_name_with_a_version_leads_to_the_limiter(rack: Rack, tmp_path: Path) -> None:
    """As the linker writes it into a program, and by dlvsym."""
    runtime = subprocess.check_output(["ldconfig", "-p"], text=True)
    (path,) = set(re.findall(r"libamdhip64\.so\.5 .*=> (\S+)", runtime))
    source = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int hipMalloc(void **, unsigned long);
int main(void)
{
    void *at, *driver = dlopen("libamdhip64.so.5", RTLD_LAZY | RTLD_NOLOAD);
    int (*looked_up)(void **, unsigned long) = dlvsym(driver, "hipMalloc", "hip_4.2");
    void *newer = dlvsym(driver, "hipMalloc", "hip_5.0");
    unsigned long much = 65ul << 20;
    printf("%d %d %d\\n", hipMalloc(&at, much), looked_up(&at, much), newer == NULL);
}
"""
    program = tmp_path / "linked"
    command = ["cc", "-x", "c", "-", "-x", "none", path, "-o", str(program)]
    subprocess.run(command, input=source, text=True, check=True)
    with program.open("rb") as file:
        elf = ELFFile(file)
        versions = {
            aux.name
            for _, each in elf.get_section_by_name(".gnu.version_r").iter_versions()
            for aux in each
        }
    assert "hip_4.2" in versions
    environment = {**granted(rack, 64).environment, "HETERO_LOG": "off"}
    job = rack.machine.spawn([str(program)], **environment)
    assert ("2 2 1\n", "") == job.communicate(timeout=60)


#: Of the functions that are limited, those that HIP 5.2's header does not declare: newer ones, and
#: those with names of C++.
UNDECLARED = {
    "hipGetDevicePropertiesR0600",
    "hipGetDevicePropertiesR0000",
    "hipModuleLaunchCooperativeKernel",
    "hipModuleLaunchCooperativeKernelMultiDevice",
    "hipGraphAddMemAllocNode",
    "hipGraphAddNode",
    "hipStreamBeginCaptureToGraph",
    *(f"hipGetProcAddress{ending}" for ending in ("", "_spt")),
    *(f"hipGetDriverEntryPoint{ending}" for ending in ("", "_spt")),
    "hipLaunchKernelExC",
    "hipDrvLaunchKernelEx",
    "hipGraphUpload",
    *(f"hipMemcpy{kind}" for kind in ("AtoD", "DtoA", "AtoA", "AtoHAsync", "HtoAAsync")),
    "hipMemcpy2DArrayToArray",
    *(f"hipMemcpy{kind}_spt" for kind in ("2DToArrayAsync", "2DFromArrayAsync", "FromArray")),
    *(f"hipMemsetD2D{bits}{ending}" for bits in (8, 16, 32) for ending in ("", "Async")),
    *(f"hipMemcpy{kind}" for kind in ("3DPeer", "3DPeerAsync", "BatchAsync", "3DBatchAsync")),
    "hipMemPrefetchAsync_v2",
    "hipMemPrefetchBatchAsync",
    *(f"hip{drv}MemDiscard{then}BatchAsync" for drv in ("", "Drv") for then in ("", "AndPrefetch")),
    "hipStreamBeginCapture_spt",
    "hipStreamEndCapture_spt",
    "hipGraphLaunch_spt",
    "hipStreamBatchMemOp",
    "hipEventRecordWithFlags",
    "hipEventRecord_spt",
    "hipLaunchHostFunc_spt",
    "hipStreamAddCallback_spt",
    "hipMemGetHandleForAddressRange",
    "hipModuleLoadFatBinary",
    *(f"hipLibrary{what}" for what in ("LoadData", "LoadFromFile", "Unload")),
    *(f"hipMemcpy{kind}Async_spt" for kind in ("ToSymbol", "FromSymbol", "2D", "3D")),
    *(f"hipMemset{kind}Async_spt" for kind in ("", "2D", "3D")),
    "_Z24hipExtModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_j",
    "_Z24hipHccModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_",
}


def test_our_declarations_are_those_of_amds_headers(tmp_path: Path) -> None:
    directory = Path(__file__).parent
    root = directory.parents[1]
    compiler = ["gcc", "-std=gnu11", "-Wall", "-fsyntax-only", str(directory / "hip_abi_check.c")]
    own_options = [f"-I{root / folder}" for folder in ("simulator/drivers", "limiters")]
    # Linux's header of AMD's driver asks for libdrm's, of which it needs nothing but Linux's own.
    (tmp_path / "drm").mkdir()
    (tmp_path / "drm/drm.h").write_text("#include <linux/types.h>\n")
    amd_options = [
        "-DREAL",
        f"-I{root / 'limiters'}",
        f"-I{tmp_path}",
        "-Wno-deprecated-declarations",
    ]
    undeclared = "implicit declaration of function '"

    def errors(options: list[str]) -> list[str]:
        environment = {**os.environ, "LC_ALL": "C"}
        command = [*compiler, *options]
        done = completed(command, env=environment)
        lines = done.stderr.splitlines()
        return [line for line in lines if ": warning: " in line or ": error: " in line]

    assert [] == errors(own_options)
    assert [] == [line for line in errors(amd_options) if undeclared not in line]
    assert {line.split(undeclared)[1].split("'")[0] for line in errors(amd_options)} == UNDECLARED


def names_in(file: str, kinds: str) -> set[str]:
    """Return the names in a table of the limiter, and those of their variants."""
    text = (Path(__file__).parents[2] / "limiters/hip" / file).read_text()
    rows = re.findall(rf"^(SPT_)?(?:{kinds})\((\w+),", text, re.MULTILINE)
    return {name + ending for variant, name in rows for ending in ("", variant and "_spt")}


def test_every_function_of_amds_runtime_is_in_one_of_our_tables() -> None:
    runtime = subprocess.check_output(["ldconfig", "-p"], text=True)
    (path,) = set(re.findall(r"libamdhip64\.so\.5 .*=> (\S+)", runtime))
    with Path(path).open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym").iter_symbols()
        functions = {s.name for s in symbols if s.entry.st_shndx != "SHN_UNDEF"}
    others = names_in("others.def", "HARMLESS|OPEN")
    answered = names_in("api.def", "OWN|OWN_IN|GATED|COPY|WAITS")
    known = {*answered, *others, *(f"{name}_spt" for name in others)}
    named = re.compile(r"(__|_Z\d+|_ZN\d+hip_impl\d+)?hip[A-Z]")
    assert {name for name in functions if named.match(name)} <= known
    assert not answered & others
