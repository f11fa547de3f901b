"""Halos between processes, and their derivatives.

There are two movements, each the transpose of the other: `SPREAD` copies cells from their owners to the halos of others; `COLLECT` takes
the contents of halos, sets these to zero, and adds them to the owners' cells. The reverse pass of one is therefore the other, on gradients.
A movement begins and ends; kernels run in between, while messages are in transit. In the reverse pass, the end of one begins the other.

A tape records the kernels here as Python code with a gradient of its own, and messages that arrive as writes of the host. If it runs them
again (`Tape(checkpoints=)`), it writes the recorded messages, and sends nothing: only the reverse pass of each transfer sends.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from spirograd.ad.memory_keys import FieldOrArray
from spirograd.base.dtypes import i32
from spirograd.base.errors import SpirogradRuntimeError, render
from spirograd.base.loc import Loc
from spirograd.base.tracebacks import user_location
from spirograd.distributed import halo_kernels, open_transfers, world
from spirograd.distributed.halo_cells import Cells, HaloCells, Part, by_cell
from spirograd.distributed.message_memory import MessageMemory
from spirograd.distributed.recorded_calls import recorded, tape_of
from spirograd.distributed.transport import Message
from spirograd.lang.data.field import MatrixField
from spirograd.lang.data.ndarray import MatrixNdarray, Ndarray, ScalarNdarray, element_ndarray
from spirograd.lang.matrix import Vector


class Tables:
    """`HaloCells` in device memory, for memory whose indices are ``shift`` less."""

    def __init__(self, cells: HaloCells, shift: Sequence[int]) -> None:
        self.cells = cells
        unique, starts, positions = by_cell(cells.owned)
        self.owned, self.halo, self.unique = (_indices(table - np.asarray(shift, np.int32)) for table in (cells.owned, cells.halo, unique))
        self.starts, self.positions = _numbers(starts), _numbers(positions)


def _indices(cells: Cells) -> MatrixNdarray:
    copy = Vector.ndarray(cells.shape[1], i32, len(cells))
    copy.from_numpy(cells)
    return copy


def _numbers(numbers: Cells) -> ScalarNdarray:
    copy = ScalarNdarray(i32, len(numbers))
    copy.from_numpy(numbers)
    return copy


class Lane:
    """The messages of one field or ndarray in one direction, outgoing and incoming. ``busy``: the transfer in progress; ``number``:
    identifies the messages of this memory and direction, and is the same on all processes."""

    def __init__(self, memory: FieldOrArray, tables: Tables, spreads: bool) -> None:
        self.tables = tables
        self.busy: Transfer | None = None
        transport = world.transport()
        self.number = transport.lanes
        transport.lanes += 1
        cells = tables.cells
        out, into = (len(cells.owned), len(cells.halo)) if spreads else (len(cells.halo), len(cells.owned))
        self.out, self.into = MessageMemory(_like(memory, out)), MessageMemory(_like(memory, into))


def _like(memory: FieldOrArray, length: int) -> ScalarNdarray | MatrixNdarray:
    """Return an array of ``length`` elements of the type of ``memory``."""
    if not memory.element_shape:
        return ScalarNdarray(memory.dtype, length)
    assert isinstance(memory, (MatrixField, Ndarray)) and memory._build is not None
    return element_ndarray(memory.element_shape, memory.dtype, memory._build, length)


def _spread_out(memory: FieldOrArray, lane: Lane) -> None:
    halo_kernels.copy_out(memory, lane.tables.owned, lane.out.array, len(lane.tables.cells.owned))


def _spread_in(memory: FieldOrArray, lane: Lane) -> None:
    cells = lane.tables.cells
    halo_kernels.copy_in(memory, lane.tables.halo, lane.out.array, lane.into.array, len(cells.halo), cells.kept)


def _collect_out(memory: FieldOrArray, lane: Lane) -> None:
    halo_kernels.move_out(memory, lane.tables.halo, lane.out.array, len(lane.tables.cells.halo))


def _collect_in(memory: FieldOrArray, lane: Lane) -> None:
    tables, out, into = lane.tables, lane.out.array, lane.into.array
    count = tables.unique.shape[0]
    halo_kernels.add_in(memory, tables.unique, tables.starts, tables.positions, out, into, count, tables.cells.kept)


class Movement(NamedTuple):
    """A movement of cells. ``take``: from cells to messages; ``put``: from messages to cells; ``spreads``: whether from owners to halos."""

    name: str
    spreads: bool
    take: Callable[[FieldOrArray, Lane], None]
    put: Callable[[FieldOrArray, Lane], None]

    def parts(self, cells: HaloCells) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
        """Return the messages to and from other processes."""
        return (cells.to, cells.coming) if self.spreads else (cells.coming, cells.to)


SPREAD = Movement("a halo exchange", True, _spread_out, _spread_in)
COLLECT = Movement("a sum of halos", False, _collect_out, _collect_in)


Moved = tuple[FieldOrArray, Lane]  # a field or ndarray, and its messages


class Transfer:
    """A movement of memory: `begin`, then `end`. ``loc``: the user's line that began it."""

    def __init__(self, movement: Movement, moved: list[Moved], loc: Loc | None) -> None:
        self.movement = movement
        self.name = movement.name
        self.moved = moved
        self.loc = loc
        self._wait: Callable[[], None] = _nothing

    def begin(self) -> None:
        """Take the cells, and send them. Raises SpirogradRuntimeError if the previous transfer of the same memory has not ended, or if any
        was dropped."""
        with world.waiting(self.name):  # raises first if a message has failed, because other transfers then cannot end
            open_transfers.check()
        for _, lane in self.moved:
            if lane.busy is not None:
                gc.collect()  # the error does not depend on when Python frees a `Pending` that is part of a cycle
                open_transfers.check()
                problem = f"{lane.busy.name} of the same memory has not been finished"
                raise SpirogradRuntimeError(render(problem, lane.busy.loc, "call `finish()` before you start the next one"))
        open_transfers.begun(self)  # before messages are sent, because it keeps their memory alive
        for _, lane in self.moved:
            lane.busy = self
        with self._lost_by_errors():
            self._send()

    def _send(self) -> None:
        sent: list[Message] = []
        received: list[Message] = []
        for memory, lane in self.moved:
            self.movement.take(memory, lane)
        for _, lane in self.moved:
            to, coming = self.movement.parts(lane.tables.cells)
            if to:
                out, into = lane.out.to_send(), lane.into.to_receive()
                sent += [(other, out[a:b]) for other, a, b in to]
                received += [(other, into[a:b]) for other, a, b in coming]
        transport = world.transport()
        transport.exchanges += 1
        tag = transport.tag([lane.number for _, lane in self.moved])
        with world.waiting(self.name):
            try:
                self._wait = transport.post(sent, received, tag)
            except BaseException:  # some messages may be in transit, and nothing can wait for them
                transport.failed = True
                raise

    @contextlib.contextmanager
    def _lost_by_errors(self) -> Iterator[None]:
        """Mark the transfer as lost if an error or Ctrl-C occurs in the block, of which other processes do not know. After a failed message
        they cannot continue either."""
        try:
            yield
        except BaseException:
            if world.transport().failed:
                open_transfers.ended(self)
                self.forget()
            else:
                open_transfers.lost(self)
            raise

    def end(self) -> None:
        """Wait for the messages, and copy them to their cells. Raises SpirogradRuntimeError if this process has called `init` or `end`
        since `begin`."""
        if not open_transfers.is_open(self):
            problem = f"{self.name} ended when this process left the others, or joined them again: it cannot be finished"
            raise SpirogradRuntimeError(render(problem, self.loc, "finish it before `sg.distributed.init` and `sg.distributed.end`"))
        with self._lost_by_errors(), world.waiting(self.name, begun=True):
            self._wait()
        open_transfers.ended(self)
        for _, lane in self.moved:
            if self.movement.parts(lane.tables.cells)[1]:
                lane.into.received()
            lane.busy = None
        for memory, lane in self.moved:
            self.movement.put(memory, lane)

    def discard(self) -> None:
        """Wait for the messages, and discard them."""
        if not open_transfers.ended(self):
            return
        try:
            with world.waiting(self.name, begun=True):
                self._wait()
            for _, lane in self.moved:
                lane.into.discarded()
        finally:
            self.forget()

    def forget(self) -> None:
        """Forget the messages, which no longer arrive."""
        for _, lane in self.moved:
            lane.busy = None


def _nothing() -> None:
    return None


class Pending:
    """A transfer in progress, made by `Partition.start`. Until `finish`, the halos must not be used; all other cells can be used."""

    def __init__(self, movement: Movement, moved: list[Moved], back: Movement, moved_back: Callable[[], list[Moved]]) -> None:
        self._transfer = Transfer(movement, moved, user_location())
        self._transfers = [self._transfer]  # and those of the reverse pass
        weakref.finalize(self, open_transfers.drop, self._transfers).atexit = False
        self._back, self._moved_back = back, moved_back
        self._reversed: Transfer | None = None
        self._done = False
        self._tape = tape_of(movement.name)
        self._record(self._transfer.begin, self._end_reverse)

    def finish(self) -> None:
        """Wait for the messages of other processes, and write them to the halos. Raises SpirogradRuntimeError if it was called before, or
        if another process ended or does not answer."""
        name = self._transfer.name
        if self._done:
            raise SpirogradRuntimeError(f"{name} is finished already: start another one")
        tape = tape_of(name)
        if tape is not self._tape:
            hint = "start and finish it inside of the same tape, or both outside"
            raise SpirogradRuntimeError(render(f"{name} was started and finished by different tapes", None, hint))
        self._done = True
        self._record(self._transfer.end, self._begin_reverse)

    def _record(self, function: Callable[[], None], reverse: Callable[[], None]) -> None:
        recorded(self._tape, function, reverse, [memory for memory, _ in self._transfer.moved], self._transfer.name)

    def _begin_reverse(self) -> None:
        self._reversed = Transfer(self._back, self._moved_back(), self._transfer.loc)
        self._transfers.append(self._reversed)
        self._reversed.begin()

    def _end_reverse(self) -> None:
        if self._reversed is None:
            open_transfers.drop([self._transfer])
            problem = f"{self._transfer.name} was started in the tape and not finished there"
            raise SpirogradRuntimeError(render(problem, self._transfer.loc, "call `finish()` before the tape ends"))
        transfer, self._reversed = self._reversed, None
        self._transfers.remove(transfer)
        transfer.end()
