"""Functions of the family that only advise its compiler; `rescale_index` and `stop_grad`."""

from __future__ import annotations

import enum
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from spirograd.base.errors import SpirogradTypeError
from spirograd.ir import ops as ir
from spirograd.lang import arithmetic, scalar
from spirograd.lang.context import current_trace
from spirograd.lang.matrix import Matrix, make
from spirograd.lang.scalar import Value
from spirograd.lang.struct import Struct
from spirograd.lang.traced_numbers import TracedNumber

if TYPE_CHECKING:
    from spirograd.lang.data.host_scope import Indexed

T = TypeVar("T")


class extension(enum.Enum):
    """Extensions that not every back end has; see `is_extension_supported`."""

    sparse = "sparse field trees"
    quant = "quantised types"
    mesh = "meshes"
    quant_basic = "quantised integers"
    data64 = "64-bit integers and floats"
    adstack = "derivatives of loops that overwrite variables"
    bls = "block-local caching of fields"
    assertion = "assertions in kernels"
    extfunc = "calls of external functions"


def assume_in_range(value: T, base: object, low: int, high: int) -> T:
    """Return the value, with the promise that ``base + low <= value < base + high``."""
    return value


def loop_unique(value: T, covers: object = None) -> T:
    """Return the value, with the promise that no two iterations have the same ``value``. ``covers``: accepted, without effect."""
    return value


def block_local(*fields: object) -> None:
    """Ask for caching of ``fields`` in shared memory by the loop that follows. Accepted, without effect."""


def cache_read_only(*fields: object) -> None:
    """Promise that the loop that follows only reads ``fields``. Accepted, without effect: the compiler sees it by itself."""


def _without_history(x: object) -> object:
    """Return a value of Python without the history of its numbers on a tape."""
    if isinstance(x, Matrix):
        return make([entry.stopped() if isinstance(entry, TracedNumber) else entry for entry in x.entries], x.shape)
    if isinstance(x, Struct):
        for name, member in x.entries.items():
            x = x.with_member(name, _without_history(member))
    return x.stopped() if isinstance(x, TracedNumber) else x


def stop_grad(x: T) -> T:
    """Return the value itself; in kernels that are differentiated, derivatives end there.

    For vectors, matrices and structs, they end in every entry. For a field or an array, derivatives do not flow through values read from
    it, in the whole block (the body of a loop, a branch or the kernel) where the call stands. Raises SpirogradTypeError for a field outside
    of kernels.
    """
    trace = current_trace()
    if trace is None:
        if hasattr(x, "refs"):
            raise SpirogradTypeError("`stop_grad` of a field works in kernels", None, "call it in the kernel that reads the field")
        return _without_history(x)  # type: ignore[return-value]
    for member in getattr(x, "members", {}).values():  # A field of structs.
        stop_grad(member)
    ref = x.refs() if hasattr(x, "refs") else getattr(x, "ref", None)  # A field or an array.
    if getattr(x, "component", None) is not None:
        raise SpirogradTypeError("`stop_grad` takes all of a field, not one component", trace.b.loc, "name the whole field")
    if ref is not None:
        trace.stops = True
        trace.b.emit(ir.stop_grad, trace.b.const(0), attr=ref)
        return x
    if isinstance(x, Value):
        return scalar.emit(ir.stop_grad, x)  # type: ignore[return-value]
    if isinstance(x, Matrix):
        return make([stop_grad(entry) for entry in x.entries], x.shape)  # type: ignore[return-value]
    if isinstance(x, Struct):
        for name, member in x.entries.items():
            x = x.with_member(name, stop_grad(member))  # type: ignore[assignment]
    return x


def pure(function: T) -> T:
    """Promise that the kernel ``function`` depends on its arguments only. Accepted, without effect, with a warning that it is an old name:
    the compilation cache checks it by itself.
    """
    warnings.warn("Use of `pure` is deprecated. Please use `kernel(fastcache=True)`: both are without effect", UserWarning, stacklevel=2)
    return function


def rescale_index(a: Indexed, b: Indexed, index: Iterable[object]) -> Matrix:
    """Return the index in field or node ``b`` of the cell with index ``index`` of ``a``: each entry scaled by the ratio of extents.

    Raises SpirogradTypeError where neither extent of an axis is a multiple of the other.
    """
    out = []
    for entry, n, m in zip(index, a.shape, b.shape, strict=False):
        if n % m and m % n:
            raise SpirogradTypeError(
                f"rescale_index: extents {n} and {m} are not multiples of each other: choose shapes of which one divides the other"
            )
        out.append(arithmetic.floor_div(entry, n // m) if n >= m else arithmetic.mul(entry, m // n))
    return Matrix(out)
