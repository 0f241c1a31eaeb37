"""The fake libmtml through Moore Threads' own binding, unmodified, and through its ABI."""

from pathlib import Path

import pytest
from vendor_machine import VendorMachine

pytest.importorskip("pymtml", reason="mthreads-ml-py is not installed")

CARDS = """
[driver]
mthreads = 2.7.1

[device]
vendor = mthreads
model = MTT S4000
uuid = 1ed50000-0000-4000-8000-000000000001
serial = S4000X1
memory = 48 GiB
used = 5 GiB
busy = 61
core = 8192
numa = 1
pci = 0000:3a:00.0
links = 1:MTLINK2

[device]
vendor = mthreads
model = MTT S4000
memory = 48 GiB
core = 8192
numa = 1
health = ecc
"""

MTML = """
import pymtml as m

def answer(name, *arguments):
    try:
        return getattr(m, name)(*arguments)
    except m.MTMLError as error:
        return -error.value

def cards():
    return [m.mtmlLibraryInitDeviceByIndex(i) for i in range(m.mtmlLibraryCountDevice())]
"""


@pytest.fixture
def gpus(tmp_path: Path) -> VendorMachine:
    return VendorMachine(tmp_path, CARDS, MTML)


def test_a_card_says_who_where_and_how_it_is(gpus: VendorMachine) -> None:
    answers = gpus.run("""
        m.mtmlLibraryInit()
        one, other = cards()
        with m.mtmlMemoryContext(one) as memory, m.mtmlGpuContext(one) as gpu:
            inside = [m.mtmlMemoryGetTotal(memory) >> 30, m.mtmlMemoryGetUsed(memory) >> 30,
                      m.mtmlGpuGetUtilization(gpu),
                          m.mtmlMemoryGetRetiredPagesPendingStatus(memory)]
        with m.mtmlMemoryContext(other) as memory:
            ill = [m.mtmlMemoryGetRetiredPagesPendingStatus(memory),
                   m.mtmlMemoryGetEccErrorCounter(memory, 1, 0, 1)]
        say([
            m.mtmlSystemGetDriverVersion(m.mtmlLibraryInitSystem()),
            m.mtmlDeviceGetUUID(one), m.mtmlDeviceGetName(one), m.mtmlDeviceGetSerialNumber(one),
            m.mtmlDeviceGetPciInfo(one).sbdf, m.mtmlDeviceCountGpuCores(one),
            list(m.mtmlDeviceGetMemoryAffinityWithinNode(one, 1)), inside, ill,
            m.mtmlDeviceGetRenderPath(other), answer("mtmlDeviceGetMpcMode", one),
        ])
        """)

    uuid = "1ed50000-0000-4000-8000-000000000001"
    assert ["2.7.1", uuid, "MTT S4000", "S4000X1", "00000000:3a:00.0", 8192, [2]] == answers[:7]
    assert [[48, 5, 61, 0], [1, 1], "/dev/dri/renderD129", -4] == answers[7:]


def test_links_lead_to_the_other_card(gpus: VendorMachine) -> None:
    answers = gpus.run("""
        m.mtmlLibraryInit()
        one, other = cards()
        far = m.mtmlDeviceGetMtLinkRemoteDevice(one, 1)
        say([m.mtmlDeviceGetMtLinkSpec(one).linkNum, m.mtmlDeviceGetMtLinkState(one, 1),
             m.mtmlDeviceGetUUID(far) == m.mtmlDeviceGetUUID(other),
                 answer("mtmlDeviceGetMtLinkState", one, 2),
             m.mtmlDeviceGetTopologyLevel(one, other), m.mtmlDeviceGetTopologyLevel(one, one)])
        """)

    assert [2, 1, True, -3, 5, 0] == answers


def test_handles_that_are_not_are_refused_and_buffers_too_small_told(gpus: VendorMachine) -> None:
    codes = gpus.run("""
        mtml, library, card = CDLL("libmtml.so"), c_void_p(), c_void_p()
        text = create_string_buffer(4)
        before = mtml.mtmlLibraryCountDevice(None, byref(c_uint()))
        mtml.mtmlLibraryInit(byref(library))
        mtml.mtmlLibraryInitDeviceByIndex(library, 0, byref(card))
        say([before, mtml.mtmlDeviceGetName(card, text, 4), mtml.mtmlDeviceGetName(library, text,
            4),
             mtml.mtmlLibraryInitDeviceByIndex(library, 2, byref(card)),
             mtml.mtmlLibraryShutDown(library), mtml.mtmlDeviceGetName(card, text, 4)])
        """)

    assert [1, 6, 3, 7, 0, 1] == codes


def test_an_error_of_one_card_and_a_missing_call_pass_through_the_binding(tmp_path: Path) -> None:
    machine = VendorMachine(
        tmp_path,
        CARDS,
        MTML,
        "call = mtmlDeviceGetUUID; device = 1; does = error 2",
        "call = mtmlDeviceGetSerialNumber; does = missing",
    )

    assert ["1ed5", -2, -667] == machine.run("""
        m.mtmlLibraryInit()
        one, other = cards()
        say([answer("mtmlDeviceGetUUID", one)[:4], answer("mtmlDeviceGetUUID", other),
             answer("mtmlDeviceGetSerialNumber", one)])
        """)


def test_a_card_that_vanished_fails_where_it_is_still_held(tmp_path: Path) -> None:
    machine = VendorMachine(
        tmp_path, CARDS, MTML, "call = mtmlLibraryCountDevice; device = 0; does = vanish"
    )

    assert [2, -2, "MTT S4000"] == machine.run("""
        m.mtmlLibraryInit()
        held = cards()
        cards()
        say([len(held), answer("mtmlDeviceGetName", held[0]), answer("mtmlDeviceGetName", held[1])])
        """)
