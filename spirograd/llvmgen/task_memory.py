"""The memory that a task of a GPU writes, and the metadata of loads and stores from which LLVM knows what it cannot overlap."""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.ir.nodes import BufferRef, Op, accesses_of
from spirograd.llvmgen.module import ModuleText

# A kind, an index and a role of slots.
Memory = tuple[str, int, str]
# The arrays without marks (`BufferRef.disjoint`), any of which may overlap any other array.
_ARRAYS: Memory = ("array", -1, "")
_OUTSIDE = frozenset(("array", "tree"))  # the kinds of memory that may overlap memory of another kind


def _memory_of(ref: BufferRef) -> Memory:
    slot = ref.slot
    return _ARRAYS if slot.kind == "array" and not ref.disjoint else (slot.kind, slot.index, slot.role)


def _overlap(a: Memory, b: Memory) -> bool:
    """Return whether two pieces of memory may have bytes in common."""
    return a == b or ({a[0], b[0]} <= _OUTSIDE and (a[0] != b[0] or _ARRAYS in (a, b)))


def written_by(task: Op) -> frozenset[Memory]:
    """Return the memory that a task writes."""
    accesses = [access for op in task.regions[0].walk() for access in accesses_of(op)]
    return frozenset([_memory_of(ref) for effect, ref in accesses if effect != "read" and isinstance(ref, BufferRef)])


class TaskMemory:
    """The metadata of accesses of a task. ``written``: the memory that it writes.

    Loads of memory that it does not write are invariant. Each piece of memory that it writes is an alias scope of its own.
    """

    def __init__(self, module: ModuleText, written: frozenset[Memory]) -> None:
        self._module = module
        self._written = sorted(written)
        self._scopes: dict[Memory, str] = {}
        self._suffixes: dict[Memory, str] = {}

    def suffix(self, ref: BufferRef) -> str:
        """Return the metadata of a plain access to ``ref``."""
        memory = _memory_of(ref)
        if memory not in self._suffixes:
            self._suffixes[memory] = self._suffix(memory)
        return self._suffixes[memory]

    def _suffix(self, memory: Memory) -> str:
        others = [other for other in self._written if not _overlap(memory, other)]
        if len(others) == len(self._written):
            return ", !invariant.load !0"
        own = [memory] if memory in self._written and len(self._written) > 1 else []
        return self._listed("alias.scope", own) + self._listed("noalias", others)

    def _listed(self, kind: str, memories: Sequence[Memory]) -> str:
        """Return metadata of a kind that lists scopes."""
        return f", !{kind} {self._module.node(f'!{{{self._scopes_of(memories)}}}')}" if memories else ""

    def _scopes_of(self, memories: Sequence[Memory]) -> str:
        if not self._scopes:
            node = self._module.node
            domain = node("distinct !{{self}}")
            self._scopes = {written: node(f"distinct !{{{{self}}, {domain}}}") for written in self._written}
        return ", ".join([self._scopes[memory] for memory in memories])
