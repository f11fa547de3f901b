"""The digits of keys that are sorted by radix."""

# mypy: disable-error-code="no-untyped-def, valid-type"
from __future__ import annotations

import math

from spirograd.base.dtypes import DType, i32, u32, u64
from spirograd.lang import arithmetic, forms
from spirograd.lang.frontend.func import func
from spirograd.types import template


def word_of(dtype: DType) -> DType:
    """Return the unsigned type of the width of a key."""
    return u64 if dtype.bits == 64 else u32


@func
def digit_of(key, shift: int, digits: template()):
    """Return the digit of a key at bit ``shift``, of a bit pattern that sorts as the key does. All NaN come after all other keys; zeros of
    both signs are equal."""
    word = forms.static(word_of(key.dtype))
    code = arithmetic.cast(0, word)
    if forms.static(key.dtype.is_float):
        code = arithmetic.bit_cast(key, word)
        top = arithmetic.cast(1, word) << (key.dtype.bits - 1)
        size = code & ~top
        ordered = arithmetic.select(code >= top, ~code, code | top)
        code = arithmetic.select(size == 0, top, ordered)
        nan = size > arithmetic.bit_cast(arithmetic.cast(math.inf, key.dtype), word)
        code = arithmetic.select(nan, ~arithmetic.cast(0, word), code)
    else:
        code = arithmetic.cast(key, word)
        if forms.static(key.dtype.is_signed):
            code = code ^ (arithmetic.cast(1, word) << (key.dtype.bits - 1))
    return arithmetic.cast((code >> arithmetic.cast(shift, word)) & arithmetic.cast(digits - 1, word), i32)
