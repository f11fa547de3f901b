"""Virtual addresses of wgpu's buffers, which have no addresses: the buffer of an address, merged buffers, bytes in use."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import field

from spirograd.base.errors import OutOfDeviceMemory, SpirogradRuntimeError
from spirograd.base.records import dataclass
from spirograd.base.wording import over_limit
from spirograd.runtime.devices.wgpu.api import telling, wgpu

# The alignment of addresses, and of allocations in one buffer: no adapter requires more for the offsets of bindings.
_ALIGNMENT = 256
_FIRST_ADDRESS = 1 << 32
# The most bind groups of a task; beyond that all are dropped, and created again on demand.
GROUPS_KEPT = 512
_USAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST


# Records a copy: source, its offset, target, its offset, bytes.
Copy = Callable[["wgpu.GPUBuffer", int, "wgpu.GPUBuffer", int, int], None]


class GroupCache:
    """A cache of bind groups of one task, by the addresses of its buffers."""

    __slots__ = ("__weakref__", "_keys", "entries")

    def __init__(self) -> None:
        self.entries: dict[tuple[int, ...], wgpu.GPUBindGroup] = {}
        self._keys: dict[int, set[tuple[int, ...]]] = {}  # Of the entries that an address is part of.

    def put(self, key: tuple[int, ...], group: wgpu.GPUBindGroup) -> None:
        """Store ``group`` until one of its buffers is freed or moves. If there are too many groups, drop all others."""
        if len(self.entries) >= GROUPS_KEPT:
            self.entries.clear()
            self._keys.clear()
        self.entries[key] = group
        for address in key:
            self._keys.setdefault(address, set()).add(key)

    def drop(self, address: int) -> None:
        """Drop the groups that hold the allocation at ``address``."""
        for key in self._keys.pop(address, ()):
            del self.entries[key]
            for other in set(key) - {address}:
                keys = self._keys[other]
                keys.discard(key)
                if not keys:
                    del self._keys[other]


@dataclass(slots=True, eq=False)
class BufferRange:
    """The place of an allocation: ``size`` bytes of ``buffer`` from ``offset`` on.

    ``neighbours`` are all allocations that share the buffer, itself included (one set for all of them); ``caches`` may contain bind groups
    of it.
    """

    address: int
    size: int
    buffer: wgpu.GPUBuffer
    offset: int = 0
    neighbours: set[BufferRange] = field(default_factory=set)
    caches: weakref.WeakSet[GroupCache] = field(default_factory=weakref.WeakSet)

    def at(self, offset: int, nbytes: int) -> int:
        """Return the offset in the buffer of the bytes from ``offset`` on. Raises SpirogradRuntimeError if they are outside, or freed."""
        if self.buffer is None:
            raise SpirogradRuntimeError("the buffer was freed")
        if offset < 0 or nbytes < 0 or offset + nbytes > self.size:
            raise SpirogradRuntimeError(f"bytes {offset} to {offset + nbytes} are outside of a buffer of {self.size} bytes")
        return self.offset + offset

    def forget_groups(self) -> None:
        """Drop the bind groups that hold this allocation."""
        for cache in self.caches:
            cache.drop(self.address)
        self.caches.clear()


class Allocator:
    """An allocator of buffers. ``cap``: the most bytes in use at a time; ``largest``: the most bytes of one allocation that a kernel can
    access."""

    def __init__(self, device: wgpu.GPUDevice, largest: int, cap: int | None) -> None:
        self._device = device
        self._largest = largest
        limits = device.limits
        buffer_limited = limits["max-buffer-size"] < limits["max-storage-buffer-binding-size"]
        self._reason = (
            "wgpu limits the size of a buffer (max-buffer-size)"
            if buffer_limited
            else "wgpu limits what a kernel sees of an array (max-storage-buffer-binding-size)"
        )
        self._cap = cap
        self._used = 0
        self._next = _FIRST_ADDRESS
        self.places: dict[int, BufferRange] = {}

    def take(self, nbytes: int) -> BufferRange:
        """Allocate ``nbytes``, rounded up to 16, of zeros. Raises OutOfDeviceMemory."""
        size = max(16, -(-nbytes // 16) * 16)
        if size > self._largest:
            raise OutOfDeviceMemory(
                f"cannot allocate {nbytes} bytes: {self._reason}, and that of this adapter is {self._largest} bytes; split the array, or "
                "use another back end"
            )
        if self._cap is not None and self._used + size > self._cap:
            raise OutOfDeviceMemory(over_limit(nbytes, self._used, self._cap))
        place = BufferRange(self._next, size, self._create(size))
        place.neighbours.add(place)
        # Allocations are separated by a gap, so that an end is not the start of another; no address is used twice.
        self._next += (size // _ALIGNMENT + 2) * _ALIGNMENT
        self._used += size
        self.places[place.address] = place
        return place

    def _create(self, size: int) -> wgpu.GPUBuffer:
        with telling(f"allocate {size} bytes through wgpu"):
            return self._device.create_buffer(size=size, usage=_USAGE)

    def give(self, place: BufferRange) -> None:
        """Forget an allocation; wgpu releases a buffer when recorded work needs it no more."""
        if self.places.pop(place.address, None) is None:
            return
        self._used -= place.size
        place.forget_groups()
        place.neighbours.discard(place)
        place.buffer = None

    def close(self) -> None:
        """Forget all allocations: kernels live longer than devices, and their bind groups hold buffers."""
        for place in list(self.places.values()):
            self.give(place)

    def at(self, address: int) -> BufferRange:
        """Return the allocation that begins at ``address``."""
        try:
            return self.places[address]
        except KeyError:
            raise SpirogradRuntimeError(f"no memory of this device begins at address {address:#x}: it was freed") from None

    # --- merged buffers ---

    def gather(self, places: Sequence[BufferRange], copy: Copy) -> int:
        """Move ``places`` into one buffer permanently, together with their neighbours. Return the bytes that moved.

        ``copy(source, source offset, target, target offset, bytes)`` records a copy. Raises OutOfDeviceMemory if they do not fit.
        """
        if all(place.buffer is places[0].buffer for place in places):
            return 0
        moving = sorted({other for place in places for other in place.neighbours}, key=lambda p: p.address)
        total = sum(_aligned(place.size) for place in moving)
        if total > self._largest:
            raise OutOfDeviceMemory(
                "a kernel uses more arrays than this adapter can bind one by one through wgpu; together with what shares their buffers "
                f"they take {total} bytes, and one binding holds {self._largest}"
            )
        buffer, offset, together = self._create(total), 0, set(moving)
        for place in moving:
            place.forget_groups()
            copy(place.buffer, place.offset, buffer, offset, place.size)
            place.buffer, place.offset, place.neighbours = buffer, offset, together
            offset += _aligned(place.size)
        return total


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
