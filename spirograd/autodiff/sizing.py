"""How large tapes must be: what the host can tell from arguments and shapes, and a kernel that counts the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from spirograd.analysis.sizes import size_of
from spirograd.analysis.tapes import SIZES, sizes_of
from spirograd.autodiff.derivative import Counting
from spirograd.autodiff.sweep import CAPACITY
from spirograd.base.artifact import FaultSite
from spirograd.base.dtypes import VOID, i32, storage
from spirograd.base.sizes import Size
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import ArrayRef, FieldRef, Kernel, Op, Ref, Region, TapeRef, TempRef, ref_of
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.context import PassContext
from spirograd.transforms.exact_extrema import exact, is_rounded
from spirograd.transforms.simplify import simplify


def sizing(kernel: Kernel, ctx: PassContext) -> tuple[Kernel, tuple[Counting, ...], tuple[Size | None, ...]]:
    """Split a gradient kernel, in which loops note how often they run: the kernel, which checks instead that they do not run more often;
    kernels that count what the host cannot know; and the capacities: expressions, or None where one of those kernels counts.

    The host does not read memory of devices that run on their own, which would take a wait. If a capacity depends on memory there, all
    are counted on the device, and handed over in an array: see `tapes.SIZES`.

    A count that does not change in the loops around it is taken outside of them, so that they need not run to be counted: the count may
    then be of a loop that is not reached, which only makes the tape larger.
    """
    counts = [op for op in kernel.walk() if _capacity(op) is not None]
    if not counts:
        return kernel, (), ()
    asynchronous = ctx.caps.profile in ("vulkan", "wgpu")
    closed, sizes = _sizes(counts, None), _sizes(counts, None if asynchronous else known_element)
    main = _Checked({k for k, size in enumerate(closed) if size is None}).kernel(kernel)
    if asynchronous and None in sizes:
        sizes = (None,) * len(sizes)
        stages = tuple([replace(c, kernel=_handing_over(c)) for c in _countings(kernel, list(range(len(sizes))), ctx)])
        return *_agreeing(replace(main, args=(*main.args, SIZES)), stages), sizes
    return *_agreeing(main, _countings(kernel, [k for k, size in enumerate(sizes) if size is None], ctx)), sizes


def _sizes(counts: Sequence[Op], load: Callable[[Op], Size | None] | None) -> tuple[Size | None, ...]:
    """The capacities that ``counts`` note, by number; ``load``: as of `size_of`."""
    sizes: dict[int, Size | None] = {}
    for op in counts:
        k, size = _capacity(op), size_of(op.args[-1], load)
        assert k is not None
        sizes[k] = size if k not in sizes else None
    return tuple([sizes[k] for k in range(len(sizes))])


def _handing_over(counting: Counting) -> Kernel:
    """A kernel that puts what it counts into `SIZES`, for kernels that run after it."""
    kernel = counting.kernel
    handed = replace(kernel, args=(*kernel.args, SIZES), returns=())
    target = sizes_of(handed)
    assert target is not None
    b = Builder()
    b.begin()
    for k, ref in zip(counting.numbers, kernel.returns):
        b.store(target, b.const(k), b.load(ref))
    return handed.with_body(Region((), (*kernel.body.ops[:-1], *b.end().ops)))


def _agreeing(main: Kernel, stages: tuple[Counting, ...]) -> tuple[Kernel, tuple[Counting, ...]]:
    """Kernels that round alike what counts depend on: compiled apart, they could fuse other operations, and a loop that stops at a value
    of floats would run once more than was counted."""
    sites = {(op.code, op.loc) for stage in stages for op in stage.kernel.walk() if is_rounded(op)}
    if not sites:
        return main, stages

    def marked(kernel: Kernel) -> Kernel:
        return exact(kernel, {op for op in kernel.walk() if (op.code, op.loc) in sites})

    return marked(main), tuple([replace(stage, kernel=marked(stage.kernel)) for stage in stages])


def known_element(load: Op) -> Size | None:
    """A load at constant indices: the host reads that element. A gradient kernel writes no primal memory, so it stays what it is."""
    ref = ref_of(load)
    if not isinstance(ref, (FieldRef, ArrayRef)) or ref.role != "primal" or any(a.code is not ops.const for a in load.args):
        return None
    indices, size = [int(a.attr) for a in load.args], storage(ref.dtype).size
    if isinstance(ref, ArrayRef):
        # Of more than one axis the address depends on the extents.
        if (len(indices) > 1 and any(indices)) or any(i < 0 for i in indices):
            return None
        return ("memory", "array", ref.arg, size * sum(indices), ref.dtype, 0, tuple(indices))
    axes, layout = len(ref.shape), ref.layout
    index = [i - o for i, o in zip(indices, layout.origin or (0,) * axes)]
    if any(not 0 <= i < n for i, n in zip((*index, *indices[axes:]), (*ref.shape, *ref.element_shape))):
        return None
    component = 0
    for i, n in zip(indices[axes:], ref.element_shape):
        component = component * n + i
    base = sum((index[t.axis] // t.div % t.mod if t.mod else index[t.axis] // t.div) * t.stride for t in layout.terms)
    return ("memory", "tree", ref.tree, base + layout.components[component], ref.dtype, ref.key, tuple(indices))


def _capacity(op: Op) -> int | None:
    """The number of the capacity that ``op`` notes; None if it is something else."""
    ref = ref_of(op)
    if op.code is not ops.atomic or not isinstance(ref, TempRef) or not ref.name.startswith(CAPACITY):
        return None
    return int(ref.name[len(CAPACITY) :])


class _Checked(Rewriter):
    """Puts a check that there is room in the place of each note of a capacity that is among ``unsure``; of others the expression that
    gives the room is that which is noted."""

    def __init__(self, unsure: set[int]) -> None:
        super().__init__()
        self.unsure = unsure
        self.handlers = {ops.atomic: self._atomic}

    def kernel(self, kernel: Kernel) -> Kernel:
        self.name = kernel.name
        return super().kernel(kernel)

    def _atomic(self, op: Op) -> Op | None:
        number = _capacity(op)
        if number is None:
            return self.copy(op)
        if number in self.unsure:
            b, demand = self.b, self.args(op)[-1]
            room = b.emit(ops.tape_word, attr=("tape_capacity", number), type=i32)
            message = f"{self.name}: this loop fills {{0}} entries of its tapes, and the launch was sized for {{1}}"
            site = FaultSite("tape", message, (i32, i32), op.loc)
            b.emit(ops.check, b.emit(ops.le, demand, room), demand, room, attr=site, type=VOID)
        return None


def _countings(kernel: Kernel, wanted: list[int], ctx: PassContext) -> tuple[Counting, ...]:
    """Kernels that count ``wanted``, one as a rule. A count that changes with what an outer loop carries takes that loop's tapes, and
    so a kernel of its own, after the one that counts for these."""
    if not wanted:
        return ()
    made = _counting(kernel, wanted, ctx)
    if not _tapes_read(made):
        return (Counting(made, tuple(wanted)),)
    needed = {k: _tapes_read(_counting(kernel, [k], ctx)) & set(wanted) for k in wanted}
    stages = []
    while needed:
        ready = [k for k, others in needed.items() if not others & needed.keys()]
        if not ready:
            raise AssertionError(f"the capacities {sorted(needed)} of {kernel.name} wait for each other")
        stages.append(Counting(_counting(kernel, ready, ctx), tuple(ready)))
        for k in ready:
            del needed[k]
    return tuple(stages)


def _tapes_read(kernel: Kernel) -> set[int]:
    return {op.attr.capacity for op in kernel.walk() if op.code is ops.load and isinstance(op.attr, TapeRef)}


def _counting(kernel: Kernel, wanted: Sequence[int], ctx: PassContext) -> Kernel:
    """The kernel that counts: nothing of ``kernel`` but what the counts ``wanted`` depend on."""
    kept: set[Ref] = set()
    while True:
        bare = simplify(_Bare(frozenset(wanted), kept).kernel(kernel), ctx)
        read = {op.attr for op in bare.walk() if op.code is ops.load and isinstance(op.attr, (TempRef, TapeRef))}
        if read <= kept:
            break
        kept |= read
    hoisted = _Hoist(bare).kernel(bare)
    refs = tuple([TempRef(f"{CAPACITY}{k}", i32) for k in wanted])
    b = Builder()
    b.begin()
    for ref in refs:
        b.store(ref, b.const(1))
    start = b.end()
    body = Region((), (*start.ops[:-1], *hoisted.body.ops))
    return simplify(Kernel(f"{kernel.name}_sizes", kernel.args, body, refs, kernel.loc), ctx)


class _Bare(Rewriter):
    """Leaves out all effects but those on the memories ``kept``, private to a launch, and the notes of the capacities ``wanted``."""

    def __init__(self, wanted: frozenset[int], kept: set[Ref]) -> None:
        super().__init__()
        self.wanted = wanted
        self.kept = kept
        self.handlers = dict.fromkeys((ops.store, ops.atomic, ops.cas), self._write)
        self.handlers |= dict.fromkeys((ops.check, ops.print_), self._drop)

    def _drop(self, op: Op) -> None:
        return None

    def _write(self, op: Op) -> Op | None:
        capacity = _capacity(op)
        if capacity is not None:
            return self.copy(op) if capacity in self.wanted else None
        if ref_of(op) in self.kept:
            return self.copy(op)
        # What an atomic would have returned is gone with it. A gradient kernel computes only adjoints from that, never a count.
        return None if op.code is ops.store else self.b.const(0, op.type)  # type: ignore[arg-type]


class _Hoist(Rewriter):
    """Moves each note of a capacity out of the loops and branches that do not change it, with the pure operations that it takes."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.level: dict[Op, int] = {}  # value -> how many operations must be around it
        self.moved: dict[Op, list[Op]] = {}  # operation -> notes that go in front of it
        self.gone: set[Op] = set()
        for op, around in _nested(kernel.body, ()):
            for region in op.regions:
                self.level.update((p, len(around) + 1) for p in region.params)
            inner = max([self.level[a] for a in op.args], default=0)
            movable = op.code.effect == "pure" and op.code is not ops.result
            self.level[op] = inner if movable else len(around)
            if _capacity(op) is not None and inner < len(around):
                self.moved.setdefault(around[inner], []).append(op)
                self.gone.add(op)

    def visit(self, op: Op) -> None:
        for note in self.moved.get(op, ()):
            copies: dict[Op, Op] = {}
            args = tuple([self._outside(a, copies) for a in note.args])
            self.b.append(Op(note.code, note.type, args, note.attr, (), note.loc))
        if op not in self.gone:
            super().visit(op)

    def _outside(self, value: Op, copies: dict[Op, Op]) -> Op:
        """``value``, made anew of what is known out here."""
        if value.code.effect != "pure" or value.code in (ops.result, ops.param):
            return self.value(value)
        if value not in copies:
            args = tuple([self._outside(a, copies) for a in value.args])
            copies[value] = self.b.append(Op(value.code, value.type, args, value.attr, (), value.loc))
        return copies[value]


def _nested(region: Region, around: tuple[Op, ...]) -> Iterator[tuple[Op, tuple[Op, ...]]]:
    """Every operation, outer before inner, with the control operations around it."""
    for op in region.ops[:-1]:
        yield op, around
        for inner in op.regions:
            yield from _nested(inner, (*around, op))
