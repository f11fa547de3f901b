"""Reductions and scans of subgroups by one instruction; against NumPy. Devices that are slower by it are made to use it."""

import numpy as np
import pytest
from card import like_a_card

import spirograd as sg
from spirograd.base.caps import COMBINATIONS, Capabilities
from spirograd.base.records import replace
from spirograd.lang import context
from spirograd.lang.language_options import options_of_device
from spirograd.runtime.devices.vulkan import features
from spirograd.simt import subgroup, warp

COMBINE = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
COMBINE |= {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


LAVAPIPE = {"subgroup_read": True, "subgroup_size": 8, "subgroup_arithmetic": True}  # which wgpu cannot be sure of
SCANS = {"vulkan": COMBINATIONS, "wgpu": ("add", "mul")}


@pytest.fixture
def by_instruction(session, arch):
    """The session, with all instructions that the code generator of the back end has."""
    opened = context.session()
    device = opened.device
    if arch in SCANS and device.caps.cpu_driver:
        known = LAVAPIPE if arch == "wgpu" else {}
        device.caps = replace(device.caps, **known, subgroup_reductions=COMBINATIONS, subgroup_scans=SCANS[arch])
        opened.language = replace(opened.language, **options_of_device(device.caps))
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


@pytest.mark.parametrize("dtype", [sg.i8, sg.u16, sg.i64, sg.f16, sg.f64])
def test_values_of_all_types_are_read(by_instruction, dtype):
    """Also of types that the device does not compute with."""
    n, lanes = 64, subgroup.group_size()
    y = sg.field(sg.i32, n)

    @sg.kernel
    def work():
        sg.loop_config(block_dim=n)
        for i in range(n):
            y[i] = sg.cast(subgroup.shuffle(sg.cast(2 * i - 5, dtype), (i + 3) % lanes), sg.i32)

    work()
    k = np.arange(n)
    expected = 2 * (k // lanes * lanes + (k + 3) % lanes) - 5
    assert (y.to_numpy() == expected.astype(dtype.np).astype(np.int32)).all()


@pytest.mark.archs("vulkan")
@pytest.mark.parametrize("card", [False, True])
def test_no_instruction_where_the_compiler_forms_subgroups(arch, card, monkeypatch):
    """Where subgroups cannot exchange values of all types, those of the program are not those of the device."""
    monkeypatch.setattr(features, "_FEATURES", [row for row in features._FEATURES if row[1] != "shaderSubgroupExtendedTypes"])
    if card:
        like_a_card(monkeypatch.setattr)
    sg.init(arch=arch)
    assert not context.session().device.caps.subgroup_read
    n, lanes = 96, subgroup.group_size()
    y, votes = sg.field(sg.i32, (4, n)), sg.field(sg.u32, n)

    @sg.kernel
    def work():
        sg.loop_config(block_dim=n)
        for i in range(n):
            y[0, i] = subgroup.reduce_add(i)
            y[1, i] = subgroup.inclusive_max(i % 7)
            y[2, i] = subgroup.any_true(i % lanes == 20 and i > 40)
            y[3, i] = warp.all_nonzero(sg.u32(0x00F00000), i % lanes < 22)
            votes[i] = warp.ballot(i % 3 == 0)

    work()
    k = np.arange(n).reshape(-1, lanes)
    got = y.to_numpy().reshape(4, *k.shape)
    assert lanes == 32
    assert (got[0] == k.sum(1, keepdims=True)).all()
    assert (got[1] == np.maximum.accumulate(k % 7, 1)).all()
    assert (got[2] == (k > 40).any(1, keepdims=True)).all()
    assert (got[3] == 0).all()
    wanted = ((k % 3 == 0) << np.arange(lanes, dtype=np.uint64)).sum(1, keepdims=True)
    assert (votes.to_numpy().reshape(k.shape) == wanted).all()


def test_programs_have_no_instruction_of_other_subgroups():
    """On devices of all kinds, and for modules that are compiled for them."""
    able = {"subgroup_size": 8, "subgroup_ballot": True, "subgroup_reductions": COMBINATIONS, "subgroup_scans": ("add",)}
    for target in ("vulkan", "wgpu", "cuda", "amdgpu"):
        for read in (False, True):
            options = options_of_device(Capabilities(target, subgroup_read=read, **able))
            assert options["subgroup_size"] == (8 if read else 32)
            assert options["has_ballots"] is read
            assert (bool(options["subgroup_reductions"]), bool(options["subgroup_scans"])) == (read, read)
