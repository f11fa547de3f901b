"""Random calls of `sg.algorithms`, against NumPy: all dtypes, views with offsets and strides, sizes from 0, duplicates, NaN, infinities and
zeros of both signs in keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import spirograd as sg
from spirograd import algorithms
from spirograd.ir.ops import identity

from . import run

INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
FLOATS = ("f16", "f32", "f64")
# What scans and sums take: floats are small integers, so that every order of additions is exact.
NUMBERS = ("i32", "u32", "i64", "u64", "f32", "f64")
SIZES = (0, 1, 2, 3, 31, 64, 65, 255, 256, 257, 1000, 2049, 5000)
WGPU_LACKS = ("i8", "i16", "u8", "u16", "f16", "i64", "u64", "f64")
SPECIAL = (np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0)


@dataclass(frozen=True)
class Call:
    """``kind``: an algorithm; ``op``: of scans and reductions; ``values``: the type of what is sorted along, or "". ``place``: where the
    first array lies: "field", "ndarray", or "view", which has ``offset`` and ``step``. ``spread``: how many different numbers there are."""

    kind: str
    dtype: str
    n: int
    place: str
    offset: int
    step: int
    op: str
    values: str
    spread: int
    seed: int

    def data(self) -> np.ndarray:
        r, t = np.random.default_rng(self.seed), np.dtype(getattr(sg, self.dtype).np)
        if t.kind == "f":
            a = r.integers(-self.spread, self.spread + 1, self.n).astype(t)
            if self.kind in ("parallel_sort", "argsort"):
                a = a + r.normal(size=self.n).astype(t) * (self.spread > 50)
                special = r.random(self.n) < 0.1
                a[special] = r.choice(np.array(SPECIAL, t), int(special.sum()))
            return a
        low, high = np.iinfo(t).min, np.iinfo(t).max
        if self.spread < 1000:
            low, high = max(low, -self.spread), min(high, self.spread)
        return r.integers(low, high, self.n, t, endpoint=True)


def write(seed: int) -> Call:
    r = np.random.default_rng(seed)

    def one(choices: Sequence[Any]) -> Any:
        return choices[int(r.integers(len(choices)))]

    kind = one(list(CHECKS))
    types = {"inclusive_scan": NUMBERS, "exclusive_scan": NUMBERS, "reduce": NUMBERS, "histogram": INTEGERS}
    dtype = one(types.get(kind, INTEGERS + FLOATS))
    n = one(SIZES) if r.random() < 0.7 else int(r.integers(0, 3000))
    place = one(("field", "ndarray", "view", "view"))
    values = one(("", "i32", "f32", "u8", "f64")) if kind == "parallel_sort" else ""
    op = one(("add", "min", "max"))
    return Call(kind, dtype, n, place, int(r.integers(0, 5)), one((1, 1, 2, 3, -1)), op, values, one((1, 3, 100, 1000)), seed)


class _Memory:
    """An array with ``values``, as a field, an ndarray or a view; what surrounds a view must stay as it is."""

    def __init__(self, values: np.ndarray, dtype: Any, call: Call, plain: bool = False) -> None:
        n = len(values)
        self.whole: np.ndarray | None = None
        if call.place == "field" and n and not plain:
            self.array = sg.field(dtype, n)
            self.array.from_numpy(values)
        elif call.place == "view" and n and not plain:
            self.whole = np.full(2 * call.offset + abs(call.step) * n, 77, values.dtype)
            first = call.offset if call.step > 0 else len(self.whole) - 1 - call.offset
            end = first + call.step * n
            self.part = slice(first, end if end >= 0 else None, call.step)
            self.whole[self.part] = values
            self.base = sg.ndarray(dtype, len(self.whole))
            self.base.from_numpy(self.whole)
            self.array = self.base[self.part]
        else:
            self.array = sg.ndarray(dtype, n)
            if n:
                self.array.from_numpy(values)

    def get(self) -> np.ndarray:
        if self.whole is None:
            return self.array.to_numpy()
        found = self.base.to_numpy()
        around = np.ones(len(found), bool)
        around[self.part] = False
        assert run.same(found[around], self.whole[around]).all(), "memory around a view has changed"
        return found[self.part]


def _equal(what: str, got: Any, wanted: Any) -> None:
    equal = np.shape(got) == np.shape(wanted) and run.same(np.atleast_1d(got), np.atleast_1d(wanted))
    if not np.all(equal):
        at = int(np.argwhere(~np.atleast_1d(equal))[0][0]) if np.shape(got) == np.shape(wanted) else -1
        raise run.Difference(f"{what} differ at {at}: {np.atleast_1d(got)[at]!r}, should be {np.atleast_1d(wanted)[at]!r}")


def _sort(call: Call, a: np.ndarray, x: _Memory) -> None:
    order = np.argsort(a, kind="stable")
    if not call.values:
        algorithms.parallel_sort(x.array)
        _equal("keys", x.get(), a[order])
        return
    along = np.arange(call.n).astype(getattr(sg, call.values).np)
    values = _Memory(along, getattr(sg, call.values), call)
    algorithms.parallel_sort(x.array, values.array)
    _equal("keys", x.get(), a[order])
    _equal("values", values.get(), along[order])


def _argsort(call: Call, a: np.ndarray, x: _Memory) -> None:
    out = _Memory(np.zeros(call.n, np.int32), sg.i32, call)
    algorithms.argsort(x.array, out.array)
    _equal("places", out.get(), np.argsort(a, kind="stable").astype(np.int32))
    _equal("keys", x.get(), a)


_UFUNCS = {"add": np.add, "min": np.minimum, "max": np.maximum}


def _inclusive(call: Call, a: np.ndarray, x: _Memory) -> None:
    out = _Memory(np.zeros_like(a), getattr(sg, call.dtype), call) if call.seed % 2 else x
    algorithms.inclusive_scan(x.array, out.array, call.op)
    _equal("sums", out.get(), _UFUNCS[call.op].accumulate(a, dtype=a.dtype))


def _exclusive(call: Call, a: np.ndarray, x: _Memory) -> None:
    start = a.dtype.type(identity(call.op, getattr(sg, call.dtype)))
    algorithms.exclusive_scan(x.array, None, call.op)
    before = np.concatenate([[start], a[:-1]]).astype(a.dtype) if call.n else a
    _equal("sums", x.get(), _UFUNCS[call.op].accumulate(before, dtype=a.dtype))


def _reduce(call: Call, a: np.ndarray, x: _Memory) -> None:
    if call.n:
        with np.errstate(over="ignore"):
            wanted = _UFUNCS[call.op].reduce(a, dtype=a.dtype)
        _equal("the result", a.dtype.type(algorithms.reduce(x.array, call.op)), wanted)


def _select(call: Call, a: np.ndarray, x: _Memory) -> None:
    flags = (np.random.default_rng(call.seed + 1).random(call.n) < 0.4).astype(np.int32)
    out = _Memory(np.zeros_like(a), getattr(sg, call.dtype), call)
    count = algorithms.select(x.array, _Memory(flags, sg.i32, call).array, out.array)
    _equal("the count", count, int(flags.sum()))
    _equal("elements", out.get()[:count], a[flags != 0])


def _runs(a: np.ndarray) -> np.ndarray:
    return np.flatnonzero(np.concatenate([[True], a[1:] != a[:-1]])) if len(a) else np.zeros(0, int)


def _run_lengths(call: Call, a: np.ndarray, x: _Memory) -> None:
    starts = _runs(a)
    out, counts = _Memory(np.zeros_like(a), getattr(sg, call.dtype), call), _Memory(np.zeros(call.n, np.int32), sg.i32, call)
    count = algorithms.run_length_encode(x.array, out.array, counts.array)
    _equal("the count", count, len(starts))
    _equal("elements", out.get()[:count], a[starts])
    _equal("lengths", counts.get()[:count], np.diff(np.append(starts, len(a))).astype(np.int32))


def _histogram(call: Call, a: np.ndarray, x: _Memory) -> None:
    counts = sg.ndarray(sg.i32, 1 + call.seed % 300)
    algorithms.histogram(x.array, counts)
    bins = counts.shape[0]
    _equal("counts", counts.to_numpy(), np.bincount(a[(a >= 0) & (a < bins)].astype(np.int64), minlength=bins).astype(np.int32))


CHECKS: dict[str, Callable[[Call, np.ndarray, _Memory], None]] = {
    "parallel_sort": _sort,
    "argsort": _argsort,
    "inclusive_scan": _inclusive,
    "exclusive_scan": _exclusive,
    "reduce": _reduce,
    "select": _select,
    "run_length_encode": _run_lengths,
    "histogram": _histogram,
}


def check(call: Call, archs: Sequence[str]) -> None:
    a = call.data()
    for arch in archs:
        if arch == "wgpu" and {call.dtype, call.values} & set(WGPU_LACKS):
            continue
        with run.session(arch, False):
            try:
                CHECKS[call.kind](call, a, _Memory(a.copy(), getattr(sg, call.dtype), call))
            except (run.Difference, AssertionError) as error:
                raise run.Difference(f"{arch}: {error}\n{call!r}") from None


def failure(call: Call, archs: Sequence[str]) -> str:
    return run.first_line_of(check, call, archs)


def shortened(call: Call, archs: Sequence[str]) -> Call:
    """Fewer elements, then plainer memory, while it fails."""
    fewer = sorted({call.n >> k for k in range(1, 13)})
    for changes in ([{"n": n} for n in fewer], [{"place": "ndarray"}], [{"spread": 1}, {"spread": 3}], [{"values": ""}]):
        for change in changes:
            if failure(shorter := replace(call, **change), archs):
                call = shorter
                break
    return call
