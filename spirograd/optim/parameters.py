"""The parameters of optimisers: fields and ndarrays of floats with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, Union

from spirograd.ad.program_memory import Tree
from spirograd.base.dtypes import DType, f16, f32, f64
from spirograd.base.errors import SpirogradRuntimeError, SpirogradTypeError, SpirogradValueError, render
from spirograd.lang import context
from spirograd.lang.annotations import element_type
from spirograd.lang.data.ndarray import Ndarray, ndarray
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.scalar import describe
from spirograd.runtime import graph_recording

Memory = Union[ScalarField, Ndarray]
T = TypeVar("T")


def checked_parameters(params: object, what: str = "params") -> list[Memory]:
    """Return the fields and ndarrays in ``params``: one, or lists, tuples, dicts and fields of structs of them.

    Raises SpirogradTypeError for other values, sparse fields and types of elements without an update rule, SpirogradRuntimeError for
    memory without a gradient, SpirogradValueError if there is none. ``what``: their name in messages.
    """
    tree = Tree(what, params)
    if not tree.leaves:
        raise SpirogradValueError(f"`{what}` is empty: pass the fields and ndarrays to optimise")
    tree.check_gradients()
    for leaf in tree.leaves:
        if leaf.dtype not in (f16, f32, f64):
            raise SpirogradTypeError(f"`{what}`: {describe(leaf)} has elements of {leaf.dtype}; optimisers change f16, f32 and f64")
        if leaf.sparse_path is not None:
            raise SpirogradTypeError(f"`{what}`: {describe(leaf)} is sparse", None, "optimise a dense field")
    return tree.leaves


def working_type(parameters: Sequence[Memory]) -> DType:
    """Return the type that optimisers compute in for some parameters: f64 if one of them has it, else f32."""
    return f64 if any(p.dtype is f64 for p in parameters) else f32


def origin_of(memory: Memory) -> tuple[int, ...]:
    """Return the index of the first element; () if all components are 0."""
    origin = () if isinstance(memory, Ndarray) else tuple(memory.origin)
    return origin if any(origin) else ()


def state_like(memory: Memory) -> Ndarray:
    """Return an ndarray of zeros for a number of each element of a parameter: f32, or f64 for parameters of f64."""
    dtype = working_type([memory])
    shape = memory.element_shape
    return ndarray(element_type(shape, dtype) if shape else dtype, memory.shape)


def check_host_scope(what: str) -> None:
    """Raise SpirogradRuntimeError where ``what``, which changes parameters, must not run: in a tape and in a graph."""
    if context.recorder() is not None:
        problem = f"`{what}` cannot run inside of a tape or of a `FwdMode`, which would differentiate it"
        raise SpirogradRuntimeError(render(problem, None, "call it after the block"))
    if graph_recording.active() is not None:
        problem = f"`{what}` cannot be recorded in a graph: what it computes on the host would be the same at each launch of the graph"
        raise SpirogradRuntimeError(render(problem, None, "record the loss and its gradients only, and call it after each launch"))
