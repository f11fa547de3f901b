"""Predicts which variables calls change, before anything is evaluated.

Loops and branches need to know what their bodies change before they trace these. What a call is assumed to mutate is recorded with the
frame. A call that mutates more raises `UnassumedMutation`, and the kernel is traced again with the wider assumption.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from typing import Any

from spirograd.lang import forms
from spirograd.lang.frontend.call_targets import Callee, is_atomic, resolved, struct_method
from spirograd.lang.frontend.runtime_values import is_runtime
from spirograd.lang.frontend.syntax_facts import assigned
from spirograd.lang.frontend.tracer import Tracer
from spirograd.lang.struct import Struct


class UnassumedMutation(Exception):
    """A call mutates ``arguments``, which the loops around it do not carry: the kernel must be traced again, assuming that it does."""

    def __init__(self, call: ast.Call, arguments: Sequence[ast.expr]) -> None:
        super().__init__()
        self.call = call
        self.arguments = arguments


def changed_names(t: Tracer, statements: Sequence[ast.stmt]) -> set[str]:
    """What the statements may change: variables and flags of jumps."""
    return assigned(statements, functools.partial(changed_arguments, t))


def changed_arguments(t: Tracer, node: ast.Call) -> Sequence[ast.expr]:
    """The arguments that a call may change: those for parameters taken by reference, and the object of a method."""
    found = [*_known_to_change(t, node), *t.foreseen.get(node, ())]
    t.frame.reported[node] = t.frame.reported.get(node, frozenset(found)).intersection(found)
    return found


def check_foreseen(t: Tracer, node: ast.Call, arguments: Sequence[ast.expr]) -> None:
    """A call is about to change what ``arguments`` name: raises `UnassumedMutation` if a loop around it assumed otherwise."""
    reported = t.frame.reported.get(node)
    if reported is not None and not reported.issuperset(arguments):
        raise UnassumedMutation(node, arguments)


def _known_to_change(t: Tracer, node: ast.Call) -> Sequence[ast.expr]:
    callee = static_callee(t, node.func)
    if is_atomic(callee):
        return node.args[:1]
    if callee is None and isinstance(node.func, ast.Attribute):
        held = static_callee(t, node.func.value, variables=True)
        method = held.methods.get(node.func.attr) if isinstance(held, Struct) else None
        function = None if method is None else Callee(struct_method(method), (held,), has_object=True)
    else:
        function = resolved(callee)
    return () if function is None else function.changed_by(node)


def static_callee(t: Tracer, node: ast.expr, variables: bool = False) -> Any:
    """What a name or dotted name stands for, if that is known without evaluating anything at run time."""
    if isinstance(node, ast.Name):
        held = t.frame.variables.get(node.id)
        found = held if held is not None else t.frame.names.get(node.id)
        return found if variables or not is_runtime(found) else None
    if isinstance(node, ast.Attribute):
        base = static_callee(t, node.value)
        return getattr(base, node.attr, None) if base is not None else None
    return None


def is_static(t: Tracer, node: ast.expr) -> bool:
    """Whether an expression is `static(...)`."""
    return isinstance(node, ast.Call) and static_callee(t, node.func) is forms.static
