"""Interfaces of the buffers and the vector memory of a task, as the emitter of the task uses them.

`buffer_access` and `emit_vector` implement them with the emitter, which therefore cannot import them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from spirograd.base.artifact import Slot
from spirograd.base.dtypes import DType
from spirograd.ir.nodes import BufferRef, Op

if TYPE_CHECKING:
    from spirograd.spirvgen.emitter import Emitter


class Arguments(Protocol):
    """The argument block."""

    def scalar(self, slot: Slot, t: DType) -> int:
        """Return the value of an entry that is not a buffer, as a ``t``."""

    def value(self, slot: Slot) -> int:
        """Return the id of an entry; for a buffer, on targets with addresses, its address."""


class TaskBuffers(Protocol):
    """The buffers of a task. ``bindings``: see `TaskInfo`."""

    bindings: tuple[tuple[int, ...], ...]

    @property
    def block(self) -> Arguments:
        """Return the argument block."""

    def within(self, e: Emitter) -> TaskBuffers:
        """Return the buffers for another function of the module, which ``e`` emits."""

    def element(self, ref: BufferRef, t: DType, index: Op) -> int:
        """Return a pointer to element ``index`` of the buffer of ``ref``, accessed as an array of ``t``."""

    def loaded(self, ref: BufferRef, t: DType, index: Op) -> int:
        """Return the pointer of `element` for a load."""

    def view(self, ref: BufferRef, t: DType) -> DType:
        """Return the type as which the buffer of ``ref`` is accessed where its elements are of type ``t``, which has the same size."""

    def alignment(self, t: DType) -> int:
        """Return the alignment that accesses of ``t`` declare; 0 for none."""


class StackSlots(Protocol):
    """The stack slots of large vectors: a Function variable each."""

    def define(self, op: Op, value: int) -> None:
        """Record that ``op`` has the id ``value``, and give it a stack slot if it is indexed at run time."""

    def bind(self, op: Op, variable: int) -> None:
        """Record that ``op`` is in the variable of a construct."""

    def update(self, op: Op, source: Op) -> None:
        """Give ``op`` (an insert into ``source``) a stack slot that holds ``source``."""

    def load(self, value: Op) -> int:
        """Load the array from its stack slot."""

    def has(self, value: Op) -> bool:
        """Return whether ``value`` has a stack slot."""

    def element(self, value: Op, index: int) -> int:
        """Return a pointer to an element of a vector that has a stack slot."""

    def lives_in(self, value: Op, variable: int) -> bool:
        """Return whether ``variable`` is the stack slot of ``value``, and nothing else holds it."""

    def shared_stack_slot(self, op: Op, k: int, taken: list[int]) -> int | None:
        """Return the stack slot for result ``k`` of an `if` if it is a vector from outside that the branches change and that is dead
        afterwards."""
