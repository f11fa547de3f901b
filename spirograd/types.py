"""Types for annotations: ``sg.types.ndarray(dtype, ndim)``, ``sg.types.vector(n, dtype)`` ..."""

from spirograd.base.dtypes import f16, f32, f64, i8, i16, i32, i64, u1, u8, u16, u32, u64
from spirograd.lang import primitive_types
from spirograd.lang.annotations import (
    NDArray,
    Template,
    func,
    is_integral,
    is_real,
    is_signed,
    is_tensor,
    matrix,
    ndarray,
    template,
    vector,
)
from spirograd.lang.struct import StructType, struct

int8, int16, int32, int64 = i8, i16, i32, i64
uint1, uint8, uint16, uint32, uint64 = u1, u8, u16, u32, u64
float16, float32, float64 = f16, f32, f64

__all__ = [
    "NDArray", "StructType", "Template", "f16", "f32", "f64", "float16", "float32", "float64", "func", "i8", "i16", "i32", "i64", "int8",
    "int16", "int32", "int64", "is_integral", "is_real", "is_signed", "is_tensor", "matrix", "ndarray", "primitive_types", "struct",
    "template", "u1", "u8", "u16", "u32", "u64", "uint1", "uint8", "uint16", "uint32", "uint64", "vector",
]  # fmt: skip
