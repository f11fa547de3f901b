"""The rows of the table: sizes, what they amount to, and goals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """``amount(size)`` is what a launch does, in ``unit``. ``goal``: milliseconds, or what ``goal_of`` says: "rate" in ``unit``, "copy" the
    fraction of the rate of the fastest copy, "row NAME" times the time of another row. ``tolerance`` is relative to the largest element
    of the result; 0 means exact. ``more``: only with ``--all``, and not for torch and JAX.
    """

    name: str
    title: str
    full: Any
    small: Any
    amount: Callable[[Any], float] | None = None
    unit: str = ""
    goal: float | None = None
    goal_of: str = "ms"
    tolerance: float = 1e-4
    more: bool = False


def _billions(n: int) -> float:
    return 1e-9 * n


def _bytes(streams: int) -> Callable[[int], float]:
    return lambda n: 4e-12 * streams * n


def _all(size: tuple[int, ...]) -> float:
    """Iterations of inner loops, in billions."""
    return 1e-9 * size[0] * size[1]


def _active(size: tuple[int, int]) -> float:
    return 0.2 * _all(size)  # four sines in an iteration, of which 5 % run


def _updates(size: tuple[int, int]) -> float:
    return 1e-9 * size[0]


def _products(n: int) -> float:
    """Trillions of multiplications and additions of a product of matrices."""
    return 2e-12 * n**3


def _systems(size: tuple[int, int]) -> float:
    return 1e-6 * size[0]


_N, _LARGE = 1 << 27, 1 << 28
ROWS: tuple[Row, ...] = (
    Row("copy", "copy of 128M f32", _N, 5003, _bytes(2), "TB/s"),
    Row("saxpy", "saxpy, 128M f32", _N, 5003, _bytes(3), "TB/s", 0.95, "copy"),
    Row("triad", "triad, 128M f32", _N, 5003, _bytes(3), "TB/s", 0.95, "copy"),
    Row("functions", "sin(x) exp(x) + log(x + 2), 128M f32", _N, 5003, _bytes(2), "TB/s", 0.30),
    Row("sum", "sum of 1 GiB f32", _LARGE, 70_001, _bytes(1), "TB/s", 0.25, tolerance=0),
    Row("maximum", "maximum of 1 GiB f32", _LARGE, 70_001, _bytes(1), "TB/s", 0.25, tolerance=0),
    Row("histogram_256", "histogram of 256M, 256 bins", (_LARGE, 256), (100_003, 256), _updates, "G/s", 0.6, tolerance=0),
    Row("histogram_64k", "histogram of 256M, 65,536 bins", (_LARGE, 65_536), (100_003, 65_536), _updates, "G/s", 2.0, tolerance=0),
    Row("nbody", "n-body, 65,536 bodies, 20 operations a pair", 65_536, 500, lambda n: 2e-8 * n * n, "GFLOP/s", 30_000, "rate", 1e-3),
    Row("stencil", "5-point stencil, 8192 x 8192", 8192, 131, lambda n: 8e-12 * n * n, "TB/s", 3.5, "rate"),
    Row("stencil_gradient", "its gradient", 8192, 131, lambda n: 16e-12 * n * n, "TB/s"),
    Row("gradient_1m", "gradient of 1M x 64 sines", (1 << 20, 64), (1003, 64), _all, "G/s", 0.07, tolerance=5e-3),
    Row("gradient_8m", "gradient of 8M x 64 sines", (1 << 23, 64), (3001, 64), _all, "G/s", 0.5, tolerance=5e-3),
    Row("gated", "gradient of 1M x 64 x 4 sines, 5 % of them", (1 << 20, 64), (4001, 64), _active, "G/s", 1.2, tolerance=5e-3),
    Row("mpm88", "mpm88, 8,192 particles, 64 steps, forward and backward", (8192, 64), (500, 8), goal=4.0, tolerance=5e-3),
    Row("substeps", "100 x 2 small kernels, forward and backward", (1024, 100, 4), (64, 10, 4), goal=2.5, tolerance=1e-3),
    Row("launch", "launch with 4 arrays", 16, 16, goal=0.004, tolerance=0),
    Row("launch_and_wait", "launch with 4 arrays and wait", 16, 16, goal=0.008, tolerance=0),
    Row("tiles_f16", "product of 4096 x 4096, f16 added up in f32", 4096, 64, _products, "TFLOP/s", tolerance=0),
    Row("tiles_f64", "product of 4096 x 4096, f64", 4096, 64, _products, "TFLOP/s", tolerance=0),
    Row("factors_16", "factors of 30,000 matrices of 9 x 9 by tiles of 16, f32", (30_000, 9), (50, 9), _systems, "M/s", tolerance=1e-4),
    Row("factors_32", "factors of 30,000 matrices of 30 x 30 by tiles of 32, f32", (30_000, 30), (50, 30), _systems, "M/s", tolerance=1e-3),
    Row(
        "factors_16_f64",
        "factors of 30,000 matrices of 40 x 40 by tiles of 16, f64",
        (30_000, 40),
        (20, 40),
        _systems,
        "M/s",
        tolerance=1e-9,
    ),
    Row(
        "factors_32_f64",
        "factors of 30,000 matrices of 40 x 40 by tiles of 32, f64",
        (30_000, 40),
        (20, 40),
        _systems,
        "M/s",
        tolerance=1e-9,
    ),
    Row("eight_loops", "eight loops over 16M f32, fused where that is known", 1 << 24, 10_007, goal=1.1, goal_of="row eight_by_hand"),
    Row("eight_apart", "the same, not fused", 1 << 24, 10_007),
    Row("eight_by_hand", "the same, fused by hand", 1 << 24, 10_007),
)
_MORE = (
    Row("copy_2d", "copy of two axes, 8192 x 8192", 8192, 131, lambda n: 8e-12 * n * n, "TB/s", more=True),
    Row("counts_256", "256 counts, 128M updates", _N, 5003, _billions, "G/s", tolerance=0, more=True),
    Row("counts_8000", "8,000 counts, 128M updates", _N, 5003, _billions, "G/s", tolerance=0, more=True),
    Row("sums_f32", "256 sums of f32, 128M updates", _N, 5003, _billions, "G/s", tolerance=1e-3, more=True),
    Row("sums_f16", "256 sums of f16, 128M updates", _N, 5003, _billions, "G/s", more=True),
    Row("maxima", "256 maxima of f32, 128M updates", _N, 5003, _billions, "G/s", tolerance=1e-6, more=True),
    Row("look_up", "gradient of a table of 256, 128M updates", _N, 5003, _billions, "G/s", more=True),
    Row("nests", "gradient of 1,024 nests of 100 x 100", (1024, 100), (64, 10), lambda s: 1e-9 * s[0] * s[1] ** 2, "G/s", more=True),
)
ROWS += _MORE
BY_NAME = {row.name: row for row in ROWS}
# Rows that are one program with several sizes.
PROGRAMS = {"histogram_256": "histogram", "histogram_64k": "histogram", "gradient_1m": "gradient", "gradient_8m": "gradient"}


def program_name(row: Row) -> str:
    """The name of the function that makes its program."""
    return PROGRAMS.get(row.name, row.name)
