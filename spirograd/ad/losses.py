"""The loss of a tape: a field, an ndarray or a torch tensor of one float."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Generic, TypeVar, Union

from spirograd.ad.memory_keys import FieldOrArray, Key, numbers_of
from spirograd.ad.versions import memory_generation, memory_identity
from spirograd.base.errors import SpirogradRuntimeError, SpirogradTypeError, render
from spirograd.base.once import lock, one_at_a_time
from spirograd.base.records import dataclass
from spirograd.base.wording import counted
from spirograd.lang.data.device_arrays import is_torch
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.scalar import describe

if TYPE_CHECKING:
    from spirograd.lang.data.device_arrays import Tensor

    Storage = Union[FieldOrArray, Tensor]


S = TypeVar("S", bound="Storage")


class Loss(Generic[S]):
    """The loss of a tape. ``key``: what tells its memory apart from others, as in `Launch.memory`."""

    def __init__(self, storage: S, key: Key) -> None:
        self.storage = storage
        self.key = key

    def clear(self) -> None:
        """Set the loss to zero."""
        raise NotImplementedError

    def seed(self) -> None:
        """Set the gradient of the loss to 1."""
        raise NotImplementedError

    def leave(self) -> None:
        """Set the gradient of the loss to 1 after the reverse pass: the derivative with respect to what the loss is then.

        What the reverse pass leaves is the derivative with respect to what the loss was before, 0 where a kernel sets it.
        """
        self.seed()
        with lock:
            _left[:] = [left for left in _left if left.storage() is not self.storage]
            _left.append(_Left(weakref.ref(self.storage), _gradient_version(self.storage), threading.current_thread()))


class FieldLoss(Loss[FieldOrArray]):
    """A field or ndarray."""

    def __init__(self, storage: FieldOrArray) -> None:
        super().__init__(storage, memory_identity(storage)[0])

    def clear(self) -> None:
        """Set the loss to zero."""
        self.storage.fill(0.0)

    def seed(self) -> None:
        """Set the gradient of the loss to 1."""
        self.storage.grad.fill(1.0)


class TensorLoss(Loss["Tensor"]):
    """A torch tensor. Its gradient is allocated if it has none yet."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__(tensor, ("host", tensor.data_ptr()))

    def clear(self) -> None:
        """Set the loss to zero."""
        self.storage.detach().zero_()

    def seed(self) -> None:
        """Set the gradient of the loss to 1."""
        if self.storage.grad is None:
            self.storage.grad = self.storage.detach().new_zeros(self.storage.shape)
        self.storage.grad.detach().fill_(1.0)


def _gradient_version(storage: Storage) -> object:
    """Return what changes with every write to the gradient of a loss; None if it has no memory."""
    if isinstance(storage, (ScalarField, Ndarray)):
        return memory_generation(storage.grad) if storage.has_memory() else None
    return None if storage.grad is None else (id(storage.grad), storage.grad._version)


@dataclass(slots=True, eq=False)
class _Left:
    """A loss whose gradient a tape left as 1; the version of the gradient at that time, and the tape's thread."""

    storage: weakref.ref[Storage]
    version: object
    thread: threading.Thread


_left: list[_Left] = []


@one_at_a_time
def forget_losses(cleared: bool) -> None:
    """Set the gradients of losses that tapes left as 1 to zero, before a tape adds to gradients, unless they were written since. Those that
    tapes of other threads left stay while these threads run. ``cleared``: those of fields and ndarrays are about to be cleared anyway.

    A tape sets its loss to zero, so no derivative of the losses of earlier tapes is left for memory as it is now.
    """
    here = threading.current_thread()
    forgotten = [left for left in _left if left.thread is here or not left.thread.is_alive()]
    _left[:] = [left for left in _left if left not in forgotten]
    for left in forgotten:
        storage = left.storage()
        if storage is None or left.version is None or (cleared and not is_torch(storage)) or _gradient_version(storage) != left.version:
            continue
        if isinstance(storage, (ScalarField, Ndarray)):
            storage.grad.fill(0.0)
        elif storage.grad is not None:
            storage.grad.detach().zero_()


def loss_of(value: object) -> FieldLoss | TensorLoss:
    """Return ``value`` as a loss. Raises unless it is one float with a gradient, or one for each environment of a batch."""
    if is_torch(value):
        what = f"a torch tensor of shape {tuple(value.shape)}"
        _check(what, value.numel(), value.requires_grad, value.is_floating_point(), "make it with `requires_grad=True`")
        return TensorLoss(value)
    if not isinstance(value, (ScalarField, Ndarray)):
        raise SpirogradTypeError(f"the loss of a tape is a field, an array or a torch tensor of one float, got {describe(value)}")
    _check(describe(value), numbers_of(value), value.has_grad(), value.dtype.is_float, "declare it with `needs_grad=True`")
    return FieldLoss(value)


def _check(what: str, count: int, has_gradient: bool, is_float: bool, hint: str) -> None:
    if count != 1:
        instead = "add up what is to be differentiated in a kernel; or `with Tape() as tape:`, set gradients, and call `tape.grad()`"
        raise SpirogradRuntimeError(render(f"the loss of a tape is one float, {what} has {counted(count, 'element')}", None, instead))
    if not has_gradient:
        hint = hint if is_float else "only floats have gradients"
        raise SpirogradRuntimeError(render(f"the loss of a tape, {what}, has no gradient", None, hint))
