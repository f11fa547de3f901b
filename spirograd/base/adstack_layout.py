"""Layout of adstacks: the words that describe the adstacks of a launch, their order, and the place of each adstack.

A thread slot is the memory of one invocation of a task: its adstacks of floats, then those of integers, in both those of 64 bits first.
Thread slots lie side by side: an entry of all thread slots, then the next entry; the distance between entries is the pitch. The adstacks
that all invocations of a task use form one group with one pitch. The adstacks behind each guard form another group, whose thread slots are
claimed; these groups follow in the order of their numbers. Serial tasks share one thread slot, which comes first. Tasks run one after the
other, so all others begin behind it.

`Layout` is one algorithm for two callers. The host runs it over numbers (`runtime.adstack_heap`); the task that places adstacks on the
device consists of the operations that it emits when it runs over IR operations (`transforms.tasks.place_adstacks`).
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
    """The words that describe the adstacks of a launch: kinds of `Slot`, each an i32, in their order in the argument block and in
    `AdstackWords.flat`."""

    BASE = "adstack_base"
    PITCH = "adstack_pitch"
    CAPACITY = "adstack_capacity"
    CLAIMS = "adstack_claims"
    HEAP_WORDS = "adstack_heap_words"
    SLOTS = "adstack_slots"

    # Plain strings, because versions of Python differ in the text of an Enum of strings.
    __repr__, __str__, __format__ = str.__repr__, str.__str__, str.__format__  # type: ignore[assignment]


# The words that each access to an adstack uses.
ADDRESSING = (AdstackWord.BASE, AdstackWord.PITCH)
# The words that the task that places adstacks computes for later tasks, which do not read them from the launch.
PLACED = (*ADDRESSING, AdstackWord.CAPACITY, AdstackWord.CLAIMS)


@dataclass(slots=True)
class AdstackWords:
    """The words of one launch, by kind and number. A kernel that places its adstacks uses only ``heap_words`` and ``slots``; all others do
    not use ``heap_words``."""

    bases: tuple[int, ...] = ()
    pitches: tuple[int, ...] = ()
    capacities: tuple[int, ...] = ()
    heap_words: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()

    def flat(self, address: int) -> tuple[int, ...]:
        """Return the address of the memory of adstacks, then all words in the order of `AdstackWord`; `word_places` has the index of
        each."""
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
    """Return the index in `AdstackWords.flat` of each entry of the argument block of ``kernel``, by kind and number of the `Slot`."""
    counts = {AdstackWord.SLOTS: len(kernel.tasks)}
    if any(task.places for task in kernel.tasks):
        counts[AdstackWord.HEAP_WORDS] = 1
    else:
        counts |= {AdstackWord.BASE: len(kernel.adstacks), AdstackWord.PITCH: len(kernel.adstacks), AdstackWord.CAPACITY: kernel.capacities}
    words = ((kind.value, number) for kind in AdstackWord for number in range(counts.get(kind, 0)))
    return {word: place for place, word in enumerate(chain([("adstacks", 0)], words))}


# --- thread slots ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LayoutArithmetic(Generic[T]):
    """The arithmetic with which layouts are computed. Conditions, which ``le``, ``ge``, ``lt`` and ``gt`` return and ``both`` and
    ``select`` take, have type ``T``, too. Results are below 2^31, except for ``product``, which may wrap if it is not used."""

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


NUMBERS: LayoutArithmetic[int] = LayoutArithmetic(
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

# Adstacks by number.
Numbered = Sequence[tuple[int, AdstackInfo]]


@dataclass(slots=True)
class Group(Generic[T]):
    """Adstacks with a common thread slot for each invocation that uses them. ``offsets``: the offset of each in a thread slot, by number;
    ``floats`` and ``words``: the lengths of the adstacks of floats and of a thread slot. All are in 32-bit words."""

    adstacks: Numbered
    offsets: Mapping[int, T]
    floats: T
    words: T

    @property
    def guard(self) -> int | None:
        """The number of the size that counts the iterations that pass the guard of the adstacks; None if all invocations use them."""
        return self.adstacks[0][1].guard

    @property
    def counted(self) -> int | None:
        """The number of the size that counts the invocations that use the adstacks, if they may be fewer than the launch has."""
        return self.adstacks[0][1].slots


@dataclass(slots=True)
class ThreadSlots(Generic[T]):
    """The thread slots of a task. ``needed``: the thread slots of each group for all invocations; ``pitches``: the pitch of each group;
    ``enough``: whether there is room for all of them, otherwise each group has ``fewer``; ``limit``: the number of invocations that may run
    at a time."""

    needed: Sequence[T]
    pitches: Sequence[T]
    enough: T
    fewer: T
    limit: T


@dataclass(slots=True)
class Layout(Generic[T]):
    """The layout algorithm. ``heap_words``, if numbers have 32 bits: an upper limit of the memory in words; longer thread slots count as a
    length above it, so that no number wraps. ``capacity`` of adstacks and ``count`` of invocations: by the number of the size."""

    by: LayoutArithmetic[T]
    heap_words: T | None
    capacity: Callable[[int], T]
    count: Callable[[int], T]

    def groups(self, adstacks: Numbered) -> list[Group[T]]:
        """Return the groups of a task that is not serial: the adstacks that all its invocations use, then those of each guard."""
        by_guard: dict[int, list[tuple[int, AdstackInfo]]] = {}
        for n, adstack in adstacks:
            by_guard.setdefault(-1 if adstack.guard is None else adstack.guard, []).append((n, adstack))
        return [self.group(by_guard[guard], even=False) for guard in sorted(by_guard)]

    def group(self, adstacks: Numbered, even: bool) -> Group[T]:
        """Return the group of ``adstacks``. ``even``: whether integers begin at an even word and thread slots have even lengths, because
        pitches do not ensure it."""
        by, heap_words = self.by, self.heap_words
        offsets, ends, end = {}, [], by.const(0)
        most = None if heap_words is None else by.add(heap_words, by.const(2))
        ordered = adstacks if len(adstacks) == 1 else sorted(adstacks, key=_size, reverse=True)
        for floats in (True, False):
            for n, adstack in ordered:
                if adstack.dtype.is_float is floats:
                    offsets[n], size, entries = end, adstack.words, self.capacity(adstack.capacity)
                    if heap_words is not None:
                        # more entries than this never fit
                        entries = by.min(entries, by.add(by.div(heap_words, by.const(size)), by.const(1)))
                    end = by.add(end, by.mul(entries, by.const(size)))
                    end = end if most is None else by.min(end, most)
            end = self._even(end) if even else end
            ends.append(end)
        return Group(adstacks, offsets, *ends)

    def slot_words(self, groups: Sequence[Group[T]]) -> T:
        """Return the words of one thread slot of each group."""
        by = self.by
        most = None if self.heap_words is None else by.add(self.heap_words, by.const(2))
        words = by.const(0)
        for group in groups:
            words = by.add(words, group.words)
            words = words if most is None else by.min(words, most)
        return words

    def fits(self, slot_words: T, left: T) -> T:
        """Return whether there is room for the thread slots, at least two of which exist because pitches are even."""
        return self.by.le(self.by.add(slot_words, slot_words), left)

    def wanted(self, groups: Sequence[Group[T]], asked: T, least: int) -> tuple[list[T], list[T]]:
        """Return the thread slots of each group that ``asked`` invocations need, and the next even number, which is at least ``least``."""
        needed, even = [], []
        for group in groups:
            needed.append(self._needed(group.counted, asked))
            even.append(self.by.max(self._even(needed[-1]), self.by.const(least)))
        return needed, even

    def padded(self, slots: T) -> T:
        """Return the distance between entries of an even number of thread slots."""
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
        # any number of invocations may run if each claims its thread slot
        limit = asked if groups[0].guard is not None else by.min(even[0], asked)
        return ThreadSlots(needed, pitches, enough, fewer, by.select(enough, limit, by.min(fewer, asked)))

    def bases(self, group: Group[T], pitch: T, first: T) -> Iterator[tuple[int, T]]:
        """Return the place of each adstack, by number, in elements of the adstack, if the group begins at word ``first``."""
        for n, adstack in group.adstacks:
            yield n, self._elements(self.by.add(first, self.by.mul(group.offsets[n], pitch)), adstack)

    def end(self, group: Group[T], pitch: T, first: T) -> T:
        """Return the word after the group."""
        return self.by.add(first, self.by.mul(group.words, pitch))

    def serial_bases(self, group: Group[T], fits: T) -> Iterator[tuple[int, T]]:
        """Return the places of the adstacks of serial tasks, as `bases` does. If their thread slot does not fit, which fails the launch,
        they all begin at 0."""
        for n, adstack in group.adstacks:
            yield n, self._elements(self.by.select(fits, group.offsets[n], self.by.const(0)), adstack)

    def _needed(self, counted: int | None, asked: T) -> T:
        """Return the number of thread slots that ``asked`` invocations need: fewer if the size with number ``counted`` is smaller."""
        if counted is None:
            return asked
        by, count = self.by, self.count(counted)
        # the number has wrapped if there are more than 2^31 iterations
        return by.select(by.both(by.ge(count, by.const(0)), by.lt(count, asked)), count, asked)

    def _even(self, n: T) -> T:
        return self.by.both(self.by.add(n, self.by.const(1)), self.by.const(-2))

    def _elements(self, words: T, adstack: AdstackInfo) -> T:
        """Numbers of words where an adstack with 64 bits begins are even."""
        return words if adstack.dtype.size == 4 else self.by.half(words)


def _size(numbered: tuple[int, AdstackInfo]) -> int:
    return numbered[1].dtype.size
