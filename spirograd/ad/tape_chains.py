"""What a tape does about chains of derivatives that break: errors, warnings, and the list of `Tape.explain`."""

from __future__ import annotations

from collections.abc import Callable

from spirograd.ad.chain_breaks import ChainBreaks
from spirograd.ad.entries import DerivativeFootprint, Launch
from spirograd.ad.memory_keys import FieldOrArray, Key, ProgramRecorder
from spirograd.ad.sequence_replay import SequenceReplay
from spirograd.ad.tape_numbers import TapeNumbers, is_followed
from spirograd.ad.versions import memory_identity
from spirograd.base.loc import Loc
from spirograd.base.tracebacks import user_location
from spirograd.derivatives.broken_chains import report
from spirograd.derivatives.specialized import INACTIVE_HINT, UNFOLLOWED, SpecializedDerivative
from spirograd.lang import context
from spirograd.lang.data import numpy_transfer
from spirograd.lang.scalar import describe


class FollowsChains(ProgramRecorder):
    """The part of a tape that knows where gradients end. ``_inactive``: memory without a gradient whose values depend on active inputs: the
    writer, the line, and what keeps the memory alive."""

    returned: object
    _inactive: dict[Key, tuple[str, Loc | None, object]]
    _breaks: ChainBreaks
    _numbers: TapeNumbers
    _active_outputs: set[Key]
    _following: SequenceReplay | None

    def _settle(self, replay: SequenceReplay) -> None:
        raise NotImplementedError

    def explain(self) -> str:
        """Return where gradients of the program end, or may end: memory without a gradient, conversions to integers, `stop_grad`, numbers
        and arrays that Python reads and may bring back, each with its line and how to mend it."""
        self._breaks.numbers(self._numbers.record.ends)
        return str(self._breaks)

    def _report_broken_chains(self, gradient: SpecializedDerivative, memory: DerivativeFootprint, launch: Launch) -> None:
        """Report what would break the chain of gradients silently."""
        if gradient.returned and self.returned is UNFOLLOWED:
            problem = (
                f"{gradient.label} returns a value that depends on memory with gradients: a tape cannot follow what Python does with it"
            )
            hint = "store the value to a field with `needs_grad=True`, or return `sg.stop_grad(value)`"
            report(launch.session, problem, gradient.primal.kernel.loc, hint)
        for access in memory.inactive_reads:
            ended = self._inactive.get(launch.key(access))
            if ended is not None:
                self._breaks.lost_read(f"`{access.name}`", gradient.label, access.loc)
                problem = (
                    f"gradients end at `{access.name}`, which has none: {gradient.label} reads it, and {ended[0]} gave it values "
                    f"that depend on memory with gradients{_at(ended[1])}"
                )
                report(launch.session, problem, access.loc, INACTIVE_HINT)
        relayed = [written for read, written in memory.relays if launch.key(read) in self._inactive]
        for access in (*memory.inactive_writes, *relayed):
            key = launch.key(access)
            if key not in self._inactive:
                self._inactive[key] = (gradient.label, access.loc, launch)
                self._breaks.lost(f"`{access.name}`", gradient.label, access.loc)

    def _follow_copy(self, memory: FieldOrArray, source: FieldOrArray, clear: Callable[[], None] | None) -> Callable[[], None] | None:
        """Return the reverse of `copy_from`: the gradients of the copy go to its source. ``clear``: sets them to zero."""
        name, origin = memory_identity(memory)[0], memory_identity(source)[0]
        if origin in self._inactive:
            self._inactive[name] = self._inactive[origin]
        elif source.has_grad() and not memory.has_grad():
            self._inactive[name] = ("`copy_from`", user_location(), source)
            self._breaks.lost(describe(memory), *self._inactive[name][:2])
        if clear is None or not source.has_grad():
            return clear
        if origin == name and memory.view == source.view:
            return None
        self._active_outputs.add(name)

        def reverse() -> None:
            to, copied = source.grad, (memory.grad.tree.allocation, memory.grad.view)
            if origin == name and memory.view.count:  # two views of one array, which may overlap
                copied = numpy_transfer.duplicate(*copied)
                clear()
            numpy_transfer.add(to.tree.allocation, to.view, *copied)
            if origin != name:
                clear()

        return reverse

    def numbers_of(self, memory: FieldOrArray, what: str) -> None:
        """Report that ``what`` reads ``memory`` if gradients end there. See `Recorder`."""
        if self._following is not None:
            self._settle(self._following)
        key, storage = memory_identity(memory)
        ended = self._inactive.get(key)
        if ended is not None:
            self._breaks.lost_read(describe(storage), what, user_location())
            problem = (
                f"gradients end at {describe(storage)}, which has none: {what} reads it, and {ended[0]} gave it values that depend on "
                f"memory with gradients{_at(ended[1])}"
            )
            report(context.session(), problem, ended[1], INACTIVE_HINT)

    def host_read(self, memory: FieldOrArray, how: str) -> None:
        """List a read of memory that gradients flow through, see `explain`. See `Recorder`."""
        key = memory_identity(memory)[0]
        if is_followed(memory) or key in self._inactive:
            self._breaks.exported(memory, how)


def _at(loc: Loc | None) -> str:
    return f" ({loc})" if loc is not None else ""
