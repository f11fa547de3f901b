"""Device memory as Python objects: owned ranges with write generations, freed with their last reference."""

from __future__ import annotations

import functools
import gc
import itertools
import weakref
from struct import Struct
from typing import TYPE_CHECKING

import numpy as np

from spirograd.base import validity
from spirograd.base.device import (
    ARRIVAL_LIMIT,
    READBACK_LIMIT,
    Arrival,
    Buffer,
    Device,
    LendsMemory,
    Readback,
    ReadsIntoMemory,
    SharesMemory,
)
from spirograd.base.errors import OutOfDeviceMemory, SpirogradRuntimeError
from spirograd.runtime import graph_recording, stream_order
from spirograd.runtime.generations import write

if TYPE_CHECKING:
    from spirograd.base.protocols import Scalar, Watcher
    from spirograd.runtime.pools import Pool

_numbers = itertools.count(1)

_handed_out: weakref.WeakSet[Allocation] = weakref.WeakSet()  # Writers of memory other than launches and allocations.
_watchers: weakref.WeakSet[Watcher] = weakref.WeakSet()
_READS = "the host reads memory (an element, `to_numpy`, a value that a kernel returns), which a launch of the graph would not do again"


class _Delivery:
    """An `Arrival` on a device that offers only readbacks."""

    def __init__(self, readback: Readback, out: memoryview) -> None:
        self._readback: Readback | None = readback
        self._out = out

    def here(self) -> bool:
        data = None if self._readback is None else self._readback.take()
        if data is not None:
            self._out[:] = data
            self._readback = None
        return self._readback is None

    def wait(self) -> None:
        if self._readback is not None:
            self._out[:] = self._readback.wait()
            self._readback = None


class Allocation:
    """A range of device memory that lives as long as this object, or until `free`.

    ``address`` is the address for kernels, ``nbytes`` the requested size. Offsets and lengths are bytes. ``number`` is never used again,
    unlike an address or an `id`. Fields that share an allocation are its parts, named by `artifact.part_name`.

    ``generations`` maps a part to the tick of its last write, and "" to the tick of the last write whose place is unknown. Cached facts
    about a part are fresh while both ticks stay the same, unless the part is ``shared``: code outside of spirograd may write to it (""
    stands for all parts). ``pool``: the `pools.Pool` that the allocation belongs to, or None.
    """

    __slots__ = ("__weakref__", "_finalizer", "address", "buffer", "device", "generations", "keep", "nbytes", "number", "pool", "shared")

    def __init__(self, device: Device, buffer: Buffer, nbytes: int, keep: object = None) -> None:
        self.device = device
        self.buffer = buffer
        self.address = buffer.address
        self.nbytes = nbytes
        self.number = next(_numbers)
        self.generations = {"": 0}
        self.shared: set[str] = set()
        self.keep = keep
        self.pool: Pool | None = None
        self._finalizer = weakref.finalize(self, device.free, buffer)
        self._finalizer.atexit = False  # closing the device releases everything at once

    def __repr__(self) -> str:
        return f"Allocation({self.nbytes} bytes at {self.address:#x}, generation {self.generation})"

    @property
    def generation(self) -> int:
        """The tick of the last write to any part; 0 for fresh memory, which is all zeros."""
        return max(tuple(self.generations.values()))

    def bump(self, part: str = "") -> None:
        """Note that a part, or an unknown place, has or may have changed."""
        write(self.generations, part)

    def share(self, part: str = "") -> None:
        """Mark that a part, or an unknown place, may change without a `bump` from now on, because a pointer to the memory was handed
        out."""
        if part not in self.shared:
            for watcher in tuple(_watchers):
                watcher.handed_out(self, part)
            self.shared.add(part)
            validity.renew()
            if self.keep is None:
                _handed_out.add(self)

    def lend(self, borrower: object) -> None:
        """Keep the memory addressable by the host as long as ``borrower`` lives, which can be longer than the device: see `LendsMemory`."""
        if isinstance(self.device, LendsMemory):
            self.device.lend(self.buffer, borrower)

    def read_into(self, offset: int, out: memoryview) -> None:
        """Wait for earlier launches and copy the bytes from ``offset`` on into ``out`` (contiguous, writable)."""
        count = self._check(offset, out.nbytes, "read")
        if not count:
            return
        graph_recording.refuse(_READS)
        self._wait_for_streams()
        view = self.device.host_view(self.buffer)
        if view is None:
            self.device.download(self.buffer, offset, out.cast("B"))
            return
        self.device.synchronize()
        out.cast("B")[:] = view[offset : offset + count]

    def host_bytes(self) -> memoryview | None:
        """Wait for earlier launches, and return the bytes for the host to read and write in place; then call `wrote`.

        Return None where the host cannot address them, and where streams or a graph have to know of the access.
        """
        if self.freed or stream_order.active is not None or graph_recording.active() is not None:
            return None
        view = self.device.host_view(self.buffer)
        if view is not None:
            self.device.synchronize()
        return view

    def unpack(self, form: Struct, offset: int) -> tuple[Scalar, ...]:
        """Wait for earlier launches and return the numbers that lie in ``form`` from ``offset`` on."""
        self._check(offset, form.size, "read")
        graph_recording.refuse(_READS)
        self._wait_for_streams()
        view = self.device.host_view(self.buffer)
        if view is None:
            data = bytearray(form.size)
            self.device.download(self.buffer, offset, memoryview(data))
            return form.unpack(data)
        self.device.synchronize()
        return form.unpack_from(view, offset)

    @property
    def readback_limit(self) -> int:
        """The most bytes of one `read_into_async`."""
        return ARRIVAL_LIMIT if isinstance(self.device, ReadsIntoMemory) else READBACK_LIMIT

    def read_async(self, offset: int, nbytes: int) -> Readback:
        """Begin a copy of the bytes as they are after earlier launches, without waiting: see `Device.read_async`."""
        self._check(offset, nbytes, "read")
        graph_recording.refuse(_READS)
        self._wait_for_streams()
        return self.device.read_async(self.buffer, offset, nbytes)

    def read_into_async(self, offset: int, out: memoryview) -> Arrival:
        """Begin a copy of the bytes from ``offset`` on, as they are after earlier launches, into ``out``.

        Until they have arrived, nothing may write to the memory that is read: see `ReadsIntoMemory`.
        """
        device = self.device
        if not isinstance(device, ReadsIntoMemory):
            return _Delivery(self.read_async(offset, out.nbytes), out)
        self._check(offset, out.nbytes, "read")
        graph_recording.refuse(_READS)
        self._wait_for_streams()
        return device.read_into_async(self.buffer, offset, out)

    def write(self, offset: int, data: memoryview, part: str = "") -> None:
        """Write ``data`` (contiguous) at ``offset``, in order with launches; the buffer of ``data`` may be reused on return.

        ``part``: the part that contains all changes.
        """
        if self._check(offset, data.nbytes, "write"):
            order = stream_order.active
            if order is None:
                self.device.upload(self.buffer, offset, data.cast("B"))
            else:
                order.run(lambda: self.device.upload(self.buffer, offset, data.cast("B")), (), [(self, part)], by_host=True)
            if (recorder := graph_recording.active()) is not None:
                recorder.uploaded(self, offset, data.cast("B"))
        self._wrote(part)

    def fill(self, offset: int, nbytes: int, word: int, part: str = "") -> None:
        """Fill memory with a 32-bit pattern, in order with launches.

        ``offset`` and ``nbytes`` are multiples of 4. ``part``: the part that contains all changes.
        """
        if offset % 4 or nbytes % 4:
            raise ValueError(f"fill works on whole 32-bit words, not on {nbytes} bytes from {offset}")
        # The buffer is rounded up to whole words, so a fill may cover the padding of a last odd-sized element.
        if self._check(offset, min(nbytes, max(self.nbytes - offset, 0)), "fill"):
            order = stream_order.active
            if order is None:
                self.device.fill(self.buffer, offset, nbytes, word & 0xFFFFFFFF)
            else:
                order.run(lambda: self.device.fill(self.buffer, offset, nbytes, word & 0xFFFFFFFF), (), [(self, part)])
            if (recorder := graph_recording.active()) is not None:
                recorder.filled(self, offset, nbytes, word & 0xFFFFFFFF, part)
        self._wrote(part)

    def copy_from(self, source: Allocation, nbytes: int, offset: int = 0, source_offset: int = 0, part: str = "") -> None:
        """Copy ``nbytes`` from another allocation of the same device, in order with launches.

        ``part``: the part that contains all changes.
        """
        source._check(source_offset, nbytes, "copy")
        if self._check(offset, nbytes, "copy"):
            order = stream_order.active
            if order is None:
                self.device.copy(self.buffer, offset, source.buffer, source_offset, nbytes)
            else:
                work = functools.partial(self.device.copy, self.buffer, offset, source.buffer, source_offset, nbytes)
                order.run(work, [(source, "")], [(self, part)])
            if (recorder := graph_recording.active()) is not None:
                recorder.copied(self, offset, source, source_offset, nbytes, part)
        self._wrote(part)

    def wrote(self, part: str) -> None:
        """Note that a launch has written to ``part``. A graph that is being recorded notes it for each of its launches."""
        self._wrote(part)
        if (recorder := graph_recording.active()) is not None:
            recorder.keep(self)
            recorder.wrote(self.generations, part)

    def _wrote(self, part: str) -> None:
        write(self.generations, part)
        if (recorder := graph_recording.active()) is not None:
            recorder.wrote(self.generations, part)

    def _wait_for_streams(self) -> None:
        """Have the device's own stream wait for the streams that write here, because the host is about to read."""
        if stream_order.active is not None:
            stream_order.active.run(lambda: None, [(self, "")], (), by_host=True)

    def duplicate(self, offset: int, nbytes: int) -> Allocation:
        """Return a new allocation of the same device with a copy of ``nbytes`` from ``offset`` on, made in order with launches."""
        copy = Allocation(self.device, self.device.allocate(nbytes, False), nbytes)
        copy.copy_from(self, nbytes, 0, offset)
        return copy

    def become(self, other: Allocation) -> None:
        """Free this memory and take over the memory of ``other``, which has none afterwards."""
        self._finalizer()
        self.buffer, self.address, self.nbytes = other.buffer, other.address, other.nbytes
        other._finalizer.detach()
        self._finalizer = weakref.finalize(self, self.device.free, self.buffer)
        self._finalizer.atexit = False
        self.bump()

    def free(self) -> None:
        """Free the memory now; later reads and writes raise. Freeing twice does nothing."""
        self._finalizer()
        self.keep = None
        self.address = -1  # This address fits no argument block: launches that use it fail.
        self.bump()

    @property
    def host_address(self) -> int | None:
        """The address of the bytes for the host, or None.

        Wait for launches before using it. The caller may write there, so from then on all parts are ``shared``.
        """
        view = None if self.freed else self.device.host_view(self.buffer)
        if view is None:
            return None
        graph_recording.refuse(_READS)
        self.share()
        return int(np.frombuffer(view, np.uint8).ctypes.data)

    @property
    def sharing(self) -> SharesMemory | None:
        """The device, if other libraries of the process use the same GPU, else None; None also once the memory is freed."""
        return self.device if isinstance(self.device, SharesMemory) and not self.freed else None

    @property
    def freed(self) -> bool:
        """Whether the memory has been freed."""
        return not self._finalizer.alive

    def _check(self, offset: int, count: int, what: str) -> int:
        if not self._finalizer.alive:
            raise SpirogradRuntimeError(f"cannot {what}: this memory was freed")
        if offset < 0 or offset + count > max(self.nbytes, self.buffer.nbytes if what == "fill" else 0):
            raise ValueError(f"{what} of {count} bytes from offset {offset} runs past the end of {self.nbytes} bytes")
        return count


class Memory:
    """The allocator of one device. It returns `Allocation` objects."""

    __slots__ = ("device",)

    def __init__(self, device: Device) -> None:
        self.device = device

    def allocate(self, nbytes: int, zeroed: bool = True) -> Allocation:
        """Allocate ``nbytes`` bytes of zeros (undefined contents unless ``zeroed``), aligned to 256 bytes.

        Raises OutOfDeviceMemory, after which the device is still usable.
        """
        if nbytes < 0:
            raise ValueError(f"cannot allocate {nbytes} bytes")
        try:
            buffer = self.device.allocate(nbytes, zeroed)
        except OutOfDeviceMemory:
            # Unreachable arrays in reference cycles hold memory: collect them and try once again.
            gc.collect()
            buffer = self.device.allocate(nbytes, zeroed)
        allocation = Allocation(self.device, buffer, nbytes)
        if zeroed and (recorder := graph_recording.active()) is not None:
            recorder.filled(allocation, 0, buffer.nbytes // 4 * 4, 0)
        return allocation

    def watch(self, watcher: Watcher) -> bool:
        """Call ``watcher.handed_out(allocation, part)`` before memory is handed out (see `Allocation.share`), as long as the watcher lives.

        Returns whether memory of this device was handed out earlier.
        """
        _watchers.add(watcher)
        return any(allocation.device is self.device for allocation in tuple(_handed_out))

    def handed_out(self, address: int, nbytes: int) -> tuple[Allocation, int] | None:
        """Return the allocation at a host address, and the offset in it, if the host got that address from spirograd."""
        for allocation in tuple(_handed_out):
            view = self.device.host_view(allocation.buffer) if allocation.device is self.device and not allocation.freed else None
            if view is not None:
                offset = address - int(np.frombuffer(view, np.uint8).ctypes.data)
                if 0 <= offset <= allocation.nbytes - nbytes:
                    return allocation, offset
        return None

    def wrap(self, address: int, nbytes: int, keep: object) -> Allocation | None:
        """Wrap host memory that ``keep`` owns, without a copy; the allocation is shared. Return None where the device cannot."""
        buffer = self.device.wrap(address, nbytes)
        if buffer is None:
            return None
        allocation = Allocation(self.device, buffer, nbytes, keep)
        allocation.share()
        return allocation
