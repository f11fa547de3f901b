"""The functions that trace syntax nodes, joined in one table."""

from __future__ import annotations

import ast

from spirograd.lang.frontend import (
    access,
    assignments,
    calls,
    expressions,
    formatted_text,
    function_bodies,
    graph_blocks,
    loops,
    operators,
    serial_loops,
    statements,
)
from spirograd.lang.frontend.tracer import Handler

_MODULES = (
    access, assignments, calls, expressions, formatted_text, function_bodies, graph_blocks, loops, operators, serial_loops, statements,
)  # fmt: skip
HANDLERS: dict[type[ast.AST], Handler] = {kind: handler for module in _MODULES for kind, handler in module.HANDLERS.items()}
