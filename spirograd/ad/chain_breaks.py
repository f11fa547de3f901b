"""The places of a program at which gradients end, or may end: the text of `Tape.explain`.

A tape adds them as it meets them: what its kernels write to memory without a gradient, conversions to integers, `stop_grad`, numbers that
Python takes out of memory and may bring back. Each place is listed once, with the user's line and how to mend it.
"""

from __future__ import annotations

import linecache
from collections.abc import Hashable, Iterable, Iterator

import numpy as np

from spirograd.ad.entries import DerivativeFootprint, Launch
from spirograd.ad.memory_keys import FieldOrArray
from spirograd.base.loc import Loc
from spirograd.base.records import dataclass
from spirograd.base.tracebacks import user_location
from spirograd.derivatives.specialized import INACTIVE_HINT, SpecializedDerivative
from spirograd.lang.scalar import describe

_EXPORT_HINT = "compute in kernels, or read single elements (`x[3]`), whose history the tape keeps; for output alone this is right"
_IMPORT_HINT = "if the numbers depend on what was read, write them by a kernel or by `copy_from`"
_CAST_HINT = "compute in floats; a conversion that only selects (an index, a branch) is right"
_NUMBER_HINT = "compute with the number as it is, by operators and functions of `sg`"
_TENSOR_HINT = "give the tensor a gradient (`requires_grad=True`), or use `sg.ad.torch_function`, which follows torch's own history"
_NO_GRAD_HINT = "remove `no_grad`, or give the function a gradient with `grad_replaced`"


@dataclass(frozen=True, slots=True)
class ChainBreak:
    """A place at which gradients end. ``is_certain``: whether they do, or only if Python brings numbers back."""

    problem: str
    loc: Loc | None
    hint: str
    is_certain: bool = True

    def __str__(self) -> str:
        source = linecache.getline(self.loc.file, self.loc.line).strip() if self.loc is not None else ""
        lines = [f"{self.problem}{_at(self.loc)}", *([f"  {source}"] if source else []), *([f"  hint: {self.hint}"] if self.hint else [])]
        return "\n".join(f"  {line}" for line in lines)


class ChainBreaks:
    """The places of one program, in the order in which they were met."""

    def __init__(self) -> None:
        self._found: dict[Hashable, ChainBreak] = {}
        self._readers: dict[Hashable, list[str]] = {}  # of memory without a gradient, after it got values that have one
        self._seen: set[int] = set()  # derivatives, by identity: specializations keep them
        self._reads = False  # whether Python has read memory that gradients flow through

    def kernel(self, gradient: SpecializedDerivative) -> None:
        """Add the conversions and the calls of `stop_grad` in a kernel."""
        derivative = gradient.derivative
        if not (derivative.casts or derivative.stops) or id(gradient) in self._seen:
            return
        self._seen.add(id(gradient))
        for place in derivative.casts:
            problem = f"{gradient.label} converts to an integer, and `{place.ref.name}` depends on differentiated values only through that"
            self._add(ChainBreak(problem, place.loc, _CAST_HINT))
        for loc in derivative.stops:
            if "stop_grad" in linecache.getline(loc.file, loc.line):  # functions of the library stop derivatives, too
                self._add(ChainBreak(f"{gradient.label} ends derivatives on purpose, by `stop_grad`", loc, ""))

    def lost(self, name: str, writer: str, loc: Loc | None) -> None:
        """Add memory without a gradient, to which ``writer`` gave values that depend on memory with gradients."""
        problem = f"{writer} gives {name}, which has no gradient, values that depend on memory with gradients"
        self._add(ChainBreak(problem, loc, INACTIVE_HINT))

    def lost_read(self, name: str, reader: str, loc: Loc | None) -> None:
        """Note that ``reader`` reads such memory."""
        readers = self._readers.setdefault(name, [])
        if (text := f"{reader}{_at(loc)}") not in readers:
            readers.append(text)

    def numbers(self, ends: Iterable[tuple[Loc | None, str]]) -> None:
        """Add numbers with a history, by the line that read them, and what they became."""
        for loc, how in ends:
            self._add(ChainBreak(f"a number that Python read becomes {how}", loc, _NUMBER_HINT, how.endswith("purpose")))

    def exported(self, memory: FieldOrArray, how: str) -> None:
        """Add a read of memory that gradients flow through, by ``how``."""
        self._reads = True
        loc, hint = user_location(), _EXPORT_HINT if memory.has_grad() else INACTIVE_HINT
        problem = f"Python reads {describe(memory)} by {how}: no gradient flows back through what it computes from that"
        self._found.setdefault((describe(memory), str(loc)), ChainBreak(problem, loc, hint, False))  # once, also if one way calls another

    def imported(self, memory: FieldOrArray) -> None:
        """Add a write of numbers by Python, if it has read any before."""
        if self._reads:
            problem = f"Python writes numbers to {describe(memory)} after it has read others: they are constants"
            self._add(ChainBreak(problem, user_location(), _IMPORT_HINT, False))

    def arrays(self, label: str, memory: DerivativeFootprint, launch: Launch) -> None:
        """Add the arrays of NumPy and torch without a gradient that a kernel reads floats from."""
        for access in memory.inactive_reads:
            array = launch.external.get(access.arg) if access.arg is not None else None
            if array is None or (isinstance(array, np.ndarray) and not self._reads):
                continue
            kind, hint = ("an array of NumPy", _IMPORT_HINT) if isinstance(array, np.ndarray) else ("a detached tensor", _TENSOR_HINT)
            self._add(ChainBreak(f"{label} reads `{access.name}`, {kind}: it has no gradient", access.loc, hint, False))

    def replaced(self, name: str) -> None:
        """Add memory that Python changed unseen between two launches."""
        problem = f"{name} was changed between launches: gradients of the old values end, and the new ones are constants"
        self._add(ChainBreak(problem, None, "write by a kernel, or by `copy_from`"))

    def aside(self) -> None:
        """Add a call of a function that is not differentiated."""
        problem = "a function is not differentiated (`no_grad`): no gradient flows through what it writes"
        self._add(ChainBreak(problem, user_location(), _NO_GRAD_HINT))

    def include(self, other: ChainBreaks) -> None:
        """Add the places of another program."""
        self._found = {**other._found, **self._found}
        for name, readers in other._readers.items():
            self._readers.setdefault(name, []).extend(readers)

    def _add(self, found: ChainBreak) -> None:
        self._found.setdefault((found.problem, str(found.loc)), found)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        certain = [str(found) for found in self._found.values() if found.is_certain]
        possible = [str(found) for found in self._found.values() if not found.is_certain]
        yield "gradients end at:" if certain else "gradients end nowhere that the tape has seen"
        yield from certain
        if self._readers:
            yield "memory without a gradient is read after that:"
            yield from (f"  {name} by {', '.join(readers)}" for name, readers in self._readers.items())
        if possible:
            yield "gradients end if Python brings back what it computes from numbers that it read:"
            yield from possible


def _at(loc: Loc | None) -> str:
    return f" ({loc})" if loc is not None else ""
