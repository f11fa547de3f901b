"""What the emitter of a task knows of the parts that are made for each task: its buffers, and the memory of its vectors.

`buffer_access` and `emit_vector` implement them with the emitter, which therefore cannot import them.
"""

from __future__ import annotations

from typing import Any, Protocol

from spirograd.base.artifact import Slot
from spirograd.base.dtypes import DType
from spirograd.ir.nodes import BufferRef, Op


class Arguments(Protocol):
    """The argument block."""

    def scalar(self, slot: Slot, t: DType) -> int:
        """The value of an entry that is no buffer, as a ``t``."""

    def value(self, slot: Slot) -> int:
        """An entry as it is; of a buffer, where there are addresses, its address."""


class Memory(Protocol):
    """The buffers of a task. ``bindings``: see `TaskInfo`."""

    bindings: tuple[tuple[int, ...], ...]

    @property
    def block(self) -> Arguments:
        """The argument block."""

    def within(self, e: Any) -> Memory:
        """The same for another function of the module, which ``e`` emits."""

    def element(self, ref: BufferRef, t: DType, index: Op) -> int:
        """A pointer to element ``index`` of the buffer of ``ref``, seen as an array of ``t``."""

    def loaded(self, ref: BufferRef, t: DType, index: Op) -> int:
        """As `element`, for a load."""

    def alignment(self, t: DType) -> int:
        """The alignment that accesses of ``t`` declare; 0 for none."""


class StackSlots(Protocol):
    """Where large vectors live: each in a Function variable, its stack slot."""

    def define(self, op: Op, value: int) -> None:
        """``op`` has the id ``value``; if it is indexed at run time it gets a stack slot too."""

    def bind(self, op: Op, variable: int) -> None:
        """``op`` is what the variable of a construct holds."""

    def update(self, op: Op, source: Op) -> None:
        """Give ``op`` (an insert into ``source``) a stack slot that holds ``source``."""

    def load(self, value: Op) -> int:
        """The whole array as a value, read from its stack slot."""

    def has(self, value: Op) -> bool:
        """Whether ``value`` has a stack slot."""

    def element(self, value: Op, index: int) -> int:
        """A pointer to an element of a vector that has a stack slot."""

    def lives_in(self, value: Op, variable: int) -> bool:
        """Whether ``variable`` is the stack slot of ``value``, which is nowhere else."""

    def shared_stack_slot(self, op: Op, k: int, taken: list[int]) -> int | None:
        """The stack slot for result ``k`` of an `if`, where that is a vector from outside, changed in the arms and dead afterwards."""
