"""How launches with adstacks are described and laid out: the words of a launch and their order, and where each adstack begins.

A thread slot is the memory of one invocation of a task: its adstacks of floats, then its adstacks of integers, and in both what has 64 bits
first. Thread slots lie side by side: an entry of all thread slots, then the next entry; the distance between entries is the pitch. The
adstacks of a task that all its invocations use form one group with one pitch. Those behind each guard are another group, whose thread slots
are claimed; these groups follow in the order of their numbers. Serial tasks share one thread slot, which comes first. Tasks run one after
the other, so all others begin behind it.

`Layout` is one algorithm for two callers. The host runs it over numbers (`runtime.adstack_heap`); the task that places adstacks on the
device consists of the operations that it emits when it runs over operations of the IR (`transforms.tasks.place_adstacks`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import chain
from typing import Generic, TypeVar

from spirograd.base.artifact import AdstackInfo, CompiledKernel
from spirograd.base.records import dataclass

T = TypeVar("T")

# Added to the distance between entries of adstacks, in elements: at large powers of two they would share few cache lines.
ADSTACK_PADDING = 32


# --- words -------------------------------------------------------------------------------------------------------------


class AdstackWord(str, Enum):
    """What a launch hands over about its adstacks: kinds of `Slot`, each an i32, in their order in the argument block and in
    `AdstackWords.flat`."""

    BASE = "adstack_base"
    PITCH = "adstack_pitch"
    CAPACITY = "adstack_capacity"
    CLAIMS = "adstack_claims"
    HEAP_WORDS = "adstack_heap_words"
    SLOTS = "adstack_slots"

    # As plain strings, whatever the version of Python makes of an Enum of strings.
    __repr__, __str__, __format__ = str.__repr__, str.__str__, str.__format__  # type: ignore[assignment]


# What each access to an adstack takes.
ADDRESSING = (AdstackWord.BASE, AdstackWord.PITCH)
# What the task that places adstacks leaves to the tasks after it; they don't take these words from the launch.
PLACED = (*ADDRESSING, AdstackWord.CAPACITY, AdstackWord.CLAIMS)


@dataclass(slots=True)
class AdstackWords:
    """The words of one launch, by kind; each kind by number. A kernel that places its adstacks itself takes ``heap_words`` and ``slots``
    only, all others take no ``heap_words``."""

    bases: tuple[int, ...] = ()
    pitches: tuple[int, ...] = ()
    capacities: tuple[int, ...] = ()
    heap_words: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()

    def flat(self, address: int) -> tuple[int, ...]:
        """The address of the memory of adstacks, then all words in the order of `AdstackWord`; `word_places` says where each is."""
        return (address, *chain.from_iterable(_in_order(self)))


# The fields of `AdstackWords`: claims are counted on the device, so a launch never has them.
_FIELDS = {
    AdstackWord.BASE: "bases",
    AdstackWord.PITCH: "pitches",
    AdstackWord.CAPACITY: "capacities",
    AdstackWord.HEAP_WORDS: "heap_words",
    AdstackWord.SLOTS: "slots",
}
_in_order = operator.attrgetter(*[_FIELDS[kind] for kind in AdstackWord if kind in _FIELDS])


def word_places(kernel: CompiledKernel) -> dict[tuple[str, int], int]:
    """Where in `AdstackWords.flat` each entry of the argument block of ``kernel`` is, by kind and number of the `Slot`."""
    counts = {AdstackWord.SLOTS: len(kernel.tasks)}
    if any(task.places for task in kernel.tasks):
        counts[AdstackWord.HEAP_WORDS] = 1
    else:
        counts |= {AdstackWord.BASE: len(kernel.adstacks), AdstackWord.PITCH: len(kernel.adstacks), AdstackWord.CAPACITY: kernel.capacities}
    words = ((kind.value, number) for kind in AdstackWord for number in range(counts.get(kind, 0)))
    return {word: place for place, word in enumerate(chain([("adstacks", 0)], words))}


# --- thread slots ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arithmetic(Generic[T]):
    """What layouts are computed with. Conditions, which ``le``, ``ge``, ``lt`` and ``gt`` give and ``both`` and ``select`` take, are of
    ``T``, too. Results stay below 2^31, except for ``product``, which may wrap where it is not used."""

    const: Callable[[int], T]
    add: Callable[[T, T], T]
    sub: Callable[[T, T], T]
    mul: Callable[[T, T], T]
    product: Callable[[T, T], T]
    div: Callable[[T, T], T]
    half: Callable[[T], T]
    min: Callable[[T, T], T]
    max: Callable[[T, T], T]
    both: Callable[[T, T], T]  # bitwise, of conditions and of numbers
    le: Callable[[T, T], T]
    ge: Callable[[T, T], T]
    lt: Callable[[T, T], T]
    gt: Callable[[T, T], T]
    select: Callable[[T, T, T], T]


NUMBERS: Arithmetic[int] = Arithmetic(
    const=lambda n: n,
    add=operator.add,
    sub=operator.sub,
    mul=operator.mul,
    product=operator.mul,
    div=operator.floordiv,
    half=lambda n: n >> 1,
    min=lambda a, b: a if a < b else b,
    max=lambda a, b: a if a > b else b,
    both=operator.and_,
    le=operator.le,
    ge=operator.ge,
    lt=operator.lt,
    gt=operator.gt,
    select=lambda condition, a, b: a if condition else b,
)

# Adstacks with their numbers.
Numbered = Sequence[tuple[int, AdstackInfo]]


@dataclass(slots=True)
class Group(Generic[T]):
    """Adstacks that have one thread slot for each invocation that uses them. ``offsets``: where in a thread slot each begins, by number;
    ``floats`` and ``words``: the lengths of the adstacks of floats and of the whole thread slot. All are words of 32 bits."""

    adstacks: Numbered
    offsets: Mapping[int, T]
    floats: T
    words: T

    @property
    def guard(self) -> int | None:
        """The number of the size that counts who passes the guard of the adstacks, None if all invocations use them."""
        return self.adstacks[0][1].guard

    @property
    def counted(self) -> int | None:
        """The number of the size that says how many invocations use the adstacks, if that may be fewer than the launch has."""
        return self.adstacks[0][1].slots


@dataclass(slots=True)
class ThreadSlots(Generic[T]):
    """The thread slots of a task. ``needed``: thread slots of each group for all invocations; ``pitches``: of each group; ``enough``:
    whether there is room for all that are needed, else each group has ``fewer``; ``limit``: how many invocations may run at a time."""

    needed: Sequence[T]
    pitches: Sequence[T]
    enough: T
    fewer: T
    limit: T


@dataclass(slots=True)
class Layout(Generic[T]):
    """Lays out adstacks. ``heap_words``, where numbers have 32 bits: words that there are at most; a longer thread slot counts as some
    length above that, so that no number wraps. ``capacity`` of adstacks and ``count`` of invocations: by number of the size."""

    by: Arithmetic[T]
    heap_words: T | None
    capacity: Callable[[int], T]
    count: Callable[[int], T]

    def groups(self, adstacks: Numbered) -> list[Group[T]]:
        """The groups of a task that is not serial: the adstacks that all its invocations use, then those of each guard."""
        found: dict[int, list[tuple[int, AdstackInfo]]] = {}
        for n, adstack in adstacks:
            found.setdefault(-1 if adstack.guard is None else adstack.guard, []).append((n, adstack))
        return [self.group(found[guard], even=False) for guard in sorted(found)]

    def group(self, adstacks: Numbered, even: bool) -> Group[T]:
        """One thread slot of ``adstacks``. ``even``: integers begin at an even word and thread slots have even lengths, where pitches do
        not see to it."""
        by, heap_words = self.by, self.heap_words
        offsets, ends, end = {}, [], by.const(0)
        most = None if heap_words is None else by.add(heap_words, by.const(2))
        ordered = adstacks if len(adstacks) == 1 else sorted(adstacks, key=_size, reverse=True)
        for floats in (True, False):
            for n, adstack in ordered:
                if adstack.dtype.is_float is floats:
                    offsets[n], size, entries = end, adstack.words, self.capacity(adstack.capacity)
                    if heap_words is not None:
                        # More entries than this do not fit anyway.
                        entries = by.min(entries, by.add(by.div(heap_words, by.const(size)), by.const(1)))
                    end = by.add(end, by.mul(entries, by.const(size)))
                    end = end if most is None else by.min(end, most)
            end = self._even(end) if even else end
            ends.append(end)
        return Group(adstacks, offsets, *ends)

    def slot_words(self, groups: Sequence[Group[T]]) -> T:
        """What one thread slot of each group takes."""
        by = self.by
        most = None if self.heap_words is None else by.add(self.heap_words, by.const(2))
        words = by.const(0)
        for group in groups:
            words = by.add(words, group.words)
            words = words if most is None else by.min(words, most)
        return words

    def fits(self, slot_words: T, left: T) -> T:
        """Whether there is room for thread slots. There are two at least, because pitches are even."""
        return self.by.le(self.by.add(slot_words, slot_words), left)

    def wanted(self, groups: Sequence[Group[T]], asked: T, least: int) -> tuple[list[T], list[T]]:
        """The thread slots of each group that ``asked`` invocations need, and an even number of at least as many, at least ``least``."""
        needed, even = [], []
        for group in groups:
            needed.append(self._needed(group.counted, asked))
            even.append(self.by.max(self._even(needed[-1]), self.by.const(least)))
        return needed, even

    def padded(self, slots: T) -> T:
        """The distance between entries of an even number of thread slots."""
        by = self.by
        many = by.gt(slots, by.const(ADSTACK_PADDING))
        return by.select(many, by.add(slots, by.const(ADSTACK_PADDING)), slots)

    def slots(self, groups: Sequence[Group[T]], asked: T, left: T) -> ThreadSlots[T]:
        """Divide ``left`` words among the thread slots of ``asked`` invocations: as many thread slots as are needed, or if there is no room
        for all, the same number for each group."""
        by = self.by
        needed, even = self.wanted(groups, asked, 2)
        pitches = []
        enough, rest, slot_words = None, left, by.const(0)
        for group, wanted in zip(groups, even):
            pitch = self.padded(wanted)
            pitches.append(pitch)
            fit = by.le(pitch, by.div(rest, by.max(group.words, by.const(1))))
            rest = by.sub(rest, by.select(fit, by.product(pitch, group.words), by.const(0)))
            enough = fit if enough is None else by.both(enough, fit)
            slot_words = by.add(slot_words, group.words)
        assert enough is not None
        shared = by.both(by.div(left, by.max(slot_words, by.const(1))), by.const(-2))
        many = by.gt(shared, by.const(2 * ADSTACK_PADDING))
        fewer = by.select(many, by.sub(shared, by.const(ADSTACK_PADDING)), shared)
        pitches = [by.select(enough, pitch, shared) for pitch in pitches]
        # Any number of invocations may run where each finds a thread slot by claiming one.
        limit = asked if groups[0].guard is not None else by.min(even[0], asked)
        return ThreadSlots(needed, pitches, enough, fewer, by.select(enough, limit, by.min(fewer, asked)))

    def bases(self, group: Group[T], pitch: T, first: T) -> Iterator[tuple[int, T]]:
        """Where each adstack begins, by number, in elements of the adstack, if the group begins at word ``first``."""
        for n, adstack in group.adstacks:
            yield n, self._elements(self.by.add(first, self.by.mul(group.offsets[n], pitch)), adstack)

    def end(self, group: Group[T], pitch: T, first: T) -> T:
        """The word behind the group."""
        return self.by.add(first, self.by.mul(group.words, pitch))

    def serial_bases(self, group: Group[T], fits: T) -> Iterator[tuple[int, T]]:
        """Where the adstacks of serial tasks begin, as of `bases`. If their thread slot does not fit, which fails the launch, they all
        begin at 0."""
        for n, adstack in group.adstacks:
            yield n, self._elements(self.by.select(fits, group.offsets[n], self.by.const(0)), adstack)

    def _needed(self, counted: int | None, asked: T) -> T:
        """How many thread slots ``asked`` invocations need: fewer if the size with number ``counted`` says so."""
        if counted is None:
            return asked
        by, count = self.by, self.count(counted)
        # Of more than 2^31 iterations the number has wrapped.
        return by.select(by.both(by.ge(count, by.const(0)), by.lt(count, asked)), count, asked)

    def _even(self, n: T) -> T:
        return self.by.both(self.by.add(n, self.by.const(1)), self.by.const(-2))

    def _elements(self, words: T, adstack: AdstackInfo) -> T:
        """Numbers of words where an adstack with 64 bits begins are even."""
        return words if adstack.dtype.size == 4 else self.by.half(words)


def _size(numbered: tuple[int, AdstackInfo]) -> int:
    return numbered[1].dtype.size
