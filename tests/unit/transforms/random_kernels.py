"""Random kernels of kernel IR, with inputs, for comparing what they do before and after a transformation.

Only operations that every back end computes exactly appear. Parallel loops write elements of their own, or accumulate integers, so that the
order of iterations does not matter.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from spirograd.base.artifact import FaultSite, PrintSite
from spirograd.base.dtypes import VOID, DType, f32, f64, i8, i32, i64, u1, u8, u16, u32, u64
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import ArrayArg, ArrayRef, FieldRef, Kernel, Layout, LoopAttr, Op, Region, ScalarArg, TempRef, Term

TYPES = (i32, i64, u32, u8, i8, u16, u64, f32, f64, u1)
PARALLEL = 6  # iterations of a parallel loop, and first extent of everything that one writes
_INT_BINARY = (
    ops.add, ops.sub, ops.mul, ops.idiv, ops.irem, ops.floordiv, ops.floormod, ops.min_, ops.max_, ops.and_, ops.or_, ops.xor,
    ops.shl, ops.shr,
)  # fmt: skip
_INT_UNARY = (ops.neg, ops.abs_, ops.not_, ops.popcnt, ops.clz, ops.ctz)
_FLOAT_BINARY = (ops.add, ops.sub, ops.mul, ops.div, ops.min_, ops.max_)
_FLOAT_UNARY = (ops.neg, ops.abs_, ops.floor, ops.ceil, ops.trunc, ops.round_)
_COMPARE = (ops.eq, ops.ne, ops.lt, ops.le, ops.gt, ops.ge)
_CONSTANTS = {
    "int": (0, 1, 2, 3, 4, 7, 8, 31, 100, -1, -2, -8),
    "uint": (0, 1, 2, 3, 4, 7, 16, 33, 255),
    "float": (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, 1e10),
}

OWN = FieldRef("own", 0, 1, i32, (PARALLEL, 4), (), Layout((Term(0, 2, 0, 32), Term(0, 1, 2, 16), Term(1, 1, 0, 4))))
PAIR = FieldRef("pair", 1, 2, f32, (PARALLEL,), (2,), Layout((Term(0, 1, 0, 8),), (0, 4), (-3,)))
ODD = FieldRef("odd", 1, 3, u8, (PARALLEL,), (3,), Layout((Term(0, 1, 0, 3),), (64, 66, 65)))
FLAGS = FieldRef("flags", 1, 4, u1, (PARALLEL,), (), Layout((Term(0, 1, 0, 1),), (96,)))
SUMS = FieldRef("sums", 2, 5, i32, (3,), (), Layout((Term(0, 1, 0, 4),)))
LARGEST = FieldRef("largest", 2, 6, f32, (), (), Layout((), (64,)))
SMALL = FieldRef("small", 2, 7, u8, (4,), (), Layout((Term(0, 1, 0, 1),), (80,)))
X = ArrayRef("x", 0, f32, 2)
Y = ArrayRef("y", 1, i64, 1, (2,))
TREES = {0: 256, 1: 128, 2: 128}
_READABLE = (OWN, PAIR, ODD, FLAGS, X, Y)


class _Generator:
    def __init__(self, seed: int, types: tuple[DType, ...]) -> None:
        self.r = random.Random(seed)
        self.b = Builder()
        self.types = types
        self.pools: list[dict[DType, list[Op]]] = []
        self.own: Op | None = None  # the index of the parallel loop around
        self.budget = 60

    def kernel(self) -> Kernel:
        b = self.b
        b.begin()
        self.pools.append({t: [b.const(1, t)] for t in self.types})
        self.keep(b.emit(ops.arg, attr=2, type=i32))
        self.keep(b.emit(ops.arg, attr=3, type=f32))
        self.keep(b.emit(ops.shape, attr=(0, 1), type=i32))
        self.keep(b.emit(ops.seed, type=u32))
        for _ in range(self.r.randint(1, 4)):
            for _ in range(self.r.randint(0, 4)):
                self.statement()
            if self.r.random() < 0.7:
                self.parallel()
        returned = TempRef("result", i64)
        b.store(returned, self.value(i64))
        args = (ArrayArg("x", f32, 2), ArrayArg("y", i64, 1, (2,)), ScalarArg("n", i32), ScalarArg("a", f32))
        return Kernel("random", args, b.end(), (returned,))

    def keep(self, op: Op) -> Op:
        assert isinstance(op.type, DType)
        self.pools[-1].setdefault(op.type, []).append(op)
        return op

    def value(self, t: DType) -> Op:
        """A visible value of type ``t``, sometimes a new one."""
        if self.r.random() < 0.15 or t not in self.types:
            return self.constant(t)
        visible = [v for pool in self.pools for v in pool.get(t, ())]
        return self.r.choice(visible[-6:] if self.r.random() < 0.7 else visible) if visible else self.constant(t)

    def constant(self, t: DType) -> Op:
        if t is u1:
            return self.b.const(self.r.random() < 0.5, u1)
        value = self.r.choice(_CONSTANTS[t.kind])
        return self.b.const(value, t)

    def index(self, extent: int, origin: int = 0) -> Op:
        """A value in [origin, origin + extent)."""
        if self.r.random() < 0.4:
            return self.b.const(origin + self.r.randrange(extent))
        wrapped = self.b.emit(ops.floormod, self.value(i32), self.b.const(extent))
        return self.b.emit(ops.add, wrapped, self.b.const(origin)) if origin else wrapped

    def indices(self, ref: Any, own: bool) -> list[Op]:
        if isinstance(ref, FieldRef):
            extents, origin = (*ref.shape, *ref.element_shape), (*ref.layout.origin, *[0] * 4)
        else:
            extents, origin = ((PARALLEL, 5) if ref is X else (PARALLEL, 2)), (0, 0)
        found = [self.index(e, o) for e, o in zip(extents, origin)]
        if own and self.own is not None:
            found[0] = self.b.emit(ops.add, self.own, self.b.const(origin[0])) if origin[0] else self.own
        return found

    # --- statements --------------------------------------------------------------------------------------------------------

    def statement(self) -> None:
        self.budget -= 1
        makers: list[tuple[int, Callable[[], None]]] = [(12, self.arithmetic), (4, self.load), (3, self.store)]
        makers += [(2, self.accumulate), (1, self.report)]
        if self.budget > 0 and len(self.pools) < 4:
            makers += [(2, self.branch), (2, self.loop), (1, self.spin)]
        weights, functions = zip(*makers)
        self.r.choices(functions, weights)[0]()

    def arithmetic(self) -> None:
        r, b = self.r, self.b
        t = r.choice(self.types)
        kind = r.random()
        if kind < 0.15:
            self.keep(b.emit(ops.cast, self.value(r.choice(self.types)), type=t))
        elif kind < 0.3:
            self.keep(b.emit(ops.select, self.value(u1), self.value(t), self.value(t)))
        elif t is u1:
            self.flag()
        elif t.is_float:
            if r.random() < 0.3:
                self.keep(b.emit(r.choice(_FLOAT_UNARY), self.value(t)))
            else:
                self.keep(b.emit(r.choice(_FLOAT_BINARY), self.value(t), self.value(t)))
        elif r.random() < 0.25:
            self.keep(b.emit(r.choice(_INT_UNARY), self.value(t)))
        else:
            self.keep(b.emit(r.choice(_INT_BINARY), self.value(t), self.value(t)))

    def flag(self) -> None:
        r, b = self.r, self.b
        t = r.choice(self.types)
        if t is u1:
            code = r.choice((ops.and_, ops.or_, ops.xor, ops.eq, ops.ne))
            self.keep(b.emit(code, self.value(u1), self.value(u1)))
        elif r.random() < 0.2:
            self.keep(b.emit(ops.not_, self.value(u1)))
        else:
            self.keep(b.emit(r.choice(_COMPARE), self.value(t), self.value(t)))

    def refs(self, choice: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(ref for ref in choice if ref.dtype in self.types)

    def load(self) -> None:
        ref = self.r.choice(self.refs(_READABLE))
        self.keep(self.b.load(ref, *self.indices(ref, own=True)))

    def store(self) -> None:
        ref = self.r.choice(self.refs(_READABLE))
        self.b.store(ref, *self.indices(ref, own=True), self.value(ref.dtype))

    def accumulate(self) -> None:
        """An atomic whose result is not used: on memory that nothing else touches."""
        ref, kind = self.r.choice([(SUMS, "add"), (SUMS, "xor"), (LARGEST, "max"), (SMALL, "add"), (SMALL, "mul")])
        if ref.dtype not in self.types:
            return
        if ref is SUMS:
            where: list[Op] = [self.b.const(0 if kind == "add" else 1)]
        else:
            where = [self.b.const(0 if kind == "add" else 1)] if ref is SMALL else []
        self.b.atomic(kind, ref, *where, self.value(ref.dtype))

    def report(self) -> None:
        if self.own is not None:  # the order of prints, and which fault comes first, depend on the order of iterations
            return
        if self.r.random() < 0.5:
            a, x = self.value(i64), self.value(f32)
            self.b.emit(ops.print_, a, x, attr=PrintSite(("a", (0, ""), (1, "")), (i64, f32), None), type=VOID)
        else:
            site = FaultSite("assert", f"site {self.budget} {{0}}", (i32,), None)
            self.b.emit(ops.check, self.value(u1), self.value(i32), attr=site, type=VOID)

    # --- control -----------------------------------------------------------------------------------------------------------

    def block(self, params: tuple[Op, ...], results: tuple[DType, ...]) -> Region:
        """A region, opened already, with a few statements; closes it."""
        self.pools.append({})
        for p in params:
            self.keep(p)
        for _ in range(self.r.randint(0, 4)):
            self.statement()
        out = [self.value(t) for t in results]
        self.pools.pop()
        return self.b.end(out)

    def some_types(self) -> tuple[DType, ...]:
        return tuple(self.r.choice(self.types) for _ in range(self.r.randint(0, 3)))

    def branch(self) -> None:
        types = self.some_types()
        condition = self.value(u1)
        self.b.begin()
        then = self.block((), types)
        self.b.begin()
        orelse = self.block((), types)
        for v in self.b.if_(condition, then, orelse):
            self.keep(v)

    def loop(self) -> None:
        types = self.some_types()
        initial = [self.value(t) for t in types]
        begin = self.b.const(self.r.randint(-1, 1))
        end = self.b.const(self.r.randint(-1, 3)) if self.r.random() < 0.5 else self.index(4)
        params = self.b.begin(i32, *types)
        for v in self.b.for_(begin, end, initial, self.block(params, types)):
            self.keep(v)

    def spin(self) -> None:
        """A `while` that counts down, so that it ends."""
        types = self.some_types()
        initial = [self.index(4), *[self.value(t) for t in types]]
        counter, *_ = self.b.begin(i32, *types)
        condition = self.b.end((self.b.emit(ops.gt, counter, self.b.const(0)),))
        counter, *carried = self.b.begin(i32, *types)
        lower = self.b.emit(ops.sub, counter, self.b.const(1))
        body = self.block(tuple(carried), types)
        body = Region(body.params, (*body.ops[:-1], Op(ops.yield_, VOID, (lower, *body.results))))
        for v in self.b.while_(initial, condition, body):
            self.keep(v)

    def parallel(self) -> None:
        end = self.b.const(PARALLEL) if self.r.random() < 0.6 else self.b.emit(ops.shape, attr=(0, 0), type=i32)
        begin = self.b.const(0) if self.r.random() < 0.7 else self.index(PARALLEL)
        (self.own,) = params = self.b.begin(i32)
        body = self.block(params, ())
        self.own = None
        self.b.for_(begin, end, (), body, LoopAttr(parallel=True))


def random_kernel(seed: int, types: tuple[DType, ...] = TYPES) -> Kernel:
    """The kernel of ``seed``. ``types``: which types of value may appear."""
    return _Generator(seed, types).kernel()


def inputs(seed: int) -> tuple[list[Any], dict[int, np.ndarray[Any, Any]]]:
    """Arguments and trees for such a kernel."""
    rng = np.random.default_rng(seed)
    x = (rng.integers(-50, 50, (PARALLEL, 5)) / 4).astype(np.float32)
    y = rng.integers(-(2**40), 2**40, (PARALLEL, 2)).astype(np.int64)
    trees = {}
    for key, size in TREES.items():
        raw = rng.integers(0, 256, size).astype(np.uint8)
        if key == 1:
            raw[:64].view(np.float32)[:] = rng.integers(-9, 9, 16) / 2
            raw[96:] &= 1
        if key == 2:
            raw[64:68].view(np.float32)[:] = 0.25
        trees[key] = raw
    return [x, y, int(rng.integers(-5, 20)), float(np.float32(rng.normal()))], trees
