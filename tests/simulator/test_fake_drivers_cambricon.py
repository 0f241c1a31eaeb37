"""The fake libcndev through its ABI: Cambricon cards and their sMLU instances."""

from pathlib import Path

import pytest
from vendor_machine import VendorMachine

CARDS = """
[device]
vendor = cambricon
model = MLU370-X8
uuid = 5b2a0c11-0000-4000-8000-0000000000aa
memory = 24 GiB
used = 1 GiB
busy = 12
numa = 1
pci = 0000:5e:00.0
smlu = on
links = 1:PIX
processes = 7:256 8:512

[device]
vendor = cambricon
model = MLU590-H8
memory = 80 GiB
health = broken
"""

CNDEV = """
cndev = CDLL("libcndev.so")
cndev.cndevGetCardNameStringByDevId.restype = c_char_p
cndev.cndevInit(0)

class Quota(Structure):
    _fields_ = [("version", c_int), ("core", c_uint), ("memory", c_uint64)]

class Instance(Structure):
    _fields_ = [("version", c_int), ("profile", c_int), ("id", c_int), ("uuid", c_char * 37),
                ("place", c_int * 4), ("shape", c_char * 100), ("name", c_char * 100),
                ("node", c_char * 100), ("core", c_uint * 2), ("memory", c_uint64 * 2),
                ("reserved", c_uint * 128)]

def profile(core, memory, card=0):
    made = c_int(-1)
    code = cndev.cndevCreateSMluProfileInfo(byref(Quota(6, core, memory)), byref(made), card)
    return -code or made.value

def instance(profile, name=b"", card=0):
    made = c_int(-1)
    code = cndev.cndevCreateSMluInstanceByProfileId(byref(made), profile, card, name)
    return -code or made.value

def standing(card=0, room=16):
    found, count = (Instance * 16)(), c_int(room)
    found[0].version = 6
    code = cndev.cndevGetAllSMluInstanceInfo(byref(count), found, card)
    return -code or [each.name.decode() for each in found[:count.value]]
"""


@pytest.fixture
def mlus(tmp_path: Path) -> VendorMachine:
    return VendorMachine(tmp_path, CARDS, CNDEV)


def test_a_card_says_who_where_and_how_it_is(mlus: VendorMachine) -> None:
    answers = mlus.run("""
        count, handle, uuid = (c_int * 2)(6, 0), c_int(), create_string_buffer(56)
        uuid[0] = 6
        memory, place = (c_int64 * 22)(), (c_uint * 16)()
        node, busy = (c_int * 2)(6), (c_int * 82)(6)
        relation, fine, broken = (c_int * 2)(6), (c_int * 4)(6), (c_int * 4)(6)
        say([
            cndev.cndevGetDeviceCount(count), count[1],
            cndev.cndevGetDeviceHandleByIndex(0, byref(handle)),
            cndev.cndevGetCardNameStringByDevId(handle).decode(),
            cndev.cndevGetUUID(uuid, handle), uuid.raw[4:40].decode(),
            cndev.cndevGetMemoryUsageV2(memory, handle), memory[0], memory[1],
            cndev.cndevGetPCIeInfoV2(place, handle), hex(place[4]),
            cndev.cndevGetNUMANodeIdByDevId(node, handle), node[1],
            cndev.cndevGetDeviceUtilizationInfo(busy, handle), busy[1],
            cndev.cndevGetCardHealthState(fine, 0), fine[1],
            cndev.cndevGetCardHealthState(broken, 1), broken[1],
            cndev.cndevTopologyGetRelationship(relation, 0, 1), relation[1],
            cndev.cndevGetUUID(uuid, 9),
        ])
        """)

    assert [0, 2, 0, "MLU370-X8", 0, "5b2a0c11-0000-4000-8000-0000000000aa"] == answers[:6]
    assert [0, 24576, 1024, 0, "0x5e", 0, 1, 0, 12] == answers[6:15]
    assert [0, 1, 0, 0, 0, 2, 6] == answers[15:]


def test_a_struct_of_an_unknown_version_is_refused(tmp_path: Path) -> None:
    asks = "say([cndev.cndevGetDeviceCount((c_int * 2)(version, 0)) for version in (0, 5, 6, 7)])"
    older = "[driver]\ncndev = 5\n" + CARDS

    assert [3, 0, 0, 3] == VendorMachine(tmp_path, CARDS, CNDEV).run(asks)
    assert [3, 0, 3, 3] == VendorMachine(tmp_path, older, CNDEV).run(asks)


def test_too_small_a_list_says_how_many_there_are(mlus: VendorMachine) -> None:
    code, needed, again, pids = mlus.run("""
        count, processes = c_uint(1), (c_uint * 12)()
        code = cndev.cndevGetProcessInfo(byref(count), processes, 0)
        needed = count.value
        again = cndev.cndevGetProcessInfo(byref(count), processes, 0)
        say([code, needed, again, [processes[1], processes[7]]])
        """)

    assert [9, 2, 0, [7, 8]] == [code, needed, again, pids]


def test_instances_take_what_their_profile_says_until_the_card_is_full(mlus: VendorMachine) -> None:
    made = mlus.run('p = profile(30, 3 << 30)\nsay([instance(p, b"job-%d" % i) for i in range(4)])')

    assert [0x100, 0x200, 0x300, -9] == made
    assert ["job-0", "job-1", "job-2"] == mlus.run("say(standing())")
    assert -9 == mlus.run("say(standing(room=2))")


def test_memory_runs_out_as_core_does(mlus: VendorMachine) -> None:
    assert [0x100, -9] == mlus.run("p = profile(10, 13 << 30)\nsay([instance(p), instance(p)])")


def test_a_name_is_given_once_and_none_is_made_up(mlus: VendorMachine) -> None:
    made = mlus.run("""
        p = profile(1, 1 << 28)
        say([instance(p, b"a"), instance(p, b"a"), instance(p),
             standing()])
        """)

    assert [0x100, -16, 0x200, ["a", "mi2"]] == made


def test_an_instance_says_its_device_node_and_quota(mlus: VendorMachine) -> None:
    node, core, memory, shape = mlus.run("""
        made = Instance(6)
        cndev.cndevGetSMluInstanceInfo(byref(made), instance(profile(25, 6 << 30)))
        say([made.node.decode(), made.core[0], made.memory[0], made.shape.decode()])
        """)

    assert ["/dev/cambricon-caps/cap_dev0_mi1", 25, 6 << 30] == [node, core, memory]
    assert "25.smlu.6144mb" == shape


def test_an_instance_is_resized_within_what_is_left(mlus: VendorMachine) -> None:
    outcome = mlus.run("""
        instance(profile(60, 1 << 30), b"one")
        instance(profile(30, 1 << 30), b"two")
        resize = lambda core: cndev.cndevUpdateSMluInstanceQuotaByInstanceName(
            0, b"two", byref(Quota(6, core, 1 << 30)))
        say([resize(40), resize(41)])
        """)

    assert [0, 9] == outcome


def test_a_profile_goes_after_its_instances(mlus: VendorMachine) -> None:
    outcome = mlus.run("""
        p = profile(50, 1 << 30)
        handle = instance(p)
        say([cndev.cndevDestroySMluProfileInfo(p, 0),
            cndev.cndevDestroySMluInstanceByHandle(handle),
             cndev.cndevDestroySMluProfileInfo(p, 0),
                 cndev.cndevDestroySMluInstanceByHandle(handle)])
        """)

    assert [15, 0, 0, 5] == outcome


def test_an_instance_outlives_its_killed_maker_and_is_busy_while_used(mlus: VendorMachine) -> None:
    destroy = 'say(cndev.cndevDestroySMluInstanceByInstanceName(0, b"orphan"))'
    maker = 'instance(profile(10, 1 << 30), b"orphan")\nassert 0 == cndev.fake_occupy(0, 1)'
    with mlus.standing(maker):
        assert 15 == mlus.run(destroy)

    assert ["orphan"] == mlus.run("say(standing())")
    assert 0 == mlus.run(destroy)


def test_processes_that_cut_and_destroy_at_once_lose_nothing(mlus: VendorMachine) -> None:
    """The file of the slices comes and goes meanwhile: it is there only while one stands."""
    program = """
        for i in range(40):
            p = profile(20, 1 << 30)
            made = instance(p)
            assert made > 0, made
            assert 0 == cndev.cndevDestroySMluInstanceByHandle(made)
            assert 0 == cndev.cndevDestroySMluProfileInfo(p, 0)
        say(standing(room=0))
        """
    running = [mlus.start(program) for _ in range(4)]
    ends = [process.communicate(timeout=30) for process in running]

    assert [""] * 4 == [error for _, error in ends]
    assert [] == mlus.run("say(standing())")


def test_a_card_without_smlu_mode_is_not_sliced_until_it_is_set(mlus: VendorMachine) -> None:
    outcome = mlus.run("""
        before = profile(10, 1 << 30, 1)
        code = cndev.cndevSetSMLUMode((c_int * 2)(6, 1), 1)
        say([before, code, instance(profile(10, 1 << 30, 1), b"", 1)])
        """)

    assert [-10, 0, 0x101] == outcome
    assert 15 == mlus.run("say(cndev.cndevSetSMLUMode((c_int * 2)(6, 0), 1))")


def test_faults_reach_calls_that_return_text_too(tmp_path: Path) -> None:
    name = "call = cndevGetCardNameStringByDevId; does = "
    asks = "name = cndev.cndevGetCardNameStringByDevId(0)\nsay(name and name.hex())"

    assert VendorMachine(tmp_path, CARDS, CNDEV, name + "error 7").run(asks) is None
    assert "a5a5a5" == VendorMachine(tmp_path, CARDS, CNDEV, name + "garbage").run(asks)


def test_a_program_that_crashes_in_a_call_and_exits_holds_no_lock(mlus: VendorMachine) -> None:
    with mlus.start("""
        instance(profile(10, 1 << 30), b"a")
        libc = CDLL(None)
        libc.signal(11, libc.exit)
        cndev.cndevDestroySMluInstanceByInstanceName(0, c_void_p(8))
        """) as crashed:
        try:
            assert 11 == crashed.wait(60)
        finally:
            crashed.kill()
    assert ["a"] == mlus.run("say(standing())")
