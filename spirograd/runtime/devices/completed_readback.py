"""Asynchronous readbacks (`Device.read_async`) for all devices: the check of the range, and a readback that is complete at once."""

from __future__ import annotations

from collections.abc import Callable

from spirograd.base.device import READBACK_LIMIT, Buffer


def check_range(buffer: Buffer, offset: int, nbytes: int, limit: int = READBACK_LIMIT) -> None:
    """Raise ValueError unless ``nbytes`` (at most ``limit``) from ``offset`` of ``buffer`` can be read back asynchronously."""
    if offset % 4 or nbytes % 4:
        raise ValueError(f"an asynchronous readback takes whole 32-bit words, not {nbytes} bytes from {offset}")
    if not 0 < nbytes <= limit:
        raise ValueError(f"an asynchronous readback takes 4 to {limit} bytes, not {nbytes}")
    if offset < 0 or offset + nbytes > buffer.nbytes:
        raise ValueError(f"{nbytes} bytes from {offset} are outside of a buffer of {buffer.nbytes} bytes")


class CompletedReadback:
    """A `Readback` whose bytes are available from the start. ``count_wait`` counts a wait on the device."""

    __slots__ = ("_count_wait", "_data")

    def __init__(self, data: bytes, count_wait: Callable[[], None]) -> None:
        self._data = data
        self._count_wait = count_wait

    def take(self) -> bytes:
        return self._data

    def wait(self) -> bytes:
        self._count_wait()
        return self._data
