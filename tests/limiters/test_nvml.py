"""Under a grant NVML shows the grant: its cards in its order, its memory and processes."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import hetero_simulator
import pytest
from tenancy import MIB, UUIDS, Rack, Terms, meanwhile

from tests.programs import next_line

ROOT = Path(__file__).parents[2]
FIRST, SECOND = UUIDS
NEIGHBOUR = 200 * MIB
#: `start` has NVML open; `tried` is a call's answer, or the name of its error.
NVML = """
import os, time
import pynvml
from pynvml import *
nvmlInit()
def tried(function, *arguments):
    try:
        return function(*arguments)
    except NVMLError as error:
        return str(error)
def uuid(handle): return tried(nvmlDeviceGetUUID, handle)
"""
CARD = f"card = nvmlDeviceGetHandleByUUID({SECOND!r})\n"
#: A program with 200 MiB and all the time of each card, and under no grant.
BUSY = f"""
def busy(device):
    start(device)
    take("plain", {NEIGHBOUR})
    launch(spin_kernel(), 4_000_000)
busy(0)
busy(1)
say("busy")
sys.stdin.read()
"""


@pytest.fixture
def rack(tmp_path: Path) -> Rack:
    """Two cards of 1 GiB."""
    return Rack.of(tmp_path, 2)


@pytest.fixture
def shared(rack: Rack) -> Iterator[Rack]:
    """The same, with a program on both."""
    program = rack.start(BUSY)
    with meanwhile(program):
        assert '"busy"\n' == next_line(program)
        yield rack


@pytest.fixture
def management(tmp_path: Path) -> str:
    """Where management.c is the NVML, and the rest of the drivers the simulated one."""
    directory = tmp_path / "nvml"
    directory.mkdir()
    flags = ["-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,-soname,libnvidia-ml.so.1"]
    out = directory / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("management.c")
    subprocess.run(["cc", *flags, "-o", out, source], check=True)
    return f"{directory}:{hetero_simulator.fake_drivers()}"


# ---------------------------------------------------------------------------------------- cards


def test_a_card_that_is_not_granted_is_nowhere(shared: Rack) -> None:
    answers = shared.grant(Terms(uuid=SECOND)).run(f"""{NVML}
card = nvmlDeviceGetHandleByIndex(0)
pci = nvmlDeviceGetPciInfo(card).busId
at_addresses = [tried(nvmlDeviceGetHandleByPciBusId, f"0:{{bus:x}}:0") for bus in range(256)]
say([
    nvmlDeviceGetCount(), uuid(card), nvmlDeviceGetIndex(card), nvmlDeviceGetMinorNumber(card),
    uuid(nvmlDeviceGetHandleByUUID({SECOND!r})), uuid(nvmlDeviceGetHandleByPciBusId(pci)),
    tried(nvmlDeviceGetHandleByIndex, 1),
    tried(nvmlDeviceGetHandleByUUID, {FIRST!r}),
    [uuid(found) for found in at_addresses if found != "Not Found"],
])
""")
    assert [
        *(1, SECOND, 0, 1),
        *(SECOND, SECOND),
        *("Invalid Argument", "Not Found"),
        [SECOND],
    ] == answers


def test_cards_have_the_order_of_the_grant_as_in_cuda(rack: Rack) -> None:
    code = (
        NVML
        + """
call("cuInit", 0)
def cuda_uuid(device):
    it = (ctypes.c_ubyte * 16)()
    call("cuDeviceGetUuid_v2", it, c_int(device))
    return bytes(it).hex()
cards = [nvmlDeviceGetHandleByIndex(index) for index in range(nvmlDeviceGetCount())]
say([[uuid(card) for card in cards], [nvmlDeviceGetIndex(card) for card in cards],
     [cuda_uuid(device) for device in range(len(cards))],
     [nvmlDeviceGetMinorNumber(card) for card in cards]])
"""
    )
    grant = rack.grant(Terms(uuid=SECOND), Terms(uuid=FIRST))
    nvml, indexes, cuda, minors = grant.run(code, CUDA_VISIBLE_DEVICES=f"{SECOND},{FIRST}")

    assert [SECOND, FIRST] == nvml
    assert [each.removeprefix("GPU-").replace("-", "") for each in nvml] == cuda
    assert [0, 1] == indexes
    assert [1, 0] == minors


def test_a_device_of_another_vendor_has_no_index(rack: Rack) -> None:
    other = "MXC-99999999-2222-3333-4444-555555555555"
    cards = rack.grant(Terms(uuid=other), Terms(uuid=SECOND)).run(
        NVML + "say([nvmlDeviceGetCount(), uuid(nvmlDeviceGetHandleByIndex(0))])"
    )
    assert [1, SECOND] == cards


def test_before_nvml_is_started_it_says_so(rack: Rack) -> None:
    codes = rack.grant(Terms(uuid=SECOND)).run("""
nvml = ctypes.CDLL("libnvidia-ml.so.1")
card, count = c_void_p(), c_uint()
say([nvml.nvmlDeviceGetCount_v2(byref(count)), nvml.nvmlDeviceGetHandleByIndex_v2(0, byref(card)),
     nvml.nvmlDeviceGetHandleByUUID(b"x", byref(card))])
""")
    assert [1, 1, 1] == codes


def test_a_serial_number_a_drain_and_an_excluded_card_lead_to_no_other_card(
    rack: Rack, management: str
) -> None:
    program = f"""{NVML}
def drained(bus):
    state = c_uint()
    pci = nvmlPciInfo_t(bus=bus)
    return pynvml._nvmlGetFunctionPointer("nvmlDeviceQueryDrainState")(byref(pci), byref(state))
def by_struct(text):
    it, card = c_nvmlUUID_t(), c_void_p()
    it.version, it.type, it.value.str = nvmlUUID_v1, 1, text.encode()
    found = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetHandleByUUIDV")
    return found(byref(it), byref(card)), card.value is not None
say([
    tried(nvmlDeviceGetHandleBySerial, "100"), uuid(nvmlDeviceGetHandleBySerial("200")),
    by_struct({FIRST!r}), by_struct({SECOND!r}), drained(1), drained(2),
    nvmlGetExcludedDeviceCount(), tried(nvmlGetExcludedDeviceInfoByIndex, 0),
])
"""
    answers = rack.grant(Terms(uuid=SECOND)).run(program, LD_LIBRARY_PATH=management)
    assert ["Not Found", SECOND, [6, False], [0, True], 2, 0, 0, "Invalid Argument"] == answers


def test_lists_of_cards_name_the_granted_ones(rack: Rack, management: str) -> None:
    program = f"""{NVML}{CARD}
def of_unit(room):
    count, cards = c_uint(room), (c_nvmlDevice_t * 4)()
    code = pynvml._nvmlGetFunctionPointer("nvmlUnitGetDevices")(None, byref(count), cards)
    return code, count.value, [uuid(each) for each in cards[:count.value] if each]
say([[uuid(each) for each in nvmlDeviceGetTopologyNearestGpus(card, 50)],
     [uuid(each) for each in nvmlSystemGetTopologyGpuSet(0)], of_unit(4), of_unit(0)])
"""
    cards = rack.grant(Terms(uuid=SECOND)).run(program, LD_LIBRARY_PATH=management)
    assert [[SECOND], [SECOND], [0, 1, [SECOND]], [7, 1, []]] == cards


def test_of_a_card_in_parts_the_granted_ones_are_there(tmp_path: Path) -> None:
    parted = "mig = 1g.10gb x3\n"
    rack = Rack.of(tmp_path, 2, parted, model="NVIDIA H100")
    code = (
        NVML
        + """
def parts(card):
    found = [tried(nvmlDeviceGetMigDeviceHandleByIndex, card, index) for index in range(7)]
    return [[uuid(part), nvmlDeviceGetIndex(part), nvmlDeviceGetMemoryInfo(part).total]
            for part in found if not isinstance(part, str)]
cards = [nvmlDeviceGetHandleByIndex(index) for index in range(nvmlDeviceGetCount())]
def memory(card):
    it = nvmlDeviceGetMemoryInfo(card)
    return it.total, it.used + it.free
say([[uuid(card), nvmlDeviceGetIndex(card), memory(card), parts(card)] for card in cards])
"""
    )
    (_, (uuid, _, _, parts)) = rack.run(code)
    wanted = [parts[2][0], parts[0][0]]
    grant = rack.grant(*(Terms(uuid=each, memory=(1 + i) * MIB) for i, each in enumerate(wanted)))

    shown = [[wanted[0], 0, MIB], [wanted[1], 1, 2 * MIB]]
    assert [[uuid, 0, [3 * MIB, 3 * MIB], shown]] == grant.run(code)
    hidden = f"say([tried(nvmlDeviceGetHandleByUUID, each) for each in {[parts[1][0], FIRST]}])"
    assert ["Not Found"] * 2 == grant.run(NVML + hidden)


# --------------------------------------------------------------------------------------- memory

SUMS = """
def sums(index=0):
    card = nvmlDeviceGetHandleByIndex(index)
    one, two = nvmlDeviceGetMemoryInfo(card), nvmlDeviceGetMemoryInfo(card, nvmlMemory_v2)
    assert one.used + one.free == one.total == two.total
    assert two.used + two.free + two.reserved == two.total
    assert one.free == two.free
    return [two.total, two.used, two.free]
"""


def test_memory_sums_to_the_grant(shared: Rack) -> None:
    amounts = shared.grant(Terms(uuid=SECOND, memory=64 * MIB)).run(
        NVML + SUMS + f'start()\ntake("plain", {10 * MIB})\nsay(sums())', CUDA_VISIBLE_DEVICES="0"
    )
    assert [64 * MIB, 10 * MIB, 54 * MIB] == amounts


def test_what_the_card_has_no_room_for_is_reserved(shared: Rack) -> None:
    total, used, free = shared.grant(Terms(uuid=SECOND, memory=1000 * MIB)).run(
        NVML + SUMS + "say(sums())"
    )
    assert (1000 * MIB, 0) == (total, used)
    assert 0 < free <= 1024 * MIB - NEIGHBOUR


def test_memory_sums_to_a_limit_that_was_lowered_below_what_is_held(rack: Rack) -> None:
    grant = rack.grant(Terms(memory=64 * MIB))
    program = grant.start(
        NVML
        + SUMS
        + f'start()\ntake("plain", {10 * MIB})\nsay(0)\nsys.stdin.readline()\nsay(sums())'
    )
    next_line(program)
    grant.set(Terms(memory=4 * MIB))
    out, _ = program.communicate("\n", timeout=60)

    assert [4 * MIB, 4 * MIB, 0] == json.loads(out)


# ------------------------------------------------------------------------------------ processes

LISTED = (
    CARD
    + """
def listed(name, struct, room=8):
    count, rows = c_uint(room), (struct * 8)()
    ask = pynvml._nvmlGetFunctionPointer(name)
    code = ask(card, byref(count), rows if room else None)
    if not room:
        return code, count.value
    found = [[row.pid - os.getpid(), row.usedGpuMemory // (1 << 20)] for row in rows[:count.value]]
    return code, found
class Old(ctypes.Structure):
    _fields_ = [("pid", c_uint), ("usedGpuMemory", ctypes.c_ulonglong)]
def versions(kind):
    structs = {"": Old, "_v2": c_nvmlProcessInfo_v2_t, "_v3": c_nvmlProcessInfo_v2_t}
    return [listed(f"nvmlDeviceGet{kind}RunningProcesses{version}", struct)
            for version, struct in structs.items()]
"""
)


def test_processes_are_the_grants_own_in_each_version(shared: Rack) -> None:
    grant = shared.grant(Terms(uuid=SECOND))
    sibling = grant.start(
        f'start()\ntake("plain", {3 * MIB})\nsay(0)\nsys.stdin.read()', CUDA_VISIBLE_DEVICES="0"
    )
    with meanwhile(sibling):
        next_line(sibling)
        program = f"""{NVML}{LISTED}
start()
take("plain", {10 * MIB})
details = nvmlDeviceGetRunningProcessDetailList(card, nvmlProcessDetailList_v1, 0)
say([versions("Compute"), versions("Graphics"),
     [[one.pid - os.getpid(), one.usedGpuMemory // {MIB}] for one in details],
     listed("nvmlDeviceGetComputeRunningProcesses", Old, 0)])
"""
        compute, graphics, details, without_room = grant.run(program, CUDA_VISIBLE_DEVICES="0")
    own = details
    assert [4, 10] == sorted(memory for _, memory in own)
    assert [0, 10] in own
    assert [[0, own]] * 3 == compute
    assert [[0, []]] * 3 == graphics
    assert [7, 2] == without_room


@pytest.mark.parametrize("environment", [{"MEMORY": "no"}, {"PIDS": "host"}])
def test_a_process_that_the_driver_lists_badly_has_the_ledgers_figure(
    rack: Rack, management: str, environment: dict[str, str]
) -> None:
    program = f"""{NVML}{LISTED}
start(1)
take("plain", {10 * MIB})
say(listed("nvmlDeviceGetComputeRunningProcesses", Old))
"""
    processes = rack.grant(Terms(uuid=SECOND)).run(
        program, LD_LIBRARY_PATH=management, **environment
    )
    assert [0, [[0, 10]]] == processes


def test_accounts_and_sessions_are_of_the_grants_processes(rack: Rack, management: str) -> None:
    program = f"""{NVML}{CARD}
start(1)
own = os.getpid()
def stats(pid):
    it = (c_uint * 32)(pid)
    return pynvml._nvmlGetFunctionPointer("nvmlDeviceGetAccountingStats_v2")(card, it)
def asked(name):
    count = c_uint(0)
    return pynvml._nvmlGetFunctionPointer(name)(card, byref(count), None), count.value
say([
    [pid - own for pid in nvmlDeviceGetAccountingPids(card)],
    [tried(lambda: bool(nvmlDeviceGetAccountingStats(card, own + each))) for each in (0, 1)],
    [stats(own), stats(own + 1)],
    [one.pid - own for one in nvmlDeviceGetEncoderSessions(card)],
    [one.pid - own for one in nvmlDeviceGetFBCSessions(card)],
    asked("nvmlDeviceGetEncoderSessions"), asked("nvmlDeviceGetFBCSessions"),
    [one.pid - own for one in nvmlDeviceGetMPSComputeRunningProcesses(card)],
])
"""
    answers = rack.grant(Terms(uuid=SECOND)).run(program, LD_LIBRARY_PATH=management)
    own = [0]
    assert [own, [True, "Not Found"], [0, 6], own, own, [0, 1], [0, 1], own] == answers


# ---------------------------------------------------------------------------------- utilization

UTILIZATION = (
    CARD
    + """
def rates():
    it = nvmlDeviceGetUtilizationRates(card)
    return it.gpu, it.memory
def samples(kind):
    return [each.sampleValue.uiVal for each in nvmlDeviceGetSamples(card, kind, 0)[1]]
"""
)


def test_utilization_is_the_device_time_that_the_grant_is_charged(shared: Rack) -> None:
    grant = shared.grant(Terms(uuid=SECOND, core=3000))
    program = f"""{NVML}{UTILIZATION}
start()
idle = rates()[0]
def work(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        launch(kernel, 1000)
        call("cuCtxSynchronize")
kernel = spin_kernel()
work(1.2)
first = rates()[0]
work(0.7)
say([idle, first, rates()[0]])
"""
    idle, busy, later = grant.run(program, CUDA_VISIBLE_DEVICES="0")
    assert 0 == idle
    assert 20 <= busy <= 45  # a second may begin with a burst of 100 ms
    assert 20 <= later <= 45


def test_utilization_without_a_limit_of_core_is_what_the_driver_sampled_of_the_grant(
    shared: Rack, management: str
) -> None:
    percents = shared.grant(Terms(uuid=SECOND)).run(
        NVML + UTILIZATION + "start(1)\nsay([rates(), samples(1)])",
        LD_LIBRARY_PATH=management,
    )
    assert [[30, 30], [30]] == percents


def test_utilization_is_unknown_where_the_driver_knows_the_processes_by_other_pids(
    rack: Rack, management: str
) -> None:
    answers = rack.grant(Terms(uuid=SECOND)).run(
        NVML + UTILIZATION + "start(1)\nsay([tried(rates), tried(samples, 1)])",
        LD_LIBRARY_PATH=management,
        PIDS="host",
    )
    assert ["Not Supported"] * 2 == answers


def test_samples_of_utilization_are_of_the_grants_processes(rack: Rack, management: str) -> None:
    program = f"""{NVML}{UTILIZATION}
start(1)
own = os.getpid()
say([[one.pid - own for one in nvmlDeviceGetProcessUtilization(card, 0)],
     [one.pid - own for one in nvmlDeviceGetProcessesUtilizationInfo(card, 0)]])
"""
    samples = rack.grant(Terms(uuid=SECOND)).run(program, LD_LIBRARY_PATH=management)
    assert [[0], [0]] == samples


def test_a_grant_that_does_nothing_has_no_samples_of_its_neighbours(shared: Rack) -> None:
    answer = shared.grant(Terms(uuid=SECOND)).run(
        NVML + UTILIZATION + "say(tried(nvmlDeviceGetProcessUtilization, card, 0))"
    )
    assert "Not Found" == answer


def test_what_is_known_of_the_whole_card_alone_is_not_said(rack: Rack, management: str) -> None:
    program = f"""{NVML}{UTILIZATION}
gpm = pynvml._nvmlGetFunctionPointer("nvmlGpmSampleGet")
say([tried(nvmlDeviceGetEncoderUtilization, card), tried(samples, 2), tried(samples, 9),
     nvmlGpmQueryDeviceSupport(card).isSupportedDevice, gpm(card, None), samples(0)])
"""
    answers = rack.grant(Terms(uuid=SECOND)).run(program, LD_LIBRARY_PATH=management)
    assert [*["Not Supported"] * 3, 0, 3, [99]] == answers
