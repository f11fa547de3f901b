"""The largest value of a size over ranges, with NumPy: in pieces, so that memory stays bounded, and in integers that never wrap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spirograd.base.dtypes import DType, storage
from spirograd.base.size_parts import Size, limits, variables

_PIECE = 1 << 16  # iterations at a time: what the processor's cache takes
_LOW, _HIGH = -(1 << 63), (1 << 63) - 1
Array = NDArray[Any]


def largest(size: Size, known: Callable[[Size], int], whole: Callable[[str, int], NDArray[np.uint8]] | None) -> int:
    """The value of a ``max_over`` that depends on no variable outside. ``known``: the value of any such size; ``whole``: as of
    `sizes.evaluate`."""
    return _Ranges(known, whole).alone(size)


class _Values:
    """A number for each lane, an iteration that is evaluated next to others; a single one stands for all lanes. None is below ``low`` or
    above ``high``.

    ``data``: of an integer type, or Python's integers where 64 bits do not do. ``step``: the numbers are ``low``, ``low + step`` ...
    up to ``high``, made into an array only when needed.
    """

    __slots__ = ("_data", "high", "low", "step")

    def __init__(self, data: Array | None, low: int, high: int, step: int = 0) -> None:
        self._data, self.low, self.high, self.step = data, low, high, step

    @property
    def data(self) -> Array:
        if self._data is None:
            steps: Array = np.arange(self.size)
            self._data = (steps if _fits(self.low, self.high) else steps.astype(object)) * self.step + self.low
        return self._data

    @property
    def size(self) -> int:
        """How many numbers."""
        return (self.high - self.low) // self.step + 1 if self._data is None else self._data.size

    def tight(self) -> _Values:
        """The same with the closest bounds."""
        return self if self.step else _Values(self.data, int(self.data.min()), int(self.data.max()))

    def wide(self) -> Array:
        """The numbers, in 64 bits if they fit."""
        tight = self if _fits(self.low, self.high) else self.tight()
        return self.data.astype(np.int64 if _fits(tight.low, tight.high) else object, copy=False)

    def of(self, lanes: Array) -> _Values:
        """Those of some of the lanes."""
        return _Values(self.data[lanes], self.low, self.high) if self.size > 1 else self


def _constant(n: int) -> _Values:
    return _Values(np.array([n], np.int64 if _fits(n, n) else object), n, n)


def _progression(first: int, count: int, step: int) -> _Values:
    return _Values(None, first, first + (count - 1) * step, step) if count > 1 else _constant(first)


def _fits(low: int, high: int) -> bool:
    """Whether 64 bits hold all between ``low`` and ``high``."""
    return low >= _LOW and high <= _HIGH


def _count(lanes: _Lanes) -> int:
    return max(values.size for values in lanes.values())


def _pieces(total: int) -> Iterator[tuple[int, int]]:
    for at in range(0, total, _PIECE):
        yield at, min(at + _PIECE, total)


_Lanes = dict[int, _Values]  # by variable


class _Ranges:
    """One evaluation. What no variable changes is evaluated once, at the first need."""

    def __init__(self, known: Callable[[Size], int], whole: Callable[[str, int], NDArray[np.uint8]] | None) -> None:
        self.known = known
        self.whole = whole
        # By the id of a size; all are parts of the one that is evaluated.
        self.free: dict[int, frozenset[int]] = {}
        self.fixed: dict[int, int] = {}
        self.views: dict[tuple[str, int, DType], Array] = {}

    def variables(self, size: Size) -> frozenset[int]:
        if id(size) not in self.free:
            self.free[id(size)] = variables(size)
        return self.free[id(size)]

    def fix(self, size: Size) -> int:
        if id(size) not in self.fixed:
            self.fixed[id(size)] = self.known(size)
        return self.fixed[id(size)]

    # --- ranges ----------------------------------------------------------------------------------------------------------

    def alone(self, size: Any) -> int:
        """A range with no lanes around it."""
        _, v, begin, end, body = size
        first, last = self.fix(begin), self.fix(end)
        if last <= first:
            return 0
        if v not in self.variables(body):
            return max(self.fix(body), 0)
        found = 0
        for at, stop in _pieces(last - first):
            found = max(found, self.values(body, {v: _progression(first + at, stop - at, 1)}).tight().high)
        return found

    def over(self, size: Any, lanes: _Lanes) -> _Values:
        """A range of each lane."""
        _, v, begin, end, body = size
        count = _count(lanes)
        begins = self.values(begin, lanes)
        lengths = _binary("max", _binary("sub", self.values(end, lanes), begins), _constant(0)).tight()
        if v not in self.variables(body):
            return _binary("max", self.where(np.broadcast_to(lengths.data > 0, count), body, lanes), _constant(0))
        # Lane k has those of all iterations from stops[k] - lengths[k] to before stops[k].
        each = np.broadcast_to(lengths.data, count).astype(np.int64 if _fits(0, lengths.high * count) else object)
        stops = np.cumsum(each)
        starts = stops - each
        best: Array = np.zeros(count, np.int64)
        wanted = {w: lanes[w] for w in self.variables(body) if w != v}
        for start, stop in _pieces(int(stops[-1])):
            first, last = np.searchsorted(stops, [start, stop - 1], side="right")
            some = np.arange(first, last + 1)
            some = some[each[some] > 0]
            here = (np.minimum(stops[some], stop) - np.maximum(starts[some], start)).astype(np.int64)
            lane = np.repeat(some, here)
            inner = {w: values.of(lane) for w, values in wanted.items()}
            within = np.arange(start, stop) - starts[lane].astype(np.int64)
            first_of = _Values(np.broadcast_to(begins.data, count)[lane], begins.low, begins.high)
            inner[v] = _binary("add", first_of, _Values(within, 0, stop))
            values = self.values(body, inner)
            most = np.maximum.reduceat(np.broadcast_to(values.wide(), lane.size), np.cumsum(here) - here)
            best = best.astype(object) if most.dtype == object else best
            best[some] = np.maximum(best[some], most)
        return _Values(best, 0, 0).tight()

    # --- values for each lane --------------------------------------------------------------------------------------------

    def values(self, size: Size, lanes: _Lanes) -> _Values:
        """``size`` in each of the lanes: one number for all of them where it is the same in all."""
        if not self.variables(size):
            return _constant(self.fix(size))
        assert not isinstance(size, int)
        kind = size[0]
        if kind == "bound":
            return lanes[size[1]]
        if kind == "memory":
            return self.read(size, lanes)
        if kind == "if_less":
            less = self.values(size[1], lanes).wide() < self.values(size[2], lanes).wide()
            return self.where(np.broadcast_to(less, _count(lanes)).astype(bool), size[3], lanes)
        if kind == "max_over":
            return self.over(size, lanes)
        return _binary(kind, self.values(size[1], lanes), self.values(size[2], lanes))

    def where(self, condition: Array, size: Size, lanes: _Lanes) -> _Values:
        """``size`` in the lanes that meet the condition, which alone evaluate it; 0 in the others."""
        if condition.all():
            return self.values(size, lanes)
        some = np.flatnonzero(condition)
        if not some.size:
            return _constant(0)
        inner = self.values(size, {v: values.of(some) for v, values in lanes.items()})
        found = np.zeros(condition.size, inner.wide().dtype)
        found[some] = inner.wide()
        return _Values(found, min(inner.low, 0), max(inner.high, 0))

    def read(self, size: Any, lanes: _Lanes) -> _Values:
        """Memory at the offsets of the lanes."""
        _, kind, number, offset, dtype = size[:5]
        view = self.view(kind, number, dtype)
        at = self.values(offset, lanes)
        width, end = view.itemsize, view.nbytes
        if at.step > 0 and at.step % width == 0 and at.low >= 0 and at.high < end:
            return _read(view[at.low // width : at.high // width + 1 : at.step // width], dtype)
        at = at if at.low >= 0 and at.high < end else at.tight()
        if at.low >= 0 and at.high < end:
            return _read(view[at.wide() // width], dtype)
        inside = np.flatnonzero((at.data >= 0) & (at.data < end))
        found = np.zeros(at.data.size, view.dtype)
        found[inside] = view[at.data[inside].astype(np.int64) // width]
        return _read(found, dtype)

    def view(self, kind: str, number: int, dtype: DType) -> Array:
        """A memory as elements of a type."""
        key = (kind, number, dtype)
        if key not in self.views:
            assert self.whole is not None, key
            raw = self.whole(kind, number)
            self.views[key] = raw[: raw.size // storage(dtype).size * storage(dtype).size].view(storage(dtype).np)
        return self.views[key]


def _read(data: Array, dtype: DType) -> _Values:
    """Values as read from memory."""
    return _Values(data, int(storage(dtype).min), int(storage(dtype).max))


# --- arithmetic ----------------------------------------------------------------------------------------------------------


def _binary(kind: str, a: _Values, b: _Values) -> _Values:
    if kind in ("add", "sub", "mul"):
        found = _stepped(kind, a, b)
        if found is not None:
            return found
    low, high = limits(kind, (a.low, a.high), (b.low, b.high))
    if not (_fits(low, high) and _fits(a.low, a.high) and _fits(b.low, b.high)):
        a, b = a.tight(), b.tight()
        low, high = limits(kind, (a.low, a.high), (b.low, b.high))
    x, y = a.wide(), b.wide()
    if not _fits(low, high):
        # Rare, and slow.
        x, y = x.astype(object), y.astype(object)
    return _Values(_ARRAYS[kind](x, y), low, high)


def _stepped(kind: str, a: _Values, b: _Values) -> _Values | None:
    """A progression and a number make a progression."""
    if b.step and kind != "sub":
        a, b = b, a
    if not a.step or b.low != b.high:
        return None
    count = (a.high - a.low) // a.step + 1
    if kind == "mul":
        return _progression(a.low * b.low, count, a.step * b.low) if b.low > 0 else None
    return _progression(a.low + (b.low if kind == "add" else -b.low), count, a.step)


def _divided(kind: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """A division that gives 0 where the divisor is 0."""

    def divide(a: Array, b: Array) -> Array:
        zero = b == 0
        return np.where(zero, 0, kind(a, np.where(zero, 1, b))) if zero.any() else kind(a, b)

    return divide


_ARRAYS: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "floordiv": _divided(np.floor_divide),
    "mod": _divided(lambda a, b: a - np.floor_divide(a, b) * b),  # several times as fast as the remainder
}
