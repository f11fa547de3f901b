"""Conflicts between pieces of work: two pieces conflict if they use the same memory and one of them changes it.

Pieces without conflicts may run at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from spirograd.base.arguments import ROLE_ALLOCATIONS, ROLE_ATTRIBUTES, Arguments
from spirograd.base.device import Sections, Step, Uses, one_by_one

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from spirograd.base.device import TakesWork
    from spirograd.base.protocols import Allocation

Part = tuple["Allocation | None", str]  # Memory, None for memory of other libraries, and the part of it.
# Stands for all memory, for work that uses unknown memory.
_ALL = -1


class UsedMemory:
    """The memory that steps have used since the last `clear`: parts by number of the allocation."""

    def __init__(self) -> None:
        self._read: dict[int, set[str]] = {}
        self._written: dict[int, set[str]] = {}

    def conflicts(self, step: Step) -> bool:
        """Return whether ``step`` must come after the steps that were added."""
        return _overlaps(step.writes, self._read) or _overlaps(step.writes, self._written) or _overlaps(step.reads, self._written)

    def add(self, step: Step) -> None:
        """Add the memory that ``step`` uses."""
        for uses, known in ((step.reads, self._read), (step.writes, self._written)):
            for memory, part in uses:
                known.setdefault(_number(memory), set()).add(part)

    def clear(self) -> None:
        """Remove all entries, because later work comes after this work anyway."""
        self._read.clear()
        self._written.clear()


def interleaved(nodes: Iterable[Step | Sections]) -> Iterator[Step]:
    """Return the steps of a series, one after the other. Sections take turns if none of them uses memory of another one."""
    for node in nodes:
        if isinstance(node, Sections) and _apart(node):
            yield from (step for turn in zip_longest(*node.sections) for step in turn if step is not None)
        else:
            yield from one_by_one([node])


def _apart(node: Sections) -> bool:
    used = UsedMemory()
    for steps in node.sections:
        if any(map(used.conflicts, steps)):
            return False
        for step in steps:
            used.add(step)
    return True


def _number(memory: Allocation | None) -> int:
    return _ALL if memory is None or memory.keep is not None else int(memory.number)


def _overlaps(uses: Uses, known: dict[int, set[str]]) -> bool:
    if not known or not uses:
        return False
    if _ALL in known:
        return True
    for memory, part in uses:
        number = _number(memory)
        if number == _ALL:
            return True
        parts = known.get(number)
        if parts is not None and (not part or "" in parts or part in parts):
            return True
    return False


def memory_of(effects: Sequence[tuple[str, int, str]], arguments: Arguments) -> list[Part]:
    """Return the allocations that effects of a launch concern, and the parts of them; None for memory of other libraries."""
    out: list[Part] = []
    for kind, index, part in effects:
        if kind == "tree":
            out.append((arguments.trees[index], part))
            continue
        for role in [part] if part else ROLE_ATTRIBUTES:
            if getattr(arguments.arrays[index], ROLE_ATTRIBUTES[role]):
                out.append((getattr(arguments.arrays[index], ROLE_ALLOCATIONS[role]), ""))
    return out


def exclusively(lock: threading.RLock, work: Callable[[TakesWork], None], device: TakesWork) -> None:
    """Do ``work`` while the lock is held."""
    with lock:
        work(device)
