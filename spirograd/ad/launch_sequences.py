"""Sequences of launches that tapes repeat: what the launches save is found out once, and compiled code launches them from then on.

A program that trains something records the same launches in every iteration. What a tape saves depends on nothing but the sequence of its
launches: on the memory that each uses, and on integers, which select slices. So the second of two equal tapes makes a `LaunchSequence` of
its events, and later tapes follow it: see `sequence_replay`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence, Set

from spirograd.ad.chain_breaks import ChainBreaks
from spirograd.ad.entries import Launch, TapeEvent, footprint_of
from spirograd.ad.memory_keys import FieldOrArray, Key
from spirograd.ad.memory_report import MemoryReport
from spirograd.ad.program_outline import ProgramOutline
from spirograd.ad.sequence_walk import SequenceWalk
from spirograd.ad.versions import Saved, memory_identity, slice_at
from spirograd.base.arguments import Write
from spirograd.base.launch_cursor import LaunchCursor, StepKind, Words, copy_words, key_words
from spirograd.base.protocols import Allocation
from spirograd.base.recorder import Clear
from spirograd.base.records import dataclass
from spirograd.base.validity import StepRecorder
from spirograd.derivatives.specialized import SpecializedDerivative
from spirograd.lang.data import shadows
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.frontend.kernel import Kernel
from spirograd.lang.frontend.native_calls import NativeCalls
from spirograd.lang.frontend.specialization import Specialization
from spirograd.lang.frontend.steps import Array

# A sequence keeps the memory of its copies from tape to tape. Beyond these limits, kernels and copies take longer than Python.
_MOST_NBYTES = 16 << 20
_MOST_LAUNCHES = 1 << 14
_MOST_PATIENCE = 64  # how many tapes are recorded, at most, before two are compared again

ArgumentKey = tuple["int | None", ...]


def key_of(args: Sequence[object]) -> ArgumentKey:
    """Return what tells the arguments of a launch apart: integers, and the identities of objects. Floats select no memory."""
    return tuple([arg if isinstance(arg, int) else None if isinstance(arg, float) else id(arg) for arg in args])


def is_like(args: Sequence[object], key: ArgumentKey) -> bool:
    """Return whether ``key`` is the key of these arguments, sooner than `key_of` does."""
    if len(args) != len(key):
        return False
    for arg, known in zip(args, key):
        if isinstance(arg, int):
            if arg != known:
                return False
        elif (None if isinstance(arg, float) else id(arg)) != known:
            return False
    return True


def packed_of(launch: Launch) -> tuple[object, ...]:
    """Return the integers and the arrays of a launch, also those in objects, whose members may change: they select the memory that it
    uses."""
    return (*(value if isinstance(value, int) else None for value in launch.packer.scalars), *map(id, launch.arrays))


@dataclass(frozen=True, slots=True, eq=False)
class HostWrite:
    """A write of the host while a tape is open: the arguments of `Recorder.host_write`."""

    memory: FieldOrArray
    index: object
    clear: Clear
    source: FieldOrArray | None
    repeat: Callable[[], None] | None

    @property
    def key(self) -> tuple[object, ...]:
        """What tells what the tape saves for the write, and its reverse, apart from those of other writes."""
        storages = [memory_identity(memory) for memory in self.memories()]
        views = [memory.view for memory in self.memories()]
        return (slice_at(self.index), *((key, id(storage)) for key, storage in storages), *views)

    def memories(self) -> list[FieldOrArray]:
        """Return the memory that is written, and the source."""
        return [self.memory] if self.source is None else [self.memory, self.source]


@dataclass(slots=True, eq=False)
class SequenceCopy:
    """A copy that a launch makes of the memory with the number ``memory``. ``ranges``: offsets and numbers of bytes, which the copy has one
    after the other, from ``at`` on. ``before``: whether it is put back before the reverse of the launch, else after it."""

    memory: int
    ranges: Sequence[tuple[int, int]]
    at: int
    before: bool

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, nbytes in self.ranges)

    def addresses(self, base: int, copies: int) -> list[tuple[int, int, int]]:
        """Return how to make the copy: to, from, number of bytes. ``base``: the address of the memory; ``copies``: that of all copies."""
        found, at = [], copies + self.at
        for offset, nbytes in self.ranges:
            found.append((at, base + offset, nbytes))
            at += nbytes
        return found


Addresses = Sequence[tuple[int, int, int]]  # to, from, number of bytes


@dataclass(slots=True, eq=False)
class StepCopies:
    """The copies of one launch or write: what it saves, and what is put back before its reverse, and after it."""

    saves: Addresses
    before: Addresses
    after: Addresses


@dataclass(slots=True, eq=False)
class BoundCopies:
    """Memory for the copies of a sequence, which one tape uses at a time. ``bases``: the addresses of the memory that is copied. ``steps``,
    ``writes``: of the launches, and of the writes of the host. ``words``: the launches, as the cursor has them, and ``kept`` for these.
    ``end``: copies what memory holds at the end of the tape; ``restore`` puts it back. ``walk``: the reverse pass, once one ran."""

    allocation: Allocation
    bases: Sequence[int]
    steps: Sequence[StepCopies]
    writes: Sequence[StepCopies]
    words: Words
    kept: Sequence[Words]
    end: Addresses
    restore: Addresses
    walk: SequenceWalk | None = None


@dataclass(slots=True, eq=False)
class CompiledLaunches:
    """Launches by compiled code: of a kernel while a tape is open, of one ``kind``, and of its derivative, None if that does nothing.
    ``by_python``: whether compiled code cannot launch the kernel, such as one that draws random numbers."""

    kind: StepKind
    forward: NativeCalls
    reverse: NativeCalls | None
    by_python: bool = False


@dataclass(slots=True, eq=False)
class SequenceStep:
    """A launch of a sequence. ``key``: of its arguments, and ``words`` by which compiled code compares them. ``claims``: the memory whose
    gradients the sequence uses from here on. ``asks``: whether Python sees the launch.
    ``packed``: see `packed_of`."""

    kernel: Kernel
    specialization: Specialization
    gradient: SpecializedDerivative
    key: ArgumentKey
    words: Words
    calls: CompiledLaunches
    claims: Sequence[weakref.ref[FieldOrArray]]
    asks: bool
    packed: tuple[object, ...]
    copies: Sequence[SequenceCopy]


@dataclass(slots=True, eq=False)
class SequenceWrite:
    """A write of the host in a sequence, after as many launches. ``key``: see `HostWrite`."""

    after: int
    key: tuple[object, ...]
    copies: Sequence[SequenceCopy]


class NotRepeatedError(Exception):
    """Raised if a tape has a launch that returns values or saves values, or saves what is not whole bytes of memory."""


class LaunchSequence:
    """The launches of a tape, and the ``writes`` of the host, in order. It keeps no memory of the program alive.

    ``entries``: both, as the tape has recorded them in ``events``. ``cursor``: of the tape that follows it. ``memories``: the fields and
    ndarrays of which it saves something; ``written``: those that launches write; ``uses``: what has to exist. ``nbytes``: of the copies.
    ``report``, ``breaks``, ``outline``: of the tape; ``active_outputs``: the memory that gradients flow from.
    """

    def __init__(
        self,
        entries: Sequence[Launch | HostWrite],
        events: Sequence[TapeEvent],
        report: MemoryReport,
        active_outputs: Set[Key],
        breaks: ChainBreaks,
        outline: ProgramOutline,
    ) -> None:
        launches = [entry for entry in entries if isinstance(entry, Launch)]
        if not launches:
            raise NotRepeatedError
        self.session = launches[0].session
        self.cursor = LaunchCursor()
        self.breaks, self.outline = breaks, outline
        self.report = report
        self.active_outputs = frozenset(active_outputs)
        self.memories: list[weakref.ref[FieldOrArray]] = []
        self.uses: dict[int, weakref.ref[object]] = {}
        self.written = [weakref.ref(storage) for storage in _memories(launches, written=True)]
        used = {id(storage): storage for storage in _memories(launches, written=False)}
        self.nbytes = 0
        self._numbers: dict[Key, int] = {}
        self._claimed: set[int] = set()
        self._calls: dict[tuple[object, ...], CompiledLaunches] = {}
        self._unused: list[BoundCopies] = []
        self.launches: Sequence[Launch] = launches  # until `compile`
        self.steps: list[SequenceStep] = []
        self.writes: list[SequenceWrite] = []
        for entry, event in zip(entries, events):
            if isinstance(entry, Launch):
                self.steps.append(self._step(entry, event))
            else:
                self.writes.append(self._write(entry, event))
                used |= {id(storage): storage for storage in (memory_identity(memory)[1] for memory in entry.memories())}
        self._used = [weakref.ref(storage) for storage in used.values()]

    def _write(self, write: HostWrite, event: TapeEvent) -> SequenceWrite:
        for memory in write.memories():
            storage = memory_identity(memory)[1]
            self.uses[id(storage)] = _weakly(storage)
        return SequenceWrite(len(self.steps), write.key, [self._copy(memory, saved, False) for memory, saved in event.saved])

    def _step(self, launch: Launch, event: TapeEvent) -> SequenceStep:
        specialization = launch.specialization
        gradient = specialization.derivatives["reverse"]
        compiled = specialization.plan.compiled
        if event.copies or compiled.returns:
            raise NotRepeatedError
        for value in (*launch.fields, *launch.arrays, *launch.args):
            if value is not None and not isinstance(value, (int, float, str)):
                self.uses[id(value)] = _weakly(value)
        key = key_of(launch.args)
        copies = [self._copy(memory, saved, memory in event.before) for memory, saved in event.saved]
        calls, words = self._calls_of(launch, gradient), key_words(launch.args, key)
        claims = self._claims(launch)
        asks = bool(claims) or (bool(self.writes) and self.writes[-1].after == len(self.steps))
        return SequenceStep(launch.kernel, specialization, gradient, key, words, calls, claims, asks, packed_of(launch), copies)

    def _copy(self, key: Key, saved: Saved, before: bool) -> SequenceCopy:
        ranges = saved.byte_ranges()
        if ranges is None:
            raise NotRepeatedError
        number = self._numbers.setdefault(key, len(self.memories))
        if number == len(self.memories):
            self.memories.append(weakref.ref(saved.memory.storage))
            self.uses[id(saved.memory.storage)] = _weakly(saved.memory.storage)
        copy = SequenceCopy(number, ranges, self.nbytes, before)
        self.nbytes += copy.nbytes
        if self.nbytes > _MOST_NBYTES:
            raise NotRepeatedError
        return copy

    def _claims(self, launch: Launch) -> list[weakref.ref[FieldOrArray]]:
        """Return the memory of a launch with gradients that no launch before it has used."""
        claims: list[weakref.ref[FieldOrArray]] = []
        for memory in (*launch.fields, *launch.arrays):
            if isinstance(memory, (ScalarField, Ndarray)) and id(memory) not in self._claimed:
                self._claimed.add(id(memory))
                if memory.has_grad() and not shadows.is_shadow(memory):
                    claims.append(weakref.ref(memory))
        return claims

    def _calls_of(self, launch: Launch, gradient: SpecializedDerivative) -> CompiledLaunches:
        """Return the launches by compiled code like ``launch``: one for each value of what is not a number or an ndarray."""
        specialization = launch.specialization
        fixed = [arg for arg in launch.args if not isinstance(arg, (int, float, Ndarray))]
        if any(step.path.names for step in specialization.steps if isinstance(step, Array)):
            fixed += launch.arrays  # arrays of objects, which may have others later
        key = (id(specialization), *map(id, fixed))
        calls = self._calls.get(key)
        if calls is None:
            kind = StepKind(self.cursor, len(self._calls))
            reverse = NativeCalls(self.session, 1) if gradient.acts else None
            calls = self._calls[key] = CompiledLaunches(kind, NativeCalls(self.session, 1, kind), reverse)
        return calls

    def used_memory(self) -> list[FieldOrArray]:
        """Return the fields and ndarrays that the launches use."""
        return [memory for reference in self._used if (memory := reference()) is not None]

    def compile(self) -> None:
        """Prepare the launches by compiled code, after the reverse pass of the tape."""
        prepared: set[int] = set()
        for step, launch in zip(self.steps, self.launches):
            if id(step.calls) not in prepared:
                prepared.add(id(step.calls))
                self._prepare(step, launch)
            step.asks = step.asks or step.calls.by_python
        self.launches = ()

    def bind(self, bases: Sequence[int]) -> BoundCopies:
        """Return memory for the copies, of memory at the addresses ``bases``. `give` takes it back."""
        while self._unused:
            bound = self._unused.pop()
            if bound.bases == bases:
                return bound
        of_steps, of_writes = [step.copies for step in self.steps], [write.copies for write in self.writes]
        copied = [copy for copies in (*of_steps, *of_writes) for copy in copies]
        ends = list({(copy.memory, *copy.ranges): copy for copy in copied}.values())
        allocation = self.session.memory.allocate(max(self.nbytes + sum(copy.nbytes for copy in ends), 1), zeroed=False)
        at = allocation.address
        steps, writes = ([_bound(copies, bases, at) for copies in listed] for listed in (of_steps, of_writes))
        end: list[tuple[int, int, int]] = []
        at += self.nbytes
        for copy in ends:
            end += copy.addresses(bases[copy.memory], at - copy.at)
            at += copy.nbytes
        kept = [copy_words(copies.saves) for copies in steps]
        words = [
            word
            for step, saves in zip(self.steps, kept)
            for word in (step.calls.kind.number, int(step.asks), step.words.address, saves.address)
        ]
        return BoundCopies(allocation, bases, steps, writes, Words(words), kept, end, _back(end))

    def walk(self, bound: BoundCopies, writes: Sequence[Write]) -> SequenceWalk:
        """Return the reverse pass with these copies, of the memory ``writes``."""
        walk = bound.walk
        if walk is None or not walk.is_current(writes):
            native = self.session.native
            assert native is not None
            calls = [step.calls.reverse for step in self.steps]
            walk = bound.walk = SequenceWalk(calls, bound.steps, writes, native.native_code().reverse)
        return walk

    def give(self, bound: BoundCopies) -> None:
        """Take back what `bind` returned."""
        self._unused.append(bound)

    def _prepare(self, step: SequenceStep, launch: Launch) -> None:
        specialization, calls = step.specialization, step.calls

        def record(args: Sequence[object], into: StepRecorder) -> None:
            if any(step.path.names for step in specialization.steps if isinstance(step, Array)):
                into.keep_arrays()
            specialization.record(args, into)

        calls.forward.prepare(specialization.plan, launch.packer, launch.args, record)
        calls.by_python = calls.forward.launch is None
        if not calls.by_python:
            launch.kernel.launch_by(calls.forward)
        if calls.reverse is not None:
            step.gradient.prepare(launch.args, launch.again(), calls.reverse)


def _memories(launches: Sequence[Launch], written: bool) -> list[FieldOrArray]:
    """Return the fields and ndarrays that launches use, or write, once each."""
    found: dict[int, FieldOrArray] = {}
    for launch in launches:
        footprint = footprint_of(launch.specialization)
        for access in footprint.written if written else footprint.used:
            storage = launch.memory(access)[1]
            if storage is not None:
                found[id(storage)] = storage
    return list(found.values())


def _bound(copies: Sequence[SequenceCopy], bases: Sequence[int], at: int) -> StepCopies:
    """Return how the copies of a launch or write are made, and put back. ``at``: the address of all copies."""
    made = [(copy, copy.addresses(bases[copy.memory], at)) for copy in copies]
    before, after = (_back([one for copy, found in made if copy.before is is_before for one in found]) for is_before in (True, False))
    return StepCopies([one for _, found in made for one in found], before, after)


def _back(addresses: Addresses) -> Addresses:
    """Return how to put copies back."""
    return [(of, to, nbytes) for to, of, nbytes in reversed(addresses)]


def _weakly(value: object) -> weakref.ref[object]:
    try:
        return weakref.ref(value)
    except TypeError:
        raise NotRepeatedError from None


class Repeats:
    """What tapes know of the sequences that begin with one kernel, or with a write to one field or ndarray: the ``sequence`` that they
    follow, or how the last ones began."""

    def __init__(self) -> None:
        self.sequence: LaunchSequence | None = None
        self._last: tuple[object, ...] = ()
        self._patience = 1
        self._left = 0  # tapes that are not compared

    def missed(self) -> None:
        """Forget the sequence, which a tape did not follow to its end; it takes longer until there is another."""
        self.sequence = None
        self._patience = min(2 * self._patience, _MOST_PATIENCE)
        self._left = self._patience

    def is_repeated(self, entries: Sequence[Launch | HostWrite]) -> bool:
        """Return whether a tape that recorded these launches and writes is like the last one."""
        if self._left > 0 or len(entries) > _MOST_LAUNCHES:
            self._left -= 1
            return False
        last, self._last = self._last, tuple([_key_of(entry) for entry in entries])
        if last == self._last:
            self._last = ()
            return True
        if last:
            self._patience = min(2 * self._patience, _MOST_PATIENCE)
            self._left, self._last = self._patience, ()
        return False


def _key_of(entry: Launch | HostWrite) -> tuple[object, ...]:
    return entry.key if isinstance(entry, HostWrite) else (id(entry.specialization), key_of(entry.args))


_of_memory: weakref.WeakKeyDictionary[FieldOrArray, Repeats] = weakref.WeakKeyDictionary()


def repeats_of(first: Kernel | FieldOrArray) -> Repeats:
    """Return what tapes know of the sequences that begin with a kernel, or with a write to a field or ndarray."""
    if not isinstance(first, Kernel):
        return _of_memory.get(first) or _of_memory.setdefault(first, Repeats())
    repeats = first.repeats
    if not isinstance(repeats, Repeats):
        repeats = first.repeats = Repeats()
    return repeats
