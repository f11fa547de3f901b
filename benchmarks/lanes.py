"""Loops of the CPU with and without lanes of vectors, and with and without streaming stores, whatever the cost models choose.

python -m benchmarks.lanes                    # all rows of the tables in docs/llvm.md
python -m benchmarks.lanes collatz columns    # some

The programs run on one thread. Times are CPU times, the best of all launches; the two forms of a program take turns.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np

import spirograd as sg
from benchmarks import machine
from spirograd.analysis.loop_costs import LaneGain, lane_gain
from spirograd.transforms.loops import stream_stores, vectorise

# A program: the function to time, and the field or ndarray that holds its result.
Program = tuple[Callable[[], None], Any]


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).random(shape, np.float32)


def _field(values: np.ndarray) -> Any:
    field = sg.field(sg.i32 if values.dtype == np.int32 else sg.f32, values.shape)
    field.from_numpy(values)
    return field


# --- one loop around serial ones ---------------------------------------------------------------------------------------------------------


def collatz() -> Program:
    """Collatz sequences, 50,000"""
    lengths = sg.field(sg.i32, 50_000)

    @sg.kernel
    def run():
        for i in lengths:
            n, length = i + 1, 0
            while n != 1:
                if n % 2 == 0:
                    n = n // 2
                else:
                    n = 3 * n + 1
                length += 1
            lengths[i] = length

    return run, lengths


def newton() -> Program:
    """Newton's method until it converges, 400,000"""
    a, roots = _field(_random(400_000) * 100.0 + 0.01), sg.field(sg.f32, 400_000)

    @sg.kernel
    def run():
        for i in a:
            x, before = a[i], 0.0
            while abs(x - before) > 1e-6 * x:
                before = x
                x = 0.5 * (x + a[i] / x)
            roots[i] = x

    return run, roots


def ray_march() -> Program:
    """ray march, one gather a step"""
    size, side = 512, 64
    heights, depths = _field(_random(side, side)), sg.field(sg.f32, (size, size))

    @sg.kernel
    def run():
        for i, j in depths:
            dx, dy = (i - size / 2) / size, (j - size / 2) / size
            t, height = 0.0, 2.0
            while t < 8.0 and height > heights[int(t * dx * side) & (side - 1), int(t * dy * side) & (side - 1)]:
                t += 0.05
                height -= 0.025
            depths[i, j] = t

    return run, depths


def binary_search() -> Program:
    """binary search in 65,536 numbers, 200,000"""
    numbers, wanted = _field(np.sort(_random(65_536))), _field(_random(200_001)[1:])
    places = sg.field(sg.i32, 200_000)

    @sg.kernel
    def run():
        for i in places:
            low, high = 0, 65_536
            while low < high:
                middle = (low + high) // 2
                if numbers[middle] < wanted[i]:
                    low = middle + 1
                else:
                    high = middle
            places[i] = low

    return run, places


def rare_searches() -> Program:
    """march, with 24 binary searches in steps that few rays take at a time, 4,096"""
    side = 1024
    keys, values = _field(np.sort(_random(side))), _field(_random(side + 1)[1:])
    starts, found = _field(_random(4096)), sg.field(sg.f32, 4096)

    @sg.kernel
    def run():
        for i in found:
            t, total = 0.9 * starts[i], 0.0
            while t < 1.0:
                value = values[int(t * (side - 1))]
                t += 0.01
                if value > 0.97 and total < value:
                    for k in range(24):
                        low, high, wanted = 0, side, t + 0.001 * k * total
                        while low < high:
                            middle = (low + high) // 2
                            if keys[middle] < wanted:
                                low = middle + 1
                            else:
                                high = middle
                        total += 0.0001 * low
            found[i] = total

    return run, found


def neighbour_lists() -> Program:
    """neighbour lists, two gathers, `exp`"""
    n, most = 50_000, 24
    rng = np.random.default_rng(0)
    x, y = _field(_random(n)), _field(_random(n)[::-1].copy())
    count = _field(rng.integers(8, most, n).astype(np.int32))
    near = np.arange(n)[:, None] + rng.integers(-200, 200, (n, most))
    lists, total = _field(np.clip(near, 0, n - 1).astype(np.int32)), sg.field(sg.f32, n)

    @sg.kernel
    def run():
        for i in x:
            s = 0.0
            for k in range(count[i]):
                j = lists[i, k]
                dx, dy = x[i] - x[j], y[i] - y[j]
                s += sg.exp(-dx * dx - dy * dy)
            total[i] = s

    return run, total


def matrix_product() -> Program:
    """matrix product 512 x 512"""
    n = 512
    a, b, c = _field(_random(n, n)), _field(_random(n, n)), sg.field(sg.f32, (n, n))

    @sg.kernel
    def run():
        for i, j in c:
            s = 0.0
            for k in range(n):
                s += a[i, k] * b[k, j]
            c[i, j] = s

    return run, c


def columns() -> Program:
    """sums of 2,048 columns"""
    n = 2048
    a, sums = _field(_random(n, n)), sg.field(sg.f32, n)

    @sg.kernel
    def run():
        for j in sums:
            s = 0.0
            for i in range(n):
                s += a[i, j]
            sums[j] = s

    return run, sums


def window() -> Program:
    """window of 5 x 5 on 1,024 x 1,024"""
    n = 1024
    a, b, weights = _field(_random(n, n)), sg.field(sg.f32, (n, n)), _field(_random(5, 5))

    @sg.kernel
    def run():
        for i, j in sg.ndrange((2, n - 2), (2, n - 2)):
            s = 0.0
            for p in range(5):
                for q in range(5):
                    s += weights[p, q] * a[i + p - 2, j + q - 2]
            b[i, j] = s

    return run, b


def springs() -> Program:
    """forces of 12 springs, 128 x 128 points, 10 steps"""
    n = 128
    position, velocity = sg.Vector.field(3, sg.f32, (n, n)), sg.Vector.field(3, sg.f32, (n, n))
    start = np.zeros((n, n, 3), np.float32)
    start[..., :2] = np.stack(np.meshgrid(np.arange(n), np.arange(n), indexing="ij"), -1) / n + 0.1 / n * _random(n, n, 2)
    offsets = [(-1, 0), (1, 0), (0, -1), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1), (-2, 0), (2, 0), (0, -2), (0, 2)]

    @sg.kernel
    def force():
        for i, j in position:
            f = sg.Vector([0.0, -0.01, 0.0])
            for a, b in sg.static(offsets):
                p, q = i + a, j + b
                if 0 <= p < n and 0 <= q < n:
                    d = position[i, j] - position[p, q]
                    length = d.norm() + 1e-6
                    f += -100.0 * (length - math.sqrt(a * a + b * b) / n) * d / length
            velocity[i, j] = (velocity[i, j] + 1e-4 * f) * 0.999

    @sg.kernel
    def move():
        for i, j in position:
            position[i, j] += 1e-4 * velocity[i, j]

    position.from_numpy(start)

    def run() -> None:
        for _ in range(10):
            force()
            move()

    return run, velocity


def trial_division() -> Program:
    """trial division"""
    divisors = sg.field(sg.i32, 20_000)

    @sg.kernel
    def run():
        for i in divisors:
            n, d = i + 2, 2
            while d * d <= n and n % d != 0:
                d += 1
            divisors[i] = d

    return run, divisors


def insertion_sort() -> Program:
    """insertion sort of 16 numbers each"""
    n, length = 20_000, 16
    numbers, ordered = _field(_random(n, length)), sg.field(sg.f32, (n, length))

    @sg.kernel
    def run():
        for i in range(n):
            for k in range(length):
                value, place = numbers[i, k], k
                while place > 0 and ordered[i, place - 1] > value:
                    ordered[i, place] = ordered[i, place - 1]
                    place -= 1
                ordered[i, place] = value

    return run, ordered


def sparse_product() -> Program:
    """product of a sparse matrix and a vector"""
    n, most = 50_000, 40
    rng = np.random.default_rng(0)
    ends = np.concatenate([[0], np.cumsum(rng.integers(10, most, n))]).astype(np.int32)
    bounds, column = _field(ends), _field(rng.integers(0, n, ends[-1]).astype(np.int32))
    entries, x, y = _field(_random(int(ends[-1]))), _field(_random(n)), sg.field(sg.f32, n)

    @sg.kernel
    def run():
        for i in y:
            s = 0.0
            for k in range(bounds[i], bounds[i + 1]):
                s += entries[k] * x[column[k]]
            y[i] = s

    return run, y


# --- branches and cells ------------------------------------------------------------------------------------------------------------------


def _gas(n: int) -> tuple[Any, ...]:
    """Return density, velocities and pressure of an ideal gas with a shock."""
    left = (np.arange(n) < n // 2)[:, None] * np.ones((n, n), np.float32)
    density, pressure = 0.125 + 0.875 * left + 0.01 * _random(n, n), 0.1 + 0.9 * left
    return (*map(_field, (density.astype(np.float32), 0.1 * _random(n, n), 0.1 * _random(n, n).T.copy(), pressure.astype(np.float32))),)


def euler_fluxes() -> Program:
    """Euler equations, fluxes of 512 x 512 cells"""
    n, gamma = 512, 1.4
    density, u, v, pressure = _gas(n)
    flux = sg.Vector.field(4, sg.f32, (n, n))

    @sg.func
    def side(i, j):
        """Return the conserved quantities of a cell, and their fluxes."""
        r, a, b, p = density[i, j], u[i, j], v[i, j], pressure[i, j]
        energy = p / (gamma - 1.0) + 0.5 * r * (a * a + b * b)
        return sg.Vector([r, r * a, r * b, energy]), sg.Vector([r * a, r * a * a + p, r * a * b, (energy + p) * a])

    @sg.kernel
    def run():
        for i, j in sg.ndrange(n - 1, n):
            q_left, f_left = side(i, j)
            q_right, f_right = side(i + 1, j)
            c_left, c_right = sg.sqrt(gamma * pressure[i, j] / density[i, j]), sg.sqrt(gamma * pressure[i + 1, j] / density[i + 1, j])
            slow, fast = sg.min(u[i, j] - c_left, u[i + 1, j] - c_right), sg.max(u[i, j] + c_left, u[i + 1, j] + c_right)
            if slow >= 0.0:
                flux[i, j] = f_left
            elif fast <= 0.0:
                flux[i, j] = f_right
            else:
                flux[i, j] = (fast * f_left - slow * f_right + slow * fast * (q_right - q_left)) / (fast - slow)

    return run, flux


def euler_reconstruction() -> Program:
    """their reconstruction, in a branch that few cells take"""
    n = 512
    gas = _gas(n)
    slopes = sg.Vector.field(4, sg.f32, (n, n))
    pressure = gas[3]

    @sg.kernel
    def run():
        for i, j in sg.ndrange((1, n - 1), n):
            if sg.abs(pressure[i + 1, j] - pressure[i - 1, j]) > 0.2 * pressure[i, j]:
                for k in sg.static(range(4)):
                    before, after = gas[k][i, j] - gas[k][i - 1, j], gas[k][i + 1, j] - gas[k][i, j]
                    if before * after > 0.0:
                        ratio = before / after
                        limited = sg.max(sg.min(2.0 * ratio, 1.0), sg.min(ratio, 2.0))
                        slopes[i, j][k] = limited * after * sg.exp(-sg.abs(sg.log(sg.abs(ratio) + 1e-6)))

    return run, slopes


def red_black() -> Program:
    """red-black sweep over cubes of 4 x 4 x 4 cells below a sparse node"""
    n, edge = 64, 4  # neighbours of the active cells exist, and are 0
    x, b = sg.field(sg.f32), sg.field(sg.f32)
    sg.root.pointer(sg.ijk, (n + 2 * edge) // 4).dense(sg.ijk, 4).place(x, b)

    @sg.kernel
    def start(values: sg.types.ndarray(sg.f32, 3)):
        for i, j, k in values:
            x[i + edge, j + edge, k + edge] = 0.0
            b[i + edge, j + edge, k + edge] = values[i, j, k]

    @sg.kernel
    def run():
        for i, j, k in x:
            if (i + j + k) % 2 == 0:
                total = x[i - 1, j, k] + x[i + 1, j, k] + x[i, j - 1, k] + x[i, j + 1, k] + x[i, j, k - 1] + x[i, j, k + 1]
                x[i, j, k] = (total + b[i, j, k]) / 6.0

    start(_random(n, n, n))
    return run, x


# --- stores past the caches --------------------------------------------------------------------------------------------------------------

_LARGE = 1 << 24


def large_map() -> Program:
    """map of 16M f32"""
    x, y = sg.field(sg.f32, _LARGE), sg.field(sg.f32, _LARGE)
    x.fill(1.0)

    @sg.kernel
    def run():
        for i in x:
            y[i] = x[i] * 2.0 + 1.0

    return run, y


def large_fill() -> Program:
    """fill of 16M f32"""
    y = sg.field(sg.f32, _LARGE)

    @sg.kernel
    def run():
        for i in y:
            y[i] = 1.0

    return run, y


LANES = (
    collatz, newton, ray_march, binary_search, rare_searches, neighbour_lists, matrix_product, columns, window, springs, euler_fluxes,
    euler_reconstruction, red_black, trial_division, insertion_sort, sparse_product,
)  # fmt: skip
STREAMING = (large_map, large_fill)


# --- the two forms -----------------------------------------------------------------------------------------------------------------------


class _Forced:
    """A decision about lanes for all loops. ``chosen``: the decisions of the cost model."""

    def __init__(self, lanes: bool) -> None:
        self.lanes = lanes
        self.chosen: list[LaneGain] = []

    def __call__(self, plan: Any, masks: bool) -> LaneGain:
        self.chosen.append(lane_gain(plan, masks))
        return LaneGain(self.lanes, False)


def _start() -> None:
    sg.init(arch=sg.cpu, offline_cache=False, cpu_max_num_threads=1, tune=False)


def _best(run: Callable[[], None], seconds: float) -> float:
    """Return the least CPU time of a launch, in seconds. ``seconds``: the CPU time of all launches."""
    best, end = math.inf, time.process_time() + seconds
    while time.process_time() < end or best == math.inf:
        begin = time.process_time()
        run()
        sg.sync()
        best = min(best, time.process_time() - begin)
    return best


def _timed(make: Callable[[], Program], seconds: float) -> tuple[float, np.ndarray]:
    _start()
    run, result = make()
    run()
    first = result.to_numpy()
    best = _best(run, seconds)
    sg.reset()
    return best, first


def measure(make: Callable[[], Program], rounds: int, seconds: float) -> tuple[float, float, str]:
    """Return the seconds of a launch without lanes and with lanes, and the choice of the cost model."""
    best, chosen = {False: math.inf, True: math.inf}, ""
    for _ in range(rounds):
        results = []
        for lanes in (False, True):
            forced = _Forced(lanes)
            with mock.patch.object(vectorise, "lane_gain", forced):
                took, result = _timed(make, seconds)
            best[lanes] = min(best[lanes], took)
            results.append(result)
            if not forced.chosen:
                raise SystemExit(f"{make.__name__}: no loop of this program can run as lanes on this CPU")
            chosen = " and ".join(dict.fromkeys(_chosen(gain) for gain in forced.chosen))
        np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-5, err_msg=make.__name__)
    return best[False], best[True], chosen


def _chosen(gain: LaneGain) -> str:
    return f"{'lanes' if gain.runs_in_lanes else 'no lanes'}{', close' if gain.is_unsure else ''}"


def measure_stores(make: Callable[[], Program], rounds: int, seconds: float) -> tuple[float, float]:
    """Return the seconds of a launch with ordinary stores and with streaming stores."""
    best = {False: math.inf, True: math.inf}
    for _ in range(rounds):
        for streaming in (False, True):
            with mock.patch.object(stream_stores, "has_streaming_stores", return_value=streaming):
                best[streaming] = min(best[streaming], _timed(make, seconds)[0])
    return best[False], best[True]


def _named(programs: Sequence[Callable[[], Program]], names: Sequence[str]) -> list[Callable[[], Program]]:
    return [make for make in programs if not names or make.__name__ in names]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lanes", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help=f"programs: {', '.join(make.__name__ for make in (*LANES, *STREAMING))}; by default all")
    parser.add_argument("--rounds", type=int, default=3, help="how often both forms are compiled and measured (default: 3)")
    parser.add_argument("--seconds", type=float, default=0.3, help="CPU time of the launches of a form in a round (default: 0.3)")
    options = parser.parse_args()
    if unknown := set(options.names) - {make.__name__ for make in (*LANES, *STREAMING)}:
        sys.exit(f"no program named {', '.join(sorted(unknown))}")
    print(f"{machine.processor()}, one thread; {machine.date()}, {machine.commit()}\n")
    print("| work | left to LLVM (ms) | lanes (ms) | ratio | the cost model chooses |\n|---|---|---|---|---|")
    for make in _named(LANES, options.names):
        without, lanes, chosen = measure(make, options.rounds, options.seconds)
        print(f"| {make.__doc__} | {without * 1e3:.3g} | {lanes * 1e3:.3g} | {without / lanes:.2g} | {chosen} |", flush=True)
    print("\n| work | ordinary stores (ms) | streaming stores (ms) | ratio |\n|---|---|---|---|")
    for make in _named(STREAMING, options.names):
        ordinary, streaming = measure_stores(make, options.rounds, options.seconds)
        print(f"| {make.__doc__} | {ordinary * 1e3:.3g} | {streaming * 1e3:.3g} | {ordinary / streaming:.2g} |", flush=True)


if __name__ == "__main__":
    main()
