"""Whole sessions on the emulator: programs of the corpus, compiled for gfx1100 and run as machine code, agree with NumPy.

These are some of each theme; `make validate` runs all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from cases import by_day
from unit.carried_vector_programs import PROGRAMS, check

import spirograd as sg
from spirograd.base.dtypes import DType
from spirograd.lang import context
from spirograd.simt import block, subgroup
from validation import rdna3
from validation.case import load
from validation.rdna3.execute import EmulatorError

pytestmark = pytest.mark.needs("tinygrad")
CASES = {case.name: case for case in load()}
BY_DAY = (
    "add_sub_mul_i64", "float_division_f64", "bits_u8", "casts_to_floats_i64", "powers", "steps", "tickets_f32", "sums_f32",
    "atomic_add_f32", "atomic_extrema_i16", "many_buffers_40", "scalar_arguments", "field_of_f16", "conjugate_gradient",
    "gradient_guard_threshold",
)  # fmt: skip
NAMES = by_day((*BY_DAY, "gradient_tapes_of_all_widths", "gradient_carried_bounds"), lambda name: name in BY_DAY)  # seconds each


@pytest.fixture(autouse=True)
def emulator() -> Iterator[None]:
    with rdna3.emulated():
        yield
        sg.reset()


@pytest.mark.parametrize("name", NAMES)
def test_corpus(name: str) -> None:
    case = CASES[name]
    sg.init(arch="amdgpu", **dict(case.options))
    assert case.wrong(case.run(*case.args)) == ""
    assert context.session().device.instructions > 20  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", PROGRAMS)
def test_vectors_that_loops_carry(name: str) -> None:
    """They are one value in memory, see `carry_vectors`."""
    sg.init(arch="amdgpu")
    check(name)


def test_ranges_larger_than_the_grid() -> None:
    """At most 64 workgroups are dispatched, and stride over the rest; the last elements are no multiple of anything."""
    sg.init(arch="amdgpu")
    out = np.zeros(100_003, np.int32)

    @sg.kernel
    def count(out: sg.types.ndarray(sg.i32, 1)):
        for i in out:
            out[i] += i

    count(out)
    count(out)
    assert (out == 2 * np.arange(len(out))).all()


@pytest.mark.parametrize("dtype", [sg.i32, sg.u32])
@pytest.mark.parametrize(("n", "size"), [(200, 64), (77, 32)])
def test_reductions_of_subgroups(dtype: DType, n: int, size: int) -> None:
    """By exchanges within instructions, also in groups that lack threads, and in a branch that only some subgroups take."""
    sg.init(arch="amdgpu")
    kinds = ("add", "mul", "min", "max", "and", "or", "xor")
    x, y, z = sg.ndarray(dtype, n), sg.ndarray(dtype, (len(kinds), n)), sg.ndarray(dtype, n)
    a = np.random.default_rng(n).integers(dtype.min, dtype.max, n, dtype.np, endpoint=True)
    x.from_numpy(a)

    @sg.kernel
    def reduce(x: sg.types.NDArray[dtype, 1], y: sg.types.NDArray[dtype, 2], z: sg.types.NDArray[dtype, 1]):
        sg.loop_config(block_dim=size)
        for i in range(n):
            for k in sg.static(range(7)):
                y[k, i] = getattr(subgroup, "reduce_" + kinds[k])(x[i])
            if i // 32 % 2 == 0:
                z[i] = subgroup.reduce_add(x[i])

    reduce(x, y, z)
    text = reduce.asm()
    assert "row_xmask:8" in text and "v_permlanex16" in text and "ds_" not in text
    found = [np.add, np.multiply, np.minimum, np.maximum, np.bitwise_and, np.bitwise_or, np.bitwise_xor]
    waves = np.split(a, range(32, n, 32))
    wanted = np.array([np.concatenate([np.full(len(w), f.reduce(w, dtype=w.dtype)) for w in waves]) for f in found])
    assert (y.to_numpy() == wanted).all()
    assert (z.to_numpy() == np.where(np.arange(n) // 32 % 2 == 0, wanted[0], 0)).all()


@pytest.mark.parametrize(("low", "high"), [(0, 32), (0, 160), (7, 84), (0, 20_011)])
def test_groups_that_share_workgroups(low: int, high: int) -> None:
    """Four of one subgroup each; the last ones lack threads, or are missing. At most 64 workgroups are dispatched, and stride."""
    sg.init(arch="amdgpu")
    a = np.random.default_rng(high).integers(-1000, 1000, high).astype(np.int32)

    @sg.kernel
    def work(x: sg.types.NDArray[sg.i32, 1], y: sg.types.NDArray[sg.i32, 2], low: sg.i32, high: sg.i32):
        sg.loop_config(block_dim=32)
        for i in range(low, high):
            y[i, 0] = block.thread_idx()
            y[i, 1] = subgroup.broadcast(x[i], sg.u32(0))
            if x[(i - low) // 32] > 0:
                y[i, 2] = subgroup.reduce_add(x[i])

    x, y = sg.ndarray(sg.i32, high), sg.ndarray(sg.i32, (high, 3))
    x.from_numpy(a)
    work(x, y, low, high)
    assert ".max_flat_workgroup_size: 128" in work.asm()
    number = np.arange(high - low)
    wanted = np.zeros((high, 3), np.int32)
    wanted[low:, 0] = number % 32
    wanted[low:, 1] = a[low + number // 32 * 32]
    sums = np.add.reduceat(a[low:], np.arange(0, high - low, 32))
    wanted[low:, 2] = np.where(a[number // 32] > 0, sums[number // 32], 0)
    np.testing.assert_array_equal(y.to_numpy(), wanted)


def test_an_access_outside_of_memory_is_found() -> None:
    """A card may say nothing. The buffer of 4 elements ends after 16 bytes."""
    sg.init(arch="amdgpu")

    @sg.kernel
    def wild(out: sg.types.ndarray(sg.i32, 1), at: sg.i32):
        for i in range(1):
            out[i + at] = 1

    with pytest.raises(EmulatorError, match=r"lie in no buffer \(the buffer below has 16 bytes, and this is byte 4000 from its start\)"):
        wild(sg.ndarray(sg.i32, 4), 1000)


def test_faults_and_prints(capfd: pytest.CaptureFixture[str]) -> None:
    """What kernels report reaches the host as from a card."""
    sg.init(arch="amdgpu", debug=True)
    x = sg.field(sg.f32, shape=4)

    @sg.kernel
    def run(limit: sg.f32):
        for i in x:
            x[i] = i * 0.5
            assert x[i] < limit, "too large"
        print("three", 3)

    run(10.0)
    sg.sync()
    assert "three 3" in capfd.readouterr().out
    with pytest.raises(sg.SpirogradAssertionError, match="too large"):
        run(1.0)
        sg.sync()
