"""Fields and arrays outside of kernels, for Python and NumPy: they have a length and convert to arrays, but have neither arithmetic nor
the methods of NumPy's arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, Protocol

import numpy as np

from spirograd.base.errors import SpirogradTypeError
from spirograd.base.near_names import NearNames, NoAttribute, described
from spirograd.lang import scalar
from spirograd.lang.context import current_trace

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from spirograd.lang.data.numpy_transfer import Array

_HINT = "`.to_numpy()` gives an array to compute with; a kernel computes in place"
# Methods of NumPy's arrays -> the operation of `sg.algorithms.reduce`.
_REDUCTIONS = {"sum": "add", "min": "min", "max": "max"}


class Convertible(Protocol):
    """A field or array whose contents are one array of NumPy."""

    def to_numpy(self, *, dtype: DTypeLike | None, copy: bool) -> Array:
        """Return the contents."""


class Indexed(Protocol):
    """Memory with an index space."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the index space."""


class HostScope(NearNames):
    """The base of fields and arrays in Python: NumPy's array protocol, `len`, and operators and attributes whose errors say what to write
    instead."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            if hasattr(np.ndarray, name) and not name.startswith("_") and not hasattr(type(self), name):
                raise NoAttribute(described(self), name, lambda: dir(self), hint=hint_for_numpy(name))
            return super().__getattr__(name)

    def __array__(self: Convertible, dtype: DTypeLike | None = None, copy: object = None) -> Array:
        """Return the contents for ``np.asarray``, see `to_numpy`. ``copy=False`` raises ValueError where the host cannot address the
        memory."""
        return self.to_numpy(dtype=dtype, copy=copy is not False)

    def __len__(self: Indexed) -> int:
        if current_trace() is not None:  # Kernels ask for `.shape`, which arrays have there too.
            raise TypeError
        if not self.shape:
            raise SpirogradTypeError(f"{scalar.describe(self)} has no axes, hence no length", None, "its one element is `x[None]`")
        return self.shape[0]

    def __bool__(self) -> bool:
        """Return True whatever the contents, so that programs can compare with None."""
        return True


def hint_for_numpy(name: str) -> str:
    """Return the hint for ``name``, an attribute of NumPy's arrays, on a field or array."""
    call = "()" if callable(getattr(np.ndarray, name)) else ""
    reduction = _REDUCTIONS.get(name)
    on_device = f', and `sg.algorithms.reduce(x, "{reduction}")` computes on the device' if reduction else ""
    return f"NumPy's arrays have it: `x.to_numpy().{name}{call}`{on_device}"


def _binary(symbol: str, swapped: bool) -> Callable[[object, object], object]:
    def operate(self: object, other: object) -> object:
        if current_trace() is not None:
            return NotImplemented  # The front end has messages of its own.
        left, right = (other, self) if swapped else (self, other)
        message = f"`{symbol}` is not defined for {scalar.describe(left)} and {scalar.describe(right)} outside of kernels"
        raise SpirogradTypeError(message, None, _HINT)

    return operate


def _unary(symbol: str) -> Callable[[object], NoReturn]:
    def operate(self: object) -> NoReturn:
        if current_trace() is not None:
            raise TypeError
        raise SpirogradTypeError(f"`{symbol}` is not defined for {scalar.describe(self)} outside of kernels", None, _HINT)

    return operate


_ARITHMETIC = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@",
    "lshift": "<<", "rshift": ">>", "and": "&", "or": "|", "xor": "^",
}  # fmt: skip
for _name, _symbol in _ARITHMETIC.items():
    setattr(HostScope, f"__{_name}__", _binary(_symbol, False))
    setattr(HostScope, f"__r{_name}__", _binary(_symbol, True))
for _name, _symbol in {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items():
    setattr(HostScope, f"__{_name}__", _binary(_symbol, False))
for _name, _symbol in {"neg": "-", "pos": "+", "invert": "~", "abs": "abs"}.items():
    setattr(HostScope, f"__{_name}__", _unary(_symbol))
