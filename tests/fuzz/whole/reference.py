"""Evaluates programs in plain Python, with derivatives: what the package computes must agree with this.

Memory is a dictionary of numbers for each field or array. A tape is the interval of `Number.order` in which numbers are made: at its begin
each element becomes a new number, at its end the gradients in memory are the weights of the elements as they are then, and afterwards they
are the adjoints of the elements as they were at the begin.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import numbers
from .nodes import (
    ALL,
    AtOnce,
    Call,
    Const,
    Copy,
    Data,
    Fill,
    Forward,
    If,
    Launch,
    Let,
    Load,
    Memory,
    Name,
    Nested,
    Op,
    Over,
    Part,
    Program,
    Put,
    Read,
    Repeat,
    Replaced,
    Second,
    Store,
    Tape,
    Transfer,
    When,
    While,
    contents,
)
from .nodes import For as Loop
from .numbers import Number, number, value

NEAR = 1e-4  # comparisons of floats that are nearer may go either way
MOST = 60_000  # operations


class Unclear(Exception):
    """Rounding decides what the program does, or its numbers grow; or this machine lacks something that it needs."""


class _Ended(Exception):
    """A `break`."""


def _compare(op: str, a: Any, b: Any) -> bool:
    a, b = value(a), value(b)
    if (isinstance(a, float) or isinstance(b, float)) and abs(a - b) < NEAR:
        raise Unclear("a comparison of nearly equal numbers")
    return {"<": a < b, "<=": a <= b, ">": a > b, "==": a == b, "!=": a != b}[op]


def _is_float(x: Any) -> bool:
    return isinstance(x, (Number, float))


def _sum(a: Any, b: Any) -> Any:
    return numbers.add(a, b) if _is_float(a) or _is_float(b) else a + b


def _difference(a: Any, b: Any) -> Any:
    return numbers.subtract(a, b) if _is_float(a) or _is_float(b) else a - b


def _product(a: Any, b: Any) -> Any:
    return numbers.multiply(a, b) if _is_float(a) or _is_float(b) else a * b


def _max(a: Any, b: Any) -> Any:
    return a if _compare(">", a, b) else b


NUMERIC = {
    "+": _sum, "-": _difference, "*": _product, "neg": lambda a: numbers.scaled(a, -1.0), "square": lambda a: numbers.multiply(a, a),
    "root": numbers.root, "sin": numbers.sin, "cos": numbers.cos, "tanh": numbers.tanh, "max": _max, "float": lambda a: float(a),
    "//": lambda a, b: a // b, "%": lambda a, b: a % b,
}  # fmt: skip


def _dot(a: list[Any], b: list[Any]) -> Any:
    total = _product(a[0], b[0])
    for x, y in zip(a[1:], b[1:]):
        total = _sum(total, _product(x, y))
    return total


def _times(matrix: list[Any], vector: list[Any]) -> list[Any]:
    return [_dot(matrix[2 * row : 2 * row + 2], vector) for row in range(2)]


class Reference:
    """``seen``: what `look` saw, as (name, array)."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.type = program.type
        self.memories = {m.name: m for m in program.memories}
        self.kernels = {k.name: k for k in program.kernels}
        self.functions = {f.name: f for f in program.functions}
        self.held: dict[str, dict[Any, Any]] = {}
        self.gradients = {m.name: dict.fromkeys(keys(m), 0.0) for m in program.memories if m.grad and m.values == "floats"}
        self.seen: list[tuple[str, Any]] = []
        self.names: dict[str, Any] = {}
        self.work = 0
        self.largest = 1.0
        for m in program.memories:
            self.put_all(m, contents(m, m.seed, self.type))

    def run(self) -> Reference:
        self.block(self.program.main)
        return self

    # --- memory ----------------------------------------------------------------------------------------------------------

    def put_all(self, m: Memory, array: Any) -> None:
        self.held[m.name] = flat(m, array)

    def array(self, m: Memory, held: dict[Any, Any]) -> Any:
        numbers = {key: value(x) for key, x in held.items()}
        if m.kind == "struct":
            a = np.array([numbers[(*index, ("a", None))] for index in m.indices]).reshape(m.shape)
            return {"a": a, "b": np.array([[numbers[(*i, ("b", k))] for k in range(2)] for i in m.indices]).reshape((*m.shape, 2))}
        return np.array([numbers[key] for key in keys(m)]).reshape((*m.shape, *m.element_shape))

    def look(self, _: Any = None) -> None:
        for m in sorted(self.program.memories, key=lambda m: m.name):
            self.see(m.name, self.array(m, self.held[m.name]))
            if m.name in self.gradients:
                self.see(m.name + ".grad", self.array(m, self.gradients[m.name]))

    def see(self, name: str, array: Any) -> None:
        self.seen.append((name, array))
        for part in array.values() if isinstance(array, dict) else [array]:
            if part.size:
                self.largest = max(self.largest, float(np.abs(part).max()))

    # --- expressions -----------------------------------------------------------------------------------------------------

    def evaluate(self, e: Any, names: dict[str, Any]) -> Any:
        self.work += 1
        if self.work > MOST:
            raise Unclear("long")
        if isinstance(e, Const):
            return e.value
        if isinstance(e, Name):
            return names[e.name]
        if isinstance(e, Load):
            held, place = self.place(e.memory, e.index, names)
            if e.component == ALL:
                return [held[(*place, c)] for c in self.of(e.memory, names).components]
            return held[(*place, e.component)]
        if isinstance(e, Call):
            f = self.functions[e.function]
            inner = dict(zip(f.params, [self.evaluate(a, names) for a in e.args]))
            self.body(f.body, inner)
            return self.evaluate(f.result, inner)
        return self.operation(e, names)

    def operation(self, e: Op, names: dict[str, Any]) -> Any:
        if e.op == "and":
            return self.evaluate(e.args[0], names) and self.evaluate(e.args[1], names)
        if e.op == "or":
            return self.evaluate(e.args[0], names) or self.evaluate(e.args[1], names)
        if e.op == "if":
            return self.evaluate(e.args[1 if self.evaluate(e.args[0], names) else 2], names)
        args = [self.evaluate(a, names) for a in e.args]
        if e.op == "not":
            return not args[0]
        if e.op in ("<", "<=", ">", "==", "!="):
            return _compare(e.op, *args)
        if e.op == "vector":
            return args
        if e.op == "dot":
            return _dot(*args)
        if e.op == "norm":
            return _dot(args[0], args[0])
        if e.op == "times":
            return _times(*args)
        if any(isinstance(a, list) for a in args):
            length = max(len(a) for a in args if isinstance(a, list))
            columns = [a if isinstance(a, list) else [a] * length for a in args]
            return [NUMERIC[e.op](*row) for row in zip(*columns)]
        return NUMERIC[e.op](*args)

    def of(self, name: str, names: dict[str, Any]) -> Memory:
        bound = names.get(name)
        return self.memories[bound.memory if isinstance(bound, Part) else name]

    def indices(self, name: str, names: dict[str, Any]) -> list[tuple[int, ...]]:
        bound = names.get(name)
        if isinstance(bound, Part) and bound.cut is not None:
            return [(k,) for k in range(len(range(*bound.cut)))]
        return self.of(name, names).indices

    def place(self, name: str, index: tuple[Any, ...], names: dict[str, Any]) -> tuple[dict[Any, Any], tuple[int, ...]]:
        """The numbers of a memory or a parameter, and the index there."""
        place = tuple(int(self.evaluate(k, names)) for k in index)
        part = names.get(name)
        if isinstance(part, Part):
            if part.cut is not None:
                place = (range(*part.cut)[place[0]],)
            name = part.memory
        return self.held[name], place

    # --- kernels ---------------------------------------------------------------------------------------------------------

    def body(self, body: tuple[Any, ...], names: dict[str, Any]) -> None:
        for s in body:
            self.statement(s, names)

    def statement(self, s: Any, names: dict[str, Any]) -> None:
        if isinstance(s, Let):
            names[s.name] = self.evaluate(s.value, names)
        elif isinstance(s, Store):
            self.store(s, names)
        elif isinstance(s, If):
            self.body(s.body if self.evaluate(s.condition, names) else s.orelse, names)
        elif isinstance(s, Loop):
            for k in range(self.evaluate(s.bound, names)):
                names[s.name] = k
                self.body(s.body, names)
        elif isinstance(s, Over):
            for index in self.indices(s.memory, names):
                names.update(zip(s.names, index))
                self.body(s.body, names)
        elif isinstance(s, While) and s.bound is not None:
            names[s.name] = 0
            while names[s.name] < self.evaluate(s.bound, names):
                names[s.name] += 1
                self.body(s.body, names)
                if s.until is not None and self.evaluate(s.until, names):
                    break

    def store(self, s: Store, names: dict[str, Any]) -> None:
        held, place = self.place(s.memory, s.index, names)
        memory = self.of(s.memory, names)
        new = self.evaluate(s.value, names)
        components = memory.components if s.component == ALL else (s.component,)
        news = new if isinstance(new, list) else [new] * len(components)
        for component, x in zip(components, news):
            key = (*place, component)
            old = held[key]
            if s.op != "=":
                x = {"+=": _sum, "-=": _difference, "*=": _product}[s.op](old, x)
            held[key] = number(x) if memory.values == "floats" else int(x)

    # --- Python ----------------------------------------------------------------------------------------------------------

    def block(self, body: tuple[Any, ...]) -> None:
        for s in body:
            getattr(self, type(s).__name__.lower())(s)

    def launch(self, s: Launch) -> None:
        kernel = self.kernels[s.kernel]
        names = {}
        for p, a in zip(kernel.params, s.args):
            names[p.name] = a if isinstance(a, Part) else self.evaluate(a, self.names)
            if p.kind == "float":
                names[p.name] = number(names[p.name])
        self.body(kernel.body, names)

    def repeat(self, s: Repeat) -> None:
        for k in range(s.count):
            self.names[s.name] = k
            self.block(s.body)

    def when(self, s: When) -> None:
        self.block(s.body if self.evaluate(s.condition, self.names) else s.orelse)

    def cells(self, part: Part, component: Any = None) -> list[Any]:
        """Keys of a part of memory, in order."""
        m = self.memories[part.memory]
        rows = None if part.cut is None else list(range(*part.cut))
        indices = m.indices if rows is None else [(k,) for k in rows]
        components = m.components if component in (None, ALL) else [component]
        return [(*index, c) for index in indices for c in components]

    def fill(self, s: Fill) -> None:
        m = self.memories[s.part.memory]
        for key in self.cells(s.part, s.component):
            x = self.evaluate(s.value, self.names)
            self.held[m.name][key] = numbers.scaled(x, 1.0) if m.values == "floats" else int(x)

    def copy(self, s: Copy) -> None:
        source = [self.held[s.source.memory][key] for key in self.cells(s.source)]
        for key, x in zip(self.cells(s.target), source):
            self.held[s.target.memory][key] = numbers.scaled(x, 1.0) if isinstance(x, Number) else x

    def put(self, s: Put) -> None:
        x = self.evaluate(s.value, self.names)
        self.held[s.memory][(*s.index, s.component)] = number(x) if self.memories[s.memory].values == "floats" else int(x)

    def read(self, s: Read) -> None:
        self.names[s.name] = self.held[s.memory][(*s.index, s.component)]

    def data(self, s: Data) -> None:
        m = self.memories[s.memory]
        self.put_all(m, contents(m, s.seed, self.type))

    def transfer(self, s: Transfer) -> None:
        m = self.memories[s.source]
        self.held[s.target] = {key: Number(value(x) * s.factor) for key, x in self.held[m.name].items()}

    def nested(self, s: Nested) -> None:
        self.block(s.body)

    # --- derivatives -----------------------------------------------------------------------------------------------------

    def replaced(self, s: Replaced) -> None:
        before, source = dict(self.held[s.target]), dict(self.held[s.source])
        self.launch(s.launch)
        if s.factor is None:
            return
        for key in before:
            slope = s.factor * math.cos(value(source[key]))
            self.held[s.target][key] = Number(value(self.held[s.target][key]), 0.0, ((number(source[key]), slope, 0.0),))

    def begin(self) -> tuple[int, dict[str, dict[Any, Number]]]:
        order = Number.count + 1
        for name in self.held:
            if self.memories[name].values == "floats":
                self.held[name] = {key: Number(value(x)) for key, x in self.held[name].items()}
        return order, {name: dict(self.held[name]) for name in self.gradients}

    def end(self, order: int, first: dict[str, dict[Any, Number]]) -> None:
        seeds = [(number(self.held[name][key]), g) for name, held in self.gradients.items() for key, g in held.items() if g]
        for held in first.values():
            for x in held.values():
                x.adjoint = 0.0
        numbers.pull(seeds, order)
        self.gradients = {name: {key: x.adjoint for key, x in held.items()} for name, held in first.items()}

    def clear(self, _: Any = None) -> None:
        """Set all gradients to zero, except those of torch tensors."""
        for name, held in self.gradients.items():
            if not self.memories[name].foreign:
                self.gradients[name] = dict.fromkeys(held, 0.0)

    def tape(self, s: Tape) -> None:
        self.taped(s)
        if s.graph:
            self.look()
            self.data(Data(s.again, 77))
            self.taped(s)

    def taped(self, s: Tape) -> None:
        if s.loss:
            self.held[s.loss] = {key: Number(0.0) for key in self.held[s.loss]}
            if dict(s.options).get("clear_gradients", True):
                self.clear()
        elif dict(s.options).get("clear_gradients", True):
            self.clear()
        order, first = self.begin()
        self.block(s.body)
        if s.loss:
            self.gradients[s.loss] = dict.fromkeys(self.gradients[s.loss], 1.0)
            self.end(order, first)
            self.gradients[s.loss] = dict.fromkeys(self.gradients[s.loss], 1.0)
            return
        for _ in range(s.times):
            self.clear()
            for name, seed in s.seeds:
                self.gradients[name] = flat(self.memories[name], contents(self.memories[name], seed, self.type), plain=True)
            self.end(order, first)

    def atonce(self, s: AtOnce) -> None:
        self.block(s.body)

    def second(self, s: Second) -> None:
        direction = flat(self.memories[s.x], contents(self.memories[s.x], s.seed, self.type))
        order, first = self.begin()
        for key, x in self.held[s.x].items():
            x.tangent = value(direction[key])
        self.held[s.loss] = {key: Number(0.0) for key in self.held[s.loss]}
        self.block(s.body)
        seeds = [(number(x), 1.0) for x in self.held[s.loss].values()]
        for held in first.values():
            for x in held.values():
                x.adjoint = x.adjoint_tangent = 0.0
        numbers.pull(seeds, order)
        m = self.memories[s.x]
        self.see("second", self.array(m, {key: x.adjoint_tangent for key, x in first[s.x].items()}))

    def forward(self, s: Forward) -> None:
        direction = flat(self.memories[s.x], contents(self.memories[s.x], s.seed, self.type))
        self.begin()
        for key, x in self.held[s.x].items():
            x.tangent = value(direction[key])
        self.block(s.body)
        m = self.memories[s.result]
        self.see("forward", self.array(m, {key: number(x).tangent for key, x in self.held[m.name].items()}))


def keys(m: Memory) -> list[Any]:
    return [(*index, c) for index in m.indices for c in m.components]


def flat(m: Memory, array: Any, plain: bool = False) -> dict[Any, Any]:
    """An array as a dictionary of numbers."""
    if m.values != "floats":
        return {(*index, None): int(array[index]) for index in m.indices}
    if m.kind == "struct":
        found = {(*i, (member, k)): array[member][i if k is None else (*i, k)] for i in m.indices for member, k in m.components}
    else:
        found = dict(zip(keys(m), array.reshape(-1)))
    return {key: float(x) if plain else Number(float(x)) for key, x in found.items()}
