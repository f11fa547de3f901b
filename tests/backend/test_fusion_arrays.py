"""Parallel loops over arrays from outside, which may be the same memory: fused in launches whose arrays do not overlap."""

from __future__ import annotations

import random
from typing import Any

import needs
import numpy as np
import pytest
from backend.test_fusion import ARCHS, decisions, tasks
from fuzz.run import load

import spirograd as sg
from spirograd.lang import context

pytestmark = pytest.mark.archs(*ARCHS)

Array = np.ndarray[Any, Any]
# More than enough launches for compiled code to take over.
_LAUNCHES = 12


def filled(values: Array, **options: Any) -> Any:
    x = sg.ndarray(sg.f32 if values.dtype == np.float32 else sg.u32, values.shape, **options)
    x.from_numpy(values)
    return x


def test_arrays_may_be_the_same_memory(arch: str) -> None:
    sg.init(arch=arch, offline_cache=False)

    @sg.kernel
    def shift(a: sg.types.ndarray(sg.f32, 1), b: sg.types.ndarray(sg.f32, 1)):
        for i in range(8):
            a[i] = i
        for i in range(8):
            b[i] += 1.0

    memory = np.zeros(9, np.float32)
    shift(memory[:8].copy(), memory[1:].copy())
    assert decisions(shift) == ["fused, unless `a` and `b` overlap"] and tasks(shift) == 1
    other = np.full(12, 3, np.float32)
    shift(memory[:8], other[1:])
    np.testing.assert_array_equal(memory, [*range(8), 0])
    np.testing.assert_array_equal(other, [3] + [4] * 8 + [3] * 3)
    if arch == "cpu":  # elsewhere views are copied one by one
        for start in range(9):
            memory = np.zeros(16, np.float32)
            shift(memory[:8], memory[start:])
            want = np.zeros(16, np.float32)
            want[:8] = np.arange(8)
            want[start : start + 8] += 1
            np.testing.assert_array_equal(memory, want)
    same = np.zeros(8, np.float32)
    shift(same, same)
    np.testing.assert_array_equal(same, np.arange(8) + 1)


@pytest.mark.archs("cpu")  # others do not use arrays of NumPy in place
@pytest.mark.parametrize("seed", range(8))
def test_random_chains_over_views_of_one_memory(arch: str, seed: int) -> None:
    """Each loop works on one of three arrays, which overlap in some launches."""
    rng = random.Random(seed)
    n = rng.choice((5, 64, 1000))
    chain = Chain(rng, n)
    for fuse in (True, False):
        sg.init(arch=arch, fuse_tasks=fuse, offline_cache=False)
        kernel = chain.kernel()
        for _ in range(_LAUNCHES):
            memory = np.random.default_rng(seed).integers(0, 1000, 4 * n).astype(np.uint32)
            starts = [rng.choice((0, 1, n // 2, n, n + 1, 2 * n, 3 * n)) for _ in range(3)]
            want = memory.copy()
            chain.run([want[start : start + n] for start in starts])
            kernel(*[memory[start : start + n] for start in starts])
            np.testing.assert_array_equal(memory, want, err_msg=f"{chain.source} {starts}")
        assert "atomic[" not in kernel.ir("offload")


class Chain:
    """Adjacent loops, each over one of three arrays of ``n`` elements, forwards or backwards, as a kernel and by NumPy."""

    def __init__(self, rng: random.Random, n: int) -> None:
        self.n = n
        self.loops = [(rng.randrange(3), rng.randint(2, 5), rng.choice(("n", "n", "n - 1"))) for _ in range(rng.randint(3, 6))]
        forms = ("{0}[n - 1 - i] = {0}[n - 1 - i] * {1} + i", "{0}[i] += {1} * i")
        loops = [f"    for i in range({end}):\n        {forms[k % 2].format('abc'[on], k)}\n" for on, k, end in self.loops]
        self.source = "@sg.kernel\ndef k(a: A, b: A, c: A):\n" + "".join(loops)

    def kernel(self) -> Any:
        return load(self.source, {"sg": sg, "n": self.n, "A": sg.types.ndarray(sg.u32, 1)})

    def run(self, arrays: list[Array]) -> None:
        for on, k, end in self.loops:
            i = np.arange(self.n - (end == "n - 1"), dtype=np.uint32)
            view = arrays[on][: len(i)] if k % 2 else arrays[on][::-1][: len(i)]
            view[:] = view + np.uint32(k) * i if k % 2 else view * np.uint32(k) + i


@pytest.mark.parametrize("seed", range(3))
def test_random_chains_over_ndarrays(arch: str, seed: int) -> None:
    """Launches take one array once, twice, or three times, in turn."""
    rng = random.Random(seed)
    n = rng.choice((5, 64, 300))
    chain = Chain(rng, n)
    sg.init(arch=arch, offline_cache=False)
    kernel = chain.kernel()
    arrays = [filled(np.zeros(n, np.uint32)) for _ in range(4)]
    for _ in range(3 * _LAUNCHES):
        values = [np.random.default_rng(k).integers(0, 1000, n).astype(np.uint32) for k in range(4)]
        for array, value in zip(arrays, values):
            array.from_numpy(value)
        chosen = [rng.randrange(4) for _ in range(3)]
        kernel(*[arrays[k] for k in chosen])
        chain.run([values[k] for k in chosen])
        for k, value in enumerate(values):
            np.testing.assert_array_equal(arrays[k].to_numpy(), value, err_msg=f"{chain.source} {chosen} {k}")


@sg.kernel
def products(a: sg.types.NDArray[sg.f32, 1], b: sg.types.NDArray[sg.f32, 1]):
    for i in range(a.shape[0]):
        a[i] = a[i] * 2.0
    for i in range(a.shape[0]):
        b[a.shape[0] - 1 - i] += i
    for i in range(a.shape[0]):
        a[i] = a[i] * 3.0


def _products(a: Array, b: Array) -> None:
    a *= 2
    b += np.arange(len(a), dtype=np.float32)[::-1]
    a *= 3


def test_an_array_and_its_gradient(session: Any) -> None:
    """They do not overlap; two names of one of them do."""
    n = 9
    x = filled(np.arange(n, dtype=np.float32), needs_grad=True)
    for _ in range(_LAUNCHES):
        for one, other in ((x, x.grad), (x.grad, x), (x.grad, x.grad), (x, x)):
            values, shadow = np.arange(n, dtype=np.float32), np.ones(n, np.float32)
            x.from_numpy(values)
            x.grad.from_numpy(shadow)
            products(one, other)
            _products(*[values if array is x else shadow for array in (one, other)])
            np.testing.assert_array_equal(x.to_numpy(), values)
            np.testing.assert_array_equal(x.grad.to_numpy(), shadow)
    assert tasks(products) == 1


def test_views_of_one_ndarray(session: Any) -> None:
    n = 12
    x, y = filled(np.arange(n, dtype=np.float32)), filled(np.ones(n, np.float32))
    for _ in range(3):
        for first, second in ((np.s_[:6], np.s_[6:]), (np.s_[:6], np.s_[3:9]), (np.s_[:6], np.s_[:6]), (np.s_[::2], np.s_[1::2])):
            values = np.arange(n, dtype=np.float32)
            x.from_numpy(values)
            products(x[first], x[second])
            _products(values[first], values[second])
            np.testing.assert_array_equal(x.to_numpy(), values)
        values, others = np.arange(n, dtype=np.float32), np.ones(n, np.float32)
        x.from_numpy(values)
        y.from_numpy(others)
        products(x[2:7], y[3:8])
        _products(values[2:7], others[3:8])
        np.testing.assert_array_equal(x.to_numpy(), values)
        np.testing.assert_array_equal(y.to_numpy(), others)


def test_torch_tensors_that_share_a_storage(session: Any) -> None:
    torch = needs.package("torch")
    on = "cuda" if session.arch == "cuda" else "cpu"
    # The CPU works in place, CUDA too if tensors begin at multiples of 16 bytes; others refuse to copy tensors that overlap.
    for start in {"cpu": (0, 1, 4, 8), "cuda": (0, 4, 8)}.get(session.arch, (8,)):
        memory = torch.arange(16, dtype=torch.float32, device=on)
        want = memory.cpu().numpy().copy()
        products(memory[:8], memory[start : start + 8])
        _products(want[:8], want[start : start + 8])
        np.testing.assert_array_equal(memory.cpu().numpy(), want)
    if session.arch != "cpu":
        memory = torch.zeros(16, device=on)
        with pytest.raises(sg.SpirogradRuntimeTypeError, match=r"argument `a` and argument `b` overlap in memory"):
            products(memory[:8], memory[1:9])


def test_graphs_keep_the_code_that_was_chosen(session: Any) -> None:
    n = 7
    x, y = filled(np.arange(n, dtype=np.float32)), filled(np.ones(n, np.float32))
    values, others = np.arange(n, dtype=np.float32), np.ones(n, np.float32)
    with sg.Graph() as graph:
        products(x, y)
        products(x, x)
        products(y, x)
    for _ in range(3):
        graph.launch()
    for _ in range(1 + 3):
        _products(values, others)
        _products(values, values)
        _products(others, values)
    np.testing.assert_array_equal(x.to_numpy(), values)
    np.testing.assert_array_equal(y.to_numpy(), others)


@sg.kernel
def recurrences(
    a: sg.types.NDArray[sg.f32, 1], b: sg.types.NDArray[sg.f32, 1], c: sg.types.NDArray[sg.f32, 1], d: sg.types.NDArray[sg.f32, 1]
):
    for i in range(a.shape[0]):
        v = a[i]
        for k in range(3 + i % 3):
            v = v * v * 0.5 + b[i]
        c[i] = v
    for i in range(a.shape[0]):
        v = b[i]
        for k in range(3 + i % 2):
            v = sg.sin(v) + a[i] * v
        d[i] = v


@sg.kernel
def squares(a: sg.types.NDArray[sg.f32, 1], b: sg.types.NDArray[sg.f32, 1], c: sg.types.NDArray[sg.f32, 1], d: sg.types.NDArray[sg.f32, 1]):
    for i in range(a.shape[0]):
        c[i] = a[i] * a[i] + 2.0 * b[i]
    for i in range(a.shape[0]):
        d[i] = c[i] * b[i] - a[i]


def _gradients(session: Any, kernel: Any, fuse: bool, same: bool) -> list[Array]:
    sg.init(arch=session.arch, fuse_tasks=fuse, offline_cache=False)
    rng = np.random.default_rng(3)
    a, b, c, d = [filled(rng.uniform(0.1, 0.9, 40).astype(np.float32), needs_grad=True) for _ in range(4)]
    out: list[Array] = []
    for _ in range(3):
        for array in (a, b):
            array.grad.fill(0.0)
        c.grad.fill(1.0)
        d.grad.fill(0.5)
        first = a if same else b
        kernel(a, first, c, d)
        kernel.grad(a, first, c, d)
        out += [a.grad.to_numpy(), b.grad.to_numpy()]
    text = kernel.grad.ir("offload")
    assert text.count('TaskAttr("range_for"') == (1 if fuse and kernel is squares else 2)
    assert "atomic[" not in text or kernel is recurrences
    return out


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("kernel", [recurrences, squares], ids=["adstacks", "plain"])
def test_gradients(session: Any, kernel: Any, same: bool) -> None:
    """Adjoint loops without checks fuse, too. Arrays that the kernel only reads may be the same: then their gradients are."""
    for got, want in zip(_gradients(session, kernel, True, same), _gradients(session, kernel, False, same)):
        np.testing.assert_allclose(got, want, rtol=1e-5)
    if kernel is squares:
        a, b = (np.random.default_rng(3).uniform(0.1, 0.9, (2, 40)).astype(np.float32)).astype(np.float64)
        b = a if same else b
        of_c = 1 + 0.5 * b
        of_a, of_b = of_c * 2 * a - 0.5, of_c * 2 + 0.5 * (a * a + 2 * b)
        np.testing.assert_allclose(got if not same else want, of_b if not same else 0 * of_b, rtol=1e-5)
        np.testing.assert_allclose(_gradients(session, kernel, True, same)[0], of_a + of_b if same else of_a, rtol=1e-5)


def test_more_arrays_than_launches_compare(session: Any) -> None:
    names = [f"a{k}" for k in range(12)]
    loops = "".join(f"    for i in range(9):\n        {name}[i] += {k}\n" for k, name in enumerate(names))
    kernel = load(f"@sg.kernel\ndef k({', '.join(f'{name}: A' for name in names)}):\n{loops}", {"sg": sg, "A": sg.types.ndarray(sg.i32, 1)})
    arrays = [np.arange(9, dtype=np.int32) * k for k in range(12)]
    kernel(*arrays)
    for k, array in enumerate(arrays):
        np.testing.assert_array_equal(array, np.arange(9) * k + k)
    assert any("more than 8 arrays" in text for text in decisions(kernel))
    assert context.session() is session
