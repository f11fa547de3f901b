"""Runs a program by the reference and on back ends, and compares bit by bit (all NaNs being one)."""

from __future__ import annotations

import itertools
import linecache
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

import spirograd as sg
from spirograd.config import make_config
from spirograd.lang import context
from spirograd.lang.data.tree import root
from spirograd.runtime import loader
from spirograd.session import Session
from spirograd.transforms.simplification import inline_calls

from .evaluate import Evaluator
from .kernel_programs import Program

_numbers = itertools.count()
_sessions: dict[tuple[str, bool], Session] = {}


class Difference(AssertionError):
    """A back end does not give what the reference gives."""


def archs() -> list[str]:
    return [name for name in ("interpreter", "cpu", "vulkan") if loader.available(name) is None]


@contextmanager
def session(arch: str, fast_math: bool) -> Iterator[Session]:
    """A session that is kept, because opening a device takes longer than running a program. ``arch``: a back end, or "interpreter as" a
    target, of which the interpreter runs the tasks (see docs/ir.md)."""
    key = (arch, fast_math)
    if key not in _sessions:
        name, _, target = arch.partition(" as ")
        with patch.dict(os.environ, {"SG_INTERPRET_AS": target} if target else {}):
            _sessions[key] = Session(make_config(name, {"offline_cache": False, "fast_math": fast_math}))
    before = context.session() if context.has_session() else None
    context.set_session(_sessions[key])
    try:
        yield _sessions[key]
    finally:
        context.set_session(before)
        root.reset()


def first_line_of(check: Callable[[Any, Sequence[str]], object], program: Any, archs: Sequence[str]) -> str:
    """What ``check`` finds, in one line; "" for nothing."""
    try:
        check(program, archs)
    except Difference as error:
        return str(error).splitlines()[0]
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


def close() -> None:
    for opened in _sessions.values():
        opened.close()
    _sessions.clear()


def load(source: str, names: dict[str, Any], kernel: str = "k") -> Any:
    """The kernel of that name in ``source``, with a file name under which `inspect` finds it."""
    file = f"<fuzz {next(_numbers)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names |= {"sg": sg, "__name__": "fuzz_program"}
    exec(compile(source, file, "exec"), names)
    return names[kernel]


def reference(program: Program) -> tuple[dict[str, Any], Any]:
    """Arrays and result that the evaluator gives. Raises TooLong."""
    arrays = program.data()
    with np.errstate(all="ignore"):
        value = Evaluator(program.source, arrays).kernel("k", {name: value for name, _, value in program.scalars})
    return arrays, value


def on_back_end(program: Program, arch: str, fast_math: bool = False) -> tuple[dict[str, Any], Any]:
    """Arrays and result that a back end gives. Functions that access memory are called, however few the calls."""
    with session(arch, fast_math), patch.multiple(inline_calls, _FEW=0, _SMALL=0):
        data = program.data()
        names: dict[str, Any] = {}
        for a in program.arrays:
            if a.place != "arg":
                make = sg.field if a.place == "field" else sg.ndarray
                names[a.name] = make(getattr(sg, a.type), shape=a.shape)
        for a in program.arrays:
            if a.place != "arg":
                names[a.name].from_numpy(data[a.name])
        kernel = load(program.source, dict(names))
        value = kernel(*[data[a.name] for a in program.arrays if a.place == "arg"], *[v.item() for _, _, v in program.scalars])
        sg.sync()
        for name, held in names.items():
            data[name] = held.to_numpy()
        return data, value


def same(a: Any, b: Any) -> Any:
    """Where arrays of one type agree in every bit, NaNs apart."""
    x, y = np.ascontiguousarray(a), np.ascontiguousarray(b)
    if x.dtype.kind != "f":
        return x == y
    unsigned = f"u{x.itemsize}"
    return (x.view(unsigned) == y.view(unsigned)) | (np.isnan(x) & np.isnan(y))


def check(program: Program, fast: bool | None = None, on: Sequence[str] | None = None) -> None:
    """Raises `Difference`, TooLong, or what the back ends raise.

    ``fast``: whether to run with fast math too (None: if the program has nothing but integers). ``on``: the back ends, by default `archs`.
    """
    arrays, value = reference(program)
    both = [False, True] if (program.whole if fast is None else fast) else [False]
    for fast_math in both:
        for arch in archs() if on is None else on:
            if fast_math and arch == "interpreter":
                continue
            what = f"{arch}{', fast math' if fast_math else ''}"
            got, returned = on_back_end(program, arch, fast_math)
            for a in program.arrays:
                equal = same(arrays[a.name], got[a.name])
                if not np.all(equal):
                    at = tuple(int(k) for k in np.argwhere(~np.atleast_1d(equal))[0])
                    raise Difference(f"{what}: {a.name}{list(at)} is {got[a.name][at]!r}, should be {arrays[a.name][at]!r}\n{program!r}")
            if value is not None:
                t = value.dtype.type
                if not same(np.array([value]), np.array([returned], t))[0]:
                    raise Difference(f"{what}: returned {returned!r}, should be {value!r}\n{program!r}")
