"""Gradients of kernels with several tasks, of tasks in which few iterations have tapes, and what else differentiates."""

from __future__ import annotations

import numpy as np

import spirograd as sg
from validation.case import Results, case, type_needs
from validation.corpus.gradients import F1, I1, Chain, N, advance, advanced, field_of, integers

# --- tasks ---------------------------------------------------------------------------------------------------------------------


@case(rtol=1e-4, atol=1e-4)
def gradient_serial() -> Results:
    """No parallel loop: one row for the whole launch."""
    chain, counts = Chain(n=5), integers(12, n=5)
    x, y, count = chain.x, chain.y, field_of(counts)

    @sg.kernel
    def run():
        sg.loop_config(serialize=True)
        for i in range(5):
            v, k = x[i], i
            for _ in range(count[i]):
                k = (k * 7 + 1) % 1009
                if k % 3 != 0:
                    v = advance(v)
            y[i] = v

    trips = np.zeros(5, int)
    for i in range(5):
        k = i
        for _ in range(counts[i]):
            k = (k * 7 + 1) % 1009
            trips[i] += k % 3 != 0
    return chain.results(run, (), trips)


@case(rtol=1e-4, atol=1e-4)
def gradient_several_tasks() -> Results:
    """Two parallel loops around one that is not, all with tapes of their own, in one kernel."""
    chain, second, third = Chain(), Chain(n=4), Chain(n=23)
    counts, fewer = integers(15), integers(9, 2, 23)
    x, y, p, q, r, s = chain.x, chain.y, second.x, second.y, third.x, third.y
    count = field_of(counts)

    @sg.kernel
    def run(few: I1, n: sg.i32):
        for i in x:
            v = x[i]
            for _ in range(count[i]):
                v = advance(v)
            y[i] = v
        sg.loop_config(serialize=True)
        for i in range(4):
            v = p[i]
            for _ in range(count[i] + n):
                v = advance(v)
            q[i] = v
        for i in r:
            v = r[i]
            for _ in range(few[i]):
                for _ in range(n):
                    v = advance(v)
            s[i] = v

    q.grad.from_numpy(second.seeds)
    s.grad.from_numpy(third.seeds)
    found = chain.results(run, (fewer, 3), counts)
    for other, trips, name in ((second, counts[:4] + 3, "p"), (third, 3 * fewer, "r")):
        value, slope = advanced(other.starts, trips)
        found[f"of {name}"] = (other.y.to_numpy(), value)
        found[f"{name}.grad"] = (other.x.grad.to_numpy(), slope * other.seeds)
    return found


# --- tasks in which few iterations have tapes ----------------------------------------------------------------------------------


def threshold(i, level, weight):
    return weight[i] > level


def compound(i, level, weight):
    return (weight[i] > level and i % 3 == 1) or weight[i] == 2


def indirect(i, level, weight):
    return weight[weight[i]] * 2 - weight[i] > level


def never(i, level, weight):
    return weight[i] > level + 100


@case((threshold, compound, indirect, never), rtol=1e-4, atol=1e-4)
def gradient_guard(passes) -> Results:
    """Only iterations that pass a condition claim a row, which a kernel counts before."""
    chain, counts, weights = Chain(n=300), integers(12, n=300), integers(40, 2, 300)
    x, y, count, weight, guard = chain.x, chain.y, field_of(counts), field_of(weights), sg.func(passes)

    @sg.kernel
    def run(level: sg.i32):
        for i in x:
            v = x[i]
            if guard(i, level, weight):
                for _ in range(count[i]):
                    v = advance(v)
            y[i] = v

    return chain.results(run, (25,), [n if passes(i, 25, weights) else 0 for i, n in enumerate(counts)])


@case(rtol=1e-4, atol=1e-4)
def gradient_guard_before_a_known_bound() -> Results:
    """The host knows how long a row is, not how many there are."""
    chain, weights = Chain(n=300), integers(40, 2, 300)
    x, y, weight = chain.x, chain.y, field_of(weights)

    @sg.kernel
    def run(n: sg.i32):
        for i in x:
            v = x[i]
            if weight[i] > 30:
                for _ in range(n):
                    v = advance(v)
            y[i] = v

    return chain.results(run, (20,), np.where(weights > 30, 20, 0))


@case((sg.f32, sg.f64), needs=type_needs, rtol=1e-4, atol=1e-4)
def gradient_guard_of_floats(t) -> Results:
    """The condition compares floats, below another one; the loop carries what bounds the one in it."""
    chain, counts, weights = Chain(t, 300), integers(8, n=300), np.random.default_rng(2).uniform(0, 1, 300).astype(t.np)
    x, y, count, weight = chain.x, chain.y, field_of(counts), sg.field(t, shape=300)
    weight.from_numpy(weights)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            c = count[i]
            if c > 3:
                k = i
                if weight[i] * weight[i] > 0.75:
                    for _ in range(c):
                        k = (k * 5 + 2) % 7
                        for _ in range(k):
                            v = advance(v)
            y[i] = v

    trips = np.zeros(300, int)
    for i in range(300):
        k = i
        for _ in range(counts[i] if counts[i] > 3 and weights[i] * weights[i] > 0.75 else 0):
            k = (k * 5 + 2) % 7
            trips[i] += k
    return chain.results(run, (), trips)


# --- what else differentiates --------------------------------------------------------------------------------------------------


@case(rtol=1e-4, atol=1e-4)
def gradient_of_many_arrays() -> Results:
    """More buffers than bare devices bind: those of sizes and of tapes have to find a place too."""
    arrays = [np.random.default_rng(k).uniform(0.5, 1, N).astype(np.float32) for k in range(6)]
    chain, counts = Chain(), integers(12)
    x, y = chain.x, chain.y

    @sg.kernel
    def run(a: F1, b: F1, c: F1, d: F1, e: F1, f: F1, count: I1):
        for i in x:
            v = x[i]
            for _ in range(count[i]):
                v = advance(v)
            y[i] = v * (a[i] + b[i] + c[i] + d[i] + e[i] + f[i])

    value, slope = advanced(chain.starts, counts)
    scale = sum(a.astype(np.float64) for a in arrays)
    return chain.against(run, (*arrays, counts), scale * value, scale * slope)


@case(rtol=1e-4, atol=1e-4)
def gradient_of_overwritten_memory() -> Results:
    """A tape of launches, of a kernel that keeps its state in memory: the primal notes what it overwrites, and a kernel counts that."""
    chain, counts = Chain(), integers(6)
    x, y, count, total = chain.x, chain.y, field_of(counts), sg.field(sg.f32, shape=(), needs_grad=True)

    @sg.kernel
    def start():
        for i in x:
            y[i] = x[i]

    @sg.kernel
    def run():
        for i in y:
            for _ in range(count[i]):
                y[i] = advance(y[i]) * y[i] / (1.0 + y[i] * y[i])

    @sg.kernel
    def add():
        for i in y:
            total[None] += y[i]

    with sg.ad.Tape(total):
        start()
        run()
        add()
    v, slope = chain.starts.astype(np.float64), np.ones(N)
    for step in range(6):
        turning, dturning = v + 0.75 + 0.25 * np.sin(v), 1 + 0.25 * np.cos(v)
        below = 1 + v * v
        new = turning * v / below
        by = (dturning * v + turning) / below - turning * v * 2 * v / below**2
        v, slope = np.where(step < counts, new, v), np.where(step < counts, slope * by, slope)
    return {"total": (total[None], v.sum()), "x.grad": (x.grad.to_numpy(), slope)}


@case(rtol=1e-4, atol=1e-4)
def gradient_in_a_direction() -> Results:
    """Second derivatives: forward mode of a gradient, tapes included."""
    chain, counts = Chain(), integers(9)
    x, count, total = chain.x, field_of(counts), sg.field(sg.f32, shape=(), needs_grad=True)
    direction = np.random.default_rng(8).uniform(-1, 1, N).astype(np.float32)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for _ in range(count[i]):
                v = advance(v)
            total[None] += v

    product = sg.ad.hvp(run, total, x, direction)
    v, first, second = chain.starts.astype(np.float64), np.ones(N), np.zeros(N)
    for step in range(9):
        by = 1 + 0.25 * np.cos(v)
        second = np.where(step < counts, second * by - 0.25 * np.sin(v) * first**2, second)
        first = np.where(step < counts, first * by, first)
        v = np.where(step < counts, v + 0.75 + 0.25 * np.sin(v), v)
    return {"product": (product, second * direction)}
