"""The errors for operands, attributes and callees that do not fit."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

from spirograd.base.errors import SpirogradTypeError
from spirograd.base.wording import did_you_mean
from spirograd.lang import arithmetic
from spirograd.lang.frontend.lvalues import has_elements
from spirograd.lang.matrix import Matrix
from spirograd.lang.scalar import Value, describe, type_error
from spirograd.lang.struct import Struct


def operand_hint(x: object) -> str:
    """Return what to do about an operand that operators do not take."""
    if has_elements(x):
        return "name an element: `x[i]`, or `x[None]` where there are no axes"
    if x is None:
        return "a function whose value is used must return one on every path"
    if isinstance(x, (list, tuple)):
        return "make it a vector: `sg.Vector([...])`"
    if isinstance(x, Struct):
        return "operate on its members"
    return ""


def undefined(symbol: str, left: object, right: object) -> SpirogradTypeError:
    """Return the error for an operator that is not defined for its operands."""
    return type_error(f"`{symbol}` is not defined for {describe(left)} and {describe(right)}", operand_hint(left) or operand_hint(right))


def python_call(callee: object) -> SpirogradTypeError:
    """Return the error for a Python function that is called with run-time values."""
    name = getattr(callee, "__name__", type(callee).__name__)
    if callee is str or isinstance(getattr(callee, "__self__", None), str):
        hint = "print values as they are, or an f-string"
    elif getattr(callee, "__module__", "") in ("math", "numpy") or type(callee).__module__.startswith("numpy"):
        known = getattr(arithmetic, name, None) is not None
        absent = f"neither `sg` nor `sg.math` has `{name}`: write it as a function with `@sg.func`"
        hint = f"use `sg.{name}`" if known else absent
    elif isinstance(callee, type):
        hint = "kernels have structs: `sg.types.struct`, `@sg.dataclass`"
    else:
        hint = "write what it does as a function with `@sg.func`"
    what = "class" if isinstance(callee, type) else "function"
    return type_error(f"`{name}` is a Python {what} and cannot take run-time values", hint)


def is_host_only(callee: object) -> bool:
    """Return whether a function of this package works outside of kernels only."""
    owner = getattr(callee, "__self__", None)
    module = str(getattr(callee, "__module__", ""))
    if not module.startswith("spirograd.") or isinstance(owner, (Matrix, Struct, Value)):
        return False
    return module == "spirograd.api" or getattr(callee, "__name__", "") in _HOST_ONLY


def host_only(callee: object) -> SpirogradTypeError:
    """Return the error for a function of this package that is called in a kernel."""
    name: str = getattr(callee, "__name__", "")
    return type_error(f"`{name}` works outside of kernels only", _HOST_HINTS.get(name, "call it before or after the kernel"))


_HOST_HINTS = {
    **dict.fromkeys(("field", "ndarray", "tensor"), "make it before; inside of kernels there are variables, vectors and structs"),
}
_HOST_ONLY = {
    "copy_from", "to_numpy", "from_numpy", "to_torch", "from_torch", "to_dlpack", "field", "ndarray", "tensor", "place", "dense",
    "lazy_grad", "lazy_dual", "finalize", "destroy",
}  # fmt: skip


def no_attribute(base: object, name: str) -> SpirogradTypeError:
    """Return the error for an attribute that is not there."""
    if isinstance(base, Struct):
        names: Iterable[str] = base.entries
        return type_error(f"the struct has no member `{name}`", did_you_mean(name, names) or f"it has {', '.join(names)}")
    names = () if isinstance(base, Value) else (n for n in dir(base) if not n.startswith("_"))
    what = "name" if isinstance(base, ModuleType) else "attribute"
    reduced = name in _REDUCTIONS and not isinstance(base, Value) and hasattr(base, "shape")
    hint = "combine the elements in a loop, as in `total += x[i]`" if reduced else did_you_mean(name, names)
    return type_error(f"{describe(base)} has no {what} `{name}`", hint)


_REDUCTIONS = ("sum", "min", "max", "mean", "any", "all", "prod", "norm", "dot")
