"""Groups of threads: barriers and shared arrays of blocks, values of other lanes of a subgroup; against NumPy."""

import numpy as np
import pytest

import spirograd as sg
from spirograd.simt import block, subgroup, warp

pytestmark = pytest.mark.usefixtures("session")

# Sizes of a loop and of its groups.
SIZES = [(0, 32), (1, 1), (1, 32), (5, 1), (100, 64), (200, 100), (256, 256), (300, 256)]
TYPES = [sg.i32, sg.f32]
WIDE = [sg.i64, sg.f64]


def numbers(n, dtype, low=-50, high=50):
    return np.random.default_rng(n).integers(low, high, max(n, 1)).astype(dtype.np)


def groups(n, size):
    return [slice(first, min(first + size, n)) for first in range(0, n, size)]


@pytest.mark.parametrize("dtype", [*TYPES, pytest.param(sg.i64, marks=pytest.mark.long), pytest.param(sg.f64, marks=pytest.mark.long)])
@pytest.mark.parametrize(("n", "size"), SIZES)
def test_sums_of_groups(n, size, dtype):
    x, y, count = sg.field(dtype, max(n, 1)), sg.field(dtype, max(n, 1)), sg.field(sg.i32, max(n, 1))

    @sg.kernel
    def sums():
        sg.loop_config(block_dim=size)
        for i in range(n):
            t = block.thread_idx()
            shared = block.SharedArray((size,), dtype)
            shared[t] = x[i]
            block.sync()
            total = shared[0] * 0
            for j in range(min(size, n - (i - t))):
                total += shared[j]
            y[i] = total
            count[i] = block.sync_count_nonzero(x[i] > 0)

    a = numbers(n, dtype)
    for values in (a, a[::-1].copy()):  # launched again with other numbers
        x.from_numpy(values)
        sums()
        for g in groups(n, size):
            assert (y.to_numpy()[g] == values[g].sum()).all()
            assert (count.to_numpy()[g] == (values[g] > 0).sum()).all()


@pytest.mark.parametrize(("n", "size"), [(1, 1), (200, 100), (300, 128)])
def test_scans_and_reductions_of_groups(n, size):
    x, y = sg.field(sg.i32, n), sg.field(sg.i32, (4, n))
    x.from_numpy(numbers(n, sg.i32))

    @sg.kernel
    def scans():
        sg.loop_config(block_dim=size)
        for i in range(n):
            y[0, i] = block.inclusive_add(x[i], size, sg.i32)
            y[1, i] = block.exclusive_max(x[i], size, sg.i32)
            y[2, i] = block.reduce_all_min(x[i], size, sg.i32)
            y[3, i] = block.sync_any_nonzero(x[i] > 40) * 2 + block.sync_all_nonzero(x[i] > -45)

    scans()
    a, got = x.to_numpy(), y.to_numpy()
    for g in groups(n, size):
        assert (got[0, g] == np.cumsum(a[g])).all()
        assert (got[1, g] == np.concatenate([[-(2**31)], np.maximum.accumulate(a[g])[:-1]])).all()
        assert (got[2, g] == a[g].min()).all()
        assert (got[3, g] == 2 * (a[g] > 40).any() + (a[g] > -45).all()).all()


@pytest.mark.parametrize(("n", "size"), [(1, 1), (200, 100), (300, 128)])
def test_any_associative_operation(n, size):
    """One that does not commute: the last value that is not 0."""
    x, y = sg.field(sg.i32, n), sg.field(sg.i32, (3, n))
    a = numbers(n, sg.i32, 0, 3)
    x.from_numpy(a)

    @sg.func
    def last(p, q):
        return sg.select(q != 0, q, p)

    @sg.kernel
    def scans():
        sg.loop_config(block_dim=size)
        for i in range(n):
            y[0, i] = block.reduce_all(x[i], size, last, sg.i32)
            y[1, i] = block.inclusive_scan(x[i], size, last, sg.i32)
            y[2, i] = block.exclusive_scan(x[i], size, last, 0, sg.i32)

    scans()
    for g in groups(n, size):
        held = 0
        for i in range(g.start, g.stop):
            assert y[2, i] == held
            held = a[i] or held
            assert y[1, i] == held
        assert (y.to_numpy()[0, g] == held).all()


def test_tiled_product_of_matrices():
    n, tile = 48, 16
    rng = np.random.default_rng(1)
    a, b = rng.random((n, n), np.float32), rng.random((n, n), np.float32)
    left, right, product = (sg.field(sg.f32, (n, n)) for _ in range(3))
    left.from_numpy(a)
    right.from_numpy(b)

    @sg.kernel
    def multiply():
        sg.loop_config(block_dim=tile * tile)
        for i in range(n * n):
            group, t = i // (tile * tile), block.thread_idx()
            row, column = t // tile, t % tile
            above, before = group // (n // tile) * tile, group % (n // tile) * tile
            mine = block.SharedArray((tile, tile), sg.f32)
            theirs = block.SharedArray((tile, tile), sg.f32)
            total = 0.0
            for k in range(n // tile):
                mine[row, column] = left[above + row, k * tile + column]
                theirs[row, column] = right[k * tile + row, before + column]
                block.sync()
                for j in range(tile):
                    total += mine[row, j] * theirs[j, column]
                block.sync()
            product[above + row, before + column] = total

    multiply()
    assert np.allclose(product.to_numpy(), a @ b, rtol=1e-4)


def test_barriers_in_loops_that_halve():
    n, size = 1000, 128
    x, out = sg.field(sg.i32, n), sg.field(sg.i32, 8)
    x.from_numpy(numbers(n, sg.i32))

    @sg.kernel
    def tree():
        sg.loop_config(block_dim=size)
        for i in range(8 * size):
            t = i % size
            shared = block.SharedArray(size, sg.i32)
            shared[t] = 0
            if i < n:
                shared[t] = x[i]
            block.sync()
            half = size // 2
            while half > 0:
                if t < half:
                    shared[t] += shared[t + half]
                block.sync()
                half //= 2
            if t == 0:
                out[i // size] = shared[0]

    tree()
    padded = np.zeros(8 * size, np.int32)
    padded[:n] = x.to_numpy()
    assert (out.to_numpy() == padded.reshape(8, size).sum(1)).all()


@pytest.mark.parametrize("flag", [0, 1])
@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_barriers_in_branches_and_loops(flag, rounds):
    """Variables live across barriers, in branches and loops that all threads take."""
    n, size = 300, 64
    x, y = sg.field(sg.i32, n), sg.field(sg.i32, n)
    x.from_numpy(numbers(n, sg.i32))

    @sg.kernel
    def work(flag: sg.i32, rounds: sg.i32):
        sg.loop_config(block_dim=size)
        for i in range(n):
            t = block.thread_idx()
            shared = block.SharedArray(size, sg.i32)
            v = x[i]
            w = v * 2
            if flag > 0:
                shared[t] = v
                block.sync()
                v = shared[t - t % 2]
                w = w + 1
            else:
                shared[t] = w
                block.sync()
                w = shared[t - t % 4]
            q = 0
            for j in range(rounds):
                block.sync()
                shared[t] = v + j
                block.sync()
                q += shared[t - t % 8] + w
                w += 1
            y[i] = v + 3 * w + q

    work(flag, rounds)
    a, t = x.to_numpy(), np.arange(n) % size
    base = np.arange(n) - t
    v, w, q = a, a * 2, np.zeros(n, np.int32)
    if flag:
        v, w = a[base + t - t % 2], w + 1
    else:
        w = (2 * a)[base + t - t % 4]
    for j in range(rounds):
        q, w = q + (v + j)[base + t - t % 8] + w, w + 1
    assert (y.to_numpy() == v + 3 * w + q).all()


def test_conditions_that_are_the_same_in_a_group_by_their_values():
    n, size = 300, 64
    y = sg.field(sg.i32, n)

    @sg.kernel
    def work(limits: sg.types.NDArray[sg.i32, 1]):
        sg.loop_config(block_dim=size)
        for i in range(n):
            t = block.thread_idx()
            shared = block.SharedArray(size, sg.i32)
            j = 0
            while j < limits[i - t]:
                shared[t] = j
                block.sync()
                j = shared[0] + 1
                block.sync()
            y[i] = j

    limits = numbers(n, sg.i32, 0, 5)
    work(limits)
    assert (y.to_numpy() == limits[np.arange(n) // size * size]).all()


def test_shared_vectors_and_atomics():
    n, size = 300, 128
    x, y, count = sg.Vector.field(3, sg.f32, n), sg.Vector.field(3, sg.f32, n), sg.field(sg.i32, 3)
    a = np.random.default_rng(2).random((n, 3), np.float32)
    x.from_numpy(a)

    @sg.kernel
    def work():
        sg.loop_config(block_dim=size)
        for i in x:
            t = block.thread_idx()
            shared = block.SharedArray((size,), sg.types.vector(3, sg.f32))
            counter = block.SharedArray((1,), sg.i32)
            shared[t] = x[i] * 2.0
            if t == 0:
                counter[0] = 0
            block.sync()
            counter[0] += 1
            y[i] = shared[t - t % 2] + x[i]
            block.sync()
            shared[t].y = 5.0
            block.sync()
            y[i].z = shared[t - t % 2].y
            count[i // size] = counter[0]

    work()
    wanted = a + 2 * a[np.arange(n) // 2 * 2]
    wanted[:, 2] = 5
    assert np.allclose(y.to_numpy(), wanted)
    assert count.to_numpy().tolist() == [128, 128, 44]


def test_places_of_threads():
    n = 200
    y = sg.field(sg.i32, n)
    x = sg.field(sg.i32, n)
    x.from_numpy(numbers(n, sg.i32))

    @sg.kernel
    def work(low: sg.i32, high: sg.i32):
        sg.loop_config(block_dim=32)
        for i in range(low, high):
            y[i] = sg.global_thread_idx() * 1000 + block.thread_idx() + sg.volatile_load(x[i])

    work(7, 107)
    places = np.arange(100)
    assert (y.to_numpy()[7:107] == places * 1000 + places % 32 + x.to_numpy()[7:107]).all()


# --- subgroups ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*TYPES, *[pytest.param(t, marks=pytest.mark.long) for t in WIDE]])
@pytest.mark.parametrize(("n", "size"), [(1, 1), (1, 32), (100, 64), (200, 100), (300, 256)])
def test_subgroups(n, size, dtype):
    lanes = subgroup.group_size()
    x, y, ballots = sg.field(dtype, n), sg.field(dtype, (8, n)), sg.field(sg.u32, n)
    a = numbers(n, dtype, 1, 9)
    x.from_numpy(a)

    @sg.kernel
    def work():
        sg.loop_config(block_dim=size)
        for i in range(n):
            v = x[i]
            y[0, i] = subgroup.reduce_add(v)
            y[1, i] = subgroup.reduce_all_max(v)
            y[2, i] = subgroup.inclusive_add(v)
            y[3, i] = subgroup.exclusive_add(v)
            y[4, i] = subgroup.shuffle_down(v, 1)
            y[5, i] = subgroup.shuffle_up(v, 1)
            y[6, i] = subgroup.shuffle_xor(v, 1)
            y[7, i] = subgroup.broadcast_first(v)
            ballots[i] = subgroup.ballot_first_n(v > 4, 32)

    work()
    got = y.to_numpy()
    for g in groups(n, size):
        for first in range(g.start, g.stop, lanes):
            s = slice(first, min(first + lanes, g.stop))
            w = a[s]
            partner = np.arange(len(w)) ^ 1
            partner = np.where(partner < len(w), partner, np.arange(len(w)))
            wanted = [w.sum(), w.max(), np.cumsum(w), np.cumsum(w) - w, np.append(w[1:], w[-1]), np.append(w[:1], w[:-1]), w[partner], w[0]]
            for k, value in enumerate(wanted):
                assert (got[k, s] == value).all(), k
            assert (ballots.to_numpy()[s] == sum(1 << k for k in range(min(len(w), 32)) if w[k] > 4)).all()


@pytest.mark.parametrize(("n", "size"), [(5, 32), (77, 33), (96, 96)])
def test_votes_of_those_that_there_are(n, size):
    """Also of a constant: threads that do not exist have no vote."""
    x, y, ballots = sg.field(sg.i32, n), sg.field(sg.i32, (6, n)), sg.field(sg.u32, (2, n))
    a = numbers(n, sg.i32, 0, 3)
    x.from_numpy(a)
    lanes = subgroup.group_size()

    @sg.kernel
    def work():
        sg.loop_config(block_dim=size)
        for i in range(n):
            y[0, i] = subgroup.all_true(x[i] < 2)
            y[1, i] = subgroup.any_true(x[i] > 1)
            y[2, i] = subgroup.all_true(1)
            y[3, i] = subgroup.any_true(0)
            y[4, i] = subgroup.all_true_tiled(x[i] < 2, 2)
            y[5, i] = subgroup.any_true_tiled(x[i] > 1, 2)
            ballots[0, i] = subgroup.ballot_first_n(1, 32)
            ballots[1, i] = subgroup.ballot_first_n(x[i] > 0, 5)

    work()
    got, votes = y.to_numpy(), ballots.to_numpy()
    for g in groups(n, size):
        for first in range(g.start, g.stop, lanes):
            s = slice(first, min(first + lanes, g.stop))
            w = a[s]
            assert (got[:4, s] == np.array([(w < 2).all(), (w > 1).any(), True, False])[:, None]).all()
            for k in range(0, len(w), 4):
                part = w[k : k + 4]
                assert (got[4:, first + k : first + k + len(part)] == np.array([(part < 2).all(), (part > 1).any()])[:, None]).all()
            assert (votes[0, s] == (1 << min(len(w), 32)) - 1).all()
            assert (votes[1, s] == sum(1 << k for k in range(min(len(w), 5)) if w[k] > 0)).all()


@pytest.mark.parametrize(("n", "size"), [(10, 3), (45, 64)])
def test_threads_that_there_are_not_have_no_vote(n, size):
    """Where threads meet, what they computed before and what they compute now come together; indices begin at 5."""
    x, y = sg.field(sg.i32, n), sg.field(sg.i32, (3, n))
    x.fill(1)

    @sg.kernel
    def work():
        sg.loop_config(block_dim=size)
        for i in range(5, 5 + n):
            t, a = block.thread_idx(), x[i - 5]
            block.sync()
            y[0, i - 5] = subgroup.all_true(a)
            y[1, i - 5] = subgroup.any_true(a == 0)
            y[2, i - 5] = t

    work()
    np.testing.assert_array_equal(y.to_numpy(), [np.ones(n), np.zeros(n), np.arange(n) % size])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("n", "size"), [(5, 32), (77, 33), (128, 64)])
def test_segments(n, size, dtype):
    """Reductions that begin anew at flags, at tiles, and at subgroups; in groups that lack threads, too."""
    x, flags, y = sg.field(dtype, n), sg.field(sg.i32, n), sg.field(dtype, (5, n))
    equal = sg.field(sg.i32, n)
    a, heads = numbers(n, dtype), numbers(n + 1, sg.i32, -3, 3)[:n] // 2  # some of the flags are neither 0 nor 1
    x.from_numpy(a)
    flags.from_numpy(heads)
    lanes = subgroup.group_size()

    @sg.kernel
    def work():
        sg.loop_config(block_dim=size)
        for i in range(n):
            y[0, i] = subgroup.segmented_reduce_add(x[i], flags[i])
            y[1, i] = subgroup.segmented_reduce_max(x[i], flags[i] != 0)
            y[2, i] = subgroup.segmented_reduce_add_tiled(x[i], flags[i], 2)
            y[3, i] = subgroup.segmented_reduce_min_tiled(x[i], flags[i], 2)
            y[4, i] = subgroup.segmented_reduce_max_tiled(x[i], 0, 0)
            equal[i] = subgroup.all_equal_tiled(flags[i], 1)

    def by_segments(accumulate, tile):
        out, number = np.empty_like(a), np.arange(n)
        lane = (number % size) % lanes
        begins = np.flatnonzero((heads != 0) | (lane % tile == 0))
        for first, end in zip(begins, [*begins[1:], n]):
            out[first:end] = accumulate(a[first:end])
        return out

    work()
    add, most, least = np.cumsum, np.maximum.accumulate, np.minimum.accumulate
    wanted = [by_segments(add, lanes), by_segments(most, lanes), by_segments(add, 4), by_segments(least, 4), a]
    for got, value in zip(y.to_numpy(), wanted):
        assert (got == value).all()
    for g in groups(n, size):
        for k in range(g.start, g.stop, 2):
            pair = heads[k : min(k + 2, g.stop)]
            assert (equal.to_numpy()[k : k + len(pair)] == (pair == pair[0]).all()).all()


def test_votes_and_warps():
    n = 128
    x, y = sg.field(sg.i32, n), sg.field(sg.i32, (6, n))
    a = numbers(n, sg.i32, 0, 3)
    x.from_numpy(a)
    lanes = subgroup.group_size()

    @sg.kernel
    def work():
        sg.loop_config(block_dim=64)
        for i in range(n):
            y[0, i] = subgroup.all_true(x[i] < 2)
            y[1, i] = subgroup.any_true(x[i] > 1)
            y[2, i] = subgroup.elect()
            y[3, i] = subgroup.invocation_id()
            y[4, i] = warp.shfl_down_i32(sg.u32(0xFFFFFFFF), x[i], 2)
            y[5, i] = subgroup.reduce_add_tiled(x[i], 2)

    work()
    got, by_lane = y.to_numpy(), a.reshape(-1, lanes)
    assert (got[0].reshape(-1, lanes) == (by_lane < 2).all(1, keepdims=True)).all()
    assert (got[1].reshape(-1, lanes) == (by_lane > 1).any(1, keepdims=True)).all()
    assert (got[2] == (np.arange(n) % lanes == 0)).all()
    assert (got[3] == np.arange(n) % lanes).all()
    assert (got[4].reshape(-1, lanes) == np.concatenate([by_lane[:, 2:], by_lane[:, -2:]], 1)).all()
    assert (got[5].reshape(-1, 4) == a.reshape(-1, 4).sum(1, keepdims=True)).all()


@pytest.mark.parametrize("flag", [0, 1])
def test_what_a_subgroup_reads_in_a_branch_is_used_after_it(flag):
    """Whether or not the branch was taken."""
    n = 64
    y = sg.field(sg.i32, n)

    @sg.kernel
    def work(flag: sg.i32):
        sg.loop_config(block_dim=n)
        for i in range(n):
            c = block.thread_idx() * 2
            a = 0
            if flag > 0:
                block.sync()
                a = subgroup.broadcast_first(c)
            block.sync()
            y[i] = a + c

    work(flag)
    first = np.arange(n) // subgroup.group_size() * subgroup.group_size()
    assert (y.to_numpy() == 2 * np.arange(n) + flag * 2 * first).all()


@pytest.mark.archs("interpreter", "cpu", "cuda")  # elsewhere subgroups may be too small, or formed through the memory of the group
def test_the_first_subgroup_finishes():
    n, size, lanes = 1000, 128, subgroup.group_size()
    x, out = sg.field(sg.i32, n), sg.field(sg.i32, 8)
    x.from_numpy(numbers(n, sg.i32))

    @sg.kernel
    def sums():
        sg.loop_config(block_dim=size)
        for i in range(8 * size):
            t = block.thread_idx()
            shared = block.SharedArray((32,), sg.i32)
            v = 0
            if i < n:
                v = x[i]
            v = subgroup.reduce_add(v)
            if t % lanes == 0:
                shared[t // lanes] = v
            block.sync()
            if t < lanes:
                rest = 0
                if t < size // lanes:
                    rest = shared[t]
                rest = subgroup.reduce_add(rest)
                if t == 0:
                    out[i // size] = rest

    sums()
    padded = np.zeros(8 * size, np.int32)
    padded[:n] = x.to_numpy()
    assert (out.to_numpy() == padded.reshape(8, size).sum(1)).all()


def test_an_element_of_shared_memory_as_a_condition():
    """The same for the whole group, used around a barrier, and by each thread."""

    @sg.kernel
    def run(x: sg.types.NDArray[sg.i32, 1], y: sg.types.NDArray[sg.i32, 1]):
        sg.loop_config(block_dim=16)
        for _ in range(64):
            values, ticket = block.SharedArray(16, sg.i32), block.SharedArray(1, sg.i32)
            t = block.thread_idx()
            if t == 0:
                ticket[0] = sg.atomic_add(x[0], 1)
            block.sync()
            number, v = ticket[0], 0
            if number == 0:
                values[t] = t
                block.sync()
                v = values[15 - t]
            if number == 0:
                sg.atomic_max(y[t], v)
            else:
                sg.atomic_max(y[16 + t], number)

    x, y = np.zeros(1, np.int32), np.zeros(32, np.int32)
    run(x, y)
    assert y.tolist() == [*range(15, -1, -1), *[3] * 16]


def test_branches_on_the_number_of_the_group(arch: str) -> None:
    """The condition is computed from the index, by a division and by a shift; in the branch threads meet, and read the index of others."""
    sg.init(arch=arch)
    out, read = sg.field(sg.i32, 96), sg.field(sg.i32, 96)

    @sg.kernel
    def run():  # type: ignore[no-untyped-def]
        sg.loop_config(block_dim=32)
        for i in range(96):
            shared, t = block.SharedArray((32,), sg.i32), block.thread_idx()
            if i // 32 == 1:
                for k in range(2):
                    shared[t] = i + k
                    block.sync()
                    out[i] = shared[31 - t]
                    block.sync()
            else:
                out[i] = -1
                block.sync()
            if (i >> 5) < 2:
                read[i] = subgroup.shuffle(i, 1)
                block.sync()

    run()
    at = np.arange(96)
    assert (out.to_numpy() == np.where(at // 32 == 1, 64 - at % 32, -1)).all()
    size = np.unique(read.to_numpy()[:64]).size
    assert (read.to_numpy() == np.where(at < 64, at // (64 // size) * (64 // size) + 1, 0)).all()
