"""Lower bounds of the values of floats, from the operations that compute them."""

from __future__ import annotations

from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.nodes import Op

SMALLEST_NORMAL_F32 = 2.0**-126
_DEPTH = 8  # The depth of operands that is examined.


def is_at_least(value: Op, bound: float, depth: int = _DEPTH) -> bool:
    """Return whether a float is surely not less than ``bound`` >= 0 (it may be NaN), also if products and sums are fused or rounded."""
    if not isinstance(value.type, DType) or not value.type.is_float or not depth:
        return False
    if value.code is ops.const:
        return bool(value.attr >= bound)
    args = value.args
    if value.code in (ops.add, ops.fma):
        # The sum of two values that are not negative is not less than either of them.
        first = is_at_least(args[0], 0.0, depth - 1) if value.code is ops.add else _is_square(args)
        large = is_at_least(args[-1], bound, depth - 1)
        if value.code is ops.fma:
            return first and large
        return (first and large) or (is_at_least(args[0], bound, depth - 1) and is_at_least(args[1], 0.0, depth - 1))
    if bound > 0.0:
        return False
    return value.code in (ops.abs_, ops.sqrt, ops.exp) or (value.code is ops.mul and _is_square(args))


def _is_square(args: tuple[Op, ...]) -> bool:
    return args[0] is args[1]
