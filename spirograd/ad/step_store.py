"""What a tape does with the steps of a program: the protocol of `TapeRecording`, `Checkpoints` and `Repeated`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from spirograd.ad.memory_keys import FieldOrArray, Key, Returned
from spirograd.ad.memory_report import MemoryReport
from spirograd.ad.recording import TapeRecording
from spirograd.ad.steps import Step, Used, WriteStep
from spirograd.ad.versions import Saved


class StepStore(Protocol):
    """Runs the steps of a program, and knows how to reverse them. ``repeats``: what runs launches again, for messages; empty if nothing
    does. ``closed``: whether the reverse pass has failed, so that it cannot run any more."""

    repeats: str
    closed: bool

    def add(self, step: Step) -> Returned:
        """Run a step for the first time; return what it returns."""

    def host_write(self, step: WriteStep) -> None:
        """Prepare for a write of the host, which comes next."""

    def unseen_write(self, key: Key, before: Saved, reverse: Callable[[], None] | None) -> None:
        """Note that the host has replaced the contents ``before`` of memory."""

    def nested(self) -> TapeRecording | None:
        """Return the recording in which the steps of `ad.checkpoint` are one event; None if they are steps like others."""

    def used(self) -> Iterator[FieldOrArray]:
        """Yield the fields and ndarrays of the launches so far."""

    def wanted(self) -> Iterator[Used]:
        """Yield the memory whose current contents the reverse pass reads."""

    def report(self) -> MemoryReport:
        """Return the bytes that are saved."""

    def replay(self, last: bool) -> None:
        """Run all reverses, each on memory as it was then; afterwards memory holds what it held. ``last``: they do not run again."""

    def close(self) -> None:
        """Free the copies. The reverse pass cannot run any more."""
