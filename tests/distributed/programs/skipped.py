"""Runs on two processes, one of which leaves out a call that the other makes: an error on both, and no number of another call."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import numpy as np

import spirograd as sg

dist = sg.distributed


def raises(function, message, kind=sg.SpirogradRuntimeError):
    try:
        function()
    except kind as error:
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


def alike_sums(rank):
    """Memory of the same type and shape, which processes know apart from its first sum on, or by the order in which partitions made it."""
    line = dist.Partition(16)
    for x, y in (
        (sg.field(sg.f32, 12), sg.field(sg.f32, 12)),
        (sg.ndarray(sg.i64, 3), sg.ndarray(sg.i64, 3)),
        (line.field(sg.f32), line.field(sg.f32)),
        (line.ndarray(sg.f32), line.ndarray(sg.f32)),
    ):
        made = x.shape == line.local_shape
        for step in range(3):
            x.fill(rank + 1)
            y.fill(10 * (rank + 1))
            if step == 1 or (step == 0 and made):
                text = "number .* of those that partitions made" if made else "number .* of those in earlier calls"
                for function in (dist.all_reduce, dist.total, dist.replicate):
                    for mine in (y, x) if rank else (x, y):
                        raises(
                            lambda f=function, m=mine: f(m), f"differs between processes: process 0 has .*{text}", sg.SpirogradValueError
                        )
                assert (x.to_numpy() == rank + 1).all() and (y.to_numpy() == 10 * (rank + 1)).all()
            dist.all_reduce(x)
            dist.all_reduce(y)
            assert (x.to_numpy() == 3).all() and (y.to_numpy() == 30).all()
            dist.all_reduce(sg.field(sg.f32, 10))  # memory of one call is new on both


def whole_arrays(rank):
    """Arrays of the whole domain, of one process's memory only."""
    line = dist.Partition(16)
    a, b = line.field(sg.f32), line.field(sg.i32)
    c = line.field(sg.f32)
    for one, other in ((a, b), (a, c)):
        mine = other if rank else one
        raises(lambda m=mine: line.to_numpy(m), "the memory of `Partition.to_numpy` differs", sg.SpirogradValueError)
    for number, memory in enumerate((a, b, c)):
        line.from_numpy(memory, np.arange(16) + number)
        assert (line.to_numpy(memory) == np.arange(16) + number).all()


def states(rank):
    """A state that only one process saves, or to another folder, changes none that is there."""
    folders = [Path(dist.world.gathered("a test", tempfile.mkdtemp())[0]) for _ in range(2)]
    line = dist.Partition(16)
    x, y = line.field(sg.f32), line.field(sg.f32)
    for memory in (x, y):
        line.from_numpy(memory, np.arange(16))
        for folder in folders:
            dist.save(folder, line, {"x": memory}, {}, {"a": 1})
    mine, name = folders[rank], "yx"[rank]
    for function in (
        lambda: dist.save(mine, line, {"x": x}),
        lambda: dist.save(folders[0], line, {name: x}),
        lambda: dist.save(folders[0], line, {"x": (x, y)[rank]}),
        lambda: dist.save(folders[0], line, {}, {"x": x} if rank else {}),
        lambda: dist.load(mine, line, {"x": x}),
        lambda: dist.load(folders[0], line, {"x": (x, y)[rank]}),
    ):
        raises(function, "the state of `(save|load)` differs between processes", sg.SpirogradValueError)
    before = [sorted(str(path) for path in folder.rglob("*")) for folder in folders]
    raises(lambda: _apart(folders, rank, line, x), "process 1 wrote `x` to another place than|failed on process 0: process 1 wrote `x`")
    assert all(set(old) <= {str(path) for path in folder.rglob("*")} for old, folder in zip(before, folders))
    for folder in folders:
        x.fill(0)
        assert dist.load(folder, line, {"x": x}) == {"a": 1} and (line.to_numpy(x) == np.arange(16)).all()


def _apart(folders, rank, line, x):
    """Processes that do not share the folder which they name alike: each writes to its own."""
    write = dist.states._write_blocks
    dist.states._write_blocks = lambda target, *rest: write(folders[rank] / target.name, *rest)
    try:
        dist.save(folders[0], line, {"x": x})
    finally:
        dist.states._write_blocks = write


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


def first_exchange(rank):
    """Where one process leaves out the first exchange of a field, that of another one does not take its place."""
    line = dist.Partition(16)
    halo = line.local_shape[0] - 1 if rank == 0 else 0
    for make in (line.field, line.ndarray, lambda dtype: sg.field(dtype, line.local_shape)):
        fields = [make(sg.f32), make(sg.f32)]
        differs = "the memory of a .* differs between processes: process 0 has .*number .* of those"
        for step in range(3):
            if step == 0 and hasattr(make, "__self__"):  # what partitions make
                raises(lambda f=fields: line.exchange(f[rank]), differs, sg.SpirogradValueError)
            if step == 1:
                raises(lambda f=fields: line.add_halos(f[rank]), differs, sg.SpirogradValueError)
            for number, field in enumerate(fields):
                field.fill(100 * number + 10 * rank + step)
                line.exchange(field)
                assert field.to_numpy()[halo] == 100 * number + 10 * (1 - rank) + step


if __name__ == "__main__":
    for timeout, check in (
        *((20, one) for one in (sums, alike_sums, whole_arrays, states, first_exchange)),
        (21, reverse_pass),
        (22, same_memory),
        (2, other_memory),
    ):
        dist.init(arch="cpu", timeout=timeout)  # with another timeout they join each other anew
        check(dist.rank())
    print(f"no number of another call on process {dist.rank()}")
    sys.stdout.flush()
