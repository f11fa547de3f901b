"""The report of a tape on the memory that it saved: copies and bytes, by field or array; and what it runs again to save memory."""

from __future__ import annotations

from collections.abc import Iterable

from spirograd.base.records import dataclass
from spirograd.base.wording import counted


@dataclass(frozen=True)
class Cost:
    """Measured times in seconds: ``copy``, to move the copies of one checkpoint to a level of memory and back; ``step``, to run a step."""

    copy: float
    step: float


@dataclass(frozen=True)
class LevelReport:
    """One level of memory for checkpoints: "memory" (of the device), "host" or "disk". ``limit``: the bytes that it may have; ``peak``:
    that it had at most, on the device with what a step needs; ``copies``, ``nbytes``: that were moved there. ``cost``: what decided
    whether it is used, None if that was not asked; ``used``: whether it is; ``left``: whether it was, and was not worth its time.
    ``staging``: of the host, the bytes at most for copies under way and for those that wait for files; ``peak`` counts them."""

    name: str
    limit: int
    peak: int
    copies: int
    nbytes: int
    cost: Cost | None = None
    used: bool = True
    left: bool = False
    staging: int = 0

    def __str__(self) -> str:
        why = "it was not needed"
        if self.cost is not None:
            why = f"a checkpoint takes {1e3 * self.cost.copy:.3g} ms there, a step that runs again {1e3 * self.cost.step:.3g} ms"
        if self.left:
            return f"  {self.name:<6}  left after {counted(self.copies, 'copy', 'copies')}: {why}"
        if not self.used:
            return f"  {self.name:<6}  not used: {why}"
        moved = f", {counted(self.copies, 'copy', 'copies')} moved there ({counted(self.nbytes, 'byte')})" if self.name != "memory" else ""
        staging = f", at most {counted(self.staging, 'byte')} for copies under way" if self.staging else ""
        return f"  {self.name:<6}  at most {counted(self.peak, 'byte')} of {self.limit:,}{moved}{staging}"


@dataclass(frozen=True)
class Repetitions:
    """What checkpoints cost. ``steps``: launches, reads and writes of the program; ``checkpoints``: before how many of them there is one;
    ``repeated``: how many steps the reverse pass runs again; ``peak``: bytes that all copies take at most, at a time. ``ran``: whether
    the reverse pass ran, of which these are the facts, or is planned. ``levels``: the levels of memory, if there are several; what they
    had at most and what was moved are facts so far."""

    steps: int
    checkpoints: int
    repeated: int
    peak: int
    ran: bool
    levels: tuple[LevelReport, ...] = ()

    def __str__(self) -> str:
        steps, checkpoints = counted(self.steps, "step"), counted(self.checkpoints, "checkpoint")
        runs = "ran" if self.ran else "will run"
        each = self.repeated / max(self.steps, 1)
        text = f"  {checkpoints} in {steps}; the reverse pass {runs} {counted(self.repeated, 'step')} again, {each:.2f} times the program"
        return "\n".join([text, *map(str, self.levels)])


@dataclass(frozen=True)
class MemoryReport:
    """What a tape saved: by name of field or array, the number of copies and their bytes. Printable.

    ``repetitions``: of a tape with checkpoints, else None; then ``items`` is what it has saved before the reverse pass.
    """

    launches: int
    items: dict[str, tuple[int, int]]
    repetitions: Repetitions | None = None

    @property
    def total(self) -> int:
        """Bytes of all copies."""
        return sum(nbytes for _, nbytes in self.items.values())

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes by name."""
        return {name: nbytes for name, (_, nbytes) in self.items.items()}

    def __str__(self) -> str:
        peak = "" if self.repetitions is None else f", at most {counted(self.repetitions.peak, 'byte')} at a time"
        lines = [f"tape of {counted(self.launches, 'launch', 'launches')}: {counted(self.total, 'byte')} saved{peak}"]
        if self.repetitions is not None:
            lines.append(str(self.repetitions))
        width = max((len(name) for name in self.items), default=0)
        for name, (copies, nbytes) in sorted(self.items.items(), key=lambda item: (-item[1][1], item[0])):
            lines.append(f"  {name:<{width}}  {nbytes:>12,} bytes in {counted(copies, 'copy', 'copies')}")
        return "\n".join(lines)


def totals(copies: Iterable[tuple[str, int]]) -> dict[str, tuple[int, int]]:
    """Return the items of a report: the name and bytes of each copy, added up by name."""
    items: dict[str, tuple[int, int]] = {}
    for name, nbytes in copies:
        number, total = items.get(name, (0, 0))
        items[name] = (number + 1, total + nbytes)
    return items
