"""The calls of vLLM's cumem allocator, made by ctypes: a driver is all that they need.

vllm/csrc/cumem_allocator.cpp maps each piece at an address of its own, which it keeps asleep.
"""

from __future__ import annotations

import ctypes


class Refused(Exception):
    """The driver said that memory is out (CUDA_ERROR_OUT_OF_MEMORY, 2)."""


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Allocation(ctypes.Structure):
    """CUmemAllocationProp of cuda.h."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _Location),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc of cuda.h."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class Pieces:
    """Memory of the first card, mapped piece by piece; `held` are address, size and handle."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        context, device = ctypes.c_void_p(), ctypes.c_int()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        place = _Location(1, device.value)  # CU_MEM_LOCATION_TYPE_DEVICE
        self._pinned = _Allocation(type=1, location=place)  # CU_MEM_ALLOCATION_TYPE_PINNED
        self._readable = _Access(place, 3)  # CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        self._asleep: list[tuple[int, int]] = []
        self.held: list[tuple[int, int, int]] = []

    def allocate(self, size: int) -> None:
        """Hold `size` bytes more, or raise `Refused` and hold what was held."""
        address, none = ctypes.c_ulonglong(), ctypes.c_ulonglong(0)
        length = ctypes.c_size_t(size)
        self._call("cuMemAddressReserve", ctypes.byref(address), length, none, none, none)
        try:
            self._map(address.value, size)
        except Refused:
            self._call("cuMemAddressFree", address, length)
            raise

    def sleep(self) -> None:
        """Give all memory back and keep its addresses."""
        while self.held:
            address, size, handle = self.held.pop()
            self._call("cuMemUnmap", ctypes.c_ulonglong(address), ctypes.c_size_t(size))
            self._call("cuMemRelease", ctypes.c_ulonglong(handle))
            self._asleep.append((address, size))

    def free(self) -> None:
        """Give all memory and its addresses back."""
        self.sleep()
        while self._asleep:
            address, size = self._asleep.pop()
            self._call("cuMemAddressFree", ctypes.c_ulonglong(address), ctypes.c_size_t(size))

    def wake(self) -> None:
        """Hold it again."""
        while self._asleep:
            self._map(*self._asleep.pop())

    def _map(self, address: int, size: int) -> None:
        handle, at, length = (
            ctypes.c_ulonglong(),
            ctypes.c_ulonglong(address),
            ctypes.c_size_t(size),
        )
        none = ctypes.c_ulonglong(0)
        self._call("cuMemCreate", ctypes.byref(handle), length, ctypes.byref(self._pinned), none)
        self._call("cuMemMap", at, length, ctypes.c_size_t(0), handle, none)
        self._call("cuMemSetAccess", at, length, ctypes.byref(self._readable), ctypes.c_size_t(1))
        self.held.append((address, size, handle.value))

    def _call(self, name: str, *words: object) -> None:
        code = getattr(self._driver, name)(*words)
        if code == 2:
            raise Refused(name)
        if code != 0:
            raise OSError(f"{name}: error {code}")
