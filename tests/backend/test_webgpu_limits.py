"""The profile "browser": wgpu with no more than WebGPU promises everywhere (W3C, WebGPU, "Limits", the defaults), eight buffers, groups of
256, 16 KiB of shared memory, bindings of 128 MiB at multiples of 256 bytes, no immediates. The device itself is made with these limits, so
wgpu checks them."""

from __future__ import annotations

import numpy as np
import pytest

import spirograd as sg
from spirograd import algorithms

pytestmark = pytest.mark.archs("wgpu")

LIMITS = {
    "max-storage-buffers-per-shader-stage": 8,
    "max-storage-buffer-binding-size": 128 << 20,
    "max-buffer-size": 256 << 20,
    "max-compute-workgroup-storage-size": 16 << 10,
    "max-compute-invocations-per-workgroup": 256,
    "max-compute-workgroup-size-x": 256,
    "max-compute-workgroup-size-y": 256,
    "max-compute-workgroup-size-z": 64,
    "max-compute-workgroups-per-dimension": 65535,
    "min-storage-buffer-offset-alignment": 256,
}


@pytest.fixture(autouse=True)
def least(arch: str) -> None:
    sg.init(arch=arch, profile="browser")
    made = sg.lang.context.session().device._device.limits
    assert {name: made[name] for name in LIMITS} == LIMITS


def test_more_arrays_than_buffers() -> None:
    @sg.kernel
    def add(a: sg.types.ndarray(), b: sg.types.ndarray(), c: sg.types.ndarray(), d: sg.types.ndarray(), e: sg.types.ndarray(),
            f: sg.types.ndarray(), g: sg.types.ndarray(), h: sg.types.ndarray(), k: sg.types.ndarray(), m: sg.types.ndarray()):  # fmt: skip
        for i in a:
            a[i] += b[i] + c[i] + d[i] + e[i] + f[i] + g[i] + h[i] + k[i] + m[i]

    arrays = [sg.ndarray(sg.f32, 101) for _ in range(10)]
    for number, array in enumerate(arrays):
        array.fill(number)
    for _ in range(2):
        add(*arrays)
    assert (arrays[0].to_numpy() == 2 * sum(range(10))).all()


def test_groups_and_gradients() -> None:
    n = 20_001
    values = np.random.default_rng(1).normal(size=n).astype(np.float32)
    x, loss = sg.field(sg.f32, n, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)
    x.from_numpy(values)

    @sg.kernel
    def run(k: sg.i32):
        for i in x:
            v = x[i]
            for _ in range(k):
                v = 0.5 * v * v
            loss[None] += v

    run(2)
    loss.grad[None] = 1
    run.grad(2)
    np.testing.assert_allclose(loss[None], (values.astype(np.float64) ** 4 / 8).sum(), rtol=1e-4)
    np.testing.assert_allclose(x.grad.to_numpy(), values.astype(np.float64) ** 3 / 2, rtol=1e-5)


def test_sorts() -> None:
    keys = np.random.default_rng(2).integers(-1000, 1000, 1100).astype(np.int32)
    x, places = sg.ndarray(sg.i32, len(keys)), sg.ndarray(sg.i32, len(keys))
    x.from_numpy(keys)
    algorithms.argsort(x, places)
    np.testing.assert_array_equal(places.to_numpy(), np.argsort(keys, kind="stable"))


def test_what_is_too_large_is_told() -> None:
    with pytest.raises(sg.OutOfDeviceMemory, match="max-storage-buffer-binding-size"):
        sg.ndarray(sg.f32, 40 << 20)

    @sg.kernel
    def large():
        sg.loop_config(block_dim=512)
        for i in range(1000):
            sg.simt.block.sync()

    with pytest.raises(sg.SpirogradTypeError, match=r"groups of 512 threads are too large: the profile `browser` \(.*\) takes at most 256"):
        large()
