"""What is exactly zero of equal entries stays zero under fast math: programs branch on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spirograd as sg

pytestmark = [pytest.mark.archs("cpu", "vulkan", "wgpu", "interpreter"), pytest.mark.optimized]

N = 1003  # not a multiple of any number of lanes
LEVELS: list[dict[str, Any]] = [{}, {"opt_level": 0}, {"opt_level": 1}, {"advanced_optimization": False}, {"fast_math": False}]


def zeros(t: Any) -> dict[str, np.ndarray]:
    """What each expression gives. x2 and y2 equal x and y, but the compiler does not know."""
    rng = np.random.default_rng(0)
    x, y, z, x2, y2 = (sg.field(t, N) for _ in range(5))
    for field, other in ((x, x2), (y, y2), (z, None)):
        values = rng.uniform(0.5, 2, N).astype(t.np.type)
        field.from_numpy(values)
        if other is not None:
            other.from_numpy(values)
    names = (
        *("commutator", "equal_products", "mean", "mean_of_products", "half_of_products", "antisymmetric", "times_one", "exchanged"),
        *("stored", "stored_vector", "stored_in_a_loop", "updated", "of_an_earlier_loop", "function", "function_first"),
        *("orthogonal2", "orthogonal3", "cross", "determinant", "gram", "in_branches", "in_a_loop", "after_a_loop", "deviator", "lerp"),
    )
    found = {name: sg.field(t, N) for name in names}

    @sg.kernel
    def scalars():
        for i in x:
            found["commutator"][i] = x[i] * y[i] - y[i] * x[i]
            found["equal_products"][i] = x[i] * y[i] - x2[i] * y2[i]
            found["mean"][i] = x[i] - (x[i] + x2[i]) / 2
            p, q = x[i] * y[i], x2[i] * y2[i]
            found["mean_of_products"][i] = p - (p + q) / 2
            found["half_of_products"][i] = p - (q + q) * 0.5
            found["times_one"][i] = x[i] - x2[i] * 1.0
            found["exchanged"][i] = (x[i] + y[i]) - (y2[i] + x2[i])
            found["lerp"][i] = x[i] + (x[i] - x2[i]) * y[i] - x2[i]
            if z[i] > 1.0:
                found["in_branches"][i] = p - x2[i] * y2[i]
            else:
                found["in_branches"][i] = x2[i] * y2[i] - p

    @sg.kernel
    def vectors():
        for i in x:
            u = sg.Vector([x[i], z[i] * 0.0, y[i]])
            v = sg.Vector([-y2[i], z[i] * 0.0, x2[i]])
            found["orthogonal3"][i] = u.dot(v)
            found["orthogonal2"][i] = sg.Vector([x[i], y[i]]).dot(sg.Vector([-y2[i], x2[i]]))
            a, b = sg.Vector([x[i], y[i], z[i]]), sg.Vector([x2[i], y2[i], z[i]])
            found["cross"][i] = a.cross(b).norm()
            s = sg.cast(0.0, t)
            for k in range(3):
                s += u[k] * v[k]
            found["in_a_loop"][i] = s
            s = sg.cast(0.0, t)
            for k in range(3):
                s += u[k] * y[i]
            found["after_a_loop"][i] = s - (x2[i] * y2[i] + y[i] * y2[i])

    @sg.kernel
    def matrices():
        for i in x:
            m = sg.Matrix([[x[i], y[i], z[i]], [x2[i], y2[i], z[i]], [x[i], y[i], z[i]]])
            found["determinant"][i] = m.determinant()
            s = m @ m.transpose()
            found["gram"][i] = (s - s.transpose()).norm()
            e = sg.Matrix([[x[i] * y[i], z[i]], [-z[i], x2[i] * y2[i]]])
            found["antisymmetric"][i] = (e + e.transpose())[0, 1]
            d = sg.Matrix([[x[i] * y[i], 0.0], [0.0, x2[i] * y2[i]]])
            found["deviator"][i] = (d - d.trace() * 0.5 * sg.Matrix.identity(t, 2)).norm()

    part = sg.Vector.field(2, t, N)
    earlier = sg.field(t, N)

    @sg.real_func
    def product(a: t, b: t) -> t:
        return a * b

    @sg.kernel
    def by_memory():
        for i in x:
            earlier[i] = x[i] * y[i]
        for i in x:
            found["of_an_earlier_loop"][i] = earlier[i] - x2[i] * y2[i]
        for i in x:
            found["stored"][i] = x[i] * y[i]
            found["stored"][i] = found["stored"][i] - x2[i] * y2[i]
            part[i] = sg.Vector([x[i] * y[i], 0.0])
            part[i][1] = part[i][0] - x2[i] * y2[i]
            found["stored_vector"][i] = part[i][1]
            found["stored_in_a_loop"][i] = 0.0
            for k in range(2):
                found["stored_in_a_loop"][i] = found["stored_in_a_loop"][i] + (1 - 2 * k) * x[i] * y[i]
            found["updated"][i] = x[i] * y[i]
            found["updated"][i] -= x2[i] * y2[i]
            found["function"][i] = x[i] * y[i] - product(x2[i], y2[i])
            found["function_first"][i] = product(x[i], y[i]) - x2[i] * y2[i]

    for kernel in (scalars, vectors, matrices, by_memory):
        kernel()
    return {name: field.to_numpy() for name, field in found.items()}


@pytest.mark.parametrize("t", [sg.f32, sg.f64], ids=str)
@pytest.mark.parametrize("options", LEVELS, ids=str)
def test_zeros_of_equal_entries(arch: str, options: dict[str, Any], t: Any) -> None:
    sg.init(arch=arch, offline_cache=False, **options)
    assert {name: int((values != 0).sum()) for name, values in zeros(t).items() if values.any()} == {}


@pytest.mark.parametrize("dim", [2, 3])
def test_sand_takes_the_same_branches(arch: str, dim: int) -> None:
    """A projection onto Drucker and Prager's yield surface, in logarithmic strain of the singular values. Most of the particles are
    stretched alike in all directions, and turned: their deviator is zero, or a rounding error, and fast math must not change which."""

    def run(fast_math: bool) -> tuple[np.ndarray, ...]:
        sg.init(arch=arch, offline_cache=False, fast_math=fast_math)
        gradient = sg.Matrix.field(dim, dim, sg.f32, N)
        rate = sg.Matrix.field(dim, dim, sg.f32, N)
        case, size = sg.field(sg.i32, N), sg.field(sg.f32, N)

        @sg.func
        def project(sigma: sg.template(), i: sg.i32):
            strain = sg.Matrix.zero(sg.f32, dim, dim)
            for d in sg.static(range(dim)):
                strain[d, d] = sg.log(max(abs(sigma[d, d]), 0.05))
            trace = strain.trace()
            deviator = strain - trace / dim * sg.Matrix.identity(sg.f32, dim)
            norm = deviator.norm()
            size[i] = norm
            if trace >= 0.0:
                case[i] = 1
            elif norm <= 0.0:
                case[i] = 2
            else:
                case[i] = 3

        @sg.kernel
        def step():
            for i in gradient:
                gradient[i] = (sg.Matrix.identity(sg.f32, dim) + 0.01 * rate[i]) @ gradient[i]
                _, sigma, _ = sg.svd(gradient[i])
                project(sigma, i)

        rng = np.random.default_rng(1)
        spin = rng.normal(size=N).astype(np.float32)
        rates = np.zeros((N, dim, dim), np.float32)
        rates[:, 0, 1], rates[:, 1, 0] = spin, -spin
        gradient.from_numpy((rng.uniform(0.5, 0.9, N)[:, None, None] * np.eye(dim)).astype(np.float32))
        rate.from_numpy(rates)
        found = []
        for _ in range(3):
            step()
            found.append(case.to_numpy())
        return tuple(found)

    plain, fast = run(False), run(True)
    same = [float((a == b).mean()) for a, b in zip(plain, fast)]
    assert min(same) > 0.97, same
    assert all((case == 2).sum() > N // 4 for case in fast) or dim == 3


def test_free_contraction(arch: str) -> None:
    """With free contraction what remains of equal products is the rounding error of one of them, where a fused operation rounds once."""
    found = {}
    for contraction in ("keep_zeros", "free"):
        sg.init(arch=arch, contraction=contraction)
        x, y, z = (sg.field(sg.f32, N) for _ in range(3))
        values = np.random.default_rng(0).uniform(0.5, 2, N).astype(np.float32)
        for field in (x, y):
            field.from_numpy(values)

        @sg.kernel
        def squares() -> None:
            for i in x:
                z[i] = x[i] * x[i] - y[i] * y[i]

        squares()
        found[contraction] = z.to_numpy()
    assert not found["keep_zeros"].any()
    assert np.abs(found["free"]).max() < 4 * np.finfo(np.float32).eps
    assert found["free"].any() or arch != "cpu"  # lavapipe computes `fma` as a product and a sum
    with pytest.raises(RuntimeError, match="`contraction` is one of 'keep_zeros', 'free', not 'x'"):
        sg.init(arch=arch, contraction="x")
