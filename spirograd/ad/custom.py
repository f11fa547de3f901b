"""Custom gradients: `grad_replaced` and `grad_for` supply a gradient function, `no_grad` declares that there is none."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from spirograd.ad.restored import run_guarded
from spirograd.ad.tape import Tape
from spirograd.base.errors import SpirogradRuntimeError, SpirogradRuntimeTypeError, SpirogradTypeError, render
from spirograd.lang import context
from spirograd.lang.data import shadows
from spirograd.lang.frontend.function import Func
from spirograd.lang.scalar import describe

F = TypeVar("F", bound=Callable[..., Any])


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
            reverse = lambda: run_guarded(lambda: gradient(*args, **kwargs))  # noqa: E731
        return recorder.run_aside(lambda: function(*args, **kwargs), reverse, wrapper.saves)  # type: ignore[attr-defined]

    wrapper.grad = None  # type: ignore[attr-defined]
    wrapper.saves = True  # type: ignore[attr-defined]
    wrapper.is_grad_replaced = replaced  # type: ignore[attr-defined]
    return wrapper  # type: ignore[return-value]


def grad_for(primal: Any, saves: bool = True) -> Callable[[F], F]:
    """Decorator: make a function the gradient of ``primal``, which is decorated with `grad_replaced`. It takes the same arguments.

    It sees the memory that the kernels of ``primal`` use as ``primal`` left it. It may write to that memory, which is restored afterwards.
    With ``saves=False`` the tape saves nothing for it: it computes what it needs itself, as checkpoints do. Raises
    SpirogradRuntimeTypeError if ``primal`` is not decorated.
    """
    if not getattr(primal, "is_grad_replaced", False):
        name = getattr(primal, "__name__", describe(primal))
        hint = f"put `@sg.ad.grad_replaced` above {'`@sg.kernel`' if getattr(primal, '__sg_is_kernel__', False) else 'it'}"
        problem = f"`grad_for` takes a function that is decorated with `grad_replaced`, and `{name}` is not"
        raise SpirogradRuntimeTypeError(render(problem, None, hint))

    def decorate(gradient: F) -> F:
        primal.grad = gradient
        primal.saves = saves
        return gradient

    return decorate


def clear_all_gradients() -> None:
    """Set the gradients of all fields and ndarrays to zero."""
    shadows.clear("grad")
