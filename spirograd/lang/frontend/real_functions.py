"""Calls of `@real_func`: a function is traced once for each signature, and called.

A signature is the types of what the kernel computes, and what is known while compiling. Arguments are passed by value, aggregates as their
scalars. A function that does more than a `Function` may, or takes a variable by reference, is inlined like any other; so is one that
accesses memory in loops where these are parallel, at the top of a kernel.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Hashable, Mapping
from typing import NamedTuple

import numpy as np

from spirograd.base.dtypes import DType
from spirograd.base.errors import SpirogradCompilationError, SpirogradSyntaxError
from spirograd.base.loc import Loc
from spirograd.ir import ops as ir
from spirograd.ir.nodes import ArrayRef, FieldRef, Function, MemoryCall, Op, Ref, Region, callee_of, ref_of
from spirograd.lang import arithmetic, scalar
from spirograd.lang.frontend.control import at_top_level
from spirograd.lang.frontend.frames import Frame
from spirograd.lang.frontend.func import Func, is_scalar_type
from spirograd.lang.frontend.function_bodies import function_body
from spirograd.lang.frontend.runtime_values import is_runtime, leaves, pack_tuple, rebuild, settle, unpack_tuple
from spirograd.lang.frontend.syntax_facts import RESULT
from spirograd.lang.frontend.tracer import CalledFunction, Inlined, NotCallable, Tracer
from spirograd.lang.frontend.variables import MemoryVariable
from spirograd.lang.frontend.view_proxy import ViewProxy
from spirograd.lang.leaves import AggregateType, build, leaf_dtypes
from spirograd.lang.scalar import Value, describe
from spirograd.lang.struct import Struct

_COMPUTING = frozenset(("pure", "control", "structure"))
_ACCESSING = frozenset(("read", "write", "atomic"))
_REPORTING = _ACCESSING | {"check", "print"}
_MUTABLE = (list, dict, set, MemoryVariable)
_NUMBERS = (bool, int, float, str, type(None), np.generic)


class Called(NamedTuple):
    """A call that was emitted, with the value that it gives: None if it gives none."""

    value: object


def call_own_function(t: Tracer, func: Func, arguments: Mapping[str, object], found_in: Ref) -> Value:
    """Return the value of a call of ``func``, a function of the compiler, which can always be called. ``found_in``: see `MemoryCall`."""
    called = call_real_function(t, func, arguments, t.b.loc, found_in)
    if isinstance(called, Inlined):
        raise AssertionError(f"`{func.function.__name__}` cannot be called: {called.reason}")
    return scalar.as_value(called.value)


def call_real_function(
    t: Tracer, func: Func, arguments: Mapping[str, object], loc: Loc | None, found_in: Ref | None = None
) -> Called | Inlined:
    """Call ``func`` with ``arguments``, unless it must be inlined. ``found_in``: see `MemoryCall`. Raises SpirogradSyntaxError for
    functions that call themselves and do more than compute."""
    known = t.real_functions
    settled = {name: settle(value) if is_runtime(value) else value for name, value in arguments.items()}
    values: list[Value] = []
    try:
        if any(is_runtime(settled[name]) for name in func.references()):
            return Inlined("it changes a variable")
        key = (func, *[(name, _signature(value, values, known.kept)) for name, value in settled.items()])
    except NotCallable as error:
        return Inlined(str(error))
    if key in known.being_traced:
        return Called(_call_itself(t, func, key, values, loc))
    if key not in known.by_signature:
        known.by_signature[key] = _trace(t, func, settled, values, key)
    called = known.by_signature[key]
    if isinstance(called, Inlined):
        return called
    if called.accesses and called.loops and not called.recursive and at_top_level(t):
        return Inlined("its loops are parallel")
    t.b.loc = loc
    name, args, result = called.function.name, [v.op for v in values], called.function.result
    if called.accesses:
        op = t.b.emit(ir.call_memory, *args, attr=MemoryCall(name, called.accesses, found_in), type=result)
    else:
        op = t.b.emit(ir.call, *args, attr=name, type=result)
    results = t.b.results(op) if isinstance(op.type, tuple) else (op,)
    return Called(None if called.model is None else unpack_tuple(rebuild(called.model, [Value(r) for r in results])))


def _call_itself(t: Tracer, func: Func, key: Hashable, values: list[Value], loc: Loc | None) -> object:
    """Return a call of a function that is being traced: of its result only what the annotation says is known."""
    known, name, returns = t.real_functions, func.function.__name__, func.returns
    if is_scalar_type(returns):
        returns = arithmetic.as_dtype(returns)
    result = returns if isinstance(returns, (DType, AggregateType)) else None
    if result is None and (returns not in (None, type(None), inspect.Signature.empty) or _returns_values(func)):
        message = f"`{name}` calls itself, and does not say of what type its result is"
        raise _refused(t, message, loc, f"annotate it: `def {name}(...) -> sg.f32:`")
    types = () if result is None else leaf_dtypes(result)
    symbol = known.recursive.setdefault(key, f"{name}.r{len(known.recursive) + 1}")
    t.b.loc = loc
    op = t.b.emit(ir.call, *[v.op for v in values], attr=symbol, type=types[0] if len(types) == 1 else types)
    if result is None:
        return None
    results = [Value(r) for r in (t.b.results(op) if len(types) > 1 else (op,))]
    return unpack_tuple(build(result, results))


def _returns_values(func: Func) -> bool:
    return any(isinstance(node, ast.Return) and node.value is not None for node in ast.walk(func.source.tree))


def _refused(t: Tracer, message: str, loc: Loc | None, hint: str) -> SpirogradSyntaxError:
    """Return the error for a function that calls itself; it goes through to the user."""
    t.real_functions.recursion = error = SpirogradSyntaxError(message, loc, hint)
    return error


def _signature(value: object, values: list[Value], kept: list[object]) -> Hashable:
    """Return what of an argument decides which function it calls; its scalars are appended to ``values``, objects to be kept alive to
    ``kept``."""
    if isinstance(value, Struct):
        kept.append(value._methods)
        return ("struct", id(value._methods), *[(name, _signature(member, values, kept)) for name, member in value.entries.items()])
    if is_runtime(value):
        scalars = leaves(value)
        values += scalars
        return (getattr(value, "shape", None) if not isinstance(value, Value) else None, *[v.dtype for v in scalars])
    if isinstance(value, tuple):
        return ("tuple", *[_signature(member, values, kept) for member in value])
    if isinstance(value, (*_MUTABLE, ViewProxy)):  # a view holds values of the caller
        raise NotCallable(f"it takes {describe(value)}")
    if isinstance(value, _NUMBERS):
        return (type(value), repr(value))
    kept.append(value)
    return ("object", id(value))


def _trace(t: Tracer, func: Func, arguments: Mapping[str, object], values: list[Value], key: Hashable) -> CalledFunction | Inlined:
    """Trace ``func``. If it has to be inlined, its errors are found again, with the chain of calls."""
    b, caller, depth, temps, random_stream = t.b, t.frame, t.b.depth, t.temps, t.random_stream
    frame = Frame(func.source, func.source.names(), False, func.returns)
    params = [Value(p) for p in b.begin(*[v.dtype for v in values])][::-1]
    frame.variables = {name: _rebuilt(value, params) for name, value in arguments.items()}
    given = {name: frame.variables[name] for name in func.references()}
    frame.by_reference, frame.depth, frame.may_lack_a_value = frozenset(given), b.depth, func.may_lack_a_value
    t.real_functions.being_traced.add(key)
    t.frame, t.call_depth, t.random_stream = frame, t.call_depth + 1, None
    try:
        with t.trace.guarded():  # as another call of it may be
            function_body(t, func.source.tree.body)
        unchanged = all(frame.variables.get(name) is value for name, value in given.items())
        traced = _finished(t, func, frame, t.real_functions.recursive.get(key)) if unchanged else Inlined("it changes a variable")
        if isinstance(traced, Inlined) and key in t.real_functions.recursive:
            raise _refused_recursion(t, func)
        return traced
    except NotCallable as error:
        if key in t.real_functions.recursive:
            raise _refused_recursion(t, func) from None
        return Inlined(str(error))
    except SpirogradCompilationError as error:
        if error is t.real_functions.recursion or key in t.real_functions.recursive:
            t.real_functions.recursion = error
            raise
        return Inlined(error.message)
    finally:
        t.real_functions.being_traced.discard(key)
        t.frame, t.call_depth, t.temps, t.random_stream = caller, t.call_depth - 1, temps, random_stream
        while b.depth > depth:
            b.suspend()


def _refused_recursion(t: Tracer, func: Func) -> SpirogradSyntaxError:
    message = f"`{func.function.__name__}` calls itself, and does what only functions can that are inlined"
    return _refused(t, message, t.b.loc, "it may compute, access fields and arrays, print and assert; random numbers are for others")


def _finished(t: Tracer, func: Func, frame: Frame, symbol: str | None) -> CalledFunction | Inlined:
    """Return the function that was traced, or why it must be inlined. ``symbol``: the name by which it has called itself."""
    result = frame.variables.get(RESULT)
    model = pack_tuple(result) if isinstance(result, tuple) else result
    if model is not None and not is_runtime(model):
        return Inlined(f"it returns {describe(model)}")
    body = t.b.end([] if model is None else [value.op for value in leaves(model)])
    functions = t.real_functions.functions
    function = Function(symbol or f"{func.function.__name__}.{len(functions) + 1}", body)
    accesses = function.accesses
    symbols = set(t.real_functions.recursive.values())
    recursive = symbol is not None or any(callee_of(op) in symbols for op in body.walk())  # or may be, of one called on the way to itself
    allowed = _REPORTING if symbol else _ACCESSING if accesses or recursive else frozenset()
    if not _is_function(body, set(), allowed) or (model is None and not accesses and not recursive):
        return Inlined("it does more than compute and access memory")
    looping = {other.function.name for other in t.real_functions.by_signature.values() if isinstance(other, CalledFunction) and other.loops}
    functions.append(function)
    loops = any(op.code is ir.for_ or callee_of(op) in looping for op in body.walk())
    return CalledFunction(function, model, accesses, loops, recursive)


def _rebuilt(value: object, params: list[Value]) -> object:
    """Return ``value`` with parameters, taken from the end of ``params``, for its scalars."""
    if is_runtime(value):
        return rebuild(value, [params.pop() for _ in leaves(value)])
    return tuple([_rebuilt(member, params) for member in value]) if type(value) is tuple else value


def _is_function(body: Region, known: set[Op], effects: frozenset[str]) -> bool:
    """Return whether ``body`` can be the body of a function: it takes its parameters and ``known`` alone, and computes; it may have these
    ``effects``, too."""
    known.update(body.params)
    for op in body.ops:
        if not known.issuperset(op.args) or not (_computes(op) or (effects and _has_effects(op, effects))):
            return False
        if not all(_is_function(region, known, effects) for region in op.regions):
            return False
        known.add(op)
    return True


def _computes(op: Op) -> bool:
    return op.code.effect in _COMPUTING and op.code not in ir.OUTSIDE


def _has_effects(op: Op, effects: frozenset[str]) -> bool:
    if op.code.effect in _ACCESSING:
        return isinstance(ref_of(op), (FieldRef, ArrayRef))
    return op.code.effect in effects or op.code in ir.ARGUMENTS or op.code in (ir.call_memory, ir.label)
