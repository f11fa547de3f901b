"""`Tape`: records launches of kernels, and replays them backwards for gradients."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from spirograd.ad.chain_breaks import ChainBreaks
from spirograd.ad.drawing import TapeDrawing, drawing
from spirograd.ad.entries import Launch, derivative_footprint_of, footprint_of
from spirograd.ad.exposed import Exposed, WrittenTensors, clear_elements, is_exposed
from spirograd.ad.launch_sequences import HostWrite
from spirograd.ad.limits import limited
from spirograd.ad.losses import FieldLoss, forget_losses, loss_of
from spirograd.ad.memory_keys import FieldOrArray, Generation, Key, Part, Returned
from spirograd.ad.memory_report import MemoryReport
from spirograd.ad.nan_check import store_of
from spirograd.ad.program_outline import ProgramOutline
from spirograd.ad.recording import TapeRecording
from spirograd.ad.repeated import Repeated
from spirograd.ad.restored import Guard, run_guarded
from spirograd.ad.sequence_replay import FollowsSequences
from spirograd.ad.step_store import StepStore
from spirograd.ad.steps import CallStep, LaunchStep, WriteStep, obstacle
from spirograd.ad.tape_chains import FollowsChains
from spirograd.ad.tape_check import TapeCheck
from spirograd.ad.tape_numbers import FollowsNumbers, TapeNumbers
from spirograd.ad.thread_tapes import ForeignWrites, GradientUse
from spirograd.ad.validation import access_rule
from spirograd.ad.versions import Saved, memory_generation, memory_identity, slice_at
from spirograd.base.errors import SpirogradRuntimeError, SpirogradUnsupportedError, render
from spirograd.base.loc import Loc
from spirograd.base.near_names import NearNames
from spirograd.base.recorder import Clear, R
from spirograd.derivatives.measured_times import average_times
from spirograd.derivatives.specialized import UNFOLLOWED
from spirograd.lang import context
from spirograd.lang.data.numpy_transfer import Array
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.frontend.kernel import Kernel
from spirograd.lang.frontend.specialization import Specialization
from spirograd.lang.frontend.steps import Packer
from spirograd.lang.scalar import describe

if TYPE_CHECKING:
    from spirograd.lang.data.device_arrays import Tensor

logger = logging.getLogger("spirograd")

# Why a tape cannot run its reverse pass any more.
_REPLAYED = "this tape was replayed and has released its launches: make it without `loss`, and call `grad()` as often as you like"
_FAILED = "the reverse pass of this tape ended with an error, and the tape has released its launches: record a new one"
_ABANDONED = "the block of this tape ended with an error, and the tape has released its launches: record a new one"

_INACTIVE = "depends on no memory that has a gradient"
_INACTIVE_HINT = "a number that Python has read outside of the tape, or has converted, has no gradient: have the kernel read the field"


class Tape(FollowsSequences, FollowsChains, FollowsNumbers, NearNames):
    """Record launches of kernels, then compute the gradients of ``loss``: ``with Tape(loss): kernel()``.

    ``loss``: a field, array or torch tensor of one float, with a gradient; the tape sets it to zero on entry. Without it nothing runs at
    the end: set gradients of results and call `grad`. ``clear_gradients``: set all gradients to zero on entry. ``validation``: in debug
    mode, a launch raises SpirogradAssertionError, with the line, where it overwrites an element of memory with a gradient that a launch of
    the tape has read. spirograd saves such memory, and its gradients are right; those of Taichi and Quadrants are not. ``grad_check``: a
    list of fields and ndarrays, whose gradients are compared with central differences at the end, see `TapeCheck`. ``nan_check``: if the
    loss or a gradient is not finite, raise SpirogradAssertionError with the first operation that made it so, see `nan_check`.

    ``checkpoints``: the number of steps (launches, reads and writes of Python) before which memory is saved at a time; the reverse pass
    runs the steps again from there. ``memory_GB``: as many checkpoints as fit into this much memory (1 GB: 1e9 bytes). ``host_GB``,
    ``disk_GB``: more levels of memory for copies, of the host and of files in ``disk_folder``, which are deleted at the end, also after an
    exception. The gradients are the same, bit for bit. Prints are not repeated, random numbers are. Launches of such a tape cannot take
    arrays of NumPy and torch, or use sparse fields.

    Raises SpirogradRuntimeError for a loss that is not one float with a gradient, and for a tape inside another one. A launch raises
    SpirogradCompilationError, with the line, if its kernel has no derivative, or if memory without a gradient breaks the chain.
    """

    returned: object = UNFOLLOWED  # the adjoints of what kernels return
    drawn: int | None = None  # the launch whose random numbers launches draw; None: each its own

    def __init__(
        self,
        loss: object = None,
        clear_gradients: bool = True,
        validation: bool = False,
        grad_check: object = None,
        checkpoints: int | None = None,
        memory_GB: float | None = None,
        host_GB: float | None = None,
        disk_GB: float | None = None,
        disk_folder: str | os.PathLike[str] | None = None,
        nan_check: bool = False,
    ) -> None:
        self.loss = loss
        self._loss = None if loss is None else loss_of(loss)
        self.clear_gradients = clear_gradients
        self._access_rule = access_rule(validation)
        self._check = None if grad_check is None else TapeCheck(self._loss, grad_check)
        self._recorded: StepStore = limited(checkpoints, memory_GB, host_GB, disk_GB, disk_folder, nan_check) or store_of(
            nan_check, self._loss
        )
        # Memory without a gradient whose values depend on active inputs: the writer, the line, and what keeps the memory alive.
        self._inactive: dict[Key, tuple[str, Loc | None, object]] = {}
        self._breaks, self._outline = ChainBreaks(), ProgramOutline()
        self._outer: Guard | None = None  # of the gradient function that this tape is in
        # Inside of functions that are not recorded: the memory that their kernels use, by key and slice.
        self._paused: list[dict[tuple[Key, Part | None], tuple[str, FieldOrArray]]] | None = None
        self._active_outputs: set[Key] = set()
        self._constant: dict[Key, tuple[str, str]] = {}  # memory with values without gradients: the reason, and a hint
        self._released: MemoryReport | None = None
        self._ended = ""  # once that is set: why `grad` cannot run
        self._exposed: Exposed | None = None
        self._tensors = WrittenTensors(self._changed_tensor)
        self._numbers = TapeNumbers("" if grad_check is None else "`grad_check` runs launches again with other values, but not Python")
        self._gradients = GradientUse(clear_gradients)
        self._foreign: ForeignWrites | None = None  # while the tape is open
        self._left: dict[Key, Generation] | None = None  # once the tape is closed: memory that the reverse needs -> generations

    def __repr__(self) -> str:
        return "<Tape without a loss>" if self.loss is None else f"<Tape of the loss {self.loss!r}>"

    def __enter__(self) -> Tape:
        outer = context.recorder()
        if outer is not None and not isinstance(outer, Guard):
            raise SpirogradRuntimeError("a tape cannot be opened inside of another one, or of a `FwdMode`: end that block first")
        if outer is not None and self.clear_gradients:
            hint = "`Tape(clear_gradients=False)` adds to what there is"
            raise SpirogradRuntimeError(render("a tape in a gradient function would clear the gradients that it continues", None, hint))
        self._outer = outer
        if self._exposed is not None or self._released is not None:
            raise SpirogradRuntimeError("a tape records once: make a new one")
        if outer is None:
            forget_losses(self.clear_gradients)
        self._gradients.begin()
        try:
            self._begin_recording()
        except BaseException:
            self._end_use()
            raise
        return self

    def _begin_recording(self) -> None:
        if self._loss is not None:
            self._loss.clear()
        self._foreign = ForeignWrites(context.session().own_writes())
        self._exposed = Exposed(self._used, self._unseen_write)
        alone = type(self) is Tape and self._outer is None and self._access_rule is None and self._check is None
        if alone and isinstance(self._loss, FieldLoss):
            self._may_repeat()
        context.set_recorder(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        context.set_recorder(self._outer)
        self._numbers.record.open = False
        try:
            self._end(kind)
        finally:
            self._end_use()

    def _end_use(self) -> None:
        """Let other threads use the gradients and the memory of this tape."""
        self._gradients.end()
        if self._foreign is not None:
            self._foreign.close()
            self._foreign = None

    def _end(self, kind: type[BaseException] | None) -> None:
        if kind is None and self.loss is not None:
            try:
                self._reverse_at_end()
            except BaseException:
                self._release(_FAILED)
                raise
        if kind is not None:
            self._release(_ABANDONED)
        elif self.loss is not None:
            self._release(_REPLAYED)
        else:
            self._look()
            self._check_others()
            self._left = self._generations()

    def _reverse_at_end(self) -> None:
        sequence = None if self._loss is None else self._end_sequence(self._loss.key)
        if self._check is not None:
            self._check.begin()
        self._run_reverse(last=True)
        if self._check is not None:
            self._check.run()
        self._repeat_later(sequence)

    def grad(self) -> None:
        """Run the reverse pass of the recorded launches, starting from 1 for the gradient of the loss, or without a loss from the gradients
        that are set. Raises SpirogradRuntimeError if memory that it needs was written after the block, or if a tape with a loss has run.
        """
        if self._released is not None:
            raise SpirogradRuntimeError(self._ended)
        self._run_reverse(last=False)

    def _run_reverse(self, last: bool) -> None:
        """Run the reverse pass. ``last``: the tape is released afterwards."""
        self._look()
        if self._left is None:
            self._check_others()
        self._check_left()
        if self._loss is not None and self._following is None:
            self._warn_without_active_output(self._loss.key)
        self._gradients.reverse()
        try:
            with contextlib.nullcontext() if self._exposed is None else self._exposed.replaying():
                self._replay(last)
        finally:
            self._gradients.end()
        if self._loss is not None and self._outer is None:
            self._loss.leave()
        if self._left is not None:
            self._left = self._generations()

    def _replay(self, last: bool) -> None:
        """Run all reverses, each on memory as it was then; afterwards memory holds what it held."""
        recorder = context.set_recorder(None)
        self._numbers.record.begin()
        try:
            if self._loss is not None:
                self._loss.seed()
            if self._following is not None and (last or self._left is not None):
                self._reverse_sequence(self._following)
            else:
                self._steps.replay(last)
        except BaseException:
            if self._recorded.closed:
                self._release(_FAILED)
            raise
        finally:
            context.set_recorder(recorder)

    def _warn_without_active_output(self, key: Key) -> None:
        """Tell the user, with the reason, that no gradient flows from the loss."""
        if key not in self._active_outputs:
            reason, hint = self._constant.get(key, ("no kernel that the tape recorded writes the loss", ""))
            logger.warning(render(f"all gradients are zero: {reason}", None, hint))

    def memory_report(self) -> MemoryReport:
        """Return the bytes that the tape has saved, by field and array. For a tape with checkpoints, also how often steps run again: before
        the reverse pass as planned, after it as counted."""
        if self._released is not None:
            return self._released
        if self._following is not None and self._following.is_complete:
            return self._following.sequence.report
        return self._steps.report()

    def show(self, file: str | os.PathLike[str] | None = None) -> TapeDrawing:
        """Return a drawing of the program, as SVG, which notebooks show: its kernels, with their launches and (with
        ``init(kernel_profiler=True)``) times, the memory that they use, and what the tape saves of it. ``file``: where to write it, too.
        """
        shown = drawing(self._outline, self.memory_report(), average_times())
        if file is not None:
            shown.save(file)
        return shown

    def _release(self, why: str) -> None:
        self._released, self._ended = self.memory_report(), why
        if self._following is not None:
            self._breaks.include(self._following.sequence.breaks)
            self._outline = self._following.sequence.outline
            self._following.end()
            self._following = None
        self._recorded.close()
        self._recorded = TapeRecording()
        self._entries = None
        self._exposed = None
        self._tensors = WrittenTensors(self._changed_tensor)
        self._inactive = {}

    # --- recording -------------------------------------------------------------------------------------------------------

    def launch(self, kernel: Kernel, specialization: Specialization, packer: Packer, args: Sequence[object]) -> Returned:
        """Launch ``kernel`` and record it: its ``specialization``, with ``args`` as the ``packer`` has them. See `Recorder`."""
        if self._follow(kernel, args):
            return None
        session = context.session()
        launch = Launch(session, kernel, specialization, packer, args)
        exposed = self._exposed
        assert exposed is not None
        if self._outer is not None:
            self._outer.writes(launch)
        self._gradients.launch(launch)
        foreign = self._foreign
        if foreign is not None and not foreign.are_none():
            for access in footprint_of(specialization).used:
                foreign.check(*launch.memory(access))
        return self._launch(launch, exposed)

    def _launch(self, launch: Launch, exposed: Exposed) -> Returned:
        session, packer = launch.session, launch.packer
        if self._paused is not None:
            return self._launch_aside(launch, exposed)
        gradient = launch.kernel.grad.of(session, launch.specialization)
        gradient.warn()
        memory = derivative_footprint_of(gradient)
        drawn = self.drawn
        if drawn is not None:
            launch.number = drawn
        self._check_repeatable(launch)
        if exposed.active and not launch.has_run:
            exposed.before(launch, memory.accesses)
        if launch.external:
            self._tensors.before(launch)
            self._breaks.arrays(gradient.label, memory, launch)
        self._breaks.kernel(gradient)
        self._outline.launch(launch, memory, gradient.acts)
        self._report_broken_chains(gradient, memory, launch)
        if self._access_rule is not None:
            self._access_rule.check(gradient, launch, packer)
        if self._check is not None:
            self._check.before(launch)
        values = self._recorded.add(LaunchStep(launch, gradient, self.returned))
        if self._entries is not None:
            self._entries.append(launch)
        if self._check is not None:
            self._check.after(launch)
        if exposed.active and not launch.has_run:
            exposed.after(launch, memory.writes)
        if gradient.acts:
            for access in memory.active_outputs:
                self._active_outputs.add(launch.key(access))
            if launch.external:
                self._tensors.after(launch, memory.active_outputs)
        for access in memory.constant_writes:
            self._constant[launch.key(access)] = (f"what {gradient.label} writes to the loss {_INACTIVE}", _INACTIVE_HINT)
        return values

    def _launch_aside(self, launch: Launch, exposed: Exposed) -> Returned:
        """Launch a kernel that is not recorded. What it overwrites is saved all the same."""
        memory = footprint_of(launch.specialization)
        self._check_repeatable(launch)
        self._tensors.before(launch)
        if exposed.active:
            exposed.before(launch, memory.used)
        if self._check is not None:
            self._check.before(launch)
        step = LaunchStep(launch)
        assert self._paused is not None
        self._paused[-1].update(step.parts())
        values = self._steps.add(step)
        for access in memory.written:
            self._constant.setdefault(launch.key(access), ("only functions that are not differentiated write the loss", ""))
        if self._check is not None:
            self._check.after(launch)
        if exposed.active:
            exposed.after(launch, memory.written)
        self._tensors.after(launch, memory.written)
        return values

    def _check_repeatable(self, launch: Launch) -> None:
        """Raise if the tape runs launches again, which this one does not allow."""
        repeats = self._steps.repeats
        reason = obstacle(launch, is_exposed) if repeats else None
        if reason is not None:
            kernel = launch.specialization.kernel
            raise SpirogradUnsupportedError(f"{repeats} runs launches again, and kernel `{kernel.name}` {reason[0]}", kernel.loc, reason[1])

    # --- the host ----------------------------------------------------------------------------------------------------------

    def host_write(
        self, memory: FieldOrArray, key: object, clear: Clear, source: FieldOrArray | None, repeat: Callable[[], None] | None
    ) -> None:
        """Record a write of the host to the element ``key`` of ``memory``, a copy of ``source`` if there is one; ``clear`` its gradient
        in the reverse pass; ``repeat`` writes it again. See `Recorder`.
        """
        if isinstance(memory, ScalarField) and memory.role != "primal":
            return
        name, storage = memory_identity(memory)
        if key is None:
            self._inactive.pop(name, None)
        reverse: Callable[[], None] | None = clear if self._paused is None and memory.has_grad() else None
        if source is not None and self._paused is None:
            reverse = self._follow_copy(memory, source, reverse)
        write = HostWrite(memory, key, clear, source, repeat)
        if self._follow_write(write, reverse):
            return
        at = slice_at(key)
        if self._outer is not None:
            self._outer.save(memory, at)
        if self._check is not None:
            self._check.host_write(memory)
        self._check_other(name, storage)
        self._outline.host_write(memory)
        if source is None:
            self._breaks.imported(memory)
        if self._exposed is not None and self._exposed.active:
            self._exposed.look(name, at)
        step = WriteStep((name, getattr(memory, "name", "an ndarray"), storage), at, reverse, repeat)
        self._steps.host_write(step)
        if self._entries is not None and self._paused is None:
            self._entries.append(write)

    def _used(self) -> Iterator[FieldOrArray]:
        """Yield the fields and ndarrays of the launches so far."""
        return self._recorded.used() if self._following is None else self._following.used()

    def _look(self) -> None:
        """Look for writes to memory that was handed out, and to tensors."""
        if self._exposed is not None and self._exposed.active:
            self._exposed.look_everywhere()
        if self._left is None:
            self._tensors.look_everywhere()

    def _unseen_write(self, key: Key, storage: FieldOrArray, before: Saved, changed: Array) -> None:
        """Record a write of the host to memory that was handed out: see `Exposed`. After the tape was closed it has no reverse."""
        clears = self._left is None and self._paused is None and storage.has_grad()
        self._breaks.replaced(describe(storage))
        self._steps.unseen_write(key, before, (lambda: clear_elements(storage.grad, changed)) if clears else None)
        if changed.all():
            self._inactive.pop(key, None)

    def _changed_tensor(self, tensor: Tensor, changed: Array) -> None:
        """End the gradients of the elements of a tensor that torch or NumPy replaced."""

        def clear() -> None:
            if tensor.grad is not None:
                gradient = tensor.grad.detach()
                gradient.masked_fill_(gradient.new_tensor(changed).bool(), 0.0)

        self._breaks.replaced("a tensor of torch")
        if self._paused is None:
            self._steps.add(CallStep(clear, {}))

    def _check_others(self) -> None:
        """Raise if another thread wrote to memory that the reverse needs as it is now."""
        if self._foreign is None or self._foreign.are_none():
            return
        for key, _, storage in self._steps.wanted():
            if self._exposed is None or key not in self._exposed.known:
                self._check_other(key, storage)

    def _check_other(self, key: Key, storage: FieldOrArray) -> None:
        """Raise if another thread wrote to memory that the open tape uses."""
        if self._foreign is not None:
            self._foreign.check(key, storage)

    def _generations(self) -> dict[Key, Generation]:
        """Return the generations of memory that the reverse reads as it is now, and that was not handed out: it must not be written."""
        assert self._exposed is not None
        return {key: memory_generation(storage) for key, _, storage in self._steps.wanted() if key not in self._exposed.known}

    def _check_left(self) -> None:
        """Raise if memory that the reverse needs was written after the tape was closed."""
        for key, name, storage in self._steps.wanted() if self._left else ():
            assert self._left is not None
            if key in self._left and self._left[key] != memory_generation(storage):
                raise SpirogradRuntimeError(
                    render(
                        f"`{name}` was written after the tape was closed, and the gradients need it as it was",
                        None,
                        "call `tape.grad()` before the write, or write inside of the tape, which saves what is overwritten",
                    )
                )

    # --- functions that are not recorded -------------------------------------------------------------------------------------

    @property
    def reverses(self) -> bool:
        """Whether launches are recorded. See `Recorder`."""
        return self._paused is None

    @property
    def checks_gradients(self) -> bool:
        """Whether launches run again with other values: see ``grad_check``."""
        return self._check is not None

    def with_reverse(self, function: Callable[[], R], reverse: Callable[[], None], reads: Sequence[FieldOrArray], saves: bool = False) -> R:
        """Run ``function``, an algorithm of the library, with ``reverse`` as its derivative, which reads memory of ``reads``; ``saves``:
        as of `run_aside`. See `Recorder`."""
        for memory in reads:
            if not memory.has_grad():
                self.numbers_of(memory, "an algorithm")
        return self.run_aside(function, lambda: run_guarded(reverse), saves)

    def nested(self) -> Tape:
        """See `Recorder`."""
        return Tape(clear_gradients=False)

    def run_aside(self, function: Callable[[], R], reverse: Callable[[], None] | None, saves: bool) -> R:
        """Run ``function``, whose launches are not recorded. ``reverse``: runs in their place when the tape is replayed.

        ``saves``: then it finds all memory that they use as they left it.
        """
        if self._following is not None:
            self._settle(self._following)
        self._look()  # what was written before is not part of the function
        outer, self._paused = self._paused, [*(self._paused or []), {}]
        try:
            result = function()
            self._look()
            used = self._paused[-1]
        finally:
            self._paused = outer
        if outer is not None:
            outer[-1].update(used)
            return result
        if reverse is None:
            self._breaks.aside()
        else:
            self._active_outputs.update(key for key, _ in used)
            self._steps.add(CallStep(reverse, used if saves else {}))
        return result

    def run_again(self, function: Callable[[], R]) -> R:
        """Run ``function``, whose launches run again in the reverse pass, to be recorded then. See `checkpoint`."""
        outer = self._steps.nested()
        if self._paused is not None or outer is None:
            return function()
        self._look()
        self._recorded = repeated = Repeated(outer)
        try:
            result = function()
            self._look()
            repeated.settle()
        finally:
            self._recorded = outer
        return result
