"""A tape that follows the sequence of an earlier one: see `launch_sequences`.

While launches are the next ones of the sequence, each copies the same bytes as in the earlier tape, and compiled code launches it; the
reverse pass copies them back and has compiled code launch the derivatives. Python may read numbers in between, and write to the same memory
as in the earlier tape. At anything else (another launch, a launch that takes such a number, another write of the host, memory that is
handed out, a write of another thread), the tape records what was replayed, with its copies, and continues as if it had never known the
sequence.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Sequence
from ctypes import memmove, string_at

from spirograd.ad.chain_breaks import ChainBreaks
from spirograd.ad.entries import Launch
from spirograd.ad.exposed import Exposed
from spirograd.ad.launch_sequences import (
    HostWrite,
    LaunchSequence,
    NotRepeatedError,
    Repeats,
    SequenceWrite,
    StepCopies,
    is_like,
    packed_of,
    repeats_of,
)
from spirograd.ad.memory_keys import FieldOrArray, Key, ProgramRecorder, Returned
from spirograd.ad.nan_check import CheckedRecording
from spirograd.ad.program_outline import ProgramOutline
from spirograd.ad.recording import TapeRecording
from spirograd.ad.step_store import StepStore
from spirograd.ad.steps import CallStep
from spirograd.ad.thread_tapes import ForeignWrites, GradientUse
from spirograd.ad.versions import memory_identity
from spirograd.base.launch_cursor import DONE
from spirograd.base.protocols import Allocation, OwnWrites
from spirograd.lang import context
from spirograd.lang.frontend.kernel import Kernel

Place = tuple[Allocation, str]  # memory, as a part of an allocation


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


class ReplayedWrite:
    """A write of the host. ``run``: its reverse on gradients; ``copies``: what it saved, of the memory ``places``."""

    def __init__(self, write: HostWrite, run: Callable[[], None] | None, copies: StepCopies, places: Sequence[Place]) -> None:
        self.write = write
        self._run, self._copies, self._places = run, copies, places

    def contents(self) -> list[memoryview]:
        """Return what it saved."""
        return [memoryview(string_at(at, nbytes)) for at, _, nbytes in self._copies.saves]

    def reverse(self) -> None:
        """Run the reverse of the write, and put back what it overwrote."""
        if self._run is not None:
            self._run()
        _copy(self._copies.after)
        for allocation, part in self._places:
            allocation.wrote(part)


Between = tuple[int, "CallStep | ReplayedWrite"]


class SequenceReplay:
    """The launches of a tape that follows ``sequence``. ``own``: the writes of its thread; ``exposed``: what it knows of memory that was
    handed out; ``claim``: claims gradients for it; ``drawn``: gives the number by which a launch draws random numbers, None for one of its
    own. ``ended``: whether the tape follows the sequence no longer. ``between``: reads of
    numbers and writes of the host, each with the number of launches before.

    Compiled code compares launches, and counts and keeps them in the cursor of the sequence. Python sees those that it does not know.
    """

    def __init__(
        self,
        sequence: LaunchSequence,
        own: OwnWrites,
        exposed: Exposed,
        claim: Callable[[Iterable[FieldOrArray]], None],
        drawn: Callable[[int], int | None],
    ) -> None:
        self.sequence = sequence
        self._own, self._exposed, self._claim, self._drawn = own, exposed, claim, drawn
        self._by_python: dict[int, Launch] = {}  # with the arguments, and the random numbers, that their reverses take
        self._steps = sequence.steps
        self._cursor = sequence.cursor
        self.between: list[Between] = []
        self._written = 0  # how many writes of the sequence were done
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
        """Whether all launches and writes of the sequence have run."""
        return self.count() == len(self._steps) and self._written == len(self.sequence.writes)

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
        if (launch is None and not step.calls.by_python) or self._exposed.active or not self._own.is_complete():
            return False
        if step.kernel is not kernel or not is_like(args, step.key) or self._awaits(number) is not None:
            return False
        if step.calls.by_python and not (step.specialization.constant or step.specialization.holds(args)):
            return False
        if step.asks:
            self._claim([memory for reference in step.claims if (memory := reference()) is not None])
            self._cursor.allow(number)
        if launch is None:
            return self._launch_by_python(number, args)
        return launch(args) is not NotImplemented

    def _launch_by_python(self, number: int, args: tuple[object, ...]) -> bool:
        """Make the copies of a launch, and do it, if it uses the memory that it used in the earlier tape; return whether it does."""
        launch = self._launch_of(number, args)
        if packed_of(launch) != self._steps[number].packed:
            return False
        assert self._bound is not None
        _copy(self._bound.steps[number].saves)
        launch.number = self._drawn(number)
        self._by_python[number] = launch
        try:
            launch.run()
            launch.specialization.finish(launch.packer)
        finally:
            self._args.append(args)
            self._cursor[DONE] = number + 1
        return True

    def _launch_of(self, number: int, args: tuple[object, ...], form: type[Launch] = Launch) -> Launch:
        """Return a launch of the sequence; one that Python has done with its arguments of then."""
        session, step, known = self.sequence.session, self._steps[number], self._by_python.get(number)
        packer = step.kernel.pack(session, step.specialization, args) if known is None else known.packer
        launch = form(session, step.kernel, step.specialization, packer, args)
        if known is not None:
            launch.number = known.number
        return launch

    def _awaits(self, number: int) -> SequenceWrite | None:
        """Return the write that comes after ``number`` launches, if it has not been done."""
        writes = self.sequence.writes
        return writes[self._written] if self._written < len(writes) and writes[self._written].after == number else None

    def write(self, write: HostWrite, reverse: Callable[[], None] | None) -> bool:
        """Save what the host is about to overwrite if its write is the next one of the sequence; return whether it is. ``reverse``: what
        the reverse pass does about gradients."""
        number = self.count()
        expected = self._awaits(number)
        known = not self.ended and expected is not None and expected.key == write.key
        if not known or self._exposed.active or not self._own.is_complete():
            return False
        assert self._bound is not None and expected is not None
        copies = self._bound.writes[self._written]
        _copy(copies.saves)
        places = [self._places[copy.memory] for copy in expected.copies]
        self.between.append((number, ReplayedWrite(write, reverse, copies, places)))
        self._written += 1
        return True

    def read(self, step: CallStep) -> None:
        """Keep a read of numbers."""
        self.between.append((self.count(), step))

    def used(self) -> Iterator[FieldOrArray]:
        """Yield the fields and ndarrays of the launches and writes so far."""
        yield from (memory for launch in self.launches() for memory in launch.used())
        for _, done in self.between:
            yield from done.write.memories() if isinstance(done, ReplayedWrite) else ()

    def launches(self) -> Iterator[Launch]:
        """Yield the launches so far."""
        return (self._launch_of(number, args, ReplayedLaunch) for number, args in enumerate(tuple(self._args)))

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
        between = [*self.between]
        walk = self.sequence.walk(bound, [(allocation.generations, part) for allocation, part in self._places])
        _copy(bound.end)
        try:
            walk.begin(self._args)
            left = len(self._args)
            while left or between:
                while between and between[-1][0] == left:
                    between.pop()[1].reverse()
                if left:
                    left = walk.run(between[-1][0] if between else 0, self._reverse_by_python)
        finally:
            _copy(bound.restore)
            for allocation, part in self._places:
                allocation.wrote(part)

    def _reverse_by_python(self, number: int) -> None:
        launch = self._launch_of(number, self._args[number])
        self._steps[number].gradient.launch(launch.again(), None, launch.number)


def _overwrite(recorded: TapeRecording, contents: Sequence[memoryview]) -> None:
    """Have the copies of the last event hold these ``contents``."""
    for (_, saved), data in zip(recorded.events[-1].saved, contents, strict=True):
        saved.overwrite(data)


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
    _entries: list[Launch | HostWrite] | None = None  # of a tape that others may repeat, else None
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

    def _drawn_by(self, number: int) -> int | None:
        """Return the number by which a launch of a sequence draws random numbers, None for one of its own."""
        return None

    def _may_repeat(self) -> None:
        """Have the tape follow a sequence, or have others follow its launches, if compiled code can do that in this session."""
        native = context.session().native
        if native is not None and native.on_host and isinstance(self._recorded, TapeRecording) and self._recorded.check is None:
            self._entries = []

    def _follow(self, kernel: Kernel, args: Sequence[object]) -> bool:
        """Launch ``kernel``, as `repeat` does. The first launch of a tape decides which sequence it follows."""
        if self._following is None:
            self._begin_following(kernel)
        if self._following is None:
            return False
        if self.repeat(kernel, tuple(args)):
            return True
        self._settle(self._following)
        return False

    def _begin_following(self, first: Kernel | FieldOrArray) -> None:
        """Follow the sequence that begins with a launch of ``first``, or a write to it, if there is one and nothing came before."""
        recorded = self._recorded
        if self._repeats is not None or self._entries is None or self._foreign is None or self._exposed is None:
            return
        self._repeats = repeats_of(first)
        sequence = self._repeats.sequence
        is_first = isinstance(recorded, TapeRecording) and not recorded.events and self._paused is None
        if not is_first or sequence is None or sequence.session is not context.session():
            return
        if isinstance(recorded, CheckedRecording):
            if sequence.writes:
                return
            recorded.begin([memory for reference in sequence.written if (memory := reference()) is not None])
        self._following = SequenceReplay(sequence, self._foreign.own, self._exposed, self._gradients.use, self._drawn_by)

    def _follow_write(self, write: HostWrite, reverse: Callable[[], None] | None) -> bool:
        """Return whether a write of the host, which comes next, is the next one of the sequence that the tape follows."""
        if self._following is None:
            self._begin_following(memory_identity(write.memory)[1])
        if self._following is None:
            return False
        if self._following.write(write, reverse):
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
        between = collections.deque(replay.between)
        for number, (launch, contents) in enumerate(replay.launched()):
            self._record_between(between, number, recorded)
            self._gradients.launch(launch)
            self._launch(launch, exposed)
            _overwrite(recorded, contents)
        self._record_between(between, None, recorded)
        replay.end()
        self._repeats.missed()

    def _record_between(self, between: collections.deque[Between], number: int | None, recorded: TapeRecording) -> None:
        """Record the reads and writes that were replayed after ``number`` launches, or (None) all of them."""
        while between and number in (None, between[0][0]):
            done = between.popleft()[1]
            if isinstance(done, ReplayedWrite):
                write = done.write
                self.host_write(write.memory, write.index, write.clear, write.source, write.repeat)
                _overwrite(recorded, done.contents())
            else:
                self._read(done)

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
        entries, recorded, repeats = self._entries, self._recorded, self._repeats
        if not entries or repeats is None or self._following is not None or not isinstance(recorded, TapeRecording):
            return None
        if isinstance(recorded, CheckedRecording) and any(isinstance(entry, HostWrite) for entry in entries):
            return None  # It runs launches again by themselves.
        events = [event for event in recorded.events if not event.is_read]
        is_plain = len(events) == len(entries) and not any(entry.external for entry in entries if isinstance(entry, Launch))
        if not is_plain or self._exposed is None or self._exposed.active or not repeats.is_repeated(entries):
            return None
        try:
            return LaunchSequence(entries, events, recorded.report(), self._active_outputs, self._breaks, self._outline)
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
