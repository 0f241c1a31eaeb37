"""The fake libmxsml through its ABI: MetaX cards and their sGPUs."""

from pathlib import Path

import pytest
from vendor_machine import VendorMachine

CARDS = """
[device]
vendor = metax
model = MXC500
uuid = 3fd4ee8f-169c-6d31-f9dc-c2a90a441f1b
memory = 64 GiB
used = 826 MiB
busy = 33
numa = 1
pci = 0000:0e:00.0
sgpu = on
links = 1:METAXLINK
processes = 5:826

[device]
vendor = metax
model = MXC500
memory = 64 GiB
health = PCIe link down

[device]
vendor = metax
model = MXN100
memory = 16 GiB
sgpu = never
"""

MXSML = """
mxsml = CDLL("libmxsml.so")
mxsml.mxSmlInit()

class Info(Structure):
    _fields_ = [("id", c_uint), ("type", c_int), ("place", c_char * 32), ("gpu", c_uint), ("node",
        c_uint),
                ("uuid", c_char * 96), ("brand", c_int), ("mode", c_int), ("name", c_char * 32)]

class Slice(Structure):
    _fields_ = [("card", c_uint), ("id", c_uint), ("memory", c_uint), ("priority", c_uint),
                ("core", c_uint), ("minor", c_uint), ("queue", c_uint), ("uuid", c_char * 96)]

def create(memory, core, card=0):
    made = c_uint(99)
    return -mxsml.mxSmlCreateSgpu(card, memory, core, byref(made)) or made.value

def slice(id, card=0):
    info = Slice()
    return -mxsml.mxSmlGetSgpuInfo(card, id, byref(info)) or [info.memory, info.core]

def left(card=0):
    free = (c_uint * 3)()
    return mxsml.mxSmlGetSgpuAvailableQuota(card, free) or list(free)
"""


@pytest.fixture
def cards(tmp_path: Path) -> VendorMachine:
    return VendorMachine(tmp_path, CARDS, MXSML)


def test_a_card_says_who_where_and_how_it_is(cards: VendorMachine) -> None:
    answers = cards.run("""
        info, memory, busy = Info(), (c_long * 6)(), c_int()
        state, reason = c_int(), create_string_buffer(68)
        nodes, topology = (c_uint * 2)(), c_int()
        count, processes = c_uint(4), create_string_buffer(4 * 3144)
        say([
            mxsml.mxSmlGetDeviceCount(),
            mxsml.mxSmlGetDeviceInfo(0, byref(info)), info.name.decode(), info.place.decode(),
                info.uuid.decode(),
            mxsml.mxSmlGetMemoryInfo(0, memory), memory[2] >> 10, memory[3] >> 10,
            mxsml.mxSmlGetDeviceIpUsage(0, 4, byref(busy)), busy.value,
            mxsml.mxSmlGetDeviceState(1, byref(state)), state.value,
            mxsml.mxSmlGetDeviceUnavailableReason(1, reason), reason.raw[4:18].decode(),
            mxsml.mxSmlGetNodeAffinity(0, 2, nodes), nodes[0],
            mxsml.mxSmlGetDeviceTopology(0, 1, byref(topology)), topology.value,
            mxsml.mxSmlGetSingleGpuProcess(0, byref(count), processes), count.value,
                processes.raw[0],
            mxsml.mxSmlGetDeviceInfo(7, byref(info)),
        ])
        """)

    uuid = "GPU-3fd4ee8f-169c-6d31-f9dc-c2a90a441f1b"
    assert [3, 0, "MXC500", "0000:0e:00.0", uuid, 0, 65536, 826, 0, 33] == answers[:10]
    assert [0, 0, 0, "PCIe link down", 0, 2, 0, 5, 0, 1, 5, 6] == answers[10:]


def test_sgpus_take_memory_and_compute_until_there_is_no_more(cards: VendorMachine) -> None:
    answers = cards.run("""
        say([create(32768, 50), create(16384, 50), create(128, 1), create(32768, 0), left(),
             slice(1)])
        """)

    assert [0, 1, -5, -5, [65536, 16384, 0], [16384, 50]] == answers


def test_memory_comes_in_steps_of_128_mb(cards: VendorMachine) -> None:
    assert [-5, -5, 0] == cards.run("say([create(100, 10), create(0, 10), create(128, 10)])")


def test_a_card_holds_sixteen_sgpus_and_numbers_are_used_again(cards: VendorMachine) -> None:
    answers = cards.run("""
        made = [create(128, 1) for _ in range(17)]
        gone = mxsml.mxSmlRemoveSgpu(0, 3)
        say([made, gone, create(256, 1), mxsml.mxSmlGetSgpuCount(0), mxsml.mxSmlRemoveSgpu(0, 16)])
        """)

    assert [[*range(16), -5], 0, 3, 16, 3] == answers


def test_a_whole_card_is_sliced_only_once_it_is_switched(cards: VendorMachine) -> None:
    answers = cards.run("""
        toggle = c_uint(9)
        before = [mxsml.mxSmlGetSgpuToggle(1, byref(toggle)), toggle.value, create(128, 1, 1)]
        after = [mxsml.mxSmlSetSgpuToggle(1, 1), create(128, 1, 1), mxsml.mxSmlSetSgpuToggle(1, 0)]
        say([before, after, mxsml.mxSmlGetSgpuToggle(2, byref(toggle))])
        """)

    assert [[0, 0, -3], [0, 0, 5], 3] == answers


def test_an_sgpu_is_resized_and_named(cards: VendorMachine) -> None:
    answers = cards.run("""
        create(1024, 60), create(1024, 30)
        name, size = create_string_buffer(32), c_uint(4)
        say([
            mxsml.mxSmlSetSgpuVramQuota(0, 1, 2048), mxsml.mxSmlSetSgpuVramQuota(0, 1, 2000),
            mxsml.mxSmlSetSgpuComputeQuota(0, 1, 40), mxsml.mxSmlSetSgpuComputeQuota(0, 1, 41),
                slice(1),
            mxsml.mxSmlSetSgpuAlias(0, 1, b"hetero-1"), mxsml.mxSmlGetSgpuAlias(0, 1, name,
                byref(size)),
            size.value, mxsml.mxSmlGetSgpuAlias(0, 1, name, byref(size)), name.value.decode(),
            mxsml.mxSmlSetSgpuAlias(0, 1, b"x" * 32),
        ])
        """)

    assert [0, 5, 0, 5, [2048, 40], 0, 10, 9, 0, "hetero-1", 5] == answers


def test_how_slices_share_is_the_cards_and_lasts(cards: VendorMachine) -> None:
    assert [0, 5] == cards.run("say([mxsml.mxSmlSetDeviceSchedClass(0, c) for c in (1, 3)])")
    assert [0, 1] == cards.run(
        "kind = c_int(9); say([mxsml.mxSmlGetDeviceSchedClass(0, byref(kind)), kind.value])"
    )


def test_an_sgpu_outlives_its_killed_maker_and_is_busy_while_used(cards: VendorMachine) -> None:
    remove = "say(mxsml.mxSmlRemoveSgpu(0, 0))"
    with cards.standing("create(1024, 10)\nassert 0 == mxsml.fake_occupy(0, 0)"):
        assert 5 == cards.run(remove)

    assert 0 == cards.run(remove)


def test_faults_reach_calls_that_return_a_count_too(tmp_path: Path) -> None:
    machine = VendorMachine(
        tmp_path,
        CARDS,
        MXSML,
        "call = mxSmlGetDeviceCount; does = garbage",
        "call = mxSmlCreateSgpu; does = error 8",
    )

    assert [0xA5A5A5A5, -8] == machine.run(
        "say([mxsml.mxSmlGetDeviceCount() & 0xffffffff, create(128, 1)])"
    )
