"""The fake libixml and CoreX' libcuda through their ABI: Iluvatar cards, and NVML's faults."""

from pathlib import Path

import hetero_simulator
import pytest
from vendor_machine import VendorMachine

CARDS = """
[driver]
iluvatar = 4.3.0

[device]
vendor = nvidia
model = Other
memory = 8 GiB

[device]
vendor = iluvatar
model = Iluvatar BI-V150
uuid = GPU-3fd4ee8f-169c-4d31-89dc-c2a90a441f1b
memory = 32 GiB
numa = 0
pci = 0000:86:00.0
links = 1:PIX

[device]
vendor = iluvatar
model = Iluvatar MR-V100
memory = 32 GiB
health = ecc temperature

[device]
vendor = iluvatar
model = Iluvatar MR-V100
memory = 32 GiB
health = lost
"""

IXML = """
ixml = CDLL("libixml.so")
ixml.nvmlInit_v2()

def card(index):
    handle = c_void_p()
    assert 0 == ixml.nvmlDeviceGetHandleByIndex_v2(index, byref(handle))
    return handle

def text(call, index=0):
    value = create_string_buffer(96)
    return getattr(ixml, call)(card(index), value, 96) or value.value.decode()

def memory(index=0):
    value = (c_uint64 * 3)()
    return -ixml.nvmlDeviceGetMemoryInfo(card(index), value) or [each >> 30 for each in value]

def health(index):
    value = c_uint64(99)
    return -ixml.ixmlDeviceGetHealth(card(index), byref(value)) or value.value
"""


@pytest.fixture
def corex(tmp_path: Path) -> VendorMachine:
    return VendorMachine(tmp_path, CARDS, IXML)


def test_a_card_says_who_where_and_how_it_is(corex: VendorMachine) -> None:
    answers = corex.run("""
        count, version, cuda, level = c_uint(), create_string_buffer(80), c_int(), c_int()
        say([
            ixml.nvmlDeviceGetCount_v2(byref(count)), count.value,
            ixml.nvmlSystemGetDriverVersion(version, 80), version.value.decode(),
            ixml.nvmlSystemGetCudaDriverVersion(byref(cuda)), cuda.value,
            text("nvmlDeviceGetName"), text("nvmlDeviceGetUUID"), memory(),
            ixml.nvmlDeviceGetTopologyCommonAncestor(card(0), card(1), byref(level)), level.value,
        ])
        """)

    assert [0, 3, 0, "4.3.0", 0, 10020, "Iluvatar BI-V150"] == answers[:7]
    assert ["GPU-3fd4ee8f-169c-4d31-89dc-c2a90a441f1b", [32, 32, 0], 0, 10] == answers[7:]


def test_an_ill_card_still_answers_and_a_lost_one_does_not(corex: VendorMachine) -> None:
    assert [0, 0x14, [32, 32, 0], -15, -15] == corex.run(
        "say([health(0), health(1), memory(1), health(2), memory(2)])"
    )


def test_calls_that_corex_does_not_have_are_not_exported(corex: VendorMachine) -> None:
    names = ["MigMode", "NvLinkState", "NumaNodeId", "ComputeRunningProcesses_v3", "MemoryInfo_v2"]

    assert [False, False, False, False, True] == corex.run(
        f'say([hasattr(ixml, "nvmlDeviceGet" + name) for name in {names}])'
    )


def test_memory_that_a_cuda_program_takes_shows_in_ixml(corex: VendorMachine) -> None:
    """CoreX' libcuda has the name of another vendor's, and a folder of its own."""
    folders = f"{hetero_simulator.fake_drivers() / 'iluvatar'}:{hetero_simulator.fake_drivers()}"
    program = """
        cuda = Cuda()
        cuda.start(0)
        name = create_string_buffer(64)
        cuda.cuDeviceGetName(name, c_int(64), c_int(0))
        cuda.made("cuMemAlloc_v2", 4 << 30)
        count, processes = c_uint(4), (c_uint64 * 8)()
        ixml.nvmlDeviceGetComputeRunningProcesses(card(0), byref(count), processes)
        import os
        say([name.value.decode(), memory(), count.value, processes[0] & 0xffffffff == os.getpid()])
        """
    answers = corex.run(program, LD_LIBRARY_PATH=folders)

    assert ["Iluvatar BI-V150", [32, 28, 4], 1, True] == answers


def test_each_fault_shows_through_nvmls_calls(tmp_path: Path) -> None:
    machine = VendorMachine(
        tmp_path,
        CARDS,
        IXML,
        "call = nvmlDeviceGetUUID; device = 1; does = error 999",
        "call = nvmlDeviceGetMemoryInfo; vendor = iluvatar; does = garbage",
        "call = nvmlDeviceGetCount_v2; does = missing",
        "call = nvmlSystemGetDriverVersion; does = vanish 1",
    )

    assert ["GPU", 999, 0xA5A5A5A5A5A5A5A5 >> 30, False, [0, 15]] == machine.run("""
        first = [text("nvmlDeviceGetUUID")[:3], text("nvmlDeviceGetUUID", 1), memory()[0],
                 hasattr(ixml, "nvmlDeviceGetCount_v2")]
        gone = card(0)
        say([*first, [ixml.nvmlSystemGetDriverVersion(create_string_buffer(80), 80),
             ixml.nvmlDeviceGetName(gone, create_string_buffer(80), 80)]])
        """)


def test_the_other_vendors_nvml_has_faults_of_its_own(tmp_path: Path) -> None:
    fault = "call = nvmlDeviceGetName; vendor = nvidia; does = error 7"
    machine = VendorMachine(tmp_path, CARDS, IXML, fault)

    assert [7, "Iluvatar BI-V150"] == machine.run("""
        nvml, handle = CDLL("libnvidia-ml.so.1"), c_void_p()
        nvml.nvmlInit_v2(), nvml.nvmlDeviceGetHandleByIndex_v2(0, byref(handle))
        say([nvml.nvmlDeviceGetName(handle, create_string_buffer(80), 80),
            text("nvmlDeviceGetName")])
        """)
