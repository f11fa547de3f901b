"""spirograd: parallel compute kernels in Python, for Vulkan and the CPU.

    import spirograd as sg

    sg.init(arch=sg.vulkan)
"""

from spirograd import errors, lang, types
from spirograd.api import amdgpu, arm64, available_archs, cfg, cpu, cuda, gpu, init, interpreter, metal, reset, sync, vulkan, wgpu, x64
from spirograd.base.dtypes import f16, f32, f64, i8, i16, i32, i64, u1, u8, u16, u32, u64
from spirograd.errors import *  # noqa: F403
from spirograd.lang.annotations import Template, template
from spirograd.lang.data.axes import axes, i, ij, ijk, ijkl, ijl, ik, ikl, il, j, jk, jkl, jl, k, kl, l
from spirograd.lang.data.enums import Backend, Layout
from spirograd.lang.data.field import MatrixField, ScalarField, StructField, field
from spirograd.lang.data.ndarray import MatrixNdarray, Ndarray, ScalarNdarray, VectorNdarray, ndarray
from spirograd.lang.data.tensor import MatrixTensor, Tensor, VectorTensor, tensor
from spirograd.lang.data.tree import FieldsBuilder, SNode, root
from spirograd.lang.forms import (
    atomic_add, atomic_and, atomic_cas, atomic_exchange, atomic_max, atomic_min, atomic_mul, atomic_or, atomic_sub, atomic_xor,
    grouped, loop_config, ndrange, randn, random, static, static_assert, static_print,
)  # fmt: skip
from spirograd.lang.frontend.function import func
from spirograd.lang.frontend.kernel import data_oriented, kernel
from spirograd.lang.matrix import Matrix, Vector
from spirograd.lang.ops import (
    abs, acos, add, asin, atan2, bit_and, bit_cast, bit_not, bit_or, bit_sar, bit_shl, bit_shr, bit_xor, cast, ceil, clz, cmp_eq, cmp_ge, cmp_gt, cmp_le,
    cmp_lt, cmp_ne, cos, div, exp, ffs, floor, floor_div, isinf, isnan, log, logical_and, logical_not, logical_or, max, min, mod, mul, neg, one, popcnt,
    pow, raw_div, raw_mod, round, rsqrt, select, sin, sqrt, sub, tan, tanh, trunc, zero,
)  # fmt: skip
from spirograd.lang.struct import Struct, dataclass

int8, int16, int32, int64 = i8, i16, i32, i64
uint1, uint8, uint16, uint32, uint64 = u1, u8, u16, u32, u64
float16, float32, float64 = f16, f32, f64
__version__ = "0.1.0"
