"""Runs on any number of processes: they join each other again, with other timeouts and after the end."""

from __future__ import annotations

import spirograd as sg

dist = sg.distributed

if __name__ == "__main__":
    for timeout in (20, 25, 20):
        dist.init(arch="cpu", timeout=timeout)
        count = sg.field(sg.i32, 1)
        count.fill(1)
        dist.all_reduce(count)
        assert count[0] == dist.size()
        line = dist.Partition(8, periodic=True)
        pending = line.start(line.field(sg.f32))
        if timeout == 25:
            dist.end()
        else:
            dist.init(arch="cpu", timeout=timeout)  # receives what is under way
        try:
            pending.finish()
        except sg.SpirogradRuntimeError as error:
            assert "ended when this process left the others, or joined them again" in str(error)
        else:
            raise AssertionError("finished twice")
    print(f"joined again as process {dist.rank()} of {dist.size()}")
