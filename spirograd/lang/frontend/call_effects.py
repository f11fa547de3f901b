"""The variables that calls change, predicted before anything is evaluated.

Loops need to know what their bodies change before they trace these. That a call whose target is not known yet changes nothing is one of the
`assumptions`.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence

from spirograd.lang import forms
from spirograd.lang.frontend.assumptions import Changes
from spirograd.lang.frontend.call_targets import known_to_change
from spirograd.lang.frontend.runtime_values import is_runtime
from spirograd.lang.frontend.syntax_facts import assigned, object_of
from spirograd.lang.frontend.tracer import Tracer


def changed_names(t: Tracer, statements: Sequence[ast.stmt]) -> set[str]:
    """Return what the statements may change: variables and flags of jumps."""
    return assigned(statements, functools.partial(changed_arguments, t))


def changed_arguments(t: Tracer, node: ast.Call) -> Sequence[ast.expr]:
    """Return the arguments that a call may change: those for parameters taken by reference, and the object of a method."""
    changed = [*(known_to_change(node, static_callee(t, node.func, variables=True)) or ())]
    held = [node.func.value] if isinstance(node.func, ast.Attribute) else []
    for argument in (*held, *node.args, *[k.value for k in node.keywords]):
        if argument not in changed:
            change = Changes(argument)
            if t.assumptions.holds(change):
                changed.append(argument)
            else:
                t.frame.unchanged.add(change)
    return changed


def check_unchanged(t: Tracer, arguments: Sequence[ast.expr]) -> None:
    """Raise Contradiction if a call changes what ``arguments`` name, and a loop around it assumes otherwise."""
    t.assumptions.learn(*t.frame.unchanged.intersection(map(Changes, arguments)))


def static_callee(t: Tracer, node: ast.expr, variables: bool = False) -> object:
    """Return what a name or dotted name stands for, if that is known without evaluating anything at run time. ``variables``: even if it is
    a value that the kernel computes, or a method of one."""

    def of_name(name: str) -> object:
        held = t.frame.variables.get(name)
        value = held if held is not None else t.frame.names.get(name)
        return value if variables or not is_runtime(value) else None

    return object_of(node, of_name)


def is_static(t: Tracer, node: ast.expr) -> bool:
    """Return whether an expression is `static(...)`."""
    return isinstance(node, ast.Call) and static_callee(t, node.func) is forms.static
