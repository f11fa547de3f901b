"""What `types` offers: scalar types and the types of vectors, matrices, structs, arrays."""

from __future__ import annotations

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
from spirograd.lang.primitive_types import (
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint1,
    uint8,
    uint16,
    uint32,
    uint64,
)
from spirograd.lang.struct import StructType, struct

__all__ = [
    "NDArray", "StructType", "Template", "f16", "f32", "f64", "float16", "float32", "float64", "func", "i8", "i16", "i32", "i64", "int8", "int16",
    "int32", "int64", "is_integral", "is_real", "is_signed", "is_tensor", "matrix", "ndarray", "primitive_types", "struct",
    "template", "u1", "u8", "u16", "u32", "u64", "uint1", "uint8", "uint16", "uint32", "uint64", "vector",
]  # fmt: skip
