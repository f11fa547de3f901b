"""Large vectors in stack memory: random programs with and without them (then LLVM's own vectors hold the values)."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest
from unit.carried_vector_programs import PROGRAMS, N
from unit.llvm.llvm_programs import Program
from unit.tile_programs import compiled

import spirograd as sg
from spirograd.base.dtypes import Vec, i32
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Op
from spirograd.llvmgen import module
from spirograd.runtime.devices import cpu
from validation.profiles import PROFILES

pytestmark = pytest.mark.optimized

_WIDTH = 5
_T = Vec(_WIDTH, i32)


class RandomBody:
    """Random code over a few vectors and a scalar. Old versions stay in scope, so that many values are live after an insert."""

    def __init__(self, b: Builder, seed: int) -> None:
        self.b = b
        self.random = random.Random(seed)

    def index(self, scalar: Op) -> Op:
        if self.random.random() < 0.3:
            return self.b.const(self.random.randrange(_WIDTH))
        mixed = self.b.emit(ops.and_, self.b.emit(ops.add, scalar, self.b.const(self.random.randrange(9))), self.b.const(3))
        return mixed

    def block(self, vectors: list[Op], scalar: Op, depth: int) -> tuple[list[Op], Op]:
        """Some operations; returns the vectors in scope and the new scalar."""
        vectors = list(vectors)
        for _ in range(self.random.randint(2, 4)):
            step = self.random.choice((self.insert, self.insert, self.extract, self.select, self.if_, self.for_, self.while_))
            if depth == 0 and step in (self.if_, self.for_, self.while_):
                step = self.insert
            vectors, scalar = step(vectors, scalar, depth)
            vectors = vectors[-4:]
        return vectors, scalar

    def insert(self, vectors: list[Op], scalar: Op, depth: int) -> tuple[list[Op], Op]:
        v = self.random.choice(vectors)
        new = self.b.emit(ops.insert, v, self.index(scalar), self.b.emit(ops.add, scalar, self.b.const(self.random.randrange(100))))
        return [*vectors, new], scalar

    def extract(self, vectors: list[Op], scalar: Op, depth: int) -> tuple[list[Op], Op]:
        value = self.b.emit(ops.extract, self.random.choice(vectors), self.index(scalar))
        mixed = self.b.emit(ops.add, self.b.emit(ops.mul, scalar, self.b.const(3)), value)
        return vectors, self.b.emit(ops.and_, mixed, self.b.const(0xFFFFFF))

    def odd(self, scalar: Op) -> Op:
        return self.b.emit(ops.eq, self.b.emit(ops.and_, scalar, self.b.const(1)), self.b.const(1))

    def select(self, vectors: list[Op], scalar: Op, depth: int) -> tuple[list[Op], Op]:
        return [*vectors, self.b.emit(ops.select, self.odd(scalar), *self.random.choices(vectors, k=2))], scalar

    def if_(self, vectors: list[Op], scalar: Op, depth: int) -> tuple[list[Op], Op]:
        condition = self.odd(scalar)
        arms = []
        for _ in range(2):
            self.b.begin()
            inner, s = self.block(vectors, scalar, depth - 1) if self.random.random() < 0.7 else (vectors, scalar)
            arms.append(self.b.end([*self.random.choices(inner, k=2), s]))
        *new, scalar = self.b.if_(condition, *arms)
        return [*vectors, *new], scalar

    def for_(self, vectors: list[Op], scalar: Op, depth: int) -> tuple[list[Op], Op]:
        begin, end = self.b.const(0), self.b.emit(ops.and_, scalar, self.b.const(3))
        initial = self.random.choices(vectors, k=2)
        i, v, w, s = self.b.begin(i32, _T, _T, i32)
        inner, s = self.block([*vectors[-1:], v, w], self.b.emit(ops.add, s, i), depth - 1)
        body = self.b.end([*self.random.choices([v, w, *inner], k=2), s])
        *new, scalar = self.b.for_(begin, end, [*initial, scalar], body)
        return [*vectors, *new], scalar

    def while_(self, vectors: list[Op], scalar: Op, depth: int) -> tuple[list[Op], Op]:
        zero = self.b.const(0)
        initial = self.random.choices(vectors, k=2)
        n, v, w, s = self.b.begin(i32, _T, _T, i32)
        changed = self.b.emit(ops.insert, v, self.index(s), s)
        odd = self.b.emit(ops.and_, self.b.emit(ops.extract, changed, self.b.const(1)), self.b.const(1))
        condition = self.b.end([self.b.emit(ops.lt, self.b.emit(ops.add, n, odd), self.b.const(3))])
        n, v, w, s = self.b.begin(i32, _T, _T, i32)
        inner, s = self.block([v, w], s, depth - 1)
        body = self.b.end([self.b.emit(ops.add, n, self.b.const(1)), *self.random.choices([v, w, *inner], k=2), s])
        _, *new, scalar = self.b.while_([zero, *initial, scalar], condition, body)
        return [*vectors, *new], scalar


def random_program(seed: int, n: int) -> Program:
    p = Program(f"random{seed}")
    x, out = p.buffer(i32), p.buffer(i32)

    def body(b: Builder, i: Op) -> None:
        maker = RandomBody(b, seed)
        start = b.load(x, i)
        vectors = [b.emit(ops.vec, *(b.const(seed + 7 * k + c) for c in range(_WIDTH))) for k in range(2)]
        vectors, scalar = maker.block([*vectors, b.emit(ops.vec, *[b.const(0)] * _WIDTH)], start, 3)
        vectors, scalar = maker.block(vectors, scalar, 3)
        for v in vectors:
            for c in range(_WIDTH):
                scalar = b.emit(ops.add, b.emit(ops.mul, scalar, b.const(31)), b.emit(ops.extract, v, b.const(c)))
        b.store(out, i, scalar)

    p.range_for(0, n, body)
    return p


@pytest.mark.parametrize("seed", [*range(12), *[pytest.param(k, marks=pytest.mark.long) for k in range(12, 100)]])
def test_stack_memory_holds_the_same_values(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.arange(32, dtype=np.int32) * 12345 % 1009
    results: list[Any] = []
    for limit in (0, 1000):
        monkeypatch.setattr(module, "LARGEST_REGISTER", limit)
        p = random_program(seed, len(data))
        p.compile(CompileOptions(opt_level=1))
        assert (" alloca " in p.text) == (limit == 0)
        got = np.zeros(len(data), np.int32)
        p.run(cpu.open(max_threads=1), data, got)
        results.append(got)
    np.testing.assert_array_equal(results[0], results[1])


def test_updates_of_a_carried_array_are_in_place() -> None:
    """A histogram in a local array: no copies in the loop."""
    p = Program("histogram")
    x, out = p.buffer(i32), p.buffer(i32)

    def body(b: Builder, i: Op) -> None:
        start = b.emit(ops.vec, *[b.const(0)] * 64)
        zero, hundred = b.const(0), b.const(100)
        j, counts = b.begin(i32, Vec(64, i32))
        where = b.emit(ops.and_, b.load(x, j), b.const(63))
        b.begin()
        then = b.end([b.emit(ops.insert, counts, where, b.emit(ops.add, b.emit(ops.extract, counts, where), b.const(1)))])
        b.begin()
        orelse = b.end([counts])
        loop = b.end(b.if_(b.emit(ops.ne, where, b.const(5)), then, orelse))
        (counts,) = b.for_(zero, hundred, [start], loop)
        b.store(out, i, b.emit(ops.extract, counts, i))

    p.range_for(0, 64, body)
    p.compile(CompileOptions())
    assert "memcpy" not in p.text
    data, got = np.random.default_rng(1).integers(0, 64, 100).astype(np.int32), np.zeros(64, np.int32)
    p.run(cpu.open(), data, got)
    want = np.bincount(data, minlength=64)
    want[5] = 0
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("profile", ["cuda-sm_90", "amdgpu-gfx1100"])
def test_vectors_that_loops_carry_on_gpus(profile: str) -> None:
    """A vector is in memory once, and loops and branches access single elements of it."""

    def make() -> Any:
        x, n, y = sg.ndarray(sg.f32, N), sg.ndarray(sg.i32, N), sg.ndarray(sg.f32, N)
        run = PROGRAMS["clipped"][0](x, n, y)
        return lambda: run(x, n, y)

    stages = compiled(make, PROFILES[profile]).stages
    device, text = stages["device.ir"], stages["kernel.opt.ll"]
    assert device.count("= vec(") == 1 and "-> vec" not in device
    assert text.count(" alloca [32 x float]") <= 1 and "memcpy" not in text  # LLVM for AMD has arrays in registers


@pytest.mark.parametrize("columns", [16, 100, 700])
def test_arrays_are_not_copied_by_bytes(columns: int) -> None:
    """What LLVM would make of `memset` and `memcpy` for NVIDIA's GPUs; it would also make `memset` of a loop over memory of the device."""

    def make() -> Any:
        a, n = sg.ndarray(sg.f32, (4, 700)), sg.ndarray(sg.i32, 4)

        @sg.kernel
        def run(a: sg.types.NDArray[sg.f32, 2], n: sg.types.NDArray[sg.i32, 1]):  # type: ignore[no-untyped-def]
            for i in n:
                m = sg.Matrix.zero(sg.f32, 16, 3)
                for k in range(n[i]):
                    m[k % 16, 0] += a[i, k]
                    old = m
                    m[k * 5 % 16, 1] = a[i, k]
                    if a[i, k] > 3.0:
                        m = old
                for k in range(n[i]):
                    a[i, k] = m[k % 16, 1] + m[(k + 1) % 16, 0]
                for k in range(columns):
                    a[i, k] = 0.0

        return lambda: run(a, n)

    kernel = compiled(make, PROFILES["cuda-sm_90"])
    text = kernel.binaries[0].decode()
    assert "memset" not in kernel.stages["kernel.opt.ll"] and not re.search(r"st\.\w+\.(v\d\.)?b8", text)
    assert len(re.findall(r"st\.local\.v4\.b32", text)) >= 12
