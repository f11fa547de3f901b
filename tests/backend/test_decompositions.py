"""Singular values, polar decomposition, eigenvalues, projections and solutions of small matrices, of every scale, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases import by_day

import spirograd as sg

pytestmark = pytest.mark.vulkan_or_wgpu

Array = np.ndarray[Any, Any]


def matrices(n: int) -> Array:
    """Random ones, and those on which algorithms stumble: singular, multiples of rotations, badly scaled, reflections."""
    rng = np.random.default_rng(n)
    special = [np.zeros((n, n)), np.eye(n), -2 * np.eye(n), np.diag(np.arange(n)), np.ones((n, n)), np.diag([1e3, *[1e-3] * (n - 1)])]
    flat = np.zeros((n, n))
    flat[0, n - 1] = 3
    rotations = np.linalg.qr(rng.normal(size=(6, n, n)))[0]
    nearly = rotations[:3] @ np.diag([1.0] * (n - 1) + [1e-5]) @ rotations[3:]
    lines = rng.normal(size=(6, n, 1)) @ rng.normal(size=(6, 1, n))
    uneven = rng.normal(size=(6, n, n)) * 10.0 ** rng.uniform(-4, 4, (6, n, n))
    return np.stack(
        [*special, flat, np.eye(n)[::-1], *rng.normal(size=(12, n, n)), *rotations, *nearly, *lines, lines[0] + lines[1], *uneven]
    )


def transposed(a: Array) -> Array:
    return a.transpose(0, 2, 1)


def check(t: Any, size: Array, *pairs: tuple[Array, Array]) -> None:
    """Compare within rounding errors of numbers of ``size``, one for each matrix."""
    for got, want in pairs:
        error = np.abs(got - want).reshape(len(size), -1).max(axis=1)
        assert np.isfinite(error).all()
        assert (error / size).max() < 60 * np.finfo(t.np).eps


@pytest.mark.parametrize("t,scale", [(t, scale) for scale in (1.0, 1e-30, 1e30) for t in (sg.f32, sg.f64)], ids=str)
@pytest.mark.parametrize("n", [2, 3])
def test_singular_values(arch: str, n: int, t: Any, scale: float) -> None:
    sg.init(arch=arch, default_fp=t)
    data = (matrices(n) * scale).astype(t.np).astype("f8")
    u, s, v, r, p, a = (sg.Matrix.field(n, n, t, len(data)) for _ in range(6))
    a.from_numpy(data.astype(t.np))

    @sg.kernel
    def run():  # type: ignore[no-untyped-def]
        for i in a:
            u[i], s[i], v[i] = sg.svd(a[i])
            r[i], p[i] = sg.polar_decompose(a[i])

    run()
    u_, s_, v_, r_, p_ = (f.to_numpy().astype("f8") for f in (u, s, v, r, p))
    size = np.abs(data).max(axis=(1, 2)) + np.finfo(t.np).tiny
    values = np.diagonal(s_, axis1=1, axis2=2)
    check(
        t, size, (u_ @ s_ @ transposed(v_), data), (r_ @ p_, data), (p_, transposed(p_)),
        (np.abs(values), np.linalg.svd(data, compute_uv=False)),
    )  # fmt: skip
    one = np.ones(len(data))
    check(t, one, *[(m @ transposed(m), np.broadcast_to(np.eye(n), m.shape)) for m in (u_, v_, r_)], (np.linalg.det(v_), one))
    if n == 3:
        check(t, one, (np.linalg.det(u_), one))
    else:
        assert (values >= 0).all()


@pytest.mark.parametrize("t,scale", [(t, scale) for scale in (1.0, 1e-30, 1e30) for t in (sg.f32, sg.f64)], ids=str)
@pytest.mark.parametrize("n", by_day([1, 2, 3, 4, 5, 6], lambda n: n in (1, 3, 6)))
def test_symmetric_matrices(arch: str, n: int, t: Any, scale: float) -> None:
    sg.init(arch=arch, default_fp=t)
    data = (matrices(n) * scale).astype(t.np).astype("f8")
    data = data[:: 8 if arch == "interpreter" and n > 3 else 1]
    q, a, spd = (sg.Matrix.field(n, n, t, len(data)) for _ in range(3))
    e = sg.Vector.field(n, t, len(data))
    a.from_numpy(data.astype(t.np))

    @sg.kernel
    def run():  # type: ignore[no-untyped-def]
        for i in a:
            e[i], q[i] = sg.sym_eig(a[i])
            spd[i] = sg.make_spd(a[i])

    run()
    e_, q_, spd_ = (f.to_numpy().astype("f8") for f in (e, q, spd))
    symmetric = data / 2 + transposed(data) / 2
    values, vectors = np.linalg.eigh(symmetric)
    size = np.abs(symmetric).max(axis=(1, 2)) + np.finfo(t.np).tiny
    projected = (vectors * np.maximum(values, 0)[:, None]) @ transposed(vectors)
    check(t, size, ((q_ * e_[:, None]) @ transposed(q_), symmetric), (e_, values), (spd_, projected))
    check(t, np.ones(len(data)), (q_ @ transposed(q_), np.broadcast_to(np.eye(n), q_.shape)))


@pytest.mark.parametrize("t,scale", [(t, scale) for scale in (1.0, 1e-30, 1e30) for t in (sg.f32, sg.f64)], ids=str)
def test_eig(arch: str, t: Any, scale: float) -> None:
    sg.init(arch=arch, default_fp=t)
    more = [[[1, 1], [0, 1]], [[0, 1], [-1, 0]], [[2, 0], [1, 3]], [[1, 0], [0, 3]], [[1, 2], [-3, 1]], [[1, 1e-9], [0, 1]]]
    data = (np.concatenate([matrices(2), np.array(more, float)]) * scale).astype(t.np).astype("f8")
    a, values = (sg.Matrix.field(2, 2, t, len(data)) for _ in range(2))
    vectors = sg.Matrix.field(4, 2, t, len(data))
    a.from_numpy(data.astype(t.np))

    @sg.kernel
    def run():  # type: ignore[no-untyped-def]
        for i in a:
            values[i], vectors[i] = sg.eig(a[i])

    run()
    l, v = values.to_numpy().astype("f8"), vectors.to_numpy().astype("f8")
    l, v = l[..., 0] + 1j * l[..., 1], v[:, 0::2] + 1j * v[:, 1::2]
    check(t, np.abs(data).max(axis=(1, 2)) + np.finfo(t.np).tiny, (data @ v, v * l[:, None]))
    check(t, np.ones(len(data)), (np.linalg.norm(v, axis=1), np.ones((len(data), 2))))
    assert (l.real[:, 0] >= l.real[:, 1]).all()
    assert (l.imag[:, 0] >= l.imag[:, 1]).all()


def test_eig_as_the_family_has_it() -> None:
    """The numbers of Quadrants, but for the second matrix in 1.4.0, which gives one eigenvector twice there."""
    sg.init(arch=sg.cpu, default_fp=sg.f64)
    values, vectors = sg.eig(sg.Matrix([[1.0, 2.0], [-3.0, 1.0]]))
    np.testing.assert_allclose(values.to_numpy(), [[1, 2.4494897], [1, -2.4494897]], atol=1e-6)
    np.testing.assert_allclose(vectors.to_numpy(), [[0, 0], [0.6324555, -0.6324555], [-0.7745967, -0.7745967], [0, 0]], atol=1e-6)
    values, vectors = sg.eig(sg.Matrix([[2, 1], [1, 2]]))
    np.testing.assert_allclose(values.to_numpy(), [[3, 0], [1, 0]], atol=1e-12)
    np.testing.assert_allclose(vectors.to_numpy(), np.array([[1, -1], [0, 0], [1, 1], [0, 0]]) * np.sqrt(0.5), atol=1e-12)
    sg.reset()


@pytest.mark.parametrize("t", [sg.f32, sg.f64], ids=str)
@pytest.mark.parametrize("n", by_day([1, 2, 3, 4, 5, 6], lambda n: n in (1, 3, 6)))
def test_solve(arch: str, n: int, t: Any) -> None:
    sg.init(arch=arch, default_fp=t)
    regular = np.array([m for m in matrices(n) if np.linalg.cond(m) < 1e4])
    scales = (1.0, 1e-30, 1e30)
    data = np.concatenate([regular * scale for scale in scales]).astype(t.np).astype("f8")
    right = np.random.default_rng(9).normal(size=(len(data), n)).astype(t.np)
    a, b, x = sg.Matrix.field(n, n, t, len(data)), sg.Vector.field(n, t, len(data)), sg.Vector.field(n, t, len(data))
    a.from_numpy(data.astype(t.np))
    b.from_numpy(right)

    @sg.kernel
    def run():  # type: ignore[no-untyped-def]
        for i in a:
            x[i] = sg.solve(a[i], b[i])

    run()
    want = np.linalg.solve(data, right[..., None].astype("f8"))[..., 0]
    error = np.abs(x.to_numpy() - want).max(axis=1) / np.abs(want).max(axis=1)
    assert (error / np.linalg.cond(data)).max() < 10 * np.finfo(t.np).eps


@pytest.mark.parametrize("n", by_day([1, 2, 3, 4, 5, 6, 7, 8], lambda n: n in (3, 4, 5, 8)))
def test_inverse_and_determinant(arch: str, n: int) -> None:
    sg.init(arch=arch)
    data = np.random.default_rng(n).uniform(-1, 1, (9, n, n)).astype("f4")
    whole = np.random.default_rng(n).integers(-3, 4, (9, n, n)).astype("i4")
    data[0] = np.eye(n)[::-1]  # every pivot of the diagonal is 0
    whole[0, -1] = whole[0, 0] if n > 1 else 0  # singular
    a, b = sg.Matrix.field(n, n, sg.f32, 9), sg.Matrix.field(n, n, sg.f32, 9)
    c, d, e = sg.Matrix.field(n, n, sg.i32, 9), sg.field(sg.f32, 9), sg.field(sg.i32, 9)
    a.from_numpy(data)
    c.from_numpy(whole)

    @sg.kernel
    def run():  # type: ignore[no-untyped-def]
        for i in a:
            b[i], d[i], e[i] = a[i].inverse(), a[i].determinant(), c[i].determinant()

    run()
    exact = data.astype("f8")
    np.testing.assert_allclose(d.to_numpy(), np.linalg.det(exact), rtol=2e-5, atol=2e-5)
    np.testing.assert_array_equal(e.to_numpy(), np.round(np.linalg.det(whole)))
    bound = np.linalg.cond(exact)[:, None, None] * np.linalg.norm(np.linalg.inv(exact), axis=(1, 2))[:, None, None]
    assert (np.abs(b.to_numpy() - np.linalg.inv(exact)) / bound).max() < 1e-6


@pytest.mark.parametrize("n", [2, 3, 4])
def test_inverses_of_every_scale(arch: str, n: int) -> None:
    """Products of entries would be lost, or infinite: 1e-15 to the fourth power is. Rows may differ in size, too."""
    sg.init(arch=arch)
    scales = np.array([1e-30, 1e-15, 1e-10, 1.0, 1e15, 1e30])
    rows = 10.0 ** np.linspace(-15, 15, n)
    plain = np.random.default_rng(n).uniform(-1, 1, (len(scales) + 1, n, n)) + 2 * np.eye(n)
    data = (plain * np.concatenate([np.repeat(scales[:, None], n, 1), rows[None]])[:, :, None]).astype("f4")
    a, b = sg.Matrix.field(n, n, sg.f32, len(data)), sg.Matrix.field(n, n, sg.f32, len(data))
    whole, halves = sg.Matrix.field(n, n, sg.i32, ()), sg.Matrix.field(n, n, sg.f32, 2)
    a.from_numpy(data)
    whole.from_numpy(np.arange(n * n).reshape(n, n).astype("i4") ** 2 % 7 + 5 * np.eye(n, dtype="i4"))

    @sg.kernel
    def run():  # type: ignore[no-untyped-def]
        for i in a:
            b[i] = a[i].inverse()
        halves[0] = whole[None].inverse()
        halves[1] = sg.cast(sg.cast(a[1] * 1e12, sg.f16).inverse(), sg.f32)

    run()
    for found, matrix in zip(b.to_numpy(), data.astype("f8")):
        wanted = np.linalg.inv(matrix)
        assert (np.abs(found - wanted).max(axis=0) / np.abs(wanted).max(axis=0)).max() < 1e-5
    np.testing.assert_allclose(halves.to_numpy()[0], np.linalg.inv(whole.to_numpy()), rtol=1e-5, atol=1e-6)
    half = (data[1] * np.float32(1e12)).astype("f2").astype("f8")  # subnormal numbers, whose determinant no f16 holds
    wanted = np.linalg.inv(half)
    np.testing.assert_allclose(halves.to_numpy()[1], wanted, rtol=2e-3, atol=2e-3 * np.abs(wanted).max())
    np.testing.assert_allclose(sg.Matrix((plain[0] * 1e-200).tolist()).inverse().to_numpy(), np.linalg.inv(plain[0] * 1e-200), rtol=1e-9)


def test_half_precision(arch: str) -> None:
    """f16 is computed in f32: squares of its entries would be lost."""
    sg.init(arch=arch)
    a, total = sg.Matrix.field(2, 2, sg.f32, ()), sg.field(sg.f32, 4)
    a.from_numpy(np.array([[3e-4, 1e-4], [2e-4, -1e-4]], "f4"))

    @sg.kernel
    def run():  # type: ignore[no-untyped-def]
        u, s, v = sg.svd(a[None], sg.f16)
        for i in sg.static(range(2)):
            for j in sg.static(range(2)):
                total[2 * i + j] = sg.cast((u @ s @ v.transpose())[i, j], sg.f32)

    run()
    np.testing.assert_allclose(total.to_numpy(), [3e-4, 1e-4, 2e-4, -1e-4], atol=1e-6)


@pytest.mark.archs("cpu", "vulkan")
def test_without_a_loop(arch: str) -> None:
    """Sweeps are a loop of the kernel for larger matrices, also where the kernel has no other."""
    sg.init(arch=arch)
    values = sg.Vector.field(6, sg.f32, ())
    a = sg.Matrix.field(6, 6, sg.f32, ())
    data = matrices(6)[10].astype("f4")
    a.from_numpy(data + data.T)

    @sg.kernel
    def run():  # type: ignore[no-untyped-def]
        values[None], _ = sg.sym_eig(a[None])

    run()
    np.testing.assert_allclose(values.to_numpy(), np.linalg.eigvalsh(data + data.T), atol=1e-5)


def test_in_python() -> None:
    sg.init(arch=sg.cpu, default_fp=sg.f64)
    values, vectors = sg.sym_eig(sg.Matrix([[2.0, 1.0], [1.0, 2.0]]))
    np.testing.assert_allclose(values.to_numpy(), [1, 3])
    np.testing.assert_allclose(np.abs(vectors.to_numpy()), np.full((2, 2), np.sqrt(0.5)))
    u, s, _ = sg.svd(sg.Matrix([[0, 2], [1, 0]]))
    np.testing.assert_allclose(s.to_numpy(), [[2, 0], [0, 1]], atol=1e-12)
    assert np.linalg.det(u.to_numpy()) == pytest.approx(-1)
    data = matrices(6)[9]
    np.testing.assert_allclose(sg.sym_eig(sg.Matrix((data + data.T).tolist()))[0].to_numpy(), np.linalg.eigvalsh(data + data.T))
    np.testing.assert_allclose(sg.make_spd(sg.Matrix([[1.0, 2.0], [2.0, 1.0]])).to_numpy(), np.full((2, 2), 1.5))
    np.testing.assert_allclose(sg.solve(sg.Matrix(data.tolist()), sg.Vector([1.0] * 6)).to_numpy(), np.linalg.solve(data, np.ones(6)))
    sg.reset()


def test_wrong_shapes() -> None:
    sg.init(arch=sg.cpu)
    wide, seven = sg.Matrix([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), sg.Matrix([[1.0] * 7] * 7)
    with pytest.raises(sg.SpirogradTypeError, match=r"`svd` takes a 2x2 or 3x3 matrix, not a 2x3 matrix"):
        sg.svd(wide)
    with pytest.raises(sg.SpirogradTypeError, match=r"`eig` takes a 2x2 matrix, not"):
        sg.eig(wide)
    for function in (sg.sym_eig, sg.make_spd):
        with pytest.raises(sg.SpirogradTypeError, match=r"takes square matrices of up to 6x6, not a 7x7 matrix"):
            function(seven)
    with pytest.raises(sg.SpirogradTypeError, match="takes a vector of 2"):
        sg.solve(sg.Matrix([[1.0, 2.0], [3.0, 4.0]]), sg.Vector([1.0, 2.0, 3.0]))
    with pytest.raises(sg.SpirogradTypeError, match="of up to 8x8, got 9x9"):
        sg.Matrix([[1.0] * 9] * 9).inverse()
    sg.reset()
