"""Launches by compiled code that a graph of the driver repeats.

CUDA's driver takes 3 to 5 us for each task of a kernel, and an H200 1 to 2 us from one task to the next. A graph takes the driver 2 us with
one task, 4 with several, and the device 0.1 us from one to the next. If the launches of a kernel have equal argument blocks many times in a
row, compiled code asks for a graph of them, which is recorded here. Other blocks are launched task by task.
"""

from __future__ import annotations

import ctypes
import logging
from typing import TYPE_CHECKING

from spirograd.base.device import LaunchWork, NativeEntry, Step
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.runtime.devices.gpu import call
from spirograd.runtime.devices.gpu.call_code import BLOCK, FAILED, GRAPH, PATIENCE, RECORD
from spirograd.runtime.devices.streamed import DeviceLost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spirograd.runtime.devices.gpu.device import Executable, GpuDevice
    from spirograd.runtime.devices.gpu.driver_graphs import DriverGraph

logger = logging.getLogger("spirograd")

_PATIENCE = 16  # Equal launches before a graph is recorded; the number doubles each time.


class _PreparedLaunch:
    """What compiled code launches: see `call.prepared`. ``name``: for errors."""

    def __init__(self, device: GpuDevice, name: str, words: ctypes.Array[ctypes.c_uint64], nbytes: int, groups: Sequence[int]) -> None:
        self._device, self._name, self._words = device, name, words
        self._memory = call.prepared(device._code, words, nbytes, groups)

    def _set(self, offset: int, value: int) -> int:
        """Set a word of `call_code` to ``value``, and return its former value."""
        word = ctypes.c_uint64.from_buffer(self._memory, offset)
        before, word.value = word.value, value
        return before

    def entry(self, function: int) -> NativeEntry:
        """Return the entry by which compiled code launches with ``function``, the address of one of `call_code`. It keeps this object."""
        address = ctypes.addressof(self._memory)
        return NativeEntry(function, address, self._device._turn.lock, self, address + FAILED, self._report)

    def _report(self, _: int) -> None:
        """Raise the error of the last launch."""
        with self._device._turn:
            self._handle(self._set(FAILED, 0))

    def _handle(self, code: int) -> None:
        self._device._driver.check(code, f"launch kernel {self._name}")


class RepeatedLaunch(_PreparedLaunch):
    """Launches of ``executable`` with these ``counts``: see `CallsNatively.entry`."""

    def __init__(self, device: GpuDevice, executable: Executable, counts: tuple[int | None, ...]) -> None:
        groups = [task.groups(count) for task, count in zip(executable.tasks, counts)]
        super().__init__(device, executable.name, executable.words, executable.nbytes, groups)
        self._executable, self._counts = executable, counts
        self._graph: DriverGraph | None = None
        self._patience = _PATIENCE
        self._block = (ctypes.c_char * max(executable.nbytes, 8))()
        self._set(BLOCK, ctypes.addressof(self._block))
        self._set(PATIENCE, self._patience)

    def _handle(self, code: int) -> None:
        if code == RECORD:
            self._record()
        else:
            super()._handle(code)

    def _record(self) -> None:
        """Record a graph of launches with the last block."""
        work = LaunchWork(self._executable, self._block.raw[: self._executable.nbytes], self._counts)
        try:
            graph = self._device.record([Step(work, (), ())])
        except DeviceLost:
            raise
        except SpirogradRuntimeError as error:
            logger.warning(f"kernel {self._name} is launched task by task, which takes longer than a graph: {error}")
            return
        assert graph is not None
        self._graph = graph
        self._set(GRAPH, graph.handle)
        self._patience *= 2
        self._set(PATIENCE, self._patience)


class GraphLaunch(_PreparedLaunch):
    """Launches of a recorded ``graph``."""

    def __init__(self, device: GpuDevice, graph: DriverGraph) -> None:
        _, words = call.launcher(device._code, device._context, device._stream.place, ())
        super().__init__(device, "of a graph", words, 0, ())
        self._graph = graph
        self._set(GRAPH, graph.handle)
