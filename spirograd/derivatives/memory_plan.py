"""What `kernel.grad.memory_plan(...)` gives: the memory that a launch of a gradient needs for the tapes of its loops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from spirograd.autodiff.derivative import Derivative, Record
from spirograd.base.artifact import CompiledKernel, TapeInfo
from spirograd.base.loc import Loc
from spirograd.base.records import dataclass
from spirograd.base.sizes.size_nodes import Size
from spirograd.base.sizes.size_text import count_text
from spirograd.base.wording import counted
from spirograd.derivatives.explained import names_in_sizes
from spirograd.derivatives.plan import Forecast
from spirograd.runtime.tape_heap import Share

# How the number of entries was found.
_WAYS = {"known": "known before the launch", "counted": "counted by a kernel", "reused": "still as at the last launch"}


@dataclass(frozen=True, slots=True)
class TapePlan:
    """One tape: ``what`` it saves, of the loop at ``loop``, in one entry for every ``every`` iterations.

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
    """All tapes of floats (``kind`` "F") or of integers ("I") of a task. ``stride``: bytes of a thread slot; ``nbytes``: bytes of all
    thread slots and of the gaps between them.
    """

    kind: str
    stride: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """The tapes of a task. ``task``: its name, or None for all serial tasks, which share a thread slot. ``slots``: one for each iteration
    that may run at the same time. ``guarded``: only iterations that pass the condition which guards these tapes count; the tapes of each
    guard of a task, and its other tapes, have a plan of their own.
    """

    task: str | None
    slots: int
    tapes: tuple[TapePlan, ...]
    slabs: tuple[SlabPlan, ...]
    guarded: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the slabs."""
        return sum(slab.nbytes for slab in self.slabs)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory that the tapes of one launch need. It prints as text.

    ``nbytes``: bytes for all tasks, which use the same memory one after the other. ``heap``: bytes that are reserved for tapes so far;
    ``budget``: bytes that may be reserved. ``note``: why there is no task.
    """

    label: str
    tasks: tuple[TaskPlan, ...] = ()
    nbytes: int = 0
    heap: int = 0
    budget: int = 0
    note: str = ""

    @property
    def tapes(self) -> tuple[TapePlan, ...]:
        """The tapes of all tasks."""
        return tuple([tape for task in self.tasks for tape in task.tapes])

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
        yield f"memory plan of the gradient of {self.label}: {_bytes(self.nbytes)} for tapes"
        for task in self.tasks:
            guard = ", where its condition holds" if task.guarded else ""
            yield f"{'serial tasks' if task.task is None else f'task {task.task}'}{guard}: {counted(task.slots, 'thread slot')}"
            for tape in task.tapes:
                yield from _tape_lines(tape)
            for slab in task.slabs:
                numbers = "floats" if slab.kind == "F" else "integers"
                yield f"  slab {slab.kind} ({numbers}): {_bytes(slab.stride)} a thread slot, {_bytes(slab.nbytes)} in all"
        yield f"heap: {_bytes(self.heap)} so far, {self.budget:,} at most"


def _bytes(n: int) -> str:
    return f"{n:,} byte{'' if n == 1 else 's'}"


def _tape_lines(tape: TapePlan) -> Iterator[str]:
    yield f"  {tape.what.rstrip(',')}{f', of the loop at {tape.loop}' if tape.loop is not None else ''}"
    each = "" if tape.every == 1 else f", one for each {tape.every} iterations"
    formula = "" if tape.formula is None else f"{tape.formula}, "
    yield f"    {counted(tape.entries, 'entry', 'entries')}{each}: {formula}{_WAYS[tape.way]}"
    yield f"    {_bytes(tape.entry_bytes)} an entry, {_bytes(tape.slot_bytes)} a thread slot, {_bytes(tape.nbytes)} in all"


def memory_plan(label: str, derivative: Derivative, compiled: CompiledKernel, forecast: Forecast | None) -> MemoryPlan:
    """From what differentiating gave, and a `Forecast` for a launch of what it was ``compiled`` to (None: it has no tapes)."""
    if forecast is None:
        grows = bool(derivative.capacities) and not compiled.tapes
        note = "the interpreter's tapes grow as they are written" if grows else "no loop records anything"
        return MemoryPlan(label, note=note)
    names = names_in_sizes(derivative)
    records = {record.tape.name: record for record in derivative.records}
    tasks = [_task(share, compiled.tapes, records, derivative.capacities, names, forecast) for share in forecast.heap_plan.shares]
    return MemoryPlan(label, tuple(tasks), forecast.heap_plan.nbytes, forecast.heap, forecast.budget)


def _task(
    share: Share,
    tapes: Sequence[TapeInfo],
    records: Mapping[str, Record],
    capacities: Sequence[Size | None],
    names: Mapping[tuple[str, int], str],
    forecast: Forecast,
) -> TaskPlan:
    plans = []
    for tape in [tape for tape in tapes if (tape.task, tape.guard) == (share.task, share.guard)]:
        record, k, entry = records[tape.name], tape.capacity, 4 * tape.words
        size = record.entries if capacities[k] is None else capacities[k]
        formula = None if size is None else count_text(size, names)
        entries = max(forecast.entries[k], 1)
        slot = entry * entries
        plans.append(TapePlan(record.what, record.loop, record.every, entries, forecast.ways[k], formula, entry, slot, share.slots * slot))
    slabs = [SlabPlan(kind, 4 * words, share.slab_bytes(words)) for kind, words in (("F", share.floats), ("I", share.integers)) if words]
    return TaskPlan(share.task, share.slots, tuple(plans), tuple(slabs), share.guard is not None)
