"""The scalar types under all their names."""

from __future__ import annotations

from spirograd.base.dtypes import ALL, FLOATS, INTEGERS, f16, f32, f64, i8, i16, i32, i64, u1, u8, u16, u32, u64

int8, int16, int32, int64 = i8, i16, i32, i64
uint1, uint8, uint16, uint32, uint64 = u1, u8, u16, u32, u64
float16, float32, float64 = f16, f32, f64

all_types = list(ALL)
integer_types = list(INTEGERS)
real_types = list(FLOATS)
