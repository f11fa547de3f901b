"""Kernels as functions of their arguments: other frameworks may merge, repeat and remove their calls."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from spirograd.ad.entries import memory_of
from spirograd.base.dtypes import DType
from spirograd.base.errors import SpirogradRuntimeError, SpirogradTypeError, render
from spirograd.ir import ops as ir
from spirograd.ir.nodes import ArrayRef, FieldRef, accesses_of
from spirograd.lang import arithmetic
from spirograd.lang.frontend.func import resolved_signature
from spirograd.lang.frontend.kernel import Kernel

# Tapes save what a kernel overwrites, but the graph of the framework takes their place.
COPY_HINT = "have the kernel write to another array than it reads: {framework} then keeps the one that it reads"


def check_writes(kernel: Kernel, specialization: Any, outputs: Container[str]) -> None:
    """Raise SpirogradRuntimeError if the kernel writes to an array that is not among the outputs."""
    for ref in memory_of(specialization.kernel, ("write", "atomic")):
        if isinstance(ref, ArrayRef) and ref.name not in outputs:
            label = f"kernel `{kernel.function.__name__}` writes to `{ref.name}`, which is not among the outputs"
            raise SpirogradRuntimeError(render(label, None, f"name it: `outputs=[{ref.name!r}, ...]`"))


def check_pure(kernel: Kernel, specialization: Any, what: str, arrays: str, instead: str = "") -> None:
    """Raise SpirogradRuntimeError if the kernel uses other memory than its arguments, or draws random numbers.

    ``what`` it cannot be then, and why; ``arrays``: what the framework calls an array; ``instead``: what else a user can do.
    """
    problem = f"kernel `{kernel.function.__name__}` cannot be {what}"
    hint = f"pass it as {arrays}{instead}"
    if specialization.captures:
        array = specialization.kernel.args[-1].name
        raise SpirogradRuntimeError(render(f"{problem}: it uses the ndarray `{array}`", specialization.kernel.loc, hint))
    for op in specialization.kernel.walk():
        field = next((ref for _, ref in accesses_of(op) if isinstance(ref, FieldRef)), None)
        if field is not None:
            raise SpirogradRuntimeError(render(f"{problem}: it uses the field `{field.name}`", op.loc, hint))
        if op.code is ir.seed:
            raise SpirogradRuntimeError(
                render(f"{problem}: it draws random numbers", specialization.kernel.loc, f"pass random numbers as {arrays}")
            )


def result_type(kernel: Kernel) -> DType:
    """The type of the number that the kernel returns. Raises SpirogradTypeError if it returns none."""
    annotation = resolved_signature(kernel.function).return_annotation
    try:
        return arithmetic.as_dtype(annotation)
    except TypeError:
        hint = '`outputs={"y": "x"}`: `y` is written, and has the shape of `x`'
        problem = f"kernel `{kernel.function.__name__}` returns no number: name what it writes to"
        raise SpirogradTypeError(problem, None, hint) from None
