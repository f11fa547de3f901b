"""The math module in Python scope against NumPy and cmath."""

import cmath

import numpy as np
import pytest

from spirograd.base.errors import SpirogradTypeError
from spirograd.lang import math as tm
from spirograd.lang.matrix import Vector
from spirograd.lang.scalar import Value


def close(got, expected):
    np.testing.assert_allclose(got.to_numpy() if hasattr(got, "to_numpy") else got, expected, rtol=1e-6, atol=1e-7)


def test_entry_by_entry():
    v = Vector([0.3, -0.5, 1.7])
    a = v.to_numpy()
    close(tm.mix(v, 1.0, 0.25), a * 0.75 + 0.25)
    close(tm.clamp(v, 0.0, 1.0), a.clip(0, 1))
    close(tm.fract(v), a - np.floor(a))
    close(tm.sign(v), np.sign(a))
    close(tm.step(0.5, v), (a >= 0.5) * 1.0)
    t = a.clip(0, 1)
    close(tm.smoothstep(0.0, 1.0, v), t * t * (3 - 2 * t))
    close(tm.mod(v, 1.5), np.mod(a, 1.5))
    close(tm.degrees(v), np.degrees(a))
    close(tm.radians(v), np.radians(a))
    close(tm.log2(8.0), 3.0)
    close(tm.max(v, 0.0, 0.1), np.maximum(a, 0.1))
    assert tm.isnan(tm.nan) and tm.isinf(tm.inf) and (tm.popcnt(7), tm.clz(1), tm.ffs(8), tm.ffs(0)) == (3, 31, 4, 0)


def test_vectors():
    v, w = Vector([1.0, 2.0, 3.0]), Vector([0.3, -0.5, 0.7])
    a, b = v.to_numpy(), w.to_numpy()
    close(tm.length(v), np.linalg.norm(a))
    close(tm.distance(v, w), np.linalg.norm(a - b))
    close(tm.normalize(v), a / np.linalg.norm(a))
    close(tm.dot(v, w), a @ b)
    close(tm.cross(v, w), np.cross(a, b))
    n = b / np.linalg.norm(b)
    close(tm.reflect(v, Vector(n)), a - 2 * (a @ n) * n)
    with pytest.raises(SpirogradTypeError, match="vector"):
        tm.length(3.0)


@pytest.mark.parametrize("eta", [0.5, 0.9, 1.0])
def test_refraction_obeys_snell(eta):
    incoming, normal = np.array([0.6, -0.8]), np.array([0.0, 1.0])
    out = tm.refract(Vector(incoming), Vector(normal), eta).to_numpy()
    close(np.linalg.norm(out), 1.0)
    close(out[0], eta * incoming[0])
    close(tm.refract(Vector([0.99, -0.1]), Vector(normal), 2.0), [0.0, 0.0])


@pytest.mark.parametrize("z", [1 + 2j, -1 - 2j, 0.5 - 0.25j, -3 + 0j])
def test_complex(z):
    def pair(c):
        return [c.real, c.imag]

    v, other = Vector(pair(z)), 0.5 - 0.3j
    u = Vector(pair(other))
    close(tm.cmul(v, u), pair(z * other))
    close(tm.cdiv(v, u), pair(z / other))
    close(tm.cconj(v), pair(z.conjugate()))
    close(tm.cinv(v), pair(1 / z))
    close(tm.cpow(v, 1.5), pair(z**1.5))
    close(tm.csqrt(v), pair(cmath.sqrt(z)))
    close(tm.cexp(v), pair(cmath.exp(z)))
    close(tm.clog(v), pair(cmath.log(z)))


def turn(axis, a):
    """The matrix that turns coordinates about a coordinate axis."""
    i, j = [(1, 2), (2, 0), (0, 1)][axis]
    m = np.eye(4)
    m[i, i] = m[j, j] = np.cos(a)
    m[i, j], m[j, i] = np.sin(a), -np.sin(a)
    return m


def test_transformations():
    for axis in range(3):
        close(tm.rot_by_axis(tm.vec3([float(k == axis) * 2 for k in range(3)]), 0.3), turn(axis, 0.3))
    close(tm.rot_yaw_pitch_roll(0.1, 0.2, 0.3), turn(2, 0.3) @ turn(0, 0.2) @ turn(1, 0.1))
    close(tm.rotation3d(0.1, 0.2, 0.3), turn(2, 0.2) @ turn(0, 0.1) @ turn(1, 0.3))
    close(tm.rotation2d(0.3), [[np.cos(0.3), -np.sin(0.3)], [np.sin(0.3), np.cos(0.3)]])
    close(tm.translate(1, 2, 3) @ tm.vec4(1, 1, 1, 1), [2, 3, 4, 1])
    close(tm.scale(1, 2, 3) @ tm.vec4(1, 1, 1, 1), [1, 2, 3, 1])
    close(tm.eye(3), np.eye(3))
    close(tm.inverse(tm.mat2(1, 2, 3, 4)), np.linalg.inv([[1, 2], [3, 4]]))
    close(tm.determinant(tm.mat2(1, 2, 3, 4)), -2)


def test_everything_traces(tracing):
    _, x = tracing
    v, w, z = tm.vec3(x, 1, 2), tm.vec3(1, x, 0), tm.vec2(x, 1)
    scalars = [tm.dot(v, w), tm.length(v), tm.distance(v, w), tm.sign(x), tm.fract(x), tm.log2(x), tm.mod(x, 2), tm.step(0.5, x)]
    assert all(isinstance(s, Value) for s in scalars)
    vectors = [tm.mix(v, w, 0.5), tm.clamp(v, 0, 1), tm.smoothstep(0, 1, v), tm.reflect(v, w), tm.refract(v, w, 0.5)]
    assert [r.shape for r in (*vectors, tm.normalize(v), tm.cross(v, w))] == [(3,)] * 7
    pairs = [tm.cmul(z, z), tm.cdiv(z, z), tm.cconj(z), tm.cinv(z), tm.cpow(z, x), tm.csqrt(z), tm.cexp(z), tm.clog(z), tm.vdir(x)]
    assert [r.shape for r in pairs] == [(2,)] * 9
    matrices = [tm.rot_by_axis(v, x), tm.rot_yaw_pitch_roll(x, x, x), tm.rotation3d(x, x, x), tm.translate(x, 0, 0), tm.scale(x, 1, 1)]
    assert [r.shape for r in matrices] == [(4, 4)] * 5 and tm.rotation2d(x).shape == (2, 2) and tm.eye(3).shape == (3, 3)
