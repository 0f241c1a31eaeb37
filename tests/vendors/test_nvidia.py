"""NVIDIA discovery through the real binding and the fake driver's NVML, rack by rack."""

import json
import sys
from pathlib import Path
from textwrap import dedent

import hetero_simulator
import pytest
from contract import contract_holds, on_rack

from hetero import plugin
from hetero.model import (
    CORE,
    MEMORY,
    SLOTS,
    Allocation,
    Ask,
    Device,
    Enforcement,
    Inventory,
    Link,
    Refusal,
    Request,
    Templated,
    codec,
)
from hetero.model.units import GiB, MiB
from hetero.node.settings import read_settings
from hetero.placement import fit
from hetero.registry.registry import Discovery, Registry

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

QUERY = """
import pynvml

{change}

import hetero_nvidia
from hetero.model import codec
from hetero.registry.registry import Registry

print(codec.dumps(Registry.of(hetero_nvidia).discover()))
"""


def discover(path: Path, rack: str, *, change: str = "") -> Discovery:
    """Look at `rack` through NVML, after `change` made the driver answer differently."""
    file = path / "test.rack"
    file.write_text(dedent(rack))
    printed = on_rack(["-c", QUERY.format(change=dedent(change))], file)
    return codec.loads(printed, Discovery, source="discovery")


ONE = """
    [device]
    vendor = nvidia
    model = NVIDIA H200
    uuid = GPU-5e9f0c1a-8d4e-4c55-9f0e-0123456789ab
    memory = 143771 MiB
    numa = 1
    pci = 0000:18:00.0
    compute = 9.0

    [driver]
    nvidia = 580.159.04
"""


def test_what_the_driver_keeps_for_itself_is_known_and_promised_to_nobody(tmp_path: Path) -> None:
    (device,) = discover(tmp_path, ONE.replace("numa = 1", "reserved = 551 MiB")).devices

    assert (143771 - 551) * MiB == device.capacity[MEMORY]
    assert str(551 * MiB) == device.attributes["reserved"]


def test_two_halves_of_a_card_are_halves_of_what_programs_can_have(tmp_path: Path) -> None:
    (device,) = discover(tmp_path, ONE.replace("numa = 1", "reserved = 551 MiB")).devices
    half = Request(asks=(Ask(memory_percent=50),))
    first = fit(Inventory((device,)), half)
    assert isinstance(first, Allocation)
    second = fit(Inventory((device,), (first,)), half)

    assert isinstance(second, Allocation)
    assert (143771 - 551) * MiB == sum(one.pieces[0].takes[MEMORY] for one in (first, second))


def test_the_size_that_a_card_is_known_by_is_all_that_programs_can_have(tmp_path: Path) -> None:
    (device,) = discover(tmp_path, ONE.replace("numa = 1", "reserved = 551 MiB")).devices
    answer = fit(Inventory((device,)), Request(asks=(Ask(memory=143771 * MiB),)))

    assert isinstance(answer, Allocation)
    assert answer.pieces[0].is_whole(device)
    assert isinstance(fit(Inventory((device,)), Request(asks=(Ask(memory=143772 * MiB),))), Refusal)


def test_everything_nvml_says_of_a_card_is_there(tmp_path: Path) -> None:
    (device,) = discover(tmp_path, ONE).devices

    expected = Device(
        uuid="GPU-5e9f0c1a-8d4e-4c55-9f0e-0123456789ab",
        vendor="nvidia",
        model="NVIDIA H200",
        index=0,
        capacity={CORE: 100, MEMORY: 143771 * MiB, SLOTS: 10},
        granularity=plugin.Fractional(plugin.Step(MiB), plugin.Step(1), plugin.MultiDevice.SHARES),
        enforcement=Enforcement.PRELOAD,
        health="ok",
        numa=1,
        pci="0000:18:00.0",
        links=(),
        attributes={"driver": "580.159.04", "minor": "0", "compute-capability": "9.0"},
    )
    assert expected == device


def test_what_nvml_will_not_say_is_none(tmp_path: Path) -> None:
    silence = """
        def silent(*_):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

        def missing(*_):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

        pynvml.nvmlDeviceGetMemoryAffinity = pynvml.nvmlDeviceGetPciInfo = silent
        pynvml.nvmlDeviceGetRemappedRows = pynvml.nvmlDeviceGetTotalEccErrors = silent
        pynvml.nvmlDeviceGetRetiredPagesPendingStatus = silent
        pynvml.nvmlDeviceGetCudaComputeCapability = pynvml.nvmlDeviceGetMigMode = missing
    """
    (device,) = discover(tmp_path, ONE, change=silence).devices

    assert (None, None, None) == (device.numa, device.pci, device.health)
    assert {"driver": "580.159.04", "minor": "0"} == device.attributes
    assert device.usable


def test_an_old_driver_without_the_second_memory_call_still_says_its_memory(
    tmp_path: Path,
) -> None:
    old = """
        first = pynvml.nvmlDeviceGetMemoryInfo

        def only_first(handle, version=None):
            if version:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
            return first(handle)

        pynvml.nvmlDeviceGetMemoryInfo = only_first
    """
    (device,) = discover(tmp_path, ONE, change=old).devices

    assert 143771 * MiB == device.capacity[MEMORY]


def test_a_card_of_unified_memory_has_what_the_settings_say_or_gives_nothing(
    tmp_path: Path,
) -> None:
    """NVML answers "not supported" for a GB10, as HAMi's preConfiguredDeviceMemory expects."""
    unified = """
        def unsupported(*_):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

        pynvml.nvmlDeviceGetMemoryInfo = unsupported
    """
    (device,) = discover(tmp_path, ONE, change=unified).devices

    def offered(text: str) -> Device:
        settings = read_settings(tomllib.loads(text))
        (given,) = settings.offered([device], limiter_vendors={"nvidia"})
        return given

    silent, sized = offered(""), offered('[cards]\nmemory = "119Gi"\n')
    assert not silent.usable
    assert "its driver says no memory: write cards.memory in the node's settings" == silent.health
    assert (True, 119 * GiB) == (sized.usable, sized.capacity[MEMORY])


def test_no_driver_is_absent_and_says_what_to_check(tmp_path: Path) -> None:
    absent = "raise_absent = pynvml.NVMLError(pynvml.NVML_ERROR_{})\n"
    for error, words in (
        ("LIBRARY_NOT_FOUND", "Shared Library Not Found"),
        ("DRIVER_NOT_LOADED", "Driver Not Loaded"),
    ):
        change = absent.format(error) + "def nvmlInit(): raise raise_absent\n"
        (row,) = discover(tmp_path, ONE, change=change + "pynvml.nvmlInit = nvmlInit").rows

        assert "absent" == row.state
        assert words in str(row.reason)
        assert str(row.reason).endswith(
            "(is the driver loaded, and mounted if this is a container?)"
        )


def test_a_driver_that_fails_is_broken_with_the_card_and_what_to_look_at(tmp_path: Path) -> None:
    failing = """
        def fail(*_):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)

        pynvml.nvmlDeviceGetName = fail
    """
    (row,) = discover(tmp_path, ONE, change=failing).rows

    failure = "fail: error 999 (Unknown Error; see `nvidia-smi -q` and the kernel log)"
    assert ("broken", f"nvidia: discover: card 0: {failure}") == (row.state, row.reason)


# --- health --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "answer", "health"),
    [
        ("nvmlDeviceGetRemappedRows", (0, 1, 1, 0), "memory repair pending: reset the card"),
        ("nvmlDeviceGetRemappedRows", (0, 8, 0, 1), "row remapping failed: replace the card"),
        ("nvmlDeviceGetRemappedRows", (3, 1, 0, 0), "ok"),
        ("nvmlDeviceGetRetiredPagesPendingStatus", 1, "memory repair pending: reset the card"),
        ("nvmlDeviceGetTotalEccErrors", 2, "2 uncorrected memory errors: reset the card"),
    ],
)
def test_health_is_what_nvmls_error_records_say(
    tmp_path: Path, call: str, answer: object, health: str
) -> None:
    change = f"pynvml.{call} = lambda *_: {answer!r}"
    (device,) = discover(tmp_path, ONE, change=change).devices

    assert health == device.health


def test_a_lost_card_is_shown_beside_the_others_and_never_given_out(tmp_path: Path) -> None:
    rack = """
        [device]
        vendor = nvidia
        model = NVIDIA L4
        memory = 24 GiB
        health = XID 79
        links = 1:PIX

        [device]
        vendor = nvidia
        model = NVIDIA L4
        memory = 24 GiB
    """
    discovery = discover(tmp_path, rack)
    lost, well = discovery.devices
    got = fit(discovery.inventory, Request(asks=(Ask(memory=GiB), Ask(memory=GiB))))

    assert ("ok", [0, 1]) == (discovery.rows[0].state, [lost.index, well.index])
    assert (False, True) == (lost.usable, well.usable)
    assert "lost" in str(lost.health).lower()
    assert () == well.links
    assert isinstance(got, Refusal)
    assert f"1 of 2 devices fits (2 needed): 1 unhealthy ({lost.health})" == got.sentence


@pytest.mark.parametrize(
    ("health", "health_shown"),
    [
        ("ecc", "1 uncorrected memory errors: reset the card"),
        ("hot", "too hot: the hardware slows it down"),
    ],
)
def test_what_the_driver_says_is_wrong_with_a_card_is_its_health(
    tmp_path: Path, health: str, health_shown: str
) -> None:
    (device,) = discover(tmp_path, ONE.replace("numa = 1", f"health = {health}")).devices

    assert (health_shown, False) == (device.health, device.usable)


COOLS = """
import os, pathlib, time
import hetero_nvidia
from hetero import plugin
rack = pathlib.Path(os.environ["HETERO_RACK"])
(hot,) = hetero_nvidia.hetero_discover()
rack.write_text(rack.read_text().replace("health = hot", "health = ok"))
(cools,) = hetero_nvidia.hetero_discover()
hetero_nvidia.cards.HOT = plugin.Lingering(0.0)
(cool,) = hetero_nvidia.hetero_discover()
print(hot.usable, cools.usable, cool.usable)
"""


def test_a_card_that_was_too_hot_is_so_for_a_while_to_who_goes_on_looking(tmp_path: Path) -> None:
    file = tmp_path / "test.rack"
    file.write_text(dedent(ONE.replace("numa = 1", "health = hot")))

    assert ["False", "False", "True"] == on_rack(["-c", COOLS], file).split()


#: Xids before 48 are of programs, or nothing that lasts. Events are told from the moment on at
#: which somebody waits for them.
WATCH = """
import itertools, json, os, pathlib, threading
import hetero_nvidia
rack, told = pathlib.Path(os.environ["HETERO_RACK"]), []
text = rack.read_text()
waits = threading.Thread(target=lambda: told.append(hetero_nvidia.hetero_watch(faults={})))
waits.start()
for xid in itertools.cycle((13, 31, 43, 45, 63, 68, 94, 109, 154, 48)):
    rack.with_suffix(".new").write_text(text.replace("numa = 1", f"xid = {xid}"))
    rack.with_suffix(".new").rename(rack)
    waits.join(0.2)
    if told:
        break
print(json.dumps(told))
"""
UUID = "GPU-5e9f0c1a-8d4e-4c55-9f0e-0123456789ab"


def test_a_critical_xid_is_told_and_one_of_a_programs_is_not(tmp_path: Path) -> None:
    file = tmp_path / "test.rack"
    file.write_text(dedent(ONE))
    xids = {UUID: "Xid 48: see the kernel log, reset the card"}

    assert [xids] == json.loads(on_rack(["-c", WATCH], file))


#: The driver wants a reset; once that is done it wants nothing more. Another vendor's card is none.
#: A program faults all the time: its Xids come faster than looks.
RECOVERS = """
import itertools, json, os, pathlib, sys, threading
import hetero_nvidia
hetero_nvidia._LOOK_MS = 500
rack, told = pathlib.Path(os.environ["HETERO_RACK"]), []
text = rack.read_text()

def write(rest):
    rack.with_suffix(".new").write_text(text.replace("recovery = 1", rest))
    rack.with_suffix(".new").rename(rack)

(sick,) = hetero_nvidia.hetero_discover()
faults = {sick.uuid: "Xid 48: see the kernel log, reset the card", "other-0": "fell"}
waits = threading.Thread(target=lambda: told.append(hetero_nvidia.hetero_watch(faults=faults)))
waits.start()
xids = itertools.cycle((13, 31)) if sys.argv[1] == "faulting" else itertools.repeat(None)
told_early = None
for number, xid in zip(range(200), xids):
    if number == 10:
        told_early = list(told)
    action = "recovery = 1" if number < 10 else "recovery = 0"
    write(action if xid is None else f"{action}\\nxid = {xid}")
    waits.join(0.1)
    if told:
        break
(well,) = hetero_nvidia.hetero_discover()
print(json.dumps([sick.health, told_early, told, well.health]), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("programs", ["quiet", "faulting"])
def test_a_card_is_well_again_when_its_driver_wants_no_recovery_any_more(
    tmp_path: Path, programs: str
) -> None:
    file = tmp_path / "test.rack"
    file.write_text(dedent(ONE.replace("numa = 1", "recovery = 1")))

    assert [
        "the driver wants it recovered: reset the card",
        [],
        [{UUID: None}],
        "ok",
    ] == json.loads(on_rack(["-c", RECOVERS, programs], file))


# --- enforcement ---------------------------------------------------------------------------------


def test_an_enforcement_that_nothing_provides_is_not_claimed(tmp_path: Path) -> None:
    change = "pynvml.nvmlDeviceGetMemoryLimits_v1 = lambda handle, limits: None  # a newer driver"
    (device,) = discover(tmp_path, ONE, change=change).devices

    assert Enforcement.PRELOAD is device.enforcement


# --- links ---------------------------------------------------------------------------------------

FOUR = """
    [device]
    vendor = nvidia
    model = NVIDIA A100
    uuid = GPU-a
    memory = 80 GiB
    pci = 0000:18:00.0
    links = 1:NV12 2:PIX 3:SYS

    [device]
    vendor = nvidia
    model = NVIDIA A100
    uuid = GPU-b
    memory = 80 GiB
    pci = 0000:19:00.0
    links = 2:PHB

    [device]
    vendor = nvidia
    model = NVIDIA A100
    uuid = GPU-c
    memory = 80 GiB
    pci = 0000:3b:00.0

    [device]
    vendor = nvidia
    model = NVIDIA A100
    uuid = GPU-d
    memory = 80 GiB
    pci = 0001:3b:00.0
"""


def test_links_name_the_peer_the_way_and_weigh_nvlink_above_any_pcie(tmp_path: Path) -> None:
    first, second, *_ = discover(tmp_path, FOUR).devices

    assert (Link("GPU-b", "NV12", 120), Link("GPU-c", "PIX", 5), Link("GPU-d", "SYS", 1)) == (
        first.links
    )
    assert [("GPU-a", "NV12", 120), ("GPU-c", "PHB", 3)] == [
        (link.peer, link.kind, link.weight) for link in second.links[:2]
    ]


def test_cards_on_one_nvswitch_are_linked_to_each_other(tmp_path: Path) -> None:
    switched = """
        pynvml.nvmlDeviceGetNvLinkState = lambda handle, link: int(link < 18)
        pynvml.nvmlDeviceGetNvLinkRemoteDeviceType = lambda handle, link: 2
    """
    devices = discover(tmp_path, FOUR, change=switched).devices

    assert {(3, "NV18", 180)} == {
        (len(device.links), link.kind, link.weight) for device in devices for link in device.links
    }


# --- MIG -----------------------------------------------------------------------------------------

MIG = """
    [device]
    vendor = nvidia
    model = NVIDIA H200
    memory = 143771 MiB
    mig = 2g.35gb x1, 1g.18gb x3
"""


def test_a_mig_card_comes_out_as_its_instances_smallest_first(tmp_path: Path) -> None:
    (device,) = discover(tmp_path, MIG).devices

    assert isinstance(device.granularity, Templated)
    menu = device.granularity.menu
    assert (Enforcement.PARTITION, False) == (device.enforcement, device.granularity.whole)
    assert ["1g.18gb", "1g.18gb", "1g.18gb", "2g.35gb"] == [shape.name for shape in menu]
    assert [1, 1, 1, 2] == [shape.takes[CORE] for shape in menu]
    assert 4 == len({shape.part for shape in menu})
    assert all(str(shape.part).startswith("MIG-") for shape in menu)
    assert {CORE: 7, MEMORY: 143771 * MiB, SLOTS: 4, "1g.18gb": 3, "2g.35gb": 1} == {
        name: amount for name, amount in device.capacity.items() if not name.startswith("MIG-")
    }


def test_an_instance_with_media_engines_has_the_name_that_pods_ask_by(tmp_path: Path) -> None:
    """The driver writes a plus, which no resource name may have."""
    engines = """
        name_of = pynvml.nvmlDeviceGetName
        pynvml.nvmlDeviceGetName = lambda part: name_of(part).replace("1g.18gb", "1g.18gb+me")
    """
    (device,) = discover(tmp_path, MIG, change=engines).devices
    named = {names.count: names for names in Registry().vendor("nvidia").resource_names}

    assert {"1g.18gb.me", "2g.35gb"} == device.shapes
    assert named["nvidia.com/mig-1g.18gb.me"].devices.mean(device)
    assert not named["nvidia.com/mig-1g.18gb"].devices.mean(device)


def test_four_requests_take_three_small_instances_then_the_larger_and_the_fifth_is_refused(
    tmp_path: Path,
) -> None:
    inventory = discover(tmp_path, MIG).inventory
    asked = Request(asks=(Ask(memory=10 * GiB),))
    taken = []
    for _ in range(4):
        got = fit(inventory, asked)
        assert isinstance(got, Allocation)
        taken.append((got.pieces[0].template, got.pieces[0].part))
        inventory = Inventory(inventory.devices, (*inventory.standing, got))
    fifth = fit(inventory, asked)

    assert ["1g.18gb", "1g.18gb", "1g.18gb", "2g.35gb"] == [name for name, _ in taken]
    assert 4 == len({part for _, part in taken})
    assert isinstance(fifth, Refusal)
    assert "0 of 1 device: 1 lack 1g.18gb (1 wanted, largest free 0)" == fifth.sentence


def test_of_compute_instances_that_share_their_memory_only_the_largest_is_given(
    tmp_path: Path,
) -> None:
    shared = "pynvml.nvmlDeviceGetGpuInstanceId = lambda part: 1"
    (device,) = discover(tmp_path, MIG, change=shared).devices

    assert isinstance(device.granularity, Templated)
    assert ["2g.35gb"] == [shape.name for shape in device.granularity.menu]
    assert 1 == device.capacity[SLOTS]


def test_a_mig_card_without_an_instance_says_so_and_is_given_to_nobody(tmp_path: Path) -> None:
    none = """
        def none(*_):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

        pynvml.nvmlDeviceGetMigDeviceHandleByIndex = none
    """
    discovery = discover(tmp_path, MIG, change=none)
    got = fit(discovery.inventory, Request(asks=(Ask(memory=GiB),)))

    assert isinstance(got, Refusal)
    assert "0 of 1 device: 1 unhealthy (MIG is on without an instance)" == got.sentence


# --- observe, balance, contract ------------------------------------------------------------------


def test_usage_is_read_from_nvml_and_every_opening_is_closed(tmp_path: Path) -> None:
    rack = tmp_path / "test.rack"
    rack.write_text(dedent(ONE))
    script = """
        import pynvml
        depth = []
        def counted(call, step):
            def around(*args):
                call(*args)
                depth.append(step)
            return around
        pynvml.nvmlInit = counted(pynvml.nvmlInit, 1)
        pynvml.nvmlShutdown = counted(pynvml.nvmlShutdown, -1)

        import hetero_nvidia
        from hetero.registry.registry import Registry
        registry = Registry.of(hetero_nvidia)
        (device,) = registry.discover().devices
        usage = registry.observe(device)
        def fail(*_): raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
        pynvml.nvmlDeviceGetName = fail
        registry.discover()
        print(depth, usage.memory, usage.core, usage.busy)
    """
    printed = on_rack(["-c", dedent(script)], rack)

    assert "[1, -1, 1, -1, 1, -1] 0 0.0 {}\n" == printed


@pytest.mark.parametrize("rack", [FOUR, 2 * MIG], ids=["four", "mig"])
def test_the_contract_holds(tmp_path: Path, rack: str) -> None:
    file = tmp_path / "test.rack"
    file.write_text(dedent(rack))

    assert "28 passed" in contract_holds("hetero_nvidia", file)


def test_the_contract_holds_on_a_rack_that_is_shipped() -> None:
    assert "28 passed" in contract_holds("hetero_nvidia", hetero_simulator.rack("mixed"))
