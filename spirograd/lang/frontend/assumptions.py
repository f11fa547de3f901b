"""Assumptions of a trace about the part of the kernel that it has not reached.

What a loop carries, and how an access finds its cell, depends on what the kernel does later. The trace assumes that a fact of this kind
does not hold until it learns it. If it has relied on the opposite before, the kernel is traced once more, with the fact known.
"""

from __future__ import annotations

import ast

from spirograd.base.records import dataclass
from spirograd.lang.data.nodes import SNode


@dataclass(frozen=True, slots=True)
class Deactivates:
    """The kernel deactivates cells, so that the cell which a loop visits, or which was activated before, may be inactive."""


@dataclass(frozen=True, slots=True)
class HoldsCells:
    """No write of the kernel activates cells of ``node``."""

    node: SNode


@dataclass(frozen=True, slots=True)
class Changes:
    """A call changes the variable that its ``argument`` names."""

    argument: ast.expr


Fact = Deactivates | HoldsCells | Changes


class Contradiction(Exception):
    """The trace has relied on the opposite of what it has learned."""


class Assumptions:
    """The facts that are known, and those whose opposite the current trace relies on."""

    def __init__(self) -> None:
        self._known: set[Fact] = set()
        self._denied: set[Fact] = set()

    def begin_trace(self) -> None:
        self._denied.clear()

    def holds(self, fact: Fact) -> bool:
        """Return whether ``fact`` is known. If it is not, the trace relies on its opposite from now on."""
        if fact in self._known:
            return True
        self._denied.add(fact)
        return False

    def learn(self, *facts: Fact) -> None:
        """Record ``facts``. Raises Contradiction if the trace relies on the opposite of one."""
        self._known.update(facts)
        if not self._denied.isdisjoint(facts):
            raise Contradiction
