"""Bounds that change between launches, by every way to write memory: each launch is sized by what its bounds are then.

What a launch found may be kept for the next one; whoever writes must be noticed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import needs
import numpy as np
import pytest
from grad.chains import AMPLIFIED, advance, advanced, chains, compare, launch, starts

import spirograd as sg

torch = needs.package("torch")
# The interpreter has no sizes: its adstacks grow as they are written.
pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.archs("cpu", "vulkan", "wgpu"), pytest.mark.vulkan_or_wgpu]

N = 5
SEQUENCE = (1, 20, 50, 512, 0, 3, 3, 512, 1)
Write = Callable[[Any, np.ndarray], None]


def bounds(k: int) -> np.ndarray:
    return np.array([k // 4, k, 0, k // 3, min(k, 7)], np.int32)


def trips(b: np.ndarray) -> np.ndarray:
    """Of the kernels below, given what is in memory."""
    return b[0] + b


def of_field(b: Any) -> tuple[Any, tuple[Any, ...], Any, Any]:
    x, y = chains(N)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for _ in range(b[0]):
                v = advance(v)
            for _ in range(b[i]):
                v = advance(v)
            y[i] = AMPLIFIED * v

    return run, (), x, y


def of_array() -> tuple[Any, Any, Any]:
    x, y = chains(N)

    @sg.kernel
    def run(b: sg.types.ndarray(sg.i32, 1)):
        for i in x:
            v = x[i]
            for _ in range(b[0]):
                v = advance(v)
            for _ in range(b[i]):
                v = advance(v)
            y[i] = AMPLIFIED * v

    return run, x, y


def by_elements(memory: Any, b: np.ndarray) -> None:
    for i, k in enumerate(b):
        memory[i] = int(k)


def by_from_numpy(memory: Any, b: np.ndarray) -> None:
    memory.from_numpy(b)


def by_from_torch(memory: Any, b: np.ndarray) -> None:
    memory.from_torch(torch.from_numpy(b))


def by_copy_from(memory: Any, b: np.ndarray) -> None:
    other = sg.field(sg.i32, N) if isinstance(memory, sg.Field) else sg.ndarray(sg.i32, N)
    other.from_numpy(b)
    memory.copy_from(other)


def by_fill(memory: Any, b: np.ndarray) -> None:
    memory.fill(int(b[1]))
    b[:] = b[1]


@sg.kernel
def copied(to: sg.template(), values: sg.types.ndarray(sg.i32, 1)):
    for i in values:
        to[i] = values[i]


@sg.kernel
def copied_to_array(to: sg.types.ndarray(sg.i32, 1), values: sg.types.ndarray(sg.i32, 1)):
    for i in values:
        to[i] = values[i]


def by_kernel(memory: Any, b: np.ndarray) -> None:
    (copied if isinstance(memory, sg.Field) else copied_to_array)(memory, b.copy())


def by_numpy_view(memory: Any, b: np.ndarray) -> None:
    memory.to_numpy(copy=False)[...] = b


def by_torch_view(memory: Any, b: np.ndarray) -> None:
    values = torch.from_numpy(b)
    memory.to_torch(copy=False).copy_(values)


def by_dlpack(memory: Any, b: np.ndarray) -> None:
    torch.from_dlpack(memory).copy_(torch.from_numpy(b))


COPIES = [by_elements, by_from_numpy, by_from_torch, by_copy_from, by_fill, by_kernel]
SHARED = [by_numpy_view, by_torch_view, by_dlpack]


def change(run: Any, args: tuple[Any, ...], x: Any, y: Any, memory: Any, ways: list[Write], sequence: tuple[int, ...] = SEQUENCE) -> None:
    """Give the bounds in ``memory`` all sizes of the sequence, in each of the ways, and compare after each change."""
    for write in ways:
        for k in sequence:
            b = bounds(k)
            write(memory, b)
            compare(run, args, x, y, trips(b), f"{write.__name__}, {k}")


def test_fields() -> None:
    memory = sg.field(sg.i32, N)
    change(*of_field(memory), memory, COPIES)


def test_arrays() -> None:
    memory = sg.ndarray(sg.i32, N)
    run, x, y = of_array()
    change(run, (memory,), x, y, memory, COPIES)


def test_arguments_that_recur() -> None:
    """More of them than layouts are kept for, while the heap grows and after."""
    x, y = chains(N)

    @sg.kernel
    def run(k: sg.i32):
        for i in x:
            v = x[i]
            for _ in range(k):
                v = advance(v)
            y[i] = AMPLIFIED * v

    for k in (*range(70), 3, 40, 300, 3, 40, *range(8)):
        compare(run, (k,), x, y, k, str(k))


def test_ways_to_write_in_turn() -> None:
    """One after another, so that each follows a launch that found what another way wrote."""
    memory = sg.field(sg.i32, N)
    run, args, x, y = of_field(memory)
    for k in (1, 20, 0, 50, 3):
        change(run, args, x, y, memory, COPIES, (k,))


@pytest.mark.archs("interpreter", "cpu")  # elsewhere memory is not shared with the host
@pytest.mark.parametrize("kind", ["field", "array"])
@pytest.mark.parametrize("write", SHARED, ids=lambda write: write.__name__)
def test_memory_that_is_shared(write: Write, kind: str) -> None:
    """Written through views of which the package sees nothing."""
    memory: Any = sg.field(sg.i32, N) if kind == "field" else sg.ndarray(sg.i32, N)
    args: tuple[Any, ...] = (memory,)
    if kind == "field":
        run, args, x, y = of_field(memory)
    else:
        run, x, y = of_array()
    memory.fill(2)
    compare(run, args, x, y, trips(np.full(N, 2)))
    change(run, args, x, y, memory, [write])


@pytest.mark.archs("interpreter", "cpu")  # elsewhere memory is not shared with the host
def test_one_view_that_is_kept() -> None:
    memory = sg.ndarray(sg.i32, N)
    view, tensor = memory.to_numpy(copy=False), torch.from_dlpack(memory)
    run, x, y = of_array()
    for at, k in enumerate(SEQUENCE):
        b = bounds(k)
        if at % 2:
            view[:] = b
        else:
            tensor.copy_(torch.from_numpy(b))
        compare(run, (memory,), x, y, trips(b))
        compare(run, (memory,), x, y, trips(b))


def in_place(t: Any, b: np.ndarray) -> None:
    t.copy_(torch.from_numpy(b))


def by_added(t: Any, b: np.ndarray) -> None:
    t.add_(torch.from_numpy(b) - t)


def by_data(t: Any, b: np.ndarray) -> None:
    t.data[:] = torch.from_numpy(b)  # does not count as a version


def by_numpy_of_tensor(t: Any, b: np.ndarray) -> None:
    t.numpy()[:] = b


def by_view_of_tensor(t: Any, b: np.ndarray) -> None:
    t.reshape(1, N)[0, :] = torch.from_numpy(b)


def by_kernel_and_view(t: Any, b: np.ndarray) -> None:
    copied_to_array(t.view(N), b.copy())


def by_other_storage(t: Any, b: np.ndarray) -> None:
    t.set_(torch.from_numpy(b.copy()))


TENSORS = [in_place, by_added, by_data, by_numpy_of_tensor, by_view_of_tensor, by_kernel_and_view, by_other_storage]


def test_torch_tensors() -> None:
    run, x, y = of_array()
    for write in TENSORS:
        tensor = torch.full((N,), 2, dtype=torch.int32)
        compare(run, (tensor,), x, y, trips(np.full(N, 2)))
        change(run, (tensor,), x, y, tensor, [write])


def test_numpy_arrays() -> None:
    run, x, y = of_array()
    memory = np.full(N, 2, np.int32)
    for k in SEQUENCE:
        memory[:] = bounds(k)
        compare(run, (memory,), x, y, trips(bounds(k)))


def test_other_arrays_at_the_same_address() -> None:
    """An array that dies leaves its memory, and perhaps its address and `id`, to the next."""
    run, x, y = of_array()
    for k in SEQUENCE:
        memory = sg.ndarray(sg.i32, N)
        memory.from_numpy(bounds(k))
        compare(run, (memory,), x, y, trips(bounds(k)))
        del memory
    for k in SEQUENCE:
        compare(run, (bounds(k),), x, y, trips(bounds(k)))


def test_two_arrays_in_turn() -> None:
    run, x, y = of_array()
    few, many = sg.ndarray(sg.i32, N), sg.ndarray(sg.i32, N)
    few.from_numpy(bounds(3))
    many.from_numpy(bounds(200))
    for memory, k in ((few, 3), (many, 200), (few, 3), (few, 3), (many, 200)):
        compare(run, (memory,), x, y, trips(bounds(k)))


def test_scalars() -> None:
    x, y = chains(N)

    @sg.kernel
    def run(a: sg.i32, b: sg.i32):
        for i in x:
            v = x[i]
            for _ in range(a):
                v = advance(v)
            for _ in range(b * i):
                v = advance(v)
            y[i] = AMPLIFIED * v

    for k in SEQUENCE:
        compare(run, (k, k // 5), x, y, k + k // 5 * np.arange(N))
    compare(run, (-3, -1), x, y, 0)


def test_shapes() -> None:
    """The array is new, and longer or shorter, in each launch; or has the same length and other data."""
    x, y = chains(N)

    @sg.kernel
    def run(a: sg.types.ndarray(sg.f32, 2)):
        for i in x:
            v = x[i]
            for _ in range(a.shape[0]):
                v = advance(v)
            for _ in range(a.shape[1] - i):
                v = advance(v)
            y[i] = AMPLIFIED * v

    for k in SEQUENCE[:4] + SEQUENCE[5:]:
        compare(run, (np.zeros((k, 3), np.float32),), x, y, k + np.maximum(3 - np.arange(N), 0))
        compare(run, (np.zeros((3, k), np.float32),), x, y, 3 + np.maximum(k - np.arange(N), 0))


def test_two_kernels_that_share_arrays() -> None:
    """Each is sized by the array that the other wrote."""
    one, two = sg.ndarray(sg.i32, N), sg.ndarray(sg.i32, N)
    run, x, y = of_array()
    run_too, u, w = of_array()

    @sg.kernel
    def passed_on(a: sg.types.ndarray(sg.i32, 1), b: sg.types.ndarray(sg.i32, 1), more: sg.i32):
        for i in a:
            b[i] = a[N - 1 - i] * more

    state = bounds(9)
    one.from_numpy(state)
    for more in (1, 5, 0, 2, 3):
        passed_on(one, two, more)
        other = state[::-1] * more
        compare(run, (one,), x, y, trips(state))
        compare(run_too, (two,), u, w, trips(other))
        compare(run_too, (one,), u, w, trips(state))
        passed_on(two, one, 1)
        state = other[::-1]
        compare(run, (one,), x, y, trips(state))
        compare(run, (two,), x, y, trips(other))
        state = bounds(4 + more)
        one.from_numpy(state)


def test_gradients_as_bounds() -> None:
    """The gradient kernel of one is what writes the bounds of the other."""
    b, out = sg.field(sg.f32, N, needs_grad=True), sg.field(sg.f32, N, needs_grad=True)
    x, y = chains(N)
    bound = b.grad

    @sg.kernel
    def scaled(k: sg.f32):
        for i in b:
            out[i] = b[i] * k

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for _ in range(sg.cast(bound[i] + 0.5, sg.i32)):
                v = advance(v)
            y[i] = AMPLIFIED * v

    out.grad.fill(1.0)
    wanted = 0
    for k in (1, 20, 0, 300):
        out.grad.fill(1.0)
        scaled.grad(float(k))
        wanted += k
        compare(run, (), x, y, wanted)
    sg.ad.clear_all_gradients()
    compare(run, (), x, y, 0)


def test_bounds_that_a_tape_restores() -> None:
    """The host and a kernel overwrite the bounds while the tape records; backwards each launch is sized by those that it had."""
    b = sg.field(sg.i32, N)
    x = sg.field(sg.f32, N, needs_grad=True)
    loss = sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for _ in range(b[i]):
                v = advance(v)
            loss[None] += v

    @sg.kernel
    def more():
        for i in b:
            b[i] = b[i] * 3 + 1

    x.from_numpy(starts(N))
    b.from_numpy(bounds(5))
    now, wanted = bounds(5), np.zeros(N)
    with sg.ad.Tape(loss):
        for step in range(4):
            run()
            wanted += advanced(starts(N), now)[1]
            if step % 2:
                now = bounds(40 - step)
                b.from_numpy(now)
            else:
                more()
                now = now * 3 + 1
        run()
        wanted += advanced(starts(N), now)[1]
    np.testing.assert_allclose(x.grad.to_numpy(), wanted, rtol=3e-3)
    assert (b.to_numpy() == now).all()


def test_an_inner_range_that_is_empty_at_first() -> None:
    """What lies below it decides nothing then, but is to be watched all the same."""
    outer, inner = sg.field(sg.i32, ()), sg.field(sg.i32, 8)
    x, y = chains(N)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for j in range(outer[None]):
                for _ in range(inner[j]):
                    v = advance(v)
            y[i] = AMPLIFIED * v

    counts = np.arange(8, dtype=np.int32)
    inner.from_numpy(counts)
    compare(run, (), x, y, 0)
    inner.from_numpy(counts * 9)  # no loop reads these
    compare(run, (), x, y, 0)
    outer[None] = 8
    compare(run, (), x, y, 9 * 28)
    inner[7] = 300
    compare(run, (), x, y, 9 * 21 + 300)
    outer[None] = 7
    compare(run, (), x, y, 9 * 21)
    inner[7] = 1
    inner[6] = 77
    compare(run, (), x, y, 9 * 15 + 77)


def test_launches_that_nobody_waits_for() -> None:
    """A kernel writes the bounds, the gradient is launched, over and over: each launch has its own."""
    b = sg.field(sg.i32, N)
    x, y = chains(N)

    @sg.kernel
    def write(k: sg.i32):
        for i in b:
            b[i] = (k * (i + 1)) % 61

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for _ in range(b[i]):
                v = advance(v)
            y[i] += AMPLIFIED * v

    x.from_numpy(starts(N))
    y.grad.fill(1.0)
    wanted = np.zeros(N)
    steps = [1, 40, 0, 7, 59, 3, 17, 17, 0, 60, 2, 33]
    for k in steps:
        write(k)
        run.grad()
        wanted += AMPLIFIED * advanced(starts(N), k * np.arange(1, N + 1) % 61)[1]
    np.testing.assert_allclose(x.grad.to_numpy(), wanted, rtol=3e-3)


def test_two_threads() -> None:
    """The sizes that one finds are not those that the other launches with. They share the heap, and nothing else."""
    works = []
    for seed in range(2):
        memory = sg.field(sg.i32, N)
        run, _, x, y = of_field(memory)
        x.from_numpy(starts(N))
        works.append((memory, run, x, y, np.random.default_rng(seed).integers(0, 200, 25)))
    wrong: list[Any] = []

    def work(memory: Any, run: Any, x: Any, y: Any, sequence: np.ndarray) -> None:
        for k in sequence.tolist():
            b = bounds(k)
            memory.from_numpy(b)
            x.grad.fill(0.0)
            y.grad.fill(1.0)
            run.grad()
            found, wanted = x.grad.to_numpy(), AMPLIFIED * advanced(starts(N), trips(b))[1]
            if not np.allclose(found, wanted, rtol=3e-3):
                wrong.append((k, found, wanted))

    for one in works:
        one[1]()  # compiled
        one[1].grad()
    threads = [threading.Thread(target=work, args=one) for one in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    "n,counts",
    [
        (20_000, (1, 200, 2)),
        (1_000, (0, 1_000, 1, 1_000)),
        (5, (1, 20_000, 3)),
        pytest.param(20_000, (1, 900, 2), marks=pytest.mark.long),
        pytest.param(3_000, (0, 3_000, 1, 3_000), marks=pytest.mark.long),
    ],
    ids=str,
)
def test_bounds_that_grow_by_far(n: int, counts: tuple[int, ...]) -> None:
    """The host does not wait, so the memory that there is was for adstacks of one slot; a float and an integer are on them."""
    x, y = chains(n)
    b = sg.field(sg.i32, n)

    @sg.kernel
    def write(k: sg.i32):
        for i in b:
            b[i] = k

    @sg.kernel
    def run():
        for i in x:
            v, k = x[i], i % 5
            for _ in range(b[i]):
                k = (k * 7 + 1) % 1009
                if k % 2 == 0:
                    v = advance(v)
            y[i] += AMPLIFIED * v

    x.fill(0.5)
    y.grad.fill(1.0)
    wanted = np.zeros(5)
    for count in counts:
        write(count)
        run.grad()
        active, k = np.zeros(5, np.int32), np.arange(5)
        for _ in range(count):
            k = (k * 7 + 1) % 1009
            active += k % 2 == 0
        wanted += AMPLIFIED * advanced(0.5, active)[1]
    sg.sync()
    np.testing.assert_allclose(x.grad.to_numpy(), wanted[np.arange(n) % 5], rtol=1e-2)


@pytest.mark.parametrize("kind", ["numpy", "torch", "array"])
def test_arguments_that_are_changed_after_the_launch(kind: str) -> None:
    """The launch took them; that they are garbage since then is its own affair no more."""
    run, x, y = of_array()
    for k in (30, 2, 111):
        b = bounds(k)
        memory: Any = {"numpy": np.copy, "torch": lambda b: torch.from_numpy(b.copy()), "array": lambda b: sg.ndarray(sg.i32, N)}[kind](b)
        if kind == "array":
            memory.from_numpy(b)
        seeds = launch(run, (memory,), x, y)
        if kind == "array":
            memory.fill(3)
        else:
            memory[:] = 3
        v, slope = advanced(starts(N), trips(b))
        np.testing.assert_allclose(y.to_numpy(), AMPLIFIED * v, rtol=3e-3)
        np.testing.assert_allclose(x.grad.to_numpy(), AMPLIFIED * slope * seeds, rtol=3e-3)
