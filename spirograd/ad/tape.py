"""`Tape`: records launches of kernels, and replays them backwards for gradients."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

from spirograd.ad.entries import Access, DerivativeFootprint, Event, Launch, derivative_footprint_of, footprint_of
from spirograd.ad.exposed import Exposed, WrittenTensors, clear_elements, is_exposed
from spirograd.ad.losses import loss_of
from spirograd.ad.memory_report import MemoryReport
from spirograd.ad.restored import Guard, run_guarded
from spirograd.ad.tape_check import TapeCheck
from spirograd.ad.validation import access_rule
from spirograd.ad.versions import Saved, Versions, memory_identity
from spirograd.base.errors import SpirogradRuntimeError, render
from spirograd.base.near_names import NearNames
from spirograd.gradients.broken_chains import report
from spirograd.gradients.specialized import INACTIVE_HINT, UNFOLLOWED
from spirograd.lang import context
from spirograd.lang.data import shadows, transfer
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.scalar import describe

logger = logging.getLogger("spirograd")

_INACTIVE = "depends on no memory that has a gradient"
_INACTIVE_HINT = "a number that Python reads from a field, as in `kernel(p[None])`, has no gradient: have the kernel read the field"


class Tape(context.Recorder, NearNames):
    """Record launches of kernels, then compute the gradients of ``loss``: ``with Tape(loss): kernel()``.

    ``loss``: a field, array or torch tensor of one float, with a gradient; the tape sets it to zero on entry. Without it nothing runs at
    the end: set gradients of results and call `grad`. ``clear_gradients``: set all gradients to zero on entry. ``validation``: in debug
    mode, a launch raises SpirogradAssertionError, with the line, where it overwrites an element of memory with a gradient that a launch of
    the tape has read. spirograd saves such memory, and its gradients are right; those of Taichi and Quadrants are not. ``grad_check``: a
    list of fields and ndarrays, whose gradients are compared with central differences at the end, see `TapeCheck`.

    Raises SpirogradRuntimeError for a loss that is not one float with a gradient, and for a tape inside another one. A launch raises
    SpirogradCompilationError, with the line, if its kernel has no derivative, or if memory without a gradient breaks the chain.
    """

    returned: Any = UNFOLLOWED  # the adjoints of what kernels return
    drawn: int | None = None  # the launch whose random numbers launches draw; None: each its own

    def __init__(self, loss: Any = None, clear_gradients: bool = True, validation: bool = False, grad_check: Any = None) -> None:
        self.loss = loss
        self._loss = None if loss is None else loss_of(loss)
        self.clear_gradients = clear_gradients
        self._access_rule = access_rule(validation)
        self._check = None if grad_check is None else TapeCheck(self._loss, grad_check)
        self._versions = Versions()
        self._events: list[Event] = []
        # Memory without gradient that has values which depend on active inputs -> who wrote it, where, and what keeps it alive.
        self._inactive: dict[Any, tuple[str, Any, Any]] = {}
        self._outer: Guard | None = None  # of the gradient function that this tape is in
        self._paused: list[set[Any]] | None = None  # inside of functions that are not recorded: what their kernels use
        self._active_outputs: set[Any] = set()
        self._constant: dict[Any, tuple[str, str]] = {}  # memory that launches gave values without gradients -> who did, and what to do
        self._released: MemoryReport | None = None
        self._exposed: Exposed | None = None
        self._tensors = WrittenTensors(self._changed_tensor)
        self._left: dict[Any, Any] | None = None  # once the tape is closed: memory that the reverse needs -> generations

    def __enter__(self) -> Tape:
        outer = context.recorder()
        if outer is not None and not isinstance(outer, Guard):
            raise SpirogradRuntimeError("a tape cannot be opened inside of another one, or of a `FwdMode`: end that block first")
        if outer is not None and self.clear_gradients:
            hint = "`Tape(clear_gradients=False)` adds to what there is"
            raise SpirogradRuntimeError(render("a tape in a gradient function would clear the gradients that it continues", None, hint))
        self._outer = outer
        if self._events or self._released is not None:
            raise SpirogradRuntimeError("a tape records once: make a new one")
        if self.clear_gradients:
            shadows.clear("grad")
        if self._loss is not None:
            self._loss.clear()
        self._exposed = Exposed(self._used, self._unseen_write)
        context.set_recorder(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        context.set_recorder(self._outer)
        if kind is None and self.loss is not None:
            if self._check is not None:
                self._check.begin()
            self.grad()
            if self._check is not None:
                self._check.run()
        if kind is not None or self.loss is not None:
            self._release()
        else:
            self._look()
            self._left = self._generations()

    def grad(self) -> None:
        """Run the reverse pass of the recorded launches, starting from 1 for the gradient of the loss, or without a loss from the gradients
        that are set. Raises SpirogradRuntimeError if memory that it needs was written after the block, or if a tape with a loss has run.
        """
        if self._released is not None:
            raise SpirogradRuntimeError(
                "this tape was replayed and has released its launches: make it without `loss`, and call `grad()` as often as you like"
            )
        self._look()
        self._check_left()
        if self._loss is not None:
            self._warn_without_active_output(self._loss.key)
        with contextlib.nullcontext() if self._exposed is None else self._exposed.replaying():
            self._replay()
        if self._left is not None:
            self._left = self._generations()

    def _replay(self) -> None:
        """Run all reverses, each on memory as it was then; afterwards memory holds what it held."""
        recorder = context.set_recorder(None)
        swapped: list[Saved] = []
        try:
            if self._loss is not None:
                self._loss.seed()
            for event in reversed(self._events):
                _swap([saved for key, saved in event.saved if key in event.before], swapped)
                if event.reverse is not None:
                    event.reverse()
                _swap([saved for key, saved in event.saved if key not in event.before], swapped)
        finally:
            for saved in reversed(swapped):
                saved.swap()
            context.set_recorder(recorder)
        if any(is_exposed(saved.memory.whole) for saved in swapped):
            context.session().sync()  # what was handed out may be written next

    def _warn_without_active_output(self, key: Any) -> None:
        """Tell the user, with the reason, that no gradient flows from the loss."""
        if key not in self._active_outputs:
            reason, hint = self._constant.get(key, ("no kernel that the tape recorded writes the loss", ""))
            logger.warning(render(f"all gradients are zero: {reason}", None, hint))

    def memory_report(self) -> MemoryReport:
        """The bytes that the tape has saved, by field and array, as text."""
        if self._released is not None:
            return self._released
        items: dict[str, tuple[int, int]] = {}
        for event in self._events:
            for name, nbytes in [*((saved.memory.name, saved.nbytes) for _, saved in event.saved), *event.copies]:
                copies, total = items.get(name, (0, 0))
                items[name] = (copies + 1, total + nbytes)
        return MemoryReport(sum(event.launched for event in self._events), items)

    def _release(self) -> None:
        self._released = self.memory_report()
        self._events = []
        self._versions = Versions()
        self._exposed = None
        self._tensors = WrittenTensors(self._changed_tensor)
        self._inactive = {}

    # --- recording -------------------------------------------------------------------------------------------------------

    def launch(self, kernel: Any, specialization: Any, packer: Any, args: Sequence[Any]) -> Any:
        """Launch ``kernel`` and record it: its ``specialization``, with ``args`` as the ``packer`` has them. See `context.Recorder`."""
        session = context.session()
        launch = Launch(session, kernel, specialization, packer, args)
        exposed = self._exposed
        assert exposed is not None
        if self._outer is not None:
            self._outer.writes(launch)
        if self._paused is not None:
            return self._launch_aside(launch, packer, exposed)
        made = kernel.grad.of(session, specialization)
        made.warn()
        memory = derivative_footprint_of(made)
        if exposed.active:
            exposed.before(launch, memory.accesses)
        if launch.external:
            self._tensors.before(launch)
        self._follow(made, memory, launch)
        if self._access_rule is not None:
            self._access_rule.check(made, launch, packer)
        if self._check is not None:
            self._check.before(launch)
        event = Event()
        self._events.append(event)
        for access, when, overwritten in memory.residuals:
            if when == "before":
                self._need(access, launch, event, overwritten)
        self._save(memory.writes, launch, event)
        if made.derivative.saving is not None and made.acts:
            values, launch.number, launch.buffers = made.launch_saving(packer, self.drawn)
            event.copies += [(f"values saved by {made.label}", buffer.allocation.nbytes) for buffer in launch.buffers]
        else:
            values = specialization.plan.launch(packer.scalars, packer.arrays, specialization.trees, drawn=self.drawn)
            launch.number = specialization.plan.last_number if self.drawn is None else self.drawn
        if self._check is not None:
            self._check.after(launch)
        if exposed.active:
            exposed.after(launch, memory.writes)
        for access, when, _ in memory.residuals:
            if when == "after":
                self._need(access, launch, event, False)
        if made.acts:
            self._active_outputs.update(launch.memory(access)[0] for access in memory.active_outputs)
            event.launch, event.launched = launch, True
            if launch.external:
                self._tensors.after(launch, memory.active_outputs)
            returned = self.returned if made.returned else None
            event.reverse = lambda: made.launch(launch.again(), returned, launch.number)
        for access in memory.constant_writes:
            self._constant[launch.memory(access)[0]] = (f"what {made.label} writes to the loss {_INACTIVE}", _INACTIVE_HINT)
        return values

    def _launch_aside(self, launch: Launch, packer: Any, exposed: Exposed) -> Any:
        """The launch of a kernel that is not recorded. What it overwrites is saved all the same."""
        memory = footprint_of(launch.specialization)
        self._tensors.before(launch)
        if exposed.active:
            exposed.before(launch, memory.used)
        event = Event(launch=launch)
        self._events.append(event)
        self._save(memory.written, launch, event)
        for access in memory.written:
            self._constant.setdefault(launch.memory(access)[0], ("only functions that are not differentiated write the loss", ""))
        assert self._paused is not None
        for access in memory.used:
            key, whole = launch.memory(access)
            if whole is not None:
                self._versions.stored(key, access.name, whole)
                self._paused[-1].add(key)
        if self._check is not None:
            self._check.before(launch)
        values = launch.specialization.plan.launch(packer.scalars, packer.arrays, launch.specialization.trees)
        launch.number = launch.specialization.plan.last_number
        if self._check is not None:
            self._check.after(launch)
        if exposed.active:
            exposed.after(launch, memory.written)
        self._tensors.after(launch, memory.written)
        return values

    def _need(self, access: Access, launch: Launch, event: Event, overwritten: bool) -> None:
        key, whole = launch.memory(access)
        if whole is None:
            event.copies += launch.snapshot(access)
            return
        self._versions.stored(key, access.name, whole)
        self._versions.need(key, launch.first(access.first))
        if overwritten:
            event.before.add(key)

    def _save(self, writes: Sequence[Access], launch: Launch, event: Event) -> None:
        """Save what a launch is about to overwrite."""
        for access in writes:
            event.saved += self._versions.write(launch.memory(access)[0], functools.partial(launch.first, access.first))

    def _follow(self, made: Any, memory: DerivativeFootprint, launch: Launch) -> None:
        """Report what would break the chain of gradients silently."""
        if made.returned and self.returned is UNFOLLOWED:
            problem = f"{made.label} returns a value that depends on memory with gradients: a tape cannot follow what Python does with it"
            hint = "store the value to a field with `needs_grad=True`, or return `sg.stop_grad(value)`"
            report(launch.session, problem, made.primal.kernel.loc, hint)
        for access in memory.inactive_reads:
            found = self._inactive.get(launch.memory(access)[0])
            if found is not None:
                problem = (
                    f"gradients end at `{access.name}`, which has none: {made.label} reads it, and {found[0]} gave it values "
                    f"that depend on memory with gradients{_at(found[1])}"
                )
                report(launch.session, problem, access.loc, INACTIVE_HINT)
        for access in memory.inactive_writes:
            self._inactive.setdefault(launch.memory(access)[0], (made.label, access.loc, launch))

    # --- the host ----------------------------------------------------------------------------------------------------------

    def host_write(self, memory: Any, key: Any, clear: Callable[[], None], source: Any) -> None:
        """The host is about to write to the element ``key`` of ``memory``, a copy of ``source`` if there is one; ``clear`` its gradient
        in the reverse pass. See `context.Recorder`.
        """
        if isinstance(memory, ScalarField) and memory.role != "primal":
            return
        if self._outer is not None:
            self._outer.save(memory)
        if self._check is not None:
            self._check.host_write(memory)
        name = memory_identity(memory)[0]
        first = key[0] if isinstance(key, tuple) and key else key
        first = first if isinstance(first, int) else None
        if self._exposed is not None and self._exposed.active:
            self._exposed.look(name, first)
        event = Event()
        event.saved += self._versions.write(name, lambda: first)
        self._events.append(event)
        if self._paused is None and memory.has_grad():
            event.reverse = clear
        if key is None:
            self._inactive.pop(name, None)
        if source is not None and self._paused is None:
            self._follow_copy(memory, source, event)

    def _used(self) -> Iterator[Any]:
        """The fields and ndarrays of the launches so far."""
        return (memory for event in self._events if event.launch is not None for memory in event.launch.used())

    def _look(self) -> None:
        """Look for writes to memory that was handed out, and to tensors."""
        if self._exposed is not None and self._exposed.active:
            self._exposed.look_everywhere()
        if self._left is None:
            self._tensors.look_everywhere()

    def _unseen_write(self, key: Any, whole: Any, before: Saved, changed: Any) -> None:
        """The host wrote to memory that was handed out: see `Exposed`. After the tape was closed that has no reverse."""
        event = Event(saved=self._versions.replace(key, before))
        if self._left is None and self._paused is None and whole.has_grad():
            event.reverse = lambda: clear_elements(whole.grad, changed)
        self._events.append(event)
        if changed.all():
            self._inactive.pop(key, None)

    def _changed_tensor(self, tensor: Any, changed: Any) -> None:
        """Torch, or NumPy, replaced elements of a tensor: the gradients of what it held end there."""

        def clear() -> None:
            if tensor.grad is not None:
                gradient = tensor.grad.detach()
                gradient.masked_fill_(gradient.new_tensor(changed).bool(), 0.0)

        if self._paused is None:
            self._events.append(Event(reverse=clear))

    def _generations(self) -> dict[Any, Any]:
        """Of memory that the reverse needs as it is now, and that was not handed out: it must not be written."""
        assert self._exposed is not None
        return {key: _generation(memory.whole) for key, memory in self._versions.wanted() if key not in self._exposed.known}

    def _check_left(self) -> None:
        """Raise if memory that the reverse needs was written after the tape was closed."""
        for key, memory in self._versions.wanted() if self._left else ():
            assert self._left is not None
            if key in self._left and self._left[key] != _generation(memory.whole):
                raise SpirogradRuntimeError(
                    render(
                        f"`{memory.name}` was written after the tape was closed, and the gradients need it as it was",
                        None,
                        "call `tape.grad()` before the write, or write inside of the tape, which saves what is overwritten",
                    )
                )

    def _follow_copy(self, memory: Any, source: Any, event: Event) -> None:
        """The derivative of `copy_from`: the gradients of the copy go to what it was made of."""
        name, origin = memory_identity(memory)[0], memory_identity(source)[0]
        if origin in self._inactive:
            self._inactive[name] = self._inactive[origin]
        elif source.has_grad() and not memory.has_grad():
            self._inactive[name] = ("`copy_from`", None, source)
        if not (source.has_grad() and memory.has_grad()):
            return
        if origin == name and memory.view == source.view:
            event.reverse = None
            return
        self._active_outputs.add(name)
        clear = event.reverse
        assert clear is not None

        def reverse() -> None:
            to, copied = source.grad, (memory.grad.tree.allocation, memory.grad.view)
            if origin == name and memory.view.count:  # two views of one array, which may overlap
                copied = transfer.duplicate(*copied)
                clear()
            transfer.add(to.tree.allocation, to.view, *copied)
            if origin != name:
                clear()

        event.reverse = reverse

    # --- functions that are not recorded -------------------------------------------------------------------------------------

    @property
    def reverses(self) -> bool:
        """Whether launches are recorded. See `context.Recorder`."""
        return self._paused is None

    def with_reverse(self, function: Callable[[], Any], reverse: Callable[[], None], reads: Sequence[Any], saves: bool = False) -> Any:
        """See `context.Recorder`."""
        for memory in reads:
            if not memory.has_grad():
                self.numbers_of(memory, "an algorithm")
        return self.run_aside(function, lambda: run_guarded(reverse), saves)

    def numbers_of(self, memory: Any, what: str) -> None:
        """See `context.Recorder`."""
        key, whole = memory_identity(memory)
        found = self._inactive.get(key)
        if found is not None:
            problem = (
                f"gradients end at {describe(whole)}, which has none: {what} reads it, and {found[0]} gave it values that depend on memory "
                f"with gradients{_at(found[1])}"
            )
            report(context.session(), problem, found[1], INACTIVE_HINT)

    def nested(self) -> Tape:
        """See `context.Recorder`."""
        return Tape(clear_gradients=False)

    def run_aside(self, function: Callable[[], Any], reverse: Callable[[], None] | None, saves: bool) -> Any:
        """Run ``function``, whose launches are not recorded. ``reverse``: runs in their place when the tape is replayed.

        ``saves``: then it finds all memory that they use as they left it.
        """
        self._look()  # what was written before is not part of the function
        outer, self._paused = self._paused, [*(self._paused or []), set()]
        try:
            result = function()
            self._look()
            used = self._paused[-1]
        finally:
            self._paused = outer
        if outer is not None:
            outer[-1].update(used)
            return result
        if reverse is not None:
            for key in used if saves else ():
                self._versions.need(key, None)
            self._active_outputs.update(used)
            self._events.append(Event(reverse=reverse))
        return result


def _swap(saved: list[Saved], done: list[Saved]) -> None:
    """Go back before some writes."""
    for one in reversed(saved):
        one.swap()
        done.append(one)


def _generation(memory: Any) -> Any:
    """What changes with every write to a field or ndarray that goes through the session."""
    allocation = memory.tree.allocation
    return allocation.number, allocation.generations[""], allocation.generations.get(memory.view.part, 0)


def _at(loc: Any) -> str:
    return f" ({loc})" if loc is not None else ""
