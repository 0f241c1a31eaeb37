"""Faults are on by name in the build with faults, and in no other (limiters/core/fault.h)."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from tenancy import LIMITER

from tests.programs import completed

LIMITERS = LIMITER.parents[2]
C = ("cc", "-D_GNU_SOURCE", "-std=gnu11", "-Wall", "-Wextra", "-Werror")
#: The shared sources that are chosen for HIP.
FEATURES = (LIMITERS / "hip/features.mk").read_text()
HIP = [
    LIMITERS / f"shared/{name}.c"
    for line in re.findall(r"^HIP_FEATURES \S= (.*)", FEATURES, re.M)
    for name in line.split()
]
#: By driver API: the sources of its limiter that no other API's has before it in this table.
SOURCES = {
    "cuda": [
        source
        for folder in ("core", "timeshare", "shared", "cuda", "nvml")
        for source in (LIMITERS / folder).glob("*.c")
        if source not in HIP
    ],
    "hip": [
        *(source for folder in ("hip", "hsa") for source in (LIMITERS / folder).glob("*.c")),
        *HIP,
    ],
    "acl": [source for folder in ("acl", "hal") for source in (LIMITERS / folder).glob("*.c")],
}


@pytest.mark.parametrize("api", SOURCES)
def test_each_source_that_has_a_fault_compiles_with_faults(api: str) -> None:
    sources = [source for source in SOURCES[api] if "core/fault.h" in source.read_text()]
    command = [*C, "-fsyntax-only", "-fPIC", "-DFAULTS", f"-I{LIMITERS / api}", *map(str, sources)]
    done = completed(command)
    assert len(sources) >= (2 if api == "acl" else 5)
    assert "" == done.stderr


@pytest.mark.parametrize("build", [(), ("-DFAULTS",)], ids=["shipped", "with faults"])
def test_a_fault_that_is_not_listed_does_not_compile(build: tuple[str, ...]) -> None:
    def errors(name: str) -> str:
        source = f'#include "core/fault.h"\nint on(void) {{ return FAULT({name}); }}\n'
        command = [*C, *build, "-fsyntax-only", f"-I{LIMITERS}", "-x", "c", "-"]
        return completed(command, input=source).stderr

    assert "" == errors("forks_unnoticed")
    assert "FAULT_no_such_fault" in errors("no_such_fault")


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The core alone, as the build with faults links it."""
    library = tmp_path_factory.mktemp("core") / "core.so"
    lines = (LIMITERS / "core/libc.def").read_text().splitlines()
    names = [line[len("LIBC(") : -1] for line in lines if line.startswith("LIBC(")]
    wrapped = [f"-Wl,--wrap={name}" for name in names]
    shape = ["-shared", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wl,-Bsymbolic", "-DFAULTS"]
    script = f"-Wl,--version-script={LIMITERS / 'core/symbols.map'}"
    sources = map(str, sorted((LIMITERS / "core").glob("*.c")))
    command = [*C, *shape, *wrapped, script, "-o", str(library), *sources, "-ldl"]
    subprocess.run(command, check=True)
    return library


@pytest.mark.parametrize(
    ("name", "status", "says"),
    [
        ("no_such_fault", 2, "hetero: HETERO_FAULT names no fault that core/faults.def lists\n"),
        ("forks_unnoticed", 0, ""),
        ("", 0, ""),
    ],
)
def test_a_name_that_is_no_faults_ends_the_process(
    core: Path, name: str, status: int, says: str
) -> None:
    environment = {**os.environ, "LD_PRELOAD": str(core), "HETERO_FAULT": name}
    done = completed(["/bin/true"], env=environment)
    assert (status, says) == (done.returncode, done.stderr)


def test_a_shipped_limiter_has_no_faults() -> None:
    for api in ("cuda", "musa", "hip"):
        library = LIMITER.with_name(f"libhetero-{api}.so").read_bytes()
        assert b"HETERO_GRANT" in library
        assert b"HETERO_FAULT" not in library, api
