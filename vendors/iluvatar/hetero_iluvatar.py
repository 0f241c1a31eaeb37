"""Iluvatar CoreX: discovered through ixml, confined by the limiter for the CUDA API it speaks.

ixml has NVML's ABI with a few calls of its own. The declarations are our own, after the public
header api.h (Deep-Spark/go-ixml, pkg/ixml).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import suppress
from ctypes import c_char, c_int, c_uint, c_uint64, c_ulong, c_void_p

import hetero
from hetero import Device, DriverError, Edits, Library, MiB, Rung

#: What HAMi's users write: each model has resources of its own.
_WORDS = tuple(
    hetero.Words(
        count=f"iluvatar.ai/{model}-vgpu",
        memory=(f"iluvatar.ai/{model}.vMem",),
        memory_unit=256 * MiB,
        core=(f"iluvatar.ai/{model}.vCore",),
        models=hetero.Choice(only=(model,)),
        only_uuid=f"hami.io/use-{model}-uuid",
        never_uuid=f"hami.io/no-use-{model}-uuid",
        node_order="hami.io/node-scheduler-policy",
        device_order="hami.io/gpu-scheduler-policy",
    )
    for model in ("MR-V100", "MR-V50", "BI-V150", "BI-V100")
)
VENDOR = hetero.Vendor(
    name="iluvatar",
    title="Iluvatar",
    models=(
        hetero.Model(
            match="*",
            # 256 MiB units and 100 grants a card, as the vendor's gpu-manager counts.
            granularity=hetero.Fractional(memory=hetero.Step(256 * MiB), multi=hetero.Multi.WHOLE),
            slots=100,
        ),
    ),
    visible=("CUDA_VISIBLE_DEVICES", "IX_VISIBLE_DEVICES"),
    limiter="cuda",
    words=_WORDS,
)

_IXML = hetero.Driver(
    names=("libixml.so", "/usr/local/corex/lib64/libixml.so", "/usr/local/corex/lib/libixml.so"),
    start="nvmlInit_v2",
    absent=(9,),  # driver not loaded
    unsupported=(3, 13),  # not supported, function not found
)
#: The driver whose calls the limiter stands in front of.
_CUDA = ("/usr/local/corex/lib64/libcuda.so.1", "libcuda.so.1")
_WAYS = {0: "board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_NODES = 0  # nvmlAffinityScope_t
#: ixmlDeviceGetHealth is a set of these.
_HEALTH = ("hub", "memory controller", "over temperature", "over voltage", "ECC", "memory", "PCIe")

_Memory = hetero.struct("nvmlMemory_t", "u64 total free used")
_Pci = hetero.struct(
    "nvmlPciInfo_t", "char legacy[16]; u32 domain bus device id subsystem; char address[32]"
)
_Rates = hetero.struct("nvmlUtilization_t", "u32 core memory")


@hetero.hookimpl
def hetero_vendor() -> hetero.Vendor:
    """Return the declaration: 1 % and 256 MiB, whole cards when several."""
    return VENDOR


@hetero.hookimpl
def hetero_discover() -> Iterator[Device | DriverError]:
    """Return the cards ixml lists."""
    ixml, count, driver = _IXML.open(), c_uint(), (c_char * 80)()
    ixml.call("nvmlDeviceGetCount_v2", count)
    said = ixml.ask("nvmlSystemGetDriverVersion", driver, len(driver))
    version = {"driver": hetero.text(driver) or ""} if said else {}
    rung = _rung()

    def between(here: Device, there: Device) -> str | None:
        way = c_int()
        ends = _handle(ixml, here.index), _handle(ixml, there.index)
        known = ixml.ask("nvmlDeviceGetTopologyCommonAncestor", *ends, way)
        return _WAYS.get(way.value) if known else None

    def read(index: int) -> Device:
        return _device(ixml, index, rung, version)

    return hetero.linked(hetero.each_card(read, hetero.counted(count.value)), between)


@hetero.hookimpl
def hetero_enforce(devices: Sequence[Device]) -> Edits:
    """Name the cards; the limiter, where it is preloaded, keeps the shares."""
    uuids = ",".join(device.uuid for device in devices)
    minors = [device.attributes.get("minor", str(device.index)) for device in devices]
    return Edits(
        env=dict.fromkeys(VENDOR.visible, uuids),
        device_nodes=("/dev/itrctl", *(f"/dev/iluvatar{minor}" for minor in minors)),
    )


@hetero.hookimpl
def hetero_observe(device: Device) -> hetero.Usage:
    """Return the memory in use and the share of the last sample in which a kernel ran."""
    ixml, memory, rates = _IXML.open(), _Memory(), _Rates()
    card = _handle(ixml, device.index)
    ixml.call("nvmlDeviceGetMemoryInfo", card, memory)
    said = ixml.ask("nvmlDeviceGetUtilizationRates", card, rates)
    return hetero.Usage(memory=memory.used, core=rates.core / 100 if said else None)


def _handle(ixml: Library, index: int) -> int:
    handle = c_void_p()
    ixml.call("nvmlDeviceGetHandleByIndex_v2", index, handle)
    return handle.value or 0


def _device(ixml: Library, index: int, rung: Rung, attributes: dict[str, str]) -> Device:
    card, memory, pci = _handle(ixml, index), _Memory(), _Pci()
    uuid, name, minor, nodes = (c_char * 96)(), (c_char * 96)(), c_uint(), c_ulong()
    ixml.call("nvmlDeviceGetUUID", card, uuid, len(uuid))
    ixml.call("nvmlDeviceGetName", card, name, len(name))
    ixml.call("nvmlDeviceGetMemoryInfo", card, memory)
    at = ixml.ask("nvmlDeviceGetPciInfo_v3", card, pci)
    numbered = ixml.ask("nvmlDeviceGetMinorNumber", card, minor)
    near = ixml.ask("nvmlDeviceGetMemoryAffinity", card, 1, nodes, _NODES) and nodes.value
    return VENDOR.device(
        uuid=hetero.text(uuid) or "",
        model=hetero.text(name) or "unknown",
        index=index,
        memory=memory.total,
        rung=rung,
        health=_health(ixml, card),
        numa=(nodes.value & -nodes.value).bit_length() - 1 if near else None,
        pci=hetero.pci_address(pci.domain, pci.bus, pci.device) if at else None,
        attributes={**attributes, **({"minor": str(minor.value)} if numbered else {})},
    )


def _health(ixml: Library, card: int) -> str | None:
    faults = c_uint64()
    if not ixml.ask("ixmlDeviceGetHealth", card, faults):
        return None
    said = [name for bit, name in enumerate(_HEALTH) if faults.value >> bit & 1]
    if faults.value and not said:
        return f"fault {faults.value:#x}"
    return f"{', '.join(said)} fault" if said else "ok"


def _rung() -> Rung:
    """Shares are kept where the CUDA driver is, for the limiter to stand in front of."""
    for name in _CUDA:
        with suppress(OSError):
            ctypes.CDLL(name)
            return Rung.PRELOAD
    return Rung.NONE
