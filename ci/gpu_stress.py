"""Launch gradients whose loop bounds change each time, without waits in between, and check that the results are exact.

    ci/gpu_stress.py --arch cuda --launches 100000 --streams 4
    ci/gpu_stress.py --arch vulkan --launches 2000

Bounds are one number in a field, written by Python or by a kernel; one for each iteration, written by a kernel; an argument; numbers in an
ndarray. Some loops are nested, and some stand behind a condition that few iterations meet. All values are whole numbers and powers of two,
so that every sum is exact, and a bound that came too early or too late changes it. On CUDA and AMD's GPUs the launches go to several
streams in turn, some of which are busy with other work; elsewhere there are as many sets of memory. Exits with status 1 at the first
difference, and says what was launched before it.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import spirograd as sg
from spirograd.lang import context

N = 1003
MOST = 8  # trip counts are less
_BASES = np.array([1.0, -1.0, 2.0, 0.5, -2.0], np.float32)
_CYCLES = 5_000_000  # for which a stream is kept busy, about 3 ms: the host comes far ahead of the device


class Memory:
    """Fields of their own, kernels over them, and what NumPy expects in them.

    Each kernel computes ``z[i] += x[i] * y[i] ** e[i]`` by multiplying e times, so that x.grad is y ** e and y.grad is e x y ** (e - 1).
    """

    def __init__(self) -> None:
        self.x, self.y, self.z = (sg.field(sg.f32, N, needs_grad=True) for _ in range(3))
        self.count, self.lengths, self.array = sg.field(sg.i32, ()), sg.field(sg.i32, N), sg.ndarray(sg.i32, 4)
        self.start, self.base = (np.arange(N) % 7 - 3).astype(np.float32), _BASES[np.arange(N) % len(_BASES)]
        self.x.from_numpy(self.start)
        self.y.from_numpy(self.base)
        self.rows = np.arange(N)
        self.kernels = _kernels(self)
        self._added: dict[tuple[str, int], np.ndarray] = {}  # what a launch adds to z, x.grad, y.grad: the host has to be fast
        self.clear()

    def clear(self) -> None:
        for of in (self.z, self.x.grad, self.y.grad):
            of.fill(0.0)
        self.z.grad.fill(1.0)
        self.expected = np.zeros((3, N))

    def launch(self, kind: str, n: int, forward: bool) -> None:
        """One launch of a kind with a new bound, and what it adds to the results."""
        kernel, before, args, exponents = self.kernels[kind]
        before(n)
        run = kernel if forward else kernel.grad
        run(*args(n))
        if (kind, n) not in self._added:
            e, active = exponents(n)
            power = np.where(active, self.base.astype(np.float64) ** e, 0.0)
            self._added[kind, n] = np.stack([self.start * power, power, e * self.start * power / self.base])
        changed = slice(0, 1) if forward else slice(1, 3)
        self.expected[changed] += self._added[kind, n][changed]

    def difference(self) -> str:
        """The first element that is not exactly as expected; empty if there is none."""
        for name, of, expected in zip(("z", "x.grad", "y.grad"), (self.z, self.x.grad, self.y.grad), self.expected):
            found = of.to_numpy()
            wrong = np.flatnonzero(found != expected)
            if len(wrong):
                i = wrong[0]
                return f"{name}[{i}] is {found[i]}, expected {expected[i]}; {len(wrong)} of {N} elements differ"
        return ""


def _kernels(m: Memory) -> dict[str, tuple[Any, Callable[[int], None], Callable[[int], tuple[Any, ...]], Callable[[int], Any]]]:
    """By name: a kernel, what writes its bound, its arguments, and which power it computes where."""
    x, y, z, count, lengths = m.x, m.y, m.z, m.count, m.lengths

    @sg.kernel
    def one_for_all():
        for i in x:
            a, b = x[i], y[i]
            for _ in range(count[None]):
                a = a * b
            z[i] += a

    @sg.kernel
    def one_for_each():
        for i in x:
            a, b = x[i], y[i]
            for _ in range(lengths[i]):
                a = a * b
            z[i] += a

    @sg.kernel
    def nested():
        for i in x:
            a, b = x[i], y[i]
            for _j in range(count[None] // 3):
                for _k in range(lengths[i] // 2):
                    a = a * b
            z[i] += a

    @sg.kernel
    def guarded():
        for i in x:
            if lengths[i] == 3:
                a, b = x[i], y[i]
                for _ in range(count[None]):
                    a = a * b
                z[i] += a

    @sg.kernel
    def by_argument(n: sg.i32):
        for i in x:
            a, b = x[i], y[i]
            for _ in range(n):
                a = a * b
            z[i] += a

    @sg.kernel
    def by_array(bounds: sg.types.NDArray[sg.i32, 1]):
        for i in x:
            a, b = x[i], y[i]
            for _ in range(bounds[i % 4]):
                a = a * b
            z[i] += a

    @sg.kernel
    def set_one(n: sg.i32):
        count[None] = n

    @sg.kernel
    def set_each(n: sg.i32):
        for i in lengths:
            lengths[i] = (i * 5 + n) % MOST

    def from_python(n: int) -> None:
        count[None] = n

    def both(n: int) -> None:
        set_one(n)
        set_each(n)

    def quarters(n: int) -> np.ndarray:
        return (np.arange(4) + n) % MOST

    always, none = np.ones(N, bool), lambda n: ()
    each = lambda n: (m.rows * 5 + n) % MOST  # noqa: E731
    same = lambda n: (np.full(N, n), always)  # noqa: E731
    return {
        "one bound, by Python": (one_for_all, from_python, none, same),
        "one bound, by a kernel": (one_for_all, set_one, none, same),
        "one for each, by a kernel": (one_for_each, set_each, none, lambda n: (each(n), always)),
        "nested": (nested, both, none, lambda n: (n // 3 * (each(n) // 2), always)),
        "guarded": (guarded, both, none, lambda n: (np.full(N, n), each(n) == 3)),
        "argument": (by_argument, lambda n: None, lambda n: (n,), same),
        "ndarray": (by_array, lambda n: m.array.from_numpy(quarters(n).astype(np.int32)), lambda n: (m.array,),
                    lambda n: (quarters(n)[m.rows % 4], always)),
    }  # fmt: skip


class Streams:
    """Blocks in which launches go to one of several streams of torch; blocks that do nothing where there are none."""

    def __init__(self, arch: str, count: int) -> None:
        self.streams: list[Any] = [None] * count
        if arch in ("cuda", "amdgpu"):
            try:
                import torch
            except ImportError:
                sys.exit(f"ci/gpu_stress.py: streams on {arch} are torch's, and torch is not installed")
            self.torch: Any = torch
            self.streams = [torch.cuda.Stream() for _ in range(count)]

    def block(self, k: int, busy: bool) -> contextlib.AbstractContextManager[Any]:
        """A block on the k-th stream, on which other work may come first."""
        stream = self.streams[k]
        if stream is None:
            return contextlib.nullcontext()
        if busy:
            with self.torch.cuda.stream(stream):
                self.torch.cuda._sleep(_CYCLES)
        return sg.Stream(stream)


def stress(memories: list[Memory], streams: Streams, launches: int, every: int, seed: int) -> str:
    """What went wrong, empty if nothing did."""
    choose, kinds = random.Random(seed), list(memories[0].kernels)
    history: list[str] = []
    shown = start = time.monotonic()
    for number in range(1, launches + 1):
        k, kind, n = choose.randrange(len(memories)), choose.choice(kinds), choose.randrange(MOST)
        forward, busy = choose.random() < 0.2, choose.random() < 0.05
        # Now and then the memory of one stream is used on another: its work must come after.
        stream = k if choose.random() < 0.8 else choose.randrange(len(memories))
        history.append(f"{kind}, bound {n}, {'forward' if forward else 'gradient'}, memory {k}, stream {stream}")
        with streams.block(stream, busy):
            memories[k].launch(kind, n, forward)
        if number % every == 0 or number == launches:
            for k, memory in enumerate(memories):
                if wrong := memory.difference():
                    last = "\n  ".join(history[-12:])
                    title = f"the last of {len(history)} launches since the check before"
                    return f"after {number:,} launches, memory {k}: {wrong}\n{title}:\n  {last}"
                memory.clear()
            history.clear()
            if time.monotonic() - shown > 5:
                shown = time.monotonic()
                print(f"{number:,} of {launches:,} launches exact, {shown - start:.0f} s", flush=True)
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="ci/gpu_stress.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="gpu", help="back end (default: the first GPU)")
    parser.add_argument("--launches", type=int, default=100_000)
    parser.add_argument("--streams", type=int, default=4, help="streams, or sets of memory where there are none")
    parser.add_argument("--check-every", type=int, default=500, metavar="LAUNCHES", help="launches between two waits, at most 500")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    if not 1 <= chosen.check_every <= 500:
        parser.error("--check-every: sums of more than 500 launches are not exact in f32")
    sg.init(arch=chosen.arch)
    memories = [Memory() for _ in range(chosen.streams)]
    arch = str(context.session().arch)
    streams = Streams(arch, chosen.streams)
    start = time.monotonic()
    wrong = stress(memories, streams, chosen.launches, chosen.check_every, chosen.seed)
    if wrong:
        print(f"seed {chosen.seed}: {wrong}")
        return 1
    where = f"{chosen.streams} streams" if streams.streams[0] is not None else f"{chosen.streams} sets of memory"
    print(f"{chosen.launches:,} launches on {arch}, {where}: all results exact, {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
