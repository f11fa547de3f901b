"""Choices by measurement, and their form in the offline cache."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Annotated, cast

from spirograd.base.artifact import CompiledKernel
from spirograd.base.constraints import Count, one_of
from spirograd.base.options import ALTERNATIVES
from spirograd.base.records import dataclass
from spirograd.runtime.encoding import encoded
from spirograd.runtime.typed_decoding import Damage, Decoder, Reader, loads

NOTE = "choices 2"  # The name of what the offline cache keeps, with a number for its form.
# A choice is measured again in a process that begins this number of seconds after it was made, and, if that confirms it, FACTOR times as
# many seconds after that, and so on.
_FIRST_CHECK, _FACTOR = 3600, 4
# Only the candidates that took at most this many times as long as the best one are measured again.
_CONTENDERS = 1.25

# The number of iterations of each task, to a factor of four; -1 if only the task knows it.
ExtentClass = tuple[int, ...]
Counts = Sequence["int | None"]
Name = Annotated[str, one_of("", *ALTERNATIVES)]


def extent_class(counts: Counts) -> ExtentClass:
    """Return the class of launches with these numbers of iterations."""
    return tuple([-1 if count is None else count.bit_length() // 2 for count in counts])


def parts_of(compiled: CompiledKernel, by_task: bool) -> list[list[str]]:
    """Return the alternatives of each part of ``compiled``, for which one is chosen: of each task, or of the kernel as a whole."""
    return [list(task.alternatives) for task in compiled.tasks] if by_task else [compiled.alternatives]


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice by measurement.

    ``counts``: the numbers of iterations of the first launch, which stand for their class. ``names``: for each part, the alternative; ""
    for the code of the cost model. ``times``: the shortest time of each candidate, for each part. ``made``: the time of the choice, in
    seconds of `time.time`; 0 if times differed too much. ``confirmed``: how often it was measured again with the same result.
    """

    counts: tuple[Count | None, ...]
    names: tuple[Name, ...]
    times: tuple[tuple[Name, tuple[Count, ...]], ...]
    made: Count
    confirmed: Count = 0

    def fits(self, parts: Sequence[Sequence[str]]) -> bool:
        """Return whether this is a choice between the candidates of ``parts``."""
        named = len(self.names) == len(parts) and all(not name or name in part for name, part in zip(self.names, parts))
        return named and all(len(times) == len(parts) for _, times in self.times) and "" in dict(self.times)

    def is_due(self, now: float) -> bool:
        """Return whether this is to be measured again."""
        return now >= self.made + _FIRST_CHECK * float(_FACTOR) ** min(self.confirmed, 16)

    def contenders(self) -> list[str]:
        """Return the alternatives that may turn out to be better than the choice, at least one, and those that it consists of."""
        totals = {name: sum(times) for name, times in self.times}
        most = _CONTENDERS * min(totals.values())
        best = min(filter(None, totals), key=totals.__getitem__, default="")
        return [name for name, total in totals.items() if name and (name in (*self.names, best) or total <= most)]

    def lines(self, compiled: CompiledKernel, parts: Sequence[Sequence[str]]) -> list[str]:
        """Return a sentence for each part that has alternatives."""
        by_task = len(parts) == len(self.counts) == len(compiled.tasks) and len(parts) > 1
        lines = []
        for k, (chosen, part) in enumerate(zip(self.names, parts)):
            measured = [(name, times[k]) for name, times in self.times if times[k] and (not name or name in part)]
            if not part or not measured:
                continue
            counts = [self.counts[k]] if by_task else self.counts
            extents = " and ".join(f"{count:,}" for count in counts if count is not None and count > 1)
            task = f"task {compiled.tasks[k].name}, " if by_task else ""
            shown = ", ".join(f"{_called(name)} {time / 1e6:.3f} ms" for name, time in measured)
            lines.append(f"{task}measured{f' for about {extents} iterations' if extents else ''}: {_called(chosen)} chosen; {shown}")
        return lines


def _called(name: str) -> str:
    return name or "the cost model's code"


@functools.cache
def _decoder() -> Decoder:
    return Reader({Choice.__name__: Choice}).decoder(tuple[Choice, ...])


def decoded(data: bytes) -> tuple[Choice, ...]:
    """Return the choices in ``data``; none if the data are of another version."""
    try:
        return cast("tuple[Choice, ...]", _decoder()(loads(data), ()))
    except Damage:
        return ()


def encode(choices: tuple[Choice, ...]) -> bytes:
    return json.dumps(encoded(choices, [], {Choice.__name__: Choice})).encode()
