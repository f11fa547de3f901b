"""Runs on several processes: a mistake on one of them is an error on all, and after it they go on."""

from __future__ import annotations

import gc
import re
import tempfile
from pathlib import Path

import numpy as np

import spirograd as sg

dist = sg.distributed


def raises(function, kind, message):
    try:
        function()
    except kind as error:
        assert re.search(message, str(error)), error
    else:
        raise AssertionError(f"no error: {message}")


def partitions():
    mine = dist.rank() == 1
    raises(
        lambda: dist.Partition((8 + mine, 8)), sg.SpirogradValueError, "a partition differs between processes: process 0 has .*, process 1"
    )
    raises(lambda: dist.Partition((8, 8), periodic=mine), sg.SpirogradValueError, "a partition differs between processes")
    wide = "its halo of 9 cells is wider than the smallest block, 2 cells" if dist.size() == 4 else "wider than the smallest block, 4 cells"
    raises(lambda: dist.Partition((8, 8), (dist.size(), 1), 9), sg.SpirogradValueError, wide)
    raises(lambda: dist.Partition((8, 8), (dist.size(), 1), "x" if mine else 1), sg.SpirogradRuntimeError, "`halo` is a number of cells")
    raises(lambda: dist.Partition((8, 1), (1, dist.size())), sg.SpirogradValueError, "leave some block without a cell")


def memory():
    part = dist.Partition((8, 8))
    mine = dist.rank() == 1
    x = part.field(sg.f64 if mine else sg.f32)
    raises(lambda: part.exchange(x), sg.SpirogradValueError, "the memory of a halo exchange differs between processes")
    y = sg.field(sg.f32, (3, 3)) if mine else part.field(sg.f32)
    text = "on this process the block with its halo" if mine else "failed on process 1: .*has shape"
    raises(lambda: part.exchange(y), sg.SpirogradRuntimeError, text)
    raises(lambda: part.to_numpy(y), sg.SpirogradRuntimeError, text)
    z = [part.field(sg.f32, needs_grad=mine)]
    raises(lambda: part.add_halos(*z), sg.SpirogradValueError, "'f32 with a gradient, number")
    raises(lambda: part.exchange(*z, *(z if mine else [])), sg.SpirogradRuntimeError, "names the same memory twice")
    w = sg.field(sg.f32, 3 + mine)
    raises(lambda: dist.all_reduce(w), sg.SpirogradValueError, "the memory of `sg.distributed.all_reduce` differs")
    raises(lambda: dist.total(sg.field(sg.u8, 3)), sg.SpirogradTypeError, "takes f32, f64, i32, i64, not u8")


def exceptions():
    """Whatever one process raises, the others raise, too."""

    def wrong():
        if dist.rank() == dist.size() - 1:
            raise ZeroDivisionError("no cells")
        return dist.rank()

    kind, text = (
        (ZeroDivisionError, "no cells") if dist.rank() == dist.size() - 1 else (sg.SpirogradRuntimeError, "failed on process .: Zero")
    )
    raises(lambda: dist.world.together("a test", wrong), kind, text)

    def caused():
        raise sg.SpirogradValueError("no cells") from ZeroDivisionError("no extent")

    try:
        dist.world.together("a test", caused)
    except sg.SpirogradValueError as error:
        assert isinstance(error.__cause__, ZeroDivisionError), error.__cause__


class Domain:
    """Memory of a new session, whose halos are compared after an exchange."""

    def __init__(self):
        dist.init(arch="cpu", timeout=60)
        self.part = dist.Partition((8, 5), periodic=True)
        self.x, self.y = self.part.field(sg.f32, True), self.part.field(sg.f32)
        self.loss = sg.field(sg.f32, (), needs_grad=True)
        self.whole = np.arange(40, dtype=np.float32).reshape(8, 5)
        self.part.from_numpy(self.x, -self.whole)

    def check(self):
        self.part.from_numpy(self.y, self.whole)
        before = self.y.to_numpy()
        block = np.zeros_like(before)
        owned = self.part.owned.slices_from(self.part.origin)
        block[owned] = before[owned]
        self.x.from_numpy(block)
        self.part.exchange(self.x)
        assert np.array_equal(self.x.to_numpy(), before)


def dropped():
    """A transfer that nothing can finish any more is an error that names its line, until the processes join again."""
    text = r"a halo exchange was started and never finished.*\n  at .*mistakes.py:\d+ in dropped\n.*start\(d.x\)"
    for collected in (True, False):
        d = Domain()
        d.part.exchange(d.x)
        lost = [d.part.start(d.x)]
        if not collected:  # a cycle, which only one process frees before the next call
            lost.append(lost)
            gc.disable()
        del lost
        if dist.rank() == 0:
            gc.collect()
        for _ in range(2):
            raises(lambda: d.part.exchange(d.x), sg.SpirogradRuntimeError, text)
            raises(lambda: d.part.exchange(d.y), sg.SpirogradRuntimeError, text)
            raises(lambda: dist.all_reduce(d.loss), sg.SpirogradRuntimeError, text)
            raises(lambda: d.part.to_numpy(d.y), sg.SpirogradRuntimeError, text)
            raises(lambda: dist.Partition(8), sg.SpirogradRuntimeError, text)
        gc.enable()
        Domain().check()


def unfinished():
    """Transfers that are under way where the same memory is used again, where a tape ends, and where the session does."""
    d = Domain()
    pending = d.part.start(d.x)
    raises(lambda: d.part.start(d.x), sg.SpirogradRuntimeError, r"of the same memory has not been finished\n  at .*mistakes.py")
    pending.finish()
    d.check()

    def in_tape():
        with sg.ad.Tape(d.loss):
            d.part.start(d.x)

    raises(in_tape, sg.SpirogradRuntimeError, r"was started in the tape and not finished there\n  at .*mistakes.py")
    raises(lambda: d.part.exchange(d.y), sg.SpirogradRuntimeError, "a halo exchange was started and never finished")
    d = Domain()
    pending = d.part.start(d.x)
    sg.init(arch="cpu")  # the memory of the messages is gone
    d = Domain()
    raises(pending.finish, sg.SpirogradRuntimeError, "ended when this process left the others, or joined them again")
    d.check()


def sums():
    n = dist.size()
    for dtype in (sg.f32, sg.f64, sg.i32, sg.i64):
        x = sg.ndarray(sg.types.vector(2, dtype), 3)
        for op, wanted in (("add", n * (n + 1) // 2), ("min", 1), ("max", n)):
            x.fill(dist.rank() + 1)
            dist.all_reduce(x, op)
            assert (x.to_numpy() == wanted).all()
    big = sg.field(sg.f32, 1000)
    big.from_numpy(np.random.default_rng(dist.rank()).normal(size=1000).astype(np.float32))
    dist.all_reduce(big)
    every = dist.world.gathered("a test", big.to_numpy().tobytes())
    assert len({*every}) == 1, "other bits"
    columns, pair = sg.field(sg.f32, (3, 4), order="ji"), sg.Struct.field({"a": sg.f32, "b": sg.f32}, shape=(3, 4))
    pair.b.fill(7)
    for x in (columns, pair.a):  # whose elements lie in another order, or apart
        whole = np.arange(12, dtype=np.float32).reshape(3, 4)
        x.from_numpy(whole + dist.rank())
        dist.all_reduce(x, "max")
        assert (x.to_numpy() == whole + n - 1).all()
        x.from_numpy(whole + dist.rank())
        dist.replicate(x)
        assert (x.to_numpy() == whole).all()
    assert (pair.b.to_numpy() == 7).all()


def states():
    folder = Path(dist.world.gathered("a test", tempfile.mkdtemp())[0])
    part = dist.Partition((9, 8), halo=(1, 2), periodic=(True, False))
    x, v = part.field(sg.f32), part.ndarray(sg.types.vector(2, sg.f64))
    whole, vectors = np.arange(72, dtype=np.float32).reshape(9, 8), np.random.default_rng(2).normal(size=(9, 8, 2))
    raises(lambda: dist.load(folder, part, {"x": x}), sg.SpirogradRuntimeError, "there is no saved state in")
    for turn in range(2):
        part.from_numpy(x, whole + turn)
        part.from_numpy(v, vectors - turn)
        dist.save(folder, part, {"x": x, "v": v}, values={"turn": turn, "list": [1, 2]})
    i, j = np.indices(part.local_shape)
    i, j = (i + part.origin[0]) % 9, j + part.origin[1]
    outside = (j < 0) | (j >= 8)  # of the domain, corners included
    x.from_numpy(np.where(outside, 100 * i + j, x.to_numpy()).astype(np.float32))
    dist.save(folder, part, {"x": x, "v": v}, values={"turn": 1, "list": [1, 2]})
    before = x.to_numpy(), v.to_numpy()
    x.fill(0)
    v.fill(0)
    assert dist.load(folder, part, {"v": v, "x": x}) == {"turn": 1, "list": [1, 2]}
    assert all(np.array_equal(a, b) for a, b in zip(before, (x.to_numpy(), v.to_numpy())))
    raises(lambda: dist.load(folder, part, {"y": x}), sg.SpirogradValueError, "no `y` among its memories; it has x, v")
    raises(lambda: dist.load(folder, part, {"x": v}), sg.SpirogradValueError, "`x` in the state in .* is .*'f32'.*, and here .*'f64'")
    other = dist.Partition((9, 8), halo=1, periodic=(True, False))
    raises(
        lambda: dist.load(folder, other, {"x": other.field(sg.f32)}), sg.SpirogradValueError, r"halo at the ends of the domain is \[0, 2\]"
    )
    other = dist.Partition((9, 8), halo=(2, 2), periodic=(True, False))
    y = other.field(sg.f32)
    dist.load(folder, other, {"x": y})
    assert np.array_equal(other.to_numpy(y), whole + 1)
    raises(lambda: dist.save(folder, part, {"x": x}, values={"a": {1}}), sg.SpirogradRuntimeError, "not JSON serializable")
    raises(lambda: dist.save(folder, part, {"no name": x}), sg.SpirogradValueError, "is one of a Python variable, not 'no name'")
    assert dist.load(folder, part, {"x": x})["turn"] == 1


def main() -> None:
    if dist.size() > 1:
        partitions()
        memory()
        exceptions()
        dropped()
        unfinished()
    sums()
    states()


if __name__ == "__main__":
    dist.init(arch="cpu", timeout=60)
    main()
