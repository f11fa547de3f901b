"""Runs random programs on sparse trees on back ends, and compares what memory holds after every launch with a Python dictionary."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import spirograd as sg

from .sparse_programs import Model, Program, Step, shape_to


class Wrong(Exception):
    """What memory holds differs from the model."""


class Loaded:
    """A program on one back end: its field, and one kernel for each kind of step and node."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.x = sg.Vector.field(2, sg.i32) if program.vector else sg.field(sg.i32)
        builder = sg.FieldsBuilder()
        node: Any = builder
        self.nodes = []
        for level in program.nodes:
            node = (
                node.dynamic(sg.k, level.extents[0], level.chunk)
                if level.kind == "dynamic"
                else getattr(node, level.kind)(sg.ij, level.extents)
            )
            self.nodes.append(node)
        node.place(self.x)
        self.tree = builder.finalize()
        self.kernels: dict[tuple[str, int], Any] = {}

    def launch(self, step: Step) -> None:
        x, value = self.x, lambda v: [v, -v] if self.program.vector else v
        if step.kind == "python" and step.cells:
            x[step.cells[0]] = value(step.values[0])
        elif step.kind == "deactivate_all":
            self.nodes[step.depth].deactivate_all()
        elif step.kind == "loop":
            self.kernel("loop", 0)()
        elif step.cells:
            self.kernel(step.kind, step.depth)(np.array(step.cells, np.int32), np.array(step.values, np.int32))

    def kernel(self, kind: str, depth: int) -> Callable[..., Any]:
        if (kind, depth) not in self.kernels:
            self.kernels[kind, depth] = getattr(self, f"_{kind}")(self.x, self.nodes[depth])
        return self.kernels[kind, depth]

    @staticmethod
    def _write(x: Any, node: Any) -> Any:
        @sg.kernel
        def write(index: sg.types.NDArray[sg.i32, 2], values: sg.types.NDArray[sg.i32, 1]):
            for n in range(index.shape[0]):
                at = sg.Vector([index[n, a] for a in sg.static(range(len(x.shape)))])
                v = values[n]
                if sg.static(isinstance(x, sg.MatrixField)):
                    x[at] = [v, -v]
                else:
                    x[at] = v

        return write

    @staticmethod
    def _add(x: Any, node: Any) -> Any:
        @sg.kernel
        def add(index: sg.types.NDArray[sg.i32, 2], values: sg.types.NDArray[sg.i32, 1]):
            for n in range(index.shape[0]):
                at = sg.Vector([index[n, a] for a in sg.static(range(len(x.shape)))])
                v = values[n]
                if sg.static(isinstance(x, sg.MatrixField)):
                    x[at] += sg.Vector([v, -v])
                else:
                    x[at] += v

        return add

    @staticmethod
    def _activate(x: Any, node: Any) -> Any:
        @sg.kernel
        def activate(index: sg.types.NDArray[sg.i32, 2], values: sg.types.NDArray[sg.i32, 1]):
            for n in range(index.shape[0]):
                sg.activate(node, [index[n, a] for a in sg.static(range(len(node.shape)))])

        return activate

    @staticmethod
    def _deactivate(x: Any, node: Any) -> Any:
        axes = len(node.parent().shape if node.kind == "dynamic" else node.shape)

        @sg.kernel
        def deactivate(index: sg.types.NDArray[sg.i32, 2], values: sg.types.NDArray[sg.i32, 1]):
            for n in range(index.shape[0]):
                sg.deactivate(node, [index[n, a] for a in sg.static(range(axes))])

        return deactivate

    @staticmethod
    def _loop(x: Any, node: Any) -> Any:
        @sg.kernel
        def loop():
            for index in sg.grouped(x):
                if sg.static(isinstance(x, sg.MatrixField)):
                    v = 3 * x[index].x + 1
                    x[index] = [v, -v]
                else:
                    x[index] = 3 * x[index] + 1

        return loop

    @staticmethod
    def _append(x: Any, node: Any) -> Any:
        @sg.kernel
        def append(index: sg.types.NDArray[sg.i32, 2], values: sg.types.NDArray[sg.i32, 1]):
            for n in range(index.shape[0]):
                v = values[n]
                at = -1
                if sg.static(isinstance(x, sg.MatrixField)):
                    at = x[index[n, 0], index[n, 1]].append(sg.Vector([v, -v]))
                else:
                    at = x[index[n, 0], index[n, 1]].append(v)
                values[n] = at

        return append

    @staticmethod
    def _active(x: Any, node: Any) -> Any:
        @sg.kernel
        def active(found: sg.types.NDArray[sg.i32, 2]):
            for i, j in sg.ndrange(found.shape[0], found.shape[1]):
                found[i, j] = sg.is_active(node, [i, j])

        return active

    @staticmethod
    def _length(x: Any, node: Any) -> Any:
        @sg.kernel
        def length(found: sg.types.NDArray[sg.i32, 2]):
            for i, j in sg.ndrange(found.shape[0], found.shape[1]):
                found[i, j] = x[i, j].length()

        return length

    @staticmethod
    def _visits(x: Any, node: Any) -> Any:
        @sg.kernel
        def visits(found: sg.types.NDArray[sg.i32, len(x.shape)]):
            for index in sg.grouped(x):
                sg.atomic_add(found[index], 1)

        return visits


def _append(loaded: Loaded, model: Model, step: Step) -> None:
    """Appends beyond the room of a list are left out; the entries must be each of those appended, in any order."""
    room, left = loaded.program.nodes[-1].extents[0], Counter[tuple[int, ...]](model.lengths)
    kept = []
    for cell, value in zip(step.cells, step.values):
        if left[cell] < room:
            left[cell] += 1
            kept.append((cell, value))
    if not kept:
        return
    places = np.array([value for _, value in kept], np.int32)
    loaded.kernel("append", len(loaded.nodes) - 1)(np.array([cell for cell, _ in kept], np.int32), places)
    taken = [(*cell, int(at)) for (cell, _), at in zip(kept, places)]
    wanted = [(*cell, at) for cell in left for at in range(model.lengths.get(cell, 0), left[cell])]
    if sorted(taken) != sorted(wanted):
        raise Wrong(f"entries {sorted(taken)} were appended, not {sorted(wanted)}")
    for index, (_, value) in zip(taken, kept):
        model.activate(index, len(model.nodes) - 1)
        model.values[index] = value


def _compare(loaded: Loaded, model: Model, step: Step) -> None:
    program, last = loaded.program, len(loaded.nodes) - 1
    expected = np.zeros(program.shape, np.int32)
    for index, value in model.values.items():
        expected[index] = value
    found = loaded.x.to_numpy()
    _same("elements", found if not program.vector else found[..., 0], expected)
    if program.vector:
        _same("second components", -found[..., 1], expected)
    visits, wanted = np.zeros(program.shape, np.int32), np.zeros(program.shape, np.int32)
    loaded.kernel("visits", last)(visits)
    for index in np.ndindex(*program.shape):
        wanted[index] = model.visited(index)
    _same("visits of a loop", visits, wanted)
    for depth, cells in model.active.items():
        active, is_active = np.zeros(shape_to(program.nodes, depth), np.int32), np.zeros(shape_to(program.nodes, depth), np.int32)
        loaded.kernel("active", depth)(active)
        for cell in cells:
            is_active[cell] = 1
        _same(f"active cells of node {depth}", active, is_active)
    if program.nodes[-1].kind == "dynamic":
        lengths = np.zeros(shape_to(program.nodes, last - 1), np.int32)
        loaded.kernel("length", last)(lengths)
        _same("lengths", lengths, np.array([model.lengths.get(c, 0) for c in np.ndindex(*lengths.shape)], np.int32).reshape(lengths.shape))


def _same(what: str, found: np.ndarray, expected: np.ndarray) -> None:
    if not np.array_equal(found, expected):
        at = tuple(int(k) for k in np.argwhere(found != expected)[0])
        raise Wrong(f"{what}: {found[at]} at {at}, not {expected[at]}")


def check(program: Program, archs: Sequence[str]) -> None:
    """Raises `Wrong` for the first difference."""
    for arch in archs:
        sg.init(arch=getattr(sg, arch), debug=program.debug)
        try:
            loaded, model = Loaded(program), Model(program.nodes)
            indices = list(itertools.product(*[range(n) for n in program.shape]))
            for number, step in enumerate(program.steps):
                try:
                    if step.kind == "append":
                        _append(loaded, model, step)
                    else:
                        loaded.launch(step)
                        model.run(step, indices)
                    _compare(loaded, model, step)
                except Exception as error:
                    raise Wrong(f"{arch}, step {number}, {step.kind}: {type(error).__name__ + ': ' * bool(str(error))}{error}") from error
        finally:
            sg.reset()


def failure(program: Program, archs: Sequence[str]) -> str:
    """What is wrong, in one line, or ""."""
    try:
        check(program, archs)
    except Wrong as error:
        return str(error).splitlines()[0]
    return ""


def shortened(program: Program, archs: Sequence[str]) -> Program:
    """The program with as few steps, and cells of each, as still fail."""
    kind = failure(program, archs).partition(",")[0]

    def fails(candidate: Program) -> bool:
        return failure(candidate, archs).partition(",")[0] == kind

    for k in reversed(range(len(program.steps))):
        fewer = replace(program, steps=program.steps[:k] + program.steps[k + 1 :])
        program = fewer if fails(fewer) else program
    for k in range(len(program.steps)):
        for n in reversed(range(len(program.steps[k].cells))):
            step = program.steps[k]
            smaller = replace(step, cells=step.cells[:n] + step.cells[n + 1 :], values=step.values[:n] + step.values[n + 1 :])
            candidate = replace(program, steps=(*program.steps[:k], smaller, *program.steps[k + 1 :]))
            program = candidate if fails(candidate) else program
    return program
