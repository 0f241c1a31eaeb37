"""NVML through NVIDIA's own binding, which opens libnvidia-ml.so.1 in nvmlInit."""

from __future__ import annotations

import pynvml

from hetero import plugin

NVML = plugin.Binding(
    library="libnvidia-ml.so.1",
    start=pynvml.nvmlInit,
    stop=pynvml.nvmlShutdown,
    error=pynvml.NVMLError,
    absent=(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED),
    unsupported=(
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NOT_FOUND,
    ),
    hint="see `nvidia-smi -q` and the kernel log",
)
#: What NVML will not say of a card is an error to `get` and None to `find`.
get, find = NVML.get, NVML.find
