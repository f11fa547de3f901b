"""Custom gradients: `grad_replaced` and `grad_for` supply a gradient function, `no_grad` declares that there is none."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeGuard, TypeVar

from spirograd.ad.restored import run_guarded
from spirograd.ad.tape import Tape
from spirograd.ad.thread_tapes import clear_all
from spirograd.base.errors import SpirogradRuntimeError, SpirogradRuntimeTypeError, SpirogradTypeError, render
from spirograd.lang import context
from spirograd.lang.frontend.func import Func
from spirograd.lang.scalar import describe

F = TypeVar("F", bound=Callable[..., object])
R = TypeVar("R")
P = ParamSpec("P")


def grad_replaced(function: F) -> F:
    """Decorator of a Python function that launches kernels and has a custom gradient: the function decorated with `grad_for`.

    A tape does not record its launches. In the reverse pass it calls the other function with the same arguments. Raises SpirogradTypeError
    for functions of kernels, and in a tape SpirogradRuntimeError if there is no gradient.
    """
    return _aside(function, True)


def no_grad(function: F) -> F:
    """Decorator of a Python function that launches kernels and is not differentiated: gradients do not flow through it."""
    return _aside(function, False)


def _aside(function: F, replaced: bool) -> F:
    if isinstance(function, Func):
        raise SpirogradTypeError(
            f"`{function.function.__name__}` is a function of kernels, this decorator is for Python functions that launch them",
            None,
            "inside of kernels, `sg.stop_grad(value)` ends derivatives",
        )

    @functools.wraps(function)
    def wrapper(*args: object, **kwargs: object) -> object:
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
            reverse = lambda: run_guarded(lambda: gradient(*args, **kwargs))  # noqa: E731
        return recorder.run_aside(lambda: function(*args, **kwargs), reverse, wrapper.saves)  # type: ignore[attr-defined]

    wrapper.grad = None  # type: ignore[attr-defined]
    wrapper.saves = True  # type: ignore[attr-defined]
    wrapper.is_grad_replaced = replaced  # type: ignore[attr-defined]
    return wrapper  # type: ignore[return-value]


class _GradReplaced(Protocol):
    """A function that `grad_replaced` has decorated."""

    grad: Callable[..., object] | None
    saves: bool


def _is_grad_replaced(value: object) -> TypeGuard[_GradReplaced]:
    return bool(getattr(value, "is_grad_replaced", False))


def grad_for(primal: object, saves: bool = True) -> Callable[[F], F]:
    """Decorator: make a function the gradient of ``primal``, which is decorated with `grad_replaced`. It takes the same arguments.

    It sees the memory that the kernels of ``primal`` use as ``primal`` left it: of memory that they access at indices given by arguments,
    such as ``x[s, i]`` and ``x[i, s]``, these slices, else all of it. It may write to memory, which is restored afterwards. With
    ``saves=False`` the tape saves nothing for it: it computes what it needs itself, as checkpoints do. Raises
    SpirogradRuntimeTypeError if ``primal`` is not decorated.
    """
    if not _is_grad_replaced(primal):
        name = getattr(primal, "__name__", describe(primal))
        hint = f"put `@sg.ad.grad_replaced` above {'`@sg.kernel`' if getattr(primal, '__sg_is_kernel__', False) else 'it'}"
        problem = f"`grad_for` takes a function that is decorated with `grad_replaced`, and `{name}` is not"
        raise SpirogradRuntimeTypeError(render(problem, None, hint))

    def decorate(gradient: F) -> F:
        primal.grad = gradient
        primal.saves = saves
        return gradient

    return decorate


def checkpoint(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call ``function(*args, **kwargs)``. A tape does not keep what its launches overwrite; in the reverse pass they run again, and are
    recorded only then. So a tape takes the memory of one such call at a time, and what the memory that it uses held before each call.

    The gradients are the same, bit for bit. In the reverse pass only launches, fills and copies run again, with the same arguments: no
    Python, and no prints. Without a tape, and in one that has checkpoints itself, this is a call like others. Raises
    SpirogradUnsupportedError for launches that cannot be repeated: of kernels with arrays of NumPy or torch, or with sparse fields.
    """
    recorder = context.recorder()
    if not isinstance(recorder, Tape):
        return function(*args, **kwargs)
    return recorder.run_again(lambda: function(*args, **kwargs))


def clear_all_gradients() -> None:
    """Set the gradients of all fields and ndarrays to zero. Raises SpirogradRuntimeError if an open tape of another thread uses
    one."""
    clear_all()
