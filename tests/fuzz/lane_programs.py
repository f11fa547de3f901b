"""Random parallel loops of the kinds that the CPU runs in lockstep: compiled code against the interpreter.

Indices are sums of quotients, remainders and multiples of the index of the loop, so that lanes access one element, neighbours, or elements
at some distance. Arrays have the length that these indices need, and what lies before and behind them cannot be accessed (`fenced`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import numpy as np

from spirograd.analysis import loop_costs

from . import run, typed
from .fenced import fenced

_LONGEST = 4000  # elements of an array
_FLAT = "        i = row * {} + column"
_TYPES = (*typed.INTEGERS, "f32", "f64", "u1", *["i32", "f32"] * 4)


class Program:
    """A loop over a multiple of 16 iterations, over any number, or over rows and columns."""

    def __init__(self, seed: int) -> None:
        self.seed, self.r = seed, random.Random(seed)
        self.kind = self.r.choice(["whole", "any", "rows"])
        self.columns = self.r.choice([16, 32, 48, 64, 20])
        self.n = {"whole": 16 * self.r.randint(1, 12), "any": self.r.randint(0, 90), "rows": self.r.randint(1, 4) * self.columns}[self.kind]
        i = np.arange(max(self.n, 1))
        self.indices = {"i": i}
        if self.kind == "rows":
            self.indices |= {"row": i // self.columns, "column": i % self.columns}
        self.arrays: dict[str, tuple[str, int]] = {"counts": ("i32", 8)}
        self.counters: list[str] = []  # of the serial loops around
        self.budget, self.names = self.r.randint(5, 20), 0
        self.lines: list[str] = []
        self.block(2, 2)
        self.source = self.text()

    def __repr__(self) -> str:
        return self.source

    def text(self) -> str:
        parameters = [f"{name}: sg.types.NDArray[sg.{t}, 1]" for name, (t, _) in self.arrays.items()]
        head = {
            "whole": f"    for i in range({self.n}):",
            "any": "    for i in range(n):",
            "rows": f"    for row, column in sg.ndrange({self.n // self.columns}, {self.columns}):\n{_FLAT.format(self.columns)}",
        }[self.kind]
        before = ["        a, b, c = i * 3, 7 - i, i % 5", "        f = sg.cast(i, sg.f64)"]
        after = ["        found[0, i], found[1, i], found[2, i], found[3, i] = a, b, c, f"]
        first = f"def work(found: sg.types.NDArray[sg.f64, 2], {', '.join(parameters)}, n: sg.i32, m: sg.i32, k: sg.i32):"
        return "\n".join(["import spirograd as sg", "", "@sg.kernel", first, head, *before, *self.lines, *after]) + "\n"

    # --- indices and values ----------------------------------------------------------------------------------------------

    def pattern(self) -> tuple[str, np.ndarray[Any, Any]]:
        """An index, from 0, as text and in each iteration."""
        while True:
            text = self.of_index(self.r.randint(0, 4))
            values = eval(text, {}, dict(self.indices)) + 0 * self.indices["i"]
            low = int(values.min())
            if values.max() - low < _LONGEST:
                return f"{text} - ({low})", values - low

    def of_index(self, depth: int) -> str:
        r = self.r
        if depth == 0:
            return r.choice(list(self.indices))
        value = self.of_index(depth - 1)
        number = r.choice([2, 3, 4, 8, 16, 32, 64])
        other = self.of_index(depth - 1) if r.random() < 0.5 else r.randint(0, 20)
        return r.choice([f"({value} // {number})", f"({value} % {number})", f"({value} * {number})", f"({value} {r.choice('+-')} {other})"])

    def integer(self, depth: int = 2) -> str:
        r = self.r
        if depth == 0:
            return r.choice(["a", "b", "c", "i", "i", *self.counters, f"(m + {r.randint(-9, 60)})"])
        x, y, number = self.integer(depth - 1), self.integer(depth - 1), r.choice([2, 3, 3, 4, 8, 16, 48])
        by = r.choice([3, 5, 16, 48_000_000, 1 << 26])
        forms = [
            f"({x} + {y})",
            f"({x} - {y})",
            f"({x} * {by})",
            f"({x} // {number})",
            f"({x} % {number})",
            f"sg.max({x}, {y})",
            f"({x} ^ {y})",
        ]
        quotient = f"({r.choice(list(self.indices))} * {by} {r.choice(['//', '%'])} {number})"
        return r.choice([*forms, quotient, f"sg.select({self.condition(0)}, {x}, {y})"])

    def condition(self, depth: int = 1) -> str:
        r = self.r
        x, y = self.integer(depth), self.integer(depth)
        place = r.choice(list(self.indices))
        both = f"{place} // {r.choice([4, 8])} % 3 != 0 and {place} // {r.choice([4, 8, 16])} % 2 == 0"
        return r.choice([f"{x} % {r.choice([2, 3, 5])} == 0", f"{x} < {y}", f"f < {r.randint(-5, 99)}.5", both, f"m > {r.randint(0, 4)}"])

    # --- statements ------------------------------------------------------------------------------------------------------

    def line(self, indent: int, text: str) -> None:
        self.lines.append("    " * indent + text)

    def block(self, depth: int, indent: int, inside: bool = False) -> None:
        """``inside``: of a serial loop, which may be left."""
        makers = [self.compute, self.compute, self.load, self.load, self.load, self.store, self.count, self.guarded]
        makers += [self.branch, self.loop, self.loop, self.repeat] if depth else []
        self.compute(depth, indent)
        for _ in range(self.r.randint(1, 5)):
            if self.budget > 0:
                self.budget -= 1
                self.r.choice(makers)(depth, indent)
        if inside and self.r.random() < 0.4:
            self.line(indent, f"if {self.condition()}:")
            self.line(indent + 1, self.r.choice(["break", "continue"]))
            self.compute(depth, indent)

    def compute(self, depth: int, indent: int) -> None:
        value = self.r.choice([f"{self.r.choice('abc')} = {self.integer()}", f"f = f * 0.5 + sg.sqrt(abs(f)) + {self.integer()} % 64"])
        self.line(indent, value)

    def load(self, depth: int, indent: int) -> None:
        t, text = self.r.choice(_TYPES), ""
        if self.r.random() < 0.2:  # neighbours that not all iterations have
            by, length = self.r.randint(1, 20), max(self.n, 1)
            text, test = self.r.choice([(f"i + {by}", f"i + {by} < {length}"), (f"i - {by}", f"i >= {by}")])
            self.line(indent, f"if {test}:")
            indent += 1
        else:
            text, values = self.pattern()
            length = int(values.max()) + 1
        name = self.array("x", t, length)
        target, kind = ("f", "f64") if t in ("f32", "f64") else (self.r.choice("abc"), "i32")
        self.line(indent, f"{target} += sg.cast({name}[{text}], sg.{kind})")

    def guarded(self, depth: int, indent: int) -> None:
        """An access behind a guard on an argument, which is out of range in some launches."""
        length, index = self.r.randint(1, 40), self.r.choice(["k", "k", "i + k", "(i + k) // 2"])
        self.line(indent, f"if {index} >= 0 and {index} < {length}:")
        if self.r.random() < 0.5:
            self.line(indent + 1, f"a += {self.array('x', 'i32', length)}[{index}]")
        else:
            name = self.array("y", "i32", length)
            self.line(indent + 1, f"{self.r.choice(['sg.atomic_max', 'sg.atomic_add'])}({name}[{index}], {self.integer(1)})")

    def store(self, depth: int, indent: int) -> None:
        """To an element that is this iteration's."""
        text, values = self.pattern()
        while len(np.unique(values)) < len(values):
            text, values = self.pattern()
        t = self.r.choice(_TYPES)
        value = self.condition() if t == "u1" else f"sg.cast({'f' if t in ('f32', 'f64') else self.integer()}, sg.{t})"
        symbol = "+=" if t != "u1" and self.r.random() < 0.3 else "="
        self.line(indent, f"{self.array('y', t, int(values.max()) + 1)}[{text}] {symbol} {value}")

    def array(self, prefix: str, t: str, length: int) -> str:
        self.names += 1
        name = f"{prefix}{self.names}"
        self.arrays[name] = t, length
        return name

    def count(self, depth: int, indent: int) -> None:
        place = self.r.choice(["0", "i % 8", f"({self.integer()}) & 7"])
        self.line(indent, f"sg.atomic_add(counts[{place}], {self.integer(1)})")

    def branch(self, depth: int, indent: int) -> None:
        self.line(indent, f"if {self.condition()}:")
        self.block(depth - 1, indent + 1)
        if self.r.random() < 0.4:
            self.line(indent, "else:")
            self.block(depth - 1, indent + 1)

    def loop(self, depth: int, indent: int) -> None:
        self.names += 1
        name = f"k{self.names}"
        bounds = self.r.choice(["3", "m", "i % 4", f"({self.integer(1)}) & 3", "m, 5", f"i % 3, {self.r.randint(2, 14)}"])
        self.line(indent, f"for {name} in range({bounds}):")
        self.counters.append(name)
        self.block(depth - 1, indent + 1, inside=True)
        self.counters.pop()

    def repeat(self, depth: int, indent: int) -> None:
        self.names += 1
        name = f"t{self.names}"
        self.line(indent, f"{name} = ({self.integer(1)}) & 7")
        self.line(indent, f"while {name} > 0:")
        self.line(indent + 1, f"{name} -= 1")
        self.block(depth - 1, indent + 1, inside=True)


def _data(program: Program) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(program.seed)
    found = [np.zeros((4, max(program.n, 1)))]
    for t, length in program.arrays.values():
        found.append(rng.integers(0, 2 if t == "u1" else 90, length).astype(typed.NUMPY[t]))
    return found


def results(program: Program, arch: str) -> list[np.ndarray[Any, Any]]:
    """The arrays after launches with several numbers. Whatever can run in lockstep on the CPU does."""
    costs = dict.fromkeys(("_ACCESS", "_DIVERGENT_LOAD", "_DIVISION", "_INTERLEAVED_LOAD", "_LEAST_WORK", "_SHORTEST"), 0)
    arrays = _data(program)
    if arch == "cpu":
        arrays = [fenced(a, at_end=(program.seed + k) % 4 != 0) for k, a in enumerate(arrays)]
    with run.session(arch, False), patch.multiple(loop_costs, **costs), patch.object(loop_costs._Work, "_gains", return_value=True):
        work = run.load(program.source, {}, "work")
        for m, k in ((3, 0), (0, -1), (5, 1 << 28), (2, -(1 << 28))):
            work(*arrays, program.n, m, k)
    return arrays


def check(program: Program, archs: Sequence[str]) -> None:
    wanted = results(program, "interpreter")
    for arch in archs:
        for name, ours, theirs in zip(("found", *program.arrays), results(program, arch), wanted):
            equal = run.same(ours, theirs)
            if not equal.all():
                at = np.argwhere(~equal)[0].tolist()
                raise run.Difference(f"{arch}: {name}{at} is {ours[tuple(at)]!r}, should be {theirs[tuple(at)]!r}\n{program!r}")


def failure(program: Program, archs: Sequence[str]) -> str:
    return run.first_line_of(check, program, archs)
