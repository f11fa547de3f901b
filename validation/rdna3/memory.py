"""Memory: buffers in a flat 64-bit address space, and the ranges that workgroups and lanes have for themselves. Accesses are checked."""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import Any

import numpy as np

from validation.rdna3.arithmetic import Array

_ALIGNMENT = 256
# Between buffers, so that an index that leaves its buffer by less does not reach another one; and how many buffers there may be.
_GAP, _BUFFERS = 1 << 16, 1 << 13
_UNDEFINED = 0xA5
_FIRST_ADDRESS = 0x7A00_0000_0000


class OutOfMemory(Exception):
    """No room for a buffer."""


class AccessError(Exception):
    """An access outside of all buffers. ``element``: which of the addresses it was."""

    def __init__(self, message: str, element: int) -> None:
        super().__init__(message)
        self.element = element


class Bytes:
    """A range of memory that is read and written at many offsets at a time; bounds have been checked."""

    def __init__(self, size: int, fill: int = 0) -> None:
        size = max(-(-size // 16) * 16, 16)
        self.bytes = np.zeros(size, np.uint8) if not fill else np.full(size, fill, np.uint8)
        self._views = {k: self.bytes.view(f"u{k}") for k in (1, 2, 4, 8)}

    def read(self, offsets: Array, size: int) -> Array:
        """Unsigned integers of ``size`` bytes (1, 2, 4 or 8)."""
        if size == 1 or not (offsets & (size - 1)).any():
            return self._views[size][offsets >> (size.bit_length() - 1)]
        spread = self.bytes[offsets[:, None] + np.arange(size)]
        return np.ascontiguousarray(spread).view(f"u{size}")[:, 0]

    def write(self, offsets: Array, values: Array, size: int) -> None:
        """Where offsets are equal, the last value stays."""
        if size == 1 or not (offsets & (size - 1)).any():
            self._views[size][offsets >> (size.bit_length() - 1)] = values
        else:
            spread = np.ascontiguousarray(values.astype(f"u{size}"))[:, None].view(np.uint8)
            self.bytes[offsets[:, None] + np.arange(size)] = spread


class Memory(Bytes):
    """Global memory: buffers that were allocated, with space between them. ``capacity``: how many bytes they may have in all. ``first``:
    the lowest address."""

    def __init__(self, capacity: int, first: int = _FIRST_ADDRESS) -> None:
        super().__init__(capacity + _GAP * _BUFFERS)  # pages that nothing touches cost nothing
        self.capacity = capacity
        self._first = first
        self._used = 0
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._free = [(0, len(self.bytes))]  # offset and size of each gap, in order

    def allocate(self, nbytes: int, zeroed: bool = True) -> int:
        """The address of a new buffer. Raises OutOfMemory."""
        wanted = _room(nbytes)
        place = next((k for k, (_, size) in enumerate(self._free) if size >= wanted), None)
        if place is None or self._used + nbytes > self.capacity:
            raise OutOfMemory(f"cannot allocate {nbytes} bytes: the emulator has {self.capacity} in all")
        offset, size = self._free[place]
        self._free[place] = (offset + wanted, size - wanted)
        self.bytes[offset : offset + nbytes] = 0 if zeroed else _UNDEFINED
        at = bisect_right(self._starts, offset)
        self._starts.insert(at, offset)
        self._ends.insert(at, offset + nbytes)
        self._used += nbytes
        return self._first + offset

    def free(self, address: int) -> None:
        at = self._starts.index(address - self._first)
        start, end = self._starts.pop(at), self._ends.pop(at)
        self._used -= end - start
        insort(self._free, (start, _room(end - start)))
        merged: list[tuple[int, int]] = []
        for offset, size in self._free:
            if merged and sum(merged[-1]) == offset:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((offset, size))
        self._free = merged

    def close(self) -> None:
        """Forget all buffers: no address is good any more."""
        self._starts, self._ends, self._free, self.capacity = [], [], [], 0

    def slice(self, address: int, nbytes: int) -> Array:
        """The bytes of a range that lies in a buffer."""
        offset = int(self.offsets(np.array([address], np.uint64), nbytes)[0])
        return self.bytes[offset : offset + nbytes]

    def offsets(self, addresses: Array, size: int) -> Array:
        """Where ``size`` bytes at each of ``addresses`` lie. Raises AccessError."""
        offsets = (addresses - np.uint64(self._first)).view(np.int64)
        if not len(offsets):
            return offsets
        low, high = int(offsets.min()), int(offsets.max()) + size
        k = bisect_right(self._starts, low) - 1
        if k >= 0 and high <= self._ends[k]:
            return offsets
        starts, ends = np.array(self._starts, np.int64), np.array(self._ends, np.int64)
        at = np.searchsorted(starts, offsets, side="right") - 1
        wrong = at < 0
        if len(starts):
            wrong |= offsets + size > ends[at]
        if wrong.any():
            element = int(np.flatnonzero(wrong)[0])
            raise AccessError(
                f"{size} bytes at address {int(addresses[element]):#x} lie in no buffer{self._near(int(offsets[element]))}", element
            )
        return offsets

    def _near(self, offset: int) -> str:
        k = bisect_right(self._starts, offset) - 1
        if k < 0:
            return ""
        return (
            f" (the buffer below has {self._ends[k] - self._starts[k]} bytes, and this is byte {offset - self._starts[k]} from its start)"
        )


def _room(nbytes: int) -> int:
    return -(-(nbytes + _GAP) // _ALIGNMENT) * _ALIGNMENT


class Private(Bytes):
    """As many ranges of ``each`` bytes as there are owners: the shared memory of workgroups, the scratch memory of lanes."""

    def __init__(self, owners: int, each: int, what: str) -> None:
        self.each = each
        self._stride = -(-each // 16) * 16
        self._what = what
        super().__init__(owners * self._stride, _UNDEFINED)

    def offsets(self, owners: Array, at: Array, size: int) -> Array:
        """Where ``size`` bytes at offset ``at`` (signed) of each owner's range lie. Raises AccessError."""
        wrong = (at < 0) | (at + size > self.each)
        if wrong.any():
            element = int(np.flatnonzero(wrong)[0])
            raise AccessError(f"{size} bytes at offset {int(at[element])} are outside of {self.each} bytes of {self._what}", element)
        found: Any = owners * self._stride + at
        return found
