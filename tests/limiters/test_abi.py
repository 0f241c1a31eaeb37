"""Our declarations of CUDA and NVML agree with the vendor's own, where those are found."""

import ctypes
import re
import shutil
from pathlib import Path

import pynvml
import pytest

from tests.programs import completed

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("cc") or shutil.which("gcc") or "cc"
#: NVIDIA's own headers by the version of CUDA, as `make setup` unpacks them.
HEADERS = {
    "11.8": ("nvidia_{}_cu11", "nvidia/{}/include"),
    "12.9": ("nvidia_{}_cu12", "nvidia/{}/include"),
    "13.5": ("nvidia_{}", "nvidia/cu13/include"),
}
#: Those that declare functions of libcuda.so.1, and the one of libnvidia-ml.so.1.
DECLARING = {
    "cuda": ("cuda_runtime", ("cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h")),
    "nvml": ("nvml_dev", ("nvml.h",)),
}


#: Of cudaProfiler.h, which comes in a package of its own.
OF_THE_PROFILER = {"cuProfilerInitialize", "cuProfilerStart", "cuProfilerStop"}


def headers(library: str, version: str) -> Path:
    folder, include = HEADERS[version]
    package = DECLARING[library][0]
    return ROOT / ".headers" / folder.format(package) / include.format(package)


def constants(header: Path) -> str:
    """Every enumerator and plain number of the header, as IS(name, value)."""
    text = header.read_text()
    pairs = re.findall(r"\b(CU\w+) = (\w+)", text)
    pairs += re.findall(r"#define (CU\w+) +(0x\w+)\b", text)
    # How many there are grows with each version, and is our own simulated driver's.
    pairs = [pair for pair in pairs if not pair[0].endswith("_MAX")]
    assert 200 < len(pairs)
    return " ".join(f"IS({name},{value})" for name, value in pairs)


def compiled(*options: str) -> str:
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c"]
    include = f"-I{ROOT / 'limiters/cuda'}"
    check = ROOT / "tests/limiters/abi_check.c"
    done = completed([COMPILER, *flags, include, *options, str(check)])
    return done.stderr


def test_our_cuda_structs_have_the_layout_we_say() -> None:
    assert "" == compiled()


def test_our_cuda_types_numbers_and_prototypes_are_those_of_cuda_h() -> None:
    numbers = constants(ROOT / "limiters/cuda/abi.h")
    assert "" == compiled("-DREAL", f"-isystem{headers('cuda', '13.5')}", f"-DCONSTANTS={numbers}")


def declared(library: str, version: str) -> set[str]:
    """Return the exported names behind the functions and the macros that rename them."""
    files = DECLARING[library][1]
    text = "".join(
        (headers(library, version) / file).read_text("utf-8", "replace") for file in files
    )
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    names = set(re.findall(r"\b(?:CUDAAPI|DECLDIR)\s+((?:cu[A-Z]|nvml)\w+)\s*\(", text))
    for ending, name in re.findall(
        r"#\s*define\s+(?:cu[A-Z]|nvml[DGIS])\w+\s+(?:__CUDA_API_PT([DS])[SZ]+\()?"
        r"(cu[A-Z]\w+|nvml[A-Z]\w+_v\d)\)?\s*$",
        text,
        flags=re.MULTILINE,
    ):
        names |= {name, *([name + ("_ptds" if ending == "D" else "_ptsz")] if ending else [])}
    return names


def rows(library: str, file: str, kinds: str) -> list[str]:
    """Return the names in a table of a limiter, and those of their variants."""
    text = (ROOT / "limiters" / library / file).read_text()
    names = []
    for variant, name in re.findall(rf"^(PTSZ_|PTDS_)?(?:{kinds})\((\w+),", text, re.MULTILINE):
        names += [name, name + f"_{variant[:-1].lower()}"] if variant else [name]
    return names


@pytest.mark.parametrize("version", HEADERS)
@pytest.mark.parametrize(("library", "least"), [("cuda", 500), ("nvml", 290)])
def test_every_function_of_the_driver_has_one_row(library: str, version: str, least: int) -> None:
    functions = declared(library, version)
    answered = rows(library, "api.def", "OWN|GATED|COPY|LAUNCH|WAITS")
    others = rows(library, "others.def", "HARMLESS|OPEN")
    assert least < len(functions)
    assert len(answered + others) == len({*answered, *others})
    assert sorted(others) == others
    variants = {name + end for name in others for end in ("_ptsz", "_ptds")}
    assert [] == sorted(functions - {*answered, *others, *variants})


@pytest.mark.parametrize("library", DECLARING)
def test_every_row_is_a_function_of_the_driver(library: str) -> None:
    functions = {name for version in HEADERS for name in declared(library, version)}
    functions |= OF_THE_PROFILER
    answered = rows(library, "api.def", "OWN|GATED|COPY|LAUNCH|WAITS")
    table = {*answered, *rows(library, "others.def", r"\w+")}
    assert [] == sorted(table - functions)


@pytest.mark.parametrize("library", [*DECLARING, "hip"])
def test_the_document_counts_the_functions_that_are_not_limited(library: str) -> None:
    harmless, unlimited = (len(rows(library, "others.def", kind)) for kind in ("HARMLESS", "OPEN"))
    page, verb = ("hip", "do") if library == "hip" else ("isolation", "that")
    text = " ".join((ROOT / f"docs/{page}.md").read_text().split())
    assert f"{harmless} {verb} " in text
    assert f"{unlimited} {verb} " in text


NVML_STRUCTS = {
    "nvmlMemory_t": pynvml.c_nvmlMemory_t,
    "nvmlMemory_v2_t": pynvml.c_nvmlMemory_v2_t,
    "nvmlBAR1Memory_t": pynvml.c_nvmlBAR1Memory_t,
    "nvmlPciInfo_t": pynvml.nvmlPciInfo_t,
    "nvmlUtilization_t": pynvml.c_nvmlUtilization_t,
    "nvmlProcessInfo_v2_t": pynvml.c_nvmlProcessInfo_v2_t,
    "nvmlProcessDetail_v1_t": pynvml.c_nvmlProcessDetail_v1_t,
    "nvmlProcessDetailList_v1_t": pynvml.c_nvmlProcessDetailList_v1_t,
    "nvmlProcessUtilizationSample_t": pynvml.c_nvmlProcessUtilizationSample_t,
    "nvmlProcessUtilizationInfo_v1_t": pynvml.c_nvmlProcessUtilizationInfo_v1_t,
    "nvmlProcessesUtilizationInfo_v1_t": pynvml.c_nvmlProcessesUtilizationInfo_v1_t,
    "nvmlAccountingStats_t": pynvml.c_nvmlAccountingStats_t,
    "nvmlFBCStats_t": pynvml.c_nvmlFBCStats_t,
    "nvmlFBCSessionInfo_t": pynvml.c_nvmlFBCSession_t,
    "nvmlUUID_v1_t": pynvml.c_nvmlUUID_t,
    "nvmlSample_t": pynvml.c_nvmlSample_t,
    "nvmlAccountingStats_v2_t": pynvml.c_nvmlAccountingStats_v2_t,
    "nvmlDeviceAttributes_t": pynvml.c_nvmlDeviceAttributes,
    "nvmlSetMemoryLimits_v1_t": pynvml.c_nvmlSetMemoryLimits_v1_t,
    "nvmlGetMemoryLimits_v1_t": pynvml.c_nvmlGetMemoryLimits_v1_t,
}


def test_our_nvml_structs_and_numbers_are_those_of_nvidia_ml_py(tmp_path: Path) -> None:
    header = ROOT / "limiters/nvml/abi.h"
    lines = [f'#include "{header}"']
    for name, struct in NVML_STRUCTS.items():
        lines.append(f'_Static_assert(sizeof({name}) == {ctypes.sizeof(struct)}, "{name}");')
        lines += [
            f"_Static_assert(offsetof({name}, {field[0]}) == "
            f'{getattr(struct, field[0]).offset}, "{name}.{field[0]}");'
            for field in struct._fields_
        ]
    numbers = dict(re.findall(r"\b(NVML_\w+) = (\d+)", header.read_text()))
    # An enumerator that nvidia-ml-py spells as a tuple by a stray comma is left to the header.
    known = {name: getattr(pynvml, name) for name in numbers if hasattr(pynvml, name)}
    assert {name: value for name, value in known.items() if isinstance(value, int)} == {
        name: int(numbers[name]) for name, value in known.items() if isinstance(value, int)
    }
    versions = {
        "nvmlMemory_v2": pynvml.nvmlMemory_v2,
        "nvmlProcessDetailList_v1": pynvml.nvmlProcessDetailList_v1,
        "nvmlProcessesUtilizationInfo_v1": pynvml.ProcessesUtilizationInfo_v1,
        "nvmlUUID_v1": pynvml.nvmlUUID_v1,
    }
    lines += [f'_Static_assert({name} == {value}, "{name}");' for name, value in versions.items()]
    check = tmp_path / "check.c"
    check.write_text("\n".join(lines))
    done = completed([COMPILER, "-std=gnu11", "-fsyntax-only", str(check)])
    assert "" == done.stderr
