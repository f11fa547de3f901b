"""Emitters of vector values. Vectors of up to four elements are SPIR-V vectors (of one element: the scalar itself); longer ones are arrays.

An array that is indexed at run time lives in a Function variable, its *stack slot*. Values that a loop carries or a construct returns live
in the variable of that construct; `insert` writes into the stack slot of its operand where that is its last use, into a copy elsewhere.
"""

from __future__ import annotations

from spirograd.base.dtypes import DType, Type, Vec, u32, unsigned
from spirograd.ir import ops
from spirograd.ir.last_uses import LastUses
from spirograd.ir.nodes import Op, Region
from spirograd.spirvgen.emitter import Emitter

_REGISTER_LIMIT = 4


def is_large(t: Type) -> bool:
    """Return whether values of this type are arrays."""
    return isinstance(t, Vec) and t.n > _REGISTER_LIMIT


def _indexes(op: Op) -> bool:
    """Return whether ``op`` needs its vector in memory."""
    return op.code is ops.insert or (op.code is ops.extract and op.args[1].code is not ops.const)


class VectorStackSlots:
    """The stack slots of large vectors, some of which may be updated in place."""

    def __init__(self, e: Emitter, regions: tuple[Region, ...]) -> None:
        self._e = e
        self._stack_slots: dict[Op, int] = {}
        self._last_uses = LastUses(is_large)
        self._indexed: set[Op] = set()
        for region in regions:
            self._last_uses.scan(region)
            self._indexed.update([op.args[0] for op in region.walk() if _indexes(op) and is_large(op.args[0].type)])

    def shared_stack_slot(self, op: Op, k: int, taken: list[int]) -> int | None:
        """Return the stack slot for result ``k`` of an `if` if it is a vector from outside that the branches change and that is dead
        afterwards."""
        for arm in op.regions:
            root = arm.results[k]
            while root.code is ops.insert and root not in self._stack_slots:
                root = root.args[0]
            stack_slot = self._stack_slots.get(root)
            if stack_slot is not None and stack_slot not in taken and self._last_uses.is_last(op, root):
                return stack_slot
        return None

    def define(self, op: Op, value: int) -> None:
        """Record that ``op`` has the id ``value``, and give it a stack slot if it is indexed at run time."""
        self._e.ids[op] = value
        if op in self._indexed:
            stack_slot = self._stack_slots[op] = self._e.f.variable(self._e.type(op.type))
            self._e.f.store(stack_slot, value)

    def bind(self, op: Op, variable: int) -> None:
        """Record that ``op`` is in the variable of a construct."""
        e = self._e
        if is_large(op.type):
            self._stack_slots[op] = variable
        else:
            e.ids[op] = e.f.load(e.type(op.type), variable)

    def load(self, value: Op) -> int:
        """Load the array from its stack slot."""
        return self._e.f.load(self._e.type(value.type), self._stack_slots[value])

    def lives_in(self, value: Op, variable: int) -> bool:
        return value not in self._e.ids and self._stack_slots.get(value) == variable

    def element(self, value: Op, index: int) -> int:
        """Return a pointer to an element of a vector that has a stack slot."""
        e = self._e
        assert isinstance(value.type, Vec)
        return e.f.value("AccessChain", e.m.pointer("Function", e.type(value.type.elem)), self._stack_slots[value], index)

    def has(self, value: Op) -> bool:
        return value in self._stack_slots

    def update(self, op: Op, source: Op) -> None:
        """Give ``op`` (an insert into ``source``) a stack slot that holds ``source``: its own, if it is dead afterwards."""
        e = self._e
        if source in self._stack_slots and self._last_uses.is_last(op, source):
            self._stack_slots[op] = self._stack_slots[source]
            return
        stack_slot = self._stack_slots[op] = e.f.variable(e.type(op.type))
        e.f.store(stack_slot, e.id(source))


def _index(e: Emitter, index: Op, count: int) -> int:
    """Return ``index`` as u32 below ``count``, so that no other memory is accessed."""
    if index.code is ops.const:
        return e.const(min(max(int(index.attr), 0), count - 1), u32)
    t = index.type
    assert isinstance(t, DType)
    value = e.bitcast(e.ids[index], t, unsigned(t))
    if t.bits != 32:
        value = e.f.value("UConvert", e.type(u32), value)
    return e.f.glsl("UMin", e.type(u32), value, e.const(count - 1, u32))


def emit_vec(e: Emitter, op: Op) -> None:
    if len(op.args) == 1:
        e.ids[op] = e.ids[op.args[0]]
        return
    e.stack_slots.define(op, e.f.value("CompositeConstruct", e.type(op.type), *[e.ids[a] for a in op.args]))


def emit_extract(e: Emitter, op: Op) -> None:
    vector, index = op.args
    t = vector.type
    assert isinstance(t, Vec)
    if vector in e.factors:
        return  # Products, the only users, take all entries together.
    element = e.type(t.elem)
    if t.n == 1:
        e.ids[op] = e.ids[vector]
    elif index.code is ops.const and vector in e.ids:
        e.ids[op] = e.f.value("CompositeExtract", element, e.ids[vector], min(max(int(index.attr), 0), t.n - 1))
    elif e.stack_slots.has(vector):
        e.ids[op] = e.f.load(element, e.stack_slots.element(vector, _index(e, index, t.n)))
    else:
        e.ids[op] = e.f.value("VectorExtractDynamic", element, e.ids[vector], _index(e, index, t.n))


def emit_insert(e: Emitter, op: Op) -> None:
    vector, index, value = op.args
    t = vector.type
    assert isinstance(t, Vec)
    if t.n == 1:
        e.ids[op] = e.ids[value]
    elif is_large(t):
        where = _index(e, index, t.n)
        e.stack_slots.update(op, vector)
        e.f.store(e.stack_slots.element(op, where), e.ids[value])
    elif index.code is ops.const:
        at = min(max(int(index.attr), 0), t.n - 1)
        e.ids[op] = e.f.value("CompositeInsert", e.type(t), e.ids[value], e.ids[vector], at)
    else:
        e.ids[op] = e.f.value("VectorInsertDynamic", e.type(t), e.ids[vector], e.ids[value], _index(e, index, t.n))
