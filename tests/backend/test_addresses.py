"""`get_addr`: where elements of fields and arrays lie, against their layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spirograd as sg


@pytest.fixture
def fields(session: Any) -> Any:
    x, z, y = sg.field(sg.i32), sg.Vector.field(3, sg.f32), sg.field(sg.f64)
    sg.root.dense(sg.i, 8).place(z, x)
    sg.root.dense(sg.ij, (2, 3)).dense(sg.ij, 2).place(y)
    return x, z, y


@pytest.mark.archs("interpreter", "cpu", "vulkan", "cuda")
def test_fields(fields: Any) -> None:
    x, z, y = fields
    b = sg.field(sg.i8, shape=(2, 5), offset=(-2, 3), order="ji")
    out = sg.field(sg.u64, shape=6)

    @sg.kernel
    def run(i: sg.i32):
        out[0] = sg.get_addr(x, i) - sg.get_addr(x, 0)
        out[1] = sg.get_addr(x.snode, [i]) - sg.get_addr(z, 0)
        out[2] = sg.get_addr(z, sg.Vector([i])) - sg.get_addr(z, 0)
        out[3] = sg.get_addr(y, [i, 3]) - sg.get_addr(y, (0, 0))
        out[4] = sg.get_addr(b, [-1, 3 + i]) - sg.get_addr(b, [-2, 3])
        out[5] = sg.get_addr(x, 0)

    for i in (0, 2, 3):
        run(i)
        tile = ((i // 2) * 3 + 1) * 4 + (i % 2) * 2 + 1
        assert out.to_numpy()[:5].tolist() == [16 * i, 12 + 16 * i, 16 * i, 8 * tile, 2 * i + 1]
    assert out[5] - x.tree.allocation.address == 12


@pytest.mark.archs("interpreter", "cpu", "vulkan", "cuda")
def test_arrays_and_views(session: Any) -> None:
    a, out = sg.Vector.ndarray(2, sg.f64, (3, 4)), sg.ndarray(sg.u64, 3)

    @sg.kernel
    def run(a: sg.types.NDArray, row: sg.BufferView, i: sg.i32, out: sg.types.NDArray):
        out[0] = sg.get_addr(a, [0, 0])
        out[1] = sg.get_addr(a, [i, 1])
        out[2] = sg.get_addr(row, i)

    run(a, a[1:, 2], 1, out)
    first = a.allocation.address
    assert out.to_numpy().tolist() == [first, first + 16 * 5, first + 16 * 10]


@pytest.mark.archs("cpu")
def test_memory_of_numpy(session: Any) -> None:
    data = np.zeros((2, 3), np.uint8)

    @sg.kernel
    def run(a: sg.types.NDArray) -> sg.u64:
        return sg.get_addr(a, [1, 2])

    assert run(data) == data.ctypes.data + 5


@pytest.mark.archs("wgpu")
def test_devices_without_addresses(session: Any) -> None:
    x = sg.field(sg.i32, shape=2)

    @sg.kernel
    def run() -> sg.u64:
        return sg.get_addr(x, 1)

    with pytest.raises(sg.errors.SpirogradUnsupportedError, match=r"no addresses of memory, which `get_addr` needs"):
        run()
