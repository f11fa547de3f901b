"""Random kernels that read and write few elements again and again, in nests of branches and loops: for passes that move accesses to memory.

A kernel takes arrays ``x`` (f32) and ``k`` (i32) of 4 elements and an integer ``n``, works on a field of 4 two-vectors in tree 0 (32 bytes)
and on temporaries, and returns one. Some indices are out of range, mostly where nothing runs.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from spirograd.base.dtypes import DType, f32, i32, u1
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import ArrayArg, ArrayRef, FieldRef, Kernel, Layout, LoopAttr, Op, ScalarArg, TempRef, Term

_DENSE = Layout((Term(0, 1, 0, 8),), (0, 4))


class _Random:
    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.b = Builder()
        self.pool: list[Op] = []
        self.x, self.k = ArrayRef("x", 0, f32, 1), ArrayRef("k", 1, i32, 1)
        self.v = FieldRef("v", 0, 0, f32, (4,), (2,), _DENSE)
        self.t, self.s = TempRef("t", f32, (3,)), TempRef("s", i32)

    def pick(self, t: DType) -> Op:
        found = [op for op in self.pool if op.type is t]
        if found and self.r.random() < 0.8:
            return self.r.choice(found[-5:])
        if t is u1:
            return self.keep(self.b.emit(ops.lt, self.pick(i32), self.pick(i32)))
        return self.keep(self.b.const(self.r.choice([0, 1, 2, 3]) if t is i32 else self.r.choice([0.5, 1.0, -1.5, 3.0]), t))

    def keep(self, op: Op) -> Op:
        self.pool.append(op)
        return op

    def index(self, size: int) -> Op:
        r = self.r.random()
        if r < 0.6:
            return self.b.const(self.r.choice([0, 0, 1]))
        if r < 0.65:
            return self.b.const(self.r.choice([size, -1]))
        if r < 0.75:
            return self.b.emit(ops.add, self.b.emit(ops.and_, self.pick(i32), self.b.const(1)), self.b.const(self.r.choice([0, 1])))
        return self.b.emit(ops.and_, self.pick(i32), self.b.const(1))

    def access(self) -> tuple[Any, list[Op]]:
        """A reference and indices."""
        ref = self.r.choice([self.x, self.x, self.k, self.v, self.t, self.s])
        if ref is self.v:
            return ref, [self.index(4), self.b.const(self.r.choice([0, 1])) if self.r.random() < 0.8 else self.index(2)]
        return ref, [] if ref is self.s else [self.index(3 if ref is self.t else 4)]

    def statement(self, depth: int) -> None:
        kinds = [self.load, self.load, self.store, self.store, self.atomic, self.arithmetic, self.arithmetic]
        if depth > 0:
            kinds += [self.branch, self.loop, self.loop, self.repeat]
        self.r.choice(kinds)(depth)

    def load(self, depth: int) -> None:
        ref, indices = self.access()
        self.keep(self.b.load(ref, *indices))

    def store(self, depth: int) -> None:
        ref, indices = self.access()
        self.b.store(ref, *indices, self.pick(ref.dtype))

    def atomic(self, depth: int) -> None:
        ref, indices = self.access()
        old = self.b.atomic(self.r.choice(["add", "mul", "min", "max", "exchange"]), ref, *indices, self.pick(ref.dtype))
        if self.r.random() < 0.5:
            self.keep(old)

    def arithmetic(self, depth: int) -> None:
        t = self.r.choice([f32, i32, i32])
        code = self.r.choice([ops.add, ops.sub, ops.mul, ops.min_])
        self.keep(self.b.emit(code, self.pick(t), self.pick(t)))

    def nested(self, depth: int, types: list[DType]) -> list[Op]:
        outer = list(self.pool)
        for _ in range(self.r.choice([2, 3, 5])):
            self.statement(depth - 1)
        results = [self.pick(t) for t in types]
        self.pool = outer
        return results

    def types(self) -> list[DType]:
        return [self.r.choice([f32, i32]) for _ in range(self.r.choice([0, 1, 2]))]

    def branch(self, depth: int) -> None:
        condition, types, regions = self.pick(u1), self.types(), []
        for _ in range(2):
            self.b.begin()
            regions.append(self.b.end(self.nested(depth, types)))
        self.pool += self.b.if_(condition, regions[0], regions[1])

    def loop(self, depth: int) -> None:
        types = self.types()
        initial = [self.pick(t) for t in types]
        begin, end = self.b.const(self.r.choice([-1, 0, 2])), self.b.emit(ops.and_, self.pick(i32), self.b.const(3))
        outer = list(self.pool)
        self.pool += self.b.begin(i32, *types)
        results = self.nested(depth, types)
        for k, (t, p) in enumerate(zip(types, self.pool[-len(types) :] if types else [])):
            if t is i32 and self.r.random() < 0.6:  # a recurrence
                results[k] = self.b.emit(self.r.choice([ops.add, ops.sub]), p, self.r.choice([self.b.const(3), *outer[:1]]))
        region = self.b.end(results)
        self.pool = outer
        self.pool += self.b.for_(begin, end, initial, region)

    def repeat(self, depth: int) -> None:
        """A while loop that a counter ends; its condition may look at memory, or change it."""
        types = self.types()
        count, initial = self.b.const(self.r.choice([0, 1, 3])), [self.pick(t) for t in types]
        outer = list(self.pool)
        left, *carried = self.b.begin(i32, *types)
        self.pool += carried
        if self.r.random() < 0.5:
            self.load(0)
        if self.r.random() < 0.15:
            self.statement(1)
        on = self.b.emit(ops.gt, left, self.b.const(0))
        condition = self.b.end([self.b.emit(ops.and_, on, self.pick(u1))])
        self.pool = list(outer)
        left, *carried = self.b.begin(i32, *types)
        self.pool += carried
        body = self.b.end([self.b.emit(ops.sub, left, self.b.const(1)), *self.nested(depth, types)])
        self.pool = outer
        self.pool += self.b.while_([count, *initial], condition, body)[1:]

    def kernel(self, statements: int) -> Kernel:
        b = self.b
        b.begin()
        b.store(self.s, b.const(1))
        self.pool = [b.emit(ops.arg, attr=2, type=i32)]
        for _ in range(statements):
            if self.r.random() < 0.2:
                begin, end, outer = b.const(0), b.const(3), list(self.pool)
                self.pool += b.begin(i32)
                self.nested(2, [])
                self.pool = outer
                b.for_(begin, end, (), b.end(), LoopAttr(parallel=True))
            else:
                self.statement(3)
        b.store(self.s, self.pick(i32))
        b.store(self.x, b.const(0), self.pick(f32))
        return Kernel("memory", (ArrayArg("x", f32, 1), ArrayArg("k", i32, 1), ScalarArg("n", i32)), b.end(), (self.s,))


def memory_kernel(seed: int, statements: int = 8) -> Kernel:
    """The kernel number ``seed``."""
    return _Random(seed).kernel(statements)


def memory_arguments(seed: int) -> tuple[list[Any], np.ndarray[Any, Any]]:
    """Arguments, with fresh arrays, and the memory of the tree."""
    rng = np.random.default_rng(seed)
    x, v = rng.normal(size=4).astype(np.float32), rng.normal(size=8).astype(np.float32)
    return [x, rng.integers(-3, 6, 4).astype(np.int32), int(rng.integers(-2, 5))], v
