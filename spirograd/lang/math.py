"""The `math` module of the language: vector types, shader-style functions, rotations, complex numbers.

Everything works in Python and in kernels, on numbers, and entry by entry on vectors where that makes sense. Complex numbers are
`vec2` (re, im). Formulas of `reflect`, `refract`, `smoothstep`, `mix`, `step`: the OpenGL Shading Language specification, section 8.
"""

from __future__ import annotations

import math as _math
from typing import TYPE_CHECKING, Any

from spirograd.base.dtypes import u32
from spirograd.lang import arithmetic, scalar
from spirograd.lang.annotations import MatrixType, VectorType
from spirograd.lang.arithmetic import (
    acos,
    asin,
    atan2,
    ceil,
    clz,
    cos,
    elementwise,
    exp,
    ffs,
    floor,
    isinf,
    isnan,
    log,
    max,
    min,
    popcnt,
    pow,
    round,
    sin,
    sqrt,
    tan,
    tanh,
    traceable,
)
from spirograd.lang.matrix import Matrix, Vector
from spirograd.lang.scalar import Scalar, Value, type_error
from spirograd.lang.traced_numbers import TracedNumber

e = _math.e
pi = _math.pi
inf = _math.inf
nan = _math.nan

if TYPE_CHECKING:  # classes, which annotations can name
    from spirograd.lang.typed import ivec2, ivec3, ivec4, mat2, mat3, mat4, uvec2, uvec3, uvec4, vec2, vec3, vec4
else:
    vec2, vec3, vec4 = (VectorType(n, float) for n in (2, 3, 4))
    ivec2, ivec3, ivec4 = (VectorType(n, int) for n in (2, 3, 4))
    uvec2, uvec3, uvec4 = (VectorType(n, u32) for n in (2, 3, 4))
    mat2, mat3, mat4 = (MatrixType(n, n, float) for n in (2, 3, 4))

__all__ = [
    "acos", "asin", "atan2", "cconj", "cdiv", "ceil", "cexp", "cinv", "clamp", "clog", "clz", "cmul", "cos", "cpow", "cross",
    "csqrt", "degrees", "determinant", "distance", "dot", "e", "exp", "eye", "ffs", "floor", "fract", "inf", "inverse", "isinf",
    "isnan", "ivec2", "ivec3", "ivec4", "length", "log", "log2", "mat2", "mat3", "mat4", "max", "min", "mix", "mod", "nan",
    "normalize", "pi", "popcnt", "pow", "radians", "reflect", "refract", "rot_by_axis", "rot_yaw_pitch_roll", "rotation2d",
    "rotation3d", "round", "scale", "sign", "sin", "smoothstep", "sqrt", "step", "tan", "tanh", "translate", "uvec2", "uvec3",
    "uvec4", "vdir", "vec2", "vec3", "vec4",
]  # fmt: skip


def _real(x: Scalar) -> Scalar:
    """Return a scalar as a float."""
    return scalar.to_float(x) if isinstance(x, Value) else float(x) if not isinstance(x, TracedNumber) else x


def _vector(x: object, function: str) -> Matrix:
    if not isinstance(x, Matrix) or x.ndim != 1:
        raise type_error(f"`{function}` takes a vector, got {scalar.describe(x)}")
    return x


def _complex(z: object, function: str) -> tuple[Scalar, Scalar]:
    if not isinstance(z, Matrix) or z.shape != (2,):
        raise type_error(f"`{function}` takes a complex number as a vec2, got {scalar.describe(z)}")
    return z[0], z[1]


# --- entry by entry ---


@elementwise
def mix(x: Scalar, y: Scalar, a: Scalar) -> object:
    """``x * (1 - a) + y * a``."""
    return x * (1.0 - a) + y * a


@elementwise
def clamp(x: Scalar, xmin: Scalar, xmax: Scalar) -> object:
    """Return ``min(xmax, max(xmin, x))``: ``x`` limited to the range from xmin to xmax; xmax if they are exchanged."""
    return arithmetic.min(xmax, arithmetic.max(xmin, x))


@elementwise
def step(edge: Scalar, x: Scalar) -> object:
    """Return 0 where x < edge, else 1, as a float."""
    zero = scalar.cast(0.0, scalar.to_float(x).dtype) if isinstance(x, Value) else 0.0
    return scalar.select(scalar.less(x, edge), zero, 1.0)


@elementwise
def smoothstep(edge0: Scalar, edge1: Scalar, x: Scalar) -> object:
    """Return 0 up to edge0, 1 from edge1 on, and the cubic ``t * t * (3 - 2 * t)`` between."""
    t = clamp((x - edge0) / (edge1 - edge0), 0.0, 1.0)
    return t * t * (3.0 - 2.0 * t)


@elementwise
def fract(x: Scalar) -> object:
    """``x - floor(x)``."""
    return x - arithmetic.floor(x)


@elementwise
def sign(x: Scalar) -> object:
    """Return the sign of x: -1.0, 0.0 or 1.0."""
    x = _real(x)
    if isinstance(x, Value):
        one = scalar.cast(1.0, x.dtype)
        return scalar.select(x > 0.0, one, scalar.select(x < 0.0, -one, 0.0))
    return float((x > 0) - (x < 0))


@elementwise
def mod(x: Scalar, y: Scalar) -> object:
    """``x - y * floor(x / y)``, as a float."""
    return _real(x) - y * arithmetic.floor(x / y)


@elementwise
def degrees(x: Scalar) -> object:
    """Convert radians to degrees."""
    return x * (180.0 / pi)


@elementwise
def radians(x: Scalar) -> object:
    """Convert degrees to radians."""
    return x * (pi / 180.0)


@elementwise
def log2(x: Scalar) -> object:
    """Return the logarithm to base 2."""
    return arithmetic.log(x) / _math.log(2.0)


# --- vectors and matrices ---


@traceable
def length(x: object) -> Any:
    """Return the Euclidean norm of a vector."""
    return _vector(x, "length").norm()


@traceable
def distance(x: Matrix, y: Matrix) -> Any:
    """Return the norm of ``x - y``."""
    return _vector(x - y, "distance").norm()


@traceable
def normalize(v: object) -> Matrix:
    """Return ``v`` divided by its norm (NaN for a vector of zeros)."""
    return _vector(v, "normalize").normalized()


@traceable
def dot(x: object, y: object) -> Any:
    """Return the inner product of two vectors."""
    return _vector(x, "dot").dot(y)


@traceable
def cross(x: object, y: object) -> Any:
    """Return the cross product of two vectors of 3 (of 2: its third component)."""
    return _vector(x, "cross").cross(y)


@traceable
def reflect(x: object, n: object) -> Any:
    """Return the direction ``x`` mirrored at the plane with unit normal ``n``."""
    return x - 2.0 * dot(x, n) * n


@traceable
def refract(x: Matrix, n: Matrix, eta: Scalar) -> Any:
    """Return the direction ``x`` refracted at the plane with unit normal ``n``; ``eta`` is the ratio of indices. Zeros for total
    reflection."""
    cosine = dot(x, n)
    k = 1.0 - eta * eta * (1.0 - cosine * cosine)
    root = arithmetic.sqrt(arithmetic.select(k < 0.0, 0.0, k))
    refracted = eta * x - (eta * cosine + root) * n
    return arithmetic.select(k < 0.0, 0.0, refracted)


@traceable
def determinant(m: Matrix) -> Any:
    """Return the determinant of a square matrix up to 8x8."""
    return m.determinant()


@traceable
def inverse(m: Matrix) -> Matrix:
    """Return the inverse of a square matrix up to 8x8; infinite or NaN if it is singular."""
    return m.inverse()


@traceable
def eye(n: int) -> Matrix:
    """Return the n x n identity of the default float type."""
    return Matrix.identity(float, n)


@traceable
def vdir(ang: object) -> Matrix:
    """Return the unit vector at an angle of ``ang`` radians from the x axis, counterclockwise."""
    return Vector([arithmetic.cos(ang), arithmetic.sin(ang)])


# --- transformations: matrices that act on column vectors (homogeneous where 4x4) ---


@traceable
def translate(dx: object, dy: object, dz: object) -> Matrix:
    """Return the 4x4 matrix that adds (dx, dy, dz)."""
    return mat4([[1, 0, 0, dx], [0, 1, 0, dy], [0, 0, 1, dz], [0, 0, 0, 1]])


@traceable
def scale(sx: object, sy: object, sz: object) -> Matrix:
    """Return the 4x4 matrix that multiplies the axes by sx, sy, sz."""
    return mat4([[sx, 0, 0, 0], [0, sy, 0, 0], [0, 0, sz, 0], [0, 0, 0, 1]])


@traceable
def rotation2d(ang: object) -> Matrix:
    """Return the 2x2 matrix that turns counterclockwise by ``ang`` radians."""
    c, s = arithmetic.cos(ang), arithmetic.sin(ang)
    return Matrix([[c, -s], [s, c]])


@traceable
def rot_by_axis(axis: object, ang: object) -> Matrix:
    """Return the 4x4 matrix that turns coordinates by ``ang`` (radians) about ``axis``, a vec3 of any length: Rodrigues' formula,
    transposed."""
    x, y, z = normalize(axis)
    c, s = arithmetic.cos(ang), arithmetic.sin(ang)
    t = 1.0 - c
    return mat4(
        [
            [c + t * x * x, t * x * y + s * z, t * x * z - s * y, 0],
            [t * x * y - s * z, c + t * y * y, t * y * z + s * x, 0],
            [t * x * z + s * y, t * y * z - s * x, c + t * z * z, 0],
            [0, 0, 0, 1],
        ]
    )


@traceable
def rot_yaw_pitch_roll(yaw: object, pitch: object, roll: object) -> Matrix:
    """Return the 4x4 matrix of the turns of coordinates about z by roll, x by pitch, y by yaw (radians), multiplied in this order."""
    turns: Matrix = rot_by_axis(vec3(0, 0, 1), roll) @ rot_by_axis(vec3(1, 0, 0), pitch) @ rot_by_axis(vec3(0, 1, 0), yaw)
    return turns


@traceable
def rotation3d(ang_x: object, ang_y: object, ang_z: object) -> Matrix:
    """Return `rot_yaw_pitch_roll` with yaw ``ang_z``, pitch ``ang_x``, roll ``ang_y``."""
    return rot_yaw_pitch_roll(ang_z, ang_x, ang_y)


# --- complex numbers ---


@traceable
def cmul(z1: object, z2: object) -> Matrix:
    """Return the product ``z1 * z2`` of two complex numbers."""
    (a, b), (c, d) = _complex(z1, "cmul"), _complex(z2, "cmul")
    return Vector([a * c - b * d, a * d + b * c])


@traceable
def cconj(z: object) -> Matrix:
    """Return the conjugate of the complex number ``z``."""
    a, b = _complex(z, "cconj")
    return Vector([a, -b])


@traceable
def cinv(z: object) -> Matrix:
    """Return ``1 / z``."""
    result: Matrix = cconj(z) / dot(z, z)
    return result


@traceable
def cdiv(z1: object, z2: object) -> Matrix:
    """Return the quotient ``z1 / z2`` of two complex numbers."""
    result: Matrix = cmul(z1, cconj(z2)) / dot(z2, z2)
    return result


@traceable
def cpow(z: object, n: object) -> Matrix:
    """Return the complex number ``z`` to the real power ``n``, on the principal branch."""
    a, b = _complex(z, "cpow")
    result: Matrix = vdir(arithmetic.atan2(b, a) * n) * arithmetic.pow(length(z), n)
    return result


@traceable
def csqrt(z: object) -> Matrix:
    """Return the square root of the complex number ``z`` whose real part is not negative."""
    a, b = _complex(z, "csqrt")
    result: Matrix = vdir(arithmetic.atan2(b, a) * 0.5) * arithmetic.sqrt(length(z))
    return result


@traceable
def cexp(z: object) -> Matrix:
    """Return e to the power of the complex number ``z``."""
    a, b = _complex(z, "cexp")
    result: Matrix = vdir(b) * arithmetic.exp(a)
    return result


@traceable
def clog(z: object) -> Matrix:
    """Return the natural logarithm of the complex number ``z``, on the principal branch."""
    a, b = _complex(z, "clog")
    return Vector([arithmetic.log(length(z)), arithmetic.atan2(b, a)])
