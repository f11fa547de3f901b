"""Sums over processes, and values replicated on all processes, with their derivatives.

Derivatives are those of the program of all processes together, which has two kinds of memory: local to a process, or replicated on all.
`total` sums local values to a replicated one, and `replicate` begins the local use of a replicated value. Each is the transpose of the
other (M. Shoeybi et al.: Megatron-LM, 2019, calls them g and f), and `all_reduce` is both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from spirograd.ad.memory_keys import FieldOrArray
from spirograd.base.dtypes import f32, f64, i32, i64
from spirograd.base.errors import SpirogradTypeError, SpirogradUnsupportedError, SpirogradValueError
from spirograd.distributed import memory_numbers, world
from spirograd.distributed.recorded_calls import recorded, tape_of
from spirograd.lang.data.ndarray import BufferView, Ndarray
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.scalar import describe

if TYPE_CHECKING:
    from spirograd.distributed.transport import Payload

_TYPES = (f32, f64, i32, i64)
_OPERATIONS = ("add", "min", "max")


def all_reduce(memory: FieldOrArray, op: str = "add") -> None:
    """Replace each element of ``memory``, a field or an ndarray, by its sum over all processes, or by ``op``: "add", "min", "max".

    The result has the same bits on every process. A tape differentiates sums: the gradient on each process becomes the sum of the gradients
    on all, because each process uses the sum locally. For the loss itself, use `total`. Gradients can be summed, too:
    ``all_reduce(w.grad)`` after the tape. Raises SpirogradTypeError for types other than f32, f64, i32 and i64, SpirogradValueError, on all
    processes, for unknown operations and for memory that differs between processes, and SpirogradUnsupportedError for "min" and "max" of
    memory with gradients in a tape.
    """
    if op not in _OPERATIONS:
        raise SpirogradValueError(f"there is no operation {op!r}: it is one of {', '.join(_OPERATIONS)}")
    if op != "add" and tape_of("`all_reduce`") is not None and _has_grad(memory):
        raise SpirogradUnsupportedError(f"`all_reduce` with {op!r} has no derivative: a tape cannot differentiate it", None, "sum instead")
    _run("all_reduce", memory, lambda: _reduce(memory, op), lambda: _reduce(memory.grad, "add"))


def total(loss: FieldOrArray) -> None:
    """Replace the ``loss`` of each process, a field or an ndarray, by the sum over all processes: the loss of the program.

    Call it last in a tape. All processes start the reverse pass from 1 for the same number, so its gradient is passed on unchanged. Errors
    as for `all_reduce`.
    """
    _run("total", loss, lambda: _reduce(loss, "add"), lambda: None)


def replicate(memory: FieldOrArray) -> None:
    """Copy the values of process 0 in ``memory``, a field or an ndarray such as parameters, to all processes.

    In the reverse pass, its gradient becomes the sum over all processes, on each of them: the gradient with respect to the replicated
    values. Call it first in a tape, before any kernel reads the memory. Errors as for `all_reduce`.
    """
    _run("replicate", memory, lambda: _broadcast(memory), lambda: _reduce(memory.grad, "add"))


def _has_grad(memory: object) -> bool:
    return isinstance(memory, (ScalarField, Ndarray)) and memory.has_grad()


def _run(name: str, memory: FieldOrArray, function: Callable[[], None], reverse: Callable[[], None]) -> None:
    what = f"`sg.distributed.{name}`"
    tape = tape_of(what)
    world.alike(what, lambda: _described(memory, what), f"the memory of {what}")
    memory_numbers.used(memory)
    if tape is None or not memory.has_grad():
        recorded(tape, function, lambda: None, (memory,), what)
    else:
        recorded(tape, function, lambda: _after_comparison(what, reverse), (memory,), what)


def _after_comparison(what: str, reverse: Callable[[], None]) -> None:
    """Run the reverse pass after checking that all processes are in that of the same function. Otherwise a process that has left its own,
    by an error, would mistake the numbers of others for those of its next sum."""
    world.alike(f"the reverse pass of {what}", lambda: None, "")
    reverse()


def _described(memory: object, what: str) -> str:
    """Return the description that must be the same on all processes. Raises SpirogradTypeError for memory that cannot be summed."""
    if not isinstance(memory, (ScalarField, Ndarray)) or isinstance(memory, BufferView) or memory.sparse_path is not None:
        raise SpirogradTypeError(f"{what} takes a dense field of scalars, vectors or matrices, or an ndarray, not {describe(memory)}")
    if memory.dtype not in _TYPES:
        raise SpirogradTypeError(f"{what} takes {', '.join(map(str, _TYPES))}, not {memory.dtype}", None, "convert it to f32 or i32")
    kind = f"{memory.dtype} of shape {tuple(memory.view.full_shape)}{' with a gradient' * memory.has_grad()}"
    return f"{kind}, {memory_numbers.described(memory)}"


def _reduce(memory: FieldOrArray, op: str) -> None:
    _transform(memory, lambda array: world.transport().all_reduce(array, op), "a sum over processes")


def _broadcast(memory: FieldOrArray) -> None:
    _transform(memory, lambda array: world.transport().broadcast(array), "a copy from process 0")


def _transform(memory: FieldOrArray, change: Callable[[Payload], None], what: str) -> None:
    """Apply an operation of the transport to the contents: in a tensor on the GPU if it takes them, else in an array on the host."""
    transport = world.transport()
    if transport.size == 1 or not memory.view.count:
        return
    put: Callable[[Payload], None]
    contents: Payload
    if transport.takes_gpu:
        tensor = memory.to_torch(device="cuda").contiguous()
        contents, put = tensor, lambda _: memory.from_torch(tensor)
    else:  # fields of different layouts give arrays with different strides
        contents, put = np.asarray(memory.to_numpy(), order="C"), memory.from_numpy
    with world.waiting(what):
        change(contents)
    put(contents)
