"""Singular values, polar decomposition, eigenvalues and solutions of 2x2 and 3x3 matrices, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import spirograd as sg


def matrices(n: int) -> np.ndarray:
    """Random ones, and those on which algorithms stumble: singular, multiples of the identity, badly scaled, reflections."""
    rng = np.random.default_rng(n)
    special = [np.zeros((n, n)), np.eye(n), -2 * np.eye(n), np.diag(np.arange(n)), np.ones((n, n)), np.diag([1e3, *[1e-3] * (n - 1)])]
    flat = np.zeros((n, n))
    flat[0, n - 1] = 3
    return np.stack([*special, flat, np.eye(n)[::-1], *rng.normal(size=(24, n, n))]).astype("f4")


@pytest.mark.archs("cpu", "vulkan")
@pytest.mark.parametrize("n", [2, 3])
def test_against_numpy(arch: str, n: int) -> None:
    sg.init(arch=arch)
    data = matrices(n)
    u, s, v, r, p, q, a = (sg.Matrix.field(n, n, sg.f32, len(data)) for _ in range(7))
    e, b, x = (sg.Vector.field(n, sg.f32, len(data)) for _ in range(3))
    a.from_numpy(data)
    right = np.random.default_rng(9).normal(size=(len(data), n)).astype("f4")
    b.from_numpy(right)

    @sg.kernel
    def run():  # type: ignore[no-untyped-def]
        for i in a:
            u[i], s[i], v[i] = sg.svd(a[i])
            r[i], p[i] = sg.polar_decompose(a[i])
            e[i], q[i] = sg.sym_eig(a[i] + a[i].transpose())
            x[i] = sg.solve(a[i], b[i])

    run()
    u_, s_, v_, r_, p_, q_, e_, x_ = (f.to_numpy().astype("f8") for f in (u, s, v, r, p, q, e, x))
    t = (0, 2, 1)
    size = np.abs(data).max(axis=(1, 2), keepdims=True) + 1e-6
    symmetric = data.astype("f8") + data.transpose(t)
    for got, want in (
        (u_ @ s_ @ v_.transpose(t) / size, data / size),
        (r_ @ p_ / size, data / size),
        (q_ * e_[:, None] @ q_.transpose(t) / size, symmetric / size),
        (np.sort(np.abs(np.diagonal(s_, axis1=1, axis2=2)))[:, ::-1] / size[..., 0], np.linalg.svd(data, compute_uv=False) / size[..., 0]),
        (e_ / size[..., 0], np.linalg.eigvalsh(symmetric) / size[..., 0]),
        *((m @ m.transpose(t), np.tile(np.eye(n), (len(data), 1, 1))) for m in (u_, v_, r_, q_)),
        (p_ / size, p_.transpose(t) / size),
        (np.linalg.det(v_), np.ones(len(data))),
    ):
        np.testing.assert_allclose(got, want, atol=2e-5)
    regular = np.array([np.linalg.cond(m.astype("f8")) < 100 for m in data])
    want = np.linalg.solve(data[regular].astype("f8"), right[regular, :, None])[..., 0]
    np.testing.assert_allclose(x_[regular], want, rtol=1e-3, atol=1e-3)


def test_in_python_and_wrong_shapes() -> None:
    sg.init(arch=sg.cpu, default_fp=sg.f64)
    values, vectors = sg.sym_eig(sg.Matrix([[2.0, 1.0], [1.0, 2.0]]))
    np.testing.assert_allclose(values.to_numpy(), [1, 3])
    np.testing.assert_allclose(np.abs(vectors.to_numpy()), np.full((2, 2), np.sqrt(0.5)))
    u, s, _ = sg.svd(sg.Matrix([[0, 2], [1, 0]]))
    np.testing.assert_allclose(s.to_numpy(), [[2, 0], [0, 1]], atol=1e-12)
    assert np.linalg.det(u.to_numpy()) == pytest.approx(-1)
    with pytest.raises(sg.SpirogradTypeError, match=r"`svd` takes a 2x2 or 3x3 matrix"):
        sg.svd(sg.Matrix([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    with pytest.raises(sg.SpirogradTypeError, match="vector of 2"):
        sg.solve(sg.Matrix([[1.0, 2.0], [3.0, 4.0]]), sg.Vector([1.0, 2.0, 3.0]))
    sg.reset()
