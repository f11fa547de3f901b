"""What goes wrong with groups of threads, and how it is reported."""

import pytest
from needs import need

import spirograd as sg
from spirograd.simt import block


def test_outside_of_parallel_loops():
    sg.init(arch=sg.interpreter)

    @sg.kernel
    def work():
        block.sync()

    with pytest.raises(sg.SpirogradSyntaxError, match=r"`block.sync` works in the body of a parallel loop"):
        work()


def test_races():
    sg.init(arch=sg.interpreter, detect_races=True)
    y = sg.field(sg.i32, 64)

    @sg.kernel
    def work(right: sg.template()):
        sg.loop_config(block_dim=32)
        for i in range(64):
            t = block.thread_idx()
            shared = block.SharedArray(32, sg.i32)
            shared[t] = i
            if sg.static(right):
                block.sync()
            y[i] = shared[31 - t]

    work(True)
    sg.sync()
    with pytest.raises(
        sg.SpirogradRuntimeError, match=r"race: thread \d+ of a group (reads|writes) element \d+ .* which thread \d+"
    ) as info:
        work(False)
        sg.sync()
    assert "without a barrier in between" in str(info.value)
    assert "test_groups.py" in str(info.value)


@pytest.mark.parametrize(
    ("back_end", "message"),
    [
        (sg.interpreter, "this barrier was reached by 31 threads of a group of 32"),
        (sg.cpu, "threads of a group differ about this branch or loop"),
    ],
)
def test_a_barrier_that_only_some_reach(back_end, message):
    sg.init(arch=back_end, debug=True)
    x = sg.field(sg.i32, 32)

    @sg.kernel
    def work():
        sg.loop_config(block_dim=32)
        for i in range(32):
            if x[i] == 0:
                block.sync()

    work()
    sg.sync()
    x[3] = 1
    with pytest.raises(sg.SpirogradRuntimeError, match=message):
        work()
        sg.sync()


def test_a_barrier_that_some_cannot_reach():
    sg.init(arch=sg.cpu)

    @sg.kernel
    def work():
        sg.loop_config(block_dim=32)
        for i in range(1000):
            if i < 990:
                block.sync()

    with pytest.raises(sg.SpirogradSyntaxError, match="threads 0 and 30 go different ways") as info:
        work()
    assert "if i < 990" in str(info.value)


def test_gradients_are_refused():
    sg.init(arch=sg.cpu)
    x = sg.field(sg.f32, 32, needs_grad=True)
    y = sg.field(sg.f32, 32, needs_grad=True)

    @sg.kernel
    def work():
        sg.loop_config(block_dim=32)
        for i in range(32):
            shared = block.SharedArray(32, sg.f32)
            shared[block.thread_idx()] = x[i]
            block.sync()
            y[i] = shared[31 - i]

    work()
    with pytest.raises(sg.SpirogradUnsupportedError, match=r"groups of threads \(`sg.simt`\) has no derivative"):
        work.grad()


@pytest.mark.parametrize("dtype", [sg.i16, sg.u8])
@pytest.mark.parametrize("back_end", ["vulkan", "wgpu"])
def test_atomics_of_narrow_shared_arrays(back_end, dtype):
    need(back_end)
    sg.init(arch=back_end)
    y = sg.field(dtype, 64)

    @sg.kernel
    def work():
        sg.loop_config(block_dim=64)
        for i in y:
            shared = block.SharedArray(4, dtype)
            shared[i % 4] = sg.cast(0, dtype)
            block.sync()
            sg.atomic_add(shared[i % 4], sg.cast(1, dtype))
            block.sync()
            y[i] = shared[i % 4]

    with pytest.raises(sg.SpirogradUnsupportedError, match=f"atomic operations on {dtype}") as info:
        work()
    assert "sg.atomic_add(shared[i % 4]" in str(info.value)


def test_groups_too_large():
    sg.init(arch=sg.cpu)

    @sg.kernel
    def work():
        sg.loop_config(block_dim=4096)
        for _ in range(32):
            block.sync()

    with pytest.raises(sg.SpirogradTypeError, match="groups of 4096 threads are too large: this device takes at most 1024"):
        work()
