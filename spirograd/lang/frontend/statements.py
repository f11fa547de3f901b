"""The simple statements other than assignments: expressions, `break`, `continue`, `assert`, `pass`."""

from __future__ import annotations

import ast

import numpy as np

from spirograd.base.wording import did_you_mean
from spirograd.lang import forms, scalar
from spirograd.lang.frontend.call_effects import static_callee
from spirograd.lang.frontend.control import condition
from spirograd.lang.frontend.expressions import arguments
from spirograd.lang.frontend.formatted_text import emit_assert, text_parts
from spirograd.lang.frontend.runtime_values import is_runtime
from spirograd.lang.frontend.syntax_facts import BREAK, CONTINUE
from spirograd.lang.frontend.tracer import Handler, Tracer
from spirograd.lang.frontend.unrolling import StaticBreak, StaticContinue
from spirograd.lang.scalar import Value, describe, type_error


def _expression(t: Tracer, node: ast.Expr) -> None:
    if isinstance(node.value, ast.Call) and static_callee(t, node.value.func) is forms.loop_config:
        t.loop_options = t.located(_loop_config, node.value)
        return
    t.expression(node.value)


def _loop_config(t: Tracer, node: ast.Call) -> dict[str, object]:
    """Return the options for the next loop. Raises SpirogradTypeError for one that the family does not have."""
    positional, options = arguments(t, node)
    t.at(node)
    if positional:
        raise type_error("`loop_config` takes keyword arguments only", "as in `loop_config(serialize=True)`")
    for name, value in options.items():
        if name not in forms.LOOP_OPTIONS:
            known = f"it takes {', '.join(f'`{option}`' for option in forms.LOOP_OPTIONS)}"
            raise type_error(f"`loop_config` has no option `{name}`", did_you_mean(name, forms.LOOP_OPTIONS) or known)
        if is_runtime(value):
            raise type_error(f"option `{name}` of `loop_config` must be known while compiling", "use a constant or a template argument")
    size = scalar.known(options.get("block_dim"))
    if size is not None and (isinstance(size, bool) or not isinstance(size, (int, np.integer))):
        raise type_error(f"`block_dim` is the number of threads of a group, got {describe(size)}", "pass an integer, or omit it")
    return options


def _jump(t: Tracer, node: ast.stmt, word: str, flag: str, static_exception: type[Exception]) -> None:
    if not t.frame.loops:
        raise t.syntax_error(f"`{word}` outside of a loop", node)
    loop = t.frame.loops[-1]
    if loop.kind == "static":
        if t.b.depth != loop.depth:
            raise t.syntax_error(
                f"`{word}` of an unrolled loop cannot depend on a run-time condition",
                node,
                "omit `sg.static` to loop at run time",
            )
        raise static_exception
    t.frame.variables[flag] = scalar.constant(True)


def _assert(t: Tracer, node: ast.Assert) -> None:
    if not t.trace.options.debug:
        return
    test = condition(t, node.test)
    message: object = f"assertion failed: {ast.unparse(node.test)}" if node.msg is None else t.expression(node.msg)
    t.at(node)
    if isinstance(message, (tuple, list, dict)) or message is None:
        raise t.syntax_error(f"the message of an `assert` is a string, not {describe(message)}", node, "values go into an f-string")
    if not isinstance(test, Value):
        if test:
            return
        test = scalar.constant(False)
    emit_assert(test, text_parts(message))


HANDLERS: dict[type[ast.AST], Handler] = {
    ast.Expr: _expression,
    ast.Break: lambda t, node: _jump(t, node, "break", BREAK, StaticBreak),
    ast.Continue: lambda t, node: _jump(t, node, "continue", CONTINUE, StaticContinue),
    ast.Assert: _assert,
    ast.Pass: lambda t, node: None,
}
