"""The capacities of adstacks: sizes that the host computes from arguments and shapes, and a kernel that counts the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spirograd.analysis.adstacks import SIZES, counter, guard_of, sizes_of
from spirograd.analysis.extents import extent_of, extents, nested
from spirograd.analysis.sizes import size_of
from spirograd.autodiff.activity import OWN
from spirograd.autodiff.adstack_guards import AdstackGuard, adstack_guards, guard_count, open_loops, with_counts
from spirograd.autodiff.derivative import Counting
from spirograd.autodiff.sweep import capacity_of, unsegmented
from spirograd.autodiff.unread_arrays import without_unread_arrays
from spirograd.base.adstack_layout import AdstackWord
from spirograd.base.artifact import FaultSite
from spirograd.base.dtypes import VOID, DType, i32
from spirograd.base.records import replace
from spirograd.base.sizes.simplify_sizes import simplify as simplified
from spirograd.base.sizes.size_nodes import Max, MaxOver, Size, needs_memory, walk
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import AdstackRef, ArrayRef, FieldRef, Kernel, Op, Ref, Region, TempRef, ref_of
from spirograd.ir.rewrite import Rewriter
from spirograd.ir.temp_kinds import TempKind
from spirograd.transforms.lowering.exact_extrema import exact, is_rounded
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.simplify import simplify


def sizing(
    kernel: Kernel, ctx: PassContext, every: Mapping[int, int] | None = None
) -> tuple[Kernel, tuple[Counting, ...], tuple[Size | None, ...]]:
    """Split a gradient kernel whose loops record their trip counts. Return three things: the kernel, which instead checks that trip counts
    do not exceed the capacities; kernels that count what the host cannot know; and the capacities, which are expressions, or None where a
    kernel counts. ``every``: the number of iterations of a loop that share an entry of its adstacks, by the number of the capacity (1 if
    omitted).

    The trip counts of `open_loops` are sizes, too, with the numbers that follow those of capacities.

    On asynchronous devices the host reads no memory before a launch, because that would block. If a size depends on memory there, all are
    counted on the device, and passed in an array: see `adstacks.SIZES`. The same holds if there are guards on such devices: the guard
    counts are the last sizes. `CompileOptions.count_on_device` selects it in all cases.

    A count that is invariant in the loops around it is hoisted out of them, so that the counting kernel need not run them. The adstack may
    then have entries for a loop that the kernel does not reach.
    """
    counts = [op for op in kernel.walk() if _capacity(op) is not None]
    if not counts:
        return kernel, (), ()
    asynchronous = ctx.caps.target.asynchronous
    known = extents(kernel, TempKind.CAPACITY)
    unsure = _unsure(counts, known)
    new_guards = adstack_guards(kernel, known) if asynchronous else ()
    loops = dict(enumerate(open_loops(kernel, known, new_guards), len(known)))
    kernel, guards = with_counts(kernel, loops, dict(enumerate(new_guards, len(known) + len(loops))))
    known += tuple([extent_of(op, ()) for op in kernel.body.ops if _capacity(op) in loops])
    sizes = tuple([size if _is_quick(size, asynchronous) else None for size in known])
    main = _Checked(unsure, every or {}).kernel(kernel)
    if asynchronous and (guards or None in sizes or ctx.options.count_on_device):
        sizes += (None,) * len(guards)
        rounds = tuple([replace(c, kernel=_handing_over(c)) for c in _countings(kernel, list(range(len(sizes))), guards, ctx)])
        return *_agreeing(replace(main, args=(*main.args, SIZES)), rounds), sizes
    return *_agreeing(main, _countings(kernel, [k for k, size in enumerate(sizes) if size is None], {}, ctx)), sizes


def _is_quick(size: Size | None, asynchronous: bool) -> bool:
    """Return whether the host should evaluate ``size``: it does not block on the device, and does not iterate over a range, which a kernel
    does faster."""
    if size is None or (asynchronous and needs_memory(size)):
        return False
    return not any(isinstance(part, MaxOver) for part in walk(size))


def _unsure(counts: Sequence[Op], known: Sequence[Size | None]) -> set[int]:
    """Return the numbers of the capacities that are not known to equal the trip count of the only loop with that number. ``known``: the
    capacities as expressions."""
    sure: dict[int, bool] = {}
    for op in counts:
        number, own = _capacity(op), size_of(op.args[-1])
        assert number is not None
        sure[number] = number not in sure and own is not None and simplified(Max(own, 0)) == known[number]
    return {number for number, known in sure.items() if not known}


def _handing_over(counting: Counting) -> Kernel:
    """Return ``counting`` as a kernel that stores its counts to `SIZES`, for kernels that run after it."""
    kernel = counting.kernel
    handed = replace(kernel, args=(*kernel.args, SIZES), returns=())
    target = sizes_of(handed)
    assert target is not None
    return _HandingOver(target, dict(zip(kernel.returns, counting.numbers))).kernel(handed)


class _HandingOver(Rewriter):
    """A rewriter that replaces temporaries by elements of ``target``."""

    def __init__(self, target: ArrayRef, numbers: dict[TempRef, int]) -> None:
        super().__init__()
        self.target = target
        self.numbers = numbers
        self.handlers = {ops.store: self._store, ops.atomic: self._atomic}

    def _store(self, op: Op) -> Op:
        number = self.numbers.get(op.attr)
        return self.copy(op) if number is None else self.b.store(self.target, self.b.const(number), *self.args(op))

    def _atomic(self, op: Op) -> Op:
        kind, ref = op.attr
        number = self.numbers.get(ref)
        return self.copy(op) if number is None else self.b.atomic(kind, self.target, self.b.const(number), *self.args(op))


def _agreeing(main: Kernel, rounds: tuple[Counting, ...]) -> tuple[Kernel, tuple[Counting, ...]]:
    """Make kernels round alike where counts depend on rounding. They are compiled separately, so they could fuse different operations, and
    a loop that ends at a float value would run once more than was counted."""
    repeated = {op.primal for counting in rounds for op in counting.kernel.walk() if is_rounded(op) and op.primal is not None}
    if not repeated:
        return main, rounds

    def marked(kernel: Kernel) -> Kernel:
        return exact(kernel, {op for op in kernel.walk() if op.primal in repeated})

    return marked(main), tuple([replace(counting, kernel=marked(counting.kernel)) for counting in rounds])


def _capacity(op: Op) -> int | None:
    """Return the number of the capacity that ``op`` raises, or None if it does something else."""
    return _updated(op, TempKind.CAPACITY)


def _updated(op: Op, kind: TempKind) -> int | None:
    ref = ref_of(op)
    return ref.number if op.code is ops.atomic and isinstance(ref, TempRef) and ref.kind is kind else None


class _Checked(Rewriter):
    """A rewriter that replaces each update of a capacity among ``unsure`` by a check against the capacity. The other capacities are exactly
    what the loops compute, and need no check. An iteration that passes a guard claims a thread slot."""

    def __init__(self, unsure: set[int], every: Mapping[int, int]) -> None:
        super().__init__()
        self.unsure = unsure
        self.every = every
        self.handlers = {ops.atomic: self._atomic}

    def kernel(self, kernel: Kernel) -> Kernel:
        self.name = kernel.name
        return super().kernel(kernel)

    def _atomic(self, op: Op) -> Op | None:
        number, guard = _capacity(op), _updated(op, TempKind.GUARD_COUNT)
        if guard is not None:
            return self.b.emit(ops.claim, attr=counter(guard), type=i32)
        if number is None:
            return self.copy(op)
        if number in self.unsure:
            b, demand, every = self.b, self.args(op)[-1], self.every.get(number, 1)
            capacity = b.emit(ops.adstack_word, attr=(AdstackWord.CAPACITY, number), type=i32)
            counted = unsegmented(op.args[-1], every)
            reported = b.emit(ops.mul, demand, b.const(every)) if counted is None else self.value(counted)
            t = reported.type
            assert isinstance(t, DType)
            message = f"{self.name}: this loop runs {{0}} iterations, but its adstacks have room for {{1}}"
            site = FaultSite("adstack", message, (t, t), op.loc)
            fitting = b.emit(ops.mul, b.cast(capacity, t), b.const(every, t))
            b.emit(ops.check, b.emit(ops.le, demand, capacity), reported, fitting, attr=site, type=VOID)
        return None


def _countings(kernel: Kernel, wanted: list[int], guards: Mapping[int, AdstackGuard], ctx: PassContext) -> tuple[Counting, ...]:
    """Return kernels that count ``wanted``, usually one. A count that depends on a loop-carried value of an outer loop needs the adstacks
    of that loop, and therefore a kernel of its own, after the kernel that counts their entries. ``guards``: the guards of the kernel, by
    number."""
    if not wanted:
        return ()
    counting = _counting(kernel, wanted, guards, ctx)
    if not _sizes_used(counting):
        return (Counting(counting, tuple(wanted)),)
    needed = {k: _sizes_used(_counting(kernel, [k], guards, ctx)) & set(wanted) for k in wanted}
    rounds = []
    while needed:
        ready = [k for k, others in needed.items() if not others & needed.keys()]
        if not ready:
            raise AssertionError(f"the capacities {sorted(needed)} of {kernel.name} depend on each other")
        rounds.append(Counting(_counting(kernel, ready, guards, ctx), tuple(ready)))
        for k in ready:
            del needed[k]
    return tuple(rounds)


def _sizes_used(kernel: Kernel) -> set[int]:
    """Return the numbers of the sizes that determine the placement of the adstacks of ``kernel``."""
    adstacks = {op.attr for op in kernel.walk() if op.code is ops.load and isinstance(op.attr, AdstackRef)}
    claims = {guard_of(op) for op in kernel.walk() if op.code is ops.claim}
    return {adstack.capacity for adstack in adstacks} | {adstack.slots for adstack in adstacks if adstack.slots is not None} | claims


def _counting(kernel: Kernel, wanted: Sequence[int], guards: Mapping[int, AdstackGuard], ctx: PassContext) -> Kernel:
    """Return the kernel that counts: only the operations of ``kernel`` on which the counts ``wanted`` depend."""
    kept: set[Ref] = set()
    while True:
        bare = simplify(_Bare(frozenset(wanted), guards, kept).kernel(kernel), ctx)
        read = {op.attr for op in bare.walk() if op.code is ops.load and isinstance(op.attr, OWN)}
        if read <= kept:
            break
        kept |= read
    hoisted = without_unread_arrays(_Hoist(bare).kernel(bare), ctx)
    refs = tuple([guard_count(k) if k in guards else capacity_of(k) for k in wanted])
    b = Builder()
    b.begin()
    for k, ref in zip(wanted, refs):
        b.store(ref, b.const(0 if k in guards else 1))
    start = b.end()
    body = Region((), (*start.ops[:-1], *hoisted.body.ops))
    return simplify(Kernel(f"{kernel.name}_sizes", kernel.args, body, refs, kernel.loc), ctx)


class _Bare(Rewriter):
    """A rewriter that omits all effects except those on the memory ``kept``, which is private to a launch, and updates of the sizes
    ``wanted``. An iteration that passes a guard of kept adstacks claims a thread slot."""

    def __init__(self, wanted: frozenset[int], guards: Mapping[int, AdstackGuard], kept: set[Ref]) -> None:
        super().__init__()
        self.wanted = wanted
        self.guards = guards
        self.kept = kept
        self.handlers = dict.fromkeys((ops.store, ops.atomic, ops.cas), self._write)
        self.handlers |= dict.fromkeys((ops.check, ops.print_), self._drop)

    def _drop(self, op: Op) -> None:
        return None

    def _write(self, op: Op) -> Op | None:
        capacity, guard = _capacity(op), _updated(op, TempKind.GUARD_COUNT)
        if capacity in self.wanted or guard in self.wanted:
            return self.copy(op)
        if guard is not None and self.guards[guard].adstacks & self.kept:
            return self.b.emit(ops.claim, attr=counter(guard), type=i32)
        if capacity is not None or guard is not None:
            return None
        if ref_of(op) in self.kept:
            return self.copy(op)
        # An omitted atomic has no result. A gradient kernel computes only adjoints from it, never a count.
        return None if op.code is ops.store else self.b.const(0, op.type)  # type: ignore[arg-type]


class _Hoist(Rewriter):
    """A rewriter that hoists each update of a capacity out of the loops in which it is invariant, with the operations that it depends on:
    pure ones, and loads of single elements of fields. Updates in branches stay, because outside of them a count may be any number."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.level: dict[Op, int] = {}  # value -> the depth of control operations at which it can be computed
        self.moved: dict[Op, list[Op]] = {}  # operation -> updates that move before it
        self.gone: set[Op] = set()
        for op, around in nested(kernel.body, ()):
            for region in op.regions:
                self.level.update((p, len(around) + 1) for p in region.params)
            inner = max([self.level[a] for a in op.args], default=0)
            movable = (op.code.effect == "pure" and op.code is not ops.result) or _is_element(op)
            self.level[op] = inner if movable else len(around)
            inner = max(inner, *[k for k, outer in enumerate(around, 1) if outer.code is ops.if_], 0)
            if _capacity(op) is not None and inner < len(around):
                self.moved.setdefault(around[inner], []).append(op)
                self.gone.add(op)

    def visit(self, op: Op) -> None:
        for update in self.moved.get(op, ()):
            copies: dict[Op, Op] = {}
            args = tuple([self._outside(a, copies) for a in update.args])
            self.b.append(Op(update.code, update.type, args, update.attr, (), update.loc))
        if op not in self.gone:
            super().visit(op)

    def _outside(self, value: Op, copies: dict[Op, Op]) -> Op:
        """Recompute ``value`` from values that are known outside."""
        if (value.code.effect != "pure" and not _is_element(value)) or value.code in (ops.result, ops.param):
            return self.value(value)
        if value not in copies:
            args = tuple([self._outside(a, copies) for a in value.args])
            copies[value] = self.b.append(Op(value.code, value.type, args, value.attr, (), value.loc, value.primal))
        return copies[value]


def _is_element(op: Op) -> bool:
    """Return whether ``op`` loads an element of a field at constant indices: it exists, and kernels that count write no fields."""
    return op.code is ops.load and isinstance(op.attr, FieldRef) and all(a.code is ops.const for a in op.args)
