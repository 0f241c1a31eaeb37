"""Our declarations of CUDA and NVML agree with the vendor's own, where those are found."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pynvml
import pytest

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("cc") or shutil.which("gcc") or "cc"
CUDA_H = [path for path in Path("/usr/local").glob("cuda*/include/cuda.h") if path.is_file()]


def constants(header: Path) -> str:
    """Every enumerator and plain number of the header, as IS(name, value)."""
    text = header.read_text()
    pairs = re.findall(r"\b(CU\w+) = (\w+)", text)
    pairs += re.findall(r"#define (CU\w+) +(0x\w+)\b", text)
    assert 200 < len(pairs)
    return " ".join(f"IS({name},{value})" for name, value in pairs)


def compiled(*options: str) -> str:
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c"]
    include = f"-I{ROOT / 'limiters/cuda'}"
    check = ROOT / "tests/limiters/abi_check.c"
    done = subprocess.run(
        [COMPILER, *flags, include, *options, str(check)], capture_output=True, text=True
    )
    return done.stderr


def test_our_cuda_structs_have_the_layout_we_say() -> None:
    assert "" == compiled()


@pytest.mark.skipif(not CUDA_H, reason="no cuda.h on this machine")
def test_our_cuda_types_numbers_and_prototypes_are_those_of_cuda_h() -> None:
    numbers = constants(ROOT / "limiters/cuda/abi.h")
    assert "" == compiled("-DREAL", f"-isystem{CUDA_H[0].parent}", f"-DCONSTANTS={numbers}")


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
    }
    lines += [f'_Static_assert({name} == {value}, "{name}");' for name, value in versions.items()]
    check = tmp_path / "check.c"
    check.write_text("\n".join(lines))
    done = subprocess.run(
        [COMPILER, "-std=gnu11", "-fsyntax-only", str(check)], capture_output=True, text=True
    )
    assert "" == done.stderr
