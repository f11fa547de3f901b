"""Time a loop with a long, divergent body in workgroups of several sizes on a GPU, beside the size that the compiler chooses.

    ci/gpu_long_bodies.py                 CUDA; takes less than a minute
    ci/gpu_long_bodies.py --arch vulkan --iterations 200000

Each iteration repeats a map of 24 numbers, unrolled, as often as its data says, so that it needs many registers and neighbours end at
different times. Prints the best time of nine rounds for each size, and on CUDA what the driver says of the machine code. Exits with status
1 if two sizes give different results, and with 77 if the device is missing.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import spirograd as sg

_ROUNDS, _LAUNCHES = 9, 10
_NOT_RUN = 77  # the status of a step of `ci/gpu` that this machine cannot run
_SIZES = (0, 32, 64, 128, 256)  # 0: the compiler's choice
_N = 24


def _kernel() -> Any:
    @sg.kernel
    def solve(start: sg.types.NDArray[sg.f32, 2], often: sg.types.NDArray[sg.i32, 1], out: sg.types.NDArray[sg.f32, 1]):
        for i in often:
            x = sg.Vector([0.0] * _N)
            for k in sg.static(range(_N)):
                x[k] = start[i, k]
            for _ in range(often[i]):
                y = sg.Vector([0.0] * _N)
                for k in sg.static(range(_N)):
                    for j in sg.static(range(_N)):
                        y[k] += x[j] * x[(j + k) % _N] / (1.0 + (j - k) ** 2)
                for k in sg.static(range(_N)):
                    slope = 2.0 + sg.abs(y[k])
                    x[k] = 0.5 * x[k] + sg.sqrt(sg.abs(y[(k + 1) % _N])) / slope
            total = 0.0
            for k in sg.static(range(_N)):
                total += x[k]
            out[i] = total

    return solve


def _measured(arch: Any, size: int, iterations: int) -> tuple[float, str, np.ndarray[Any, Any]]:
    """The best time of a launch in milliseconds, what is known of the machine code, and the results."""
    sg.init(arch=arch, default_gpu_block_dim=size, offline_cache=False)
    rng = np.random.default_rng(1)
    start, often, out = sg.ndarray(sg.f32, (iterations, _N)), sg.ndarray(sg.i32, iterations), sg.ndarray(sg.f32, iterations)
    start.from_numpy(rng.random((iterations, _N), np.float32))
    often.from_numpy(rng.geometric(0.1, iterations).astype(np.int32))
    kernel = _kernel()
    kernel(start, often, out)
    best = float("inf")
    for _ in range(_ROUNDS):
        sg.sync()
        begin = time.perf_counter()
        for _ in range(_LAUNCHES):
            kernel(start, often, out)
        sg.sync()
        best = min(best, (time.perf_counter() - begin) / _LAUNCHES)
    notes = re.findall(r"\d+ registers[^;\n]*", kernel.asm()) if arch == sg.cuda else []
    return best * 1e3, ", ".join(dict.fromkeys(notes)), out.to_numpy()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="cuda", help="back end (default cuda)")
    parser.add_argument("--iterations", type=int, default=1_000_000)
    options = parser.parse_args()
    arch = getattr(sg, options.arch)
    try:
        sg.init(arch=arch)
    except RuntimeError as error:
        print(error)
        return _NOT_RUN
    print("| workgroup | ms | machine code |\n|---|---|---|")
    first: np.ndarray[Any, Any] | None = None
    for size in _SIZES:
        best, notes, found = _measured(arch, size, options.iterations)
        print(f"| {size or 'chosen'} | {best:.3f} | {notes} |", flush=True)
        first = found if first is None else first
        if not np.array_equal(first, found):
            print("the results differ from those above")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
