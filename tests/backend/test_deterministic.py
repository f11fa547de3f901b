"""`init(deterministic=True)`: the same bits on each run, with any number of threads; exact sums; errors for what has no order."""

from __future__ import annotations

import math
import signal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from needs import need

import spirograd as sg

TYPES = {"f32": (sg.f32, np.float32), "f64": (sg.f64, np.float64)}


def has_f64(name: str) -> bool:
    return name == "f32" or bool(sg.lang.context.session().caps.float64)


def terms(rng: np.random.Generator, n: int, dtype: Any) -> Any:
    """Numbers of both signs between 1e-6 and 1e6: their sums differ with the order."""
    return (rng.standard_normal(n) * 10.0 ** rng.integers(-6, 7, n)).astype(dtype)


def exact(base: float, values: Any) -> float:
    return math.fsum([base, *values.astype(np.float64)])


def are_close(found: Any, wanted: Any) -> bool:
    """Whether sums of f32 are rounded once, and sums of f64 are within two units in the last place."""
    return bool((abs(found - wanted) <= (0 if wanted.dtype == np.float32 else 2) * np.spacing(abs(wanted))).all())


@pytest.fixture
def deterministic(arch: str) -> str:
    sg.init(arch=arch, deterministic=True)
    return arch


def scatter_of(dtype: Any) -> Any:
    @sg.kernel
    def scatter(
        x: sg.types.NDArray[dtype, 2], w: sg.types.NDArray[dtype, 1], v: sg.types.NDArray[dtype, 1], at: sg.types.NDArray[sg.i32, 1]
    ):
        for i in v:
            k = v[i]
            for _ in range(2 * at[i] + 40):  # so much work that the loop stays parallel on the CPU
                k = -k
            x[at[i] % x.shape[0], at[i] % x.shape[1]] += k
            w[at[i]] += 2 * k

    return scatter


@pytest.mark.parametrize("name", TYPES)
def test_scattered_sums_are_exact(deterministic: str, name: str) -> None:
    """Sums are exact until the last rounding (of f64, the last two), so they do not depend on the order. Arrays of several sizes, in turn;
    no iteration; numbers of iterations that are no multiples of anything."""
    if not has_f64(name):
        pytest.skip("this device has no f64")
    dtype, of_numpy = TYPES[name]
    rng, scatter, bits = np.random.default_rng(1), scatter_of(dtype), set()
    few = deterministic == "interpreter"
    for n, m in ((77, 7), (33, 3), (0, 5)) if few else ((1000, 7), (5003, 31), (0, 5)):
        v, at = terms(rng, n, of_numpy), rng.integers(0, m, n).astype(np.int32)
        rows = max(m // 2, 1)
        for _ in range(2):
            x, w = np.full((rows, m), 0.25, of_numpy), np.zeros(m, of_numpy)
            scatter(x, w, v, at)
            bits.add((n, x.tobytes(), w.tobytes()))
        assert are_close(w, np.array([exact(0.0, 2 * v[at == k]) for k in range(m)]).astype(of_numpy))
        wanted = [[exact(0.25, v[(at % rows == p) & (at % m == q)]) for q in range(m)] for p in range(rows)]
        assert are_close(x, np.array(wanted).astype(of_numpy))
    assert len(bits) == 3


def test_special_numbers(deterministic: str) -> None:
    """NaN and infinities, subnormal numbers (but where devices flush them), the largest numbers, elements that only zeros are added to."""
    scatter = scatter_of(sg.f32)
    inf, nan, tiny, huge = np.inf, np.nan, 1e-45, float(np.finfo(np.float32).max)
    added = [[inf, 1.0], [-inf, 2.0], [inf, -inf], [nan, 1.0], [-0.0, -0.0], [huge, -huge, 3.0], [huge, huge], [2.0**-100, 2.0**-120]]
    wanted = [inf, -inf, nan, nan, -0.0, 3.0, inf, 2.0**-100 + 2.0**-120]
    if deterministic in ("cpu", "interpreter"):
        added.append([tiny, tiny])
        wanted.append(2 * tiny)
    v = np.array([x for group in added for x in group], np.float32)
    at = np.array([k for k, group in enumerate(added) for _ in group], np.int32)
    for order in (slice(None), slice(None, None, -1)):
        x, w = np.full((1, 1), 0.0, np.float32), np.full(len(added), -0.0, np.float32)
        scatter(x, w, np.ascontiguousarray(v[order]) / 2, np.ascontiguousarray(at[order]))
        found, expected = w, np.array(wanted, np.float32)
        if deterministic in ("cpu", "interpreter"):
            found, expected = found[:-1], expected[:-1]  # half of the least number is 0
        assert np.array_equal(found, expected, equal_nan=True)
        assert np.signbit(w[4]) and np.isnan(x[0, 0])


@pytest.mark.parametrize("name", TYPES)
def test_reductions(deterministic: str, name: str) -> None:
    """Sums of a whole loop into a variable, a field and an element of an array that other code fills, of any length, repeated."""
    if not has_f64(name):
        pytest.skip("this device has no f64")
    dtype, of_numpy = TYPES[name]
    few = deterministic == "interpreter"
    n = 999 if few else 200_003
    x, s = sg.field(dtype, shape=n), sg.field(dtype, shape=())
    values = terms(np.random.default_rng(2), n, of_numpy)
    x.from_numpy(values)

    @sg.kernel
    def total(m: sg.i32, y: sg.types.NDArray[dtype, 1]) -> dtype:
        t = sg.cast(0.0, dtype)
        for i in range(m):
            t += x[i]
            s[None] += x[i] * x[i]
            y[3] += x[i]
        return t

    for m in (n, 0, 1, n // 3):
        seen = set()
        for _ in range(3):
            y = np.full(5, 0.5, of_numpy)
            s[None] = 0.0
            t = total(m, y)
            seen.add((t, s[None], y.tobytes()))
        ((t, square, _),) = seen
        size, part = float(np.abs(values[:m]).sum() + 1), values[:m].astype(np.float64)
        tolerance = 1e-6 if name == "f32" else 1e-14
        assert abs(t - part.sum()) < tolerance * size and abs(y[3] - 0.5 - part.sum()) < tolerance * size
        assert abs(square - (part * part).sum()) <= tolerance * (part * part).sum() and (y[[0, 1, 2, 4]] == 0.5).all()


def transfer(points: int, nodes: int) -> Any:
    """Particles that add to the nodes around them, nodes that they read, and a loss: fields of what `run` uses."""
    f = SimpleNamespace()
    f.x = sg.field(sg.f32, shape=points, needs_grad=True)
    f.grid = sg.Vector.field(2, sg.f32, shape=nodes, needs_grad=True)
    f.loss = sg.field(sg.f32, shape=(), needs_grad=True)

    @sg.kernel
    def scatter():
        for p in f.x:
            base = sg.cast(f.x[p] * (nodes - 4), sg.i32)
            distance = f.x[p] * (nodes - 4) - base
            for k in sg.static(range(3)):
                weight = sg.exp(-((distance - k) ** 2))
                f.grid[base + k] += weight * sg.Vector([1.0, sg.sin(f.x[p])])

    @sg.kernel
    def gather():
        for p in f.x:
            base = sg.cast(f.x[p] * (nodes - 4), sg.i32)
            f.loss[None] += f.grid[base].x * f.grid[base + 1].y * sg.cos(f.x[p])

    f.scatter, f.gather = scatter, gather
    return f


def run(f: Any, points: int) -> bytes:
    """The loss and the gradients of `transfer`, as bits."""
    f.x.from_numpy(np.random.default_rng(3).random(points).astype(np.float32))
    f.grid.fill(0.0)
    with sg.ad.Tape(f.loss):
        f.scatter()
        f.gather()
    return b"".join(np.ascontiguousarray(a).tobytes() for a in (f.loss.to_numpy(), f.x.grad.to_numpy(), f.grid.grad.to_numpy()))


def test_gradients_repeat(deterministic: str) -> None:
    points = 50 if deterministic == "interpreter" else 20_000
    f = transfer(points, 30)
    assert len({run(f, points) for _ in range(2)}) == 1
    if deterministic != "interpreter":
        assert "deterministic, " in f.gather.grad.explain()
    x, grid = f.x.to_numpy().astype(np.float64), f.grid.to_numpy().astype(np.float64)
    base, wanted = (f.x.to_numpy() * np.float32(26)).astype(int), np.zeros((30, 2))
    np.add.at(wanted, (base, 0), grid[base + 1, 1] * np.cos(x))
    np.add.at(wanted, (base + 1, 1), grid[base, 0] * np.cos(x))
    assert np.allclose(f.grid.grad.to_numpy(), wanted, rtol=1e-4)


@pytest.mark.optimized
def test_the_number_of_threads_changes_no_bit() -> None:
    need("cpu")
    seen, normal = set(), set()
    for mode, results in ((True, seen), (False, normal)):
        for threads in (1, 2, 5):
            sg.init(arch=sg.cpu, deterministic=mode, cpu_max_num_threads=threads)
            f = transfer(20_000, 30)
            x, s = sg.field(sg.f64, shape=300_001), sg.field(sg.f64, shape=())
            x.from_numpy(terms(np.random.default_rng(2), 300_001, np.float64))

            @sg.kernel
            def total():
                for i in x:
                    s[None] += x[i] * 0.1

            total()
            results.add((run(f, 20_000), s[None]))
    assert len(seen) == 1
    assert len(normal) > 1, "without the mode, the order of sums depends on the number of threads"


def test_the_interpreter_computes_the_bits_of_the_cpu() -> None:
    """Functions, sums and gradients. (Kernels with groups of threads or adstacks are not promised.)"""
    need("cpu")
    found = []
    values = terms(np.random.default_rng(4), 300, np.float32) * np.float32(1e-3)
    for name in (sg.cpu, sg.interpreter):
        sg.init(arch=name, deterministic=True)
        out, wide = np.zeros((10, 300), np.float32), np.zeros((5, 300))

        @sg.kernel
        def functions(x: sg.types.NDArray[sg.f32, 1], y: sg.types.NDArray[sg.f32, 2], z: sg.types.NDArray[sg.f64, 2]):
            for i in x:
                v = x[i]
                y[0, i], y[1, i], y[2, i], y[3, i] = sg.sin(v), sg.cos(v), sg.exp(-v * v), sg.log(abs(v))
                y[4, i], y[5, i], y[6, i], y[7, i] = sg.tanh(v), abs(v) ** 1.7, sg.rsqrt(abs(v)), sg.atan2(v, 0.3)
                y[8, i], y[9, i] = v * v * v + v * 0.1 - 2.0, v / (1 + v * v)
                w = sg.cast(v, sg.f64)
                z[0, i], z[1, i], z[2, i], z[3, i], z[4, i] = sg.sin(w), sg.exp(-w * w), sg.tanh(w), abs(w) ** 1.7, w * w + w

        functions(values, out, wide)
        s, x = sg.field(sg.f32, shape=()), sg.field(sg.f32, shape=300)
        x.from_numpy(values)

        @sg.kernel
        def total():
            for i in x:
                s[None] += x[i] * x[i]

        total()
        found.append((out, wide, s[None], np.frombuffer(run(transfer(40, 9), 40), np.float32)))
    for a, b in zip(*found):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.archs("vulkan", "wgpu")
def test_more_terms_than_a_limb_has_room_for(deterministic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limb carries to another one before it overflows. The range of limbs is smaller here, so that few terms leave it."""
    from spirograd.transforms.tasks import superaccumulators

    monkeypatch.setattr(superaccumulators, "_MODULUS", 40)
    scatter = scatter_of(sg.f32)
    v = np.full(20_000, np.float32(2 - 2.0**-23))
    v[:100] = -1.0
    x, w = np.zeros((1, 1), np.float32), np.zeros(1, np.float32)
    scatter(x, w, v, np.zeros(20_000, np.int32))
    assert x[0, 0] == np.float32(v.astype(np.float64).sum()) and w[0] == np.float32(2 * v.astype(np.float64).sum())


@pytest.mark.archs("cpu", "interpreter")
def test_places_in_order_on_the_cpu(deterministic: str) -> None:
    """What depends on the order runs in order there: appends, products, sparse cells."""
    count, out, m = sg.field(sg.i32, shape=()), sg.field(sg.i32, shape=64), sg.field(sg.f32, shape=())

    @sg.kernel
    def append():
        for i in out:
            if i % 3 == 0:
                out[sg.atomic_add(count[None], 1)] = i

    @sg.kernel
    def multiply():
        for i in out:
            sg.atomic_mul(m[None], 1.0 + i)

    m[None] = 1e-30
    append()
    multiply()
    assert (out.to_numpy()[:22] == 3 * np.arange(22)).all()
    assert "deterministic, one thread runs the iterations in order" in append.explain()
    assert m[None] == np.float32(np.inf)


@pytest.mark.archs("vulkan", "wgpu")
def test_what_has_no_order_is_an_error(deterministic: str) -> None:
    count, x, m = sg.field(sg.i32, shape=()), sg.field(sg.f32, shape=64), sg.field(sg.f32, shape=())

    @sg.kernel
    def append():
        for i in x:
            x[sg.atomic_add(count[None], 1)] = i

    @sg.kernel
    def multiply():
        for i in x:
            sg.atomic_mul(m[None], x[i])

    for kernel, text in ((append, "the old value of `count`"), (multiply, "the products of an atomic `mul` of `m`")):
        with pytest.raises(sg.SpirogradUnsupportedError, match=text) as error:
            kernel()
        assert "test_deterministic.py" in str(error.value) and "hint" in str(error.value)


@pytest.mark.archs("cpu", "vulkan", "wgpu")  # The interpreter runs the threads of a group in order.
def test_shared_sums_are_an_error(deterministic: str) -> None:
    x = sg.field(sg.f32, shape=64)

    @sg.kernel
    def add():
        sg.loop_config(block_dim=32)
        for i in range(64):
            s = sg.simt.block.SharedArray((4,), sg.f32)
            s[i % 4] += x[i]

    with pytest.raises(sg.SpirogradUnsupportedError, match="additions to the shared array"):
        add()


@pytest.mark.archs("wgpu")
def test_devices_without_integers_of_64_bits(arch: str) -> None:
    """Limbs are pairs of words there, with carries between these."""
    sg.init(arch=arch, deterministic=True, profile="browser")
    rng, scatter = np.random.default_rng(5), scatter_of(sg.f32)
    v, at = terms(rng, 5000, np.float32), rng.integers(0, 9, 5000).astype(np.int32)
    x, w = np.zeros((1, 9), np.float32), np.zeros(9, np.float32)
    scatter(x, w, v, at)
    for k in range(9):
        wanted = exact(0.0, 2 * v[at == k])
        assert abs(w[k] - wanted) <= 2 * np.spacing(np.float32(abs(wanted)))


def test_explain(deterministic: str) -> None:
    scatter = scatter_of(sg.f32)
    text = scatter.explain(np.zeros((1, 1), np.float32), np.zeros(1, np.float32), np.zeros(3, np.float32), np.zeros(3, np.int32))
    if deterministic != "interpreter":
        assert "deterministic, adds to `w`, `x` exactly, as integers" in text


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no timers of signals on Windows")
def test_interrupted_launches_leave_no_terms() -> None:
    """A sum that was left unfinished is no part of the next one."""
    need("interpreter")
    sg.init(arch=sg.interpreter, deterministic=True)
    x = sg.field(sg.f32, 3)

    @sg.kernel
    def scatter(n: sg.i32):
        for i in range(n):
            s = 0.0
            for k in range(30):
                s += sg.sin(0.1 * k + i)
            x[i % 3] += s

    scatter(3)
    expected = x.to_numpy()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            scatter(100_000)
    finally:
        signal.signal(signal.SIGALRM, before)
    x.fill(0)
    scatter(3)
    np.testing.assert_array_equal(x.to_numpy(), expected)
