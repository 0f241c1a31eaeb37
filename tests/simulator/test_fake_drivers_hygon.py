"""The fake librocm_smi64 and libhydmi through their ABI: Hygon cards and their virtual devices."""

from pathlib import Path

import pytest
from vendor_machine import VendorMachine

CARDS = """
[device]
vendor = hygon
model = K100_AI
uuid = 7100f95cee823041
serial = T6K100
memory = 65520 MiB
used = 2 MiB
busy = 7
core = 120
numa = 0
pci = 0001:07:00.0
links = 1:XGMI 2:PIX
processes = 31:1024

[device]
vendor = hygon
model = Z100
memory = 16 GiB
core = 60
numa = 1
health = ecc

[device]
vendor = hygon
model = Z100
memory = 16 GiB
core = 60
"""

DCU = """
rsmi, dmi = CDLL("librocm_smi64.so"), CDLL("libhydmi.so")
rsmi.rsmi_init(c_uint64(0))

class Device(Structure):
    _fields_ = [("name", c_char * 256), ("units", c_int), ("memory", c_size_t), ("used", c_size_t),
                ("container", c_uint64), ("card", c_int)]

def create(card, *sizes):
    units = (c_int * len(sizes))(*[size[0] for size in sizes])
    memory = (c_int * len(sizes))(*[size[1] for size in sizes])
    return dmi.dmiCreateVDevices(card, len(sizes), units, memory)

def left(card):
    units, memory = c_size_t(), c_size_t()
    assert 0 == dmi.dmiGetDeviceRemainingInfo(card, byref(units), byref(memory))
    return [units.value, memory.value >> 20]

def vdevice(id):
    info = Device()
    return dmi.dmiGetVDeviceInfo(id, byref(info)) or [info.card, info.units, info.memory >> 20]
"""


@pytest.fixture
def dcus(tmp_path: Path) -> VendorMachine:
    return VendorMachine(tmp_path, CARDS, DCU)


def test_a_card_says_who_where_and_how_it_is(dcus: VendorMachine) -> None:
    answers = dcus.run("""
        count, model, unique, place = c_uint(), c_uint16(), c_uint64(), c_uint64()
        name, serial = create_string_buffer(64), create_string_buffer(64)
        short = create_string_buffer(4)
        total, used, busy = c_uint64(), c_uint64(), c_uint()
        node, errors = c_uint(), (c_uint64 * 2)()
        say([
            rsmi.rsmi_num_monitor_devices(byref(count)), count.value,
            rsmi.rsmi_dev_id_get(0, byref(model)), hex(model.value),
            rsmi.rsmi_dev_name_get(0, name, c_size_t(64)), name.value.decode(),
            rsmi.rsmi_dev_serial_number_get(0, serial, 64), serial.value.decode(),
            rsmi.rsmi_dev_serial_number_get(0, short, 4),
            rsmi.rsmi_dev_unique_id_get(0, byref(unique)), f"{unique.value:x}",
            rsmi.rsmi_dev_pci_id_get(0, byref(place)), hex(place.value),
            rsmi.rsmi_dev_memory_total_get(0, 0, byref(total)), total.value >> 20,
            rsmi.rsmi_dev_memory_usage_get(0, 0, byref(used)), used.value >> 20,
            rsmi.rsmi_dev_memory_usage_get(0, 1, byref(used)),
            rsmi.rsmi_dev_busy_percent_get(0, byref(busy)), busy.value,
            rsmi.rsmi_topo_numa_affinity_get(1, byref(node)), node.value,
            rsmi.rsmi_dev_ecc_count_get(0, c_uint64(1), errors), errors[1],
            rsmi.rsmi_dev_ecc_count_get(1, c_uint64(1), errors), errors[1],
            rsmi.rsmi_dev_busy_percent_get(3, byref(busy)),
        ])
        """)

    assert [0, 3, 0, "0x6210", 0, "K100_AI", 0, "T6K100", 11] == answers[:9]
    assert [0, "7100f95cee823041", 0, "0x100000700"] == answers[9:13]
    assert [0, 65520, 0, 2, 2, 0, 7, 0, 1, 0, 0, 0, 1, 1] == answers[13:]


def test_links_are_xgmi_or_pcie_by_hops(dcus: VendorMachine) -> None:
    links = dcus.run("""
        def link(one, other):
            hops, kind = c_uint64(), c_int()
            return [rsmi.rsmi_topo_get_link_type(one, other, byref(hops), byref(kind)),
                kind.value, hops.value]
        say([link(0, 1), link(1, 0), link(0, 2), link(1, 2), link(0, 0)[0]])
        """)

    assert [[0, 2, 1], [0, 2, 1], [0, 1, 2], [0, 1, 3], 1] == links


def test_a_process_is_found_with_its_memory_on_its_card(dcus: VendorMachine) -> None:
    answers = dcus.run("""
        count, processes = c_uint(4), (c_uint64 * 16)()
        all = rsmi.rsmi_compute_process_info_get(processes, byref(count))
        pid = processes[0] & 0xffffffff
        one = rsmi.rsmi_compute_process_info_by_device_get(31, 0, processes)
        say([all, count.value, pid, one, processes[1],
             rsmi.rsmi_compute_process_info_by_device_get(31, 1, processes)])
        """)

    assert [0, 1, 31, 0, 1024 << 20, 10] == answers


def test_virtual_devices_take_units_and_memory_all_or_none(dcus: VendorMachine) -> None:
    answers = dcus.run("""
        made = [create(0, (60, 3000), (30, 3000)), create(0, (10, 100), (21, 100)), create(0, (30,
            59520))]
        say([made, left(0), vdevice(0), vdevice(1), vdevice(2), create(0, (1, 1))])
        """)

    assert [[0, 11, 0], [0, 0], [0, 60, 3000], [0, 30, 3000], [0, 30, 59520], 11] == answers


def test_a_card_holds_four_virtual_devices(dcus: VendorMachine) -> None:
    assert [0, 0, 0, 0, 11] == dcus.run("say([create(1, (1, 16)) for _ in range(5)])")


def test_ids_are_the_machines_and_are_used_again(dcus: VendorMachine) -> None:
    answers = dcus.run("""
        create(1, (10, 10)), create(2, (20, 20))
        gone = dmi.dmiDestroySingleVDevice(0)
        create(2, (30, 30))
        say([gone, vdevice(0), vdevice(1), dmi.dmiDestroyVDevices(2), vdevice(1),
            dmi.dmiDestroyVDevices(2)])
        """)

    assert [0, [2, 30, 30], [2, 20, 20], 0, 15, 15] == answers


def test_a_virtual_device_is_resized_and_minus_one_changes_nothing(dcus: VendorMachine) -> None:
    answers = dcus.run("""
        create(0, (60, 100)), create(0, (30, 100))
        change = dmi.dmiUpdateSingleVDevice
        say([change(1, 60, -1), vdevice(1), change(1, 61, -1), change(9, 1, 1)])
        """)

    assert [0, [0, 60, 100], 11, 15] == answers


def test_a_virtual_device_outlives_its_killed_maker_and_is_busy_while_used(
    dcus: VendorMachine,
) -> None:
    destroy = "say(dmi.dmiDestroySingleVDevice(0))"
    with dcus.standing("create(0, (60, 100))\nassert 0 == dmi.fake_occupy(0, 0)"):
        assert 17 == dcus.run(destroy)

    assert 0 == dcus.run(destroy)


def test_compute_units_are_known_to_hydmi_alone_which_needs_no_start(dcus: VendorMachine) -> None:
    answers = dcus.run("""
        info, count = Device(), c_int()
        say([dmi.dmiGetDeviceInfo(0, byref(info)), info.name.decode(), info.units,
            info.memory >> 20,
             dmi.dmiGetMaxVDeviceCount(byref(count)), count.value])
        """)

    assert [0, "K100_AI", 120, 65520, 0, 4] == answers
    program = """
        say([dmi.dmiGetDeviceCount(byref(c_int())),
             rsmi.rsmi_num_monitor_devices(byref(c_uint()))])
        """
    assert [3, 8] == dcus.run(program, HETERO_RACK="")


def test_faults_reach_both_libraries(tmp_path: Path) -> None:
    machine = VendorMachine(
        tmp_path,
        CARDS,
        DCU,
        "call = dmiCreateVDevices; does = error 19",
        "call = rsmi_dev_unique_id_get; does = missing",
    )

    assert [19, False, True] == machine.run("""
        say([create(0, (1, 1))] + [hasattr(rsmi, f"rsmi_dev_{n}_get") for n in ("unique_id",
             "name")])
        """)
