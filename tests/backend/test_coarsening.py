"""Thread coarsening, which is for graphics cards: of iterations in a row, for CUDA, and of such as are a workgroup apart; all run here."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import needs
import numpy as np
import pytest
from cases import by_day

import spirograd as sg
from spirograd.base.targets import TARGETS
from spirograd.lang import context


@pytest.fixture(autouse=True, params=["vulkan in a row", "vulkan", "wgpu"])
def in_a_row(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    arch, *rest = request.param.split(" ", 1)
    needs.need(arch)
    if rest:
        monkeypatch.setitem(TARGETS, arch, replace(TARGETS[arch], access_bytes=16))
    sg.init(arch=arch, offline_cache=False)
    device = context.session().device
    device.caps = replace(device.caps, cpu_driver=False)
    yield bool(rest)
    sg.reset()


def factors(kernel: Any) -> list[int]:
    """The coarsening of each task, from its device IR."""
    tasks = [line for line in kernel.ir("device").splitlines() if "task[" in line]
    return [int(found[1]) if (found := re.search(r"coarsening=(\d+)", task)) else 1 for task in tasks]


def numbers(shape: tuple[int, ...], t: Any) -> np.ndarray:
    return np.random.default_rng(3).integers(-50, 50, shape).astype(t)


def neighbours(a: np.ndarray, rows: slice, columns: slice) -> np.ndarray:
    """The sum of each element of a part of ``a`` and of its four neighbours."""
    moved = [a, *[np.roll(a, shift, axis) for shift in (1, -1) for axis in (0, 1)]]
    return sum(m[rows, columns] for m in moved)


WIDTHS, LEFTS, TYPES = (130, 133, 135, 160), (1, 2, 3, 5), (sg.f32, sg.f64, sg.i32, sg.i16)


def takes_turns(width: int, left: int, t: Any) -> bool:
    """For each width and column one type, such that each type meets each of both."""
    return TYPES[(WIDTHS.index(width) + LEFTS.index(left)) % len(TYPES)] is t


@pytest.mark.vulkan_or_wgpu
@pytest.mark.parametrize(("width", "left", "t"), by_day(itertools.product(WIDTHS, LEFTS, TYPES), takes_turns), ids=str)
def test_stencils(width: int, t: Any, left: int, in_a_row: bool) -> None:
    """Rows of any width, from any column on."""
    rows, right = 7, width - 1
    a, b = sg.field(t, (rows, width)), sg.field(t, (rows, width))

    @sg.kernel
    def stencil():
        for i, j in sg.ndrange((1, rows - 1), (left, right)):
            b[i, j] = a[i, j] + a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1]

    values = numbers((rows, width), t.np)
    a.from_numpy(values)
    for _ in range(2):
        stencil()
        expected = np.zeros_like(values)
        expected[1:-1, left:right] = neighbours(values, slice(1, -1), slice(left, right))
        np.testing.assert_array_equal(b.to_numpy(), expected)


def test_which_loops_take_several_columns(in_a_row: bool) -> None:
    a, b = sg.field(sg.f32, (8, 80)), sg.field(sg.f32, (8, 80))
    odd, c = sg.field(sg.f32, (8, 81)), sg.field(sg.f32, (4, 8, 16))

    @sg.kernel
    def whole():
        for i, j in a:
            b[i, j] = 2.0 * a[i, j]

    @sg.kernel
    def inner():
        for i, j in sg.ndrange((1, 7), (1, 79)):
            b[i, j] = a[i, j - 1] + a[i, j + 1]

    @sg.kernel
    def transposed():
        for i, j in sg.ndrange(8, 8):
            b[i, j] = a[j, i]

    @sg.kernel
    def whole_of_odd_rows():  # its elements lie in the order of the iterations
        for i, j in odd:
            odd[i, j] += 1.0

    @sg.kernel
    def unaligned_rows():
        for i, j in sg.ndrange(8, 80):
            odd[i, j] += 1.0

    @sg.kernel
    def three_axes():
        for i, j, k in c:
            c[i, j, k] += 1.0

    @sg.kernel
    def gathered():
        for i, j in a:
            b[i, j] = a[i, sg.cast(a[i, j], sg.i32)]

    values = numbers((8, 80), np.float32) % 8
    a.from_numpy(values)
    expected: list[tuple[Callable[[], None], int]] = [
        (whole, 4), (inner, 4), (transposed, 1), (whole_of_odd_rows, 4), (unaligned_rows, 1), (three_axes, 4), (gathered, 4),
    ]  # fmt: skip
    for kernel, factor in expected:
        kernel()
        assert factors(kernel) == [factor if in_a_row else 4], kernel
    rows = np.arange(8)[:, None]
    np.testing.assert_array_equal(b.to_numpy(), values[rows, values.astype(int)])
    assert (odd.to_numpy() == np.where(np.arange(81) < 80, 2, 1)).all() and (c.to_numpy() == 1).all()


@pytest.mark.parametrize("width", [96, 93])
def test_sums_besides(width: int) -> None:
    a, b, total, largest = sg.field(sg.f32, (33, 96)), sg.field(sg.f32, (33, 96)), sg.field(sg.f32, ()), sg.field(sg.f32, ())

    @sg.kernel
    def run():
        for i, j in sg.ndrange(33, width):
            b[i, j] = a[i, j] + i
            total[None] += a[i, j]
            sg.atomic_max(largest[None], a[i, j] * j)

    values = numbers((33, 96), np.float32)
    a.from_numpy(values)
    run()
    assert factors(run) == [4]
    part = values[:, :width]
    np.testing.assert_array_equal(b.to_numpy()[:, :width], part + np.arange(33)[:, None])
    assert total[None] == part.sum() and largest[None] == (part * np.arange(width)).max()
    assert (b.to_numpy()[:, width:] == 0).all()


def test_types_of_several_widths_and_many_blocks(in_a_row: bool) -> None:
    a, b, c = sg.field(sg.f32, (300, 96)), sg.field(sg.f64, (300, 96)), sg.field(sg.u8, (300, 96))

    @sg.kernel
    def run():
        sg.loop_config(block_dim=32)
        for i, j in a:
            b[i, j] = a[i, j]
            c[i, j] = sg.cast(j, sg.u8)

    values = numbers((300, 96), np.float32)
    a.from_numpy(values)
    run()
    assert factors(run) == [2 if in_a_row else 4]
    np.testing.assert_array_equal(b.to_numpy(), values)
    np.testing.assert_array_equal(c.to_numpy(), np.tile(np.arange(96), (300, 1)))


@pytest.mark.parametrize("n", [1, 3, 4, 5, 255, 1000, 1003, 1024, 1025, 300_001])
def test_one_axis(n: int) -> None:
    a, b = sg.field(sg.f32, n), sg.field(sg.f32, n)

    @sg.kernel
    def run():
        for i in a:
            b[i] = a[i] + i

    values = numbers((n,), np.float32)
    a.from_numpy(values)
    run()
    np.testing.assert_array_equal(b.to_numpy(), values + np.arange(n, dtype=np.float32))


def test_choices(monkeypatch: pytest.MonkeyPatch, in_a_row: bool) -> None:
    """An `if` that only computes values is repeated as well: the program's own, and that of a sine of a large argument."""
    if in_a_row:  # as on the targets that merge accesses; elsewhere the driver has its own sines
        monkeypatch.setitem(TARGETS, "vulkan", replace(TARGETS["vulkan"], fused_multiply_add=True))
    a, b = sg.field(sg.f32, (6, 96)), sg.field(sg.f32, (6, 96))

    @sg.kernel
    def run():
        for i, j in sg.ndrange(6, (1, 96)):
            v = a[i, j]
            if v > 0:
                v = v * 2.0 + a[i, j - 1]
                if j > 50:
                    v += 100.0
            b[i, j] = v

    @sg.kernel
    def sines():
        for i, j in a:
            b[i, j] = sg.sin(a[i, j])

    values = numbers((6, 96), np.float32)
    a.from_numpy(values)
    run()
    v, left, j = values[:, 1:], values[:, :-1], np.arange(1, 96)
    np.testing.assert_array_equal(b.to_numpy()[:, 1:], np.where(v > 0, v * 2 + left + np.where(j > 50, 100.0, 0.0), v))
    values[::2] *= 12345.0 if in_a_row else 12.0  # how right sines of large arguments are is up to the driver
    a.from_numpy(values)
    sines()
    np.testing.assert_allclose(b.to_numpy()[::2], np.sin(values[::2].astype(np.float64)), atol=2e-2)  # `fma` rounds twice here
    np.testing.assert_allclose(b.to_numpy()[1::2], np.sin(values[1::2].astype(np.float64)), atol=1e-5)
    assert factors(sines) == [4]


def test_histogram() -> None:
    """Several iterations at a time update a copy in shared memory."""
    n = 50_021
    where, bins = sg.field(sg.i32, n), sg.field(sg.i32, 20)

    @sg.kernel
    def run():
        for i in where:
            bins[where[i]] += 1

    values = np.random.default_rng(4).integers(0, 20, n).astype(np.int32)
    where.from_numpy(values)
    run()
    assert factors(run) == [4]
    np.testing.assert_array_equal(bins.to_numpy(), np.bincount(values, minlength=20))


# --- guards ------------------------------------------------------------------------------------------------------------------


def guarded_values(rows: int, width: int, t: Any) -> tuple[np.ndarray, np.ndarray]:
    """A matrix, and the sums of each element and its neighbours, which are 0 at the border."""
    values = numbers((rows, width), t.np)
    expected = np.zeros_like(values)
    expected[1:-1, 1:-1] = neighbours(values, slice(1, -1), slice(1, -1))
    return values, expected


@pytest.mark.vulkan_or_wgpu
@pytest.mark.parametrize("form", ["and", "nested", "border first", "part of the body", "or", "one side"])
@pytest.mark.parametrize("width", [3, 32, 64, 130, 133])
def test_guards(form: str, width: int, in_a_row: bool) -> None:
    """Iterations at a time where all guards hold, one by one elsewhere: the same results."""
    rows, t = 33, sg.f32
    a, b = sg.field(t, (rows, width)), sg.field(t, (rows, width))

    @sg.func
    def around(i, j):
        return a[i, j] + a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1]

    @sg.kernel
    def stencil():
        for i, j in a:
            if sg.static(form == "and"):
                if 0 < i < rows - 1 and 0 < j < width - 1:
                    b[i, j] = around(i, j)
            elif sg.static(form == "nested"):
                if i > 0 and i < rows - 1:
                    b[i, j] = 0.0
                    if j >= 1 and j <= width - 2:
                        b[i, j] = around(i, j)
            elif sg.static(form == "border first"):
                if i == 0 or j == 0 or i == rows - 1 or j == width - 1:
                    b[i, j] = 0.0
                else:
                    b[i, j] = around(i, j)
            elif sg.static(form == "part of the body"):
                total = a[i, j]
                if i > 0:
                    total += a[i - 1, j]
                if i < rows - 1:
                    total += a[i + 1, j]
                if j > 0:
                    total += a[i, j - 1]
                if j < width - 1:
                    total += a[i, j + 1]
                b[i, j] = total
            elif sg.static(form == "or"):
                if not (i < 1 or i > rows - 2) and (j > 0) == (j < width - 1):
                    b[i, j] = around(i, j)
            else:
                left, right = 0.0, 0.0
                if j != 0:
                    left = a[i, j - 1]
                if j + 1 < width:
                    right = a[i, j + 1]
                b[i, j] = left - right

    values, expected = guarded_values(rows, width, t)
    if form == "part of the body":
        padded = np.pad(values, 1)
        expected = neighbours(padded, slice(1, -1), slice(1, -1))
    elif form == "one side":
        padded = np.pad(values, ((0, 0), (1, 1)))
        expected = padded[:, :-2] - padded[:, 2:]
    a.from_numpy(values)
    for _ in range(2):
        stencil()
        np.testing.assert_array_equal(b.to_numpy(), expected)
    if form != "or" and width > 32 and (width % 4 == 0 or not in_a_row):
        assert factors(stencil) == [4]


@pytest.mark.parametrize("shape", [(40, 96), (33, 128), (7, 133), (20, 9, 64)], ids=str)
def test_gathers_run_several_columns(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, in_a_row: bool) -> None:
    from spirograd.transforms.tasks import gather

    monkeypatch.setattr(gather, "_FEWEST", {True: 0, False: 0})
    a, b = (sg.field(sg.f32, shape, needs_grad=True) for _ in range(2))
    inner = tuple((1, n - 1) for n in shape)

    @sg.kernel
    def flat():
        for i, j in sg.ndrange(*inner):
            b[i, j] = 2.0 * (a[i, j] + a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1])

    @sg.kernel
    def deep():
        for i, j, k in sg.ndrange(*inner):
            b[i, j, k] = 2.0 * (a[i, j, k] + a[i - 1, j, k] + a[i + 1, j, k] + a[i, j, k - 1] + a[i, j, k + 1])

    stencil = flat if len(shape) == 2 else deep
    values = numbers(shape, np.float32)
    b.grad.from_numpy(values)
    a.grad.fill(1.0)
    stencil.grad()
    inside = np.zeros_like(values)
    region = tuple(slice(1, n - 1) for n in shape)
    inside[region] = values[region]
    axes = (0, 1) if len(shape) == 2 else (0, 2)
    expected = 1 + 2 * (inside + sum(np.roll(inside, shift, axis) for axis in axes for shift in (1, -1)))
    np.testing.assert_array_equal(a.grad.to_numpy(), expected)
    values[region] = 0
    np.testing.assert_array_equal(b.grad.to_numpy(), values)
    assert "_gather" in stencil.grad.ir("offload")
    if shape[-1] % 4 == 0 and (in_a_row or len(shape) == 2):  # Bodies of iterations that are apart are shorter.
        assert factors(stencil.grad)[0] == 4


@pytest.mark.parametrize("n", [1, 2, 3, 1000, 1003, 4096])
def test_guards_of_one_axis(n: int) -> None:
    a, b, total = sg.field(sg.f32, n), sg.field(sg.f32, n), sg.field(sg.f32, ())

    @sg.kernel
    def run():
        for i in a:
            v = a[i]
            if i > 0:
                v += a[i - 1]
            if i < n - 1:
                v += a[i + 1]
                total[None] += v
            b[i] = v

    values = numbers((n,), np.float32)
    a.from_numpy(values)
    run()
    padded = np.pad(values, 1)
    expected = padded[:-2] + padded[1:-1] + padded[2:]
    np.testing.assert_array_equal(b.to_numpy(), expected)
    assert total[None] == expected[:-1].sum()
    assert factors(run) == [4] or n < 4096


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (2, 5), (30, 64), (31, 65)])
def test_guards_of_arrays(rows: int, width: int) -> None:
    """Extents are known at run time: one iteration at a time, in two versions."""
    array = sg.types.ndarray(sg.f32, 2)

    @sg.kernel
    def run(a: array, b: array):  # type: ignore[valid-type]
        for i, j in sg.ndrange(a.shape[0], a.shape[1]):
            v = a[i, j]
            if i > 0:
                v += a[i - 1, j]
            if i < a.shape[0] - 1:
                v += a[i + 1, j]
            if j > 0:
                v += a[i, j - 1]
            if j < a.shape[1] - 1:
                v += a[i, j + 1]
            b[i, j] = v

    a, b = sg.ndarray(sg.f32, (rows, width)), sg.ndarray(sg.f32, (rows, width))
    values = numbers((rows, width), np.float32)
    a.from_numpy(values)
    run(a, b)
    np.testing.assert_array_equal(b.to_numpy(), neighbours(np.pad(values, 1), slice(1, -1), slice(1, -1)))


def test_guards_of_elements() -> None:
    """Conditions of what memory contains are no guards."""
    a, b = sg.field(sg.f32, (8, 64)), sg.field(sg.f32, (8, 64))

    @sg.kernel
    def run():
        for i, j in a:
            if j > 0 and j < 63:
                if a[i, j] > 0.0:
                    b[i, j] = a[i, j - 1] + a[i, j + 1]
                else:
                    b[i, j] = -1.0

    values = numbers((8, 64), np.float32)
    a.from_numpy(values)
    run()
    expected = np.where(values > 0, np.roll(values, 1, 1) + np.roll(values, -1, 1), -1)
    expected[:, [0, -1]] = 0
    np.testing.assert_array_equal(b.to_numpy(), expected)


def test_guards_that_seldom_hold_together(in_a_row: bool) -> None:
    """Blocks of a checkerboard, or of every third column, would all run one by one."""
    a = sg.field(sg.f32, (64, 64))

    @sg.kernel
    def checkerboard(colour: sg.i32):
        for i, j in a:
            if 0 < i < 63 and 0 < j < 63 and (i + j) % 2 == 0:
                a[i, j] = a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1]

    @sg.kernel
    def third():
        for i, j in a:
            if j % 3 != 1:
                a[i, j] += 1.0

    @sg.kernel
    def left():
        for i, j in a:
            if j < 32:
                a[i, j] += 1.0

    values = numbers((64, 64), np.float32)
    a.from_numpy(values)
    checkerboard(0)
    i, j = np.indices((64, 64))
    around = sum(np.roll(values, shift, axis) for shift in (1, -1) for axis in (0, 1))
    inside = (i > 0) & (i < 63) & (j > 0) & (j < 63) & ((i + j) % 2 == 0)
    expected = np.where(inside, around, values)
    third()
    left()
    expected += (j % 3 != 1) + (j < 32).astype(np.float32)
    np.testing.assert_array_equal(a.to_numpy(), expected)
    assert factors(checkerboard) == factors(left) == [1]
    assert factors(third) == [1] or not in_a_row  # Iterations that are apart may have the same column.
