"""Parallel loops over arrays from outside, which may be the same memory: fused in launches whose arrays do not overlap."""

from __future__ import annotations

import random

import numpy as np
import pytest
from backend.test_fusion import ARCHS, decisions
from fuzz.run import load

import spirograd as sg

pytestmark = pytest.mark.archs(*ARCHS)


def test_arrays_may_be_the_same_memory(arch: str) -> None:
    """Where launches find out at no cost, loops are fused for arrays that do not overlap."""
    sg.init(arch=arch, offline_cache=False)

    @sg.kernel
    def shift(a: sg.types.ndarray(sg.f32, 1), b: sg.types.ndarray(sg.f32, 1)):
        for i in range(8):
            a[i] = i
        for i in range(8):
            b[i] += 1.0

    memory = np.zeros(9, np.float32)
    shift(memory[:8].copy(), memory[1:].copy())
    assert decisions(shift) == ["fused, unless `a` and `b` overlap" if arch == "cpu" else "`a` and `b` may overlap"]
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
    chain = [(rng.choice("abc"), rng.randint(2, 5), rng.choice(("n", "n", "n - 1"))) for _ in range(rng.randint(3, 6))]
    forms = ("{0}[i] = {0}[i] * {1} + i", "{0}[i] += {1} * i")
    loops = "".join(f"    for i in range({end}):\n        {forms[k % 2].format(name, k)}\n" for name, k, end in chain)
    source = f"@sg.kernel\ndef k(a: A, b: A, c: A):\n{loops}"
    for fuse in (True, False):
        sg.init(arch=arch, fuse_tasks=fuse, offline_cache=False)
        kernel = load(source, {"sg": sg, "n": n, "A": sg.types.ndarray(sg.u32, 1)})
        for _ in range(12):
            memory = np.random.default_rng(seed).integers(0, 1000, 4 * n).astype(np.uint32)
            starts = {name: rng.choice((0, 1, n // 2, n, n + 1, 2 * n, 3 * n)) for name in "abc"}
            want = memory.copy()
            for name, k, end in chain:
                view = want[starts[name] :][: n - (end == "n - 1")]
                i = np.arange(len(view), dtype=np.uint32)
                view[:] = view + np.uint32(k) * i if k % 2 else view * np.uint32(k) + i
            kernel(*[memory[start : start + n] for start in starts.values()])
            np.testing.assert_array_equal(memory, want, err_msg=f"{source} {starts}")
        assert "atomic[" not in kernel.ir("offload")


def test_more_arrays_than_launches_compare(session) -> None:
    names = [f"a{k}" for k in range(12)]
    loops = "".join(f"    for i in range(9):\n        {name}[i] += {k}\n" for k, name in enumerate(names))
    kernel = load(f"@sg.kernel\ndef k({', '.join(f'{name}: A' for name in names)}):\n{loops}", {"sg": sg, "A": sg.types.ndarray(sg.i32, 1)})
    arrays = [np.arange(9, dtype=np.int32) * k for k in range(12)]
    kernel(*arrays)
    for k, array in enumerate(arrays):
        np.testing.assert_array_equal(array, np.arange(9) * k + k)
    assert any("overlap" in text for text in decisions(kernel))
