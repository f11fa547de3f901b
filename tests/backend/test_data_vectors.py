"""Vectors and matrices in kernels: what they are made of, arithmetic, parts, methods, the math module."""

import needs
import numpy as np
import pytest
from backend.batch import check

import spirograd as sg
from spirograd.base.dtypes import DType

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.vulkan_or_wgpu]

A = np.array([1.5, -2.25, 3.0])
B = np.array([0.5, 4.0, -1.25])
U = np.array([7, -3, 12])
V = np.array([2, 5, -4])
M = np.array([[2.0, -1.0, 0.5], [1.0, 3.0, -2.0], [0.25, 1.5, 4.0]])
N = np.array([[1.0, 2.0, -1.0], [0.5, -1.5, 2.0], [3.0, 1.0, 1.0]])
R = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])

vec3 = sg.types.vector(3, sg.f32)
INPUTS = {
    "a": (vec3, A),
    "b": (vec3, B),
    "u": (sg.types.vector(3, sg.i32), U),
    "v": (sg.types.vector(3, sg.i32), V),
    "d": (sg.types.vector(3, sg.f64), A),
    "m": (sg.types.matrix(3, 3, sg.f32), M),
    "n": (sg.types.matrix(3, 3, sg.f32), N),
    "r": (sg.types.matrix(2, 3, sg.f32), R),
    "s": (sg.f32, 2.5),
    "k": (sg.i32, 3),
}


def test_arithmetic_and_promotion() -> None:
    check(
        [
            ("a + b", A + B, "sg.f32"),
            ("a - b", A - B, "sg.f32"),
            ("a * b", A * B, "sg.f32"),
            ("a / b", A / B, "sg.f32"),
            ("a // b", A // B, "sg.f32"),
            ("a % b", A % B, "sg.f32"),
            ("a ** 2", A**2, "sg.f32"),
            ("abs(b) ** a", abs(B) ** A),
            ("a + s", A + 2.5, "sg.f32"),
            ("s - a", 2.5 - A, "sg.f32"),
            ("k * a", 3 * A, "sg.f32"),
            ("a / k", A / 3, "sg.f32"),
            ("2 / a", 2 / A, "sg.f32"),
            ("-a", -A, "sg.f32"),
            ("+a", A, "sg.f32"),
            ("u + v", U + V, "sg.i32"),
            ("u + 1", U + 1, "sg.i32"),
            ("u / v", U / V, "sg.f32"),
            ("u // v", U // V, "sg.i32"),
            ("u % v", U % V, "sg.i32"),
            ("u * a", U * A, "sg.f32"),
            ("a + d", A + A, "sg.f64"),
            ("u + d", U + A, "sg.f64"),
            ("u & v", U & V, "sg.i32"),
            ("u | v", U | V, "sg.i32"),
            ("u ^ v", U ^ V, "sg.i32"),
            ("u << 2", U << 2, "sg.i32"),
            ("u >> 1", U >> 1, "sg.i32"),
            ("~u", ~U, "sg.i32"),
            ("m + n", M + N, "sg.f32"),
            ("m * n", M * N),
            ("m * s", M * 2.5),
            ("1 - m", 1 - M),
            ("a + [1, 2, 3]", A + np.array([1, 2, 3])),
            ("[1, 2, 3] * u", U * [1, 2, 3], "sg.i32"),
        ],
        INPUTS,
    )


def test_comparisons_and_reductions() -> None:
    check(
        [
            ("a < b", A < B, "sg.u1"),
            ("u >= v", U >= V, "sg.u1"),
            ("u == v", U == V),
            ("u != v", U != V),
            ("(a < b).any()", True),
            ("(a < b).all()", False),
            ("any(a < b)", True),
            ("all(a < 100.0)", True),
            ("not (a < b)", ~(A < B)),
            ("m > n", M > N),
            ("a.sum()", A.sum(), "sg.f32"),
            ("sum(a)", A.sum()),
            ("a.min()", A.min()),
            ("a.max()", A.max()),
            ("u.max()", 12, "sg.i32"),
            ("max(a)", A.max()),
            ("min(a, b)", np.minimum(A, B)),
            ("max(a, 0)", np.maximum(A, 0)),
            ("sg.min(a, b, s)", np.minimum(np.minimum(A, B), 2.5)),
            ("abs(a)", abs(A)),
            ("m.sum()", M.sum()),
            ("m.max()", M.max()),
            ("sg.select(a < b, a, b)", np.where(A < B, A, B)),
            ("a if s > 2 else b", A),
            ("a if k > 5 else b", B),
            ("sg.floor(a)", np.floor(A)),
            ("sg.sqrt(abs(a))", np.sqrt(abs(A))),
            ("sg.exp(a)", np.exp(A)),
            ("sg.sin(m)", np.sin(M)),
            ("len(a)", 3),
            ("len(r)", 2),
            ("a.n + r.m", 6),
        ],
        INPUTS,
    )


def test_products_and_methods() -> None:
    norm = np.sqrt((A * A).sum())
    check(
        [
            ("m @ a", M @ A, "sg.f32"),
            ("a @ m", A @ M),
            ("m @ n", M @ N),
            ("r @ m", R @ M),
            ("r @ a", R @ A),
            ("r.transpose() @ r", R.T @ R),
            ("a @ b", A @ B),
            ("a.dot(b)", A @ B),
            ("a.cross(b)", np.cross(A, B)),
            ("a.xy.cross(b.xy)", A[0] * B[1] - A[1] * B[0]),
            ("a.outer_product(b)", np.outer(A, B)),
            ("a.norm()", norm),
            ("a.norm(0.5)", np.sqrt(norm**2 + 0.5)),
            ("a.norm_sqr()", norm**2),
            ("a.norm_inv()", 1 / norm),
            ("a.normalized()", A / norm),
            ("m.norm()", np.sqrt((M * M).sum())),
            ("m.transpose()", M.T),
            ("r.transpose()", R.T),
            ("m.trace()", M.trace()),
            ("m.determinant()", np.linalg.det(M)),
            ("m.inverse()", np.linalg.inv(M)),
            ("m.frobenius_inner(n)", (M * N).sum()),
            ("a.cast(int)", A.astype(int), "sg.i32"),
            ("sg.cast(u, sg.f64)", U, "sg.f64"),
            ("sg.cast(a, sg.i8)", A.astype(int), "sg.i8"),
            ("int(a)", A.astype(int), "sg.i32"),
            ("float(u)", U, "sg.f32"),
            ("sg.bit_cast(a, sg.i32)", A.astype(np.float32).view(np.int32), "sg.i32"),
        ],
        INPUTS,
    )


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_square_matrices(size: int) -> None:
    rng = np.random.default_rng(size)
    x = rng.uniform(-1, 1, (size, size)) + 2 * np.eye(size)
    check(
        [
            ("x.determinant()", np.linalg.det(x)),
            ("x.inverse()", np.linalg.inv(x)),
            ("x.trace()", x.trace()),
            ("x @ x.inverse()", np.eye(size)),
        ],
        {"x": (sg.types.matrix(size, size, sg.f64), x)},
    )


def test_construction() -> None:
    check(
        [
            ("sg.Vector([1, 2, 3])", [1, 2, 3], "sg.i32"),
            ("sg.Vector([1, 2.5, k])", [1, 2.5, 3], "sg.f32"),
            ("sg.Vector([1, 2, 3], dt=sg.f64)", [1, 2, 3], "sg.f64"),
            ("sg.Vector([s, a.x, 1])", [2.5, 1.5, 1]),
            ("sg.Vector([i * 2 for i in range(4)])", [0, 2, 4, 6]),
            ("sg.Matrix([[1, 2], [3, k]])", [[1, 2], [3, 3]], "sg.i32"),
            ("sg.Matrix([a, b])", [A, B]),
            ("sg.Matrix.rows([a, b])", [A, B]),
            ("sg.Matrix.cols([a, b])", np.stack([A, B], 1)),
            ("sg.Matrix.zero(sg.f32, 2, 3)", np.zeros((2, 3)), "sg.f32"),
            ("sg.Matrix.one(sg.i64, 2, 2)", np.ones((2, 2)), "sg.i64"),
            ("sg.Vector.zero(sg.f32, 4)", np.zeros(4), "sg.f32"),
            ("sg.Vector.one(sg.i32, 2)", [1, 1], "sg.i32"),
            ("sg.Vector.unit(3, 1)", [0, 1, 0], "sg.i32"),
            ("sg.Matrix.identity(sg.f32, 3)", np.eye(3), "sg.f32"),
            ("sg.Matrix.diag(3, s)", 2.5 * np.eye(3)),
            ("sg.Matrix([[s] * 3 for _ in range(2)])", np.full((2, 3), 2.5)),
            ("vec3(1)", [1, 1, 1], "sg.f32"),
            ("vec3(s, 1, k)", [2.5, 1, 3], "sg.f32"),
            ("vec3(a.xy, 1)", [1.5, -2.25, 1]),
            ("mat2(1, 2, 3, 4)", [[1, 2], [3, 4]]),
            ("mat2([[1, 2], [3, s]])", [[1, 2], [3, 2.5]]),
            ("mat2(a.xy, b.xy)", [A[:2], B[:2]]),
            ("vec4(a, s)", [*A, 2.5]),
            ("vec4(a.xy, b.xy)", [*A[:2], *B[:2]]),
            ("ivec2(2.7, k)", [2, 3], "sg.i32"),
            ("uvec2(5, k)", [5, 3], "sg.u32"),
            ("sg.zero(a)", np.zeros(3), "sg.f32"),
            ("sg.one(u)", np.ones(3), "sg.i32"),
        ],
        INPUTS,
        {name: getattr(sg.math, name) for name in ("vec3", "vec4", "mat2", "ivec2", "uvec2")},
    )


def test_parts() -> None:
    check(
        [
            ("a[0]", 1.5),
            ("a[-1]", 3.0),
            ("a[k - 1]", 3.0),
            ("a[:2]", A[:2]),
            ("a[::-1]", A[::-1]),
            ("a[1:]", A[1:]),
            ("m[1, 2]", M[1, 2]),
            ("m[k - 2, 0]", M[1, 0]),
            ("m[0, k - 1]", M[0, 2]),
            ("m[k - 1, k - 2]", M[2, 1]),
            ("m[1]", M[1]),
            ("m[1, :]", M[1]),
            ("m[:, 1]", M[:, 1]),
            ("m[:2, 1:]", M[:2, 1:]),
            ("m[k - 1, :]", M[2]),
            ("m[:, k - 3]", M[:, 0]),
            ("r[1]", R[1]),
            ("r[1][2]", 6.0),
            ("a.x", 1.5),
            ("a.yx", A[[1, 0]]),
            ("a.zzy", A[[2, 2, 1]]),
            ("a.rgb", A),
            ("a.stp", A),
            ("a.xyz.zyx.x", 3.0),
            ("(a + b).z", 1.75),
            ("(a + b)[k - 2]", 1.75),
            ("(m @ n)[k - 2, 1]", (M @ N)[1, 1]),
            ("a[u[0] - 6]", A[1]),
        ],
        INPUTS,
    )


def test_math_functions() -> None:
    t = np.clip((A - 0.0) / 3.0, 0, 1)
    za, zb = complex(*A[:2]), complex(*B[:2])

    def pair(z: complex) -> list[float]:
        return [z.real, z.imag]

    c, s = np.cos(0.7), np.sin(0.7)
    normal = np.array([0.0, 1.0, 0.0])
    check(
        [
            ("tm.mix(a, b, 0.25)", A * 0.75 + B * 0.25),
            ("tm.mix(a, b, abs(a) * 0.1)", A * (1 - abs(A) * 0.1) + B * abs(A) * 0.1),
            ("tm.clamp(a, 0, 2)", np.clip(A, 0, 2)),
            ("tm.clamp(s, 0.0, 1.0)", 1.0),
            ("tm.step(0, a)", (A >= 0) * 1.0),
            ("tm.smoothstep(0, 3, a)", t * t * (3 - 2 * t)),
            ("tm.fract(a)", A - np.floor(A)),
            ("tm.sign(a)", np.sign(A)),
            ("tm.mod(a, 2)", A - 2 * np.floor(A / 2)),
            ("tm.degrees(a)", np.degrees(A)),
            ("tm.radians(a)", np.radians(A)),
            ("tm.log2(abs(a))", np.log2(abs(A))),
            ("tm.length(a)", np.linalg.norm(A)),
            ("tm.distance(a, b)", np.linalg.norm(A - B)),
            ("tm.normalize(a)", A / np.linalg.norm(A)),
            ("tm.dot(a, b)", A @ B),
            ("tm.cross(a, b)", np.cross(A, B)),
            ("tm.reflect(a, h)", A - 2 * (A @ normal) * normal),
            ("tm.determinant(m)", np.linalg.det(M)),
            ("tm.inverse(m)", np.linalg.inv(M)),
            ("tm.eye(2)", np.eye(2)),
            ("tm.vdir(0.7)", [c, s]),
            ("tm.rotation2d(0.7) @ a.xy", np.array([[c, -s], [s, c]]) @ A[:2]),
            ("tm.translate(1, 2, s) @ tm.vec4(a, 1)", [*(A + np.array([1, 2, 2.5])), 1]),
            ("tm.scale(1, 2, s) @ tm.vec4(a, 1)", [*(A * [1, 2, 2.5]), 1]),
            ("(tm.rot_by_axis(b, s) @ tm.vec4(a, 0)).norm()", np.linalg.norm(A)),
            ("tm.cmul(a.xy, b.xy)", pair(za * zb)),
            ("tm.cdiv(a.xy, b.xy)", pair(za / zb)),
            ("tm.cinv(a.xy)", pair(1 / za)),
            ("tm.cconj(a.xy)", pair(za.conjugate())),
            ("tm.cexp(a.xy)", pair(np.exp(za))),
            ("tm.clog(a.xy)", pair(np.log(za))),
            ("tm.csqrt(a.xy)", pair(np.sqrt(za))),
            ("tm.cpow(a.xy, 2)", pair(za**2)),
            ("tm.pi * tm.e", np.pi * np.e),
            ("tm.isnan(a)", [0, 0, 0]),
            ("tm.popcnt(u & 15)", [3, 3, 2]),
            ("tm.atan2(a, b)", np.arctan2(A, B)),
        ],
        {**INPUTS, "h": (vec3, normal)},
        {"tm": sg.math},
    )


def test_division_by_zero_is_infinite() -> None:
    needs.strict_floats()
    check([("tm.isinf(a / 0.0)", [1, 1, 1])], INPUTS, {"tm": sg.math})


def test_assignment_of_parts() -> None:
    check(
        [
            ("p", [9.0, -2.25, 13.5]),
            ("q", [[0, 1, 2], [10, 30, -20], [5, 6, 4]]),
            ("w", [3.0, 4.0, -2.0, 4.0]),
            ("x2", [1.0, 2.0]),
            ("e", [1, 1, 8]),
        ],
        INPUTS,
        setup="""
p = a
p[0] = 9
p.z += 1.5
p.z *= k
q = m
q[0] = [0, 1, 2]
q[1, :] *= 10
q[2, 0:2] = sg.Vector([5, 6])
w = sg.Vector([0.0, 0.0, 0.0, 0.0])
w.xy = a.zx
w.zw = [-2, 4]
w.y = 4
x2 = sg.Vector([0.0, 0.0])
x2.x, x2.y = 1, 2
e = sg.Vector([1, 2, 3])
e[1] -= 1
e[k - 1] = 8
""".strip(),
    )


def test_aggregates_are_values() -> None:
    check(
        [("p", A), ("q", [100, *A[1:]]), ("f", [1, 0]), ("g", [0, 1]), ("x", 7), ("y", -3), ("z", 12), ("c", [1.0, 1.0])],
        INPUTS,
        setup="""
p = a
q = p
q[0] = 100
f = sg.Vector([0, 1])
g = f
f = f.yx
x, y, z = u
c = sg.Vector([0.0, 0.0])
for i in sg.static(range(2)):
    c[i] += 1
""".strip(),
    )


def test_functions_take_and_return_them(arch: str) -> None:
    @sg.func
    def swap(p: sg.template(), q: sg.template()):
        t = p
        p = q
        q = t

    @sg.func
    def scaled(p, by):
        p = p * by
        return p, p.sum()

    @sg.func
    def early(p: sg.math.vec3, limit: float) -> sg.math.vec3:
        if p.sum() > limit:
            return p.zyx
        p[0] = limit
        return p

    @sg.func
    def first(m: sg.types.matrix(2, 3, sg.f32)):
        m[0, 0] = 99
        return m[0, :]

    check(
        [
            ("x", [4.0, 5.0, 6.0]),
            ("y", A),
            ("t", A * 2.5),
            ("total", A.sum() * 2.5),
            ("early(a, 1.0)", A[::-1]),
            ("early(b, 10.0)", [10, *B[1:]]),
            ("early(u, 1000)", [1000, *U[1:]], "sg.f32"),
            ("first(r)", [99, 2, 3]),
            ("r", R),
            ("g", [[99, 5], [3, 4]]),
        ],
        INPUTS,
        {"swap": swap, "scaled": scaled, "early": early, "first": first},
        """
x = a
y = sg.Vector([4.0, 5.0, 6.0])
swap(x, y)
t, total = scaled(a, s)
g = sg.Matrix([[5, 99], [3, 4]])
swap(g[0, 0], g[0, 1])
""".strip(),
    )


def test_arguments_and_results(arch: str) -> None:
    mat = sg.types.matrix(2, 3, sg.f32)

    @sg.kernel
    def negate(m: mat, s: sg.f32) -> mat:
        return -m * s

    @sg.kernel
    def narrow(v: sg.types.vector(4, sg.u8)) -> sg.types.vector(4, sg.u8):
        return v + 250

    @sg.kernel
    def mixed(v: sg.types.vector(2, sg.f64), w: sg.types.vector(2, sg.i64)) -> sg.math.vec2:
        return v * w

    got = negate(R, 2)
    assert isinstance(got, sg.Matrix) and got.shape == (2, 3)
    np.testing.assert_array_equal(got.to_numpy(), -R * 2)
    np.testing.assert_array_equal(negate(sg.Matrix(R.tolist()), 1).to_numpy(), -R)
    np.testing.assert_array_equal(negate(R.tolist(), 1).to_numpy(), -R)
    np.testing.assert_array_equal(narrow([1, 2, 10, 200]).to_numpy(), np.array([251, 252, 4, 194], np.uint8))
    np.testing.assert_array_equal(mixed(sg.Vector([0.5, 2]), [2**33, 3]).to_numpy(), [2.0**32, 6])
    with pytest.raises(sg.SpirogradRuntimeTypeError):
        negate(R.T, 2)
    with pytest.raises(sg.SpirogradRuntimeTypeError):
        negate([1, 2, 3], 2)
    with pytest.raises(sg.SpirogradRuntimeTypeError):
        negate(7, 2)


@pytest.mark.parametrize("t", [sg.i8, sg.u8, sg.i16, sg.u16, sg.u32, sg.i64, sg.u64, sg.f16, sg.f64], ids=str)
def test_entries_of_every_type(t: DType) -> None:
    x = np.array([3, 50, 7, 25])
    check(
        [
            ("v + v", 2 * x, "t"),
            ("v[k]", 7),
            ("w", [3, 50, 9, 25], "t"),
            ("v.sum()", 85, "t"),
            ("v.max()", 50, "t"),
            ("v // v", x // x, "t"),
        ],
        {"v": (sg.types.vector(4, t), x), "k": (sg.i32, 2)},
        {"t": t},
        "w = v\nw[k] = 9",
    )


def test_globals_are_constants(arch: str) -> None:
    weights = sg.Vector([0.25, 0.5, 0.25])
    table = sg.Matrix([[1, 2, 3], [4, 5, 6]])
    array = np.array([1.0, 2.0, 4.0])
    nested = [[1, 2], [3, 4]]
    check(
        [
            ("weights[k - 1]", 0.25),
            ("weights @ a", 0.25 * A[0] + 0.5 * A[1] + 0.25 * A[2]),
            ("table[k - 2, k - 1]", 6),
            ("a * array", A * array),
            ("sg.Vector(array)[k - 2]", 2.0),
            ("sg.Matrix(nested) @ a.xy", np.array(nested) @ A[:2]),
            ("table + 0", [[1, 2, 3], [4, 5, 6]]),
        ],
        INPUTS,
        {"weights": weights, "table": table, "array": array, "nested": nested},
    )
    assert table.to_list() == [[1, 2, 3], [4, 5, 6]]
