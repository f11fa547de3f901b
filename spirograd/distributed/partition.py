"""`Partition`: a domain of cells that is divided among processes, with halos."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, overload

import numpy as np

from spirograd.ad.memory_keys import FieldOrArray
from spirograd.base.dtypes import DType
from spirograd.base.errors import SpirogradTypeError, SpirogradValueError, render
from spirograd.base.near_names import NearNames
from spirograd.base.wording import counted
from spirograd.distributed import halo_cells, memory_numbers, open_transfers, world
from spirograd.distributed.halo_cells import HaloCells
from spirograd.distributed.halo_transfers import COLLECT, SPREAD, Lane, Moved, Movement, Pending, Tables
from spirograd.distributed.regions import Region, best_grid, bounds_of, too_narrow
from spirograd.lang import context
from spirograd.lang.data.field import field
from spirograd.lang.data.ndarray import BufferView, Ndarray, ndarray
from spirograd.lang.data.numpy_transfer import Array
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.scalar import describe

if TYPE_CHECKING:
    from spirograd.lang.data.field import MemberField


class Partition(NearNames):
    """Divide a domain of ``shape`` cells, with one to three axes, into blocks, one for each process.

    ``processes``: the number of blocks along each axis; by default the arrangement with the smallest surface. Their product is the number
    of processes. Extents need not be multiples: blocks differ by at most one cell. ``halo``: the width of the halo in cells; ``periodic``:
    whether the domain is periodic; one value, or one for each axis. ``corners=False``: omit cells that are diagonal to the block, which a
    stencil without diagonals does not read.

    All processes make the same partitions in the same order. Raises SpirogradValueError on all of them for values that do not fit, such
    as a halo wider than a block, or that differ between processes.
    """

    def __init__(
        self,
        shape: int | Sequence[int],
        processes: Sequence[int] | None = None,
        halo: int | Sequence[int] = 1,
        periodic: bool | Sequence[bool] = False,
        corners: bool = True,
    ) -> None:
        transport = world.transport()
        world.alike("making a partition", lambda: self._set(shape, processes, halo, periodic, corners), "a partition")
        self.rank, self._size = transport.rank, transport.size
        self.coordinates = tuple(int(c) for c in np.unravel_index(self.rank, self.processes))
        self.owned = self._block(self.coordinates)
        neighbour = halo_cells.neighbours(self.coordinates, self.processes, self.periodic)
        self._cells: HaloCells = halo_cells.halo_cells(self.owned, self.halo, corners, self.rank, neighbour)
        self.interior, self.borders = halo_cells.border_regions(self.owned, self.halo, neighbour)
        self.origin = tuple(first - h for (first, _), h in zip(self.owned, self.halo))
        self.local_shape = tuple(extent + 2 * h for extent, h in zip(self.owned.shape, self.halo))
        # Lanes by memory and movement, for the session that made them.
        self._lanes: weakref.WeakKeyDictionary[object, dict[str, Lane]] = weakref.WeakKeyDictionary()
        self._tables: dict[tuple[int, ...], Tables] = {}
        self._session: object = None
        self._agreed: set[object] = set()

    def _set(self, shape: object, processes: object, halo: object, periodic: object, corners: bool) -> dict[str, object]:
        size = world.size()
        self.shape = _integers(shape, None, "`shape` of a partition is one to three extents above 0", 1)
        axes = len(self.shape)
        self.halo = _integers(halo, axes, f"`halo` is a number of cells from 0 on, or {axes} of them", 0)
        around = periodic if isinstance(periodic, (list, tuple)) else (periodic,) * axes
        if len(around) != axes or not all(isinstance(one, (bool, np.bool_)) for one in around):
            raise SpirogradValueError(f"`periodic` is True or False, or {axes} of them, got {periodic!r}")
        self.periodic, self.corners = tuple(bool(one) for one in around), bool(corners)
        self.processes = _grid_of(self.shape, processes, self.halo, size)
        return self._described()

    def _described(self) -> dict[str, object]:
        """Return the values in which partitions differ, as text."""
        names = ("shape", "processes", "halo", "periodic", "corners")
        return {name: getattr(self, name) for name in names}

    def _block(self, coordinates: Iterable[int]) -> Region:
        return Region(bounds_of(*one) for one in zip(self.shape, self.processes, coordinates))

    def block_of(self, rank: int) -> Region:
        """Return the cells that process ``rank`` owns."""
        return self._block(int(c) for c in np.unravel_index(rank, self.processes))

    def __repr__(self) -> str:
        described = ", ".join(f"{name}={value}" for name, value in self._described().items())
        return f"<partition {described}; this process owns {tuple(self.owned)}>"

    # --- memory ----------------------------------------------------------------------------------------------------------------

    @overload
    def field(self, dtype: DType | type[float] | type[int], needs_grad: bool = ..., name: str = ...) -> ScalarField: ...

    @overload
    def field(self, dtype: object, needs_grad: bool = ..., name: str = ...) -> MemberField: ...

    def field(self, dtype: object, needs_grad: bool = False, name: str = "") -> MemberField:
        """Return a field of ``dtype`` over the block of this process and its halo, with gradients if ``needs_grad``. Its indices are those
        of the domain: the block has those in `owned`, and the halo those before and after it, also at the ends of the domain. All processes
        must make fields and ndarrays of partitions in the same order, which identifies them."""
        memory = field(dtype, name=name, shape=self.local_shape, offset=self.origin, needs_grad=needs_grad)
        memory_numbers.made(memory)
        return memory

    def ndarray(self, dtype: object, needs_grad: bool = False) -> Ndarray:
        """Return an ndarray of ``dtype`` over the block of this process and its halo, with gradients if ``needs_grad``. Its indices begin
        at 0: the cell ``(i, j)`` of the domain is at ``(i - origin[0], j - origin[1])``. The order of creation is as for `field`."""
        memory = ndarray(dtype, self.local_shape, needs_grad)
        memory_numbers.made(memory)
        return memory

    def to_numpy(self, memory: FieldOrArray) -> Array:
        """Return the contents of ``memory``, a field or ndarray, in the whole domain, on every process, without halos outside of it. Raises
        SpirogradValueError on all of them if they pass different memory."""
        what = "`Partition.to_numpy`"
        self._compare(what, [memory])
        mine = memory.to_numpy()[self.owned.slices_from(self.origin)]
        blocks = world.gathered(what, mine)
        out: Array = np.empty(self.shape + memory.element_shape, memory.dtype.np)
        for rank, block in enumerate(blocks):
            out[self.block_of(rank).slices_from((0,) * len(self.shape))] = block
        return out

    def from_numpy(self, memory: FieldOrArray, array: object) -> None:
        """Set the cells of ``memory`` on this process from an ``array`` of the whole domain, including halos inside of the domain. Does not
        wait for other processes. Raises SpirogradValueError if the array has another shape."""
        self.check(memory)
        domain = np.asarray(array)
        if domain.shape != self.shape + memory.element_shape:
            raise SpirogradValueError(f"the domain is an array of shape {self.shape + memory.element_shape}, got {domain.shape}")
        local = memory.to_numpy()
        reach = Region((first - h, end + h) for (first, end), h in zip(self.owned, self.halo))
        there = Region(
            bounds if around else (max(bounds[0], 0), min(bounds[1], n)) for bounds, around, n in zip(reach, self.periodic, self.shape)
        )
        inside = domain[np.ix_(*halo_cells.wrapped(self.shape, there))]
        local[there.slices_from(self.origin)] = memory.dtype.array(inside)  # converts as kernels do
        memory.from_numpy(local)

    # --- halos -----------------------------------------------------------------------------------------------------------------

    def exchange(self, *memories: FieldOrArray) -> None:
        """Set the halos of ``memories``, fields and ndarrays, to the values of their owners. Halos outside of the domain are not changed.

        All processes must pass the same memory in the same order. Raises SpirogradTypeError and SpirogradValueError on all of them if one
        passes memory that does not fit the partition, or has another type, and SpirogradRuntimeError if a process ended or does not answer.
        """
        self.start(*memories).finish()

    def start(self, *memories: FieldOrArray) -> Pending:
        """Begin an `exchange`: ``pending = partition.start(u)``, then kernels that use no halo of ``u``, then ``pending.finish()``.
        ``memories``: as for `exchange`."""
        return self._start(SPREAD, COLLECT, memories)

    def add_halos(self, *memories: FieldOrArray) -> None:
        """Add the contents of halos to the cells of their owners, and set the halos to zero: for kernels that add to cells of other
        processes. Halos outside of the domain are not changed. ``memories`` and errors as for `exchange`."""
        self.start_add(*memories).finish()

    def start_add(self, *memories: FieldOrArray) -> Pending:
        """Begin `add_halos`, as `start` begins an `exchange`. Until it is finished, kernels must not add to cells of halos. ``memories``:
        as for `exchange`."""
        return self._start(COLLECT, SPREAD, memories)

    def _start(self, movement: Movement, back: Movement, memories: Sequence[FieldOrArray]) -> Pending:
        open_transfers.check()
        self._agree(movement, memories)
        moved = [(memory, self._lane(memory, movement)) for memory in memories]

        def moved_back() -> list[Moved]:
            return [(memory.grad, self._lane(memory.grad, back)) for memory in memories if memory.has_grad()]

        return Pending(movement, moved, back, moved_back)

    def _agree(self, movement: Movement, memories: Sequence[FieldOrArray]) -> None:
        """Compare the memory of all processes at its first transfer, in debug mode at each."""
        if context.session() is not self._session:
            self._session, self._tables, self._agreed = context.session(), {}, set()
            self._lanes = weakref.WeakKeyDictionary()
        key = (movement.name, *map(id, memories))
        known = key in self._agreed
        if not known or context.session().cfg.debug:
            self._compare(movement.name, memories)
        if not known:
            self._agreed.add(key)
            for memory in memories:  # an `id` may be reused
                weakref.finalize(memory, self._agreed.discard, key)

    def _compare(self, what: str, memories: Sequence[FieldOrArray]) -> None:
        """Raise on all processes if one passes other memory to ``what``, or memory that does not fit."""
        world.alike(what, lambda: self._kinds(memories), f"the memory of {what}")
        memory_numbers.used(*memories)

    def _kinds(self, memories: Sequence[FieldOrArray]) -> str:
        """Return the description of fitting memory that must be the same on all processes."""
        self.check(*memories)
        kinds = [
            f"{m.dtype}{list(m.element_shape) or ''}{' with a gradient' if m.has_grad() else ''}, {memory_numbers.described(m)}"
            for m in memories
        ]
        return f"{kinds} in {self._described()}"

    def check(self, *memories: FieldOrArray) -> None:
        """Raise SpirogradTypeError or SpirogradValueError unless ``memories`` are fields and ndarrays over the block of this process."""
        if not memories:
            raise SpirogradTypeError("a halo exchange needs a field or an ndarray")
        for memory in memories:
            if not isinstance(memory, (ScalarField, Ndarray)) or isinstance(memory, BufferView) or memory.sparse_path is not None:
                raise SpirogradTypeError(
                    f"a partition takes dense fields of scalars, vectors or matrices, and ndarrays, not {describe(memory)}"
                )
            if tuple(memory.shape) != self.local_shape:
                problem = (
                    f"{describe(memory)} has shape {tuple(memory.shape)}; on this process the block with its halo has {self.local_shape}"
                )
                raise SpirogradValueError(render(problem, None, "make it by `partition.field` or `partition.ndarray`"))
        if len({id(memory) for memory in memories}) != len(memories):
            raise SpirogradValueError("a halo exchange names the same memory twice")

    def _lane(self, memory: FieldOrArray, movement: Movement) -> Lane:
        lanes = self._lanes.setdefault(memory, {})
        if movement.name not in lanes:
            origin = tuple(getattr(memory, "origin", ())) or (0,) * len(self.shape)
            shift = tuple(a - b for a, b in zip(self.origin, origin))
            if shift not in self._tables:
                self._tables[shift] = Tables(self._cells, shift)
            lanes[movement.name] = Lane(memory, self._tables[shift], movement.spreads)
        return lanes[movement.name]


def _integers(value: object, count: int | None, wanted: str, least: int, repeats: bool = True) -> tuple[int, ...]:
    """Convert a sequence of ``count`` numbers (None: one to three), or one number, to a tuple. ``repeats``: whether one number is used for
    all axes."""
    several = isinstance(value, (list, tuple, np.ndarray))
    numbers: tuple[object, ...] = tuple(value) if isinstance(value, Iterable) and several else (value,) * ((count or 1) if repeats else 1)
    fits = len(numbers) == count if count else 1 <= len(numbers) <= 3
    integers = [int(n) for n in numbers if isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= least]
    if not fits or len(integers) != len(numbers):
        raise SpirogradValueError(f"{wanted}, not {value!r}")
    return tuple(integers)


def _grid_of(shape: tuple[int, ...], processes: object, halo: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return the grid of ``size`` processes: ``processes``, or the best one if it is None."""
    there = counted(size, "process", "processes")
    if processes is None:
        best = best_grid(shape, size, halo)
        if best is None:
            problem = f"{there} cannot divide a domain of shape {shape} with a halo of {halo}"
            raise SpirogradValueError(f"{problem}: some block would be narrower than its halo, or empty")
        return best
    grid = _integers(processes, len(shape), f"`processes` is a list of {len(shape)} numbers above 0, one for each axis", 1, repeats=False)
    if math.prod(grid) != size:
        problem = f"`processes={grid}` makes {counted(math.prod(grid), 'block')}"
        raise SpirogradValueError(f"{problem}, and there {'is' if size == 1 else 'are'} {there}")
    for axis, narrow in enumerate(too_narrow(shape, grid, halo)):
        if narrow:
            extent = shape[axis] // grid[axis]
            wide = f"its halo of {counted(halo[axis], 'cell')} is wider than the smallest block, {counted(extent, 'cell')}"
            problem = wide if extent else f"{grid[axis]} processes leave some block without a cell"
            hint = "use fewer processes along this axis, or a narrower halo"
            raise SpirogradValueError(render(f"axis {axis} of a domain of shape {shape}: {problem}", None, hint))
    return grid
