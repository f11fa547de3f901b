"""Graphs of the driver: series of work that it runs as one piece, and loops whose condition it reads itself.

A loop is a conditional node of CUDA (CUDA Driver API, "Graph Management"; CUDA C++ Programming Guide, "Conditional Graph Nodes"): its body
is a graph of its own, which runs as long as the value of a handle is not 0. Kernels set that value by the device function
`cudaGraphSetConditional`, which the driver's compiler provides: PTX declares it as external, and nothing is linked.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterable, Sequence
from ctypes import POINTER, byref, c_int, c_int64, c_size_t, c_uint, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any

from spirograd.base.artifact import ArgBlock, CompiledKernel, TaskInfo
from spirograd.base.device import Buffer, Loop, Sections, Step, one_by_one
from spirograd.runtime.conflicts import UsedMemory
from spirograd.runtime.devices.gpu.driver import Driver
from spirograd.runtime.devices.gpu.side_streams import SideStreams
from spirograd.runtime.devices.gpu.stream import RELAXED, Stream
from spirograd.runtime.devices.gpu.transfer import GpuTransfers

if TYPE_CHECKING:
    from spirograd.runtime.devices.gpu.device import Executable

_CONDITIONAL = 13  # CU_GRAPH_NODE_TYPE_CONDITIONAL
_WHILE = 1  # CU_GRAPH_COND_TYPE_WHILE
# Parameters: a handle, and the address of the word that decides, or 0 to continue.
_SET_CONDITION = b"""
.version 6.3
.target sm_70
.address_size 64
.extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);
.visible .entry sg_set_condition(.param .align 8 .b8 block[16])
.maxntid 1, 1, 1
{
  .reg .pred %always, %nonzero;
  .reg .b64 %handle, %generic, %address;
  .reg .b32 %word, %value;
  .param .b64 first;
  .param .b32 second;
  ld.param.u64 %handle, [block];
  ld.param.u64 %generic, [block+8];
  cvta.to.global.u64 %address, %generic;
  setp.eq.u64 %always, %generic, 0;
  mov.u32 %word, 1;
  @!%always ld.global.u32 %word, [%address];
  setp.ne.u32 %nonzero, %word, 0;
  selp.u32 %value, 1, 0, %nonzero;
  st.param.b64 [first], %handle;
  st.param.b32 [second], %value;
  call.uni cudaGraphSetConditional, (first, second);
  ret;
}
"""


class _NodeParams(ctypes.Structure):
    """The type CUgraphNodeParams of a conditional node."""

    _fields_ = [
        ("type", c_int),
        ("reserved0", c_int * 3),
        ("handle", c_uint64),
        ("kind", c_int),
        ("size", c_uint),
        ("graphs", POINTER(c_void_p)),
        ("context", c_void_p),
        ("rest", c_int64 * 25),
        ("reserved2", c_int64),
    ]


def condition_kernel(target: str) -> CompiledKernel:
    """Return the kernel that sets the value of a handle."""
    task = TaskInfo("set_condition", "serial", "sg_set_condition", 0)
    return CompiledKernel("set_condition", target, "set_condition", ArgBlock((), "<QQ", 16), (task,), (_SET_CONDITION,))


class Loaded:
    """A module or graph that the driver keeps until it ``unload``s it."""

    __slots__ = ("handle", "unload")

    def __init__(self, unload: Callable[[int], int], handle: int) -> None:
        self.unload = unload
        self.handle = handle


class GraphWork:
    """The interface that a series of work calls while it is recorded, see `RecordsWork.record`. It offers the stream's work only."""

    def __init__(self, driver: Driver, transfers: GpuTransfers) -> None:
        self._driver = driver
        self._transfers = transfers

    def launch(self, executable: Any, block: bytes | bytearray, counts: tuple[int | None, ...]) -> None:
        """See `Device`."""
        if executable.by_address:
            raise CannotBeRecorded
        self._driver.check(executable.run(bytes(block), counts), f"record kernel {executable.name}")

    def fill(self, buffer: Buffer, offset: int, nbytes: int, word: int) -> None:
        """See `Device`."""
        self._transfers.fill(buffer.handle, offset, nbytes, word)

    def copy(self, target: Buffer, target_offset: int, source: Buffer, source_offset: int, nbytes: int) -> None:
        """See `Device`."""
        self._transfers.copy(target.handle, target_offset, source.handle, source_offset, nbytes)


class CannotBeRecorded(Exception):
    """The error that an argument block is uploaded for each launch, which a graph cannot record."""


class DriverGraph:
    """An executable graph of the driver, which is released before the kernels that its steps launch."""

    __slots__ = ("__weakref__", "_steps", "handle")

    def __init__(self, handle: int, steps: Sequence[Step | Sections]) -> None:
        self.handle = handle
        self._steps = steps

    def by_parts(self, device: Any) -> None:
        """Have ``device`` run the work piece by piece."""
        for step in one_by_one(self._steps):
            step.work(device)


class SeriesRecorder:
    """A recorder of series of work on a stream that records a graph. The device's lock is held.

    ``between``: an event. ``work``: the interface that steps call.
    """

    def __init__(self, stream: Stream, sides: SideStreams, between: int, work: GraphWork) -> None:
        self._stream = stream
        self._driver = stream.driver
        self._sides = sides
        self._between = between
        self._work = work

    def give(self, nodes: Iterable[Step | Sections]) -> None:
        """Give a series to the stream."""
        for node in nodes:
            if isinstance(node, Sections):
                self._give_sections(node)
            else:
                node.work(self._work)

    def _give_sections(self, node: Sections) -> None:
        """Run each section on a stream of its own; these become branches of the graph.

        A section that uses memory of another one comes after it.
        """
        stream, own = self._stream, self._stream.handle
        sides = [self._sides.take() for _ in node.sections]
        used: list[UsedMemory] = []
        try:
            for side, steps in zip(sides, node.sections):
                stream.order(own, side, self._between)
                for before, memory in zip(sides, used):
                    if any(map(memory.conflicts, steps)):
                        stream.order(before, side, self._between)
                used.append(UsedMemory())
                stream.select(side)
                for step in steps:
                    step.work(self._work)
                    used[-1].add(step)
                stream.select(own)
                stream.order(side, own, self._between)
        finally:
            stream.select(own)
            for side in sides:
                self._sides.give(side)


class LoopRecorder(SeriesRecorder):
    """A recorder of graphs with loops. ``context``: the current context. ``setter``: the executable of `condition_kernel`."""

    def __init__(self, stream: Stream, sides: SideStreams, between: int, context: int, work: GraphWork, setter: Executable) -> None:
        super().__init__(stream, sides, between, work)
        self._context = context
        self._setter = setter

    def record(self, loop: Loop) -> int:
        """Return an executable graph that runs the loop. Raises the errors of steps and of the driver."""
        driver = self._driver
        graph, executable = c_void_p(), c_void_p()
        driver.call("make a graph", driver.graph_create, byref(graph), 0)
        try:
            self._add(graph.value or 0, [loop], ())
            driver.call("make a graph", driver.graph_make, byref(executable), graph, 0)
        finally:
            driver.graph_destroy(graph)
        return executable.value or 0

    def _add(self, graph: int, nodes: Iterable[Step | Sections | Loop], after: tuple[int, ...]) -> tuple[int, ...]:
        """Add work to a graph after some of its nodes. Return the nodes that later work must come after."""
        for is_loop, group in itertools.groupby(nodes, lambda node: isinstance(node, Loop)):
            if is_loop:
                for loop in group:
                    assert isinstance(loop, Loop)
                    after = self._add_loop(graph, loop, after)
            else:
                steps = [node for node in group if not isinstance(node, Loop)]
                after = self._capture(graph, after, lambda steps=steps: self.give(steps))  # type: ignore[misc]
        return after

    def _add_loop(self, graph: int, loop: Loop, after: tuple[int, ...]) -> tuple[int, ...]:
        driver, handle, node = self._driver, c_uint64(), c_void_p()
        driver.call("make a loop", driver.condition_create, byref(handle), graph, self._context, 0, 0)
        after = self._capture(graph, after, lambda: self._set(handle.value, 0))  # The body runs at least once.
        params = _NodeParams(type=_CONDITIONAL, handle=handle.value, kind=_WHILE, size=1, context=self._context)
        driver.call("make a loop", driver.graph_add, byref(node), graph, (c_void_p * len(after))(*after), len(after), byref(params))
        body = params.graphs[0] or 0
        ends = self._add(body, loop.body, ())
        self._capture(body, ends, lambda: self._set(handle.value, loop.flag))
        return (node.value or 0,)

    def _set(self, handle: int, flag: int) -> None:
        block = handle.to_bytes(8, "little") + flag.to_bytes(8, "little")
        self._driver.check(self._setter.run(block, (1,)), "record the condition of a loop")

    def _capture(self, graph: int, after: tuple[int, ...], work: Callable[[], None]) -> tuple[int, ...]:
        """Add the work that ``work`` gives to the stream to a graph."""
        driver, own = self._driver, self._stream.own
        dependencies = (c_void_p * len(after))(*after) if after else None
        driver.call("record a graph", driver.capture_to, own, graph, dependencies, None, len(after), RELAXED)
        before = self._stream.select(own)
        try:
            work()
            state, number, of = c_int(), c_uint64(), c_void_p()
            handles, count = POINTER(c_void_p)(), c_size_t()
            driver.call("record a graph", driver.capture_info, own, byref(state), byref(number), byref(of), byref(handles), byref(count))
            ends = tuple([handles[k] or 0 for k in range(count.value)])
        finally:
            self._stream.select(before)
            code = driver.capture_end(own, byref(c_void_p()))
        driver.check(code, "record a graph")
        return ends
