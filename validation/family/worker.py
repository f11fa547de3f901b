"""Runs one program in this process, on Taichi or on spirograd in its place, and writes what it left in memory and how long frames took.

It runs in the environment of Taichi too, so it needs nothing but NumPy.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from validation.family import drawing, frames, prefix_sums, windows
from validation.family.memory import Memory

NUDGE = 1.0 + 2.0**-23  # one unit in the last place
_OLD_OPTIONS = ("dynamic_index",)  # options of `init` that Taichi 1.7.4 rejects and programs for older releases set


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path)
    parser.add_argument("--on", choices=("taichi", "spirograd"), required=True)
    parser.add_argument("--arch", default="cpu")
    parser.add_argument("--folder", type=Path, required=True, help="the folder of the program's modules; of examples, taichi/examples")
    parser.add_argument("--frame", default="", help="what counts as a frame: see frames.py (default: windows)")
    parser.add_argument("--frames", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="stop after this time, whatever was reached")
    parser.add_argument("--draws", action="store_true", help="the program draws random numbers")
    parser.add_argument("--timed", action="store_true", help="all threads and the library's own random numbers; memory is not written")
    parser.add_argument("--nudged", action="store_true", help="without fast mathematics, and random numbers larger by one part in 2**23")
    parser.add_argument("--double", action="store_true", help="`float` is f64")
    parser.add_argument("--out", type=Path, required=True, help="folder for result.json and memory.npz")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the program")
    return parser.parse_args()


class Run:
    """One run of a program: its frames, its memory, and why it ended."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.memory = Memory(str(options.program), str(options.folder))
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self._reading = 0.0  # seconds that reading the clocks has taken so far
        self.taichi: Any = None
        self.started = False

    def shown(self) -> None:
        """The program shows a frame."""
        if self.started:
            self.taichi.sync()
        self.wall.append(time.perf_counter() - self._reading)
        before = time.thread_time()
        self.cpu.append(time.process_time() - self._reading)  # about a millisecond on some virtual machines: longer than some frames
        self._reading += time.thread_time() - before
        if len(self.wall) >= self.options.frames:
            raise windows.Finished

    def drawn(self, name: str, given: Any) -> None:
        if not self.options.timed:
            self.memory.draw(name, given)

    def prepare(self) -> None:
        """Import the library that the program shall run on, and replace its windows and, unless times are taken, its random numbers."""
        if self.options.on == "spirograd":
            from spirograd.compat import stand_in

            stand_in.replace("taichi")
            self._make_examples_importable()
        self.taichi = taichi = importlib.import_module("taichi")
        windows.install(taichi, windows.Frames((lambda: None) if self.options.frame else self.shown, self.drawn))
        if self.options.frame:
            frames.count(self.options.frame, taichi, self.shown)
        if self.options.on == "taichi":
            prefix_sums.install(taichi)
        self.memory.watch(taichi)
        self._fix_options()
        _add_old_names()
        if not self.options.timed:
            for name, unit in (("time", 1.0), ("perf_counter", 1.0), ("time_ns", 1e9)):
                setattr(time, name, self._clock(getattr(time, name), unit))
        random.seed(0)
        np.random.seed(0)
        if self.options.nudged:
            drawing.nudge(random, "random uniform gauss", NUDGE)
            drawing.nudge(np.random, "random rand randn uniform normal", NUDGE)

    def _clock(self, real: Any, unit: float) -> Any:
        """A clock that shows the program 60 frames in a second, and others the time."""
        asked = 0

        def now() -> Any:
            nonlocal asked
            if sys._getframe(1).f_code.co_filename != str(self.options.program):
                return real()
            asked += 1
            return type(real())((len(self.wall) / 60 + asked * 1e-6) * unit)

        return now

    def _make_examples_importable(self) -> None:
        package = ModuleType("taichi.examples")
        package.__path__ = [str(self.options.folder)]
        sys.modules["taichi.examples"] = package

    def _fix_options(self) -> None:
        taichi, first = self.taichi, self.taichi.init
        arch = getattr(taichi, self.options.arch)

        def init(_arch: Any = None, **given: Any) -> None:
            self.memory.forget()
            given = {key: value for key, value in given.items() if key not in ("arch", *_OLD_OPTIONS)}
            if self.options.timed:
                given["offline_cache"] = False  # first frames compile
            else:
                given.update(cpu_max_num_threads=1, random_seed=0)
            if not self.options.timed and self.options.on == "spirograd" and self.options.draws:
                given["opt_level"] = 1  # one iteration after the other: iterations in lockstep draw random numbers in another order
            if self.options.nudged:
                given["fast_math"] = False
            if self.options.double:
                given["default_fp"] = taichi.f64
            first(arch=arch, **given)
            self.started = True
            if not self.options.timed:
                drawing.install(taichi, NUDGE if self.options.nudged else 1.0)

        taichi.init = init

    def go(self) -> dict[str, Any]:
        """Run the program to its end, its last frame or its time limit, and say how it ended."""
        start, start_cpu = time.perf_counter(), time.process_time()
        signal.signal(signal.SIGALRM, _late)
        signal.setitimer(signal.ITIMER_REAL, self.options.seconds)
        sys.argv = [str(self.options.program), *self.options.arguments]
        sys.path.insert(0, str(self.options.program.parent))
        ended, reason = "ended", ""
        try:
            self.prepare()
            runpy.run_path(str(self.options.program), run_name="__main__")
        except windows.Finished as why:
            ended = "late" if why.args else "frames"
        except SystemExit as left:
            if left.code not in (None, 0):
                ended, reason = "failed", f"SystemExit: {left.code}"
        except BaseException as error:
            ended, reason = "failed", _one_line(error)
            traceback.print_exc()
        signal.setitimer(signal.ITIMER_REAL, 0)
        total = time.perf_counter() - start
        wall = np.diff([start, *self.wall]).tolist()
        return {"ended": ended, "reason": reason, "frames": wall, "cpu": np.diff([start_cpu, *self.cpu]).tolist(), "seconds": total}


def _add_old_names() -> None:
    """Names of other packages that examples use and newer releases lack."""
    try:
        import matplotlib
        from matplotlib import cm
    except ImportError:
        return
    if not hasattr(cm, "get_cmap"):
        cm.get_cmap = matplotlib.colormaps.get_cmap


def _late(*_: Any) -> None:
    raise windows.Finished("out of time")


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' / '.join(lines)}"[:600]


def main() -> None:
    options = _options()
    os.environ.setdefault("MPLBACKEND", "Agg")
    run = Run(options)
    result = run.go()
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.timed and result["ended"] != "failed":
        np.savez(options.out / "memory.npz", **run.memory.read())
    (options.out / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
