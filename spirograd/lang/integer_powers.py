"""Powers of integers whose exponents are known at run time only: a loop that squares (Knuth, TAOCP volume 2, 4.6.3)."""

from __future__ import annotations

from spirograd.base.artifact import FaultSite
from spirograd.base.dtypes import VOID, DType
from spirograd.ir import ops as ir
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Op
from spirograd.lang.language_options import LanguageOptions


def integer_power(b: Builder, options: LanguageOptions, a: Op, n: Op) -> Op:
    """Return ``a ** n``. For negative n it is 0 (1 and -1 to it excepted, as truncation of the true value has it), or the power with the
    positive exponent if the options say so.

    With checks, negative exponents fail, and a square that no factor needs, and that may not fit, is not computed.
    """
    t, counting = a.type, n.type
    assert isinstance(t, DType) and isinstance(counting, DType)
    debug, ignores_sign = options.debug, options.ignores_sign_of_powers
    if ignores_sign and not debug and counting.is_signed:
        n = b.emit(ir.abs_, n)
    one, low, high = b.const(1, t), b.const(0, counting), b.const(1, counting)
    if debug and counting.is_signed:
        site = FaultSite("overflow", "{0} ** {1}: an integer to a negative power is no integer", (t, counting), b.loc)
        b.emit(ir.check, b.emit(ir.ge, n, low), a, n, attr=site, type=VOID)
    base, left, out = b.begin(t, counting, t)
    condition = b.end([b.emit(ir.gt, left, low)])
    base, left, out = b.begin(t, counting, t)
    odd = b.emit(ir.ne, b.emit(ir.and_, left, high), low)
    next_out = b.emit(ir.select, odd, b.emit(ir.mul, out, base), out)
    factor = b.emit(ir.select, b.emit(ir.gt, left, high), base, one) if debug else base
    body = b.end([b.emit(ir.mul, base, factor), b.emit(ir.shr, left, high), next_out])
    result = b.while_([a, n, one], condition, body)[2]
    if not counting.is_signed or ignores_sign:
        return result
    inverse = b.cast(b.emit(ir.eq, a, one), t)
    if t.is_signed:
        minus_one = b.const(-1, t)
        odd = b.emit(ir.ne, b.emit(ir.and_, n, high), low)
        inverse = b.emit(ir.select, b.emit(ir.eq, a, minus_one), b.emit(ir.select, odd, minus_one, one), inverse)
    return b.emit(ir.select, b.emit(ir.lt, n, low), inverse, result)
