"""The decorators of kernels, `@kernel`, and of classes whose methods are kernels, `@data_oriented`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from spirograd.base.errors import SpirogradRuntimeTypeError, render
from spirograd.base.wording import did_you_mean
from spirograd.lang.frontend.func import plain_function, remember_outer_names
from spirograd.lang.frontend.graph_kernel import GraphKernel
from spirograd.lang.frontend.kernel import Kernel

# What the family's decorators take.
_KERNEL_OPTIONS = ("checkpoints", "fastcache", "fuse", "graph", "pure")
_CLASS_OPTIONS = ("stable_members", "template_primitives")


def check_options(what: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raise SpirogradRuntimeTypeError for the first option of ``what`` that is not among those ``known``."""
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known) or f"it takes {', '.join(f'`{option}`' for option in known)}"
            raise SpirogradRuntimeTypeError(render(f"`{what}` has no option `{name}`", None, hint))


def kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
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
    frame = sys._getframe(1)
    if function is None:

        def decorate(f: Callable[..., object]) -> Kernel:
            remember_outer_names(plain_function(f, "kernel"), frame)
            return _made(f, unfused_by, options)

        return decorate
    remember_outer_names(plain_function(function, "kernel"), frame)
    return _made(function, unfused_by, options)


def _made(function: Callable[..., object], unfused_by: str, options: Mapping[str, object]) -> Kernel:
    is_graph, checkpoints = bool(options.get("graph")), bool(options.get("checkpoints"))
    if is_graph or "stream_parallel" in function.__code__.co_names:
        return GraphKernel(function, unfused_by, is_graph, checkpoints)
    return Kernel(function, unfused_by)


def data_oriented(cls: Any = None, **options: object) -> Any:
    """Decorator of a class whose methods are kernels and functions. Options of the Taichi family are accepted, without effect.

    Raises SpirogradRuntimeTypeError for other options.
    """
    check_options("data_oriented", options, _CLASS_OPTIONS)
    if cls is None:
        return lambda c: data_oriented(c, **options)
    cls.__sg_data_oriented__ = True
    return cls
