"""Sizing: which capacities the host knows, what the counting kernels count, and what is left in them."""

from __future__ import annotations

import numpy as np
import pytest

from spirograd.analysis.adstacks import SIZES
from spirograd.analysis.trial import run
from spirograd.autodiff.sizing import sizing
from spirograd.autodiff.sweep import capacity_of
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import f32, i32
from spirograd.base.options import CompileOptions
from spirograd.base.sizes.evaluate import evaluate
from spirograd.base.sizes.size_nodes import Arg, Max
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import AdstackRef, ArrayArg, ArrayRef, Kernel, LoopAttr, ScalarArg, TempRef, ref_of
from spirograd.ir.spec import verify
from spirograd.ir.temp_kinds import TempKind
from spirograd.transforms.pass_context import PassContext

CTX = PassContext(Capabilities("cpu"), CompileOptions())
ASYNCHRONOUS = PassContext(Capabilities("vulkan"), CompileOptions())
NUMBERS = ArrayRef("numbers", 0, i32, 1)
OUT = ArrayRef("out", 1, f32, 1)
ARGS = (ArrayArg("numbers", i32, 1), ArrayArg("out", f32, 1), ScalarArg("n", i32))


class Writer:
    """Makes gradient kernels by hand: loops that note their trip counts, adstacks, and effects that counting must leave out."""

    def __init__(self):
        self.b = Builder()
        self.b.begin()
        self.n = self.b.emit(ops.arg, attr=2, type=i32)
        self.size = self.b.emit(ops.shape, attr=(0, 0), type=i32)

    def note(self, number, count):
        self.b.atomic("max", capacity_of(number), self.b.emit(ops.max_, count, self.b.const(0)))

    def loop(self, count, body, carried=(), parallel=False):
        zero = self.b.const(0)
        index, *values = self.b.begin(i32, *[v.type for v in carried])
        return self.b.for_(zero, count, carried, self.b.end(body(index, *values) or ()), LoopAttr(parallel=parallel))

    def recorded(self, number, count):
        """A loop that notes its count and what it carries, then writes to an array."""
        adstack = AdstackRef(f"adstack{number}", i32, 1, number)
        self.note(number, count)

        def body(i, x):
            self.b.store(adstack, i, self.b.const(0), x)
            return (self.b.emit(ops.add, x, i, attr="wrap"),)

        (total,) = self.loop(count, body, (self.b.const(0),))
        self.b.atomic("add", OUT, self.b.const(0), self.b.cast(total, f32))
        return adstack, total

    def kernel(self):
        kernel = Kernel("k", ARGS, self.b.end(), ())
        verify(kernel, "kernel")
        return kernel


def arguments(n, extent):
    """Scalar arguments and array arguments of a launch."""
    return (None, None, n), (np.zeros(extent), np.zeros(1))


def split(kernel):
    main, counting, capacities = sizing(kernel, CTX)
    verify(main, "kernel")
    assert not [op for op in main.walk() if getattr(ref_of(op), "kind", None) is TempKind.CAPACITY]
    assert [op.code for op in main.walk() if ref_of(op) == OUT], "the effects of the main kernel stay"
    for stage in counting:
        verify(stage.kernel, "kernel")
        assert not [op for op in stage.kernel.walk() if ref_of(op) == OUT], "a counting kernel has no effect"
        assert len(stage.kernel.returns) == len(stage.numbers)
    return counting, capacities


def counts(counting, numbers, n):
    """What the stages return, on the interpreter, by number of the capacity."""
    found = {}
    for stage in counting:
        out = np.zeros(4, np.float32)
        returned = run(stage.kernel, [np.array(numbers, np.int32), out, n], {}).returns
        assert not out.any()
        found |= dict(zip(stage.numbers, [int(v) for v in returned]))
    return found


def loops_of(kernel):
    return [op for op in kernel.walk() if op.code in (ops.for_, ops.while_)]


def test_nothing_noted():
    w = Writer()
    w.b.store(OUT, w.b.const(0), w.b.const(1.0, f32))
    kernel = w.kernel()
    assert sizing(kernel, CTX) == (kernel, (), ())


@pytest.mark.parametrize(("n", "extent", "expected"), [(5, 7, (5, 9)), (-3, 0, (0, 2))])
def test_host_knows(n, extent, expected):
    w = Writer()

    def body(i):
        w.recorded(0, w.n)
        w.recorded(1, w.b.emit(ops.add, w.size, w.b.const(2), attr="nsw"))

    w.loop(w.size, body, parallel=True)
    counting, capacities = split(w.kernel())
    assert counting == ()
    assert tuple(evaluate(c, *arguments(n, extent)) for c in capacities) == expected


def test_counted_from_memory():
    """A ragged count: the maximum over the iterations of a parallel loop, whose body runs nothing else."""
    w = Writer()
    w.loop(w.size, lambda i: w.recorded(0, w.b.load(NUMBERS, i)) and None, parallel=True)
    counting, capacities = split(w.kernel())
    assert capacities == (None,)
    (stage,) = counting
    assert len(loops_of(stage.kernel)) == 1, "the loop that is counted does not run"
    assert counts(counting, [3, 9, -4, 2], 0) == {0: 9}
    assert counts(counting, [-3], 0) == {0: 1}


def test_invariant_count_needs_no_loop():
    """The count is loaded once, in front of the loops around."""
    w = Writer()
    count = w.b.cast(w.b.cast(w.b.load(NUMBERS, w.b.const(0)), f32), i32)  # of floats, which the host does not follow
    w.loop(w.n, lambda i: w.loop(w.n, lambda j: w.recorded(0, w.b.emit(ops.mul, count, w.n, attr="nsw")) and None), parallel=True)
    counting, _ = split(w.kernel())
    assert loops_of(counting[0].kernel) == []
    assert counts(counting, [6], 7) == {0: 42}


def test_host_and_device_mixed():
    w = Writer()

    def body(i):
        w.recorded(0, w.b.load(NUMBERS, i))
        w.recorded(1, w.n)
        w.recorded(2, w.b.emit(ops.mul, i, i, attr="nsw"))

    w.loop(w.size, body, parallel=True)
    counting, capacities = split(w.kernel())
    assert [c is None for c in capacities] == [True, False, False]
    assert [stage.numbers for stage in counting] == [(0,)]
    assert counts(counting, [1, 5, 2, 0], 8) == {0: 5}
    assert [evaluate(c, *arguments(8, 4)) for c in capacities[1:]] == [8, 9]


def test_asynchronous_devices_hand_over_all_counts():
    """If one of them needs memory: the host does not read it. What it knows all the same tells how much memory to set aside."""
    w = Writer()

    def body(i):
        w.recorded(0, w.b.load(NUMBERS, w.b.const(1)))
        w.recorded(1, w.n)

    w.loop(w.size, body, parallel=True)
    kernel = w.kernel()
    assert split(kernel)[0] == ()
    main, (stage,), capacities = sizing(kernel, ASYNCHRONOUS)
    assert capacities == (None, Max(Arg(2), 0))
    assert main.args[-1] == stage.kernel.args[-1] == SIZES
    assert not stage.kernel.returns
    sizes = np.zeros(2, np.int32)
    run(stage.kernel, [np.array([3, 6], np.int32), np.zeros(4, np.float32), 9, sizes], {})
    assert sizes.tolist() == [6, 9]
    # The compiler sees that the second one is what the loop notes.
    assert [op.attr[1] for op in main.walk() if op.code is ops.adstack_word] == [0]


def test_temporaries_that_counts_depend_on_stay():
    """Others, such as sums of adjoints, go with the loops that make them."""
    w = Writer()
    kept, dropped = TempRef("kept", i32), TempRef("dropped", f32)
    w.b.store(kept, w.b.const(0))
    w.b.store(dropped, w.b.const(0.0, f32))
    w.loop(w.size, lambda i: w.b.atomic("add", kept, w.b.load(NUMBERS, i)) and None, parallel=True)
    w.loop(w.size, lambda i: w.b.atomic("add", dropped, w.b.cast(w.b.load(NUMBERS, i), f32)) and None, parallel=True)
    w.b.store(OUT, w.b.const(1), w.b.load(dropped))
    w.recorded(0, w.b.load(kept))
    counting, _ = split(w.kernel())
    assert len(loops_of(counting[0].kernel)) == 1
    assert dropped not in [ref_of(op) for op in counting[0].kernel.walk()]
    assert counts(counting, [4, 6, 1], 0) == {0: 11}


def test_count_from_a_tape_is_a_stage_of_its_own():
    """An inner loop whose count an outer one carries: in the reverse of the outer loop it comes from an adstack, which is sized first."""
    w = Writer()

    def body(i):
        adstack, _ = w.recorded(0, w.b.load(NUMBERS, i))

        def back(j):
            w.recorded(1, w.b.load(adstack, j, w.b.const(0)))

        w.loop(w.b.load(NUMBERS, i), back)

    w.loop(w.size, body, parallel=True)
    counting, capacities = split(w.kernel())
    assert capacities == (None, None)
    assert [stage.numbers for stage in counting] == [(0,), (1,)]
    # The outer loop carries 0 + 1 + 2 ...: in front of its last iteration, the sum of the numbers below count - 1.
    assert counts(counting, [2, 6, 3], 0) == {0: 6, 1: 0 + 1 + 2 + 3 + 4}


def test_while_is_counted_after_it():
    w = Writer()
    adstack = AdstackRef("adstack", i32, 1, 0)

    def body(i):
        start = w.b.load(NUMBERS, i)
        x, _ = w.b.begin(i32, i32)
        condition = w.b.end([w.b.emit(ops.gt, x, w.b.const(0))])
        x, k = w.b.begin(i32, i32)
        w.b.store(adstack, k, w.b.const(0), x)
        step = w.b.end([w.b.emit(ops.idiv, x, w.b.const(2)), w.b.emit(ops.add, k, w.b.const(1), attr="nsw")])
        _, count = w.b.while_((start, w.b.const(0)), condition, step)
        w.note(0, count)
        w.loop(count, lambda j: w.b.atomic("add", OUT, w.b.const(0), w.b.cast(w.b.load(adstack, j, w.b.const(0)), f32)) and None)

    w.loop(w.size, body, parallel=True)
    counting, capacities = split(w.kernel())
    assert capacities == (None,)
    assert not [op for op in counting[0].kernel.walk() if isinstance(op.attr, AdstackRef)]
    assert counts(counting, [0, 1000, 7], 0) == {0: 10}
