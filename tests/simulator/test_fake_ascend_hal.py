"""Ascend's simulated driver alone: memory of cards, and what DCMI shows of it."""

from pathlib import Path

import pytest
from ascend import DRIVER, RACK
from simulated import GIB, MIB
from vendor_machine import VendorMachine

HUGE = 1 << 20  # in halMemAlloc's flag: the simulator's own bit


@pytest.fixture
def npus(tmp_path: Path) -> VendorMachine:
    return VendorMachine(tmp_path, RACK, DRIVER)


def test_the_driver_charges_pages_and_refuses_at_the_card_s_end(npus: VendorMachine) -> None:
    answers = npus.run(f"""
        p = byref(c_uint64())
        answers = [used()]
        hal.made("halMemAlloc", 1, 0)
        small = used()
        hal.made("halMemAlloc", 1, {HUGE})
        answers += [small, used()]
        hal.made("halMemAlloc", 900 * MIB, {HUGE})
        hal.made("halMemAlloc", 600 * MIB, 2 << 10)  # the host's
        say(answers + [hal.code("halMemAlloc", p, 200 * MIB, 0), used(),
                    hal.code("halMemAlloc", p, 1, 2), hal.code("halMemAlloc", p, 0, 0)])
        """)

    assert [None, 4096, 4096 + 2 * MIB, 6, 4096 + 902 * MIB, 2, 3] == answers


def test_the_driver_s_second_names_are_the_same_functions(npus: VendorMachine) -> None:
    answers = npus.run("""
        plain, handle = hal.made("halMemAllocInner", 4 * MIB, 0), c_uint64()
        hal.halMemCreateInner(byref(handle), 4 * MIB, byref(HalProperty(1, 0, 0, 1, 0, 0)), 0)
        answers = [used()]
        hal.halMemFreeInner(plain)
        hal.halMemReleaseInner(handle)
        say(answers + [used(), hal.code("halMemFree", plain), hal.code("halMemRelease", handle)])
        """)

    assert [8 * MIB, 0, 3, 3] == answers


def test_physical_memory_stays_as_long_as_it_is_mapped(npus: VendorMachine) -> None:
    answers = npus.run("""
        handle, room = c_uint64(), c_uint64()
        hal.halMemCreate(byref(handle), 4 * MIB, byref(HalProperty(1, 1, 0, 1, 0, 0)), 0)
        hal.halMemAddressReserve(byref(room), 64 * MIB, 0, None, 0)
        hal.halMemMap(room, 4 * MIB, 0, handle, 0)
        ctypes.memset(room.value, 7, 4 * MIB)
        hal.halMemRelease(handle)
        answers = [used(0), used(1), string_at(room.value, 1)[0]]
        hal.halMemUnmap(room)
        say(answers + [used(1)])
        """)

    assert [None, 4 * MIB, 7, 0] == answers


def test_what_a_killed_process_had_is_free(npus: VendorMachine) -> None:
    with npus.standing(f'hal.made("halMemAlloc", 900 * MIB, {HUGE})') as other:
        during = npus.run("say(list(shown().values()))")
        other.kill()
        other.wait()
    after = npus.run(f'hal.made("halMemAlloc", GIB, {HUGE}); say(used())')

    assert [[900 * MIB], GIB] == [during, after]


def test_a_forked_child_is_not_on_its_parent_s_cards(npus: VendorMachine) -> None:
    answers = npus.run("""
        held = hal.made("halMemAlloc", 64 * MIB, 0)
        ends, starts = os.pipe()
        if not os.fork():
            answers = [used(), hal.code("halMemFree", held)]
            hal.made("halMemAlloc", 32 * MIB, 0)
            os.write(starts, json.dumps(answers + [used()]).encode())
            os._exit(0)
        os.wait()
        say([json.loads(os.read(ends, 1000)), used()])
        """)

    assert [[None, 3, 32 * MIB], 64 * MIB] == answers


def test_dcmi_counts_programs_and_what_the_rack_says_others_use(npus: VendorMachine) -> None:
    """Twice what is left does not fit."""
    answers = npus.run(f"""
        p, hbm = byref(c_uint64()), (c_uint64 * 4)()
        hal.made("halMemAlloc", 600 * MIB, 1 | {HUGE})
        dcmi.dcmi_get_device_hbm_info(1, 0, hbm)
        say([hal.code("halMemAlloc", p, 600 * MIB, 1 | {HUGE}), hbm[0], hbm[2], shown(1)[4242],
             used(1)])
        """)

    assert [6, 2048, 1624, GIB, 600 * MIB] == answers
