"""Which atomics of a parallel loop are made on copies in shared memory, and what these hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

import spirograd as sg
from spirograd.base.dtypes import DType, f16, f32, f64, i8, i32, i64, u1, u16, u32
from spirograd.llvmgen import ptx
from spirograd.transforms.tasks.carriers import carrier

CUDA = ptx.capabilities("sm_90")
HELD = [
    ("add", i32, i32),
    ("xor", u32, u32),
    ("max", i8, i32),
    ("add", u16, u32),
    ("mul", i32, None),
    ("add", i64, None),
    ("add", f32, f32),
    ("add", f16, f32),
    ("add", f64, None),
    ("mul", f32, None),
    ("min", f32, i32),
    ("max", f16, i32),
    ("max", f64, None),
    ("or", u1, None),
]


@pytest.mark.parametrize(("kind", "t", "held"), HELD, ids=[f"{kind}-{t}" for kind, t, _ in HELD])
def test_carriers(kind: str, t: DType, held: DType | None) -> None:
    found = carrier(kind, t, CUDA)
    assert (None if found is None else found.dtype) is held


def test_devices_without_sums_of_floats_in_shared_memory() -> None:
    caps = replace(CUDA, shared_f32_add=False)
    assert carrier("add", f32, caps) is carrier("add", f16, caps) is None


@pytest.mark.archs("vulkan", "wgpu")
@pytest.mark.parametrize(("t", "held"), [(f32, "i32"), (i8, "i32"), (f16, "i32")], ids=str)
def test_copies_of_a_kernel(session, t: DType, held: str) -> None:
    session.device.caps = replace(session.device.caps, cpu_driver=False)
    n = 50_000
    where, what, bins = sg.field(sg.i32, n), sg.field(t, n), sg.field(t, 20)

    @sg.kernel
    def update():
        for i in where:
            sg.atomic_max(bins[where[i]], what[i])

    update()
    assert f'SharedRef("copy_0_bins", {held}, 21)' in update.ir("offload")
