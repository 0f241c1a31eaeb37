"""What six vendors' fake libraries share: layouts, faults on demand, and the rack of seven."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import hetero_simulator
import pytest
from simulated import Machine
from vendor_machine import VendorMachine

from tests.programs import completed, next_line
from tests.simulator.test_fake_drivers_ascend import CARDS, DCMI

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "header", ["amd_smi", "dcmi", "rocm_smi", "hydmi", "cndev", "ixml", "mtml", "mxsml"]
)
def test_our_structs_have_the_layout_of_the_vendors_headers(header: str) -> None:
    checked = completed(
        [
            "cc",
            "-std=gnu11",
            "-Wall",
            "-fsyntax-only",
            "-x",
            "c",
            f"-I{ROOT / 'limiters'}",
            ROOT / f"simulator/drivers/{header}.h",
        ]
    )

    assert "" == checked.stderr


def test_no_driver_without_a_rack_or_without_a_card_of_the_vendor(tmp_path: Path) -> None:
    rack = "[device]\nvendor = metax\nmodel = MXC500\nmemory = 64 GiB\n"
    machine = VendorMachine(tmp_path, rack, DCMI)

    assert -8005 == machine.run("say(dcmi.dcmi_init())")
    assert -8005 == machine.run("say(dcmi.dcmi_init())", HETERO_RACK="")


def test_a_fault_of_one_card_leaves_the_other_alone(tmp_path: Path) -> None:
    machine = VendorMachine(
        tmp_path, CARDS, DCMI, "call = dcmi_get_device_health; device = 0; does = error -8005"
    )

    assert [[-8005, 77], [0, 1]] == machine.run("say([health(), health(4, 1)])")


def test_a_call_that_is_missing_is_not_exported_and_the_rest_is(tmp_path: Path) -> None:
    machine = VendorMachine(tmp_path, CARDS, DCMI, "call = dcmi_*_v2; does = missing")

    assert [False, False, True, 20] == machine.run("""
        die = (c_uint * 5)()
        say([hasattr(dcmi, "dcmi_get_device_die_v2"), hasattr(dcmi, "dcmi_get_device_pcie_info_v2"),
             0 == dcmi.dcmi_get_device_die(0, 0, die), sizeof(die)])
        """)


def test_garbage_is_success_with_noise(tmp_path: Path) -> None:
    machine = VendorMachine(
        tmp_path, CARDS, DCMI, "call = dcmi_get_device_chip_info_v2; does = garbage"
    )

    code, cores, name = machine.run("""
        chip = Chip()
        code = dcmi.dcmi_get_device_chip_info_v2(0, 0, byref(chip))
        say([code, chip.cores, bytes(chip)[32:64].hex()])
        """)

    assert [0, 0xA5A5A5A5, "a5" * 32] == [code, cores, name]


def test_a_call_that_hangs_answers_late_and_one_without_end_never(tmp_path: Path) -> None:
    machine = VendorMachine(
        tmp_path,
        CARDS,
        DCMI,
        "call = dcmi_get_device_health; does = hang 300 ms",
        "call = dcmi_get_card_list; does = hang",
    )

    late = "import time; start = time.monotonic(); health(); say(time.monotonic() - start)"
    assert machine.run(late) >= 0.3

    process = machine.start("print(1, flush=True); cards(); print(2)")
    before = next_line(process)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.kill()
    after, _ = process.communicate()
    assert ["1\n", ""] == [before, after]


def test_a_card_vanishes_between_two_discoveries_whoever_makes_them(tmp_path: Path) -> None:
    machine = VendorMachine(
        tmp_path, CARDS, DCMI, "call = dcmi_get_card_list; device = 1; does = vanish"
    )

    assert [0, 4] == machine.run("say(cards())")
    assert [[0], [-8008, 77]] == machine.run("say([cards(), health(4, 1)])")


def test_nothing_is_left_on_the_machine_once_no_slice_stands(tmp_path: Path) -> None:
    machine = VendorMachine(tmp_path, CARDS, DCMI)

    machine.run('say(create(b"vir05_1c_16g"))')
    with_slice = states(tmp_path)
    machine.run("say(dcmi.dcmi_set_destroy_vdevice(0, 0, 100))")
    without = states(tmp_path)

    assert [1, 0] == [with_slice, without]


def states(directory: Path) -> int:
    """How many states of racks in this directory are kept."""
    files = Path("/dev/shm").glob(f"hetero-ascend-{os.getuid()}-*")
    return sum(file.read_bytes()[:512].startswith(bytes(directory)) for file in files)


def test_a_rack_edited_while_slices_stand_keeps_them(tmp_path: Path) -> None:
    machine = VendorMachine(tmp_path, CARDS, DCMI)
    machine.run('say(create(b"vir05_1c_16g"))')
    machine.rack.write_text(CARDS.replace("busy = 40", "busy = 50"))

    assert [100] == machine.run("say(standing())")


def test_a_malformed_fault_is_told_by_line_and_the_driver_is_not_there(tmp_path: Path) -> None:
    machine = VendorMachine(tmp_path, CARDS, DCMI, "call = dcmi_init; does = explode")
    process = machine.start("say(dcmi.dcmi_init())")
    out, error = process.communicate(timeout=30)

    assert "-8005" == out.strip()
    assert "does: expected error CODE, hang [TIME], garbage, missing or vanish [COUNT]" in error


def test_the_cards_of_the_seven_vendor_rack_are_all_there(tmp_path: Path) -> None:
    counts = completed(
        [sys.executable, "-c", dedent(COUNT_ALL)],
        env=Machine(tmp_path).environment(HETERO_RACK=str(hetero_simulator.rack("seven"))),
        check=True,
    )

    assert "[1, 2, 2, 1, 1, 1, 2]" == counts.stdout.strip()


COUNT_ALL = """
    from ctypes import *
    n, lib = c_int(), c_void_p()
    answer = []
    nvml = CDLL("libnvidia-ml.so.1"); nvml.nvmlInit_v2(); nvml.nvmlDeviceGetCount_v2(byref(n))
    answer.append(n.value)
    dcmi = CDLL("libdcmi.so"); dcmi.dcmi_init(); dcmi.dcmi_get_card_list(byref(n), (c_int * 8)(), 8)
    answer.append(n.value)
    rsmi = CDLL("librocm_smi64.so"); rsmi.rsmi_init(c_uint64())
    rsmi.rsmi_num_monitor_devices(byref(n))
    answer.append(n.value)
    cndev = CDLL("libcndev.so"); cndev.cndevInit(0); card = (c_int * 2)(6, 0)
    cndev.cndevGetDeviceCount(card)
    answer.append(card[1])
    ixml = CDLL("libixml.so"); ixml.nvmlInit_v2(); ixml.nvmlDeviceGetCount_v2(byref(n))
    answer.append(n.value)
    mtml = CDLL("libmtml.so"); mtml.mtmlLibraryInit(byref(lib))
    mtml.mtmlLibraryCountDevice(lib, byref(n))
    answer.append(n.value)
    mxsml = CDLL("libmxsml.so"); mxsml.mxSmlInit()
    answer.append(mxsml.mxSmlGetDeviceCount())
    print(answer)
"""
