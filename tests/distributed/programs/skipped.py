"""Runs on two processes, one of which leaves out a call that the other makes: an error on both, and no number of another call."""

from __future__ import annotations

import re
import sys

import spirograd as sg

dist = sg.distributed


def raises(function, message):
    try:
        function()
    except sg.SpirogradRuntimeError as error:
        assert re.search(message, str(error)), error
    else:
        raise AssertionError(f"no error: {message}")


def sums(rank):
    """Those that follow have other names, or are another function; the numbers on each process stay its own."""
    x, y = sg.field(sg.f32, 10), sg.field(sg.f32, 10)
    for first, second in (
        (lambda: dist.all_reduce(x), lambda: dist.total(x)),
        (lambda: dist.all_reduce(x), dist.barrier),
        (lambda: dist.total(y), lambda: dist.Partition(8)),
    ):
        x.fill(rank + 1)
        y.fill(rank + 1)
        raises(second if rank else first, "process 0 is in .*, and process 1 in ")
        assert (x.to_numpy() == rank + 1).all() and (y.to_numpy() == rank + 1).all()


def reverse_pass(rank):
    """One that does not get as far as the reverse pass: gradients are no parts of its next sum."""
    w, loss = sg.field(sg.f32, 10, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)
    counts = sg.field(sg.i64, 5)

    @sg.kernel
    def add():
        for i in w:
            loss[None] += w[i]

    def taped():
        with sg.ad.Tape(loss):
            dist.replicate(w)
            add()
            if rank == 1:
                raise ValueError("one process only")

    if rank == 0:
        raises(taped, "process 0 is in the reverse pass of `sg.distributed.replicate`, and process 1 in `sg.distributed.all_reduce`")
        assert (w.grad.to_numpy() == 1).all()
        return
    try:
        taped()
    except ValueError:
        counts.fill(3)
    raises(lambda: dist.all_reduce(counts), "process 0 is in the reverse pass of `sg.distributed.replicate`, and process 1")
    assert (counts.to_numpy() == 3).all()


def same_memory(rank):
    """Messages pair with those of the step before, until the processes compare how many exchanges they have begun."""
    line = dist.Partition(16)
    x = line.field(sg.f32)
    for step in range(4):
        x.fill(step)
        if step != 2 or rank == 0:
            pending = line.start(x)
            if step < 3 or rank == 1:
                pending.finish()
    raises(dist.barrier, r"a barrier: processes have begun different numbers of halo exchanges, by rank 4, 3\n.*the same order")
    raises(lambda: line.to_numpy(x), "processes have begun different numbers")


def other_memory(rank):
    """Messages of other memory, though of the same size and with the same number, do not pair: time runs out."""
    line = dist.Partition(16)
    fields = [line.field(sg.f32), line.field(sg.f32)]
    own = line.owned[0]
    for step in range(3):
        for number, field in enumerate(fields):
            field.fill(100 * number + step)
            if (step, number, rank) == (1, 0, 1):
                continue
            if step == 0:
                line.exchange(field)
                continue
            raises(lambda field=field: line.exchange(field), f"process {rank} of 2 failed in a halo exchange: another process ended")
            assert field[own[1] if rank == 0 else own[0] - 1] == 100 * number + step, "halo of other memory"
    raises(lambda: dist.all_reduce(sg.field(sg.f32, 2)), "an earlier message failed")


if __name__ == "__main__":
    for timeout, check in ((20, sums), (21, reverse_pass), (22, same_memory), (2, other_memory)):
        dist.init(arch="cpu", timeout=timeout)  # with another timeout they join each other anew
        check(dist.rank())
    print(f"no number of another call on process {dist.rank()}")
    sys.stdout.flush()
