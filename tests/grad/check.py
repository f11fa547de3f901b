"""Gradients of a kernel against its Jacobian, by central differences in f64 on the reference interpreter.

A case is a function of a float type ``T`` that makes fields and a kernel and gives a `Program`. All of its memory of floats is one state
vector ``s``: the kernel takes ``s`` to ``f(s)``, and reverse mode must take any adjoint ``g`` of the state after it to ``J(s)^T g``. So
every memory gets a random adjoint, inputs as well as outputs, which tests that adjoints accumulate where memory is read, and that they are
taken where it is overwritten. A second call must give ``J^T J^T g``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import needs
import numpy as np
import pytest
from cases import by_day

import spirograd as sg
from spirograd.config import make_config
from spirograd.lang import context
from spirograd.lang.data.tree import root
from spirograd.session import Session

# Back ends, and the float types that each is tested with. The rules of derivatives are the same for all types: the interpreter checks them
# in f64, whose tolerance is the narrow one. Tapes and code of f64 are made for wgpu as for Vulkan. What is left out runs at night.
_TYPED = [("interpreter", sg.f64), ("cpu", sg.f32), ("cpu", sg.f64), ("vulkan", sg.f32), ("vulkan", sg.f64), ("wgpu", sg.f32)]
_UNTYPED = [("interpreter", sg.f32), ("wgpu", sg.f64)]
# By day tapes of f32 are made for wgpu, and of f64 for Vulkan.
_ALL = by_day([*_TYPED, *_UNTYPED], lambda arch, t: (arch, t) in _TYPED and (arch, t) != ("vulkan", sg.f32))
on_all_with_types = pytest.mark.parametrize("arch,t", _ALL, indirect=["arch"], ids=str)
on_devices_with_types = pytest.mark.parametrize("arch,t", [p for p in _ALL if p.values[0] != "interpreter"], indirect=["arch"], ids=str)
# By day a case runs on the interpreter, in f64, and on one of these devices: neighbours among cases have different ones.
_TURNS = [("cpu", sg.f64), ("wgpu", sg.f32), ("cpu", sg.f32), ("vulkan", sg.f64), ("vulkan", sg.f32)]


def on_back_ends_with_types(cases: Sequence[Callable[[Any], Program]]) -> pytest.MarkDecorator:
    """Parametrize a test with ``case``, ``arch`` and ``t``."""
    params = []
    for k, case in enumerate(cases):
        for arch, t in (*_TYPED, *_UNTYPED):
            by_day = (arch, t) in (("interpreter", sg.f64), _TURNS[k % len(_TURNS)])
            marks = [] if by_day else [pytest.mark.long]
            params.append(pytest.param(case, arch, t, marks=marks, id=f"{case.__name__}-{arch}-{t}"))
    return pytest.mark.parametrize("case,arch,t", params, indirect=["arch"])


STEP = 1e-6
TOLERANCES = {"f64": 1e-6, "f32": 5e-4, "f16": 4e-2}
_sessions: list[Session] = []
_jacobians: dict[Any, np.ndarray] = {}


@dataclass
class Program:
    """``memories``: fields and arrays of floats with gradients. ``args``: of the kernel. ``low``, ``high``: the range of the data.

    ``prepare``: called with the number of a round before each launch: sets integers (sizes, indices), and puts back what the kernel
    changes of them. ``data``: for memories (by position) whose values are not any numbers: a function of a generator and a shape.
    """

    kernel: Any
    memories: Sequence[Any]
    args: Sequence[Any] = ()
    prepare: Callable[[int], None] = lambda trial: None
    low: float = 0.4
    high: float = 1.3
    data: dict[int, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = field(default_factory=dict)
    tape: bool = False  # only under a tape: the kernel overwrites what its gradient needs

    def values(self, trial: int) -> list[np.ndarray]:
        """The data of a round: numbers that f32 has for programs of f64, too, so that one Jacobian serves both."""
        rng = np.random.default_rng(1000 + trial)
        found = []
        for k, memory in enumerate(self.memories):
            old = memory.to_numpy()
            new = self.data[k](rng, old.shape) if k in self.data else rng.uniform(self.low, self.high, old.shape)
            found.append(np.asarray(new, dtype=np.float32).astype(old.dtype))
        return found

    def run(self, values: Sequence[np.ndarray], trial: int) -> np.ndarray:
        """The state after the kernel, flat."""
        self.prepare(trial)
        put(self.memories, values)
        self.kernel(*self.args)
        return flat(m.to_numpy() for m in self.memories)


def put(memories: Sequence[Any], values: Sequence[np.ndarray]) -> None:
    for memory, value in zip(memories, values):
        kind = memory.to_numpy()
        memory.from_numpy(np.array(value, kind.dtype).reshape(kind.shape))


def flat(arrays: Iterator[np.ndarray] | Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.asarray(a, dtype=np.float64).ravel() for a in arrays])


def parts(vector: np.ndarray, like: Sequence[np.ndarray]) -> list[np.ndarray]:
    ends = np.cumsum([a.size for a in like])[:-1]
    return [part.reshape(a.shape) for part, a in zip(np.split(vector, ends), like)]


@contextmanager
def interpreter() -> Iterator[None]:
    """A session of the reference interpreter in place of the test's own."""
    if not _sessions:
        _sessions.append(Session(make_config("interpreter", {"offline_cache": False})))
    before = context.session() if context.has_session() else None
    context.set_session(_sessions[0])
    try:
        yield
    finally:
        context.set_session(before)
        root.reset()


def jacobian(case: Callable[[Any], Program], values: Sequence[np.ndarray], trial: int) -> np.ndarray:
    """d f(s) / d s of the case in f64; rows are f."""
    with interpreter():
        program = case(sg.f64)
        start = flat(values)
        columns = []
        for k in range(start.size):
            ends = []
            for sign in (1, -1):
                moved = start.copy()
                moved[k] += sign * STEP
                ends.append(program.run(parts(moved, values), trial))
            columns.append((ends[0] - ends[1]) / (2 * STEP))
        return np.stack(columns, axis=1)


def _jacobian(case: Callable[[Any], Program], values: Sequence[np.ndarray], trial: int) -> np.ndarray:
    key = (case.__module__, case.__qualname__, trial, flat(values).tobytes())
    if key not in _jacobians:
        _jacobians[key] = jacobian(case, values, trial)
    return _jacobians[key]


def check(case: Callable[[Any], Program], t: Any = sg.f32, trials: int = 2, tolerance: float | None = None) -> None:
    """Compare gradients of ``case(t)`` on the current session, for changing data: by a bare ``.grad()``, and under a tape."""
    needs.of_type(t)
    program = case(t)
    tolerance = TOLERANCES[str(t)] if tolerance is None else tolerance
    for trial in range(trials):
        values = program.values(trial)
        j = _jacobian(case, values, trial)
        for taped in [True] if program.tape else [False, True] if trial == 0 else [trial % 2 == 1]:
            _compare(program, values, j, trial, taped, tolerance)


def _compare(program: Program, values: list[np.ndarray], j: np.ndarray, trial: int, taped: bool, tolerance: float) -> None:
    rng = np.random.default_rng(77 + trial)
    seeds = [rng.standard_normal(v.shape).astype(v.dtype) for v in values]
    gradients = [m.grad for m in program.memories]
    program.prepare(trial)
    put(program.memories, values)
    if taped:
        with sg.ad.Tape(clear_gradients=False) as tape:
            program.kernel(*program.args)
        reverse: Callable[[], Any] = tape.grad
    else:
        program.kernel(*program.args)
        reverse = lambda: program.kernel.grad(*program.args)  # noqa: E731
    after = flat(m.to_numpy() for m in program.memories)
    put(gradients, seeds)
    g = flat(seeds)
    for call in range(2):
        magnitude = np.abs(j).T @ np.abs(g)
        g = j.T @ g
        reverse()
        found = flat(x.to_numpy() for x in gradients)
        allowed = tolerance * (1 + call) * (magnitude + 0.01 * magnitude.max()) + 1e-9
        wrong = ~(np.abs(found - g) <= allowed)
        how = f"trial {trial}, {'under a tape' if taped else 'bare'}, call {call}"
        assert not wrong.any(), f"{how}: {_report(wrong, found, g, values)}"
    np.testing.assert_array_equal(flat(m.to_numpy() for m in program.memories), after, "the gradient changed primal memory")


def _report(wrong: np.ndarray, found: np.ndarray, wanted: np.ndarray, values: list[np.ndarray]) -> str:
    lines = [f"{wrong.sum()} of {wrong.size} wrong"]
    flags, got, should = parts(wrong, values), parts(found, values), parts(wanted, values)
    for k, flag in enumerate(flags):
        for at in list(np.argwhere(np.atleast_1d(flag)))[:3]:
            index = tuple(int(i) for i in at) if flag.ndim else ()
            lines.append(f"memory {k}{list(index)}: {got[k][index]:.9g}, should be {should[k][index]:.9g}")
    return "\n".join(lines)


def check_replay(case: Callable[[Any], Program], t: Any = sg.f32) -> None:
    """Compare what ``kernel.grad(replay=True)`` gives, from memory as it was before the kernel."""
    needs.of_type(t)
    program = case(t)
    for trial in range(2):
        values = program.values(trial)
        rng = np.random.default_rng(5 + trial)
        seeds = [rng.standard_normal(v.shape).astype(v.dtype) for v in values]
        program.prepare(trial)
        put(program.memories, values)
        put([m.grad for m in program.memories], seeds)
        program.kernel.grad(*program.args, replay=True)
        j = _jacobian(case, values, trial)
        wanted, magnitude = j.T @ flat(seeds), np.abs(j).T @ np.abs(flat(seeds))
        found = flat(m.grad.to_numpy() for m in program.memories)
        allowed = TOLERANCES[str(t)] * (magnitude + 0.01 * magnitude.max()) + 1e-9
        wrong = ~(np.abs(found - wanted) <= allowed)
        assert not wrong.any(), _report(wrong, found, wanted, values)
        np.testing.assert_array_equal(flat(m.to_numpy() for m in program.memories), flat(values), "memory is not as it was")
