"""Gradients of loops of thread groups: shared arrays and barriers in straight lines, branches and loops; exchanges of values."""

from __future__ import annotations

from typing import Any

from grad.check import Program, check, on_back_ends_with_types

import spirograd as sg
from spirograd.simt import block, subgroup


def _field(t: Any, *shape: int) -> Any:
    return sg.field(t, shape, needs_grad=True, needs_dual=True)


# --- shared arrays and barriers ----------------------------------------------------------------------------------------------


def tiled_product(t: Any) -> Program:
    """Tiles at the edges are not full; all of the loop's iterations overwrite the same elements of the tiles."""
    n, m, tile = 5, 3, 4
    a, b, c = _field(t, n, m), _field(t, m, n), _field(t, n, n)
    across = -(-n // tile)

    @sg.kernel
    def multiply():
        sg.loop_config(block_dim=tile * tile)
        for i in range(across * across * tile * tile):
            group, thread = i // (tile * tile), block.thread_idx()
            row, column = thread // tile, thread % tile
            y, x = group // across * tile + row, group % across * tile + column
            mine, theirs = block.SharedArray((tile, tile), t), block.SharedArray((tile, tile), t)
            total = sg.cast(0.0, t)
            for k in range(-(-m // tile)):
                mine[row, column] = 0.0
                theirs[row, column] = 0.0
                if y < n and k * tile + column < m:
                    mine[row, column] = a[y, k * tile + column]
                if x < n and k * tile + row < m:
                    theirs[row, column] = b[k * tile + row, x]
                block.sync()
                for j in range(tile):
                    total += mine[row, j] * theirs[j, column]
                block.sync()
            if y < n and x < n:
                c[y, x] = total

    return Program(multiply, [a, b, c])


def halving_strides(t: Any) -> Program:
    """The last group has fewer threads than the others; iterations read what earlier ones wrote."""
    n, size = 11, 4
    x, y = _field(t, n), _field(t, 3)

    @sg.kernel
    def reduce():
        sg.loop_config(block_dim=size)
        for i in range(n):
            me = block.thread_idx()
            shared = block.SharedArray(size, t)
            shared[me] = x[i]
            block.sync()
            stride = size // 2
            while stride > 0:
                if me + stride < sg.min(size, n - (i - me)) and me < stride:
                    shared[me] = shared[me] * shared[me + stride] + sg.sin(shared[me])
                block.sync()
                stride //= 2
            if me == 0:
                y[i // size] = shared[0]

    return Program(reduce, [x, y])


def stencil_steps(t: Any) -> Program:
    """A number of steps that memory holds, 0 at first; two arrays are overwritten in each."""
    n, size = 10, 8
    x, y, steps = _field(t, n), _field(t, n), sg.field(sg.i32, ())

    @sg.kernel
    def relax():
        sg.loop_config(block_dim=size)
        for i in range(n):
            me = block.thread_idx()
            live = sg.min(size, n - (i - me))
            now, then = block.SharedArray(size, t), block.SharedArray(size, t)
            now[me] = x[i]
            block.sync()
            for _ in range(steps[None]):
                then[me] = now[me] * now[sg.max(me - 1, 0)] + 0.3 * now[sg.min(me + 1, live - 1)]
                block.sync()
                now[me] = sg.tanh(then[me]) * then[live - 1 - me]
                block.sync()
            y[i] = now[me]

    return Program(relax, [x, y], prepare=lambda trial: steps.fill((0, 3)[trial]))


def nested_loops(t: Any) -> Program:
    """Loops in a loop, with barriers in both; the inner one has a trip count that depends on the outer."""
    n = 6
    x, y = _field(t, n), _field(t, n)

    @sg.kernel
    def nest():
        sg.loop_config(block_dim=n)
        for i in range(n):
            shared = block.SharedArray(n + 3, t)
            shared[i] = x[i]
            block.sync()
            v = shared[n - 1 - i]
            for k in range(2):
                v = v * 1.1 + shared[(i + k) % n]
                for _ in range(k + 1):
                    w = shared[(i + 1) % n] * v
                    block.sync()
                    shared[i] = sg.sin(w) + shared[i]
                    block.sync()
                v *= shared[(i + 2) % n]
            y[i] = v

    return Program(nest, [x, y])


def branches_with_barriers(t: Any) -> Program:
    n, size = 8, 4
    x, y, flag = _field(t, n), _field(t, n), sg.field(sg.i32, ())

    @sg.kernel
    def choose():
        sg.loop_config(block_dim=size)
        for i in range(n):
            me = block.thread_idx()
            shared = block.SharedArray(size, t)
            shared[me] = x[i]
            block.sync()
            if flag[None] > 0:
                v = shared[size - 1 - me] * shared[me]
                block.sync()
                shared[me] = v * v
                block.sync()
            else:
                block.sync()
                shared[me] = x[i] * 2.0
                block.sync()
            y[i] = shared[(me + 1) % size] * shared[me]

    return Program(choose, [x, y], prepare=lambda trial: flag.fill(1 - trial))


def branch_read_before_overwritten(t: Any) -> Program:
    """A branch of some threads reads what the group overwrites later."""
    n = 6
    x, y = _field(t, n), _field(t, n)

    @sg.kernel
    def branch():
        sg.loop_config(block_dim=n)
        for i in range(n):
            shared = block.SharedArray(n, t)
            shared[i] = x[i]
            block.sync()
            v = x[i]
            if i % 2 == 0:
                v *= shared[n - 1 - i]
                for k in range(3):
                    v *= shared[k]
            block.sync()
            shared[i] = v * v
            block.sync()
            y[i] = shared[(i + 1) % n] * v

    return Program(branch, [x, y])


def histogram(t: Any) -> Program:
    """Atomics of shared elements, and values that a loop carries in each thread."""
    n, bins, size = 10, 3, 4
    x, y = _field(t, n), _field(t, bins)

    @sg.kernel
    def count():
        sg.loop_config(block_dim=size)
        for i in range(n):
            me = block.thread_idx()
            shared = block.SharedArray(bins, t)
            if me == 0:
                for k in range(bins):
                    shared[k] = 0.0
            block.sync()
            v = x[i]
            for _ in range(i):
                v = sg.sin(v) * 1.1 + 0.1
            shared[i % bins] += v * v
            block.sync()
            if me == 0:
                for k in range(bins):
                    y[k] += shared[k] * shared[k]

    return Program(count, [x, y])


def elements_per_thread(t: Any) -> Program:
    """An array with more elements than threads, filled by a loop; vectors as elements."""
    n, size = 7, 4
    x, y = _field(t, 3 * size), _field(t, n)

    @sg.kernel
    def spread():
        sg.loop_config(block_dim=size)
        for i in range(n):
            me = block.thread_idx()
            shared, pairs = block.SharedArray(3 * size, t), block.SharedArray(size, sg.types.vector(2, t))
            live = sg.min(size, n - (i - me))
            total = sg.cast(1.0, t)
            for r in range(2):
                for k in range(-(-3 * size // live)):
                    if k * live + me < 3 * size:
                        shared[k * live + me] = x[k * live + me] * x[k * live + me]
                pairs[me] = sg.Vector([x[me], x[me + 1] * x[me]])
                block.sync()
                for k in range(3 * size):
                    total += shared[k] * pairs[live - 1 - me].y
                total *= pairs[0].x
                block.sync()
            y[i] = total

    return Program(spread, [x, y])


def global_between_barriers(t: Any) -> Program:
    """Threads of a group exchange values through memory of the program."""
    n, size = 8, 4
    x, y, z = _field(t, n), _field(t, n), _field(t, n)

    @sg.kernel
    def exchange():
        sg.loop_config(block_dim=size)
        for i in range(n):
            y[i] = x[i] * x[i]
            block.sync()
            v = y[i ^ 1] * y[i]
            for k in range(2):
                v = v * y[i ^ 2] + 0.1
            z[i] = v

    return Program(exchange, [x, y, z])


def overwritten_between_barriers(t: Any) -> Program:
    """Threads read elements that other threads overwrite later in the launch."""
    n, size = 8, 4
    x, y = _field(t, n), _field(t, n)

    @sg.kernel
    def rotate():
        sg.loop_config(block_dim=size)
        for i in range(n):
            for _ in range(2):
                v = x[i ^ 1] * x[i]
                block.sync()
                x[i] = sg.sin(v)
                block.sync()
            y[i] = x[i]

    return Program(rotate, [x, y], tape=True)


def reductions_of_blocks(t: Any) -> Program:
    n, size = 7, 4
    x, y = _field(t, n), _field(t, n)

    @sg.kernel
    def combine():
        sg.loop_config(block_dim=size)
        for i in range(n):
            total = block.reduce_add(x[i] * x[i])
            most = block.reduce_max(x[i])
            before = block.exclusive_add(x[i])
            y[i] = total * most + block.inclusive_add(x[i]) * before

    return Program(combine, [x, y])


# --- subgroups ---------------------------------------------------------------------------------------------------------------


def exchanges(t: Any) -> Program:
    """All exchanges are within 4 lanes, because subgroups have 8 lanes or more, depending on the device."""
    n = 40
    x, y = _field(t, n), _field(t, n)

    @sg.kernel
    def shuffle():
        sg.loop_config(block_dim=32)
        for i in range(n):
            v = x[i]
            lanes = sg.min(4, n - i // 4 * 4)
            w = subgroup.shuffle(v, subgroup.invocation_id() // lanes * lanes) * v
            up, down = subgroup.shuffle_up(v, 1), subgroup.shuffle_down(w, 2)
            w += subgroup.shuffle_xor(v * v, 1) + sg.select(i % 4 > 0, up, v) * sg.select(i % 4 < 2, down, w)
            for k in range(3):
                w = w * 0.5 + sg.sin(subgroup.shuffle_xor(w, 2)) * v
            y[i] = w

    return Program(shuffle, [x, y])


def reductions_of_subgroups(t: Any) -> Program:
    n = 37
    x, y = _field(t, n), _field(t, n)

    @sg.kernel
    def combine():
        sg.loop_config(block_dim=32)
        for i in range(n):
            v = x[i]
            total = subgroup.reduce_add_tiled(v * v, 3) * subgroup.reduce_min_tiled(v, 2)
            y[i] = total + subgroup.inclusive_add_tiled(v, 2) * v + subgroup.exclusive_mul_tiled(v, 1) * subgroup.reduce_max_tiled(v, 3)
            y[i] += subgroup.segmented_reduce_add_tiled(v * v, i % 3 == 0, 3) * v

    return Program(combine, [x, y])


CASES = (
    tiled_product, halving_strides, stencil_steps, nested_loops, branches_with_barriers, branch_read_before_overwritten, histogram,
    elements_per_thread, global_between_barriers, overwritten_between_barriers, reductions_of_blocks, exchanges, reductions_of_subgroups,
)  # fmt: skip


@on_back_ends_with_types(CASES)
def test_groups(session: Any, case: Any, t: Any) -> None:
    check(case, t)
