"""Checks recordings against the table of `saving_rule`: the reverse of each event finds the contents of memory that it is to read.

The check knows nothing of what a recording wants, saves and puts back. When an event happens it notes the contents of the memory that the
reverse reads, and right before the reverse runs it compares: a version that was not saved, or is not there again, is an error. Where a
launch changes nothing that is read, both versions of the memory are right, so the choice that the table makes is checked, too.

It runs with ``SG_CHECK_TAPES=1``, as in all tests: it looks for faults of spirograd, not of programs. It waits for launches, and reads all
memory that reverses read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from spirograd.ad.entries import Launch, LaunchAccess, TapeEvent, derivative_footprint_of
from spirograd.ad.memory_keys import FieldOrArray, Generation, Key, Part
from spirograd.ad.versions import Stored, memory_generation
from spirograd.base import knobs
from spirograd.base.errors import SpirogradAssertionError, render
from spirograd.derivatives.specialized import SpecializedDerivative
from spirograd.lang import context
from spirograd.lang.data import numpy_transfer

_REPORT = "this is a fault of spirograd, and the gradients would be wrong: please report it, with the program"


class RecordingCheck:
    """What the reverses of one recording are to find: digests of memory, by event, memory and slice."""

    def __init__(self) -> None:
        self._expected: dict[int, dict[tuple[Key, Part | None], _Expected]] = {}
        self._events: list[TapeEvent] = []  # kept, so that their numbers stay theirs
        self._known: dict[tuple[Key, Part | None], tuple[Generation, bytes]] = {}  # by memory and part

    def before_launch(self, event: TapeEvent, gradient: SpecializedDerivative, launch: Launch) -> None:
        """Note the contents before a launch, whose derivative is ``gradient``."""
        for access, when, _ in _residuals(gradient):
            if when == "before":
                self._expect_residual(event, launch, access)

    def after_launch(self, event: TapeEvent, gradient: SpecializedDerivative, launch: Launch) -> None:
        """Note the contents after a launch."""
        for access, when, overwritten in _residuals(gradient):
            if when == "after" or not overwritten:
                self._expect_residual(event, launch, access)

    def _expect_residual(self, event: TapeEvent, launch: Launch, access: LaunchAccess) -> None:
        key, storage = launch.memory(access)
        if storage is not None:  # arrays of the host are copied for each launch
            self.expect(event, key, access.name, storage, launch.part(access.at))

    def expect(self, event: TapeEvent, key: Key, name: str, storage: FieldOrArray, at: Part | None) -> None:
        """Note that the reverse of ``event`` may read memory, in the slice ``at`` or (None) all of it, as it is now."""
        expected = self._expected.get(id(event))
        if expected is None:
            expected = self._expected[id(event)] = {}
            self._events.append(event)
        contents = expected.setdefault((key, at), _Expected(name, storage, at))
        contents.digests.add(self._digest(key, contents))

    def compare(self, event: TapeEvent) -> None:
        """Raise SpirogradAssertionError if the reverse of ``event``, which is about to run, would read other contents."""
        for (key, at), expected in self._expected.get(id(event), {}).items():
            if self._digest(key, expected) not in expected.digests:
                where = "" if at is None else f" at index {at[1]} of axis {at[0]}"
                what = f"{event.used[0].specialization.kernel.name}" if event.used else "a function"
                problem = f"a tape does not have `{expected.name}`{where} as the reverse of `{what}` needs it"
                raise SpirogradAssertionError(render(problem, None, _REPORT))

    def _digest(self, key: Key, expected: _Expected) -> bytes:
        allocation = expected.stored.allocation
        part = expected.stored.part(expected.at)
        generation = memory_generation(expected.stored.storage)
        known = self._known.get((key, part))
        if known is None or known[0] != generation or allocation.shared:
            with context.session().unrecorded():
                contents = numpy_transfer.read(allocation, expected.stored.view(part))
            # What a sparse field does not have yet is zero.
            known = (generation, hashlib.blake2b(contents.tobytes().rstrip(b"\0"), digest_size=16).digest())
            self._known[key, part] = known
        return known[1]


class _Expected:
    """Contents that memory may have."""

    def __init__(self, name: str, storage: FieldOrArray, at: Part | None) -> None:
        self.name, self.at = name, at
        self.stored = Stored(name, storage)
        self.digests: set[bytes] = set()


def _residuals(gradient: SpecializedDerivative) -> Sequence[tuple[LaunchAccess, str, bool]]:
    """Return what ``gradient`` reads, when it is there, and whether the kernel overwrites it."""
    accesses = [access for access, _ in derivative_footprint_of(gradient).residuals]
    residuals = gradient.residuals if gradient.acts else ()
    return [(a, r.when, r.overwritten is not None) for a, r in zip(accesses, residuals, strict=True)]


def check_if_wanted() -> RecordingCheck | None:
    """Return a check for a new recording, None where recordings are not checked."""
    return RecordingCheck() if context.has_session() and knobs.flag("SG_CHECK_TAPES") else None
