"""Warp operations of some lanes, and barriers of subgroups; against NumPy."""

import numpy as np
import pytest

import spirograd as sg
from spirograd.base.records import replace
from spirograd.lang import context
from spirograd.lang.language_options import options_of_device
from spirograd.simt import block, subgroup, warp

pytestmark = pytest.mark.usefixtures("session")

# Elsewhere the compiler may form subgroups, through the memory of the group, and refuses branches that only some threads take.
BRANCHES = ("interpreter", "cpu", "vulkan", "cuda")


def numbers(n, low=0, high=3):
    return np.random.default_rng(n).integers(low, high, n).astype(np.int32)


def warps(n, size, lanes):
    """The threads of each subgroup."""
    return [
        np.arange(first, min(first + lanes, group + size, n))
        for group in range(0, n, size)
        for first in range(group, min(group + size, n), lanes)
    ]


@pytest.mark.parametrize("mask", [0x0F, pytest.param(0xA5, marks=pytest.mark.long), 0xFFFFFFF0])
@pytest.mark.parametrize(("n", "size"), [(64, 64), (77, 40)])
def test_lanes_that_a_literal_names(n, size, mask):
    """All lanes get there; those that are not named have no vote."""
    lanes = subgroup.group_size()
    x, y, found = sg.field(sg.i32, n), sg.field(sg.i32, (8, n)), sg.field(sg.u32, n)
    a = numbers(n)
    x.from_numpy(a)

    @sg.kernel
    def work():
        sg.loop_config(block_dim=size)
        for i in range(n):
            m = sg.u32(mask)
            y[0, i] = warp.all_nonzero(m, x[i])
            y[1, i] = warp.any_nonzero(m, x[i] > 1)
            y[2, i] = warp.unique(m, x[i])
            y[3, i] = warp.match_all(m, x[i] // 2)
            y[4, i] = warp.shfl_sync_i32(m, x[i] + 10, 5)
            y[5, i] = warp.shfl_up_i32(mask, x[i] + 10, 1)  # a plain number, also one that no i32 holds
            y[6, i] = warp.shfl_down_i32(m, x[i] + 10, 2)
            y[7, i] = warp.shfl_xor_i32(m, x[i] + 10, 3)
            found[i] = warp.match_any(m, x[i])

    work()
    got = y.to_numpy()
    for threads in warps(n, size, lanes):
        named = [k for k in range(len(threads)) if mask >> k & 1]
        v = a[threads]
        votes = [all(v[named]), any(v[named] > 1), len(set(v[named] != 0)) < 2, len(set(v[named] // 2)) < 2]
        assert (votes == got[:4, threads].T).all()
        for k, t in enumerate(threads):
            for row, source in ((4, 5), (5, k - 1), (6, k + 2), (7, k ^ 3)):
                assert got[row, t] == v[source if source in named else k] + 10, (row, k)
            assert found.to_numpy()[t] == sum(1 << j for j in named if v[j] == v[k])


@pytest.mark.archs(*BRANCHES)
@pytest.mark.parametrize(("n", "size"), [(64, 64), (45, 64)])
def test_lanes_that_take_a_branch(n, size):
    """Only they get there; what they say of themselves is the mask."""
    lanes = subgroup.group_size()
    x, y = sg.field(sg.i32, n), sg.field(sg.i32, (4, n))
    a = numbers(n)
    x.from_numpy(a)

    @sg.kernel
    def work():
        sg.loop_config(block_dim=size)
        for i in range(n):
            lane = block.thread_idx() % lanes
            if lane < 5:
                m = warp.active_mask()
                y[0, i] = sg.cast(m, sg.i32)
                y[1, i] = warp.all_nonzero(m, x[i])
                y[2, i] = warp.shfl_down_i32(sg.u32(0x1F), x[i], 1)
            elif x[i] > 0:
                y[0, i] = sg.cast(warp.active_mask(), sg.i32)
                y[3, i] = warp.any_nonzero(warp.active_mask(), x[i] > 1)

    work()
    got = y.to_numpy()
    for threads in warps(n, size, lanes):
        v = a[threads]
        first, others = [k for k in range(len(v)) if k < 5], [k for k in range(len(v)) if k >= 5 and v[k] > 0]
        for k in first:
            wanted = [sum(1 << j for j in first), all(v[first]), v[k + 1 if k + 1 in first else k], 0]
            assert (got[:, threads[k]] == wanted).all()
        for k in others:
            word = sum(1 << j for j in others)
            wanted = [word - (1 << 32) if word >> 31 else word, 0, 0, any(v[others] > 1)]
            assert (got[:, threads[k]] == wanted).all()


@pytest.mark.parametrize("mask", [0xFFFFFFFF, 0xFFFF])
def test_barriers_of_subgroups(mask):
    """What lanes write to shared memory the others read after it, without a barrier of the group."""
    n, size, lanes = 77, 64, subgroup.group_size()
    x, y = sg.field(sg.i32, n), sg.field(sg.i32, (2, n))
    a = numbers(n, -50, 50)
    x.from_numpy(a)

    @sg.kernel
    def work():
        sg.loop_config(block_dim=size)
        for i in range(n):
            shared = block.SharedArray((size,), sg.i32)
            t = block.thread_idx()
            first = t // lanes * lanes
            shared[t] = x[i]
            warp.sync(mask)
            live = sg.min(lanes, n - (i - t) - first)
            y[0, i] = shared[first + (t - first + 1) % live]
            subgroup.sync()
            if t == first:
                shared[t] = 7
            subgroup.barrier()
            y[1, i] = shared[first]

    work()
    got = y.to_numpy()
    for threads in warps(n, size, lanes):
        assert (got[0, threads] == np.roll(a[threads], -1)).all() and (got[1, threads] == 7).all()


@pytest.mark.archs(*BRANCHES)
@pytest.mark.parametrize("lower", [1, 16, 31])
def test_lanes_meet_again_after_a_branch_of_the_upper_ones(lower):
    lanes = subgroup.group_size()
    below, n = min(lower, lanes - 1), 96
    x, y, votes = sg.field(sg.i32, n), sg.field(sg.i32, (5, n)), sg.field(sg.u32, n)
    a = numbers(n, -9, 10)
    x.from_numpy(a)

    @sg.kernel
    def work():
        sg.loop_config(block_dim=n)
        for i in range(n):
            lane = i % lanes
            y[0, i] = -1
            if lane >= below:
                y[0, i] = subgroup.shuffle(x[i], lanes - 1)
                subgroup.sync()
            y[1, i] = subgroup.reduce_add(x[i])
            y[2, i] = subgroup.shuffle(x[i], (lane + 1) % lanes)
            votes[i] = warp.ballot(x[i] > 0)
            y[3, i] = subgroup.inclusive_max(x[i])
            y[4, i] = subgroup.all_true(x[i] < 9)

    work()
    parts, got = a.reshape(-1, lanes), y.to_numpy().reshape(5, -1, lanes)
    assert (got[0] == np.where(np.arange(lanes) < below, -1, parts[:, -1:])).all()
    assert (got[1] == parts.sum(1, keepdims=True)).all()
    assert (got[2] == np.roll(parts, -1, 1)).all()
    assert (votes.to_numpy().reshape(parts.shape) == ((parts > 0) << np.arange(lanes)).sum(1, keepdims=True)).all()
    assert (got[3] == np.maximum.accumulate(parts, 1)).all()
    assert (got[4] == (parts < 9).all(1, keepdims=True)).all()


@pytest.mark.archs("interpreter")  # elsewhere devices decide it, or such loops are refused
def test_lanes_meet_again_in_loops_and_after_them():
    """Lanes of one iteration of all loops around are together: those that are behind catch up."""
    n = 64
    y = sg.field(sg.i32, (3, n))

    @sg.kernel
    def work():
        sg.loop_config(block_dim=n)
        for i in range(n):
            lane = i % 32
            some, inner, outer = 0, 0, 0
            k = 0
            while k < lane % 4:
                if k != lane % 3:
                    some += (k + 1) * subgroup.reduce_add(1)
                k += 1
            for j in range(2):
                for _ in range((lane + j) % 5):
                    inner += subgroup.reduce_add(lane)
                outer += (j + 1) * subgroup.reduce_add(1)
            y[0, i], y[1, i], y[2, i] = some, inner, outer

    work()
    lane = np.arange(32)
    some, inner = np.zeros(32, np.int64), np.zeros(32, np.int64)
    for k in range(3):
        here = (k < lane % 4) & (k != lane % 3)
        some += here * (k + 1) * here.sum()
    for j in range(2):
        for k in range(4):
            here = (lane + j) % 5 > k
            inner += here * lane[here].sum()
    assert (y.to_numpy().reshape(3, 2, 32) == np.stack([some, inner, np.full(32, 96)])[:, None]).all()


@pytest.mark.parametrize("n", [128, 77])
def test_the_first_subgroup_ends_a_reduction(n):
    """A branch whose condition differs in the group may have barriers of subgroups, nested ones and loops, too."""
    size, lanes = 64, subgroup.group_size()
    x, y, z = sg.field(sg.i32, n), sg.field(sg.i32, n), sg.field(sg.f32, n)
    a = numbers(n, -50, 50)
    x.from_numpy(a)

    @sg.kernel
    def work():
        sg.loop_config(block_dim=size)
        for i in range(n):
            shared = block.SharedArray((size,), sg.i32)
            t = block.thread_idx()
            live = sg.min(n - (i - t), lanes)
            shared[t] = x[i]
            last = sg.Vector([7.0, 1.0])
            block.sync()
            if t < lanes:
                for k in range(1, subgroup.log2_group_size() + 1):
                    d = lanes >> k
                    if t < d and t + d < live:
                        shared[t] += shared[t + d]
                    subgroup.sync()
                if live > 3:
                    last = sg.Vector([sg.cast(shared[0], sg.f32), 2.0])
                    subgroup.sync()
            elif t >= size - 5:
                subgroup.sync()
                last[0] += t
            block.sync()
            y[i] = shared[0]
            z[i] = last[0] * last[1]

    work()
    for first in range(0, n, size):
        t = np.arange(min(size, n - first))
        total = a[first : min(first + lanes, n)].sum()
        assert (y.to_numpy()[first : first + size] == total).all()
        wanted = np.where(t < lanes, 2.0 * total, np.where(t >= size - 5, 7.0 + t, 7.0))
        assert (z.to_numpy()[first : first + size] == wanted).all()


@pytest.mark.archs(*BRANCHES)
@pytest.mark.parametrize("n", [128, 77])
def test_loops_that_subgroups_leave_at_different_times(n):
    """Trip counts are the same in a subgroup, and differ between those of a group: by bounds, by a condition, by `break`."""
    size, lanes = 64, subgroup.group_size()
    x, y, z = sg.field(sg.i32, n), sg.field(sg.i32, (4, n)), sg.field(sg.f32, n)
    a = numbers(n, -50, 50)
    x.from_numpy(a)

    @sg.kernel
    def work():
        sg.loop_config(block_dim=size)
        for i in range(n):
            shared = block.SharedArray((size,), sg.i32)
            t = block.thread_idx()
            first = t // lanes * lanes
            own, live = first // lanes, sg.min(lanes, n - (i - t) - first)
            turned, last = x[i], sg.Vector([1.0, 2.0])
            for k in range(own - 1, 2 * own + 1):
                shared[t] = turned
                subgroup.sync()
                turned = shared[first + (t - first + 1) % live] + k
                subgroup.sync()
                last = sg.Vector([last[1], last[0] + k])
            y[0, i] = turned
            steps, total = 0, 0
            while steps * steps < 3 * own:
                steps += 1
                for _ in range(2):
                    total += subgroup.shuffle(x[i] * steps, 0)
                if own % 2 == 1:
                    total += subgroup.shuffle(x[i], live - 1)
            y[1, i] = total
            y[2, i] = 0
            for k in range(5):
                if k > own:
                    break
                if t - first == k:
                    shared[first] = k
                subgroup.sync()
                y[2, i] += shared[first]
                subgroup.sync()
            y[3, i] = subgroup.shuffle(total, 0)
            z[i] = last[0] + 10.0 * last[1]

    work()
    got = y.to_numpy()
    for threads in warps(n, size, lanes):
        v, own, live = a[threads], threads[0] % size // lanes, len(threads)
        turned, last = v, (1.0, 2.0)
        for k in range(own - 1, 2 * own + 1):
            turned, last = np.roll(turned, -1) + k, (last[1], last[0] + k)
        steps, total = 0, 0
        while steps * steps < 3 * own:
            steps += 1
            total += 2 * v[0] * steps + own % 2 * v[-1]
        said = sum(min(k, live - 1) for k in range(min(own, 4) + 1))
        assert (got[:, threads] == [turned, np.full(live, total), np.full(live, said), np.full(live, total)]).all()
        assert (z.to_numpy()[threads] == last[0] + 10 * last[1]).all()


@pytest.mark.archs(*BRANCHES)
@pytest.mark.parametrize("n", [128, 77])
def test_loops_that_lanes_leave_one_by_one(n):
    """Lanes of the same iteration meet, and `active_mask` names them."""
    caps = context.session().device.caps
    if caps.target_name == "vulkan" and not caps.maximal_reconvergence:
        pytest.skip("missing maximal reconvergence: this device does not say which lanes are together in such a loop")
    size, lanes = 64, subgroup.group_size()
    x, y = sg.field(sg.i32, n), sg.field(sg.i32, (3, n))
    a = numbers(n, 0, 9)
    x.from_numpy(a)

    @sg.kernel
    def work():
        sg.loop_config(block_dim=size)
        for i in range(n):
            count, votes, k = 0, 0, 0
            while k < x[i]:
                here = warp.active_mask()
                if warp.any_nonzero(here, x[i] == k + 1):
                    count += 1
                for j in range(k % 3, x[i] - k):
                    votes += (j + 1) * sg.math.popcnt(warp.active_mask())
                warp.sync(here)
                k += 1
            y[0, i], y[1, i], y[2, i] = count, votes, k

    work()
    got = y.to_numpy()
    for threads in warps(n, size, lanes):
        v = a[threads]
        count, votes = np.zeros(len(v), int), np.zeros(len(v), int)
        for k in range(9):
            here = k < v
            count += here * (v[here] == k + 1).any()
            for j in range(k % 3, 9):
                inner = here & (j < v - k)
                votes += inner * (j + 1) * inner.sum()
        assert (got[:, threads] == [count, votes, v]).all()


@pytest.mark.archs("cpu")
def test_branches_that_no_thread_takes_read_nothing():
    """Values of the group inside of them are computed once for the group, if any thread takes the branch."""
    sg.init(arch=sg.cpu, debug=True)
    x, y = sg.field(sg.i32, 4), sg.field(sg.i32, 64)

    @sg.kernel
    def work(k: sg.i32):
        sg.loop_config(block_dim=64)
        for i in y:
            if i > 63 + y[i]:
                for _ in range(x[k]):
                    y[i] += 1
                    subgroup.sync()

    work(1 << 20)
    sg.sync()


@pytest.fixture
def wgpu_of_a_card(session, arch):
    """A session of wgpu that reads subgroups by an instruction."""
    opened = context.session()
    opened.device.caps = replace(opened.device.caps, memory_barriers=True, subgroup_read=True, subgroup_size=8)
    opened.language = replace(opened.language, **options_of_device(opened.device.caps))


@pytest.mark.archs("wgpu")
def test_wgpu_has_no_barriers_of_subgroups(wgpu_of_a_card):
    """naga would drop them. Threads wait for the whole group, or the branch is refused."""
    y = sg.field(sg.i32, 64)

    @sg.kernel
    def work(branch: sg.template()):
        sg.loop_config(block_dim=64)
        for i in y:
            shared = block.SharedArray(64, sg.i32)
            shared[i] = i
            if sg.static(branch):
                if i < 8:
                    subgroup.sync()
            else:
                subgroup.sync()
            y[i] = shared[i ^ 1]

    work(False)
    assert (y.to_numpy() == np.arange(64) ^ 1).all()
    text = work.ir("device")
    assert text.count("workgroup_barrier") == 2 and "subgroup_barrier" not in text
    with pytest.raises(sg.SpirogradUnsupportedError, match="no subgroup barriers in branches") as info:
        work(True)
    assert "subgroup.sync()" in str(info.value)


@pytest.mark.archs("wgpu")
def test_loops_that_threads_leave_one_by_one_are_refused():
    y = sg.field(sg.i32, 64)

    @sg.kernel
    def work():
        sg.loop_config(block_dim=64)
        for i in y:
            for _ in range(i // 32):
                subgroup.sync()
            y[i] = 1

    with pytest.raises(sg.SpirogradUnsupportedError, match="in a loop whose condition differs") as info:
        work()
    assert "for _ in range(i // 32):" in str(info.value)


@pytest.mark.archs("interpreter")
@pytest.mark.parametrize("distance", [1, 32])
def test_races_beyond_a_barrier_of_subgroups(distance):
    """It orders the accesses of a subgroup, and of no other."""
    sg.init(arch=sg.interpreter, detect_races=True)
    y = sg.field(sg.i32, 64)

    @sg.kernel
    def work():
        sg.loop_config(block_dim=64)
        for i in y:
            shared = block.SharedArray(64, sg.i32)
            shared[i] = i
            subgroup.sync()
            y[i] = shared[i ^ distance]

    if distance < 32:
        work()
        sg.sync()
        assert (y.to_numpy() == np.arange(64) ^ 1).all()
    else:
        with pytest.raises(sg.SpirogradRuntimeError, match="race: thread 0 of a group reads element 32"):
            work()
            sg.sync()
