"""Hygon DCU: discovered through ROCm SMI, cut by the vdev files that the kernel driver reads.

The declarations are our own, after the public headers rocm_smi.h, dmi_virtual.h and dmi_error.h
(Project-HAMi/dcu-dcgm, pkg/dcgm/include). A vdev is a mask of compute units and a memory limit,
written in a file of `key: value` lines that the runtime finds under /etc/vdev/docker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from ctypes import c_char, c_uint16, c_uint32, c_uint64
from pathlib import Path

import hetero_rsmi as rsmi
from attrs import evolve, frozen

from hetero import plugin
from hetero.plugin import (
    CORE,
    MEMORY,
    Allocation,
    Device,
    DeviceAllocation,
    DriverError,
    Edits,
    Enforcement,
    Library,
    MiB,
)

#: Core is counted in compute units, since that is what a mask is made of: 1 % is rounded up to one.
_SLICED = plugin.Fractional(multi=plugin.MultiDevice.WHOLE, together=True, cut_at_admission=True)
#: PCI device id, model and compute units of each card that can be cut.
_CARDS = {
    0x54B7: ("Z100", 60),
    0x55B7: ("Z100L", 60),
    0x62B7: ("K100", 120),
    0x6210: ("K100-AI", 120),
    0x6211: ("K100-AI-LC-E", 128),
    0x6212: ("K100-AI-LC", 120),
}
#: What HAMi's users write.
_RESOURCE_NAMES = plugin.ResourceNames(
    count="hygon.com/dcunum",
    memory=("hygon.com/dcumem",),
    core=("hygon.com/dcucores",),
    choice=plugin.DeviceChoice(
        include_model="hygon.com/use-dcutype",
        exclude_model="hygon.com/nouse-dcutype",
        spelling={"DCU-": "", "_": "-"},
        include_uuid="hygon.com/use-gpuuuid",
        exclude_uuid="hygon.com/nouse-gpuuuid",
    ),
)
VENDOR = plugin.Vendor(
    api=2,
    name="hygon",
    title="Hygon DCU",
    models=(
        *(
            plugin.Model(match=model, granularity=_SLICED, core=units, slots=4)
            for model, units in _CARDS.values()
        ),
        plugin.Model(match="*", granularity=plugin.Whole()),
    ),
    visible=("HIP_VISIBLE_DEVICES",),
    visible_by="index",
    # Of dcu-container-runtime and of its former name: nobody here has seen their sources.
    runtime=plugin.ContainerRuntime(options=("DCU_VISIBLE_DEVICES", "DTK_VISIBLE_DEVICES")),
    soft_limiter="hip",
    context_bytes=None,  # nothing says what a process holds beside its allocations
    # After gpustack/runtime (deployer/cdi/hygon.py), and the mounts of HAMi's device plugin.
    container=plugin.ContainerEdits(
        device_nodes=("/dev/kfd", "/dev/mkfd", "{card}", "{render}"),
        files=("/opt/hyhal", "/opt/dtk:/opt/hygondriver"),
    ),
    resource_names=(_RESOURCE_NAMES,),
)

_RSMI = rsmi.driver(
    "librocm_smi64.so", "/opt/hyhal/lib/librocm_smi64.so", "/opt/dtk/lib/librocm_smi64.so"
)
_HYDMI = plugin.Driver(names=("libhydmi.so", "/opt/hyhal/lib/libhydmi.so"), unsupported=(6, 14))
_WHOSE, _AMD = "rsmi_dev_vendor_id_get", 0x1002  # whose library has this name, too
_Info = plugin.struct(
    "dmiDeviceInfo", "char name[256]; i32 units; u64 memory used container; i32 device"
)
_MOST_VDEVS, _MOST_PIPES = 200, 20
#: The words of a mask of compute units, and the bits of each.
_WORDS, _WORD_BITS = 2, 64
#: Where the vendor's own tool keeps the vdevs it makes, and where a runtime looks for its own.
HOST, RUNTIME = Path("/etc/vdev"), "/etc/vdev/docker"


@plugin.hookimpl
def hetero_vendor() -> plugin.Vendor:
    """Return the declaration: compute units and 1 MiB, 4 slots, whole cards when several."""
    return VENDOR


@plugin.hookimpl
def hetero_discover() -> Iterator[Device | DriverError]:
    """Return the cards ROCm SMI monitors."""
    smi = _RSMI.open()
    card_indices = plugin.counted(smi.get("rsmi_num_monitor_devices", c_uint32))
    own_indices = [
        card_index for card_index in card_indices if smi.find(_WHOSE, card_index, c_uint16) != _AMD
    ]
    return plugin.each_card(
        lambda index: _device(smi, index),
        own_indices,
        lambda *pair: rsmi.way(smi, *pair),
        {"XGMI": 20},
    )


@plugin.hookimpl
def hetero_enforce(allocation: Allocation, devices: Sequence[Device], directory: Path) -> Edits:
    """Write a vdev for every share and mount it where the runtime looks."""
    mounts, parts = [], {}
    for piece, device in plugin.shares(allocation, devices):
        part = _made(device, piece, directory)
        parts[device.uuid] = part
        mounts.append(plugin.Mount(str(directory / part), f"{RUNTIME}/{part}"))
    # A process that was given vdevs counts those, and else the cards of the machine.
    environment = (
        dict.fromkeys(VENDOR.visible, ",".join(map(str, range(len(parts))))) if parts else {}
    )
    return Edits(env=environment, mounts=tuple(mounts), parts=parts)


@plugin.hookimpl
def hetero_reconcile(device: Device, parts: AbstractSet[str], directory: Path) -> None:
    """Remove the vdev files of this card that no grant holds; its units are then free again."""
    for vdev in _vdevs(directory):
        if vdev.pci == device.pci and vdev.path.name not in parts:
            vdev.path.unlink(missing_ok=True)


@plugin.hookimpl
def hetero_observe(device: Device) -> plugin.Usage:
    """Return the memory in use, the share of time the card was busy, its heat and power.

    What processes hold is told where a limiter shares the card, which needs it. Of a BW1100 the
    driver keeps 94 % for itself (hytop's README): all that is freed would seem to be nobody's.
    """
    usage = rsmi.usage(_RSMI.open(), device.index)
    return usage if device.enforcement.by_limiter else evolve(usage, processes=None)


def _device(smi: Library, index: int) -> Device:
    device_id = smi.get("rsmi_dev_id_get", index, c_uint16)
    serial = plugin.text(smi.get("rsmi_dev_serial_number_get", index, c_char * 256, 256))
    model, _ = _CARDS.get(device_id, (rsmi.name(smi, index), 0))
    compute_units = _units(index) if device_id in _CARDS else None
    unique_id = smi.find("rsmi_dev_unique_id_get", index, c_uint64)
    facts = rsmi.facts(smi, index)
    facts["attributes"]["driver_uuid"] = unique_id and f"GPU-{unique_id:016x}"  # what HIP calls it
    return VENDOR.device(
        uuid=serial and f"DCU-{serial}",
        model=model or f"{device_id:04x}",
        index=index,
        enforcement=Enforcement.PARTITION if device_id in _CARDS else Enforcement.NONE,
        capacity={CORE: compute_units} if compute_units else None,
        **facts,
    )


def _units(index: int) -> int | None:
    """Return how many compute units the card has, where the virtualization library is there."""
    try:
        device_info = _HYDMI.open().find("dmiGetDeviceInfo", index, _Info)
    except plugin.DriverAbsent:
        return None
    return int(device_info.units) if device_info else None


# --- vdev files -----------------------------------------------------------------------------


@frozen
class _Vdev:
    """What a vdev file says of itself; `mask` has a bit for each compute unit."""

    path: Path
    pci: str | None
    mask: int
    number: int
    pipe: int


def _vdevs(directory: Path) -> list[_Vdev]:
    """Return the vdevs in a directory; a file that is none of them is none of our business."""
    vdevs = []
    for path in directory.glob("vdev*.conf"):
        lines = re.findall(r"^(\w+): *(\S+)", path.read_text(), re.MULTILINE)
        value_by_key = dict(lines)
        mask_words = [int(value, 16) for key, value in lines if key == "cu_mask"]
        unit_mask = sum(
            mask_word << _WORD_BITS * position for position, mask_word in enumerate(mask_words)
        )
        vdev_number, pipe = (int(value_by_key.get(key, -1)) for key in ("vdev_id", "pipe_id"))
        vdevs.append(_Vdev(path, value_by_key.get("PciBusId"), unit_mask, vdev_number, pipe))
    return vdevs


def _made(device: Device, piece: DeviceAllocation, directory: Path) -> str:
    """Return the name of a grant's vdev, which is made unless it is there.

    Its units, its number and its pipe are in no other vdev of this node, ours or the host's.
    """
    size_lines = f"cu_count: {piece.takes[CORE]}\nmem: {piece.takes[MEMORY] // MiB} MiB\n"
    if piece.part is not None and (path := directory / piece.part).exists():
        if size_lines not in path.read_text():
            raise DriverError(f"card {device.index}: a vdev keeps the size it was made with")
        return path.name
    standing_vdevs = _vdevs(directory) + _vdevs(HOST)
    vdevs_of_card = [vdev for vdev in standing_vdevs if vdev.pci == device.pci]
    named_numbers = re.findall(r"\d+", piece.part or "")
    free_numbers = map(int, named_numbers) if named_numbers else range(_MOST_VDEVS + 1)
    vdev_number = plugin.free_number(
        free_numbers, (vdev.number for vdev in standing_vdevs), "vdev number"
    )
    used_pipes = (vdev.pipe for vdev in vdevs_of_card)
    pipe = plugin.free_number(range(_MOST_PIPES), used_pipes, f"pipe of card {device.index}")
    unit_mask = plugin.free_mask(device, piece.takes[CORE], (vdev.mask for vdev in vdevs_of_card))
    file_name = f"vdev{vdev_number}.conf"
    plugin.note(
        directory / file_name,
        f"PciBusId: {device.pci}\n"
        f"{_mask_lines(unit_mask)}"
        f"{size_lines}"
        f"device_id: {device.index}\n"
        f"vdev_id: {vdev_number}\n"
        f"pipe_id: {pipe}\n"
        "enable: 1\n",
    )
    return file_name


def _mask_lines(unit_mask: int) -> str:
    mask_words = (
        unit_mask >> _WORD_BITS * position & (1 << _WORD_BITS) - 1 for position in range(_WORDS)
    )
    return "".join(f"cu_mask: 0x{mask_word:016x}\n" for mask_word in mask_words)
