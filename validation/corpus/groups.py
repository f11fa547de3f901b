"""Groups of threads: barriers, shared arrays, subgroups."""

from __future__ import annotations

import numpy as np

import spirograd as sg
from spirograd.simt import block, subgroup
from validation.case import Results, case, type_needs

SIZES = ((256, 64), (300, 128), (77, 32))


def inputs(t, n):
    return np.random.default_rng(n).integers(0, 9, n).astype(t.np)


def group_needs(t, *_):
    return type_needs(t)


@case([(t, s) for t in (sg.i32, sg.u32, sg.f32, sg.i64) for s in SIZES], needs=group_needs)
def sums_of_groups(t, sizes) -> Results:
    """A tree in shared memory, with a barrier in each step; groups that are not full."""
    n, size = sizes
    x, out = inputs(t, n), np.zeros(-(-n // size), t.np)

    @sg.kernel
    def run(x: sg.types.ndarray(t, 1), out: sg.types.ndarray(t, 1)):
        sg.loop_config(block_dim=size)
        for i in range(n):
            total = block.reduce_add(x[i], size, t)
            if block.thread_idx() == 0:
                out[i // size] = total

    run(x, out)
    return {"out": (out, [x[k : k + size].sum(dtype=t.np) for k in range(0, n, size)])}


@case([(t, s) for t in (sg.i32, sg.f32) for s in SIZES], needs=group_needs)
def neighbours_in_shared_memory(t, sizes) -> Results:
    """Two arrays, a loop around barriers, values that live across them."""
    n, size = sizes
    x, out = inputs(t, n), np.zeros(n, t.np)

    @sg.kernel
    def run(x: sg.types.ndarray(t, 1), out: sg.types.ndarray(t, 1)):
        sg.loop_config(block_dim=size)
        for i in range(n):
            k = block.thread_idx()
            one, two = block.SharedArray(size, t), block.SharedArray(size, t)
            v = x[i]
            for _ in range(3):
                one[k] = v
                two[k] = v + v
                block.sync()
                v = one[k - k % 2] + two[k - k % 4]
                block.sync()
            out[i] = v

    run(x, out)
    k = np.arange(n) % size
    first = np.arange(n) - k
    v = x
    for _ in range(3):
        v = v[first + k - k % 2] + 2 * v[first + k - k % 4]
    return {"out": (out, v)}


@case([(t, s) for t in (sg.i32, sg.f32) for s in SIZES], needs=group_needs)
def scans_of_subgroups(t, sizes) -> Results:
    n, size = sizes
    x, out = inputs(t, n), np.zeros((2, n), t.np)
    lanes = subgroup.group_size()

    @sg.kernel
    def run(x: sg.types.ndarray(t, 1), out: sg.types.ndarray(t, 2)):
        sg.loop_config(block_dim=size)
        for i in range(n):
            out[0, i] = subgroup.inclusive_add(x[i])
            out[1, i] = subgroup.reduce_all_max(x[i])

    run(x, out)
    sums, most = np.zeros(n, t.np), np.zeros(n, t.np)
    for first in range(0, n, size):
        for k in range(first, min(first + size, n), lanes):
            s = slice(k, min(k + lanes, first + size, n))
            sums[s], most[s] = np.cumsum(x[s]), x[s].max()
    return {"out": (out, [sums, most])}
