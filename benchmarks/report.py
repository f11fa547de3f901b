"""Results as a table and as a picture."""

from __future__ import annotations

import math
from pathlib import Path

_UNITS = ((1.0, "s "), (1e-3, "ms"), (1e-6, "us"))


def _text(seconds: float) -> str:
    if math.isinf(seconds):
        return "   failed   "
    scale, unit = next((u for u in _UNITS if seconds >= u[0]), _UNITS[-1])
    return f"{seconds / scale:9.2f} {unit}"


def print_table(results: dict[str, list[float]]) -> None:
    """A line for each case: the time of each column, and how many times as long the second one takes."""
    for case, times in results.items():
        ratio = f"   {times[1] / times[0]:6.2f} x" if len(times) > 1 and not math.isinf(max(times)) else ""
        print(f"{case:28} {' '.join(_text(t) for t in times)}{ratio}", flush=True)


def print_numbers(results: dict[str, list[float]], unit: str) -> None:
    """A line for each: what is not a time, in a unit of its own, and how many times as much the second column has."""
    for name, values in results.items():
        texts = ["failed".rjust(9) + " " * 3 if math.isinf(v) else f"{v:12,.2f}" if v < 1000 else f"{v:12,.0f}" for v in values]
        ratio = f"   {values[1] / values[0]:6.2f} x" if len(values) > 1 and not math.isinf(max(values)) and values[0] else ""
        print(f"{f'{name} ({unit})':28} {' '.join(texts)}{ratio}", flush=True)


def write_chart(results: dict[str, list[float]], names: list[str], path: Path) -> None:
    """Bars of the ratios, as a PNG; nothing without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        print("no picture: matplotlib is not installed")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    ratios = {case: t[1] / t[0] for case, t in results.items() if not math.isinf(max(t))}
    figure, axes = pyplot.subplots(figsize=(8, 0.3 * len(ratios) + 1))
    axes.barh(list(ratios), list(ratios.values()), color=["#3b7" if r >= 1 else "#c54" for r in ratios.values()])
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel(f"{names[1]} / {names[0]} (right of 1: {names[0]} takes less)")
    figure.savefig(path, dpi=120, bbox_inches="tight")
