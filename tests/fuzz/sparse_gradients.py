"""Random chains of kernels on two sparse fields under a tape: their gradient against central differences in f64.

Kernels loop over what is active, write to cells that they thereby activate, overwrite what they read, append to lists, and have serial
loops inside.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import spirograd as sg

EXTENTS = (8, 12)
TREES: tuple[Callable[[Any], Any], ...] = (
    lambda root: root.pointer(sg.ij, (4, 3)).dense(sg.ij, (2, 4)),
    lambda root: root.pointer(sg.ij, (8, 12)),
    lambda root: root.pointer(sg.i, 2).pointer(sg.ij, (2, 3)).dense(sg.ij, (2, 4)),
    lambda root: root.hash(sg.ij, (2, 2)).bitmasked(sg.ij, (4, 6)),
    lambda root: root.bitmasked(sg.ij, (2, 3)).pointer(sg.ij, (2, 4)).dense(sg.i, 2),
    lambda root: root.dense(sg.j, 3).pointer(sg.i, 4).dense(sg.i, 2).pointer(sg.j, 4),
    lambda root: root.bitmasked(sg.ij, (4, 3)).dense(sg.ij, (2, 4)),
    lambda root: root.dense(sg.i, 8).dynamic(sg.j, 12, chunk_size=5),
    lambda root: root.pointer(sg.i, 4).dense(sg.i, 2).dynamic(sg.j, 12),
    lambda root: root.dense(sg.ij, EXTENTS),
)
ROOM = 32  # of each of the lists that kernels append to
STEP, TOLERANCE = 1e-5, 1e-6


class Wrong(Exception):
    """A gradient differs from the difference quotient."""


@dataclass(frozen=True)
class Program:
    """``trees``: of x and y, numbers in `TREES`; ``active``: the elements of x that are set at first; ``steps``: kernels in order;
    ``pairs``: elements that some of them write and read, row-major numbers, of which no element is in both columns or twice in one."""

    trees: tuple[int, int]
    active: tuple[int, ...]
    steps: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]


def write(seed: int) -> Program:
    """The program of a seed."""
    r = random.Random(seed)
    elements = list(range(EXTENTS[0] * EXTENTS[1]))
    chosen = r.sample(elements, 12)
    steps = tuple(r.choice(sorted(STEPS)) for _ in range(r.randint(1, 5)))
    trees = (r.randrange(len(TREES)), r.randrange(len(TREES)))
    return Program(trees, tuple(r.sample(elements, r.randint(1, 20))), steps, tuple(zip(chosen[:6], chosen[6:])))


def _square(x: Any, y: Any, lists: Any, pairs: Any) -> Any:
    @sg.kernel
    def square():
        for i, j in x:
            y[i, j] += 0.5 * x[i, j] ** 2 + x[(i + 3) % EXTENTS[0], (j + 5) % EXTENTS[1]]

    return square


def _scatter(x: Any, y: Any, lists: Any, pairs: Any) -> Any:
    @sg.kernel
    def scatter():
        for n in range(pairs.shape[0]):
            a, b = pairs[n, 0], pairs[n, 1]
            y[a // EXTENTS[1], a % EXTENTS[1]] += 1.5 * sg.sin(x[b // EXTENTS[1], b % EXTENTS[1]]) + 0.1

    return scatter


def _in_place(x: Any, y: Any, lists: Any, pairs: Any) -> Any:
    @sg.kernel
    def in_place():
        for i, j in x:
            x[i, j] = sg.sin(x[i, j]) + 0.5 * x[i, j]

    return in_place


def _set_others(x: Any, y: Any, lists: Any, pairs: Any) -> Any:
    @sg.kernel
    def set_others():
        for n in range(pairs.shape[0]):
            a, b = pairs[n, 0], pairs[n, 1]
            x[a // EXTENTS[1], a % EXTENTS[1]] = x[b // EXTENTS[1], b % EXTENTS[1]] ** 2 + 0.2

    return set_others


def _inner_loop(x: Any, y: Any, lists: Any, pairs: Any) -> Any:
    @sg.kernel
    def inner_loop():
        for i, j in x:
            v = x[i, j]
            for k in range(i % 3 + 1):
                v = 0.9 * v + 0.3 * sg.cos(v) * x[i, j]
            y[i, j] += v

    return inner_loop


def _back(x: Any, y: Any, lists: Any, pairs: Any) -> Any:
    @sg.kernel
    def back():
        for i, j in y:
            x[i, j] += 0.3 * y[i, j] * (1.0 + 0.1 * j)

    return back


def _two_loops(x: Any, y: Any, lists: Any, pairs: Any) -> Any:
    @sg.kernel
    def two_loops():
        for i, j in x:
            x[i, j] *= 1.2
        for i, j in x:
            y[i, j] = y[i, j] * x[i, j] + sg.exp(-x[i, j])

    return two_loops


def _append(x: Any, y: Any, lists: Any, pairs: Any) -> Any:
    @sg.kernel
    def append():
        for i in range(EXTENTS[0]):
            for k in range(i % 3 + 1):
                lists[i].append(sg.sin(x[i, 2 * k]) + x[i, 3] ** 2)

    return append


def _entries(x: Any, y: Any, lists: Any, pairs: Any) -> Any:
    @sg.kernel
    def entries():
        for i, j in lists:
            y[i, j % EXTENTS[1]] += 0.4 * lists[i, j] ** 2 * (1.0 + 0.1 * j)

    return entries


STEPS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    f.__name__[1:]: f for f in (_square, _scatter, _in_place, _set_others, _inner_loop, _back, _two_loops, _append, _entries)
}


class _Loaded:
    """A program in the running session, with numbers of type ``t``."""

    def __init__(self, program: Program, t: Any) -> None:
        self.x, self.y, self.lists = (sg.field(t, needs_grad=True) for _ in range(3))
        self.loss = sg.field(t, (), needs_grad=True)
        self.trees = []
        for number, field in zip(program.trees, (self.x, self.y)):
            builder = sg.FieldsBuilder()
            TREES[number](builder).place(field, field.grad)
            self.trees.append(builder)
        builder = sg.FieldsBuilder()
        builder.dense(sg.i, EXTENTS[0]).dynamic(sg.j, ROOM, chunk_size=4).place(self.lists, self.lists.grad)
        self.trees.append(builder)
        pairs = sg.ndarray(sg.i32, (len(program.pairs), 2))
        pairs.from_numpy(np.array(program.pairs, np.int32))
        field_of_pairs = sg.field(sg.i32, (len(program.pairs), 2))
        field_of_pairs.from_numpy(pairs.to_numpy())
        self.steps = [STEPS[name](self.x, self.y, self.lists, field_of_pairs) for name in program.steps]
        self.program = program

    def run(self, values: Sequence[float], times: int = 1, **limits: Any) -> None:
        """From nothing active to the loss, under a tape with ``limits``, and its gradient; the steps so many ``times``."""
        x, y, lists, loss = self.x, self.y, self.lists, self.loss

        @sg.kernel
        def finish():
            for i, j in y:
                loss[None] += (i + 0.5 * j + 1.0) * y[i, j]
            for i, j in x:
                loss[None] += 0.1 * x[i, j] ** 2
            for i, j in lists:
                loss[None] += (0.2 + 0.1 * i) * lists[i, j]

        for builder, field in zip(self.trees, (x, y, lists)):
            builder.deactivate_all()
            field.fill(0.0)
        for element, value in zip(self.program.active, values):
            x[divmod(element, EXTENTS[1])] = value
        with sg.ad.Tape(loss, **limits):
            for step in self.steps * times:
                step()
            finish()

    def gradient(self) -> np.ndarray:
        """Of the elements that were active at first."""
        return np.array([self.x.grad[divmod(e, EXTENTS[1])] for e in self.program.active], np.float64)


def check(program: Program, archs: Sequence[str]) -> bool:
    """Raises `Wrong` for the first difference; whether there is a gradient, which some programs are refused."""
    r = np.random.default_rng(len(program.steps))
    values = r.uniform(0.2, 1.2, len(program.active))
    direction = r.uniform(-1.0, 1.0, len(values))
    expected = None
    for arch in ("cpu", *[arch for arch in archs if arch != "cpu"]):
        t = sg.f64 if arch in ("cpu", "interpreter") else sg.f32
        sg.init(arch=getattr(sg, arch))
        try:
            loaded = _Loaded(program, t)
            loaded.run(values)
            gradient = loaded.gradient()
            if expected is None:
                losses = []
                for sign in (1, -1):
                    loaded.run(values + sign * STEP * direction)
                    losses.append(loaded.loss[None])
                slope = (losses[0] - losses[1]) / (2 * STEP)
                if abs(slope - gradient @ direction) > TOLERANCE * max(1.0, np.abs(gradient * direction).sum()):
                    raise Wrong(f"cpu: the gradient is {gradient @ direction} along a direction, the difference quotient {slope}")
                expected = gradient
            elif np.abs(gradient - expected).max() > (1e-9 if t is sg.f64 else 2e-3) * max(1.0, np.abs(expected).max()):
                raise Wrong(f"{arch}: the gradient is {gradient}, on the CPU {expected}")
        except sg.SpirogradUnsupportedError:
            return False
        finally:
            sg.reset()
    return True


def check_checkpoints(program: Program, archs: Sequence[str]) -> bool:
    """Raises `Wrong` where a tape with checkpoints finds another gradient, or leaves other memory, than a plain one; whether one exists."""
    r = random.Random(repr(program))
    values = [r.uniform(0.2, 0.6) for _ in program.active]
    for arch in archs:
        t = sg.f64 if arch in ("cpu", "interpreter") else sg.f32
        sg.init(arch=getattr(sg, arch), cpu_max_num_threads=1)
        try:
            loaded = _Loaded(program, t)
            times = r.randint(1, 3)

            def found(**limits: Any) -> list[np.ndarray]:
                loaded.run(values, times, **limits)
                return [loaded.gradient(), *[f.to_numpy() for f in (loaded.x, loaded.y, loaded.loss)]]

            wanted = found()
            if not all(np.isfinite(a).all() for a in wanted):
                continue
            for limits in ({"checkpoints": 1}, {"checkpoints": r.randint(2, 4)}, {"memory_GB": r.uniform(2e-5, 2e-4)}):
                try:
                    others = found(**limits)
                except sg.SpirogradRuntimeError as error:
                    if "too little memory" not in str(error):
                        raise
                    continue
                for name, a, b in zip(("the gradient", "x", "y", "the loss"), wanted, others):
                    if np.abs(a - b).max() > (1e-9 if t is sg.f64 else 2e-3) * max(1.0, np.abs(a).max()):
                        raise Wrong(f"{arch}: with {limits} and the steps {times} times {name} differs by {np.abs(a - b).max()}")
        except sg.SpirogradUnsupportedError:
            return False
        finally:
            sg.reset()
    return True


def failure_of_checkpoints(program: Program, archs: Sequence[str]) -> str:
    return failure(program, archs, check_checkpoints)


def failure(program: Program, archs: Sequence[str], check: Callable[[Program, Sequence[str]], bool] = check) -> str:
    """What is wrong, in one line, or ""."""
    try:
        check(program, archs)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


def shortened_for_checkpoints(program: Program, archs: Sequence[str]) -> Program:
    return shortened(program, archs, failure_of_checkpoints)


def shortened(program: Program, archs: Sequence[str], failure: Callable[[Program, Sequence[str]], str] = failure) -> Program:
    """The program with as few steps and active elements as still fail."""
    kind = failure(program, archs).partition(":")[0]
    for name in ("steps", "active"):
        for k in reversed(range(len(getattr(program, name)))):
            values = getattr(program, name)
            fewer = replace(program, **{name: values[:k] + values[k + 1 :]})
            program = fewer if failure(fewer, archs).partition(":")[0] == kind else program
    return program
