"""The entry point around a task: which invocation runs what, the grid-stride loop, and the combination of reductions in a workgroup."""

from __future__ import annotations

from spirograd.base.dtypes import DType, i32, u32, unsigned
from spirograd.ir import ops
from spirograd.ir.nodes import Op, Reduction, TaskAttr
from spirograd.spirvgen.buffers import builtin_x
from spirograd.spirvgen.emit_scalar import combine
from spirograd.spirvgen.emitter import Emitter
from spirograd.spirvgen.module import enumerant

_WORKGROUP = enumerant("Scope", "Workgroup")
_SUBGROUP = enumerant("Scope", "Subgroup")
_REDUCE = enumerant("GroupOperation", "Reduce")
_SHARED_SEMANTICS = enumerant("MemorySemantics", "AcquireRelease") | enumerant("MemorySemantics", "WorkgroupMemory")
# (kind of reduction, kind of type) -> subgroup instruction. Float min and max are missing: theirs may return a NaN operand.
_SUBGROUP_OPS = {
    ("add", "float"): "GroupNonUniformFAdd",
    ("add", "int"): "GroupNonUniformIAdd",
    ("add", "uint"): "GroupNonUniformIAdd",
    ("mul", "float"): "GroupNonUniformFMul",
    ("mul", "int"): "GroupNonUniformIMul",
    ("mul", "uint"): "GroupNonUniformIMul",
    ("min", "int"): "GroupNonUniformSMin",
    ("min", "uint"): "GroupNonUniformUMin",
    ("max", "int"): "GroupNonUniformSMax",
    ("max", "uint"): "GroupNonUniformUMax",
    **{("and", k): "GroupNonUniformBitwiseAnd" for k in ("int", "uint")},
    **{("or", k): "GroupNonUniformBitwiseOr" for k in ("int", "uint")},
    **{("xor", k): "GroupNonUniformBitwiseXor" for k in ("int", "uint")},
}


def _builtin(e: Emitter, name: str) -> int:
    word = e.type(u32)
    return e.f.load(word, e.m.builtin(name, word))


def emit_serial(e: Emitter, task: Op) -> None:
    """The body, in invocation 0."""
    first = e.f.value("IEqual", e.m.type_bool, builtin_x(e, "GlobalInvocationId"), e.const(0, u32))
    with e.f.selection(first):
        e.run(task.regions[0])


class RangeLoop:
    """The grid-stride loop of a range task: iteration ``k`` (unsigned, from 0) of ``count``, by the number of invocations, of which only
    the first ``rows`` (i32) take part if that is given."""

    def __init__(self, e: Emitter, begin: int, end: int, t: DType, group_size: int, rows: int | None = None) -> None:
        self._e = e
        self._t = t
        self.wide = unsigned(t)
        word = self._word = e.type(self.wide)
        below = "SLessThan" if t.is_signed else "ULessThan"
        self._begin = e.bitcast(begin, t, self.wide)
        extent = e.f.value("ISub", word, e.bitcast(end, t, self.wide), self._begin)
        some = e.f.value(below, e.m.type_bool, begin, end)
        self._count = e.f.value("Select", word, some, extent, e.const(0, self.wide))
        self._first = self._widened(builtin_x(e, "GlobalInvocationId"))
        groups = self._widened(builtin_x(e, "NumWorkgroups"))
        self._stride = e.f.value("IMul", word, groups, e.const(group_size, self.wide))
        if rows is not None:
            wanted = self._widened(e.bitcast(rows, i32, u32))
            fewer = e.f.value("ULessThan", e.m.type_bool, wanted, self._stride)
            self._stride = e.f.value("Select", word, fewer, wanted, self._stride)
            active = e.f.value("ULessThan", e.m.type_bool, self._first, self._stride)
            self._count = e.f.value("Select", word, active, self._count, e.const(0, self.wide))

    def _widened(self, value: int) -> int:
        return value if self.wide.bits == 32 else self._e.f.value("UConvert", self._word, value)

    @property
    def first_is_in_range(self) -> int:
        """Whether this invocation has any iteration."""
        return self._e.f.value("ULessThan", self._e.m.type_bool, self._first, self._count)

    def emit(self, task: Op, accumulators: list[int]) -> None:
        """The loop around the body of ``task``."""
        e, word = self._e, self._word
        body = task.regions[1]
        counter = e.f.variable(word, "iteration")
        e.f.store(counter, self._first)
        with e.f.loop() as loop:
            e.at(task.loc)
            k = e.f.load(word, counter)
            loop.test(e.f.value("ULessThan", e.m.type_bool, k, self._count))
            e.at(task.loc)
            e.ids[body.params[0]] = e.bitcast(e.f.value("IAdd", word, self._begin, k), self.wide, self._t)
            for param, variable in zip(body.params[1:], accumulators):
                e.ids[param] = e.f.load(e.type(param.type), variable)
            e.run(body)
            for variable, value in zip(accumulators, [e.id(r) for r in body.results]):
                e.f.store(variable, value)
            loop.step()
            e.at(task.loc)
            following = e.f.value("IAdd", word, k, self._stride)
            # Near the largest number the sum wraps: then there is nothing left.
            wrapped = e.f.value("ULessThan", e.m.type_bool, following, k)
            e.f.store(counter, e.f.value("Select", word, wrapped, e.const(int(self.wide.max), self.wide), following))


def emit_range(e: Emitter, task: Op, group_size: int) -> None:
    """Bounds (in every invocation), the loop, then reductions."""
    attr: TaskAttr = task.attr
    bounds = task.regions[0]
    e.at(task.loc)
    e.run(bounds)
    begin, end, *rows = bounds.results
    assert isinstance(begin.type, DType)
    loop = RangeLoop(e, e.ids[begin], e.ids[end], begin.type, group_size, *[e.ids[r] for r in rows])
    accumulators = [_accumulator(e, r, k) for k, r in enumerate(attr.reductions)]
    loop.emit(task, accumulators)
    if accumulators:
        _finish(e, task, loop, accumulators, group_size)


def _accumulator(e: Emitter, reduction: Reduction, number: int) -> int:
    t = reduction.dtype
    variable = e.f.variable(e.type(t), f"accumulator_{number}")
    e.f.store(variable, e.const(ops.identity(reduction.kind, t), t))
    return variable


def _finish(e: Emitter, task: Op, loop: RangeLoop, accumulators: list[int], group_size: int) -> None:
    """Combine the accumulators of the workgroup and run ``finish`` once in it, if it had any iteration.

    Where the workgroup has one invocation, or shared memory does not suffice, each invocation finishes on its own.
    """
    reductions: tuple[Reduction, ...] = task.attr.reductions
    values = [e.f.load(e.type(r.dtype), a) for r, a in zip(reductions, accumulators)]
    condition = loop.first_is_in_range
    if group_size > 1 and group_size * sum(r.dtype.size for r in reductions) <= e.caps.shared_memory:
        local = _builtin(e, "LocalInvocationIndex")
        values = _Combination(e, local, group_size).run(reductions, values)
        first = e.f.value("IEqual", e.m.type_bool, local, e.const(0, u32))
        # Invocation 0 of a workgroup has the workgroup's first iteration.
        condition = e.f.value("LogicalAnd", e.m.type_bool, first, condition)
    finish = task.regions[2]
    with e.f.selection(condition):
        for param, value in zip(finish.params, values):
            e.ids[param] = value
        e.run(finish)


class _Combination:
    """Combining values over a workgroup; the results are right in invocation 0."""

    def __init__(self, e: Emitter, local: int, group_size: int) -> None:
        self._e = e
        self._local = local
        self._size = group_size

    def run(self, reductions: tuple[Reduction, ...], values: list[int]) -> list[int]:
        out = dict(enumerate(values))
        by_subgroup = [k for k, r in enumerate(reductions) if self._subgroup_op(r)]
        by_tree = [k for k, r in enumerate(reductions) if not self._subgroup_op(r)]
        for numbers, method in ((by_subgroup, self._subgroups), (by_tree, self._tree)):
            if numbers:
                out.update(zip(numbers, method([reductions[k] for k in numbers], [values[k] for k in numbers])))
        return [out[k] for k in range(len(values))]

    def _subgroup_op(self, reduction: Reduction) -> str:
        """The subgroup instruction for a reduction, or nothing: 32-bit types only, which every device with arithmetic has, and only where
        all subgroups are full (some drivers miscount them otherwise)."""
        caps = self._e.caps
        full = caps.subgroup_arithmetic and caps.subgroup_size > 0 and self._size % caps.subgroup_size == 0
        if not full or reduction.dtype.bits != 32:
            return ""
        return _SUBGROUP_OPS.get((reduction.kind, reduction.dtype.kind), "")

    def _shared(self, reductions: list[Reduction]) -> list[int]:
        """A shared array per reduction, with an element per invocation."""
        m, size = self._e.m, self._size
        types = [m.array(self._e.type(r.dtype), size) for r in reductions]
        return [m.global_variable("Workgroup", t, f"shared_{r.kind}_{r.dtype.name}") for t, r in zip(types, reductions)]

    def _element(self, array: int, reduction: Reduction, index: int) -> int:
        e = self._e
        return e.f.value("AccessChain", e.m.pointer("Workgroup", e.type(reduction.dtype)), array, index)

    def _store_each(self, arrays: list[int], reductions: list[Reduction], index: int, values: list[int]) -> None:
        for array, reduction, value in zip(arrays, reductions, values):
            self._e.f.store(self._element(array, reduction, index), value)

    def _load_each(self, arrays: list[int], reductions: list[Reduction], index: int) -> list[int]:
        e = self._e
        return [e.f.load(e.type(r.dtype), self._element(a, r, index)) for a, r in zip(arrays, reductions)]

    def _barrier(self) -> None:
        e = self._e
        scope = e.const(_WORKGROUP, u32)
        e.f.do("ControlBarrier", scope, scope, e.const(_SHARED_SEMANTICS, u32))

    def _subgroups(self, reductions: list[Reduction], values: list[int]) -> list[int]:
        """Each subgroup reduces by one instruction, and one invocation combines what the subgroups left in shared memory."""
        e = self._e
        boolean, word = e.m.type_bool, e.type(u32)
        arrays = self._shared(reductions)
        scope = e.const(_SUBGROUP, u32)
        e.m.capability("GroupNonUniform")  # of the built-ins, which the grammar gives to OpenCL, too
        partial = [e.f.value(self._subgroup_op(r), e.type(r.dtype), scope, _REDUCE, v) for r, v in zip(reductions, values)]
        with e.f.selection(e.f.value("IEqual", boolean, _builtin(e, "SubgroupLocalInvocationId"), e.const(0, u32))):
            self._store_each(arrays, reductions, _builtin(e, "SubgroupId"), partial)
        self._barrier()
        variables = [e.f.variable(e.type(r.dtype)) for r in reductions]
        counter = e.f.variable(word, "subgroup")
        for variable, value in zip(variables, self._load_each(arrays, reductions, e.const(0, u32))):
            e.f.store(variable, value)
        first = e.f.value("IEqual", boolean, self._local, e.const(0, u32))
        # Only invocation 0 goes round; the others start at the end.
        count = _builtin(e, "NumSubgroups")
        e.f.store(counter, e.f.value("Select", word, first, e.const(1, u32), count))
        with e.f.loop() as loop:
            number = e.f.load(word, counter)
            loop.test(e.f.value("ULessThan", boolean, number, count))
            for variable, reduction, value in zip(variables, reductions, self._load_each(arrays, reductions, number)):
                t = reduction.dtype
                e.f.store(variable, combine(e, ops.COMBINE[reduction.kind], t, e.f.load(e.type(t), variable), value))
            loop.step()
            e.f.store(counter, e.f.value("IAdd", word, number, e.const(1, u32)))
        return [e.f.load(e.type(r.dtype), v) for r, v in zip(reductions, variables)]

    def _tree(self, reductions: list[Reduction], values: list[int]) -> list[int]:
        """Halving: in each step the lower invocations take over what the upper ones hold."""
        e = self._e
        boolean = e.m.type_bool
        arrays = self._shared(reductions)
        self._store_each(arrays, reductions, self._local, values)
        live = self._size
        while live > 1:
            half = (live + 1) // 2
            self._barrier()
            with e.f.selection(e.f.value("ULessThan", boolean, self._local, e.const(live - half, u32))):
                other = e.f.value("IAdd", e.type(u32), self._local, e.const(half, u32))
                mine = self._load_each(arrays, reductions, self._local)
                theirs = self._load_each(arrays, reductions, other)
                merged = [combine(e, ops.COMBINE[r.kind], r.dtype, a, b) for r, a, b in zip(reductions, mine, theirs)]
                self._store_each(arrays, reductions, self._local, merged)
            live = half
        return self._load_each(arrays, reductions, self._local)
