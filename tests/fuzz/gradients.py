"""Random kernels: gradients of back ends against finite differences of the kernel on the interpreter."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

import spirograd as sg
from spirograd.config import make_config
from spirograd.lang import context
from spirograd.lang.data.tree import root
from spirograd.session import Session
from spirograd.transforms.simplification import inline_calls

from . import run
from .gradient_programs import MEMORY, N, Program, ordered
from .shrink import shrunk

STEP = 1e-5
TOLERANCE = 2e-5
_sessions: dict[str, Session] = {}


class Wrong(AssertionError):
    """A gradient is not what finite differences give."""


class Skipped(Exception):
    """Finite differences of this program say nothing."""


@contextmanager
def session(arch: str) -> Iterator[None]:
    """A session that is kept, in which functions that access memory are called, however few the calls."""
    if arch not in _sessions:
        _sessions[arch] = Session(make_config(arch, {"offline_cache": False, "default_fp": sg.f64, "cpu_max_num_threads": 2}))
    before = context.session() if context.has_session() else None
    context.set_session(_sessions[arch])
    try:
        with patch.multiple(inline_calls, _FEW=0, _SMALL=0):
            yield
    finally:
        context.set_session(before)
        root.reset()


def close() -> None:
    for opened in _sessions.values():
        opened.close()
    _sessions.clear()


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Ends programs that shortening makes endless, by TimeoutError."""

    def stop(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Loaded:
    """A program on the current session, with its memory."""

    def __init__(self, program: Program) -> None:
        self.memory: dict[str, Any] = {}
        for name, shape in MEMORY.items():
            if name == "q":
                self.memory[name] = sg.ndarray(sg.f64, N, needs_grad=True)
            else:
                make = sg.Vector.field(shape[0], sg.f64, shape=N, needs_grad=True) if shape else sg.field(sg.f64, shape=N, needs_grad=True)
                self.memory[name] = make
        self.idx = sg.field(sg.i32, shape=N)
        self.kernel = run.load(program.source, {"idx": self.idx, **{k: v for k, v in self.memory.items() if k != "q"}})
        self.indices = np.random.default_rng(program.seed).integers(0, N, N).astype(np.int32)

    def put(self, state: np.ndarray, gradients: bool = False) -> None:
        at = 0
        for name, memory in self.memory.items():
            shape = (N, *MEMORY[name])
            size = int(np.prod(shape))
            (memory.grad if gradients else memory).from_numpy(state[at : at + size].reshape(shape))
            at += size

    def get(self, gradients: bool = False) -> np.ndarray:
        return np.concatenate([(m.grad if gradients else m).to_numpy().ravel() for m in self.memory.values()])

    def launch(self, state: np.ndarray) -> np.ndarray:
        self.idx.from_numpy(self.indices)
        self.put(state)
        self.kernel(3, self.memory["q"])
        return self.get()

    def pull(self, state: np.ndarray, adjoint: np.ndarray, taped: bool) -> np.ndarray:
        """The adjoint of the state before the kernel."""
        self.idx.from_numpy(self.indices)
        self.put(state)
        if taped:
            with sg.ad.Tape(clear_gradients=False) as tape:
                self.kernel(3, self.memory["q"])
            self.put(adjoint, gradients=True)
            tape.grad()
        else:
            self.kernel(3, self.memory["q"])
            self.put(adjoint, gradients=True)
            self.kernel.grad(3, self.memory["q"])
        return self.get(gradients=True)


SIZE = sum(N * int(np.prod(shape)) for shape in MEMORY.values())


def slope(loaded: Loaded, state: np.ndarray, adjoint: np.ndarray, d: np.ndarray) -> float:
    """The derivative of ``adjoint . f(state)`` along ``d``. Raises Skipped where it is not smooth."""
    at = {k: float(adjoint @ loaded.launch(state + k * STEP * d)) for k in (-2, -1, 0, 1, 2)}
    if not all(np.isfinite(v) for v in at.values()):
        raise Skipped("not finite")
    wide, narrow = (at[2] - at[-2]) / (4 * STEP), (at[1] - at[-1]) / (2 * STEP)
    left, right = (at[0] - at[-1]) / STEP, (at[1] - at[0]) / STEP
    scale = 1.0 + abs(narrow)
    if abs(wide - narrow) > 1e-5 * scale or abs(left - right) > 1e-2 * scale or scale > 1e5:
        raise Skipped("not smooth")
    return (4 * narrow - wide) / 3


def check(program: Program, archs: Sequence[str]) -> Counter[str]:
    """Raises Wrong, Skipped, or what the compiler raises. Returns how many gradients were compared, and how many refused."""
    rng = np.random.default_rng(program.seed)
    state, adjoint, d = (rng.uniform(-1.0, 1.0, SIZE), rng.standard_normal(SIZE), rng.standard_normal(SIZE))
    with session("interpreter"):
        wanted = slope(Loaded(program), state, adjoint, d)
    counts: Counter[str] = Counter()
    for arch in archs:
        with session(arch):
            loaded = Loaded(program)
            for taped in (True, False):
                how = f"{arch}, {'tape' if taped else 'bare'}"
                try:
                    gradient = loaded.pull(state, adjoint, taped)
                except sg.SpirogradCompilationError as error:
                    if not _honest(error):
                        raise
                    counts[f"refused, {how}"] += 1
                    continue
                found = float(gradient @ d)
                counts[f"compared, {how}"] += 1
                if not abs(found - wanted) <= TOLERANCE * (1.0 + abs(wanted) + 0.01 * float(np.abs(gradient) @ np.abs(d))):
                    raise Wrong(f"{how}: the slope is {found:.9g}, should be {wanted:.9g}")
    return counts


def _honest(error: sg.SpirogradCompilationError) -> bool:
    """A refusal that the documentation promises."""
    text = str(error)
    return any(words in text for words in ("sg.ad.Tape", "the gradient needs", "it writes no memory of floats"))


def failure(program: Program, archs: Sequence[str], seconds: float = 30.0) -> str:
    """What is wrong with a program, in one line; empty if nothing is."""
    try:
        if not ordered(program.source):
            return ""
        with session("interpreter"), limited(seconds):  # native code cannot be ended
            Loaded(program).launch(np.zeros(SIZE))
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
    return text.split(":")[0] if "the slope is" in text else text[:40]


def shortened(program: Program, archs: Sequence[str], seconds: float = 60.0) -> Program:
    wanted = kind(failure(program, archs))
    found: Program = shrunk(program, lambda p: kind(failure(p, archs, 3.0)) == wanted, seconds)  # type: ignore[type-var]
    return found
