"""The decorators of kernels, `@kernel`, and of classes whose methods are kernels, `@data_oriented`."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, overload

from spirograd.base.errors import SpirogradRuntimeTypeError, render
from spirograd.base.wording import did_you_mean
from spirograd.lang.frontend.func import plain_function, remember_outer_names
from spirograd.lang.frontend.graph_kernel import GraphKernel
from spirograd.lang.frontend.kernel import Kernel

C = TypeVar("C", bound=type)
# What the family's decorators take.
_KERNEL_OPTIONS = ("checkpoints", "fastcache", "fuse", "graph", "pure")
_CLASS_OPTIONS = ("stable_members", "template_primitives")


def check_options(what: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raise SpirogradRuntimeTypeError for the first option of ``what`` that is not among those ``known``."""
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known) or f"it takes {', '.join(f'`{option}`' for option in known)}"
            raise SpirogradRuntimeTypeError(render(f"`{what}` has no option `{name}`", None, hint))


@overload
def kernel(function: Callable[..., object], **options: object) -> Kernel: ...


@overload
def kernel(function: None = None, **options: object) -> Callable[[Callable[..., object]], Kernel]: ...


def kernel(function: Callable[..., object] | None = None, **options: object) -> object:
    """Decorator: make a `Kernel` of a function.

    ``fuse=False``: each of its outermost parallel loops stays a dispatch of its own. ``graph=True``: so it does, and the kernel may have
    the structure of a graph: `graph.do_while`, `graph.parallel_context`; with ``checkpoints=True`` also `checkpoint`. Options of the Taichi
    family that only make its launches faster (``fastcache``, ``pure``) are accepted, without effect.

    Raises SpirogradRuntimeTypeError for other options, and for ``checkpoints`` without ``graph``.
    """
    check_options("kernel", options, _KERNEL_OPTIONS)
    if "pure" in options:
        problem = "the kernel's parameter `pure` is deprecated. Please use parameter `fastcache`: both are accepted, without effect"
        warnings.warn(problem, UserWarning, stacklevel=2)
    if options.get("checkpoints") and not options.get("graph"):
        problem = "the option `checkpoints` of `kernel` is for kernels that are graphs"
        raise SpirogradRuntimeTypeError(render(problem, None, "add `graph=True`"))
    unfused_by = "`kernel(graph=True)`" if options.get("graph") else "" if options.get("fuse", True) else "`kernel(fuse=False)`"
    frame, is_graph, checkpoints = sys._getframe(1), bool(options.get("graph")), bool(options.get("checkpoints"))

    def decorate(f: Callable[..., object]) -> Kernel:
        remember_outer_names(plain_function(f, "kernel"), frame)
        if is_graph or "stream_parallel" in f.__code__.co_names:
            return GraphKernel(f, unfused_by, is_graph, checkpoints)
        return Kernel(f, unfused_by)

    return decorate if function is None else decorate(function)


@overload
def data_oriented(cls: C, **options: object) -> C: ...


@overload
def data_oriented(cls: None = None, **options: object) -> Callable[[C], C]: ...


def data_oriented(cls: type | None = None, **options: object) -> object:
    """Decorator of a class whose methods are kernels and functions. Options of the Taichi family are accepted, without effect.

    Raises SpirogradRuntimeTypeError for other options.
    """
    check_options("data_oriented", options, _CLASS_OPTIONS)
    if cls is None:
        return functools.partial(data_oriented, **options)
    cls._data_oriented = True  # type: ignore[attr-defined]  # the name that programs ask for
    return cls
