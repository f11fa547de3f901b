"""Calls of functions of the kernel language: their bodies are traced where they are called."""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from collections.abc import Mapping, Sequence

from spirograd.base.errors import SpirogradCallError, SpirogradSyntaxError, SpirogradTypeError
from spirograd.base.later import Later
from spirograd.base.loc import Loc
from spirograd.lang import arithmetic, scalar
from spirograd.lang.annotations import Reference, ref
from spirograd.lang.frontend.access import resolve
from spirograd.lang.frontend.call_effects import check_unchanged
from spirograd.lang.frontend.call_targets import Argument, Callee
from spirograd.lang.frontend.control import at_top_level
from spirograd.lang.frontend.frames import Frame
from spirograd.lang.frontend.func import Func, RealFunc, bound_arguments, is_scalar_type, is_template
from spirograd.lang.frontend.function_bodies import function_body
from spirograd.lang.frontend.lvalues import Element, Lvalue, SpreadElement, StructElement
from spirograd.lang.frontend.real_functions import Called, call_real_function
from spirograd.lang.frontend.runtime_values import settle, unpack_tuple
from spirograd.lang.frontend.syntax_facts import RESULT, RNG
from spirograd.lang.frontend.tracer import Tracer
from spirograd.lang.frontend.variables import MemoryVariable
from spirograd.lang.leaves import AggregateType
from spirograd.lang.matrix import Matrix
from spirograd.lang.scalar import describe, is_scalar, type_error
from spirograd.lang.struct import Struct

MAX_DEPTH = 64


def call_function(t: Tracer, callee: Callee, node: ast.Call, lvalue: Lvalue | None) -> object:
    """Return the value of a call. ``lvalue``: of the object whose method the function is."""
    func = callee.func
    _begin_call(t, func)
    args, kwargs = _given(t, callee, node, lvalue)
    call_loc = t.b.loc = t.frame.loc(node)
    bound = _bound(func, [a.value for a in args], {name: a.value for name, a in kwargs.items()}, call_loc)
    by_reference = func.references()
    references = {name: a for name, a in [*zip(callee.parameters, args), *kwargs.items()] if name in by_reference}
    variables: dict[str, object] = {}
    for name, value in bound.arguments.items():
        target = references[name].lvalue if name in references else None
        if isinstance(func.signature.parameters[name].annotation, Reference) or func.signature.parameters[name].annotation is ref:
            _check_reference(func, name, value, target)
        if isinstance(target, (Element, SpreadElement, StructElement)):  # the parameter is that element, updated atomically
            variables[name] = MemoryVariable(target)
        else:
            variables[name] = _converted(name, value, func.signature.parameters[name].annotation, func)
    called = call_real_function(t, func, variables, call_loc) if isinstance(func, RealFunc) else None
    if isinstance(called, Called):
        return called.value
    frame = inline(t, func, variables, frozenset(by_reference), call_loc)
    t.at(node)
    _copy_back(t, callee, frame, bound.arguments, references)
    return unpack_tuple(frame.variables.get(RESULT))


def call_with_values(t: Tracer, callee: Callee, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    """Return the value of a call of a function that takes nothing by reference, with arguments that are evaluated."""
    func, call_loc = callee.func, t.b.loc
    assert call_loc is not None
    _begin_call(t, func)
    bound = _bound(func, [*callee.positional, *args], {**callee.keywords, **kwargs}, call_loc)
    parameters = func.signature.parameters
    variables = {name: _converted(name, value, parameters[name].annotation, func) for name, value in bound.arguments.items()}
    return unpack_tuple(inline(t, func, variables, frozenset(), call_loc).variables.get(RESULT))


def _begin_call(t: Tracer, func: Func) -> None:
    """Record the source of a function that is called. Raises SpirogradSyntaxError if calls are too deep, or the function may not be called
    here."""
    if t.captures.reads is not None:
        t.captures.reads.source(func)
    if func.requires_top_level and not at_top_level(t):
        raise SpirogradSyntaxError(
            f"`{func.function.__name__}` has requires_top_level=True, and is called under a condition or in a loop",
            t.b.loc,
            "call it at the top level of a kernel, where its loops are parallel",
        )
    if t.call_depth >= MAX_DEPTH:
        raise SpirogradSyntaxError(
            f"`{func.function.__name__}` calls itself: {MAX_DEPTH} calls deep while inlining",
            t.b.loc,
            "a function with `@sg.func` is inlined, so its recursion needs an end that is known while compiling; one with `@sg.real_func` "
            "is called at run time, and may call itself",
        )


def _bound(func: Func, args: Sequence[object], kwargs: Mapping[str, object], call_loc: Loc) -> inspect.BoundArguments:
    try:
        bound = bound_arguments(func.signature, args, kwargs)
    except TypeError as error:
        raise SpirogradCallError(f"function `{func.function.__name__}`: {error}", call_loc) from None
    bound.apply_defaults()
    return bound


def inline(t: Tracer, func: Func, variables: dict[str, object], by_reference: frozenset[str], call_loc: Loc) -> Frame:
    """Trace the body of ``func`` here; the frame as it is at the end."""
    caller = t.frame
    frame = Frame(func.source, func.source.names(), False, func.returns, call_loc, variables)
    frame.loops, frame.by_reference, frame.depth = list(caller.loops), by_reference, t.b.depth
    frame.may_lack_a_value = func.may_lack_a_value
    if t.random_stream is not None:
        frame.variables[RNG] = caller.variables[RNG]
    t.frame, t.call_depth = frame, t.call_depth + 1
    try:
        function_body(t, func.source.tree.body)
    finally:
        t.frame, t.call_depth = caller, t.call_depth - 1
    if t.random_stream is not None:
        caller.variables[RNG] = frame.variables[RNG]
    return frame


# --- arguments ---------------------------------------------------------------------------------------------------------------


def _given(t: Tracer, callee: Callee, node: ast.Call, lvalue: Lvalue | None) -> tuple[list[Argument], dict[str, Argument]]:
    """Return the arguments of a call, in the order of the source; what ``callee`` is bound to comes first."""
    names, by_reference = callee.parameters, callee.func.references()

    def of(expression: ast.expr, name: str | None) -> Argument:
        if name not in by_reference:
            return Argument(t.expression(expression))
        target, value = resolve(t, expression)
        return Argument(value if target is None else target.load(), expression, target)

    args = [Argument(value) for value in callee.positional]
    if callee.has_object and isinstance(node.func, ast.Attribute):
        args[0] = Argument(args[0].value, node.func.value, lvalue)
    for expression in node.args:
        if isinstance(expression, ast.Starred):
            args += [Argument(value) for value in t.expression(expression.value)]
        else:
            args.append(of(expression, names[len(args)] if len(args) < len(names) else None))
    kwargs = {name: Argument(value) for name, value in callee.keywords.items()}
    for keyword in node.keywords:
        if keyword.arg is None:
            kwargs.update({name: Argument(value) for name, value in t.expression(keyword.value).items()})
        else:
            kwargs[keyword.arg] = of(keyword.value, keyword.arg)
    return args, kwargs


def _check_reference(func: Func, name: str, value: object, target: Lvalue | None) -> None:
    """Raise SpirogradTypeError unless an argument fits the annotation ``ref(dtype)``."""
    called, annotation = f"argument `{name}` of `{func.function.__name__}`", func.signature.parameters[name].annotation
    if annotation is ref:
        raise type_error(f"{called}: the annotation `ref` takes a type", "write `ref(sg.f32)`")
    wanted = annotation.dtype
    if not isinstance(func, RealFunc):
        raise type_error(f"{called}: `ref` is for functions decorated with `@sg.real_func`", "annotate it `sg.template()`")
    if target is None:
        raise type_error(f"{called} takes a variable, or an element of memory, of type {wanted}, got {describe(value)}", "assign it first")
    if not is_scalar(value) or scalar.dtype_of(value) is not wanted:
        raise type_error(f"{called} takes a reference to a scalar of type {wanted}, got {describe(value)}")


def _converted(name: str, value: object, annotation: object, func: Func) -> object:
    """Return the value of a parameter: cast to its annotation if it has one."""
    if isinstance(annotation, Later):
        annotation()  # says that there is no such type
    if is_scalar_type(annotation):
        if isinstance(value, Matrix):  # the type of its entries, as in the Taichi family
            return arithmetic.cast(value, annotation)
        if not is_scalar(value):
            wanted = getattr(annotation, "__name__", None) or str(annotation)
            raise type_error(f"argument `{name}` of `{func.function.__name__}` takes a scalar ({wanted}), got {describe(value)}")
        return scalar.cast(value, arithmetic.as_dtype(annotation))
    if isinstance(annotation, AggregateType):
        try:
            return settle(annotation.converted(value))
        except SpirogradTypeError as error:
            raise type_error(f"argument `{name}` of `{func.function.__name__}`: {error.message}", error.hint) from None
    return settle(value) if is_scalar(value) and not is_template(annotation) else value


def _copy_back(t: Tracer, callee: Callee, frame: Frame, given: Mapping[str, object], references: Mapping[str, Argument]) -> None:
    """Store what parameters taken by reference have become to the variables that they stand for."""
    func, changed = callee.func, list[tuple[ast.expr, Lvalue, object]]()
    for name, argument in references.items():
        held = frame.variables.get(name, given[name])
        if held is given[name] or isinstance(argument.lvalue, (Element, SpreadElement, StructElement)):
            continue
        if argument.lvalue is not None and argument.node is not None:
            changed.append((argument.node, argument.lvalue, held.lvalue.load() if isinstance(held, MemoryVariable) else held))
        elif isinstance(argument.node, ast.Name) and scalar.is_number(given[name]):
            wanted = f"`{func.function.__name__}` changes `{argument.node.id}`, which is known while compiling"
            raise type_error(wanted, "assign it without `static`")
        elif argument.node is None and func.changes_object and name == callee.parameters[0]:
            name = func.function.__name__
            raise type_error(f"`{name}` changes its struct, which the call does not name", f"call it on a variable: `s.{name}(...)`")
        elif isinstance(argument.node, (ast.Subscript, ast.Attribute)) and isinstance(given[name], Struct):
            changes = f"`{func.function.__name__}` changes `{ast.unparse(argument.node)}`, which is {describe(given[name])}, computed here"
            raise type_error(f"{changes}; only variables and elements of memory can be changed", "hold it in a variable of its own")
    texts = Counter(ast.dump(a.node) for a in references.values() if a.node is not None)
    for expression, _, _ in changed:
        if texts[ast.dump(expression)] > 1:
            message = f"`{func.function.__name__}` changes `{ast.unparse(expression)}`, which it takes by reference more than once"
            raise type_error(message, "pass a copy of it, which the function may read: `old = " + ast.unparse(expression) + "`")
    check_unchanged(t, [argument for argument, _, _ in changed])
    for _, lvalue, value in changed:
        lvalue.store(value)
