"""f16 on devices that lack it: values are f32 that are rounded after each operation, which gives the bits of f16 arithmetic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import spirograd as sg

# Devices without 16-bit floats: with nothing of 16 bits (SwiftShader through wgpu), and with 16-bit integers and memory (Polaris 10).
_LESS = (
    dict.fromkeys(("float16", "int8", "int16", "storage8", "storage16", "storage_f16"), False),
    {"float16": False},
)
_SMALLEST_NORMAL = 2.0**-14


@pytest.fixture(autouse=True, params=_LESS, ids=("nothing of 16 bits", "no floats"))
def without_halves(request: pytest.FixtureRequest, arch: str) -> None:
    sg.init(arch=arch, offline_cache=False, fast_math=False)  # Otherwise a product in a sum is not rounded.
    session = sg.lang.context.session()
    session.device.caps = replace(session.device.caps, **request.param)


def halves(count: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.float16]]:
    """Numbers of all magnitudes, with infinities, NaN and zeros of both signs."""
    bits = np.random.default_rng(seed).integers(0, 1 << 16, count).astype(np.uint16)
    edges = np.array([0, -0.0, np.inf, -np.inf, np.nan, 65504, -65504, 2**-24, 2**-14, 1, -1, 0.5], np.float16)
    return np.concatenate([bits.view(np.float16), edges])


def same(found: object, want: object) -> None:
    """Equal in value and in the sign of zero."""
    np.testing.assert_array_equal(np.asarray(found), np.asarray(want))
    numbers = ~np.isnan(np.asarray(want))
    np.testing.assert_array_equal(np.signbit(np.asarray(found))[numbers], np.signbit(np.asarray(want))[numbers])


def test_arithmetic_is_that_of_f16() -> None:
    x, y = halves(4000, 1), halves(4000, 2)[::-1].copy()
    out = np.zeros((7, len(x)), np.float16)

    @sg.kernel
    def run(x: sg.types.ndarray(sg.f16, 1), y: sg.types.ndarray(sg.f16, 1), out: sg.types.ndarray(sg.f16, 2)):
        for i in x:
            out[0, i] = x[i] + y[i]
            out[1, i] = x[i] - y[i]
            out[2, i] = x[i] * y[i]
            out[3, i] = -x[i]
            out[4, i] = abs(x[i])
            out[5, i] = sg.floor(x[i])
            out[6, i] = x[i] * y[i] + x[i]

    run(x, y, out)
    with np.errstate(all="ignore"):
        want = [x + y, x - y, x * y, -x, np.abs(x), np.floor(x), x * y + x]
    for k, expected in enumerate(want):
        same(out[k], expected.astype(np.float16))


def test_quotients_and_roots_are_rounded_once() -> None:
    x, y = np.abs(halves(4000, 3)), halves(4000, 4)[::-1].copy()
    x, y = (np.where(np.isfinite(a) & (a != 0), a, np.float16(3)) for a in (x, y))
    out = np.zeros((2, len(x)), np.float16)

    @sg.kernel
    def run(x: sg.types.ndarray(sg.f16, 1), y: sg.types.ndarray(sg.f16, 1), out: sg.types.ndarray(sg.f16, 2)):
        for i in x:
            out[0, i] = x[i] / y[i]
            out[1, i] = sg.sqrt(x[i])

    run(x, y, out)
    with np.errstate(all="ignore"):
        want = np.stack([x / y, np.sqrt(x)])
    # Vulkan allows f32 quotients and roots to be off by 2.5 ulp, which can move a number in the middle between two halves.
    np.testing.assert_array_max_ulp(out[np.isfinite(want)], want[np.isfinite(want)], 1)
    assert (out == want).mean() > 0.999


def test_conversions() -> None:
    x = np.concatenate([halves(2000, 5).astype(np.float32), np.linspace(-70000, 70000, 2001, dtype=np.float32)])
    with np.errstate(over="ignore", invalid="ignore"):
        x = np.concatenate([x, np.nextafter(x, np.float32(1e9))])
        want = x.astype(np.float16)
    n = np.arange(-3000, 3000, dtype=np.int32) * 23
    half, bits, whole = np.zeros(len(x), np.float16), np.zeros(len(x), np.int32), np.zeros(len(n), np.float16)

    @sg.kernel
    def run(x: sg.types.ndarray(sg.f32, 1), half: sg.types.ndarray(sg.f16, 1), bits: sg.types.ndarray(sg.i32, 1)):
        for i in x:
            value = sg.cast(x[i], sg.f16)
            half[i] = value
            bits[i] = sg.cast(sg.bit_cast(value, sg.u16), sg.i32) if value == value else -1

    @sg.kernel
    def convert(n: sg.types.ndarray(sg.i32, 1), whole: sg.types.ndarray(sg.f16, 1)):
        for i in n:
            whole[i] = sg.cast(n[i], sg.f16) + sg.cast(n[i] > 0, sg.f16)

    run(x, half, bits)
    convert(n, whole)
    numbers = ~np.isnan(want)
    subnormal = (np.abs(want) < _SMALLEST_NORMAL) & (np.abs(x) < 2.0**-126)  # which a driver may take for 0
    same(half[~subnormal], want[~subnormal])
    np.testing.assert_array_equal(bits[numbers & ~subnormal], want.view(np.uint16)[numbers & ~subnormal])
    assert (bits[~numbers] == -1).all()
    with np.errstate(over="ignore"):
        same(whole, n.astype(np.float16) + (n > 0).astype(np.float16))


def test_arguments_vectors_loops_sums_and_gradients() -> None:
    n = 64
    x, y = sg.field(sg.f16, shape=n, needs_grad=True), sg.field(sg.f16, shape=n, needs_grad=True)
    v, total = sg.Vector.field(3, sg.f16, shape=n), sg.field(sg.f16, shape=())

    @sg.kernel
    def run(a: sg.f16, steps: sg.i32):
        for i in x:
            value = x[i]
            for _ in range(steps):
                value = value * a + x[i]
            y[i] = value
            v[i] = sg.Vector([value, a, x[i]]) * a
            total[None] += x[i]

    start = (np.arange(n) % 8 / 8).astype(np.float16)
    x.from_numpy(start)
    run(0.5, 3)
    want = start.copy()
    for _ in range(3):
        want = (want * np.float16(0.5) + start).astype(np.float16)
    np.testing.assert_array_equal(y.to_numpy(), want)
    a = np.full(n, 0.5, np.float16)
    np.testing.assert_array_equal(v.to_numpy(), np.stack([want, a, start], axis=1) * np.float16(0.5))
    assert total[None] == start.sum(dtype=np.float32)
    y.grad.fill(1.0)
    run.grad(0.5, 3)
    np.testing.assert_array_equal(x.grad.to_numpy(), np.full(n, 1.875, np.float16))


def test_shared_memory_and_functions() -> None:
    out = np.zeros(128, np.float16)

    @sg.func
    def scaled(value: sg.f16, by: sg.f16) -> sg.f16:
        return value * by

    @sg.kernel
    def run(out: sg.types.ndarray(sg.f16, 1)):
        sg.loop_config(block_dim=64)
        for i in range(128):
            shared = sg.simt.block.SharedArray((64,), sg.f16)
            shared[i % 64] = scaled(sg.cast(i, sg.f16), sg.f16(0.1))
            sg.simt.block.sync()
            out[i] = shared[63 - i % 64]

    run(out)
    i = np.arange(128)
    np.testing.assert_array_equal(out, (i // 64 * 64 + 63 - i % 64).astype(np.float16) * np.float16(0.1))
