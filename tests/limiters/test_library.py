"""What the built limiter asks of the system it is loaded on, and what it shows to programs."""

import re
import struct
import subprocess
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from hetero_limiters import library
from tenancy import LIMITER, REGION_BYTES, TABLES, Terms, packed_grant

LIMITERS = Path(__file__).parents[2] / "limiters"
#: The functions of libc that every limiter answers: lookups, and what executes programs and shells.
OF_LIBC = {
    "dladdr",
    "dladdr1",
    "dlopen",
    "dlsym",
    "dlvsym",
    "execl",
    "execle",
    "execlp",
    "execv",
    "execve",
}
OF_LIBC |= {"execveat", "execvp", "execvpe", "fexecve", "popen", "posix_spawn", "posix_spawnp"}
OF_LIBC |= {"system"}


def _answered(definitions: Path) -> set[str]:
    """The symbols that an api.def says we answer."""
    names = set()
    for line in definitions.read_text().splitlines():
        matched = re.match(
            r"(PTSZ_|PTDS_|SPT_)?(?:OWN|OWN_IN|IN_ORDER|GATED|COPY|LAUNCH|WAITS|NOTED)\((\w+)", line
        )
        if matched:
            variant, name = matched.groups()
            names.add(name)
            if variant:
                names.add(name + "_" + variant.strip("_").lower())
    return names


@pytest.mark.parametrize("api", ["cuda", "musa", "hip", "acl"])
def test_the_library_needs_no_symbol_newer_than_glibc_2_17(api: str) -> None:
    with library(api).open("rb") as file:
        section = ELFFile(file).get_section_by_name(".gnu.version_r")
        assert isinstance(section, GNUVerNeedSection)
        versions = {v.name for _, needed in section.iter_versions() for v in needed}

    numbers = [tuple(map(int, v.removeprefix("GLIBC_").split("."))) for v in versions]
    assert numbers
    assert max(numbers) <= (2, 17), sorted(versions)


def test_the_library_shows_what_it_answers_and_nothing_else() -> None:
    with LIMITER.open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym")
        shown = {s.name for s in symbols.iter_symbols() if s["st_shndx"] != "SHN_UNDEF" and s.name}

    answered = _answered(TABLES["cuda"] / "api.def") | _answered(TABLES["nvml"] / "api.def")
    assert answered | OF_LIBC == shown


@pytest.mark.parametrize("api", ["musa", "hip", "acl"])
def test_another_api_shows_its_own_names_and_none_of_the_firsts(api: str) -> None:
    """HIP's also those of HSA below it, and how the library below that asks the kernel's driver.

    That for acl also those of hal.
    """
    with library(api).open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym")
        shown = {s.name for s in symbols.iter_symbols() if s["st_shndx"] != "SHN_UNDEF" and s.name}

    below = {"hip": _answered(TABLES["hsa"] / "api.def") | {"ioctl"}}
    below["acl"] = _answered(TABLES["hal"] / "api.def")
    answered = _answered(TABLES[api] / "api.def") | below.get(api, set())
    assert answered | OF_LIBC == shown


def test_the_library_is_linked_to_no_driver() -> None:
    with LIMITER.open("rb") as file:
        dynamic = ELFFile(file).get_section_by_name(".dynamic")
        assert isinstance(dynamic, DynamicSection)
        needed = {tag.needed for tag in dynamic.iter_tags("DT_NEEDED")}

    loaders = {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
    assert needed <= {"libc.so.6", "libdl.so.2", "libpthread.so.0"} | loaders


@pytest.mark.parametrize("api", ["cuda", "musa", "hip", "acl"])
def test_no_call_of_the_limiter_can_be_answered_by_the_program(api: str) -> None:
    with library(api).open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym")
        undefined = {s.name for s in symbols.iter_symbols() if s["st_shndx"] == "SHN_UNDEF"}

    # A function of the loader, and what the compiler's start-up asks for if it is there.
    started = {"_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__gmon_start__"}
    assert undefined - {""} <= {"_dl_mcount", "__cxa_finalize"} | started


@pytest.mark.parametrize("api", ["cuda", "musa", "nvml", "acl", "hal"])
def test_every_symbol_has_one_line(api: str) -> None:
    text = (TABLES[api] / "api.def").read_text()
    names = re.findall(
        r"^(?:PTSZ_|PTDS_)?(?:OWN|IN_ORDER|GATED|COPY|LAUNCH|WAITS|NOTED|ORDERED|USED)\((\w+)",
        text,
        re.MULTILINE,
    )

    assert sorted(set(names)) == sorted(names)


def test_the_core_includes_no_driver_header() -> None:
    for source in (LIMITERS / "core").glob("*.[ch]"):
        text = source.read_text()
        included = re.findall(r'#include "([^"]+)"', text)
        assert all("/" not in name and name != "abi.h" for name in included), source
        assert not re.search(r"cuda|nvml|nvidia", text, re.IGNORECASE), source


#: The sources of the shims' bodies.
BODIES = [
    path
    for shim in ("shared", "cuda", "hip", "hsa", "nvml", "acl", "hal")
    for path in sorted((LIMITERS / shim).glob("*.c"))
]


@pytest.mark.parametrize("source", BODIES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_body_is_under_twenty_lines(source: Path) -> None:
    bodies = re.findall(r"^([^\n]*)\n\{\n(.*?)^\}", source.read_text(), re.MULTILINE | re.DOTALL)

    assert [] == [first for first, body in bodies if body.count("\n") >= 20]


#: The names of functions that CUDA's tables have and MUSA's have not.
LEFT_OUT = re.findall(r"^/(\^.*)/d$", (LIMITERS / "musa/names.sed").read_text(), re.MULTILINE)


@pytest.mark.parametrize("api", ["cuda", "hip", "musa", "nvml", "acl"])
def test_the_functions_that_are_not_answered_are_in_order_and_in_one_table(api: str) -> None:
    others = re.findall(
        r"^(?:HARMLESS|OPEN)\((\w+)", (TABLES[api] / "others.def").read_text(), re.MULTILINE
    )

    assert sorted(set(others)) == others  # they are looked up by halves
    assert set() == set(others) & _answered(TABLES[api] / "api.def")


@pytest.mark.parametrize("pattern", LEFT_OUT)
def test_what_is_left_out_of_musas_tables_is_in_cudas(pattern: str) -> None:
    tables = [TABLES["cuda"] / name for name in ("api.def", "others.def")]
    command = ["sed", "-n", f"/{pattern}/p", *map(str, tables)]
    assert subprocess.run(command, capture_output=True, check=True).stdout


def test_the_shared_bodies_name_no_driver() -> None:
    for source in sorted((LIMITERS / "shared").glob("*.[ch]")):
        code = re.sub(r"/\*.*?\*/", "", source.read_text(), flags=re.DOTALL)
        named = re.findall(
            r"\b(?:cu[A-Z]|CU[A-Za-z_]|mu[A-Z]|MU[A-Za-z_]|hip[A-Z]|acl[a-z]*[A-Z]|hal[A-Z])\w+",
            code,
        )
        assert [] == named, source


def test_the_layouts_are_what_the_headers_say() -> None:
    assert len(packed_grant([Terms()])) == 2112
    assert len(Terms().packed()) == 128
    assert struct.calcsize("<QII64s6Q") == 128
    assert REGION_BYTES == 128 + 16 * 128 + 1024 * 576 + 128 + 128 * 64


@pytest.mark.parametrize("api", ["acl", "cuda", "hip"])
def test_functions_of_one_body_take_the_same_types_also_for_a_newer_compiler(api: str) -> None:
    """GCC 13 refuses an enumeration for an integer; so does a GCC of short enumerations."""
    command = [
        "gcc",
        "-D_GNU_SOURCE",
        f"-I{api}",
        "-I.",
        "-std=gnu11",
        "-fsyntax-only",
        "-fshort-enums",
    ]
    subprocess.run(
        [*command, "-x", "c", "-"],
        cwd=LIMITERS,
        input='#include "shared/bodies.h"',
        text=True,
        check=True,
    )
