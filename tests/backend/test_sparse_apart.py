"""Vectors whose components lie at different nodes below sparse ones, as grids of particle programs have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spirograd as sg


@pytest.mark.parametrize("kind", ["pointer", "bitmasked"])
def test_deactivation_clears_all_components(session: Any, kind: str) -> None:
    v, m = sg.Vector.field(2, sg.f32), sg.field(sg.f32)
    top = sg.root.pointer(sg.ij, 2)
    block = getattr(top, kind)(sg.ij, 2)
    for field in (m, v.get_scalar_field(0), v.get_scalar_field(1)):
        block.dense(sg.ij, 4).place(field)

    @sg.kernel
    def add(n: sg.i32):
        for i, j in sg.ndrange(n, n):
            v[i, j] += [1.0, i]
            m[i, j] += j

    @sg.kernel
    def remove(i: sg.i32, j: sg.i32):
        sg.deactivate(block, [i, j])

    def check(n: int, gone: int = 0) -> None:
        i, j = np.mgrid[:16, :16]
        inside = (i < n) & (j < n) & ~((i < gone) & (j < gone))
        np.testing.assert_array_equal(v.to_numpy(), np.where(inside[..., None], np.stack([np.ones_like(i), i], -1), 0))
        np.testing.assert_array_equal(m.to_numpy(), np.where(inside, j, 0))

    for n in (13, 6):
        add(n)
        check(n)
        remove(0, 0)
        check(n, gone=4)
        top.deactivate_all()
        check(0)
