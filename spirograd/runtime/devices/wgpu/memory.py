"""Buffers of wgpu under addresses that are only names: which buffer lies where, which lie together, how many bytes are in use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from spirograd.base.errors import OutOfDeviceMemory, SpirogradRuntimeError
from spirograd.base.wording import over_limit
from spirograd.runtime.devices.wgpu.api import telling, wgpu

_ALIGNMENT = 256
_FIRST_ADDRESS = 1 << 32
_USAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST


@dataclass(slots=True, eq=False)
class Place:
    """Where an allocation lies: ``size`` bytes of ``buffer`` from ``offset`` on, and the bind groups that hold it, as (cache, key)."""

    address: int
    size: int
    buffer: Any
    offset: int = 0
    neighbours: set[Place] = field(default_factory=set)  # all that share the buffer, itself included; shared by all of them
    groups: set[tuple[GroupCache, tuple[int, ...]]] = field(default_factory=set)


class GroupCache:
    """Bind groups of one task by the words of the argument block that name its buffers."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: dict[tuple[int, ...], Any] = {}


class Allocator:
    """Creates buffers. ``cap``: bytes that may be in use at a time; ``largest``: bytes that a kernel can see of one allocation."""

    def __init__(self, device: Any, largest: int, cap: int | None) -> None:
        self._device = device
        self._largest = largest
        self._cap = cap
        self._used = 0
        self._next = _FIRST_ADDRESS
        self.places: dict[int, Place] = {}

    def take(self, nbytes: int) -> Place:
        """``nbytes``, rounded up to 16, of zeros. Raises OutOfDeviceMemory."""
        size = max(16, -(-nbytes // 16) * 16)
        if size > self._largest:
            raise OutOfDeviceMemory(
                f"cannot allocate {nbytes} bytes: a kernel sees at most {self._largest} bytes of one array through wgpu on this adapter "
                "(limit max-storage-buffer-binding-size); split the array, or use another back end"
            )
        if self._cap is not None and self._used + size > self._cap:
            raise OutOfDeviceMemory(over_limit(nbytes, self._used, self._cap))
        place = Place(self._next, size, self._create(size))
        place.neighbours.add(place)
        # A gap after each, so that its end is nobody's start; no address is used twice.
        self._next += (size // _ALIGNMENT + 2) * _ALIGNMENT
        self._used += size
        self.places[place.address] = place
        return place

    def _create(self, size: int) -> Any:
        try:
            with telling(f"allocate {size} bytes through wgpu"):
                return self._device.create_buffer(size=size, usage=_USAGE)
        except SpirogradRuntimeError as error:
            raise OutOfDeviceMemory(str(error)) from error

    def give(self, place: Place) -> None:
        """Forget an allocation; wgpu releases a buffer when nothing that was recorded needs it any more."""
        if self.places.pop(place.address, None) is None:
            return
        self._used -= place.size
        self.forget_groups(place)
        place.neighbours.discard(place)
        place.buffer = None

    def close(self) -> None:
        """Forget everything: kernels live longer than devices, and their bind groups hold buffers."""
        for place in list(self.places.values()):
            self.give(place)

    def at(self, address: int) -> Place:
        """The allocation that begins at ``address``."""
        try:
            return self.places[address]
        except KeyError:
            raise SpirogradRuntimeError(f"no memory of this device begins at address {address:#x}: it was freed") from None

    # --- bind groups ---

    def remember_group(self, cache: GroupCache, key: tuple[int, ...], group: Any, places: Iterable[Place]) -> None:
        """Keep a bind group until one of its buffers goes or moves."""
        cache.entries[key] = group
        for place in places:
            place.groups.add((cache, key))

    def forget_groups(self, place: Place) -> None:
        """Drop the bind groups that hold ``place``."""
        for cache, key in list(place.groups):
            cache.entries.pop(key, None)
            for address in key:
                other = self.places.get(address)
                if other is not None:
                    other.groups.discard((cache, key))
        place.groups.clear()

    def forget_cache(self, cache: GroupCache) -> None:
        """Drop all bind groups of a task."""
        cache.entries.clear()
        for place in self.places.values():
            place.groups = {entry for entry in place.groups if entry[0] is not cache}

    # --- buffers that lie together ---

    def gather(self, places: Sequence[Place], copy: Any) -> Any:
        """Bring ``places`` into one buffer, for good, together with what lies beside them already; returns the buffer.

        ``copy(source, source offset, target, target offset, bytes)`` records a copy. Raises OutOfDeviceMemory if they do not fit.
        """
        if all(place.buffer is places[0].buffer for place in places):
            return places[0].buffer
        moving = sorted({other for place in places for other in place.neighbours}, key=lambda p: p.address)
        total = sum(_aligned(place.size) for place in moving)
        if total > self._largest:
            raise OutOfDeviceMemory(
                "a kernel uses more arrays than this adapter can bind one by one through wgpu; together with what shares their buffers "
                f"they take {total} bytes, and one binding holds {self._largest}"
            )
        buffer, offset, together = self._create(total), 0, set(moving)
        for place in moving:
            self.forget_groups(place)
            copy(place.buffer, place.offset, buffer, offset, place.size)
            place.buffer, place.offset, place.neighbours = buffer, offset, together
            offset += _aligned(place.size)
        return buffer


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
