"""One function being traced: its source, its variables, and the loops around the statement being traced."""

from __future__ import annotations

import ast
from dataclasses import field

from spirograd.base.loc import Loc
from spirograd.base.records import dataclass
from spirograd.lang.frontend.assumptions import Changes
from spirograd.lang.frontend.source import Source


@dataclass(slots=True)
class LoopScope:
    """A loop around the statement being traced. ``kind``: "parallel", "serial" or "static"; ``depth``: of the builder inside; ``copies``:
    how often a static loop traces its body."""

    kind: str
    depth: int
    copies: int = 1


@dataclass(slots=True, eq=False)
class Frame:
    """A function being traced. ``returns``: the annotation of its result; ``caller``: where it is called, if it is inlined."""

    source: Source
    names: dict[str, object]  # what the function sees from outside
    is_kernel: bool
    returns: object = None
    caller: Loc | None = None
    variables: dict[str, object] = field(default_factory=dict)
    out_of_scope: dict[str, str] = field(default_factory=dict)  # names that have no value here any more -> why, for messages
    loops: list[LoopScope] = field(default_factory=list)
    by_reference: frozenset[str] = frozenset()
    may_lack_a_value: bool = False  # whether 0 is the result where no `return` is reached
    returns_nothing: bool = False  # whether a `return` without a value was traced
    depth: int = 0  # of the builder at the beginning of a function
    constants: frozenset[str] = frozenset()  # arguments of the kernel, which cannot change
    unchanged: set[Changes] = field(default_factory=set)  # what loops of this function assume that calls do not do
    locs: dict[ast.AST, Loc] = field(default_factory=dict)

    def loc(self, node: ast.AST) -> Loc:
        """Return where ``node`` stands in the user's file."""
        loc = self.locs.get(node)
        if loc is None:
            loc = self.locs[node] = self.source.loc(node, self.caller)
        return loc
