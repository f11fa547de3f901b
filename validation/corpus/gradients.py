"""Gradients of loops, which save values of each iteration in tapes, with sizes found in every way. See docs/how-to/long-loops.md."""

from __future__ import annotations

from typing import Any

import numpy as np

import spirograd as sg
from validation.case import Results, case, type_needs

I1, F1 = sg.types.ndarray(sg.i32, 1), sg.types.ndarray(sg.f32, 1)
N = 37


@sg.func
def advance(v):
    """Neither vanishes nor grows however often it is applied, and its derivative depends on ``v``: so each entry of a tape counts."""
    return v + 0.75 + 0.25 * sg.sin(v)


def advanced(x: Any, trips: Any) -> tuple[np.ndarray, np.ndarray]:
    """The values after ``trips`` applications of `advance` to each ``x``, and their derivatives, in f64."""
    v, trips = np.broadcast_arrays(np.asarray(x, np.float64), np.asarray(trips))
    v, slope = v.copy(), np.ones(v.shape)
    for step in range(int(trips.max(initial=0))):
        slope = np.where(step < trips, slope * (1 + 0.25 * np.cos(v)), slope)
        v = np.where(step < trips, v + 0.75 + 0.25 * np.sin(v), v)
    return v, slope


class Chain:
    """Fields ``x`` of starts and ``y`` of results, with gradients."""

    def __init__(self, t: Any = sg.f32, n: int = N) -> None:
        self.x, self.y = sg.field(t, shape=n, needs_grad=True), sg.field(t, shape=n, needs_grad=True)
        rng = np.random.default_rng(n)
        self.starts, self.seeds = rng.uniform(-1, 1, n).astype(t.np), rng.uniform(0.5, 2, n).astype(t.np)
        self.x.from_numpy(self.starts)

    def results(self, kernel: Any, args: tuple[Any, ...], trips: Any) -> Results:
        """Return the results of a kernel that applies `advance` ``trips`` times to each ``x[i]``, and of its gradient."""
        value, slope = advanced(self.starts, trips)
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
                v = advance(v)
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
                    v = advance(v)
            for _ in range(data.shape[0] // 2):
                v = advance(v)
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
                v = advance(v)
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
                v = advance(v)
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
                        v = advance(v)
            y[i] = v

    trips = [sum(inner[where[i + k]] for j in range(outer[i]) for k in range(inner[where[i + N * j]])) for i in range(N)]
    return chain.results(run, (), trips)


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
                    v = advance(v)
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
                v = advance(v)
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
                v = advance(v)
            y[i] = v

    trips = np.zeros(N, int)
    for i in range(N):
        v, k = float(chain.starts[i]), 0
        while v < limits[i]:
            k += 1
            if k % 7 == 3:
                continue
            if k > 30:
                break
            v, trips[i] = v + 0.75 + 0.25 * np.sin(v), trips[i] + 1
    return chain.results(run, (), trips)


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
                        v = advance(v)
            y[i] = v

    trips = np.zeros(N, int)
    for i in range(N):
        k = i
        for _ in range(counts[i]):
            k = (k * 7 + 3) % 11
            m = k % 4
            for _ in range(k % 5):
                m = (m * 5 + 1) % 7
                trips[i] += m % 3
    return chain.results(run, (), trips)


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
                    v = advance(v)
                k = (k * 7 + 1) % 1009
            y[i] = v

    trips = np.zeros(N, int)
    for i in range(N):
        k = i
        for _ in range(counts[i]):
            trips[i] += k % 3 != 0
            k = (k * 7 + 1) % 1009
    return chain.results(run, (), trips)


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
                    v = advance(v)
                if m % 3 != 1:
                    w = advance(w)
                k = (k * 7 + 1) % 1009
                m = (m * 5 + 2) % sg.i64(1013)
            y[i] = v
            q[i] = w

    trips = np.zeros((2, N), int)
    for i in range(N):
        k = m = i
        for _ in range(counts[i]):
            trips[0, i] += k % 2 == 0
            trips[1, i] += m % 3 != 1
            k, m = (k * 7 + 1) % 1009, (m * 5 + 2) % 1013
    q.grad.from_numpy(wide.seeds)
    narrow = chain.results(run, (), trips[0])
    value, slope = advanced(wide.starts, trips[1])
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
                v = advance(v)
            y[i] = v

    run()
    run.grad()
    value, slope = advanced(starts, counts[:, None])
    return {"y": (y.to_numpy(), value), "x.grad": (x.grad.to_numpy(), slope)}
