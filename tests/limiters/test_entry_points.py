"""Every way to get at a driver function leads to the limiter, and nothing else is touched."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import hetero_simulator
import pytest
from tenancy import LIMITER, MIB, REGION_BYTES, STRICT, Grant, Rack, Terms

LIBC = """
from ctypes import c_char_p
libc = ctypes.CDLL(None)
for lookup in (libc.dlsym, libc.dlvsym, libc.dlopen):
    lookup.restype = c_void_p
NEXT, DEFAULT = c_void_p(-1), c_void_p(0)
limiter = ctypes.CDLL({limiter!r})
def ours(name): return ctypes.cast(getattr(limiter, name), c_void_p).value
driver = c_void_p(libc.dlopen(c_char_p(b"libcuda.so.1"), c_int(2)))
def found(handle, name): return libc.dlsym(handle, c_char_p(name.encode()))
"""


@pytest.fixture
def grant(tmp_path: Path) -> Grant:
    return Rack.of(tmp_path).grant(Terms(memory=MIB))


def _prelude() -> str:
    return LIBC.format(limiter=str(LIMITER))


def test_dlsym_answers_ours_on_every_handle_that_has_the_symbol(grant: Grant) -> None:
    limited = grant.run(f"""{_prelude()}
names = ["cuMemAlloc_v2", "cuLaunchKernel_ptsz", "cuMemcpyHtoD_v2_ptds", "cuGetProcAddress_v2"]
everything = c_void_p(libc.dlopen(None, c_int(2)))
handles = (driver, NEXT, DEFAULT, everything)
say([[found(handle, name) == ours(name) for name in names] for handle in handles])
""")
    assert [[True] * 4] * 4 == limited


def test_dlsym_leaves_other_names_and_other_libraries_alone(grant: Grant) -> None:
    answers = grant.run(f"""{_prelude()}
c = c_void_p(libc.dlopen(c_char_p(b"libc.so.6"), c_int(2)))
printf = ctypes.cast(libc.printf, c_void_p).value
real = ctypes.cast(cuda.cuDriverGetVersion, c_void_p).value
say([found(handle, "printf") == printf for handle in (c, NEXT, DEFAULT)]
     + [found(c, "cuMemAlloc_v2"), found(driver, "cuNoSuchThing")]
     + [found(driver, "cuDriverGetVersion") == real])
""")
    assert [True, True, True, None, None, True] == answers


def test_before_the_driver_is_loaded_its_names_are_not_there(grant: Grant) -> None:
    code = """
import ctypes
libc = ctypes.CDLL(None)
libc.dlsym.restype = ctypes.c_void_p
name = ctypes.c_char_p(b"cuMemAlloc_v2")
print([libc.dlsym(ctypes.c_void_p(handle), name) for handle in (0, -1)])
"""
    program = grant.rack.machine.spawn([sys.executable, "-c", code], **grant.environment)
    assert ("[None, None]\n", "") == program.communicate()


def test_dlvsym_knows_the_same_entry_points(grant: Grant) -> None:
    answers = grant.run(f"""{_prelude()}
libc.dlvsym.argtypes = [c_void_p, c_char_p, c_char_p]
c = c_void_p(libc.dlopen(c_char_p(b"libc.so.6"), c_int(2)))
first = [libc.dlvsym(c, b"malloc", version) for version in (b"GLIBC_2.2.5", b"GLIBC_2.17")]
say([found(c, "malloc") in first, libc.dlvsym(c, b"cuMemAlloc_v2", b"GLIBC_2.2.5")])
""")
    assert [True, None] == answers


def test_the_drivers_own_lookup_answers_ours_in_the_variant_asked_for(grant: Grant) -> None:
    answers = grant.run(f"""{_prelude()}
call("cuInit", 0)
def looked_up(name, version, flags, through="cuGetProcAddress_v2"):
    pointer = c_void_p()
    extra = [None] if through.endswith("_v2") else []
    call(through, c_char_p(name.encode()), byref(pointer), c_int(version), flags, *extra)
    return pointer.value
asked = {{
    "cuMemAlloc_v2": looked_up("cuMemAlloc", 12000, 0),
    "cuLaunchKernel": looked_up("cuLaunchKernel", 12000, 1),
    "cuLaunchKernel_ptsz": looked_up("cuLaunchKernel", 12000, 2),
    "cuMemcpyHtoD_v2_ptds": looked_up("cuMemcpyHtoD", 12000, 2),
    "cuMemGetInfo_v2": looked_up("cuMemGetInfo", 12000, 0, "cuGetProcAddress"),
    "cuGetProcAddress_v2": looked_up("cuGetProcAddress", 12000, 0),
    "cuGraphInstantiate_v2": looked_up("cuGraphInstantiate", 12000, 0),
    "cuStreamBeginCapture_v2": looked_up("cuStreamBeginCapture", 12000, 0),
}}
real = ctypes.cast(cuda.cuDriverGetVersion, c_void_p).value
untouched = looked_up("cuDriverGetVersion", 12000, 0) == real
say([[name for name, pointer in asked.items() if pointer != ours(name)], untouched])
""")
    assert [[], True] == answers


def test_a_pointer_from_the_drivers_lookup_is_limited(grant: Grant) -> None:
    codes = grant.run(f"""
from ctypes import c_char_p
start()
pointer = c_void_p()
call("cuGetProcAddress", c_char_p(b"cuMemAlloc"), byref(pointer), c_int(12000), 0)
allocate = ctypes.CFUNCTYPE(c_int, c_void_p, c_size_t)(pointer.value)
out = c_uint64()
say([allocate(ctypes.addressof(out), {MIB} + 1), allocate(ctypes.addressof(out), {MIB})])
""")
    assert [2, 0] == codes


def test_launches_are_found_while_a_kernel_waits_for_its_local_memory(grant: Grant) -> None:
    launches = grant.run(f"""{_prelude()}
start()
text = b".version 6.4\\n.target sm_50\\n.address_size 64\\n.visible .entry spills()\\n{{\\n"
text += b".local .align 8 .b8 mine[1048576];\\nret;\\n}}\\n"
launches = ["cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel"]
names = [name + ending for name in launches for ending in ("", "_ptsz")]
before = {{name: ours(name) for name in names}}
module, kernel = c_void_p(), c_void_p()
call("cuModuleLoadData", byref(module), c_char_p(text))
call("cuModuleGetFunction", byref(kernel), module, c_char_p(b"spills"))
def looked_up(name):
    pointer, bare = c_void_p(), name.removesuffix("_ptsz")
    flags = 1 if name == bare else 2
    call("cuGetProcAddress_v2", c_char_p(bare.encode()), byref(pointer), c_int(12000), flags, None)
    return pointer.value
others = [name for name in names for handle in (driver, NEXT, DEFAULT)
          if not looked_up(name) == found(handle, name) == before[name]]
say([others, cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)])
""")
    assert [[], 2] == launches


def test_with_no_grant_every_entry_point_leads_to_the_driver(grant: Grant) -> None:
    program = f"""{_prelude()}
say(found(driver, "cuMemAlloc_v2") == ours("cuMemAlloc_v2"))
"""
    limited = grant.rack.run(program, LD_PRELOAD=str(LIMITER))
    assert limited is False


def test_a_library_that_binds_to_the_driver_first_is_limited_all_the_same(
    grant: Grant, tmp_path: Path
) -> None:
    driver = hetero_simulator.fake_drivers() / "libcuda.so.1"
    source = """
int cuMemAlloc_v2(unsigned long long *, unsigned long);
int take(unsigned long size) { unsigned long long it; return cuMemAlloc_v2(&it, size); }
"""
    user = tmp_path / "libuser.so"
    flags = ["-shared", "-fPIC", "-x", "c", "-", "-x", "none", str(driver), "-o", str(user)]
    subprocess.run(["cc", *flags], input=source, text=True, check=True)
    code = f"""
import os
start()
user = ctypes.CDLL({str(user)!r}, mode=os.RTLD_NOW | os.RTLD_DEEPBIND)
say([user.take(c_size_t({MIB} + 1)), user.take(c_size_t({MIB}))])
"""
    assert [2, 0] == grant.run(code)
    assert [0, 0] == grant.rack.run(code, LD_PRELOAD=str(LIMITER))


def _looked_up(directory: Path, grant: Grant, asked: str, *, logged: int = 0) -> Any:
    """What `asked` gives for looked_up(name, version), with a driver of versions.c.

    With HETERO_LOG=info so many lines say that something is not known.
    """
    flags = ["-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1"]
    source = Path(__file__).with_name("versions.c")
    subprocess.run(["cc", *flags, "-o", directory / "libcuda.so.1", source], check=True)
    code = f"""
import ctypes, json
from ctypes import byref, c_char_p, c_int, c_uint64, c_void_p
driver, limiter = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL({str(LIMITER)!r})
def ours(name): return ctypes.cast(getattr(limiter, name), c_void_p).value
def shown(name): return hasattr(driver, name)
def table(text):
    found = c_void_p()
    return driver.cuGetExportTable(byref(found), ctypes.c_char_p(bytes.fromhex(text)))
def looked_up(name, version, through="cuGetProcAddress"):
    found = c_void_p(1)
    code = getattr(driver, through)(c_char_p(name), byref(found), c_int(version), c_uint64(0))
    return [code, found.value]
print(json.dumps({asked}))
"""
    level = {"HETERO_LOG": "info"} if logged else {}
    environment = {**grant.environment, "LD_LIBRARY_PATH": str(directory), **level}
    program = grant.rack.machine.spawn([sys.executable, "-c", code], **environment)
    out, errors = program.communicate(timeout=60)
    assert logged == errors.count("is not known")
    assert logged or errors == ""
    return json.loads(out)


def test_a_version_that_is_not_answered_is_refused_by_the_drivers_lookup(
    grant: Grant, tmp_path: Path
) -> None:
    first, future = _looked_up(
        tmp_path, grant, '[looked_up(b"cuMemAlloc", version) for version in (2000, 15000)]'
    )
    assert [[500, None], [500, None]] == [first, future]


def test_the_version_that_is_answered_is_ours_through_every_lookup(
    grant: Grant, tmp_path: Path
) -> None:
    program = """[looked_up(b"cuMemAlloc", 12000, through) == [0, ours("cuMemAlloc_v2")]
            for through in ("cuGetProcAddress", "cuGetProcAddress_ptsz")]"""
    limited = _looked_up(tmp_path, grant, program)
    assert [True, True] == limited


def test_an_address_that_the_driver_does_not_show_is_ours_by_its_name(
    grant: Grant, tmp_path: Path
) -> None:
    limited = _looked_up(
        tmp_path, grant, 'looked_up(b"cuMemFree", 12500) == [0, ours("cuMemFree_v2")]'
    )
    assert limited is True


def test_dlsym_of_libc_is_answered_with_ours(grant: Grant) -> None:
    limited = grant.run(f"""{_prelude()}
c = c_void_p(libc.dlopen(c_char_p(b"libc.so.6"), c_int(2)))
names = ["dlsym", "dlvsym", "dlopen"]
say([[found(handle, name) == ours(name) for name in names] for handle in (c, NEXT, DEFAULT)])
""")
    assert [[True] * 3] * 3 == limited


def test_a_copy_of_the_driver_under_another_name_is_limited(grant: Grant, tmp_path: Path) -> None:
    copy = tmp_path / "another.so"
    shutil.copy(hetero_simulator.fake_drivers() / "libcuda.so.1", copy)
    limited = grant.run(f"""{_prelude()}
start()
copy = c_void_p(libc.dlopen(c_char_p({str(copy).encode()!r}), c_int(2)))
say(found(copy, "cuMemAlloc_v2") == ours("cuMemAlloc_v2"))
""")
    assert limited is True


@pytest.mark.parametrize("linked", [False, True])
def test_another_vendors_library_of_the_same_names_answers_itself(
    grant: Grant, tmp_path: Path, linked: bool
) -> None:
    source = "int nvmlDeviceGetMemoryInfo(void *a, void *b) { return 4242 + (a == b) * 0; }\n"
    library_path = tmp_path / "libtheirs.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-x", "c", "-", "-Wl,-soname,libtheirs.so", "-o", library_path],
        input=source,
        text=True,
        check=True,
    )
    code = f"""
import ctypes
theirs = ctypes.CDLL({str(library_path)!r}, mode=ctypes.RTLD_GLOBAL)
ask = (ctypes.CDLL(None) if {linked} else theirs).nvmlDeviceGetMemoryInfo
print(ask(None, None), "libnvidia-ml" in open("/proc/self/maps").read())
"""
    program = grant.rack.machine.spawn([sys.executable, "-c", code], **grant.environment)
    assert ("4242 False\n", "") == program.communicate(timeout=60)


def test_a_program_that_never_uses_the_driver_maps_a_page_to_keep_its_grant_and_opens_nothing(
    grant: Grant,
) -> None:
    code = f"""
import ctypes, os
ctypes.CDLL(None).malloc
files = [os.readlink(f"/proc/self/fd/{{name}}") for name in os.listdir("/proc/self/fd")[3:-1]]
mapped = open("/proc/self/maps").read().splitlines()
of_rack = [line.split() for line in mapped if {str(grant.rack.directory)!r} in line]
for addresses, permissions, offset, *_, path in of_rack:
    start, end = (int(address, 16) for address in addresses.split("-"))
    print(permissions, int(offset, 16), (end - start) // os.sysconf("SC_PAGE_SIZE"), path)
print(files, any("libcuda" in line for line in mapped))
"""
    program = grant.rack.machine.spawn([sys.executable, "-c", code], **grant.environment)
    mapped = f"rw-s 0 1 {grant.directory / 'usage'}\n"
    assert (f"{mapped}[] False\n", "") == program.communicate(timeout=60)
    assert bytes(REGION_BYTES) == (grant.directory / "usage").read_bytes()


#: Of cudart, and one that nobody was seen to ask for.
TABLES = "6bd5fb6c5bf4e74a8987d93912fd9df9", "00112233445566778899aabbccddeeff"
UNKNOWN = f"""[looked_up(b"cuFromTheFuture", 13000)[0], shown("cuFromTheFuture"),
    looked_up(b"cuFromTheFuture", 13000)[0], [table(one) for one in {TABLES!r}],
    shown("cuCtxPopCurrent")]"""


def test_what_no_table_knows_is_passed_on_logged_and_counted_once(
    grant: Grant, tmp_path: Path
) -> None:
    answers = _looked_up(tmp_path, grant, UNKNOWN, logged=2)
    assert [0, True, 0, [0, 0], False] == answers
    assert 2 == grant.unknown()


def test_what_no_table_knows_is_not_to_be_had_of_a_strict_grant(rack: Rack, tmp_path: Path) -> None:
    grant = rack.grant(Terms(flags=STRICT))
    answers = _looked_up(tmp_path, grant, UNKNOWN, logged=2)
    assert [500, False, 500, [0, 500], False] == answers
    assert 2 == grant.unknown()
