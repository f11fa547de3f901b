"""A tape that follows the sequence of an earlier one: see `launch_sequences`.

While launches are the next ones of the sequence, each copies the same bytes as in the earlier tape, and compiled code launches it; the
reverse pass copies them back and has compiled code launch the derivatives. Python may read numbers in between. At anything else (another
launch, a launch that takes such a number, a write of the host, memory that is handed out, a write of another thread), the tape records the
launches that were replayed, with their copies, and continues as if it had never known the sequence.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Sequence
from ctypes import memmove

from spirograd.ad.chain_breaks import ChainBreaks
from spirograd.ad.entries import Launch
from spirograd.ad.exposed import Exposed
from spirograd.ad.launch_sequences import LaunchSequence, NotRepeatedError, Repeats, is_like, repeats_of
from spirograd.ad.memory_keys import FieldOrArray, Key, ProgramRecorder, Returned
from spirograd.ad.nan_check import CheckedRecording
from spirograd.ad.program_outline import ProgramOutline
from spirograd.ad.recording import TapeRecording
from spirograd.ad.step_store import StepStore
from spirograd.ad.steps import CallStep
from spirograd.ad.thread_tapes import ForeignWrites, GradientUse
from spirograd.base.launch_cursor import DONE
from spirograd.base.protocols import OwnWrites
from spirograd.lang import context
from spirograd.lang.frontend.kernel import Kernel


class ReplayedLaunch(Launch):
    """A launch that has run, to be recorded."""

    __slots__ = ()
    has_run = True

    def run(self) -> Returned:
        """Do nothing."""
        return None

    def fresh(self) -> Launch:
        """Return a launch that runs again."""
        return Launch(self.session, self.kernel, self.specialization, self.packer, self.args)


class SequenceReplay:
    """The launches of a tape that follows ``sequence``. ``own``: the writes of its thread; ``exposed``: what it knows of memory that was
    handed out; ``claim``: claims gradients for it. ``ended``: whether the tape follows the sequence no longer. ``reads``: the numbers that
    Python has read, each with the number of launches before.

    Compiled code compares launches, and counts and keeps them in the cursor of the sequence. Python sees those that it does not know.
    """

    def __init__(self, sequence: LaunchSequence, own: OwnWrites, exposed: Exposed, claim: Callable[[Iterable[FieldOrArray]], None]) -> None:
        self.sequence = sequence
        self._own, self._exposed, self._claim = own, exposed, claim
        self._steps = sequence.steps
        self._cursor = sequence.cursor
        self.reads: list[tuple[int, CallStep]] = []
        self._alive = [reference() for reference in sequence.uses.values()]
        memories = [storage for reference in sequence.memories if (storage := reference()) is not None]
        self.ended = any(value is None for value in self._alive) or not own.is_only()
        self._places = [] if self.ended else [(storage.tree.allocation, storage.view.part) for storage in memories]
        bound = self._bound = None if self.ended else sequence.bind([allocation.address for allocation, _ in self._places])
        if bound is not None and not self._cursor.begin(own, bound.words, len(self._steps)):
            self.end()
        self._args = [] if self.ended else self._cursor.arguments  # One more than launches while a launch runs.

    @property
    def is_complete(self) -> bool:
        """Whether all launches of the sequence have run."""
        return self.count() == len(self._steps)

    def count(self) -> int:
        """Return the number of launches that have run, after a look for writes of other threads that compiled code has found."""
        if self.ended:
            return len(self._args)
        gap = self._cursor.gap()
        if gap is not None:
            self._own.missed(gap)
        done = self._cursor[DONE]
        del self._args[done:]
        return done

    def launch(self, kernel: Kernel, args: tuple[object, ...]) -> bool:
        """Launch ``kernel`` if that is the next launch of the sequence; return whether it was launched."""
        number = self.count()
        if self.ended or number == len(self._steps):
            return False
        step = self._steps[number]
        launch = step.calls.forward.launch
        if launch is None or self._exposed.active or not self._own.is_complete():
            return False
        if step.kernel is not kernel or not is_like(args, step.key):
            return False
        if step.claims:
            self._claim([memory for reference in step.claims if (memory := reference()) is not None])
            self._cursor.allow(number)
        return launch(args) is not NotImplemented

    def read(self, step: CallStep) -> None:
        """Keep a read of numbers."""
        self.reads.append((self.count(), step))

    def used(self) -> Iterator[FieldOrArray]:
        """Yield the fields and ndarrays of the launches so far."""
        return (memory for launch in self.launches() for memory in launch.used())

    def launches(self) -> Iterator[Launch]:
        """Yield the launches so far."""
        session = self.sequence.session
        for step, args in zip(self._steps, tuple(self._args)):
            packer = step.kernel.pack(session, step.specialization, args)
            yield ReplayedLaunch(session, step.kernel, step.specialization, packer, args)

    def launched(self) -> Iterator[tuple[Launch, list[memoryview]]]:
        """Yield the launches so far, and the contents of their copies."""
        self.count()
        bound = self._bound
        for step, launch in zip(self._steps, self.launches()):
            contents = []
            for copy in step.copies:
                assert bound is not None
                data = bytearray(copy.nbytes)
                bound.allocation.read_into(copy.at, memoryview(data))
                contents.append(memoryview(data))
            yield launch, contents

    def close(self) -> None:
        """Give back the cursor of the sequence after the last launch. The copies stay, for any number of reverses."""
        self.count()
        self._args = [*self._args]
        self._cursor.end()
        self.ended = True

    def end(self) -> None:
        """Give back the cursor of the sequence, and the memory of the copies."""
        if not self.ended:
            self.count()
            self._cursor.end()
        self.ended = True
        bound, self._bound = self._bound, None
        if bound is not None:
            self.sequence.give(bound)

    def reverse(self) -> None:
        """Run all reverses, each on memory as it was then; afterwards memory holds what it held."""
        bound = self._bound
        assert bound is not None
        reads = [*self.reads]
        walk = self.sequence.walk(bound, [(allocation.generations, part) for allocation, part in self._places])
        _copy(bound.end)
        try:
            walk.begin(self._args)
            left = len(self._args)
            while left:
                while reads and reads[-1][0] == left:
                    reads.pop()[1].reverse()
                left = walk.run(reads[-1][0] if reads else 0, self._reverse_by_python)
        finally:
            _copy(bound.restore)
            for allocation, part in self._places:
                allocation.wrote(part)

    def _reverse_by_python(self, number: int) -> None:
        session, step, args = self.sequence.session, self._steps[number], self._args[number]
        packer = step.kernel.pack(session, step.specialization, args)
        step.gradient.launch(Launch(session, step.kernel, step.specialization, packer, args).again(), None, None)


def _copy(addresses: Sequence[tuple[int, int, int]]) -> None:
    for to, of, nbytes in addresses:
        memmove(to, of, nbytes)


class FollowsSequences(ProgramRecorder):
    """The part of a tape that follows sequences of earlier tapes. ``_recorded``: what it has recorded without one."""

    _recorded: StepStore
    _gradients: GradientUse
    _exposed: Exposed | None
    _foreign: ForeignWrites | None
    _active_outputs: set[Key]
    _breaks: ChainBreaks
    _outline: ProgramOutline
    _paused: object
    _following: SequenceReplay | None = None
    _launches: list[Launch] | None = None  # of a tape that others may repeat, else None
    _repeats: Repeats | None = None

    @property
    def _steps(self) -> StepStore:
        """The steps of the tape, all of them recorded."""
        if self._following is not None:
            self._settle(self._following)
        return self._recorded

    def repeat(self, kernel: Kernel, args: tuple[object, ...]) -> bool:
        """Launch ``kernel`` if the tape follows a sequence of which that is the next launch. See `Recorder`."""
        return self._following is not None and self._following.launch(kernel, args)

    def _launch(self, launch: Launch, exposed: Exposed) -> Returned:
        raise NotImplementedError

    def _may_repeat(self) -> None:
        """Have the tape follow a sequence, or have others follow its launches, if compiled code can do that in this session."""
        native = context.session().native
        if native is not None and native.on_host and isinstance(self._recorded, TapeRecording) and self._recorded.check is None:
            self._launches = []

    def _follow(self, kernel: Kernel, args: Sequence[object]) -> bool:
        """Launch ``kernel``, as `repeat` does. The first launch of a tape decides which sequence it follows."""
        recorded = self._recorded
        if self._repeats is None and self._launches is not None and self._foreign is not None and self._exposed is not None:
            self._repeats = repeats_of(kernel)
            sequence = self._repeats.sequence
            is_first = isinstance(recorded, TapeRecording) and not recorded.events and self._paused is None
            if is_first and sequence is not None and sequence.session is context.session():
                if isinstance(recorded, CheckedRecording):
                    recorded.begin([memory for reference in sequence.written if (memory := reference()) is not None])
                self._following = SequenceReplay(sequence, self._foreign.own, self._exposed, self._gradients.use)
        if self._following is None:
            return False
        if self.repeat(kernel, tuple(args)):
            return True
        self._settle(self._following)
        return False

    def _reverse_sequence(self, replay: SequenceReplay) -> None:
        """Run the reverse pass of a tape that has followed a sequence to its end."""
        if isinstance(self._recorded, CheckedRecording):
            self._recorded.replay_by(replay.reverse, [*replay.launches()])
        else:
            replay.reverse()

    def _settle(self, replay: SequenceReplay) -> None:
        """Record the launches that were replayed, and follow the sequence no longer."""
        self._following, recorded, exposed = None, self._recorded, self._exposed
        assert isinstance(recorded, TapeRecording) and exposed is not None and self._repeats is not None
        reads = collections.deque(replay.reads)
        for number, (launch, contents) in enumerate(replay.launched(), 1):
            self._gradients.launch(launch)
            self._launch(launch, exposed)
            for (_, saved), data in zip(recorded.events[-1].saved, contents, strict=True):
                saved.overwrite(data)
            while reads and reads[0][0] == number:
                self._read(reads.popleft()[1])
        replay.end()
        self._repeats.missed()

    def _read(self, step: CallStep) -> None:
        """Record a read of numbers."""
        if self._following is not None:
            self._following.read(step)
            return
        self._recorded.add(step)
        if isinstance(self._recorded, TapeRecording):
            self._recorded.events[-1].is_read = True

    def _end_sequence(self, loss: Key) -> LaunchSequence | None:
        """Before the reverse pass, record the launches of a tape that has not followed its sequence to the end, or with zero gradients.

        Return the launches of the tape as a new sequence, if they are those of the last tape.
        """
        following = self._following
        if following is not None and not (following.is_complete and loss in following.sequence.active_outputs):
            self._settle(following)
        launches, recorded, repeats = self._launches, self._recorded, self._repeats
        if not launches or repeats is None or self._following is not None or not isinstance(recorded, TapeRecording):
            return None
        events = [event for event in recorded.events if not event.is_read]
        is_plain = len(events) == len(launches) and not any(launch.external for launch in launches)
        if not is_plain or self._exposed is None or self._exposed.active or not repeats.is_repeated(launches):
            return None
        try:
            return LaunchSequence(launches, events, recorded.report(), self._active_outputs, self._breaks, self._outline)
        except NotRepeatedError:
            repeats.missed()
            return None

    def _repeat_later(self, sequence: LaunchSequence | None) -> None:
        """Have later tapes follow ``sequence``, after the reverse pass."""
        if sequence is None or self._repeats is None:
            return
        try:
            sequence.compile()
            self._repeats.sequence = sequence
        except NotRepeatedError:
            self._repeats.missed()
