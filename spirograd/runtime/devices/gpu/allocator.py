"""Device memory from a pool of the driver, allocated and freed in the order of a stream, and pinned host memory."""

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
# The pool keeps this fraction of the device's memory when it is free; the rest is for other libraries and processes.
_KEPT_PART = 8


class _PoolProperties(ctypes.Structure):
    """CUmemPoolProps. hipMemPoolProps has the same layout, with zeros after the security attributes."""

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
    """A range of device memory: the handle of a buffer."""

    address: int
    nbytes: int


class Foreign(NamedTuple):
    """A range of device memory that another library allocated, and frees."""

    address: int
    nbytes: int


class Pool:
    """Allocations of one device, ordered by ``stream``. Not thread safe: the device's lock guards it.

    ``used``: bytes in use. ``exported``: allocations that other libraries may use, which outlive the pool. The pool keeps freed memory, up
    to a limit, so that allocating takes 2 us instead of 60; `trim` returns it to the driver.
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
        """Return allocate ``nbytes`` with undefined contents, for later work. Raises OutOfDeviceMemory with this size and the limit."""
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
        """Free an allocation after the work so far. Exported allocations are also freed after the work of other libraries, on unknown
        streams."""
        self.used -= memory.nbytes
        self._live.discard(memory)
        if memory in self.exported:
            self.exported.discard(memory)
            self._driver.call("wait for other libraries", self._driver.synchronize)
        self._driver.call("free memory", self._driver.free_on_stream, memory.address, self._stream.handle)

    def trim(self) -> None:
        """Return free memory to the driver."""
        self._driver.call("release free memory", self._driver.pool_trim, self._handle, 0)

    def close(self) -> None:
        """Free all memory except exported allocations.

        The pool stays while there are any: drivers crash later (CUDA 580) if a pool is destroyed before its memory is freed.
        """
        for memory in self._live - self.exported:
            self._driver.free_on_stream(memory.address, self._stream.handle)
        self._live.clear()
        if not self.exported:
            self._driver.pool_destroy(self._handle)

    def release(self, memory: DeviceRange, context: int) -> None:
        """Free an exported allocation after the pool was closed, and the pool after the last one; from any thread."""
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
    """Return the address of ``nbytes`` of host memory that the device reads and writes asynchronously."""
    address = c_void_p()
    driver.call(f"allocate {nbytes} bytes of pinned host memory", driver.host_allocate, byref(address), nbytes, 0)
    return address.value or 0
