"""Placement of adstacks whose sizes only the device knows: a task computes their offsets before the tasks that use them.

`base.adstack_layout` defines the layout. The host uses it as well, for sizes that it knows.
"""

from __future__ import annotations

from collections.abc import Callable

from spirograd.analysis.adstacks import adstacks_of, checked_capacities, counter, guard_of, sizes_of, word
from spirograd.base.adstack_layout import ADDRESSING, AdstackWord, Layout, LayoutArithmetic, Numbered
from spirograd.base.artifact import AdstackInfo, FaultSite
from spirograd.base.dtypes import VOID, i32
from spirograd.base.loc import Loc
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import AdstackRef, ArrayRef, Kernel, Op, Region, TaskAttr
from spirograd.ir.ops import OpCode
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext

# The name of the task, unless a loop has it.
PLACING = "place.adstacks"


def place_adstacks(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Insert the task that places adstacks before ``kernel``, a list of tasks, if the argument `SIZES` has their sizes.

    On the CPU, whose host knows all sizes, the bounds of range tasks with adstacks yield a third value: the number of thread slots. On
    other devices:

    The task stores the base, pitch and capacity of each adstack to temporaries. The other tasks begin with an operation `adstack_word` for
    each of these words that they use, and the bounds of range tasks with adstacks yield a third value, the number of invocations that take
    part: all if each gets a thread slot, else the number of thread slots. If thread slots are claimed, the task sets the counter of each
    guard to 0, and each claim is checked.
    """
    adstacks = adstacks_of(kernel, ctx.caps.target.slots_by_thread)
    kernel = _Claims(kernel, adstacks).kernel(kernel)
    if not adstacks:
        return kernel
    sizes = sizes_of(kernel)
    *tasks, end = kernel.body.ops
    if ctx.caps.target.slots_by_thread:
        return kernel.with_body(Region((), (*[_limited(op, k) for k, op in enumerate(tasks)], end)))
    if sizes is None:
        return kernel
    place = _Place(kernel, adstacks, sizes)
    b = Builder()
    b.loc = kernel.loc
    b.begin()
    *tasks, end = kernel.body.ops
    names, name = {op.attr.name for op in tasks}, PLACING
    while name in names:
        name += "_"
    b.emit(ops.task, attr=TaskAttr("serial", name, places=True), type=VOID, regions=(place.body(),))
    first = b.end().ops[:-1]
    checked = checked_capacities(kernel)
    asking = [_asking(op, k, adstacks, checked) for k, op in enumerate(tasks, 1)]
    return kernel.with_body(Region((), (*first, *asking, end)))


class _Place:
    """A builder of the task. All numbers count 32-bit words of the heap, which has fewer than 2^30, so sums of two numbers do not wrap."""

    def __init__(self, kernel: Kernel, adstacks: dict[AdstackRef, AdstackInfo], sizes: ArrayRef) -> None:
        self.b = Builder()
        self.adstacks = list(enumerate(adstacks.values()))
        self.sizes = sizes
        self.kernel = kernel
        self.loops = _loops(kernel)
        # The numbers of range tasks, after the placing task, which comes first.
        self.whole = {k: op.attr.group_size for k, op in enumerate(kernel.body.ops[:-1], 1) if op.code is ops.task and op.attr.grouped}
        self.tasks = {op.attr.name: k for k, op in enumerate(kernel.body.ops[:-1], 1) if op.attr.kind == "range_for"}

    def body(self) -> Region:
        b = self.b
        b.begin()
        self.heap_words = b.emit(ops.adstack_word, attr=(AdstackWord.HEAP_WORDS, 0), type=i32)
        self.capacities = {k: self._size(k) for k in sorted({adstack.capacity for _, adstack in self.adstacks})}
        self.layout = Layout(_arithmetic(b), self.heap_words, self.capacities.__getitem__, self._size)
        serial = self._serial([(k, adstack) for k, adstack in self.adstacks if adstack.task is None])
        left = b.emit(ops.sub, self.heap_words, serial, attr="nsw")
        for name in dict.fromkeys(adstack.task for _, adstack in self.adstacks if adstack.task is not None):
            self._range(name, [(k, adstack) for k, adstack in self.adstacks if adstack.task == name], serial, left)
        for k in checked_capacities(self.kernel):
            b.store(word(AdstackWord.CAPACITY, k), self.capacities[k])
        return b.end()

    def _size(self, number: int) -> Op:
        return self.b.load(self.sizes, self.b.const(number))

    def _serial(self, adstacks: Numbered) -> Op:
        """Place the single thread slot of serial tasks, from the first word on. Return its length."""
        b = self.b
        group = self.layout.group(adstacks, even=True)
        fits = self.layout.by.le(group.words, self.heap_words)
        self._check(fits, group.words, self.heap_words, adstacks)
        for (k, adstack), (_, base) in zip(adstacks, self.layout.serial_bases(group, fits)):
            b.store(word(AdstackWord.BASE, k), base)
            b.store(word(AdstackWord.PITCH, k), b.const(0))
            self.capacities[adstack.capacity] = self._choose(fits, self.capacities[adstack.capacity], b.const(1))
        return self._choose(fits, group.words, b.const(0))

    def _range(self, name: str, adstacks: Numbered, first: Op, left: Op) -> None:
        """Place as many thread slots as the heap holds, from the word ``first`` on."""
        b, layout, number = self.b, self.layout, self.tasks[name]
        groups = layout.groups(adstacks)
        slot_words = layout.slot_words(groups)
        fits = layout.fits(slot_words, left)
        self._check(fits, slot_words, left, adstacks)
        requested = b.emit(ops.adstack_word, attr=(AdstackWord.SLOTS, number), type=i32)
        slots = layout.slots(groups, requested, left)
        if number in self.whole:
            least = layout.by.min(requested, b.const(self.whole[number]))
            self._check(layout.by.ge(slots.limit, least), slot_words, left, adstacks)
        b.store(word(AdstackWord.SLOTS, number), self._choose(fits, slots.limit, b.const(0)))
        for group, pitch in zip(groups, slots.pitches):
            if group.guard is not None:
                # A claim may take any position within the pitch.
                b.store(word(AdstackWord.CLAIMS, group.guard), self._choose(fits, pitch, b.const(0)))
                b.store(counter(group.guard), b.const(0))
            for k, base in layout.bases(group, pitch, first):
                b.store(word(AdstackWord.BASE, k), base)
                b.store(word(AdstackWord.PITCH, k), pitch)
            first = layout.end(group, pitch, first)

    def _check(self, fits: Op, slot_words: Op, heap_words: Op, adstacks: Numbered) -> None:
        """Report an error if thread slots of ``slot_words`` words do not fit."""
        if not adstacks:
            return
        message = (
            f"{self.kernel.name}: one thread slot of its adstacks needs {{0}} words of 32 bits, but the heap has room for {{1}}; "
            "the next launch allocates enough"
        )
        loc = next((self.loops[adstack.capacity] for _, adstack in adstacks if adstack.capacity in self.loops), self.kernel.loc)
        self.b.emit(ops.check, fits, slot_words, heap_words, attr=FaultSite("adstack", message, (i32, i32), loc), type=VOID)

    def _choose(self, condition: Op, a: Op, b: Op) -> Op:
        return self.b.emit(ops.select, condition, a, b)


def _arithmetic(b: Builder) -> LayoutArithmetic[Op]:
    """Return arithmetic that appends operations to ``b``."""

    def by(code: OpCode, attr: str | None = None) -> Callable[..., Op]:
        return lambda *args: b.emit(code, *args, attr=attr)

    return LayoutArithmetic(
        const=b.const,
        add=by(ops.add, "nsw"),
        sub=by(ops.sub, "nsw"),
        mul=by(ops.mul, "nsw"),
        product=by(ops.mul),
        div=by(ops.idiv),
        half=lambda n: b.emit(ops.shr, n, b.const(1)),
        min=by(ops.min_),
        max=by(ops.max_),
        both=by(ops.and_),
        le=by(ops.le),
        ge=by(ops.ge),
        lt=by(ops.lt),
        gt=by(ops.gt),
        select=by(ops.select),
    )


def _loops(kernel: Kernel) -> dict[int, Loc | None]:
    """Return the locations of the loops whose adstacks have checked capacities, by the number of the capacity."""
    checks = [op for op in kernel.walk() if op.code is ops.check and op.attr.code == "adstack"]
    capacities = [(word, op.attr.loc) for op in checks for word in op.args[0].args if word.code is ops.adstack_word]
    return {word.attr[1]: loc for word, loc in capacities if word.attr[0] == AdstackWord.CAPACITY}


def _asking(task: Op, number: int, adstacks: dict[AdstackRef, AdstackInfo], checked: frozenset[int]) -> Op:
    """Rewrite ``task``, which has this number, to load the words of its adstacks."""
    body = 0 if task.attr.kind == "serial" else 1
    region = task.regions[body]
    used = _adstacks_in(region)
    if not used:
        return task
    b = Builder()
    b.begin()
    for k, ref in enumerate(adstacks):
        if ref in used:
            for kind in ADDRESSING:
                b.emit(ops.adstack_word, attr=(kind, k), type=i32)
    for k in sorted({ref.capacity for ref in used} & checked):
        b.emit(ops.adstack_word, attr=(AdstackWord.CAPACITY, k), type=i32)
    regions = list(task.regions)
    regions[body] = Region(region.params, (*b.end().ops[:-1], *region.ops))
    if body:
        b.begin()
        regions[0] = _bounds(regions[0], b.load(word(AdstackWord.SLOTS, number)))
    return Op(task.code, task.type, task.args, task.attr, tuple(regions), task.loc)


def _limited(task: Op, number: int) -> Op:
    """Rewrite ``task``, which has this number, to yield the number of its thread slots, if it uses any."""
    if task.attr.kind == "serial" or not _adstacks_in(task.regions[1]):
        return task
    bounds = _bounds(task.regions[0], Op(ops.adstack_word, i32, (), (AdstackWord.SLOTS, number)))
    return Op(task.code, task.type, task.args, task.attr, (bounds, *task.regions[1:]), task.loc)


def _bounds(bounds: Region, slots: Op) -> Region:
    """Return the bounds of a range task that also yield ``slots``."""
    return Region((), (*bounds.ops[:-1], slots, *_yielding(*bounds.results, slots)))


def _adstacks_in(region: Region) -> set[AdstackRef]:
    return {op.attr for op in region.walk() if isinstance(op.attr, AdstackRef)}


class _Claims(Rewriter):
    """A rewriter that checks each claim, and omits those of tasks without adstacks."""

    def __init__(self, kernel: Kernel, adstacks: dict[AdstackRef, AdstackInfo]) -> None:
        super().__init__()
        self.of = kernel
        self.used = {adstack.slots for adstack in adstacks.values()}
        self.handlers = {ops.claim: self._claim}

    def _claim(self, op: Op) -> Op | None:
        guard = guard_of(op)
        if guard not in self.used:
            return None
        b = self.b
        claims = b.emit(ops.adstack_word, attr=(AdstackWord.CLAIMS, guard), type=i32)
        claimed = self.copy(op)
        message = f"{self.of.name}: {{0}} or more iterations reach the loops with adstacks here, but there are thread slots for {{1}}"
        demand = b.emit(ops.add, claimed, b.const(1), attr="nsw")
        site = FaultSite("adstack", message, (i32, i32), op.loc)
        b.emit(ops.check, b.emit(ops.le, demand, claims), demand, claims, attr=site, type=VOID)
        return claimed


def _yielding(*values: Op) -> tuple[Op, ...]:
    b = Builder()
    b.begin()
    return b.end(values).ops
