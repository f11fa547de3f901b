"""The scalar types by name, and lists of them."""

from spirograd.base.dtypes import FLOATS, INTEGERS, f16, f32, f64, i8, i16, i32, i64, u1, u8, u16, u32, u64

real_types = list(FLOATS)
integer_types = list(INTEGERS)
all_types = [*real_types, *integer_types]

__all__ = ["all_types", "f16", "f32", "f64", "i8", "i16", "i32", "i64", "integer_types", "real_types", "u1", "u8", "u16", "u32", "u64"]
