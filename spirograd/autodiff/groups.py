"""Reverse mode in groups of threads: adjoints of shared arrays, contents of shared arrays that are saved and restored, exchanges of values.

The threads of a group run the phases between barriers in the reverse order. If the primal has no races, one thread of a phase writes an
element, or any number read it, or update it by atomics. So in the reverse of the phase one thread takes the adjoint of the element, or any
number add to it by atomics.

Thread k of n saves the elements k, k + n, ... of an array, in an adstack. The last group may have fewer threads than the others, so the
number of elements that a thread saves follows from the smallest group of the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from spirograd.autodiff import adjoint_values
from spirograd.autodiff.activity import Activity
from spirograd.autodiff.shared_contents import shared_contents
from spirograd.autodiff.sweep import SavedArray, as_entries, capacity_of, from_saved, saved_type, to_saved, trip_count
from spirograd.base.dtypes import VOID, DType, i32
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.loc import Loc
from spirograd.base.records import dataclass, replace
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import AdstackRef, Kernel, Op, SharedRef
from spirograd.ir.whole_groups import are_whole


@dataclass(frozen=True, slots=True)
class _Group:
    """The group of ``size`` whose code is being emitted. ``thread``: the number of this thread; ``threads``: the number of all; ``whole``:
    whether there are always ``size``."""

    size: int
    thread: Op
    threads: Op
    whole: bool


# Operations at which threads wait for each other.
WAITING = frozenset((ops.workgroup_barrier, ops.subgroup_barrier))


class Groups:
    """The emitter of the code for groups of threads in a gradient kernel. ``lanes``: the threads of a subgroup. ``loops``: the locations of
    loops and branches with adstacks, by capacity."""

    def __init__(self, b: Builder, kernel: Kernel, lanes: int, activity: Activity) -> None:
        self.b = b
        self.contents = shared_contents(kernel)
        self.acting = self.contents.acting
        self.lanes = lanes
        self.loops: list[Loc | None] = []
        self.saved: list[SavedArray] = []
        self.by_owner: dict[Op, list[SavedArray]] = {}
        shared = [ref for ref in activity.flows if isinstance(ref, SharedRef) and activity.active(ref)]
        self.adjoints = {ref: replace(ref, name=f"{ref.name}.grad") for ref in shared}
        self.group: _Group | None = None
        self.loop: Op = kernel.body.ops[-1]  # the parallel loop that is being reversed
        self.words: dict[int, Op] = {}  # length of an array -> the most elements of it that a thread saves

    # --- the loop ----------------------------------------------------------------------------------------------------------

    def prepare(self, loop: Op, begin: Op, end: Op) -> None:
        """Emit, before a parallel loop, how many elements of shared arrays its threads save, if it is grouped."""
        lengths = {ref.length for refs in (*self.contents.before.values(), *self.contents.each.values()) for ref in refs}
        self.words = {}
        if not loop.attr.grouped or not lengths:
            return
        b, size = self.b, loop.attr.group_size
        if are_whole(begin, end, size):
            self.words = {length: b.const(-(-length // size)) for length in lengths}
            return
        count = trip_count(b, begin, end)
        t = count.type
        assert isinstance(t, DType)
        one, several = b.const(1, t), b.const(size, t)
        count = b.emit(ops.max_, count, one)
        others = b.emit(ops.mul, b.emit(ops.floordiv, b.emit(ops.sub, count, one, attr="nsw"), several), several, attr="nsw")
        smallest = b.cast(b.emit(ops.sub, count, others, attr="nsw"), i32)  # the number of threads of the last group
        for length in sorted(lengths):
            self.words[length] = b.emit(ops.floordiv, b.emit(ops.add, smallest, b.const(length - 1), attr="nsw"), smallest)

    def enter(self, loop: Op, index: Op, begin: Op, end: Op) -> None:
        """Emit, at the start of the body of a parallel loop, if it is grouped, the number of the thread, and set the adjoints of shared
        arrays to zero."""
        self.group, self.loop = None, loop
        if not loop.attr.grouped:
            return
        b, size, t = self.b, loop.attr.group_size, index.type
        assert isinstance(t, DType)
        from_zero = begin.code is ops.const and begin.attr == 0
        number = index if from_zero else b.emit(ops.sub, index, begin, attr="nsw")
        thread, whole = b.emit(ops.irem, number, b.const(size, t)), are_whole(begin, end, size)
        if whole:
            threads = b.const(size)
        else:
            left = b.emit(ops.sub, end, b.emit(ops.sub, index, thread, attr="nsw"))
            threads = b.cast(b.emit(ops.min_, left, b.const(size, t)), i32)
        self.group = _Group(size, b.cast(thread, i32), threads, whole)
        accessed = {ref for _, ref in loop.regions[0].accesses}
        adjoints = sorted([adjoint for ref, adjoint in self.adjoints.items() if ref in accessed], key=lambda ref: ref.name)
        for ref in adjoints:
            for _, element in self._elements(ref.length, None):
                b.store(ref, element, b.const(0.0, ref.dtype))
        if adjoints:
            self.barrier()

    def barrier(self) -> None:
        self.b.emit(ops.workgroup_barrier, type=VOID)

    def _elements(self, length: int, words: Op | None) -> Iterator[tuple[Op, Op]]:
        """Emit a loop over the elements of this thread, of an array of ``length``. Yield their numbers, counted from 0, and their indices.
        Operations emitted meanwhile are the body of the loop. ``words``: the number of elements; None: as many as the array takes."""
        b, group = self.b, self.group
        assert group is not None
        if words is None:
            words = b.const(-(-length // group.size))
            if not group.whole:
                rounded = b.emit(ops.add, group.threads, b.const(length - 1), attr="nsw")
                words = b.emit(ops.floordiv, rounded, group.threads)
        zero = b.const(0)
        (number,) = b.begin(i32)
        element = b.emit(ops.add, b.emit(ops.mul, number, group.threads, attr="nsw"), group.thread, attr="nsw")
        if group.whole and length % group.size == 0:
            yield number, element
        else:
            inside = b.emit(ops.lt, element, b.const(length))
            b.begin()
            yield number, element
            then = b.end()
            b.begin()
            b.if_(inside, then, b.end())
        b.for_(zero, words, (), b.end())

    # --- contents of shared arrays -----------------------------------------------------------------------------------------

    def _arrays(self, owner: Op, refs: list[SharedRef]) -> list[SavedArray]:
        """Return the saved arrays of ``owner``, which are declared when they are used first."""
        arrays = self.by_owner.get(owner)
        if arrays is None:
            arrays = []
            for ref in refs:
                adstack = AdstackRef(f"contents{len(self.saved)}", saved_type(ref.dtype), 1, len(self.loops))
                self.loops.append(owner.loc)
                arrays.append(SavedArray(ref, adstack, owner, self.loop))
                self.saved.append(arrays[-1])
            self.by_owner[owner] = arrays
        return arrays

    def save_before(self, op: Op) -> None:
        """Save, before the forward sweep of ``op``, what its reverse restores."""
        refs = self.contents.before.get(op)
        if refs:
            arrays = self._arrays(op, refs)
            self._require(arrays, self.b.const(1))
            self._copy(arrays, self.b.const(0), self._save)

    def restore_before(self, op: Op) -> None:
        """Restore, before the reverse of ``op``, what was saved before its forward sweep. Raise if that is impossible."""
        lost = self.contents.lost.get(op)
        if lost:
            raise SpirogradUnsupportedError(
                "the gradient needs the contents of a shared array at the start of this branch or loop, which the loop changes later, and "
                "which can be restored only where all threads of the group are together",
                op.loc,
                "keep the values in local variables, use another array for the results, or put `block.sync()` into the loop if all threads "
                "run it together",
            )
        refs = self.contents.before.get(op)
        if refs:
            self._copy(self._arrays(op, refs), self.b.const(0), self._restore)

    def saves_each(self, loop: Op) -> bool:
        """Return whether each iteration of ``loop`` begins with saving arrays."""
        return loop in self.contents.each

    def save_each(self, loop: Op, number: Op) -> None:
        """Save, at the start of iteration ``number``, what `begin_iteration` restores."""
        refs = self.contents.each.get(loop)
        if refs:
            self._copy(self._arrays(loop, refs), number, self._save)

    def require_each(self, loop: Op, count: Op) -> None:
        """Raise the capacities of the arrays that are saved in each of ``count`` iterations; see `sizing`."""
        refs = self.contents.each.get(loop)
        if refs:
            self._require(self._arrays(loop, refs), count)

    def begin_iteration(self, loop: Op, number: Op) -> None:
        """Begin to sweep iteration ``number`` again, after the reverse of the next one."""
        refs = self.contents.each.get(loop)
        if refs:
            self._copy(self._arrays(loop, refs), number, self._restore)
        else:
            self.begin_again(loop)

    def begin_again(self, op: Op) -> None:
        """Begin to sweep a region of ``op`` again. A barrier separates it from the reverse of what comes after it."""
        if op in self.contents.waiting:
            self.barrier()

    def _require(self, arrays: list[SavedArray], count: Op) -> None:
        b = self.b
        for array in arrays:
            words, count = self.words[array.ref.length], as_entries(b, count)
            most = b.emit(ops.floordiv, b.const(2**31 - 1), words)
            b.atomic("max", capacity_of(array.adstack.capacity), b.emit(ops.mul, b.emit(ops.min_, count, most), words, attr="nsw"))

    def _copy(self, arrays: list[SavedArray], number: Op, copy: Callable[[SavedArray, Op, Op], None]) -> None:
        """Save or restore arrays as entries ``number``, between barriers."""
        b = self.b
        self.barrier()
        for array in arrays:
            words = self.words[array.ref.length]
            first = b.emit(ops.mul, b.cast(number, i32), words, attr="nsw")
            for entry, element in self._elements(array.ref.length, words):
                copy(array, b.emit(ops.add, first, entry, attr="nsw"), element)
        self.barrier()

    def _save(self, array: SavedArray, entry: Op, element: Op) -> None:
        b = self.b
        b.store(array.adstack, entry, b.const(0), to_saved(b, b.load(array.ref, element)))

    def _restore(self, array: SavedArray, entry: Op, element: Op) -> None:
        b = self.b
        b.store(array.ref, element, from_saved(b, b.load(array.adstack, entry, b.const(0)), array.ref.dtype))

    # --- exchanges of values -----------------------------------------------------------------------------------------------

    def scatter(self, lane: Op, adjoint: Op) -> Op:
        """Return the sum of the ``adjoint`` of all threads whose ``lane`` is this thread: the reverse of a `subgroup_read`."""
        b, group, t = self.b, self.group, adjoint.type
        assert group is not None and isinstance(t, DType)
        sums = SharedRef(f"adjoints_of_lanes_{t.name}", t, group.size)
        b.store(sums, group.thread, adjoint_values.zero(b, t))
        b.emit(ops.subgroup_barrier, type=VOID)
        first = b.emit(ops.and_, group.thread, b.const(-self.lanes))
        place = b.emit(ops.add, first, b.emit(ops.and_, lane, b.const(self.lanes - 1)), attr="nsw")
        place = b.emit(ops.min_, place, b.emit(ops.sub, group.threads, b.const(1), attr="nsw"))
        b.atomic("add", sums, place, adjoint)
        b.emit(ops.subgroup_barrier, type=VOID)
        return b.load(sums, group.thread)
