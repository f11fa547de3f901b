"""Runs on any number of processes: steps of a wave that are saved. ``survivors.py FOLDER END [kill|hang]``: the last process is killed, or
stops to answer, at step 5."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import spirograd as sg
from spirograd.base import knobs

dist = sg.distributed
SHAPE = (11, 6)


def reference(steps):
    """The wave on one process, by NumPy, with a boundary that is 0.5."""
    old, now = np.zeros(SHAPE), np.random.default_rng(5).normal(size=SHAPE)
    for _ in range(steps):
        wide = np.pad(now, ((2, 2), (0, 0)), constant_values=0.5)
        wide = np.pad(wide, ((0, 0), (2, 2)), mode="wrap")
        around = wide[:-4, 2:-2] + wide[4:, 2:-2] + wide[2:-2, :-4] + wide[2:-2, 4:] - 4 * now
        old, now = now, 2 * now - old + 0.1 * around
    return now


def main() -> None:
    folder, end, *mode = sys.argv[1:]
    waits_on_gpu = knobs.get("SG_ARCH") == "cuda"  # a message that does not come is found by the time that it takes
    dist.init(arch="cpu", timeout=6 if mode == ["hang"] or (mode and waits_on_gpu) else 60)
    part = dist.Partition(SHAPE, halo=2, periodic=(False, True))
    fields = [part.field(sg.f64), part.field(sg.f64)]
    gain = sg.field(sg.f64, 2)
    old, now = fields

    @sg.kernel
    def step(a: sg.template(), b: sg.template(), i0: int, i1: int, j0: int, j1: int):
        for i, j in sg.ndrange((i0, i1), (j0, j1)):
            around = b[i - 2, j] + b[i + 2, j] + b[i, j - 2] + b[i, j + 2] - 4.0 * b[i, j]
            a[i, j] = 2.0 * b[i, j] - a[i, j] + gain[1] * around

    first = 0
    if (Path(folder) / "state.json").exists():
        first = dist.load(folder, part, {"old": old, "now": now}, {"gain": gain})["step"]
        assert part.origin[0] >= 0 or now[-2, 3] == 0.5  # outside of the domain
    else:
        for field in fields:
            field.fill(0.5)
        part.from_numpy(now, np.random.default_rng(5).normal(size=SHAPE))
        part.from_numpy(old, np.zeros(SHAPE))
        gain[1] = 0.1 if dist.rank() == 0 else 99.0
        dist.replicate(gain)
    for number in range(first, int(end)):
        if mode and number == 5 and dist.rank() == dist.size() - 1:
            if mode == ["kill"]:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(11)
        part.exchange(now)
        step(old, now, *part.owned.flat)
        old, now = now, old
        if not mode or number < 4:
            dist.save(folder, part, {"old": old, "now": now}, {"gain": gain}, {"step": number + 1})
    assert np.allclose(part.to_numpy(now), reference(int(end)), rtol=1e-12), "another wave"
    print(f"steps {first} to {end} on process {dist.rank()} of {dist.size()}")


if __name__ == "__main__":
    main()
