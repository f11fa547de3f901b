"""Expansion of elementary functions that the back end lacks to arithmetic.

CPU: f32 functions become branch-free polynomials, which LLVM vectorises; f64 functions stay, for libm and vector libraries. SPIR-V: f64
functions are expanded, because GLSL.std.450 has none. Of f32, the inverse trigonometric functions are expanded, because they may be off by
4,096 ulp and are on some drivers (Mesa's asin by 1.5e-4); so are the cases of pow that GLSL.std.450 leaves undefined, and sin, cos and tan
on drivers with inaccurate ones (SwiftShader's sin is off by 2e-4). Other f32 functions are expanded only without fast math, and if the
device has the types that they compute in. PTX: all functions of f32 and f64 are expanded, because NVIDIA's library of them is part of its
toolkit only. On all targets f16 is computed in f32, because drivers compute exp(x) as exp2(x * 1.44), which is off by 0.4 % in f16.

On targets with fused multiply-add, large arguments of sin, cos and tan are reduced in f64, in a branch. Branches prevent operations and
loads from overlapping, so innermost loops get two versions. All invocations run the first version, which has no branches and determines
whether an argument was large. Invocations with a large argument then run the second version, which has the branches, and calls functions to
stay small. Long runs of such functions without branches or writes between them, as in derivatives of loops that are a single segment, also
get two versions.

A task with many elementary functions calls them: each function that it uses is expanded once, into a `Function` of the kernel, because the
time that code generators and drivers take grows faster than the size of a function. First versions of loops and runs call no sines: a GPU
computes one after the other if they are calls, but overlaps those without branches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from spirograd.base.dtypes import DType, Type, f16, f32, f64, u1
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import BufferRef, Function, Kernel, Op, Region, ref_of
from spirograd.ir.ops import OpCode
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.math import f32 as math_f32
from spirograd.transforms.math import f64 as math_f64
from spirograd.transforms.math.magnitudes import Magnitudes
from spirograd.transforms.math.values import Value
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.fold_rules import constant

Expansion = Callable[..., Value]

_F32: dict[OpCode, Expansion] = {
    ops.exp: math_f32.exp,
    ops.log: math_f32.log,
    ops.sin: math_f32.sin,
    ops.cos: math_f32.cos,
    ops.tan: math_f32.tan,
    ops.asin: math_f32.asin,
    ops.acos: math_f32.acos,
    ops.atan2: math_f32.atan2,
    ops.tanh: math_f32.tanh,
    ops.pow_: math_f32.pow_,
}
_F64: dict[OpCode, Expansion] = {
    ops.exp: math_f64.exp,
    ops.log: math_f64.log,
    ops.sin: math_f64.sin,
    ops.cos: math_f64.cos,
    ops.tan: math_f64.tan,
    ops.asin: math_f64.asin,
    ops.acos: math_f64.acos,
    ops.atan2: math_f64.atan2,
    ops.tanh: math_f64.tanh,
    ops.pow_: math_f64.pow_,
}
# Entries of _F32 for targets whose ``fma`` rounds once.
_F32_FUSED = {
    **_F32,
    ops.exp: math_f32.exp_fused,
    ops.log: math_f32.log_fused,
    ops.sin: math_f32.sin_fused,
    ops.cos: math_f32.cos_fused,
    ops.tan: math_f32.tan_fused,
}
# Branch-free forms of the functions with branches.
_NEAR = {ops.sin: math_f32.sin_near, ops.cos: math_f32.cos_near, ops.tan: math_f32.tan_near}
_BRANCHING = frozenset(_F32_FUSED[code] for code in _NEAR)
# The largest numbers of expansions that are inlined in a task: in total; in total, if most of them depend on the previous one; and outside
# of loops, because code in loops runs many times. A call takes LLVM a tenth of the compile time of an expansion. Loops with calls are
# vectorised too; they run as fast if each call depends on the previous one, and take up to a third longer if the calls are independent.
_INLINED, _INLINED_ONE_BY_ONE, _INLINED_OUTSIDE_LOOPS = 24, 8, 8
# The smallest and the largest number of expansions in a run, and in a loop, that gets two versions.
_RUN, _LOOP = range(16, 257), range(1, 257)
_PARTNER = {ops.sin: ops.cos, ops.cos: ops.sin}
Tables = dict[DType, dict[OpCode, Expansion]]
_THROUGH_F64 = frozenset((ops.sin, ops.cos, ops.tan, ops.pow_))  # entries of `_F32` that compute in f64
# Functions of f32 that GLSL.std.450 leaves undefined for some operands, or that drivers compute inaccurately.
_COARSE: dict[OpCode, Expansion] = {
    ops.asin: math_f32.asin,
    ops.acos: math_f32.acos,
    ops.atan2: math_f32.atan2,
    ops.pow_: math_f32.pow_of_device,
}
_SPLIT = {ops.sin: math_f32.sin_split, ops.cos: math_f32.cos_split, ops.tan: math_f32.tan_split}
_F32_ALONE: dict[OpCode, Expansion] = {code: function for code, function in _F32.items() if code not in _THROUGH_F64}
_F32_ALONE[ops.pow_] = math_f32.pow_of_device


def _tables(ctx: PassContext) -> Tables:
    """Return the expansions by type."""
    if ctx.caps.target.f64_math_library:
        return {f32: _F32}
    if ctx.caps.target.fused_multiply_add:
        return {f32: _F32_FUSED, f64: _F64}
    exact = _F32 if ctx.caps.float64 else _F32_ALONE
    single = _COARSE if ctx.options.fast_math else exact
    if ctx.caps.coarse_sines:
        single = {**_SPLIT, **single}
    return {f32: single, f64: _F64}


class _Expander(Rewriter):
    def __init__(self, tables: Tables, fast_math: bool) -> None:
        super().__init__()
        self.tables = tables
        self.fast_math = fast_math
        self.calls = False  # whether the task being rewritten calls functions
        self.yielded_values: frozenset[Op] = frozenset()  # the values that regions of the task yield
        self.functions: dict[tuple[OpCode, DType], Function] = {}
        self.handlers = {**dict.fromkeys(_F32, self.expand), ops.task: self.task}
        # While a loop is emitted for near arguments only: whether an argument so far was not near.
        self.far: Op | None = None
        self.magnitudes = Magnitudes()  # of the original kernel
        if tables.get(f32) is _F32_FUSED:
            self.handlers |= {ops.for_: self.loop, ops.if_: self.branch}

    def task(self, op: Op) -> Op:
        regions, values = op.regions, dict[Op, int]()
        inside = [*regions, *[nested for region in regions for x in region.walk() for nested in x.regions]]
        self.yielded_values = frozenset(v for region in inside for v in region.results)
        count = self._count(regions, True)
        one_by_one = 2 * max([self._chain(region, values) for region in regions]) > count
        self.calls = count > (_INLINED_ONE_BY_ONE if one_by_one else _INLINED) or self._count(regions, False) > _INLINED_OUTSIDE_LOOPS
        return self.copy(op)

    def _chain(self, region: Region, values: dict[Op, int]) -> int:
        """Return the length of the longest chain of dependent operations in ``region`` that are expanded. ``values``: by value, the length
        of its chain so far."""
        longest = 0
        for op in region.ops:
            inner = [self._chain(nested, values) for nested in op.regions]
            before = max([*inner, *[values.get(a, 0) for a in op.args]], default=0)
            values[op] = before + (op.code in _F32 and self._expansion(op) is not None)
            longest = max(longest, values[op])
        return longest

    def _count(self, regions: Sequence[Region], in_loops: bool) -> int:
        """Return the number of operations in ``regions`` that are expanded, with or without those in loops."""
        count = 0
        for op in [op for region in regions for op in region.ops]:
            if op.code in _F32 and self._expansion(op):
                count += 1
            elif in_loops or op.code not in (ops.for_, ops.while_):
                count += self._count(op.regions, in_loops)
        return count

    def _expansion(self, op: Op) -> Expansion | None:
        """Return the expansion of ``op``, or None if it has none."""
        return self._of_type(op.code, f32 if op.type is f16 else op.type)

    def _of_type(self, code: OpCode, t: Type) -> Expansion | None:
        return self.tables.get(t, {}).get(code) if isinstance(t, DType) else None

    def expand(self, op: Op) -> Op:
        args = self.args(op)
        if op.code is ops.pow_ and self.fast_math and constant(op.args[1]) == 0.5:
            return square_root_power(Value(self.b, args[0])).op
        near = op.code in _NEAR and self.magnitudes.most(op.args[0]) <= math_f32.MOST_NEAR
        if op.type is not f16:
            return self._function(op.code, args, near)
        return self.b.cast(self._function(op.code, tuple(self.b.cast(a, f32) for a in args), near), f16)

    def _function(self, code: OpCode, args: Sequence[Op], near: bool) -> Op:
        """Expand a function. ``near``: its argument is not large if no earlier argument was large."""
        expansion = self._of_type(code, args[0].type)
        if expansion is None:
            return self.b.emit(code, *args)
        if expansion in _BRANCHING and (self.far is not None or (near and not self.calls)):
            x = Value(self.b, args[0])
            if self.far is not None and not near:
                self.far = (Value(self.b, self.far) | ~math_f32.is_near(x)).op
            return _NEAR[code](x).op
        if not self.calls:
            return expansion(*[Value(self.b, a) for a in args]).op
        function = self._called(code, args, expansion)
        return self.b.emit(ops.call, *args, attr=function.name, type=function.result)

    def loop(self, op: Op) -> Op:
        """Emit a loop in two versions, if it may run twice. Invocations with a large argument run the second version."""
        if self.far is not None or _near_count(op.regions[0]) not in _LOOP or not _may_repeat(op.regions[0]):
            return self.copy(op)
        b, (body,) = self.b, op.regions
        index, *carried = body.params
        before = b.const(False, u1)
        params = b.begin(index.type, *[p.type for p in carried], u1)
        self.far = params[-1]
        results = self.inline(body, params[:-1], clone=True)
        near = b.end([*results, self.far])
        self.far = None
        types = tuple([p.type for p in carried])
        *values, far = b.results(b.emit(ops.for_, *self.args(op), before, attr=op.attr, type=(*types, u1), regions=(near,)))
        b.begin()
        self.cloning += 1
        outer, self.calls = self.calls, True  # it runs rarely, and would otherwise be the larger part of the code
        again = b.end(b.results(self.copy(op)))
        self.calls = outer
        self.cloning -= 1
        b.begin()
        return b.emit(ops.if_, far, type=types, regions=(again, b.end(values)))

    def visit_all(self, body: Sequence[Op]) -> None:
        """Visit each operation of a region, and emit runs in it in two versions."""
        done = 0
        for first, end in self._runs(body):
            super().visit_all(body[done:first])
            used = self.yielded_values.union(*[_operands(op) for op in body[end:]])
            self.run(_with_partners(body[first:end]), [op for op in body[first:end] if op in used])
            done = end
        super().visit_all(body[done:])

    def _runs(self, body: Sequence[Op]) -> list[tuple[int, int]]:
        """Return the runs of ``body``: many functions with branches, and between them only operations that may be repeated."""
        runs: list[tuple[int, int]] = []
        if self.cloning or not self.calls or self.tables.get(f32) is not _F32_FUSED:
            return runs
        places: list[int] = []
        for k, op in enumerate(body):
            if op.code in _NEAR and op.type in (f16, f32):
                places.append(k)
            elif op.regions or op.code.effect not in ("pure", "read"):
                runs += [(places[0], places[-1] + 1)] if len(places) in _RUN else []
                places = []
        return [*runs, (places[0], places[-1] + 1)] if len(places) in _RUN else runs

    def run(self, run: Sequence[Op], used: Sequence[Op]) -> None:
        """Emit ``run`` in two versions, for near arguments and for all arguments. ``used``: its values that are used after it."""
        b = self.b
        self.far, self.calls = b.const(False, u1), False
        self.cloning += 1
        super().visit_all(run)
        near, far = [self.env[op] for op in used], self.far
        self.far, self.calls = None, True
        for op in run:
            del self.env[op]
        b.begin()
        super().visit_all(run)
        again = b.end([self.env[op] for op in used])
        self.cloning -= 1
        b.begin()
        self.env.update(zip(used, b.results(b.emit(ops.if_, far, type=tuple([op.type for op in used]), regions=(again, b.end(near))))))

    def branch(self, op: Op) -> Op:
        """Emit an `if`, which also yields `far` in the version for near arguments."""
        if self.far is None or not any(_near_count(region) for region in op.regions):
            return self.copy(op)
        b, before, regions = self.b, self.far, []
        for region in op.regions:
            self.far = before
            b.begin()
            results = self.inline(region, (), clone=True)
            regions.append(b.end([*results, self.far]))
        assert isinstance(op.type, tuple)
        new = b.emit(ops.if_, *self.args(op), type=(*op.type, u1), regions=tuple(regions))
        self.far = b.emit(ops.result, new, attr=len(op.type), type=u1)
        return new

    def _called(self, code: OpCode, args: Sequence[Op], expansion: Expansion) -> Function:
        """Return the function that computes ``code`` for the types of ``args``. It is defined at the first call."""
        t = args[0].type
        assert isinstance(t, DType)
        function = self.functions.get((code, t))
        if function is None:
            b = Builder()
            params = b.begin(*[a.type for a in args])
            value = expansion(*[Value(b, p) for p in params])
            function = self.functions[code, t] = Function(f"{code.name}_{t.name}", b.end([value.op]))
        return function

    def kernel(self, kernel: Kernel) -> Kernel:
        if kernel.codes.isdisjoint(_F32):
            return kernel
        new = super().kernel(kernel)
        return new.with_body(new.body, (*self.functions.values(), *new.functions))


def square_root_power(x: Value) -> Value:
    """Return x ** 0.5, which is exact for squares, as programs that compute int(n ** 0.5) assume. It is positive for -0 and -infinity."""
    return x.eq(-math.inf).select(math.inf, (x + 0.0).sqrt())


def _with_partners(run: Sequence[Op]) -> list[Op]:
    """Return ``run`` with each sine next to the cosine of the same value, which shortens the live range of the value."""
    codes = {(op.code, op.args): op for op in run if op.code in _PARTNER}
    ordered: dict[Op, None] = {}
    for op in run:
        ordered[op] = None
        partner = codes.get((_PARTNER.get(op.code, op.code), op.args))
        if partner is not None:
            ordered[partner] = None
    return list(ordered)


def _operands(op: Op) -> set[Op]:
    """Return the values that ``op`` and its regions use."""
    return {*op.args, *[v for region in op.regions for v in region.live_ins]}


def _near_count(region: Region) -> int:
    """Return the number of operations of a region that have a version for near arguments."""
    return sum(op.code in _NEAR and op.type in (f16, f32) for op in region.walk())


def _may_repeat(body: Region) -> bool:
    """Return whether iterations of a loop without inner loops may be repeated: they write nothing but adstacks, and if they do, read no
    adstack."""
    read = False
    written = False
    for op in body.walk():
        if op.code in (ops.for_, ops.while_) or op.code.effect not in ("pure", "read", "write", "control", "structure"):
            return False
        if op.code.effect == "read":
            read = read or _is_adstack(op)
        elif op.code.effect == "write":
            if not _is_adstack(op):
                return False
            written = True
    return not (read and written)


def _is_adstack(op: Op) -> bool:
    ref = ref_of(op)
    return isinstance(ref, BufferRef) and ref.slot.kind == "adstacks"


def expand_math(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Expand the elementary functions of ``kernel`` (kernel or device IR) that the back end lacks."""
    return _Expander(_tables(ctx), ctx.options.fast_math).kernel(kernel)
