"""Runs on two processes, one of which loses an exchange that the other finishes: errors, and no message of another exchange."""

from __future__ import annotations

import sys
import time

import spirograd as sg

dist = sg.distributed

if __name__ == "__main__":
    dist.init(arch="cpu", timeout=60)
    line = dist.Partition(16)
    line.exchange(line.field(sg.f32))  # what starts once, such as the compiler, may take one process longer than another
    dist.init(arch="cpu", timeout=3)
    rank, last = dist.rank(), 6
    line = dist.Partition(16)
    x, own = line.field(sg.f32), line.owned[0]
    halo = own[1] if rank == 0 else own[0] - 1
    errors = []
    line.exchange(x)
    for step in range(last):
        x.fill(100 * rank + step)
        try:
            pending = line.start(x)
            if step == 1 and rank == 0:
                raise ValueError("one process only")
            pending.finish()
            assert x[halo] == 100 * (1 - rank) + step, (rank, step, x[halo])
        except (ValueError, sg.SpirogradRuntimeError) as error:
            errors.append(str(error))
        pending = None
    if rank == 0:
        time.sleep(5)  # the other one finds no message, and a process that ends would be another error
        assert len(errors) == 5 and all("a halo exchange was started and never finished" in text for text in errors[1:]), errors
    else:
        assert len(errors) == 4 and all("process 1 of 2 failed in a halo exchange" in text for text in errors[:1]), errors
    try:
        dist.init(arch="cpu", timeout=3)
    except sg.SpirogradRuntimeError:
        print(f"no wrong halos on process {rank}")
    sys.stdout.flush()
