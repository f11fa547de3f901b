"""Calls of `@real_func`: a function that only computes is traced once for each signature, and called.

A signature is the types of what the kernel computes, and what is known while compiling. Arguments are passed by value, aggregates as their
scalars. A function that does more than to compute (see `Function`), or takes a variable by reference, is inlined like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from spirograd.base.errors import SpirogradCompilationError, SpirogradSyntaxError
from spirograd.base.loc import Loc
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Function, Op, Region
from spirograd.lang.frontend.function import Func
from spirograd.lang.frontend.names import RESULT, RNG
from spirograd.lang.frontend.state import Frame, MemoryVariable, is_runtime, leaves, pack_tuple, rebuild, settle, unpack_tuple
from spirograd.lang.scalar import Value
from spirograd.lang.struct import Struct

_COMPUTING = frozenset(("pure", "control", "structure"))
_MUTABLE = (list, dict, set, MemoryVariable)
_NUMBERS = (bool, int, float, str, type(None), np.generic)


class _Tracer(Protocol):
    """What is needed of the tracer."""

    b: Builder
    frame: Frame
    depth: int
    temps: int

    @property
    def function_body(self) -> Callable[[list[Any]], None]: ...


class _Made(NamedTuple):
    """A function, and a value of the shape that it returns."""

    function: Function
    model: Any


class _Inlined(Exception):
    """The function cannot be called with these arguments."""


class RealFunctions:
    """The functions of one kernel, callees before callers."""

    def __init__(self) -> None:
        self.functions: list[Function] = []
        self._made: dict[Hashable, _Made | None] = {}
        self._tracing: set[Hashable] = set()
        self._recursion: SpirogradCompilationError | None = None
        self._kept: list[Any] = []  # objects that signatures tell apart by their identity

    def call(self, tracer: _Tracer, func: Func, arguments: Mapping[str, Any], loc: Loc | None) -> Any:
        """The value of a call of ``func`` with ``arguments``; None if it must be inlined. Raises SpirogradSyntaxError for recursion."""
        by_reference = func.references()
        settled = {name: settle(value) if is_runtime(value) else value for name, value in arguments.items()}
        values: list[Value] = []
        try:
            if any(is_runtime(settled[name]) for name in by_reference):
                raise _Inlined
            key = (func, *[(name, self._signature(value, values)) for name, value in settled.items()])
        except _Inlined:
            return None
        if key in self._tracing:
            name = func.function.__name__
            message = f"`{name}` calls itself with arguments of the same types, and a function of a kernel cannot"
            hint = "use a loop, or let a template argument count down, which is known while compiling"
            self._recursion = SpirogradSyntaxError(message, loc, hint)
            raise self._recursion
        if key not in self._made:
            self._made[key] = self._new(tracer, func, settled, values, key)
        made = self._made[key]
        if made is None:
            return None
        b, function = tracer.b, made.function
        b.loc = loc
        op = b.emit(ops.call, *[v.op for v in values], attr=function.name, type=function.result)
        results = b.results(op) if isinstance(op.type, tuple) else (op,)
        return unpack_tuple(rebuild(made.model, [Value(r) for r in results]))

    def _signature(self, value: Any, values: list[Value]) -> Hashable:
        """What of an argument decides which function it calls; its scalars are appended to ``values``."""
        if isinstance(value, Struct):
            self._kept.append(value._methods)
            return ("struct", id(value._methods), *[(name, self._signature(member, values)) for name, member in value.entries.items()])
        if is_runtime(value):
            found = leaves(value)
            values += found
            return (getattr(value, "shape", None) if not isinstance(value, Value) else None, *[v.dtype for v in found])
        if isinstance(value, tuple):
            return ("tuple", *[self._signature(member, values) for member in value])
        if isinstance(value, _MUTABLE):
            raise _Inlined
        if isinstance(value, _NUMBERS):
            return (type(value), repr(value))
        self._kept.append(value)
        return ("object", id(value))

    def _new(self, tracer: _Tracer, func: Func, arguments: Mapping[str, Any], values: list[Value], key: Hashable) -> _Made | None:
        """Trace ``func``; None if it has to be inlined, in which case its errors are found again, with the chain of calls."""
        b, caller, depth, temps = tracer.b, tracer.frame, tracer.b.depth, tracer.temps
        frame = Frame(func.source, func.source.names(), False, func.signature.return_annotation)
        params = [Value(p) for p in b.begin(*[v.dtype for v in values])][::-1]
        frame.vars = {name: _rebuilt(value, params) for name, value in arguments.items()}
        given = {name: frame.vars[name] for name in func.references()}
        frame.by_reference, frame.depth = frozenset(given), b.depth
        if RNG in caller.vars:
            frame.vars[RNG] = given[RNG] = caller.vars[RNG]
        self._tracing.add(key)
        tracer.frame, tracer.depth = frame, tracer.depth + 1
        try:
            tracer.function_body(func.source.tree.body)
            return self._finished(b, func, frame) if all(frame.vars.get(name) is value for name, value in given.items()) else None
        except SpirogradCompilationError as error:
            if error is self._recursion:
                raise
            return None
        finally:
            self._tracing.discard(key)
            tracer.frame, tracer.depth, tracer.temps = caller, tracer.depth - 1, temps
            while b.depth > depth:
                b.suspend()

    def _finished(self, b: Builder, func: Func, frame: Frame) -> _Made | None:
        result = frame.vars.get(RESULT)
        model = pack_tuple(result) if isinstance(result, tuple) else result
        if not is_runtime(model):
            return None
        body = b.end([value.op for value in leaves(model)])
        if not _computes(body, set()):
            return None
        function = Function(f"{func.function.__name__}.{len(self.functions) + 1}", body)
        self.functions.append(function)
        return _Made(function, model)


def _rebuilt(value: Any, params: list[Value]) -> Any:
    """``value`` with parameters, taken from the end of ``params``, for its scalars."""
    if is_runtime(value):
        return rebuild(value, [params.pop() for _ in leaves(value)])
    return tuple([_rebuilt(member, params) for member in value]) if type(value) is tuple else value


def _computes(body: Region, known: set[Op]) -> bool:
    """Whether ``body`` can be that of a function: without effects, and of nothing but its parameters and what is ``known``."""
    known.update(body.params)
    for op in body.ops:
        if op.code.effect not in _COMPUTING or op.code in ops.OUTSIDE or not known.issuperset(op.args):
            return False
        if not all(_computes(region, known) for region in op.regions):
            return False
        known.add(op)
    return True
