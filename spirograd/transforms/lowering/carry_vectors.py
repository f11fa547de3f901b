"""Vectors that loops and branches pass on as one value in place of their elements, on GPUs that LLVM compiles for.

The front end traces a vector as its elements. If a vector is indexed at run time, its elements are packed there: n stores to memory, one
access, and n loads. In a loop that carries the elements, each access costs these. If the loop carries the vector, it stays in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spirograd.base.dtypes import DType, Type, Vec
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, Region
from spirograd.ir.rewrite import Rewriter
from spirograd.ir.threaded import LOOPS
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.cse import cse
from spirograd.transforms.simplification.dce import dce
from spirograd.transforms.simplification.fold import fold

# Shorter vectors may be faster in registers, because most of their elements are accessed at constant indices.
_LEAST = 16
# The rounds: folding and the removal of dead code may uncover further vectors.
_ROUNDS = 8
# Operands of loops, and parameters of their regions, before the loop-carried values.
_FIXED, _LEADING = {ops.for_: 2, ops.while_: 0}, {ops.for_: 1, ops.while_: 0}

# Runs of consecutive results: the number of the first one -> the length of the run.
_Runs = dict[int, int]


def carry_vectors(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Merge consecutive results, and loop-carried values, into a vector if an operation `vec` in the kernel takes all of them together."""
    if not ctx.options.optimize or not ctx.caps.target.local_vectors or ops.vec not in kernel.codes:
        return kernel
    for _ in range(_ROUNDS):
        runs = _runs(kernel)
        if not runs:
            break
        kernel = dce(fold(cse(_Carry(runs).kernel(kernel), ctx), ctx), ctx)
    return kernel


def _runs(kernel: Kernel) -> dict[Op, _Runs]:
    """Return, for each control operation, the runs of results that some `vec` takes, or that become elements of such a run."""
    runs: dict[Op, _Runs] = {}
    owners: dict[Op, tuple[Op, int]] = {}  # parameter -> its loop, and the number of the loop-carried value
    packed: list[Sequence[Op]] = []  # the elements of each vector
    for op in kernel.walk():
        if op.code in LOOPS:
            for region in op.regions:
                owners.update({param: (op, k) for k, param in enumerate(region.params[_LEADING[op.code] :])})
        elif op.code is ops.vec and len(op.args) >= _LEAST:
            packed.append(op.args)
    for values in packed:
        owner, first = _source(values[0], owners)
        places = [_source(a, owners) for a in values]
        together = owner is not None and places == [(owner, first + k) for k in range(len(values))]
        if owner is not None and together and _add(runs.setdefault(owner, {}), first, len(values)):
            packed += _elements(owner, first, len(values))
    return runs


def _elements(owner: Op, first: int, count: int) -> list[Sequence[Op]]:
    """Return the values that a control operation with a run packs: its initial values, and the results of its regions."""
    regions = owner.regions[1:] if owner.code is ops.while_ else owner.regions
    initial = [owner.args[_FIXED[owner.code] :]] if owner.code in LOOPS else []
    return [values[first : first + count] for values in (*initial, *[region.results for region in regions])]


def _source(value: Op, owners: dict[Op, tuple[Op, int]]) -> tuple[Op | None, int]:
    """Return the control operation of which ``value`` is a result or a loop-carried value, and its number there."""
    if value.code is ops.result and (value.args[0].code is ops.if_ or value.args[0].code in LOOPS):
        return value.args[0], value.attr
    return owners.get(value, (None, 0))


def _add(runs: _Runs, first: int, count: int) -> bool:
    """Add a run, unless it shares an element with another one. Return whether it was added."""
    added = all(first + count <= other or other + n <= first for other, n in runs.items())
    if added:
        runs[first] = count
    return added


class _Carry(Rewriter):
    def __init__(self, runs: dict[Op, _Runs]) -> None:
        super().__init__()
        self.runs = runs
        self.handlers = {ops.if_: self._control, ops.for_: self._control, ops.while_: self._control, ops.result: self._result}

    def _control(self, op: Op) -> Op:
        runs = self.runs.get(op)
        if runs is None:
            return self.copy(op)
        assert isinstance(op.type, tuple)
        fixed, args = _FIXED.get(op.code, len(op.args)), self.args(op)
        args = (*args[:fixed], *self._packed(args[fixed:], runs))
        regions = tuple([self._carried(op, number, region, runs) for number, region in enumerate(op.regions)])
        self.b.at(op)
        return self.b.append(Op(op.code, _types(op.type, runs), args, op.attr, regions, op.loc, op.primal))

    def _carried(self, op: Op, number: int, region: Region, runs: _Runs) -> Region:
        """Rewrite a region, whose parameters and results are those of the new operation."""
        self.b.begin()
        params = self._params(region, _LEADING.get(op.code, 0), runs)
        self.visit_all(region.ops[:-1])
        self.b.loc = region.ops[-1].loc
        results: Sequence[Op] = self.args(region.ops[-1])
        if not (op.code is ops.while_ and number == 0):
            results = self._packed(results, runs)
        return Region(params, self.b.end(results).ops)

    def _params(self, region: Region, leading: int, runs: _Runs) -> tuple[Op, ...]:
        """Return the new parameters, and extract the elements of those that are vectors."""
        params, carried = list(region.params[:leading]), region.params[leading:]
        for k, count in _steps(len(carried), runs):
            if count == 0:
                params.append(carried[k])
                continue
            old = carried[k : k + count]
            vector = Op(ops.param, Vec(count, _scalar(old[0].type)), attr=old[0].attr, loc=old[0].loc)
            params.append(vector)
            self.env.update({value: self.b.emit(ops.extract, vector, self.b.const(i), type=value.type) for i, value in enumerate(old)})
        return tuple(params)

    def _packed(self, values: Sequence[Op], runs: _Runs) -> list[Op]:
        """Return ``values`` with a vector for each run."""
        packed = []
        for k, count in _steps(len(values), runs):
            if count:
                packed.append(self.b.emit(ops.vec, *values[k : k + count], type=Vec(count, _scalar(values[k].type))))
            else:
                packed.append(values[k])
        return packed

    def _result(self, op: Op) -> Op:
        owner = op.args[0]
        runs = self.runs.get(owner)
        if runs is None:
            return self.copy(op)
        assert isinstance(owner.type, tuple)
        for number, (k, count) in enumerate(_steps(len(owner.type), runs)):
            if k <= op.attr < k + max(count, 1):
                t: Type = Vec(count, _scalar(op.type)) if count else op.type
                new = self.b.append(Op(ops.result, t, (self.value(owner),), number, (), op.loc))
                return self.b.emit(ops.extract, new, self.b.const(op.attr - k), type=op.type) if count else new
        raise AssertionError(op)


def _steps(length: int, runs: _Runs) -> Iterable[tuple[int, int]]:
    """Yield the number of each value, and the length of the run that begins with it; 0 if it is in none."""
    k = 0
    while k < length:
        yield k, runs.get(k, 0)
        k += runs.get(k, 1)


def _types(types: tuple[Type, ...], runs: _Runs) -> tuple[Type, ...]:
    return tuple([Vec(count, _scalar(types[k])) if count else types[k] for k, count in _steps(len(types), runs)])


def _scalar(t: Type) -> DType:
    assert isinstance(t, DType), t
    return t
