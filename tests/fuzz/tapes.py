"""Random sizes of tapes: gradients of back ends against finite differences, launch after launch, while bounds and guards change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

import spirograd as sg

from . import run
from .gradients import Skipped, Wrong, limited, session
from .shrink import shrunk
from .tape_programs import INTEGERS, WRITER, Program, Step, sound

STEP = 1e-5
LEAST = 0.3  # of the elements of `y` must be smooth
Integers = dict[str, np.ndarray]


def drawn(name: str, kind: str, seed: int, n: int) -> tuple[np.ndarray, tuple[int, int, int]]:
    """New contents of a memory, and (mul, add, mod) by which a kernel writes contents of its own."""
    r = np.random.default_rng(seed)
    mul, add = int(r.integers(0, 9)), int(r.integers(0, 50))
    if name == "c":
        return r.integers(0, n, n).astype(np.int32), (mul, add, n)
    if name == "g":
        share = {"zero": 0.0, "same": 1.0, "small": 0.5, "spike": 0.001, "large": 0.999, "growing": 0.02, "negative": 0.95}[kind]
        return (r.random(n) < share).astype(np.int32), (mul, add, int(r.choice([1, 2, 3, 97])))
    lengths = {
        "zero": np.zeros(n), "same": np.full(n, r.integers(1, 9)), "small": r.integers(0, 7, n), "large": r.integers(10, 40, n),
        "spike": np.where(r.random(n) < 0.01, 90, 1), "growing": np.arange(n) * 12 // n, "negative": r.integers(-5, 5, n),
    }[kind].astype(np.int32)  # fmt: skip
    if kind == "spike":
        lengths[int(r.integers(0, n))] = 200
    if name == "off":
        return np.concatenate([[0], np.cumsum(np.maximum(lengths, 0))]).astype(np.int32), (0, 0, 1)
    return lengths, (mul, add, int(r.choice([1, 3, 12, 60])))


def states(program: Program) -> Iterator[tuple[Step, Integers]]:
    """What the integers are at each launch."""
    now: Integers = {name: np.zeros(program.n + (name == "off"), np.int32) for name in INTEGERS}
    for step in program.steps:
        for name, by, kind, seed in step.writes:
            contents, (mul, add, mod) = drawn(name, kind, seed, program.n)
            now[name] = contents if by == "host" else ((np.arange(program.n) * mul + add) % mod).astype(np.int32)
        yield step, dict(now)


class Loaded:
    """A program on the current session, with its memory."""

    def __init__(self, program: Program) -> None:
        self.n = n = program.n
        self.floats = {name: sg.field(sg.f64, shape=n, needs_grad=True) for name in "xwy"}
        fields = {name: sg.field(sg.i32, shape=n + (name == "off")) for name in INTEGERS if name != "a"}
        self.integers: dict[str, Any] = {**fields, "a": sg.ndarray(sg.i32, n)}
        self.kernel = run.load(program.source, {**fields, **self.floats})
        self.put = run.load(WRITER.replace("put", "k"), {})
        self.put_array = run.load(WRITER.replace("put", "k").replace("sg.template()", "sg.types.ndarray(sg.i32, 1)"), {})

    def write(self, step: Step) -> None:
        for name, by, kind, seed in step.writes:
            contents, numbers = drawn(name, kind, seed, self.n)
            if by == "host":
                self.integers[name].from_numpy(contents)
            else:
                (self.put_array if name == "a" else self.put)(self.integers[name], self.n, *numbers)

    def forward(self, m: int, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        self.floats["x"].from_numpy(x)
        self.floats["w"].from_numpy(w)
        self.floats["y"].fill(0.0)
        self.kernel(self.n, m, self.integers["a"])
        return np.asarray(self.floats["y"].to_numpy())

    def pull(self, step: Step, adjoint: np.ndarray) -> None:
        """Adds to the gradients; reads nothing."""
        self.floats["y"].fill(0.0)
        arguments = (self.n, step.m, self.integers["a"])
        if step.taped:
            with sg.ad.Tape(clear_gradients=False) as tape:
                self.kernel(*arguments)
            self.floats["y"].grad.from_numpy(adjoint)
            tape.grad()
        else:
            self.kernel(*arguments)
            self.floats["y"].grad.from_numpy(adjoint)
            self.kernel.grad(*arguments)


@dataclass
class Expected:
    adjoint: np.ndarray  # 0 where y is not smooth
    x: np.ndarray
    along: float  # of w's gradient, along the direction of `Data`
    scale: float


class Data:
    def __init__(self, program: Program) -> None:
        r = np.random.default_rng(program.seed)
        self.x, self.w = r.uniform(-1, 1, program.n), r.uniform(-1, 1, program.n)
        self.adjoint, self.d = r.standard_normal(program.n), r.standard_normal(program.n)


def slopes(loaded: Loaded, m: int, data: Data, of_x: bool) -> tuple[np.ndarray, np.ndarray]:
    """The derivative of each ``y``, by its ``x`` or along ``d``, and where it is smooth."""
    dx, dw = (np.ones_like(data.x), 0.0) if of_x else (0.0, data.d)
    at = {k: loaded.forward(m, data.x + k * STEP * dx, data.w + k * STEP * dw) for k in (-2, -1, 0, 1, 2)}
    if not all(np.isfinite(y).all() for y in at.values()):
        raise Skipped("not finite")
    wide, narrow = (at[2] - at[-2]) / (4 * STEP), (at[1] - at[-1]) / (2 * STEP)
    left, right = (at[0] - at[-1]) / STEP, (at[1] - at[0]) / STEP
    scale = 1.0 + np.abs(narrow)
    smooth = (np.abs(wide - narrow) < 1e-5 * scale) & (np.abs(left - right) < 1e-2 * scale) & (scale < 1e4)
    return (4 * narrow - wide) / 3, smooth


def expectations(program: Program) -> list[Expected]:
    """By differences of the kernel in f64, on the CPU. Raises Skipped where they say nothing."""
    data, found = Data(program), []
    with session("cpu"):
        wide, exact = Loaded(replace(program, source=program.source.replace("sg.f32", "sg.f64"))), Loaded(program)
        for step, _ in states(program):
            wide.write(step)
            exact.write(step)
            by_x, smooth = slopes(wide, step.m, data, True)
            by_w, smooth_too = slopes(wide, step.m, data, False)
            near = np.abs(wide.forward(step.m, data.x, data.w) - exact.forward(step.m, data.x, data.w)) < 1e-4
            used = smooth & smooth_too & near
            if used.mean() < LEAST:
                raise Skipped("not smooth")
            adjoint = np.where(used, data.adjoint, 0.0)
            terms = adjoint * np.where(used, by_w, 0.0)
            found.append(Expected(adjoint, adjoint * np.where(used, by_x, 0.0), float(terms.sum()), 1.0 + float(np.abs(terms).sum())))
    return found


def check(program: Program, archs: Sequence[str]) -> Counter[str]:
    """Raises Wrong, Skipped, or what the compiler raises. Returns how many gradients were compared."""
    expected = expectations(program)
    data, counts = Data(program), Counter[str]()
    tolerance = 2e-3 if "sg.f32" in program.source else 5e-6
    for arch in archs:
        with session(arch):
            loaded = Loaded(program)
            loaded.floats["x"].from_numpy(data.x)
            loaded.floats["w"].from_numpy(data.w)
            for number, (step, wanted) in enumerate(zip(program.steps, expected)):
                loaded.write(step)
                for name in "xw":
                    loaded.floats[name].grad.fill(0.0)
                loaded.pull(step, wanted.adjoint)
                if step.read or number + 1 == len(program.steps):
                    _compare(f"{arch}, launch {number}", loaded, wanted, data, tolerance)
                    counts[f"compared, {arch}"] += 1
            sg.sync()
        counts[f"programs, {arch}"] += 1
    return counts


def _compare(where: str, loaded: Loaded, wanted: Expected, data: Data, tolerance: float) -> None:
    x, along = loaded.floats["x"].grad.to_numpy(), float(loaded.floats["w"].grad.to_numpy() @ data.d)
    far = ~(np.abs(x - wanted.x) <= tolerance * (1.0 + np.abs(wanted.x)))
    if far.any():
        i = int(np.argmax(far))
        raise Wrong(f"{where}: {far.sum()} of {far.size} elements of x.grad; [{i}] is {x[i]:.9g}, should be {wanted.x[i]:.9g}")
    if not abs(along - wanted.along) <= tolerance * wanted.scale:
        raise Wrong(f"{where}: the slope along w is {along:.9g}, should be {wanted.along:.9g}")


def failure(program: Program, archs: Sequence[str], seconds: float = 60.0) -> str:
    """What is wrong with a program, in one line; empty if nothing is."""
    if not sound(program.source):
        return ""
    try:
        with limited(seconds):
            expectations(program)
    except Exception:  # what shortening made of it does not even run
        return ""
    try:
        with limited(seconds):
            check(program, archs)
    except (Skipped, TimeoutError):
        return ""
    except Wrong as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


def kind(text: str) -> str:
    """What must stay the same while shortening."""
    return text.split(",")[0] if ", launch" in text else text[:40]


def shortened(program: Program, archs: Sequence[str], seconds: float = 60.0) -> Program:
    wanted = kind(failure(program, archs))

    def fails(other: Any) -> bool:
        return kind(failure(other, archs, 10.0)) == wanted

    for n in (1, 5, 17, 300):
        if n < program.n and fails(replace(program, n=n)):
            program = replace(program, n=n)
            break
    for k in reversed(range(len(program.steps) - 1)):
        shorter = replace(program, steps=program.steps[:k] + program.steps[k + 1 :])
        if fails(shorter):
            program = shorter
    found: Any = program
    return cast(Program, shrunk(found, fails, seconds))
