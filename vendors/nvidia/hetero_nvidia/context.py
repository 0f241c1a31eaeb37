"""A context of CUDA's driver in this process, for what it takes of a card to be measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_int, c_ubyte, c_uint64, c_void_p

from hetero import plugin

_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_CUDA = plugin.Driver(names=("libcuda.so.1",), start="cuInit", flags=(0,), absent=(_NO_DEVICE,))


@contextmanager
def made_on(uuid: str) -> Iterator[None]:
    """Have a context on the card of this UUID, with a byte of memory, until the block ends.

    The driver gives the first small piece of memory a block that stays part of the context. Raises
    `DriverError` where no context is to be had, as on a card that is full.
    """
    cuda = _CUDA.open()
    ordinal = _ordinal(cuda, uuid)
    context = cuda.get("cuDevicePrimaryCtxRetain", c_void_p, ordinal)
    try:
        cuda.call("cuCtxSetCurrent", context)
        cuda.get("cuMemAlloc_v2", c_uint64, 1)
        yield
    finally:
        cuda.call("cuDevicePrimaryCtxRelease_v2", ordinal)


def _ordinal(cuda: plugin.Library, uuid: str) -> int:
    """Return the number by which this process's driver has a card. Raises `DriverError`."""
    wanted_digits = uuid.partition("-")[2].replace("-", "")
    for ordinal in range(cuda.get("cuDeviceGetCount", c_int)):
        if bytes(cuda.get("cuDeviceGetUuid", c_ubyte * 16, ordinal)).hex() == wanted_digits:
            return ordinal
    raise plugin.DriverError(f"{uuid}: CUDA does not list it")
