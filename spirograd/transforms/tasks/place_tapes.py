"""Tapes whose sizes only the device knows: a task that gives each its place, before the tasks that use them.

The host does the same for sizes that it knows: see `runtime.tapes`, where the layout is described.
"""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.analysis.tapes import counter, guarded, passing_of, sizes_of, tapes_of
from spirograd.base.artifact import TAPE_PADDING, FaultSite, TapeInfo
from spirograd.base.dtypes import VOID, i32, u1
from spirograd.base.loc import Loc
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import ArrayRef, Kernel, Op, Region, TapeRef, TaskAttr, TempKind, TempRef
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.context import PassContext

# The name of the task, as far as no loop has it.
PLACING = "place.tapes"


def place_tapes(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Put the task that places tapes in front of ``kernel``, a list of tasks, if the argument `SIZES` says how large they are.

    On the CPU, whose host knows all sizes, the bounds of range tasks with tapes yield a third value: how many rows there are. Elsewhere:

    It leaves base, pitch and capacity of each tape in temporaries. The tasks begin with operations `tape_word` that ask for those of their
    tapes, and the bounds of range tasks with tapes yield a third value, how many invocations take part: all if each finds a row, else as
    many as there are rows. Where rows are claimed, the task sets the counter to 0, and each claim is checked.
    """
    kernel = _Claims(kernel).kernel(kernel)
    sizes, tapes = sizes_of(kernel), tapes_of(kernel)
    if not tapes:
        return kernel
    *tasks, end = kernel.body.ops
    if ctx.caps.target.rows_by_thread:
        return kernel.with_body(Region((), (*[_limited(op, k) for k, op in enumerate(tasks)], end)))
    if sizes is None:
        return kernel
    place = _Place(kernel, tapes, sizes)
    b = Builder()
    b.loc = kernel.loc
    b.begin()
    *tasks, end = kernel.body.ops
    names, name = {op.attr.name for op in tasks}, PLACING
    while name in names:
        name += "_"
    b.emit(ops.task, attr=TaskAttr("serial", name, places=True), type=VOID, regions=(place.body(),))
    first = b.end().ops[:-1]
    checked = guarded(kernel)
    asking = [_asking(op, k, tapes, checked) for k, op in enumerate(tasks, 1)]
    return kernel.with_body(Region((), (*first, *asking, end)))


def word(kind: str, number: int) -> TempRef:
    """Where the task leaves a word of a tape, or the rows of a task."""
    return TempRef(f"{kind}{number}", i32, kind=TempKind(kind), number=number)


def is_placed(kernel: Kernel) -> bool:
    """Whether ``kernel``, a list of tasks, places its tapes itself."""
    return any(op.code is ops.task and op.attr.places for op in kernel.body.ops)


class _Place:
    """Builds the task. All numbers are 32-bit words of the heap, of which it has less than 2^30: sums of two do not wrap."""

    def __init__(self, kernel: Kernel, tapes: dict[TapeRef, TapeInfo], sizes: ArrayRef) -> None:
        self.b = Builder()
        self.tapes = list(enumerate(tapes.values()))
        self.sizes = sizes
        self.kernel = kernel
        self.loops = _loops(kernel)
        # The task that places comes first.
        self.tasks = {op.attr.name: k for k, op in enumerate(kernel.body.ops[:-1], 1) if op.attr.kind == "range_for"}

    def body(self) -> Region:
        b = self.b
        b.begin()
        self.room = b.emit(ops.tape_word, attr=("tape_room", 0), type=i32)
        self.capacities = {k: b.load(self.sizes, b.const(k)) for k in sorted({tape.capacity for _, tape in self.tapes})}
        serial = self._serial([(k, tape) for k, tape in self.tapes if tape.task is None])
        left = b.emit(ops.sub, self.room, serial, attr="nsw")
        for name in dict.fromkeys(tape.task for _, tape in self.tapes if tape.task is not None):
            self._range(name, [(k, tape) for k, tape in self.tapes if tape.task == name], serial, left)
        for k in guarded(self.kernel):
            b.store(word("tape_capacity", k), self.capacities[k])
        return b.end()

    def _serial(self, tapes: Sequence[tuple[int, TapeInfo]]) -> Op:
        """One row, from the first word on; gives its length. If it does not fit, its tapes share their first entry: the launch fails."""
        b = self.b
        offsets, stride = self._offsets(tapes, even=True)
        fits = self._check(stride, stride, self.room, [tape for _, tape in tapes])
        for k, tape in tapes:
            b.store(word("tape_base", k), self._elements(self._choose(fits, offsets[k], b.const(0)), tape))
            b.store(word("tape_pitch", k), b.const(0))
            self.capacities[tape.capacity] = self._choose(fits, self.capacities[tape.capacity], b.const(1))
        return self._choose(fits, stride, b.const(0))

    def _range(self, name: str, tapes: Sequence[tuple[int, TapeInfo]], first: Op, left: Op) -> None:
        """Rows side by side, as many as there is room for, from the word ``first`` on: those that go by the number of the invocation, then
        those that are claimed."""
        b, number = self.b, self.tasks[name]
        groups = [own for claimed in (False, True) if (own := [(k, tape) for k, tape in tapes if tape.claimed == claimed])]
        laid = [self._offsets(own, even=False) for own in groups]
        most = b.emit(ops.add, self.room, b.const(2), attr="nsw")
        stride = b.const(0)
        for _, length in laid:
            stride = b.emit(ops.min_, b.emit(ops.add, stride, length, attr="nsw"), most)
        # Two rows, because there is an even number.
        fits = self._check(stride, b.emit(ops.add, stride, stride, attr="nsw"), left, [tape for _, tape in tapes])
        asked = b.emit(ops.tape_word, attr=("tape_rows", number), type=i32)
        wanted = [self._wanted(own[0][1].rows, asked) for own in groups]
        enough, pitches, rows = self._pitches([length for _, length in laid], wanted, left)
        everybody = asked if groups[0][0][1].claimed else b.emit(ops.min_, wanted[0], asked)
        rows = self._choose(enough, everybody, b.emit(ops.min_, rows, asked))
        b.store(word("tape_rows", number), self._choose(fits, rows, b.const(0)))
        for own, (offsets, length), pitch in zip(groups, laid, pitches):
            if own[0][1].claimed:
                passing = own[0][1].rows
                assert passing is not None
                # A claim may take any of the places of an entry.
                b.store(word("tape_claims", passing), self._choose(fits, pitch, b.const(0)))
                b.store(counter(passing), b.const(0))
            for k, tape in own:
                begin = b.emit(ops.add, first, b.emit(ops.mul, offsets[k], pitch, attr="nsw"), attr="nsw")
                b.store(word("tape_base", k), self._elements(begin, tape))
                b.store(word("tape_pitch", k), pitch)
            first = b.emit(ops.add, first, b.emit(ops.mul, length, pitch, attr="nsw"), attr="nsw")

    def _wanted(self, number: int | None, asked: Op) -> Op:
        """How many rows ``asked`` invocations need, an even number; fewer if the size with this number says so."""
        b = self.b
        if number is not None:
            count = b.load(self.sizes, b.const(number))
            # Of more than 2^31 iterations the number has wrapped.
            fewer = b.emit(ops.and_, b.emit(ops.ge, count, b.const(0)), b.emit(ops.lt, count, asked))
            asked = self._choose(fewer, count, asked)
        return b.emit(ops.max_, self._even(asked), b.const(2))

    def _pitches(self, strides: Sequence[Op], wanted: Sequence[Op], left: Op) -> tuple[Op, list[Op], Op]:
        """Whether there is room for all rows that are ``wanted``, the distances between entries, even numbers, and how many rows there are
        if not: then there are as many of each kind."""
        b = self.b
        enough, rest, stride = b.const(True, u1), left, b.const(0)
        padded = []
        for length, rows in zip(strides, wanted):
            many = b.emit(ops.gt, rows, b.const(TAPE_PADDING))
            padded.append(self._choose(many, b.emit(ops.add, rows, b.const(TAPE_PADDING), attr="nsw"), rows))
            fits = b.emit(ops.le, padded[-1], b.emit(ops.idiv, rest, b.emit(ops.max_, length, b.const(1))))
            rest = b.emit(ops.sub, rest, self._choose(fits, b.emit(ops.mul, padded[-1], length), b.const(0)), attr="nsw")
            enough, stride = b.emit(ops.and_, enough, fits), b.emit(ops.add, stride, length, attr="nsw")
        shared = b.emit(ops.and_, b.emit(ops.idiv, left, b.emit(ops.max_, stride, b.const(1))), b.const(-2))
        many = b.emit(ops.gt, shared, b.const(2 * TAPE_PADDING))
        fewer = self._choose(many, b.emit(ops.sub, shared, b.const(TAPE_PADDING), attr="nsw"), shared)
        return enough, [self._choose(enough, pitch, shared) for pitch in padded], fewer

    def _even(self, n: Op) -> Op:
        return self.b.emit(ops.and_, self.b.emit(ops.add, n, self.b.const(1), attr="nsw"), self.b.const(-2))

    def _offsets(self, tapes: Sequence[tuple[int, TapeInfo]], even: bool) -> tuple[dict[int, Op], Op]:
        """Where in a row each tape begins, and the length of a row (if that is more than there is room for: some number above that).

        Floats come before integers, and in both what has 64 bits first. ``even``: they begin at an even word, where rows do not see to it.
        """
        b = self.b
        offsets, end = {}, b.const(0)
        most = b.emit(ops.add, self.room, b.const(2), attr="nsw")
        for slab in "FI":
            for k, tape in sorted(tapes, key=lambda item: -item[1].dtype.size):
                if tape.slab == slab:
                    offsets[k] = end
                    # More entries than this do not fit anyway.
                    entries = b.emit(ops.add, b.emit(ops.idiv, self.room, b.const(tape.words)), b.const(1), attr="nsw")
                    entries = b.emit(ops.min_, self.capacities[tape.capacity], entries)
                    words = b.emit(ops.mul, entries, b.const(tape.words), attr="nsw")
                    end = b.emit(ops.min_, b.emit(ops.add, end, words, attr="nsw"), most)
            end = self._even(end) if even else end
        return offsets, end

    def _check(self, stride: Op, needed: Op, room: Op, tapes: Sequence[TapeInfo]) -> Op:
        """Whether a row of ``stride`` words fits, which takes ``needed``; reports it if not."""
        b = self.b
        fits = b.emit(ops.le, needed, room)
        if tapes:
            message = (
                f"{self.kernel.name}: one row of its tapes takes {{0}} words of 32 bits, and earlier launches have left room for {{1}} in "
                "all; the next launch will have room"
            )
            loc = next((self.loops[tape.capacity] for tape in tapes if tape.capacity in self.loops), self.kernel.loc)
            b.emit(ops.check, fits, stride, room, attr=FaultSite("tape", message, (i32, i32), loc), type=VOID)
        return fits

    def _choose(self, condition: Op, a: Op, b: Op) -> Op:
        return self.b.emit(ops.select, condition, a, b)

    def _elements(self, words: Op, tape: TapeInfo) -> Op:
        return words if tape.dtype.size == 4 else self.b.emit(ops.shr, words, self.b.const(1))


def _loops(kernel: Kernel) -> dict[int, Loc | None]:
    """Where the loops are whose tapes have a capacity that is checked, by its number."""
    checks = [op for op in kernel.walk() if op.code is ops.check and op.attr.code == "tape"]
    rooms = [(word, op.attr.loc) for op in checks for word in op.args[0].args if word.code is ops.tape_word]
    return {word.attr[1]: loc for word, loc in rooms if word.attr[0] == "tape_capacity"}


def _asking(task: Op, number: int, tapes: dict[TapeRef, TapeInfo], checked: frozenset[int]) -> Op:
    """``task``, number ``number``, with what it needs to know of its tapes."""
    body = 0 if task.attr.kind == "serial" else 1
    region = task.regions[body]
    used = _tapes_in(region)
    if not used:
        return task
    b = Builder()
    b.begin()
    for k, ref in enumerate(tapes):
        if ref in used:
            b.emit(ops.tape_word, attr=("tape_base", k), type=i32)
            b.emit(ops.tape_word, attr=("tape_pitch", k), type=i32)
    for k in sorted({ref.capacity for ref in used} & checked):
        b.emit(ops.tape_word, attr=("tape_capacity", k), type=i32)
    regions = list(task.regions)
    regions[body] = Region(region.params, (*b.end().ops[:-1], *region.ops))
    if body:
        b.begin()
        regions[0] = _bounds(regions[0], b.load(word("tape_rows", number)))
    return Op(task.code, task.type, task.args, task.attr, tuple(regions), task.loc)


def _limited(task: Op, number: int) -> Op:
    """``task``, number ``number``, with how many rows it has, if it takes any."""
    if task.attr.kind == "serial" or not _tapes_in(task.regions[1]):
        return task
    bounds = _bounds(task.regions[0], Op(ops.tape_word, i32, (), ("tape_rows", number)))
    return Op(task.code, task.type, task.args, task.attr, (bounds, *task.regions[1:]), task.loc)


def _bounds(bounds: Region, rows: Op) -> Region:
    """Those of a range task, which yield ``rows`` as well."""
    return Region((), (*bounds.ops[:-1], rows, *_yielding(*bounds.results, rows)))


def _tapes_in(region: Region) -> set[TapeRef]:
    return {op.attr for op in region.walk() if isinstance(op.attr, TapeRef)}


class _Claims(Rewriter):
    """Has each claim checked; leaves out those of tasks in which no tapes are left."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.of = kernel
        self.used = {tape.rows for tape in tapes_of(kernel).values()}
        self.handlers = {ops.claim: self._claim}

    def _claim(self, op: Op) -> Op | None:
        passing = passing_of(op)
        if passing not in self.used:
            return None
        b = self.b
        room = b.emit(ops.tape_word, attr=("tape_claims", passing), type=i32)
        claimed = self.copy(op)
        message = f"{self.of.name}: {{0}} or more iterations get to the loops with tapes here, and there are rows for {{1}}"
        demand = b.emit(ops.add, claimed, b.const(1), attr="nsw")
        site = FaultSite("tape", message, (i32, i32), op.loc)
        b.emit(ops.check, b.emit(ops.le, demand, room), demand, room, attr=site, type=VOID)
        return claimed


def _yielding(*values: Op) -> tuple[Op, ...]:
    b = Builder()
    b.begin()
    return b.end(values).ops
