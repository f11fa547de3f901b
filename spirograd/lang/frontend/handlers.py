"""The functions that trace syntax nodes, joined in one table for expressions and one for statements."""

from __future__ import annotations

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
from spirograd.lang.frontend.tracer import Handlers

HANDLERS = Handlers(
    expressions={
        **expressions.HANDLERS,
        **access.HANDLERS,
        **operators.HANDLERS,
        **calls.HANDLERS,
        **formatted_text.HANDLERS,
    },
    statements={
        **statements.HANDLERS,
        **assignments.HANDLERS,
        **graph_blocks.HANDLERS,
        **loops.HANDLERS,
        **serial_loops.HANDLERS,
        **function_bodies.HANDLERS,
    },
)
