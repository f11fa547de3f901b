"""Random parallel loops that add to elements around each iteration: compiled code against the interpreter, which adds one by one.

Indices are shifted, wrapped around the ends of an axis, or limited to them, under conditions where else they would be out of range. Numbers
are small integers, whose sums are exact in any order.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import numpy as np

import spirograd as sg
from spirograd.analysis import scatters
from spirograd.transforms.tasks import gather

from . import run, typed

_AXES = "ijk"
_TYPES = ("f32", "f32", "i32", "f64")
_TARGETS = ("u", "v")
_LAUNCHES = 2


class Program:
    """A loop over one to three axes of memories ``x`` (read), ``s`` (written at the place of an iteration), ``u`` and ``v`` (added to)."""

    def __init__(self, seed: int) -> None:
        self.seed, self.r = seed, random.Random(seed)
        r = self.r
        self.rank = r.choice([1, 1, 2, 2, 2, 3])
        self.shape = [r.randint(r.choice([1, 2, 4]), (40, 12, 6)[self.rank - 1]) for _ in range(self.rank)]
        self.arrays = r.random() < 0.4
        self.origin = [r.randint(-3, 5) for _ in self.shape] if not self.arrays and r.random() < 0.2 else [0] * self.rank
        self.components = r.choice([0, 0, 2])
        self.dtype = r.choice(_TYPES)
        self.dynamic = r.random() < 0.4
        self.aliased = self.arrays and r.random() < 0.2  # `u` and `v` are one array
        self.whole = [self.arrays or r.random() < 0.5 for _ in self.shape]
        self.ends = [(0, n) if whole else self.part(n) for n, whole in zip(self.shape, self.whole)]
        self.ends = [(a + o, b + o) for (a, b), o in zip(self.ends, self.origin)]
        self.forms = r.choice([["shift"], ["shift", "limit"], ["limit"], ["shift", "wrap"], ["wrap"]])
        self.lines: list[str] = []
        self.body()
        self.source = self.text()

    def __repr__(self) -> str:
        about = f"shape {self.shape}, origin {self.origin}, {self.dtype}, components {self.components}, aliased {self.aliased}"
        return f"{self.source}# {about}"

    def part(self, n: int) -> tuple[int, int]:
        begin = self.r.randint(0, min(n, 2))
        return begin, max(n - self.r.randint(0, 2), begin)

    def text(self) -> str:
        axes = _AXES[: self.rank]
        kind = f"sg.types.NDArray[sg.{self.dtype}, {self.rank}]"
        if self.components:
            kind = f"sg.types.ndarray(sg.types.vector({self.components}, sg.{self.dtype}), {self.rank})"
        arguments = [f"{name}: {kind}" for name in "xsuv"] if self.arrays else []
        arguments += [f"{axis}{end}: sg.i32" for axis in axes for end in (0, 1)] + ["t: sg.i32"]
        bounds = [(f"{axis}0", f"{axis}1") if self.dynamic else ends for axis, ends in zip(axes, self.ends)]
        if all(self.whole) and not self.dynamic and self.r.random() < 0.6:
            head = f"{', '.join(axes)} in x"
        elif self.rank == 1:
            head = f"i in range({bounds[0][0]}, {bounds[0][1]})"
        else:
            head = f"{', '.join(axes)} in sg.ndrange({', '.join(f'({a}, {b})' for a, b in bounds)})"
        return "\n".join(["@sg.kernel", f"def work({', '.join(arguments)}):", f"    for {head}:", *self.lines]) + "\n"

    # --- statements ------------------------------------------------------------------------------------------------------

    def line(self, indent: int, text: str) -> None:
        self.lines.append("    " * indent + text)

    def body(self) -> None:
        r = self.r
        here = self.at("s", list(_AXES[: self.rank]))
        if r.random() < 0.5:
            self.line(2, f"w = {self.at('x', list(_AXES[: self.rank]))} + {_AXES[r.randrange(self.rank)]} % 3")
        else:
            self.line(2, f"w = {here} + 1")
        makers = [self.add] * 4 + [self.branch]
        early = r.random() < 0.15
        if early:  # what is added depends on what was written
            self.line(2, f"{here} = 2 * w")
            self.line(2, f"w += {here}")
        for _ in range(r.randint(2, 6)):
            r.choice(makers)(2)
        if not early and r.random() < 0.6:
            self.line(2, f"{here} {r.choice(['=', '+='])} {r.choice(['0', 'w'])}")
        if r.random() < 0.1 and self.rank == 1:
            self.line(2, f"{self.at('v', ['i'])} += w")

    def branch(self, indent: int) -> None:
        axis = _AXES[self.r.randrange(self.rank)]
        self.line(indent, f"if {self.r.choice([f'{axis} % 2 == 0', 'w > 2', f'{axis} > t'])}:")
        self.add(indent + 1)
        if self.r.random() < 0.5:
            self.line(indent, "else:")
            self.add(indent + 1)

    def add(self, indent: int) -> None:
        r = self.r
        conditions, indices = [], []
        for k in range(self.rank):
            index, needed = self.index(k)
            indices.append(index)
            conditions += needed
        value = r.choice(["w", "w * 2", "-w", f"w + {r.choice(_AXES[: self.rank])}", "1", "w - t"])
        if r.random() < 0.4:
            place, needed = zip(*[self.index(k) for k in range(self.rank)])
            conditions += [c for some in needed for c in some]
            value = f"{value} + 3 * {self.at('x', list(place))}"
        if conditions:
            self.line(indent, f"if {' and '.join(dict.fromkeys(conditions))}:")
            indent += 1
        self.line(indent, f"{self.at(r.choice('uuuuuv'), indices)} += {value}")

    def at(self, name: str, indices: list[str]) -> str:
        text = f"{name}[{', '.join(indices)}]"
        return f"{text}[{self.r.randrange(self.components)}]" if self.components else text

    def index(self, axis: int) -> tuple[str, list[str]]:
        """An index that is in range under conditions."""
        r, place, n, origin = self.r, _AXES[axis], self.shape[axis], self.origin[axis]
        begin, end = self.ends[axis]
        by = r.choice([0, 0, -1, 1, -1, 1, 2, -2, 3])
        shifted = f"{place} + {by}" if by > 0 else f"{place} - {-by}" if by else place
        low, high = origin, origin + n - 1
        form = r.choice(self.forms) if r.random() < 0.9 else "limit"
        if form == "wrap" and (origin or not self.whole[axis]):
            form = "shift"
        if form == "wrap":
            extent = f"{place}1" if self.dynamic and (begin, end) == (0, n) and r.random() < 0.7 else f"{n}"
            return r.choice([f"({shifted}) % {extent}", f"({shifted} + {extent}) % {extent}"]), []
        if form == "limit":
            last = f"{place}1 - 1" if self.dynamic and end == high + 1 and r.random() < 0.7 else f"{high}"
            first = f"{place}0" if self.dynamic and begin == low and r.random() < 0.7 else f"{low}"
            upper, lower = f"sg.min({shifted}, {last})", f"sg.max({shifted}, {first})"
            if by and r.random() < 0.5:
                return (upper if by > 0 else lower), []
            return r.choice([f"sg.max({upper}, {first})", f"sg.min({lower}, {last})"]), []
        needed = [f"{shifted} >= {low}"] if begin + by < low else []
        needed += [f"{shifted} <= {high}"] if end - 1 + by > high else []
        return shifted, needed


def _arguments(program: Program) -> list[int]:
    return [end for ends in program.ends for end in ends]


def results(program: Program, arch: str) -> tuple[list[np.ndarray[Any, Any]], int]:
    """The memories after launches, and how many scatters became gathers: all that can."""
    rng = np.random.default_rng(program.seed)
    shape = (*program.shape, *([program.components] if program.components else []))
    data = [rng.integers(-4, 5, shape).astype(typed.NUMPY[program.dtype]) for _ in "xsuv"]
    limits = {"_FEWEST": {False: 0, True: 0}, "_WORTH": {False: 10**9, True: 10**9}}
    turned: list[scatters.Scatter] = []

    def found(loop: Any) -> list[scatters.Scatter]:
        turned.extend(made := scatters.scatters(loop))
        return made

    with run.session(arch, False), patch.multiple(gather, **limits, scatters=found):
        names: dict[str, Any] = {}
        if not program.arrays:
            dtype, options = getattr(sg, program.dtype), {"shape": tuple(program.shape)}
            options |= {"offset": tuple(program.origin)} if any(program.origin) else {}
            for name, values in zip("xsuv", data):
                make = sg.Vector.field(program.components, dtype, **options) if program.components else sg.field(dtype, **options)
                make.from_numpy(values)
                names[name] = make
        memories = data if program.arrays else []
        if program.aliased:
            memories = [*data[:3], data[2]]
        work = run.load(program.source, names, "work")
        for t in range(_LAUNCHES):
            work(*memories, *_arguments(program), t)
        if program.arrays:
            return list(memories), len(turned)
        return [names[name].to_numpy() for name in "xsuv"], len(turned)


def check(program: Program, archs: Sequence[str]) -> int:
    """Raises run.Difference. Returns how many scatters became gathers on the last back end."""
    wanted, _ = results(program, "interpreter")
    turned = 0
    for arch in archs:
        got, turned = results(program, arch)
        for name, ours, theirs in zip("xsuv", got, wanted):
            equal = run.same(ours, theirs)
            if not equal.all():
                at = np.argwhere(~equal)[0].tolist()
                raise run.Difference(f"{arch}: {name}{at} is {ours[tuple(at)]!r}, should be {theirs[tuple(at)]!r}\n{program!r}")
    return turned


def failure(program: Program, archs: Sequence[str]) -> str:
    return run.first_line_of(check, program, archs)
