"""Reductions and scans of subgroups by one instruction; against NumPy. Devices that are slower by it are made to use it."""

import numpy as np
import pytest

import spirograd as sg
from spirograd.base.caps import COMBINATIONS
from spirograd.base.records import replace
from spirograd.lang import context
from spirograd.simt import subgroup

COMBINE = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
COMBINE |= {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


@pytest.fixture
def by_instruction(session, arch):
    """The session, with all instructions that the code generator of the back end has."""
    opened = context.session()
    if arch == "vulkan":
        opened.language = replace(opened.language, subgroup_reductions=COMBINATIONS, subgroup_scans=COMBINATIONS)
    return opened


def instructions(kernel):
    """How often kernel IR has each operation."""
    text = kernel.ir("kernel")
    return text.count("subgroup_reduce"), text.count("subgroup_scan")


@pytest.mark.parametrize("dtype", [sg.i32, pytest.param(sg.u32, marks=pytest.mark.long)])
@pytest.mark.parametrize(("n", "size"), [(1, 32), (77, 64), (200, 100), (128, 64)])
def test_integers_are_combined_by_every_kind(by_instruction, n, size, dtype):
    """Also in groups that lack threads, and in those that are no multiple of a subgroup, which exchange values."""
    lanes, kinds = subgroup.group_size(), list(COMBINE)
    x, reduced, scanned = sg.field(dtype, n), sg.field(dtype, (7, n)), sg.field(dtype, (7, n))
    a = np.random.default_rng(n).integers(dtype.min, dtype.max, n, dtype.np, endpoint=True)
    x.from_numpy(a)

    @sg.kernel
    def work():
        sg.loop_config(block_dim=size)
        for i in range(n):
            for k in sg.static(range(7)):
                reduced[k, i] = getattr(subgroup, "reduce_" + kinds[k])(x[i])
                scanned[k, i] = getattr(subgroup, "inclusive_" + kinds[k])(x[i])

    work()
    language = by_instruction.language
    whole = size % lanes == 0
    assert instructions(work) == (len(language.subgroup_reductions) * whole, len(language.subgroup_scans) * whole)
    got, scans = reduced.to_numpy(), scanned.to_numpy()
    for group in range(0, n, size):
        for first in range(group, min(group + size, n), lanes):
            s = slice(first, min(first + lanes, group + size, n))
            for k, kind in enumerate(kinds):
                wanted = COMBINE[kind].accumulate(a[s], dtype=a.dtype)
                assert (scans[k, s] == wanted).all(), kind
                assert (got[k, s] == wanted[-1]).all(), kind


@pytest.mark.archs("interpreter", "cpu", "vulkan", "cuda")  # elsewhere the compiler may form subgroups, through the memory of the group
def test_in_branches_that_some_subgroups_take(by_instruction):
    n, lanes = 128, subgroup.group_size()
    y = sg.field(sg.i32, n)

    @sg.kernel
    def work():
        sg.loop_config(block_dim=n)
        for i in range(n):
            v = -1
            if i // 32 % 2 == 0:
                v = subgroup.reduce_max(i) + subgroup.exclusive_add(1)
            y[i] = v

    work()
    k = np.arange(n)
    assert (y.to_numpy() == np.where(k // 32 % 2 == 0, k // lanes * lanes + lanes - 1 + k % lanes, -1)).all()


def test_floats_tiles_and_narrow_integers_exchange_values(by_instruction):
    """Sums of floats are the same on all back ends: their order is that of the exchanges."""
    n = 64
    x, y = sg.field(sg.f32, n), sg.field(sg.f32, n)
    values = np.random.default_rng(0).random(n, np.float32)
    x.from_numpy(values)

    @sg.kernel
    def work():
        sg.loop_config(block_dim=n)
        for i in range(n):
            tiled = subgroup.reduce_add_tiled(i, 2) + subgroup.reduce_max(sg.cast(i, sg.i16))
            y[i] = subgroup.reduce_add(x[i]) + tiled

    work()
    assert instructions(work) == (0, 0)
    lanes, k = subgroup.group_size(), np.arange(n)
    sums = values.reshape(-1, lanes)
    while sums.shape[1] > 1:
        sums = sums[:, ::2] + sums[:, 1::2]  # neighbours first, as a butterfly does
    tiled = 4 * (k // 4 * 4) + 6 + k // lanes * lanes + lanes - 1
    assert (y.to_numpy() == np.repeat(sums[:, 0], lanes) + tiled.astype(np.float32)).all()
