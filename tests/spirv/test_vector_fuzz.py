"""Random programs over long vectors indexed at run time: updates in place must never be seen through another name."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from spirograd.base.dtypes import Vec, i32, u1
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Op, Region

from . import kit

PROGRAMS = 30


class Generator:
    """Emits a random program; scalars and vectors that are visible are kept per open region."""

    def __init__(self, seed: int, n: int) -> None:
        self.r = random.Random(seed)
        self.b = Builder()
        self.n = n
        self.t = Vec(n, i32)
        self.pools: list[tuple[list[Op], list[Op]]] = []
        self.budget = 30

    def scalar(self) -> Op:
        if self.r.random() < 0.2:
            return self.b.const(self.r.randrange(self.n))
        return self.r.choice([v for scalars, _ in self.pools for v in scalars])

    def vector(self) -> Op:
        visible = [v for _, vectors in self.pools for v in vectors]
        return visible[-1] if self.r.random() < 0.6 else self.r.choice(visible)

    def index(self) -> Op:
        """A value in [0, n)."""
        masked = self.b.emit(ops.and_, self.scalar(), self.b.const(0x7FFFFFFF))
        return self.b.emit(ops.irem, masked, self.b.const(self.n))

    def flag(self) -> Op:
        return self.b.emit(self.r.choice((ops.lt, ops.eq, ops.ge)), self.scalar(), self.scalar())

    def statement(self) -> None:
        self.budget -= 1
        scalars, vectors = self.pools[-1]
        kind = self.r.random()
        if kind < 0.3:
            vectors.append(self.b.emit(ops.insert, self.vector(), self.index(), self.scalar()))
        elif kind < 0.6:
            scalars.append(self.b.emit(ops.extract, self.vector(), self.index()))
        elif kind < 0.7:
            scalars.append(self.b.emit(self.r.choice((ops.add, ops.xor, ops.mul)), self.scalar(), self.scalar()))
        elif kind < 0.75:
            vectors.append(self.b.emit(ops.select, self.flag(), self.vector(), self.vector()))
        elif self.budget > 0 and len(self.pools) < 5:
            self.construct()

    def construct(self) -> None:
        scalars, vectors = self.pools[-1]
        count = self.r.randint(0, 2)
        if self.r.random() < 0.6:
            condition = self.flag()
            self.b.begin()
            then = self.block((), count)
            self.b.begin()
            results = self.b.if_(condition, then, self.block((), count))
        else:
            initial = [self.scalar(), *[self.vector() for _ in range(count)]]
            begin, end = self.b.const(0), self.b.const(self.r.randint(0, 3))
            params = self.b.begin(i32, i32, *[self.t] * count)
            results = self.b.for_(begin, end, initial, self.block(params, count))
        scalars.append(results[0])
        vectors.extend(results[1:])

    def block(self, params: tuple[Op, ...], count: int) -> Region:
        self.pools.append(([p for p in params if p.type is i32], [p for p in params if p.type is not i32]))
        for _ in range(self.r.randint(0, 4)):
            self.statement()
        out = [self.scalar(), *[self.vector() for _ in range(count)]]
        self.pools.pop()
        return self.b.end(out)

    def program(self, args: kit.Args) -> kit.Kernel:
        b = self.b
        b.begin()
        elements = [b.load(args.refs[0], b.const(k)) for k in range(self.n)]
        self.pools.append((elements, [b.emit(ops.vec, *elements)]))
        for _ in range(8):
            self.statement()
        total = b.const(0)
        for v in self.pools[0][1]:
            for k in range(self.n):
                total = b.emit(ops.add, b.emit(ops.mul, total, b.const(31)), b.emit(ops.extract, v, b.const(k)))
        for v in self.pools[0][0]:
            total = b.emit(ops.add, b.emit(ops.mul, total, b.const(31)), v)
        b.store(args.refs[0], b.const(0), total)
        return kit.kernel(Op(ops.task, kit.VOID, (), kit.TaskAttr("serial", "t0"), (b.end(),)))


class Interpreter:
    """Plain evaluation of a task with one buffer."""

    def __init__(self, memory: np.ndarray) -> None:
        self.memory = memory

    def run(self, region: Region, env: dict[Op, Any]) -> list[Any]:
        for op in region.ops[:-1]:
            env[op] = self.evaluate(op, [env[a] for a in op.args], env)
        return [env[a] for a in region.ops[-1].args]

    def evaluate(self, op: Op, args: list[Any], env: dict[Op, Any]) -> Any:
        if op.code is ops.const:
            return op.attr if op.type is u1 else np.int32(op.attr)
        if op.code is ops.load:
            return self.memory[args[0]]
        if op.code is ops.store:
            self.memory[args[0]] = args[1]
            return None
        if op.code is ops.result:
            return args[0][op.attr]
        if op.code is ops.if_:
            return self.run(op.regions[0 if args[0] else 1], env)
        if op.code is ops.for_:
            carried = args[2:]
            for k in range(args[0], args[1]):
                env.update(zip(op.regions[0].params, [np.int32(k), *carried]))
                carried = self.run(op.regions[0], env)
            return carried
        return ops.evaluate(op.code, op.type, tuple(args))


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_random_vector_programs(device: Any, seed: int) -> None:
    n = 5 + seed % 4
    args = kit.Args([i32])
    task = Generator(seed, n).program(args)
    data = np.random.default_rng(seed).integers(-20, 20, n).astype(np.int32)
    want = data.copy()
    Interpreter(want).run(task.body.ops[0].regions[0], {})
    assert kit.run(device, task, args, [data])[0].tolist() == want.tolist()
