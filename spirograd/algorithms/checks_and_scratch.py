"""Functions that all algorithms use: checks of arguments, scratch memory, and the division of work."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from typing import Union

from spirograd.base.dtypes import DType
from spirograd.base.errors import SpirogradTypeError, SpirogradValueError
from spirograd.lang import arithmetic
from spirograd.lang.context import session
from spirograd.lang.data.ndarray import BufferView, Ndarray, ScalarNdarray, ndarray
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.frontend.decorators import kernel
from spirograd.lang.scalar import describe
from spirograd.lang.session_protocol import Session
from spirograd.types import template

Array = Union[ScalarField, Ndarray]  # of scalars, or a view of one
# The least number of elements of a CPU thread.
_SHORTEST = 4096


def checked(x: object, name: str, length: int | None = None, dtype: DType | None = None) -> int:
    """Return the length of a one-dimensional field, ndarray or view of scalars. ``length``, ``dtype``: the required ones."""
    held = isinstance(x, (ScalarField, ScalarNdarray)) or (isinstance(x, BufferView) and x.element_shape == ())
    if not isinstance(x, (ScalarField, Ndarray)) or not held or len(x.shape) != 1:
        hint = "pass a field or an ndarray of one axis; `from_numpy` fills it with the contents of other arrays"
        of_shape = f" of shape {tuple(x.shape)}" if isinstance(x, (ScalarField, Ndarray)) else ""
        problem = f"`{name}`: expected a one-dimensional field or ndarray of scalars, got {describe(x)}{of_shape}"
        raise SpirogradTypeError(problem, None, hint)
    n: int = x.shape[0]
    if length is not None and n < length:
        raise SpirogradValueError(f"`{name}` has {n} elements, and {length} are needed: declare it with a larger shape")
    if dtype is not None and x.dtype is not dtype:
        raise SpirogradTypeError(f"`{name}`: expected elements of {dtype}, got {x.dtype}", None, f"declare it with `sg.{dtype}`")
    return n


def check_apart(n: int, in_place: bool = False, **arrays: Array) -> None:
    """Raise SpirogradValueError if the first ``n`` elements of two arguments, by their names, overlap. ``in_place``: whether they may be
    the same memory."""
    for (name, a), (other, b) in combinations(arrays.items(), 2):
        if n and _overlap(a, b, n) and not (in_place and _is_same(a, b)):
            raise SpirogradValueError(f"`{name}` and `{other}` overlap: pass memory of its own for each")


def _is_same(a: Array, b: Array) -> bool:
    return a is b or (isinstance(a, Ndarray) and isinstance(b, Ndarray) and _steps(a) == _steps(b))


def _overlap(a: Array, b: Array, n: int) -> bool:
    if isinstance(a, ScalarField) or isinstance(b, ScalarField):
        return a is b
    if 0 in (a.shape[0], b.shape[0]):
        return False
    if a.allocation is not b.allocation:
        return False
    return _meet(*(range(first, first + step * min(n, x.shape[0]), step) for x, (first, step) in ((x, _steps(x)) for x in (a, b))))


def _meet(a: range, b: range) -> bool:
    """Return whether two nonempty ranges have a number in common."""
    a, b = (r if r.step > 0 else r[::-1] for r in (a, b))
    common = math.gcd(a.step, b.step)
    if (b[0] - a[0]) % common:
        return False
    period = b.step // common  # every `period`-th number of `a` is in the sequence that contains `b`, from this one on:
    first = (b[0] - a[0]) // common * pow(a.step // common, -1, period) % period
    shared = a[first::period]
    at = max(0, -((shared.start - b[0]) // shared.step))  # the first that is not below `b`
    return at < len(shared) and shared[at] <= b[-1]


def _steps(x: Ndarray) -> tuple[int, int]:
    """Return the offset in bytes of the first element of an ndarray or view, and the distance between elements."""
    places = [int(x.arr._address(x._index(k)) if isinstance(x, BufferView) else x._address(k)) for k in range(min(2, x.shape[0]))]
    return places[0], places[-1] - places[0] or x.dtype.size


class _Scratch(threading.local):
    """Arrays of one session and one thread, by their use. Algorithms of two threads may run at the same time."""

    owner: Session | None = None

    def __init__(self) -> None:
        self.arrays: dict[tuple[str, DType], Ndarray] = {}


_scratch = _Scratch()


def scratch(use: str, dtype: DType, length: int) -> Array:
    """Return memory of at least ``length`` elements with undefined contents: that of the last call for the same ``use`` if it is large
    enough."""
    if _scratch.owner is not session():
        _scratch.owner, _scratch.arrays = session(), {}
    held = _scratch.arrays.get((use, dtype))
    if held is None or held.shape[0] < length:
        held = _scratch.arrays[use, dtype] = ndarray(dtype, max(length, 1))
    return held


@contextmanager
def zeros(use: str, dtype: DType, length: int) -> Iterator[Array]:
    """Provide memory as `scratch` does, filled with zeros. The block must reset it to zeros; after an exception it is not reused."""
    held = _scratch.arrays.get((use, dtype)) if _scratch.owner is session() else None
    array = scratch(use, dtype, length)
    if array is not held:
        array.fill(0)
    try:
        yield array
    except BaseException:
        _scratch.arrays.pop((use, dtype), None)
        raise


def has_groups() -> bool:
    """Return whether the device runs workgroups, rather than a few threads."""
    return session().caps.target.invocations


def shared_memory() -> int:
    """Return the number of bytes of shared memory of a workgroup."""
    return session().caps.shared_memory


def group_threads(most: int) -> int:
    """Return the number of threads of a workgroup: ``most``, or as many as the device has."""
    return min(most, session().caps.group_limit)


def reads_subgroups() -> bool:
    """Return whether threads can read values of each other without shared memory."""
    return session().caps.subgroup_read


def runs_side_by_side() -> bool:
    """Return whether a workgroup that has begun makes progress while others wait for it."""
    return session().caps.target.independent_groups


def chunks_of(n: int) -> tuple[int, int]:
    """Return the number of consecutive elements of each of a few threads, and the number of threads."""
    length = max(_SHORTEST, -(-n // 64))
    return length, -(-n // length)


@kernel
def copy(source: template(), target: template(), n: int):  # type: ignore[valid-type, no-untyped-def]
    """Copy the first ``n`` elements, cast to the type of ``target``."""
    for k in range(n):
        target[k] = arithmetic.cast(source[k], target.dtype)
