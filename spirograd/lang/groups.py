"""Groups of threads while a kernel is traced: the index of an invocation in its group, and arrays that a group shares.

The iterations of a parallel loop, numbered from 0, form groups of ``block_dim`` consecutive ones, the last of which may be smaller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from spirograd.base.dtypes import DType, i32, i64, u1
from spirograd.base.errors import SpirogradSyntaxError
from spirograd.ir import ops as ir
from spirograd.ir.nodes import Op, SharedRef
from spirograd.ir.whole_groups import are_whole
from spirograd.lang import arithmetic, plain_python, scalar
from spirograd.lang.annotations import MatrixType
from spirograd.lang.context import GroupScope, current_trace, language_options
from spirograd.lang.leaves import AggregateType
from spirograd.lang.scalar import Value, describe, type_error

# The size of groups in loops that do not set it.
_DEFAULT_SIZE = 256


def enter(index: Op, begin: Value, end: Value, size: int) -> GroupScope:
    """Return the scope of a parallel loop whose body is about to be traced, in groups of ``size`` (0: the default)."""
    options = language_options()
    if size < 0:
        raise type_error(f"`block_dim` is the number of threads of a group, got {size}", "set it to 1 or more, or omit it")
    size = size or options.group_size or min(_DEFAULT_SIZE, options.max_group_size)
    return GroupScope((index, begin.op), (begin.op, end.op), size)


def current(what: str) -> GroupScope:
    """Return the group of the loop being traced. ``what`` uses it. Raises SpirogradSyntaxError outside of parallel loops."""
    trace = current_trace()
    if plain_python.state.running:
        plain_python.refuse(what)
    if trace is None or trace.group is None:
        loc = None if trace is None else trace.b.loc
        raise SpirogradSyntaxError(
            f"`{what}` works in the body of a parallel loop", loc, "call it in an outermost `for` of a kernel, or a function called there"
        )
    scope = trace.group
    if not scope.used and scope.size > trace.options.max_group_size:
        most = trace.options.max_group_size
        device = trace.options.device
        raise type_error(f"groups of {scope.size} threads are too large: {device} takes at most {most}", "set a smaller `block_dim`")
    scope.used = True
    return scope


def number_of_iteration(scope: GroupScope) -> Value:
    """Return the number of the iteration being traced, counted from 0."""
    index, begin = scope.number
    return Value(index) if begin.code is ir.const and begin.attr == 0 else scalar.emit(ir.sub, Value(index), Value(begin))


def thread_number(scope: GroupScope) -> Value:
    """Return the number of the invocation in its group, an i32."""
    number = number_of_iteration(scope)
    return scalar.cast(scalar.emit(ir.irem, number, scalar.constant(scope.size, number.dtype)), i32)


def threads(scope: GroupScope) -> Value:
    """Return the number of invocations in the group, an i32: fewer than its size at the end of the loop."""
    begin, end = scope.count
    if are_whole(begin, end, scope.size):
        return scalar.constant(scope.size, i32)
    number = number_of_iteration(scope)
    t = number.dtype
    first = scalar.emit(ir.sub, number, scalar.emit(ir.irem, number, scalar.constant(scope.size, t)))
    left = scalar.emit(ir.sub, scalar.emit(ir.sub, Value(end), Value(begin)), first)
    return scalar.cast(scalar.emit(ir.min_, left, scalar.constant(scope.size, t)), i32)


def global_thread_idx() -> Value:
    """Return the number of this thread among all of the loop, from 0."""
    number = number_of_iteration(current("global_thread_idx"))
    return scalar.cast(number, i64 if number.dtype.bits == 64 else i32)


def block_idx() -> Value:
    """Return the number of the group of this thread among those of the loop, from 0."""
    scope = current("block_idx")
    number = number_of_iteration(scope)
    return scalar.cast(scalar.emit(ir.idiv, number, scalar.constant(scope.size, number.dtype)), i32)


class SharedArray:
    """An array of ``shape``, known while compiling, that the threads of a group share, in the body of a parallel loop, as in
    ``SharedArray((64,), sg.f32)``. Elements may be vectors or matrices. Its contents are undefined until they are written. Raises
    SpirogradSyntaxError elsewhere.
    """

    __sg_traceable__ = True

    def __init__(self, shape: object, dtype: object) -> None:
        current("SharedArray")
        trace = scalar.trace_of()
        extents = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
        known = [scalar.known(n) for n in extents]
        self.shape = tuple([n for n in known if isinstance(n, int) and n > 0])
        if not known or len(self.shape) < len(known):
            given = ", ".join([describe(n) for n in known])
            problem = f"the extents of a shared array are positive integers that are known while compiling, got {given}"
            raise type_error(problem, "as in `SharedArray((64,), sg.f32)`")
        if isinstance(dtype, AggregateType) and not isinstance(dtype, MatrixType):
            problem = f"elements of shared arrays are numbers, vectors or matrices, got {describe(dtype)}"
            raise type_error(problem, "declare an array for each member")
        self.element_shape: tuple[int, ...] = dtype.shape if isinstance(dtype, MatrixType) else ()
        self.dtype: DType = arithmetic.as_dtype(dtype.dtype if isinstance(dtype, MatrixType) else dtype)
        if self.dtype is u1:
            raise type_error("shared arrays of u1 are not supported", "use `sg.i32`")
        trace.shared_arrays += 1
        length = math.prod(self.shape) * math.prod(self.element_shape)
        self.ref = SharedRef(f"shared{trace.shared_arrays}", self.dtype, length)

    def __getitem__(self, index: object) -> Any:
        raise SpirogradSyntaxError("a shared array has no contents outside of its loop", None, "access it in the loop that declares it")

    def __setitem__(self, index: object, value: object) -> None:
        self[index]

    def __sg_describe__(self) -> str:
        return f"a shared array of shape {self.shape}"


def flattened(indices: Sequence[Op], extents: Sequence[int]) -> Op:
    """Return the number of an element in row-major order."""
    b = scalar.builder()
    total = b.cast(indices[0], i32)
    for index, extent in zip(indices[1:], extents[1:]):
        total = b.emit(ir.add, b.emit(ir.mul, total, b.const(extent), attr="nsw"), b.cast(index, i32), attr="nsw")
    return total
