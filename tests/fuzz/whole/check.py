"""Runs programs on back ends and compares all that they saw with the reference."""

from __future__ import annotations

import importlib.util
import itertools
import linecache
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import spirograd as sg
from spirograd.config import make_config
from spirograd.lang import context
from spirograd.lang.data.tree import root
from spirograd.session import Session

from . import render
from .nodes import AtOnce, Program, Second, walk
from .reference import Reference, Unclear
from .shrink import pruned, shrunk
from .variants import varied

TOLERANCES = {"f64": 1e-9, "f32": 1e-3}  # of the largest number seen
LARGEST = {"f64": 1e6, "f32": 300.0}
WITHOUT_F64 = ("wgpu", "metal")
# Errors that the documentation promises.
HONEST = (
    "what the adstacks of gradients in the graph were sized by may have changed",
    "has too little memory",
    "a graph is being recorded, and the host",
)

_TORCH = importlib.util.find_spec("torch")
_numbers = itertools.count()
_sessions: dict[Any, Session] = {}
_loaded: dict[str, Any] = {}  # the last kernels, by back end: programs that share them follow each other


class Wrong(AssertionError):
    """A program did not compute what it should."""


@contextmanager
def session(arch: str, program: Program) -> Iterator[None]:
    """A session of these options, which is kept."""
    options = {"default_fp": getattr(sg, program.type), "cpu_max_num_threads": 2, **dict(program.options)}
    key = (arch, tuple(sorted((name, str(value)) for name, value in options.items())))
    if key not in _sessions:
        _sessions[key] = Session(make_config(arch, options))
    before = context.session() if context.has_session() else None
    context.set_session(_sessions[key])
    try:
        yield
    finally:
        context.set_session(before)


def close() -> None:
    _loaded.clear()
    root.reset()
    for opened in _sessions.values():
        opened.close()
    _sessions.clear()


def execute(text: str, names: dict[str, Any]) -> None:
    file = f"<program {next(_numbers)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), names)


def run(program: Program, arch: str) -> list[tuple[str, Any]]:
    """What the program saw on a back end, and from the offline cache, if it uses that."""
    if dict(program.options).get("offline_cache"):
        _run(program, arch)
        _loaded.pop(arch, None)
    return _run(program, arch)


def _run(program: Program, arch: str) -> list[tuple[str, Any]]:
    with session(arch, program):
        head = render.head(program)
        if arch not in _loaded or _loaded[arch][0] != head:
            _loaded.pop(arch, None)
            root.reset()
            names: dict[str, Any] = {"__name__": "program"}
            execute(head, names)
            _loaded[arch] = (head, names)
        names = _loaded[arch][1]
        names["seen"].clear()
        execute(render.main(program), names)
        try:
            names["main"]()
            sg.sync()
        except Exception:
            _loaded.pop(arch, None)
            root.reset()
            raise
        return list(names["seen"])


def compare(program: Program, expected: Reference, seen: list[tuple[str, Any]], arch: str) -> int:
    """Raises Wrong at the first difference."""
    # A tape that adds to gradients clears the 1 that an earlier tape left in its loss, but not while the thread of that tape runs.
    at_once = any(isinstance(node, AtOnce) for node in walk(program.main))
    tolerance = TOLERANCES[program.type] * max(1.0, expected.largest)
    for number, ((name, wanted), (other, found)) in enumerate(zip(expected.seen, seen)):
        assert name == other, f"{name} against {other}"
        if at_once and name in ("loss.grad", "loss_apart.grad"):
            continue
        for part in wanted if isinstance(wanted, dict) else [None]:
            a, b = (wanted, found) if part is None else (wanted[part], found[part])
            far = ~(np.abs(np.asarray(b, np.float64) - a) <= tolerance)
            if far.any():
                at = tuple(int(k) for k in np.argwhere(np.atleast_1d(far))[0])
                where = f"{name}{'' if part is None else '.' + part}{list(at)}"
                values = [float(np.atleast_1d(x)[at]) for x in (b, a)]
                raise Wrong(f"{arch}: {where} is {values[0]:.9g}, should be {values[1]:.9g} (number {number} seen)")
    return len(expected.seen)


def reference(program: Program) -> Reference:
    """Raises Unclear."""
    try:
        found = Reference(program).run()
    except (ValueError, OverflowError) as error:
        if "math" not in str(error):  # as of `math.sin(inf)`
            raise
        raise Unclear("large") from None
    if not found.largest < LARGEST[program.type]:
        raise Unclear("large")
    return found


def honest(program: Program, text: str) -> bool:
    """Whether the documentation promises this error."""
    second = any(isinstance(node, Second) for node in walk(program.main))
    return any(words in text for words in HONEST) or (second and "as it was before the kernel" in text)


def check(program: Program, archs: Sequence[str]) -> Counter[str]:
    """Raises Wrong, Unclear, or what the package raises."""
    if _TORCH is None and "import torch" in render.head(program) + render.main(program):
        raise Unclear("it uses torch, which is not installed")
    expected = reference(program)
    counts: Counter[str] = Counter()
    for arch in archs:
        if program.type == "f64" and arch in WITHOUT_F64:
            continue
        try:
            variant = dict(program.variants).get(arch, "")
            seen = run(varied(program, variant), arch)
        except sg.SpirogradRuntimeError as error:
            if not honest(program, str(error)):
                raise
            counts[f"refused, {arch}"] += 1
            continue
        counts[f"compared, {arch}"] += compare(program, expected, seen, f"{arch}, {variant}" if variant else arch)
        counts[f"programs, {arch}"] += 1
    if not counts:
        raise Unclear("it is of f64, which no back end here has")
    return counts


def failure(program: Program, archs: Sequence[str]) -> str:
    """What is wrong with a program, in one line; "" for nothing."""
    try:
        reference(program)
    except Unclear:
        return ""
    except Exception as error:
        return f"reference: {type(error).__name__}: {error}"
    try:
        check(program, archs)
    except (Unclear, RecursionError):
        return ""
    except Wrong as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


def kind(text: str) -> str:
    """What must stay the same while shortening: which back end gives wrong memory or wrong gradients, or the error."""
    where, _, rest = text.partition(":")
    return f"{where.split(',')[0]}: {'gradient' if '.grad' in rest else 'value'}" if "should be" in text else text[:45]


def shortened(program: Program, archs: Sequence[str], seconds: float = 60.0) -> Program:
    text = failure(program, archs)
    wanted = kind(text)
    archs = [arch for arch in archs if text.startswith(arch)] or archs
    return shrunk(pruned(program), lambda p: kind(failure(p, archs)) == wanted, seconds)
