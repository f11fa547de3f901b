"""Device memory from a pool of the driver's, allocated and freed in the order of a stream, and pinned host memory."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint64, c_ushort, c_void_p
from typing import NamedTuple

from spirograd.base.errors import OutOfDeviceMemory
from spirograd.base.wording import over_limit
from spirograd.runtime.devices.gpu.driver import Driver
from spirograd.runtime.devices.gpu.stream import Stream

# CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD; the numbers of HIP are the same.
_PINNED_TYPE, _ON_DEVICE, _RELEASE_THRESHOLD = 1, 1, 4
# The pool keeps one part in so many of the device's memory when it is free; the rest is for other libraries and processes.
_KEPT_PART = 8


class _PoolProperties(ctypes.Structure):
    """CUmemPoolProps; hipMemPoolProps is laid out alike, and has nothing but zeros behind the security."""

    _fields_ = [
        ("allocation_type", c_int),
        ("handle_types", c_int),
        ("location_type", c_int),
        ("location", c_int),
        ("security", c_void_p),
        ("max_size", c_size_t),
        ("usage", c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
    ]


class DeviceRange(NamedTuple):
    """A range of device memory: what the handle of a buffer is."""

    address: int
    nbytes: int


class Foreign(NamedTuple):
    """A range of device memory that another library allocated, and frees."""

    address: int
    nbytes: int


class Pool:
    """Allocations of one device, ordered by ``stream``. Not thread safe: the device's lock guards it. ``used``: bytes handed out.
    ``exported``: allocations that other libraries may use, which outlive the pool.

    The pool keeps what is freed, up to a limit, so that allocating takes 2 us and not 60; `trim` gives it back to the driver.
    """

    def __init__(self, stream: Stream, ordinal: int, total: int, cap: int | None) -> None:
        self._driver = driver = stream.driver
        self._stream = stream
        self._total = total
        self._cap = cap
        self._handle = c_void_p()
        self.used = 0
        self._live: set[DeviceRange] = set()
        self.exported: set[DeviceRange] = set()
        properties = _PoolProperties(_PINNED_TYPE, 0, _ON_DEVICE, ordinal)
        driver.call("create a memory pool", driver.pool_create, byref(self._handle), byref(properties))
        try:
            driver.call("set up a memory pool", driver.pool_set, self._handle, _RELEASE_THRESHOLD, byref(c_uint64(total // _KEPT_PART)))
        except BaseException:
            self.close()
            raise

    def take(self, nbytes: int) -> DeviceRange:
        """``nbytes`` with undefined contents, for work that comes later. Raises OutOfDeviceMemory with this size and the limit."""
        driver = self._driver
        if nbytes > self._total:
            most = f"the {driver.api} device has at most {self._total} bytes; use smaller shapes"
            raise OutOfDeviceMemory(f"cannot allocate {nbytes} bytes: {most}")
        if self._cap is not None and self.used + nbytes > self._cap:
            raise OutOfDeviceMemory(over_limit(nbytes, self.used, self._cap))
        address = c_uint64()
        driver.call(f"allocate {nbytes} bytes", driver.allocate_from_pool, byref(address), nbytes, self._handle, self._stream.handle)
        self.used += nbytes
        memory = DeviceRange(address.value, nbytes)
        self._live.add(memory)
        return memory

    def give(self, memory: DeviceRange) -> None:
        """Free an allocation, after the work so far. Of what was exported that is also the work of others, on streams unknown."""
        self.used -= memory.nbytes
        self._live.discard(memory)
        if memory in self.exported:
            self.exported.discard(memory)
            self._driver.call("wait for other libraries", self._driver.synchronize)
        self._driver.call("free memory", self._driver.free_on_stream, memory.address, self._stream.handle)

    def trim(self) -> None:
        """Give back to the driver what is free."""
        self._driver.call("release free memory", self._driver.pool_trim, self._handle, 0)

    def close(self) -> None:
        """Free all memory but what was exported, for which the pool stays: drivers crash later on (CUDA 580) where a pool was destroyed
        before the memory that came from it."""
        for memory in self._live - self.exported:
            self._driver.free_on_stream(memory.address, self._stream.handle)
        self._live.clear()
        if not self.exported:
            self._driver.pool_destroy(self._handle)

    def release(self, memory: DeviceRange, context: int) -> None:
        """Free what was exported, after the pool was closed, and the pool after the last of it; from any thread."""
        self.exported.discard(memory)
        driver = self._driver
        entered = driver.enter(context)
        driver.synchronize()
        driver.free_on_stream(memory.address, 0)
        if not self.exported:
            driver.pool_destroy(self._handle)
        if entered > 0:
            driver.leave(entered)


def pinned(driver: Driver, nbytes: int) -> int:
    """The address of ``nbytes`` of host memory that the device reads and writes while the host goes on."""
    address = c_void_p()
    driver.call(f"allocate {nbytes} bytes of pinned host memory", driver.host_allocate, byref(address), nbytes, 0)
    return address.value or 0
