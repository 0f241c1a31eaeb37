"""Another vendor's library with NVML's names answers for itself, also beside NVML."""

import subprocess
import sys
from pathlib import Path

import hetero_simulator
import pytest
from tenancy import LIMITER, UUIDS, Rack, Terms

SECOND = UUIDS[1]
NVML = """
from pynvml import *
nvmlInit()
"""


@pytest.fixture
def rack(tmp_path: Path) -> Rack:
    """Two cards of 1 GiB."""
    return Rack.of(tmp_path, 2)


@pytest.fixture
def other_vendor(tmp_path: Path) -> Path:
    """Another vendor's library with some of NVML's names, and one that is linked to it."""
    library, user = tmp_path / "libtheirs.so", tmp_path / "libuser.so"
    functions = "int nvmlDeviceGetCount_v2(unsigned *count) { *count = 77; return 0; }\n"
    calls = (
        "int nvmlDeviceGetCount_v2(unsigned *);\n"
        "unsigned cards(void) { unsigned n; return nvmlDeviceGetCount_v2(&n) ? 0 : n; }\n"
    )
    _library(library, functions)
    _library(user, calls, f"-L{tmp_path}", "-ltheirs", f"-Wl,-rpath,{tmp_path}")
    return tmp_path


def _library(path: Path, source: str, *flags: str) -> None:
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", f"-Wl,-soname,{path.name}", *flags]
    subprocess.run([*command, "-o", path], input=source, text=True, check=True)


def test_two_libraries_of_one_name_answer_each_for_itself(rack: Rack, other_vendor: Path) -> None:
    counts = rack.grant(Terms(uuid=SECOND)).run(f"""{NVML}
count = c_uint()
ctypes.CDLL({str(other_vendor / "libtheirs.so")!r}).nvmlDeviceGetCount_v2(byref(count))
say([count.value, ctypes.CDLL({str(other_vendor / "libuser.so")!r}).cards(), nvmlDeviceGetCount()])
""")
    assert [77, 77, 1] == counts


def test_code_that_jumps_to_the_function_it_was_linked_to_gets_there(
    rack: Rack, other_vendor: Path
) -> None:
    jumps = (
        "int nvmlDeviceGetCount_v2(unsigned *);\n"
        "int cards(unsigned *n) { return nvmlDeviceGetCount_v2(n); }\n"
    )
    _library(
        other_vendor / "libuser.so",
        jumps,
        "-O2",
        f"-L{other_vendor}",
        "-ltheirs",
        f"-Wl,-rpath,{other_vendor}",
    )
    code = f"""
import ctypes
cards = ctypes.c_uint()
ctypes.CDLL({str(other_vendor / "libuser.so")!r}).cards(ctypes.byref(cards))
print(cards.value)
"""
    grant = rack.grant(Terms(uuid=SECOND))
    program = rack.machine.spawn([sys.executable, "-c", code], **grant.environment)
    assert ("77\n", "") == program.communicate(timeout=60)


def test_what_is_linked_to_nvml_is_shown_the_grant_beside_another_library(
    rack: Rack, other_vendor: Path
) -> None:
    calls = (
        "int nvmlInit_v2(void); int nvmlDeviceGetCount_v2(unsigned *);\n"
        "unsigned cards(void) { unsigned n; nvmlInit_v2(); "
        "return nvmlDeviceGetCount_v2(&n) ? 0 : n; }\n"
    )
    driver = hetero_simulator.fake_drivers() / "libnvidia-ml.so.1"
    _library(other_vendor / "libnvidias.so", calls, "-x", "none", str(driver))
    code = f"""
import ctypes
theirs = ctypes.CDLL({str(other_vendor / "libtheirs.so")!r}, mode=ctypes.RTLD_GLOBAL)
print(ctypes.CDLL({str(other_vendor / "libnvidias.so")!r}).cards())
"""
    grant = rack.grant(Terms(uuid=SECOND))
    program = rack.machine.spawn([sys.executable, "-c", code], **grant.environment)
    assert ("1\n", "") == program.communicate(timeout=60)


def test_with_no_grant_another_vendors_library_answers_itself(
    rack: Rack, other_vendor: Path
) -> None:
    code = f"say(ctypes.CDLL({str(other_vendor / 'libuser.so')!r}).cards())"
    assert 77 == rack.run(code, LD_PRELOAD=str(LIMITER))


def test_iluvatars_library_and_nvidias_answer_in_one_process(tmp_path: Path) -> None:
    rack = Rack.of(tmp_path, 2)
    with rack.machine.rack.open("a") as file:
        file.write("[device]\nvendor = iluvatar\nmodel = BI-V150\nmemory = 32 GiB\n")
    code = NVML + (
        """
theirs = ctypes.CDLL("libixml.so")
theirs.nvmlInit_v2()
count = c_uint()
theirs.nvmlDeviceGetCount_v2(byref(count))
say([count.value, nvmlDeviceGetCount()])
"""
    )
    assert [1, 2] == rack.run(code)
    assert [1, 1] == rack.grant(Terms(uuid=SECOND)).run(code)
