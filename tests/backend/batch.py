"""Many expressions in one kernel, each compared with NumPy: tests of the back ends import this."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Sequence
from typing import Any

import numpy as np

import spirograd as sg

_numbers = itertools.count()


def define(text: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run Python source the way notebooks do: compiled from a string, its lines in `linecache`. Returns its globals."""
    file = f"<test source {next(_numbers)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    out = dict(names)
    exec(compile(text, file, "exec"), out)
    return out


def check(
    cases: Sequence[tuple[Any, ...]], inputs: dict[str, tuple[Any, Any]], names: dict[str, Any] | None = None, setup: str = ""
) -> None:
    """Evaluate expressions in one kernel. ``inputs``: name -> (type, value), which become arguments.

    ``cases``: (expression, expected value, optionally the expected dtype). Floats are compared to f32 accuracy.
    ``setup``: statements before.
    """
    sizes = [int(np.size(case[1])) for case in cases]
    out = sg.field(sg.f64, shape=max(sum(sizes), 1))
    at = 0
    lines = [f"    {line}" for line in setup.splitlines()]
    for k, case in enumerate(cases):
        lines.append(f"    r{k} = {case[0]}")
        if len(case) > 2:
            lines.append(f"    sg.static_assert(r{k}.dtype == {case[2]}, f'{{r{k}.dtype}} instead of {case[2]}')")
        shape = np.shape(case[1])
        if shape:
            lines.append(f"    sg.static_assert(r{k}.shape == {shape}, f'{{r{k}.shape}} instead of {shape}')")
        for index in np.ndindex(*shape):
            lines.append(f"    out[{at}] = r{k}{list(index) if index else ''}")
            at += 1
    types = {f"T_{name}": t for name, (t, _) in inputs.items()}
    head = f"def evaluate({', '.join(f'{name}: T_{name}' for name in inputs)}):"
    made = define("\n".join(["@sg.kernel", head, *lines]) + "\n", {"sg": sg, "out": out, "np": np, **types, **(names or {})})
    made["evaluate"](*[value for _, value in inputs.values()])
    got = out.to_numpy()
    at = 0
    for case, size in zip(cases, sizes):
        want = np.asarray(case[1], dtype=np.float64).reshape(-1)
        np.testing.assert_allclose(got[at : at + size], want, rtol=2e-5, atol=2e-6, err_msg=case[0])
        at += size
