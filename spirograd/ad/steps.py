"""The steps of a program that a tape sees: launches, writes of the host, gradients of Python's own.

Each has ``used`` (key, name, and field or ndarray of the memory that it uses), ``written`` (the same for what it writes, and which
index, None for all), ``run`` (do it, any number of times), ``record`` (do it, and record it), ``fresh`` (the same for another recording).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from spirograd.ad.copy_memory import CopyMemory
from spirograd.ad.entries import Launch, derivative_footprint_of, footprint_of
from spirograd.ad.memory_keys import FieldOrArray, Key, Part, Returned
from spirograd.ad.recording import Parts, TapeRecording
from spirograd.ad.undo_log import UndoLog, Written
from spirograd.ad.versions import Saved, Stored, nbytes_of
from spirograd.derivatives.specialized import SpecializedDerivative

Used = tuple[Key, str, FieldOrArray]  # key, name, field or ndarray


class LaunchStep:
    """A launch. ``gradient``: its derivative, None if it is not differentiated. ``returned``: the adjoints of what it returns."""

    def __init__(self, launch: Launch, gradient: SpecializedDerivative | None = None, returned: object = None) -> None:
        self.launch = launch
        self.gradient = gradient
        self._returned = returned

    def used(self) -> Iterator[Used]:
        for access in footprint_of(self.launch.specialization).used:
            key, storage = self.launch.memory(access)
            if storage is not None:
                yield key, access.name, storage

    def parts(self) -> Parts:
        """Return the memory that it uses, by key and slice."""
        launch = self.launch
        memories = ((access, *launch.memory(access)) for access in footprint_of(launch.specialization).accesses)
        return {(key, launch.part(access.at)): (access.name, storage) for access, key, storage in memories if storage is not None}

    def written(self) -> Iterator[tuple[Key, str, FieldOrArray, Part | None]]:
        accesses = (
            footprint_of(self.launch.specialization).writes if self.gradient is None else derivative_footprint_of(self.gradient).writes
        )
        for access in accesses:
            key, storage = self.launch.memory(access)
            if storage is not None:
                yield key, access.name, storage, self.launch.part(access.at)

    def run(self) -> Returned:
        return self.launch.run()

    def saved_nbytes(self) -> int:
        """Return the bytes that the launch saves when it is recorded, if the host knows them before, else 0."""
        return 0 if self.gradient is None else sum(self.gradient.saved_nbytes(self.launch.packer))

    def record(self, recording: TapeRecording) -> Returned:
        """Run the launch and record it in ``recording``, which keeps it: each recording needs a `fresh` one."""
        if self.gradient is None:
            return recording.launch_aside(self.launch)
        return recording.launch(self.gradient, self.launch, self._returned)

    def fresh(self) -> LaunchStep:
        """Return the same step for another recording."""
        return LaunchStep(self.launch.fresh(), self.gradient, self._returned)


class WriteStep:
    """A write of the host to ``storage``, or to its slice ``at``.

    ``reverse``: what its reverse does, None if nothing. ``repeat``: does it again; where it is None, `settle` copies what was written.
    """

    def __init__(
        self,
        memory: Used,
        at: Part | None,
        reverse: Callable[[], None] | None,
        repeat: Callable[[], None] | None = None,
    ) -> None:
        self._memory = memory
        self._at = at
        self._reverse = reverse
        self._repeat = repeat
        self.copy: Saved | None = None

    @property
    def memory(self) -> FieldOrArray:
        """The field or ndarray."""
        return self._memory[2]

    def used(self) -> Iterator[Used]:
        yield self._memory

    def written(self) -> Iterator[tuple[Key, str, FieldOrArray, Part | None]]:
        yield (*self._memory, self._at)

    def settle(self, copy_memory: CopyMemory | None = None) -> None:
        """Copy what was written, unless it can be repeated. ``copy_memory``: where the memory of a copy comes from."""
        if self._repeat is None and self.copy is None:
            stored = Stored(*self._memory[1:])
            self.copy = Saved(stored, stored.part(self._at), None, copy_memory)

    def kept_nbytes(self) -> int:
        """Return the bytes of the copy that `settle` makes."""
        if self._repeat is not None:
            return 0
        stored = Stored(*self._memory[1:])
        return nbytes_of(stored.view(stored.part(self._at)))

    def run(self) -> None:
        if self._repeat is not None:
            self._repeat()
        else:
            assert self.copy is not None, "settle comes first"
            self.copy.put()

    def begin(self, recording: TapeRecording) -> None:
        """Record it before the host does it."""
        recording.write(self._memory[0], self._at, self._reverse)

    def record(self, recording: TapeRecording) -> None:
        self.begin(recording)
        self.run()

    def fresh(self) -> WriteStep:
        return self


class CallStep:
    """A gradient of Python's own, for the steps before it. ``used``: the memory that it reads as it is now."""

    def __init__(self, reverse: Callable[[], None], used: Parts) -> None:
        self.reverse = reverse
        self._used = used

    def used(self) -> Iterator[Used]:
        return ((key, *memory) for (key, _), memory in self._used.items())

    def written(self) -> Iterator[tuple[Key, str, FieldOrArray, Part | None]]:
        return iter(())

    def run(self) -> None:
        """Do nothing: the function runs in the reverse pass only."""

    def record(self, recording: TapeRecording) -> None:
        recording.call(self.reverse, self._used)

    def fresh(self) -> CallStep:
        return self


Step = LaunchStep | WriteStep | CallStep


def obstacle(launch: Launch, exposed: Callable[[FieldOrArray], bool]) -> tuple[str, str] | None:
    """Return what keeps a launch from being repeated with the same result, and what to do about it; None if nothing does."""
    footprint = footprint_of(launch.specialization)
    if launch.external:
        return "takes an array of NumPy or torch, which may have changed by then", "pass an ndarray or a field"
    if footprint.shadows:
        return f"writes `{footprint.shadows[0]}`, which the reverse pass adds to", "set gradients outside of the tape"
    for storage in launch.used():
        name = getattr(storage, "name", "an ndarray")
        if storage.sparse_path is not None:
            return f"uses the sparse field `{name}`, whose active cells are not kept", "use dense fields"
        if exposed(storage):
            hint = "copy it (`to_numpy()`), and give it back by `from_numpy`"
            return f"uses `{name}`, which was handed out by `to_numpy(copy=False)` or DLPack and may have changed by then", hint
    return None


def parts_of(step: Step, stored: dict[Key, Stored]) -> list[Written]:
    """Return the memory that a step writes. ``stored``: known memory by key, to which it is added."""
    parts: list[Written] = []
    for key, name, storage, at in step.written():
        memory = stored.get(key)
        if memory is None:
            memory = stored[key] = Stored(name, storage)
        parts.append((key, memory, memory.part(at)))
    return parts


def reverse_steps(steps: Sequence[Step], log: UndoLog, stored: dict[Key, Stored], copy_memory: CopyMemory | None = None) -> int:
    """Run steps again and record them, then run their reverses; returns the bytes of the recording, in ``copy_memory``. ``log`` is
    extended by what the steps write, and must be restored afterwards: until then memory is in no state that the program had."""
    recording = TapeRecording(copy_memory)
    try:
        for step in steps:
            log.before(parts_of(step, stored))
            step.fresh().record(recording)
        recorded = sum(nbytes for _, nbytes in recording.copies())
        recording.reverse_once()
    finally:
        recording.free()
    return recorded
