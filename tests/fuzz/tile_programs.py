"""Random kernels with products of tiles in loops and branches, against the same steps in NumPy. All numbers are exact."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from spirograd import compiler
from spirograd.ir.nodes import Kernel
from spirograd.transforms.simplification.simplify import simplify
from spirograd.transforms.tasks.keep_tile_entries import keep_tile_entries

from . import run

_HEAD = """import spirograd as sg
from spirograd.simt import Tile{n}x{n} as T

@sg.kernel
def work(a: sg.types.NDArray[sg.{factor}, 2], out: sg.types.NDArray[sg.{total}, 3], where: sg.types.NDArray[sg.i32, 1], m: sg.i32):
    sg.loop_config(block_dim={threads})
    for i in range({begin}, {end}):
        g = (i - {begin}) // {threads}
        p, q = T.zeros(sg.{factor}), T.eye(sg.{factor})
        s, t, u = T.zeros(sg.{total}), T.eye(sg.{total}), T.zeros(sg.{total})
"""
_ROWS, _COLUMNS = 41, 39
# What a group does with its tiles, by name: (tiles, its number, m).
State = dict[str, Any]
Step = Callable[[State, int, int], None]


class TooLarge(Exception):
    """Entries may round."""


class Products:
    """A kernel: ``source``, and ``wanted``, what it leaves for each `m`. ``factor``, ``total``: the types of tiles. ``depth``: how deep
    branches and loops are nested."""

    def __init__(self, seed: int, depth: int = 2) -> None:
        r = self.r = random.Random(seed)
        self.factor, self.total = r.choice([("f16", "f32"), ("f16", "f32"), ("f64", "f64"), ("f32", "f32")])
        self.n, self.threads = r.choice([(16, 32), (16, 32), (32, 32), (16, 16), (16, 24)])
        self.groups = r.randint(1, 3)
        self.begin = r.choice([0, 0, 7])
        self.loops = 0
        self.most = 2.0**22 if self.total == "f32" else 2.0**50
        self.a = np.random.default_rng(seed).integers(-2, 3, (_ROWS, _COLUMNS)).astype(self.factor.replace("f", "float"))
        while True:
            lines: list[str] = []
            steps = self.block(depth, "        ", lines)
            lines += [f"        out[3 * g + {k}, 0 : {self.n}, 0 : {self.n}] = {v}" for k, v in enumerate("stu")]
            end = self.begin + self.groups * self.threads
            head = _HEAD.format(n=self.n, factor=self.factor, total=self.total, threads=self.threads, begin=self.begin, end=end)
            self.source = head + "\n".join(lines) + "\n"
            try:
                self.wanted = {m: self.evaluated(steps, m) for m in (0, 1, 3)}
            except TooLarge:
                continue
            return

    def __repr__(self) -> str:
        return self.source

    def evaluated(self, steps: Sequence[Step], m: int) -> Any:
        out = np.zeros((3 * self.groups, self.n, self.n))
        for g in range(self.groups):
            zeros, eye = np.zeros((self.n, self.n)), np.eye(self.n)
            state = {"p": zeros, "q": eye, "s": zeros, "t": eye, "u": zeros}
            for step in steps:
                step(state, g, m)
            for k, v in enumerate("stu"):
                out[3 * g + k] = state[v]
        return out

    def set(self, state: State, name: str, value: Any) -> None:
        if abs(value).max() > self.most:
            raise TooLarge
        state[name] = value

    # --- steps ---------------------------------------------------------------------------------------------------------------

    def block(self, depth: int, pad: str, lines: list[str]) -> list[Step]:
        kinds = [self.product] * 5 + [self.load] * 2 + [self.copy, self.swap, self.column, self.scaled, self.stored, self.fresh, self.outer]
        kinds += [self.nested] * (3 * (depth > 0))
        return [step(depth, pad, lines) for step in self.r.choices(kinds, k=self.r.randint(2, 4))]

    def product(self, depth: int, pad: str, lines: list[str]) -> Step:
        r = self.r
        factors = "pq" if self.factor != self.total else "ppqqstu"
        v = r.choice("stu")
        w, x = (r.choice([k for k in factors if k != v]) for _ in range(2))
        sign, transposed = r.choice([-1, 1]), r.random() < 0.5
        lines.append(f"{pad}{v}.{'add' if sign > 0 else 'subtract'}_product_({w}, {x}{', True' if transposed else ''})")

        def step(state: State, g: int, m: int) -> None:
            right = state[x].T if transposed else state[x]
            if abs(state[w]).max() * abs(right).max() * self.n > self.most:
                raise TooLarge
            self.set(state, v, state[v] + sign * (state[w] @ right))

        return step

    def load(self, depth: int, pad: str, lines: list[str]) -> Step:
        """Slices may be smaller than tiles, or reach beyond the memory; where they begin may differ from group to group."""
        r = self.r
        v = r.choice("pppqqqst")
        i, j, rows, columns = r.randint(0, 30), r.randint(0, 30), r.choice([32, 16, 5, 0]), r.choice([32, 16, 16, 9, 1])
        by_group = r.random() < 0.4
        at = f"{i} + g" if by_group else f"{i}"
        lines.append(f"{pad}{v}[:] = a[{at} : {at} + {rows}, {j} : {j + columns}]")

        def step(state: State, g: int, m: int) -> None:
            first = i + g * by_group
            part = self.a[first : first + min(rows, self.n), j : j + min(columns, self.n)]
            found = state[v].copy()
            found[: part.shape[0], : part.shape[1]] = part
            state[v] = found

        return step

    def copy(self, depth: int, pad: str, lines: list[str]) -> Step:
        v, w = self.r.sample("stu", 2)
        lines.append(f"{pad}{v} = {w}")

        def step(state: State, g: int, m: int) -> None:
            state[v] = state[w]

        return step

    def swap(self, depth: int, pad: str, lines: list[str]) -> Step:
        v, w = self.r.sample("stu", 2)
        lines.append(f"{pad}{v}, {w} = {w}, {v}")

        def step(state: State, g: int, m: int) -> None:
            state[v], state[w] = state[w], state[v]

        return step

    def column(self, depth: int, pad: str, lines: list[str]) -> Step:
        """Rows of threads, changed entry by entry."""
        v, k, l = self.r.choice("stupq"), self.r.randrange(self.n), self.r.randrange(self.n)
        lines.append(f"{pad}{v}.r[{k}] = {v}.r[{l}] + 1.0")

        def step(state: State, g: int, m: int) -> None:
            found = state[v].copy()
            found[:, k] = found[:, l] + 1
            if v in "pq" and abs(found).max() > 64:
                raise TooLarge
            self.set(state, v, found)

        return step

    def scaled(self, depth: int, pad: str, lines: list[str]) -> Step:
        v, w, by = self.r.choice("stu"), self.r.choice("stu"), self.r.choice([-1.0, 0.0, 2.0])
        lines.append(f"{pad}{v}.r = {w}.r * {by}")

        def step(state: State, g: int, m: int) -> None:
            self.set(state, v, state[w] * by)

        return step

    def stored(self, depth: int, pad: str, lines: list[str]) -> Step:
        """Read in the middle, by what stays of it."""
        v, k = self.r.choice("stu"), self.r.randrange(3)
        lines.append(f"{pad}out[3 * g + {k}, 0 : {self.n}, 0 : {self.n}] = {v}")
        return lambda state, g, m: None

    def fresh(self, depth: int, pad: str, lines: list[str]) -> Step:
        v, kind = self.r.choice("stupq"), self.r.choice(["zeros", "eye"])
        lines.append(f"{pad}{v} = T.{kind}(sg.{self.factor if v in 'pq' else self.total})")
        made = np.zeros((self.n, self.n)) if kind == "zeros" else np.eye(self.n)

        def step(state: State, g: int, m: int) -> None:
            state[v] = made

        return step

    def outer(self, depth: int, pad: str, lines: list[str]) -> Step:
        v, k, j = self.r.choice("stu"), self.r.randrange(self.n), self.r.randrange(_COLUMNS)
        lines.append(f"{pad}{v} -= sg.outer({v}.r[{k}], a[0 : {self.n}, {j}])")

        def step(state: State, g: int, m: int) -> None:
            self.set(state, v, state[v] - np.outer(state[v][:, k], self.a[: self.n, j].astype("f8")))

        return step

    def nested(self, depth: int, pad: str, lines: list[str]) -> Step:
        """Branches and loops on which the threads of a group agree; of some the compiler does not know that."""
        r, number = self.r, self.loops
        self.loops += 1
        kind = r.choice(["if", "for", "for", "while"])
        text, value = r.choice([
            ("m", lambda g, m: m), ("2", lambda g, m: 2), ("g", lambda g, m: g), ("where[i % 3]", lambda g, m: 1),
            ("where[g % 3] + m", lambda g, m: 1 + m),
        ])  # fmt: skip
        if kind == "if":
            lines.append(f"{pad}if {text} % 2 == 1:" if "+" not in text else f"{pad}if ({text}) % 2 == 1:")
            then = self.block(depth - 1, pad + "    ", lines)
            lines.append(f"{pad}else:")
            orelse = self.block(depth - 1, pad + "    ", lines)
            return lambda state, g, m: [step(state, g, m) for step in (then if value(g, m) % 2 == 1 else orelse)] and None
        if kind == "for":
            lines.append(f"{pad}for j{number} in range({text}):")
        else:
            lines += [f"{pad}j{number} = {text}", f"{pad}while j{number} > 0:", f"{pad}    j{number} -= 1"]
        body = self.block(depth - 1, pad + "    ", lines)
        return lambda state, g, m: [step(state, g, m) for _ in range(value(g, m)) for step in body] and None


@contextmanager
def optimised() -> Iterator[None]:
    """The interpreter runs what the passes before the tasks make of a kernel: products stay operations on tiles there."""
    interpreted = compiler._interpreted

    def after_passes(kernel: Kernel, key: str, made: Any, on_op: Any) -> Any:
        kernel = made.apply(simplify, kernel, "kernel")
        return interpreted(made.apply(keep_tile_entries, kernel, "kernel"), key, made, on_op)

    with patch.object(compiler, "_interpreted", after_passes):
        yield


def results(program: Products) -> dict[int, Any]:
    work = run.load(program.source, {}, "work")
    found = {}
    for m, wanted in program.wanted.items():
        out = found[m] = np.zeros(wanted.shape, program.total.replace("f", "float"))
        work(program.a, out, np.ones(3, np.int32), m)
    return found


def write(seed: int) -> Products:
    return Products(seed)


def check(program: Products, archs: Sequence[str]) -> None:
    for arch in archs:
        with run.session(arch, False):
            ways = [results(program)]
            if arch == "interpreter":
                with optimised():
                    ways.append(results(program))
        for found in ways:
            for m, wanted in program.wanted.items():
                if not np.array_equal(found[m], wanted):
                    raise run.Difference(f"{arch}: {np.argwhere(found[m] != wanted)[0].tolist()} differs for m = {m}\n{program.source}")


def failure(program: Products, archs: Sequence[str]) -> str:
    return run.first_line_of(check, program, archs)
