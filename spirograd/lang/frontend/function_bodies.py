"""Bodies of functions, and `return`.

A function whose `return` statements all end their branch needs nothing but a variable for its value. Others have a flag, too, that tells
whether the function has returned. Where it has not, the value is 0, which nothing reads.
"""

from __future__ import annotations

import ast

from spirograd.base.dtypes import DType
from spirograd.base.errors import render
from spirograd.lang import arithmetic, scalar
from spirograd.lang.frontend.branches import DIFFERENT_KINDS, ONE_BRANCH
from spirograd.lang.frontend.control import block
from spirograd.lang.frontend.func import is_scalar_type
from spirograd.lang.frontend.runtime_values import pack_tuple, settle
from spirograd.lang.frontend.syntax_facts import RESULT, RETURNED, jumps, may_end, returns_end_branches
from spirograd.lang.frontend.tracer import Handler, Tracer
from spirograd.lang.frontend.type_errors import operand_hint
from spirograd.lang.leaves import AggregateType, as_type, build, leaf_dtypes
from spirograd.lang.matrix import Matrix
from spirograd.lang.scalar import describe, type_error
from spirograd.lang.tuples import TupleType

_MISSING = "<missing value>"


def function_body(t: Tracer, statements: list[ast.stmt]) -> None:
    """Trace the body of the current frame; the value it returns is left in its variable RESULT."""
    if t.frame.may_lack_a_value and isinstance(t.frame.returns, (DType, AggregateType)) and may_end(statements):
        statements = _completed(t, statements) if RETURNED in jumps(statements) else statements
    if not returns_end_branches(statements):
        t.frame.variables[RETURNED] = scalar.constant(False)
    block(t, statements)
    _check_result(t, statements)


def _completed(t: Tracer, statements: list[ast.stmt]) -> list[ast.stmt]:
    """Return the statements of a function that may end without a value, and warn of it: then the value is 0, and an error in debug mode.
    In the Taichi family it is undefined."""
    frame = t.frame
    tree, result = frame.source.tree, as_type(frame.returns)
    problem = f"function `{tree.name}` may end without `return`"
    t.trace.warn((tree.name, frame.source), render(f"{problem}: its value is 0 then", frame.loc(tree), "end every path with `return`"))
    frame.variables[_MISSING] = build(result, [scalar.constant(0, dtype) for dtype in leaf_dtypes(result)])
    failed = ast.Assert(ast.Constant(False), ast.Constant(f"function `{tree.name}` ended without `return`"))
    ends = [*([failed] if t.trace.options.debug else []), ast.Return(ast.Name(_MISSING, ast.Load()))]
    return [*statements, *(ast.fix_missing_locations(ast.copy_location(end, tree)) for end in ends)]


def _check_result(t: Tracer, statements: list[ast.stmt]) -> None:
    """Raise SpirogradSyntaxError unless all paths of a function return a value of one kind, or none does."""
    frame = t.frame
    why = frame.out_of_scope.get(RESULT, "") if RESULT not in frame.variables else ""
    flagged = RETURNED in frame.variables and RESULT in frame.variables
    if flagged and (frame.returns_nothing or (scalar.known(frame.variables[RETURNED]) is not True and may_end(statements))):
        why = ONE_BRANCH
    if why:
        what = "returns values of different kinds" if why == DIFFERENT_KINDS else "returns a value, but not on every path"
        tree = frame.source.tree
        kind = "kernel" if frame.is_kernel else "function"
        raise t.syntax_error(f"{kind} `{tree.name}` {what}", tree, "end every path with `return`, and values of one shape")


def _return(t: Tracer, node: ast.Return) -> None:
    frame = t.frame
    if any(loop.kind == "parallel" for loop in frame.loops) and frame.is_kernel:
        raise t.syntax_error("a parallel loop cannot return from the kernel", node, "store the result, and return it after the loop")
    value = None if node.value is None else t.expression(node.value)
    t.at(node)
    value = _returned(t, value, node)
    if value is None:
        frame.returns_nothing = True
    else:
        frame.variables[RESULT] = value
    if RETURNED in frame.variables:
        frame.variables[RETURNED] = scalar.constant(True)


def _returned(t: Tracer, value: object, node: ast.Return) -> object:
    """Return the value of a `return`, converted to the type that the annotation of the function names."""
    frame, annotation = t.frame, t.frame.returns
    if annotation in (None, type(None)) and frame.is_kernel and value is not None:
        raise t.syntax_error("a kernel that returns a value must say of what type", node, "annotate it: `def f(...) -> sg.f32:`")
    if is_scalar_type(annotation):
        if isinstance(value, Matrix) and not frame.is_kernel:  # the type of its entries, as in the Taichi family
            return arithmetic.cast(value, annotation)
        if not scalar.is_scalar(value):
            hint = operand_hint(value) if value is not None else ""
            raise type_error(f"cannot return {describe(value)} as {arithmetic.as_dtype(annotation)}", hint)
        return scalar.cast(value, arithmetic.as_dtype(annotation))
    if isinstance(annotation, TupleType):
        return pack_tuple(annotation.converted(value))
    if isinstance(annotation, AggregateType):
        return settle(annotation.converted(value))
    if isinstance(value, tuple) and not frame.is_kernel and t.b.depth > frame.depth:
        return pack_tuple(value)
    return settle(value)


HANDLERS: dict[type[ast.AST], Handler] = {ast.Return: _return}
