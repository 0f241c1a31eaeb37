"""What a container of each vendor is given: its cards' nodes, its driver's files, its variables.

The names are those of each vendor's own device plugin, container runtime or CDI generator, as the
vendor's declaration says.
"""

import os
from functools import partial
from pathlib import Path

import pytest
from racks import PLUGINS, SHARE, Machine, Rack, card, request

from hetero.container.edits import confine
from hetero.container.pin import Libraries, pin
from hetero.kube.agent.device_plugin import answered
from hetero.kube.agent.driver_injection import DriverInjection
from hetero.kube.objects.kinds import Pod
from hetero.model import Allocation, Ask, Edits
from hetero.model.units import GiB
from hetero.node.ledger.ledger import Grant, Ledger
from hetero.node.node import Node

CARDS = {
    "nvidia": card("nvidia", "NVIDIA L4", "24 GiB") * 2,
    "amd": "".join(card("amd", "Instinct MI60", "32 GiB", pci=f"0000:0{n}:00.0") for n in (1, 2)),
    "ascend": card("ascend", "910B3", "64 GiB", core="20") * 2,
    "hygon": "".join(card("hygon", "K100_AI", "64 GiB", pci=f"0000:0{n}:00.0") for n in (1, 2)),
    "cambricon": card("cambricon", "MLU370-X8", "24 GiB", smlu="on") * 2,
    "iluvatar": card("iluvatar", "Iluvatar BI-V150", "32 GiB") * 2,
    "mthreads": card("mthreads", "MTT S4000", "48 GiB") * 2,
    "metax": "".join(card("metax", "MXC500", "64 GiB", pci=f"0000:0{n}:00.0") for n in (1, 2)),
}
#: For the second card of each, given whole.
NODES = {
    "nvidia": {"/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"},
    "ascend": {
        "/dev/davinci1",
        "/dev/davinci_manager",
        "/dev/devmm_svm",
        "/dev/hisi_hdc",
        "/dev/dvpp_cmdlist",
    },
    "amd": {"/dev/kfd", "/dev/dri/renderD130"},
    "hygon": {"/dev/kfd", "/dev/mkfd", "/dev/dri/card2", "/dev/dri/renderD130"},
    "cambricon": {
        "/dev/cambricon_ctl",
        "/dev/cambricon_gdr",
        "/dev/cambricon_dev1",
        "/dev/cambricon_ipcm1",
    },
    "iluvatar": {"/dev/itrctl", "/dev/iluvatar1"},
    "mthreads": {"/dev/mtgpu.1", "/dev/dri/card1", "/dev/dri/renderD129"},
    "metax": {"/dev/mxcd", "/dev/mxnd", "/dev/mxgd", "/dev/dri/card2", "/dev/dri/renderD130"},
}
FILES = {
    "nvidia": {"libcuda.so.1", "libnvidia-ml.so.1", "/usr/bin/nvidia-smi"},
    "ascend": {"/usr/local/Ascend/driver/lib64", "/usr/local/dcmi", "/usr/local/bin/npu-smi"},
    "amd": set(),
    "hygon": {"/opt/hyhal", "/opt/dtk:/opt/hygondriver"},
    "cambricon": {"/usr/bin/cnmon"},
    "iluvatar": set(),  # its images bring all of it
    "mthreads": {"libmusa.so.1", "/usr/bin/mthreads-gmi"},
    "metax": set(),
}
#: What the vendor's container runtime reads, and then what programs read: they have one card.
VARIABLES = {
    "nvidia": {"NVIDIA_VISIBLE_DEVICES": "{uuid}", "CUDA_VISIBLE_DEVICES": "{uuid}"},
    "ascend": {"ASCEND_VISIBLE_DEVICES": "1", "ASCEND_RT_VISIBLE_DEVICES": "0"},
    "amd": {"ROCR_VISIBLE_DEVICES": "{uuid}"},
    "hygon": {"HIP_VISIBLE_DEVICES": "0"},
    "cambricon": {"CAMBRICON_VISIBLE_DEVICES": "1", "MLU_VISIBLE_DEVICES": "0"},
    "iluvatar": {"IX_VISIBLE_DEVICES": "{uuid}", "CUDA_VISIBLE_DEVICES": "{uuid}"},
    "mthreads": {"MTHREADS_VISIBLE_DEVICES": "1", "MUSA_VISIBLE_DEVICES": "0"},
    "metax": {"MACA_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0"},
}


@pytest.fixture(autouse=True)
def graphics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that made graphics nodes for the cards at two PCI addresses."""
    for number in (1, 2):
        drm = tmp_path / "bus/pci/devices" / f"0000:0{number}:00.0" / "drm"
        (drm / f"card{number}").mkdir(parents=True)
        (drm / f"renderD{128 + number}").mkdir()
    monkeypatch.setenv("HETERO_SYSFS", str(tmp_path))


def second_card(directory: Path, vendor: str) -> tuple[Edits, str]:
    """What a container gets that holds the machine's second card, and the card's UUID."""
    machine = Machine(directory, vendor)
    answer = machine.fit(request(Ask(device="1")))
    assert isinstance(answer, Allocation)
    devices = machine.devices
    edits = machine.registry.enforce(answer, devices, directory=directory, container=True)
    return edits, devices[1].uuid


@pytest.mark.parametrize("vendor", PLUGINS)
def test_a_container_has_its_own_cards_nodes_and_its_drivers_files(
    tmp_path: Path, vendor: str
) -> None:
    edits, uuid = Rack(tmp_path, CARDS[vendor]).meet(lambda: second_card(tmp_path, vendor))

    assert NODES[vendor] == set(edits.device_nodes)
    assert FILES[vendor] <= set(edits.files)
    assert {n: said.format(uuid=uuid) for n, said in VARIABLES[vendor].items()} == edits.env


@pytest.mark.parametrize("vendor", ["ascend", "hygon", "cambricon", "mthreads", "metax"])
def test_a_container_with_a_share_is_given_its_slice_and_no_more(
    tmp_path: Path, vendor: str
) -> None:
    def share() -> tuple[Edits, str | None]:
        machine = Machine(tmp_path, vendor)
        answer = machine.fit(SHARE)
        assert isinstance(answer, Allocation)
        devices = machine.devices
        edits = machine.registry.enforce(answer, devices, directory=tmp_path, container=True)
        return edits, devices[0].pci

    sliced = CARDS[vendor] if vendor != "metax" else card("metax", "MXC500", "64 GiB", sgpu="on")
    edits, pci = Rack(tmp_path, sliced).meet(share)
    nodes, part = set(edits.device_nodes), next(iter(edits.parts.values()), None)

    match vendor:
        case "ascend":  # its docker runtime makes the vNPU, and gives the container its node
            assert ("vir05_1c_16g", None) == (edits.env["ASCEND_VNPU_SPECS"], part)
            assert NODES["ascend"] - {"/dev/davinci1"} == nodes
        case "hygon":
            vdev = (f"{tmp_path}/hygon/{part}", f"/etc/vdev/docker/{part}", False)
            assert [vdev] == [(m.source, m.target, m.writable) for m in edits.mounts]
        case "cambricon":
            assert {"/dev/cambricon_dev0", "/dev/cambricon-caps/cap_dev0_mi1"} <= nodes
        case "mthreads":
            assert {"/dev/mtgpu.0", "/dev/dri/card0", "/dev/dri/renderD128"} == nodes
            assert str(4 * GiB) == edits.env["MTHREADS_QOS_MEMORY_LIMIT"]
        case "metax":
            setting = f"sgpu={pci}#0;compute=20;vram=4096;alias={part}"
            assert setting == edits.env["METAX_SGPUS"]


def installed(paths: set[str]) -> None:
    """Have the machine of this process look as if all of a driver were on it."""
    for name in ("exists", "isfile", "lexists"):
        real = getattr(os.path, name)
        setattr(os.path, name, lambda path, real=real: str(path) in paths or real(path))


def expected(vendor: str) -> tuple[set[str], set[tuple[str, str]]]:
    """The nodes, and the programs and directories with the places they have inside."""
    files = [file.partition(":") for file in FILES[vendor] if file.startswith("/")]
    return NODES[vendor], {(path, place or path) for path, _, place in files}


@pytest.mark.parametrize("vendor", PLUGINS)
def test_a_share_and_a_runtime_give_a_container_all_of_that(tmp_path: Path, vendor: str) -> None:
    nodes, files = expected(vendor)

    def give() -> tuple[set[str], set[tuple[str, str]]]:
        edits, _ = second_card(tmp_path, vendor)
        installed(nodes | {path for path, _ in files})
        node = Node(registry=Machine(tmp_path, vendor).registry, ledger=Ledger(tmp_path / "state"))
        grant = Grant(
            id="one", allocation=Allocation(pieces=()), limits=(), command=(), user="", since_utc=""
        )
        given = confine(node, grant, edits, limiters=())
        return set(given.device_nodes), {(mount.source, mount.target) for mount in given.mounts}

    given, mounts = Rack(tmp_path, CARDS[vendor]).meet(give)

    assert nodes == given
    assert files <= mounts


@pytest.mark.parametrize("vendor", PLUGINS)
def test_the_agent_gives_a_container_all_of_that(tmp_path: Path, vendor: str) -> None:
    nodes, files = expected(vendor)

    def give() -> tuple[set[str], set[tuple[str, str]]]:
        machine = Machine(tmp_path, vendor)
        answer = machine.fit(request(Ask(device="1")))
        assert isinstance(answer, Allocation)
        installed(nodes | {path for path, _ in files})
        kept = pin(
            Node(registry=machine.registry, ledger=Ledger(tmp_path / "state")),
            answer,
            discovery=machine.discovery,
            grant_id="a1b2c3d4",
            label="pod",
            owner={"pod": "uid"},
            libraries=Libraries(tmp_path / "libraries"),
            injection=partial(DriverInjection().into, Pod()),
        )
        response = answered(kept.edits)
        mounts = {(mount.host_path, mount.container_path) for mount in response.mounts}
        return {device.host_path for device in response.devices}, mounts

    given, mounts = Rack(tmp_path, CARDS[vendor]).meet(give)

    assert nodes == given
    assert files <= mounts
