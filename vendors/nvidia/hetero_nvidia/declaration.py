"""What NVIDIA's cards are asked for by, how they divide, and what a container needs of them."""

from __future__ import annotations

from attrs import evolve

from hetero import plugin
from hetero.plugin import Policy

#: What users of NVIDIA's own plugin write for a MIG instance; below it HAMi's and Volcano's names.
_INSTANCE = plugin.ResourceNames(
    count="nvidia.com/mig-{shape}",
    choice=plugin.DeviceChoice(
        include_model="nvidia.com/use-gputype",
        exclude_model="nvidia.com/nouse-gputype",
        # HAMi's nodes have their driver's name with this in front (HAMi#707).
        spelling={"NVIDIA-": ""},
        include_uuid="nvidia.com/use-gpuuuid",
        exclude_uuid="nvidia.com/nouse-gpuuuid",
        numa="nvidia.com/numa-bind",
    ),
    policies=plugin.Policies(
        name="GPU_CORE_UTILIZATION_POLICY",
        values={"force": Policy.FIXED, "FORCE": Policy.FIXED, "disable": None, "DISABLE": None},
        unlimited="CUDA_DISABLE_CONTROL",
    ),
    modes=plugin.Modes(
        name="nvidia.com/vgpu-mode",
        values={
            "hami-core": plugin.Selector(exclude=("partition", "service")),
            "mig": plugin.Selector(include=("partition",)),
            "mps": plugin.Selector(include=("service",)),
        },
    ),
    # HAMi-core 8f3a89c: src/include/log_utils.h, src/multiprocess/multiprocess_memory_limit.c.
    limiter_variables=plugin.LimiterVariables(
        log="LIBCUDA_LOG_LEVEL",
        log_levels={"0": "off", "1": "error", "2": "notice", "3": "info", "4": "debug"},
        memory="CUDA_DEVICE_MEMORY_LIMIT",
    ),
)
#: As with the strategy `mixed` of NVIDIA's plugin: an instance goes by its profile, or by the mode.
_CARDS = plugin.MeantDevices(partitioned=False)
_HAMI = evolve(
    _INSTANCE,
    count="nvidia.com/gpu",
    memory=("nvidia.com/gpumem",),
    memory_percent="nvidia.com/gpumem-percentage",
    # The second is the default of HAMi's older guides.
    core=("nvidia.com/gpucores", "nvidia.com/cores"),
    priority="nvidia.com/priority",
    devices=_CARDS,
)
_VOLCANO = evolve(
    _INSTANCE,
    count="volcano.sh/vgpu-number",
    memory=("volcano.sh/vgpu-memory",),
    memory_percent="volcano.sh/vgpu-memory-percentage",
    core=("volcano.sh/vgpu-cores",),
    devices=_CARDS,
    modes=evolve(_INSTANCE.modes, name="volcano.sh/vgpu-mode", other_name="nvidia.com/vgpu-mode"),
)
#: Of Volcano's older plugin (examples/gpu-share.yml of volcano-vgpu-device-plugin 4fb76ba), of
#: HAMi-core 8f3a89c (src/multiprocess/multiprocess_memory_limit.c) and of HAMi 4707fb02
#: (pkg/util/types.go; nvinternal/plugin/server.go).
_INEFFECTIVE = (
    plugin.IneffectiveWords(
        kind="resource",
        names=("volcano.sh/gpu-memory", "volcano.sh/gpu-number"),
        sentence="it is the resource of Volcano's older plugin, which no card of hetero's has: "
        "write volcano.sh/vgpu-number and volcano.sh/vgpu-memory",
    ),
    plugin.IneffectiveWords(
        kind="variable",
        names=("CUDA_DEVICE_SM_LIMIT", "CUDA_DEVICE_SM_LIMIT_*"),
        sentence="the core limit is what the container asks among its resources: write "
        "nvidia.com/gpucores",
    ),
    plugin.IneffectiveWords(
        kind="variable",
        names=("CUDA_OVERSUBSCRIBE",),
        sentence="whether a card's memory is given out more than once is for its node to say: "
        "scale.memory in the settings",
    ),
    plugin.IneffectiveWords(
        kind="variable",
        names=("CUDA_TASK_PRIORITY",),
        sentence="who goes first on a card is asked among the resources: write nvidia.com/priority",
    ),
)
#: The profiles of cards in MIG mode, from the A30 to the B200 and the RTX PRO 6000 Blackwell, as
#: NVIDIA's guide lists them (docs.nvidia.com/datacenter/tesla/mig-user-guide, "Supported MIG
#: Profiles", v580, with those of the A100 80 GB, H100 94 and 96 GB). Suffixes are `me` (one of the
#: card's instances has its media engines), `me.all` (it has all of them), `-me` (it has none) and
#: `gfx` (graphics); the guide writes `+` for a point before a suffix.
_PROFILES = """
    1g.5gb 1g.6gb 1g.10gb 1g.12gb 1g.18gb 1g.20gb 1g.23gb 1g.24gb 1g.35gb 1g.45gb
    2g.10gb 2g.12gb 2g.20gb 2g.24gb 2g.35gb 2g.45gb 2g.48gb
    3g.20gb 3g.40gb 3g.47gb 3g.48gb 3g.71gb 3g.90gb
    4g.20gb 4g.24gb 4g.40gb 4g.47gb 4g.48gb 4g.71gb 4g.90gb 4g.96gb
    1g.5gb.me 1g.6gb.me 1g.10gb.me 1g.12gb.me 1g.18gb.me 1g.23gb.me 1g.24gb.me 2g.12gb.me
    1g.24gb.me.all 2g.48gb.me.all 1g.12gb-me 1g.24gb-me 2g.24gb-me 2g.48gb-me
    1g.12gb.gfx 1g.24gb.gfx 2g.48gb.gfx 4g.48gb.gfx 4g.96gb.gfx
    7g.40gb 7g.79gb 7g.80gb 7g.94gb 7g.96gb 7g.141gb 7g.180gb
"""
VENDOR = plugin.Vendor(
    api=2,
    name="nvidia",
    title="NVIDIA",
    models=(plugin.Model(match="*", granularity=plugin.Fractional(), core=100, slots=10),),
    visible=("CUDA_VISIBLE_DEVICES",),
    visible_by="number",
    runtime=plugin.ContainerRuntime(
        variables=("NVIDIA_VISIBLE_DEVICES",),
        none=("void", "none"),
        mounts="/var/run/nvidia-container-devices",
        # Of NVIDIA's container toolkit, to devices that are of no card alone: who manages MIG, the
        # ways to other nodes' memory, and the switches between all cards.
        options=(
            "NVIDIA_MIG_CONFIG_DEVICES",
            "NVIDIA_MIG_MONITOR_DEVICES",
            "NVIDIA_IMEX_CHANNELS",
            "NVIDIA_NVSWITCH",
        ),
    ),
    limiter="cuda",
    context_bytes=518 * plugin.MiB,  # on an H100 (docs/charges.md)
    # What NVIDIA's container library mounts for compute and utility, as far as the driver needs it.
    container=plugin.ContainerEdits(
        cdi="nvidia.com/gpu",
        device_nodes=(
            "/dev/nvidia{minor}",
            "/dev/nvidiactl",
            "/dev/nvidia-uvm",
            "/dev/nvidia-uvm-tools",
        ),
        files=(
            "libcuda.so.1",
            "libnvidia-ml.so.1",
            "libnvidia-ptxjitcompiler.so.1",
            "libnvidia-nvvm.so.4",
            "libnvidia-gpucomp.so.{driver}",
            "/usr/bin/nvidia-smi",
        ),
    ),
    resource_names=(_HAMI, _VOLCANO, *_INSTANCE.each_shape(*_PROFILES.split())),
    ineffective_words=_INEFFECTIVE,
    module="nvidia",
    monitors=("nv-hostengine", "dcgm-exporter"),
)
