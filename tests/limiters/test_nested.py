"""What a driver's function calls of the driver's other functions is no further call of the program.

The driver here is the simulated one with some functions in front that call others by their exported
names, which lead to the limiter: as AMD's hipMemAllocPitch calls hipMallocPitch. AMD's own is in
test_hip.py.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import hetero_limiters
import hetero_simulator
import pytest
from simulated import Machine
from tenancy import COUNTED, MIB, Grant, Rack, Terms, in_front

UNIQUE_ID, UUID = "GPU-423592d2d74e6a1b", "11111111-2222-3333-4444-555555555555"

OF_CUDA = r"""
typedef unsigned long long word;
int X(MemAlloc_v2)(word *, word), X(MemFree_v2)(word);
int X(MemAllocPitch_v2)(word *at, word *pitch, word width, word height, unsigned element)
{
    return *pitch = (width + 511) / 512 * 512, X(MemAlloc_v2)(at, *pitch * height + 0 * element);
}
int X(MemFreeAsync)(word at, void *stream) { return X(MemFree_v2)(at + 0 * (stream != 0)); }
int X(DeviceGetMemPool)(void **, int), X(MemAllocFromPoolAsync)(word *, word, void *, void *);
int X(MemAllocAsync)(word *at, word size, void *stream)
{
    void *pool;
    return X(DeviceGetMemPool)(&pool, 0) || X(MemAllocFromPoolAsync)(at, size, pool, stream);
}
struct flat { word width, height; unsigned format, channels; };
struct deep { word width, height, depth; unsigned format, channels, flags; };
int X(Array3DCreate_v2)(void **, struct deep *);
int X(ArrayCreate_v2)(void **made, struct flat *it)
{
    struct deep deep = {it->width, it->height, 0, it->format, it->channels, 0};
    return X(Array3DCreate_v2)(made, &deep);
}
int X(ModuleLoadData)(void **, const void *);
int X(ModuleLoadDataEx)(void **made, const void *image, unsigned count, void *options, void *values)
{
    return X(ModuleLoadData)(made, image) + 0 * (count + (options == values));
}
int X(LaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                    void *, void **, void **);
int X(LaunchCooperativeKernel)(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
    unsigned by, unsigned bz, unsigned shared, void *stream, void **arguments)
{
    return X(LaunchKernel)(f, gx, gy, gz, bx, by, bz, shared, stream, arguments, 0);
}
"""
OF_HIP = r"""
typedef unsigned long long word;
int hipMallocPitch(word *, word *, word, word), hipFree(word);
int hipMemAllocPitch(word *at, word *pitch, word width, word height, unsigned element)
{
    return hipMallocPitch(at, pitch, width, height) + 0 * element;
}
int hipFreeAsync(word at, void *stream) { return hipFree(at + 0 * (stream != 0)); }
int hipDeviceGetMemPool(void **, int), hipMallocFromPoolAsync(word *, word, void *, void *);
int hipMallocAsync(word *at, word size, void *stream)
{
    void *pool;
    return hipDeviceGetMemPool(&pool, 0) || hipMallocFromPoolAsync(at, size, pool, stream);
}
struct flat { word width, height; unsigned format, channels; };
struct deep { word width, height, depth; unsigned format, channels, flags; };
int hipArray3DCreate(void **, struct deep *);
int hipArrayCreate(void **made, struct flat *it)
{
    struct deep deep = {it->width, it->height, 0, it->format, it->channels, 0};
    return hipArray3DCreate(made, &deep);
}
int hipModuleLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                          unsigned, void *, void **, void **);
int hipModuleLaunchCooperativeKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
    unsigned by, unsigned bz, unsigned shared, void *stream, void **arguments)
{
    return hipModuleLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, stream, arguments, 0);
}
"""
#: What a program does by the functions in front, and what is charged with it and after it, in MiB.
PROGRAM = """
import ctypes, json, sys
from ctypes import byref, c_size_t, c_uint, c_uint64, c_void_p
driver, MIB, said = ctypes.CDLL("{path}"), 1 << 20, {{}}
def call(name, *arguments):
    code = getattr(driver, "{prefix}" + name)(
        *[c_uint64(each) if isinstance(each, int) else each for each in arguments])
    assert code == 0, (name, code)
def made(name, *arguments):
    it = c_uint64()
    call(name, byref(it), *arguments)
    return it.value
def held():
    free, total = c_size_t(), c_size_t()
    call("{info}", byref(free), byref(total))
    return (total.value - free.value) // MIB
def step(what, take, *give):
    before = held()
    it = take()
    said[what] = [held() - before]
    if give:
        call(give[0], it, *give[1:])
        said[what].append(held() - before)
class Flat(ctypes.Structure):
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("format", c_uint), ("channels", c_uint)]
if {init}:
    call("Init", 0)
    call("CtxSetCurrent", made("DevicePrimaryCtxRetain", 0))
kept = made("{alloc}", 8 * MIB)
step("pitch", lambda: made("{pitch}", byref(c_size_t()), 1024, 8192, 4), "{free}")
step("ordered free", lambda: made("{alloc}", 8 * MIB), "{free_async}", 0)
step("array", lambda: made("{array}", byref(Flat(1024, 2048, 32, 1))), "ArrayDestroy")
if {ptx!r}:
    step("module", lambda: made("ModuleLoadDataEx", {ptx!r}, 0, 0, 0), "ModuleUnload")
module = made("ModuleLoadData", {image!r})
function = made("ModuleGetFunction", module, b"spin")
arguments = (c_void_p * 1)(ctypes.addressof(c_uint64(0)))
for _ in range(10):
    call("{cooperative}", function, *[c_uint(1)] * 6, c_uint(0), None, arguments)
counted({launches})
step("pool", lambda: made("{alloc_async}", 8 * MIB, 0))
print(json.dumps(said))
"""
HEAD = b".version 6.0\n.target sm_50\n.address_size 64\n"
KERNEL = HEAD + b".visible .entry spin(.param .u32 n) { ret; }\n"


@attrs.frozen
class Api:
    """A driver, and what its functions are called."""

    limiter: str
    vendor: str
    library: str
    uuid: str
    names: dict[str, Any]
    source: str

    def granted(self, directory: Path, core: int) -> Grant:
        text = f"[device]\nvendor = {self.vendor}\nmodel = Card\nmemory = 1 GiB\n"
        rack = Rack(directory, Machine(directory, f"{text}uuid = {self.uuid}\n"))
        terms = Terms(memory=128 * MIB, core=core * 100, uuid=self.uuid)
        return rack.grant(terms, limiter=hetero_limiters.library(self.limiter))

    def in_front(self, directory: Path) -> Path:
        """Build this driver with functions in front that call its others."""
        flag = f"-DX(name)={self.names['prefix']}##name"
        library = hetero_simulator.fake_drivers() / self.library
        return in_front(directory, library, self.source, flag)


CUDA = {
    "init": True,
    "info": "MemGetInfo_v2",
    "alloc": "MemAlloc_v2",
    "free": "MemFree_v2",
    "pitch": "MemAllocPitch_v2",
    "free_async": "MemFreeAsync",
    "alloc_async": "MemAllocAsync",
    "array": "ArrayCreate_v2",
    "cooperative": "LaunchCooperativeKernel",
    "image": KERNEL,
    "ptx": HEAD + b".visible .global .align 4 .b8 block[8388608];\n",
}
HIP = {
    "init": False,
    "info": "MemGetInfo",
    "alloc": "Malloc",
    "free": "Free",
    "pitch": "MemAllocPitch",
    "free_async": "FreeAsync",
    "alloc_async": "MallocAsync",
    "array": "ArrayCreate",
    "cooperative": "ModuleLaunchCooperativeKernel",
    "image": b"\x7fELF".ljust(64, b"\0"),
    "ptx": None,
}
APIS = {
    "cuda": Api("cuda", "nvidia", "libcuda.so.1", f"GPU-{UUID}", {"prefix": "cu", **CUDA}, OF_CUDA),
    "corex": Api(
        *("cuda", "iluvatar", "iluvatar/libcuda.so.1", f"GPU-{UUID}"),
        *({"prefix": "cu", **CUDA}, OF_CUDA),
    ),
    "musa": Api("musa", "mthreads", "libmusa.so.1", UUID, {"prefix": "mu", **CUDA}, OF_CUDA),
    "hip": Api("hip", "amd", "hip7/libamdhip64.so.7", UNIQUE_ID, {"prefix": "hip", **HIP}, OF_HIP),
}


#: In MiB, with what was asked for and after it was freed. AMD's runtime takes arrays in tiles.
ONCE = {"pitch": [8, 0], "ordered free": [8, 0], "array": [8, 0], "module": [8, 0], "pool": [32]}
ONCE_OF_HIP = {"pitch": [8, 0], "ordered free": [8, 0], "array": [10, 0], "pool": [32]}


def said_by(grant: Grant, *command: str) -> str:
    """Return what a program says that loads its driver itself."""
    job = grant.rack.machine.spawn([*command], **grant.environment, HETERO_LOG="off")
    out, errors = job.communicate(timeout=60)
    assert ("", 0) == (errors, job.returncode)
    return out


@pytest.mark.parametrize("api", APIS)
def test_what_a_function_calls_of_the_others_is_charged_once(tmp_path: Path, api: str) -> None:
    driver = APIS[api]
    grant = driver.granted(tmp_path, core=90)
    # Of CUDA's driver no launch calls another; what one takes of the card is charged once anyway.
    launches = 20 if driver.limiter == "cuda" else 10
    path = driver.in_front(tmp_path)
    program = COUNTED + PROGRAM.format(path=path, launches=launches, **driver.names)

    assert (ONCE_OF_HIP if api == "hip" else ONCE) == json.loads(
        said_by(grant, sys.executable, "-c", program)
    )
    assert launches == grant.usage().launches


#: A handler that interrupts the limiter in a call and asks for too much; it leaves that call for
#: good, and the program asks again.
ESCAPES = r"""
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
struct extent { size_t width, height, depth; };
int hipMalloc(void **, size_t), hipMalloc3D(void *, struct extent);
static sigjmp_buf before;
static int in_handler;
static int too_much(void) { void *at; return hipMalloc(&at, 65u << 20); }
static void leaves(int number) { in_handler = too_much() + 0 * number; siglongjmp(before, 1); }
int main(void)
{
    void *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct extent extent = {1024, 1024, 1};
    signal(SIGSEGV, leaves);
    too_much();
    if (!sigsetjmp(before, 1))
        return hipMalloc3D(page, extent), 1;
    return printf("[%d, %d]\n", in_handler, too_much()), 0;
}
"""


def test_a_signal_handler_within_a_call_is_the_program(tmp_path: Path) -> None:
    api = APIS["hip"]
    library = hetero_simulator.fake_drivers() / api.library
    program = tmp_path / "escapes"
    command = ["cc", "-x", "c", "-", "-x", "none", str(library), f"-Wl,-rpath,{library.parent}"]
    subprocess.run([*command, "-o", str(program)], input=ESCAPES, text=True, check=True)
    grant = api.granted(tmp_path, core=100)
    grant.set(attrs.evolve(grant.terms[0], memory=64 * MIB))

    assert "[2, 2]\n" == said_by(grant, str(program))
