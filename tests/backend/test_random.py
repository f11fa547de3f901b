"""Random numbers: their range and moments, reproducible, the same on every back end, new at each launch."""

import numpy as np
import pytest

import spirograd as sg

N = 4096


def draws(arch: str, seed: int, launches: int = 1, n: int = N) -> list[np.ndarray]:
    sg.init(arch=arch, random_seed=seed)
    f32, f64, i32, u64, normal = (sg.field(t, shape=(n, 2)) for t in (sg.f32, sg.f64, sg.i32, sg.u64, sg.f32))

    @sg.kernel
    def run():
        for i in range(n):
            for k in range(2):
                f32[i, k] = sg.random()
                f64[i, k] = sg.random(sg.f64)
                i32[i, k] = sg.random(int)
                u64[i, k] = sg.random(dtype=sg.u64)
                normal[i, k] = sg.randn()

    for _ in range(launches):
        run()
    return [f.to_numpy() for f in (f32, f64, i32, u64, normal)]


def test_range_and_moments(arch: str) -> None:
    f32, f64, i32, u64, normal = draws(arch, 7)
    for x in (f32, f64):
        assert x.min() >= 0 and x.max() < 1
        assert abs(x.mean() - 0.5) < 5 * np.sqrt(1 / 12 / x.size)
        assert abs(x.var() - 1 / 12) < 0.005
        assert abs(np.corrcoef(x[:, 0], x[:, 1])[0, 1]) < 0.08 and abs(np.corrcoef(x[:-1, 0], x[1:, 0])[0, 1]) < 0.08
    assert len(np.unique(f64)) == f64.size
    assert abs(normal.mean()) < 5 / np.sqrt(normal.size) and abs(normal.var() - 1) < 0.1
    for bit in range(32):
        assert abs(((i32 >> bit) & 1).mean() - 0.5) < 0.04, bit
    for bit in range(64):
        assert abs(((u64 >> np.uint64(bit)) & np.uint64(1)).astype(float).mean() - 0.5) < 0.04, bit


def test_every_back_end_draws_the_same(arch: str) -> None:
    """Bit by bit, but for the logarithm and cosine of the normal distribution."""
    ours = draws(arch, 11, n=700)
    reference = draws("interpreter", 11, n=700)
    for a, b in zip(ours[:4], reference[:4]):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(ours[4], reference[4], atol=1e-3)


def test_seeds_and_launches(arch: str) -> None:
    first = draws(arch, 1, n=300)[0]
    np.testing.assert_array_equal(first, draws(arch, 1, n=300)[0])
    assert np.mean(first == draws(arch, 2, n=300)[0]) < 0.01
    assert np.mean(first == draws(arch, 1, launches=2, n=300)[0]) < 0.01


def test_draws_in_every_kind_of_code(arch: str) -> None:
    """In branches, conditions, functions, loops and serial code no draw repeats another."""
    sg.init(arch=arch, random_seed=5)

    @sg.func
    def draw():
        return sg.random(sg.f64)

    @sg.func
    def maybe(k):
        if k % 2 == 0:
            return sg.random(sg.f64)
        return draw() + 1

    @sg.kernel
    def run(out: sg.types.ndarray(sg.f64, 2), counts: sg.types.ndarray(sg.i32, 1)):
        out[0, 0] = sg.random(sg.f64)
        out[0, 1] = draw()
        for i in range(1, 40):
            out[i, 0] = draw()
            if i % 3 == 0:
                out[i, 1] = draw()
                out[i, 2] = maybe(i)
            else:
                out[i, 1] = draw()
            for k in range(3):
                out[i, 3 + k] = sg.random(sg.f64)
                if k == 1 and i % 2 == 0:
                    break
            n = 0
            while draw() < 0.7 and n < 50:
                n += 1
            counts[i] = n
            out[i, 6] = draw() if i % 5 == 0 else draw() + 2
            flag = i % 2 == 0 or draw() < 2
            out[i, 7] = draw() + flag * 3
        for i in range(1, 40):
            out[i, 8] = draw()
        out[0, 2] = sg.random(sg.f64)

    out, counts = np.zeros((40, 9)), np.zeros(40, np.int32)
    run(out, counts)
    seen = out[out != 0] % 1.0
    assert len(np.unique(seen)) == len(seen) > 250
    assert len(set(counts[1:].tolist())) > 4 and 1.2 < counts[1:].mean() < 4.5


def test_parallel_seeds_of_two_kernels_differ(arch: str) -> None:
    sg.init(arch=arch, random_seed=3)
    x, y = sg.field(sg.f64, shape=64), sg.field(sg.f64, shape=64)

    @sg.kernel
    def first():
        for i in x:
            x[i] = sg.random(sg.f64)

    @sg.kernel
    def second():
        for i in y:
            y[i] = sg.random(sg.f64)

    first()
    second()
    assert not np.intersect1d(x.to_numpy(), y.to_numpy()).size


@pytest.mark.parametrize("t", [sg.f16, sg.u1, sg.i8, sg.u16, sg.i64], ids=str)
def test_other_types(arch: str, t: object) -> None:
    sg.init(arch=arch, random_seed=9)
    x = sg.field(t, shape=512)

    @sg.kernel
    def run():
        for i in x:
            x[i] = sg.random(t)

    run()
    values = x.to_numpy()
    if t is sg.f16:
        assert values.min() >= 0 and values.max() < 1 and abs(float(values.astype(np.float32).mean()) - 0.5) < 0.08
    elif t is sg.u1:
        assert 180 < values.sum() < 330
    else:
        assert len(np.unique(values)) > 150 and (values.astype(np.float64) > float(t.max) / 2).sum() > 50  # type: ignore[attr-defined]
