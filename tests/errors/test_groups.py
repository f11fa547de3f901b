"""What goes wrong with groups of threads, and how it is reported."""

import numpy as np
import pytest
from needs import need

import spirograd as sg
from spirograd.lang import context
from spirograd.simt import Tile16x16, block, subgroup, warp


def test_outside_of_parallel_loops():
    sg.init(arch=sg.interpreter)

    @sg.kernel
    def work():
        block.sync()

    with pytest.raises(sg.SpirogradSyntaxError, match=r"`block.sync` works in the body of a parallel loop"):
        work()


def test_reductions_outside_of_kernels():
    sg.init(arch=sg.interpreter)
    for call, name in ((lambda: subgroup.reduce_add(3), "reduce_add"), (lambda: subgroup.exclusive_max_tiled(3, 1), "exclusive_max_tiled")):
        with pytest.raises(sg.SpirogradSyntaxError, match=f"`subgroup.{name}` works in the body of a parallel loop"):
            call()


@pytest.mark.parametrize("size", ["a", 32.0, True], ids=str)
def test_sizes_of_groups_are_integers(size):
    sg.init(arch=sg.interpreter)

    @sg.kernel
    def work():
        sg.loop_config(block_dim=size)
        for i in range(64):
            block.sync()

    with pytest.raises(sg.SpirogradTypeError, match="`block_dim` is the number of threads of a group, got") as info:
        work()
    assert "sg.loop_config(block_dim=size)" in str(info.value)


def test_shared_arrays_of_types_of_numpy():
    sg.init(arch=sg.interpreter)
    y = sg.field(sg.f32, 32)

    @sg.kernel
    def work(dtype: sg.template()):
        sg.loop_config(block_dim=32)
        for i in y:
            shared = block.SharedArray(32, dtype)
            shared[i] = i + 0.5
            block.sync()
            y[i] = shared[31 - i]

    for dtype in (np.float32, np.dtype("f4"), float):
        work(dtype)
        assert (y.to_numpy() == np.arange(32)[::-1] + 0.5).all()


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


def work_of_lanes(body):
    """A kernel of two subgroups, and its results: ``body`` gets the thread, its lane, a shared array and a field."""
    x, y = sg.field(sg.i32, 64), sg.field(sg.i32, 64)

    @sg.kernel
    def work():
        sg.loop_config(block_dim=64)
        for i in y:
            shared = block.SharedArray(64, sg.i32)
            y[i] = body(i, i % 32, shared, x)

    return work, y


@sg.func
def a_barrier_of_the_subgroup_in_place_of_the_block(i, lane, shared, x):
    value = x[0]
    subgroup.sync()
    if i == 5:
        x[0] = 7
    return value


@sg.func
def the_same_in_shared_memory(i, lane, shared, x):
    shared[i] = i
    block.sync()
    value = shared[0]
    subgroup.sync()
    if i == 0:
        shared[0] = 7
    return value


@sg.func
def updates_of_another_subgroup(i, lane, shared, x):
    sg.atomic_add(shared[0], 1)
    subgroup.sync()
    return shared[0] if i == 0 else 0


@sg.func
def a_lane_that_is_not_there(i, lane, shared, x):
    value = 0
    if lane == 20:
        shared[i - lane] = i
    if lane < 16:
        warp.sync(sg.u32(0xFFFF))
        value = shared[i - lane]
    return value


@sg.func
def lanes_that_the_mask_does_not_name(i, lane, shared, x):
    value = shared[i - lane]
    warp.sync(sg.u32(0xFFFF))
    if lane == 5:
        shared[i - lane] = 7
    return value


RACES = {
    a_barrier_of_the_subgroup_in_place_of_the_block: r"iteration 5 writes `\w+\[0\]`, which iteration 32 reads",
    the_same_in_shared_memory: "thread 0 of a group writes element 0 .* which thread 32 reads",
    updates_of_another_subgroup: "thread 0 of a group reads element 0 .* which thread 32 updates",
    a_lane_that_is_not_there: "thread 0 of a group reads element 0 .* which thread 20 writes",
    lanes_that_the_mask_does_not_name: "thread 5 of a group writes element 0 .* which thread 16 reads",
}


@pytest.mark.parametrize("body", RACES, ids=lambda body: body.__name__)
def test_races_that_a_barrier_of_a_subgroup_leaves(body):
    sg.init(arch=sg.interpreter, detect_races=True)
    with pytest.raises(sg.SpirogradRuntimeError, match="race: " + RACES[body]):
        work_of_lanes(body)[0]()
        sg.sync()


@sg.func
def parts_then_all(i, lane, shared, x):
    shared[i] = i
    if lane < 16:
        warp.sync(sg.u32(0xFFFF))
        warp.sync(sg.u32(0xFFFF))
    else:
        warp.sync(sg.u32(0xFFFF0000))
    subgroup.sync()
    value = shared[i ^ 16]
    subgroup.sync()
    shared[i ^ 16] = 1
    block.sync()
    return value + shared[i ^ 32]


@sg.func
def by_way_of_another_lane(i, lane, shared, x):
    """Lane 0 writes, lane 1 waits with lane 0, then lane 2 with lane 1."""
    if lane == 0:
        shared[i] = 7
    if lane < 2:
        warp.sync(sg.u32(3))
    value = i
    if lane == 1 or lane == 2:
        warp.sync(sg.u32(6))
        if lane == 2:
            value = shared[i - 2]
    return value


@pytest.mark.parametrize(
    ("body", "expected"),
    [(parts_then_all, (np.arange(64) ^ 16) + 1), (by_way_of_another_lane, np.where(np.arange(64) % 32 == 2, 7, np.arange(64)))],
)
def test_barriers_of_parts_of_a_subgroup_order_accesses(body, expected):
    sg.init(arch=sg.interpreter, detect_races=True)
    work, y = work_of_lanes(body)
    work()
    assert (y.to_numpy() == expected).all()


@pytest.mark.parametrize(
    ("back_end", "message"),
    [
        (sg.interpreter, "this barrier was reached by 31 threads of a group of 32"),
        (sg.cpu, "threads of a group diverge at this branch or loop"),
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

    with pytest.raises(sg.SpirogradSyntaxError, match="threads 0 and 30 diverge") as info:
        work()
    assert "if i < 990" in str(info.value)


def kernel_of_a_product(first):
    """A product of tiles by the ``first`` threads of a group; None: by the first 20, which memory says."""
    out, taken = sg.field(sg.f32, (16, 16)), sg.field(sg.i32, 32)
    taken.from_numpy((np.arange(32) < 20).astype(np.int32))

    @sg.kernel
    def work():
        sg.loop_config(block_dim=32)
        for i in range(32):
            left, t = Tile16x16.eye(sg.f16), Tile16x16.zeros(sg.f32)
            if sg.static(first is None):
                if taken[i] != 0:
                    t.add_product_(left, left)
            else:
                if i < sg.static(first):
                    t.add_product_(left, left)
            out[0:16, 0:16] = t

    return work


def test_a_product_of_tiles_that_only_some_reach():
    sg.init(arch=sg.interpreter)
    with pytest.raises(sg.SpirogradAssertionError, match="this operation on a tile was reached by 20 threads of a group of 32") as info:
        kernel_of_a_product(None)()
    assert "t.add_product_(left, left)" in str(info.value)
    with pytest.raises(sg.SpirogradSyntaxError, match="not all threads of a group reach an operation on a tile in here") as info:
        kernel_of_a_product(16)()
    assert "if i < sg.static(first)" in str(info.value)


@pytest.mark.parametrize("what", ["maximum", "product", "private"])
def test_gradients_that_are_refused(what):
    sg.init(arch=sg.cpu)
    x, y = sg.field(sg.f32, 32, needs_grad=True), sg.field(sg.f32, 32, needs_grad=True)

    @sg.kernel
    def work():
        sg.loop_config(block_dim=32)
        for i in range(32):
            t = block.thread_idx()
            shared = block.SharedArray(32, sg.f32)
            shared[t] = x[i]
            block.sync()
            if sg.static(what == "maximum"):
                sg.atomic_max(shared[0], x[i])
            if sg.static(what == "product"):
                sg.atomic_mul(shared[0], x[i])
            if sg.static(what == "private"):
                for k in range(i):
                    shared[t] = shared[(t + k) % 32] * x[i]
            block.sync()
            y[i] = shared[31 - i]

    message, line = {
        "maximum": (r"an atomic max has no derivative here", "atomic_max"),
        "product": (r"groups of threads share this product in `shared1`, which has no derivative", "atomic_mul"),
        "private": (r"the gradient needs the contents of a shared array at the start of this branch or loop", "for k"),
    }[what]
    with pytest.raises(sg.SpirogradUnsupportedError, match=message) as refused:
        work.grad()
    assert line in str(refused.value)


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

    with pytest.raises(sg.SpirogradTypeError, match=r"groups of 4096 threads are too large: this device .* takes at most 1024"):
        work()


def kernel_with_shared_array(length, dtype):
    y = sg.field(sg.i32, 64)

    @sg.kernel
    def work():
        sg.loop_config(block_dim=64)
        for i in y:
            shared = block.SharedArray(length, dtype)
            shared[i] = sg.cast(i, dtype)
            block.sync()
            y[i] = sg.cast(shared[63 - i], sg.i32)

    return work


@pytest.mark.parametrize("back_end", ["cpu", "vulkan", "wgpu"])
def test_shared_arrays_that_are_too_large(back_end):
    need(back_end)
    sg.init(arch=back_end)
    with pytest.raises(sg.SpirogradUnsupportedError, match=r"the shared arrays of this loop.* take 8,000,\d{3} bytes") as info:
        kernel_with_shared_array(2_000_000, sg.f32)()
    assert "for i in y" in str(info.value)


def test_shared_arrays_whose_elements_become_words():
    """naga has no integers of 8 bits."""
    need("wgpu")
    sg.init(arch=sg.wgpu)
    most = context.session().device.caps.shared_memory
    kernel_with_shared_array(most // 4, sg.u8)()
    with pytest.raises(sg.SpirogradUnsupportedError, match=f"take {most + 4:,} bytes; this device .* has {most:,} for a group"):
        kernel_with_shared_array(most // 4 + 1, sg.u8)()


def test_values_that_the_stack_does_not_hold():
    """On the CPU what threads keep from one barrier to the next lies on the stack."""
    sg.init(arch=sg.cpu)
    x, n = sg.field(sg.f64, 2048), 1100

    @sg.kernel
    def work():
        sg.loop_config(block_dim=1024)
        for i in x:
            squares = sg.Vector([x[(i + k) % 2048] ** 2 for k in sg.static(range(n))])
            block.sync()
            x[i] = squares.sum()

    with pytest.raises(sg.SpirogradUnsupportedError, match=r"its threads keep across barriers take \d,\d{3},\d{3} bytes") as info:
        work()
    assert "for i in x" in str(info.value)
