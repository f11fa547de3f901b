"""What `kernel.grad.memory_plan(...)` gives: the memory that a launch of a gradient needs for the adstacks of its loops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from spirograd.autodiff.derivative import Derivative, Record
from spirograd.base.artifact import AdstackInfo, CompiledKernel
from spirograd.base.loc import Loc
from spirograd.base.records import dataclass
from spirograd.base.sizes.size_nodes import Size
from spirograd.base.sizes.size_text import count_text
from spirograd.base.wording import counted
from spirograd.derivatives.explained import names_in_sizes
from spirograd.derivatives.plan import HeapForecast
from spirograd.runtime.adstack_heap import Share

# How the number of entries was found.
_SOURCES = {"known": "known before the launch", "counted": "counted by a kernel", "reused": "still as at the last launch"}


@dataclass(frozen=True, slots=True)
class AdstackPlan:
    """One adstack: ``what`` it saves, of the loop at ``loop``, in one entry for every ``every`` iterations.

    ``entries``: entries of each thread slot; ``way``: how their number was found ("known", "counted", "reused"); ``formula``: the
    expression for it, or None. ``entry_bytes``, ``slot_bytes``, ``nbytes``: bytes of an entry, of the entries of a thread slot, and of all
    thread slots.
    """

    what: str
    loop: Loc | None
    every: int
    entries: int
    way: str
    formula: str | None
    entry_bytes: int
    slot_bytes: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class SlabPlan:
    """All adstacks of floats (``kind`` "F") or of integers ("I") of a task. ``stride``: bytes of a thread slot; ``nbytes``: bytes of all
    thread slots and of the gaps between them.
    """

    kind: str
    stride: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """The adstacks of a task. ``task``: its name, or None for all serial tasks, which share a thread slot. ``slots``: one for each
    iteration that may run at the same time. ``guarded``: only iterations that pass the condition which guards these adstacks count; the
    adstacks of each guard of a task, and its other adstacks, have a plan of their own.
    """

    task: str | None
    slots: int
    adstacks: tuple[AdstackPlan, ...]
    slabs: tuple[SlabPlan, ...]
    guarded: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the slabs."""
        return sum(slab.nbytes for slab in self.slabs)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory that the adstacks of one launch need. It prints as text.

    ``nbytes``: bytes for all tasks, which use the same memory one after the other. ``heap``: bytes that are reserved for adstacks so far;
    ``budget``: bytes that may be reserved. ``note``: why there is no task.
    """

    label: str
    tasks: tuple[TaskPlan, ...] = ()
    nbytes: int = 0
    heap: int = 0
    budget: int = 0
    note: str = ""

    @property
    def adstacks(self) -> tuple[AdstackPlan, ...]:
        """The adstacks of all tasks."""
        return tuple([adstack for task in self.tasks for adstack in task.adstacks])

    @property
    def slots(self) -> int:
        """The thread slots of the task that has the most."""
        return max([task.slots for task in self.tasks], default=0)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if not self.tasks:
            yield f"memory plan of the gradient of {self.label}: {self.note}"
            return
        yield f"memory plan of the gradient of {self.label}: {_bytes(self.nbytes)} for adstacks"
        for task in self.tasks:
            guard = ", where its condition holds" if task.guarded else ""
            yield f"{'serial tasks' if task.task is None else f'task {task.task}'}{guard}: {counted(task.slots, 'thread slot')}"
            for adstack in task.adstacks:
                yield from _adstack_lines(adstack)
            for slab in task.slabs:
                numbers = "floats" if slab.kind == "F" else "integers"
                yield f"  slab {slab.kind} ({numbers}): {_bytes(slab.stride)} a thread slot, {_bytes(slab.nbytes)} in all"
        yield f"heap: {_bytes(self.heap)} so far, {self.budget:,} at most"


def _bytes(n: int) -> str:
    return f"{n:,} byte{'' if n == 1 else 's'}"


def _adstack_lines(adstack: AdstackPlan) -> Iterator[str]:
    yield f"  {adstack.what.rstrip(',')}{f', of the loop at {adstack.loop}' if adstack.loop is not None else ''}"
    each = "" if adstack.every == 1 else f", one for each {adstack.every} iterations"
    formula = "" if adstack.formula is None else f"{adstack.formula}, "
    yield f"    {counted(adstack.entries, 'entry', 'entries')}{each}: {formula}{_SOURCES[adstack.way]}"
    yield f"    {_bytes(adstack.entry_bytes)} an entry, {_bytes(adstack.slot_bytes)} a thread slot, {_bytes(adstack.nbytes)} in all"


def memory_plan(label: str, derivative: Derivative, compiled: CompiledKernel, forecast: HeapForecast | None) -> MemoryPlan:
    """Return the plan of a launch, from its `HeapForecast` (None: it has no adstacks)."""
    if forecast is None:
        grows = bool(derivative.capacities) and not compiled.adstacks
        note = "the interpreter's adstacks grow as they are written" if grows else "no loop records anything"
        return MemoryPlan(label, note=note)
    names = names_in_sizes(derivative)
    records = {record.adstack.name: record for record in derivative.records}
    tasks = [_task(share, compiled.adstacks, records, derivative.capacities, names, forecast) for share in forecast.heap_plan.shares]
    return MemoryPlan(label, tuple(tasks), forecast.heap_plan.nbytes, forecast.heap, forecast.budget)


def _task(
    share: Share,
    adstacks: Sequence[AdstackInfo],
    records: Mapping[str, Record],
    capacities: Sequence[Size | None],
    names: Mapping[tuple[str, int], str],
    forecast: HeapForecast,
) -> TaskPlan:
    plans = []
    for adstack in [adstack for adstack in adstacks if (adstack.task, adstack.guard) == (share.task, share.guard)]:
        record, k, entry = records[adstack.name], adstack.capacity, 4 * adstack.words
        size = record.entries if capacities[k] is None else capacities[k]
        formula = None if size is None else count_text(size, names)
        entries = max(forecast.entries[k], 1)
        slot = entry * entries
        plans.append(
            AdstackPlan(record.what, record.loop, record.every, entries, forecast.sources[k], formula, entry, slot, share.slots * slot)
        )
    slabs = [SlabPlan(kind, 4 * words, share.slab_bytes(words)) for kind, words in (("F", share.floats), ("I", share.integers)) if words]
    return TaskPlan(share.task, share.slots, tuple(plans), tuple(slabs), share.guard is not None)
