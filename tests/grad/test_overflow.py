"""Adstacks that prove too small: bounds are written past all tracking, so that a launch goes by what an earlier one found.

The launch writes nothing outside of its adstacks, the next sync says which loop it was, and the launch after that is right.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from typing import Any

import needs
import numpy as np
import pytest
from grad.chains import AMPLIFIED, advance, advanced, chains, compare, starts
from grad.check import on_devices_with_types

import spirograd as sg
from spirograd.base.adstack_layout import ADSTACK_PADDING
from spirograd.lang import context
from spirograd.runtime.allocations import Allocation

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.archs("cpu", "vulkan", "wgpu")]  # the interpreter's adstacks grow

N = 5
POISON = 0xA5C35A3C
Made = tuple[Any, Any, Any, Callable[[np.ndarray], np.ndarray]]


def place_of(memory: Any) -> tuple[Allocation, int]:
    """The allocation of a field or an array, and where in it that begins."""
    if isinstance(memory, sg.Field):
        ref = memory.refs()
        assert [term.stride for term in ref.layout.terms] == [4]
        return memory.tree.allocation, ref.layout.components[0]
    return memory.allocation, 0


def by_device(memory: Any, values: np.ndarray) -> bool:
    """Through the device, whose writes are not recorded."""
    allocation, offset = place_of(memory)
    allocation.device.upload(allocation.buffer, offset, memoryview(values.astype(np.int32)).cast("B"))
    return True


def by_pointer(memory: Any, values: np.ndarray) -> bool:
    """To the address itself. False where the host has none."""
    allocation, offset = place_of(memory)
    view = allocation.device.host_view(allocation.buffer)
    if view is None:
        return False
    sg.sync()
    data = values.astype(np.int32)
    start = ctypes.addressof(ctypes.c_char.from_buffer(view))
    ctypes.memmove(start + offset, data.ctypes.data, data.nbytes)
    return True


def heap() -> Allocation:
    found = context.session().launcher.adstacks._heap
    assert found is not None
    return found  # type: ignore[no-any-return]


def poisoned() -> None:
    heap().fill(0, heap().nbytes // 4 * 4, POISON)


def untouched_from(offset: int) -> bool:
    words = np.zeros(heap().nbytes // 4, np.uint32)
    heap().read_into(0, words.data.cast("B"))
    return bool((words[-(-offset // 4) :] == POISON).all())


def failing(run: Any, args: tuple[Any, ...]) -> str:
    """What a launch of the gradient, or the sync after it, raises."""
    with pytest.raises(sg.AdStackOverflow) as caught:
        run.grad(*args)
        sg.sync()
    return str(caught.value)


def line_of(marker: str) -> int:
    with open(__file__, encoding="utf-8") as file:
        return next(n for n, line in enumerate(file, 1) if line.rstrip().endswith(f"# {marker}"))


# --- kernels: from bounds in memory to iterations of a chain ---------------------------------------------------------------------


def counted(b: Any, t: Any) -> Made:
    x, y = chains(N, t)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for _ in range(b[i]):  # counted
                v = advance(v)
            for _ in range(40):
                v = advance(v)
            y[i] = AMPLIFIED * v

    return run, x, y, lambda k: k + 40


def until(b: Any, t: Any) -> Made:
    x, y = chains(N, t)

    @sg.kernel
    def run():
        for i in x:
            v, k = x[i], 0
            while k * k < b[i] * b[i]:  # until
                v = advance(v)
                k += 1
            y[i] = AMPLIFIED * v

    return run, x, y, lambda k: k


def nest_inner(b: Any, t: Any) -> Made:
    x, y = chains(N, t)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for _ in range(3):
                for _ in range(b[i]):  # nest_inner
                    v = advance(v)
            y[i] = AMPLIFIED * v

    return run, x, y, lambda k: 3 * k


def nest_outer(b: Any, t: Any) -> Made:
    x, y = chains(N, t)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for _ in range(b[i]):  # nest_outer
                for _ in range(3):
                    v = advance(v)
            y[i] = AMPLIFIED * v

    return run, x, y, lambda k: 3 * k


def with_integers(b: Any, t: Any) -> Made:
    """Half of the iterations do nothing, by an integer that has to be noted."""
    x, y = chains(N, t)

    @sg.kernel
    def run():
        for i in x:
            v, m = x[i], 1
            for _ in range(b[i]):  # with_integers
                m = (m * 7 + 1) % 1009
                if m % 2 == 0:
                    v = advance(v)
            y[i] = AMPLIFIED * v

    def trips(k: np.ndarray) -> np.ndarray:
        found, m = [0], 1
        for _ in range(int(k.max())):
            m = (m * 7 + 1) % 1009
            found.append(found[-1] + (m % 2 == 0))
        return np.array(found)[k]

    return run, x, y, trips


def serial(b: Any, t: Any) -> Made:
    x, y = chains(N, t)

    @sg.kernel
    def run():
        sg.loop_config(serialize=True)
        for i in range(N):
            v = x[i]
            for _ in range(b[i]):  # serial
                v = advance(v)
            y[i] = AMPLIFIED * v

    return run, x, y, lambda k: k


def one_bound(b: Any, t: Any) -> Made:
    """The same for all, which the host can read where it may."""
    x, y = chains(N, t)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for _ in range(b[4]):  # one_bound
                v = advance(v)
            y[i] = AMPLIFIED * v

    return run, x, y, lambda k: np.full(N, k[4])


def carried_bound(b: Any, t: Any) -> Made:
    """How long the inner loop is changes with what the outer one carries: counted in two stages."""
    x, y = chains(N, t)

    @sg.kernel
    def run():
        for i in x:
            v, k = x[i], b[i]
            for _ in range(3):
                for _ in range(k):  # carried_bound
                    v = advance(v)
                k = (k + 1) // 2
            y[i] = AMPLIFIED * v

    return run, x, y, lambda k: k + (k + 1) // 2 + ((k + 1) // 2 + 1) // 2


KERNELS = [counted, until, nest_inner, nest_outer, with_integers, serial, one_bound, carried_bound]


def small(k: int) -> np.ndarray:
    return np.array([k, 0, k // 2, 1, k], np.int32)


def overflow(made: Made, memory: Any, write: Callable[[Any, np.ndarray], bool], marker: str, args: tuple[Any, ...] = ()) -> None:
    run, x, y, trips = made
    few, many = small(20), small(700)
    memory.from_numpy(few)
    compare(run, args, x, y, trips(few))
    (task,) = run.grad.memory_plan(*args).tasks
    assert (task.task is None) == (marker == "serial")
    # Devices that place adstacks put some distance between the entries of few thread slots, too.
    apart = 0 if context.session().arch == "cpu" else ADSTACK_PADDING + 1
    end = task.nbytes + sum(slab.stride for slab in task.slabs) * apart
    poisoned()
    if not write(memory, many):
        pytest.skip("missing address: the host cannot reach this memory")
    message = failing(run, args)
    assert untouched_from(end), "written behind the adstacks"
    assert re.search(rf"test_overflow\.py:{line_of(marker)}\b", message), message
    assert "run_grad" in message
    assert "in run" in message
    demand, capacity = map(int, re.findall(r"(?<=this loop runs )\d+|(?<=adstacks have room for )\d+", message))
    # Of several loops, and of iterations that run at the same time, any may tell.
    assert demand in {*many, *trips(many), 350, 175, 88} - {0, 1}, "a loop makes so many iterations"
    # Entries stand for segments of 8 iterations where these are small, and for less where they are large.
    assert 20 <= capacity < demand
    assert capacity <= -(-(20 + 20 // 4 + 16) // 8) * 8
    assert "hint: launch the gradient again" in message
    for bounds in (many, few, many):
        if bounds is not many:
            memory.from_numpy(bounds)
            poisoned()
        compare(run, args, x, y, trips(memory.to_numpy()), "after the error")


@pytest.mark.vulkan_or_wgpu
@on_devices_with_types
@pytest.mark.parametrize("make", KERNELS, ids=lambda make: make.__name__)
def test_field_written_past_the_tracking(make: Callable[[Any, Any], Made], t: Any) -> None:
    needs.of_type(t)
    memory = sg.field(sg.i32, N)
    overflow(make(memory, t), memory, by_device, make.__name__)


@pytest.mark.vulkan_or_wgpu
@pytest.mark.parametrize(("few", "many"), [(4, 64), (5, 65), (1, 17)])
def test_numbers_are_those_of_the_program(few: int, many: int) -> None:
    """Iterations, whatever an entry of an adstack stands for."""
    memory = sg.field(sg.i32, N)
    run, x, y, trips = counted(memory, sg.f32)
    memory.fill(few)
    compare(run, (), x, y, trips(np.full(N, few)))
    by_device(memory, np.full(N, many))
    message = failing(run, ())
    (every,) = {adstack.every for adstack in run.grad.memory_plan().adstacks}
    assert f"this loop runs {many} iterations, but its adstacks have room for {-(-few // every) * every}\n" in message


@pytest.mark.parametrize("make", [counted, serial], ids=lambda make: make.__name__)
def test_field_written_through_a_raw_pointer(make: Callable[[Any, Any], Made]) -> None:
    memory = sg.field(sg.i32, N)
    overflow(make(memory, sg.f32), memory, by_pointer, make.__name__)


@pytest.mark.vulkan_or_wgpu
@pytest.mark.parametrize("write", [by_device, by_pointer])
def test_array_written_past_the_tracking(write: Callable[[Any, np.ndarray], bool]) -> None:
    x, y = chains(N)

    @sg.kernel
    def run(b: sg.types.ndarray(sg.i32, 1)):
        for i in x:
            v = x[i]
            for _ in range(b[i]):  # array
                v = advance(v)
            y[i] = AMPLIFIED * v

    memory = sg.ndarray(sg.i32, N)
    overflow((run, x, y, lambda k: k), memory, write, "array", (memory,))


def test_the_error_comes_once_and_others_run_on(arch: str) -> None:
    """On the CPU right at the launch, else at the next sync; what was launched between has run, and nothing is left over."""
    memory = sg.field(sg.i32, N)
    run, x, y, trips = counted(memory, sg.f32)
    other, u, w, _ = counted(memory, sg.f32)
    plain = sg.field(sg.i32, N)

    @sg.kernel
    def fill(k: sg.i32):
        for i in plain:
            plain[i] = k + i

    for k in (3, 8):
        memory.from_numpy(small(k))
        compare(run, (), x, y, trips(small(k)))
        compare(other, (), u, w, trips(small(k)))
        by_device(memory, small(500))
        if arch == "cpu":
            with pytest.raises(sg.AdStackOverflow):
                run.grad()
        else:
            run.grad()
        fill(k)
        if arch == "cpu":
            sg.sync()
        else:
            with pytest.raises(sg.AdStackOverflow):
                sg.sync()
        assert plain[4] == k + 4
        sg.sync()
        compare(other, (), u, w, trips(small(500)), "found anew as well")
        compare(run, (), x, y, trips(small(500)))


def test_under_a_tape() -> None:
    memory = sg.field(sg.i32, N)
    x, _ = chains(N)
    loss = sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for _ in range(memory[i]):
                v = advance(v)
            loss[None] += v

    def record() -> None:
        with sg.ad.Tape(loss):
            run()
        sg.sync()

    x.from_numpy(starts(N))
    memory.from_numpy(small(8))
    record()
    by_device(memory, small(600))
    with pytest.raises(sg.AdStackOverflow, match="run_grad"):
        record()
    for bounds in (small(600), small(2)):
        memory.from_numpy(bounds)
        record()
        np.testing.assert_allclose(x.grad.to_numpy(), advanced(starts(N), bounds)[1], rtol=3e-3)


def test_an_address_that_was_asked_for_is_never_stale() -> None:
    """`Allocation.host_address` says that other code may write there from then on."""
    memory = sg.field(sg.i32, N)
    run, x, y, trips = counted(memory, sg.f32)
    memory.fill(1)
    compare(run, (), x, y, trips(np.ones(N, int)))
    allocation, offset = place_of(memory)
    address = allocation.host_address
    if address is None:
        pytest.skip("missing address: the host cannot reach this memory")
    for k in (500, 2, 90):
        sg.sync()
        data = small(k)
        ctypes.memmove(address + offset, data.ctypes.data, data.nbytes)
        compare(run, (), x, y, trips(small(k)))


@pytest.mark.vulkan_or_wgpu
@pytest.mark.archs("vulkan", "wgpu")  # which place adstacks themselves
@pytest.mark.parametrize("kind", ["parallel", "serial"])
def test_no_slot_has_room(arch: str, kind: str) -> None:
    """Bounds grow by so much at once that the heap does not hold one thread slot: nothing of the task runs, and the next launch has
    room."""
    sg.init(arch=arch, ad_memory_GB=2 / 1024)  # of which two thread slots take 1.5 MB
    slots = 2 if kind == "parallel" else 1
    bound = sg.field(sg.i32, ())
    x = sg.Matrix.field(4, 4, sg.f32, shape=slots, needs_grad=True)
    y = sg.Matrix.field(4, 4, sg.f32, shape=slots, needs_grad=True)

    @sg.kernel
    def grow(k: sg.i32):
        bound[None] = k

    @sg.kernel
    def parallel():
        for i in x:
            v = x[i]
            for _ in range(bound[None]):  # many thread slots
                v = advance(v)
            y[i] = v

    @sg.kernel
    def serial():
        v = x[0]
        sg.loop_config(serialize=True)
        for _ in range(bound[None]):  # one thread slot
            v = advance(v)
        y[0] = v

    run = {"parallel": parallel, "serial": serial}[kind]
    many = {"parallel": 12_000, "serial": 20_000}[kind]
    values = starts(16 * slots).reshape(slots, 4, 4)

    def gradient(k: int) -> None:
        grow(k)
        x.from_numpy(values)
        x.grad.fill(0.0)
        y.grad.fill(1.0)
        run.grad()
        sg.sync()

    def right(k: int) -> None:
        gradient(k)
        # After 20,000 iterations the values are about 15,000: of their sines f32 knows three digits, and GPUs fewer.
        np.testing.assert_allclose(x.grad.to_numpy(), advanced(values, k)[1], rtol=0.1)

    right(3)
    room = context.session().launcher.adstacks.nbytes
    assert {task.task is None for task in run.grad.memory_plan().tasks} == {kind == "serial"}
    assert room < slots * 16 * 4 * many, "the heap is so large that this tests nothing"
    poisoned()
    with pytest.raises(sg.AdStackOverflow, match=r"one thread slot of its adstacks .* words of 32 bits") as caught:
        gradient(many)
    assert f"{kind}_grad" in str(caught.value)
    assert f"test_overflow.py:{line_of('many thread slots' if kind == 'parallel' else 'one thread slot')}" in str(caught.value)
    assert (x.grad.to_numpy() == 0).all() or kind == "serial"
    right(many)
    assert context.session().launcher.adstacks.nbytes > room
    right(5)
