"""Compile time by size of a kernel: `python -m benchmarks.scaling [--peer MODULE --peer-python PATH] [--sizes N,...] [kinds...]`.

For each kind of statement, and each number of them in one kernel, a process of its own imports the package, compiles and runs a small
kernel, and then takes the CPU seconds of the first call of the generated one. Printed are these seconds, and from each size to the next the
exponent: 1 if twice the size takes twice the time.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

_Lines = Callable[[int], list[str]]


def _repeated(*lines: str) -> _Lines:
    """n lines: ``lines``, repeated in this order; ``{k}`` becomes the number of the line."""
    return lambda n: [lines[k % len(lines)].format(k=k, small=k % 7) for k in range(n)]


def _static(line: str) -> _Lines:
    return lambda n: [f"for k in sg.static(range({n})):", f"    {line}"]


def _branches(n: int) -> list[str]:
    lines = ["if a < 0.0:", "    b = a"]
    for k in range(n):
        lines += [f"elif a < {k}.5:", f"    b = a * {k + 1}.25"]
    return lines


def _nests(n: int) -> list[str]:
    """Loops nested eight deep: Python allows no more than twenty."""
    lines = []
    for k in range(n):
        lines.append(f"{'    ' * (k % 8)}for _{k} in range(trip_count[None]):")
        if k % 8 == 7 or k == n - 1:
            lines.append("    " * (k % 8 + 1) + "a = a * 0.9 + b")
    return lines


def _in_loop(n: int) -> list[str]:
    return ["for _ in range(trip_count[None]):", *[f"    {line}" for line in KINDS["assign"](n)]]


def _loops(n: int) -> list[str]:
    return [line for _ in range(n) for line in ("for _ in range(trip_count[None]):", "    a = a * 0.9 + b")]


KINDS: dict[str, _Lines] = {
    "sin": _static("a = sg.sin(a) + b"),
    "exp": _static("a = sg.exp(a * 0.1) - b"),
    "sums": _static("c += sg.sin(a + k)"),
    "static": _static("a = a * b + k"),
    "updates": _static("z[k] += a * k"),
    "assign": _repeated("a = a * 1.5 + b", "b = sg.sqrt(a * a + {small}.0)"),
    "if": _repeated("if a > b + {small}: a, b = a - b * 0.5, a * b * 0.1 + sg.sqrt(a)"),
    "stores": _repeated("y[i + {small}] += a * b + {k}.0", "a = a * 0.5 + x[i + {small}]"),
    "func": _repeated("a = inlined(a, b) + {small}.0"),
    "real_func": _repeated("a = called(a, b) + {small}.0"),
    "loops": _loops,
    "nests": _nests,
    "in a loop": _in_loop,
    "elif": _branches,
}
_HEAD = """import {module} as sg

x, y = (sg.field(sg.f32, 1024, needs_grad=True) for _ in range(2))
z = sg.field(sg.f32, 1 << 14)
trip_count = sg.field(sg.i32, shape=())
trip_count[None] = 1

@sg.func
def inlined(p, q):
    r = p * q
    return sg.sqrt(r * r + 1.0) - sg.max(r, q)

@sg.real_func
def called(p: sg.f32, q: sg.f32) -> sg.f32:
    r = p * q
    return sg.sqrt(r * r + 1.0) - sg.max(r, q)

@sg.kernel
def small():
    for i in range(1000):
        y[i] = x[i] * 2.0 + sg.sin(x[i])

@sg.kernel
def generated():
    for i in range(1000):
        a, b, c = x[i], 1.0, 0.0
"""
_RUN = """
import sys, time

grad = "--grad" in sys.argv
sg.init(arch=getattr(sg, sys.argv[1]), offline_cache=False, ad_stack_experimental_enabled=True)
import program

for kernel in (program.small, program.generated):
    wall, cpu = time.perf_counter(), time.process_time()
    (kernel.grad if grad else kernel)()
    sg.sync()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
print("seconds", cpu, wall)
"""


def source(module: str, kind: str, n: int) -> str:
    """A program with ``n`` statements of a kind."""
    text = _HEAD.format(module=module) + "".join(f"        {line}\n" for line in KINDS[kind](n)) + "        y[i] = a + b + c\n"
    return text.replace("@sg.real_func", "@sg.func") if module != "spirograd" else text


def measure(python: str, module: str, arch: str, kind: str, n: int, grad: bool, limit: float) -> float:
    """CPU seconds of the first call; infinite if it fails or takes longer than ``limit``."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "program.py").write_text(source(module, kind, n))
        Path(folder, "run.py").write_text(f"import {module} as sg\n{_RUN}")
        command = [python, f"{folder}/run.py", arch, *(["--grad"] if grad else [])]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired:
            return math.inf
    found = [line.split() for line in done.stdout.splitlines() if line.startswith("seconds")]
    if not found:
        print(done.stderr[-600:], file=sys.stderr)
    return float(found[-1][1]) if found else math.inf


def _row(times: list[float], sizes: list[int]) -> str:
    cells = []
    for k, seconds in enumerate(times):
        known = k and math.isfinite(seconds) and math.isfinite(times[k - 1])
        exponent = math.log(seconds / times[k - 1]) / math.log(sizes[k] / sizes[k - 1]) if known else math.nan
        cells.append(f"{seconds:9.3f} {f'({exponent:4.1f})' if known else '      '}")
    return " ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("kinds", nargs="*", help=f"by default all: {', '.join(KINDS)}")
    parser.add_argument("--arch", default="cpu")
    parser.add_argument("--sizes", default="8,64,250,500,1000,2000")
    parser.add_argument("--grad", action="store_true", help="compile the gradient")
    parser.add_argument("--peer", metavar="MODULE", help="a package with the same language, such as quadrants")
    parser.add_argument(
        "--peer-python", metavar="PATH", default=os.environ.get("SG_PEER_PYTHON"), help="the Python that has the peer (or SG_PEER_PYTHON)"
    )
    parser.add_argument("--limit", type=float, default=120.0, help="seconds after which a process is given up")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    if options.peer and not options.peer_python:
        parser.error(f"--peer {options.peer}: name the Python that has it, with --peer-python PATH or in SG_PEER_PYTHON")
    columns = [(sys.executable, "spirograd")] + ([(options.peer_python, options.peer)] if options.peer else [])
    sizes = [int(n) for n in options.sizes.split(",")]
    print(f"{'CPU seconds (exponent)':24} " + " ".join(f"{n:>9}       " for n in sizes))
    for kind in options.kinds or KINDS:
        for python, module in columns:
            times: list[float] = []
            for n in sizes:
                rounds = 0 if times and math.isinf(times[-1]) else options.rounds
                runs = [measure(python, module, options.arch, kind, n, options.grad, options.limit) for _ in range(rounds)]
                times.append(min(runs, default=math.inf))
            print(f"{kind:12} {module:11} {_row(times, sizes)}", flush=True)


if __name__ == "__main__":
    main()
