"""Gates: which condition tells the iterations of a task that have tapes; what is counted of them; how rows are claimed and placed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spirograd.analysis.tapes import counter, sizes_of, tapes_of
from spirograd.analysis.trial import run
from spirograd.autodiff.gates import gates
from spirograd.autodiff.sizing import sizing
from spirograd.autodiff.sweep import CAPACITY
from spirograd.base.artifact import TAPE_PADDING
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import f32, i32, i64
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import ArrayArg, ArrayRef, Kernel, LoopAttr, Region, ScalarArg, TapeRef, TempRef, ref_of
from spirograd.ir.rewrite import Rewriter
from spirograd.ir.spec import verify
from spirograd.transforms.context import PassContext
from spirograd.transforms.offload import offload
from spirograd.transforms.place_tapes import place_tapes, word

CTX = PassContext(Capabilities("vulkan"), CompileOptions())
NUMBERS = ArrayRef("numbers", 0, i32, 1)
OUT = ArrayRef("out", 1, f32, 1)
ARGS = (ArrayArg("numbers", i32, 1), ArrayArg("out", f32, 1), ScalarArg("n", i32))


class Writer:
    """Gradient kernels by hand: one parallel loop with conditions and loops with tapes."""

    def __init__(self, constant=None, wide=False):
        self.b = b = Builder()
        b.begin()
        self.n = b.emit(ops.arg, attr=2, type=i32) if constant is None else b.const(constant)
        self.wide = wide
        self.tapes = []

    def recorded(self, count=None):
        """A loop that notes its count and what it carries, then reads all that."""
        b = self.b
        k = len(self.tapes)
        tape = TapeRef(f"tape{k}", i32, 1, k)
        self.tapes.append(tape)
        count = b.const(count) if isinstance(count, int) else b.load(NUMBERS, b.const(0))
        b.atomic("max", TempRef(f"{CAPACITY}{k}", i32), count)
        zero = b.const(0)
        for reading in (False, True):
            i, x = b.begin(i32, i32)
            if reading:
                x = b.emit(ops.add, x, b.load(tape, i, b.const(0)), attr="wrap")
            else:
                b.store(tape, i, b.const(0), x)
            (total,) = b.for_(zero, count, (zero,), b.end((b.emit(ops.add, x, i, attr="wrap"),)))
        b.atomic("add", OUT, b.const(0), b.cast(total, f32))

    def when(self, condition, then, orelse=lambda: None):
        b = self.b
        b.begin()
        then()
        regions = [b.end()]
        b.begin()
        orelse()
        b.if_(condition, *regions, b.end())

    def loop(self, body):
        b = self.b
        bounds = b.const(0), b.const(3)
        (i,) = b.begin(i32)
        body(i)
        b.for_(*bounds, (), b.end())

    def positive(self, i):
        b = self.b
        return b.emit(ops.gt, b.load(NUMBERS, b.cast(i, i32)), b.const(0))

    def kernel(self, body):
        b = self.b
        t = i64 if self.wide else i32
        bounds = b.const(0, t), b.cast(self.n, t)
        (i,) = b.begin(t)
        body(i)
        b.for_(*bounds, (), b.end(), LoopAttr(parallel=True))
        kernel = Kernel("k", ARGS, b.end(), ())
        verify(kernel, "kernel")
        return kernel


def gate_of(writer, body, sizes=(None,) * 4):
    return gates(writer.kernel(body), sizes)


def test_the_innermost_branch_with_all_tapes():
    w = Writer()

    def body(i):
        def inner():
            w.when(w.positive(i), lambda: (w.recorded(), w.recorded()), lambda: w.b.store(OUT, w.b.const(1), w.b.const(1.0, f32)))

        w.when(w.positive(i), lambda: w.b.store(OUT, w.b.const(0), w.b.const(1.0, f32)), inner)

    (gate,) = gate_of(w, body)
    assert gate.tapes == set(w.tapes)
    inside = [op for op in gate.region.walk() if isinstance(op.attr, TapeRef)]
    assert len(inside) == 4
    assert not [op for op in gate.region.walk() if op.code is ops.if_]


def test_both_branches_claim_in_front():
    w = Writer()

    def body(i):
        w.when(w.positive(i), lambda: w.when(w.positive(i), w.recorded, w.recorded))

    (gate,) = gate_of(w, body)
    assert [op.code for op in gate.region.ops if op.regions] == [ops.if_]


def test_a_serial_loop_is_not_entered():
    w = Writer()
    (gate,) = gate_of(w, lambda i: w.when(w.positive(i), lambda: w.loop(lambda k: w.when(w.positive(k), w.recorded))))
    assert [op.code for op in gate.region.ops if op.regions] == [ops.for_]


@pytest.mark.parametrize(
    "body",
    [
        lambda w, i: w.recorded(),
        lambda w, i: (w.recorded(), w.when(w.positive(i), w.recorded)),
        lambda w, i: w.when(w.positive(i), w.recorded, w.recorded),
        lambda w, i: (w.when(w.positive(i), w.recorded), w.when(w.positive(i), w.recorded)),
        lambda w, i: w.loop(lambda k: w.when(w.positive(k), w.recorded)),
        lambda w, i: w.when(w.positive(i), lambda: None),
    ],
    ids=["bare", "one outside", "both branches", "two conditions", "loop outside", "no tapes"],
)
def test_no_gate(body):
    w = Writer()
    assert gate_of(w, lambda i: body(w, i)) == ()


@pytest.mark.parametrize(
    ("n", "sizes", "gated"),
    [(1000, (200, 62), False), (1000, (200, 63), True), (1000, (200, None), True), (None, (1, 1), True), (100_000_000, (1, 1), True)],
)
def test_small_tapes_are_left_alone(n, sizes, gated):
    """1 MiB in all, if the compiler can tell."""
    w = Writer(n)
    assert len(gate_of(w, lambda i: w.when(w.positive(i), lambda: (w.recorded(), w.recorded())), sizes)) == gated


def test_no_gate_where_iterations_cannot_be_counted():
    w = Writer(wide=True)
    assert gate_of(w, lambda i: w.when(w.positive(i), w.recorded)) == ()


# --- what becomes of them --------------------------------------------------------------------------------------------------


def gated(profile="vulkan", counts=(None,)):
    w = Writer()
    kernel = w.kernel(lambda i: w.when(w.positive(i), lambda: [w.recorded(count) for count in counts]))
    return sizing(kernel, PassContext(Capabilities(profile), CompileOptions()))


@pytest.mark.parametrize("numbers", [[3, -1, 0, 5, 7], [-2, -3], [4]], ids=str)
def test_all_iterations_are_counted(numbers):
    main, (stage,), sizes = gated()
    assert sizes == (None, None)
    found = np.full(2, -7, np.int32)
    run(stage.kernel, [np.array(numbers, np.int32), np.zeros(1, np.float32), len(numbers), found], {})
    assert list(found) == [max(numbers[0], 1), sum(k > 0 for k in numbers)]
    verify(main, "kernel")
    (claim,) = [op for op in main.walk() if op.code is ops.claim]
    assert claim.attr == counter(1)


def test_lengths_that_are_known_are_handed_over_too():
    """Whether or not the host knows them: one place says what tapes are placed by."""
    main, (stage,), sizes = gated(counts=(5, 9))
    assert [size is None for size in sizes] == [False, False, True]
    assert sizes_of(main) is not None
    found = np.zeros(3, np.int32)
    run(stage.kernel, [np.array([1, 0, 1], np.int32), np.zeros(1, np.float32), 3, found], {})
    assert list(found) == [5, 9, 2]


def test_the_cpu_has_rows_for_workers():
    main, stages, sizes = gated("cpu")
    assert len(sizes) == 1
    assert not [op for op in main.walk() if op.code is ops.claim]
    assert not [stage for stage in stages if len(stage.numbers) != 1]


class Given(Rewriter):
    """Numbers for what a launch says of its tapes."""

    def __init__(self, words):
        super().__init__()
        self.words = words
        self.handlers = {ops.tape_word: lambda op: self.b.const(self.words[op.attr[0]])}


def placed(room, asked, capacity, passing):
    """Rows that take part, claims that have a row, distance between entries; None where no row fits."""
    tasks = place_tapes(offload(gated()[0], CTX), CTX)
    verify(tasks, "kernel")
    (tape,) = tapes_of(tasks).values()
    assert (tape.rows, tape.claimed) == (1, True)
    first, task = tasks.body.ops[:2]
    returns = (word("tape_rows", 1), word("tape_claims", 1), word("tape_pitch", 0), counter(1))
    b = Builder()
    b.begin()
    b.store(counter(1), b.const(77))
    start = b.end().ops[:-1]
    body = Region((), (*start, *first.regions[0].ops))
    kernel = Kernel("place", tasks.args, body, returns)
    kernel = Given({"tape_room": room, "tape_rows": asked}).kernel(kernel)
    sizes = np.array([capacity, passing], np.int32)
    arguments = [np.zeros(1, np.int32), np.zeros(1, np.float32), 0, sizes]
    outcome = run(kernel, arguments, {})
    rows, claims, pitch, claimed = (int(v) for v in outcome.returns)
    assert claimed == 0, "the counter begins anew"
    assert (outcome.fault is not None) == (rows == 0)
    assert len(task.regions[0].results) == 3
    return rows, claims, pitch


@pytest.mark.parametrize("passing", [0, 1, 2, 31, 100, 101, 4095])
def test_all_take_part_if_there_is_a_row_for_each_claim(passing):
    rows, claims, pitch = placed(5000 * 10, 4096, 10, passing)
    assert rows == 4096
    assert passing <= claims == pitch <= passing + 1 + TAPE_PADDING
    assert pitch % 2 == 0


@pytest.mark.parametrize("passing", [4096, 5000, 2**31 - 1, -5])
def test_no_more_rows_than_invocations(passing):
    """Also where so many pass that the count has wrapped."""
    rows, _, pitch = placed(5000 * 10, 4096, 10, passing)
    assert (rows, pitch) == (4096, 4096 + TAPE_PADDING)


@pytest.mark.parametrize("room", [999, 1000, 1010, 1017, 640, 40, 20])
def test_else_as_many_as_there_are_rows(room):
    rows, claims, pitch = placed(room, 4096, 10, 1001)
    assert 2 <= rows <= claims == pitch
    assert pitch * 10 <= room
    assert pitch > room // 10 - 2


def test_a_tight_heap_is_enough():
    for passing in (1, 2, 33, 50, 51):
        padded = passing + TAPE_PADDING if passing > TAPE_PADDING else passing
        rows, claims, _ = placed((padded + 1 & -2) * 11, 4096, 11, passing)
        assert rows == 4096
        assert claims >= passing


def test_no_room_for_a_row():
    assert placed(18, 4096, 10, 5)[:2] == (0, 0)


def test_claims_without_tapes_go():
    main, _, _ = gated()

    class Bare(Rewriter):
        def __init__(self):
            super().__init__()
            self.handlers = dict.fromkeys((ops.load, ops.store), self._drop)

        def _drop(self, op):
            if not isinstance(ref_of(op), TapeRef):
                return self.copy(op)
            return self.b.const(0) if op.code is ops.load else None

    tasks = place_tapes(offload(Bare().kernel(replace(main)), CTX), CTX)
    assert not [op for op in tasks.walk() if op.code is ops.claim]
