"""`with` in kernels: blocks of `stream_parallel` below the top of a kernel are run in order; blocks of graphs are refused there."""

from __future__ import annotations

import ast

from spirograd.lang import graph_statements
from spirograd.lang.frontend.call_effects import static_callee
from spirograd.lang.frontend.control import block
from spirograd.lang.frontend.tracer import Handler, Tracer
from spirograd.lang.frontend.unsupported import unsupported

_BLOCKS = {
    graph_statements.parallel_context: "graph.parallel_context",
    graph_statements.parallel: "graph.parallel",
    graph_statements.checkpoint: "checkpoint",
}
_TOP = "move it to the top level of the kernel, or of a `graph.do_while` loop there"


def _with(t: Tracer, node: ast.With) -> None:
    callees = [static_callee(t, i.context_expr.func) if isinstance(i.context_expr, ast.Call) else None for i in node.items]
    if callees == [graph_statements.stream_parallel]:
        block(t, node.body)
        return
    for callee, name in _BLOCKS.items():
        if any(each is callee for each in callees):
            raise t.syntax_error(f"`{name}` cannot stand here", node, _TOP)
    what, hint = unsupported(node)
    raise t.syntax_error(f"{what} is not supported in kernels", node, hint)


def refuse_graph_loop(t: Tracer, node: ast.While) -> None:
    """Raise SpirogradSyntaxError for a loop of `graph.do_while` that is traced: those at the top of a graph are not."""
    if isinstance(node.test, ast.Call) and static_callee(t, node.test.func) is graph_statements.do_while:
        hint = f"{_TOP}, and decorate the kernel with `@sg.kernel(graph=True)`"
        raise t.syntax_error("`graph.do_while` cannot stand here", node, hint)


HANDLERS: dict[type[ast.AST], Handler] = {ast.With: _with}
