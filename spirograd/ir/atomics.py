"""Properties of atomic operations that do not depend on their memory."""

from __future__ import annotations

from spirograd.ir import ops
from spirograd.ir.nodes import Op

# Atomics of integers that keep the old value if their operand is 0.
_KEEPING = frozenset(("add", "or", "xor"))


def only_reads(op: Op) -> bool:
    """Return whether an atomic changes nothing, as `volatile_load` of an integer emits it. Targets load atomically instead, which needs no
    exclusive access to the memory."""
    (kind, ref), value = op.attr, op.args[-1]
    return kind in _KEEPING and value.code is ops.const and value.attr == 0 and ref.dtype.is_int
