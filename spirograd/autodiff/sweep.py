"""The forward sweep: recomputes a region of the primal for the values that its reverse needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from spirograd.analysis.sites import is_space_check
from spirograd.autodiff.adjoint_values import combine, element, entries
from spirograd.autodiff.segments import Segments
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType, Type, Vec, f32, i32, i64, signed, unsigned
from spirograd.base.loc import Loc
from spirograd.base.records import dataclass, replace
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import AdstackRef, LoopAttr, Op, Region, SharedRef, TempRef, ref_of
from spirograd.ir.temp_kinds import TempKind


@dataclass(frozen=True, slots=True)
class SavedLoop:
    """The data that the forward sweep of a loop leaves for the reverse: ``adstacks`` of its loop-carried values, and the ``count`` of
    iterations of a `while`. ``loop`` is the primal loop. ``segment``: the number of iterations that share one entry. ``in_one``: the loop
    is a single segment, which begins with the initial values of the loop."""

    loop: Op
    adstacks: tuple[AdstackRef, ...]
    count: Op | None = None
    segment: int = 1
    in_one: bool = False


@dataclass(frozen=True, slots=True)
class Nest:
    """The results of the branches ``inside`` an `if` that its forward sweep keeps: see `nests`. ``places``: for each kept result, the type
    of its vector, and its first element there. ``lengths``: the lengths of the vectors."""

    inside: frozenset[Op]
    places: Mapping[Op, tuple[DType, int]]
    lengths: Mapping[DType, int]


@dataclass(frozen=True, slots=True)
class SavedArray:
    """A shared array whose contents are saved in ``adstack``, before ``owner`` or at the start of each of its iterations. ``around``: the
    grouped loop."""

    ref: SharedRef
    adstack: AdstackRef
    owner: Op
    around: Op


class SharedStates(Protocol):
    """The interface of `groups.Groups` that the forward sweep uses. ``loops``: the locations of loops with adstacks, by capacity.
    ``saved``: the arrays that are saved."""

    loops: list[Loc | None]
    saved: list[SavedArray]

    def save_before(self, op: Op) -> None: ...

    def saves_each(self, loop: Op) -> bool: ...

    def save_each(self, loop: Op, number: Op) -> None: ...

    def require_each(self, loop: Op, count: Op) -> None: ...


@dataclass(frozen=True, slots=True)
class Counter:
    """The integer type that counts the iterations of a `while`. ``most``: the largest allowed count, which the reverse of the loop checks;
    None if the type holds every count."""

    dtype: DType = i32
    most: int | None = None


IN_I32 = Counter()


def counter_for(caps: Capabilities) -> Counter:
    """Return the counter for a device. Drivers that end long loops do so well before 2^31 iterations."""
    if caps.loop_limit:
        return IN_I32
    return Counter(i64) if caps.int64 else Counter(i32, 2**31 - 2)


class Sweep:
    """An emitter of primal operations. ``env``: primal value -> its current value.

    ``record``: save the loop-carried values of the loops directly in the region, at the start of each iteration. Effects on outer memory,
    prints and checks are omitted, except for checks of the sizes of index spaces, which also bound loops of the reverse. ``bounds``: the
    largest trip counts of loops, where the primal is known not to exceed them. Effects on temporaries stay while ``fresh`` (the first sweep
    over the body of the kernel): they are private to a launch, but must not happen twice. Effects on shared memory, and barriers, stay in
    all sweeps, for which ``groups`` saves what is overwritten.
    """

    def __init__(
        self,
        b: Builder,
        returns: Sequence[TempRef],
        segments: Segments,
        states: Mapping[Op, str],
        counter: Counter,
        nest: Callable[[Op], Nest | None],
        bounds: Mapping[Op, int],
        groups: SharedStates,
    ) -> None:
        self.b = b
        self.states = states
        self.counter = counter
        self.segments = segments
        self.nest = nest
        self.bounds = bounds
        self.env: dict[Op, Op] = {}
        self.recordings: dict[Op, SavedLoop] = {}
        self.adstacks: dict[AdstackRef, Op] = {}  # adstack -> the primal value, a parameter
        self.groups = groups
        self.loops = groups.loops  # by capacity
        self.returns = frozenset(returns)
        self.kept: dict[Op, tuple[Op, int]] = {}  # result of a branch in a nest -> its vector, and its first element there
        self.kept_branches: set[Op] = set()
        self.keeping: Nest | None = None  # the nest that is being swept
        self.vectors: dict[DType, Op] = {}  # its results so far
        self.fresh = True
        self.checks = True
        self.lost = 0

    def value(self, op: Op) -> Op:
        return self.env[op]

    def args(self, op: Op) -> tuple[Op, ...]:
        env = self.env
        return tuple([env[a] for a in op.args])

    def run(self, body: Sequence[Op], record: bool) -> None:
        """Emit the operations of a region (except its terminator)."""
        for op in body:
            self.b.loc = op.loc
            handler = _HANDLERS.get(op.code)
            if handler is not None:
                if record and op.regions:
                    self.groups.save_before(op)
                handler(self, op, record)
            elif op.code.effect in ("pure", "read") or op.code in ops.MEETING:
                self.clone(op)
            elif self.checks and is_space_check(op):
                self.b.append(Op(op.code, op.type, self.args(op), op.attr, (), op.loc))

    def load(self, op: Op, record: bool) -> None:
        ref, state = op.attr, self.states.get(op.primal or op, "")
        if isinstance(ref, TempRef):
            state = "" if self.fresh else state or "late"
        if state:
            self.env[op] = self.b.append(Op(ops.load, op.type, self.args(op), replace(ref, state=state), (), op.loc, op.primal or op))
        else:
            self.clone(op)

    def clone(self, op: Op) -> None:
        self.env[op] = self.b.append(Op(op.code, op.type, self.args(op), op.attr, (), op.loc, op.primal or op))

    def region(self, region: Region) -> Region:
        """Return a copy of the region of a loop that records nothing."""
        vectors, self.vectors = self.vectors, {}
        self.env.update(zip(region.params, self.b.begin(*[p.type for p in region.params])))
        self.run(region.ops[:-1], False)
        self.vectors = vectors
        return self.b.end([self.env[v] for v in region.results])

    def take_recalled(self, op: Op, record: bool) -> None:
        self.env[op] = self.env[op.args[0]]

    # --- effects ---------------------------------------------------------------------------------------------------------

    def write(self, op: Op, record: bool) -> None:
        ref = ref_of(op)
        shared = isinstance(ref, SharedRef)
        private = isinstance(ref, TempRef) and self.fresh and ref not in self.returns
        if shared or private:
            self.clone(op)
        if op.code is not ops.store and not private:
            # The old value is lost. A load marks its use; see `memory_states.old_values`.
            assert isinstance(op.type, DType)
            self.lost += 1
            old = TempRef(f"old{self.lost}", op.type, kind=TempKind.OLD_VALUE, number=self.lost)
            self.env[op] = self.b.append(Op(ops.load, op.type, (), old, (), op.loc, op.primal or op))

    # --- control ---------------------------------------------------------------------------------------------------------

    def if_(self, op: Op, record: bool) -> None:
        if record and op in self.kept_branches:
            return
        nest = self.nest(op) if record and not self.fresh else None
        if nest is None:
            self.branches(op)
        else:
            self.keep(op, nest)

    def branches(self, op: Op) -> None:
        """Emit an `if`. It has an additional result for each vector with kept results of the enclosing nest."""
        b, before, regions = self.b, self.vectors, []
        assert isinstance(op.type, tuple)
        for region in op.regions:
            self.vectors = dict(before)
            b.begin()
            self.run(region.ops[:-1], False)
            regions.append(b.end([*[self.env[v] for v in region.results], *self.vectors.values()]))
        b.loc = op.loc
        types = (*op.type, *[vector.type for vector in before.values()])
        branch = self.env[op] = b.emit(ops.if_, self.env[op.args[0]], type=types, regions=tuple(regions))
        vectors = enumerate(before.items(), len(op.type))
        self.vectors = {t: b.emit(ops.result, branch, attr=k, type=vector.type) for k, (t, vector) in vectors}

    def keep(self, op: Op, nest: Nest) -> None:
        """Emit the outermost `if` of a nest, with the results that the reverse of the inner branches needs."""
        b = self.b
        self.keeping = nest
        self.vectors = {t: b.emit(ops.vec, *[b.const(0, t)] * n) for t, n in nest.lengths.items()}
        self.branches(op)
        self.kept.update((result, (self.vectors[t], at)) for result, (t, at) in nest.places.items())
        self.kept_branches |= nest.inside
        self.keeping, self.vectors = None, {}

    def result(self, op: Op, record: bool) -> None:
        b = self.b
        if record and op.args[0] in self.kept_branches:
            if op in self.kept:
                vector, at = self.kept[op]
                width = op.type.n if isinstance(op.type, Vec) else 1
                parts = [b.emit(ops.extract, vector, b.const(at + k)) for k in range(width)]
                self.env[op] = combine(b, op.type, [from_saved(b, part, element(op.type)) for part in parts])
            return
        self.clone(op)
        place = None if self.keeping is None else self.keeping.places.get(op)
        if place is not None:
            t, at = place
            for k, part in enumerate(entries(b, self.env[op])):
                self.vectors[t] = b.emit(ops.insert, self.vectors[t], b.const(at + k), to_saved(b, part))

    def for_(self, op: Op, record: bool) -> None:
        begin, end = self.args(op)[:2]
        carried = op.regions[0].params[1:]
        if self.fresh and op.attr.parallel:
            self.checks = False  # The checks are in the reverse of the loop, which sweeps its body again.
            region = self.region(op.regions[0])
            self.checks = True
        elif not record or op.attr.parallel or not (carried or self.groups.saves_each(op)):
            region = self.region(op.regions[0])
        elif count := self.segments.in_one(op):
            self.recordings[op] = SavedLoop(op, (), None, count, in_one=True)
            region = self.region(op.regions[0])
        else:
            recording = self.recordings[op] = SavedLoop(op, self.declare(op, carried), None, self.segments.of(op))
            self.require_entries(self.bound(op) or trip_count(self.b, begin, end), recording)
            region = self.recording(op.regions[0], recording, lambda params: self.b.emit(ops.sub, params[0], begin, attr="nsw"))
        self.b.loc = op.loc
        attr = op.attr if self.b.depth == 1 else LoopAttr(name=op.attr.name)
        self.env[op] = self.b.append(Op(ops.for_, op.type, self.args(op), attr, (region,), op.loc))

    def while_(self, op: Op, record: bool) -> None:
        if not record:
            regions = tuple([self.region(r) for r in op.regions])
            self.env[op] = self.b.append(Op(ops.while_, op.type, self.args(op), None, regions, op.loc))
            return
        adstacks = self.declare(op, op.regions[1].params)
        initial = (*self.args(op), self.b.const(0, self.counter.dtype))
        types = tuple([a.type for a in initial])
        self.env.update(zip(op.regions[0].params, self.b.begin(*types)))
        self.run(op.regions[0].ops[:-1], False)
        condition = self.b.end([self.env[op.regions[0].results[0]]])
        recording = SavedLoop(op, adstacks, None, self.segments.of(op))
        body = self.recording(op.regions[1], recording, lambda params: params[-1], counted=True)
        self.b.loc = op.loc
        loop = self.b.append(Op(ops.while_, types, initial, None, (condition, body), op.loc))
        count = self.b.emit(ops.result, loop, attr=len(initial) - 1, type=self.counter.dtype)
        self.env[op] = loop
        self.recordings[op] = replace(recording, count=count)
        self.require_entries(self.bound(op) or count, recording)

    def recording(self, region: Region, recording: SavedLoop, number: Callable[[tuple[Op, ...]], Op], counted: bool = False) -> Region:
        """Return a copy of the body of a loop that first saves its loop-carried values. ``counted``: the number of the iteration is also
        loop-carried."""
        b = self.b
        params = b.begin(*[p.type for p in region.params], *([self.counter.dtype] if counted else []))
        self.env.update(zip(region.params, params))
        iteration = number(params)
        values = region.params[len(region.params) - len(recording.adstacks) :]
        if recording.segment == 1:
            self.save(recording.adstacks, values, iteration)
        elif recording.adstacks:
            assert isinstance(iteration.type, DType)
            within = b.emit(ops.and_, iteration, b.const(recording.segment - 1, iteration.type))
            first = b.emit(ops.eq, within, b.const(0, iteration.type))
            b.begin()
            self.save(recording.adstacks, values, b.emit(ops.shr, iteration, b.const(recording.segment.bit_length() - 1, iteration.type)))
            then = b.end()
            b.begin()
            b.if_(first, then, b.end())
        self.groups.save_each(recording.loop, iteration)
        self.run(region.ops[:-1], False)
        results = [self.env[v] for v in region.results]
        if counted:
            t = self.counter.dtype
            most = self.counter.most
            before = iteration if most is None else b.emit(ops.min_, iteration, b.const(most, t))
            results.append(b.emit(ops.add, before, b.const(1, t), attr="nsw"))
        return b.end(results)

    # --- adstacks -----------------------------------------------------------------------------------------------------------

    def declare(self, loop: Op, carried: Sequence[Op]) -> tuple[AdstackRef, ...]:
        """Return an adstack for each loop-carried value."""
        adstacks = []
        for value in carried:
            width = value.type.n if isinstance(value.type, Vec) else 1
            adstack = AdstackRef(f"adstack{len(self.adstacks)}", saved_type(value.type), width, len(self.loops))
            self.adstacks[adstack] = value
            adstacks.append(adstack)
        self.loops.append(loop.loc)
        return tuple(adstacks)

    def save(self, adstacks: Sequence[AdstackRef], values: Sequence[Op], entry: Op) -> None:
        """Store primal ``values`` as one entry of their adstacks."""
        b, entry = self.b, _index(self.b, entry)
        for adstack, value in zip(adstacks, values):
            for k, part in enumerate(entries(b, self.env[value])):
                b.store(adstack, entry, b.const(k), to_saved(b, part))

    def bound(self, loop: Op) -> Op | None:
        """Return the largest trip count of a loop of the primal, or None if it is not limited."""
        most = self.bounds.get(loop)
        return None if most is None else self.b.const(most)

    def require_entries(self, count: Op, recording: SavedLoop) -> None:
        """Raise the capacity of the adstacks of a loop to the entries of ``count`` iterations; see `sizing`."""
        b, adstacks = self.b, recording.adstacks
        self.groups.require_each(recording.loop, count)
        if not adstacks:
            return
        b.atomic("max", capacity_of(adstacks[0].capacity), as_entries(b, segments(b, count, recording.segment)))

    def recall(self, adstack: AdstackRef, iteration: Op) -> Op:
        """Return the value that was saved in an iteration."""
        b, t, entry = self.b, self.adstacks[adstack].type, _index(self.b, iteration)
        parts = [b.load(adstack, entry, b.const(k)) for k in range(adstack.width)]
        return combine(b, t, [from_saved(b, part, element(t)) for part in parts])


def capacity_of(number: int) -> TempRef:
    """Return the temporary that holds the number of entries of adstacks with capacity ``number``."""
    return TempRef(f"capacity{number}", i32, kind=TempKind.CAPACITY, number=number)


def trip_count(b: Builder, begin: Op, end: Op) -> Op:
    """Return the trip count of a loop, which may be 0, in the unsigned variant of the type of its bounds unless the type itself is known to
    hold it. The plain difference of the bounds would wrap to a positive number if the range is empty and the bounds lie far apart."""
    t = begin.type
    assert isinstance(t, DType)
    top = b.emit(ops.max_, end, begin)
    last = int(end.attr) if end.code is ops.const else int(t.max)
    if not t.is_signed or (begin.code is ops.const and last - int(begin.attr) <= t.max):
        return b.emit(ops.sub, top, begin, attr="nsw")
    u = unsigned(t)
    return b.emit(ops.sub, b.cast(top, u), b.cast(begin, u), attr="wrap")


def _index(b: Builder, iteration: Op) -> Op:
    """Return the number of an iteration as an index of an adstack, which is signed. No adstack has more entries than this type can
    index."""
    assert isinstance(iteration.type, DType)
    return b.cast(iteration, signed(iteration.type))


def as_entries(b: Builder, count: Op) -> Op:
    """Return a trip count as an i32. No adstack has as many entries as the largest one."""
    assert isinstance(count.type, DType)
    return count if count.type is i32 else b.cast(b.emit(ops.min_, count, b.const(2**31 - 1, count.type)), i32)


def segments(b: Builder, count: Op, length: int) -> Op:
    """Return the number of segments of ``count`` iterations. ``length`` is a power of two."""
    assert isinstance(count.type, DType)
    if length == 1:
        return count
    t, rest = count.type, b.emit(ops.and_, count, b.const(length - 1, count.type))
    whole_ones = b.emit(ops.shr, count, b.const(length.bit_length() - 1, t))
    return b.emit(ops.add, whole_ones, b.emit(ops.min_, rest, b.const(1, t)), attr="nsw")


def unsegmented(entries: Op, length: int) -> Op | None:
    """Return the count whose `segments` are ``entries``, or None if it cannot be determined."""
    if entries.code is ops.cast and entries.args[0].code is ops.min_:  # by `as_entries`
        entries = next((a for a in entries.args[0].args if a.code is not ops.const), entries)
    if length == 1:
        return entries
    whole_ones = next((a for a in entries.args if a.code is ops.shr), None) if entries.code is ops.add else None
    return None if whole_ones is None else whole_ones.args[0]


def saved_type(t: Type) -> DType:
    """Return the type of an adstack for values of type ``t``: all devices have memory of 32 and 64 bits."""
    scalar = element(t)
    if scalar.is_float:
        return scalar if scalar.bits >= 32 else f32
    return i64 if scalar.bits == 64 else i32


def to_saved(b: Builder, value: Op) -> Op:
    """Return a scalar in the type of its adstack."""
    return b.cast(value, saved_type(value.type))


def from_saved(b: Builder, value: Op, t: DType) -> Op:
    """Return a scalar of type ``t`` from the entry of an adstack. Casts between integers wrap, so nothing is lost."""
    return b.cast(value, t)


_HANDLERS: dict[ops.OpCode, Callable[[Sweep, Op, bool], None]] = {
    ops.load: Sweep.load,
    ops.recall: Sweep.take_recalled,
    ops.result: Sweep.result,
    ops.store: Sweep.write,
    ops.atomic: Sweep.write,
    ops.cas: Sweep.write,
    ops.if_: Sweep.if_,
    ops.for_: Sweep.for_,
    ops.while_: Sweep.while_,
}
