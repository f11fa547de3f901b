"""Random loops whose accesses are behind guards on arguments, launched with arguments that the guards keep out as well.

Whatever passes make of a loop, it accesses no element that the program does not access. The interpreter runs what the passes for the CPU
and for Vulkan make of it, and reports indices that are out of range. On the CPU arrays lie between pages that cannot be accessed
(`fenced`). Results are compared with those of the interpreter. Numbers are small integers, whose sums are exact in any order.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

import spirograd as sg

from . import run, typed
from .fenced import fenced

# Back ends of the interpreter, see `run.session`.
AS_TASKS = ("interpreter as cpu", "interpreter as vulkan", "interpreter as loops")
_FAR = 1 << 28
_UPDATES = {
    "add": ("{} += {}", "{} -= {}"),
    "max": ("sg.atomic_max({}, {})",),
    "min": ("sg.atomic_min({}, {})",),
    "and": ("{} &= {}",),
    "or": ("{} |= {}",),
    "xor": ("{} ^= {}",),
}
_DIFFERENTIABLE = ("add", "store", "keep", "read")
_PLACES = ("array", "field", "vectors", "rows")


class Program:
    """A loop over ``n`` iterations. ``memories``: name -> (place, type, kind): a kind of `_UPDATES`, "store" and "keep" (in place, by one
    iteration for each element), or "read"."""

    def __init__(self, seed: int) -> None:
        self.seed, self.r = seed, random.Random(seed)
        r = self.r
        self.extent, self.n = r.randint(1, 9), r.choice([0, 1, 5, 17, 40])
        self.gradient = r.random() < 0.4
        self.memories: dict[str, tuple[str, str, str]] = {}
        self.lines: list[str] = []
        self.counters: list[str] = []
        self.head = r.choice(
            ["for i in range(n):", "for i in range(n):", "for i, j in sg.ndrange(n, 2):", "sg.loop_config(serialize=True)"]
        )
        self.names = 0
        self.block(2, 2)
        self.source = self.text()
        self.launches = [self.launch() for _ in range(3)]

    def __repr__(self) -> str:
        return f"{self.source}# extent {self.extent}, {self.memories}, launches {self.launches}"

    def launch(self) -> tuple[int, int, int, int]:
        """Values of ``n``, ``k``, ``l`` and ``m``."""
        near = [0, self.extent // 2, self.extent - 1, -1, self.extent, 1 - self.extent, -self.n]
        k, other = (self.r.choice([*near, _FAR, -_FAR, 2**31 - 1, -(2**31)]) for _ in range(2))
        return self.n, k, other, self.r.choice([0, 0, 1, 3])

    def text(self) -> str:
        kind = {"array": "NDArray[sg.{}, 1]", "rows": "NDArray[sg.{}, 2]"}
        parameters = [f"{name}: sg.types.{kind[place].format(t)}" for name, (place, t, _) in self.memories.items() if place in kind]
        lines = [f"    {self.head}", *(["    for i in range(n):"] if "config" in self.head else []), *self.lines]
        arguments = ", ".join([*parameters, "n: sg.i32", "k: sg.i32", "l: sg.i32", "m: sg.i32"])
        return "\n".join(["@sg.kernel", f"def work({arguments}):", *lines]) + "\n"

    # --- statements ------------------------------------------------------------------------------------------------------

    def line(self, indent: int, text: str) -> None:
        self.lines.append("    " * indent + text)

    def block(self, depth: int, indent: int) -> None:
        makers = [self.access] * 4 + ([self.loop, self.branch, self.repeat] if depth else [])
        for _ in range(self.r.randint(1, 3)):
            self.r.choice(makers)(depth, indent)

    def branch(self, depth: int, indent: int) -> None:
        self.line(indent, f"if {self.r.choice(['i % 2 == 0', 'm > 1', 'i > l', 'k < 3'])}:")
        self.block(depth - 1, indent + 1)

    def loop(self, depth: int, indent: int) -> None:
        self.names += 1
        name = f"c{self.names}"
        self.line(indent, f"for {name} in range({self.r.choice(['3', 'm', 'i % 3', 'm - 1', '2, m'])}):")
        self.counters.append(name)
        self.block(depth - 1, indent + 1)
        self.counters.pop()

    def repeat(self, depth: int, indent: int) -> None:
        self.names += 1
        name = f"t{self.names}"
        self.line(indent, f"{name} = m")
        self.line(indent, f"while {name} > 0:")
        self.line(indent + 1, f"{name} -= 1")
        self.block(depth - 1, indent + 1)

    def access(self, depth: int, indent: int) -> None:
        r = self.r
        kinds = _DIFFERENTIABLE if self.gradient else [*_UPDATES, *_DIFFERENTIABLE]
        kind = r.choice([kind for kind in kinds if "ndrange" not in self.head or kind not in ("store", "keep")])
        t = "f32" if self.gradient else "i32" if kind in ("and", "or", "xor") else r.choice(["i32", "f32", "f64"])
        known = [name for name, (_, _, other) in self.memories.items() if other == kind and kind not in ("store", "keep")]
        name = r.choice(known) if known and r.random() < 0.5 else self.memory(kind, t)
        index = r.choice(["i + k", "i - k", "i"] if kind in ("store", "keep") else ["k", "k", "k", "l", "k + 1", "i + k", *self.counters])
        where = self.guarded(index, indent)
        element = self.at(name, index)
        value = r.choice(["1", "2", "m + 1", "i % 3"]) if not self.gradient else r.choice(["w[0]", "w[0] * 2", "w[0] + i % 3"])
        if kind == "read":
            self.line(where, f"out[i] += {element}{' * w[0]' if self.gradient else ''}")
        elif kind == "store":
            self.line(where, f"{element} = {value}")
        elif kind == "keep":
            self.line(where, f"{element} = {element} * 2 + {value}" if self.gradient else f"{element} = {element} + {value}")
        else:
            self.line(where, r.choice(_UPDATES[kind][: 1 if self.gradient else None]).format(element, value))

    def memory(self, kind: str, t: str) -> str:
        name = f"x{len(self.memories)}"
        self.memories[name] = self.r.choice(_PLACES if not self.gradient else _PLACES[1:3]), t, kind
        return name

    def at(self, name: str, index: str) -> str:
        place = self.memories[name][0]
        return {"vectors": f"{name}[{index}][1]", "rows": f"{name}[{index}, 1]"}.get(place, f"{name}[{index}]")

    def guarded(self, index: str, indent: int) -> int:
        """Write a guard, which holds where ``index`` is in range; returns the indentation of what is behind it."""
        low, high = f"{index} >= 0", f"{index} < {self.extent}"
        if "k" in index and index != "k":  # sums of far numbers wrap around
            low = f"k > -1000 and k < 1000 and {low}"
        form = self.r.randrange(3)
        if form == 0:
            self.line(indent, f"if {low} and {high}:")
            return indent + 1
        if form == 1:
            self.line(indent, f"if {low}:")
            self.line(indent + 1, f"if {high}:")
            return indent + 2
        self.line(indent, f"if not ({low}) or {index} >= {self.extent}:")
        self.line(indent + 1, "out[i] += 1")
        self.line(indent, "else:")
        return indent + 1


def results(program: Program, arch: str) -> list[np.ndarray[Any, Any]]:
    """The memories after launches, and the gradients of one."""
    r = np.random.default_rng(program.seed)
    names: dict[str, Any] = {}
    arguments: list[np.ndarray[Any, Any]] = []
    with run.session(arch, False):
        options: dict[str, Any] = {"needs_grad": True} if program.gradient else {}
        names["w"], names["out"] = sg.field(sg.f32, shape=1, **options), sg.field(sg.f32, shape=max(program.n, 1), **options)
        names["w"].fill(3)
        for name, (place, t, _) in program.memories.items():
            shape = (program.extent, *([2] if place in ("rows", "vectors") else []))
            data = r.integers(0, 8, shape).astype(typed.NUMPY[t])
            if place in ("array", "rows"):
                at_end = bool((program.seed + len(arguments)) % 2)
                arguments.append(fenced(data, at_end) if arch == "cpu" and sys.platform != "win32" else data)
                continue
            make = sg.Vector.field(2, getattr(sg, t), shape=program.extent, **options) if place == "vectors" else None
            names[name] = make if make is not None else sg.field(getattr(sg, t), shape=program.extent, **options)
            names[name].from_numpy(data)
        work = run.load(program.source, dict(names), "work")
        for launch in program.launches:
            work(*arguments, *launch)
        fields = [names[name] for name in ("out", *program.memories) if name in names]
        if program.gradient:
            for field in fields:
                field.grad.fill(1.0)
            work.grad(*arguments, *program.launches[0])
            fields += [field.grad for field in (*fields, names["w"])]
        sg.sync()
        return [field.to_numpy() for field in fields] + [argument.copy() for argument in arguments]


def check(program: Program, archs: Sequence[str]) -> None:
    """Raises run.Difference, and SpirogradAssertionError where a pass makes an access that the program does not make."""
    wanted = results(program, "interpreter")
    for arch in (*AS_TASKS, *[arch for arch in archs if arch != "interpreter"]):
        for number, (ours, theirs) in enumerate(zip(results(program, arch), wanted)):
            if not run.same(ours, theirs).all():
                raise run.Difference(f"{arch}: memory {number} is {ours.tolist()}, should be {theirs.tolist()}\n{program!r}")


def failure(program: Program, archs: Sequence[str]) -> str:
    return run.first_line_of(check, program, archs)
