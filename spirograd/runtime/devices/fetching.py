"""Asynchronous readbacks (`Device.fetch`), what all devices share: the check of the range, and a readback that is done at once."""

from __future__ import annotations

from collections.abc import Callable

from spirograd.runtime.device import FETCH_LIMIT, Buffer


def check_range(buffer: Buffer, offset: int, nbytes: int) -> None:
    """Raise ValueError unless ``nbytes`` from ``offset`` of ``buffer`` can be fetched."""
    if offset % 4 or nbytes % 4:
        raise ValueError(f"a fetch takes whole 32-bit words, not {nbytes} bytes from {offset}")
    if not 0 < nbytes <= FETCH_LIMIT:
        raise ValueError(f"a fetch takes 4 to {FETCH_LIMIT} bytes, not {nbytes}")
    if offset < 0 or offset + nbytes > buffer.nbytes:
        raise ValueError(f"{nbytes} bytes from {offset} are outside of a buffer of {buffer.nbytes} bytes")


class ReadyFetch:
    """A `Fetch` whose bytes are there from the start. ``count_wait`` notes a wait on the device."""

    __slots__ = ("_count_wait", "_data")

    def __init__(self, data: bytes, count_wait: Callable[[], None]) -> None:
        self._data = data
        self._count_wait = count_wait

    def take(self) -> bytes:
        return self._data

    def wait(self) -> bytes:
        self._count_wait()
        return self._data
