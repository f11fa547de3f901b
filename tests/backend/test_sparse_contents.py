"""Arrays of the contents of fields below sparse nodes, against elements that Python reads one by one."""

from __future__ import annotations

import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.vulkan_or_wgpu


@pytest.mark.parametrize("blocks", ["pointer", "pointers", "one axis", "dense above", "bits below", "list", "list below"])
def test_contents_are_gathered_cell_by_cell(session, blocks):
    """Arrays of the contents have the elements that Python reads one by one, whichever axes a cell covers."""
    x, v = sg.field(sg.f32), sg.Vector.field(2, sg.i32)
    root = sg.root
    node = {
        "pointer": lambda: root.pointer(sg.ij, (3, 5)).dense(sg.ij, (4, 2)),
        "pointers": lambda: root.pointer(sg.ij, 3).pointer(sg.ij, (2, 3)).dense(sg.ij, (2, 3)).dense(sg.ij, (3, 1)),
        "one axis": lambda: root.pointer(sg.i, 6).dense(sg.ij, (3, 7)),
        "dense above": lambda: root.dense(sg.ij, (2, 3)).pointer(sg.j, 4).dense(sg.ij, (5, 2)),
        "bits below": lambda: root.pointer(sg.ij, (3, 2)).bitmasked(sg.ij, (4, 5)),
        "list": lambda: root.dynamic(sg.i, 75, chunk_size=16),
        "list below": lambda: root.pointer(sg.i, 6).dynamic(sg.j, 20, chunk_size=8),
    }[blocks]()
    node.place(x, v)
    shape = x.shape
    rng = np.random.default_rng(3)
    expected, vectors = np.zeros(shape, np.float32), np.zeros((*shape, 2), np.int32)
    # Lists hold all entries up to the last one that was written.
    chosen = [k for k in np.ndindex(*shape) if rng.random() < 0.2 and k[-1] < 13]
    for number, at in enumerate(chosen):
        x[at] = expected[at] = number + 0.5
        v[at] = vectors[at] = (number, -number)
    np.testing.assert_array_equal(x.to_numpy(), expected)
    np.testing.assert_array_equal(v.to_numpy(), vectors)
