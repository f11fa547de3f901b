"""Functions with gradients of the user's own: `grad_replaced`, `grad_for`; and without: `no_grad`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from spirograd.ad.entries import Launch, memory_of
from spirograd.ad.tape import Tape
from spirograd.ad.versions import Saved, Stored, field_memory
from spirograd.base.errors import SpirogradRuntimeError, SpirogradTypeError
from spirograd.ir.nodes import FieldRef
from spirograd.lang import context
from spirograd.lang.data import partners
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.frontend.function import Func

F = TypeVar("F", bound=Callable[..., Any])


def grad_replaced(function: F) -> F:
    """A Python function that launches kernels, whose gradient is a function of the user's own: that decorated with `grad_for`.

    Inside of a tape its launches are not recorded; in the reverse the other function is called with the same arguments.
    """
    return _aside(function, True)


def no_grad(function: F) -> F:
    """A Python function that launches kernels, left out of differentiation: gradients do not flow through it."""
    return _aside(function, False)


def _aside(function: F, replaced: bool) -> F:
    if isinstance(function, Func):
        raise SpirogradTypeError(
            f"`{function.function.__name__}` is a function of kernels, this decorator is for Python functions that launch them",
            None,
            "inside of kernels, `sg.stop_grad(value)` ends derivatives",
        )

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        recorder = context.recorder()
        if recorder is None:
            return function(*args, **kwargs)
        if not isinstance(recorder, Tape):
            return recorder.aside(functools.partial(function, *args, **kwargs), replaced)
        reverse = None
        if replaced:
            gradient = wrapper.grad  # type: ignore[attr-defined]
            if gradient is None:
                name = function.__qualname__
                raise SpirogradRuntimeError(
                    f"`{name}` is `grad_replaced`, but has no gradient: write one and decorate it with `grad_for({name})`"
                )
            reverse = lambda: _run_gradient(lambda: gradient(*args, **kwargs))  # noqa: E731
        return recorder.run_aside(lambda: function(*args, **kwargs), reverse, wrapper.saves)  # type: ignore[attr-defined]

    wrapper.grad = None  # type: ignore[attr-defined]
    wrapper.saves = True  # type: ignore[attr-defined]
    wrapper.is_grad_replaced = replaced  # type: ignore[attr-defined]
    return wrapper  # type: ignore[return-value]


def grad_for(primal: Any, saves: bool = True) -> Callable[[F], F]:
    """Make a function the gradient of ``primal``, which is decorated with `grad_replaced`: it takes the same arguments.

    It finds the memory that the kernels of ``primal`` use as ``primal`` left it, and may write to it: afterwards that is put back. With
    ``saves=False`` nothing is saved for it: it computes what it needs itself, as checkpoints do. Raises SpirogradTypeError for another
    ``primal``.
    """
    if not getattr(primal, "is_grad_replaced", False):
        raise SpirogradTypeError("`grad_for` takes a function that is decorated with `grad_replaced`")

    def decorate(gradient: F) -> F:
        primal.grad = gradient
        primal.saves = saves
        return gradient

    return decorate


def clear_all_gradients() -> None:
    """Set the gradients of all fields and ndarrays to zero."""
    partners.clear("grad")


def _run_gradient(run: Callable[[], None]) -> None:
    """Run a gradient function, and put back what it writes to memory that is no gradient."""
    guard = _Guard()
    before = context.set_recorder(guard)
    try:
        run()
    finally:
        context.set_recorder(before)
        for saved in guard.saved.values():
            saved.swap()


class _Guard(context.Recorder):
    """Saves all memory that is written, once."""

    def __init__(self) -> None:
        self.saved: dict[Any, Saved] = {}

    def launch(self, kernel: Any, specialization: Any, packer: Any, args: Sequence[Any]) -> Any:
        launch = Launch(context.session(), kernel, specialization, packer, args)
        for ref in memory_of(specialization.kernel, ("write", "atomic")):
            if isinstance(ref, FieldRef):
                self._save(specialization.fields[ref])
            elif isinstance(launch.arguments.arrays[ref.arg], Ndarray):
                self._save(launch.arguments.arrays[ref.arg])
        return specialization.plan.launch(packer.scalars, packer.arrays, specialization.trees)

    def host_write(self, memory: Any, key: Any, clear: Callable[[], None], source: Any) -> None:
        self._save(memory)

    def _save(self, memory: Any) -> None:
        if partners.is_partner(memory) or (isinstance(memory, ScalarField) and memory.role != "primal"):
            return
        key, whole = (id(memory), memory) if isinstance(memory, Ndarray) else field_memory(memory)
        if key not in self.saved:
            self.saved[key] = Saved(Stored("", whole), None)
