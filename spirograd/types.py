"""Types for annotations: ``sg.types.NDArray[dtype, ndim]``, ``sg.types.Vector[n, dtype]`` ..."""

from typing import TYPE_CHECKING

from spirograd.base import later as _later
from spirograd.lang import primitive_types
from spirograd.lang.annotations import is_integral, is_real, is_signed, is_tensor, matrix, ndarray, ref, vector
from spirograd.lang.argpacks import argpack
from spirograd.lang.data.ndarray import BufferViewType
from spirograd.lang.promotions import promotion_table
from spirograd.lang.struct import StructType, struct

if TYPE_CHECKING:  # see spirograd/__init__.py
    from spirograd.lang.typed import Function as func
    from spirograd.lang.typed import Matrix, NDArray, Template, Vector
    from spirograd.lang.typed import SparseMatrixBuilder as sparse_matrix_builder
    from spirograd.lang.typed import Template as template

    f16 = f32 = f64 = float16 = float32 = float64 = float
    i8 = i16 = i32 = i64 = u8 = u16 = u32 = u64 = int
    int8 = int16 = int32 = int64 = uint8 = uint16 = uint32 = uint64 = int
    u1 = uint1 = bool
else:
    from spirograd.lang.annotations import MatrixOf as Matrix
    from spirograd.lang.annotations import NDArray, Template, func, sparse_matrix_builder, template
    from spirograd.lang.annotations import VectorOf as Vector
    from spirograd.lang.primitive_types import (
        f16,
        f32,
        f64,
        float16,
        float32,
        float64,
        i8,
        i16,
        i32,
        i64,
        int8,
        int16,
        int32,
        int64,
        u1,
        u8,
        u16,
        u32,
        u64,
        uint1,
        uint8,
        uint16,
        uint32,
        uint64,
    )

__all__ = [
    "BufferViewType", "Matrix", "NDArray", "StructType", "Template", "Vector", "argpack", "f16", "f32", "f64", "float16", "float32",
    "float64", "func", "i8", "i16", "i32", "i64", "int8", "int16", "int32", "int64", "is_integral", "is_real", "is_signed", "is_tensor",
    "matrix", "ndarray", "primitive_types", "promotion_table", "ref", "sparse_matrix_builder", "struct", "template", "u1", "u8", "u16",
    "u32", "u64", "uint1", "uint8", "uint16", "uint32", "uint64", "vector",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__ = _later.attributes("spirograd.types", __all__, _later.LATER_TYPES)
