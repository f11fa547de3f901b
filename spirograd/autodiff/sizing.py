"""How large tapes must be: what the host can tell from arguments and shapes, and a kernel that counts the rest."""

from __future__ import annotations

from collections.abc import Iterator

from spirograd.analysis.sizes import size_of
from spirograd.autodiff.sweep import CAPACITY
from spirograd.base.dtypes import i32
from spirograd.base.sizes import Size
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Kernel, Op, Region, TempRef, ref_of
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.context import PassContext
from spirograd.transforms.simplify import simplify

_LOOPS = frozenset((ops.for_, ops.while_))


def sizing(kernel: Kernel, ctx: PassContext) -> tuple[Kernel, Kernel | None, tuple[Size | None, ...]]:
    """Split a gradient kernel, in which loops note how often they run: the kernel without that, a kernel that returns what the host cannot
    know (None if it can know all), and the capacities: expressions, or None where they are the next value returned.

    A count that does not change in the loops around it is taken outside of them, so that they need not run to be counted: the count may then
    be of a loop that is not reached, which only makes the tape larger.
    """
    counts = [op for op in kernel.walk() if _capacity(op) is not None]
    if not counts:
        return kernel, None, ()
    sizes: dict[int, Size | None] = {}
    for op in counts:
        k, size = _capacity(op), size_of(op.args[-1])
        assert k is not None
        sizes[k] = size if k not in sizes else None
    capacities = tuple([sizes[k] for k in range(len(sizes))])
    main = _Without().kernel(kernel)
    counted = [k for k, size in enumerate(capacities) if size is None]
    return main, _counting(kernel, counted, ctx) if counted else None, capacities


def _capacity(op: Op) -> int | None:
    """The number of the capacity that ``op`` notes; None if it is something else."""
    ref = ref_of(op)
    if op.code is not ops.atomic or not isinstance(ref, TempRef) or not ref.name.startswith(CAPACITY):
        return None
    return int(ref.name[len(CAPACITY) :])


class _Without(Rewriter):
    """Leaves out all notes of capacities."""

    def __init__(self) -> None:
        super().__init__()
        self.handlers = {ops.atomic: lambda op: self.copy(op) if _capacity(op) is None else None}


def _counting(kernel: Kernel, wanted: list[int], ctx: PassContext) -> Kernel:
    """The kernel that counts: nothing of ``kernel`` but what the counts ``wanted`` depend on, and temporaries."""
    bare = simplify(_Bare(set(wanted)).kernel(kernel), ctx)
    hoisted = _Hoist(bare).kernel(bare)
    refs = tuple([TempRef(f"{CAPACITY}{k}", i32) for k in wanted])
    b = Builder()
    b.begin()
    for ref in refs:
        b.store(ref, b.const(0))
    start = b.end()
    body = Region((), (*start.ops[:-1], *hoisted.body.ops))
    return simplify(Kernel(f"{kernel.name}_sizes", kernel.args, body, refs, kernel.loc), ctx)


class _Bare(Rewriter):
    """Leaves out all effects on memory, but those on temporaries; and the notes of capacities that nobody wants."""

    def __init__(self, wanted: set[int]) -> None:
        super().__init__()
        self.wanted = wanted
        self.handlers = {ops.store: self._write, ops.atomic: self._write, ops.cas: self._write, ops.check: self._drop, ops.print_: self._drop}

    def _drop(self, op: Op) -> None:
        return None

    def _write(self, op: Op) -> Op | None:
        capacity = _capacity(op)
        if capacity is not None:
            return self.copy(op) if capacity in self.wanted else None
        ref = ref_of(op)
        if isinstance(ref, TempRef):
            return self.copy(op)
        # What an atomic would have returned is gone with it. A gradient kernel computes only adjoints from that, never a count.
        return None if op.code is ops.store else self.b.const(0, op.type)  # type: ignore[arg-type]


class _Hoist(Rewriter):
    """Moves each note of a capacity out of the loops and branches that do not change it."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.depth: dict[Op, int] = {}
        self.moved: dict[Op, list[Op]] = {}  # operation -> notes that go in front of it
        self.gone: set[Op] = set()
        for op, around in _nested(kernel.body, ()):
            self.depth[op] = len(around)
            for region in op.regions:
                self.depth.update((p, len(around) + 1) for p in region.params)
            if _capacity(op) is not None:
                level = max([self.depth[a] for a in op.args])
                if level < len(around):
                    self.moved.setdefault(around[level], []).append(op)
                    self.gone.add(op)

    def visit(self, op: Op) -> None:
        for note in self.moved.get(op, ()):
            self.b.append(Op(note.code, note.type, self.args(note), note.attr, (), note.loc))
        if op not in self.gone:
            super().visit(op)


def _nested(region: Region, around: tuple[Op, ...]) -> Iterator[tuple[Op, tuple[Op, ...]]]:
    """Every operation, outer before inner, with the control operations around it."""
    for op in region.ops[:-1]:
        yield op, around
        for inner in op.regions:
            yield from _nested(inner, (*around, op))
