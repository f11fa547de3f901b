"""Random kernels: well-typed nests of arithmetic, control flow, vectors and memory, for comparing levels and back ends.

A kernel takes arrays ``a`` (i32), ``x`` (f32) to read and ``p`` (i32), ``q`` (f32) to write, all of one length, scalars ``n`` (i32) and
``s`` (f32), and ``meet`` (i32, 6 elements) that all iterations update atomically. It reads fields of tree 0 (320 bytes), and returns a u32,
the wrapped sum of what the iterations computed. Only operations with one right result on every back end are used, so results must agree
bit for bit (NaNs aside) without fast math.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from spirograd.base import dtypes as dt
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType, Vec, f32, i32, u1, u32
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import ArrayArg, ArrayRef, FieldRef, Kernel, Layout, LoopAttr, Op, ScalarArg, TempRef, Term

_INTEGER_BINARY = (ops.add, ops.sub, ops.mul, ops.idiv, ops.irem, ops.floordiv, ops.floormod, ops.min_, ops.max_,
                   ops.and_, ops.or_, ops.xor, ops.shl, ops.shr)  # fmt: skip
_INTEGER_UNARY = (ops.neg, ops.abs_, ops.not_, ops.popcnt, ops.clz, ops.ctz)
_FLOAT_BINARY = (ops.add, ops.sub, ops.mul)
_FLOAT_UNARY = (ops.neg, ops.abs_, ops.floor, ops.ceil, ops.trunc, ops.round_)
_COMPARE = (ops.eq, ops.ne, ops.lt, ops.le, ops.gt, ops.ge)
_TYPES = (i32, u32, f32, u1)
_ATOMICS = ("add", "mul", "min", "max", "and", "or")  # of any order
_MORE = {"int64": (dt.i64, dt.u64), "float16": (dt.f16,), "float64": (dt.f64,)}
_NARROW = (dt.i8, dt.u8, dt.i16, dt.u16)  # every device has these, if need be in wider ones


class _Random:
    def __init__(self, seed: int, types: tuple[DType, ...]) -> None:
        self.r = random.Random(seed)
        self.b = Builder()
        self.types = types
        self.pool: list[Op] = []
        # Two fields of one tree: numbers in blocks of four, and flags.
        blocks = Layout((Term(0, 4, 0, 20), Term(0, 1, 4, 4)))
        self.blocked = FieldRef("blocked", 0, 0, i32, (64,), (), blocks)
        self.flags = FieldRef("flags", 0, 1, u1, (64,), (), Layout((Term(0, 4, 0, 20), Term(0, 1, 4, 1)), (16,)))
        self.a, self.x = ArrayRef("a", 0, i32, 1), ArrayRef("x", 1, f32, 1)
        self.p, self.q = ArrayRef("p", 2, i32, 1), ArrayRef("q", 3, f32, 1)
        self.meet = ArrayRef("meet", 6, i32, 1)
        self.total = TempRef("total", u32)

    def pick(self, t: DType) -> Op:
        """A value of type ``t``: one that is there, or a constant."""
        found = [op for op in self.pool if op.type is t]
        if found and self.r.random() < 0.85:
            return self.r.choice(found[-4:] if self.r.random() < 0.6 else found)
        return self.keep(self.constant(t))

    def keep(self, op: Op) -> Op:
        self.pool.append(op)
        return op

    def constant(self, t: DType) -> Op:
        if t is u1:
            return self.b.const(self.r.random() < 0.5, u1)
        if t.is_float:
            return self.b.const(self.r.choice([0.0, 1.0, -1.5, 0.25, 3.0, 1e-3, 100.0]), t)
        edge = self.r.choice([0, 1, 2, 3, 7, 32, 100, int(t.max), int(t.min), int(t.max) // 3])
        return self.b.const(edge, t)

    def statement(self, depth: int) -> None:
        kinds = [self.memory, self.integer, self.integer, self.integer, self.real, self.compare, self.choose]
        kinds += [self.convert, self.vector, self.logic]
        if depth > 0:
            kinds += [self.branch, self.loop, self.repeat]
        makers = self.r.choice(kinds)
        makers(depth)

    def integer(self, depth: int) -> None:
        t = self.r.choice([t for t in self.types if t.is_int])
        if self.r.random() < 0.25:
            self.keep(self.b.emit(self.r.choice(_INTEGER_UNARY), self.pick(t)))
        else:
            self.keep(self.b.emit(self.r.choice(_INTEGER_BINARY), self.pick(t), self.pick(t)))

    def real(self, depth: int) -> None:
        t = self.r.choice([t for t in self.types if t.is_float])
        if self.r.random() < 0.4:
            self.keep(self.b.emit(self.r.choice(_FLOAT_UNARY), self.pick(t)))
        else:
            self.keep(self.b.emit(self.r.choice(_FLOAT_BINARY), self.pick(t), self.pick(t)))

    def memory(self, depth: int) -> None:
        """Read memory that is never written."""
        at = self.b.emit(ops.and_, self.pick(i32), self.b.const(63))
        self.keep(self.b.load(self.blocked if self.r.random() < 0.6 else self.flags, at))

    def compare(self, depth: int) -> None:
        t = self.r.choice([t for t in self.types if t is not u1])
        self.keep(self.b.emit(self.r.choice(_COMPARE), self.pick(t), self.pick(t)))

    def logic(self, depth: int) -> None:
        self.keep(self.b.emit(self.r.choice((ops.and_, ops.or_, ops.xor)), self.pick(u1), self.pick(u1)))

    def choose(self, depth: int) -> None:
        t = self.r.choice(self.types)
        self.keep(self.b.emit(ops.select, self.pick(u1), self.pick(t), self.pick(t)))

    def convert(self, depth: int) -> None:
        a, t = self.r.choice(self.types), self.r.choice(self.types)
        self.keep(self.b.cast(self.pick(a), t))

    def vector(self, depth: int) -> None:
        v = self.b.emit(ops.vec, *[self.pick(i32) for _ in range(self.r.choice([2, 3, 4]))])
        assert isinstance(v.type, Vec)
        mask = self.b.const(v.type.n - 1 if v.type.n != 3 else 1)
        at = self.b.emit(ops.and_, self.pick(i32), mask)
        w = self.b.emit(ops.insert, v, at, self.pick(i32))
        self.keep(self.b.emit(ops.extract, w, self.b.emit(ops.and_, self.pick(i32), mask)))

    def nested(self, count: int, depth: int, types: list[DType]) -> list[Op]:
        """Some statements, whose values end with the region; results of ``types``."""
        outer = list(self.pool)
        for _ in range(count):
            self.statement(depth - 1)
        results = [self.pick(t) for t in types]
        self.pool = outer
        return results

    def branch(self, depth: int) -> None:
        condition = self.pick(u1)
        types = [self.r.choice(self.types) for _ in range(self.r.choice([1, 2]))]
        regions = []
        for _ in range(2):
            self.b.begin()
            regions.append(self.b.end(self.nested(3, depth, types)))
        self.pool += self.b.if_(condition, regions[0], regions[1])

    def loop(self, depth: int) -> None:
        types = [self.r.choice(self.types) for _ in range(self.r.choice([1, 2]))]
        initial = [self.pick(t) for t in types]
        begin = self.b.const(self.r.choice([-1, 0, 2]))
        end = self.b.emit(ops.and_, self.pick(i32), self.b.const(3))
        outer = list(self.pool)
        self.pool += self.b.begin(i32, *types)
        region = self.b.end(self.nested(4, depth, types))
        self.pool = outer
        self.pool += self.b.for_(begin, end, initial, region)

    def repeat(self, depth: int) -> None:
        """A while loop that a counter ends."""
        types = [self.r.choice(self.types)]
        count, initial = self.b.const(self.r.choice([0, 1, 3])), [self.pick(t) for t in types]
        outer = list(self.pool)
        left, *carried = self.b.begin(i32, *types)
        self.pool += carried
        (more,) = self.nested(2, depth, [u1])
        on = self.b.emit(ops.gt, left, self.b.const(0))
        condition = self.b.end([self.b.emit(ops.and_, on, self.b.emit(ops.or_, more, on))])
        self.pool = list(outer)
        left, *carried = self.b.begin(i32, *types)
        self.pool += carried
        values = self.nested(3, depth, types)
        body = self.b.end([self.b.emit(ops.sub, left, self.b.const(1)), *values])
        self.pool = outer
        self.pool += self.b.while_([count, *initial], condition, body)[1:]

    def digest(self) -> Op:
        """A number that depends on every bit of every value at hand (all NaNs being one)."""
        b = self.b
        total = b.const(17, u32)
        for value in self.pool:
            t = value.type
            assert isinstance(t, DType)
            bits, unsigned = value, t if t is u1 else dt.unsigned(t)
            if t.is_float:
                raw = b.emit(ops.bitcast, value, type=unsigned)
                bits = b.emit(ops.select, b.emit(ops.isnan, value), b.const(1, unsigned), raw)
            elif t is not unsigned:
                bits = b.emit(ops.bitcast, value, type=unsigned)
            words = [b.cast(bits, u32)]
            if t.bits == 64:
                words.append(b.cast(b.emit(ops.shr, bits, b.const(32, unsigned)), u32))
            for word in words:
                total = b.emit(ops.xor, b.emit(ops.mul, total, b.const(16777619, u32)), word)
        return total

    def kernel(self, statements: int) -> Kernel:
        b = self.b
        b.begin()
        zero = b.const(0)
        b.store(self.total, b.const(1, u32))
        size = b.emit(ops.shape, attr=(0, 0), type=i32)
        self.pool = [b.emit(ops.arg, attr=4, type=i32), b.emit(ops.arg, attr=5, type=f32), size]
        for _ in range(4):
            self.statement(1)
        (i,) = b.begin(i32)
        self.pool += [i, b.load(self.a, i), b.load(self.x, i)]
        for _ in range(statements):
            self.statement(2)
        digest = self.digest()
        b.store(self.p, i, b.emit(ops.bitcast, digest, type=i32))
        b.store(self.q, i, self.pick(f32))
        b.atomic("add", self.total, digest)
        for k, kind in enumerate(_ATOMICS):
            b.atomic(kind, self.meet, b.const(k), self.pick(i32))
        b.for_(zero, size, (), b.end(), LoopAttr(parallel=True, name="loop"))
        arrays = tuple([ArrayArg(r.name, r.dtype, 1) for r in (self.a, self.x, self.p, self.q)])
        meet = ArrayArg("meet", i32, 1)
        return Kernel("random", (*arrays, ScalarArg("n", i32), ScalarArg("s", f32), meet), b.end(), (self.total,))


def random_kernel(seed: int, caps: Capabilities, statements: int = 14) -> Kernel:
    """The kernel number ``seed``, with some of the types that kernels may use on a device with ``caps``."""
    more = [*_NARROW, *[t for name, types in _MORE.items() if getattr(caps, name) for t in types]]
    chosen = random.Random(seed).sample(more, min(3, len(more)))
    return _Random(seed, (*_TYPES, *chosen)).kernel(statements)


def random_arguments(seed: int, length: int) -> tuple[list[Any], np.ndarray[Any, Any]]:
    """Arguments of a random kernel, with fresh arrays, and the memory of its tree."""
    rng = np.random.default_rng(seed)
    a = rng.integers(-(2**31), 2**31, length, dtype=np.int32)
    x = rng.normal(size=length).astype(np.float32)
    meet = np.array([5, 1, -1, -1, 0, 0], np.int32)
    tree = rng.integers(0, 256, 320, dtype=np.uint8)
    for block in range(16):  # flags are 0 or 1
        tree[block * 20 + 16 : block * 20 + 20] &= 1
    return [a, x, np.zeros(length, np.int32), np.zeros(length, np.float32), seed - 7, 0.75, meet], tree
