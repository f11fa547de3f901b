"""Asynchronous readbacks of the Vulkan device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spirograd.runtime.devices.staging import StagingCell
from spirograd.runtime.devices.vulkan.stream import Stream

if TYPE_CHECKING:
    from spirograd.runtime.devices.vulkan.allocator import Block


class CellReadback:
    """A `StagedReadback` into ``cell``, which it returns at its end. The bytes are available when the timeline has passed ``value``."""

    __slots__ = ("_nbytes", "_stream", "cell", "value")

    def __init__(self, stream: Stream, cell: StagingCell[Block], nbytes: int) -> None:
        self._stream = stream
        self._nbytes = nbytes
        self.cell = cell
        self.value = 0

    def poll(self) -> bytes | None:
        if self._stream.completed < self.value and self._stream.poll() < self.value:
            return None
        data: bytes = self.cell.view[: self._nbytes]
        return data

    def wait(self) -> None:
        if self._stream.submitted < self.value:
            self._stream.flush()
        self._stream.wait(self.value)

    def __del__(self) -> None:
        self.cell.home.append(self.cell)
