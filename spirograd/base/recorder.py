"""The protocol of recorders, such as tapes, which observe the launches of a thread and the writes of the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from spirograd.base.loc import Loc

if TYPE_CHECKING:
    from spirograd.base.protocols import Scalar

R = TypeVar("R")
KernelT = TypeVar("KernelT")
CallT = TypeVar("CallT", contravariant=True)
ArgumentsT = TypeVar("ArgumentsT", contravariant=True)
MemoryT = TypeVar("MemoryT", contravariant=True)
CellT = TypeVar("CellT")
NumberT = TypeVar("NumberT", covariant=True)


class Clear(Protocol):
    """Sets to zero the gradient of what the host writes; for the role "dual" or "grad_dual" the tangents."""

    def __call__(self, role: str = "grad") -> None: ...


class NestedTape(Protocol):
    """A tape inside of a reverse pass."""

    def __enter__(self) -> NestedTape: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> object: ...

    def grad(self) -> None:
        """Run the reverse pass."""


class Recorder(Generic[KernelT, CallT, ArgumentsT, MemoryT, CellT, NumberT]):
    """An observer of everything that a thread does outside of kernels, such as an open tape.

    Its type parameters are classes of the language: `Kernel`, `Specialization`, `Packer`, fields or ndarrays, `Cell`, and numbers with a
    history.
    """

    def launch(self, kernel: KernelT, specialization: CallT, packer: ArgumentsT, args: Sequence[object]) -> tuple[Scalar, ...] | None:
        """Launch a kernel in place of its plan, and return its result. ``packer``: the flat arguments of ``args``."""
        raise NotImplementedError

    def repeat(self, kernel: KernelT, args: tuple[object, ...]) -> bool:
        """Launch a kernel as the launch after the last one in a sequence that the recorder knows. Return whether it was that one; if not,
        nothing was launched."""
        return False

    def aside(self, function: Callable[[], R], replaced: bool) -> R:
        """Run Python code that launches kernels and is not differentiated, or (``replaced``) has a gradient of its own."""
        return function()

    @property
    def reverses(self) -> bool:
        """Return whether launches are recorded for a reverse pass, so that `with_reverse` and `numbers_of` exist."""
        return False

    def with_reverse(self, function: Callable[[], R], reverse: Callable[[], None], reads: Sequence[MemoryT], saves: bool = False) -> R:
        """Run Python code that launches kernels; ``reverse`` replaces their derivatives. It may write only to gradients.

        ``reads``: the fields and ndarrays that values come from. ``saves``: whether ``reverse`` needs all memory as ``function`` left it.
        """
        raise NotImplementedError

    def numbers_of(self, memory: MemoryT, what: str) -> None:
        """``what`` takes numbers of ``memory`` out of the device: raise an error if gradients would silently end there."""
        raise NotImplementedError

    follows_numbers = False  # whether numbers that Python reads are followed, so that the next three methods exist

    def read_numbers(
        self, memory: MemoryT, key: object, values: Sequence[Scalar], location: Callable[[], Loc | None]
    ) -> Sequence[Scalar | NumberT]:
        """Return the numbers that Python gets for ``values`` of the element at ``key`` of a field or ndarray. ``location`` returns the
        line."""
        return values

    def numbers_written(self, memory: MemoryT, key: object, component: int | None, numbers: Sequence[object], clear: Clear) -> Clear:
        """Return the reverse of a write of ``numbers`` to the element at ``key`` of ``memory``, or to one ``component`` of it, in place
        of ``clear``: see `host_write`."""
        for number in numbers:
            if hasattr(number, "refuse"):
                number.refuse("written to memory")
        return clear

    def numbers_kept(self, memory: MemoryT) -> None:
        """Called after the numbers of `numbers_written` were written to ``memory``."""

    def cells_of(self, kernel: KernelT, args: Sequence[object]) -> tuple[KernelT, tuple[object, ...], Sequence[CellT]] | None:
        """Return what `scalar_cells.cells_of` does for ``kernel`` and ``args``."""
        raise NotImplementedError

    def numbers_passed(self, cells: Sequence[CellT]) -> None:
        """Called before a launch that takes numbers in ``cells``."""
        raise NotImplementedError

    def host_read(self, memory: MemoryT, how: str) -> None:
        """The host reads all numbers of a field or array, by the method ``how``."""

    def nested(self) -> NestedTape:
        """Return a tape for the reverse pass."""
        raise NotImplementedError

    def host_write(self, memory: MemoryT, key: object, clear: Clear, source: MemoryT | None, repeat: Callable[[], None] | None) -> None:
        """The host is about to write to a field or ndarray: to the element at ``key``, or (None) to all. ``clear`` sets the gradient of
        what it writes (of a role: "dual", "grad_dual") to zero. ``source``: the field or ndarray that is copied, None for numbers.
        ``repeat`` writes the same again, None where only the host has it."""
