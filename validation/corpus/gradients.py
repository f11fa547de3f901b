"""Gradients of loops, which keep values of each iteration in tapes: how many is known in all ways there are. See docs/autodiff.md."""

from __future__ import annotations

from typing import Any

import numpy as np

import spirograd as sg
from validation.case import Results, case, type_needs

I1, F1 = sg.types.ndarray(sg.i32, 1), sg.types.ndarray(sg.f32, 1)
N = 37


@sg.func
def turn(v):
    """Neither vanishes nor grows however often it is applied, and its derivative depends on ``v``: so each entry of a tape counts."""
    return v + 0.75 + 0.25 * sg.sin(v)


def turned(x: Any, turns: Any) -> tuple[np.ndarray, np.ndarray]:
    """The value after so many turns from each ``x``, and its derivative, in f64."""
    v, turns = np.broadcast_arrays(np.asarray(x, np.float64), np.asarray(turns))
    v, slope = v.copy(), np.ones(v.shape)
    for step in range(int(turns.max(initial=0))):
        slope = np.where(step < turns, slope * (1 + 0.25 * np.cos(v)), slope)
        v = np.where(step < turns, v + 0.75 + 0.25 * np.sin(v), v)
    return v, slope


class Chain:
    """Fields ``x`` of starts and ``y`` of results, with gradients."""

    def __init__(self, t: Any = sg.f32, n: int = N) -> None:
        self.x, self.y = sg.field(t, shape=n, needs_grad=True), sg.field(t, shape=n, needs_grad=True)
        rng = np.random.default_rng(n)
        self.starts, self.seeds = rng.uniform(-1, 1, n).astype(t.np), rng.uniform(0.5, 2, n).astype(t.np)
        self.x.from_numpy(self.starts)

    def results(self, kernel: Any, args: tuple[Any, ...], turns: Any) -> Results:
        """Of a kernel that gives ``y[i]`` so many turns of ``x[i]``, and of its gradient."""
        value, slope = turned(self.starts, turns)
        return self.against(kernel, args, value, slope)

    def against(self, kernel: Any, args: tuple[Any, ...], value: np.ndarray, slope: np.ndarray) -> Results:
        """``slope``: the derivative of each result by its start."""
        self.y.grad.from_numpy(self.seeds)
        kernel(*args)
        kernel.grad(*args)
        return {"y": (self.y.to_numpy(), value), "x.grad": (self.x.grad.to_numpy(), slope * self.seeds)}


def integers(high: int, seed: int = 1, n: int = N) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, high, n).astype(np.int32)


def field_of(values: np.ndarray) -> Any:
    field = sg.field(sg.i32, shape=values.shape)
    field.from_numpy(values)
    return field


# --- bounds that the host knows ----------------------------------------------------------------------------------------------


@case(rtol=1e-4, atol=1e-4)
def gradient_constant_bound() -> Results:
    chain = Chain()
    x, y = chain.x, chain.y

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for _ in range(40):
                v = turn(v)
            y[i] = v

    return chain.results(run, (), 40)


@case(rtol=1e-4, atol=1e-4)
def gradient_bound_of_arguments() -> Results:
    """A scalar and the length of an array; the inner loop runs up to the index of the outer one."""
    chain = Chain()
    x, y = chain.x, chain.y

    @sg.kernel
    def run(n: sg.i32, data: I1):
        for i in x:
            v = x[i]
            for a in range(n):
                for _ in range(a):
                    v = turn(v)
            for _ in range(data.shape[0] // 2):
                v = turn(v)
            y[i] = v

    return chain.results(run, (6, np.zeros(11, np.int32)), 15 + 5)


# --- bounds out of memory ----------------------------------------------------------------------------------------------------


@case(rtol=1e-4, atol=1e-4)
def gradient_bound_of_a_field() -> Results:
    chain, counts = Chain(), integers(30)
    x, y, count = chain.x, chain.y, field_of(counts)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for _ in range(count[i]):
                v = turn(v)
            y[i] = v

    return chain.results(run, (), counts)


@case(rtol=1e-4, atol=1e-4)
def gradient_bound_of_an_array() -> Results:
    chain, counts = Chain(), integers(30)
    x, y = chain.x, chain.y

    @sg.kernel
    def run(count: I1):
        for i in x:
            v = x[i]
            for _ in range(sg.max(count[i] - 3, 2)):
                v = turn(v)
            y[i] = v

    return chain.results(run, (counts,), np.maximum(counts - 3, 2))


@case(rtol=1e-4, atol=1e-4)
def gradient_ragged() -> Results:
    """Rows of different lengths, one after the other: where each begins and ends is in memory. Each element of a row matters."""
    lengths = integers(9)
    begins = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    factors = np.random.default_rng(3).uniform(0.9, 1.1, begins[-1]).astype(np.float32)
    begin, factor, y = field_of(begins), sg.field(sg.f32, len(factors), needs_grad=True), sg.field(sg.f32, N, needs_grad=True)
    factor.from_numpy(factors)

    @sg.kernel
    def run():
        for i in y:
            v = 1.5
            for j in range(begin[i], begin[i + 1]):
                v = v * v * factor[j] * 0.7
            y[i] = v

    y.grad.fill(1.0)
    run()
    run.grad()
    values, slopes = np.zeros(N), np.zeros(len(factors))
    for i in range(N):
        row = slice(begins[i], begins[i + 1])
        v = 1.5
        for f in factors[row].astype(np.float64):
            v = v * v * f * 0.7
        values[i] = v
        # v is a product of powers: factor k of n is squared n - k - 1 times.
        slopes[row] = v / factors[row] * 2.0 ** np.arange(lengths[i])[::-1]
    return {"y": (y.to_numpy(), values), "factor.grad": (factor.grad.to_numpy(), slopes)}


@case(rtol=1e-4, atol=1e-4)
def gradient_nested_reads() -> Results:
    """Three loops, each with a bound that the index of the one around it leads to, through another read."""
    chain, outer, where, inner = Chain(), integers(4, 1), integers(N, 2, 4 * N), integers(4, 3)
    x, y, a, b, c = chain.x, chain.y, field_of(outer), field_of(where), field_of(inner)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for j in range(a[i]):
                for k in range(c[b[i + N * j]]):
                    for _ in range(c[b[i + k]]):
                        v = turn(v)
            y[i] = v

    turns = [sum(inner[where[i + k]] for j in range(outer[i]) for k in range(inner[where[i + N * j]])) for i in range(N)]
    return chain.results(run, (), turns)


@case(rtol=1e-4, atol=1e-4)
def gradient_guarded_read() -> Results:
    """The index of the bound may lie outside; a condition says so first."""
    chain, where, counts = Chain(), integers(9, 2) - 2, integers(20, 3, 5)
    x, y, at, count = chain.x, chain.y, field_of(where), field_of(counts)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            if at[i] >= 0 and at[i] < 5:
                for _ in range(count[at[i]]):
                    v = turn(v)
            y[i] = v

    inside = (where >= 0) & (where < 5)
    return chain.results(run, (), np.where(inside, counts[np.where(inside, where, 0)], 0))


# --- bounds that only running tells --------------------------------------------------------------------------------------------


@case(rtol=1e-4, atol=1e-4)
def gradient_while() -> Results:
    """Integers say how often: the steps of Collatz."""
    chain, numbers = Chain(), integers(60) + 1
    x, y, number = chain.x, chain.y, field_of(numbers)

    @sg.kernel
    def run():
        for i in x:
            v, n = x[i], number[i]
            while n != 1:
                n = n // 2 if n % 2 == 0 else 3 * n + 1
                v = turn(v)
            y[i] = v

    def steps(n: int) -> int:
        return 0 if n == 1 else 1 + steps(n // 2 if n % 2 == 0 else 3 * n + 1)

    return chain.results(run, (), [steps(int(n)) for n in numbers])


@case(rtol=1e-4, atol=1e-4)
def gradient_while_of_floats() -> Results:
    """The carried float says how often; a `break` and a `continue` are in between."""
    chain, limits = Chain(), integers(20).astype(np.float32) + 0.5
    x, y, limit = chain.x, chain.y, sg.field(sg.f32, shape=N)
    limit.from_numpy(limits)

    @sg.kernel
    def run():
        for i in x:
            v, k = x[i], 0
            while v < limit[i]:
                k += 1
                if k % 7 == 3:
                    continue
                if k > 30:
                    break
                v = turn(v)
            y[i] = v

    turns = np.zeros(N, int)
    for i in range(N):
        v, k = float(chain.starts[i]), 0
        while v < limits[i]:
            k += 1
            if k % 7 == 3:
                continue
            if k > 30:
                break
            v, turns[i] = v + 0.75 + 0.25 * np.sin(v), turns[i] + 1
    return chain.results(run, (), turns)


@case(rtol=1e-4, atol=1e-4)
def gradient_carried_bounds() -> Results:
    """What the outer loops carry bounds the inner ones: each is counted after those around it, with the tapes of these."""
    chain, counts = Chain(), integers(5)
    x, y, count = chain.x, chain.y, field_of(counts)

    @sg.kernel
    def run():
        for i in x:
            v, k = x[i], i
            for _ in range(count[i]):
                k = (k * 7 + 3) % 11
                m = k % 4
                for _ in range(k % 5):
                    m = (m * 5 + 1) % 7
                    for _ in range(m % 3):
                        v = turn(v)
            y[i] = v

    turns = np.zeros(N, int)
    for i in range(N):
        k = i
        for _ in range(counts[i]):
            k = (k * 7 + 3) % 11
            m = k % 4
            for _ in range(k % 5):
                m = (m * 5 + 1) % 7
                turns[i] += m % 3
    return chain.results(run, (), turns)


# --- what tapes hold -----------------------------------------------------------------------------------------------------------


def mixed_needs(t: Any, whole: Any) -> tuple[str, ...]:
    return (*type_needs(t), *type_needs(whole))


@case([(t, whole) for t in (sg.f32, sg.f64) for whole in (sg.i32, sg.i64)], needs=mixed_needs, rtol=1e-4, atol=1e-4)
def gradient_mixed_tapes(t, whole) -> Results:
    """A float and an integer that are not linear, and a condition, side by side in one loop."""
    chain, counts = Chain(t), integers(30)
    x, y, count = chain.x, chain.y, field_of(counts)

    @sg.kernel
    def run():
        for i in x:
            v, k = x[i], whole(i)
            for _ in range(count[i]):
                if k % 3 != 0:
                    v = turn(v)
                k = (k * 7 + 1) % 1009
            y[i] = v

    turns = np.zeros(N, int)
    for i in range(N):
        k = i
        for _ in range(counts[i]):
            turns[i] += k % 3 != 0
            k = (k * 7 + 1) % 1009
    return chain.results(run, (), turns)


@case(needs=("f64", "i64"), rtol=1e-4, atol=1e-4)
def gradient_tapes_of_all_widths() -> Results:
    """Tapes of 4 and of 8 bytes in one row, an odd number of the small ones."""
    chain, wide, counts = Chain(), Chain(sg.f64), integers(25)
    x, y, p, q, count = chain.x, chain.y, wide.x, wide.y, field_of(counts)

    @sg.kernel
    def run():
        for i in x:
            v, w, k, m = x[i], p[i], i, sg.i64(i)
            for _ in range(count[i]):
                if k % 2 == 0:
                    v = turn(v)
                if m % 3 != 1:
                    w = turn(w)
                k = (k * 7 + 1) % 1009
                m = (m * 5 + 2) % sg.i64(1013)
            y[i] = v
            q[i] = w

    turns = np.zeros((2, N), int)
    for i in range(N):
        k = m = i
        for _ in range(counts[i]):
            turns[0, i] += k % 2 == 0
            turns[1, i] += m % 3 != 1
            k, m = (k * 7 + 1) % 1009, (m * 5 + 2) % 1013
    q.grad.from_numpy(wide.seeds)
    narrow = chain.results(run, (), turns[0])
    value, slope = turned(wide.starts, turns[1])
    return {**narrow, "q": (q.to_numpy(), value), "p.grad": (p.grad.to_numpy(), slope * wide.seeds)}


@case(rtol=1e-4, atol=1e-4)
def gradient_carried_vector() -> Results:
    counts, starts = integers(12), np.random.default_rng(4).uniform(-1, 1, (N, 3)).astype(np.float32)
    x, y = (sg.Vector.field(3, sg.f32, shape=N, needs_grad=True) for _ in range(2))
    count = field_of(counts)
    x.from_numpy(starts)
    y.grad.fill(1.0)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for _ in range(count[i]):
                v = turn(v)
            y[i] = v

    run()
    run.grad()
    value, slope = turned(starts, counts[:, None])
    return {"y": (y.to_numpy(), value), "x.grad": (x.grad.to_numpy(), slope)}


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
                    v = turn(v)
            y[i] = v

    turns = np.zeros(5, int)
    for i in range(5):
        k = i
        for _ in range(counts[i]):
            k = (k * 7 + 1) % 1009
            turns[i] += k % 3 != 0
    return chain.results(run, (), turns)


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
                v = turn(v)
            y[i] = v
        sg.loop_config(serialize=True)
        for i in range(4):
            v = p[i]
            for _ in range(count[i] + n):
                v = turn(v)
            q[i] = v
        for i in r:
            v = r[i]
            for _ in range(few[i]):
                for _ in range(n):
                    v = turn(v)
            s[i] = v

    q.grad.from_numpy(second.seeds)
    s.grad.from_numpy(third.seeds)
    found = chain.results(run, (fewer, 3), counts)
    for other, turns, name in ((second, counts[:4] + 3, "p"), (third, 3 * fewer, "r")):
        value, slope = turned(other.starts, turns)
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
def gradient_gate(passes) -> Results:
    """Only iterations that pass a condition claim a row, which a kernel counts before."""
    chain, counts, weights = Chain(n=300), integers(12, n=300), integers(40, 2, 300)
    x, y, count, weight, gate = chain.x, chain.y, field_of(counts), field_of(weights), sg.func(passes)

    @sg.kernel
    def run(level: sg.i32):
        for i in x:
            v = x[i]
            if gate(i, level, weight):
                for _ in range(count[i]):
                    v = turn(v)
            y[i] = v

    return chain.results(run, (25,), [n if passes(i, 25, weights) else 0 for i, n in enumerate(counts)])


@case(rtol=1e-4, atol=1e-4)
def gradient_gate_before_a_known_bound() -> Results:
    """The host knows how long a row is, not how many there are."""
    chain, weights = Chain(n=300), integers(40, 2, 300)
    x, y, weight = chain.x, chain.y, field_of(weights)

    @sg.kernel
    def run(n: sg.i32):
        for i in x:
            v = x[i]
            if weight[i] > 30:
                for _ in range(n):
                    v = turn(v)
            y[i] = v

    return chain.results(run, (20,), np.where(weights > 30, 20, 0))


@case((sg.f32, sg.f64), needs=type_needs, rtol=1e-4, atol=1e-4)
def gradient_gate_of_floats(t) -> Results:
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
                            v = turn(v)
            y[i] = v

    turns = np.zeros(300, int)
    for i in range(300):
        k = i
        for _ in range(counts[i] if counts[i] > 3 and weights[i] * weights[i] > 0.75 else 0):
            k = (k * 5 + 2) % 7
            turns[i] += k
    return chain.results(run, (), turns)


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
                v = turn(v)
            y[i] = v * (a[i] + b[i] + c[i] + d[i] + e[i] + f[i])

    value, slope = turned(chain.starts, counts)
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
                y[i] = turn(y[i]) * y[i] / (1.0 + y[i] * y[i])

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
                v = turn(v)
            total[None] += v

    product = sg.ad.hvp(run, total, x, direction)
    v, first, second = chain.starts.astype(np.float64), np.ones(N), np.zeros(N)
    for step in range(9):
        by = 1 + 0.25 * np.cos(v)
        second = np.where(step < counts, second * by - 0.25 * np.sin(v) * first**2, second)
        first = np.where(step < counts, first * by, first)
        v = np.where(step < counts, v + 0.75 + 0.25 * np.sin(v), v)
    return {"product": (product, second * direction)}
