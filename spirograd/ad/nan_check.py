"""`Tape(nan_check=True)`: the first operation of a program that makes a NaN or an infinity, in its values or in their derivatives.

The program runs as always; only the loss and the final gradients are tested. NaN spreads, so these show whether there was any that matters.
If there was, the program runs again from its beginning, and all that its launches read is kept, so that each can run again on memory as it
was. The one that made the number runs as a kernel that checks each operation (`autodiff.number_checks`), which names the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from spirograd.ad.entries import Launch, LaunchAccess, TapeEvent, derivative_footprint_of
from spirograd.ad.losses import FieldLoss, Loss
from spirograd.ad.memory_keys import FieldOrArray, Key, Returned
from spirograd.ad.recording import TapeRecording
from spirograd.ad.steps import CallStep, LaunchStep, Step, WriteStep, parts_of
from spirograd.ad.undo_log import UndoLog
from spirograd.ad.validation import kept
from spirograd.ad.versions import Saved, Stored, memory_identity
from spirograd.autodiff.derivative import Derivative
from spirograd.autodiff.differentiate import differentiate
from spirograd.autodiff.number_checks import checking_numbers
from spirograd.base.arguments import Plan
from spirograd.base.arrays import Array
from spirograd.base.errors import SpirogradAssertionError, render
from spirograd.base.loc import Loc
from spirograd.base.nesting import Nesting
from spirograd.base.records import replace
from spirograd.derivatives.specialized import SpecializedDerivative
from spirograd.lang import context

if TYPE_CHECKING:
    from spirograd.lang.data.device_arrays import Tensor


class CheckedDerivative(SpecializedDerivative):
    """A derivative that fails at the first step which makes a NaN or an infinity of finite numbers."""

    def derived(self, nesting: Nesting | None) -> Derivative:
        """See `SpecializedDerivative.derived`."""
        target = self._target
        options = replace(target.compile_options, locate_infinities=True)
        return differentiate(self.primal.kernel, "reverse", self.shadow, target.caps, options, nesting)


class CheckedRecording(TapeRecording):
    """A recording that tests the loss and the gradients. It knows how the program began, and can run it again."""

    repeats = "`Tape(nan_check=True)`"

    def __init__(self, loss: FieldOrArray | None) -> None:
        super().__init__()
        self._loss = loss
        self._steps: list[Step] = []
        self._begin = UndoLog()
        self._stored: dict[Key, Stored] = {}
        self._pending: WriteStep | None = None

    def add(self, step: Step) -> Returned:
        """See `StepStore`."""
        self._note(step)
        return super().add(step)

    def host_write(self, step: WriteStep) -> None:
        """See `StepStore`."""
        self._note(step)
        self._pending = step
        super().host_write(step)

    def _note(self, step: Step) -> None:
        """Complete the last step, if that was a write, and keep what this one overwrites of the memory at the beginning."""
        if self._pending is not None:
            self._pending.settle()
            self._pending = None
        self._begin.before(parts_of(step, self._stored))
        self._steps.append(step)

    def nested(self) -> None:
        """Return None: the steps of `ad.checkpoint` are like others."""

    def replay(self, last: bool) -> None:
        """See `StepStore`. Raises SpirogradAssertionError, with the line, if the loss or a gradient is not finite."""
        self._check(lambda: super(CheckedRecording, self).replay(last), self.used())

    def begin(self, written: Iterable[FieldOrArray]) -> None:
        """Keep memory that compiled code is about to write, in launches that are not added."""
        self._begin.before([(key, Stored(_name(storage), storage), None) for key, storage in map(memory_identity, written)])

    def replay_by(self, reverse: Callable[[], None], launches: Sequence[Launch]) -> None:
        """Do what `replay` does: ``reverse`` runs the reverses of ``launches``, which are not added."""
        self._steps = [LaunchStep(launch, launch.specialization.derivatives["reverse"]) for launch in launches]
        self._check(reverse, (memory for launch in launches for memory in launch.used()))

    def _check(self, reverse: Callable[[], None], used: Iterable[FieldOrArray]) -> None:
        if self._loss is not None and not _is_finite(self._loss):
            _Values(self._again()).find()
            raise SpirogradAssertionError(f"the loss is {self._loss.to_numpy().item()}: no launch of the tape made that of finite numbers")
        gradients = [_Gradient(memory) for memory in {id(memory): memory for memory in used}.values() if memory.has_grad()]
        reverse()
        bad = next((gradient for gradient in gradients if not _is_finite(gradient.storage)), None)
        if bad is not None:
            text = _described(bad.storage)
            for gradient in gradients:
                gradient.before.put()
            _Derivatives(self._again()).find()
            raise SpirogradAssertionError(f"the gradient of `{bad.name}` is {text}")

    def _again(self) -> TapeRecording:
        """Return a recording of the program, which runs again, that keeps all that launches read."""
        self.closed = True
        self._note(CallStep(lambda: None, {}))
        self._begin.restore()
        recording = TapeRecording(keeps_all=True)
        with context.session().without_prints():
            for step in self._steps:
                step.fresh().record(recording)
        return recording


def store_of(nan_check: bool, loss: Loss[FieldOrArray] | Loss[Tensor] | None) -> TapeRecording:
    """Return the recording of a tape with such a loss."""
    return CheckedRecording(loss.storage if isinstance(loss, FieldLoss) else None) if nan_check else TapeRecording()


class _Gradient:
    """The gradient of a field or ndarray. ``before``: what it was before the reverse pass."""

    def __init__(self, memory: FieldOrArray) -> None:
        self.name = _name(memory)
        self.storage: FieldOrArray = memory.grad
        self.before = Saved(Stored(f"{self.name}.grad", self.storage), None)


class _Search:
    """A search for the launch that makes a number that is not finite. ``find`` raises an error that names it."""

    def __init__(self, recording: TapeRecording) -> None:
        self._recording = recording
        self._error: SpirogradAssertionError | None = None
        steps = [event.step for event in recording.events if event.step is not None]
        self._count, self._number = len(steps), len(steps)

    def find(self) -> None:
        """Raise SpirogradAssertionError for the first operation, if there is one."""
        self._recording.visit(self._visit)
        if self._error is not None:
            raise self._error

    def _visit(self, event: TapeEvent) -> None:
        raise NotImplementedError

    def _located(self, launch: Launch, run: Callable[[], object]) -> SpirogradAssertionError | None:
        """Return the error of ``run``, which launches a kernel with checks."""
        try:
            run()
            launch.session.sync()
        except SpirogradAssertionError as error:
            return SpirogradAssertionError(f"{self._which(launch)}: {error}")
        return None

    def _unlocated(self, launch: Launch, problem: str, loc: Loc | None) -> SpirogradAssertionError:
        """Return the error about a launch in which no check fails: an addition in memory made the number, for example."""
        return SpirogradAssertionError(render(f"{self._which(launch)}: {problem}", loc))

    def _which(self, launch: Launch) -> str:
        return f"launch {self._number:,} of {self._count:,} of the tape, of kernel `{launch.kernel.function.__name__}`"


class _Values(_Search):
    """The search for values: the first launch that writes numbers which are not finite, and makes one of finite numbers."""

    def __init__(self, recording: TapeRecording) -> None:
        super().__init__(recording)
        self._plans: dict[int, Plan] = {}  # by the identity of the derivative, which the recording keeps

    def _visit(self, event: TapeEvent) -> None:
        if event.step is None:
            return
        launch, gradient = event.step
        memory = derivative_footprint_of(gradient)
        with kept(launch, launch.packer):
            launch.run()
            bad = next((a for a in memory.writes if not all(map(_is_finite, _memories(launch, [a])))), None)
            text = "" if bad is None else _described(*_memories(launch, [bad]))
        if bad is not None:
            error = self._run_checked(launch, gradient)
            if error is None and all(map(_is_finite, _memories(launch, memory.reads))):
                error = self._unlocated(launch, f"`{bad.name}` becomes {text}", bad.loc)
            self._error = error or self._error
        self._number -= 1

    def _run_checked(self, launch: Launch, gradient: SpecializedDerivative) -> SpirogradAssertionError | None:
        session, plan = launch.session, self._plans.get(id(gradient))
        if plan is None:
            kernel = checking_numbers(launch.specialization.kernel, session.device.caps, session.compile_options)
            plan = self._plans[id(gradient)] = session.prepare(kernel)
        with kept(launch, launch.packer):
            return self._located(launch, lambda: plan.launch(launch.packer, drawn=launch.number))


class _Derivatives(_Search):
    """The search for derivatives: the last launch whose reverse takes finite gradients, and adds others. It runs all reverses again."""

    def _visit(self, event: TapeEvent) -> None:
        if self._error is None and event.reverse is not None:
            if event.step is None:
                event.reverse()
            else:
                self._reverse(event.reverse, *event.step)
        self._number -= event.step is not None

    def _reverse(self, reverse: Callable[[], None], launch: Launch, gradient: SpecializedDerivative) -> None:
        gradients = [_Gradient(memory) for memory in {id(m): m for m in launch.used()}.values() if memory.has_grad()]
        reverse()
        bad = next((one for one in gradients if not _is_finite(one.storage)), None)
        if bad is None:
            return
        text = _described(bad.storage)
        for one in gradients:
            one.before.put()
        checked = CheckedDerivative(launch.session, launch.kernel, launch.specialization, "reverse")
        error = self._located(launch, lambda: checked.launch(launch.again(), None, launch.number))
        loc = gradient.primal.kernel.loc
        self._error = error or self._unlocated(launch, f"the gradient of `{bad.name}` becomes {text}", loc)


def _memories(launch: Launch, accesses: Sequence[LaunchAccess]) -> Iterator[FieldOrArray]:
    """Yield the fields and ndarrays of floats that a launch accesses."""
    for access in accesses:
        storage = launch.memory(access)[1]
        if storage is not None and storage.dtype.is_float:
            yield storage


def _name(memory: FieldOrArray) -> str:
    return getattr(memory, "name", "an ndarray")


def _is_finite(memory: FieldOrArray) -> bool:
    return bool(np.isfinite(memory.to_numpy()).all())


def _described(memory: FieldOrArray) -> str:
    """Return the first number of memory that is not finite, with its index."""
    contents: Array = memory.to_numpy()
    index = tuple(int(k) for k in np.argwhere(~np.isfinite(contents))[0])
    return f"{contents[index]}" + (f" at index {list(index)}" if index else "")
