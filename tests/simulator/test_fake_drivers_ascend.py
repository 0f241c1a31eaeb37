"""The fake libdcmi through its ABI: Ascend cards and their vNPUs."""

from pathlib import Path

import pytest
from vendor_machine import VendorMachine

CARDS = """
[device]
vendor = ascend
model = 910B3
memory = 64 GiB
used = 3 GiB
core = 20
busy = 40
uuid = E0F4EE64 802061B1 6A691492 89528485 104301E3
numa = 0
cpus = 0-23
pci = 0000:c1:00.0
links = 1:HCCS
processes = 4242:512

[device]
vendor = ascend
model = 310P3
memory = 21527 MiB
core = 8
health = warning
card = 4
chip = 1
"""

DCMI = """
dcmi = CDLL("libdcmi.so")
dcmi.dcmi_init()

class Vdev(Structure):
    _fields_ = [("id", c_uint), ("vfg", c_uint), ("template", c_char * 32), ("pad", c_ubyte * 64)]

class Chip(Structure):
    _fields_ = [("type", c_char * 32), ("name", c_char * 32), ("version", c_char * 32),
                ("cores", c_uint), ("npu", c_char * 32)]

class Total(Structure):
    _fields_ = [("count", c_uint), ("ids", c_uint * 32), ("rest", c_ubyte * (360 - 132))]

def create(template, card=0, chip=0, id=0xffffffff):
    out = (c_uint * 13)()
    code = dcmi.dcmi_create_vdevice(card, chip, byref(Vdev(id, 0xffffffff, template)), out)
    return code or out[0]

def standing(card=0, chip=0):
    total, size = Total(), c_uint(360)
    assert 0 == dcmi.dcmi_get_device_info(card, chip, 52, 1, byref(total), byref(size))
    return total.ids[:total.count]

def cards():
    count, ids = c_int(), (c_int * 8)()
    return dcmi.dcmi_get_card_list(byref(count), ids, 8) or ids[:count.value]

def health(card=0, chip=0):
    value = c_uint(77)
    return [dcmi.dcmi_get_device_health(card, chip, byref(value)), value.value]
"""


@pytest.fixture
def npus(tmp_path: Path) -> VendorMachine:
    return VendorMachine(tmp_path, CARDS, DCMI)


def test_cards_are_found_by_card_and_chip(npus: VendorMachine) -> None:
    answers = npus.run("""
        chip, phy, logic = Chip(), c_uint(), c_int()
        assert 0 == dcmi.dcmi_get_device_chip_info_v2(4, 1, byref(chip))
        assert 0 == dcmi.dcmi_get_device_logic_id(byref(logic), 4, 1)
        assert 0 == dcmi.dcmi_get_device_phyid_from_logicid(logic, byref(phy))
        say([cards(), chip.name.decode(), chip.cores, logic.value, phy.value,
             dcmi.dcmi_get_device_chip_info_v2(4, 0, byref(chip))])
        """)

    assert [[0, 4], "310P3", 8, 1, 1, -8008] == answers


def test_a_card_says_its_die_place_memory_use_health_and_links(npus: VendorMachine) -> None:
    answers = npus.run("""
        die, pcie, hbm, ddr = (c_uint * 5)(), (c_uint * 16)(), (c_uint64 * 4)(), (c_uint64 * 14)()
        busy, topology, processes, count = c_uint(), c_int(), (c_uint64 * 64)(), c_int()
        cpus, length = create_string_buffer(32), c_int()
        say([
            dcmi.dcmi_get_device_die_v2(0, 0, 1, die), f"{die[0]:X}",
            dcmi.dcmi_get_device_pcie_info_v2(0, 0, pcie), hex(pcie[0]), hex(pcie[5]),
            dcmi.dcmi_get_device_hbm_info(0, 0, hbm), hbm[0], hbm[2],
            dcmi.dcmi_get_device_hbm_info(4, 1, hbm),
            dcmi.dcmi_get_device_memory_info_v3(4, 1, ddr), ddr[0],
            dcmi.dcmi_get_device_utilization_rate(0, 0, 2, byref(busy)), busy.value,
            health(0, 0), health(4, 1),
            dcmi.dcmi_get_topo_info_by_device_id(0, 0, 4, 1, byref(topology)), topology.value,
            dcmi.dcmi_get_device_resource_info(0, 0, processes, byref(count)), count.value,
            processes[0], processes[1],
            dcmi.dcmi_get_affinity_cpu_info_by_device_id(0, 0, cpus, byref(length)),
            cpus.value.decode(),
        ])
        """)

    assert [0, "E0F4EE64", 0, "0x19e5", "0xc1"] == answers[:5]
    assert [0, 65536, 3072, -8255, 0, 21527, 0, 40] == answers[5:13]
    assert [[0, 0], [0, 1], 0, 3, 0, 1, 4242, 512 << 20, 0, "0-23"] == answers[13:]


def test_the_fifth_quarter_of_a_910b3_does_not_fit(npus: VendorMachine) -> None:
    created = npus.run('say([create(b"vir05_1c_16g") for _ in range(5)])')

    assert [100, 101, 102, 103, -8020] == created


def test_seven_small_vnpus_fill_a_310p3_by_its_memory_and_ai_cpus(npus: VendorMachine) -> None:
    created = npus.run('say([create(b"vir01", 4, 1) for _ in range(8)])')

    assert [*range(116, 123), -8020] == created


def test_a_template_of_another_model_is_refused(npus: VendorMachine) -> None:
    assert [-8001, -8001] == npus.run(
        'say([create(b"vir03_1c_8g"), create(b"vir05_1c_16g", id=7)])'
    )


def test_a_vnpu_outlives_the_process_that_was_killed_and_can_be_destroyed(
    npus: VendorMachine,
) -> None:
    with npus.standing('create(b"vir10_3c_32g")'):
        pass

    left, gone, rest = npus.run(
        "say([standing(), dcmi.dcmi_set_destroy_vdevice(0, 0, 100), standing()])"
    )

    assert [[100], 0, []] == [left, gone, rest]


def test_a_vnpu_in_use_is_not_destroyed_until_its_user_is_gone(npus: VendorMachine) -> None:
    destroy = "say(dcmi.dcmi_set_destroy_vdevice(0, 0, 100))"
    with npus.standing('create(b"vir05_1c_16g")\nassert 0 == dcmi.fake_occupy(0, 100)'):
        assert -8020 == npus.run(destroy)

    assert 0 == npus.run(destroy)
